"""Read profiles and plans back from what a command printed with `--json`, to make a report of them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from finegauge.answers.estimate import EstimateAnswer, GpuEstimate, Unsupported
from finegauge.answers.plan import PlanAnswer
from finegauge.answers.profile import profile_of
from finegauge.documents import read_document
from finegauge.errors import FileFormatError, InputError, shown
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Profile
from finegauge.render.json import decoded
from finegauge.run.run import FIELDS
from finegauge.store.document import run_of

if TYPE_CHECKING:
    from finegauge.run.run import Run

MOST_BYTES = 64 * 2**20
KNOWN = ("plan", "estimate", "explain", "measure")


def document_of(path: str) -> dict[str, Any] | None:
    """Return what a FineGauge command wrote to `path`; None for any other file.

    Raises: InputError for a document of a command whose answers make no report.
    """
    if not path.endswith(".json") or not os.path.isfile(path):
        return None
    try:
        found = read_document(path, MOST_BYTES)
    except FileFormatError:
        return None
    if not isinstance(found, dict) or "command" not in found or "schema_version" not in found:
        return None
    if found["command"] not in KNOWN:
        raise InputError(
            f"{shown(path)} is what 'finegauge {str(found['command'])[:40]} --json' printed, which has no "
            f"report; give one of {', '.join(KNOWN)}, a run, a journal of 'measure --store' or a "
            "campaign's folder."
        )
    return found


def profiles_in(document: Mapping[str, Any], path: str) -> Iterator[tuple[Profile, Prediction]]:
    """Yield every profile of an answer of measure, with what was predicted beside it.

    Raises: FileFormatError where the document lacks what it needs.
    """
    with _refusing(path, "is no whole answer of FineGauge"):
        for result in document["results"]:
            if "measured" in result:
                run = _run(document, result.get("gpu"))
                predicted = result.get("predicted")
                beside = None if predicted is None else profile_of(predicted, run)
                said = Prediction(beside, {}, {}, str(result.get("not_predicted") or ""))
                ended = {"outcome": result["outcome"], "reason": result.get("reason", "")}
                yield profile_of(result["measured"] | ended, run), said


def estimates_in(document: Mapping[str, Any], path: str) -> EstimateAnswer:
    """Return the answer of estimate or explain that a document holds.

    Raises: FileFormatError where it lacks what it needs.
    """
    with _refusing(path, "is no whole answer of FineGauge"):
        results = tuple(
            decoded(GpuEstimate | Unsupported, one, _run(document, one["gpu"])) for one in document["results"]
        )
        return EstimateAnswer(_run(document, None), results)


def plan_in(document: Mapping[str, Any], path: str) -> PlanAnswer:
    """Return the plan that a document holds.

    Raises: FileFormatError where it lacks what it needs.
    """
    run = run_in(document, path)
    with _refusing(path, "is no whole plan of FineGauge"):
        found: PlanAnswer = decoded(PlanAnswer, {**document, "run": run}, run)
        winner = found.winner
        if winner is None or winner.profile is None:
            return found
        planned = _run({"run": winner.run}, None)
        profile = profile_of(document["results"][0]["profile"], planned)
        return found._replace(results=(winner._replace(profile=profile),))


def run_in(document: Mapping[str, Any], path: str) -> "Run":
    """Return the run that a document asks about."""
    with _refusing(path, "states no whole run"):
        return _run(document, None)


@contextmanager
def _refusing(path: str, said: str) -> Iterator[None]:
    """Raise FileFormatError where a document lacks what it needs."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise FileFormatError(f"{shown(path)} {said}: {error!r}.") from None


def _run(document: Mapping[str, Any], gpu: str | None) -> "Run":
    stated = dict(document["run"])
    if gpu is not None:
        stated["gpu"] = gpu
    origins = {name: str(origin) for name, origin in document.get("origins", {}).items() if name in FIELDS}
    return run_of(
        {"fields": stated, "origins": origins, "warnings": list(map(str, document.get("warnings", ())))}
    )
