r"""Seconds that ranks spend on each other: messages by payload and link, and what of them shows.

$$ t = steps \cdot latency + \frac{f \cdot bytes}{bandwidth} $$

with $f = 2(n-1)/n$ and $2(n-1)$ steps for an all-reduce in a ring, half of both for an all-gather
or a reduce-scatter [1]. A ring over several nodes is as fast as the network cards of one node
together, for every card carries its part of the ring; where neighbours are several ranks apart, so
many rings share those cards. Over nodes an all-reduce may take a tree instead, whose steps grow with
the logarithm of the nodes [2]. All-to-all hands every rank its own part, so all ranks of a node share
its cards.

What shows is what exceeds the computation it runs beside, the first gather and the last reduction
(nothing runs beside them), and what the computation loses to the kernels of the collective. A
pipeline of p stages waits for the other stages once per step, for 1/v of their work where each
passes its v chunks in turn [3].

Where a device profile has readings of collectives (`finegauge micro --collectives`), messages inside a node
take what a latency and a bandwidth say that minimise the sum of squares of relative errors over all payloads
and numbers of ranks, neither negative. Neglected: that a library changes its algorithm with the payload, and
caches that hold small ones.

Offloaded, Adam runs on the host: gradients come down, updated weights go up, and the host moves its own copy,
gradient and moments at the bandwidth of its memory [4]. On NVMe the fp32 copy and both moments are read and
written once per step, and 16-bit weights read for every pass [5]. Neglected: reading ahead from the drives
while the host computes (`pipeline_read` is off by default).

[1] Thakur et al. 2005, IJHPCA 19(1), sections 3 and 4   [2] Sanders et al. 2009, Parallel Computing
35(12), double binary trees, NCCL's since 2.4   [3] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
[4] Ren et al. 2021, arXiv:2101.06840, section 4   [5] Rajbhandari et al. 2021, arXiv:2104.07857, sections 5
and 6; figure 2b gives 1.6 GB/s of drives per GPU, all reading at once
"""

from collections.abc import Iterator, Sequence
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any

from finegauge.arithmetic import every, largest, log, present, smallest, where
from finegauge.catalogue.gpus import GpuSpec, interconnects
from finegauge.model.op import Extents
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.collectives import Collective, exchanged
from finegauge.prediction.model_parallel import by_fully_shard, slowest_share, stage_layers
from finegauge.prediction.sharding import GATHERING, WEIGHTS_OFFLOADED, Share, adapter_units, shard_degree
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.catalogue.device_profile import DeviceProfile, Reading


class Link(NamedTuple):
    """One kind of collective between the ranks of a machine."""

    kind: str
    hop_s: float  # latency of a step
    bytes_per_s: float
    error_fraction: float = 0.0  # of its readings: the root of the mean of squared relative errors

    def seconds(self, num_bytes: Any, ranks: Any) -> Any:
        """Return the seconds of one collective of `num_bytes` among `ranks` ranks."""
        steps, factor = work_of(self.kind, ranks)
        return where(num_bytes > 0, steps * self.hop_s + factor * num_bytes / self.bytes_per_s, 0.0)


def work_of(kind: str, ranks: Any) -> tuple[Any, Any]:
    """Return the steps of a collective, and how often its payload crosses a link."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1), 2.0 * (ranks - 1) / ranks
        case "send":
            return 1, 1.0
        case "broadcast":
            return ceil(log2(ranks)), 1.0
        case _:
            return ranks - 1, (ranks - 1) / ranks


def links_of(profile: "DeviceProfile") -> tuple[Link, ...]:
    """Return the fitted link of each kind of `profile`; none where it has no readings of collectives."""
    by_kind: dict[str, list[Reading]] = {}
    for one in profile.readings:
        if "ranks" in one.sizes:
            by_kind.setdefault(one.operator, []).append(one)
    return tuple(fitted(kind, readings) for kind, readings in by_kind.items())


def fitted(kind: str, readings: "Sequence[Reading]") -> Link:
    """Return the latency and bandwidth that fit `readings` of one kind best."""
    rows = []
    for one in readings:
        steps, factor = work_of(kind, int(one.sizes["ranks"]))
        rows.append((steps / one.seconds, factor * one.sizes["bytes"] / one.seconds))
    hop_s, per_byte_s = _least_squares(rows)
    errors = [hop_s * steps + per_byte_s * moved - 1.0 for steps, moved in rows]
    error = (sum(value**2 for value in errors) / len(errors)) ** 0.5
    return Link(kind, hop_s, 1.0 / per_byte_s if per_byte_s else inf, error)


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return what brings x·hop + y·per_byte closest to 1 for all rows (x, y), neither below 0."""
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 0:
        found = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
        if min(found) >= 0:
            return found
    alone = (x / xx, 0.0), (0.0, y / yy)  # the better of both ends of what is allowed
    return min(alone, key=lambda one: sum((one[0] * a + one[1] * b - 1.0) ** 2 for a, b in rows))


ADAM_BYTES = 28.0  # per value on the host: gradient read, fp32 copy and two moments read and written
STATE_BYTES = 12.0  # per value on the drives: fp32 copy and two moments
NVME_BYTES_PER_S = 1.6e9  # of a GPU's share of its node's drives [5]: an assumption for any machine


def offloaded(
    run: Run, share: Share, micro_steps: Any, host_bytes_per_s: Any, calibration: Calibration
) -> Iterator[tuple[str, Any]]:
    """Yield (what, seconds per step) of all that crosses the host link, and of the update on the host."""
    if run.cpu_offload == "none":
        return
    low, weights = share.graph.lowering, share.graph.weights
    values = weights.trained_params + weights.adapter_params
    rank_weights = _rank_weights(run, share)
    crossing = values * low.compute_bytes / host_bytes_per_s
    if run.cpu_offload in WEIGHTS_OFFLOADED:
        yield "weights from the host", 2 * micro_steps * rank_weights / host_bytes_per_s
        yield "gradients to the host", crossing
    else:
        yield "gradients and weights over the host link", 2 * crossing
    yield (
        "optimizer on the host",
        values * ADAM_BYTES * share.value_bytes / 4.0 / calibration.host_bytes_per_s,
    )
    if run.cpu_offload == "nvme":
        trained = rank_weights if not run.trains_adapters else values * low.adapter_bytes
        yield "states on the drives", 2 * values * STATE_BYTES / NVME_BYTES_PER_S
        yield "weights on the drives", (2 * micro_steps * rank_weights + trained) / NVME_BYTES_PER_S


def _rank_weights(run: Run, share: Share) -> float:
    layers = stage_layers(run, share.graph.model)
    return (layers * share.layer_bytes + share.outer_bytes) / shard_degree(run)


PCIE_BYTES_PER_S = {"3": 15.75e9, "4": 31e9, "5": 63e9, "6": 121e9}  # x16, one direction, by generation
LOG_2 = log(2.0)
ETHERNET_BYTES_PER_S = 1.5625e9  # per GPU, where no network is known: 100 Gbit/s for a node of eight


class Network(NamedTuple):
    """The links between the GPUs of a run, as collectives reach them."""

    gpus_per_node: int
    intra_bytes_per_s: float  # of one GPU to the others of its node
    inter_bytes_per_s: float  # of all network cards of a node
    host_bytes_per_s: float  # of one GPU to the memory of its host
    hop_s: float
    network_hop_s: float
    links: tuple[Link, ...] = ()  # as measured on this machine, one for each kind of message

    @classmethod
    def of(cls, run: Run, gpu: GpuSpec, calibration: Calibration) -> "Network":
        """Return the network of `run`: what its provider states, else what is usual for its GPU."""
        per_node = max(1, run.num_gpus // run.num_nodes)
        pcie = PCIE_BYTES_PER_S.get(gpu.pcie[:1], PCIE_BYTES_PER_S["4"])
        joined = gpu.nvlink_bytes_per_s > 0 and "SXM" in f"{gpu.name} {gpu.form_factor}".upper()
        if joined or (gpu.nvlink_bytes_per_s > 0 and gpu.vendor != "NVIDIA"):
            intra = gpu.nvlink_bytes_per_s * calibration.link_fraction
        else:
            intra = pcie * calibration.pcie_fraction
        return cls(
            gpus_per_node=per_node,
            intra_bytes_per_s=intra,
            inter_bytes_per_s=_node_bytes_per_s(run, gpu, per_node) * calibration.network_fraction,
            host_bytes_per_s=pcie * calibration.link_fraction,
            hop_s=calibration.hop_s,
            network_hop_s=calibration.network_hop_s,
            links=links_of(gpu.measured) if gpu.measured is not None else (),
        )

    def seconds(self, message: Collective) -> float:
        """Return the seconds of one `message`."""
        payload, ranks, span = message.payload_bytes, message.ranks, message.span
        for link in self.links:
            if link.kind == message.kind and every(span <= self.gpus_per_node):
                measured: float = link.seconds(payload, ranks)
                return measured
        match message.kind:
            case "all_reduce":
                return self.reduce_s(payload, ranks, span)
            case "all_to_all":
                return self.exchange_s(payload, ranks, span)
            case "send":
                rate, hop = self._ring(ranks, span)
                seconds: float = hop + payload / rate
                return seconds
            case _:
                return self.gather_s(payload, ranks, span)

    def gather_s(self, num_bytes: float, ranks: int, span: int) -> float:
        """Return the seconds of an all-gather (or a reduce-scatter) of `num_bytes`, counted whole.

        Args:
            num_bytes: What every rank has afterwards.
            ranks: How many take part.
            span: The first and the last of them are this many ranks apart.
        """
        if every(ranks <= 1):
            return 0.0
        rate, hop = self._ring(ranks, span)
        steps_s, moving_s = (ranks - 1) * hop, num_bytes * (ranks - 1) / ranks / rate
        seconds: float = where(num_bytes > 0, steps_s + moving_s, 0.0)
        return seconds

    def reduce_s(self, num_bytes: float, ranks: int, span: int) -> float:
        """Return the seconds of an all-reduce of `num_bytes`: round a ring or, over nodes, along a tree."""
        ring = 2.0 * self.gather_s(num_bytes, ranks, span)
        if every(ranks <= 1):
            return ring
        rate, hop = self._ring(ranks, span)
        inside = smallest(ranks, largest(1, self.gpus_per_node * ranks // span))
        levels = 2.0 * (log(ranks / inside) / LOG_2 * hop + (inside - 1) * self.hop_s)
        tree = where(num_bytes > 0, levels + 2.0 * num_bytes / rate, 0.0)
        seconds: float = where(span > self.gpus_per_node, smallest(ring, tree), ring)
        return seconds

    def exchange_s(self, num_bytes: float, ranks: int, span: int) -> float:
        """Return the seconds of an all-to-all in which every rank hands in `num_bytes`."""
        if every(ranks <= 1):
            return 0.0
        per_node = self.gpus_per_node
        inside = smallest(ranks, largest(1, per_node * ranks // span))
        leaving_s = num_bytes * (ranks - inside) / ranks * per_node / self.inter_bytes_per_s
        within_s = num_bytes * (ranks - 1) / ranks / self.intra_bytes_per_s
        over = span > per_node
        hop = where(over, self.network_hop_s, self.hop_s)
        moving_s = where(over, largest(within_s, leaving_s), within_s)
        seconds: float = where(num_bytes > 0, (ranks - 1) * hop + moving_s, 0.0)
        return seconds

    def _ring(self, ranks: int, span: int) -> tuple[Any, Any]:
        """Return bytes/s of a ring and the seconds of one of its steps."""
        over = span > self.gpus_per_node
        rings = smallest(self.gpus_per_node, span // ranks)  # that pass through the same network cards
        between = smallest(self.intra_bytes_per_s, self.inter_bytes_per_s / rings)
        return where(over, between, self.intra_bytes_per_s), where(over, self.network_hop_s, self.hop_s)


class Passes(NamedTuple):
    """Seconds of computation of one micro-batch on one rank, and how often it runs."""

    forward_s: float
    backward_s: float  # recomputation included
    micro_steps: int
    runs: int = 2  # how often a layer runs: forward, backward, and once more where it is recomputed
    outer_s: float = 0.0  # of both, in embedding, head and loss


class _Tally:
    """Adds up communication: what shows of it, and how long it runs beside computation."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.parts: list[tuple[Path, float]] = []
        self.beside_s = 0.0

    def shown(self, name: str, seconds: float) -> None:
        """Add communication that computation waits for."""
        if present(seconds):
            self.parts.append((("communication", name), seconds))

    def overlapped(self, messages: list[tuple[Collective, float]], compute_s: float, times: float) -> None:
        """Add messages, with their seconds, beside `compute_s` of computation, `times` over."""
        seconds, names = 0.0, set()
        for message, one_s in messages:
            seconds = seconds + one_s
            if present(one_s):
                names.add(message.name)
        hidden = smallest(seconds, compute_s)
        self.shown(", ".join(sorted(names)), times * (seconds - hidden))
        self.beside_s += times * hidden


def communication(
    run: Run, share: Share, passes: Passes, extents: Extents, network: Network, calibration: Calibration
) -> list[tuple[Path, float]]:
    """Return what of a step's communication shows, by (communication, kind), in seconds."""
    tally, steps = _Tally(calibration), passes.micro_steps
    beside: dict[str, list[tuple[Collective, float]]] = {"forward": [], "backward": [], "attention": []}
    pipelined: list[Collective] = []
    for message in exchanged(run, share, extents, passes.runs):
        if message.group == "pipeline":
            pipelined.append(message)
            continue
        seconds = message.num_sent * network.seconds(message)
        if message.beside:
            beside[message.beside].append((message, seconds))
        else:
            tally.shown(message.name, seconds if message.once else steps * seconds)
    both_s = passes.forward_s + passes.backward_s
    computed = {"forward": passes.forward_s, "backward": passes.backward_s, "attention": both_s / 2}
    for name, messages in beside.items():
        repeated = [one for one in messages if not one[0].once]
        if len(repeated) == len(messages):
            tally.overlapped(repeated, computed[name], steps)
        else:  # some run beside that of the last micro-batch only
            tally.overlapped(messages, computed[name], 1)
            tally.overlapped(repeated, computed[name], steps - 1)
    _host_waits(run, share, passes, tally)
    for message in pipelined:
        _pipeline(run, share, message, network.seconds(message), passes, tally)
    for name, seconds in offloaded(run, share, steps, network.host_bytes_per_s, calibration):
        tally.shown(name, seconds)
    tally.shown("slows computation", calibration.contention_fraction * tally.beside_s)
    return tally.parts


def forward_communication(
    run: Run,
    share: Share,
    messages: list[Collective],
    compute_s: float,
    slack_s: float,
    network: Network,
    calibration: Calibration,
) -> dict[str, float]:
    """Return what shows of one pass that only goes forward, by kind, in seconds.

    Args:
        run: The run as stated.
        share: What a rank has of the model.
        messages: Of the pass.
        compute_s: What it computes, the device's waits for its host included.
        slack_s: Of these, the waits.
        network: The links.
        calibration: The constants.
    """
    tally = _Tally(calibration)
    priced = [(message, message.num_sent * network.seconds(message)) for message in messages]
    waited = [(message.name, seconds) for message, seconds in priced if not message.beside]
    in_turn_s = sum(seconds for _, seconds in waited)
    for name, seconds in waited:
        tally.shown(name, seconds * max(0.0, 1.0 - slack_s / in_turn_s) if in_turn_s else 0.0)
    for name, beside_s in (("forward", compute_s), ("attention", compute_s / 2)):
        tally.overlapped([one for one in priced if one[0].beside == name], beside_s, 1.0)
    if any(message.what == "weights" and message.beside for message in messages):
        wait_s = calibration.module_wait_s if run.sharding == "zero3" else calibration.unit_wait_s
        hidden_s = compute_s + sum(seconds for _, seconds in tally.parts)
        tally.shown("host waits", max(0.0, stage_layers(run, share.graph.model) * wait_s - hidden_s))
    tally.shown("slows computation", calibration.contention_fraction * tally.beside_s)
    return {path[-1]: seconds for path, seconds in Breakdown.add_up(tally.parts).parts.items()}


def _host_waits(run: Run, share: Share, passes: Passes, tally: _Tally) -> None:
    """Add what the host of a sharded run waits before it may gather the next layer."""
    alone = every(run.data_parallel * run.context_parallel == 1) and every(run.num_gpus > 1)
    if run.sharding not in GATHERING or alone:
        return
    visits = stage_layers(run, share.graph.model) * passes.runs
    if run.sharding == "zero3":  # its host runs ahead of the device; FSDP's waits for memory to be freed
        late = visits * tally.calibration.module_wait_s - passes.forward_s - passes.backward_s
        waits = largest(0.0, late)
    else:
        waits = visits * tally.calibration.unit_wait_s
        late = waits * (1.0 + adapter_units(run, share.whole)) - passes.forward_s - passes.backward_s
        # the small units' hide behind what the device computes; all of them where nothing limits the gathers
        waits = largest(0.0 if by_fully_shard(run) else waits, late)
    tally.shown("host waits", passes.micro_steps * waits)


def _pipeline(
    run: Run, share: Share, message: Collective, sent_s: float, passes: Passes, tally: _Tally
) -> None:
    """Add the bubble, in which the slowest stage waits for the others, and what stages hand on."""
    stages, chunks, steps = run.pipeline_parallel, run.virtual_pipeline_stages, passes.micro_steps
    if run.pipeline_schedule == "naive":
        tally.shown(message.name, steps * 2 * (stages - 1) * sent_s)
        return
    both_s = passes.forward_s + passes.backward_s
    others = 1.0 / slowest_share(run, share.graph.model) - 1.0
    tally.shown("pipeline bubble", others / chunks * (both_s - passes.outer_s))
    if chunks == 1:
        tally.shown(message.name, 2 * (steps + stages - 1) * sent_s)
        return
    # a chunk is sent while the next one runs
    tally.overlapped([(message, sent_s)], both_s / (2 * chunks), 2 * steps * chunks)
    tally.shown(message.name, 2 * (stages - 1) * sent_s)


def _node_bytes_per_s(run: Run, gpu: GpuSpec, gpus_per_node: int) -> float:
    """Return bytes/s of all network cards of a node: as the run states, or as is usual for its GPU."""
    if run.node_network_gbit_per_s is not None:
        return run.node_network_gbit_per_s * 1e9 / 8
    if run.provider is None and gpus_per_node < _least_node(gpu):
        return gpus_per_node * ETHERNET_BYTES_PER_S
    return gpus_per_node * _inter_node(run, gpu)


def _least_node(gpu: GpuSpec) -> int:
    """Return the fewest GPUs of this kind that a node with a card for each of them is known to have.

    Who rents out a part of such a node, or builds a smaller one, gives it Ethernet: 12 to 20 Gbit/s for each
    GPU (Google's a2-highgpu, Azure's NC A100 v4).
    """
    links = interconnects(gpu.name, None)
    return min((link.gpus_per_node or 1 for link in links if link.inter_bytes_per_s), default=1)


def _inter_node(run: Run, gpu: GpuSpec) -> float:
    """Return bytes/s per GPU between nodes: of the run's provider, of a usual node, of any known node."""
    for provider in (run.provider, "generic", None):
        links = interconnects(gpu.name, provider)
        rates = [
            link.inter_bytes_per_s for link in links if link.inter_bytes_per_s and link.gpus_per_node != 1
        ]
        if rates:
            return sorted(rates)[len(rates) // 2]
    return ETHERNET_BYTES_PER_S
