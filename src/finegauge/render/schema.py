"""JSON schemas of what commands print under `--json`, derived from the types of their answers.

Whatever the codec of `render.json` writes of a type, its schema here describes. Bounds follow from names:
bytes, seconds and dollars are never negative, fractions lie between 0 and 1 (a spread may be any multiple),
unless `answers.Rules` says that they are signed.
"""

from collections.abc import Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from finegauge.answers import (
    calibration,
    campaign,
    catalogue,
    estimate,
    files,
    measurement,
    plan,
    rules_of,
    validation,
    why,
)
from finegauge.answers.calibration import CalibrationAnswer, StoredLaw
from finegauge.answers.campaign import CellResult, GainFigures, GainsAt
from finegauge.answers.estimate import GpuEstimate
from finegauge.answers.files import DataAnswer
from finegauge.answers.measurement import MicroAnswer
from finegauge.answers.profile import ProfileFigures
from finegauge.campaign.axes import MEASURED, PREDICTED
from finegauge.campaign.gains import JOULES, PROCESSOR_S, ClaimHeld
from finegauge.catalogue.device_profile import DIRECTIONS, HOST_COSTS, KIND, OPERATORS, DeviceProfile, Reading
from finegauge.laws.law import FORMS, Law
from finegauge.prediction.uncertainty import Verdict
from finegauge.profile import Breakdown, Profile
from finegauge.render.report import Report, Table, plain
from finegauge.render.run_parts import headline
from finegauge.run.run import FIELDS, Run
from finegauge.validation.local_validation import HereValidation

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NEVER_NEGATIVE = ("_bytes", "_s", "_j", "_w", "_usd", "_tokens", "_per_h", "_kg", "_kwh", "batch_size",
                  "spread_fraction")  # fmt: skip
COMMANDS = {  # what a document calls its command, where that is not the schema's name
    "check-files": "check", "calibrate-law": "calibrate", "validate-here": "validate --here",
}  # fmt: skip
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"},
    NoneType: {"type": "null"}, Any: {}, object: {},
    Breakdown: {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
}  # fmt: skip
_QUESTION: dict[str, Any] = {
    "run": {
        "type": "object",
        "description": "The question: every field of the run but the GPU; see docs/run-file.md.",
        "required": ["model", "method", "micro_batch_size", "seq_len"],
        "properties": {name: {} for name in FIELDS if name != "gpu"},
        "additionalProperties": False,
    },
    "origins": {
        "type": "object",
        "description": "Who stated each field: file, command line, a framework's default, FineGauge default.",
        "additionalProperties": {"type": "string"},
    },
    "warnings": {"type": "array", "items": {"type": "string"}},
}


def schema(name: str) -> dict[str, Any]:
    """Return the schema of what `finegauge NAME --json` prints, or of a kind of file that is kept."""
    kept = {"calibration": CalibrationAnswer, "law": StoredLaw}  # files, without the heads of an answer
    kinds = answers().get(name) or kept[name]
    parts: dict[str, Any] = {}
    heads: dict[str, Any] = {"schema_version": {"const": 1}}
    if name in answers():
        heads |= {"command": {"const": COMMANDS.get(name, name)}, "finegauge_version": {"type": "string"}}
    whole = [_object(kind, parts, heads) for kind in get_args(kinds) or (kinds,)]
    return {
        "$schema": DIALECT,
        "title": f"What finegauge {name} prints under --json" if name in answers() else f"A {name} in a file",
        "description": "SI units throughout; the unit is the end of the name. What is not known is null, "
        "never 0. Breakdowns are keyed by path, outermost part first: 'backward / moe / w1'.",
        **(whole[0] if len(whole) == 1 else {"anyOf": whole}),
        "$defs": parts,
    }


def _object(kind: Any, parts: dict[str, Any], heads: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a named tuple, behind the properties in `heads`."""
    rules = rules_of(kind)
    properties, absent = dict(heads), set[str]()
    for name, one in get_type_hints(kind).items():
        if name in rules.hidden:
            continue
        if one is Run:
            properties |= _QUESTION
        elif name in rules.flat:
            inner = _object(one, parts, {})
            properties |= inner["properties"]
            absent |= inner["properties"].keys() - set(inner["required"])
        else:
            properties[name] = _of(one, parts, "" if name in rules.signed else name)
            properties[name] |= {"maxItems": rules.most[name]} if name in rules.most else {}
            if words := choices().get((kind, name)):
                enum = {"enum": list(words)}
                properties[name] |= enum if one is str else {"propertyNames": enum}
    return {
        "type": "object",
        "description": (kind.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "required": [name for name in properties if name not in rules.absent and name not in absent],
        "additionalProperties": False,
    }


def _of(kind: Any, parts: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema of a type; those of named tuples go into `parts`, each once."""
    if kind in _PLAIN:
        return _PLAIN[kind] | (_bounds(name) if kind in (int, float) else {})
    if kind is Profile:
        kind = ProfileFigures
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is not None:
        return _of_several(
            origin, [_of(one, parts, name) for one in inner if one is not ...], many=... in inner
        )
    if kind.__name__ not in parts:
        parts[kind.__name__] = {}  # a type may hold itself
        parts[kind.__name__] = _object(kind, parts, {})
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _of_several(origin: Any, inner: list[dict[str, Any]], *, many: bool) -> dict[str, Any]:
    if origin in (Union, UnionType):
        return {"anyOf": inner}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": inner[1]}
    if origin is tuple and not many:
        return {"type": "array", "prefixItems": inner, "minItems": len(inner), "maxItems": len(inner)}
    return {"type": "array", "items": inner[0]}


def _bounds(name: str) -> dict[str, float]:
    if name.endswith("_fraction") and name != "spread_fraction":
        return {"minimum": 0, "maximum": 1}
    return {"minimum": 0} if name.endswith(NEVER_NEGATIVE) or name.startswith("num_") else {}


class FileVerdict(NamedTuple):
    """Whether the run of one file fits one GPU."""

    gpu: str
    verdict: Verdict
    out_of_memory_fraction: float
    safe_micro_batch_size: int
    device_memory_bytes: float
    capacity_bytes: float
    sentence: str  # the verdict in words


class CheckedFile(NamedTuple):
    """One file's results, or why there are none."""

    file: str
    skipped: str | None  # why nothing was checked
    error: str | None  # what is wrong with the file
    warnings: tuple[str, ...]
    results: tuple[FileVerdict, ...]


class CheckedFiles(NamedTuple):
    """Several files, in the order given."""

    files: tuple[CheckedFile, ...]


def file_verdict(one: GpuEstimate) -> FileVerdict:
    """Return the verdict on one GPU, with its sentence."""
    return FileVerdict._make((*one[:6], plain(headline(one))))


class TileText(NamedTuple):
    """One headline number."""

    name: str
    value: str
    note: str


class TableText(NamedTuple):
    """A table's texts."""

    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class FigureText(NamedTuple):
    """A figure's texts and numbers; --figure takes its name."""

    name: str
    title: str
    caption: str
    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class ReportText(NamedTuple):
    """What a report says, and the files that were written."""

    title: str
    verdict: str
    tone: Literal["good", "risky", "bad", "neutral"]
    facts: tuple[TileText, ...]
    figures: tuple[FigureText, ...]
    tables: tuple[TableText, ...]
    written: tuple[str, ...]


def report_text(report: Report, written: Sequence[str]) -> ReportText:
    """Return the texts of a report."""
    return ReportText(
        title=report.title,
        verdict=plain(report.headline),
        tone=report.tone,  # type: ignore[arg-type]
        facts=tuple(TileText(*tile[:3]) for tile in report.tiles),
        figures=tuple(
            FigureText(one.key, one.title, one.caption, *_table_text(one.table)) for one in report.plots
        ),
        tables=tuple(map(_table_text, report.tables)),
        written=tuple(written),
    )


def _table_text(table: Table) -> TableText:
    headings = tuple(" ".join(heading.split()) for heading in table.headings)
    return TableText(table.caption, headings, tuple(tuple(map(plain, row)) for row in table.rows))


def answers() -> Mapping[str, Any]:
    """Return the type of the answer behind each command's `--json`; of some there are several."""
    return {
        "estimate": estimate.EstimateAnswer,
        "explain": estimate.ExplainAnswer,
        "check": estimate.CheckAnswer,
        "doctor": catalogue.DoctorAnswer,
        "can": plan.CanAnswer,
        "why": why.WhyAnswer,
        "watch": measurement.WatchAnswer,
        "learn": calibration.LearnAnswer,
        "max-batch": estimate.CapacityAnswer | measurement.MeasuredCapacityAnswer,
        "max-length": estimate.CapacityAnswer,
        "check-files": CheckedFiles,
        "read": files.ReadAnswer,
        "report": ReportText,
        "frameworks": catalogue.FrameworksAnswer,
        "plan": plan.PlanAnswer,
        "measure": measurement.MeasureAnswer,
        "micro": measurement.MicroAnswer,
        "validate": validation.ValidationAnswer,
        "validate-here": HereValidation,
        "validate-operators": validation.OperatorsAnswer,
        "calibrate": calibration.CalibrationAnswer,
        "calibrate-law": calibration.LawAnswer,
        "whatif": plan.WhatIfAnswer,
        "campaign": campaign.CampaignAnswer,
        "results": campaign.ResultsAnswer,
        "compare": campaign.CompareAnswer,
        "data": files.DataAnswer,
        "reproduce": validation.ReproduceAnswer,
    }


def choices() -> Mapping[tuple[type, str], Collection[str]]:
    """Return which words a field of a type may hold, or a mapping have as keys, where its type is wider."""
    return {
        (CellResult, "estimator"): (PREDICTED, MEASURED),
        (GainsAt, "estimator"): (PREDICTED, MEASURED),
        (GainFigures, "outcome"): ("completed", "out_of_memory", "unsupported", "failed", "interrupted"),
        (GainFigures, "energy_by"): (JOULES, PROCESSOR_S),
        (ClaimHeld, "estimator"): (PREDICTED, MEASURED),
        (ClaimHeld, "verdict"): ("agrees", "partly", "disagrees", "unknown"),
        (DataAnswer, "row_name"): ("line", "record"),
        (MicroAnswer, "kind"): (KIND,),
        (DeviceProfile, "device"): ("cpu", "cuda"),
        (DeviceProfile, "host"): HOST_COSTS,
        (Reading, "operator"): OPERATORS,
        (Reading, "direction"): DIRECTIONS,
        (Law, "form_name"): FORMS,
    }
