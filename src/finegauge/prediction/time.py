r"""Seconds and joules of one optimizer step: device and host, layer by layer, stage by stage.

A layer takes the longer of what its kernels need on the device and what the host needs to
launch them; where an operator's shape depends on data (the loop over experts asks the
device which tokens each one gets), or where instruments wait for it around every module, the
host cannot run ahead and both add up; where it waits once a layer (FlashAttention's lengths), each layer
begins with an empty queue. The excess is exposed and shared out over the layer's
operators, so that parts add up. Recomputation runs the layer's forward again inside backward.
The optimizer moves parameters, gradients and states: a multi-tensor AdamW reads or writes 21
values per parameter in 9 passes, a fused one 7; clipping adds 3.

Ranks wait for the slowest of them: the one with the longest sequences, or the busiest experts. Padded to the
longest of its B sequences, a micro-batch of one of R ranks costs what its longest does, so the slowest of R
costs what the longest of B·R sequences does, exactly. Where ranks meet once per step only, after m
micro-batches, and where sequences are joined, sums decide:

$$ E[\max_R \sum] = m\,\mu + \sqrt{m}\,\sigma\,e_R \qquad e_R = E[\max of R standard normal numbers] $$

Of T·k rows that a rank sends to experts spread evenly over n ranks, the fullest rank gets $e_n / \sqrt{T k}$
more than its share, in every layer (the multinomial's normal limit).

A board draws its idle power plus a share of the way to its limit: nearly all of it while matrix products
run, about two thirds while memory-bound kernels do, none while the device waits for the host [1].

Neglected: that routing is learned and uneven, so that this imbalance is the least there can be; the lengths
of samples inside packed sequences; slow machines.

[1] MLPerf Training v4.0 power logs, 8xH100: 895 W per GPU at the wall, 1.28 times the board limit, with
    everything else in the node included
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from math import erf, inf, sqrt
from typing import TYPE_CHECKING, Any

from finegauge.arithmetic import largest, present
from finegauge.catalogue.gpus import GpuSpec
from finegauge.data.batch_shape import BatchShape, lengths
from finegauge.errors import UnsupportedError
from finegauge.model.op import Extents, Op
from finegauge.prediction.allocator import outside_tensors
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.device import Device
from finegauge.prediction.memory import LiveSet
from finegauge.prediction.model_parallel import (
    behind_head,
    by_megatron,
    slowest_share,
    splits_backward,
    stage_layers,
    weights_fraction,
)
from finegauge.prediction.recomputation import passes_of_a_layer, rerun, rerun_share
from finegauge.prediction.sharding import GATHERING, Share, mean_extents, rank_live_set, states_on_host
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.phases import by_engine, reduces_at_the_end
from finegauge.run.rules import GENERATING, RL, SERVING
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.prediction.links import Network
    from finegauge.prediction.profiled_device import ProfiledDevice

STEPS, FARTHEST = 400, 8.0  # of the integral over the normal distribution, in standard deviations


def slowest_extents(run: Run, batch: BatchShape) -> Extents:
    """Return the micro-batch of the slowest data-parallel rank; the average one where all are alike.

    Where ranks meet once per step, it is the average over the slowest rank's micro-batches.
    """
    mean = mean_extents(batch)
    alike = run.packing or run.padding == "max" or run.group_by_length or run.phase in GENERATING
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
    tokens = min(most[0], batch.tokens + above * spread[0])
    pairs = min(most[1], batch.tokens_square + above * spread[1])
    return mean._replace(tokens=max(batch.tokens, tokens), pairs=max(batch.tokens_square, pairs))


def meets_every_micro_batch(run: Run) -> bool:
    """Return whether ranks wait for each other in every micro-batch, not at the end of a step alone."""
    return run.sharding in (*GATHERING, "zero2") or run.expert_parallel > 1


def expert_waits_s(share: Share, extents: Extents, parts: Breakdown) -> Any:
    """Return the seconds that a micro-batch, of `parts`, waits for the rank with the busiest experts."""
    run = share.run
    if run.expert_parallel == 1 or run.expert_capacity_factor:  # of which each expert computes as many rows
        return 0.0
    routed = [op for group in share.graph.layers for op in group.ops if op.kind == "grouped_gemm"]
    if not routed:
        return 0.0
    paths, seconds = {op.path for op in routed}, 0.0
    for path, value in parts.parts.items():
        if path[1:] in paths:
            seconds = seconds + value
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
    return sqrt(max(0.0, mean_square - mean * mean))


FOREACH_LAUNCHES = 60.0
HEAD = ("head", "loss")
OUTER = ("embedding", *HEAD)  # what is not of the layers
NO_TIME_S = 1e-30
ATTENTION = ("attention kernel",)
TRAINER = ("other", "trainer", "Python")  # around each micro-batch and each step
SLOWEST = ("communication", "waits for the slowest rank")
PAGED = ("communication", "paged states from the host and back")
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
        return StepTime(
            self.parts + other.parts,
            self.host_bound_s + other.host_bound_s,
            self.matrix_s + other.matrix_s,
            self.device_s + other.device_s,
        )

    def times(self, count: float) -> "StepTime":
        """Return it `count` times."""
        parts = {path: count * value for path, value in self.parts.parts.items()}
        _, host_bound_s, matrix_s, device_s = self
        return StepTime(Breakdown(parts), count * host_bound_s, count * matrix_s, count * device_s)


def step_time(
    share: Share,
    extents: Extents,
    device: "Device | ProfiledDevice",
    network: "Network | None" = None,
    slowest: Extents | None = None,
    free_bytes: float = inf,
) -> StepTime:
    """Return the time of one optimizer step on the slowest of the ranks that hold a `share` each.

    `extents` are of the rank's own micro-batch, `slowest` of the rank that the others wait for, None where
    all are alike; `free_bytes` of the GPU are left for paged states.
    """
    micro_batch, waits_s = micro_batch_time(share, extents, device), 0.0
    if slowest is not None and slowest != extents:
        waits_s = micro_batch_time(share, slowest, device).parts.total - micro_batch.parts.total
    steps = share.run.gradient_accumulation_steps
    return step_of(micro_batch, share, extents, device, network, steps, waits_s, free_bytes)


def micro_batch_time(share: Share, extents: Extents, device: "Device | ProfiledDevice") -> StepTime:
    """Return the time of one micro-batch forward and backward on one rank, nothing exchanged."""
    run, graph = share.run, share.graph
    if not run.context_parallel_balance:  # ranks wait for the last, whose queries see all keys
        extents = extents._replace(pairs=extents.pairs * (2.0 - 1.0 / run.context_parallel))
    clock = StepClock(run, extents, device)
    share_of_layers = slowest_share(run, graph.model)
    for part in graph.tower:
        clock.extents, again = part.of(extents), rerun(run, graph, part.ops) if part.is_layer else ()
        clock.stage("forward", part.count, part.ops, backward=False)
        clock.stage("recompute", part.count, again, backward=False)
        clock.stage("backward", part.count, part.ops, backward=True)
    clock.extents = extents
    for count, ops in graph.stretches:
        outer = ops is graph.embedding or ops is graph.head
        times, again = count if outer else count * share_of_layers, rerun(run, graph, ops)
        clock.stage("forward", times, ops, backward=False)
        again_times = times * rerun_share(run, graph, ops)
        clock.stage("recompute", again_times, again, backward=False)
        clock.stage("backward", times, ops, backward=True)
        if device.host_in_readings and ops is not graph.embedding:
            clock.python(times, layer=not outer, again=again_times if again else 0.0)
    fewer = behind_head(run, graph.model)
    return beside_layers(clock.time, fewer) if fewer else clock.time


def beside_layers(time: StepTime, fewer: float) -> StepTime:
    """Return the times of the slowest stage, where the head's has `fewer` layers, as a share of its own."""
    parts = time.parts.parts
    head_s = _sum_of(time.parts, HEAD)
    layers_s = time.parts.total - _sum_of(time.parts, OUTER)
    shown = largest(0.0, head_s - fewer * layers_s) / largest(head_s, NO_TIME_S)
    scaled = {path: value * shown if path[1] in HEAD else value for path, value in parts.items()}
    return time._replace(parts=Breakdown(scaled))


def step_of(
    micro_batch: StepTime,
    share: Share,
    extents: Extents,
    device: "Device | ProfiledDevice",
    network: "Network | None",
    micro_steps: int,
    waits_s: float = 0.0,
    free_bytes: Any = inf,
) -> StepTime:
    """Return a step of `micro_steps` micro-batches, with its update and what its ranks exchange.

    In each of them a rank waits `waits_s` for the slowest one. Of paged states, at least what its
    `free_bytes` do not hold comes to the GPU and leaves it in every step.
    """
    run = share.run
    clock = StepClock(run, extents, device)
    if not states_on_host(run):
        clock.optimizer(share)
        clock.add_gradients(share, micro_steps - 1)
        paged = share.graph.weights.paged_bytes
        if network is not None and present(paged):
            outside = largest(0.0, paged - largest(0.0, free_bytes))
            if present(outside):
                clock.parts.append((PAGED, 2.0 * outside / network.host_bytes_per_s))
    trainer_s = micro_steps * device.trainer_s + device.trainer_step_s
    if present(trainer_s):
        clock.parts.append((TRAINER, trainer_s))
        clock.host_bound_s = clock.host_bound_s + trainer_s
    if network is not None:
        from finegauge.prediction.communication import Passes, communication

        waits_s = waits_s + expert_waits_s(share, extents, micro_batch.parts)
        if present(waits_s):
            clock.parts.append((SLOWEST, micro_steps * waits_s))
        forward_s = micro_batch.parts["forward"]
        passes = Passes(
            forward_s=forward_s,
            backward_s=micro_batch.parts.total - forward_s,
            micro_steps=micro_steps,
            num_runs=passes_of_a_layer(run, share.graph),
            outer_s=_sum_of(micro_batch.parts, OUTER) if run.pipeline_parallel > 1 else 0.0,
            weights_fraction=weights_fraction(run, share.graph, extents) if splits_backward(run) else 0.0,
            attention_s=_sum_of(micro_batch.parts, ATTENTION) if run.context_parallel > 1 else 0.0,
            memory_s_per_byte=device.cache_seconds(1.0),
            host_ratio=device.host_ratio,
        )
        clock.parts += communication(run, share, passes, extents, network, device.calibration)
    return micro_batch.times(micro_steps).plus(clock.time)


def _sum_of(parts: Breakdown, names: Collection[str]) -> float:
    return sum(seconds for path, seconds in parts.parts.items() if not {*path[1:]}.isdisjoint(names))


NOTHING_S = 1e-15  # of a host that launches a graph: divided by


class Beside(NamedTuple):
    """One thing that a pass does: an operator, or what stands beside the operators."""

    path: Path
    device_s: float
    host_s: float


def from_empty_queue(work: Iterable[Beside]) -> float:
    """Return the seconds of operators that begin with nothing queued.

    The host launches one after the other and the device runs each once it is launched and the one before
    is done: no less than either of the sums, no more than both.
    """
    launched, done = 0.0, 0.0
    for _, device_s, host_s in work:
        launched = launched + host_s
        done = largest(done, launched) + device_s
    return done


class StepClock:
    """Adds up the stages of a step."""

    def __init__(self, run: Run, extents: Extents, device: "Device | ProfiledDevice") -> None:
        """Start at nothing, for micro-batches of `extents`."""
        self.run, self.extents, self.device = run, extents, device
        calibration = device.calibration
        ahead = calibration.compiled_launch_fraction if run.compile else 1.0
        self.launch_s = device.host_ratio * calibration.launch_s * ahead
        self.call_s = device.host_ratio * (
            calibration.call_s + (calibration.wait_s if run.synchronous else 0.0)
        )
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
        by_expert = waits = False  # whether the host waits for the device: for each expert, once a layer
        for op in ops:
            cost = op.backward if backward else op.forward
            seconds = self.device.pace_ratio * self.device.seconds(op, cost, self.extents, backward=backward)
            rows.append(Beside(op.path, seconds, cost.launches * self.launch_s + cost.calls * self.call_s))
            if op.kind in MATRIX_KINDS:
                self.matrix_s += count * seconds
            if op.synchronises and not backward:
                waits, by_expert = True, by_expert or op.kind == ASKED_BY_EXPERT
        rows += beside
        on_device, on_host = 0.0, 0.0
        for _, device_s, host_s in rows:
            on_device, on_host = on_device + device_s, on_host + host_s
        if self.run.synchronous or by_expert:
            exposed = on_host
        elif waits:
            exposed = from_empty_queue(rows) - on_device
        else:
            exposed = largest(0.0, on_host - on_device)
        for path, device_s, host_s in rows:
            seconds = device_s + exposed * host_s / largest(on_host, NOTHING_S)
            if present(seconds):
                self.parts.append(((name, *path), count * seconds))
        self.host_bound_s += count * exposed
        self.device_s += count * on_device

    def python(self, count: float, *, layer: bool, again: float) -> None:
        """Add the Python around the operators of `count` layers, or of the model; `again` are recomputed."""
        own = "layer" if layer else "model"
        rows = [("forward", own, False, count), ("backward", own, True, count)]
        if again and layer:
            rows.append(("recompute", own, False, again))
            if not self.run.checkpointing_reentrant:  # hooks on every tensor that autograd keeps
                rows += [("forward", "checkpoint", False, again), ("recompute", "checkpoint", True, again)]
        for stage, of, backward, times in rows:
            self.wait(stage, times * self.device.pace_ratio * self.device.host_seconds(of, backward=backward))

    def wait(self, stage: str, seconds: float) -> None:
        """Add Python that the device waits for."""
        if seconds:
            self.parts.append(((stage, "other", "Python"), seconds))
            self.host_bound_s += seconds

    def optimizer(self, share: Share) -> None:
        """Add gradient clipping and the optimizer step over the values that this rank holds."""
        seconds = self.device.pace_ratio * self.device.update_seconds(share)
        layers = share.graph.model.num_layers
        host = self.launch_s * FOREACH_LAUNCHES * (1 + layers * 14 / TENSORS_PER_LAUNCH / 10)
        exposed = largest(0.0, host - seconds)
        self.parts.append((("optimizer", "parameters", self.run.optimizer), seconds + exposed))
        self.host_bound_s += exposed
        self.device_s += seconds

    def add_gradients(self, share: Share, times: float) -> None:
        """Add what autograd reads and writes to add gradients up, `times`; Megatron's products do it."""
        run, held = self.run, share.graph.weights.gradient_bytes
        if by_megatron(run) or not (present(held) and present(times)):
            return
        if reduces_at_the_end(run):
            layers = stage_layers(run, share.graph.model)
            experts = layers * share.expert_layer_gradient_bytes
            held = largest(held, share.whole_gradient_bytes(layers) + experts)
        seconds = times * self.device.pace_ratio * self.device.cache_seconds(3.0 * held)
        self.parts.append((("backward", "parameters", "add gradients"), seconds))
        self.device_s = self.device_s + seconds


class BoardPower(NamedTuple):
    """What one board may draw, and what it draws with clocks up and nothing to do."""

    limit_w: float
    idle_w: float


def board_power(gpu: GpuSpec, calibration: Calibration, limit_w: float | None = None) -> BoardPower | None:
    """Return the power of a board of `gpu`, at most `limit_w` where stated; None where none is known."""
    most = limit_w or gpu.board_power_w
    if most is None:
        return None
    most = min(most, gpu.board_power_w or most)
    idle = gpu.idle_power_w or calibration.idle_power_fraction * (gpu.board_power_w or most)
    return BoardPower(most, min(idle, most))


def step_energy_j(
    power: BoardPower | None, step: StepTime, calibration: Calibration, num_gpus: int = 1
) -> Breakdown:
    """Return the joules of one step of all boards by what they do; empty where no board power is known."""
    if power is None:
        return Breakdown({})
    limit, idle = power
    other = largest(0.0, step.device_s - step.matrix_s)
    exchanging = 0.0
    for path, seconds in step.parts.parts.items():  # of a whole step, or of one of its stages
        if "communication" in path[:2]:
            exchanging = exchanging + seconds
    return Breakdown.of(
        matrix=num_gpus * step.matrix_s * largest(idle, calibration.active_power_fraction * limit),
        memory=num_gpus * other * largest(idle, calibration.memory_power_fraction * limit),
        waiting=num_gpus * step.host_bound_s * idle,
        communication=num_gpus * exchanging * largest(idle, calibration.exchange_power_fraction * limit),
    )


TRAINED = ("sft", "pretrain", "reward")
NO_TIME = StepTime(Breakdown({}), 0.0, 0.0, 0.0)
UNDIVIDED = ("pipeline_parallel", "context_parallel")  # degrees that no equation here covers


class Question(NamedTuple):
    """One rank's share of a step, and the device it runs on."""

    run: Run
    share: Share
    mean: Extents  # of the average micro-batch: what time depends on
    longest: Extents  # of the longest: what memory must hold
    device: "Device | ProfiledDevice"
    network: "Network | None"
    cublas_bytes: float
    slowest: Extents | None = None  # of the rank that the others wait for; None: all are alike
    unpacked: Run | None = None  # the run before its answers were packed; None: as it is
    room_bytes: float = 0.0  # of the GPU for tensors: what the run may use without the process's own
    timed: bool = True  # whether the seconds are asked about too


class Answer(NamedTuple):
    """What one step holds and takes on one rank."""

    live: LiveSet
    step: StepTime
    observations: Mapping[str, Any] = {}  # of the requests of a load, as of a measured one


def training(asked: Question) -> Answer:
    """Return what one step of training holds and takes; a reward model has a scalar head."""
    live = rank_live_set(asked.run, asked.share, asked.longest, asked.cublas_bytes)
    if not asked.timed:
        return Answer(live, NO_TIME)
    lost = outside_tensors(asked.run, asked.share.graph, live.peak, asked.device.calibration)["slack"]
    free = asked.room_bytes - live.peak.total - lost
    return Answer(live, step_time(asked.share, asked.mean, asked.device, asked.network, asked.slowest, free))


def check_supported(run: Run) -> None:
    """Refuse what no equation here covers, in one sentence."""
    if run.method == "freeze" and run.num_gpus > 1:
        raise UnsupportedError(
            f"method=freeze is predicted on one GPU, not on num_gpus={run.num_gpus}; "
            f"full and lora are on several."
        )
    if run.phase in TRAINED or (run.phase in RL and by_engine(run)):
        return
    piped = run.phase in SERVING and by_engine(run)
    for name in UNDIVIDED[piped:]:
        if getattr(run, name) > 1:
            raise UnsupportedError(
                f"phase={run.phase} with {name}={getattr(run, name)} is not predicted: data, tensor and "
                f"expert parallelism are; set {name}=1."
            )
