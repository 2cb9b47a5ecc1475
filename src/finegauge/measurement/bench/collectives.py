"""Seconds of collective operations between processes of this machine: gloo between CPUs, NCCL between GPUs.

Every rank is a process of its own, started fresh, which meets the others at a file in a folder of its own.
Of N processes the first 2, 4, 8 ... and all N take part in turn, while the others wait. A reading is the
slowest rank's quickest repeat: a collective is over when all have what they need. `bytes` is the payload of
a rank: what it holds whole before (all_reduce, reduce_scatter, all_to_all, broadcast) or after (all_gather);
in send every rank hands as much to the next one, round a ring.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from finegauge.catalogue.device_profile import COLLECTIVES, Reading
from finegauge.errors import UnsupportedError
from finegauge.measurement.bench.timing import Bench, Timing

PAYLOAD_BYTES = (2**12, 2**16, 2**20, 2**24)
REPEATS, MOST_REPEATS = 5, 40
REPEATING_S = 0.2  # small payloads are sent more often, for the same time
DEADLINE_S = 180.0


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

    from torch import distributed

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
    for name in COLLECTIVES:
        for num_bytes in payload_bytes:
            call, dtype = _collective(name, num_bytes, ranks, place, group)
            timing = _timing(call, place, group)
            sizes = {"bytes": num_bytes, "ranks": ranks}
            rows.append((name, dtype, "transfer", sizes, *timing, 0.0, float(num_bytes)))
    return rows


def _collective(
    name: str, num_bytes: int, ranks: int, place: torch.device, group: Any = None
) -> tuple[Callable[[], Any], str]:
    from torch import distributed

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
    return calls[name], "fp32"


def _timing(call: Callable[[], Any], place: torch.device, group: Any) -> Timing:
    from torch import distributed

    repeats: list[float] = []
    left = REPEATS + 1
    while left:
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
        if len(repeats) == REPEATS + 1:  # the first is a warm-up; all ranks have the same numbers
            left = min(MOST_REPEATS, int(REPEATING_S / min(repeats[1:]))) - REPEATS
            left = max(0, left)
    return Timing.of(repeats[1:])
