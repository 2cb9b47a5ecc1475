"""What `finegauge data` prints: how long samples are, and what was found on the way."""

from collections.abc import Sequence
from typing import Any

from finegauge.report.figures import percent
from finegauge.report.terminal import WIDTH, bar, columns, paint, wrapped
from finegauge.workload.dataset_files.lengths import Findings, Lengths, quantiles

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
        share = bar(count / most, BAR_WIDTH)
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
