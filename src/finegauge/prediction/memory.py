r"""Peak memory of one GPU: the live set of every phase of a step, and the largest of them.

$$ M = W + G + O + A + L + S $$

weights, gradients, optimizer state, activations, logits and loss, scratch space; outside
the allocator come its slack and the CUDA context. $W$, $G$, $O$ follow [1], $A$ is what
autograd keeps, operator by operator, not a closed form; [2] is the check.

Phases: forward (to the logits), loss, backward, optimizer. Backward is the worst of the
loss's own, the head, the layers of each kind that it can reach first (activations whole,
gradients few) and last (the reverse), and the embedding; between two layers of a kind
everything changes by the same bytes, so no other layer can be worse. Where gradients are
reduced unit by unit, those of a layer wait whole beside the next: not beside the first that
backward reaches, so the second stands for itself. Of the kinds only the first has a known place.

[1] Rajbhandari et al. 2020, arXiv:1910.02054   [2] Korthikanti et al. 2022, arXiv:2205.05198
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import ceil, inf
from operator import attrgetter

from finegauge.arithmetic import chosen, largest, place_of_largest, present, smallest
from finegauge.catalogue.gpus import CPU
from finegauge.model.graph import Graph, LayerGraph
from finegauge.model.layers import TowerPart
from finegauge.model.op import ZERO, Extents, Op, saved_bytes
from finegauge.model.op_builder import is_adapter, is_passive
from finegauge.model.weights import optimizer_scratch
from finegauge.prediction.model_parallel import stream_degree
from finegauge.prediction.recomputation import (
    SCORES,
    keeps_no_input,
    kept_at,
    kinds_of,
    layers_rebuilt_together,
    rerun,
    split,
)
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.rules import WHOLE_LAYERS
from finegauge.run.run import Run

CUBLAS_BYTES = {"Hopper": 32 * 2**20, "Blackwell": 32 * 2**20, CPU: 0.0}  # workspace per handle
CUBLAS_DEFAULT_BYTES = 8.5 * 2**20
LOSS_BACKWARD, HEAD_BACKWARD = "backward of the loss", "backward of the head"
FIRST_BACKWARD, EMBEDDING_BACKWARD = "backward of the first layer", "backward of the embedding"
APART = (LOSS_BACKWARD, HEAD_BACKWARD, FIRST_BACKWARD, EMBEDDING_BACKWARD)
Parts = dict[Path, float]


# Liveness: what is alive at the worst moment of one pass over the operators of a layer. Three passes:
# forward with everything kept for backward, forward with nothing kept (a checkpointed layer, which will run
# again), and backward, which frees what each operator kept and leaves the gradients of its weights behind.
# Layers of one kind repeat, so a pass over one of them serves them all.


class Moment(NamedTuple):
    """Bytes alive at one moment of a pass, because of its operators alone."""

    kept_bytes: float = 0.0  # by autograd
    beside_bytes: float = 0.0  # inputs, outputs, gradients and temporaries of the operator at work
    made_bytes: float = 0.0  # gradients of the weights that the pass has reached so far
    op: Op | None = None  # at work; not known where it differs from one candidate to the next


def worst(moments: Sequence[Moment]) -> Moment:
    """Return the first of `moments` with the most bytes alive; of each candidate, where they are arrays."""
    totals = []
    for kept_bytes, beside_bytes, made_bytes, _ in moments:
        totals.append(kept_bytes + beside_bytes + made_bytes)
    place = place_of_largest(totals)
    if isinstance(place, int):
        return moments[place]
    kept, beside, made, _ = zip(*moments, strict=True)
    return Moment(chosen(kept, place), chosen(beside, place), chosen(made, place))


def gradient_bytes(ops: Sequence[Op]) -> float:
    """Return the bytes of the gradients of the weights in `ops`."""
    total = 0.0
    for op in ops:
        total = total + op.gradient_bytes
    return total


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


def backward_moment(
    ops: Sequence[Op], extents: Extents, *, accumulating: bool, kept: Sequence[float] | None = None,
    unreduced_ratio: float = 1.0,
) -> Moment:  # fmt: skip
    """Return the worst moment of a backward pass.

    Gradients of weights stay; where they add to those of earlier micro-batches
    (`accumulating`), which the caller counts, each is alive only until it is added.
    `kept` by autograd when each operator is reached is, unstated, what it and all before it saved.
    The gradients of a unit that is not reduced yet are `unreduced_ratio` times those that the rank keeps.
    """
    if kept is None:
        kept = list(accumulate([op.saved_bytes.at(extents) for op in ops]))
    moments, gradients = [], 0.0
    for op, held in zip(reversed(ops), reversed(kept), strict=True):
        made = unreduced_ratio * (op.gradient_bytes + (0.0 if accumulating else gradients))
        moments.append(Moment(held, op.live_backward_bytes.at(extents), made, op))
        gradients = gradients + op.gradient_bytes
    return worst(moments)


class LiveSet(NamedTuple):
    """What is alive at the peak of each phase of a step."""

    phases: dict[str, Breakdown]

    @property
    def peak_phase(self) -> str:
        """Return the name of the phase with the largest live set."""
        totals = [held.total for held in self.phases.values()]
        return list(self.phases)[totals.index(max(totals))]

    @property
    def peak(self) -> Breakdown:
        """Return the largest live set."""
        return Breakdown(largest_parts(list(map(attrgetter("parts"), self.phases.values()))))

    def by_phase(self) -> Breakdown:
        """Return all phases as one breakdown (phase, kind, detail)."""
        return Breakdown(
            {(name, *path): v for name, part in self.phases.items() for path, v in part.parts.items()}
        )


def largest_parts(candidates: Sequence[Mapping[Path, float]]) -> Parts:
    """Return the parts with the largest sum."""
    place = place_of_largest([sum(parts.values()) for parts in candidates])
    if isinstance(place, int):
        return dict(candidates[place])
    paths = dict.fromkeys([path for parts in candidates for path in parts])
    return {path: chosen([parts.get(path, 0.0) for parts in candidates], place) for path in paths}


class Update(NamedTuple):
    """What the gradients and the optimizer step take beside the weights and states that a rank holds."""

    scratch_bytes: float  # temporaries of the optimizer
    most_gradients_bytes: float = inf  # that wait at a time in the backward pass
    kept_fraction: float = 1.0  # of the gradients, which the update finds
    unreduced_ratio: float = 0.0  # gradients of a unit before they are reduced, over those kept; 0: no units


def live_set(
    run: Run, graph: Graph, extents: Extents, cublas: float, update: Update | None = None,
    *, ends_apart: bool = False,
) -> LiveSet:  # fmt: skip
    """Return the live memory of each phase for a micro-batch of `extents`, in bytes.

    `cublas` is what matrix products hold (`CUBLAS_BYTES`); `update` follows from the run unless stated. With
    `ends_apart`, backward of loss, head, first layer and embedding are phases of their own, `APART`.
    """
    weights = graph.weights
    update = update or Update(optimizer_scratch(run, weights))
    static: Parts = {
        ("weights", "model"): weights.base_bytes,
        ("weights", "adapters"): weights.adapter_bytes,
        ("optimizer", "states"): weights.optimizer_bytes - weights.paged_bytes,
        ("workspace", "cuBLAS"): cublas,
    }
    outputs = 0.0  # held from the loss, which counts them, to the end of the step
    if run.keeps_outputs and run.loss in ("full_logits", "compiled") and not graph.lowering.litgpt:
        width = 4 if graph.lowering.wide_head else graph.lowering.compute_bytes
        outputs = width * graph.model.vocab_size * extents.tokens
    micro_batch = _MicroBatch(run, graph, extents)
    phases = {
        "forward": largest_parts(micro_batch.forward()),
        "loss": micro_batch.loss(),
        **{name: {} for name in (*(APART if ends_apart else ()), "backward")},
        "optimizer": {
            ("logits", "held outputs"): outputs,
            ("activations", "embedding and head"): micro_batch.held_leaf
            * (run.keeps_outputs or any([present(one.outliving_bytes) for one in micro_batch.kinds])),
            ("activations", "all layers"): micro_batch.outlived([]),
            ("gradients",): weights.gradient_bytes * update.kept_fraction,
            ("workspace", "optimizer"): update.scratch_bytes,
        },
    }
    moments = micro_batch.backward(update.unreduced_ratio)
    for parts in chain.from_iterable(moments.values()):
        parts["gradients",] = smallest(parts["gradients",], update.most_gradients_bytes)
        parts["logits", "held outputs"] = outputs
    if not ends_apart:
        moments = {"backward": [*chain.from_iterable(moments.values())]}
    phases |= {name: largest_parts(candidates) for name, candidates in moments.items() if candidates}
    found: dict[str, Breakdown] = {}
    for name, parts in phases.items():
        found[name] = Breakdown({p: v for p, v in {**static, **parts}.items() if present(v)})
    return LiveSet(found)


class _MicroBatch:
    """One micro-batch forward and backward: what is alive at each moment that may be a phase's peak."""

    def __init__(self, run: Run, graph: Graph, extents: Extents) -> None:
        self.run, self.graph, self.extents = run, graph, extents
        self.kind = run.activation_checkpointing
        self.together = layers_rebuilt_together(run)
        low, model = graph.lowering, graph.model
        width = model.hidden_size / stream_degree(run)
        self.stream = low.stream_bytes * width * extents.tokens
        self.entry = low.activation_bytes * width * extents.tokens  # what the first layer reads
        beside_words = " ".join([one.name for one in model.embeddings[1:]])
        learned = "wpe" in beside_words or "position" in beside_words
        self.apart = self.entry if learned or "embedding" in low.numerics.dropout else 0.0
        named = learned and model.embedding_norm is None  # not inside a module, which is done before
        self.positions = low.activation_bytes * width * extents.longest_tokens if named else 0.0
        if "embed_positions" in beside_words:  # counted by the mask: OPT
            self.positions = self.entry
        # frozen embeddings' output is made to need gradients: it stays until the step is done
        leaf = not low.weights_train and low.input_gradients and "embed_tokens" not in run.trainable_extra
        self.leaf = self.apart if leaf else 0.0
        self.held_leaf = 2.0 * self.entry if leaf else 0.0  # while the outputs are held; with its gradient
        self.mask = low.activation_bytes * extents.pairs if low.attention == "eager" else 0.0
        # AdaLoRA's loss begins with the adapters themselves: their gradients are there before all others
        adds = run.trains_adapters and run.adapter == "adalora"
        self.accumulating = run.gradient_accumulation_steps > 1 or adds
        self.frees_gradients = run.optimizer_implementation == "in_backward"  # of a layer before the next
        self.held = graph.weights.gradient_bytes if self.accumulating else 0.0
        self.kinds = kinds_of(run, graph, extents, self.stream)
        self.layers = [one.group for one in self.kinds]
        # kept for backward by all layers that it has not reached yet
        self.kept_by_all = self._kept(self.layers)
        mask = 0.0 if self.kind == "none" else self.mask  # an argument of every checkpoint
        self.tower = list[tuple[TowerPart, Extents, bool, float, float]]()  # keeps inputs, stream, kept
        self.kept_by_tower = 0.0
        for part in graph.tower:
            sizes, inputs = part.of(extents), self.kind in WHOLE_LAYERS and part.is_layer
            inputs = inputs and not is_passive(part.ops)
            stream = low.activation_bytes * part.hidden_size * sizes.tokens
            one = float(self.kind == "full") * stream if inputs else saved_bytes(part.ops, sizes)
            self.tower.append((part, sizes, inputs, stream, one))
            self.kept_by_tower = self.kept_by_tower + part.count * one
        self.kept_outside = saved_bytes(graph.embedding, extents) + mask + self.leaf + self.kept_by_tower
        self.copies = self._copies()

    def forward(self) -> list[Parts]:
        """Return what is alive in the last layer of each kind that may be last, and in the head."""
        graph, extents, low = self.graph, self.extents, self.graph.lowering
        base = {("gradients",): self.held, **self.copies}
        logits = graph.model.vocab_size * extents.tokens
        if low.litgpt:  # its loop holds the last fp32 logits, and what old 4-bit linears pin to their graph
            base["activations", "last micro-batch"] = self._pinned(graph.layers)
            base["logits", "last micro-batch"] = 4.0 * logits
        named = self.apart + self.positions  # embeddings that the model's code holds
        layer_input = largest(named, self.entry) + self.stream
        outside = saved_bytes(graph.embedding, extents) + self.mask + self.kept_by_tower
        found = self._tower_forward(base)
        found += self._forward_layers({**base, ("activations", "embedding and head"): outside})
        for group in graph.layers:
            if group.passive:
                moment = forward_moment(group.ops, extents, self.stream, keeping=False)
                found.append({**base, ("activations", "passing"): moment.beside_bytes + layer_input})
        base |= self.kept_by_all
        last_keeps, last_kind = self.layers[-1].ops[0].keeps_input, self.kinds[-1].how
        loose = layer_input if last_kind == "none" and not last_keeps else named
        if (last_kind != "none" or last_keeps) and not graph.head[0].keeps_input:
            loose = loose + self.stream  # what the last layer returned
        states = self.leaf + (self.stream if low.activation_bytes > low.compute_bytes else 0.0)
        if low.litgpt:  # the logits beside their fp32 copy
            both = (4.0 + low.compute_bytes) * logits
            found.append({**base, ("activations", "embedding and head"): outside, ("logits", "loss"): both})
        for ops, loose_bytes in ((graph.head[:1], loose), (graph.head[:-1], states)):
            moment = forward_moment(ops, extents, 0.0, keeping=True)
            parts: Parts = {
                ("activations", "passing"): moment.beside_bytes + loose_bytes,
                ("activations", "embedding and head"): outside + moment.kept_bytes,
            }
            found.append({**base, **parts})
        return found

    def _forward_layers(self, base: Parts) -> list[Parts]:
        """Return what is alive, beside `base`, in the last layer of each kind that may be last."""
        found: list[Parts] = []
        named = self.apart + self.positions
        for index, one in enumerate(self.kinds):
            group, how = one.group, one.how
            by_module = how == "selective" and bool(self.run.recompute_modules)
            keeping, ops = how == "none" or by_module, group.ops
            if by_module:
                ops = split(self.run, "selective", ops)[0]
            between = self._kept(self._standing(index, last=True))
            handed_on = 0.0  # what the layer before returned beside the stream
            if not keeping and self.graph.lowering.numerics.hands_on_scores:
                others = [other for other in self.layers if other.ops is not group.ops] or [group]
                scores = [op for other in others for op in other.ops if op.kind == SCORES]
                handed_on = scores[0].lingering_bytes.at(self.extents) if scores else 0.0
            moment = forward_moment(ops, self.extents, self.stream, keeping=keeping, held=handed_on)
            loose = named
            if keeping and not group.ops[0].keeps_input:
                loose = largest(named, self.entry) + self.stream
            kept = between["activations", "all layers"] - one.saved_bytes + moment.kept_bytes
            kept = kept - one.handed_on[0]  # which the layer is about to make
            parts: Parts = {
                ("activations", "all layers"): kept,
                ("activations", "passing"): moment.beside_bytes + loose,
            }
            found.append({**base, **between, **parts})
        return found

    def loss(self) -> Parts:
        """Return what is alive in the loss."""
        *head, loss = self.graph.head
        return {
            **self.kept_by_all,
            **self.copies,
            ("gradients",): self.held,
            ("activations", "embedding and head"): self.kept_outside + saved_bytes(head, self.extents),
            ("logits", "loss"): loss.saved_bytes.at(self.extents) + loss.live_forward_bytes.at(self.extents),
        }

    def backward(self, unreduced_ratio: float = 0.0) -> dict[str, list[Parts]]:
        """Return what is alive in loss, head, the layers that may be first and last, and the embedding.

        Gradients of a layer that is not reduced yet are `unreduced_ratio` times those that the rank keeps;
        with 0, gradients are not reduced in units.
        """
        graph, extents = self.graph, self.extents
        in_units = present(unreduced_ratio)
        of_tower = sum(part.count * gradient_bytes(part.ops) for part in graph.tower)
        everything, (*head, loss) = graph.weights.gradient_bytes - of_tower, graph.head
        of_head, of_embedding = gradient_bytes(graph.head), gradient_bytes(graph.embedding)
        waits = of_head if self.accumulating and graph.model.tied else 0.0
        of_loss = backward_moment([loss], extents, accumulating=self.accumulating)
        moment = backward_moment(head, extents, accumulating=self.accumulating)
        before = 0.0 if self.accumulating else loss.gradient_bytes
        at_loss: Parts = {
            **self.kept_by_all,
            ("gradients",): self.held + of_loss.made_bytes,
            ("logits", "loss"): of_loss.kept_bytes + of_loss.beside_bytes,
            ("activations", "embedding and head"): self.kept_outside + saved_bytes(head, extents),
        }
        at_head: Parts = {
            **self.kept_by_all,
            ("gradients",): self.held + moment.made_bytes + before,
            ("activations", "gradients in flight"): moment.beside_bytes,
            ("activations", "embedding and head"): self.kept_outside + moment.kept_bytes,
        }
        second = in_units or self.frees_gradients or graph.lowering.numerics.hands_on_keys
        first: list[Parts] = []
        others: list[Parts] = []
        for index, one in enumerate(self.kinds):
            group = one.group
            moment = backward_moment(
                group.ops,
                extents,
                accumulating=self.accumulating and not in_units,
                kept=kept_at(self.run, group.ops, extents),
                unreduced_ratio=unreduced_ratio if in_units else 1.0,
            )
            if one.how in WHOLE_LAYERS:
                moment = worst((self._rebuilding(index), moment))
            made = everything - of_embedding - gradient_bytes(group.ops)
            for standing, last in self._reached(index, second=second):
                before, left = of_head if last else made, 0
                held = self.outlived(standing) - (0.0 if last else one.outliving_bytes)
                for whole, some in zip(self.layers, standing, strict=True):
                    before = before - (some.count - (whole.count if last else 0)) * gradient_bytes(whole.ops)
                    left += some.count - whole.count
                parts = self._layer(index, moment, self._kept(standing), last=last)
                parts["gradients",] = self.held + moment.made_bytes + (waits if self.accumulating else before)
                held = held + self._still_handed_on(index, standing)
                parts["activations", "all layers"] = parts["activations", "all layers"] + held
                (first if last and not left else others).append(parts)
        moment = backward_moment(graph.embedding, extents, accumulating=self.accumulating)
        made = waits if self.accumulating else everything - of_embedding
        at_embedding: Parts = {
            ("activations", "gradients in flight"): self.stream,
            ("activations", "all layers"): self.outlived([]) + sum([one.handed_on[1] for one in self.kinds]),
            ("activations", "embedding and head"): moment.kept_bytes
            + moment.beside_bytes
            + self.kept_by_tower,
            ("gradients",): self.held + moment.made_bytes + made,
        }
        at_the_end = [at_embedding, *self._tower_backward(waits if self.accumulating else everything)]
        ends = ([at_loss], [at_head], first, at_the_end)
        return {**dict(zip(APART, ends, strict=True)), "backward": others}

    def outlived(self, standing: Sequence[LayerGraph]) -> float:
        """Return what is still held of the layers that backward has passed."""
        held = 0.0
        for place, one in enumerate(self.kinds):
            passed = one.group.count - (standing[place].count if standing else 0)
            held = held + (passed * one.outliving_bytes if passed > 0 else 0.0)
        return held

    def _still_handed_on(self, index: int, standing: Sequence[LayerGraph]) -> float:
        """Return what is held of keys and values handed on beside a layer of kind `index` in backward."""
        held = 0.0
        for place, (one, left) in enumerate(zip(self.kinds, standing, strict=True)):
            passed = left.count < one.group.count
            if place != index or (passed and one.group.count > 1):  # else the layer makes them itself
                held = held + one.handed_on[passed]
        return held

    def _tower_forward(self, base: Parts) -> list[Parts]:
        """Return what is alive beside `base` at the worst moment of each step of a tower's forward pass."""
        found, kept = list[Parts](), 0.0
        for part, sizes, inputs, stream, one in self.tower:
            keeping = not (inputs or is_passive(part.ops))
            moment = forward_moment(part.ops, sizes, stream, keeping=keeping)
            kept = kept + (part.count - keeping) * one
            parts: Parts = {("activations", self.graph.tower_name): kept + moment.kept_bytes}
            found.append({**base, **parts, ("activations", "passing"): moment.beside_bytes + 2.0 * stream})
            kept = kept + keeping * one
        return found

    def _tower_backward(self, made: float) -> list[Parts]:
        """Return what is alive in the first and the last layer of each step that backward reaches."""
        found, kept = list[Parts](), self.kept_by_tower + self.held_leaf * self.graph.is_encoded
        for part, sizes, inputs, stream, one in reversed(self.tower):
            own = gradient_bytes(part.ops)
            if not is_passive(part.ops):
                kept_when = kept_at(self.run, part.ops, sizes) if inputs else None
                moment = backward_moment(part.ops, sizes, accumulating=self.accumulating, kept=kept_when)
                if inputs:  # whose input may be what its first operator keeps
                    rows = 1.0 + self.run.checkpointing_reentrant - part.ops[0].keeps_input
                    ops = rerun(self.run, self.graph, part.ops)
                    again = forward_moment(ops, sizes, stream, keeping=True)
                    moment = worst((again, moment))
                    moment = moment._replace(kept_bytes=moment.kept_bytes + rows * one)
                for before in (0, part.count - 1):
                    parts: Parts = {
                        ("activations", self.graph.tower_name): kept - (before + 1) * one + moment.kept_bytes,
                        ("activations", "gradients in flight"): moment.beside_bytes + stream,
                        ("gradients",): self.held
                        + moment.made_bytes
                        + made
                        + (0.0 if self.accumulating else before * own),
                    }
                    found.append(parts)
            kept, made = kept - part.count * one, made + (0.0 if self.accumulating else part.count * own)
        return found

    def _reached(self, index: int, *, second: bool) -> Iterator[tuple[list[LayerGraph], bool]]:
        """Yield what stands when backward reaches the last of a kind, one before it, and the first.

        The flag says of which the activations still stand with the others: all but the first.
        """
        standing = self._standing(index, last=True)
        yield standing, True
        if second and standing[index].count > 1:
            fewer = standing[index]._replace(count=standing[index].count - 1)
            yield [*standing[:index], fewer, *standing[index + 1 :]], True
        yield self._standing(index, last=False), False

    def _rebuilding(self, index: int) -> Moment:
        """Return the worst moment of running a layer forward again, with everything kept.

        Reentrant checkpointing has the gradient of the layer's output meanwhile; the other, which begins when
        backward asks for something kept, those before that.
        """
        ops, beside = self.layers[index].ops, 0.0
        again = rerun(self.run, self.graph, ops)
        moment = forward_moment(again, self.extents, self.stream, keeping=True) if again else Moment()
        for op in reversed(ops if self.graph.lowering.rebuilds else ()):
            if is_adapter(op) and op.forward.gemms[1:]:  # its sum is scaled, by a number
                up, width = op.forward.gemms[1], 4.0 if op.dtype == "fp32" else 2.0
                beside = beside + width * up.rows_per_token * up.n * self.extents.tokens
            if op.kind != "elementwise" or op.saved_bytes != ZERO:
                break
            beside = largest(beside, op.live_backward_bytes.at(self.extents))
        kept_bytes, beside_bytes = (
            self.kinds[index].saved_bytes + moment.kept_bytes,
            moment.beside_bytes + beside,
        )
        return moment._replace(kept_bytes=kept_bytes, beside_bytes=beside_bytes)

    def _standing(self, index: int, *, last: bool) -> list[LayerGraph]:
        """Return the layers of every kind that stand up to the last of a kind, or before the first."""
        own, found = self.kinds[index].place, []
        left = list(self.layers[index].until if last else self.layers[index].before)
        for other, (group, _, place, *_) in enumerate(self.kinds):
            number = min(group.count, left[place])
            if place == own and (other > index or not last):  # some checkpointed, others not
                number = group.count if other < index else 0
            left[place] -= number
            found.append(group._replace(count=number))
        return found

    def _layer(self, index: int, moment: Moment, kept_by: Parts, *, last: bool) -> Parts:
        """Return the worst moment of the last layer of a kind, or of the first, where `kept_by` is kept."""
        (group, kind, _, saved, *_), parts, share = self.kinds[index], dict(kept_by), 1.0 if last else 0.0
        parts["activations", "all layers"] = parts["activations", "all layers"] - share * saved
        if kind == "none":
            parts["activations", "all layers"] = parts["activations", "all layers"] + moment.kept_bytes
        else:
            others = min(self.together, group.count) - 1
            beside = others * saved_bytes(group.ops, self.extents) if others else 0.0
            parts["activations", "rebuilt block"] = moment.kept_bytes + beside
        if kind != "none" and not (kind == "selective" and self.run.recompute_modules):
            rows = 1.0 - share if kind != "offload" else 1.0
            rows -= 1.0 if group.ops[0].keeps_input else 0.0
            rows += 1.0 if self.run.checkpointing_reentrant else 0.0
            own = self.entry if index == 0 and not last else self.stream
            parts["activations", "checkpoints"] = parts["activations", "checkpoints"] + rows * own
        parts["activations", "gradients in flight"] = moment.beside_bytes + self.stream
        parts["activations", "embedding and head"] = self.kept_outside
        return parts

    def _kept(self, layers: Sequence[LayerGraph]) -> Parts:
        kept, rows = 0.0, 0
        checkpointed = list[LayerGraph]()
        for group, one in zip(layers, self.kinds, strict=True):
            kept = kept + group.count * one.saved_bytes
            if one.how != "none":
                checkpointed.append(group)
            if one.how not in ("none", "offload") and not keeps_no_input(self.run, one.how, group.ops):
                rows += ceil(group.count / self.together)
        if self.kind == "none":
            return {("activations", "all layers"): kept}
        narrow = self.stream - self.entry if rows else 0.0  # the first layer's input
        return {
            ("activations", "all layers"): kept,
            ("activations", "checkpoints"): rows * self.stream - narrow,
            ("activations", "inputs pinned by 4-bit linears"): self._pinned(checkpointed),
        }

    def _pinned(self, layers: Sequence[LayerGraph]) -> float:
        """Return the inputs of 4-bit linears that checkpointing cannot discard."""
        pinned = 0.0
        for group in layers:
            for op in group.ops:
                if op.stash_bytes is not ZERO:
                    pinned = pinned + group.count * op.stash_bytes.at(self.extents)
        return pinned

    def _copies(self) -> Parts:
        """Return what checkpointed layers hold all the same during the forward pass: copies, and their cache.

        Autocast caches 16-bit copies of trained fp32 weights (without checkpointing backward needs them
        anyway). GPT-BigCode of transformers before 4.53 hands back keys and values: views of all that its
        fused projection returned, which live until the caller of the forward pass drops its output.
        """
        low = self.graph.lowering
        parts: Parts = {}
        if self.kind == "none":
            return {}
        parts["activations", "keys and values handed on"] = sum([one.handed_on[0] for one in self.kinds])
        trained_bytes = low.weight_bytes if low.weights_train or low.last_layers else low.adapter_bytes
        if low.autocast and trained_bytes >= 4:
            # adapters added to fused experts' weights are no products, and a kernel's own casts not cached
            copies = 0.0
            for one in self.kinds:
                for op in one.group.ops if one.how != "none" else ():
                    if op.kind == "gemm" and op.forward.gemms and not op.enclosed:
                        copies = (
                            copies + one.group.count * op.gradient_bytes * low.compute_bytes / trained_bytes
                        )
            parts["weights", "autocast copies"] = copies
        if low.hands_back_cache:
            width = 0.0
            for group in self.graph.layers:
                fused = next(op for op in group.ops if op.path[0] == "attention" and op.forward.gemms)
                width += group.count * fused.forward.gemms[0].n
            held = width * low.returned_bytes * self.extents.tokens
            parts["activations", "keys and values handed back"] = held
        return parts
