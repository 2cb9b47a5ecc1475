"""What `finegauge data --run` prints: the batches that a run makes of its samples, and whether all fit."""

from typing import TYPE_CHECKING, Any

from finegauge.plan.verdict import FITS, WILL_NOT_FIT
from finegauge.plan.whole_run import Offender, RiskyBatch, WholeRun, whole_run
from finegauge.report.figures import percent, probability
from finegauge.report.terminal import columns, item, paint
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.workload.batching.simulate import Batches
    from finegauge.workload.data import BatchShape
    from finegauge.workload.dataset_files.lengths import Lengths
    from finegauge.workload.run import Run

SHOWN = 5  # of the worst batches; --json has them all
NAMED = 3  # samples of one batch
_COLOUR = {FITS: "green", WILL_NOT_FIT: "red"}


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
    from finegauge.workload.batching.shapes import epoch_of, shape_of_samples

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
