"""The whole JSON answer to each question about runs.

It is what `--json` prints, what assistants are told and what the local server sends: one function each, so
that they cannot differ.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.report.json_form import (
    SCHEMA_VERSION,
    capacity_json,
    document,
    estimate_json,
    explain_json,
    unsupported_json,
    verdict_json,
)

if TYPE_CHECKING:
    from finegauge.plan.capacity import Capacity
    from finegauge.plan.estimate import Estimate
    from finegauge.workload.run import Run


def estimate_answer(asked: "Run", estimates: "Sequence[Estimate]", unsupported: Mapping[str, str]) -> str:
    """Return memory, time, cost and energy, once per GPU; last the GPUs that have no answer, with why."""
    results = [estimate_json(one) for one in estimates]
    results += [unsupported_json(name, reason) for name, reason in unsupported.items()]
    return document("estimate", asked, results)


def check_answer(estimates: "Sequence[Estimate]") -> str:
    """Return whether a run fits, once per GPU."""
    return document("check", estimates[0].run, [verdict_json(one) for one in estimates])


def explain_answer(estimates: "Sequence[Estimate]") -> str:
    """Return every byte and second with its formula, once per GPU."""
    from finegauge.predict.formulas import formulas

    return document("explain", estimates[0].run, [explain_json(one, formulas(one.run)) for one in estimates])


def capacity_answer(command: str, found: "Sequence[tuple[Run, Capacity]]") -> str:
    """Return the largest value that fits, once per GPU; `command` is max-batch or max-length."""
    results = [capacity_json(str(run.gpu), capacity) for run, capacity in found]
    return document(command, found[0][0], results)


def read_answer(content: Mapping[str, Any]) -> str:
    """Return what files mean: `results`, and what was exported."""
    from finegauge import __version__

    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "read",
        "finegauge_version": __version__,
        **content,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def read_result(file: str, run: "Run") -> dict[str, Any]:
    """Return one run as plain values; a name that the catalogue lacks is a warning here."""
    from finegauge.errors import FineGaugeError

    warnings = list(run.warnings)
    try:
        run.check_names()
    except FineGaugeError as error:
        warnings.append(str(error))
    origins = {name: run.origins.get(name, "") for name in run.fields()}
    return {"file": file, "run": run.fields(), "origins": origins, "warnings": warnings}
