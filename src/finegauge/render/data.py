"""Data sets and the batches that a run makes of them, as text and JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.length_histogram import quantiles
from finegauge.data.token_lengths import Findings, Lengths
from finegauge.planning.estimate import Offender, RiskyBatch, WholeRun, whole_run
from finegauge.prediction.uncertainty import FITS, WILL_NOT_FIT
from finegauge.render.number_format import percent, probability
from finegauge.render.terminal import WIDTH, columns, filled_bar, item, paint, wrapped
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.data.batch_shape import BatchShape
    from finegauge.data.batches import Batches
    from finegauge.run.run import Run

FRACTIONS = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
MOST_BINS = 16
BAR_WIDTH = 40
SCHEMA_VERSION = 1  # of the JSON
ROWS_NAMED = 5  # of those that were left out; --json names more

Pairs = Sequence[tuple[int, int]]


def data_lines(lengths: Lengths, tokenizer: str) -> list[str]:
    """Return the lengths of a data set for the terminal."""
    found, pairs = lengths.findings, lengths.pairs()
    formats = ", ".join(
        f"{name} {count:,}" if len(found.formats) > 1 else name for name, count in found.formats
    )
    mean, loss = lengths.num_tokens / lengths.num_samples, sum(lengths.loss_tokens) / lengths.num_tokens
    reached = quantiles(pairs, tuple(FRACTIONS.values()))
    spread = " · ".join(
        f"{name.replace('_', '.')} {tokens:,}" for name, tokens in zip(FRACTIONS, reached, strict=True)
    )
    longest = lengths.tokens.index(pairs[-1][0])
    return [
        paint(
            f"{lengths.path}: {_counted(lengths.num_samples, 'sample')}, {lengths.num_tokens:,} tokens",
            "bold",
        ),
        *_indented(f"{'; '.join((formats, *found.notes))}; tokenizer {tokenizer}"),
        "",
        *_histogram(pairs),
        "",
        f"  shortest {pairs[0][0]:,} · {spread} · longest {pairs[-1][0]:,} ({lengths.place(longest)})",
        f"  mean {mean:,.1f} tokens" + (f"; {percent(loss)} of all tokens are answers" if loss < 1 else ""),
        *(paint(line, "yellow") for text in warnings(found) for line in _indented(text)),
    ]


def _indented(text: str) -> list[str]:
    """Return a sentence in lines that stand in by two columns, all but the first by four."""
    return [f"  {line}" for line in wrapped(text, indent="  ", width=WIDTH - 2)]


def _histogram(pairs: Pairs) -> list[str]:
    """Return the lines of a histogram."""
    total = sum(count for _, count in pairs)
    most = max(count for _, _, count in bins(pairs))
    rows, seen = [], 0
    for low, high, count in bins(pairs):
        seen += count
        share = filled_bar(count / most, BAR_WIDTH)
        rows.append(
            [f"{low:,}", f"{high:,}", f"{count:,}", _percent(count / total), _percent(seen / total), share]
        )
    lines = columns(["from", "to tokens", "samples", "share", "so far", ""], rows, left=0, indent="  ")
    return [_flush_left(line, share[-1]) for line, share in zip(lines, ([""], *rows), strict=True)]


def _flush_left(line: str, share: str) -> str:
    """Return a table's line whose last cell, a bar, begins where the others do."""
    return line if not share else line.removesuffix(share).rstrip() + "  " + share


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def bins(pairs: Pairs) -> list[tuple[int, int, int]]:
    """Return (shortest, longest, how many) of each bin; the last holds all that is longer than most.

    Bins are a power of two wide, or the half of one and its third more, so that p99 fits in the table.
    """
    reach, longest = quantiles(pairs, (0.99,))[0], pairs[-1][0]
    width = next(
        w for power in range(31) for w in (1 << power, 3 << power >> 1) if w * (MOST_BINS - 1) > reach
    )
    counts = [0] * MOST_BINS
    for length, count in pairs:
        counts[min(length // width, MOST_BINS - 1)] += count
    filled = [n for n, count in enumerate(counts) if count]
    ends = [(n + 1) * width - 1 for n in range(MOST_BINS - 1)] + [longest]
    return [(n * width, min(ends[n], longest), counts[n]) for n in range(filled[0], filled[-1] + 1)]


def warnings(found: Findings) -> list[str]:
    """Return what a user should know of the records that are no samples, or odd ones."""
    lines = []
    name = found.row_name
    if found.num_unreadable:
        number = found.num_unreadable
        first = "; ".join(f"{name} {row}: {why}" for row, why in found.unreadable[:ROWS_NAMED])
        lines.append(f"{_counted(number, name)} left out, unreadable: {_more(first, number)}.")
    if found.num_empty:
        first = ", ".join(f"{row}" for row in found.empty_rows[:ROWS_NAMED])
        lines.append(
            f"{_counted(found.num_empty, name)} left out, empty: {name} {_more(first, found.num_empty)}."
        )
    if found.num_without_answer:
        lines.append(
            f"{_counted(found.num_without_answer, 'sample')} without an answer: nothing is learnt from "
            f"{'it' if found.num_without_answer == 1 else 'them'} where questions are masked."
        )
    if len(found.formats) > 1:
        mixed = ", ".join(f"{count:,} {kind}" for kind, count in found.formats)
        lines.append(f"Formats are mixed: {mixed}; --format keeps one.")
    if found.unused_keys:
        keys = ", ".join(f"{key} {count:,}" for key, count in found.unused_keys[:8])
        lines.append(f"Keys that are not read: {keys}.")
    return lines


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _more(first: str, number: int) -> str:
    """Return the first few, and that there are more."""
    return first if number <= ROWS_NAMED else f"{first}, ... ({number - ROWS_NAMED:,} more)"


def data_json(lengths: Lengths, tokenizer: str, batching: Sequence[dict[str, Any]]) -> str:
    """Return the whole JSON text."""
    import json

    from finegauge import __version__

    found, pairs = lengths.findings, lengths.pairs()
    reached = quantiles(pairs, tuple(FRACTIONS.values()))
    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "data",
        "finegauge_version": __version__,
        "file": lengths.path,
        "tokenizer": tokenizer,
        "content_sha256": lengths.content,
        "num_samples": lengths.num_samples,
        "num_tokens": lengths.num_tokens,
        "num_loss_tokens": sum(lengths.loss_tokens),
        "mean_tokens": lengths.num_tokens / lengths.num_samples,
        "quantiles_tokens": {
            "min": pairs[0][0],
            **dict(zip(FRACTIONS, reached, strict=True)),
            "max": pairs[-1][0],
        },
        "lengths": [list(pair) for pair in pairs],
        "formats": dict(found.formats),
        "row_name": found.row_name,
        "num_rows": found.num_rows,
        "num_bytes": found.num_bytes,
        "num_empty": found.num_empty,
        "empty_rows": list(found.empty_rows),
        "num_unreadable": found.num_unreadable,
        "unreadable": [{"row": row, "why": why} for row, why in found.unreadable],
        "num_without_answer": found.num_without_answer,
        "unused_keys": dict(found.unused_keys),
        "notes": list(found.notes),
        "warnings": warnings(found),
        "batching": list(batching),
    }
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


SHOWN = 5  # of the worst batches; --json has them all
NAMED = 3  # samples of one batch
_COLOUR: dict[str, str] = {FITS: "green", WILL_NOT_FIT: "red"}


def batching_lines(lengths: "Lengths", run: "Run") -> list[str]:
    """Return the batches of `run` for the terminal."""
    batches, shape, risk = _asked(lengths, run)
    cut, steps = batches.cut, batches.step_tokens
    padding = paint(f"{100 * batches.padding_fraction:.1f} %", "bold")
    lines = [
        paint(f"Batches of {run.model}, {_by_whom(run)}", "bold"),
        *item(shape.source.partition(": ")[2]),
        "",
        f"  steps          {batches.steps:,} in an epoch, {shape.steps_total:,} in the run",
        f"  tokens/step    {steps.mean():,.0f} on average, {steps.min():,} to {steps.max():,}",
        f"  padding        {padding} of all tokens computed",
    ]
    if run.packing:
        fullness = batches.rows.pieces.length.sum() / (batches.rows.number * batches.recipe.row_len)
        lines.append(f"  packs          {batches.rows.number:,}, {100 * fullness:.1f} % full")
    if cut.lost_tokens:
        share = cut.lost_tokens / max(1, cut.lost_tokens + int(batches.rows.pieces.length.sum()))
        lines.append(
            f"  lost           {cut.lost_tokens:,} tokens beyond the cut-off ({percent(share)} of all)"
        )
    left_out = _left_out(batches)
    if left_out:
        lines.append(f"  left out       {left_out:,} samples at the end of an epoch")
    return [*lines, *(_risk_lines(run, lengths, shape, risk) if risk else _longest_lines(run, batches))]


def batching_json(lengths: "Lengths", run: "Run") -> dict[str, Any]:
    """Return the same as JSON's values."""
    batches, shape, risk = _asked(lengths, run)
    cut, steps, real = batches.cut, batches.step_tokens, batches.step_real_tokens
    return {
        "framework": run.framework or None,
        "gpu": run.gpu,
        "how": shape.source.partition(": ")[2],
        "steps_per_epoch": batches.steps,
        "steps_total": shape.steps_total,
        "tokens_per_step": {"mean": float(steps.mean()), "min": int(steps.min()), "max": int(steps.max())},
        "real_tokens_per_step_mean": float(real.mean()),
        "padding_fraction": batches.padding_fraction,
        "longest_micro_batch_tokens": shape.longest_tokens,
        "num_packs": batches.rows.number if run.packing else None,
        "num_samples": cut.num_samples,
        "num_held_out": cut.num_held_out,
        "num_dropped": cut.num_dropped,
        "num_cut": cut.num_cut,
        "num_split": cut.num_split,
        "num_left_out": _left_out(batches),
        "lost_tokens": cut.lost_tokens,
        "whole_run": None if risk is None else _risk_json(risk),
    }


def _asked(lengths: "Lengths", run: "Run") -> "tuple[Batches, BatchShape, WholeRun | None]":
    """Return the batches of the first epoch, what they are on average, and the risk of the whole run."""
    from finegauge.data.batch_shape import epoch_of, shape_of_samples

    return epoch_of(run, lengths, 0), shape_of_samples(run, lengths), whole_run(run, lengths)


def _by_whom(run: "Run") -> str:
    """Return who makes the batches, and of how many sequences."""
    ranks = f" on each of {run.data_parallel} GPUs" if run.data_parallel > 1 else ""
    who = f"as {run.framework} makes them" if run.framework else "as transformers' trainer makes them"
    times = run.gradient_accumulation_steps
    return f"{who}: {run.micro_batch_size} x {times} sequences a step{ranks}"


def _left_out(batches: "Batches") -> int:
    """Return how many rows, and the samples in them, no batch of the epoch holds."""
    import numpy as np

    missing = np.ones(batches.rows.number, dtype=bool)
    missing[batches.dealt.rows] = False
    return int(np.diff(batches.rows.offsets)[missing].sum())


def _longest_lines(run: "Run", batches: "Batches") -> list[str]:
    """Return the line of the longest micro-batch, where nothing is said of memory."""
    longest = int(batches.tokens.argmax())
    ask = "--gpu says whether it fits"
    if run.gpu is not None:  # a phase that makes other batches of the samples
        ask = f"'finegauge check' says whether phase={run.phase} fits"
    tokens, step = int(batches.tokens[longest]), batches.step_of(longest) + 1
    return [f"  longest        {tokens:,} tokens in a micro-batch, first in step {step:,}; {ask}"]


def _risk_lines(run: "Run", lengths: "Lengths", shape: "BatchShape", risk: WholeRun) -> list[str]:
    """Return whether every batch fits."""
    chance, largest = probability(risk.out_of_memory_fraction), risk.worst[0]
    told = paint(f"{risk.verdict.replace('_', ' ')}, P(OOM) {chance}", _COLOUR.get(risk.verdict, "yellow"))
    total, seen = shape.steps_total, f"{risk.num_steps:,}"
    if total is not None and total > risk.num_steps:
        seen = f"the first {risk.num_steps:,} of {total:,}"
    lines = ["", f"  Over {seen} steps on {run.gpu}: {told}"]
    if risk.first_at_risk is not None:
        lines[-1] += f"; {risk.steps_at_risk:,} steps at risk, first step {risk.first_at_risk:,}"
    if run.packing:  # no sample makes a batch larger than another does
        return [*lines, f"  largest        {largest.tokens:,} tokens take {gib(largest.memory_bytes)}"]
    name, worst = lengths.findings.row_name, risk.worst[:SHOWN]
    headings = ["epoch", "step", "tokens", "memory", "P(OOM)"]
    table = columns(headings, [_batch_row(batch) for batch in worst], left=0, indent="  ")
    beside = [paint(f"longest samples, by {name}", "dim"), *(_samples(batch) for batch in worst)]
    lines += [f"{left}   {right}" for left, right in zip(table, beside, strict=True)]
    return [*lines, *_way_out(risk, name)]


def _batch_row(batch: RiskyBatch) -> list[str]:
    """Return the figures of one batch."""
    chance = probability(batch.out_of_memory_fraction)
    return [f"{batch.epoch}", f"{batch.step:,}", f"{batch.tokens:,}", gib(batch.memory_bytes), chance]


def _samples(batch: RiskyBatch) -> str:
    """Return the samples that make a batch large."""
    return _first_of([_named(one) for one in batch.offenders], len(batch.offenders))


def _first_of(named: list[str], number: int) -> str:
    """Return the first few of `number`, and how many more there are."""
    more = number - len(named[:NAMED])
    return ", ".join(named[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _named(one: Offender) -> str:
    return f"{one.row:,} ({one.tokens:,} tokens)"


def _way_out(risk: WholeRun, name: str) -> list[str]:
    """Return what would make every batch fit."""
    if risk.safe_seq_len is None:
        return []
    rows = _first_of([_named(one) for one in risk.too_long], risk.num_too_long)
    return [
        "",
        *item(
            f"With seq_len={risk.safe_seq_len} no batch is at risk. Longer than that: {risk.num_too_long:,} "
            f"of the samples, {name} {rows}."
        ),
    ]


def _risk_json(risk: WholeRun) -> dict[str, Any]:
    """Return the risk of the whole run as JSON's values."""
    return {
        **risk._asdict(),
        "verdict": risk.verdict,
        "worst": [
            {**batch._asdict(), "offenders": [one._asdict() for one in batch.offenders]}
            for batch in risk.worst
        ],
        "too_long": [one._asdict() for one in risk.too_long],
    }
