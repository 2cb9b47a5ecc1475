"""Answers as JSON: the keys are the names of an answer's fields, nested as its types are.

    tuple of values -> list      mapping by path -> "a / b / c": value      Breakdown -> its parts by path

What differs from that is stated by `answers.Rules`.
`render.schema` derives the JSON schema from the same types. What a command wrote is read back by them, to
make a report of it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from finegauge import __version__
from finegauge.answers import rules_of
from finegauge.answers.estimate import EstimateAnswer, GpuEstimate, Unsupported
from finegauge.answers.profile import breakdown_of, figures_of, profile_of
from finegauge.documents import MAX_NUMBER, json_text, read_document
from finegauge.errors import FileFormatError, InputError, shown
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Breakdown, Profile
from finegauge.run.run import FIELDS, Run
from finegauge.store.document import run_of

if TYPE_CHECKING:
    from finegauge.answers.plan import PlanAnswer

SCHEMA_VERSION = 1
MOST_BYTES = 64 * 2**20
KNOWN = ("plan", "estimate", "explain", "measure")  # whose answers make a report


def document(command: str, answer: Any) -> str:
    """Return the JSON text of an answer: which command it is of, the run it is about, then its fields."""
    whole = {"schema_version": SCHEMA_VERSION, "command": command, "finegauge_version": __version__}
    return json_text(whole | encoded(answer))


def lines(command: str, answer: Any, rows: Iterable[str]) -> Iterator[str]:
    """Yield the lines of `document`, where `rows` of JSON fill the empty list in which an answer ends."""
    line, comma = document(command, answer).removesuffix("]\n}"), ""
    for row in rows:
        yield line + comma
        line, comma = f"    {row}", ","
    yield line + ("\n  ]\n}" if comma else "]\n}")


def encoded(value: Any) -> Any:
    """Return an answer, or a part of one, as what JSON knows."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Breakdown):
        return value.to_json()
    if isinstance(value, Profile):
        value = figures_of(value)
    if hasattr(value, "_asdict"):
        return _fields(value)
    if isinstance(value, Mapping):
        return {" / ".join(k) if isinstance(k, tuple) else k: encoded(item) for k, item in value.items()}
    return [encoded(item) for item in value]


def _fields(value: Any) -> dict[str, Any]:
    rules = rules_of(type(value))
    found: dict[str, Any] = {}
    for name, item in value._asdict().items():
        if name in rules.hidden or (item is None and name in rules.absent):
            continue
        if isinstance(item, Run):
            found |= question(item)
        elif name in rules.flat:
            found |= encoded(item)
        else:
            found[name] = encoded(item[: rules.most[name]] if name in rules.most else item)
    return found


def question(run: Run) -> dict[str, Any]:
    """Return the run that an answer is about: every field but the GPU, who stated it, what was odd."""
    fields = encoded(run.fields())
    del fields["gpu"]
    return {"run": fields, "origins": dict(run.origins), "warnings": list(run.warnings)}


def decoded(kind: Any, value: Any, run: Any) -> Any:
    """Return what `encoded` wrote of a type; what it leaves out has its default.

    `run` is the `Run` that a profile in it is of; None where there is no profile.

    Raises: KeyError, TypeError, ValueError where the value is none of that type.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if value is not None and origin in (Union, UnionType):
        kind = next((one for one in inner if _may_be(one, value)), inner[0])
        origin, inner = get_origin(kind), get_args(kind)
    if isinstance(value, Run) or kind is Any or (value is None and NoneType in inner):
        return value
    if kind in _PLAIN or origin is Literal:
        return _plain(kind, value)
    if kind in (Profile, Breakdown):
        return profile_of(value, run) if kind is Profile else breakdown_of(value)
    if origin is not None and issubclass(origin, Mapping):
        found = {key: decoded(inner[1], item, run) for key, item in value.items()}
        by_path = get_origin(inner[0]) is tuple
        return {tuple(key.split(" / ")): item for key, item in found.items()} if by_path else found
    if origin is not None:
        return tuple(decoded(inner[0], one, run) for one in value)
    hints, flat = get_type_hints(kind), rules_of(kind).flat
    held = {name: value if name in flat else value[name] for name in kind._fields if name in {*flat, *value}}
    return kind(**{name: decoded(hints[name], item, run) for name, item in held.items()})


_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (int, float)}


def _plain(kind: Any, value: Any) -> Any:
    """Return a text, a number, true or false. Raises: TypeError where it is of another type."""
    if kind not in _PLAIN:
        good = value in get_args(kind)
    else:
        good = isinstance(value, _PLAIN[kind]) and (kind is bool or not isinstance(value, bool))
    if not good or (isinstance(value, int | float) and not abs(value) < MAX_NUMBER):
        raise TypeError(f"{shown(value)} does not belong there")
    return value


def _may_be(kind: Any, value: Any) -> bool:
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind])
    if kind is Profile or not hasattr(kind, "_fields"):
        return kind is not NoneType
    return isinstance(value, Mapping) and all(
        name in value or name in kind._field_defaults or name in rules_of(kind).flat for name in kind._fields
    )


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


def plan_in(document: Mapping[str, Any], path: str) -> "PlanAnswer":
    """Return the plan that a document holds.

    Raises: FileFormatError where it lacks what it needs.
    """
    from finegauge.answers.plan import PlanAnswer

    with _refusing(path, "states no whole run"):
        run = _run(document, None)
    with _refusing(path, "is no whole plan of FineGauge"):
        found: PlanAnswer = decoded(PlanAnswer, {**document, "run": run}, run)
        winner = found.winner
        if winner is None or winner.profile is None:
            return found
        planned = _run({"run": winner.run}, None)
        profile = profile_of(document["results"][0]["profile"], planned)
        return found._replace(results=(winner._replace(profile=profile),))


@contextmanager
def _refusing(path: str, said: str) -> Iterator[None]:
    """Raise FileFormatError where a document lacks what it needs."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise FileFormatError(f"{shown(path)} {said}: {error!r}.") from None


def _run(document: Mapping[str, Any], gpu: str | None) -> Run:
    stated = dict(document["run"])
    if gpu is not None:
        stated["gpu"] = gpu
    origins = {name: str(origin) for name, origin in document.get("origins", {}).items() if name in FIELDS}
    return run_of(
        {"fields": stated, "origins": origins, "warnings": list(map(str, document.get("warnings", ())))}
    )
