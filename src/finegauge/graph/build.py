"""From a run to the operators of one rank.

`build(run)` reads the model's figures, asks the run for its method and precision, and
returns the operators of every kind of layer, of the embedding and of the head, with the
parameters they hold. Graphs are cached: a sweep over batches builds one.
"""

from dataclasses import dataclass
from functools import lru_cache

from finegauge.errors import FieldError
from finegauge.graph.attention import attention, latent_attention
from finegauge.graph.blocks import (
    Architecture,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    MixtureOfExperts,
)
from finegauge.graph.feedforward import feedforward, mixture_of_experts
from finegauge.graph.head import embedding, head
from finegauge.graph.lowering import QUANTIZED_BYTES, Lowering, Tape
from finegauge.graph.op import Op
from finegauge.graph.ssm import linear_attention, mamba1, mamba2
from finegauge.graph.weights import Weights, weights_of
from finegauge.workload.implementation import version_numbers
from finegauge.workload.run import Run

NARROW_LOSS_TYPES = frozenset({"gpt_bigcode", "gpt2", "gptj", "bloom", "mpt", "falcon", "opt", "gpt_neox"})
OWN_LOSS_TYPES = frozenset({"granite", "granitemoe", "cohere", "gemma2"})
WIDE_NORM_TYPES = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "nemotron_h", "olmo2", "olmo3"),
        *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    }
)
WIDE_ROUTER_TYPES = frozenset(
    {
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe"),
        *("glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "kimi_k2"),
    }
)
GROUPED_SDPA_SINCE = (4, 54)  # transformers' sdpa repeats keys and values for every query head before


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """The operators of one kind of layer, and how many such layers there are."""

    kind: str
    count: int
    ops: tuple[Op, ...]


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
) -> Graph:
    """Build and remember the graph of one model under one lowering."""
    model = architecture_of(model_name, top_k)
    layers = []
    for layer, count in model.layers:
        tape = Tape(low)
        _layer(tape, layer, model.hidden_size)
        layers.append(LayerGraph(kind=layer.kind, count=count, ops=tuple(tape.ops)))
    first, last = Tape(low), Tape(low)
    embedding(first, model)
    head(last, model)
    return Graph(
        model=model,
        lowering=low,
        layers=tuple(layers),
        embedding=tuple(first.ops),
        head=tuple(last.ops),
        weights=weights_of(model, low, trainable_extra, optimizer, upcast=upcast),
    )


@lru_cache(maxsize=64)
def architecture_of(model_name: str, top_k: int | None = None) -> Architecture:
    """Return the architecture of a catalogue name or of a config on disk."""
    from finegauge.catalogue.models import model
    from finegauge.graph.families import architecture

    return architecture(model(model_name).config, num_experts_per_tok=top_k)


def lowering_of(run: Run) -> Lowering:
    """Return the choices of `run` that decide which operators its blocks become."""
    quantized = run.weights_dtype if run.weights_dtype in QUANTIZED_BYTES else ""
    plain = ("fp16" if quantized.startswith("gptq") else "bf16") if quantized else run.weights_dtype
    compute = run.autocast if run.autocast != "none" else plain
    compute_bytes = 4 if compute == "fp32" else 2
    wide = run.weights_dtype == "fp32" or (run.upcast_unquantized and bool(quantized))
    version = version_numbers(run.transformers_version)[:2]
    model_type = str(run.config.get("model_type", ""))
    adapters = run.trains_adapters
    return Lowering(
        activation_bytes=4 if wide else compute_bytes,
        compute_bytes=compute_bytes,
        compute_dtype=compute,
        weight_bytes=4 if run.weights_dtype == "fp32" else 2,
        autocast=run.autocast != "none",
        weights_train=not adapters,
        norms_train=not adapters or "norms" in run.trainable_extra,
        lora_rank=run.lora_rank if adapters else 0,
        lora_targets=run.lora_targets if adapters else (),
        lora_dropout=adapters and run.lora_dropout > 0,
        adapter_bytes=4 if run.adapter_dtype == "fp32" else 2,
        quantized=quantized,
        experts_quantized=run.quantize_experts,
        stashes_inputs=_stashes(run),
        stash_survives=_stashes(run) and not run.checkpointing_reentrant,
        attention=run.attention,
        experts=run.experts_implementation,
        fused_kernels=bool(run.kernels) or run.compile,  # a compiler fuses what those fuse by hand
        loss=run.loss,
        logits_held=(4, 46) <= version < (4, 50) and model_type not in OWN_LOSS_TYPES,
        narrow_loss=version < (5, 0) and model_type in NARROW_LOSS_TYPES and run.autocast == "none",
        ssm_kernels=run.ssm_kernels,
        wide_norms=model_type in WIDE_NORM_TYPES,
        wide_router=model_type in WIDE_ROUTER_TYPES,
        repeats_keys=run.attention == "eager" or (run.attention == "sdpa" and version < GROUPED_SDPA_SINCE),
    )


TARGETABLE = frozenset({"linear", "router", "experts"})


def _stashes(run: Run) -> bool:
    """Return whether 4-bit linears keep their inputs on the autograd context (bitsandbytes < 0.43.2)."""
    return run.weights_dtype in ("nf4", "nf4_dq") and version_numbers(run.bitsandbytes_version) < (0, 43, 2)


def _layer(tape: Tape, layer: Layer, hidden_size: int) -> None:
    """Add one layer's branches, each with its norms and its residual addition."""
    for index, branch in enumerate(layer.branches):
        part = branch.mixer.path
        tape.enter(branch.norm_before, part, beside=layer.parallel and index > 0)
        _mixer(tape, branch.mixer)
        tape.norm(branch.norm_after, part)
        tape.residual(part, hidden_size)


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
