"""`finegauge compare`: SpeedUp, MemoryUp and EnergyUp of optimisations over a baseline."""

import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import runs, say
from finegauge.errors import FieldError, InputError, UnknownKeyError, UnknownNameError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from finegauge.campaign.gains import Comparison
    from finegauge.profile import Profile

MOST_DRAWN = 12  # comparisons in one figure


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="BASELINE OTHER... | CAMPAIGN")
@click.option("--gpu", metavar="NAME", default="", help="Of runs that are predicted.")
@click.option(
    "--baseline", metavar="SWITCH", default="", help="What a campaign's others beat; as its sweep says."
)
@click.option(
    "--at", "places", metavar="AXIS=VALUE", multiple=True, help="Only these points of a campaign: phase=sft."
)
@click.option("--figure", metavar="FILE", default="", help="Draw it: a .png, and an .svg beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def compare(
    paths: tuple[str, ...], *, gpu: str, baseline: str, places: tuple[str, ...], figure: str, as_json: bool
) -> None:
    """Say what optimisations gain: in a CAMPAIGN's folder, or of the runs OTHER over the run BASELINE.

    A run is a file that 'estimate' reads, which is predicted, or a journal of 'measure --store', whose
    completed trials are taken.
    """
    from finegauge.campaign.claims import claims_called
    from finegauge.campaign.folder import Folder
    from finegauge.report.compare import compare_json, compare_lines

    claims = None
    if len(paths) == 1:
        if not os.path.isdir(paths[0]):
            raise InputError(
                f"{shown(paths[0])} is no campaign's folder; name one, or a baseline and what to compare."
            )
        said = Folder(paths[0]).described()
        baseline = baseline or said.baseline
        claims = claims_called(said.claims) if said.claims else None
        found = _of_campaign(paths[0], baseline, said.axes, places)
    else:
        if places:
            raise FieldError("--at is of a campaign's folder; runs have no axes.")
        found = [_of_runs(paths, gpu)]
        baseline = os.path.basename(paths[0])
    if figure:
        _draw(found, figure)
    say(compare_json(found, baseline, claims) if as_json else compare_lines(found, baseline, claims))


def _of_campaign(
    path: str, baseline: str, axes: "Mapping[str, Sequence[str]]", places: tuple[str, ...]
) -> "list[Comparison]":
    """Return the comparisons of a campaign, at the places that were asked for."""
    from finegauge.campaign.folder import Folder
    from finegauge.campaign.gains import compare_results

    found = compare_results(Folder(path).results(), baseline, axes)
    if not found:
        raise InputError(
            f"The campaign in {shown(path)} has no '{baseline}' and another switch; see --baseline."
        )
    for place in places:
        axis, _, value = place.partition("=")
        known = {one.labels[axis]: one for one in found if axis in one.labels}
        if not known:
            raise UnknownKeyError("--at", axis, known={name for one in found for name in one.labels})
        if value not in known:
            raise UnknownNameError(f"value of {axis}", value, known=known)
        found = [one for one in found if one.labels.get(axis) == value]
    return found


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
    """Draw bars and radars."""
    from finegauge.report.charts import check_matplotlib, save_charts
    from finegauge.report.compare import panels

    check_matplotlib()
    if len(found) > MOST_DRAWN:
        raise InputError(f"{len(found)} comparisons are too many for one figure; choose by --at AXIS=VALUE.")
    save_charts(panels(found), os.path.splitext(path)[0], "SpeedUp, MemoryUp, EnergyUp over the baseline")
