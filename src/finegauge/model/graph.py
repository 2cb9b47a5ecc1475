"""From a run to the operators of one rank.

`build(run)` reads the model's figures, asks the run for its method and precision, and
returns the operators of every kind of layer, of the embedding and of the head, with the
parameters they hold. Graphs are cached: a sweep over batches builds one.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from finegauge.catalogue.frameworks import framework_of
from finegauge.catalogue.gpus import is_cpu, repacks_4bit
from finegauge.errors import FieldError
from finegauge.model.adapters import targets_of
from finegauge.model.attention import attention, latent_attention
from finegauge.model.blocks import (
    Architecture,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    Linear,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    MixtureOfExperts,
)
from finegauge.model.framework_code import called, litgpt_model, litgpt_targets, padded_adapters
from finegauge.model.gradient_pruning import cut_below, is_adapter, is_passive, last_layers, unreached
from finegauge.model.head import embedding, head
from finegauge.model.lowering import QUANTIZED_BYTES, Lowering
from finegauge.model.moe import feedforward, mixture_of_experts
from finegauge.model.op import Extents, Op
from finegauge.model.op_builder import Tape
from finegauge.model.ssm import linear_attention, mamba1, mamba2
from finegauge.model.traced import Traced, traced
from finegauge.model.weights import Weights, weights_of
from finegauge.run.field import version_numbers
from finegauge.run.phases import PPO_EPOCHS, micro_steps
from finegauge.run.rules import ATTENTION_KERNELS, INFERENCE
from finegauge.run.run import Run


def implemented_attention(run: Run, model: Architecture, *, litgpt: bool) -> str:
    """Return the attention that runs: what is asked for, unless the model's code has it not."""
    has = run.attention in model.numerics.kernels or has_own_models(run)
    return run.attention if has and not (litgpt and model.numerics.softcap) else "eager"


def attention_generation(run: Run) -> int:
    """Return FlashAttention's generation; Megatron's layers have cuDNN's kernel where that is the fastest.

    So has PyTorch's sdpa: from 2.10, of the months of transformers 5, cuDNN's comes first on Hopper
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention).
    """
    if "triton" in run.kernels:
        return 1
    today = version_numbers(run.transformers_version) >= (5, 0, 0) and not has_own_models(run)
    cudnn = run.attention == "sdpa" and today
    return 3 if cudnn or {"flash3", "megatron"} & set(run.kernels) else 2


def unpads(run: Run) -> bool:
    """Return whether every layer asks the device where sequences begin, as transformers' FlashAttention does.

    Of a mask it takes the places that are not padding, of position ids those that are zero, and the longest
    length by `.item()`: the host waits (modeling_flash_attention_utils.py of 4.44 and 5.23).
    """
    varied = run.padding == "free" or (run.dataset is not None and not run.packing)
    return varied and run.attention == "flash" and not has_own_models(run)


def has_own_models(run: Run) -> bool:
    """Return whether the framework brings its own code of the model, which has the attention it asks for."""
    return framework_of(run.framework).own_models


CHECKPOINTING_LAYERS_SINCE = (4, 53)  # a checkpointed layer is told not to use a cache
GROUPED_SDPA_SINCE = (4, 54)  # transformers' sdpa repeats keys and values for every query head before


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """The operators of one kind of layer, and how many such layers there are."""

    kind: str
    count: int
    ops: tuple[Op, ...]

    @property
    def passive(self) -> bool:
        """Return whether no gradient comes to these layers."""
        return is_passive(self.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Everything one rank runs for one micro-batch, and the tensors it holds."""

    model: Architecture
    lowering: Lowering
    layers: tuple[LayerGraph, ...]
    embedding: tuple[Op, ...]
    head: tuple[Op, ...]
    weights: Weights

    @property
    def stretches(self) -> list[tuple[int, tuple[Op, ...]]]:
        """Return (how often, operators) of everything a micro-batch passes, in forward order."""
        return [(1, self.embedding), *((group.count, group.ops) for group in self.layers), (1, self.head)]

    def forward_flops(self, extents: Extents) -> float:
        """Return the FLOPs of the forward pass of one micro-batch."""
        return sum(
            count * op.forward.flops.at(extents.windowed(op.window))
            for count, ops in self.stretches
            for op in ops
        )

    def model_flops(self, extents: Extents) -> float:
        """Return the FLOPs of forward and backward of one micro-batch, recomputation not counted."""
        return sum(
            count * (op.forward.flops.at(seen) + op.backward.flops.at(seen))
            for count, ops in self.stretches
            for op in ops
            if op.forward.flops
            for seen in (extents.windowed(op.window),)
        )


def build(run: Run) -> Graph:
    """Return the operator graph of `run`; the batch does not enter.

    Raises: FieldError if no projection of the model bears a name of `lora_targets`.
    """
    graph = _build(
        run.model,
        run.num_experts_per_tok,
        lowering_of(run),
        run.trainable_extra,
        run.optimizer,
        run.upcast_unquantized,
        run.phase == "reward",
    )
    if run.trains_adapters and not graph.weights.adapter_params:
        names = ", ".join(sorted(projection_names(graph.model)))
        raise FieldError(
            f"lora_targets={','.join(run.lora_targets)} names no projection of {run.model}; "
            f"use all-linear, attention, or some of {names}."
        )
    return graph


def projection_names(model: Architecture) -> set[str]:
    """Return the names that LoRA can target in the layers of `model`."""
    tensors = (tensor for layer, _ in model.layers for tensor in layer.tensors())
    return {t.name.removesuffix(".weight").rsplit(".", 1)[-1] for t in tensors if t.kind in TARGETABLE}


@lru_cache(maxsize=64)
def _build(
    model_name: str,
    top_k: int | None,
    low: Lowering,
    trainable_extra: tuple[str, ...],
    optimizer: str,
    upcast: bool,
    scalar: bool,
) -> Graph:
    """Build and remember the graph of one model under one lowering."""
    model = _written(architecture_of(model_name, top_k), litgpt=low.litgpt)
    if scalar:
        model, trainable_extra = scalar_headed(model), (*trainable_extra, "lm_head")
    first, last = Tape(low), Tape(low)
    embedding(first, model)
    head(last, model)
    return Graph(
        model=model,
        lowering=low,
        layers=_layers(model, low),
        embedding=tuple(first.ops),
        head=tuple(last.ops),
        weights=weights_of(model, low, trainable_extra, optimizer, upcast=upcast),
    )


def scalar_headed(model: Architecture) -> Architecture:
    """Return `model` with one output per token in place of one per word: a reward or a value."""
    return model._replace(head=Linear("score", model.projection.in_features, 1), vocab_size=1)


@lru_cache(maxsize=64)
def architecture_of(model_name: str, top_k: int | None = None) -> Architecture:
    """Return the architecture of a catalogue name or of a config on disk."""
    from finegauge.catalogue.models import model
    from finegauge.model.families import architecture

    return architecture(model(model_name).config, num_experts_per_tok=top_k)


def lowering_of(run: Run) -> Lowering:
    """Return the choices of `run` that decide which operators its blocks become."""
    quantized = run.weights_dtype if run.weights_dtype in QUANTIZED_BYTES else ""
    plain = ("fp16" if quantized.startswith("gptq") else "bf16") if quantized else run.weights_dtype
    compute = run.autocast if run.autocast != "none" else plain
    compute_bytes = 4 if compute == "fp32" else 2
    version = version_numbers(run.transformers_version)[:2]
    framework = framework_of(run.framework)
    litgpt = framework.litgpt_models
    model = _written(architecture_of(run.model, run.num_experts_per_tok), litgpt=litgpt)
    numerics = model.numerics
    wide = run.weights_dtype == "fp32" or _widened(run, quantized, model)
    adapters, fused = run.trains_adapters, set(run.kernels) - set(ATTENTION_KERNELS)
    frozen = adapters or run.method == "freeze"
    asked = (litgpt_targets(run.lora_targets) if litgpt else run.lora_targets) if adapters else ()
    fused_experts = version >= (5, 0) and not (quantized and run.quantize_experts)  # apart, to be quantised
    implemented = implemented_attention(run, model, litgpt=litgpt)
    return Lowering(
        activation_bytes=4 if wide else compute_bytes,
        compute_bytes=compute_bytes,
        compute_dtype=compute,
        weight_bytes=4 if run.weights_dtype == "fp32" else 2,
        autocast=run.autocast != "none",
        weights_train=not frozen,
        norms_train=not frozen or "norms" in run.trainable_extra,
        lora_rank=run.lora_rank if adapters else 0,
        targets=targets_of(asked, model, fused_experts=fused_experts, dropout=run.lora_dropout),
        lora_dropout=adapters and run.lora_dropout > 0,
        adapter_bytes=4 if run.adapter_dtype == "fp32" else 2,
        quantized=quantized,
        experts_quantized=run.quantize_experts,
        stashes_inputs=_stashes(run),
        stash_survives=_stashes(run)
        and (run.activation_checkpointing == "none" or not run.checkpointing_reentrant),
        rebuilds=run.activation_checkpointing in ("full", "selective") and not run.checkpointing_reentrant,
        attention=implemented,
        experts="eager" if version >= (5, 0) and not fused_experts else run.experts_implementation,
        fused_experts=fused_experts,
        megatron="megatron" in run.kernels,
        fused_kernels=bool(fused) or run.compile,  # a compiler fuses what those fuse by hand
        fused_activation=bool(fused - {"foak"}) or run.compile,
        loss=run.loss,
        logits_shifted=version < (4, 50),
        logits_held=(4, 46) <= version < (4, 50) and not (numerics.own_loss or numerics.narrow_loss),
        narrow_loss=version < (5, 0) and numerics.narrow_loss and run.autocast == "none",
        hands_back_cache=version < CHECKPOINTING_LAYERS_SINCE and numerics.hands_back_cache,
        ssm_kernels="slow" if is_cpu(run.gpu) else run.ssm_kernels,  # the fused ones are CUDA
        numerics=numerics,
        input_gradients=not frozen or _reaches_embeddings(run),
        masked_windows=_masked_windows(model, run.seq_len) if implemented == "sdpa" else (),
        repeats_keys=implemented == "eager" or (implemented == "sdpa" and version < GROUPED_SDPA_SINCE),
        on_cpu=is_cpu(run.gpu),
        repacks=quantized.startswith("nf4") and run.phase in INFERENCE and repacks_4bit(run.gpu),
        chunks_kept=run.loss == "chunked" and framework.keeps_loss_chunks,
        litgpt=litgpt,
        unpacks_in_torch=quantized.startswith("gptq") and not framework.fuses_gptq,
        padded_adapters=padded_adapters(run.lora_targets) if litgpt and adapters else (),
        last_layers=run.freeze_trainable_layers or 0,
        fp8=run.fp8,
        attention_generation=attention_generation(run),
        unpads=unpads(run),
    )


TARGETABLE = frozenset({"linear", "router", "experts", "step"})


def _widened(run: Run, quantized: str, model: Architecture) -> bool:
    """Return whether the residual stream of a quantised model is fp32."""
    if run.upcast_unquantized and quantized:
        return True
    return quantized.startswith("nf4") and run.autocast != "none" and _layer_normed(model)


def _reaches_embeddings(run: Run) -> bool:
    """Return whether the gradient is taken back to the embeddings although the layers are frozen."""
    return run.activation_checkpointing != "none" or "embed_tokens" in run.trainable_extra


def _masked_windows(model: Architecture, seq_len: int) -> tuple[int, ...]:
    """Return the windows of attention that are no longer than the longest sequence."""
    mixers = (branch.mixer for layer, _ in model.layers for branch in layer.branches)
    windows = {m.window for m in mixers if isinstance(m, Attention) and m.window is not None}
    return tuple(sorted(window for window in windows if window <= seq_len))


def _written(model: Architecture, *, litgpt: bool) -> Architecture:
    """Return `model` as the framework that runs it has written it."""
    return litgpt_model(model) if litgpt else model


def _layer_normed(model: Architecture) -> bool:
    """Return whether PyTorch's LayerNorm feeds the projections of every layer.

    Autocast runs it in fp32, and a 4-bit linear (bitsandbytes 0.43 to 0.50, Linear4bit.forward) gives
    back the width that came in: from the first branch on, the residual stream is fp32.
    """
    if model.numerics.written_layer_norms or model.numerics.wide_layer_norms:  # these cast back
        return False
    norms = [branch.norm_before for layer, _ in model.layers for branch in layer.branches]
    before = [norm for norm in norms if norm is not None]
    return bool(before) and all(norm.kind == "layer" for norm in before)


def _stashes(run: Run) -> bool:
    """Return whether 4-bit linears keep their inputs on the autograd context (bitsandbytes < 0.43.2)."""
    return run.weights_dtype in ("nf4", "nf4_dq") and version_numbers(run.bitsandbytes_version) < (0, 43, 2)


def _layers(model: Architecture, low: Lowering) -> tuple[LayerGraph, ...]:
    """Return the operators of every kind of layer, equal ones together.

    While nothing that trains has been met, gradients end: the first layers stand for themselves.
    The model's groups are in order until every kind of layer has been met.
    """
    counts: Counter[tuple[str, tuple[Op, ...]]] = Counter()
    reached = low.input_gradients or any(low.rank(one, "linear", "embedding") for one in model.widening)
    for layer, count, own in _lowered(model, low):
        for number in (count,) if reached else (1, count - 1):
            if not number:
                continue
            norm = layer.branches[0].norm_before
            whole = own.weights_train and not (norm and norm.weight)  # what trains first is not told apart
            tape = Tape(own, reached=reached or whole)
            _layer(tape, layer, model.hidden_size)
            counts[layer.kind, called(tape.ops) if low.megatron else tuple(tape.ops)] += number
            reached = tape.reached
    return tuple(LayerGraph(kind=kind, count=count, ops=ops) for (kind, ops), count in counts.items())


def _lowered(model: Architecture, low: Lowering) -> Iterator[tuple[Layer, int, Lowering]]:
    """Yield every group of layers, how many there are of it, and what its blocks become."""
    if not low.last_layers:
        yield from ((layer, count, low) for layer, count in model.layers)
        return
    trained = last_layers(model, low.last_layers)
    left = sum(count for _, count in model.layers) - sum(count for _, count in trained)
    for layer, count in model.layers:
        if frozen := min(count, left):
            yield layer, frozen, low
        left -= frozen
    yield from ((layer, count, low.in_last_layers) for layer, count in trained)


def _layer(tape: Tape, layer: Layer, hidden_size: int) -> None:
    """Add one layer's branches, each with its norms and its residual addition."""
    reached = tape.reached
    for index, branch in enumerate(layer.branches):
        part, start, begin = branch.mixer.path, len(tape.ops), len(tape.ops)
        if isinstance(branch.mixer, Traced):
            traced(tape, branch.mixer)  # norms and residual additions included
        else:
            tape.enter(branch.norm_before, part, beside=layer.parallel and index > 0)
            begin = len(tape.ops)
            _mixer(tape, branch.mixer)
            tape.norm(branch.norm_after, part, inside=True)
            tape.residual(part, hidden_size)
        if not tape.reached:
            adapted = any(is_adapter(op) for op in tape.ops[start:])
            reached = reached or adapted
            if adapted and isinstance(branch.mixer, MixtureOfExperts | LatentAttention):  # has cut its parts
                tape.ops[start:begin] = map(unreached, tape.ops[start:begin])
            else:
                tape.ops[start:] = cut_below(tape.ops[start:], dropout=tape.lowering.lora_dropout)
            tape.reached = reached and not layer.parallel
    tape.reached = tape.reached or reached


def _mixer(tape: Tape, mixer: Mixer) -> None:
    """Add the operators of one mixer."""
    match mixer:
        case Attention():
            attention(tape, mixer)
        case LatentAttention():
            latent_attention(tape, mixer)
        case FeedForward():
            feedforward(tape, mixer)
        case MixtureOfExperts():
            mixture_of_experts(tape, mixer)
        case Mamba1():
            mamba1(tape, mixer)
        case Mamba2():
            mamba2(tape, mixer)
        case LinearAttention():
            linear_attention(tape, mixer)
        case _:
            raise FieldError(f"No operators are known for {type(mixer).__name__}.")


def step_flops(run: Run, graph: Graph, extents: Extents) -> float:
    """Return the FLOPs of one step whose average micro-batch is `extents`."""
    forward, both = graph.forward_flops(extents), graph.model_flops(extents)
    if run.phase in INFERENCE:
        one = forward
    elif run.phase == "dpo":
        one = both + forward
    elif run.phase == "grpo":
        one = both + 2 * forward
    elif run.phase == "ppo":
        judged = build(value_run(run))
        one = PPO_EPOCHS * (both + judged.model_flops(extents))
        one += 3 * forward + 2 * judged.forward_flops(extents)
    else:
        one = both
    return micro_steps(run) * one


def value_run(run: Run) -> Run:
    """Return the run whose model is PPO's value model: the policy with one output per token."""
    return run.replace(phase="reward", max_new_tokens=None)
