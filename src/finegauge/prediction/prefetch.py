"""Messages of weights that stay beside the tensors copied out of them: DeepSpeed's ZeRO-3, and FSDP2.

Every message of ZeRO-3 is under way before the first layer runs, while fewer elements are gathered than may
stay. Its tensors are copied out of it when the first of them is used, and it stays beside the copies until
the last is: each parameter in flight holds its handle. So a forward pass ends beside the last message, which
may be small, and a full one goes earlier, when fewer layers have kept their activations. What is freed beyond
`stage3_max_live_parameters` is asked for anew, in messages as large at most.

[1] deepspeed/runtime/zero/partitioned_param_coordinator.py, `fetch_sub_module`, and partition_parameters.py,
    `AllGatherCoalescedHandle`, 0.19.8; seen block by block on two ranks
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from finegauge.arithmetic import largest, present, where
from finegauge.prediction.memory import largest_parts
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


NO_MESSAGES = Messages(0.0, 0.0, 1.0)


def messages_of(layers_bytes: float, ends_bytes: tuple[float, float], value_bytes: float) -> Messages:
    """Return the messages for weights of `value_bytes` each in the layers, and before and after them."""
    whole, most = layers_bytes + sum(ends_bytes), ZERO3_PREFETCHED * value_bytes
    if whole <= most or whole > ZERO3_KEPT * value_bytes:
        return Messages(min(whole, most), min(whole, most), 1.0)
    before = most * (ceil(whole / most) - 1)
    return Messages(most, whole - before, min(1.0, largest(0.0, before - ends_bytes[0]) / layers_bytes))


def worst_of_forward(
    held: Breakdown, messages: Messages, layers: float, gathered: Path, layer_bytes: Any, stream_bytes: Any
) -> Breakdown:
    """Return the worst of a forward pass, `held` at its end with its largest message.

    Of ZeRO-3 that is its end, with its last message, or where the last full one goes. Under FSDP2 a layer's
    message, of `layer_bytes` (0: none is gathered after another), stays until the tensors of the next have
    been copied out of theirs, for a name holds it (`wait_for_unshard` of torch 2.13's _fsdp_param_group.py).
    So a layer is there three times, beside the states that the model's code holds.
    """
    at_end, found = dict(held.parts), []
    if ON_THEIR_WAY in at_end:
        at_end[ON_THEIR_WAY] = messages.last_bytes
        found.append(_after(held.parts, messages.layers_fraction))
    if present(layer_bytes):
        before = _after(at_end, where(layer_bytes > 0.0, 1.0 - 1.0 / layers, 1.0))
        before[gathered] = before.get(gathered, 0.0) + layer_bytes
        before[PASSING] = where(layer_bytes > 0.0, stream_bytes, before.get(PASSING, 0.0))
        found.append(before)
    return Breakdown(largest_parts([at_end, *found])) if found else held


def _after(parts: Mapping[Path, Any], layers_fraction: Any) -> dict[Path, Any]:
    return {path: v * layers_fraction if path in KEPT_BY_LAYERS else v for path, v in parts.items()}
