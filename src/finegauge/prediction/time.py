"""Seconds of one optimizer step: device and host, layer by layer, stage by stage.

A layer takes the longer of what its kernels need on the device and what the host needs to
launch them; where an operator's shape depends on data (the loop over experts asks the
device which tokens each one gets), or where instruments wait for it around every module, the
host cannot run ahead and both add up; where it waits once a layer (FlashAttention's lengths), each layer
begins with an empty queue. The excess is exposed and shared out over the layer's
operators, so that parts add up. Recomputation runs the layer's forward again inside backward.
The optimizer moves parameters, gradients and states: a multi-tensor AdamW reads or writes 21
values per parameter in 9 passes, a fused one 7; clipping adds 3.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import erf, sqrt
from typing import Any, NamedTuple

from finegauge.arithmetic import largest, present
from finegauge.catalogue.gpus import GpuSpec
from finegauge.data.batch_shape import WRITING, BatchShape, lengths
from finegauge.model.op import Cost, Extents, Op
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.communication import Network, Passes, communication
from finegauge.prediction.device import Device
from finegauge.prediction.memory import rerun
from finegauge.prediction.model_parallel import slowest_share
from finegauge.prediction.profiled_device import MeasuredDevice
from finegauge.prediction.sharding import GATHERING, Share
from finegauge.profile import Breakdown, Path
from finegauge.run.run import Run

STEPS, FARTHEST = 400, 8.0  # of the integral over the normal distribution, in standard deviations


def slowest_extents(run: Run, batch: BatchShape) -> Extents:
    """Return the micro-batch of the slowest data-parallel rank; the average one where all are alike.

    Where ranks meet once per step, it is the average over the slowest rank's micro-batches.
    """
    mean = Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)
    alike = run.packing or run.padding == "max" or run.group_by_length or run.phase in WRITING
    known = None if alike or run.data_parallel == 1 else lengths(run, padded=run.padding == "longest")
    if known is None:
        return mean
    ranks, rows = run.data_parallel, batch.sequences
    sums = 1 if meets_every_micro_batch(run) else run.gradient_accumulation_steps
    if run.padding == "longest":
        most = [rows * known.expected_max(rows * ranks, power) for power in (1, 2)]
        if sums == 1:
            return mean._replace(tokens=most[0], pairs=most[1])
        moments = [known.expected_max(rows, power) for power in (1, 2, 4)]
        spread = [rows * _deviation(moments[0], moments[1]), rows * _deviation(moments[1], moments[2])]
    else:
        most = [float(rows * known.longest), float(rows * known.longest**2)]
        moments = [known.mean(power) for power in (1, 2, 4)]
        spread = [_deviation(moments[0], moments[1]), _deviation(moments[1], moments[2])]
        spread = [sqrt(rows) * value for value in spread]
    above = expected_largest(ranks) / sqrt(sums)
    tokens, pairs = (
        min(most[i], average + above * spread[i])
        for i, average in enumerate((batch.tokens, batch.tokens_square))
    )
    return mean._replace(tokens=max(batch.tokens, tokens), pairs=max(batch.tokens_square, pairs))


def meets_every_micro_batch(run: Run) -> bool:
    """Return whether ranks wait for each other in every micro-batch, not at the end of a step alone."""
    return run.sharding in (*GATHERING, "zero2") or run.expert_parallel > 1


def expert_waits_s(share: Share, extents: Extents, parts: Breakdown) -> Any:
    """Return the seconds that a micro-batch, of `parts`, waits for the rank with the busiest experts."""
    run = share.run
    if run.expert_parallel == 1:
        return 0.0
    routed = [op for group in share.graph.layers for op in group.ops if op.kind == "grouped_gemm"]
    if not routed:
        return 0.0
    paths = {op.path for op in routed}
    seconds = sum(value for path, value in parts.parts.items() if path[1:] in paths)
    rows = extents.tokens * routed[0].forward.gemms[0].rows_per_token
    return expected_largest(run.expert_parallel) / rows**0.5 * seconds


@lru_cache(maxsize=256)
def expected_largest(number: int) -> float:
    r"""Return the mean of the largest of `number` standard normal numbers.

    $$ E = \int_0^\infty (1 - \Phi^n(x) - \Phi^n(-x))\,dx $$
    """
    if number <= 1:
        return 0.0
    width, total = FARTHEST / STEPS, 0.0
    for step in range(STEPS + 1):
        tail = 0.5 * (1.0 - erf(step * width / sqrt(2.0)))
        weight = 1.0 if step in (0, STEPS) else 4.0 if step % 2 else 2.0  # Simpson's rule
        total += weight * (1.0 - (1.0 - tail) ** number - tail**number)
    return total * width / 3.0


def _deviation(mean: float, mean_square: float) -> float:
    """Return the standard deviation."""
    return sqrt(max(0.0, mean_square - mean * mean))


FOREACH_LAUNCHES = 60.0
OUTER = ("embedding", "head", "loss")  # what is not of the layers
SLOWEST = ("communication", "waits for the slowest rank")
ASKED_BY_EXPERT = "gather"  # a loop asks the device for the rows of each
MATRIX_KINDS = frozenset({"gemm", "grouped_gemm", "attention"})
TENSORS_PER_LAUNCH = 40.0  # tensors that one multi-tensor kernel covers


class StepTime(NamedTuple):
    """The seconds of one optimizer step by (stage, part, kernel), and what they are made of."""

    parts: Breakdown
    host_bound_s: float  # exposed launch time
    matrix_s: float  # device time of matrix products and attention
    device_s: float

    def plus(self, other: "StepTime") -> "StepTime":
        """Return both one after the other."""
        rest = (mine + theirs for mine, theirs in zip(self[1:], other[1:], strict=True))
        return StepTime(self.parts + other.parts, *rest)

    def times(self, count: float) -> "StepTime":
        """Return it `count` times."""
        parts = {path: count * value for path, value in self.parts.parts.items()}
        return StepTime(Breakdown(parts), *(count * value for value in self[1:]))


def step_time(
    share: Share,
    extents: Extents,
    device: Device | MeasuredDevice,
    network: Network | None = None,
    slowest: Extents | None = None,
) -> StepTime:
    """Return the time of one optimizer step on the slowest of the ranks that hold a `share` each.

    Args:
        share: What one rank computes.
        extents: Of its micro-batch.
        device: Its GPU.
        network: The links to the other ranks; None where there are none.
        slowest: The micro-batch of the rank that the others wait for; None where all are alike.
    """
    micro_batch, waits_s = micro_batch_time(share, extents, device), 0.0
    if slowest is not None and slowest != extents:
        waits_s = micro_batch_time(share, slowest, device).parts.total - micro_batch.parts.total
    steps = share.run.gradient_accumulation_steps
    return step_of(micro_batch, share, extents, device, network, steps, waits_s)


def micro_batch_time(share: Share, extents: Extents, device: Device | MeasuredDevice) -> StepTime:
    """Return the time of one micro-batch forward and backward on one rank, nothing exchanged."""
    run, graph = share.run, share.graph
    clock = StepClock(run, extents, device)
    share_of_layers = slowest_share(run, graph.model)
    for count, ops in graph.stretches:
        outer = ops is graph.embedding or ops is graph.head
        times = count if outer else count * share_of_layers
        clock.stage("forward", times, ops, backward=False)
        clock.stage("recompute", times, rerun(run, graph, ops), backward=False)
        clock.stage("backward", times, ops, backward=True)
        if isinstance(device, MeasuredDevice) and ops is not graph.embedding:
            clock.rest(times, device, layer=not outer, again=bool(rerun(run, graph, ops)))
    return clock.time


def step_of(
    micro_batch: StepTime,
    share: Share,
    extents: Extents,
    device: Device | MeasuredDevice,
    network: Network | None,
    micro_steps: int,
    waits_s: float = 0.0,
) -> StepTime:
    """Return a step of `micro_steps` micro-batches, with its update and what its ranks exchange.

    In each of them a rank waits `waits_s` for the slowest one.
    """
    run = share.run
    clock = StepClock(run, extents, device)
    forward_s = micro_batch.parts["forward"]
    passes = Passes(
        forward_s=forward_s,
        backward_s=micro_batch.parts.total - forward_s,
        micro_steps=micro_steps,
        runs=3 if run.activation_checkpointing in ("full", "offload") else 2,
        outer_s=sum(seconds for path, seconds in micro_batch.parts.parts.items() if path[1] in OUTER),
    )
    if run.cpu_offload == "none":
        clock.optimizer(share)
    if network is not None:
        waits_s = waits_s + expert_waits_s(share, extents, micro_batch.parts)
        if present(waits_s):
            clock.parts.append((SLOWEST, micro_steps * waits_s))
        clock.parts += communication(run, share, passes, extents, network, device.calibration)
    return micro_batch.times(micro_steps).plus(clock.time)


class Beside(NamedTuple):
    """One thing that a pass does: an operator, or what stands beside the operators."""

    path: Path
    device_s: float
    host_s: float


def from_empty_queue(work: Iterable[tuple[float, float]]) -> float:
    """Return the seconds of a row of operators, each (on the device, on the host), begun with nothing queued.

    The host launches one after the other and the device runs each once it is launched and the one before
    is done: no less than either of the sums, no more than both.
    """
    launched, done = 0.0, 0.0
    for on_device, on_host in work:
        launched = launched + on_host
        done = largest(done, launched) + on_device
    return done


class StepClock:
    """Adds up stages; one per step."""

    def __init__(self, run: Run, extents: Extents, device: Device | MeasuredDevice) -> None:
        """Start at nothing, for micro-batches of `extents`."""
        self.run, self.extents, self.device = run, extents, device
        calibration = device.calibration
        self.launch_s = calibration.launch_s * (calibration.compiled_launch_fraction if run.compile else 1.0)
        self.call_s = calibration.call_s + (calibration.wait_s if run.synchronous else 0.0)
        self.parts: list[tuple[Path, float]] = []
        self.host_bound_s = self.matrix_s = self.device_s = 0.0

    @property
    def time(self) -> StepTime:
        """Return what has been added so far."""
        return StepTime(Breakdown.add_up(self.parts), self.host_bound_s, self.matrix_s, self.device_s)

    def stage(
        self, name: str, count: float, ops: Iterable[Op], *, backward: bool, beside: Iterable[Beside] = ()
    ) -> None:
        """Add `count` passes over `ops` in one direction, each with what is done `beside` them."""
        rows: list[Beside] = []
        asks: set[str] = set()  # what waits for the device
        for op in ops:
            cost: Cost = op.backward if backward else op.forward
            seconds = self.device.seconds(op, cost, self.extents, backward=backward)
            rows.append(Beside(op.path, seconds, cost.launches * self.launch_s + cost.calls * self.call_s))
            if op.kind in MATRIX_KINDS:
                self.matrix_s += count * seconds
            if op.synchronises and not backward:
                asks.add(op.kind)
        rows += beside
        on_device, on_host = sum(row.device_s for row in rows), sum(row.host_s for row in rows)
        if self.run.synchronous or ASKED_BY_EXPERT in asks:
            exposed = on_host
        elif asks:
            exposed = from_empty_queue((row.device_s, row.host_s) for row in rows) - on_device
        else:
            exposed = largest(0.0, on_host - on_device)
        for path, seconds, host in rows:
            share = exposed * host / on_host if on_host else 0.0
            if present(seconds + share):
                self.parts.append(((name, *path), count * (seconds + share)))
        self.host_bound_s += count * exposed
        self.device_s += count * on_device

    def rest(self, count: float, device: MeasuredDevice, *, layer: bool, again: bool) -> None:
        """Add the Python around the operators of `count` layers, or of the model; `again`: recomputed too."""
        own = "layer" if layer else "model"
        rows = [("forward", own, False), ("backward", own, True)]
        if again and layer:
            rows.append(("recompute", own, False))
            if not self.run.checkpointing_reentrant:  # hooks on every tensor that autograd keeps
                rows += [("forward", "checkpoint", False), ("recompute", "checkpoint", True)]
        for stage, of, backward in rows:
            seconds = count * device.rest_seconds(of, backward=backward)
            if seconds:
                self.parts.append(((stage, "other", "Python"), seconds))
                self.host_bound_s += seconds

    def optimizer(self, share: Share) -> None:
        """Add gradient clipping and the optimizer step over the values that this rank holds."""
        seconds = self.device.update_seconds(share)
        layers = share.graph.model.num_layers
        host = self.launch_s * FOREACH_LAUNCHES * (1 + layers * 14 / TENSORS_PER_LAUNCH / 10)
        exposed = largest(0.0, host - seconds)
        self.parts.append((("optimizer", "parameters", self.run.optimizer), seconds + exposed))
        self.host_bound_s += exposed
        self.device_s += seconds


class BoardPower(NamedTuple):
    """What one board may draw, and what it draws with clocks up and nothing to do."""

    limit_w: float
    idle_w: float


def board_power(gpu: GpuSpec, calibration: Calibration) -> BoardPower | None:
    """Return the power of a board of `gpu`; None where none is known."""
    if gpu.board_power_w is None:
        return None
    return BoardPower(
        gpu.board_power_w, gpu.idle_power_w or calibration.idle_power_fraction * gpu.board_power_w
    )


def step_energy_j(
    power: BoardPower | None, step: StepTime, calibration: Calibration, num_gpus: int = 1
) -> Breakdown:
    """Return the joules of one step of all boards by what they do; empty where no board power is known."""
    if power is None:
        return Breakdown({})
    limit, idle = power
    other = largest(0.0, step.device_s - step.matrix_s)
    parts = step.parts.parts.items()  # of a whole step, or of one of its stages
    exchanging = sum(seconds for path, seconds in parts if "communication" in path[:2])
    return Breakdown.of(
        matrix=num_gpus * step.matrix_s * largest(idle, calibration.active_power_fraction * limit),
        memory=num_gpus * other * largest(idle, calibration.memory_power_fraction * limit),
        waiting=num_gpus * step.host_bound_s * idle,
        communication=num_gpus * exchanging * largest(idle, calibration.exchange_power_fraction * limit),
    )
