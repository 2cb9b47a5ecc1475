"""One change at a time from a run as it is: what each would save and what it asks for.

Every variant is answered by `predict` and `quote` like the run itself. Where the length of the run
is not known, both are asked for the same number of samples, so that they compare. A run that does
`max_steps` steps does as many samples after the change.

Neglects: what two changes do together; 'finegauge plan' searches those.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError
from finegauge.planning.capacity import Estimator
from finegauge.planning.quote import quote
from finegauge.planning.switches import (
    OTHER_GPUS,
    SWITCHES,
    Changes,
    Switch,
    field_switch,
    gpu_switch,
    known_switches,
    switch_named,
)
from finegauge.prediction.uncertainty import (
    RISKY_FROM_FRACTION,
    WILL_NOT_FIT,
    probability_out_of_memory,
    verdict,
)
from finegauge.run.rules import LORA_FIELDS

if TYPE_CHECKING:
    from finegauge.run.run import Run

OBJECTIVES = ("cost", "time", "energy", "memory")
ASSUMED_SAMPLES = 10_000  # where neither the data set nor max_steps is known
LEAST_GAIN_FRACTION = 0.01  # below it a change is no gain


class Standing(NamedTuple):
    """What a run takes from start to end, and what its fullest GPU holds."""

    run: "Run"
    memory_bytes: float
    capacity_bytes: float
    out_of_memory_fraction: float
    step_time_s: float
    samples_per_step: float  # of the data set, all GPUs together
    wall_s: float
    usd: float | None  # cheapest ranked offer, on demand
    spot_usd: float | None
    energy_j: float | None  # at the wall
    emissions_kg: float | None

    @property
    def fails(self) -> bool:
        """Return whether the run will not fit."""
        return verdict(self.out_of_memory_fraction) == WILL_NOT_FIT

    def amount(self, objective: str, *, spot: bool = False) -> float | None:
        """Return the figure that `objective` (cost, time, energy, memory) is about; None if not known."""
        amounts = {
            "cost": self.spot_usd if spot else self.usd,
            "time": self.wall_s,
            "energy": self.energy_j,
            "memory": self.memory_bytes,
        }
        return amounts[objective]


class Variant(NamedTuple):
    """The run with one change."""

    switch: str
    changes: Changes  # fields with their new values; those that only follow from them included
    standing: Standing
    breaks: tuple[str, ...]  # what the change asks for in return


class Refused(NamedTuple):
    """A switch that changes nothing here, or that the run cannot have."""

    switch: str
    reason: str


class WhatIf(NamedTuple):
    """The run as it is, and with each change; the largest gain first."""

    base: Standing
    variants: tuple[Variant, ...]
    refused: tuple[Refused, ...]
    minimise: str
    spot: bool
    assumed_samples: int | None  # None where the run's own length is known

    def change_fraction(self, variant: Variant, objective: str) -> float | None:
        """Return by what share a change moves a figure: -0.2 is a fifth less; None if not known."""
        before = self.base.amount(objective, spot=self.spot)
        after = variant.standing.amount(objective, spot=self.spot)
        return None if before is None or after is None or not before else after / before - 1.0

    def gains(self, variant: Variant) -> bool:
        """Return whether a change saves anything that is worth a line."""
        changes = (self.change_fraction(variant, objective) for objective in OBJECTIVES)
        return any(change is not None and change <= -LEAST_GAIN_FRACTION for change in changes)


def what_if(
    run: "Run",
    names: Sequence[str] = (),
    *,
    minimise: str = "cost",
    spot: bool = False,
    risk_fraction: float = RISKY_FROM_FRACTION,
    estimator: Estimator | None = None,
) -> WhatIf:
    """Return what each change would do to `run`, which states its GPU.

    Args:
        run: The question.
        names: Switches, GPUs, or "field=value"; every switch and a few GPUs where none is named.
        minimise: The figure to sort by: cost, time, energy or memory.
        spot: Whether cost means spot prices.
        risk_fraction: The probability of running out of memory from which a run counts as failing.
        estimator: Who says what a step takes; FineGauge's prediction by default.

    Raises: UnknownNameError for a name that is neither a switch nor a GPU.
    """
    switches = [_switch(name) for name in names] or [*SWITCHES, *map(gpu_switch, OTHER_GPUS)]
    sized, assumed = with_known_length(run)
    base = standing(sized, estimator)
    tried = [_tried(switch, base, estimator) for switch in switches]
    refused = tuple(one for one in tried if isinstance(one, Refused))
    whole = WhatIf(base, (), refused, minimise, spot, assumed)

    def place(variant: Variant) -> tuple[bool, float]:
        change = whole.change_fraction(variant, minimise)
        fails = variant.standing.out_of_memory_fraction >= risk_fraction
        return fails, change if change is not None else float("inf")

    variants = sorted((one for one in tried if isinstance(one, Variant)), key=place)
    return whole._replace(variants=tuple(variants))


def with_known_length(run: "Run") -> tuple["Run", int | None]:
    """Return `run` with a number of samples, and that number where it had to be assumed."""
    from finegauge.data.batch_shape import shape

    if shape(run).steps_total is not None:
        return run, None
    return run.replace(origin="assumed to compare", num_samples=ASSUMED_SAMPLES), ASSUMED_SAMPLES


def standing(run: "Run", estimator: Estimator | None = None) -> Standing:
    """Return what `run`, whose length is known, takes."""
    from finegauge.data.batch_shape import shape
    from finegauge.prediction.predictor import predict

    profile = (estimator or predict)(run)
    bill = quote(run, profile)
    on_demand, spot = bill.cheapest_on_demand, bill.cheapest_spot
    steps = run.gradient_accumulation_steps * run.data_parallel
    return Standing(
        run=run,
        memory_bytes=profile.device_memory_bytes.total,
        capacity_bytes=profile.capacity_bytes,
        out_of_memory_fraction=probability_out_of_memory(profile),
        step_time_s=profile.step_time_s.total,
        samples_per_step=steps * shape(run).samples,
        wall_s=bill.wall_s or 0.0,
        usd=on_demand.on_demand_usd if on_demand else None,
        spot_usd=spot.spot_usd if spot else None,
        energy_j=bill.wall_energy_j,
        emissions_kg=bill.emissions_kg,
    )


def _switch(name: str) -> Switch:
    """Return the switch called `name`: one of the table, a field with its value, or a GPU."""
    from finegauge.catalogue.gpus import gpus

    if "=" in name:
        return field_switch(name.strip())
    named = switch_named(name)
    if named is not None:
        return named
    try:
        return gpu_switch(name)
    except InputError:
        known = [*known_switches(), *gpus()]
        raise UnknownNameError("switch", name, known=known, listing="finegauge whatif --list") from None


def _tried(switch: Switch, base: Standing, estimator: Estimator | None) -> Variant | Refused:
    """Return the run with one change, or why there is none."""
    run = base.run
    try:
        changes = switch.change(run)
        if isinstance(changes, str):
            return Refused(switch.name, changes)
        changed = _as_long(run, run.replace(origin="whatif", **changes), base)
        found = standing(changed, estimator)
    except (FieldError, UnsupportedError) as error:
        return Refused(switch.name, str(error))
    if changed == run:
        return Refused(switch.name, "the run has it already")
    return Variant(switch.name, _differences(run, changed), found, tuple(_breaks(switch, base, found)))


def _as_long(run: "Run", changed: "Run", base: Standing) -> "Run":
    """Return `changed` with as many samples as `run`, where steps are what is stated."""
    from finegauge.data.batch_shape import shape

    if run.max_steps is None or changed.max_steps != run.max_steps:
        return changed
    per_step = changed.gradient_accumulation_steps * changed.data_parallel * shape(changed).samples
    steps = max(1, round(run.max_steps * base.samples_per_step / per_step))
    return changed if steps == run.max_steps else changed.replace(origin="whatif", max_steps=steps)


def _differences(run: "Run", changed: "Run") -> dict[str, Any]:
    """Return the fields in which two runs differ, with the values of the second that mean anything to it."""
    before, idle = run.fields(), () if changed.trains_adapters else LORA_FIELDS
    return {
        name: value for name, value in changed.fields().items() if value != before[name] and name not in idle
    }


def _breaks(switch: Switch, base: Standing, found: Standing) -> Iterable[str]:
    """Yield what a change asks for in return: the switch's own, and another batch."""
    if switch.breaks:
        yield switch.breaks
    before, after = base.samples_per_step, found.samples_per_step
    if abs(after / before - 1.0) > LEAST_GAIN_FRACTION:
        yield f"a step has {after:,.0f} samples, not {before:,.0f}"
