"""A whole validation: every row answered, the errors by quantity, metric and group."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.validate.answer import Answer, Estimator, answer
from finegauge.validate.explanation import explanation
from finegauge.validate.rivals import rivals
from finegauge.validate.statistics import (
    GROUPS,
    Errors,
    by,
    confusion,
    memory_coverage,
    memory_errors,
    time_coverage,
    time_errors,
    to_json,
    worst,
)
from finegauge.workload.readers.measurement_table import METRICS, MeasuredRow, read_table


class Validation(NamedTuple):
    """Every row of the tables with its answer, and the rivals' answers by their names."""

    answers: tuple[Answer, ...]
    rivals: Mapping[str, Sequence[Answer]]
    absent: Mapping[str, str]  # rivals that were asked for and cannot answer here, with the reason

    @property
    def answered(self) -> list[Answer]:
        """Return the rows that have a prediction."""
        return [one for one in self.answers if one.prediction is not None]

    @property
    def unanswered(self) -> dict[str, list[str]]:
        """Return the ids of the rows without a prediction, by reason, the most frequent first."""
        reasons = Counter(one.reason for one in self.answers if one.prediction is None)
        return {
            reason: [one.row.id for one in self.answers if one.prediction is None and one.reason == reason]
            for reason, _ in reasons.most_common()
        }

    def of_metric(self, metric: str) -> list[Answer]:
        """Return the answered rows whose memory is counted by `metric`."""
        return [
            one
            for one in self.answered
            if one.row.measured.memory_metric == metric and one.row.measured.peak_memory_gib
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {"rows": [one.to_json() for one in self.answers], "summary": self._summary()}

    def _summary(self) -> dict[str, Any]:
        answered = self.answered
        matrix = confusion(answered)
        return {
            "rows": len(self.answers),
            "answered": len(answered),
            "unanswered": [
                {"reason": reason, "count": len(ids), "ids": ids} for reason, ids in self.unanswered.items()
            ],
            "step_time": {
                "all": to_json(time_errors(answered)),
                "complete": to_json(time_errors(one for one in answered if one.row.times_complete)),
                "incomplete": to_json(time_errors(one for one in answered if not one.row.times_complete)),
                "coverage": to_json(time_coverage(answered)),
                "by": {
                    name: {key: to_json(time_errors(part)) for key, part in by(answered, group).items()}
                    for name, group in GROUPS.items()
                },
            },
            "peak_memory": {
                metric: _memory_json(rows) for metric in METRICS if (rows := self.of_metric(metric))
            },
            "fits": {**matrix._asdict(), "accuracy": matrix.accuracy},
            "worst": [
                {"id": one.row.id, "step_time_error": one.step_time_error,
                 "peak_memory_error": one.peak_memory_error, "explanation": explanation(one)}
                for one in worst(answered)
            ],
            "rivals": {
                **{name: _rival_json(self, name) for name in self.rivals},
                **{name: {"absent": reason} for name, reason in self.absent.items()},
            },
        }  # fmt: skip


def validate(
    tables: Iterable[str], estimator: Estimator | None = None, against: Iterable[str] = ()
) -> Validation:
    """Return every row of the measurement `tables`, answered by `estimator` and by each rival.

    Args:
        tables: Paths.
        estimator: FineGauge's prediction by default.
        against: Names of rivals, or "all".

    Raises: FileFormatError for a file that is no measurement table; InputError for an unknown rival.
    """
    rows: list[MeasuredRow] = [row for path in tables for row in read_table(path)]
    found, absent = rivals(against, rows)
    return Validation(
        answers=tuple(answer(row, estimator) for row in rows),
        rivals={name: tuple(answer(row, rival) for row in rows) for name, rival in found.items()},
        absent=absent,
    )


class Match(NamedTuple):
    """A rival's errors and ours in one quantity, on the rows that both answer."""

    quantity: str  # "step_time" or a memory metric
    theirs: Errors
    ours: Errors


def matches(validation: Validation, name: str) -> list[Match]:
    """Return how the rival called `name` compares with us: step time, then memory by metric."""
    ours = {id(one.row): one for one in validation.answered}
    pairs = [(one, ours[id(one.row)]) for one in validation.rivals[name] if id(one.row) in ours]
    found = [_match("step_time", [p for p in pairs if _both(p, "step_time_error")], time_errors)]
    for metric in METRICS:
        rows = [
            pair
            for pair in pairs
            if pair[0].row.measured.memory_metric == metric and _both(pair, "peak_memory_error")
        ]
        found.append(_match(metric, rows, memory_errors))
    return [match for match in found if match]


def _match(
    quantity: str, pairs: list[tuple[Answer, Answer]], count: Callable[[Iterable[Answer]], Errors | None]
) -> Match | None:
    theirs, ours = count(pair[0] for pair in pairs), count(pair[1] for pair in pairs)
    return Match(quantity, theirs, ours) if theirs and ours else None


def _both(pair: tuple[Answer, Answer], error: str) -> bool:
    return all(getattr(one, error) is not None for one in pair)


def _rival_json(validation: Validation, name: str) -> dict[str, Any]:
    """Return a rival's errors and ours, by quantity."""
    return {
        match.quantity: {"theirs": to_json(match.theirs), "ours": to_json(match.ours)}
        for match in matches(validation, name)
    }


def _memory_json(rows: list[Answer]) -> dict[str, Any]:
    """Return the errors of the rows of one metric."""
    return {
        "all": to_json(memory_errors(rows)),
        "complete": to_json(memory_errors(one for one in rows if one.row.memory_complete)),
        "incomplete": to_json(memory_errors(one for one in rows if not one.row.memory_complete)),
        "coverage": to_json(memory_coverage(rows)),
        "by": {
            name: {key: to_json(memory_errors(part)) for key, part in by(rows, group).items()}
            for name, group in GROUPS.items()
        },
    }
