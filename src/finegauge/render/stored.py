"""Profiles and plans out of what a command printed under `--json`, as far as a report shows them."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from finegauge.errors import FileFormatError, InputError, shown
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.store.document import run_of

if TYPE_CHECKING:
    from finegauge.run.run import Run

MOST_BYTES = 64 * 2**20
SEPARATOR = " / "
ALL = "all"  # the one part of what is known as a whole alone
KNOWN = ("plan", "estimate", "explain", "measure")


def document_of(path: str) -> dict[str, Any] | None:
    """Return what a FineGauge command wrote to `path`; None for any other file.

    Raises: InputError for a document of a command whose answers make no report.
    """
    if not path.endswith(".json") or not os.path.isfile(path) or os.path.getsize(path) > MOST_BYTES:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "command" not in found or "schema_version" not in found:
        return None
    if found["command"] not in KNOWN:
        raise InputError(
            f"{shown(path)} is what 'finegauge {str(found['command'])[:40]} --json' printed, of which no "
            f"report is made; give one of {', '.join(KNOWN)}, a run, a journal of 'measure --store' or a "
            "campaign's folder."
        )
    return found


def profiles_in(document: Mapping[str, Any], path: str) -> Iterator[tuple[Profile, Prediction]]:
    """Yield every profile of an answer of estimate, explain or measure, with what was predicted beside it.

    Raises: FileFormatError where the document lacks what it needs.
    """
    try:
        for result in document["results"]:
            if "profile" in result:
                profile = profile_from(result["profile"], _run(document, result.get("gpu")))
                paths = {tuple(k.split(SEPARATOR)): v for k, v in result.get("formulas", {}).items()}
                yield profile, Prediction(profile, paths, {})
            elif "measured" in result:
                run = _run(document, result.get("gpu"))
                predicted = result.get("predicted")
                beside = None if predicted is None else profile_from(predicted, run)
                said = Prediction(beside, {}, {}, str(result.get("not_predicted") or ""))
                measured = result["measured"] | {
                    "outcome": result["outcome"],
                    "reason": result.get("reason", ""),
                }
                yield profile_from(measured, run), said
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{shown(path)} is no whole answer of FineGauge: {error!r}.") from None


def results_in(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the answers of a document, one per GPU."""
    return [one for one in document["results"] if isinstance(one, dict) and "verdict" in one]


def run_in(document: Mapping[str, Any], path: str) -> "Run":
    """Return the run that a document asks about."""
    try:
        return _run(document, None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{shown(path)} states no whole run: {error!r}.") from None


def profile_from(values: Mapping[str, Any], run: "Run") -> Profile:
    """Return the profile that `Profile.to_json` or a measurement wrote; what it lacks stays empty."""
    rate, step_s = float(values.get("tokens_per_s") or 0.0), float(values.get("step_time_s") or 0.0)
    mfu = float(values.get("mfu_fraction") or 0.0)
    return Profile(
        run=run,
        source=Source(
            kind=str(values["source"]["kind"]),
            name=str(values["source"]["name"]),
            memory_interval=_interval(values, "device_memory_bytes"),
            time_interval=_interval(values, "step_time_s"),
            assumptions=tuple(map(str, values.get("assumptions", ()))),
        ),
        outcome=str(values.get("outcome", "completed")),
        reason=str(values.get("reason", "")),
        peak_memory_bytes=_parts(values, "peak_memory_breakdown_bytes", "peak_memory_bytes"),
        device_memory_bytes=_parts(values, "memory_breakdown_bytes", "device_memory_bytes"),
        cached_bytes=float(values.get("cached_bytes") or 0.0),
        peak_phase=str(values.get("peak_phase", "")),
        step_time_s=_parts(values, "time_breakdown_s", "step_time_s"),
        step_energy_j=_parts(values, "", "step_energy_j"),
        step_tokens=rate * step_s,
        step_sequences=float(values.get("samples_per_s") or 0.0) * step_s,
        step_flops=mfu * step_s * run.num_gpus,  # of a peak of 1, so that their ratio is what was said
        peak_flops_per_s=1.0 if mfu else 0.0,
        host_bound_fraction=float(values.get("host_bound_fraction") or 0.0),
        capacity_bytes=float(values.get("capacity_bytes") or 0.0),
        step_times_s=tuple(values.get("step_times_s", ())),
        fingerprint=dict(values.get("fingerprint", {})),
        observations=dict(values.get("observations", {})),
    )  # fmt: skip


def _run(document: Mapping[str, Any], gpu: str | None) -> "Run":
    """Return the run of a document, on the GPU of one of its results."""
    stated = dict(document["run"])
    if gpu is not None:
        stated["gpu"] = gpu
    origins, warnings = document.get("origins", {}), document.get("warnings", ())
    return run_of({"fields": stated, "origins": dict(origins), "warnings": list(warnings)})


def _parts(values: Mapping[str, Any], parts: str, total: str) -> Breakdown:
    """Return a breakdown, or its total alone where that is all that was said."""
    named = values.get(parts) or {}
    if named:
        return Breakdown({tuple(name.split(SEPARATOR)): float(value) for name, value in named.items()})
    whole = values.get(total)
    return Breakdown({(ALL,): float(whole)}) if whole else Breakdown({})


def _interval(values: Mapping[str, Any], name: str) -> Interval | None:
    """Return the 10th and 90th percentile of a quantity, where they were said."""
    low, high, middle = values.get(f"{name}_p10"), values.get(f"{name}_p90"), values.get(name)
    return None if low is None or high is None or not middle else Interval(low / middle, high / middle)
