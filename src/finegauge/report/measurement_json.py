"""The JSON of `finegauge measure`; `report/schemas/measure.schema.json` is its schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finegauge.profile import Difference, Profile, compare
from finegauge.report.json_form import document
from finegauge.store.document import plain


def measurement_json(measured: Profile, predicted: Profile | None, missing: str = "") -> str:
    """Return the whole JSON text: the question, the step as measured, as predicted, and the differences."""
    return measurements_json([(measured, predicted, missing)])


def measurements_json(found: Sequence[tuple[Profile, Profile | None, str]]) -> str:
    """Return the whole JSON text about (measured, predicted, why not), one of them or several loads."""
    results = [json.loads(json.dumps(plain(_result(*one)))) for one in found]
    return document("measure", found[0][0].run, results)


def _result(measured: Profile, predicted: Profile | None, missing: str) -> dict[str, Any]:
    """Return one measurement, its prediction and their differences."""
    return {
        "gpu": measured.run.gpu,
        "outcome": measured.outcome,
        "reason": measured.reason,
        "measured": measured_json(measured),
        "predicted": None if predicted is None else predicted.to_json(),
        "not_predicted": missing,
        "differences": [] if predicted is None else [_difference(d) for d in compare(predicted, measured)],
    }


def measured_json(measured: Profile) -> Mapping[str, Any]:
    """Return a measured profile: what every profile has, every step's seconds, machine and instruments."""
    return {
        **measured.to_json(),
        "step_energy_j": measured.step_energy_j.total if measured.step_energy_j.parts else None,
        "peak_memory_breakdown_bytes": measured.peak_memory_bytes.to_json(),
        "phase_memory_breakdown_bytes": measured.phase_memory_bytes.to_json(),
        "step_times_s": list(measured.step_times_s),
        "step_tokens": measured.step_tokens,
        "step_sequences": measured.step_sequences,
        "fingerprint": dict(measured.fingerprint),
        "observations": measured.observations,
    }


def _difference(one: Difference) -> dict[str, Any]:
    """Return one quantity at one path, predicted against measured."""
    return {
        "quantity": one.quantity,
        "path": list(one.path),
        "predicted": one.ours,
        "measured": one.theirs,
        "error_ratio": one.error_ratio,
    }
