r"""Peak memory of one GPU: the live set of every phase of a step, and the largest of them.

$$ M = W + G + O + A + L + S $$

weights, gradients, optimizer state, activations, logits and loss, scratch space; outside
the allocator come its slack and the CUDA context. $W$, $G$, $O$ follow [1], $A$ is what
autograd keeps, operator by operator, not a closed form; [2] is the check.

Phases: forward (to the logits), loss, backward, optimizer. Backward is the worst of the
loss's own, the head, the layers of each kind that it can reach first (activations whole,
gradients few) and last (the reverse), and the embedding; between two layers of a kind
everything changes by the same bytes, so no other layer can be worse. Of the kinds only
the first has a known place.

[1] Rajbhandari et al. 2020, arXiv:1910.02054   [2] Korthikanti et al. 2022, arXiv:2205.05198
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from finegauge.arithmetic import PLAIN, chosen, largest, place_of_largest, present, smallest
from finegauge.catalogue.gpus import CPU
from finegauge.model.gradient_pruning import is_adapter, is_passive
from finegauge.model.graph import Graph, LayerGraph
from finegauge.model.op import ZERO, Extents, Op, per_token
from finegauge.model.weights import Weights
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.model_parallel import stream_degree
from finegauge.profile import Breakdown, Path
from finegauge.run.run import Run

CHEAP_KINDS = frozenset({"norm", "elementwise", "gather", "softmax", "convolution"})

PRODUCTS = frozenset({"gemm", "grouped_gemm"})
SCORES = "attention_eager"

Ops = tuple[Op, ...]


def split(kind: str, ops: Ops) -> tuple[Ops, Ops]:
    """Return the operators of a layer whose saved tensors are kept, and those that run again."""
    if kind == "none":
        return ops, ()
    if kind != "selective":
        return (), ops
    if reruns_scores(kind, ops):
        core = tuple(op for op in ops if op.kind == SCORES)
        inputs = (op._replace(saved_bytes=per_token(op.saved_bytes.token)) for op in core)
        return (*(op for op in ops if op.kind != SCORES), *inputs), core
    cheap = tuple(op for op in ops if op.kind in CHEAP_KINDS)
    return tuple(op for op in ops if op.kind not in CHEAP_KINDS), cheap


def reruns_scores(kind: str, ops: Ops) -> bool:
    """Return whether attention's core is all that runs again: no layer's input is kept for it."""
    return kind == "selective" and any(op.kind == SCORES for op in ops)


def rerun(run: Run, graph: Graph, ops: Ops) -> Ops:
    """Return what runs again of one stretch of `graph`, in full or in part.

    Layers that no gradient comes to do not. A chunked loss computes the logits again, unless it keeps
    its chunks. Reentrant checkpointing runs a whole layer; the other stops when the last tensor that
    backward needs is there: what a product keeps is its input, so the last product is not computed,
    unless a kernel encloses it.
    """
    if ops is graph.head:
        if run.loss != "chunked" or graph.lowering.chunks_kept:
            return ()
        return tuple(op for op in ops if op.kind != "norm")
    if ops is graph.embedding or is_passive(ops):
        return ()
    again = split(run.activation_checkpointing, ops)[1]
    if run.checkpointing_reentrant or run.activation_checkpointing != "full":
        return again
    keepers = (index for index, op in enumerate(again) if op.enclosed or op.saved_bytes != ZERO)
    last = max(keepers, default=-1)
    return again[:last] + _until_kept(again[last]) if last >= 0 else ()


def _until_kept(op: Op) -> Ops:
    """Return what is computed of an operator before it keeps its last tensor."""
    if op.kind not in PRODUCTS or op.enclosed:
        return (op,)
    if not is_adapter(op) or len(op.forward.gemms) < 2:
        return ()
    down = op.forward.gemms[0]  # the second of the pair keeps what the first returns
    flops = op.forward.flops._replace(token=2.0 * down.rows_per_token * down.n * down.k)
    return (op._replace(forward=op.forward._replace(flops=flops, gemms=(down,))),)


class Moment(NamedTuple):
    """Bytes alive at one moment of a pass, because of the stretch alone."""

    kept_bytes: float = 0.0  # by autograd
    beside_bytes: float = 0.0  # inputs, outputs, gradients and temporaries of the operator at work
    made_bytes: float = 0.0  # gradients of the weights that the stretch has reached so far
    op: Op | None = None  # at work; not known where it differs from one candidate to the next

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.kept_bytes + self.beside_bytes + self.made_bytes


def worst(moments: Sequence[Moment]) -> Moment:
    """Return the first of `moments` with the most bytes alive; the empty moment where there are none."""
    found, most = Moment(), 0.0
    for moment in moments:
        total = moment.total
        if not isinstance(total, PLAIN):
            return _worst_of_each(moments)
        if total > most:
            found, most = moment, total
    return found


def _worst_of_each(moments: Sequence[Moment]) -> Moment:
    """Return the worst moment of every candidate."""
    place = place_of_largest([moment.total for moment in moments])
    kept, beside, made, _ = zip(*moments, strict=True)
    return Moment(chosen(kept, place), chosen(beside, place), chosen(made, place))


def saved_bytes(ops: Iterable[Op], extents: Extents) -> float:
    """Return the bytes that autograd keeps because of `ops`."""
    return sum(op.saved_bytes.at(extents) for op in ops)


def gradient_bytes(ops: Iterable[Op]) -> float:
    """Return the bytes of the gradients of the weights in `ops`."""
    return sum(op.gradient_bytes for op in ops)


def forward_moment(
    ops: Sequence[Op], extents: Extents, stream: float, *, keeping: bool, held: float = 0.0
) -> Moment:
    """Return the worst moment of a forward pass.

    After each residual addition the caller still holds the layer's input beside the sum:
    one more `stream`, in bytes. `held` is what it holds from the layer before.
    """
    moments, kept, streams = [], 0.0, held
    for op in ops:
        if keeping:
            kept = kept + op.saved_bytes.at(extents)
        live = op.live_forward_bytes if keeping else op.passing_bytes
        moments.append(Moment(kept, streams + live.at(extents), 0.0, op))
        if op.path[-1] == "residual":
            streams = streams + stream
        if not keeping or op.path[-1] == "residual":
            streams = streams + op.lingering_bytes.at(extents)
    return worst(moments)


def backward_moment(ops: Sequence[Op], extents: Extents, *, accumulating: bool) -> Moment:
    """Return the worst moment of a backward pass.

    Gradients of weights stay; where they add to those of earlier micro-batches
    (`accumulating`), which the caller counts, each is alive only until it is added.
    """
    moments, kept, gradients = [], saved_bytes(ops, extents), 0.0
    for op in reversed(ops):
        made = op.gradient_bytes + (0.0 if accumulating else gradients)
        moments.append(Moment(kept, op.live_backward_bytes.at(extents), made, op))
        kept = kept - op.saved_bytes.at(extents)
        gradients = gradients + op.gradient_bytes
    return worst(moments)


CUBLAS_BYTES = {"Hopper": 32 * 2**20, "Blackwell": 32 * 2**20, CPU: 0.0}  # workspace per handle
CUBLAS_DEFAULT_BYTES = 8.5 * 2**20
HEAD_BACKWARD = "backward of the head"

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
        return Breakdown(largest_parts(live.parts for live in self.phases.values()))

    def by_phase(self) -> Breakdown:
        """Return all phases as one breakdown (phase, kind, detail)."""
        return Breakdown(
            {(name, *path): v for name, part in self.phases.items() for path, v in part.parts.items()}
        )


def cublas_bytes(architecture: str) -> float:
    """Return the workspace that matrix products hold on a GPU of `architecture`."""
    return CUBLAS_BYTES.get(architecture, CUBLAS_DEFAULT_BYTES)


class Update(NamedTuple):
    """What the gradients and the optimizer step take beside the weights and states that a rank holds."""

    scratch_bytes: float  # temporaries of the optimizer
    most_gradients_bytes: float = inf  # that wait at a time in the backward pass
    kept_fraction: float = 1.0  # of the gradients, which the update finds


def live_set(
    run: Run, graph: Graph, extents: Extents, cublas: float, update: Update | None = None,
    *, head_apart: bool = False,
) -> LiveSet:  # fmt: skip
    """Return the live memory of each phase for a micro-batch of `extents`, in bytes.

    Args:
        run: How it checkpoints, whether it accumulates.
        graph: Its operators, over the weights that the rank holds.
        extents: Of the micro-batch.
        cublas: What matrix products hold, as `cublas_bytes` says.
        update: What the optimizer step takes; as `run` and `graph` say by default.
        head_apart: Whether the backward pass of the head is a phase of its own, HEAD_BACKWARD.
    """
    weights = graph.weights
    update = update or Update(optimizer_scratch(run, weights))
    static: Parts = {
        ("weights", "model"): weights.base_bytes,
        ("weights", "adapters"): weights.adapter_bytes,
        ("optimizer", "states"): weights.optimizer_bytes - weights.paged_bytes,
        ("workspace", "cuBLAS"): cublas,
    }
    passes = _Passes(run, graph, extents, update.most_gradients_bytes)
    phases = {
        "forward": passes.forward(),
        "loss": passes.loss(),
        **passes.backward(head_apart=head_apart),
        "optimizer": {
            ("gradients",): weights.gradient_bytes * update.kept_fraction,
            ("workspace", "optimizer"): update.scratch_bytes,
        },
    }
    return LiveSet(phases={name: _merge(static, parts) for name, parts in phases.items()})


def _merge(static: Parts, parts: Parts) -> Breakdown:
    """Return both as one breakdown without empty parts."""
    return Breakdown({path: value for path, value in {**static, **parts}.items() if present(value)})


def largest_parts(candidates: Iterable[Mapping[Path, float]]) -> Parts:
    """Return the parts with the largest sum."""
    found = list(candidates)
    place = place_of_largest([sum(parts.values()) for parts in found])
    if isinstance(place, int):
        return dict(found[place])
    kinds = [Breakdown(parts).at(1).parts for parts in found]  # where the largest differ, so do their parts
    paths = dict.fromkeys(path for parts in kinds for path in parts)
    return {path: chosen([parts.get(path, 0.0) for parts in kinds], place) for path in paths}


class _Passes:
    """Forward, loss and backward of one micro-batch; each returns what is alive at its peak."""

    def __init__(self, run: Run, graph: Graph, extents: Extents, most_gradients: float) -> None:
        """Measure the residual stream and the gradients."""
        self.run, self.graph, self.extents = run, graph, extents
        self._known: dict[int, float] = {}  # what is kept of a layer, by the identity of its group
        self.most_gradients = most_gradients
        self.kind = run.activation_checkpointing
        self.layers = [group for group in graph.layers if not group.passive]
        low, model = graph.lowering, graph.model
        width = model.hidden_size / stream_degree(run)
        self.stream = low.stream_bytes * width * extents.tokens
        self.entry = low.activation_bytes * width * extents.tokens  # what the first layer reads
        learned = any("wpe" in t.name or "position" in t.name for t in model.embeddings[1:])
        self.apart = self.entry if learned or "embedding" in low.numerics.dropout else 0.0
        self.positions = low.activation_bytes * width * extents.longest_tokens if learned else 0.0
        # frozen embeddings' output is made to need gradients: it stays until the step is done
        leaf = not low.weights_train and low.input_gradients and "embed_tokens" not in run.trainable_extra
        self.leaf = self.apart if leaf else 0.0
        self.mask = (
            graph.lowering.activation_bytes * extents.pairs if graph.lowering.attention == "eager" else 0.0
        )
        self.accumulating = run.gradient_accumulation_steps > 1
        self.held = graph.weights.gradient_bytes if self.accumulating else 0.0
        self.head_gradient = gradient_bytes(graph.head)
        self.embedding_gradient = gradient_bytes(graph.embedding)

    def forward(self) -> Parts:
        """Return the peak up to the logits, the last micro-batch of the step."""
        return largest_parts(self._forward_moments())

    def _forward_moments(self) -> Iterator[Parts]:
        """Yield what is alive in the last layer of each kind that may be last, and in the head."""
        layers = self.layers
        base = {("gradients",): self.held, **self._autocast_copies(), **self._handed_back()}
        base |= self._last_micro_batch()
        outside = saved_bytes(self.graph.embedding, self.extents) + self.mask
        for index, group in enumerate(layers):
            between = self._between(layers if index or len(layers) == 1 else layers[:1])
            own = self._saved(group)
            keeping = self.kind == "none"
            moment = forward_moment(
                group.ops, self.extents, self.stream, keeping=keeping, held=self._handed_on(group)
            )
            yield {
                **base,
                **between,
                ("activations", "all layers"): between["activations", "all layers"] - own + moment.kept_bytes,
                ("activations", "passing"): moment.beside_bytes + self._loose_streams(group),
                ("activations", "embedding and head"): outside,
            }
        for group in self.graph.layers:
            if group.passive:
                moment = forward_moment(group.ops, self.extents, self.stream, keeping=False)
                passing = moment.beside_bytes + largest(self.apart + self.positions, self.entry) + self.stream
                yield {**base, ("activations", "passing"): passing}
        base |= self._between(layers)
        final = forward_moment(self.graph.head[:1], self.extents, 0.0, keeping=True)
        rest = forward_moment(self.graph.head[:-1], self.extents, 0.0, keeping=True)
        streams = self._loose_streams(layers[-1])
        returned = self.kind != "none" or layers[-1].ops[0].keeps_input
        if returned and not self.graph.head[0].keeps_input:
            streams = streams + self.stream  # what the last layer returned
        low, model = self.graph.lowering, self.graph.model
        states = self.leaf + (self.stream if low.activation_bytes > low.compute_bytes else 0.0)
        if low.litgpt:  # the logits beside their fp32 copy
            both = (4.0 + low.compute_bytes) * model.vocab_size * self.extents.tokens
            yield {**base, ("activations", "embedding and head"): outside, ("logits", "loss"): both}
        for moment, loose in ((final, streams), (rest, states)):
            yield {
                **base,
                ("activations", "passing"): moment.beside_bytes + loose,
                ("activations", "embedding and head"): outside + moment.kept_bytes,
            }

    def _loose_streams(self, group: LayerGraph) -> float:
        """Return the bytes that the model's code holds of its embeddings, of its and of the layer's input.

        Not what autograd keeps, which may be copies alone, nor what checkpointing keeps.
        """
        named = self.apart + self.positions
        if self.kind != "none" or group.ops[0].keeps_input:
            return named
        return largest(named, self.entry) + self.stream

    def _handed_on(self, group: LayerGraph) -> float:
        """Return the bytes that the layer before `group`'s last returned beside the stream."""
        if self.kind == "none" or not self.graph.lowering.numerics.hands_on_scores:
            return 0.0
        return sum(op.lingering_bytes.at(self.extents) for op in group.ops if op.kind == "attention_eager")

    def loss(self) -> Parts:
        """Return the peak of the loss."""
        *head, loss = self.graph.head
        return {
            **self._between(self.layers),
            **self._autocast_copies(),
            **self._handed_back(),
            ("gradients",): self.held,
            ("activations", "embedding and head"): self._outside(head),
            ("logits", "loss"): loss.saved_bytes.at(self.extents) + loss.live_forward_bytes.at(self.extents),
        }

    def backward(self, *, head_apart: bool) -> dict[str, Parts]:
        """Return the peak of the backward pass, its recomputation included."""
        head, *rest = map(self._at_most, self._backward_moments())
        if head_apart:
            return {HEAD_BACKWARD: head, "backward": largest_parts(rest)}
        return {"backward": largest_parts([head, *rest])}

    def _at_most(self, parts: Parts) -> Parts:
        """Return `parts` with no more gradients than wait at a time."""
        held = parts["gradients",]
        return {**parts, ("gradients",): smallest(held, self.most_gradients)}

    def _backward_moments(self) -> Iterator[Parts]:
        """Yield what is alive in the head, in the layers that may be first and last, in the embedding."""
        yield self._head_moment()
        everything = self.graph.weights.gradient_bytes
        layers = self.layers
        leading = layers[0].count * gradient_bytes(layers[0].ops)
        for index, group in enumerate(layers):
            moment = backward_moment(group.ops, self.extents, accumulating=self.accumulating)
            others = everything - self.embedding_gradient - gradient_bytes(group.ops)
            if index or len(layers) == 1:
                yield self._layer_moment(group, moment, layers, self.head_gradient)
            yield self._layer_moment(
                group, moment, layers[:1] if index else (), others - (leading if index else 0.0)
            )
        last = backward_moment(self.graph.embedding, self.extents, accumulating=self.accumulating)
        yield {
            ("activations", "gradients in flight"): self.stream,
            ("activations", "embedding and head"): last.kept_bytes + last.beside_bytes,
            **self._gradients(everything - self.embedding_gradient, last),
        }

    def _head_moment(self) -> Parts:
        """Return the worst of loss, head and final norm."""
        moment = backward_moment(self.graph.head, self.extents, accumulating=self.accumulating)
        parts = {**self._between(self.layers), ("gradients",): self.held + moment.made_bytes}
        loss = self.graph.head[-1]
        if moment.op is loss:
            kept = loss.saved_bytes.at(self.extents)
            parts["logits", "loss"] = kept + moment.beside_bytes
            parts["activations", "embedding and head"] = self._outside(self.graph.head) - kept
        else:
            parts["activations", "gradients in flight"] = moment.beside_bytes
            parts["activations", "embedding and head"] = self._outside(()) + moment.kept_bytes
        return parts

    def _layer_moment(
        self, group: LayerGraph, moment: Moment, standing: Sequence[LayerGraph], gradients: float
    ) -> Parts:
        """Return the worst moment of a layer of `group`; the layers of `standing` still keep all they did."""
        parts = {**self._between(standing), **self._gradients(gradients, moment)}
        share = 1.0 if group in standing else 0.0
        own = self._saved(group)
        in_flight = moment.beside_bytes + self.stream
        layers = parts["activations", "all layers"] - share * own
        if self.kind == "none":
            parts["activations", "all layers"] = layers + moment.kept_bytes
        else:
            parts["activations", "all layers"] = layers
            parts["activations", "rebuilt block"] = moment.kept_bytes
            rows = 1.0 - share if self.kind != "offload" else 1.0
            rows -= 1.0 if group.ops[0].keeps_input else 0.0
            rows += 1.0 if self.run.checkpointing_reentrant else 0.0
            first = standing == () and group is self.layers[0]
            held = rows * (self.entry if first else self.stream)
            parts["activations", "checkpoints"] = parts["activations", "checkpoints"] + held
        parts["activations", "gradients in flight"] = in_flight
        parts["activations", "embedding and head"] = self._outside(())
        return parts

    def _gradients(self, before: float, moment: Moment) -> Parts:
        """Return the gradients of weights at a moment of the backward pass."""
        waits = self.head_gradient if self.accumulating and self.graph.model.head is None else 0.0
        return {("gradients",): self.held + moment.made_bytes + (waits if self.accumulating else before)}

    def _between(self, layers: Sequence[LayerGraph]) -> Parts:
        """Return what `layers`, all or the leading ones, keep from forward to backward."""
        extents = self.extents
        kept = sum(group.count * self._saved(group) for group in layers)
        parts: Parts = {("activations", "all layers"): kept}
        if self.kind == "none":
            return parts
        inputs = (group.count for group in layers if not reruns_scores(self.kind, group.ops))
        rows = 0 if self.kind == "offload" else sum(inputs)
        narrow = self.stream - self.entry if rows else 0.0  # the first layer's input
        parts["activations", "checkpoints"] = rows * self.stream - narrow
        pinned = sum(g.count * sum(op.stash_bytes.at(extents) for op in g.ops) for g in layers)
        parts["activations", "inputs pinned by 4-bit linears"] = pinned
        return parts

    def _autocast_copies(self) -> Parts:
        """Return the 16-bit copies of trained fp32 weights that autocast caches during the forward pass.

        Without checkpointing backward needs them anyway.
        """
        low = self.graph.lowering
        trained_bytes = low.weight_bytes if low.weights_train or low.last_layers else low.adapter_bytes
        if self.kind == "none" or not low.autocast or trained_bytes < 4:
            return {}
        # adapters added to fused experts' weights are no products of their own, and not cached
        stretches = ((g.count, op) for g in self.graph.layers for op in g.ops)
        products = ((count, op) for count, op in stretches if op.kind == "gemm" and op.forward.gemms)
        copies = sum(count * op.gradient_bytes * low.compute_bytes / trained_bytes for count, op in products)
        return {("weights", "autocast copies"): copies}

    def _last_micro_batch(self) -> Parts:
        """Return what is left of the last micro-batch during the forward pass of this one.

        litgpt's loop holds its fp32 logits, and through them what old 4-bit linears pin to the graph.
        """
        if not self.graph.lowering.litgpt:
            return {}
        pinned = sum(
            g.count * sum(op.stash_bytes.at(self.extents) for op in g.ops) for g in self.graph.layers
        )
        logits = 4.0 * self.graph.model.vocab_size * self.extents.tokens
        return {("activations", "last micro-batch"): pinned, ("logits", "last micro-batch"): logits}

    def _handed_back(self) -> Parts:
        """Return the keys and values that a model hands back although its layers are checkpointed.

        GPT-BigCode of transformers before 4.53 does: views of all that its fused projection
        returned, which live until the caller of the forward pass drops its output.
        """
        if self.kind == "none" or not self.graph.lowering.hands_back_cache:
            return {}
        width = 0.0
        for group in self.graph.layers:
            fused = next(op for op in group.ops if op.path[0] == "attention" and op.forward.gemms)
            width += group.count * fused.forward.gemms[0].n
        held = width * self.graph.lowering.returned_bytes * self.extents.tokens
        return {("activations", "keys and values handed back"): held}

    def _saved(self, group: LayerGraph) -> float:
        """Return what one layer of `group` keeps from forward to backward."""
        if id(group) not in self._known:
            self._known[id(group)] = saved_bytes(split(self.kind, group.ops)[0], self.extents)
        return self._known[id(group)]

    def _outside(self, head: Iterable[Op]) -> float:
        """Return what the embedding, with what all layers share, and the given operators of the head keep."""
        mask = 0.0 if self.kind == "none" else self.mask  # an argument of every checkpoint
        return saved_bytes((*self.graph.embedding, *head), self.extents) + mask + self.leaf


def optimizer_scratch(run: Run, weights: Weights) -> float:
    """Return the temporaries of the update: of a whole group of tensors, or of one after the other."""
    if run.optimizer == "adamw":
        temporaries = {"foreach": weights.foreach_bytes, "loop": weights.loop_bytes}
        return temporaries.get(run.optimizer_implementation, 0.0)
    return weights.loop_bytes


def shapes_vary(run: Run, graph: Graph) -> bool:
    """Return whether allocations change size from step to step: padded batches, routed tokens."""
    routed = run.experts_implementation == "eager" and any("moe" in group.kind for group in graph.layers)
    return routed or (run.dataset is not None and run.padding != "max" and not run.packing)


def outside_tensors(run: Run, graph: Graph, peak: Breakdown, calibration: Calibration) -> Breakdown:
    """Return what the device holds beside live tensors: allocator slack and the CUDA context, in bytes."""
    fraction = calibration.slack(varied=shapes_vary(run, graph))
    moving = peak["activations"] + peak["logits"]
    return Breakdown({("slack",): fraction * moving, ("context",): calibration.context_bytes})
