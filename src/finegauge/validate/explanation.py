"""Why a prediction may be far off: what it rests on, in one sentence."""

from finegauge.units import GIB
from finegauge.validate.answer import Answer


def explanation(one: Answer) -> str:
    """Return what dominates the prediction of a row, and what was guessed."""
    profile, row = one.profile, one.row
    if profile is None or one.prediction is None:
        return one.reason
    parts = []
    time_error, memory_error = one.step_time_error, one.peak_memory_error
    if time_error is not None and abs(time_error) >= abs(memory_error or 0.0):
        from finegauge.predict.bottleneck import bottleneck

        parts.append(f"Most of the step by our account: {bottleneck(profile)}")
    elif memory_error is not None:
        path, size = next(iter(profile.peak_memory_bytes))
        most = f"most of it {' '.join(path)} ({size / GIB:.1f} GiB)"
        parts.append(f"Our peak is in phase '{profile.peak_phase}', {most}.")
        if row.measured.memory_metric == "unknown":
            parts.append("The table does not say how it counts memory.")
    if row.lengths != "full":
        known = "their mean is known" if row.lengths == "mean" else "only the cut-off is known"
        parts.append(f"Lengths vary and {known}.")
    if row.assumptions:
        parts.append(f"Guessed: {'; '.join(row.assumptions)}.")
    return " ".join(parts)
