"""How files look: the fields of training files, data sets and the batches that runs make of them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from finegauge.answers.changes import Fixed
from finegauge.answers.files import FRACTIONS, BatchingFigures, DataAnswer, ReadAnswer, RunOfFile
from finegauge.catalogue.datasets import quantiles
from finegauge.formats.skypilot import COMMAND, FILE
from finegauge.planning.estimate import Offender, WholeRun
from finegauge.render.number_format import percent, probability
from finegauge.render.report import Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.render.run_parts import TONES, field_table
from finegauge.render.terminal import filled_bar
from finegauge.units import counted, gib

if TYPE_CHECKING:
    from finegauge.formats.writing import Written


def read_sections(answer: ReadAnswer) -> Iterator[Section]:
    """Yield each file's fields as a table, its warnings below."""
    for one in answer.results:
        if isinstance(one, RunOfFile):
            table = field_table("Fields", one.run, one.origins, "file")
            yield section("file", one.file, table, *notes(one.warnings, tone="risky"))
        else:
            yield section("file", one.file, field_table("Fields", one.fields, {}, "file"))


def written_section(written: "Written") -> Section:
    """Return what was written, how to start it, and what the framework cannot say."""
    return section("written", "", *written_notes(written))


def written_notes(written: "Written | Fixed") -> Iterator[Note]:
    """Yield what was written, how to start it, and what the framework cannot say."""
    yield from (Note(f"Wrote {path}") for path in written.paths)
    yield Note(f"Start it with: {written.command}")
    if written.command != COMMAND and any(path.endswith(FILE) for path in written.paths):
        yield Note(f"Rent the machines and start it, by one command: {COMMAND}")
    yield from notes(written.warnings, tone="risky")


MOST_BINS = 16
BAR_WIDTH = 40
SHOWN = 5  # of the worst batches; --json has them all
NAMED = 3  # samples of one batch

Pairs = Sequence[tuple[int, int]]


def data_report(answer: DataAnswer) -> Report:
    """Return the lengths of a data set, what was found on the way, and the batches that runs make of it."""
    formats = ", ".join(
        f"{name} {count:,}" if len(answer.formats) > 1 else name for name, count in answer.formats.items()
    )
    reached = answer.quantiles_tokens
    spread = " · ".join(f"{name.replace('_', '.')} {reached[name]:,}" for name in FRACTIONS)
    spread = f"shortest {reached['min']:,} · {spread} · longest {reached['max']:,} ({answer.longest_at})"
    loss = answer.num_loss_tokens / answer.num_tokens
    mean = f"mean {answer.mean_tokens:,.1f} tokens"
    mean += f"; {percent(loss)} of all tokens are answers" if loss < 1 else ""
    size = f"{answer.file}: {counted(answer.num_samples, 'sample')}, {answer.num_tokens:,} tokens"
    return Report.of(
        "Data",
        Toned(size, "strong"),
        section("lengths", "", _histogram(answer.lengths)),
        section("spread", "", Note(spread), Note(mean), *notes(answer.warnings, tone="risky")),
        *(_batching_section(one, answer.row_name) for one in answer.batching),
        subject=(f"{'; '.join((formats, *answer.notes))}; tokenizer {answer.tokenizer}",),
    )


def _histogram(pairs: Pairs) -> Table:
    total, found = sum(count for _, count in pairs), bins(pairs)
    most = max(count for _, _, count in found)
    rows, seen = [], 0
    for low, high, count in found:
        seen += count
        shares = (f"{100 * part / total:.1f} %" for part in (count, seen))
        rows.append((f"{low:,}", f"{high:,}", f"{count:,}", *shares, filled_bar(count / most, BAR_WIDTH)))
    headings = "from", "to tokens", "samples", "share", "so far", ""
    return Table("Samples by length", headings, tuple(rows), 0, ends_in_text=True, indent=2)


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


def _batching_section(one: BatchingFigures, row_name: str) -> Section:
    run = one.asked
    ranks = f" on each of {run.data_parallel} GPUs" if run.data_parallel > 1 else ""
    who = f"as {one.framework} makes them" if one.framework else "as transformers' trainer makes them"
    sizes = f"{run.micro_batch_size} x {run.gradient_accumulation_steps} sequences a step{ranks}"
    return section(
        "batches", f"Batches of {run.model}, {who}: {sizes}",
        Note(one.how),
        Table("Batches", ("", ""), tuple(_facts(one)), ends_in_text=True, indent=2),
        *(_risk_blocks(one, one.whole_run, row_name) if one.whole_run else ()),
    )  # fmt: skip


def _facts(one: BatchingFigures) -> Iterator[tuple[Text, ...]]:
    tokens, run = one.tokens_per_step, one.asked
    yield "steps", f"{one.steps_per_epoch:,} in an epoch, {one.steps_total:,} in the run"
    yield "tokens/step", f"{tokens['mean']:,.0f} on average, {tokens['min']:,} to {tokens['max']:,}"
    yield "padding", (Toned(f"{100 * one.padding_fraction:.1f} %", "strong"), " of all tokens computed")
    if one.num_packs is not None and one.pack_fill_fraction is not None:
        yield "packs", f"{one.num_packs:,}, {100 * one.pack_fill_fraction:.1f} % full"
    if one.lost_tokens:
        share = percent(one.lost_tokens / (one.lost_tokens + one.kept_tokens))
        yield "lost", f"{one.lost_tokens:,} tokens beyond the cut-off ({share} of all)"
    if one.num_left_out:
        yield "left out", f"{one.num_left_out:,} samples at the end of an epoch"
    if one.whole_run is None:
        ask = "--gpu says whether it fits"
        if run.gpu is not None:  # a phase that makes other batches of the samples
            ask = f"'finegauge check' says whether phase={run.phase} fits"
        tokens_of_it, step = one.longest
        yield "longest", f"{tokens_of_it:,} tokens in a micro-batch, first in step {step:,}; {ask}"


def _risk_blocks(one: BatchingFigures, risk: WholeRun, row_name: str) -> Iterator[Note | Table]:
    chance, total = probability(risk.out_of_memory_fraction), one.steps_total
    seen = f"{risk.num_steps:,}"
    if total is not None and total > risk.num_steps:
        seen = f"the first {risk.num_steps:,} of {total:,}"
    told = Toned(f"{risk.verdict.replace('_', ' ')}, P(OOM) {chance}", TONES[risk.verdict])
    where = ""
    if risk.first_at_risk is not None:
        where = f"; {risk.steps_at_risk:,} steps at risk, first step {risk.first_at_risk:,}"
    yield Note((f"Over {seen} steps on {one.gpu}: ", told, where))
    if one.num_packs is not None:  # no sample makes a batch larger than another does
        largest = risk.worst[0]
        yield Note(f"The largest has {largest.tokens:,} tokens, which take {gib(largest.memory_bytes)}.")
        return
    rows = tuple(
        (
            f"{batch.epoch}", f"{batch.step:,}", f"{batch.tokens:,}", gib(batch.memory_bytes),
            probability(batch.out_of_memory_fraction), _samples(batch.offenders, len(batch.offenders)),
        )
        for batch in risk.worst[:SHOWN]
    )  # fmt: skip
    headings = "epoch", "step", "tokens", "memory", "P(OOM)", f"longest samples, by {row_name}"
    yield Table("Largest batches", headings, rows, 0, ends_in_text=True, indent=2)
    if risk.safe_seq_len is not None:
        yield Note(
            f"With seq_len={risk.safe_seq_len} no batch is at risk. Longer than that: {risk.num_too_long:,} "
            f"of the samples, {row_name} {_samples(risk.too_long, risk.num_too_long)}."
        )


def _samples(offenders: Sequence[Offender], number: int) -> str:
    shown = offenders[:NAMED]
    more = f" and {number - len(shown):,} more" if number > len(shown) else ""
    return ", ".join(f"{one.row:,} ({one.tokens:,} tokens)" for one in shown) + more
