"""From a run to the operators of one rank, and to the FLOPs of its step.

`build(run)` reads the model's figures, asks the run for its method and precision, and
returns the operators of every kind of layer, of the embedding and of the head, with the
parameters they hold. Graphs are cached: a sweep over batches builds one.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from finegauge.catalogue.frameworks import engine, framework_of
from finegauge.catalogue.gpus import has_no_flash, has_tensor_memory, is_cpu, multiplies_bf16, repacks_4bit
from finegauge.catalogue.models import file_version, model
from finegauge.errors import FieldError, UnsupportedError
from finegauge.model.blocks import Architecture, Attention, Layer, Linear
from finegauge.model.families import architecture
from finegauge.model.families.decoder import check_checkpointing, check_positions, check_task
from finegauge.model.layers import TowerPart, embedding, head, images_among_words, layer_ops, tower_parts
from finegauge.model.lowering import (
    IN_BLOCKS,
    QUANTIZED_BYTES,
    STORED,
    Lowering,
    called_by_python,
    last_name,
    litgpt_model,
    litgpt_targets,
    padded_adapters,
    targets_of,
)
from finegauge.model.op import Extents, Op
from finegauge.model.op_builder import OpBuilder, is_passive, last_layers, lending
from finegauge.model.weights import Weights, weights_of
from finegauge.records import NamedTuple
from finegauge.run.field import version_numbers
from finegauge.run.phases import Images, division_by, micro_steps, num_updates, seen_by, tiles_loss
from finegauge.run.rules import ATTENTION_KERNELS, FSDP, INFERENCE, OFF_PROJECTIONS, RL, SERVING, WHOLE_LAYERS
from finegauge.run.run import Run

ON_EMBEDDINGS = ("prompt_tuning", "p_tuning", "trainable_tokens")  # adapters that stand before all layers
TARGETABLE = frozenset({"linear", "router", "experts", "step"})
CHECKPOINTING_LAYERS_SINCE = (4, 53)  # a checkpointed layer is told not to use a cache
SCORES_CLAMPED_UNTIL = (4, 49)  # modeling_opt.py of 4.28.1 and 4.48.3 has it, of 4.49.0 not
# PyTorch hands grouped keys to its memory-efficient kernel where FlashAttention cannot run: the LoRA and
# QLoRA rows of fitcheck-t4 (torch 2.10 and 2.14; fp16, and fp32 after k-bit preparation) hold no scores
GROUPED_EFFICIENT_SINCE = (5, 0)
# Gemma 2 under sdpa, its default then, leaves out the cap on scores; `_supports_sdpa` is false in 5 (the last
# release with it is not known; modular_gemma2.py of 4.48 @006e869 and 5.23)
SOFTCAP_DROPPED, SOFTCAP_REFUSED = (4, 48), (5, 0)
GROUPED_SDPA_SINCE = (4, 54)  # transformers' sdpa repeats keys and values for every query head before
# and its FlashAttention2 classes did, in these models (modeling_*.py of 4.45.2, 4.47.1 and 4.48.3)
GROUPED_FLASH_SINCE = (4, 48)
REPEATING = frozenset({"mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "starcoder2"})


class LayerGraph(NamedTuple):
    """The operators of one kind of layer, and how many such layers there are.

    `before` and `until`: how many of each kind stand before its first layer, and to its last as far as known.
    """

    kind: str
    count: int  # type: ignore[assignment]  # in place of a method of tuples
    ops: tuple[Op, ...]
    before: tuple[int, ...] = ()
    until: tuple[int, ...] = ()

    @property
    def passive(self) -> bool:
        """Return whether no gradient comes to these layers."""
        return is_passive(self.ops)


class Graph(NamedTuple):
    """Everything one rank runs for one micro-batch, and the tensors it holds."""

    model: Architecture
    lowering: Lowering
    layers: tuple[LayerGraph, ...]
    embedding: tuple[Op, ...]
    head: tuple[Op, ...]
    weights: Weights
    tower: tuple[TowerPart, ...] = ()  # before the embedding, where sequences have images

    @property
    def is_encoded(self) -> bool:
        """Return whether the tower is an encoder, which the model's own layers attend to."""
        return self.lowering.source_ratio > 0

    @property
    def tower_name(self) -> str:
        """Return what the tower is called."""
        return "encoder" if self.is_encoded else "vision tower"

    @property
    def stretches(self) -> list[tuple[int, tuple[Op, ...]]]:
        """Return (how often, operators) of everything a micro-batch passes, in forward order."""
        return [(1, self.embedding), *((group.count, group.ops) for group in self.layers), (1, self.head)]

    def passed(self, extents: Extents) -> Iterator[tuple[int, tuple[Op, ...], Extents]]:
        """Yield `stretches`, those of the tower first, each with its own sizes of a micro-batch."""
        for part in self.tower:
            yield part.count, part.ops, part.of(extents)
        for count, ops in self.stretches:
            yield count, ops, extents

    def flops(self, extents: Extents) -> tuple[float, float]:
        """Return one micro-batch's FLOPs, forward and in both passes; recomputation is not counted."""
        forward = both = 0.0
        for count, ops, sizes in self.passed(extents):
            for op in ops:
                seen = sizes.windowed(op.window)
                once = op.forward.flops.at(seen)
                forward += count * once
                both += count * (once + op.backward.flops.at(seen))
        return forward, both


def build(run: Run) -> Graph:
    """Return the operator graph of `run`; the batch does not enter.

    Raises: FieldError if no projection of the model bears a name of `lora_targets`.
    """
    graph = _build(
        run.model,
        file_version(run.model),
        run.num_experts_per_tok,
        lowering_of(run),
        run.trainable_extra,
        (run.optimizer, run.optimizer_rank or 0),
        run.upcast_unquantized,
        run.phase == "reward",
        (run.task, run.num_labels),
    )
    check_task(run, graph.model)
    check_positions(run, graph.model)
    check_checkpointing(run, graph.model)
    if run.trains_adapters and not graph.weights.adapter_params:
        if run.adapter in OFF_PROJECTIONS:
            raise FieldError(f"adapter={run.adapter} finds nothing to train in {run.model}; use lora.")
        tensors = (tensor for layer, _ in graph.model.layers for tensor in layer.tensors())
        names = sorted({last_name(tensor.name) for tensor in tensors if tensor.kind in TARGETABLE})
        raise FieldError(
            f"lora_targets={','.join(run.lora_targets)} names no projection of {run.model}; "
            f"use all-linear, attention, or some of {', '.join(names)}."
        )
    return graph


@lru_cache(maxsize=64)
def _build(
    model_name: str,
    _: tuple[int, ...] | None,  # a file may have become another
    top_k: int | None,
    low: Lowering,
    trainable_extra: tuple[str, ...],
    optimizer: tuple[str, int],
    upcast: bool,
    scalar: bool,
    task: tuple[str | None, int],
) -> Graph:
    """Build and remember the graph of one model under one lowering; `scalar`: a reward or a value."""
    model = _architecture(model_name, top_k, *task, litgpt=low.litgpt)
    if scalar:  # one output per token in place of one per word
        score = Linear("score", model.projection.in_features, 1)
        model, trainable_extra = model._replace(head=score, vocab_size=1), (*trainable_extra, "lm_head")
    elif model.head is not None and model.head.kind == "head":
        trainable_extra = (*trainable_extra, "lm_head")
    first, last = OpBuilder(low), OpBuilder(low)
    embedding(first, model)
    if low.images and not (model.tower and model.tower.parts):
        raise UnsupportedError(
            f"model_type '{model.model_type}' with images is not predicted: nothing describes how it "
            "reads them; remove images_per_sample and videos_per_sample."
        )
    tower = tower_parts(model.tower, low) if model.tower and low.images else ()
    if tower and not low.source_ratio:
        images_among_words(first, model.hidden_size)
    if low.wide_head:
        last.lowering = low._replace(compute_bytes=4, compute_dtype="fp32")
    head(last, model)
    weights = weights_of(model, low, trainable_extra, optimizer, upcast=upcast)
    layers = _layers(model, low)
    own, lent = lending(model, [group.ops for group in layers])
    layers = tuple([group._replace(ops=ops) for group, ops in zip(layers, own, strict=True)])
    last.ops[0] = last.ops[0]._replace(gradient_bytes=last.ops[0].gradient_bytes + lent)
    return Graph(model, low, layers, tuple(first.ops), tuple(last.ops), weights, tower)


def architecture_of(
    model_name: str, top_k: int | None = None, task: str | None = None, num_labels: int = 2
) -> Architecture:
    """Return the architecture of a catalogue name or of a config on disk, with the head of `task`."""
    return _read(model_name, file_version(model_name), top_k, task, num_labels)


@lru_cache(maxsize=64)
def _read(model_name: str, _: tuple[int, ...] | None, top_k: int | None, *task: Any) -> Architecture:
    return architecture(model(model_name).config, top_k, *task)


def _architecture(
    model_name: str, top_k: int | None, task: str | None, num_labels: int, *, litgpt: bool
) -> Architecture:
    model = architecture_of(model_name, top_k, task, num_labels)
    return litgpt_model(model) if litgpt else model


def lowering_of(run: Run) -> Lowering:
    """Return the choices of `run` that decide which operators its blocks become."""
    served = run.phase in SERVING and engine(run.inference_engine).paged
    return _served(run, _lowering(run)) if served else _lowering(run)


def _lowering(run: Run) -> Lowering:
    quantized = run.weights_dtype if run.weights_dtype in QUANTIZED_BYTES else ""
    plain = run.weights_dtype
    if quantized:  # what 4-bit linears compute in
        plain = "fp16" if quantized.startswith("gptq") or not multiplies_bf16(run.gpu) else "bf16"
    compute = run.autocast if run.autocast != "none" else plain
    compute_bytes = 4 if compute == "fp32" else 2
    version, framework = version_numbers(run.transformers_version)[:2], framework_of(run.framework)
    model = _architecture(
        run.model, run.num_experts_per_tok, run.task, run.num_labels, litgpt=framework.litgpt_models
    )
    numerics, checkpointing = model.numerics, run.activation_checkpointing != "none"
    upcast = run.upcast_unquantized and bool(quantized)
    narrowed = quantized.startswith("nf4") and run.autocast != "none"
    wide = run.weights_dtype == "fp32" or upcast or (narrowed and _layer_normed(model))
    adapters, fused = run.trains_adapters, set(run.kernels) - set(ATTENTION_KERNELS)
    frozen = adapters or run.method == "freeze"
    kind = run.adapter if adapters else ""
    trains = not frozen and not run.freeze_language_model
    fused_experts = version >= (5, 0) and not (quantized and run.quantize_experts)  # apart, to be quantised
    # 4-bit linears keep their inputs on the autograd context (bitsandbytes < 0.43.2)
    old = run.weights_dtype in ("nf4", "nf4_dq") and version_numbers(run.bitsandbytes_version) < (0, 43, 2)
    (attends, generation, unpads), flashless = _attention(run, model), has_no_flash(run.gpu)
    grouped_efficient = version >= GROUPED_EFFICIENT_SINCE and (flashless or upcast)
    return Lowering(
        activation_bytes=4 if wide else compute_bytes,
        compute_bytes=compute_bytes,
        compute_dtype=compute,
        weight_bytes=4 if run.weights_dtype == "fp32" else 2,
        autocast=run.autocast != "none",
        weights_train=trains,
        norms_train=trains or "norms" in run.trainable_extra or kind == "ln_tuning",
        **_adapters(run, model, fused_experts=fused_experts),
        adapter_bytes=4 if run.adapter_dtype == "fp32" else 2,
        quantized=quantized,
        experts_quantized=run.quantize_experts,
        stashes_inputs=old,
        stash_survives=old and not (checkpointing and run.checkpointing_reentrant),
        rebuilds=run.activation_checkpointing in ("full", "selective") and not run.checkpointing_reentrant,
        attention=attends,
        experts="eager" if version >= (5, 0) and not fused_experts else run.experts_implementation,
        fused_experts=fused_experts,
        expert_capacity_ratio=run.expert_capacity_factor or 1.0,
        megatron="megatron" in run.kernels,
        fused_kernels=bool(fused) or run.compile,  # a compiler fuses what those fuse by hand
        fused_activation=bool(fused - {"foak"}) or run.compile,
        loss=run.loss,
        logits_shifted=version < (4, 49),
        logits_held=(4, 46) <= version < (4, 50) and not (numerics.own_loss or numerics.narrow_loss),
        written_loss=framework.compiles_layers and not fused,
        parallel_loss=framework.parallel_loss and run.tensor_parallel > 1,
        # taken of logits as they come, in 16 bit
        narrow_loss=run.autocast == "none"
        and ((version < (5, 0) and numerics.narrow_loss) or framework.takes_loss_itself),
        hands_back_cache=version < CHECKPOINTING_LAYERS_SINCE and numerics.hands_back_cache,
        ssm_kernels="slow" if is_cpu(run.gpu) else run.ssm_kernels,  # the fused ones are CUDA
        numerics=numerics,
        masked_windows=_masked_windows(run, model) if attends == "sdpa" else (),
        repeats_keys=_repeats_keys(attends, version, model),
        on_cpu=is_cpu(run.gpu),
        repacks=quantized.startswith("nf4") and run.phase in INFERENCE and repacks_4bit(run.gpu),
        chunks_kept=run.loss == "chunked" and framework.keeps_loss_chunks,
        tiled=tiles_loss(run),
        litgpt=framework.litgpt_models,
        unpacks_in_torch=quantized.startswith("gptq") and not framework.fuses_gptq,
        last_layers=run.freeze_trainable_layers or 0,
        narrow=run.fp8_recipe if run.fp8 else "",
        narrow_products=run.fp8_products,
        casts_weights=not (run.fp8_all_gather and run.sharding in FSDP),
        own_models=framework.own_models,
        masks=_masks(run),
        clamps_scores=numerics.clamped_scores and version < SCORES_CLAMPED_UNTIL,
        flashless=flashless,
        composite_groups=version >= GROUPED_SDPA_SINCE and not grouped_efficient,
        wide_head=upcast and compute_bytes == 2 and run.autocast == "none",
        attention_generation=generation,
        unpads=unpads,
        **_towards_the_input(run, model, trains=trains),
    )


def _adapters(run: Run, model: Architecture, *, fused_experts: bool) -> dict[str, Any]:
    """Return which projections have adapters, and of which kind and size these are."""
    found: dict[str, Any] = {}
    framework = framework_of(run.framework)
    names = run.lora_targets if run.trains_adapters and run.adapter not in OFF_PROJECTIONS else ()
    if names and framework.litgpt_models:
        names, found["padded_adapters"] = litgpt_targets(names), padded_adapters(names)
    return found | {
        "lora_rank": run.lora_rank if names else 0,
        "targets": targets_of(
            names,
            model,
            fused_experts=fused_experts,
            # held against PEFT's rules; Megatron gives adapters of experts their own
            dropout=0.0 if framework.own_models else run.lora_dropout,
            adapter=run.adapter,
            linears_alone=framework.lists_linears,
        ),
        "lora_dropout": bool(names) and run.lora_dropout > 0,
        "adapter": run.adapter if run.trains_adapters else "",
        "adapter_size": run.adapter_size or 0,
        "adapter_hidden": run.adapter_hidden_size or 0,
    }


def _towards_the_input(run: Run, model: Architecture, *, trains: bool) -> dict[str, Any]:
    """Return the images of a sequence, what of tower and projector trains, and how far gradients go.

    `trains`: the text's own weights do.
    """
    images = tuple(Images(number * seen.crops, seen.patches) for number, seen in seen_by(run))
    adapters, encoder = run.trains_adapters, model.tower if model.tower and model.tower.encoder else None
    if encoder:
        images = (Images(1.0, encoder.rows or run.seq_len),)
    checkpointing = run.activation_checkpointing != "none"
    thawed = (True, True) if encoder else (not run.freeze_vision_tower, not run.freeze_projector)
    own, beside = not adapters and run.method != "freeze", adapters and bool(images)
    return {
        "images": images,
        "held_values": model.held_values if run.activation_checkpointing in WHOLE_LAYERS else 0.0,
        "held_biases": _held_biases(run, model) if encoder and checkpointing else (0.0, 0.0),
        "source_ratio": images[0].patches / (run.target_seq_len or 1) if encoder else 0.0,
        "tower_trains": tuple(own and each for each in thawed),
        "tower_adapts": tuple(beside and each for each in thawed),
        "input_gradients": trains
        or checkpointing
        or "embed_tokens" in run.trainable_extra
        or (adapters and run.adapter in ON_EMBEDDINGS)
        or (bool(images) and not encoder and (own or beside) and any(thawed)),
    }


def _held_biases(run: Run, model: Architecture) -> tuple[float, float]:
    """Return how many biases of scores the checkpoints of encoder and decoder hold.

    Under checkpointing T5 makes those of attention to the source need a gradient.
    """
    mixer = model.layers[0][0].branches[0].mixer
    if not isinstance(mixer, Attention) or not mixer.biased:
        return 0.0, 0.0
    heads, source, target = float(mixer.num_heads), run.seq_len, run.target_seq_len or 0
    return heads * source**2, heads * target * (target + 2 * source)


def _served(run: Run, low: Lowering) -> Lowering:
    """Return how an engine made for serving does it: fused kernels, formats as they are stored."""
    in_blocks = low.quantized == "fp8" and any(family in run.model.casefold() for family in IN_BLOCKS)
    return low._replace(
        attention="flash",
        attention_generation=3,
        unpads=False,
        masked_windows=(),
        repeats_keys=False,
        experts="grouped_mm",
        fused_experts=True,
        fused_kernels=True,
        fused_activation=True,
        unpacks_in_torch=False,
        stored="fp8_block" if in_blocks else low.quantized if low.quantized in STORED else "",
    )


def _attention(run: Run, model: Architecture) -> tuple[str, int, bool]:
    """Return the attention that runs, its kernel's generation, and whether the host waits for lengths.

    It is what is requested, unless the model's code does not have it. FlashAttention's generation; Megatron's
    layers have cuDNN's kernel where that is the fastest, torchtitan on B200 and its kin. So has PyTorch's
    sdpa: from 2.10, of the months of transformers 5, cuDNN's comes first on Hopper (sdp_utils.cpp,
    check_prefer_cudnn_attention). transformers' FlashAttention asks the device in every layer where sequences
    begin, by masks or position ids, and the longest length (modeling_flash_attention_utils.py, 4.44, 5.23).
    """
    framework, numerics = framework_of(run.framework), model.numerics
    version = version_numbers(run.transformers_version)[:2]
    uncapped = numerics.softcap and run.attention == "sdpa" and SOFTCAP_DROPPED <= version < SOFTCAP_REFUSED
    has = run.attention in numerics.kernels or framework.own_models or uncapped
    implemented = run.attention if has and not (framework.litgpt_models and numerics.softcap) else "eager"
    today = version_numbers(run.transformers_version) >= (5, 0, 0) and not framework.own_models
    first = today or (framework.asks_for_cudnn and has_tensor_memory(run.gpu))
    generation = 3 if (run.attention == "sdpa" and first) or "megatron" in run.kernels else 2
    varied = run.padding == "free" or (run.dataset is not None and not run.packing)
    unpads = varied and run.attention == "flash" and not framework.own_models
    named = (number for kernel, number in ATTENTION_KERNELS.items() if kernel in run.kernels)
    return implemented, next(named, generation), unpads


def _repeats_keys(attention: str, version: tuple[int, ...], model: Architecture) -> bool:
    if attention == "flash":
        return version < GROUPED_FLASH_SINCE and model.model_type in REPEATING
    return attention == "eager" or version < GROUPED_SDPA_SINCE


def _masks(run: Run) -> bool:
    """Return whether transformers' sdpa is handed a mask: it is where a batch holds padding.

    Where the padding mask is all ones it passes `is_causal` alone, and FlashAttention may run
    (modeling_attn_mask_utils.py, `_ignore_causal_mask_sdpa`, of 4.49 and 5.23).
    """
    if run.attention_mask is not None:
        return run.attention_mask
    if run.trains_adapters and run.adapter == "prefix_tuning":  # keys are more than queries
        return True
    padded = run.dataset is not None and not run.packing and run.padding != "free"
    return padded and not framework_of(run.framework).own_models


def _masked_windows(run: Run, model: Architecture) -> tuple[int, ...]:
    """Return the windows of attention that are no longer than the longest sequence, which sdpa is masked by.

    Frameworks with code of their own have a kernel for them: torchtitan's Llama 4 is FlexAttention over
    blocks, or causal alone (torchtitan/models/llama4/model/args.py, 10d56e9), Megatron's TransformerEngine's.
    """
    if framework_of(run.framework).own_models:
        return ()
    mixers = (branch.mixer for layer, _ in model.layers for branch in layer.branches)
    windows = {m.window for m in mixers if isinstance(m, Attention) and m.window is not None}
    return tuple(sorted(window for window in windows if window <= run.seq_len))


def _layer_normed(model: Architecture) -> bool:
    """Return whether PyTorch's LayerNorm feeds the projections of every layer.

    Autocast runs it in fp32, and a 4-bit linear (bitsandbytes 0.43 to 0.50, Linear4bit.forward) gives
    back the width that came in: from the first branch on, the residual stream is fp32.
    """
    if model.numerics.written_layer_norms or model.numerics.wide_layer_norms:  # these cast back
        return False
    found = False
    for layer, _ in model.layers:
        for branch in layer.branches:
            if branch.norm_before is not None:
                if branch.norm_before.kind != "layer":
                    return False
                found = True
    return found


def _layers(model: Architecture, low: Lowering) -> tuple[LayerGraph, ...]:
    """Return the operators of every kind of layer, equal ones together.

    While nothing that trains has been met, gradients end: the first layers stand for themselves.
    The model's groups are in order until every kind of layer has been met.
    """
    kinds: list[tuple[str, tuple[Op, ...]]] = []
    met: list[tuple[int, int]] = []  # which of the kinds, how many layers
    reached = low.input_gradients
    for linear in model.widening:
        reached = reached or low.rank(linear, "linear", "embedding") > 0
    for layer, count, own in _lowered(model, low):
        norm = layer.branches[0].norm_before
        whole = own.weights_train and not (norm and norm.weight)  # what trains first is not told apart
        for number in (count,) if reached else (1, count - 1):
            if not number:
                continue
            builder = OpBuilder(own, reached=reached or whole)
            layer_ops(builder, layer, model.hidden_size)
            ops = tuple(builder.ops)
            if low.megatron:
                ops = called_by_python(ops)
            kind = layer.kind, ops
            if kind not in kinds:
                kinds.append(kind)
            met.append((kinds.index(kind), number))
            reached = builder.reached
    return _in_order(kinds, met)


def _in_order(kinds: list[tuple[str, tuple[Op, ...]]], met: list[tuple[int, int]]) -> tuple[LayerGraph, ...]:
    """Return the kinds of layers, what stands before the first of each and to its last."""
    groups: list[LayerGraph] = []
    ordered = [index for index, _ in met].index(len(kinds) - 1)
    count = [0] * len(kinds)
    before: dict[int, tuple[int, ...]] = {}
    until: dict[int, tuple[int, ...]] = {}
    for place, (index, number) in enumerate(met):
        before.setdefault(index, tuple(count))
        count[index] += number
        until[index] = tuple(count) if place < ordered else ()  # of the rest any may be the last
    for index, (kind, ops) in enumerate(kinds):
        groups.append(LayerGraph(kind, count[index], ops, before[index], until[index] or tuple(count)))
    return tuple(groups)


def _lowered(model: Architecture, low: Lowering) -> Iterator[tuple[Layer, int, Lowering]]:
    trained = last_layers(model, low.last_layers) if low.last_layers else []
    left = model.num_layers - sum([count for _, count in trained])
    for layer, count in model.layers:
        if frozen := min(count, left):
            yield layer, frozen, low
        left -= frozen
    for layer, count in trained:
        yield layer, count, low._replace(weights_train=True, norms_train=True)


def step_flops(run: Run, graph: Graph, extents: Extents) -> float:
    """Return the FLOPs of one step whose average micro-batch is `extents`; recomputation is not counted.

        sft, pretrain, reward       forward and backward of every micro-batch
        dpo                         + forward of the reference
        grpo                        `ppo_epochs` times; + generation, and the forward of whoever scores
        ppo                         policy and value model likewise
        evaluate, prefill, decode   forward

    Generating an answer word by word takes as many FLOPs as reading it with its prompt at once.
    """
    forward, one = graph.flops(extents)
    if run.phase in INFERENCE:
        return micro_steps(run) * forward
    if run.phase in RL:
        updated = build(value_run(run)).flops(extents)[1] if run.phase == "ppo" else 0.0
        one = run.ppo_epochs * (one + updated) + forward
    for role in scoring_runs(run):
        one += build(role.run).flops(extents)[0]
    return micro_steps(run) * one


class Role(NamedTuple):
    """A model that passes once over every micro-batch of a step before it is trained, and keeps nothing."""

    name: str
    run: Run  # whose model it is
    frozen: bool = False  # a model beside those that train
    adapted: bool = False  # its adapters, if any, take part


@lru_cache(maxsize=256)
def scoring_runs(run: Run) -> tuple[Role, ...]:
    """Return the models that score in a step of `run`.

    The policy's own likelihoods are taken before the first of several updates; with a single one they are
    those of its forward pass (PPO's trainers take them all the same).
    """
    found = []
    if run.phase == "ppo" or (run.phase == "grpo" and (run.old_log_probs or num_updates(run) > 1)):
        found.append(Role("policy", run, adapted=True))
    if run.phase in ("dpo", *RL) and run.reference_model != "none":
        own = run.reference_model in ("policy", "copy")
        reference = run if own else of_model(run, run.reference_model)
        frozen = run.reference_model != "policy" or not run.trains_adapters
        if frozen and run.reference_offload:
            reference = reference.replace(cpu_offload="params")
        found.append(Role("reference", reference, frozen=frozen))
    if run.phase == "ppo":
        found.append(Role("value model", value_run(run), adapted=True))
    judges = run.phase == "ppo" or (run.phase == "grpo" and run.reward_model)
    if judges and run.reward_model != "none":
        found.append(Role("reward model", of_model(value_run(run), run.reward_model), frozen=True))
    return tuple(found)


@lru_cache(maxsize=256)
def value_run(run: Run) -> Run:
    """Return the run whose model is PPO's value model: one output per token."""
    changes: dict[str, Any] = {"phase": "reward", "max_new_tokens": None, "mean_new_tokens": None}
    if run.padding == "free":  # rewards compare whole sequences; these are scored token by token
        changes |= {"padding": "longest", "packing": False}
    if run.critic_method == "full" and run.trains_adapters:
        changes |= {"method": "full", "weights_dtype": None if run.method != "lora" else run.weights_dtype}
        changes |= {"trainable_extra": ()}
    if not run.critic_checkpointing:
        changes["activation_checkpointing"] = "none"
    elif run.activation_checkpointing == "none":
        changes["activation_checkpointing"] = "full"
    if run.critic_sharding != run.sharding:
        changes |= division_by(run, run.critic_sharding)
    return of_model(run.replace(**changes), run.critic_model)


def of_model(run: Run, name: str | None) -> Run:
    """Return the same run of another model; of its own where none is named."""
    if name is None or name == run.model:
        return run
    return run.replace(model=name, num_experts_per_tok=None, expert_capacity_factor=None)
