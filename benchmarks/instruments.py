"""What do the clocks cost, and do their parts add up? On this CPU, for tiny models of every kind.

Steps without a clock, under the stage clock and under the layer clock are taken in turn, A B C A B C, so
that a change in the machine's load meets all three; a fourth is taken under both clocks at once. The
promises: stages add up to the step within 2 %; what the layer clock gives to operators adds up to the stages
that the stage clock sees in the same step within 5 %; and a clock makes a step at most 3 % (stages) or 10 %
(layers) longer, fastest step against fastest. This program ends with 1 when one is broken.
"""

import argparse
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any, NamedTuple

import torch

from finegauge.measure.instruments.layer_clock import LayerClock
from finegauge.measure.instruments.stage_clock import NoClock, StageClock
from finegauge.measure.instruments.timeline import HostInstants
from finegauge.measure.options import Options
from finegauge.measure.phases import phase_of
from finegauge.measure.subject import Phase
from finegauge.profile import Breakdown
from finegauge.workload.readers import read

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
RUN_FILE = MODELS.parent / "tiny_moe.yaml"
SHORT = ("seq_len=64", "micro_batch_size=2")  # Mamba without its kernels loops over tokens
KINDS = {
    "Llama": ("tiny_llama", ()),
    "Mixtral, sparse": ("tiny_moe", ()),
    "Mixtral, dense": ("tiny_moe", ("num_experts_per_tok=all",)),
    "BlackMamba-like": ("tiny_blackmamba", SHORT),
    "hybrid (Jamba)": ("tiny_hybrid", SHORT),
}
METHODS = {
    "full": ("method=full", "weights_dtype=fp32"),
    "LoRA": ("method=lora", "weights_dtype=fp32", "adapter_dtype=fp32"),
    "QLoRA": ("method=qlora", "weights_dtype=nf4", "quantize_experts=true", "adapter_dtype=fp32",
              "experts_implementation=eager", "seq_len=32", "micro_batch_size=1"),
}  # fmt: skip
PASSES = ("forward", "recompute", "backward")
NO_OPERATOR = ("embedding", "positions")  # the model's own work between its modules
MAX_STAGE_GAP, MAX_LAYER_GAP, MAX_STAGE_COST, MAX_LAYER_COST = 0.02, 0.05, 0.03, 0.10


class Row(NamedTuple):
    """One model and method: seconds of a step, and how far from the promises."""

    name: str
    step_s: float
    stage_gap: float  # of the stages' sum from the step, timed from outside
    layer_gap: float  # of the operators' sum from the stages, the worst stage
    stage_cost: float  # of the clock, as a share of a step without one
    layer_cost: float
    parts: Breakdown  # seconds by stage and part

    @property
    def broken(self) -> bool:
        """Return whether a promise is broken."""
        return (
            self.stage_gap > MAX_STAGE_GAP
            or self.layer_gap > MAX_LAYER_GAP
            or self.stage_cost > MAX_STAGE_COST
            or self.layer_cost > MAX_LAYER_COST
        )


class Both:
    """Two clocks that are told of the same stages, the first from outside."""

    def __init__(self, stages: StageClock, layers: LayerClock) -> None:
        """Tell both."""
        self.stages, self.layers = stages, layers

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step by both."""
        with self.stages.step(), self.layers.step():
            yield

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage `name` for both."""
        with self.stages.stage(name), self.layers.stage(name):
            yield


class ProcessorInstants(HostInstants):
    """Instants of the processor time of this thread, which other programs' load does not lengthen."""

    now = staticmethod(thread_time_ns)


def step_s(
    phase: Phase, clock: Any, around: Callable[[], AbstractContextManager[Any]], now: Callable[[], int]
) -> float:
    """Return the seconds of one step under `clock`, timed from outside."""
    gc.collect()
    gc.disable()
    start = now()
    with around():
        phase.step(clock)
    taken = now() - start
    gc.enable()
    return taken / 1e9


def measured(name: str, phase: Phase, rounds: int, *, processor: bool) -> Row:
    """Return how the clocks do on the steps of `phase`; `processor`: in processor time."""
    instants = ProcessorInstants() if processor else HostInstants()
    now = thread_time_ns if processor else perf_counter_ns
    for _ in range(2):
        phase.step(NoClock())
    stages = StageClock(phase.subject.device, phase.subject.model, instants=instants)
    layers = LayerClock(phase.subject, instants=instants)
    both = Both(stages, layers)
    plain, staged, layered, gaps, layer_gaps = [], [], [], [], []
    for _ in range(rounds):
        plain.append(step_s(phase, NoClock(), nullcontext, now))
        with stages:
            staged.append(step_s(phase, stages, stages.step, now))
        named = stages.steps[-1].total - stages.steps[-1]["other"]
        gaps.append(abs(named - staged[-1]) / staged[-1])
        with layers:
            layered.append(step_s(phase, layers, layers.step, now))
        with stages, layers:
            step_s(phase, both, both.step, now)
        layer_gaps.append(gap(stages.steps[-1], layers.steps[-1]))
    best = min(plain)
    return Row(
        name,
        best,
        stage_gap=median(gaps),
        layer_gap=median(layer_gaps),
        stage_cost=min(staged) / best - 1,
        layer_cost=min(layered) / best - 1,
        parts=layers.steps[-1],
    )


def gap(stages: Breakdown, layers: Breakdown) -> float:
    """Return how far the operators are from the stages of the same step: the largest share of a stage."""
    named = Breakdown({path: value for path, value in layers.parts.items() if path[1:] != NO_OPERATOR})
    return max(abs(named[stage] / stages[stage] - 1) for stage in PASSES if stages[stage] > 0)


def phase_under(kind: str, method: str) -> Phase:
    """Return the phase of one of the tiny models, fine-tuned by one of the methods."""
    folder, words = KINDS[kind]
    run = read(RUN_FILE, [f"model={MODELS / folder}", *words, *METHODS[method]])
    return phase_of(run, Options(threads=1), torch.device("cpu"))


def line(row: Row) -> str:
    """Return one line of the table."""
    marks = "  BROKEN" if row.broken else ""
    return (
        f"  {row.name:<26} {row.step_s * 1e3:7.1f} ms   {row.stage_gap:6.2%} {row.layer_gap:8.2%}"
        f"   {row.stage_cost:+7.2%} {row.layer_cost:+8.2%}{marks}"
    )


def breakdown(row: Row) -> list[str]:
    """Return the largest parts of the step, by part and operator."""
    parts = Breakdown.add_up((path[1:], value) for path, value in row.parts.parts.items() if len(path) > 1)
    return [
        f"      {' / '.join(path):<34} {value * 1e3:7.2f} ms {value / row.parts.total:6.1%}"
        for path, value in list(parts)[:8]
    ]


def main() -> int:
    """Measure, print, and return 0 if all promises hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="steps of each kind (default: 15)")
    parser.add_argument("--only", default="", help="only rows whose name holds this, such as 'LoRA'")
    parser.add_argument("--parts", action="store_true", help="print the largest parts of each step too")
    parser.add_argument(
        "--processor-time", action="store_true", help="time the processor, not the wall: for a busy machine"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    print(f"  {'':<26} {'step':>10}   {'gap of the sums':>15}   {'cost of the clock':>16}")
    print(f"  {'':<26} {'':>10}   {'stages':>6} {'layers':>8}   {'stages':>7} {'layers':>8}")
    broken = 0
    for kind in KINDS:
        for method in METHODS:
            name = f"{kind}, {method}"
            if options.only not in name:
                continue
            row = measured(name, phase_under(kind, method), options.rounds, processor=options.processor_time)
            print(line(row), flush=True)
            if options.parts:
                print("\n".join(breakdown(row)))
            broken += row.broken
    print(f"\n  {'all promises hold' if not broken else f'{broken} rows break a promise'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
