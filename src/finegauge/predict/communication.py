r"""Seconds that ranks spend on each other: collectives by payload and link, and what of them shows.

$$ t = steps \cdot latency + \frac{f \cdot bytes}{bandwidth} $$

with $f = 2(n-1)/n$ and $2(n-1)$ steps for an all-reduce in a ring, half of both for an all-gather
or a reduce-scatter [1]. A ring over several nodes is as fast as the network cards of one node
together, for every card carries its part of the ring.

What shows is what exceeds the computation it runs beside, the first gather and the last reduction
(nothing runs beside them), and what the computation loses to the kernels of the collective.

Per micro-batch, FSDP and ZeRO-3 gather the weights twice and reduce the trained gradients once
(once per step where `sharding.accumulates_whole`);
ZeRO-2 reduces per micro-batch; DDP and ZeRO-1 reduce once per step; ZeRO-1 and 2 gather updated
weights [2]. Tensor parallelism all-reduces twice per layer and pass [3]. A pipeline of p stages
waits (p - 1)/m of its work for m micro-batches [4].

[1] Thakur et al. 2005, IJHPCA 19(1), sections 3 and 4   [2] Rajbhandari et al. 2020, arXiv:1910.02054,
section 7   [3] Shoeybi et al. 2019, arXiv:1909.08053, section 3   [4] Narayanan et al. 2021,
arXiv:2104.04473, section 2.2
"""

from typing import NamedTuple

from finegauge.catalogue.gpus import GpuSpec
from finegauge.catalogue.interconnects import interconnects
from finegauge.graph.blocks import MixtureOfExperts
from finegauge.graph.op import Extents
from finegauge.predict.calibration import Calibration
from finegauge.predict.sharding import GATHERING, Share, accumulates_whole, shard_degree
from finegauge.profile import Path
from finegauge.workload.run import Run

PCIE_BYTES_PER_S = {"3": 15.75e9, "4": 31e9, "5": 63e9, "6": 121e9}  # x16, one direction, by generation
ETHERNET_BYTES_PER_S = 1.5625e9  # per GPU, where no network is known: 100 Gbit/s for a node of eight
ADAM_OFFLOAD_BYTES = 28.0  # per value on the host: gradient read, fp32 copy and two moments read and written


class Network(NamedTuple):
    """The links between the GPUs of a run, as collectives reach them."""

    gpus_per_node: int
    intra_bytes_per_s: float  # of one GPU to the others of its node
    inter_bytes_per_s: float  # of all network cards of a node
    host_bytes_per_s: float  # of one GPU to the memory of its host
    hop_s: float
    network_hop_s: float

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
        )

    def gather_s(self, num_bytes: float, ranks: int, span: int) -> float:
        """Return the seconds of an all-gather (or a reduce-scatter) of `num_bytes`, counted whole.

        Args:
            num_bytes: What every rank has afterwards.
            ranks: How many take part.
            span: The first and the last of them are this many ranks apart.
        """
        if ranks <= 1 or num_bytes <= 0:
            return 0.0
        rate, hop = self.intra_bytes_per_s, self.hop_s
        if span > self.gpus_per_node:
            rate, hop = min(rate, self.inter_bytes_per_s), self.network_hop_s
        return (ranks - 1) * hop + num_bytes * (ranks - 1) / ranks / rate

    def reduce_s(self, num_bytes: float, ranks: int, span: int) -> float:
        """Return the seconds of an all-reduce of `num_bytes`."""
        return 2.0 * self.gather_s(num_bytes, ranks, span)


class Passes(NamedTuple):
    """Seconds of computation of one micro-batch on one rank, and how often it runs."""

    forward_s: float
    backward_s: float  # recomputation included
    micro_steps: int
    runs: int = 2  # how often a layer runs: forward, backward, and once more where it is recomputed


class _Tally:
    """Adds up communication: what shows of it, and how long it runs beside computation."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self.parts: list[tuple[Path, float]] = []
        self.beside_s = 0.0

    def shown(self, name: str, seconds: float) -> None:
        """Add communication that computation waits for."""
        if seconds > 0:
            self.parts.append((("communication", name), seconds))

    def overlapped(self, name: str, seconds: float, compute_s: float, times: float) -> None:
        """Add communication beside `compute_s` of computation, `times` over."""
        hidden = min(seconds, compute_s)
        self.shown(name, times * (seconds - hidden))
        self.beside_s += times * hidden


def communication(
    run: Run, share: Share, passes: Passes, extents: Extents, network: Network, calibration: Calibration
) -> list[tuple[Path, float]]:
    """Return what of a step's communication shows, by (communication, kind), in seconds."""
    tally = _Tally(calibration)
    _data_parallel(run, share, passes, network, tally)
    _within_layers(run, share, passes, extents, network, tally)
    _pipeline(run, share, passes, extents, network, tally)
    _offload(run, share, passes, network, tally)
    tally.shown("slows computation", calibration.contention_fraction * tally.beside_s)
    return tally.parts


def _data_parallel(run: Run, share: Share, passes: Passes, network: Network, tally: _Tally) -> None:
    """Add gathers of weights and reductions of gradients."""
    ranks, micro_steps = run.data_parallel * run.context_parallel, passes.micro_steps
    if ranks == 1 and not run.sharding.startswith("zero"):
        return
    inner = run.tensor_parallel
    layers = share.graph.model.num_layers / run.pipeline_parallel
    group = shard_degree(run)
    gradients = layers * share.layer_gradient_bytes + share.outer_gradient_bytes
    weights = layers * share.layer_bytes + share.outer_bytes
    if run.sharding in GATHERING:
        layer = network.gather_s(share.layer_bytes, group, group * inner)
        outer = network.gather_s(share.outer_bytes, group, group * inner)
        reduce_layer = network.gather_s(share.layer_gradient_bytes, group, group * inner)
        reduce_outer = network.gather_s(share.outer_gradient_bytes, group, group * inner)
        again = 0.0 if run.sharding == "fsdp_shard_grad_op" else layer
        tally.shown("all-gather", micro_steps * (outer + layer + again))
        tally.overlapped("all-gather", (layers - 1) * layer, passes.forward_s, micro_steps)
        reductions = 1 if accumulates_whole(run) else micro_steps
        beside = (layers - 1) * (again + reduce_layer)
        tally.overlapped("all-gather, reduce-scatter", beside, passes.backward_s, reductions)
        tally.overlapped("all-gather", (layers - 1) * again, passes.backward_s, micro_steps - reductions)
        tally.shown("reduce-scatter", reductions * (reduce_layer + reduce_outer))
        visits = layers * passes.runs
        if run.sharding == "zero3":  # its host runs ahead of the device; FSDP's waits for memory to be freed
            waits = max(0.0, visits * tally.calibration.module_wait_s - passes.forward_s - passes.backward_s)
        else:
            waits = visits * tally.calibration.unit_wait_s
        tally.shown("host waits", micro_steps * waits)
        copies = ranks // group
        if copies > 1:
            tally.overlapped(
                "all-reduce", network.reduce_s(gradients / group, copies, ranks * inner), passes.backward_s, 1
            )
        return
    last = network.reduce_s(share.layer_gradient_bytes, ranks, ranks * inner)
    if run.sharding == "zero2":
        each = network.gather_s(gradients, ranks, ranks * inner)
        tally.overlapped("reduce-scatter", each, passes.backward_s, micro_steps)
    else:
        reduction = network.reduce_s(gradients, ranks, ranks * inner)
        tally.overlapped("all-reduce", reduction - last, passes.backward_s, 1)
        tally.shown("all-reduce", last)
    if run.sharding in ("zero1", "zero2"):
        trained = weights if not run.trains_adapters else gradients
        tally.shown("all-gather", network.gather_s(trained, group, group * inner))


def _within_layers(
    run: Run, share: Share, passes: Passes, extents: Extents, network: Network, tally: _Tally
) -> None:
    """Add what tensor, context and expert parallelism exchange inside the layers."""
    low, model = share.graph.lowering, share.graph.model
    stream = extents.tokens * model.hidden_size * low.compute_bytes
    layers = model.num_layers / run.pipeline_parallel
    runs = passes.runs
    if run.tensor_parallel > 1:
        each = network.reduce_s(stream, run.tensor_parallel, run.tensor_parallel)
        tally.shown("all-reduce (tensor parallel)", passes.micro_steps * layers * 2 * runs * each)
    if run.context_parallel > 1:
        span = run.context_parallel * run.tensor_parallel
        ring = network.gather_s(2 * stream * run.context_parallel, run.context_parallel, span)
        compute = (passes.forward_s + passes.backward_s) / 2
        tally.overlapped("ring (context parallel)", layers * (runs + 1) * ring, compute, passes.micro_steps)
    if run.expert_parallel > 1:
        routed = sum(
            count * min(branch.mixer.top_k, branch.mixer.num_experts)
            for layer, count in model.layers
            for branch in layer.branches
            if isinstance(branch.mixer, MixtureOfExperts)
        )
        each = network.gather_s(stream, run.expert_parallel, run.expert_parallel * run.tensor_parallel)
        tally.shown("all-to-all (expert parallel)", passes.micro_steps * routed * 2 * runs * each)


def _pipeline(
    run: Run, share: Share, passes: Passes, extents: Extents, network: Network, tally: _Tally
) -> None:
    """Add the pipeline's bubble and what its stages hand on."""
    stages = run.pipeline_parallel
    if stages == 1:
        return
    boundary = extents.tokens * share.graph.model.hidden_size * share.graph.lowering.activation_bytes
    sent = network.gather_s(2 * boundary, 2, 2 * run.tensor_parallel * run.data_parallel)
    if run.pipeline_schedule == "naive":
        tally.shown("point to point", passes.micro_steps * 2 * (stages - 1) * sent)
        return
    tally.shown("pipeline bubble", (stages - 1) * (passes.forward_s + passes.backward_s))
    tally.shown("point to point", 2 * (passes.micro_steps + stages - 1) * sent)


def _offload(run: Run, share: Share, passes: Passes, network: Network, tally: _Tally) -> None:
    """Add what crosses to the host: weights on their way to be gathered, gradients, and Adam there."""
    if run.cpu_offload == "none":
        return
    weights = share.graph.weights
    values = weights.trained_params + weights.adapter_params
    layers = share.graph.model.num_layers / run.pipeline_parallel
    whole = layers * share.layer_bytes + share.outer_bytes
    rank_weights = whole / shard_degree(run)
    crossing = values * share.graph.lowering.compute_bytes / network.host_bytes_per_s
    if run.cpu_offload in ("params", "all"):
        brought = 2 * passes.micro_steps * rank_weights / network.host_bytes_per_s
        tally.shown("weights from the host", brought)
        tally.shown("gradients to the host", crossing)
    else:
        tally.shown("gradients and weights over the host link", 2 * crossing)
    moved = values * ADAM_OFFLOAD_BYTES * share.value_bytes / 4.0
    tally.shown("optimizer on the host", moved / tally.calibration.host_bytes_per_s)


def _node_bytes_per_s(run: Run, gpu: GpuSpec, gpus_per_node: int) -> float:
    """Return bytes/s of all network cards of a node: as the run states, or as is usual for its GPU."""
    if run.node_network_gbit_per_s is not None:
        return run.node_network_gbit_per_s * 1e9 / 8
    return gpus_per_node * _inter_node(run, gpu)


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
