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
from typing import NamedTuple

from finegauge.arithmetic import largest, present
from finegauge.graph.op import Cost, Extents, Op
from finegauge.predict.checkpointing import rerun
from finegauge.predict.communication import Network, Passes, communication
from finegauge.predict.device import Device
from finegauge.predict.measured import MeasuredDevice
from finegauge.predict.sharding import Share
from finegauge.predict.stages import slowest_share
from finegauge.predict.stragglers import expert_waits_s
from finegauge.profile import Breakdown, Path
from finegauge.workload.run import Run

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
