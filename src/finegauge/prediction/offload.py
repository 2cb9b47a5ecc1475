r"""What offloading takes: copies between a GPU and its host, the update on the host's cores, drives, and RAM.

DeepSpeed, stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8) [1]: with several micro-batches
each of them fetches the 16-bit sum of gradients so far, adds to it on the GPU and sends it back; the last one
sends fp32. The step clips them (8 bytes a value), runs Adam (28: gradient, fp32 weight and two moments read,
three of them written), makes a 16-bit copy (6) and sends it up; the ranks then gather. Stage 3 (stage3.py)
sends the sum back and forth in the first micro-batch too, and casts new weights into fresh pages, which are
not page-locked whatever the config says. Where its weights lie on the host, every gather of a pass first
fetches this rank's part, and nothing is sent up after the step.

FSDP (torch/distributed/fsdp of 2.13) offloads all or nothing: shards, gradients and moments lie in
page-locked memory; gathers fetch, reductions send, beside the computation. `fully_shard` adds up gradients
of several micro-batches on the host, where every one is reduced, and waits for these copies. torch's AdamW
on the host goes tensor by tensor, 80 bytes for an fp32 value and two new temporaries, or fused, 28.

A copy of page-locked memory runs at the rate of PCIe, divided by those who share a switch, beside the
kernels; a pageable one goes through the driver's staging buffer, and the host waits for it. A rank streams
as fast as its threads do (one, as torchrun has it), and no faster than its share of the memory's bandwidth.
On NVMe (ZeRO-Infinity) the fp32 copy, both moments and the fp32 gradients are written and read once a step,
and 16-bit weights read for every pass [2].

Neglected: DeepSpeed's partial offload (Twin-Flow, SuperOffload, ZenFlow), reading ahead from the drives.

[1] Ren et al. 2021, arXiv:2101.06840, section 4   [2] Rajbhandari et al. 2021, arXiv:2104.07857, section 6
"""

from collections.abc import Iterator
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from finegauge.arithmetic import largest, where
from finegauge.catalogue.frameworks import framework_of
from finegauge.catalogue.gpus import GpuSpec
from finegauge.model.graph import build, scoring_runs
from finegauge.prediction.model_parallel import MASTER_BYTES, by_fully_shard, stage_layers
from finegauge.prediction.sharding import (
    Share,
    expert_shard_degree,
    second_copy_bytes,
    shard_degree,
    states_on_host,
    weights_on_host,
)
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.phases import reduces_at_the_end
from finegauge.run.run import FROM_DEFAULT, Run

if TYPE_CHECKING:
    from finegauge.prediction.links import Network

# Bytes of the host's memory per value. New pages cost FRESH times what a byte that streams does: on one core
# 1.5 GB/s where they are zeroed first, 9 to 12 without (measured 2026-11-22, Xeon of 2.5 GHz, torch 2.13)
FRESH = 8.0
CLIP_BYTES = 8.0  # FSDP's norm, which DeepSpeed takes on the GPU, reads 4 more
FUSED_ADAM_BYTES = 28.0  # DeepSpeed's CPUAdam 1.73 ns a value on that core, torch's fused AdamW 1.59
TORCH_ADAM_BYTES = 80.0 + 2 * 4 * FRESH  # 8.99 ns: 144 bytes at the same 16 GB/s
CAST_BYTES = 6.0
STATE_BYTES = 16.0  # per value on the drives: fp32 copy, two moments and gradient
NVME_BUFFERS_BYTES = 1e9  # DeepSpeed's buffer_count 5 of buffer_size 1e8, 16-bit


class Computing(NamedTuple):
    """Seconds of a step beside which copies may run, and how many micro-batches it has."""

    both_s: Any  # of both passes, all that they wait for included
    backward_s: Any
    micro_steps: Any


def offloaded(run: Run, share: Share, computing: Computing, network: "Network") -> Iterator[tuple[str, Any]]:
    """Yield (what, seconds per step that show) of what crosses the host link, and of the host's update."""
    if run.cpu_offload == "none":
        return
    low, weights, steps = share.graph.lowering, share.graph.weights, computing.micro_steps
    values, deepspeed = weights.trained_params + weights.adapter_params, run.sharding.startswith("zero")
    rate = _copied_bytes_per_s(run, network)
    drives, weights_s = network.nvme_bytes_per_s, 0.0
    if weights_on_host(run):
        passes = 1 if run.sharding == "fsdp_shard_grad_op" else 2
        fetched = passes * steps * rank_weight_bytes(run, share)
        weights_s = _shown(run, fetched / rate, computing.both_s)
        yield "weights from the host", weights_s
        if run.cpu_offload == "nvme":
            written = values * low.compute_bytes
            yield "weights on the drives", (fetched + written) / drives
    if not states_on_host(run):  # DeepSpeed's stage 3 with its weights alone on the host: new ones go down
        yield "updated weights to the host", values * low.compute_bytes / rate
        return
    update = _deepspeed(run, share, steps, network) if deepspeed else _fsdp(run, share, steps, network)
    yield "updated weights from the host", update.returned_s
    waited_s = _shown(run, update.sent_s, computing.backward_s + weights_s) + update.waited_s
    yield "gradients to the host", waited_s
    yield "optimizer on the host", values * update.host_bytes / network.core_bytes_per_s
    if run.cpu_offload == "nvme":
        yield "states on the drives", 2 * values * STATE_BYTES / drives


class _Update(NamedTuple):
    """What the last mile of a step takes, beside the forward and backward pass."""

    sent_s: Any  # of gradients, beside the backward pass where they may
    waited_s: Any  # of gradients that nothing runs beside
    returned_s: Any  # of updated weights
    host_bytes: Any  # of the host's memory that one value moves


def _deepspeed(run: Run, share: Share, steps: Any, network: "Network") -> _Update:
    weights, width = share.graph.weights, share.graph.lowering.compute_bytes
    values, rate = weights.trained_params + weights.adapter_params, _copied_bytes_per_s(run, network)
    rounds = {"zero1": 0, "zero3": 2 * steps}.get(run.sharding, where(steps > 1, 2 * steps - 1, 0))
    sent_s = values * (rounds * width + 4.0) / rate
    returned_s, fresh = values * width / rate, 0.0
    if weights_on_host(run):
        returned_s = 0.0 * sent_s
    elif run.sharding == "zero3":
        returned_s, fresh = values * width / network.pageable_bytes_per_s, width * FRESH
    return _Update(sent_s, 0.0, returned_s, _clip_bytes(run) + FUSED_ADAM_BYTES + CAST_BYTES + fresh)


def _fsdp(run: Run, share: Share, steps: Any, network: "Network") -> _Update:
    weights, width = share.graph.weights, share.value_bytes
    sent = (weights.trained_params + weights.adapter_params) * width
    reductions = 1 if reduces_at_the_end(run) else steps
    fused = run.optimizer_implementation == "fused"
    moved = 1.5 * _clip_bytes(run) + (FUSED_ADAM_BYTES if fused else TORCH_ADAM_BYTES)
    waited_s = 0.0
    if by_fully_shard(run):  # what is added up on the host comes by a copy that is not page-locked
        moved = moved + (reductions - 1) * (12.0 + 4.0 * FRESH)
        waited_s = (reductions - 1) * sent / network.pageable_bytes_per_s
        reductions = 1
    sent_s = reductions * sent / _copied_bytes_per_s(run, network)
    return _Update(sent_s, waited_s, 0.0, moved * width / 4.0)


def _clip_bytes(run: Run) -> float:
    return 0.0 if framework_of(run.framework).clips_nothing else CLIP_BYTES


def fetched_s(run: Run, share: Share, compute_s: Any, network: "Network") -> Any:
    """Return the seconds that a pass which only goes forward waits for weights that lie on the host."""
    if not weights_on_host(run):
        return 0.0
    num_bytes = rank_weight_bytes(run, share)
    seconds = _shown(run, num_bytes / _copied_bytes_per_s(run, network), compute_s)
    return seconds + (num_bytes / network.nvme_bytes_per_s if run.cpu_offload == "nvme" else 0.0)


def rank_weight_bytes(run: Run, share: Share) -> Any:
    """Return the bytes of this rank's part of the weights, trained and frozen."""
    layers = stage_layers(run, share.graph.model)
    apart = layers * share.expert_layer_bytes / expert_shard_degree(run)
    return (layers * share.layer_bytes + share.outer_bytes) / shard_degree(run) + apart


def kept_on_host(run: Run, share: Share) -> Breakdown:
    """Return the bytes of host memory that offloading takes on each rank, page-locked buffers included.

    torch's allocator of page-locked memory hands out powers of two
    (ATen/core/CachingHostAllocator.h of 2.13).
    """
    found: dict[Path, float] = {}
    for role in scoring_runs(run) if run.reference_offload else ():
        if role.frozen and role.name == "reference":
            found["host", "reference"] = _locked(run, build(role.run).weights.base_bytes / shard_degree(run))
    if run.cpu_offload == "none":
        return Breakdown(found)
    low, weights = share.graph.lowering, share.graph.weights
    values = float(weights.trained_params + weights.adapter_params)
    deepspeed, on_drives = run.sharding.startswith("zero"), run.cpu_offload == "nvme"
    if weights_on_host(run):
        rest = NVME_BUFFERS_BYTES if on_drives else rank_weight_bytes(run, share)
        found["host", "weights"] = _locked(run, rest) + _locked(run, second_copy_bytes(run, share))
    if not states_on_host(run):
        return Breakdown(found)
    if not deepspeed:
        found["host", "gradients"] = _locked(run, values * share.value_bytes)
        found["host", "moments"] = 2.0 * values * share.value_bytes
        return Breakdown(found)
    summed = run.sharding == "zero3" or (run.sharding == "zero2" and run.gradient_accumulation_steps > 1)
    if summed:
        found["host", "gradients, summed"] = _locked(run, values * low.compute_bytes)
    if on_drives:
        return Breakdown(found)
    found["host", "gradients, fp32"] = _locked(run, 4.0 * values)
    found["host", "moments"] = (MASTER_BYTES - 4.0) * values
    if run.sharding == "zero3":  # copied from weights, page-locked or not: never page-locked
        found["host", "fp32 weights"] = 4.0 * values
    else:
        found["host", "fp32 weights"] = _locked(run, 4.0 * values)
        found["host", "16-bit copies of weights"] = _locked(run, values * low.compute_bytes)
    return Breakdown(found)


def assumptions(run: Run, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what is taken for granted about the host of a run that offloads, in words."""
    if run.cpu_offload == "none":
        return ()
    from finegauge.catalogue.paths import host_of

    per_node = max(1, run.num_gpus // run.num_nodes)
    said, host = [], host_of(gpu, run.provider, per_node)
    if run.host_cores is None or run.host_memory_gb_per_s is None:
        source = host.source.removeprefix("assumed: ")
        known = "host_cores and host_memory_gb_per_s say otherwise"
        said.append(f"the host is a {host.machine} ({source if source != host.source else known})")
    if not run.offload_pinned and run.origins.get("offload_pinned") == FROM_DEFAULT:
        said.append("what is offloaded is not page-locked, so that copies wait (offload_pinned=true: it is)")
    if states_on_host(run) and run.host_threads is None and per_node > 1:
        said.append("every rank updates by one thread, as torchrun sets it (host_threads=N says otherwise)")
    return tuple(said)


def _locked(run: Run, num_bytes: float) -> float:
    return 2.0 ** ceil(log2(num_bytes)) if run.offload_pinned and num_bytes >= 1.0 else num_bytes


def _copied_bytes_per_s(run: Run, network: "Network") -> Any:
    return network.host_bytes_per_s if run.offload_pinned else network.pageable_bytes_per_s


def _shown(run: Run, seconds: Any, beside_s: Any) -> Any:
    """Return what shows of copies: of page-locked memory what exceeds all that may run beside them."""
    if run.synchronous or not run.offload_pinned:
        return seconds
    return largest(0.0 * seconds, seconds - beside_s)
