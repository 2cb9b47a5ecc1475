"""Write docs/benchmark.md of the answers in build/peers: who answers, how far off, who is better where."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.ask import EXAM, NOT_ASKED, OURS, exam_rows, shipped_rows
from benchmarks.peers.environments import FOLDER, NOT_RUN, PREDICTORS, ROOT
from finegauge.formats.measurement_tables import MeasuredRow
from finegauge.validation.summary import percentile

PAGE = ROOT / "docs" / "benchmark.md"
ANSWERS = dict[str, dict[str, Any]]  # of one predictor, by the row's id
FEW = 5  # rows of a source, below which no one is called better
LEFT_OUT = "FineGauge, source left out"
NAMES = {"finegauge": "FineGauge", "finegauge-left-out": LEFT_OUT}
INTRODUCTION = """# The open benchmark

Written by `make bench-peers`; nothing on this page is typed by hand. Every predictor that can be installed
is given an environment of its own, and every row of every table that ships with FineGauge
([what they are](measurement-tables.md)), read as the same run; it is asked in its own terms, as
far as these go, and what it refuses counts as refused. Nobody is shown what was measured.
`finegauge validate --against all` asks those that are installed beside FineGauge.

An error is predicted / measured - 1; the median and the 90th percentile (p90) are of its size. Memory is
compared with what the source counts: where a predictor names a share for the CUDA context or the allocator,
that share is left off for tables that count PyTorch's tensors, unless the predictor does better with it.
memtracker traces a step in up to a minute and was given a limit of processor seconds{beyond}.

**FineGauge is calibrated on most of these rows, so its own line is no blind test.** "{left_out}" is one for
time: the constants behind each row are fitted without its source. Nothing is fitted to memory, but rules of
frameworks were read with these tables in sight; [accuracy](accuracy.md) says which tables were held out of
every fit. fitcheck-llm has the same advantage on its own table, fitcheck-t4.
"""
EXAM_TEXT = """{rows} runs from {threads} public threads in which people state a configuration and
whether it ran ({oom} ran out of memory), in `tests/golden/field_exam.csv` with link and date; no text is
kept. It is an exam: nothing is fitted to it. One rule was read in transformers' code after a row had been
missed: bitsandbytes takes the whole model onto every GPU before FSDP or ZeRO-3 shards it. It is no fair
sample: people write threads when they are surprised. What a thread leaves open is assumed (last column):
the defaults of the script it names, samples as long as the cut-off, a GPU that nothing else uses. Threads
rarely say *when* memory ran out, so a run that failed while loading or saving counts as one that did not
fit. The likely reason is ours to guess: nobody has run these again."""


def answers(name: str) -> ANSWERS:
    """Return what a predictor said, by the row's id."""
    lines = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    return {one["id"]: one for one in map(json.loads, lines)}


def exam_cells() -> list[dict[str, str]]:
    """Return the rows of the field exam as they stand in the file."""
    with EXAM.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown, `left` columns of text before those of numbers."""
    rule = ["---" if column < left else "---:" for column in range(len(headings))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, rule, *rows))


def shown(errors: Sequence[float]) -> tuple[str, str, str]:
    """Return how many errors, their median size and the 90th percentile of it."""
    sizes = sorted(map(abs, errors))
    if not sizes:
        return "0", "-", "-"
    return str(len(sizes)), f"{median(sizes):.1%}", f"{percentile(sizes, 0.9):.1%}"


def errors_of(said: ANSWERS, rows: Iterable[MeasuredRow], quantity: str) -> dict[str, float]:
    """Return the errors of one quantity by the row's id."""
    found = {row.id: said[row.id][quantity] for row in rows if row.id in said}
    return {name: error for name, error in found.items() if error is not None}


def fits(said: ANSWERS, rows: Iterable[MeasuredRow]) -> tuple[int, int, int, int]:
    """Return how often fits or not was right, wrong by a promise, wrong by a refusal, and not answered."""
    right = promised = refused = silent = 0
    for row in rows:
        ours, truth = said[row.id]["outcome"], row.measured.outcome
        right += ours == truth
        promised += (ours, truth) == ("ok", "oom")
        refused += (ours, truth) == ("oom", "ok")
        silent += ours is None
    return right, promised, refused, silent


def overall(said: dict[str, ANSWERS], rows: Sequence[MeasuredRow]) -> str:
    """Return the table of everything: answers, memory, time, fits."""
    stated = [row for row in rows if row.run and row.measured.outcome in ("ok", "oom")]
    oom = sum(row.measured.outcome == "oom" for row in stated)
    lines = []
    for name, one in said.items():
        memory, time = (list(errors_of(one, rows, q).values()) for q in ("memory_error", "time_error"))
        asked = sum(one[row.id]["reason"] != NOT_ASKED for row in rows)
        some = sum(not one[row.id]["reason"] for row in rows)
        right, promised, refused, silent = fits(one, stated)
        judged = f"{right} of {right + promised + refused}" if silent < len(stated) else "-"
        lines.append(
            (NAMES.get(name, name), str(some), str(asked - some), *shown(memory), *shown(time), judged)
        )
    quantities = ("memory: rows", "median", "p90", "time: rows", "median", "p90")
    headings = ("", "answered", "refused", *quantities, "fits: right")
    always = f"{oom} of them out of memory: an answer of 'fits' to every row is right in {len(stated) - oom}."
    return f"{len(stated)} state an outcome, {always}\n\n{table(headings, lines)}"


def head_to_head(said: dict[str, ANSWERS], rows: Sequence[MeasuredRow]) -> str:
    """Return each rival beside us on the rows that both answer."""
    lines = []
    for name in filter(lambda one: one not in OURS, said):
        for quantity, what in (("memory_error", "memory"), ("time_error", "time")):
            theirs, ours = errors_of(said[name], rows, quantity), errors_of(said[OURS[1]], rows, quantity)
            both = theirs.keys() & ours.keys()
            if both:
                pair = [shown([found[row] for row in both]) for found in (theirs, ours)]
                lines.append((f"{what}: {name}", str(len(both)), *pair[0][1:], *pair[1][1:]))
    return table(("", "rows", "theirs: median", "p90", "ours: median", "p90"), lines)


def by_source(said: dict[str, ANSWERS], rows: Sequence[MeasuredRow], quantity: str) -> tuple[str, list[str]]:
    """Return the medians of every source and predictor, and where rivals are better."""
    sources = list(dict.fromkeys(row.source for row in rows))
    columns = [name for name, one in said.items() if errors_of(one, rows, quantity)]
    lines, better = [], []
    for source in sources:
        own = [row for row in rows if row.source == source]
        ours = errors_of(said[OURS[1]], own, quantity)
        cells = []
        for name in columns:
            found = errors_of(said[name], own, quantity)
            cells.append(f"{median(map(abs, found.values())):.1%}" if found else "-")
            both = found.keys() & ours.keys()
            if name in OURS or len(both) < FEW:
                continue
            theirs, us = (median(abs(one[row]) for row in both) for one in (found, ours))
            if theirs < us:
                what = quantity.removesuffix("_error")
                better.append(f"{what}, {source}: {name} {theirs:.1%}, FineGauge {us:.1%} ({len(both)} rows)")
        if any(cell != "-" for cell in cells):
            lines.append((source, *cells))
    return table(("", *(NAMES.get(name, name) for name in columns)), lines), better


def exam(said: dict[str, ANSWERS], rows: Sequence[MeasuredRow]) -> str:
    """Return the field exam: who calls it right, and our misses with what the thread leaves open."""
    lines = []
    for name, one in said.items():
        right, promised, refused, silent = fits(one, rows)
        if silent < len(rows) and name != OURS[1]:
            counts = map(str, (right, promised, refused, silent))
            peaks = shown(list(errors_of(one, rows, "memory_error").values()))[:2]
            lines.append((NAMES.get(name, name), *counts, *peaks))
    ran = sum(row.measured.outcome == "ok" for row in rows)
    lines.append(("who always says that it runs", str(ran), str(len(rows) - ran), "0", "0", "0", "-"))
    lines.append(("who always says that it does not", str(len(rows) - ran), "0", str(ran), "0", "0", "-"))
    cells = {one["id"]: one for one in exam_cells()}
    misses = []
    for row in rows:
        ours = said[OURS[0]][row.id]
        if ours["outcome"] not in (None, row.measured.outcome):
            cell = cells[row.id]
            shape = f"batch {cell['micro_batch_size']}, {cell['seq_len']} tokens"
            division = cell["parallelism"] or cell["sharding"] or "one GPU"
            cards = f"{cell['num_gpus']} x {cell['gpu']}"
            what = f"{cell['model']}, {cell['method']}, {cards}, {shape}, {division}"
            link = f"[{row.id}](https://{cell['link']})"
            gib = f"{ours['peak_memory_gib']:.1f} GiB"
            misses.append((link, what, cell["outcome"], gib, cell["likely_reason"], cell["assumed"]))
    wrong = ("said to fit, ran out", "said not to, ran")
    table_of_counts = table(("", "right", *wrong, "not answered", "peaks stated", "median"), lines)
    headings = ("thread", "configuration", "what happened", "ours", "likely reason", "assumed")
    return f"{table_of_counts}\n\n### Where we are wrong\n\n" + table(headings, misses, left=6)


def better_in_the_exam(said: dict[str, ANSWERS], rows: Sequence[MeasuredRow]) -> list[str]:
    """Return where a rival calls more of the rows that it answers right, or is nearer to the stated peaks."""
    ours, found = said[OURS[0]], []
    for name in filter(lambda one: one not in OURS, said):
        own = [row for row in rows if said[name][row.id]["outcome"] is not None]
        theirs, us = fits(said[name], own)[0], fits(ours, own)[0]
        if theirs > us:
            found.append(f"field exam, fits or not: {name} {theirs}, FineGauge {us} of {len(own)}")
        peaks = [errors_of(one, own, "memory_error") for one in (said[name], ours)]
        both = [sorted(abs(one[row]) for row in peaks[0].keys() & peaks[1].keys()) for one in peaks]
        if len(both[0]) >= FEW and median(both[0]) < median(both[1]):
            medians = f"{name} {median(both[0]):.1%}, FineGauge {median(both[1]):.1%}"
            found.append(f"field exam, stated peaks: {medians} ({len(both[0])} rows)")
    return found


def page() -> str:
    """Return the whole page."""
    rows, questions = shipped_rows(), exam_rows()
    asked = [one for one in PREDICTORS if (FOLDER / f"{one.name}.jsonl").exists()]
    said = {name: answers(name) for name in (*OURS, *(one.name for one in asked))}
    not_run = {one.name: "not asked in this run" for one in PREDICTORS if one not in asked} | NOT_RUN
    memory, better_memory = by_source(said, rows, "memory_error")
    time, better_time = by_source(said, rows, "time_error")
    in_exam = better_in_the_exam(said, questions)
    who = [
        (one.name, next((p.split("==")[1] for p in one.packages if one.name in p), "-"), one.what, one.claim,
         f"[source](https://{one.link})")
        for one in asked
    ]  # fmt: skip
    better = [f"- {line}" for line in (*better_memory, *better_time, *in_exam)] or ["- nowhere"]
    oom = sum(row.measured.outcome == "oom" for row in questions)
    threads = len({one["link"] for one in exam_cells()})
    not_asked = sum(one["reason"] == NOT_ASKED for answered in said.values() for one in answered.values())
    beyond = (
        f": the {not_asked} rows\nbeyond it are neither answered nor refused, so compare it only on the rows "
        "that both answer"
    )
    parts = (
        INTRODUCTION.format(left_out=LEFT_OUT, beyond=beyond if not_asked else ", which sufficed"),
        f"## All rows\n\n{len(rows)} rows. {overall(said, rows)}",
        f"## Where a rival is better\n\nMedian over the rows of a source (at least {FEW}) that both answer, "
        "ours with the source left out:\n\n" + "\n".join(better),
        "## On the rows that both answer\n\nOurs with the source left out.\n\n" + head_to_head(said, rows),
        f"## Memory by source, median error\n\n{memory}",
        f"## Step time by source, median error\n\n{time}",
        "## Who was asked, and what their authors say\n\n"
        + table(("", "version", "what it is", "authors on its accuracy", "from"), who, left=5),
        "## Not run\n\n" + "\n".join(f"- {name}: {why}." for name, why in not_run.items()),
        f"## The field exam\n\n{EXAM_TEXT.format(rows=len(questions), threads=threads, oom=oom)}\n\n"
        + exam(said, questions),
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(page(), "utf-8")
    print(f"docs/{Path(PAGE).name}")
