"""Messages of weights that stay beside the tensors copied out of them: DeepSpeed's ZeRO-3, and FSDP2.

Every message of ZeRO-3 is under way before the first layer runs, while fewer elements are gathered than may
stay. Its tensors are copied out of it when the first of them is used, and it stays beside the copies until
the last is: each parameter in flight holds its handle. So a forward pass ends beside the last message, which
may be small, and a full one goes earlier, when fewer layers have kept their activations. What is freed beyond
`stage3_max_live_parameters` is asked for anew, in messages as large at most. Weights that the backward pass
does not visit, such as a frozen embedding, are freed when they have been used: the pass begins with them,
beside the first message, and goes on without.

[1] deepspeed/runtime/zero/partitioned_param_coordinator.py, `fetch_sub_module` and `__params_to_release`, and
    partition_parameters.py, `AllGatherCoalescedHandle`, 0.19.8; seen block by block on two ranks
"""

from collections.abc import Mapping
from math import ceil, inf
from typing import Any

from finegauge.arithmetic import largest, present, smallest, where
from finegauge.model.graph import Graph
from finegauge.model.op import NOTHING, Extents
from finegauge.prediction.memory import forward_moment, largest_parts
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple

ZERO3_PREFETCHED = 5e7  # elements: DeepSpeed's stage3_prefetch_bucket_size, gathered in one message
ZERO3_KEPT = 1e9  # elements: DeepSpeed's stage3_max_live_parameters and stage3_max_reuse_distance
ON_THEIR_WAY: Path = ("workspace", "weights on their way")
PASSING: Path = ("activations", "passing")
KEPT_BY_LAYERS: tuple[Path, ...] = (("activations", "all layers"), ("activations", "checkpoints"))


class Messages(NamedTuple):
    """The messages of a forward pass."""

    largest_bytes: float
    last_bytes: float
    layers_fraction: float  # of the layers, passed when the last message begins to be used
    released_bytes: float = 0.0  # of weights that the pass frees as it goes


NO_MESSAGES = Messages(0.0, 0.0, 1.0)


def messages_of(
    layers_bytes: float, ends_bytes: tuple[float, float], value_bytes: float, released_bytes: float = 0.0
) -> Messages:
    """Return the messages for weights of `value_bytes` each in the layers, and before and after them."""
    whole, most = layers_bytes + sum(ends_bytes), ZERO3_PREFETCHED * value_bytes
    if whole > ZERO3_KEPT * value_bytes:  # as much as may stay is asked for at any time
        return Messages(most, most, 1.0)
    if whole <= most:
        return Messages(whole, whole, 1.0, released_bytes)
    before = most * (ceil(whole / most) - 1)
    passed = min(1.0, largest(0.0, before - ends_bytes[0]) / layers_bytes)
    return Messages(most, whole - before, passed, released_bytes)


def released_bytes(graph: Graph, layer_bytes: float, embedding_bytes: float) -> float:
    """Return the weights that a backward pass does not visit, for nothing before them trains.

    Those of passive layers, of projections in the first that trains, and of the embedding.
    """
    low, total = graph.lowering, 0.0
    for group in graph.layers:
        products = [p for op in group.ops if op.backward == NOTHING for p in op.forward.gemms]
        values = sum([product.n * product.k * product.groups for product in products])
        total += group.count * (layer_bytes if group.passive else values * low.weight_bytes)
    visited = graph.model.tied or low.weights_train or low.input_gradients
    return total if visited else total + embedding_bytes


def beside_layers(
    messages: Messages, graph: Graph, extents: Extents, stream_bytes: Any, *, keeping: bool
) -> Any:
    """Return what a layer has beside what is kept at the worst moment of ZeRO-3's forward pass."""
    if messages is NO_MESSAGES:
        return inf
    moments = [forward_moment(group.ops, extents, stream_bytes, keeping=keeping) for group in graph.layers]
    return stream_bytes + largest(*[moment.beside_bytes for moment in moments])


def worst_of_forward(
    held: Breakdown, messages: Messages, layers: float, gathered: Path, layer_bytes: Any, stream_bytes: Any,
    passing_bytes: Any = inf,
) -> Breakdown:  # fmt: skip
    """Return the worst of a forward pass, `held` at its end with its largest message.

    Of ZeRO-3 that is its end, with its last message; where the last full one goes, in a layer, with
    `passing_bytes` beside what is kept; or its beginning, before it has freed any weights. Under FSDP2 a
    layer's message, of `layer_bytes` (0: none is gathered after another), stays until the tensors of the next
    have been copied out of theirs, for a name holds it (`wait_for_unshard` of torch 2.13's
    _fsdp_param_group.py). So a layer is there three times, beside the states that the model's code holds.
    """
    at_end, found = dict(held.parts), []
    if ON_THEIR_WAY in at_end:
        at_end[ON_THEIR_WAY] = messages.last_bytes
        in_layer = _after(held.parts, messages.layers_fraction)
        in_layer[PASSING] = smallest(in_layer.get(PASSING, 0.0), passing_bytes)
        begun = {**_after(held.parts, 0.0), PASSING: stream_bytes}
        begun[gathered] = begun.get(gathered, 0.0) + messages.released_bytes
        found += [in_layer, begun]
    if present(layer_bytes):
        before = _after(at_end, where(layer_bytes > 0.0, 1.0 - 1.0 / layers, 1.0))
        before[gathered] = before.get(gathered, 0.0) + layer_bytes
        before[PASSING] = where(layer_bytes > 0.0, stream_bytes, before.get(PASSING, 0.0))
        found.append(before)
    return Breakdown(largest_parts([at_end, *found])) if found else held


def _after(parts: Mapping[Path, Any], layers_fraction: Any) -> dict[Path, Any]:
    return {path: v * layers_fraction if path in KEPT_BY_LAYERS else v for path, v in parts.items()}
