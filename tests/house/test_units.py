"""Every float of a public dataclass or named tuple says its unit in its name, so that GB never meets GiB."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegauge.model.op import Poly
from finegauge.planning.quote import OBJECTIVES
from finegauge.validation.summary import Errors
from tests.house.sources import MODULES, definitions, name_of

# The unit, and what it may be a rate of: time_s, memory_bytes_per_s, on_demand_usd_per_h, kg_per_kwh.
UNITS = (
    "s|seconds|h|bytes|bits|j|kwh|w|hz|usd|kg|flops|fraction|ratio|"
    "rows|pairs|tokens|tokens_square|sequences|samples|queries|saves|epochs|steps|requests|launches|calls|params|gpus|values|crops"
)
PER = "s|h|gpu_h|kwh|byte|token|million_tokens|param|element|sample|epoch|step|gpu"
HAS_UNIT = re.compile(rf"(^|_)({UNITS})(_per_({PER}))*(_p10|_p90)?$")
IS_COUNT = re.compile(r"^num_|^in_flight$")  # requests, as a measured endpoint has them

# Numbers without a dimension, under the name that papers and Hugging Face give them.
DIMENSIONLESS = frozenset(
    {"learning_rate", "loss", "weight_decay", "lora_alpha", "lora_dropout", "mfu", "pue"}
    | {"gpu_memory_utilization"}  # vLLM's name of it
)
# Channels per token, counted: what a weight or a kernel reads and writes.
CHANNELS = frozenset({"Kernel.query", "Kernel.output"})
# Shares, 0 to 1, and a standard deviation of a logarithm, under the words that statistics has for them.
SHARES = frozenset(
    {
        "Constant.spread",
        "Coverage.above",
        "Coverage.below",
        "Coverage.inside",
        "FitsOrNot.accuracy",
        "Group.bias",
        "Group.median_error",
        "Group.p90_error",
        "Use.share",
        *(f"Objectives.{figure}" for figure in OBJECTIVES),
    }
)
# Columns of a measurement table keep the table's names, whose unit is GiB.
TABLE_COLUMNS = re.compile(r"^peak_memory_gib(_p10|_p90)?$|^p_oom$|^joules_per_token$")
# Relative errors, ours / theirs - 1, under the keys that --json has for them.
RELATIVE_ERRORS = re.compile(
    r"^(step_time|peak_memory|left_out)(_median)?_error(_median|_bar)?$|^left_out_bias$"
)
# Either side of a comparison, and the coefficients of a polynomial: the unit is that of the quantity, which
# stands beside it.
UNIT_STANDS_BESIDE = frozenset(
    {
        "Figure.value",
        "FittedConstant.before",
        "FittedConstant.value",
        "LawPoint.law",
        "LawPoint.measured",
        "Observation.value",
        "Scores.rmse",
        "Difference.measured",
        "Difference.ours",
        "Difference.predicted",
        "Difference.theirs",
        "Pair.measured",
        "Pair.predicted",
        "Part.measured",
        "Part.predicted",
        *(f"Errors.{part}" for part in Errors._fields),
        *(f"Poly.{part}" for part in Poly._fields),
    }
)


def kinds_of(annotation: ast.expr) -> Iterator[str]:
    """Yield the types that an annotation allows: str, float and None of `"str | float" | None`."""
    if isinstance(annotation, ast.BinOp):
        yield from kinds_of(annotation.left)
        yield from kinds_of(annotation.right)
    elif isinstance(annotation, ast.Constant):
        yield from (kind.strip() for kind in str(annotation.value).split("|"))
    elif isinstance(annotation, ast.Name):
        yield annotation.id


def float_fields(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (class, field) for every float field of a public dataclass or named tuple."""
    for node in definitions(path):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list) and not any(
            ast.unparse(base) == "NamedTuple" for base in node.bases
        ):
            continue
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if "float" in kinds_of(field.annotation) and not field.target.id.startswith("_"):
                yield node.name, field.target.id


def test_float_fields_name_their_units() -> None:
    fields = [(name_of(path), *field) for path in MODULES for field in float_fields(path)]
    assert len(fields) > 500
    wrong = []
    for module, cls, field in fields:
        known = bool(HAS_UNIT.search(field) or IS_COUNT.search(field)) or field in DIMENSIONLESS
        known = known or f"{cls}.{field}" in UNIT_STANDS_BESIDE | CHANNELS | SHARES
        if not (known or TABLE_COLUMNS.match(field) or RELATIVE_ERRORS.match(field)):
            wrong.append(f"{module}: {cls}.{field}")
    assert not wrong, f"floats whose name has no unit suffix (_s, _bytes, _usd_per_h, ...): {wrong}"


def test_types_are_read() -> None:
    fields = ast.parse("a: float\nb: 'str | float'\nc: str | float | None\nd: dict[str, float]").body
    found = [list(kinds_of(one.annotation)) for one in fields if isinstance(one, ast.AnnAssign)]
    assert ["float" in kinds for kinds in found] == [True, True, True, False]


@pytest.mark.parametrize(
    "name", ["step_time_s", "usable_bytes", "on_demand_usd_per_h", "flops_per_s", "num_flops"]
)
def test_rule_accepts(name: str) -> None:
    assert HAS_UNIT.search(name)


@pytest.mark.parametrize(
    "name", ["memory", "time", "size_gb", "latency_ms", "price", "efficiency", "bandwidth"]
)
def test_rule_refuses(name: str) -> None:
    assert not HAS_UNIT.search(name)
