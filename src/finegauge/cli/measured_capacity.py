"""`finegauge max-batch --measured`: the largest micro-batch by trials on this machine."""

import gc
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from finegauge.cli.measure import byte_size, progress
from finegauge.cli.question import say, stated_alongside
from finegauge.errors import UnsupportedError

if TYPE_CHECKING:
    from finegauge.measure.options import Options
    from finegauge.measure.process import Heard
    from finegauge.profile import Profile
    from finegauge.workload.run import Run

SPARE_FRACTION = 0.1  # of the memory that is free: left to whatever else runs on this machine


def show_measured(
    run_file: str,
    overrides: Iterable[str],
    *,
    device: str,
    size: str,
    limit: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Print the largest micro-batch that a trial has shown to fit."""
    from finegauge.measure.options import Options
    from finegauge.plan.here import memory_estimator
    from finegauge.plan.measured_capacity import measured_max_micro_batch_size
    from finegauge.workload.readers import read

    gc.enable()
    run = read(run_file, tuple(overrides), stated_alongside())
    allowed = byte_size(size) if size else 0.0
    if device == "cpu" and not allowed:
        allowed = (1 - SPARE_FRACTION) * available_bytes()
    options = Options(device=device, steps=1, warmup_steps=1, memory_limit_bytes=allowed)
    with progress() as heard, memory_estimator(run, device) as predict:
        found = measured_max_micro_batch_size(
            run,
            _measuring(options, heard, store),
            predict,
            capacity_bytes=allowed or predict(run).capacity_bytes,
            limit=limit,
        )
    failed = next((trial for trial in found.trials if trial.outcome in ("failed", "unsupported")), None)
    if failed is not None:
        raise UnsupportedError(f"A trial brought no answer: {failed.reason}.")
    if as_json:
        from finegauge.report.json_form import document, measured_capacity_json

        say(document("max-batch", run, [measured_capacity_json(found)]))
    else:
        from finegauge.report.capacity import measured_capacity_lines

        say(measured_capacity_lines(run, found, allowed))


def available_bytes() -> float:
    """Return the memory that programs could still allocate without swapping."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _measuring(options: "Options", heard: "Heard | None", store: str | None) -> "Callable[[Run], Profile]":
    """Return the Estimator that runs a trial."""
    from finegauge.measure.measure import measure

    return lambda run: measure(run, options, heard=heard, store=store)
