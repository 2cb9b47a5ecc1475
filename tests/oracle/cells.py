"""What the oracle compares: one cell is a model under one method, precision, kernel and batch."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.oracle.configs import CONFIGS, DENSE, EXPERTS, STATE_SPACE

EXPERT_TARGETS = ("gate_up_proj", "down_proj")
TARGETS: dict[str, tuple[str, ...]] = {
    "lora attention": ("attention",),
    "lora in_proj": ("in_proj",),
    "lora all-linear": ("all-linear",),
    "lora experts": EXPERT_TARGETS,
}
CHECKPOINTING: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"activation_checkpointing": "full", "checkpointing_reentrant": False},
    "reentrant": {"activation_checkpointing": "full", "checkpointing_reentrant": True},
}
PRECISION: dict[str, dict[str, Any]] = {
    "bf16": {"weights_dtype": "bf16"},
    "autocast": {"weights_dtype": "fp32", "autocast": "bf16"},
}
BATCHES = ((2, 128), (1, 320), (3, 96))
CORE = (
    *("llama", "llama-128k-words", "llama-biased-tied", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"),
    *(
        "olmo2",
        "gpt2",
        "opt",
        "opt-narrow-words",
        "gpt_neox",
        "cohere",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "gpt_oss",
    ),
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "mamba", "mamba2", "jamba", "bamba", "granitemoehybrid"),
    *("nemotron_h", "qwen3_next"),
)
EVALUATED = tuple(name for name in (*CORE, "bloom") if name not in STATE_SPACE)  # others call kernels then
REPRESENTATIVE = ("llama", "gemma2", "gpt2", "mixtral", "deepseek_v3", "mamba2", "jamba")
WHOLE = ("llama3-8b", "mistralai/Mixtral-8x7B-v0.1", "bamba-9b")
# PEFT refuses out_proj of Mamba layers, wraps routers of Phi-3.5-MoE and Llama 4, which return pairs, and the
# low-rank adapters that every copy of Zamba2's shared block has for every layer
NO_LORA = frozenset(
    {"mamba", "falcon_mamba", "mamba2", "nemotron_h", "falcon_h1", "phimoe", "llama4_text", "zamba2"}
)
# PEFT's DoRA refuses bare parameters; GPT-2's Conv1D is 40 % off, Phi-3's joined projections 3 %
NO_DORA = frozenset({"gpt2", "phi3", "qwen3_next"})
NO_ATTENTION = frozenset({"mamba", "falcon_mamba", "mamba2"})
# Where a class does not take all three; its own flash attention calls the package and cannot be traced.
ATTENTION: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bloom", "codegen", "gpt_neo", "gptj", "mpt", "xglm"), ("eager",)),
    "minimax_m3_vl_text": ("sdpa", "eager"),
    **dict.fromkeys(("falcon", "falcon-new", "llama4_text"), ("sdpa", "eager")),
    **dict.fromkeys(("gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "vaultgemma"), ("flash", "eager")),
    **dict.fromkeys(NO_ATTENTION, ("flash",)),
}


def attentions(model: str) -> tuple[str, ...]:
    """Return the attention implementations to compare a model under."""
    return ATTENTION.get(model, ("flash", "sdpa", "eager"))


class Cell(NamedTuple):
    """One comparison."""

    model: str
    method: str = "full"
    checkpointing: str = "none"
    attention: str = "flash"
    precision: str = "bf16"
    batch: tuple[int, int] = BATCHES[0]
    loss: str = "full_logits"
    adapter_dtype: str = "bf16"
    extra: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Return what tells this cell from the others."""
        sizes = f"{self.batch[0]}x{self.batch[1]}"
        parts = [self.model, self.method, self.checkpointing, self.attention, self.precision, sizes]
        parts += [self.loss] if self.loss != "full_logits" else []
        parts += [f"{self.adapter_dtype} adapters"] if self.adapter_dtype != "bf16" else []
        return " · ".join([*parts, *(f"{name}={value}" for name, value in self.extra)])

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Run` beside the model."""
        batch, length = self.batch
        fields: dict[str, Any] = {
            "method": "full",
            "attention": self.attention,
            "loss": self.loss,
            "micro_batch_size": batch,
            "seq_len": length,
            **CHECKPOINTING[self.checkpointing],
            **PRECISION[self.precision],
        }
        if self.method != "full":
            fields |= {
                "method": "lora",
                "lora_rank": 8,
                "lora_targets": TARGETS[self.method],
                "adapter_dtype": self.adapter_dtype,
            }
        return fields | dict(self.extra)


def methods(model: str) -> tuple[str, ...]:
    """Return the methods that make sense for a model."""
    found = ["full"]
    found.append("lora in_proj" if model in NO_ATTENTION else "lora attention")
    if model not in NO_LORA:
        found.append("lora all-linear")
    if model in EXPERTS:
        found.append("lora experts")
    return tuple(found)


def cells_of(model: str) -> Iterator[Cell]:
    """Yield the cells of one model: all of them for `CORE`, the commonest for the others."""
    yield from _every_cell(model) if model in CORE else _common_cells(model)


def plain(model: str, method: str = "full", checkpointing: str = "none", **other: Any) -> Cell:
    """Return a cell with the first attention implementation that the model offers."""
    return Cell(model, method, checkpointing, attentions(model)[0], **other)


def _common_cells(model: str) -> Iterator[Cell]:
    """Yield a cell or two for each method and each checkpointing."""
    other = attentions(model)[-1]
    yield plain(model)
    if other != attentions(model)[0]:
        yield Cell(model, attention=other, batch=BATCHES[1])
    yield plain(model, checkpointing="full", batch=BATCHES[2])
    yield Cell(model, checkpointing="reentrant", attention=other)
    yield plain(model, precision="autocast", batch=BATCHES[2])
    for method in methods(model)[1:]:
        yield plain(model, method, batch=BATCHES[1])
        yield Cell(model, method, "full", attention=other)
    yield plain(model, methods(model)[-1], precision="autocast", adapter_dtype="fp32")


def _every_cell(model: str) -> Iterator[Cell]:
    """Yield the product of the axes, with the batch going round, and one cell for each odd choice."""
    turn = 0
    for method in methods(model):
        for checkpointing in ("none", "full"):
            for attention in attentions(model):
                turn += 1
                yield Cell(model, method, checkpointing, attention, batch=BATCHES[turn % len(BATCHES)])
            yield plain(model, method, checkpointing, precision="autocast", adapter_dtype="fp32")
        yield plain(model, method, "reentrant", batch=BATCHES[1])
    yield plain(model, loss="chunked", batch=BATCHES[1])
    yield plain(model, methods(model)[-1], "full", loss="chunked")
    if model not in EXPERTS and model not in NO_LORA:  # PEFT adapts no bare parameters under dropout
        yield plain(model, "lora all-linear", adapter_dtype="fp32", extra=(("lora_dropout", 0.1),))
    if model not in EXPERTS and model not in NO_LORA and model not in NO_DORA:
        yield plain(model, "lora all-linear", extra=(("adapter", "dora"),))
    yield plain(model, extra=(("gradient_accumulation_steps", 2),))
    yield plain(model, checkpointing="full", extra=(("optimizer_implementation", "foreach"),))
    if model in STATE_SPACE:
        yield plain(model, extra=(("ssm_kernels", "slow"),))  # more than one chunk, whose slices are copied
    if model in EXPERTS:
        yield plain(model, extra=(("experts_implementation", "eager"),), batch=(2, 64))


def evaluation_cells(model: str) -> Iterator[Cell]:
    """Yield evaluations of one model, with every attention implementation in two batches."""
    for attention in attentions(model):
        for batch in BATCHES[:2]:
            yield Cell(model, attention=attention, batch=batch, extra=(("phase", "evaluate"),))


def whole_cells() -> list[Cell]:
    """Return cells of whole models as published, traced at their full size."""
    full = [Cell(name, batch=(1, 1024)) for name in WHOLE]
    return full + [Cell(name, "lora attention", "full", batch=(2, 2048)) for name in WHOLE]


def all_cells(models: list[str] | None = None) -> list[Cell]:
    """Return the cells of all models, or of those whose name contains one of `models`."""
    cells = [cell for name in CONFIGS for cell in cells_of(name)] + whole_cells()
    cells += [cell for name in EVALUATED for cell in evaluation_cells(name)]
    return [cell for cell in cells if models is None or any(part in cell.model for part in models)]


# Whose worst moment is like no other's: experts in turns, experts that compute all, scans in PyTorch ...
UNLIKE = (
    Cell("qwen3_moe", batch=(2, 64), extra=(("experts_implementation", "eager"),)),
    Cell("llama4_text", "lora experts", "full", "eager"),
    Cell("llama4_text", "lora attention", "full", "eager"),
    Cell("mamba", extra=(("ssm_kernels", "slow"),)),
    Cell("bamba", "lora attention", "full", "eager"),
    Cell("falcon", checkpointing="full", attention="sdpa", batch=(3, 96)),
    Cell("granitemoe_swa", "lora experts", "full", "eager"),
    Cell("gemma4_text", "lora attention", "full", "eager"),
    Cell("opt-narrow-words", loss="chunked", batch=(1, 320)),
)


def representative_cells() -> list[Cell]:
    """Return some seventy cells that touch every kind of model, method, kernel and precision."""
    found = [cell for name in REPRESENTATIVE for cell in cells_of(name)][::6]
    rest = [name for name in (*DENSE, *EXPERTS, *STATE_SPACE) if name not in REPRESENTATIVE]
    found += [plain(name, batch=BATCHES[i % len(BATCHES)]) for i, name in enumerate(rest) if i % 2 == 0]
    found += [next(evaluation_cells(name)) for name in REPRESENTATIVE if name in EVALUATED]
    return found + [cell for cell in UNLIKE if cell not in found]
