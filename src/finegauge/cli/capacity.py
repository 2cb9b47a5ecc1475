"""`finegauge max-batch` and `finegauge max-length`: the largest that still fits."""

from typing import TYPE_CHECKING

import click

from finegauge.cli.question import question, runs, say
from finegauge.plan.capacity import (
    MAX_MICRO_BATCH_SIZE,
    MAX_SEQ_LEN,
    Capacity,
    max_micro_batch_size,
    max_seq_len,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run


@click.command("max-batch")
@question
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=MAX_MICRO_BATCH_SIZE, show_default=True,
    help="Look no further.",
)  # fmt: skip
@click.option(
    "--measured", is_flag=True, help="Run up to four trials on this machine between the predicted bounds."
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Of the trials.  [default: cpu]"
)
@click.option(
    "--memory-limit", "size", metavar="SIZE", default="", help="The most a trial may allocate: 2GiB."
)
@click.option("--store", type=click.Path(dir_okay=False), help="Add the trials to this journal (JSON lines).")
def max_batch(
    run_file: str,
    overrides: tuple[str, ...],
    gpus: tuple[str, ...],
    *,
    as_json: bool,
    limit: int,
    measured: bool,
    device: str,
    size: str,
    store: str | None,
) -> None:
    """Find the largest micro_batch_size of RUN whose longest batch fits; 0 if not even 1 does.

    With --measured the answer is tried out: a trial that is certain to run out of memory is not launched.
    """
    if measured:
        from finegauge.cli.measured_capacity import show_measured

        show_measured(
            run_file, overrides, device=device, size=size, limit=limit, store=store, as_json=as_json
        )
        return
    asked = runs(run_file, overrides, gpus)
    _show("max-batch", [(run, max_micro_batch_size(run, limit=limit)) for run in asked], as_json=as_json)


@click.command("max-length")
@question
@click.option(
    "--limit",
    type=click.IntRange(1, 16_777_216),
    default=MAX_SEQ_LEN,
    show_default=True,
    help="Look no further.",
)
def max_length(
    run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool, limit: int
) -> None:
    """Find the longest seq_len that fits with RUN's micro_batch_size, every sequence that long."""
    asked = runs(run_file, overrides, gpus)
    _show("max-length", [(run, max_seq_len(run, limit=limit)) for run in asked], as_json=as_json)


def _show(command: str, found: list[tuple["Run", Capacity]], *, as_json: bool) -> None:
    """Print one result per GPU."""
    if as_json:
        from finegauge.report.answers import capacity_answer

        say(capacity_answer(command, found))
    else:
        from finegauge.report.capacity import capacity_lines

        say(capacity_lines(found))
