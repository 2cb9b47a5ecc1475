"""Seconds of one operator as a training step meets it, and of collective operations between processes.

An operator is used many times forward, then all uses go backward. A single call in a loop finds its weights
in cache. A step does not: it runs every layer forward, keeps what they return, and comes back through all of
them. So a reading takes several uses with weights of their own, all forward, then one backward through all,
and divides by their number. Activations are views of one pool of about a cache's size, since the operator
before has just written them. Updates and copies are timed likewise.

Neglects: what a neighbour leaves in the smallest caches.

Collectives run over gloo between CPUs, NCCL between GPUs. Every rank is a process of its own, started fresh,
which meets the others at a file in a folder of its own. Of N processes the first 2, 4, 8 ... and all N take
part in turn, while the others wait. A reading is the slowest rank's quickest repeat: a collective is over
when all have what they need. `bytes` is the payload of a rank: what it holds whole before (all_reduce,
reduce_scatter, all_to_all, broadcast) or after (all_gather); in send every rank hands as much to the next
one, round a ring.

Between processors the units of FSDP2 (`fully_shard`) are timed as well: a pass forward that gathers one and
lets it go, and a pass backward over one that is gathered; hooks, copies and message one after the other.
The latter writes gradients of ones, which a model's products would hand over.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from finegauge.catalogue.device_profile import SENT, UNITS, Reading
from finegauge.errors import UnsupportedError
from finegauge.measurement.subject import DTYPES

POOL_BYTES = 2**24
ALIGNMENT = 256  # values
WEIGHT_SCALE = 0.02
CYCLES_PER_S = 2e9  # of a GPU's clock, rather too many
AHEAD_S, MOST_AHEAD_S = 0.005, 0.5  # in which the host fills the queue of a GPU


class Use(NamedTuple):
    """One use of an operator, ready to be called once per pass."""

    forward: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]  # leaves that the rest of the model would differentiate
    weights: tuple[Tensor, ...] = ()  # leaves that are the operator's own


class Bench:
    """A device and a dtype on which uses of operators are made and timed."""

    def __init__(self, device: torch.device, dtype: str) -> None:
        self.device, self.dtype = device, DTYPES[dtype]
        self.random = torch.Generator(device="cpu").manual_seed(0)
        pool = torch.randn(POOL_BYTES // self.dtype.itemsize, generator=self.random)
        self.pool = pool.to(device, self.dtype)
        self.next = 0
        self.ahead_s = AHEAD_S

    def rows(self, *shape: int) -> Tensor:
        """Return an activation: a leaf over the next stretch of the pool, or of its own if it is larger."""
        size = prod(shape)
        if size > self.pool.numel():
            return self.weight(*shape)
        if self.next + size > self.pool.numel():
            self.next = 0
        view = self.pool[self.next : self.next + size].view(shape)
        self.next += -(-size // ALIGNMENT) * ALIGNMENT
        return view.detach()

    def weight(self, *shape: int) -> Tensor:
        """Return a leaf over memory of its own, with values as small as weights have."""
        made = torch.empty(shape, device=self.device, dtype=self.dtype)
        for part in made.view(-1).split(self.pool.numel()):
            torch.mul(self.pool[: part.numel()], WEIGHT_SCALE, out=part)
        return made

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return uniform int64 values below `high`."""
        return torch.randint(high, shape, generator=self.random).to(self.device)

    def seconds(self, *calls: Callable[[], Any]) -> list[float]:
        """Return the seconds of each call, one after another.

        On a GPU they are device seconds between two events; the device is kept waiting until the host
        has put all of them into its queue (as long as it took the last time), so that no gap between
        kernels is counted.
        """
        if self.device.type != "cuda":
            return [self._own_seconds(call) for call in calls]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(int(self.ahead_s * CYCLES_PER_S))
        start = time.perf_counter()
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        self.ahead_s = min(max(self.ahead_s, 1.5 * (time.perf_counter() - start)), MOST_AHEAD_S)
        torch.cuda.synchronize(self.device)
        return [float(before.elapsed_time(after)) / 1e3 for before, after in pairwise(events)]

    def _own_seconds(self, call: Callable[[], Any]) -> float:
        start = self.now()
        call()
        return self.now() - start

    def now(self) -> float:
        """Return the time of a clock.

        Where one thread does all the work it is the process's own, which stands still while other
        programs have the processor; else it is the wall's.
        """
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if alone else time.perf_counter()


CHAIN_BYTES = 64 * 2**20  # more than the caches hold
CHAIN_S = 0.02  # a pass over the chain need not take longer
MIN_USES, MAX_USES = 2, 64
REPEATS = 3

DIFFERENTIATED = {  # direction: are inputs, are weights
    "backward": (True, True),
    "backward_frozen": (True, False),
    "backward_first": (False, True),
    "": (False, False),  # what has no backward
}


class Timing(NamedTuple):
    """Seconds of one use, the quickest repeat, and how far the median lies above it."""

    seconds: float
    spread_fraction: float

    @classmethod
    def of(cls, repeats: Iterable[float]) -> "Timing":
        """Return what repeats of the same work say."""
        times = list(repeats)
        return cls(min(times), median(times) / min(times) - 1.0)


class Timed(NamedTuple):
    """An operator in every direction asked for, and the bytes of what it reads and returns."""

    directions: Mapping[str, Timing]  # "forward" and the backward ones
    input_bytes: float
    weight_bytes: float
    output_bytes: float


def timed(
    make: Callable[[], Use], bench: Bench, directions: tuple[str, ...], repeats: int = REPEATS
) -> Timed:
    """Return the seconds of the operator that `make` makes one more use of."""
    first = make()
    _differentiate(first, inputs=True, weights=True)
    output = first.forward()
    gradient = torch.ones_like(output)
    sizes = [float(sum(t.nbytes for t in found)) for found in (first.inputs, first.weights, (output,))]
    kept = sizes[1] + sizes[2]
    del output
    pass_s = min(sum(_pass([first], [gradient], bench)) for _ in range(2))
    num_uses = min(CHAIN_BYTES / max(kept, 1), max(CHAIN_S / pass_s, MIN_USES), MAX_USES)
    uses = [first, *(make() for _ in range(max(MIN_USES, int(num_uses)) - 1))]
    gradients = [gradient] * len(uses)
    forwards: list[float] = []
    found: dict[str, Timing] = {}
    for direction in directions or ("",):
        inputs, weights = DIFFERENTIATED[direction]
        for use in uses:
            _differentiate(use, inputs=inputs, weights=weights)
        _pass(uses, gradients, bench)
        passes = [_pass(uses, gradients, bench) for _ in range(repeats)]
        forwards += [forward / len(uses) for forward, _ in passes]
        if direction:
            found[direction] = Timing.of(backward / len(uses) for _, backward in passes)
    return Timed({"forward": Timing.of(forwards), **found}, *sizes)


def _pass(uses: list[Use], gradients: list[Tensor], bench: Bench) -> tuple[float, float]:
    outputs: list[Any] = []

    def forward() -> None:
        outputs.extend(use.forward() for use in uses)

    def backward() -> None:
        if outputs[0].requires_grad:
            torch.autograd.backward(outputs, gradients)

    forward_s, backward_s = bench.seconds(forward, backward)
    for use in uses:
        for leaf in (*use.inputs, *use.weights):
            leaf.grad = None
    return forward_s, backward_s


def _differentiate(use: Use, *, inputs: bool, weights: bool) -> None:
    for leaves, wanted in ((use.inputs, inputs), (use.weights, weights)):
        for leaf in leaves:
            leaf.requires_grad_(wanted)


def update_timing(bench: Bench, operator: str, *, params: int, tensors: int) -> Timing:
    """Return the seconds of one update of `params` parameters in `tensors` tensors of equal size.

    `operator` is adamw_fused, adamw_foreach, adamw_loop or clip.
    """
    state_bytes = 4 * bench.dtype.itemsize * params
    copies = int(min(max(CHAIN_BYTES / state_bytes, 1), MAX_USES))
    calls = [_call(operator, _parameters(bench, params, tensors)) for _ in range(copies)]

    def update_all() -> None:
        for call in calls:
            call()

    bench.seconds(update_all)
    return Timing.of(bench.seconds(update_all)[0] / copies for _ in range(REPEATS))


def _parameters(bench: Bench, params: int, tensors: int) -> list[Any]:
    parameters = [torch.nn.Parameter(bench.weight(max(1, params // tensors))) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return parameters


def _call(operator: str, parameters: list[Any]) -> Callable[[], Any]:
    if operator == "clip":
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    kind = operator.removeprefix("adamw_")
    chosen: Mapping[str, bool] = {"fused": kind == "fused", "foreach": kind == "foreach"}
    step: Callable[[], Any] = torch.optim.AdamW(parameters, lr=1e-5, **chosen).step
    return step


def copy_timing(bench: Bench, operator: str, *, num_bytes: int) -> Timing:
    """Return the seconds of copying `num_bytes` within the device, to it or from it, memory pinned."""
    cuda = bench.device.type == "cuda"
    source_device = bench.device if operator != "to_device" else torch.device("cpu")
    target_device = bench.device if operator != "to_host" else torch.device("cpu")
    source, target = (
        torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=cuda and device.type == "cpu")
        for device in (source_device, target_device)
    )

    def copy() -> None:
        target.copy_(source, non_blocking=cuda)

    bench.seconds(copy)
    return Timing.of(bench.seconds(copy)[0] for _ in range(2 * REPEATS))


PAYLOAD_BYTES = (2**12, 2**16, 2**20, 2**22, 2**24)
COLLECTIVE_REPEATS, MOST_REPEATS = 5, 40
REPEATING_S = 0.2  # small payloads are sent more often, for the same time
DEADLINE_S = 180.0
UNIT_TENSORS = 8  # a Llama layer has 9


def collective_readings(
    device: str, ranks: int, payload_bytes: Sequence[int] = PAYLOAD_BYTES, *, deadline_s: float = DEADLINE_S
) -> list[Reading]:
    """Return the readings of every collective among 2, 4, 8 ... and all of `ranks` processes.

    `device` is "cpu" (gloo) or "cuda" (NCCL, one GPU per rank); payloads are best multiples of 4 times
    `ranks`.

    Raises: UnsupportedError if the machine has too few GPUs, a process fails, or `deadline_s` passes.
    """
    if ranks < 2:
        raise UnsupportedError(f"Collectives need at least 2 processes; --collectives {ranks} is too few.")
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise UnsupportedError(
            f"--collectives {ranks} needs as many GPUs for NCCL; here are {torch.cuda.device_count()}."
        )
    context = torch.multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="finegauge-") as folder:
        meeting = f"file://{os.path.join(folder, 'meeting')}"
        processes = [
            context.Process(
                target=_rank, args=(rank, ranks, device, meeting, tuple(payload_bytes), answers), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            return _answer(processes, answers, deadline_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _answer(processes: Sequence[Any], answers: Any, deadline_s: float) -> list[Reading]:
    """Return what the first rank says, unless one of them fails or the deadline passes."""
    until = time.monotonic() + deadline_s
    while answers.empty():
        failed = [process.exitcode for process in processes if process.exitcode]
        if failed:
            raise UnsupportedError(f"A process of the collectives ended with exit code {failed[0]}.")
        if time.monotonic() > until:
            raise UnsupportedError(
                f"The collectives were not done after {deadline_s:.0f} s; they were ended."
            )
        time.sleep(0.02)
    return [Reading(*row) for row in answers.get()]


def _rank(
    rank: int, ranks: int, device: str, meeting: str, payload_bytes: Sequence[int], answers: Any
) -> None:
    """Time every collective as one of the ranks; the first sends the readings."""
    from datetime import timedelta

    torch.set_num_threads(1)
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    backend = "nccl" if device == "cuda" else "gloo"
    distributed.init_process_group(
        backend,
        init_method=meeting,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=DEADLINE_S),  # none waits longer for one that is gone
    )
    rows = []
    for size in group_sizes(ranks):
        group = distributed.new_group(list(range(size)))
        if rank < size:
            rows += _group_rows(size, group, payload_bytes, place)
        distributed.barrier()
    if rank == 0:
        answers.put(rows)
    distributed.barrier()
    distributed.destroy_process_group()


def group_sizes(ranks: int) -> list[int]:
    """Return how many of `ranks` processes take part in turn: 2, 4, 8 ... and all."""
    return [size for size in range(2, ranks + 1) if size == ranks or size & (size - 1) == 0]


def _group_rows(
    ranks: int, group: Any, payload_bytes: Sequence[int], place: torch.device
) -> list[tuple[Any, ...]]:
    rows = []
    units = UNITS.values() if place.type == "cpu" else ()  # a GPU computes beside them
    for name in (*SENT, *units):
        for num_bytes in payload_bytes:
            if name in units:
                timing = _timing(*_unit(name, num_bytes, group), place, group)
            else:
                timing = _timing(None, _collective(name, num_bytes, ranks, place, group), place, group)
            sizes = {"bytes": num_bytes, "ranks": ranks}
            rows.append((name, "fp32", "transfer", sizes, *timing, 0.0, float(num_bytes)))
    return rows


class Unit(torch.nn.Module):
    """Weights that a forward pass adds up where they train, and does not touch else."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        weights = [torch.ones(max(1, num_bytes // 4 // UNIT_TENSORS)) for _ in range(UNIT_TENSORS)]
        self.weights = torch.nn.ParameterList(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of which every weight has a gradient, and `x` itself without autograd."""
        if not torch.is_grad_enabled():
            return x
        return torch.stack([x.sum(), *[weight.sum() for weight in self.weights]]).sum()


def _unit(name: str, num_bytes: int, group: Any) -> tuple[Callable[[], Any] | None, Callable[[], Any]]:
    """Return what one unit of FSDP2 does, behind what is done before it, untimed."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh, x = DeviceMesh.from_group(group, "cpu"), torch.ones(1, requires_grad=True)
    gathers = name == UNITS["all_gather"]
    unit = fully_shard(Unit(num_bytes), mesh=mesh, reshard_after_forward=gathers)
    if gathers:
        return None, torch.no_grad()(lambda: unit(x))
    losses: list[torch.Tensor] = []

    def before() -> None:
        unit.zero_grad(set_to_none=True)
        losses.append(unit(x))

    return before, lambda: losses.pop().backward()


def _collective(
    name: str, num_bytes: int, ranks: int, place: torch.device, group: Any = None
) -> Callable[[], Any]:
    share = max(1, num_bytes // 4 // ranks)
    whole, part = torch.zeros(share * ranks, device=place), torch.zeros(share, device=place)
    received = torch.empty_like(whole)

    def send() -> None:
        rank = distributed.get_rank()
        ends = ((distributed.isend, whole, rank + 1), (distributed.irecv, received, rank - 1))
        posted = [distributed.P2POp(end, tensor, peer % ranks, group) for end, tensor, peer in ends]
        for work in distributed.batch_isend_irecv(posted):
            work.wait()

    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: distributed.all_reduce(whole, group=group),
        "all_gather": lambda: distributed.all_gather_single(whole, part, group=group),
        "reduce_scatter": lambda: distributed.reduce_scatter_single(part, whole, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(received, whole, group=group),
        "broadcast": lambda: distributed.broadcast(whole, src=0, group=group),
        "send": send,
    }
    return calls[name]


def _timing(
    before: Callable[[], Any] | None, call: Callable[[], Any], place: torch.device, group: Any
) -> Timing:
    repeats: list[float] = []
    left = COLLECTIVE_REPEATS + 1
    while left:
        if before is not None:
            before()
        distributed.barrier(group=group)
        if place.type == "cuda":
            seconds = Bench(place, "fp32").seconds(call)[0]
        else:
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
        slowest = torch.tensor([seconds], device=place, dtype=torch.float64)
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX, group=group)
        repeats.append(float(slowest))
        left -= 1
        if len(repeats) == COLLECTIVE_REPEATS + 1:  # the first is a warm-up; all ranks have the same numbers
            left = min(MOST_REPEATS, int(REPEATING_S / min(repeats[1:]))) - COLLECTIVE_REPEATS
            left = max(0, left)
    return Timing.of(repeats[1:])
