"""A process group of one process that plays a rank among many: it counts what real code hands to it.

Every collective returns at once, as if the other ranks had sent what this one has. torch's DDP, FSDP,
DTensor and pipelining run on it unchanged, so what they send is theirs to decide, and ours to predict.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future
from torch.testing._internal.distributed.fake_pg import FakeStore

Counts = dict[str, tuple[float, float]]  # (messages, bytes of their payloads) by kind
LEAST_BYTES = 64  # what is smaller is a scalar: a norm, a loss, a count of tokens

_sent: list[tuple[str, int]] = []


def _done(result: Any) -> Any:
    """Return work that is finished."""
    future: Any = Future()
    future.set_result(result)
    finished: Any = c10d
    return finished._create_work_from_future(future)


def _note(kind: str, *tensors: torch.Tensor) -> None:
    """Write down one message."""
    _sent.append((kind, sum(tensor.numel() * tensor.element_size() for tensor in tensors)))


class CountingGroup(dist.ProcessGroup):
    """Notes every message; all ranks have what this one has."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self._ranks = world_size
        world = dist.distributed_c10d._world
        self._names = world.pg_names

    def size(self) -> int:
        return self._ranks

    @property
    def pg_name(self) -> str:
        return str(self._names[self])

    @property
    def group_name(self) -> str:
        return self.pg_name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "counting"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        _note("all_reduce", *tensors)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        _note("broadcast", *tensors)
        return _done(tensors)

    def scatter(self, outputs: list[torch.Tensor], given: list[list[torch.Tensor]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, given, strict=True):
            output.copy_(parts[0])
        return _done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        return _done(None)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        _note("all_gather", output)
        output.view(self._ranks, -1).copy_(given.reshape(1, -1).expand(self._ranks, -1))
        return _done(output)

    def allgather(
        self, outputs: list[list[torch.Tensor]], given: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for parts, mine in zip(outputs, given, strict=True):
            _note("all_gather", *parts)
            for part in parts:
                part.copy_(mine)
        return _done(outputs)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], given: list[torch.Tensor], opts: Any = None
    ) -> Any:
        return [self.all_gather_single(*pair) for pair in zip(outputs, given, strict=True)][-1]

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        _note("reduce_scatter", given)
        output.copy_(given.reshape(self._ranks, -1)[0].view_as(output))
        return _done(output)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], given: list[torch.Tensor], opts: Any = None
    ) -> Any:
        return [self.reduce_scatter_single(*pair) for pair in zip(outputs, given, strict=True)][-1]

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, out_sizes: Any, in_sizes: Any, opts: Any = None
    ) -> Any:
        _note("all_to_all", given)
        output.zero_()
        return _done(output)

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Any:
        _note("send", *tensors)
        return _done(tensors)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int = 0) -> Any:
        for tensor in tensors:
            tensor.fill_(1)  # also a pipeline's vote on static shapes
        return _done(tensors)


def _create(store: Any, rank: int, world_size: int, timeout: Any) -> CountingGroup:
    """Return the group for torch's registry of backends."""
    return CountingGroup(rank, world_size)


@contextmanager
def rank_of(world_size: int, rank: int = 0) -> Iterator[None]:
    """Be rank `rank` of `world_size` ranks for a while."""
    if "counting" not in dist.Backend.backend_list:
        dist.Backend.register_backend("counting", _create, devices=["cpu"])
    dist.init_process_group("counting", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def counted(step: Callable[[], Any], *, warm_up: int = 1) -> Counts:
    """Return what `step` sends, by kind, after `warm_up` steps that are not counted."""
    for _ in range(warm_up):
        step()
    _sent.clear()
    step()
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, size in _sent:
        if size >= LEAST_BYTES and kind != "broadcast":
            times[kind] += 1
            sizes[kind] += size
    return {kind: (float(times[kind]), float(sizes[kind])) for kind in sorted(times)}
