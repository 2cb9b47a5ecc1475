r"""The links between GPUs, and the seconds that a message takes over them, by payload and ranks.

A message waits for the latency l of its kernel and of its steps, then moves for s seconds. Cut into chunks
that follow each other it pays part of l again for every chunk; for the best number of chunks [1]

$$ t = l + s + 2\sqrt{\phi\, l\, s}, \qquad l = base + steps \cdot hop, \qquad
s = \frac{f \cdot bytes}{e \cdot rate} + \frac{bytes / n}{e_{own} \cdot rate} $$

with $f = 2(n-1)/n$ and $2(n-1)$ steps for an all-reduce in a ring, half of both for an all-gather or a
reduce-scatter [2]; an all-to-all sends to all peers at once. The last term is what a rank copies of its
own. Where the switch adds up (NVLS, 16 and 32 bit), an all-reduce moves $(1 + 1/n)$ of its payload, and
NCCL takes the quicker way. Of a mesh (xGMI) n ranks use n - 1 of a GPU's links; behind PCIe bridges the
rate of a rank falls with a power of their number, and halves where no peer-to-peer is allowed: every byte
then crosses the root twice, to the memory of the host and back. `catalogue.paths` has the constants, from
timings of NCCL.

GPUs that one switch joins (8 on a board, 72 in a rack) never touch the network. Beyond, a ring is as fast
as the network cards of those GPUs together, for every card carries its part of the ring; where neighbours
are several ranks apart, so many rings share those cards. An all-reduce may take a tree instead, whose steps
grow with the logarithm of the nodes [3]. All-to-all hands every rank its own part, so all ranks of a node
share its cards.

Where a device profile has readings of collectives (`finegauge micro --collectives`), messages inside a node
take what a latency and a bandwidth say that minimise the sum of squares of relative errors over all
payloads and numbers of ranks, neither negative; between two payloads that as many ranks have timed, the
factors of both readings over that law count as well, by the logarithm of the payload. Neglected: that a
library changes its algorithm between two readings.

[1] Johnsson & Ho 1989, IEEE Trans. Computers 38(9), pipelined broadcast   [2] Thakur et al. 2005, IJHPCA
19(1), sections 3 and 4   [3] Sanders et al. 2009, Parallel Computing 35(12), double binary trees, NCCL's
since 2.4   [4] vllm/distributed/device_communicators/custom_all_reduce.py, csrc/custom_all_reduce.cuh (read
2026-11-24; SGLang has the first of them under the same name)
"""

from collections.abc import Sequence
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.arithmetic import every, largest, log, smallest, where
from finegauge.catalogue.gpus import GpuSpec, interconnects
from finegauge.catalogue.paths import (
    ETHERNET_BYTES_PER_S,
    NVLINK,
    OTHERWISE,
    PCIE,
    Fabric,
    Paths,
    common,
    fabric,
    host_of,
    paths_of,
    pcie_bytes_per_s,
)
from finegauge.errors import UnsupportedError
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.collectives import Collective
from finegauge.prediction.model_parallel import by_tensors
from finegauge.run.run import FROM_DEFAULT, Run

if TYPE_CHECKING:
    from finegauge.catalogue.device_profile import DeviceProfile, Reading

LOG_2 = log(2.0)
NEVER = 1.0  # second per byte
# of a GPU's share of its node's drives, all reading at once (Rajbhandari et al. 2021, arXiv:2104.07857,
# figure 2b): an assumption for any machine
NVME_BYTES_PER_S = 1.6e9
MOST_AT_ONCE, MOST_BYTES_AT_ONCE = 8, 2**23  # GPUs and bytes of a sum by one kernel [4]


class Link(NamedTuple):
    """One kind of collective between the ranks of a machine."""

    kind: str
    hop_s: float  # latency of a step
    bytes_per_s: float
    error_fraction: float = 0.0  # of its readings: the root of the mean of squared relative errors
    above: tuple[tuple[int, float, float], ...] = ()  # ranks, payload, reading over law; by payload

    def seconds(self, num_bytes: Any, ranks: Any) -> Any:
        """Return the seconds of one collective of `num_bytes` among `ranks` ranks, by the law alone."""
        steps, factor = work_of(self.kind, ranks)
        return where(num_bytes > 0, steps * self.hop_s + factor * num_bytes / self.bytes_per_s, 0.0)

    def measured(self, num_bytes: float, ranks: int) -> float:
        """Return the same by the readings nearest to it, where so many ranks took part in any."""
        found: float = self.seconds(num_bytes, ranks)
        near = [(size, ratio) for number, size, ratio in self.above if number == ranks]
        if not near or num_bytes <= 0:
            return found
        below = max([one for one in near if one[0] <= num_bytes], default=near[0])
        above = min([one for one in near if one[0] >= num_bytes], default=near[-1])
        if below[0] >= above[0]:
            return found * below[1]
        part = log(num_bytes / below[0]) / log(above[0] / below[0])
        return float(found * below[1] ** (1.0 - part) * above[1] ** part)


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
    laws = [hop_s * steps + per_byte_s * moved for steps, moved in rows]  # over the readings
    error = (sum((law - 1.0) ** 2 for law in laws) / len(laws)) ** 0.5
    above = sorted(
        (int(one.sizes["ranks"]), one.sizes["bytes"], 1.0 / law)
        for one, law in zip(readings, laws, strict=True)
        if law > 0
    )
    return Link(kind, hop_s, 1.0 / per_byte_s if per_byte_s else inf, error, tuple(above))


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


class Level(NamedTuple):
    """GPUs that one kind of link joins, and the constants of that link."""

    num_gpus: Any
    ring_bytes_per_s: Any  # of one GPU in rings of many
    exchange_bytes_per_s: Any  # of one GPU in all-to-all
    own_s_per_byte: Any  # of what a rank copies of its own
    switch_s_per_byte: Any  # of an all-reduce that the switch adds up; `NEVER` where it does not
    peers: Any  # of a mesh, whose links these rates add up; 0: a switch or bridges
    sharing_ratio: Any
    base_s: Any
    hop_s: Any
    fill_fraction: Any
    direct_gpus: Any  # that may read each other's memory from one kernel of an engine

    @classmethod
    def of(
        cls, num_gpus: int, bytes_per_s: float, made: Fabric, *, peers: int = 0, direct: int = MOST_AT_ONCE
    ) -> "Level":
        """Return `num_gpus` GPUs joined by links of `bytes_per_s` each, one direction, as `made` has them."""
        own, switch = made.own_fraction, made.switch_fraction
        return cls(
            num_gpus=num_gpus,
            ring_bytes_per_s=bytes_per_s * made.ring_fraction,
            exchange_bytes_per_s=bytes_per_s * made.exchange_fraction,
            own_s_per_byte=1.0 / (bytes_per_s * own) if own else 0.0,
            switch_s_per_byte=1.0 / (bytes_per_s * switch) if switch else NEVER,
            peers=peers,
            sharing_ratio=made.sharing_ratio,
            base_s=made.base_s,
            hop_s=made.hop_s,
            fill_fraction=made.fill_fraction,
            direct_gpus=direct,
        )

    def ring(self, ranks: Any) -> Any:
        """Return bytes/s of one of `ranks` GPUs in a ring."""
        return self.ring_bytes_per_s * self._part(ranks)

    def at_once(self, num_bytes: Any, ranks: Any) -> Any:
        """Return the seconds of a sum by one kernel of an engine; `NEVER` where it has none.

        In one step each rank reads all others' whole messages. Two GPUs that write to each other have it for
        less than 8 MiB, and four, six or eight that are all joined [4]. From 256 KiB of eight and 512 KiB of
        four on it takes two steps, for which the quicker of this and NCCL stands.
        """
        taken = (ranks <= self.direct_gpus) & (ranks % 2 == 0) & (num_bytes < MOST_BYTES_AT_ONCE)
        moving_s = num_bytes * (ranks - 1) / (self.exchange_bytes_per_s * self._part(ranks))
        return where(taken, self.base_s + self.hop_s + moving_s, NEVER)

    def seconds(self, kind: str, num_bytes: Any, ranks: Any, *, switched: bool = True) -> Any:
        """Return the seconds of one collective.

        Args:
            kind: As of a `Collective`.
            num_bytes: The whole tensor: gathered, or before it is reduced; what one rank hands in or sends.
            ranks: How many take part.
            switched: Whether the switch can add up such numbers: 16 and 32 bit, not 8.
        """
        if every(ranks <= 1):
            return 0.0
        steps, factor = work_of(kind, ranks)
        rate, own_s = self.ring(ranks), num_bytes / ranks * self.own_s_per_byte
        if kind == "all_to_all":
            steps, rate = 1, self.exchange_bytes_per_s * self._part(ranks)
        elif kind in ("send", "broadcast"):
            own_s = 0.0
        latency_s = self.base_s + self.hop_s * steps
        found = self._filled(latency_s, factor * num_bytes / rate + own_s)
        if kind == "all_reduce" and switched:
            by_switch = self._filled(latency_s, (1.0 + 1.0 / ranks) * num_bytes * self.switch_s_per_byte)
            found = where(ranks > 2, smallest(found, by_switch), found)
        return where(num_bytes > 0, found, 0.0)

    def _filled(self, latency_s: Any, moving_s: Any) -> Any:
        return latency_s + moving_s + 2.0 * (self.fill_fraction * latency_s * moving_s) ** 0.5

    def _part(self, ranks: Any) -> Any:
        mesh = smallest(1.0, largest(1, ranks - 1) / largest(1, self.peers))
        return where(self.peers > 0, mesh, (2.0 / ranks) ** self.sharing_ratio)


class Network(NamedTuple):
    """The links between the GPUs of a run, as collectives reach them."""

    near: Level  # what joins a GPU to its closest
    node: Level  # to all that are reached without the network
    inter_bytes_per_s: Any  # of all network cards of those GPUs together
    host_bytes_per_s: Any  # of one GPU to page-locked memory of its host, and back, all GPUs copying at once
    pageable_bytes_per_s: Any  # to any other memory
    core_bytes_per_s: Any  # that one rank streams through the threads it has on the host
    nvme_bytes_per_s: Any  # of one rank's share of the drives
    network_hop_s: Any
    links: tuple[Link, ...] = ()  # as measured on this machine, one for each kind of message

    @property
    def gpus_per_node(self) -> Any:
        """Return how many GPUs reach each other without the network: those of a host, or of a rack."""
        return self.node.num_gpus

    @classmethod
    def of(cls, run: Run, gpu: GpuSpec, calibration: Calibration) -> "Network":
        """Return the network of `run`: what it states, else its provider, else what is usual for its GPU."""
        per_node, paths = reached(run, gpu)
        near, node = _levels(gpu, paths, per_node, common(PCIE))
        return cls(
            near=near,
            node=node,
            inter_bytes_per_s=_cards_bytes_per_s(run, gpu, paths, per_node, node.num_gpus)
            * calibration.network_fraction,
            **_host_rates(run, gpu, per_node, calibration),
            network_hop_s=calibration.network_hop_s,
            links=links_of(gpu.measured) if gpu.measured is not None else (),
        )

    @classmethod
    def side_by_side(cls, networks: Sequence["Network"]) -> "Network":
        """Return `networks` as one of arrays; what is rented out has no measured links."""
        from numpy import array

        near, node, *rest = zip(*[one[:-1] for one in networks], strict=True)
        levels = [Level(*map(array, zip(*column, strict=True))) for column in (near, node)]
        return cls(*levels, *map(array, rest))

    def in_turn(self, run: Run) -> bool:
        """Return whether units of FSDP2 are exchanged one by one beside nothing, as timed on processors."""
        if not self.links or not by_tensors(run):
            return False
        from finegauge.catalogue.device_profile import UNITS

        return any(link.kind in UNITS.values() for link in self.links)

    def seconds(self, message: Collective, *, unit: bool = False) -> float:
        """Return the seconds of one `message`; of a `unit` with all that FSDP2 does about it."""
        payload, ranks, span = message.payload_bytes, message.ranks, message.span
        kind = message.kind
        if unit:
            from finegauge.catalogue.device_profile import UNITS

            kind = UNITS.get(kind, kind)
        for link in self.links:
            if link.kind == kind and every(span <= self.gpus_per_node):
                return link.measured(payload, ranks)
        if every(ranks <= 1):
            return 0.0
        seconds: float = self._inside(message.kind, payload, ranks, span)
        if message.at_once and every(span <= self.gpus_per_node):
            level = self.near if every(span <= self.near.num_gpus) else self.node
            seconds = smallest(seconds, level.at_once(payload, ranks))
        if not every(span <= self.gpus_per_node):
            beyond = self._beyond(message.kind, payload, ranks, span)
            seconds = where(span > self.gpus_per_node, beyond, seconds)
        alone: float = where(ranks > 1, seconds, 0.0)
        return alone

    def _inside(self, kind: str, payload: Any, ranks: Any, span: Any) -> Any:
        if every(span <= self.near.num_gpus):
            return self.near.seconds(kind, payload, ranks)
        node = self.node.seconds(kind, payload, ranks)
        return where(span <= self.near.num_gpus, self.near.seconds(kind, payload, ranks), node)

    def _beyond(self, kind: str, payload: Any, ranks: Any, span: Any) -> Any:
        match kind:
            case "all_reduce":
                return self._reduce_s(payload, ranks, span)
            case "all_to_all":
                return self._exchange_s(payload, ranks, span)
            case "send":
                return self.network_hop_s + payload / self._ring(ranks, span)
            case _:
                return self._gather_s(payload, ranks, span)

    def _gather_s(self, num_bytes: Any, ranks: Any, span: Any) -> Any:
        """Return the seconds of an all-gather (or a reduce-scatter) of `num_bytes`, counted whole.

        The first and the last of the `ranks` are `span` ranks apart.
        """
        steps_s = (ranks - 1) * self.network_hop_s
        moving_s = num_bytes * (ranks - 1) / ranks / self._ring(ranks, span)
        return where(num_bytes > 0, steps_s + moving_s, 0.0)

    def _reduce_s(self, num_bytes: Any, ranks: Any, span: Any) -> Any:
        ring = 2.0 * self._gather_s(num_bytes, ranks, span)
        inside = smallest(ranks, largest(1, self.gpus_per_node * ranks // span))
        levels = 2.0 * (log(ranks / inside) / LOG_2 * self.network_hop_s + (inside - 1) * self.node.hop_s)
        tree = levels + 2.0 * num_bytes / self._ring(ranks, span)
        return where(num_bytes > 0, smallest(ring, tree), 0.0)

    def _exchange_s(self, num_bytes: Any, ranks: Any, span: Any) -> Any:
        per_node = self.gpus_per_node
        inside = smallest(ranks, largest(1, per_node * ranks // span))
        leaving_s = num_bytes * (ranks - inside) / ranks * per_node / self.inter_bytes_per_s
        within_s = num_bytes * (ranks - 1) / ranks / self.node.exchange_bytes_per_s
        seconds = (ranks - 1) * self.network_hop_s + largest(within_s, leaving_s)
        return where(num_bytes > 0, seconds, 0.0)

    def _ring(self, ranks: Any, span: Any) -> Any:
        rings = smallest(self.gpus_per_node, span // ranks)  # that pass through the same network cards
        return smallest(self.node.ring(self.node.num_gpus), self.inter_bytes_per_s / rings)


def _host_rates(run: Run, gpu: GpuSpec, ranks: int, calibration: Calibration) -> dict[str, float]:
    """Return bytes/s between a GPU and its host, of its rank's threads there, and of its drives.

    What is usual is a whole machine's: a run on some of its GPUs has their part of cores and memory.
    """
    host = host_of(gpu, run.provider, ranks)
    part = min(1.0, ranks / host.num_gpus)
    cores = run.host_cores or host.cores * part
    memory = 1e9 * run.host_memory_gb_per_s if run.host_memory_gb_per_s else host.ram_bytes_per_s * part
    threads = run.host_threads or (1 if ranks > 1 else cores)
    bus = host.link_bytes_per_s if run.pcie is None else None
    link = bus or pcie_bytes_per_s(gpu if run.pcie is None else gpu._replace(pcie=run.pcie))
    link = link * calibration.link_fraction / min(ranks, run.gpus_per_pcie_switch or host.gpus_per_switch)
    of_a_core = host.core_bytes_per_s or calibration.host_core_bytes_per_s
    alone = 1.0 if ranks * threads == 1 else calibration.shared_core_fraction
    streamed = min(threads, max(1.0, cores / ranks)) * of_a_core * alone
    drives = 1e9 * run.nvme_gb_per_s / ranks if run.nvme_gb_per_s else NVME_BYTES_PER_S
    return {
        "host_bytes_per_s": link,
        "pageable_bytes_per_s": min(link, calibration.pageable_bytes_per_s),
        "core_bytes_per_s": min(streamed, memory * calibration.host_memory_fraction / ranks),
        "nvme_bytes_per_s": drives,
    }


def reached(run: Run, gpu: GpuSpec) -> tuple[int, Paths]:
    """Return how many GPUs a node of `run` has, and the paths between them.

    A run that states no nodes is taken to fill usual ones. A rack's switch joins as many whole nodes as
    divide the run evenly: 64 of an NVL72's 72 where the run has 256.
    """
    paths = paths_of(gpu, run.provider, max(1, run.num_gpus // run.num_nodes))
    per_node = max(1, run.num_gpus // run.num_nodes)
    stated = run.num_nodes > 1 or run.origins.get("num_nodes") != FROM_DEFAULT
    if not stated:
        per_node = min(per_node, paths.node_gpus)
    joined = run.nvlink or paths.joined
    if run.nvlink is not None and run.nvlink > 1 and not paths.link_bytes_per_s:
        raise UnsupportedError(f"nvlink={run.nvlink}, but {gpu.name} has no NVLink; remove it.")
    if run.nvlink is None and 1 < paths.joined == paths.node_gpus:
        joined = per_node  # one board to a node, whatever its size
    if joined > per_node:  # a rack
        whole = [n for n in range(per_node, min(joined, run.num_gpus) + 1, per_node) if run.num_gpus % n == 0]
        joined = max(whole, default=per_node)
    p2p = paths.p2p if run.p2p is None else run.p2p
    link = paths.fabric if joined > 1 and paths.fabric != PCIE else NVLINK
    return per_node, paths._replace(joined=joined, fabric=link, p2p=p2p)


def assumed(run: Run, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what is taken for granted about the links of `run`, in words."""
    if run.num_gpus == 1:
        return ()
    per_node, paths = reached(run, gpu)
    together, said = max(per_node, paths.joined), []
    if run.num_gpus > per_node * run.num_nodes:
        said.append(f"{run.num_gpus} GPUs are nodes of {per_node}, for no number of nodes is stated")
    if gpu.nvlink_bytes_per_s and paths.joined == 1 and run.nvlink is None and per_node > 1:
        said.append(f"{gpu.name}: {paths.neighbour_source}")
    if not paths.p2p and paths.joined < min(per_node, run.num_gpus):
        said.append("GPUs reach each other through the memory of their host (p2p=true says otherwise)")
    if run.num_gpus > together and run.node_network_gbit_per_s is None:
        if paths.network_source.startswith("assumed"):
            said.append(f"the network between nodes is {paths.network_source}")
        elif run.provider is None and per_node < _least_node(gpu):
            said.append(f"the network between nodes of {per_node} is Ethernet, 12.5 Gbit/s per GPU")
        else:
            gbit_per_s, whose = paths.network_bytes_per_s * 8 / 1e9, paths.network_source.partition(":")[0]
            said.append(f"the network between nodes: {whose}, {gbit_per_s:g} Gbit/s per GPU ({OTHERWISE})")
    return tuple(said)


def _levels(gpu: GpuSpec, paths: Paths, per_node: int, over_pcie: Fabric) -> tuple[Level, Level]:
    node = Level.of(per_node, paths.bridge_bytes_per_s, over_pcie, direct=2 if paths.p2p else 1)
    if paths.joined <= 1:
        return node, node
    near = Level.of(paths.joined, paths.link_bytes_per_s, fabric(gpu, paths.fabric), peers=paths.peers)
    return near, near if paths.joined >= per_node else node


def _cards_bytes_per_s(run: Run, gpu: GpuSpec, paths: Paths, per_node: int, reached_gpus: int) -> float:
    if run.node_network_gbit_per_s is not None:
        return run.node_network_gbit_per_s * 1e9 / 8 * reached_gpus / per_node
    if run.provider is None and per_node < _least_node(gpu):
        return reached_gpus * ETHERNET_BYTES_PER_S
    return reached_gpus * paths.network_bytes_per_s


def _least_node(gpu: GpuSpec) -> int:
    """Return the fewest GPUs of this kind that a node with a card for each of them is known to have.

    Parts of such a node, and smaller ones, have Ethernet: 12 to 20 Gbit/s for each
    GPU (Google's a2-highgpu, Azure's NC A100 v4).
    """
    links = interconnects(gpu.name, None)
    return min((link.gpus_per_node or 1 for link in links if link.inter_bytes_per_s), default=1)
