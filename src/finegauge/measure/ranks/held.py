"""What a rank holds for good: its own tensors at rest, between two steps.

At rest are weights (of FSDP2 and ZeRO-3 the local shards), optimizer states (of ZeRO its fp32 weights
too), every storage once, and the gradients' values when backward has ended. Buckets are
those that DDP says it has in C++; else what else Python knows of: DeepSpeed's buffers.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from finegauge.measure.instruments.memory_meter import constants
from finegauge.measure.phases.placing import Trained
from finegauge.measure.subject import Phase

WEIGHTS, GRADIENTS, OPTIMIZER, WORKSPACE = "weights", "gradients", "optimizer", "workspace"


class Held(NamedTuple):
    """The bytes that a rank holds beyond one step's comings and goings."""

    weights_bytes: float
    gradients_bytes: float  # when backward has ended
    optimizer_bytes: float
    kept_gradients_bytes: float  # of these: in memory that stays between steps
    buckets_bytes: float  # of DDP and DeepSpeed, beside the gradients
    others_bytes: float  # of models beside the one that trains: a reference

    @property
    def between_steps_bytes(self) -> float:
        """Return what is there before a step begins."""
        models = self.weights_bytes + self.optimizer_bytes + self.others_bytes
        return models + self.buckets_bytes + self.kept_gradients_bytes


class _BeforeUpdate:
    """A clock that looks at the gradients when the optimizer begins."""

    def __init__(self, trains: Sequence[Trained]) -> None:
        self.trains, self.values_bytes, self.keys = trains, 0.0, set[int]()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Look if it is the optimizer's turn."""
        if name == "optimizer":
            gradients = list(chain.from_iterable(map(_gradients, self.trains)))
            self.values_bytes, self.keys = _values(gradients), set(map(_key, gradients))
        yield


def held(phase: Phase, trains: Sequence[Trained], before: Set[int] = frozenset()) -> Held:
    """Return what this rank holds of the models of `phase`; takes a step.

    Args:
        phase: What takes the step.
        trains: The models that it trains.
        before: The storages that were there before any of them, as `storages` says.
    """
    gradients, device = _BeforeUpdate(trains), phase.subject.device.type
    phase.step(gradients)
    kinds = {
        "weights": [tensor for one in trains for tensor in _tensors(one.subject.model)],
        "optimizer": [tensor for one in trains for tensor in _states(one.optimizer)],
        "others": [tensor for other in phase.models.values() for tensor in _tensors(other)],
        "buckets": [t for t in _everything() if t.device.type == device and _key(t) not in before],
    }
    known: set[int] = set()
    fresh: dict[str, list[torch.Tensor]] = {}
    for kind, tensors in kinds.items():
        fresh[kind] = [tensor for tensor in tensors if _key(tensor) not in known]
        known |= set(map(_key, tensors))
    kept = [tensor for tensor in fresh["buckets"] if _key(tensor) in gradients.keys]
    sizes = {kind: _bytes(tensors) for kind, tensors in fresh.items()}
    return Held(
        weights_bytes=sizes["weights"],
        gradients_bytes=gradients.values_bytes,
        optimizer_bytes=sizes["optimizer"],
        kept_gradients_bytes=_bytes(kept),
        buckets_bytes=sum(map(_buckets, trains)) or sizes["buckets"] - _bytes(kept),
        others_bytes=sizes["others"],
    )


def storages() -> Set[int]:
    """Return the storages of every tensor that Python knows of."""
    return set(map(_key, _everything()))


def _everything() -> Iterator[torch.Tensor]:
    """Yield every tensor that Python knows of."""
    gc.collect()
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor) and found.layout is torch.strided and not found.is_meta:
            yield _local(found)


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return what this rank holds of the parameters and buffers of a model."""
    return [_local(tensor) for tensor in (*model.parameters(), *model.buffers(), *constants(model))]


def _gradients(one: Trained) -> Iterator[torch.Tensor]:
    """Yield the gradients of a model, DeepSpeed's parts of them included."""
    yield from (_local(p.grad) for p in one.subject.model.parameters() if p.grad is not None)
    zero = one.optimizer
    for parts in (getattr(zero, "averaged_gradients", None) or {}).values():
        yield from (part for part in parts or () if isinstance(part, torch.Tensor))
    kept = getattr(zero, "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition", {})
    yield from kept.values()


def _states(optimizer: Any) -> Iterator[torch.Tensor]:
    """Yield an optimizer's states, and the fp32 weights that ZeRO has it work on."""
    yield from getattr(optimizer, "fp32_partitioned_groups_flat", ())  # ZeRO-3's
    optimizer = getattr(optimizer, "optimizer", optimizer)
    for state in optimizer.state.values():
        yield from (_local(value) for value in state.values() if isinstance(value, torch.Tensor))
    for group in optimizer.param_groups:
        yield from (_local(parameter) for parameter in group["params"])


def _buckets(one: Trained) -> float:
    """Return what DDP's buckets take: they stay for good."""
    module: Any = getattr(one.subject.division, "module", None)
    if not hasattr(module, "_get_ddp_logging_data"):
        return 0.0
    known = module._get_ddp_logging_data()
    text = str(known.get("rebuilt_bucket_sizes") or known.get("bucket_sizes") or "")
    return float(sum(map(int, text.replace(",", " ").split())))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that lies on this rank."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    part = getattr(tensor, "ds_tensor", None)  # of ZeRO-3, which leaves the parameter itself empty
    return part if isinstance(part, torch.Tensor) and not tensor.numel() else tensor


def _key(tensor: torch.Tensor) -> int:
    """Return which storage a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


def _values(tensors: Iterable[torch.Tensor]) -> float:
    """Return the bytes of tensors' own values, each once; a slice may keep alive what it was cut from."""
    sizes = {(_key(t), t.storage_offset()): t.numel() * t.element_size() for t in tensors}
    return float(sum(sizes.values()))


def _bytes(tensors: Iterable[torch.Tensor]) -> float:
    """Return the bytes of the storages of `tensors`, each once."""
    return float(sum({_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values()))
