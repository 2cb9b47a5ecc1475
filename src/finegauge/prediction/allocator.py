"""What PyTorch's caching allocator holds beside live tensors: slack, which is lost, and freed blocks.

A freed block serves a later request that is no larger: blocks of at least 1 MiB come from segments of
20 MiB or, from 10 MiB on, of their own size rounded up to 2 MiB [1]. So a forward pass through a layer
leaves its temporaries behind as free blocks of several sizes, too small for the logits; 16-bit logits, freed
once they are widened, leave a hole that no fp32 block fits; and what another stream allocates (FSDP2's
sharded gradients and the buffers of its gathers [2]) takes no block of the compute stream's. All of it is
given back before a step runs out of memory: it is shown (reserved, nvidia-smi) and need not fit. Slack lies
in segments in use.

Expandable segments map pages of 2 MiB where they are needed: free neighbours join whatever their sizes, and
only the hole and the streams remain [1]. `max_split_size_mb` keeps large blocks whole, so that no small one
of varying size pins them; `garbage_collection_threshold` gives free blocks back from that share of the
memory on. Neglects: `roundup_power2_divisions`, which rounds sizes up by a few percent.

[1] c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13 and docs/source/notes/cuda.rst, "Optimizing memory
    usage with PYTORCH_CUDA_ALLOC_CONF" (read 2026-11-22)
[2] torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather and foreach_reduce, the same
"""

from finegauge.catalogue.frameworks import framework_of
from finegauge.model.blocks import MixtureOfExperts
from finegauge.model.graph import Graph
from finegauge.model.op import Extents
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.memory import LiveSet, forward_moment
from finegauge.prediction.model_parallel import stream_degree
from finegauge.prediction.sharding import GATHERED_WEIGHTS
from finegauge.profile import Breakdown
from finegauge.records import NamedTuple
from finegauge.run.rules import FSDP, alloc_options
from finegauge.run.run import Run


class Allocator(NamedTuple):
    """The options that change what is kept or lost."""

    expandable: bool = False
    splits_large: bool = True
    keeps_fraction: float = 1.0  # of the memory: more is given back

    @classmethod
    def of(cls, run: Run) -> "Allocator":
        """Return the options of a run: as stated, else as its framework's launcher sets them."""
        stated = run.cuda_alloc_conf
        options = alloc_options(framework_of(run.framework).alloc_conf if stated is None else stated)
        return cls(
            expandable=options.get("expandable_segments", "").casefold() in ("true", "1"),
            splits_large="max_split_size_mb" not in options,
            keeps_fraction=float(options.get("garbage_collection_threshold", 1.0)),
        )


def shapes_vary(run: Run, graph: Graph) -> bool:
    """Return whether allocations change size from step to step: padded batches, tokens of some experts."""
    if run.experts_implementation == "eager":
        for layer, _ in graph.model.layers:
            for branch in layer.branches:
                experts = branch.mixer
                if isinstance(experts, MixtureOfExperts) and experts.top_k < experts.num_experts:
                    return True
    return run.dataset is not None and run.padding != "max" and not run.packing


def slack_fraction(run: Run, graph: Graph, calibration: Calibration) -> float:
    """Return the share of activations and logits that is lost in segments in use."""
    allocator = Allocator.of(run)
    if allocator.expandable:
        return 0.0
    varied = shapes_vary(run, graph) and allocator.splits_large
    return calibration.varied_slack_fraction if varied else calibration.slack_fraction


def outside_tensors(run: Run, graph: Graph, peak: Breakdown, calibration: Calibration) -> Breakdown:
    """Return what the device holds beside live tensors: allocator slack and the CUDA context, in bytes."""
    moving = peak["activations"] + peak["logits"]
    lost = slack_fraction(run, graph, calibration) * moving
    return Breakdown({("slack",): lost, ("context",): calibration.context_bytes})


def cached_bytes(
    run: Run, graph: Graph, live: LiveSet, longest: Extents, on_device: Breakdown, usable_bytes: float,
    calibration: Calibration,
) -> float:  # fmt: skip
    """Return the bytes of freed blocks that the allocator keeps beside `on_device`.

    They are what a layer's temporaries and narrow logits leave, or more: gradients and the optimizer's
    temporaries come when activations have gone, and find no block of theirs among them; shapes that vary
    leave blocks of every size.
    """
    if not calibration.cached_temporaries_ratio:
        return 0.0  # a processor's allocator gives back what is free
    allocator, peak = Allocator.of(run), live.peak
    moving = gradients = scratch = 0.0
    for phase in live.phases.values():
        moving = max(moving, phase["activations"] + phase["logits"])
        gradients = max(gradients, phase.parts.get(("gradients",), 0.0))
        scratch = max(scratch, phase.parts.get(("workspace", "optimizer"), 0.0))
    late = peak.parts.get(("gradients",), 0.0) + peak.parts.get(("workspace", "optimizer"), 0.0)
    after = moving + gradients + scratch - (peak["activations"] + peak["logits"] + late)
    hole = _narrow_logits(run, graph, longest)  # and what other streams hold for themselves
    if run.sharding in FSDP and framework_of(run.framework).fully_shard:
        hole += max(phase.parts.get(GATHERED_WEIGHTS, 0.0) for phase in live.phases.values())
    if allocator.expandable:
        kept = hole + (max(0.0, gradients - late) if run.sharding in FSDP else 0.0)
    elif shapes_vary(run, graph) and allocator.splits_large:
        kept = max(calibration.varied_cached_fraction * moving, after)
    else:
        kept = max(_temporaries(run, graph, longest, calibration) + hole, after)
    room = allocator.keeps_fraction * usable_bytes - on_device.total
    return max(0.0, min(kept - on_device["slack"], room))


def _temporaries(run: Run, graph: Graph, longest: Extents, calibration: Calibration) -> float:
    """Return the free blocks that the forward pass of a layer leaves; scores are all of one size."""
    keeping, low = run.activation_checkpointing == "none", graph.lowering
    stream = low.stream_bytes * graph.model.hidden_size / stream_degree(run) * longest.tokens
    most = 0.0
    for group in graph.layers:
        scores = 0.0
        for op in group.ops:
            live = op.live_forward_bytes if keeping else op.passing_bytes
            scores = max(scores, live.pair * longest.pairs)
        beside = forward_moment(group.ops, longest, stream, keeping=keeping).beside_bytes
        most = max(most, calibration.cached_temporaries_ratio * max(0.0, beside - scores) + scores)
    return most


def _narrow_logits(run: Run, graph: Graph, longest: Extents) -> float:
    low = graph.lowering
    wide = low.wide_head or low.numerics.wide_logits or low.compute_bytes == 4
    if wide or run.loss != "full_logits" or run.keeps_outputs or low.litgpt or low.narrow_loss:
        return 0.0
    return low.compute_bytes / 4.0 * graph.head[-1].saved_bytes.at(longest)
