"""Weights as a method trains them: linears in 4 or 8 bit, fused experts taken apart, PEFT's adapters.

Every linear is replaced, as bitsandbytes' integration in transformers does, but the head, the routers, and
Mamba's step projection, whose weight the mixer reads past its module. Quantising is done on the device that
the model is for, one linear at a time.

Transformers 5 holds the experts of a layer as two tensors, which bitsandbytes passes by. Here they are taken
apart into the w1, w3 and w2 that transformers 4 had; the result is the same, to the last bit in fp32.

Adapters stand on what a run's `lora_targets` mean. Names of modules become `target_modules`, names of bare
parameters (fused experts, their router) `target_parameters`, and what PEFT makes of them stands. Where
experts have been taken apart, PEFT is kept from reading their names as the fused parameters that are not
there any more, and "all-linear" reaches their router as it did when that was a linear.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from finegauge.errors import UnsupportedError
from finegauge.measurement.instruments.module_roles import layers_of
from finegauge.measurement.subject import DTYPES
from finegauge.model.adapters import IA3_FEEDFORWARD, LAYER_NORMS
from finegauge.model.lowering import MAMBA_REFUSED, MAMBA_TYPES, UNFUSED_NAMES
from finegauge.run.rules import INFERENCE, OFF_PROJECTIONS
from finegauge.run.run import Run


class Expert(nn.Module):
    """One expert: w2(act(w1 x) · w3 x), or w2(act(w1 x)) where it has no gate."""

    def __init__(self, sizes: tuple[int, int], act: Any, *, gated: bool, bias: bool, like: Tensor) -> None:
        """Make an expert of (hidden size, intermediate size), its weights as `like` in dtype and device."""
        super().__init__()
        hidden, inner = sizes
        place = {"device": like.device, "dtype": like.dtype}
        self.w1 = nn.Linear(hidden, inner, bias=bias, **place)
        if gated:
            self.w3 = nn.Linear(hidden, inner, bias=bias, **place)
        self.w2 = nn.Linear(inner, hidden, bias=bias, **place)
        self.act_fn = act
        self.gated = gated

    def forward(self, states: Tensor) -> Tensor:
        """Return the expert's answer to [tokens, hidden] states."""
        inner = self.act_fn(self.w1(states))
        return self.w2(inner * self.w3(states) if self.gated else inner)


class UnfusedExperts(nn.ModuleList):
    """The experts of one layer as a list of modules, run one after the other over their own tokens."""

    def __init__(self, experts: list[Expert]) -> None:
        super().__init__(experts)
        self.num_experts = len(experts)

    def forward(self, states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts, as transformers' loop computes it."""
        out = torch.zeros_like(states)
        for number, expert in enumerate(self):
            token, place = torch.where(top_k_index == number)
            if not token.numel():
                continue
            answer = expert(states[token]) * top_k_weights[token, place, None]
            out.index_add_(0, token, answer.to(out.dtype))
        return out


def is_fused(module: nn.Module) -> bool:
    """Return whether a module holds the experts of a layer as 3-dimensional tensors."""
    down = getattr(module, "down_proj", None)
    return isinstance(down, nn.Parameter) and down.dim() == 3


def unfuse_experts(model: nn.Module) -> int:
    """Replace the fused experts of every layer; return of how many layers.

    On shapes ("meta") there are no weights to copy, and none are.
    Raises: UnsupportedError for experts that are more than linears and an activation.
    """
    fused = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if is_fused(child)
    ]
    for module, name, child in fused:
        setattr(module, name, _apart(child))
    return len(fused)


def _apart(fused: Any) -> UnfusedExperts:
    _refuse_unusual(fused)
    first = fused.gate_up_proj if fused.has_gate else fused.up_proj
    if fused.is_transposed:
        _, hidden, width = first.shape
    else:
        _, width, hidden = first.shape
    inner = width // 2 if fused.has_gate else width
    experts = []
    for number in range(len(first)):
        expert = Expert(
            (hidden, inner), fused.act_fn, gated=fused.has_gate, bias=fused.has_bias, like=fused.down_proj
        )
        if not first.is_meta:
            _copy(fused, number, expert)
        experts.append(expert)
    return UnfusedExperts(experts)


def _refuse_unusual(fused: Any) -> None:
    own_gate = type(fused)._apply_gate.__module__ != "transformers.integrations.moe"
    if own_gate or getattr(fused, "has_post_expert_norm", False) or not fused.is_concatenated:
        raise UnsupportedError(
            f"{type(fused).__name__} is more than three linears and an activation per expert, so its experts "
            f"cannot be taken apart; use quantize_experts=false."
        )


@torch.no_grad()
def _copy(fused: Any, number: int, expert: Expert) -> None:
    first = fused.gate_up_proj if fused.has_gate else fused.up_proj
    parts = [first[number], fused.down_proj[number]]
    if fused.is_transposed:
        parts = [part.T for part in parts]
    halves = parts[0].chunk(2) if fused.has_gate else (parts[0],)
    for linear, weight in zip(_linears(expert), (*halves, parts[1]), strict=True):
        linear.weight.copy_(weight)
    if fused.has_bias:
        bias = (fused.gate_up_proj_bias if fused.has_gate else fused.up_proj_bias)[number]
        halves = bias.chunk(2) if fused.has_gate else (bias,)
        for linear, value in zip(_linears(expert), (*halves, fused.down_proj_bias[number]), strict=True):
            linear.bias.copy_(value)


def _linears(expert: Expert) -> tuple[nn.Linear, ...]:
    return (expert.w1, expert.w3, expert.w2) if expert.gated else (expert.w1, expert.w2)


QUANTISABLE = (nn.Linear, Conv1D)
UNTOUCHED = ("dt_proj", "router", "gate")
REPACKED_OUTPUTS, REPACKED_INPUTS = 32, 64  # both of a linear are multiples of these, to be repacked


def quantize(model: Any, run: Run, device: torch.device) -> None:
    """Hold the linears of `model` in the format of `run.weights_dtype`, everything on `device`.

    A model of shapes ("meta") gets random weights first, one layer at a time, as its class
    initialises them, so that it never takes more than its quantised self and one layer.
    """
    head = model.get_output_embeddings()
    random = any(parameter.is_meta for parameter in model.parameters())
    done: set[nn.Module] = set()
    for part in (*layers_of(model), model):
        if random:
            _materialise(part, device)
            _initialise(part, model, done)
        for owner in list(part.modules()):
            for name, child in list(owner.named_children()):
                if type(child) in QUANTISABLE and child is not head and name not in UNTOUCHED:
                    made = _quantized(child, run, device)
                    setattr(owner, name, made)
                    done.add(made)
        done.update(part.modules())


def _materialise(part: nn.Module, device: torch.device) -> None:
    for module in part.modules():
        if any(t.is_meta for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            module.to_empty(device=device, recurse=False)


def _initialise(module: nn.Module, owner: Any, done: set[nn.Module]) -> None:
    """Give a module's parts and itself random weights, as the model that owns it does; what is done stays."""
    owner = module if hasattr(module, "_init_weights") else owner
    if module in done:
        return
    for child in module.children():
        _initialise(child, owner, done)
    owner._init_weights(module)


def compute_dtype(run: Run) -> torch.dtype:
    """Return the dtype in which the quantised linears compute and all else is held."""
    return DTYPES["fp16" if run.autocast == "fp16" else "bf16"]


def prepare_for_k_bit(model: Any) -> None:
    """Make what is not quantised fp32, as PEFT's preparation for k-bit training does."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


def repacks_for_inference(device: torch.device) -> bool:
    """Return whether bitsandbytes repacks 4-bit weights here when a module out of training is first called.

    It does so (0.50) on processors with AVX512-BF16, whose kernel then dequantises nothing: the scales of
    the blocks become bf16, in the order in which the kernel reads them. It gives no gradients, and weights
    once repacked stay so in training.
    """
    if device.type != "cpu":
        return False
    from bitsandbytes.nn import modules

    probe = getattr(modules, "has_avx512bf16", None)
    return probe is not None and bool(probe())


def repackable(outputs: int, inputs: int) -> bool:
    """Return whether bitsandbytes can repack a linear of these sizes."""
    return not (outputs % REPACKED_OUTPUTS or inputs % REPACKED_INPUTS)


def _check_repackable(outputs: int, inputs: int) -> None:
    if not repackable(outputs, inputs):
        raise UnsupportedError(
            f"A linear of {inputs} inputs and {outputs} outputs cannot run in 4 bit for inference on this "
            "processor: for AVX512-BF16 bitsandbytes repacks weights in "
            f"blocks of {REPACKED_INPUTS} inputs and {REPACKED_OUTPUTS} outputs; use multiples of these, or "
            "weights_dtype=int8."
        )


def _quantized(linear: Any, run: Run, device: torch.device) -> nn.Module:
    import bitsandbytes

    weight = linear.weight.data.T.contiguous() if isinstance(linear, Conv1D) else linear.weight.data
    outputs, inputs = weight.shape
    bias = linear.bias is not None
    if run.weights_dtype == "int8":
        made = bitsandbytes.nn.Linear8bitLt(inputs, outputs, bias=bias, has_fp16_weights=False, threshold=6.0)
        made.weight = bitsandbytes.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
    else:
        how = {"quant_type": "nf4", "compress_statistics": run.weights_dtype == "nf4_dq"}
        made = bitsandbytes.nn.Linear4bit(
            inputs, outputs, bias=bias, compute_dtype=compute_dtype(run), device="meta", **how
        )
        made.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, **how)
        made.support_avx512bf16_for_cpu = False  # a model that trains needs weights that give gradients
        if run.phase in INFERENCE and repacks_for_inference(device):
            _check_repackable(outputs, inputs)
            made.support_avx512bf16_for_cpu = True
    if bias:
        made.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    return made.to(device)


def adapted(model: Any, run: Run, device: str) -> Any:
    """Return `model` with PEFT's adapters on what `lora_targets` means, in `adapter_dtype`."""
    from peft import get_peft_model

    with _own_names(model):
        wrapped = get_peft_model(
            model,
            _config(model, run),
            low_cpu_mem_usage=device == "meta",
            autocast_adapter_dtype=run.adapter_dtype == "fp32",
        )
    wanted = DTYPES[run.adapter_dtype]
    saved = "modules_to_save"
    for name, parameter in list(wrapped.named_parameters()):
        if parameter.requires_grad and saved not in name and parameter.dtype != wanted:
            owner, _, leaf = name.rpartition(".")
            fresh = torch.nn.Parameter(parameter.detach().to(wanted))
            _put(wrapped.get_submodule(owner), leaf, fresh)
        if run.adapter == "lora_fa" and "lora_A" in name:  # as its optimizer does when it is made
            wrapped.get_parameter(name).requires_grad_(False)
    return wrapped


def _put(owner: Any, leaf: str, parameter: Any) -> None:
    if isinstance(owner, torch.nn.ParameterDict | torch.nn.ParameterList):
        owner[leaf] = parameter  # type: ignore[index]
    else:
        setattr(owner, leaf, parameter)


def _config(model: Any, run: Run) -> Any:
    """Return PEFT's configuration of a run's adapter."""
    import peft

    kind, size, task = run.adapter, run.adapter_size, "CAUSAL_LM"
    modules, parameters = (), list[str]()
    if kind not in OFF_PROJECTIONS:
        modules, parameters = lora_targets(model, run.lora_targets)
    prompt = {"num_virtual_tokens": size, "task_type": task}
    rest: dict[str, Any] = {
        "target_modules": modules,
        "modules_to_save": _saved(model, run.trainable_extra) or None,
        "task_type": task,
    }
    rank, drop, hidden = {"r": run.lora_rank}, run.lora_dropout, run.adapter_hidden_size
    made = {
        "prompt_tuning": lambda: peft.PromptTuningConfig(**prompt),
        "p_tuning": lambda: peft.PromptEncoderConfig(encoder_hidden_size=hidden, **prompt),
        "prefix_tuning": lambda: peft.PrefixTuningConfig(
            prefix_projection=hidden is not None, encoder_hidden_size=hidden, **prompt
        ),
        "trainable_tokens": lambda: peft.TrainableTokensConfig(
            token_indices=[*range(size or 0)], task_type=task
        ),
        "ln_tuning": lambda: peft.LNTuningConfig(target_modules=_layer_norms(model), task_type=task),
        "vera": lambda: peft.VeraConfig(**rank, vera_dropout=drop, **rest),
        "adalora": lambda: peft.AdaLoraConfig(
            init_r=run.lora_rank, lora_alpha=run.lora_alpha, lora_dropout=drop, total_step=1000, tinit=100,
            tfinal=100, **rest
        ),
        "ia3": lambda: peft.IA3Config(feedforward_modules=_feedforward(model), **rest),
        "oft": lambda: peft.OFTConfig(oft_block_size=size, r=0, **rest),
        "boft": lambda: peft.BOFTConfig(boft_block_size=size, **rest),
        "loha": lambda: peft.LoHaConfig(**rank, **rest),
        "lokr": lambda: peft.LoKrConfig(**rank, **rest),
        "fourierft": lambda: peft.FourierFTConfig(n_frequency=size, **rest),
        "randlora": lambda: peft.RandLoraConfig(**rank, randlora_dropout=drop, **rest),
        "miss": lambda: peft.MissConfig(**rank, miss_dropout=drop, **rest),
    }  # fmt: skip
    if kind in made:
        return made[kind]()
    return peft.LoraConfig(
        lora_alpha=run.lora_alpha, lora_dropout=drop, target_parameters=parameters or None,
        use_dora=kind == "dora", **rank, **rest,
    )  # fmt: skip


def _layer_norms(model: Any) -> list[str]:
    """Return the names of the norms that PEFT's layer-norm tuning trains."""
    names = {path.rpartition(".")[2] for path, module in model.named_modules() if _is_norm(path, module)}
    return sorted(names & LAYER_NORMS)


def _feedforward(model: Any) -> list[str]:
    """Return the projections whose input IA3 scales: of a feed-forward, not of an attention."""
    linears = (n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D))
    return [n for n in linears if n.rpartition(".")[2] in IA3_FEEDFORWARD and not _is_attention(model, n)]


def _saved(model: Any, extra: tuple[str, ...]) -> list[str]:
    """Return the modules that train whole beside the adapters: PEFT trains a copy of each and keeps both."""
    whole = ends_of(model, extra)
    return [
        path
        for path, module in model.named_modules()
        if any(module is one for one in whole) or ("norms" in extra and _is_norm(path, module))
    ]


def ends_of(model: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the embedding ("embed_tokens") and the head ("lm_head") of a model, those that `names` has."""
    ends = {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}
    return [module for name, module in ends.items() if name in names and module is not None]


def _is_norm(path: str, module: Any) -> bool:
    return "norm" in path.rpartition(".")[2].lower() and any(True for _ in module.parameters(recurse=False))


def lora_targets(model: Any, targets: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return PEFT's `target_modules` and `target_parameters` for a run's targets.

    "attention" means every linear inside such a module; other names are as PEFT
    takes them. A name that no module bears but a bare parameter does is a parameter.
    """
    apart = _is_apart(model)
    if targets == ("all-linear",):
        if model.config.model_type in MAMBA_TYPES:
            head = model.get_output_embeddings()
            every = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
            return [name for name in every if name.rpartition(".")[2] != MAMBA_REFUSED], []
        return "all-linear", _routers(model) if apart else []
    if apart:
        targets = tuple(dict.fromkeys(UNFUSED_NAMES.get(target, target) for target in targets))
    linears = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    bare = {n for n, p in model.named_parameters() if p.dim() == 3 or n.rpartition(".")[0] not in linears}
    modules: list[str] = []
    parameters: list[str] = []
    for target in targets:
        if target == "attention":
            modules += sorted(n for n in linears if _is_attention(model, n))
            continue
        if not any(n == target or n.endswith(f".{target}") for n in linears):
            found = {n for n in bare if n.removesuffix(".weight").endswith(f".{target}")}
            if found:
                parameters += sorted({_in_layer(name) for name in found})
                continue
        modules.append(target)
    return modules, parameters


def _is_apart(model: Any) -> bool:
    return any(isinstance(module, UnfusedExperts) for module in model.modules())


def _routers(model: Any) -> list[str]:
    found: set[str] = set()
    for path, module in model.named_modules():
        if not any(isinstance(child, UnfusedExperts) for child in module.children()):
            continue
        for name, child in module.named_children():
            weight = child._parameters.get("weight")
            if not isinstance(child, torch.nn.Linear) and weight is not None and weight.dim() == 2:
                found.add(_in_layer(f"{path}.{name}.weight"))
    return sorted(found)


@contextmanager
def _own_names(model: Any) -> Iterator[None]:
    """Let PEFT take the names of taken-apart experts as they are.

    It reads them as fused parameters in model types that it knows, so the type is hidden.
    """
    if not _is_apart(model):
        yield
        return
    model.config.model_type = "apart"
    try:
        yield
    finally:
        del model.config.model_type


def _in_layer(name: str) -> str:
    """Return a parameter's name behind its layer's number: "mlp.experts.down_proj"."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[numbers[0] + 1 :]) if numbers else name


def _is_attention(model: Any, linear: str) -> bool:
    """Return whether a linear is of an attention over all pairs, not of a linear one."""
    parts = linear.split(".")
    owners = [type(model.get_submodule(".".join(parts[:end]))).__name__ for end in range(len(parts))]
    if "linear_attn" in linear or any(n.endswith(("DeltaAttention", "LightningAttention")) for n in owners):
        return False
    return any(word in part.lower() for part in (linear, owners[-1]) for word in ("attn", "attention"))
