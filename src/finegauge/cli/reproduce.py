"""`finegauge reproduce`: the seed paper's tables and figures, ours beside theirs, or measured again here."""

import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import say
from finegauge.errors import InputError, UnknownNameError, shown

if TYPE_CHECKING:
    from finegauge.reproduce.item import Reproduction

PAPERS = ("xia2024",)
STORE = "trials.jsonl"


@click.command()
@click.argument("paper", metavar="PAPER")
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("-o", "--output", metavar="DIR", help="Write charts (PNG, SVG) and one HTML page here.")
@click.option("--measured", is_flag=True, help="Measure its qualitative findings again, on this machine.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="With --measured."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="CPU threads with --measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def reproduce(
    paper: str,
    items: tuple[str, ...],
    output: str | None,
    *,
    measured: bool,
    device: str,
    threads: int,
    as_json: bool,
) -> None:
    """Regenerate PAPER (xia2024) from its published figures: every table, figure and inconsistency.

    ITEM narrows it: table-1 to table-4, openorca, fig-2 to fig-6, fig-8 to fig-11, lengths, fig-13 to
    fig-15, laws, extrapolation.

    With --measured nothing published is regenerated: small models are trained here, in a few minutes,
    and each of the paper's findings is held against what that took.
    """
    if paper not in PAPERS:
        raise UnknownNameError("paper", paper, known=PAPERS)
    if measured and items:
        raise InputError(f"--measured measures all findings and takes no items; leave {shown(items[0])} out.")
    if output is not None:
        from finegauge.report.charts import check_matplotlib

        check_matplotlib()
    from finegauge.report.reproduction import reproduction_json, reproduction_lines

    whole = _measured(device, threads, output) if measured else _published(items)
    files = () if output is None else _write(whole, output, f"{paper}_measured" if measured else paper)
    say(reproduction_json(whole) if as_json else reproduction_lines(whole, files))


def _published(items: tuple[str, ...]) -> "Reproduction":
    """Return the reproduction of the published figures."""
    from finegauge.reproduce.xia2024 import reproduce as whole_paper

    return whole_paper(items)


def _measured(device: str, threads: int, output: str | None) -> "Reproduction":
    """Return the findings measured here; progress goes to stderr, profiles to a journal in the folder."""
    from finegauge.measure.options import Options
    from finegauge.reproduce.measured.report import measure_findings

    store = None
    if output is not None:
        _make(output)
        store = os.path.join(output, STORE)
    options = Options(device=device, threads=threads)
    return measure_findings(options, told=lambda what: click.echo(f"{what} ...", err=True), store=store)


def _make(folder: str) -> None:
    """Make a folder where there is none."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {shown(folder)}: {error.strerror or error}.") from None


def _write(whole: "Reproduction", folder: str, paper: str) -> tuple[str, ...]:
    """Write the charts and the page, and say which files."""
    from finegauge.report.charts import save_charts
    from finegauge.report.reproduction_page import page

    _make(folder)
    try:
        charts = {}
        for item in whole.items:
            if item.panels:
                _, svg = save_charts(item.panels, os.path.join(folder, item.key), item.title)
                with open(svg, encoding="utf-8") as drawn:
                    charts[item.key] = drawn.read()
        path = os.path.join(folder, f"{paper}.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(whole, charts))
    except OSError as error:
        raise InputError(f"Cannot write to {shown(folder)}: {error.strerror or error}.") from None
    return path, f"{len(charts)} charts as PNG and SVG beside it"
