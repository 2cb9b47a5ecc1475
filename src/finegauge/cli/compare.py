"""`finegauge compare`: SpeedUp, MemoryUp and EnergyUp of optimisations over a baseline."""

import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import runs, say
from finegauge.errors import FieldError, InputError, shown

if TYPE_CHECKING:
    from finegauge.campaign.gains import Comparison
    from finegauge.profile import Profile


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="BASELINE OTHER... | CAMPAIGN")
@click.option("--gpu", metavar="NAME", default="", help="Of runs that are predicted.")
@click.option(
    "--baseline",
    metavar="SWITCH",
    default="baseline",
    show_default=True,
    help="What a campaign's others beat.",
)
@click.option("--figure", metavar="FILE", default="", help="Draw it: a .png, and an .svg beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def compare(paths: tuple[str, ...], *, gpu: str, baseline: str, figure: str, as_json: bool) -> None:
    """Say what optimisations gain: in a CAMPAIGN's folder, or of the runs OTHER over the run BASELINE.

    A run is a file that 'estimate' reads, which is predicted, or a journal of 'measure --store', whose
    completed trials are taken.
    """
    from finegauge.campaign.folder import Folder
    from finegauge.campaign.gains import compare_results
    from finegauge.report.compare import compare_json, compare_lines

    if len(paths) == 1:
        if not os.path.isdir(paths[0]):
            raise InputError(
                f"{shown(paths[0])} is no campaign's folder; name one, or a baseline and what to compare."
            )
        found = compare_results(Folder(paths[0]).results(), baseline)
        if not found:
            raise InputError(
                f"The campaign in {shown(paths[0])} has no '{baseline}' and another switch; see --baseline."
            )
    else:
        found = [_of_runs(paths, gpu)]
        baseline = os.path.basename(paths[0])
    if figure:
        _draw(found, figure)
    say(compare_json(found, baseline) if as_json else compare_lines(found, baseline))


def _of_runs(paths: tuple[str, ...], gpu: str) -> "Comparison":
    """Return the comparison of runs, predicted or measured."""
    from finegauge.campaign.gains import Comparison, gains_over

    profiles = {path: _profiles(path, gpu) for path in paths}
    kinds = dict.fromkeys(one.source.kind for found in profiles.values() for one in found)
    if len(kinds) > 1:
        raise FieldError(
            "Measured and predicted runs are not compared with each other; give runs of one kind."
        )
    base, *others = paths
    return Comparison(
        {}, next(iter(kinds)), gains_over(profiles[base], {path: profiles[path] for path in others})
    )


def _profiles(path: str, gpu: str) -> "list[Profile]":
    """Return the profiles of a run: one predicted, or all that a journal holds."""
    from finegauge.predict import predict
    from finegauge.store.trials import Trials

    if path.endswith(".jsonl"):
        found = [one for one in Trials(path).profiles() if one.outcome == "completed"]
        if not found:
            raise InputError(f"{shown(path)} holds no completed trial.")
        return found
    (run,) = runs(path, (), (gpu,) if gpu else (), common=False)[:1]
    return [predict(run)]


def _draw(found: "list[Comparison]", path: str) -> None:
    """Draw bars."""
    from finegauge.report.charts import check_matplotlib, save_charts
    from finegauge.report.compare import panels

    check_matplotlib()
    save_charts(panels(found), os.path.splitext(path)[0], "SpeedUp, MemoryUp, EnergyUp over the baseline")
