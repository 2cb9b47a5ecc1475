"""How one method, precision and software stack turns a block into operators; which weights LoRA adapts.

`Lowering` answers the questions that every block asks: does this weight train? is it quantised? what does
its adapter copy? Bitsandbytes before 0.43.2 stashed the input of every 4-bit linear on the autograd context,
where non-reentrant checkpointing cannot discard it [2].

PEFT 0.21 adapts modules [3]. Transformers 5 holds fused experts and their router as bare parameters, which
"all-linear" passes by, except in the model types whose checkpoints transformers converts the way it converts
Mixtral's or Qwen2-MoE's: there PEFT takes the names of transformers 4 to mean the parameters, and nothing
else of that name (neither shared experts nor dense layers). Elsewhere a name that no module bears means the
parameter that bears it. Gate and up, one tensor now, get the rank of both. Of Mamba layers PEFT refuses the
output projection, and "all-linear" with it: here that means all the others.

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
[2] bitsandbytes release notes, 0.43.2
[3] peft 0.21.2, utils/transformers_weight_conversion.py and tuners/tuners_utils.py; transformers 5.23,
    conversion_mapping.py (read 2026-11-21)

Model code of frameworks' own differs from the transformers class. litgpt: one projection makes queries, keys
and values, and one dropout serves its adapters, whose result is put in its place between zeros where not all
three are adapted. Activations are single kernels, gate and up are two projections, no class casts to fp32 in
a way of its own, and the head is never tied to the embedding. Lightning's BitsandbytesPrecision quantises
every Linear, the head included, from fp16: a weight is dequantised to fp16 and then copied to bf16. Fabric
returns the logits as fp32, a list of chunks whose log-probabilities are kept in fp32, too. The loop's
`logits` outlives the step: until the next ones are there, they and the graph behind them stay, and with it
the inputs that old 4-bit linears pin to it.

Megatron-LM: its parallel linears, their exchanges, norms, softmax, GELU and dropout are autograd functions
written in Python, so every operator of a layer is one call of Python each way beside the kernels it launches.

Sources: litgpt 0.4.9 model.py, lora.py, utils.py, finetune/lora.py; lightning 2.3
fabric/plugins/precision/bitsandbytes.py; megatron/core/tensor_parallel and megatron/core/fusions, read
2026-11-21; and what autograd keeps of litgpt's model and its bitsandbytes linears, run on shapes: of the LoRA
and QLoRA rows of its config_hub none is off by more than 3.2 %.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from finegauge.errors import FieldError
from finegauge.model.adapters import FORMS, IA3_FEEDFORWARD, Form, Shape
from finegauge.model.blocks import (
    Architecture,
    Attention,
    Branch,
    FeedForward,
    Layer,
    Linear,
    MixtureOfExperts,
    Numerics,
    Part,
)
from finegauge.model.op import Op
from finegauge.records import NamedTuple
from finegauge.run.options import REWRITTEN
from finegauge.run.phases import Images

# Per parameter: NF4 in blocks of 64 with a 32-bit scale, whose scales double quantisation takes down to 8 bit
# (section 3 of the second paper in [1]); GPTQ in groups of 128.
QUANTIZED_BYTES = {
    "nf4": (4 + 32 / 64) / 8,
    "nf4_dq": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    "gptq4": (4 + 16 / 128 + 4 / 128) / 8,
    "gptq8": (8 + 16 / 128 + 8 / 128) / 8,
    "int8": 1.0,
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128**2,
    "nvfp4": (4 + 8 / 16) / 8,
    "mxfp4": (4 + 8 / 32) / 8,
}
# What engines read as it is stored, and what they compute in where the GPU has such units (Hopper has none
# for NVFP4 and MXFP4); the others are widened in the kernel of the product (Marlin).
IN_BLOCKS = (
    "qwen3",
    "deepseek",
)  # whose own checkpoints in fp8 are in blocks of 128 x 128; others' by channel
STORED = {
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "int8": "",
    "gptq4": "",
    "gptq8": "",
    "nvfp4": "nvfp4",
    "mxfp4": "",
}
ALL = "all-linear"
ON_PARAMETERS = ("lora", "lora_fa")
BARE = ("experts", "router")  # kinds of what transformers 5 holds as parameters, not as modules
UNFUSED_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # an expert's, apart, here and there
MAMBA_TYPES = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
MAMBA_REFUSED = "out_proj"  # its fused kernel reads the weight and passes by the adapter


class Targets(NamedTuple):
    """The last names of what has an adapter."""

    modules: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    attention: bool = False  # every module of an attention
    doubled: bool = False  # the gate and up of fused experts have the rank of both


class Lowering(NamedTuple):
    """The choices of a run that decide which operators a block becomes."""

    activation_bytes: int  # per element of the residual stream
    compute_bytes: int  # per element inside the layers (autocast computes in 16 bit)
    compute_dtype: str
    weight_bytes: int  # per element of an unquantised frozen or trained weight
    autocast: bool
    weights_train: bool
    norms_train: bool
    lora_rank: int
    targets: Targets
    lora_dropout: bool
    adapter_bytes: int
    quantized: str  # "" or the format of the quantised linears
    experts_quantized: bool
    stashes_inputs: bool  # 4-bit linears keep their input whatever trains
    stash_survives: bool  # ... and checkpointing cannot discard it
    rebuilds: bool  # non-reentrant checkpointing: what a node kept goes as it is read, not when it is done
    attention: str
    experts: str
    fused_experts: bool  # experts are held as transformers 5 holds them, all in one parameter
    fused_kernels: bool  # norms, rotary embedding and cross-entropy are one kernel each
    fused_activation: bool  # so is a gated activation with its product
    megatron: bool  # Megatron-LM's own code: one softmax of masked scores, GELU and residual with their bias
    loss: str
    logits_held: bool  # the 16-bit logits live until the loss is done
    logits_shifted: bool  # the loss copies the logits without the last (transformers before 4.50)
    narrow_loss: bool  # the loss is computed in 16 bit
    written_loss: bool  # a loss over whole logits is PyTorch's own operators, whatever else is fused
    parallel_loss: bool  # and over a vocabulary divided among GPUs it is written out in smaller ones
    hands_back_cache: bool  # keys and values of every layer live until the loss is returned
    ssm_kernels: str
    numerics: Numerics
    input_gradients: bool  # the gradient is taken back to the embeddings even if they are frozen
    masked_windows: tuple[int, ...]  # windows that sdpa is given as a mask: no longer than the sequences
    repeats_keys: bool  # keys and values are copied for every query head that shares them
    on_cpu: bool = False  # the kernels are a processor's
    repacks: bool = False  # 4-bit weights lie as bitsandbytes' kernel for inference on AVX512-BF16 reads them
    chunks_kept: bool = False  # of the logits, of which a chunked loss widens one at a time (torchtune)
    tiled: bool = False  # a chunked loss is one over tiles, summed in fp32 (TRL)
    litgpt: bool = False  # litgpt's own code of the model, and its loop
    unpacks_in_torch: bool = False  # GPTQ weights are unpacked by PyTorch's kernels and kept for backward
    padded_adapters: tuple[str, ...] = ()  # of queries, keys, values: adapted, and put between zeros
    stored: str = ""  # the format in which an engine's products read their weights
    last_layers: int = 0  # method=freeze: so many train, and of the rest only what is said beside
    narrow: str = ""  # the recipe by which products of the layers are computed in 8 or 4 bit
    narrow_products: str = "all"  # or linears, or experts
    casts_weights: bool = True  # before each product, unless they are gathered in 8 bits already
    expert_capacity_ratio: float = 1.0  # rows that experts compute over those of the chosen
    own_models: bool = False  # the framework's code, which hands experts only the tokens that chose them
    masks: bool = False  # sdpa is handed a mask
    clamps_scores: bool = False  # eager attention keeps what it takes the larger of
    flashless: bool = False  # the GPU has no FlashAttention
    composite_groups: bool = False  # PyTorch's memory-efficient kernel takes no grouped keys
    wide_head: bool = False  # k-bit preparation has made the head fp32, and nothing narrows it again
    attention_generation: int = 2  # of FlashAttention's kernels: see `Op`
    adapter: str = "lora"
    adapter_size: int = 0
    adapter_hidden: int = 0
    unpads: bool = False  # FlashAttention is handed sequences of many lengths, which the host asks for
    images: tuple[Images, ...] = ()  # of every sequence
    source_ratio: float = 0.0  # of an encoder, for each token of the decoder
    # of encoder and decoder: biases of scores that every checkpoint holds, and their gradient
    held_biases: tuple[float, float] = (0.0, 0.0)
    held_values: float = 0.0  # of a token, by the checkpoints of all layers beside their inputs
    tower_trains: tuple[bool, bool] = (False, False)  # the weights of a vision tower, of its projector
    tower_adapts: tuple[bool, bool] = (False, False)  # likewise, their adapters

    @property
    def stream_bytes(self) -> int:
        """Return the bytes per element of what the residual branches add up."""
        return 4 if self.numerics.wide_stream else self.activation_bytes

    @property
    def attention_bytes(self) -> int:
        """Return the bytes per element of queries, keys and values: what projections return, unless narrowed.

        Autocast narrows them. Nothing does after PEFT's k-bit preparation without it: attention is in fp32.
        """
        return self.compute_bytes if self.autocast else self.returned_bytes

    @property
    def returned_bytes(self) -> int:
        """Return the bytes per element of what projections return.

        bitsandbytes' 4-bit linears give back the width that came in, autocast or not: fp32
        where k-bit preparation has made norms and embeddings fp32.
        """
        return self.activation_bytes if self.quantized.startswith("nf4") else self.compute_bytes

    def narrows(self, kind: str) -> bool:
        """Return whether a projection of this kind is multiplied in 8 or 4 bit."""
        named = {"all": ("linear", "experts"), "linears": ("linear",), "experts": ("experts",)}
        return bool(self.narrow) and kind in named[self.narrow_products]

    def form(self, linear: Linear, part: str, rank: int = 0) -> Form:
        """Return what the adapter of `linear` in the block called `part` trains, keeps and computes."""
        scales = part != "attention" and last_name(linear.name) in IA3_FEEDFORWARD
        sizes = linear.in_features, linear.out_features, rank or self.lora_rank, self.adapter_size, scales
        return FORMS[self.adapter](Shape(*sizes))

    def rank(self, linear: Linear, kind: str, part: str) -> int:
        """Return the LoRA rank of `linear` in the block called `part`, 0 without an adapter.

        PEFT gives the gate and up of fused experts, one tensor, the ranks of both.
        """
        if not self.lora_rank:
            return 0
        targets, name = self.targets, linear.name.rpartition(".")[2]
        if self.fused_experts and kind in BARE:
            both = targets.doubled and kind == "experts" and name == "gate_up_proj"
            return self.lora_rank * (2 if both else 1) if name in targets.parameters else 0
        meant = name in targets.modules or (targets.attention and part == "attention")
        return self.lora_rank if meant else 0

    def folds(self, linear: Linear, kind: str, part: str) -> bool:
        """Return whether an adapter is added to its weight before the product.

        So PEFT does with what transformers 5 holds as a parameter, not a module: fused experts
        and their router. Frameworks with models of their own have adapters beside the product there too.
        """
        held = self.fused_experts and not self.own_models and kind in BARE
        return held and self.rank(linear, kind, part) > 0

    def quantizes(self, kind: str) -> bool:
        """Return whether a projection of this kind is held quantised."""
        if not self.quantized:
            return False
        if kind == "head":
            return self.litgpt and self.quantized.startswith("nf4")
        if kind == "experts":
            return self.experts_quantized
        return kind == "linear" and self.quantized != "mxfp4"  # of gpt-oss, whose experts alone are narrow

    def kept_input(self, width: float, *linears: Linear, part: str, kind: str = "linear") -> float:
        """Return the bytes that autograd keeps of an input of `width` that all `linears` share.

        A trained weight keeps its input; so does an adapter in the same dtype without
        dropout, and an old 4-bit linear. A frozen one keeps nothing. Where autocast
        narrows an fp32 residual stream, each projection keeps a copy of its own.
        """
        copies = len(linears)
        if not self.weights_train and not (self.stashes_inputs and self.quantizes(kind)):
            same = self.adapter_bytes == self.compute_bytes or (self.autocast and bool(self.quantized))
            shares, copies = same and not self.lora_dropout, 0
            for linear in linears if self.lora_rank else ():
                reads = shares and self.rank(linear, kind, part) > 0 and self.form(linear, part).reads_input
                copies += self.folds(linear, kind, part) or reads
        if self.activation_bytes <= self.compute_bytes:
            copies = min(1, copies)
        return copies * width * self.compute_bytes


def last_name(name: str) -> str:
    """Return what stands after the last dot of a module's or a weight's name."""
    return name.removesuffix(".weight").rpartition(".")[2]


def targets_of(
    asked: Iterable[str],
    model: Architecture,
    *,
    fused_experts: bool,
    dropout: float = 0.0,
    adapter: str = "lora",
    linears_alone: bool = False,
) -> Targets:
    """Return what the names in `asked` mean in `model`.

    `linears_alone`: whoever asks for "all-linear" lists the linears of the model that is loaded.

    Raises: FieldError where PEFT refuses them.
    """
    names = set(map(last_name, asked))
    if not names:
        return Targets()
    tower = model.tower.parts if model.tower else ()  # of a vision tower and its projector
    beside = [*model.outer_linears, *(linear for part in tower for linear, _ in part_linears(part))]
    modules, parameters = set(map(last_name, [linear.name for linear in beside])), set[str]()
    for layer, _ in model.layers:
        for mixer, *_ in layer.branches:
            for linear, kind in linears_of(mixer, fused_experts=fused_experts):
                (parameters if fused_experts and kind in BARE else modules).add(last_name(linear.name))
    wanted, attention = names - {ALL, "attention"}, "attention" in names
    if not fused_experts:
        wanted |= {UNFUSED_NAMES[name] for name in wanted & UNFUSED_NAMES.keys()}
        return Targets(frozenset(modules if ALL in names else wanted), frozenset(), attention)
    of_lora = adapter in ON_PARAMETERS  # others have modules alone, under the names of transformers 5
    rewritten = REWRITTEN.get(model.model_type, {}) if of_lora or adapter == "dora" else {}
    passed_by = {MAMBA_REFUSED} if model.model_type in MAMBA_TYPES else set()
    meant = (modules if linears_alone else modules | rewritten.keys()) - passed_by if ALL in names else wanted
    both = {old for old, new in rewritten.items() if new == "gate_up_proj"}
    if meant & both and both - meant:
        has, missing = ", ".join(meant & both), ", ".join(both - meant)
        raise FieldError(
            f"lora_targets has {has} without {missing}: transformers 5 holds both as one tensor; give both."
        )
    bare = {rewritten.get(name, name) for name in meant if name in rewritten or name not in modules}
    targets = Targets(
        modules=frozenset(meant & modules - rewritten.keys()),
        parameters=frozenset(bare & parameters),
        attention=attention,
        doubled=bool(meant & both),
    )
    if targets.parameters and not of_lora:
        raise FieldError(
            f"adapter={adapter}, but transformers 5 holds {', '.join(sorted(targets.parameters))} as "
            f"parameters, to which PEFT adds LoRA alone; give other lora_targets or adapter=lora."
        )
    if dropout and targets.parameters:
        raise FieldError(
            f"lora_dropout={dropout}, but transformers 5 holds {', '.join(sorted(targets.parameters))} as "
            f"parameters, whose adapters PEFT gives no dropout; give lora_dropout=0 or other lora_targets."
        )
    if passed_by & targets.modules:
        others = ",".join(sorted(modules - passed_by))
        raise FieldError(
            f"PEFT refuses LoRA on {MAMBA_REFUSED} of '{model.model_type}', which its fused kernel would "
            f"pass by; give lora_targets={others} or some of these."
        )
    return targets


def linears_of(mixer: Any, *, fused_experts: bool) -> Iterator[tuple[Linear, str]]:
    """Yield every projection of a mixer once, experts' of one expert, with its kind."""
    if not isinstance(mixer, MixtureOfExperts):
        for linear in mixer.projections:
            yield linear, linear.kind
        return
    yield mixer.router, mixer.router.kind
    for linear in mixer.expert_projections(apart=not fused_experts):
        yield linear, "experts"
    shared = mixer.shared.projections if mixer.shared else ()
    for linear in (*mixer.latent, *shared, *((mixer.shared_gate,) if mixer.shared_gate else ())):
        yield linear, "linear"


def part_linears(part: Part) -> Iterator[tuple[Linear, str]]:
    """Yield the linear modules of one step of a vision tower, each with the block that it is of."""
    mixers: list[Any] = [part.what]
    if isinstance(part.what, Layer):
        mixers = [mixer for mixer, *_ in part.what.branches]
    for mixer in mixers:
        for linear in getattr(mixer, "projections", (mixer,)):
            if isinstance(linear, Linear) and linear.kind == "linear":
                yield linear, getattr(mixer, "path", "")


QKV = ("q_proj", "k_proj", "v_proj")
FUSED, GATE_UP = "qkv_proj", ("gate_proj", "up_proj")


def litgpt_model(model: Architecture) -> Architecture:
    """Return `model` as litgpt holds and computes it."""
    numerics = Numerics(softcap=model.numerics.softcap, logit_cap=model.numerics.logit_cap)
    layers = tuple(
        (layer._replace(branches=tuple(map(_litgpt_branch, layer.branches))), count)
        for layer, count in model.layers
    )
    return model._replace(numerics=numerics, layers=layers, head=model.projection)


def _litgpt_branch(branch: Branch) -> Branch:
    block = branch.mixer
    if isinstance(block, Attention):  # the values are a view of what one projection returns
        *inputs, output = block.projections
        if len(inputs) == len(QKV):
            width = sum(linear.out_features for linear in inputs)
            inputs = [Linear(FUSED, block.hidden_size, width, any(linear.bias for linear in inputs))]
        return branch._replace(mixer=block._replace(projections=(*inputs, output), copies_values=False))
    if isinstance(block, FeedForward):
        *ups, down = block.projections
        if block.gated and len(ups) == 1:
            ups = [Linear(name, block.hidden_size, block.intermediate_size, ups[0].bias) for name in GATE_UP]
        act = "gelu_pytorch_tanh" if block.activation == "gelu_new" else block.activation  # one kernel
        return branch._replace(mixer=block._replace(projections=(*ups, down), activation=act))
    return branch


def litgpt_targets(lora_targets: Iterable[str]) -> tuple[str, ...]:
    """Return the names of litgpt's projections that the names of transformers' mean."""
    names = set(lora_targets)
    if names & set(QKV):
        names.add(FUSED)
    if "gate_up_proj" in names:
        names |= set(GATE_UP)
    return tuple(sorted(names))


def padded_adapters(lora_targets: Iterable[str]) -> tuple[str, ...]:
    """Return which of queries, keys and values have adapters where not all three do."""
    found = tuple(name for name in QKV if name in set(lora_targets))
    return found if len(found) < len(QKV) else ()


def called_by_python(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return Megatron's operators: each that launches a kernel is called by Python forward and backward."""
    return tuple(
        op._replace(
            forward=op.forward._replace(calls=max(op.forward.calls, min(1.0, op.forward.launches))),
            backward=op.backward._replace(calls=max(op.backward.calls, min(1.0, op.backward.launches))),
        )
        for op in ops
    )
