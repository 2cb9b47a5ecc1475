r"""Exposed communication: the seconds of messages that computation does not hide.

`links` says how long a message takes. What shows is what exceeds the computation it runs beside, the first
gather and the last reduction (nothing runs beside them), and what the computation loses to the kernels of
the collective. On processors FSDP2's units are exchanged one by one beside nothing: gloo's calls return when
they are done. Messages, the host's waits and copies to and from it take links of their own: they run beside
each other too, so that each shows by what it exceeds the computation and all that shows already. A pipeline
of p stages waits for the other stages once per step, for 1/v of their work where each passes its v chunks in
turn [1].

[1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
"""

from finegauge.arithmetic import every, largest, present, smallest
from finegauge.model.op import Extents
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.collectives import Collective, exchanged
from finegauge.prediction.links import Network
from finegauge.prediction.model_parallel import (
    adapter_units,
    bubble_s,
    by_fully_shard,
    chunks_of,
    slowest_share,
    stage_layers,
)
from finegauge.prediction.offload import Computing, offloaded
from finegauge.prediction.sharding import GATHERING, Share
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.run import Run


class Passes(NamedTuple):
    """Seconds of computation of one micro-batch on one rank, and how often it runs."""

    forward_s: float
    backward_s: float  # recomputation included
    micro_steps: int
    num_runs: float = 2.0  # how often a layer runs: forward, backward, and once more where it is recomputed
    outer_s: float = 0.0  # of both, in embedding, head and loss
    weights_fraction: float = 0.0  # of backward, for gradients of weights, where a schedule parts them
    attention_s: float = 0.0  # of both, in attention's kernels: keys and values go round beside them alone
    memory_s_per_byte: float = 0.0  # of reading or writing the device's memory
    host_ratio: float = 1.0  # as of a `Device`


# Of a collective's time, lost beside it: neighbours hand each other activations, keys and values by few
# copying blocks or none (userbuffers, send and receive), gathers of weights occupy memory too
COPIED_FRACTION = 0.18  # 24 of 132 multiprocessors
# fully_shard's buffers hold all tensors of a unit: what is gathered is read and written once more to become
# tensors, 16-bit gradients are read and written in fp32 to be reduced (foreach_all_gather_copy_out, chunk_cat
# in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py); per byte of the message
BUFFER_COPIES = {"all_gather": 2.0, "reduce_scatter": 1.5}
NO_TIME_S = 1e-30


class _Tally:
    """Adds up communication: what shows of it, and how long it runs beside computation."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.parts: list[tuple[Path, float]] = []
        self.lost_s = 0.0  # by computation beside the kernels of collectives

    @property
    def shown_s(self) -> float:
        """Return the seconds of all that computation waits for."""
        return sum(seconds for _, seconds in self.parts)

    def shown(self, name: str, seconds: float) -> None:
        """Add communication that computation waits for."""
        if present(seconds):
            self.parts.append((("communication", name), seconds))

    def overlapped(self, messages: list[tuple[Collective, float]], compute_s: float, times: float) -> float:
        """Add messages, with their seconds, beside `compute_s` of computation, `times` over.

        Return what shows of them.
        """
        seconds, lost, names = 0.0, 0.0, set()
        for message, one_s in messages:
            seconds = seconds + one_s
            sharing = message.group not in ("data", "expert")
            lost = lost + one_s * (COPIED_FRACTION if sharing else self.calibration.contention_fraction)
            if present(one_s):
                names.add(message.name)
        hidden = smallest(seconds, compute_s)
        self.shown(", ".join(sorted(names)), times * (seconds - hidden))
        self.lost_s += times * lost * hidden / largest(seconds, NO_TIME_S)
        return times * (seconds - hidden)


def communication(
    run: Run, share: Share, passes: Passes, extents: Extents, network: Network, calibration: Calibration
) -> list[tuple[Path, float]]:
    """Return what of a step's communication shows, by (communication, kind), in seconds."""
    tally, steps = _Tally(calibration), passes.micro_steps
    beside: dict[str, list[tuple[Collective, float]]] = {"forward": [], "backward": [], "attention": []}
    pipelined: list[Collective] = []
    in_turn = network.in_turn(run)
    copied_bytes, by_tensor = 0.0, by_fully_shard(run) and run.sharding in GATHERING and not in_turn
    for message in exchanged(run, share, extents, passes.num_runs):
        if message.group == "pipeline":
            pipelined.append(message)
            continue
        seconds = message.num_sent * network.seconds(message, unit=in_turn and message.group == "data")
        if by_tensor and message.group in ("data", "expert"):
            times = message.num_per_step(steps) * BUFFER_COPIES.get(message.kind, 0.0)
            copied_bytes = copied_bytes + times * message.payload_bytes
        if message.beside:
            beside[message.beside].append((message, seconds))
        else:
            tally.shown(message.name, seconds if message.once else steps * seconds)
    tally.shown("copies of sharded tensors", copied_bytes * passes.memory_s_per_byte)
    computed = {"forward": passes.forward_s, "backward": passes.backward_s, "attention": passes.attention_s}
    if run.synchronous or in_turn:  # nothing runs beside anything
        computed = dict.fromkeys(computed, 0.0)
    shown_s = {}
    for name, messages in beside.items():
        repeated = [one for one in messages if not one[0].once]
        if len(repeated) == len(messages):
            shown_s[name] = tally.overlapped(repeated, computed[name], steps)
        else:  # some run beside that of the last micro-batch only
            shown_s[name] = tally.overlapped(messages, computed[name], 1)
            shown_s[name] += tally.overlapped(repeated, computed[name], steps - 1)
    waits_s, hidden_s = (0.0, 0.0) if in_turn else _host_waits(run, share, passes, tally)
    both_s = steps * (passes.forward_s + passes.backward_s) + tally.shown_s - hidden_s
    backward_s = steps * passes.backward_s + shown_s["backward"] + waits_s
    computing = Computing(both_s, backward_s, steps)
    for message in pipelined:
        _pipeline(run, share, message, network.seconds(message), passes, tally)
    for name, seconds in offloaded(run, share, computing, network):
        tally.shown(name, seconds)
    tally.shown("slows computation", tally.lost_s)
    return tally.parts


def forward_communication(
    run: Run,
    share: Share,
    messages: list[Collective],
    compute_s: float,
    slack_s: float,
    network: Network,
    calibration: Calibration,
    fetched_s: float = 0.0,
) -> dict[str, float]:
    """Return what shows of one pass that only goes forward, by kind, in seconds.

    The rank computes `compute_s`, of which the device waits `slack_s` for its host; for weights that lie
    there it waits `fetched_s`, beside which the host goes on.
    """
    tally = _Tally(calibration)
    if network.in_turn(run):
        for one in messages:
            unit = one.group == "data"
            tally.shown(one.name, one.num_sent * network.seconds(one, unit=unit))
        return {path[-1]: seconds for path, seconds in Breakdown.add_up(tally.parts).parts.items()}
    priced = [(message, message.num_sent * network.seconds(message)) for message in messages]
    waited = [(message.name, seconds) for message, seconds in priced if not message.beside]
    in_turn_s = sum(seconds for _, seconds in waited)
    for name, seconds in waited:
        tally.shown(name, seconds * max(0.0, 1.0 - slack_s / in_turn_s) if in_turn_s else 0.0)
    for name, beside_s in (("forward", compute_s), ("attention", compute_s / 2)):
        tally.overlapped([one for one in priced if one[0].beside == name], beside_s, 1.0)
    if any(message.what == "weights" and message.beside for message in messages):
        wait_s = calibration.module_wait_s if run.sharding == "zero3" else calibration.unit_wait_s
        hidden_s = compute_s + fetched_s + tally.shown_s
        tally.shown("host waits", max(0.0, stage_layers(run, share.graph.model) * wait_s - hidden_s))
    tally.shown("slows computation", tally.lost_s)
    return {path[-1]: seconds for path, seconds in Breakdown.add_up(tally.parts).parts.items()}


def _host_waits(run: Run, share: Share, passes: Passes, tally: _Tally) -> tuple[float, float]:
    """Add what the host of a sharded run waits before it may gather the next layer.

    Return what shows of it, and of all that copies from the host follow, beside which they cannot run.
    """
    alone = every(run.data_parallel * run.context_parallel == 1) and every(run.num_gpus > 1)
    if run.sharding not in GATHERING or alone:
        return 0.0, 0.0
    visits = passes.host_ratio * passes.micro_steps * stage_layers(run, share.graph.model) * passes.num_runs
    beside_s = passes.micro_steps * (passes.forward_s + passes.backward_s)
    if not run.synchronous:
        beside_s = beside_s + tally.shown_s
    if run.sharding == "zero3":  # its host runs ahead of the device; FSDP's waits for memory to be freed
        waits = largest(0.0, visits * tally.calibration.module_wait_s - beside_s)
        tally.shown("host waits", waits)
        return waits, 0.0
    waits = visits * tally.calibration.unit_wait_s
    all_s = waits * (1.0 + adapter_units(run, share.whole))
    # the small units' hide behind what the device computes; all of them where nothing limits the gathers
    waits = largest(0.0 if by_fully_shard(run) else waits, all_s - beside_s)
    tally.shown("host waits", waits)
    return waits, all_s


def _pipeline(
    run: Run, share: Share, message: Collective, sent_s: float, passes: Passes, tally: _Tally
) -> None:
    """Add the bubble, in which the slowest stage waits for the others, and what stages hand on."""
    stages, chunks, steps = run.pipeline_parallel, chunks_of(run), passes.micro_steps
    if run.pipeline_schedule == "naive":
        tally.shown(message.name, steps * 2 * (stages - 1) * sent_s)
        return
    both_s = passes.forward_s + passes.backward_s
    others = 1.0 / slowest_share(run, share.graph.model) - 1.0
    of_layers = 1.0 - passes.outer_s / both_s
    layers_s = passes.forward_s * of_layers, passes.backward_s * of_layers
    tally.shown("pipeline bubble", bubble_s(run, *layers_s, others, passes.weights_fraction))
    if chunks == 1:
        tally.shown(message.name, 2 * (steps + stages - 1) * sent_s)
        return
    # a chunk is sent while the next one runs
    tally.overlapped([(message, sent_s)], both_s / (2 * chunks), 2 * steps * chunks)
    tally.shown(message.name, 2 * (stages - 1) * sent_s)
