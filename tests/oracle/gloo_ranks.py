"""One of two real processes that train over gloo, and what torch's profiler saw it send.

python -m tests.oracle.gloo_ranks RANK FOLDER      writes FOLDER/RANK/sent.json
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from finegauge.run.run import Run
from tests.oracle import real_ranks as real
from tests.oracle.counting_group import LEAST_BYTES, Counts

RANKS, VALUE_BYTES = 2, 4
KINDS = {  # by what c10d calls them, and which argument is the whole tensor; reductions of DDP by gloo's name
    "ddp": {"gloo:all_reduce": ("all_reduce", 0)},
    "fsdp": {
        "c10d::_allgather_base_": ("all_gather", 0),
        "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    },
}


def run_of(kind: str, folder: Path) -> Run:
    """Return the run that both processes train."""
    return real.tiny(folder, num_gpus=RANKS, sharding="none" if kind == "ddp" else "fsdp")


def _sizes(shape: Any) -> list[int]:
    """Return the numbers of values of a tensor, or of the tensors of a list."""
    if shape and isinstance(shape[0], list):
        return [size for inner in shape for size in _sizes(inner)]
    number = 1
    for length in shape:
        number *= length
    return [number] if shape else []


def _counted(kind: str, events: Any) -> Counts:
    """Return (messages, bytes) of the calls of `kind`."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for event in events:
        sort, argument = KINDS[kind].get(event.name, ("", 0))
        size = VALUE_BYTES * sum(_sizes(event.input_shapes[argument])) if sort else 0
        if size >= LEAST_BYTES:
            times[sort] += 1
            sizes[sort] += size
    return {sort: (times[sort], sizes[sort]) for sort in times}


def profiled_step(kind: str, folder: Path) -> Counts:
    """Train two steps, and return what a third one sends."""
    run = run_of(kind, folder)
    step = real.stepping(run, real.replicated(run) if kind == "ddp" else real.sharded(run))
    for _ in range(2):
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        step()
    return _counted(kind, profiled.events())


def main(rank: int, folder: Path) -> None:
    """Train as rank `rank`; rank 0 writes down what it sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    own = folder / str(rank)
    own.mkdir()
    sent = {kind: profiled_step(kind, own) for kind in KINDS}
    (own / "sent.json").write_text(json.dumps(sent), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
