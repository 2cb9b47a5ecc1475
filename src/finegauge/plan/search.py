"""Every plan of a space, evaluated: memory, time, energy and cost, the same numbers as `predict` and `quote`.

The operators of a rank are polynomials in the sizes of a micro-batch, so the functions that predict one
run take arrays as well: sizes of micro-batches [micro-batch, 1], rates and prices of machines [machine].
A structure's operators are walked once, a layout's exchange is priced once, and the numbers of all its
plans come out; nothing here knows any physics of its own.

Passed over without being timed: layouts whose memory is beyond `engine.HOPELESS_RATIO` of a machine's. They
are counted as pruned; all other plans are kept, whatever the limits, so that what a little more would
buy can be read off.
"""

from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.offers import Offer
from finegauge.errors import FieldError, UnsupportedError
from finegauge.plan.columns import Columns, Labels
from finegauge.plan.engine import Engine
from finegauge.plan.space import Space
from finegauge.plan.structures import ORIGIN, structures
from finegauge.plan.verdict import RISKY_FROM_FRACTION
from finegauge.predict.phases import TRAINED
from finegauge.workload.data import shape

if TYPE_CHECKING:
    from finegauge.workload.run import Run

Heard = Callable[[float], None]
KNOWN = ("step_time_s", "memory_bytes", "capacity_bytes", "out_of_memory_fraction", "wall_s")
MAYBE_KNOWN = ("usd", "spot_usd", "energy_j", "emissions_kg")


class Limits(NamedTuple):
    """What a plan must keep; None where there is no limit."""

    within_s: float | None = None
    budget_usd: float | None = None
    out_of_memory_fraction: float = RISKY_FROM_FRACTION


class Candidate(NamedTuple):
    """One plan: a complete run on an offer, and what it takes; None where a price or a power is not known."""

    run: "Run"
    step_time_s: float
    memory_bytes: float  # of the fullest GPU: all that has to fit
    capacity_bytes: float
    out_of_memory_fraction: float
    wall_s: float
    usd: float | None
    spot_usd: float | None
    energy_j: float | None  # at the wall
    emissions_kg: float | None
    offer: Offer | None


class SearchResult(NamedTuple):
    """All plans that were evaluated, as columns, and how many there are."""

    space: Space
    columns: Columns
    labels: Labels
    num_candidates: int
    num_evaluated: int  # memory by phase, time, energy and cost of each
    num_pruned: int  # whose memory alone was evaluated, and hopeless

    def candidate(self, index: int) -> Candidate:
        """Return one plan, its run complete and checked."""
        column = self.columns
        structure, layout = column.laid[int(column["layout"][index])]
        offer = self.space.offers[int(column["offer"][index])]
        size, nodes = int(column["micro_batch_size"][index]), int(column["num_nodes"][index])
        rows = structure.batching.rows_per_step
        fields = {
            **structure.fields, **layout.fields, "optimizer": layout.optimizer, "micro_batch_size": size,
            "gradient_accumulation_steps": rows // (size * layout.run.data_parallel), "num_nodes": nodes,
            "gpu": offer.gpu, "provider": offer.provider, "region": offer.region,
            "node_network_gbit_per_s": None,
        }  # fmt: skip
        figures: dict[str, Any] = {name: float(column[name][index]) for name in KNOWN}
        for name in MAYBE_KNOWN:
            value = float(column[name][index])
            figures[name] = None if isnan(value) else value
        return Candidate(run=self.space.run.replace(ORIGIN, **fields), offer=offer, **figures)


def search(space: Space, *, heard: Heard | None = None) -> SearchResult:
    """Return every plan of `space` with its figures.

    Args:
        space: What to go through.
        heard: Told now and then which fraction is done.

    Raises:
        UnsupportedError: A phase whose steps are more than passes of training.
        FieldError: A run whose number of steps is not known.
    """
    if space.run.phase not in TRAINED:
        raise UnsupportedError(
            f"phase={space.run.phase} cannot be planned yet; plan knows {', '.join(TRAINED)}. "
            "'finegauge estimate' answers for one run at a time."
        )
    if shape(space.run).steps_total is None:
        raise FieldError(
            "The number of steps is not known, so no plan has a cost: add num_samples=… or max_steps=…."
        )
    todo = list(structures(space))
    engine = Engine(space)
    for number, structure in enumerate(todo):
        engine.evaluate(structure)
        if heard is not None:
            heard((number + 1) / len(todo))
    return SearchResult(
        space=space,
        columns=engine.columns,
        labels=Labels(engine.columns, space.offers),
        num_candidates=engine.num_evaluated + engine.num_pruned,
        num_evaluated=engine.num_evaluated,
        num_pruned=engine.num_pruned,
    )
