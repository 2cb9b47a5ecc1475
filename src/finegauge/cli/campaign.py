"""`finegauge campaign`: many runs, predicted, measured or both, resumable."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import say

if TYPE_CHECKING:
    from finegauge.campaign.campaign import Engine, Heard, Progress


def _list(context: click.Context, option: click.Parameter, value: object) -> None:
    """Print the sweeps that come with FineGauge, and stop."""
    if not value or context.resilient_parsing:
        return
    from finegauge.campaign.shipped import shipped
    from finegauge.campaign.sweep import about_of
    from finegauge.report.campaign import shipped_lines

    say(shipped_lines({name: about_of(path) for name, path in shipped().items()}))
    context.exit()


@click.command()
@click.argument("sweep_file", metavar="SWEEP")
@click.option(
    "-o", "--output", metavar="FOLDER", help="Where results are kept; a folder named after the sweep."
)
@click.option("--retry", is_flag=True, help="Ask cells again that failed or had no answer.")
@click.option(
    "--only", type=click.Choice(("predicted", "measured")), default=None, help="Ask this part of SWEEP alone."
)
@click.option("--dry-run", is_flag=True, help="Say what would be asked, and ask nothing.")
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Who measures: processes of this machine, or a Ray cluster.",
)
@click.option(
    "--address", metavar="HOST:PORT", default="", help="Of the Ray cluster; without, Ray finds one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list,
              help="List the sweeps that come with FineGauge.")  # fmt: skip
def campaign(
    sweep_file: str,
    output: str | None,
    *,
    retry: bool,
    only: str | None,
    dry_run: bool,
    engine: str,
    address: str,
    as_json: bool,
) -> None:
    """Ask every cell of SWEEP once, and keep the answers in a folder.

    SWEEP is a file, or the name of a sweep that comes with FineGauge (--list).
    Stop it whenever you like, by Ctrl-C or harder: the next call goes on where this one ended.
    'finegauge results FOLDER' and 'finegauge compare FOLDER' read what it kept.
    """
    from finegauge.campaign.campaign import carry_out
    from finegauge.campaign.folder import Folder
    from finegauge.campaign.sweep import read_sweep
    from finegauge.report.campaign import campaign_json, campaign_lines, dry_lines

    gc.enable()
    sweep = read_sweep(sweep_file)
    if only:
        sweep = sweep.only(only)
    folder = output or os.path.splitext(os.path.basename(sweep_file))[0]
    if dry_run:
        say(dry_lines(sweep, Folder(folder).done()))
        return
    with _progress() as heard:
        summary = carry_out(sweep, folder, _engine(engine, address), heard=heard, retry=retry)
    _keep_table(folder)
    if as_json:
        say(campaign_json(sweep, Folder(folder), summary))
    else:
        say(campaign_lines(sweep, Folder(folder), summary))


def _engine(name: str, address: str) -> "Engine":
    """Return who measures.

    Raises: FieldError for an address without a cluster.
    """
    from finegauge.campaign.local_engine import LocalEngine
    from finegauge.campaign.ray_engine import RayEngine
    from finegauge.errors import FieldError

    if name == "ray":
        return RayEngine(address)
    if address:
        raise FieldError("--address is of a Ray cluster; add --engine ray.")
    return LocalEngine()


def _keep_table(folder: str) -> None:
    """Make the table of a large campaign, so that the first of its `results` is not the one to wait."""
    from finegauge.errors import FineGaugeError
    from finegauge.store.table import table_of

    with suppress(FineGaugeError):  # no pyarrow, or nothing was asked
        table_of([folder])


@contextmanager
def _progress() -> Iterator["Heard | None"]:
    """Yield whom to tell how far the campaign is: a bar on stderr, drawn only for a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    from finegauge.report.figures import duration

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def heard(message: "Progress") -> None:
            left = f", about {duration(message.left_s)} left" if message.left_s is not None else ""
            said = f"{message.done}/{message.total} {message.title}{left}"
            bar.update(task, description=said, completed=message.done, total=message.total)

        yield heard
