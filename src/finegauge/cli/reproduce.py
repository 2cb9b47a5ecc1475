"""`finegauge reproduce`: the seed paper's tables and figures, ours beside theirs."""

import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import say
from finegauge.errors import InputError, UnknownNameError, shown

if TYPE_CHECKING:
    from finegauge.reproduce.item import Reproduction

PAPERS = ("xia2024",)


@click.command()
@click.argument("paper", metavar="PAPER")
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("-o", "--output", metavar="DIR", help="Write charts (PNG, SVG) and one HTML page here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def reproduce(paper: str, items: tuple[str, ...], output: str | None, *, as_json: bool) -> None:
    """Regenerate PAPER (xia2024) from its published figures: every table, figure and inconsistency.

    ITEM narrows it: table-1 to table-4, openorca, fig-2 to fig-6, fig-8 to fig-11, lengths, fig-13 to
    fig-15, laws, extrapolation.
    """
    if paper not in PAPERS:
        raise UnknownNameError("paper", paper, known=PAPERS)
    if output is not None:
        from finegauge.report.charts import check_matplotlib

        check_matplotlib()
    from finegauge.report.reproduction import reproduction_json, reproduction_lines
    from finegauge.reproduce.xia2024 import reproduce as whole_paper

    whole = whole_paper(items)
    files = () if output is None else _write(whole, output, paper)
    say(reproduction_json(whole) if as_json else reproduction_lines(whole, files))


def _write(whole: "Reproduction", folder: str, paper: str) -> tuple[str, ...]:
    """Write the charts and the page, and say which files."""
    from finegauge.report.charts import save_charts
    from finegauge.report.reproduction_page import page

    try:
        os.makedirs(folder, exist_ok=True)
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
