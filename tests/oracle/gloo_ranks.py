"""One of two real processes that train over gloo, and what torch's profiler saw it send.

python -m tests.oracle.gloo_ranks RANK FOLDER      writes FOLDER/RANK/sent.json and experts.json
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

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
SPARSE = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
EXPERT_KINDS = {  # what is sent there and back; counts of rows go by another name
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
    **KINDS["ddp"],
}


def run_with_experts(folder: Path) -> Run:
    """Return the run whose experts both processes share."""
    own = {"num_gpus": RANKS, "expert_parallel": RANKS, "experts_implementation": "eager"}
    return real.tiny(folder, sizes=SPARSE, **own)


def divided_experts(folder: Path) -> dict[str, Any]:
    """Return what a rank holds, computes in a step and sends, whose experts are divided among all."""
    run = run_with_experts(folder)
    torch.manual_seed(0)
    model = real.with_divided_experts(run)
    torch.manual_seed(dist.get_rank())  # each has tokens of its own
    step = real.stepping(run, model)
    for _ in range(2):
        step()
    with FlopCounterMode(display=False) as counter:
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        step()
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    held = sum(p.numel() * p.element_size() for p in local)
    sent = _counted(EXPERT_KINDS, profiled.events())
    return {"held": held, "flops": counter.get_total_flops(), "sent": sent}


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


def _counted(kinds: dict[str, tuple[str, int]], events: Any) -> Counts:
    """Return (messages, bytes) of the calls of `kinds`."""
    times: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for event in events:
        sort, argument = kinds.get(event.name, ("", 0))
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
    return _counted(KINDS[kind], profiled.events())


def main(rank: int, folder: Path) -> None:
    """Train as rank `rank`; rank 0 writes down what it sent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    own = folder / str(rank)
    own.mkdir()
    sent = {kind: profiled_step(kind, own) for kind in KINDS}
    (own / "sent.json").write_text(json.dumps(sent), "utf-8")
    (own / "experts.json").write_text(json.dumps(divided_experts(own)), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
