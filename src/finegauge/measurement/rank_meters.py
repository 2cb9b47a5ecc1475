"""What a rank sends in a step, what it holds at rest, and its peak memory in each phase.

Messages: DDP's reducer in C++, FSDP2 and DeepSpeed all send through the operators of c10d, which a dispatch
mode sees. The payload is the whole tensor: gathered, or before it is reduced (as predictions count it). What
is smaller than 64 bytes is a scalar, a loss or a norm, and stands apart. Every message is waited for, so that
its seconds are its own, with nothing beside it; they include the time until the slowest rank takes part.

At rest, between two steps, are weights (of FSDP2 and ZeRO-3 the local shards), optimizer states (of ZeRO its
fp32 weights too), every storage once, and the gradients' values when backward has ended. Buckets are those
that DDP says it has in C++; else what else Python knows of: DeepSpeed's buffers.

The peak of a phase is, on CUDA, the allocator's. On a CPU torch's profiler notes every block that its
allocator gives and takes, with its address: the largest running sum is the peak. Two things are left out.
What gloo copies for itself while it sends, for NCCL copies nothing; and blocks whose end the profiler has
not seen (gloo's threads free some, on which it does not look): so every message is waited for, a moment
longer, and its tensors are asked whether they are still there.
"""

import gc
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from heapq import merge
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from finegauge.measurement.instruments.kernel_trace import STAGE, RangeClock
from finegauge.measurement.instruments.memory_meter import (
    PHASE_OF_STAGE,
    apart,
    cuda_memory,
    storage_bytes,
    storage_key,
    tensors_of,
)
from finegauge.measurement.subject import Phase, Trained

LEAST_BYTES = 64
SCALARS = "scalars"
WHOLE: Mapping[str, tuple[str, int]] = {  # operator: its kind, and which argument is the whole tensor
    f"c10d::{name}": (kind, place)
    for kind, place, names in (
        ("all_reduce", 0, "allreduce_ allreduce_coalesced_"),
        ("all_gather", 0, "allgather_ _allgather_base_ allgather_into_tensor_coalesced_"),
        ("reduce_scatter", 1, "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_"),
        ("broadcast", 0, "broadcast_"),
        ("reduce", 0, "reduce_"),
        ("all_to_all", 1, "alltoall_ alltoall_base_"),
        ("send", 0, "send"),
    )
    for name in names.split()
}
WEIGHTS, GRADIENTS, OPTIMIZER, WORKSPACE = "weights", "gradients", "optimizer", "workspace"
SENDING = "sending"
FUNCTIONAL = "_c10d_functional"
SETTLE_S = 0.001  # for a thread of gloo to let go of what it has sent
LOOKS = 1000


class Sent(NamedTuple):
    """Messages of one kind in one step."""

    kind: str
    messages: int
    bytes: int
    seconds: float


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """Notes every message of this rank, and waits for it, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[str, int, float]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note `func` if it sends, and run it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with local tensors
        found = WHOLE.get(func.name().partition(".")[0])
        if found is None:
            return func(*args, **(kwargs or {}))
        kind, place = found
        size = sum(t.nbytes for t in tree_iter(args[place]) if isinstance(t, torch.Tensor))
        _settle()
        began_s = time.perf_counter()
        result = self.run(func, args, dict(kwargs or {}))
        self.messages.append((kind, size, time.perf_counter() - began_s))
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send, and wait until it is done."""
        found = func(*args, **kwargs)
        if torch.cuda.is_available():
            _settle()
            return found
        for work in found if isinstance(found, tuple | list) else (found,):
            if isinstance(work, torch.ScriptObject):
                torch.distributed.Work.unbox(work).wait()
        return found


def sent_in(step: Callable[[], object]) -> list[Sent]:
    """Return what this rank sends while `step` runs by kind, scalars as a kind of their own."""
    with Collectives() as seen:
        step()
    totals: dict[str, Sent] = {}
    for sort, size, seconds in seen.messages:
        kind = sort if size >= LEAST_BYTES else SCALARS
        _, messages, total, spent = totals.get(kind, Sent(kind, 0, 0, 0.0))
        totals[kind] = Sent(kind, messages + 1, total + size, spent + seconds)
    return [totals[kind] for kind in sorted(totals)]


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
            self.values_bytes, self.keys = _values(gradients), set(map(storage_key, gradients))
        yield


def held(phase: Phase, trains: Sequence[Trained], before: Set[int] = frozenset()) -> Held:
    """Return what this rank holds of the models of `phase` that train, `trains`; takes a step.

    `before` are the storages that were there before any of them, as `storages` says.
    """
    gradients, device = _BeforeUpdate(trains), phase.subject.device.type
    phase.step(gradients)
    fresh = apart(
        {
            "weights": [_local(tensor) for one in trains for tensor in tensors_of(one.subject.model)],
            "optimizer": [tensor for one in trains for tensor in _states(one.optimizer)],
            "others": [_local(tensor) for other in phase.models.values() for tensor in tensors_of(other)],
            "buckets": [t for t in _everything() if t.device.type == device and storage_key(t) not in before],
        }
    )
    kept = storage_bytes({key: t for key, t in fresh["buckets"].items() if key in gradients.keys})
    sizes = {kind: storage_bytes(tensors) for kind, tensors in fresh.items()}
    return Held(
        weights_bytes=sizes["weights"],
        gradients_bytes=gradients.values_bytes,
        optimizer_bytes=sizes["optimizer"],
        kept_gradients_bytes=kept,
        buckets_bytes=sum(map(_buckets, trains)) or sizes["buckets"] - kept,
        others_bytes=sizes["others"],
    )


def storages() -> Set[int]:
    """Return the storages of every tensor that Python knows of."""
    return set(map(storage_key, _everything()))


def _everything() -> Iterator[torch.Tensor]:
    gc.collect()
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor) and found.layout is torch.strided and not found.is_meta:
            yield _local(found)


def _gradients(one: Trained) -> Iterator[torch.Tensor]:
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
    module: Any = getattr(one.subject.strategy, "module", None)
    if not hasattr(module, "_get_ddp_logging_data"):
        return 0.0
    known = module._get_ddp_logging_data()
    text = str(known.get("rebuilt_bucket_sizes") or known.get("bucket_sizes") or "")
    return float(sum(map(int, text.replace(",", " ").split())))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    part = getattr(tensor, "ds_tensor", None)  # of ZeRO-3, which leaves the parameter itself empty
    return part if isinstance(part, torch.Tensor) and not tensor.numel() else tensor


def _values(tensors: Iterable[torch.Tensor]) -> float:
    """Return the bytes of tensors' own values, each once; a slice may keep alive what it was cut from."""
    return float(sum({(storage_key(t), t.storage_offset()): t.nbytes for t in tensors}.values()))


class Span(NamedTuple):
    """When something ran, in nanoseconds."""

    name: str
    begin: int
    end: int


class Block(NamedTuple):
    """Memory that the allocator gave (positive) or took back, and where it lies."""

    at: int
    address: int
    bytes: int


class Gone(NamedTuple):
    """Memory that was found free, of a block that was there since before `since`."""

    at: int
    address: int
    since: int


def peaks(phase: Phase, between_steps_bytes: float, device: torch.device) -> dict[str, float]:
    """Return the peak bytes of every phase of a step, with what is there between steps; takes a step."""
    if device.type == "cuda":
        return cuda_memory(phase, device).phase_peak_bytes
    with allocated() as found:
        phase.step(RangeClock())
    return {name: between_steps_bytes + most for name, most in found.items()}


@contextmanager
def allocated() -> Iterator[dict[str, float]]:
    """Yield what holds, when the block is over, the peak bytes of every stage that ran inside.

    What was allocated before is not counted.
    """
    found: dict[str, float] = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, _Settled() as sent:
        yield found
    found.update(running(*_seen(seen), sent.gone))


class _Settled(Collectives):
    """Marks when a message was under way, waits a moment longer, and notes which of its tensors are gone.

    A thread of gloo may be the last to hold a tensor, and frees it where the profiler does not look.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, tuple[int, StorageWeakRef]] = {}  # by address: since when
        self.gone: list[Gone] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note what is gone, and run `func`."""
        if dead := [address for address, (_, kept) in self.sent.items() if kept.expired()]:
            now = time.time_ns()
            self.gone += [Gone(now, address, self.sent.pop(address)[0]) for address in dead]
        held = _users(args) if func.namespace == FUNCTIONAL else []
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if (
            func.namespace == FUNCTIONAL and found is not NotImplemented
        ):  # what DTensors send, below this mode
            for tensor in tree_iter(found):
                torch.ops._c10d_functional.wait_tensor(tensor)
            if _let_go(held):  # asked while a thread of gloo holds them: that crashed
                self._note(args, found)
        return found

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send, wait, and let the threads of gloo end their work."""
        with record_function(STAGE + SENDING):
            found = super().run(func, args, kwargs)
            time.sleep(SETTLE_S)
        self._note(args, kwargs, found)
        return found

    def _note(self, *sent: Any) -> None:
        now = time.time_ns()
        for tensor in tree_iter(sent):
            if type(tensor) is torch.Tensor and (address := tensor.untyped_storage().data_ptr()):
                self.sent[address] = now, StorageWeakRef(tensor.untyped_storage())


def _users(sent: Any) -> list[tuple[torch.Tensor, int]]:
    """Return every tensor of a message, and how often it is held."""
    tensors = [tensor for tensor in tree_iter(sent) if type(tensor) is torch.Tensor]
    return [(tensor, tensor._use_count()) for tensor in tensors]


def _let_go(held: list[tuple[torch.Tensor, int]]) -> bool:
    """Return whether what was sent is held as often as before, within a second: by no thread of gloo."""
    for _ in range(LOOKS):
        if all(tensor._use_count() <= before for tensor, before in held):
            return True
        time.sleep(SETTLE_S)
    return False


def _seen(profiled: Any) -> tuple[list[Span], list[Block]]:
    from torch._C._profiler import _EventType

    spans: list[Span] = []
    blocks: list[Block] = []
    waiting = list(profiled.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            blocks.append(Block(event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name.startswith(STAGE):
            name = event.name.removeprefix(STAGE)
            spans.append(Span(PHASE_OF_STAGE.get(name, name), event.start_time_ns, event.end_time_ns))
    return sorted(spans, key=lambda span: span.begin), sorted(blocks)


def running(spans: list[Span], blocks: list[Block], gone: Sequence[Gone] = ()) -> dict[str, float]:
    """Return the largest sum of blocks given and not yet taken back, by phase.

    `spans` are the phases and the times of messages; `blocks` and what is `gone` are in the order of time.
    """
    sending = [span for span in spans if span.name == SENDING]
    phases = [span for span in spans if span.name != SENDING]
    found = {span.name: 0.0 for span in phases}
    alive: dict[int, Block] = {}
    total = 0
    begins = sorted(phases, key=lambda span: span.begin, reverse=True)
    events: Iterable[Block | Gone] = merge(blocks, gone, (Block(sys.maxsize, 0, 0),), key=lambda one: one.at)
    for block in events:
        while begins and begins[-1].begin <= block.at:  # what is there when a phase begins counts too
            name = begins.pop().name
            found[name] = max(found[name], float(total))
        if isinstance(block, Gone) and block.address in alive and alive[block.address].at > block.since:
            continue  # another one by now
        total -= alive.pop(block.address).bytes if block.address in alive else 0  # its end was seen or not
        if isinstance(block, Block) and block.bytes > 0 and _around(block.at, sending) is None:
            alive[block.address] = block
            total += block.bytes
        span = _around(block.at, phases)
        if span is not None:
            found[span.name] = max(found[span.name], float(total))
    return found


def _around(at: int, spans: list[Span]) -> Span | None:
    number = bisect_right(spans, at, key=lambda span: span.begin)
    return spans[number - 1] if number and at <= spans[number - 1].end else None
