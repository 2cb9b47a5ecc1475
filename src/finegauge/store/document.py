"""A Profile as JSON and back without loss: every field, the run with its origins, every step's seconds.

`answers.profile` is for readers; here paths stay lists of names, and NaN and infinities, which
JSON cannot write, become {"float": "nan"}.
"""

import math
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FileFormatError, FineGaugeError
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.run.run import FIELDS, FROM_DEFAULT, Run

BREAKDOWNS = (
    "peak_memory_bytes", "device_memory_bytes", "phase_memory_bytes", "step_time_s", "step_energy_j",
)  # fmt: skip
NOT_FINITE = "float"


def profile_document(profile: Profile) -> dict[str, Any]:
    """Return `profile` as JSON values that `profile_of` reads back as an equal profile."""
    written = profile._asdict()
    del written["explanation"]  # computed again where it is read
    written |= {"run": run_document(profile.run), "source": profile.source._asdict()}
    for name in BREAKDOWNS:
        written[name] = [[list(path), amount] for path, amount in written[name].parts.items()]
    return {name: plain(value) for name, value in written.items()}


def profile_of(document: Mapping[str, Any]) -> Profile:
    """Return the profile that `document` holds.

    Raises: FileFormatError where it is no profile.
    """
    try:
        values = {name: _restored(value) for name, value in document.items()}
        values["run"] = run_of(document["run"])
        values["source"] = _source(values["source"])
        for name in BREAKDOWNS:
            parts = values.get(name, [])
            values[name] = Breakdown({tuple(path): float(amount) for path, amount in parts})
        values["step_times_s"] = tuple(values.get("step_times_s", ()))
        return Profile(**values)
    except FineGaugeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"This is no profile that FineGauge wrote: {error!r}.") from None


def run_document(run: Run) -> dict[str, Any]:
    """Return every field of `run`, where each comes from (defaults are left out), and its warnings."""
    return {
        "fields": plain(run.fields()),
        "origins": {name: origin for name, origin in run.origins.items() if origin != FROM_DEFAULT},
        "warnings": list(run.warnings),
    }


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run that `document` holds.

    Each field is checked by itself; what follows from other fields was settled when the run was
    made, so that a run can be read where its model's files are not.
    """
    stated = document["fields"]
    run = object.__new__(Run)
    for name, field in FIELDS.items():
        value = stated.get(name, field.default)
        object.__setattr__(run, name, None if value is None else field(name, value))
    object.__setattr__(run, "origins", dict.fromkeys(FIELDS, FROM_DEFAULT) | document["origins"])
    object.__setattr__(run, "warnings", tuple(document["warnings"]))
    return run


def _source(values: Mapping[str, Any]) -> Source:
    intervals = {name: values.get(name) for name in ("memory_interval", "time_interval")}
    return Source(
        kind=values["kind"],
        name=values["name"],
        assumptions=tuple(values.get("assumptions", ())),
        **{name: None if pair is None else Interval(*pair) for name, pair in intervals.items()},
    )


def plain(value: Any) -> Any:
    """Return `value` as JSON values."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NOT_FINITE: str(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _restored(value: Any) -> Any:
    """Return `value` with the numbers that JSON has not."""
    if isinstance(value, dict):
        if value.keys() == {NOT_FINITE} and isinstance(value[NOT_FINITE], str):
            return float(value[NOT_FINITE])
        return {key: _restored(item) for key, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value
