r"""Peak memory of one GPU: the live set of every phase of a step, and the largest of them.

$$ M = W + G + O + A + L + S $$

weights, gradients, optimizer state, activations, logits and loss, scratch space; outside
the allocator come its slack and the CUDA context. $W$, $G$, $O$ follow [1], $A$ is what
autograd keeps, operator by operator, not a closed form; [2] is the check.

Phases: forward (all activations, the loss not yet begun), loss, backward at the first
block it reaches (activations whole, gradients few) and at the last (the reverse),
optimizer (no activations, the multi-tensor temporary).

[1] Rajbhandari et al. 2020, arXiv:1910.02054   [2] Korthikanti et al. 2022, arXiv:2205.05198
"""

from collections.abc import Iterable
from typing import NamedTuple

from finegauge.graph.build import Graph
from finegauge.graph.op import Extents, Op
from finegauge.predict.calibration import Calibration
from finegauge.predict.checkpointing import split
from finegauge.profile import Breakdown, Path
from finegauge.workload.run import Run

CUBLAS_BYTES = {"Hopper": 32 * 2**20, "Blackwell": 32 * 2**20}  # workspace per handle
CUBLAS_DEFAULT_BYTES = 8.5 * 2**20

Parts = dict[Path, float]


class LiveSet(NamedTuple):
    """What is alive at the peak of each phase of a step."""

    phases: dict[str, Breakdown]

    @property
    def peak_phase(self) -> str:
        """Return the name of the phase with the largest live set."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def peak(self) -> Breakdown:
        """Return the largest live set."""
        return self.phases[self.peak_phase]

    def by_phase(self) -> Breakdown:
        """Return all phases as one breakdown (phase, kind, detail)."""
        return Breakdown(
            {(name, *path): v for name, part in self.phases.items() for path, v in part.parts.items()}
        )


def live_set(run: Run, graph: Graph, extents: Extents, architecture: str) -> LiveSet:
    """Return the live memory of each phase for a micro-batch of `extents`, in bytes."""
    weights = graph.weights
    static: Parts = {
        ("weights", "model"): weights.base_bytes,
        ("weights", "adapters"): weights.adapter_bytes,
        ("optimizer", "states"): weights.optimizer_bytes - weights.paged_bytes,
        ("workspace", "cuBLAS"): CUBLAS_BYTES.get(architecture, CUBLAS_DEFAULT_BYTES),
    }
    held = weights.gradient_bytes if run.gradient_accumulation_steps > 1 else 0.0
    kept = _kept_between(run, graph, extents)
    outer = _saved(graph.embedding, extents) + _saved(graph.head[:-1], extents)
    loss = graph.head[-1]
    loss_kept, loss_live = loss.saved_bytes.at(extents), loss.live_forward_bytes.at(extents)
    rebuilt, alive = _largest_block(run, graph, extents)
    outside = max(0.0, weights.gradient_bytes - weights.layer_gradient_bytes)
    layer_share = weights.layer_gradient_bytes / max(1, graph.model.num_layers)
    first = max(held, outside + layer_share)
    in_flight = alive + _stream(graph, extents)
    phases: dict[str, Parts] = {
        "forward": {**kept, ("activations", "embedding and head"): outer},
        "loss": {
            **kept,
            ("activations", "embedding and head"): outer,
            ("logits", "loss"): loss_kept + loss_live,
            ("gradients",): held,
        },
        "backward": {
            **kept,
            ("activations", "rebuilt block"): rebuilt,
            ("activations", "gradients in flight"): in_flight,
            ("activations", "embedding and head"): _saved(graph.embedding, extents),
            ("gradients",): first,
        },
        "backward end": {
            ("activations", "rebuilt block"): rebuilt,
            ("activations", "gradients in flight"): in_flight,
            ("gradients",): weights.gradient_bytes,
        },
        "optimizer": {
            ("gradients",): weights.gradient_bytes,
            ("workspace", "optimizer"): _optimizer_scratch(run, graph),
        },
    }
    return LiveSet(phases={name: _merge(static, parts) for name, parts in phases.items()})


def _merge(static: Parts, parts: Parts) -> Breakdown:
    """Return both as one breakdown without empty parts."""
    return Breakdown({path: value for path, value in {**static, **parts}.items() if value})


def _kept_between(run: Run, graph: Graph, extents: Extents) -> Parts:
    """Return what all layers keep from forward to backward."""
    kind = run.activation_checkpointing
    kept = sum(group.count * _saved(split(kind, group.ops)[0], extents) for group in graph.layers)
    parts: Parts = {("activations", "all layers"): kept}
    if kind == "none":
        return parts
    if kind != "offload":
        parts["activations", "checkpoints"] = graph.model.num_layers * _stream(graph, extents)
    pinned = sum(g.count * sum(op.stash_bytes.at(extents) for op in g.ops) for g in graph.layers)
    parts["activations", "inputs pinned by 4-bit linears"] = pinned
    return parts


def _stream(graph: Graph, extents: Extents) -> float:
    """Return the bytes of one residual stream: what enters and leaves every layer."""
    return graph.lowering.activation_bytes * graph.model.hidden_size * extents.tokens


def _largest_block(run: Run, graph: Graph, extents: Extents) -> tuple[float, float]:
    """Return (saved bytes of the layer being differentiated, what else is alive at its worst operator)."""
    worst, answer = -1.0, (0.0, 0.0)
    for group in graph.layers:
        rebuilt = _saved(split(run.activation_checkpointing, group.ops)[1], extents)
        beside = backward_peak(group.ops, extents) - _saved(group.ops, extents)
        if rebuilt + beside > worst:
            worst, answer = rebuilt + beside, (rebuilt, max(0.0, beside))
    return answer


def backward_peak(ops: Iterable[Op], extents: Extents) -> float:
    """Return the largest live set of a layer's backward pass, everything it saved included.

    Operators run in reverse; each frees what it saved once it is done.
    """
    ops = list(ops)
    remaining = _saved(ops, extents)
    peak = remaining
    for op in reversed(ops):
        peak = max(peak, remaining + op.live_backward_bytes.at(extents))
        remaining -= op.saved_bytes.at(extents)
    return peak


def _saved(ops: Iterable[Op], extents: Extents) -> float:
    """Return the bytes that autograd keeps because of `ops`."""
    return sum(op.saved_bytes.at(extents) for op in ops)


def _optimizer_scratch(run: Run, graph: Graph) -> float:
    """Return the temporary of the optimizer: one more copy of the parameters for multi-tensor AdamW."""
    if run.optimizer_implementation != "foreach" or run.optimizer.endswith("8bit"):
        return 0.0
    return graph.weights.foreach_bytes


def shapes_vary(run: Run, graph: Graph) -> bool:
    """Return whether allocations change size from step to step: padded batches, routed tokens."""
    routed = run.experts_implementation == "eager" and any("moe" in group.kind for group in graph.layers)
    return routed or (run.dataset is not None and run.padding != "max" and not run.packing)


def outside_tensors(run: Run, graph: Graph, peak: Breakdown, calibration: Calibration) -> Breakdown:
    """Return what the device holds beside live tensors: allocator slack and the CUDA context, in bytes."""
    fraction = calibration.slack(varied=shapes_vary(run, graph))
    moving = peak["activations"] + peak["logits"]
    return Breakdown({("slack",): fraction * moving, ("context",): calibration.context_bytes})
