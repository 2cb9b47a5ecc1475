"""What `finegauge validate --operators` prints, and the section on operators in docs/accuracy.md."""

from finegauge.prediction.timed_operators import evidence
from finegauge.render.number_format import UNKNOWN, percent
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.validation.operators import Group, OperatorValidation

HEADINGS = ("GPU", "kind", "format", "evidence", "rows", "answered", "median", "p90", "bias", "covered")
EVIDENCE = {
    "timed": "timed on it",
    "architecture": "its architecture timed, not it",
    "other": "neither it nor its architecture timed",
    "": UNKNOWN,
}


def operator_lines(validation: OperatorValidation) -> list[str]:
    """Return the whole report."""
    answered = sum(one.seconds is not None for one in validation.answers)
    lines = [paint(f"{answered:,} of {len(validation.answers):,} operators answered", "bold")]
    for reason, number in validation.unanswered.items():
        lines += wrapped(f"  {number:,} without an answer: {reason}", indent="    ")
    groups = validation.groups
    lines += ["", *columns(HEADINGS, [_cells(one) for one in groups], left=4)]
    unseen = {one.gpu: one.note for one in groups if one.evidence in ("architecture", "other")}
    for note in unseen.values():
        lines += wrapped(f"  {note[:1].upper()}{note[1:]}.", indent="    ")
    return lines


def _cells(one: Group) -> list[str]:
    shares = (one.median_error_fraction, one.p90_error_fraction, one.bias_fraction, one.covered_fraction)
    return [
        one.gpu, one.kind, one.dtype, EVIDENCE[one.evidence], f"{one.rows:,}", f"{one.answered:,}",
        *(percent(share) if share is not None else UNKNOWN for share in shares),
    ]  # fmt: skip


INTRODUCTION = (
    "Seconds of single operators, from the timings that ship with FineGauge (ai-dynamo/aiconfigurator, "
    "Apache-2.0, snapshot of 2026-08-21). *Held out*: five folds of shapes by hash, each predicted from the "
    "other four, kernels weighed by their timings. *GPU left out*: predicted from the other timed GPUs and "
    "its own datasheet. Collectives: messages above 1 MiB. `finegauge validate --operators TABLE.csv` makes "
    "such a table of your own timings."
)


def accuracy_section() -> list[str]:
    """Return the section on operators: shapes held out of the fits, and whole GPUs."""
    lines = [
        "| GPU | kind | format | timings | held out: median | p90 | GPU left out: median | p90 | from |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    names = ("held_out_median", "held_out_p90", "left_out_median", "left_out_p90")
    for row in evidence()["errors"]:
        shares = [f"{row[name]:.1%}" if row[name] is not None else "" for name in names]
        numbers = " | ".join([f"{row['rows']:,}", *shares])
        lines.append(
            f"| {row['gpu']} | {row['kind']} | {row['dtype']} | {numbers} | {', '.join(row['from'])} |"
        )
    return ["## Operators", INTRODUCTION, "\n".join(lines)]
