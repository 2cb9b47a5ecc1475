"""Seconds of one optimizer step: device and host, layer by layer, stage by stage.

A layer takes the longer of what its kernels need on the device and what the host needs to
launch them; where an operator's shape depends on data (the loop over experts asks the
device which tokens each one gets) the host cannot run ahead and both add up. The excess
is exposed and shared out over the layer's operators, so that parts add up. Recomputation
runs the layer's forward again inside backward. The optimizer moves parameters, gradients
and states: a multi-tensor AdamW reads or writes 21 values per parameter in 9 passes, a
fused one 7; clipping adds 3.
"""

from collections.abc import Iterable
from typing import NamedTuple

from finegauge.graph.build import Graph
from finegauge.graph.op import Cost, Extents, Op
from finegauge.predict.checkpointing import split
from finegauge.predict.device import Device
from finegauge.profile import Breakdown, Path
from finegauge.workload.run import Run

FOREACH_VALUES, FUSED_VALUES, CLIP_VALUES = 21.0, 7.0, 3.0
FOREACH_LAUNCHES = 60.0
MATRIX_KINDS = frozenset({"gemm", "grouped_gemm", "attention"})
TENSORS_PER_LAUNCH = 40.0  # tensors that one multi-tensor kernel covers


class StepTime(NamedTuple):
    """The seconds of one optimizer step by (stage, part, kernel), and what they are made of."""

    parts: Breakdown
    host_bound_s: float  # exposed launch time
    matrix_s: float  # device time of matrix products and attention
    device_s: float


def step_time(run: Run, graph: Graph, extents: Extents, device: Device) -> StepTime:
    """Return the time of one optimizer step of `run` on one GPU."""
    clock = _Clock(run, extents, device)
    micro_steps = run.gradient_accumulation_steps
    for count, ops in graph.stretches:
        clock.stage("forward", count * micro_steps, ops, backward=False)
        if ops is not graph.embedding and ops is not graph.head:
            again = split(run.activation_checkpointing, ops)[1]
            clock.stage("recompute", count * micro_steps, again, backward=False)
        clock.stage("backward", count * micro_steps, ops, backward=True)
    clock.optimizer(graph)
    return StepTime(
        parts=Breakdown.add_up(clock.parts),
        host_bound_s=clock.host_bound_s,
        matrix_s=clock.matrix_s,
        device_s=clock.device_s,
    )


class _Clock:
    """Adds up stages; one per step."""

    def __init__(self, run: Run, extents: Extents, device: Device) -> None:
        self.extents, self.device, self.run = extents, device, run
        calibration = device.calibration
        self.launch_s = calibration.launch_s * (calibration.compiled_launch_fraction if run.compile else 1.0)
        self.call_s = calibration.call_s
        self.parts: list[tuple[Path, float]] = []
        self.host_bound_s = self.matrix_s = self.device_s = 0.0

    def stage(self, name: str, count: float, ops: Iterable[Op], *, backward: bool) -> None:
        """Add `count` passes over `ops` in one direction."""
        rows: list[tuple[Op, float, float]] = []
        for op in ops:
            cost: Cost = op.backward if backward else op.forward
            seconds = self.device.seconds(op, cost, self.extents, backward=backward)
            rows.append((op, seconds, cost.launches * self.launch_s + cost.calls * self.call_s))
        on_device, on_host = sum(row[1] for row in rows), sum(row[2] for row in rows)
        waits = not backward and any(op.synchronises for op in ops)
        exposed = on_host if waits else max(0.0, on_host - on_device)
        for op, seconds, host in rows:
            share = exposed * host / on_host if exposed else 0.0
            if seconds + share:
                self.parts.append(((name, *op.path), count * (seconds + share)))
            if op.kind in MATRIX_KINDS:
                self.matrix_s += count * seconds
        self.host_bound_s += count * exposed
        self.device_s += count * on_device

    def optimizer(self, graph: Graph) -> None:
        """Add gradient clipping and the optimizer step."""
        weights, run = graph.weights, self.run
        values = FUSED_VALUES if run.optimizer_implementation == "fused" else FOREACH_VALUES
        moved = 0.0
        for params, size in (
            (weights.trained_params, graph.lowering.weight_bytes),
            (weights.adapter_params, graph.lowering.adapter_bytes),
        ):
            if run.optimizer.endswith("8bit"):
                moved += params * (3.0 * size + 4.0)
            else:
                moved += params * size * values
            moved += params * size * CLIP_VALUES
        seconds = moved / self.device.memory_bytes_per_s
        host = self.launch_s * FOREACH_LAUNCHES * (1 + graph.model.num_layers * 14 / TENSORS_PER_LAUNCH / 10)
        exposed = max(0.0, host - seconds)
        self.parts.append((("optimizer", "parameters", run.optimizer), seconds + exposed))
        self.host_bound_s += exposed
        self.device_s += seconds
