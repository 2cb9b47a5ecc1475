"""Measure a run: one trial in its own process, and how it ended as a Profile.

Whatever happens to the trial is an outcome, not an exception: out_of_memory with the
evidence, failed with the reason, unsupported, interrupted. With a store, a line stands on
the disk before the trial is launched, and exactly one after it has ended.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import current_thread, main_thread

from finegauge.errors import UnsupportedError
from finegauge.measurement.endpoint_client import check_options
from finegauge.measurement.endpoint_trial import measure_endpoint
from finegauge.measurement.options import Options
from finegauge.measurement.process import OUT_OF_MEMORY, Ended, run_trial
from finegauge.profile import Profile, Source
from finegauge.progress import Heard
from finegauge.run.run import Run
from finegauge.store.document import profile_of, run_document
from finegauge.store.journal import Trials

SOURCE = "measured"
DEFAULTS = Options()
UNCAUGHT = ("bad_alloc", "MemoryError", "OutOfMemoryError")  # exceptions of an allocation that fails


def measure(
    run: Run, options: Options = DEFAULTS, *, heard: Heard | None = None, store: str | None = None
) -> Profile:
    """Return the measured profile of `run`, whatever came of it; its model, data and batch are really built.

    `store` is a journal that keeps the outcome, made where it is missing.

    Raises: UnsupportedError without PyTorch; InputError where the store cannot be written, or for an
        endpoint that is none.
    """
    if options.endpoint:
        check_options(options)
    elif find_spec("torch") is None:
        raise UnsupportedError(
            "Measuring needs PyTorch: pip install 'finegauge[measure]'. Predicting works without it."
        )
    trials = None if store is None else Trials(store)
    trial = ""
    if trials is not None:
        trials.recover()
        trial = trials.start(run, options._asdict())
    profile = without_result(run, "failed", "FineGauge itself failed while it waited for the trial")
    try:
        profile = (
            measure_endpoint(run, options, heard=heard) if options.endpoint else _here(run, options, heard)
        )
    except KeyboardInterrupt:
        profile = without_result(run, "interrupted", "Ctrl-C")
        raise
    finally:
        if trials is not None:
            with _undisturbed():
                trials.end(trial, profile)
    return profile


def _here(run: Run, options: Options, heard: Heard | None) -> Profile:
    ended = run_trial(
        {"run": run_document(run), "options": options._asdict()},
        timeout_s=options.timeout_s,
        limited=options.memory_limit_bytes > 0 or options.moments,
        heard=heard,
    )
    return profile_of(ended.answer) if ended.answer else without_answer(run, options, ended)


def without_result(run: Run, outcome: str, reason: str) -> Profile:
    """Return the profile of a trial that brought no data."""
    return Profile(run=run, source=Source(SOURCE, "this machine"), outcome=outcome, reason=reason)


def without_answer(run: Run, options: Options, ended: Ended) -> Profile:
    """Return the profile of a trial whose process went without an answer, by the evidence that it left."""
    if ended.timed_out:
        return without_result(run, "failed", f"not done after {options.timeout_s:g} s")
    said = ended.printed.strip().splitlines()
    last = f": {said[-1].strip()[:300]}" if said else ""
    if ended.kernel_killed and ended.code == -signal.SIGKILL:
        return without_result(run, "out_of_memory", "killed by the OOM killer")
    if any(words in ended.printed for words in (*OUT_OF_MEMORY, *UNCAUGHT)):
        return without_result(run, "out_of_memory", f"the process ended{last}")
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return without_result(run, "failed", f"the trial's process was killed by {name}{last}")
    return without_result(run, "failed", f"the trial's process ended with exit code {ended.code}{last}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
