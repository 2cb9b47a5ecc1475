"""`finegauge micro`: this machine's operators timed one by one, kept as a device profile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import say
from finegauge.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from finegauge.report.modules import Compared
    from finegauge.workload.run import Run

STEPS = 5  # of each measured run


@click.command()
@click.argument("run_files", nargs=-1, metavar="[RUN]...")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What to time; cuda where there is one.")
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Of the host's arithmetic; torch's choice."
)
@click.option(
    "--collectives",
    type=click.IntRange(2),
    metavar="N",
    help="Time collectives between 2, 4 ... N processes too: gloo between CPUs, NCCL between GPUs.",
)
@click.option(
    "--modules", is_flag=True, help="Then measure each RUN module by module, beside its prediction."
)
@click.option("-o", "--output", metavar="FILE", help="Where to write; this machine's own profile otherwise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def micro(
    run_files: tuple[str, ...],
    device: str | None,
    threads: int,
    collectives: int | None,
    output: str | None,
    *,
    modules: bool,
    as_json: bool,
) -> None:
    """Time the operators of this machine and keep them as a device profile.

    Matrix products, attention, norms, activations, experts, adapters, the loss, the optimizer's update and
    the host's own work, forward and backward, over a grid of sizes: about a minute. With RUNs, also at the
    sizes that these ask for, half and double their batch.

    With --modules, each RUN is then measured module by module (a few steps) beside what the operators
    say it takes: pre-training, fine-tuning and serving, and what they are made of, in one report.

    Predictions take the profile in place of a datasheet: --gpu here, or --gpu FILE.
    """
    check_libraries()
    if modules and not run_files:
        raise click.UsageError("--modules compares runs with their operators: name at least one RUN.")
    from finegauge.catalogue.device_profile import shelf_path, write
    from finegauge.workload.readers import read

    runs = [read(path, ()) for path in run_files]
    chosen = device or _device_here()
    path = output or shelf_path(chosen)
    from finegauge.measure.micro.micro import micro as timed

    with _progress() as heard:
        profile = timed(runs, device=chosen, threads=threads, ranks=collectives or 0, heard=heard)
    write(profile, path)
    compared = _compared(dict(zip(run_files, runs, strict=True)), chosen, threads, path) if modules else []
    from finegauge.report.modules import module_lines, modules_json

    if as_json:
        import json

        more = {"runs": modules_json(compared)} if modules else {}
        say(json.dumps({"command": "micro", "path": path, **profile.to_json(), **more}, allow_nan=False))
    else:
        from finegauge.report.device_profile import profile_lines

        say([*profile_lines(profile), *module_lines(compared)])
        say(f"Written to {path}; use it by --gpu {'here' if not output else path}")


def _compared(runs: "Mapping[str, Run]", device: str, threads: int, path: str) -> "list[Compared]":
    """Return every run as the profile at `path` predicts it and as this machine runs it."""
    from finegauge.measure.measure import measure
    from finegauge.measure.options import Options
    from finegauge.predict import predict
    from finegauge.report.modules import Compared

    options = Options(device=device, threads=threads, steps=STEPS, layers=True, memory=False)
    found = []
    for name, run in runs.items():
        here = run.replace(gpu=path)
        found.append(Compared(name, predict(here), measure(here, options)))
    return found


def check_libraries() -> None:
    """Refuse where the libraries whose operators are timed are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"Timing operators needs {' and '.join(missing)}: pip install 'finegauge[measure]'. "
            "Predicting works without."
        )


def _device_here() -> str:
    """Return "cuda" where torch finds a GPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def _progress() -> Iterator["Callable[[str, int, int], None] | None"]:
    """Show what is timed now, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("timing", total=None)
        yield lambda what, done, total: bar.update(
            task, completed=done, total=total, description=f"timing {what}"
        )
