"""How `finegauge validate --operators` looks, and the section on operators in docs/accuracy.md."""

from finegauge.answers.operators import OperatorsAnswer
from finegauge.prediction.timed_operators import evidence
from finegauge.render.number_format import UNKNOWN, percent
from finegauge.render.report import Note, Report, Section, Table, filled, notes, section
from finegauge.validation.operators import Group

HEADINGS = ("GPU", "kind", "format", "evidence", "rows", "answered", "median", "p90", "bias", "covered")
EVIDENCE = {"timed": "GPU timed", "architecture": "its kin timed", "other": "others timed", "": UNKNOWN}


def operators_report(answer: OperatorsAnswer) -> Report:
    """Return the errors by GPU, kind and number format, and what has no answer."""
    summary = answer.summary
    missing = [f"{number:,} without an answer: {reason}" for reason, number in summary.unanswered.items()]
    unseen = {one.gpu: one.note for one in summary.groups if one.evidence in ("architecture", "other")}
    return Report(
        title="Operators",
        headline=f"{summary.answered:,} of {summary.rows:,} operators answered",
        tone="neutral",
        sections=filled(
            section("unanswered", "", *notes(missing)),
            section("operators", "", Table("", HEADINGS, tuple(map(_cells, summary.groups)), 4)),
            section("evidence", "", *notes([f"{note[:1].upper()}{note[1:]}." for note in unseen.values()])),
        ),
    )


def _cells(one: Group) -> tuple[str, ...]:
    shares = (one.median_error, one.p90_error, one.bias, one.covered_fraction)
    return (
        one.gpu, one.kind, one.dtype, EVIDENCE[one.evidence], f"{one.rows:,}", f"{one.answered:,}",
        *(percent(share) if share is not None else UNKNOWN for share in shares),
    )  # fmt: skip


INTRODUCTION = (
    "Seconds of single operators, from the timings that ship with FineGauge (ai-dynamo/aiconfigurator, "
    "Apache-2.0, snapshot of 2026-08-21). Held out: five folds of shapes by hash, each predicted from the "
    "other four, kernels weighed by their timings. GPU left out: predicted from the other timed GPUs and "
    "its own datasheet. Collectives: messages above 1 MiB. 'finegauge validate --operators TABLE.csv' makes "
    "such a table of your own timings."
)
ACCURACY_HEADINGS = (
    "GPU", "kind", "format", "timings", "held out: median", "p90", "GPU left out: median", "p90", "from",
)  # fmt: skip


def accuracy_section() -> Section:
    """Return the section on operators: shapes held out of the fits, and whole GPUs."""
    names = ("held_out_median", "held_out_p90", "left_out_median", "left_out_p90")
    rows = tuple(
        (
            row["gpu"], row["kind"], row["dtype"], f"{row['rows']:,}",
            *(f"{row[name]:.1%}" if row[name] is not None else "" for name in names),
            ", ".join(row["from"]),
        )
        for row in evidence()["errors"]
    )  # fmt: skip
    table = Table("Operators", ACCURACY_HEADINGS, rows, 3, ends_in_text=True)
    return section("operators", "Operators", Note(INTRODUCTION), table)
