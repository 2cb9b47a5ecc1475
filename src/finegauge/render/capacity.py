"""What `finegauge max-batch` and `finegauge max-length` print: one row per GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finegauge.planning.capacity import Capacity, MeasuredCapacity
from finegauge.render import number_format as fmt
from finegauge.render.terminal import columns, paint
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.run.run import Run

TITLES = {"micro_batch_size": "Largest micro-batch", "seq_len": "Longest sequence"}


def capacity_lines(found: Sequence[tuple["Run", Capacity]]) -> list[str]:
    """Return the largest value per GPU, with the memory on both sides of the border."""
    field = found[0][1].field
    lines = []
    if len(found) == 1:
        run, capacity = found[0]
        lines = [paint(f"{TITLES[field]} on {run.gpu}: {_value(capacity)}", "bold"), ""]
    headings = ["GPU", field, "memory", "usable", "one more needs", "s/step", "tokens/s", "queries/s"]
    lines += columns(headings, [_row(run, capacity) for run, capacity in found])
    return [*lines, *_notes(found)]


def _value(capacity: Capacity) -> str:
    """Return the value, with a sign where the search stopped at its limit."""
    return f"{'≥ ' if capacity.at_limit else ''}{capacity.value:,}"


def _row(run: "Run", capacity: Capacity) -> list[str]:
    """Return one GPU's row."""
    profile, above = capacity.profile, capacity.first_that_fails
    known = profile or above
    return [
        str(run.gpu),
        paint(_value(capacity), "bold"),
        gib(profile.device_memory_bytes.total) if profile else fmt.UNKNOWN,
        gib(known.capacity_bytes) if known else fmt.UNKNOWN,
        gib(above.device_memory_bytes.total) if above else fmt.UNKNOWN,
        fmt.digits(profile.step_time_s.total) if profile else fmt.UNKNOWN,
        fmt.digits(profile.tokens_per_s) if profile else fmt.UNKNOWN,
        fmt.digits(profile.samples_per_s) if profile else fmt.UNKNOWN,
    ]


def _notes(found: Sequence[tuple["Run", Capacity]]) -> list[str]:
    """Return what a reader has to know about a border."""
    run, capacity = found[0]
    if capacity.field == "micro_batch_size":
        return []
    notes = [f"Every sequence counts as that long, micro_batch_size={run.micro_batch_size}."]
    trained = run.config.get("max_position_embeddings")
    if isinstance(trained, int) and max(c.value for _, c in found) > trained:
        notes.append(f"The model was built for {trained:,} positions (max_position_embeddings).")
    return [paint(" ".join(notes), "dim")]


def measured_capacity_lines(run: "Run", found: MeasuredCapacity, allowed_bytes: float) -> list[str]:
    """Return the largest micro-batch that a trial has shown to fit, and every trial."""
    capacity, bounds = found.capacity, found.bounds
    where = f" within {fmt.size(allowed_bytes)}" if allowed_bytes else ""
    lines = [paint(f"Largest micro-batch measured{where}: {_value(capacity)}", "bold")]
    lines.append(
        f"Predicted: {bounds.low:,} surely fits, {bounds.likely:,} probably, {bounds.high:,} surely does not."
    )
    if found.untried:
        lines.append(f"{found.untried:,} sizes above it were not tried.")
    rows = [
        [
            f"  {trial.run.micro_batch_size:,}",
            trial.outcome.replace("_", " "),
            fmt.size(trial.peak_memory_bytes.total) if trial.peak_memory_bytes.parts else fmt.UNKNOWN,
            fmt.duration(trial.step_time_s.total) if trial.fits else fmt.UNKNOWN,
        ]
        for trial in found.trials
    ]
    return [*lines, "", *columns(["  micro_batch_size", "outcome", "peak", "a step"], rows, left=2)]
