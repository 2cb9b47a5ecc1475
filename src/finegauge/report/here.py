"""`finegauge validate --here` on the terminal: a line per configuration, the medians and their bars."""

from collections.abc import Iterator

from finegauge.validate.here import (
    MEMORY_BAR_FRACTION,
    TIME_BAR_FRACTION,
    HereValidation,
    Trial,
    describe,
)

MIB = float(2**20)
NOTICED = 0.02  # of the measured time


def here_lines(validation: HereValidation) -> Iterator[str]:
    """Yield the table of a validation on this machine."""
    yield f"{validation.device}, seed {validation.seed}: predicted from single operators, then measured"
    yield ""
    yield f"{'step predicted':>14}  {'measured':>9}  {'error':>7}  {'peak predicted':>14}  {'error':>7}  run"
    for trial in validation.trials:
        yield _line(trial)
    yield ""
    if validation.step_time_error is None or validation.peak_memory_error is None:
        yield "No trial was completed."
        return
    waited = max((trial.waited_fraction for trial in validation.complete), default=0.0)
    if waited > NOTICED:
        yield (
            f"Other programs had the processor for up to {100 * waited:.0f} % of the measured time; "
            "it is taken off. A quiet machine gives better figures."
        )
    yield _median("step time", validation.step_time_error, TIME_BAR_FRACTION)
    yield _median("peak memory", validation.peak_memory_error, MEMORY_BAR_FRACTION)


def _line(trial: Trial) -> str:
    """Return one configuration."""
    step_s, peak = trial.predicted.step_time_s.total, trial.predicted.peak_memory_bytes.total / MIB
    if not trial.complete:
        what = f"{trial.measured.outcome}, {trial.measured.reason}"
        return f"{1e3 * step_s:11.1f} ms  {describe(trial.run)}: {what}"
    return (
        f"{1e3 * step_s:11.1f} ms  {1e3 * trial.measured_s:6.1f} ms  {100 * trial.step_time_error:+5.1f} %  "
        f"{peak:10.1f} MiB  {100 * trial.peak_memory_error:+5.2f} %  {describe(trial.run)}"
    )


def _median(what: str, error: float, bar: float) -> str:
    """Return one median with its bar."""
    word = "within" if error <= bar else "above"
    return f"median error of {what}: {100 * error:.2f} %, {word} {100 * bar:g} %"
