"""Predicted seconds of single operators beside timed ones: `finegauge validate --operators`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from finegauge.validation.operators import Group, validate_operators


class OperatorRow(NamedTuple):
    """One row of a table and the seconds predicted for it, or why there are none."""

    table: str
    row: int  # from 0
    gpu: str
    kind: str  # gemm | attention | experts | collective
    dtype: str
    seconds: float | None
    answered: bool
    reason: str | None
    low_s: float | None  # 10th and 90th percentile
    high_s: float | None
    evidence: str | None  # timed | architecture | other


class OperatorSummary(NamedTuple):
    """All rows together."""

    rows: int
    answered: int
    unanswered: Mapping[str, int]  # by the reason
    groups: tuple[Group, ...]  # by GPU, kind and number format


class OperatorsAnswer(NamedTuple):
    """Every row of the tables, and how wrong predictions are by GPU, kind and number format."""

    rows: tuple[OperatorRow, ...]
    summary: OperatorSummary


def operators_answer(tables: Sequence[str]) -> OperatorsAnswer:
    """Return every row of `tables`, predicted.

    Raises: FileFormatError for a table whose columns tell no kind of operator.
    """
    found = validate_operators(tables)
    rows = tuple(
        OperatorRow(
            *one.row[:5], one.seconds, one.seconds is not None, one.reason or None, one.low_s, one.high_s,
            one.evidence or None,
        )
        for one in found.answers
    )  # fmt: skip
    answered = sum(row.answered for row in rows)
    return OperatorsAnswer(rows, OperatorSummary(len(rows), answered, found.unanswered, tuple(found.groups)))
