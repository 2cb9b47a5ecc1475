"""`finegauge measure`: run the real thing for a few steps and take it apart."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.endpoint import endpoint_options, measure_each, stated
from finegauge.cli.question import say
from finegauge.errors import EXIT_DONE, EXIT_NO_DATA, EXIT_WILL_NOT_FIT, UnsupportedError

if TYPE_CHECKING:
    from finegauge.measure.process import Heard, Progress

EXIT_CODES = {"completed": EXIT_DONE, "out_of_memory": EXIT_WILL_NOT_FIT}


@click.command()
@click.argument("run_file", metavar="RUN")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--steps", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Measured steps."
)
@click.option(
    "--warmup", "warmup_steps", type=click.IntRange(0, 10_000), default=2, show_default=True,
    help="Steps before, discarded.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(0, 4096), default=0, help="Of the CPU; 0: what torch takes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and data.")
@click.option(
    "--memory/--no-memory", default=True, help="One step under the memory meter.  [default: memory]"
)
@click.option("--layers", is_flag=True, help="Time every part of every layer.")
@click.option("--kernels", is_flag=True, help="Table of kernels, by torch.profiler.")
@click.option("--ncu", is_flag=True, help="SM and DRAM utilisation of one layer, by Nsight Compute.")
@click.option("--experts", is_flag=True, help="Tokens of each expert.")
@click.option("--energy", is_flag=True, help="Joules of a step.")
@click.option("--evaluate", is_flag=True, help="Accuracy before tuning and after each epoch.")
@click.option("--tasks", default="", metavar="NAME,NAME", help="Score it by lm-evaluation-harness.")
@click.option(
    "--task-folder",
    type=click.Path(exists=True, file_okay=False),
    help="YAML files of own tasks.",
)
@click.option("--task-limit", type=click.IntRange(1), help="Questions of each task; all otherwise.")
@click.option(
    "--trace", "trace_path", type=click.Path(dir_okay=False), default="", help="Write a Chrome trace."
)
@click.option(
    "--memory-limit", "limit", metavar="SIZE", default="", help="The most it may allocate: 2GiB, 500MB."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=0.0, help="Seconds; 0: none.")
@click.option(
    "--store", type=click.Path(dir_okay=False), help="Add the outcome to this journal (JSON lines)."
)
@endpoint_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def measure(
    ctx: click.Context,
    /,
    run_file: str,
    overrides: tuple[str, ...],
    *,
    limit: str,
    store: str | None,
    as_json: bool,
    tasks: str,
    task_folder: str | None,
    task_limit: int | None,
    **asked: Any,
) -> None:
    """Run a few steps of RUN on this machine, and show where memory and time go beside the prediction.

    The model is built from its config with random weights, or read from a local checkpoint. It runs in a
    process of its own: out of memory is an outcome (exit code 20), a result that is no data is 30.
    """
    from finegauge.measure.measure import measure as take
    from finegauge.measure.options import Options
    from finegauge.plan.here import prediction_for
    from finegauge.workload.data import shape
    from finegauge.workload.readers import read

    gc.enable()
    run = read(run_file, overrides)
    shape(run)  # batches that cannot be are refused before a process starts
    server, users = stated(asked)
    options = Options(
        **asked,
        **server,
        tasks=tuple(filter(None, tasks.replace(" ", "").split(","))),
        task_folder=task_folder or "",
        task_limit=task_limit or 0,
        memory_limit_bytes=byte_size(limit) if limit else 0.0,
    )
    with progress() as heard:
        if options.endpoint:
            found = measure_each(run, users, options, heard=heard, store=store)
        else:
            alone = take(run, options, heard=heard, store=store)
            found = [(alone, prediction_for(run, options.device, alone.fingerprint.get("device", "")))]
    last, _ = found[-1]
    if last.outcome == "unsupported":
        raise UnsupportedError(last.reason)
    if as_json:
        from finegauge.report.measurement_json import measurements_json

        say(
            measurements_json(
                [(measured, prediction.profile, prediction.missing) for measured, prediction in found]
            )
        )
    else:
        from finegauge.report.measurement import measurements_lines

        say(measurements_lines(found))
    ctx.exit(EXIT_CODES.get(last.outcome, EXIT_NO_DATA))


@contextmanager
def progress() -> Iterator["Heard | None"]:
    """Yield whom to tell how far a trial is: a bar on stderr, drawn only for a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def heard(message: "Progress") -> None:
            bar.update(task, description=message.what, completed=message.done, total=message.total)

        yield heard


def byte_size(text: str) -> float:
    """Return the bytes that "2GiB", "500MB" or "1e9" say."""
    units: dict[str, float] = {
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "kb": 1e3,
        "mb": 1e6,
        "gb": 1e9,
        "b": 1,
    }
    word = text.strip().lower()
    unit = next((name for name in units if word.endswith(name)), "")
    try:
        found = float(word.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e18:
        raise click.BadParameter(
            f"'{text}' is no size; write 2GiB, 500MB or 1000000000.", param_hint="--memory-limit"
        )
    return found
