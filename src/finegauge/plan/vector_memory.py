"""The memory of many layouts at once: one pass over the operators for every micro-batch and every layout.

Layouts of one structure run the same operators over tensors of other sizes. Their sizes stand side by
side as arrays [layout, 1]; micro-batches are [micro-batch, 1, 1], kinds of GPU [GPU], and `predict`'s own
functions do the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.graph.op import Extents
from finegauge.graph.weights import Weights
from finegauge.plan.quote import checkpoint_bytes
from finegauge.plan.structures import ACCUMULATING, Layout
from finegauge.plan.unchecked import unchecked
from finegauge.predict.calibration import Calibration
from finegauge.predict.live import Beside, beside_of, rank_live_set
from finegauge.predict.memory import Update, outside_tensors
from finegauge.predict.sharding import Share, rank_extents, rank_graph
from finegauge.profile import Breakdown, Path
from finegauge.workload.parallelism import FSDP
from finegauge.workload.run import Run

Members = Sequence[tuple[Layout, Share]]


class Held(NamedTuple):
    """What the ranks of some layouts hold, [accumulation, micro-batch, layout, kind of GPU]."""

    device_bytes: Any  # all that has to fit
    checkpoint_bytes: Any  # what a save writes
    steps: tuple[int, ...]  # of accumulation, by the first axis
    kinds: Any  # of each GPU, by the last axis

    def at(self, micro_steps: Any, layouts: Any, gpus: Any) -> tuple[Any, Any]:
        """Return both, [micro-batch, machine].

        Args:
            micro_steps: How many micro-batches a step has, [micro-batch, machine].
            layouts: Which layout it is, [machine].
            gpus: Which GPU it is, [machine].
        """
        import numpy

        accumulated = numpy.searchsorted(self.steps, numpy.minimum(micro_steps, self.steps[-1]))
        rows = numpy.arange(len(micro_steps))[:, None]
        place = accumulated, rows, layouts, self.kinds[gpus]
        return self.device_bytes[place], self.checkpoint_bytes[place]


def held(
    members: Members, longest: Extents, micro_steps: Any, cublas_bytes: Any, calibration: Calibration
) -> Held:
    """Return what the ranks of `members`, which run the same operators, hold.

    Args:
        members: Layouts with one rank's share of each.
        longest: The longest micro-batches, [micro-batch, 1].
        micro_steps: The numbers of micro-batches per step that occur.
        cublas_bytes: What matrix products hold on each GPU.
        calibration: In force.
    """
    import numpy

    run, share = members[0][0].run, members[0][1]
    deep: list[Any] = [numbers[:, :, None] for numbers in _arrays(rank_extents(run, longest))]
    extents = Extents(*deep)
    different: Any
    different, kinds = numpy.unique(cublas_bytes, return_inverse=True)
    steps = _accumulations(run, micro_steps)
    shape = (len(steps), len(_arrays(longest)[0]), len(members), len(different))
    needed, written = numpy.empty(shape), numpy.empty(shape)
    graph = rank_graph(run, share.whole, stacked(Weights, [one.graph.weights for _, one in members]))
    nccl = column([calibration.nccl_bytes if one.distributed else 0.0 for _, one in members])
    for place, number in enumerate(steps):
        runs = [
            layout.run
            if number == ACCUMULATING
            else unchecked(layout.run, gradient_accumulation_steps=number)
            for layout, _ in members
        ]
        beside = _stacked_beside([beside_of(own, one) for own, (_, one) in zip(runs, members, strict=True)])
        own = unchecked(share.run, gradient_accumulation_steps=number)
        live = rank_live_set(runs[0], share._replace(run=own, graph=graph), extents, different, beside)
        peak = live.peak
        on_device = peak + outside_tensors(own, graph, peak, calibration) + Breakdown({("NCCL",): nccl})
        needed[place] = on_device.total
        written[place] = checkpoint_bytes(own, live.phases.get("optimizer", on_device))
    return Held(needed, written, steps, kinds)


def same_operators(layout: Layout, share: Share) -> tuple[Any, ...]:
    """Return what layouts have in common that can stand side by side."""
    run = layout.run
    hooked = run.sharding in FSDP and run.trains_adapters and run.activation_checkpointing == "full"
    return share.whole.lowering, hooked


def stacked(kind: Any, each: Sequence[Any], places: Any = None) -> Any:
    """Return tuples of numbers, one for each layout, as one of arrays: see `column`."""
    return kind(*(column(numbers, places) for numbers in zip(*each, strict=True)))


def column(numbers: Sequence[float], places: Any = None) -> Any:
    """Return numbers of layouts as an array, or as the one number that they all are.

    Args:
        numbers: One for each layout.
        places: The layout of each machine, [machine]; without it the array is [layout, 1].
    """
    import numpy

    first = numbers[0]
    if all(number == first for number in numbers):
        return first
    array = numpy.array(numbers)
    return array[:, None] if places is None else array[places]


def _arrays(extents: Extents) -> Sequence[Any]:
    """Return the numbers of `extents`, which are arrays here."""
    return extents


def _accumulations(run: Run, micro_steps: Any) -> tuple[int, ...]:
    """Return the numbers of micro-batches that make a difference to memory.

    What is beyond one makes none, but for the micro-batches in flight in a pipeline.
    """
    flying = max(ACCUMULATING, run.pipeline_parallel * run.virtual_pipeline_stages)
    if run.pipeline_parallel > 1 and run.pipeline_schedule == "gpipe":
        flying = int(max(micro_steps))
    return tuple(sorted({min(int(number), flying) for number in micro_steps}))


def _stacked_beside(each: Sequence[Beside]) -> Beside:
    """Return what every layout holds beside as arrays [layout, 1]."""
    phases = dict.fromkeys(phase for one in each for phase in one.gathered)
    gathered: dict[str, Mapping[Path, Any]] = {}
    for phase in phases:
        parts = [one.gathered.get(phase, {}) for one in each]
        paths = dict.fromkeys(path for part in parts for path in part)
        gathered[phase] = {path: column([part.get(path, 0.0) for part in parts]) for path in paths}
    return Beside(gathered, stacked(Update, [one.update for one in each]))
