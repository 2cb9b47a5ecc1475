"""The time, energy and cost of a family of layouts on every machine: arrays [micro-batch, machine].

One micro-batch is timed once per structure and kind of GPU; what a layout adds is its update, what its
ranks exchange, and the price of the machines. How many ranks there are is an array [machine] too, for a
machine is one layout of the family on one offer. The functions are those of `predict` and `quote`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from finegauge.graph.op import Extents
from finegauge.graph.weights import Weights
from finegauge.plan.fleet import Fleet, Rents
from finegauge.plan.prices import SPOT_REPEATED_FRACTION, rent_usd
from finegauge.plan.quote import (
    WALL_POWER_RATIO,
    StepQuantities,
    boards_energy_j,
    emissions_kg,
    wall_time_s,
)
from finegauge.plan.structures import Batching, Layout
from finegauge.plan.unchecked import unchecked
from finegauge.plan.vector_memory import column, stacked
from finegauge.predict.calibration import Calibration
from finegauge.predict.energy import step_energy_j
from finegauge.predict.sharding import Share, rank_extents, rank_graph
from finegauge.predict.time import StepTime, step_of
from finegauge.profile import Breakdown, Path
from finegauge.units import HOUR_S
from finegauge.workload.run import Run

DEGREES = ("data_parallel_replicate", "data_parallel_shard", "num_gpus")


class Costs(NamedTuple):
    """What a whole run takes, whoever rents out the machine, [micro-batch, machine]."""

    step_time_s: Any
    wall_s: Any
    energy_j: Any  # at the wall


class Family(NamedTuple):
    """Layouts that differ in the number of ranks, on the machines of a fleet."""

    run: Run  # degrees as arrays [machine]
    share: Share
    fleet: Fleet
    communicates: bool


def family_of(members: Sequence[tuple[Layout, Share]], fleet: Fleet) -> Family:
    """Return `members` on the machines of `fleet`."""
    (layout, share), places = members[0], fleet.layouts
    degrees = {name: column([getattr(one.run, name) for one, _ in members], places) for name in DEGREES}
    weights = stacked(Weights, [one.graph.weights for _, one in members], places)
    sizes = {
        name: column([getattr(one, name) for _, one in members], places)
        for name, value in share._asdict().items()
        if isinstance(value, float)
    }
    graph = replace(share.graph, weights=weights)
    if share.run.sequence_parallel:  # whose norms' gradients are exchanged, operator by operator
        graph = rank_graph(layout.run, share.whole, weights)
    together = share._replace(run=unchecked(share.run, **degrees), graph=graph, **sizes)
    return Family(unchecked(layout.run, **degrees), together, fleet, share.communicates)


def costs(
    family: Family, batching: Batching, rows: Any, micro_batch: StepTime, waits_s: Any, written_bytes: Any,
    micro_steps: Any, calibration: Calibration,
) -> Costs:  # fmt: skip
    """Return what the whole run takes on each machine with each of the micro-batches `rows`.

    Args:
        family: Layouts and machines.
        batching: All micro-batches of the structure.
        rows: Which of them.
        micro_batch: The times of all, [micro-batch, GPU].
        waits_s: What a micro-batch waits for the slowest rank, [micro-batch, machine].
        written_bytes: By a save, [micro-batch, machine].
        micro_steps: How many of them a step has, [micro-batch, machine].
        calibration: In force.
    """
    run, share, fleet, communicates = family
    sizes: tuple[Any, ...] = rank_extents(run, batching.mean)
    mean = Extents(*(numbers[rows] for numbers in sizes))
    alone = on_machines(micro_batch, rows, fleet)
    network = fleet.network if communicates else None
    step = step_of(alone, share, mean, fleet.device, network, micro_steps, waits_s)
    sequences = batching.samples[rows] * micro_steps * run.data_parallel
    quantities = StepQuantities(
        step_s=step.parts.total,
        sequence_forward_s=step.parts["forward"] / sequences,
        checkpoint_bytes=written_bytes,
        step_j=step_energy_j(fleet.step_power, step, calibration, run.num_gpus).total,
    )
    num_steps, num_epochs = batching.num_steps[rows], batching.num_epochs[rows]
    wall = wall_time_s(run, quantities, num_steps, num_epochs)
    wall_s: Any = wall.total
    boards_j = boards_energy_j(run, quantities, num_steps, wall, fleet.power.idle_w)
    wall_j: Any = boards_j * WALL_POWER_RATIO
    return Costs(step_time_s=quantities.step_s, wall_s=wall_s, energy_j=wall_j)


def bills(wall_s: Any, wall_j: Any, rents: Rents, places: Any) -> dict[str, Any]:
    """Return what runs of `wall_s` seconds and `wall_j` joules cost on the rents at `places`."""
    hours, nodes = wall_s / HOUR_S, rents.nodes[places]
    return {
        "usd": rent_usd(hours, rents.usd_per_h[places], nodes),
        "spot_usd": rent_usd(hours * (1 + SPOT_REPEATED_FRACTION), rents.spot_usd_per_h[places], nodes),
        "emissions_kg": emissions_kg(wall_j, rents.pue[places], rents.kg_per_kwh[places]),
    }


def on_machines(micro_batch: StepTime, rows: Any, fleet: Fleet) -> StepTime:
    """Return times [micro-batch, GPU] as [micro-batch, machine], of some micro-batches."""
    import numpy

    place = numpy.ix_(rows, fleet.gpus)
    known: Mapping[Path, Any] = micro_batch.parts.parts
    rest: tuple[Any, ...] = micro_batch[1:]
    parts = Breakdown({path: seconds[place] for path, seconds in known.items()})
    return StepTime(parts, *(seconds[place] for seconds in rest))
