"""`finegauge campaign`, `compare` and `results`: many runs, and what they found."""

import gc
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from finegauge.cli.run_options import (
    json_option,
    listing_option,
    offline_option,
    progress_bar,
    runs,
    say,
    show,
)
from finegauge.errors import FieldError, FineGaugeError, InputError, UnknownKeyError, UnknownNameError, shown

if TYPE_CHECKING:
    from finegauge.answers.campaign import CompareAnswer
    from finegauge.campaign.driver import Engine
    from finegauge.campaign.gains import Comparison
    from finegauge.render.report import Report
    from finegauge.store.document import Facts


def _sweeps() -> "Report":
    from finegauge.campaign.sweep import about_of, shipped
    from finegauge.render.campaign import shipped_report

    return shipped_report({name: about_of(path) for name, path in shipped().items()})


@click.command()
@click.argument("sweep_file", metavar="SWEEP")
@click.option(
    "-o", "--output", metavar="FOLDER", help="Where results are kept; a folder named after the sweep."
)
@click.option("--retry", is_flag=True, help="Run cells again that failed or gave no answer.")
@click.option(
    "--only", type=click.Choice(("predicted", "measured")), default=None, help="Run only this part of SWEEP."
)
@click.option("--dry-run", is_flag=True, help="List what would run, and run nothing.")
@click.option(
    "--trust",
    is_flag=True,
    help="Let SWEEP run code of its tasks, write traces, ask endpoints, read any file.",
)
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    default="local",
    show_default=True,
    help="Measure in processes of this machine, or on a Ray cluster.",
)
@click.option(
    "--address", metavar="HOST:PORT", default="", help="Of the Ray cluster; without, Ray finds one."
)
@json_option
@listing_option("List the sweeps that come with FineGauge.", _sweeps)
def campaign(
    sweep_file: str,
    output: str | None,
    *,
    retry: bool,
    only: str | None,
    dry_run: bool,
    trust: bool,
    engine: str,
    address: str,
    as_json: bool,
) -> None:
    """Run every cell of SWEEP once, and keep the results in a folder.

    SWEEP is a file, or the name of a sweep that comes with FineGauge (--list).
    Stop it whenever you like, by Ctrl-C or harder: the next call goes on where this one ended.
    'finegauge results FOLDER' and 'finegauge compare FOLDER' read what it kept.
    """
    from finegauge.answers.campaign import campaign_answer
    from finegauge.campaign.axes import Folder
    from finegauge.campaign.driver import carry_out
    from finegauge.campaign.sweep import read_sweep
    from finegauge.render.campaign import campaign_report, dry_report

    gc.enable()
    sweep = read_sweep(sweep_file, trust=trust)
    if only:
        sweep = sweep.only(only)
    folder = Folder(output or os.path.splitext(os.path.basename(sweep_file))[0])
    if dry_run:
        show("", sweep, lambda sweep: dry_report(sweep, folder.done()), as_json=False)
        return
    with progress_bar("campaign") as heard:
        summary = carry_out(sweep, folder, _engine(engine, address), heard=heard, retry=retry)
    if summary.outcomes:
        _keep_table(folder.path)
    answer = campaign_answer(sweep, folder, summary, whole=as_json)
    show("campaign", answer, campaign_report, as_json=as_json)


def _engine(name: str, address: str) -> "Engine":
    """Return the measurement backend.

    Raises: FieldError for an address without a cluster.
    """
    from finegauge.campaign.driver import LocalEngine
    from finegauge.campaign.ray_engine import RayEngine

    if name == "ray":
        return RayEngine(address)
    if address:
        raise FieldError("--address is of a Ray cluster; add --engine ray.")
    return LocalEngine()


def _keep_table(folder: str) -> None:
    """Make the table of a large campaign now, so that the first `results` need not wait for it."""
    from finegauge.store.table import table_of

    with suppress(FineGaugeError):  # no pyarrow, or nothing was asked
        table_of([folder])


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
@click.option(
    "--weigh", "weights", metavar="NAME=WEIGHT,...", default="",
    help="Rank them by what matters to you: speed=2,memory=1,energy=1.",
)  # fmt: skip
@click.option("--figure", metavar="FILE", default="", help="Draw it: a .png, and an .svg beside it.")
@offline_option
@json_option
def compare(
    paths: tuple[str, ...], *, gpu: str, baseline: str, places: tuple[str, ...], weights: str, figure: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Say what optimisations gain: in a CAMPAIGN's folder, or of the runs OTHER over the run BASELINE.

    A run is a file that 'estimate' reads, which is predicted, or a journal of 'measure --store', whose
    completed trials are taken.
    """
    from finegauge.answers.campaign import compare_answer
    from finegauge.campaign.axes import Folder
    from finegauge.campaign.gains import claims_called, weights_of
    from finegauge.render.campaign import compare_report

    claims, asked = None, weights_of(weights) if weights else None
    if len(paths) == 1:
        if not os.path.isdir(paths[0]):
            raise InputError(
                f"{shown(paths[0])} is no campaign's folder; name one, or a baseline and what to compare. "
                "GPUs are compared by 'finegauge estimate RUN --gpu NAME,NAME'."
            )
        said = Folder(paths[0]).described()
        baseline = baseline or said.baseline
        claims = claims_called(said.claims) if said.claims else None
        found = _of_campaign(paths[0], baseline, said.axes, places)
    else:
        if places:
            raise FieldError("--at is of a campaign's folder; runs have no axes.")
        names = paths if as_json else _short(paths)  # documents name the files that were given
        found = [_of_runs(paths, names, gpu)]
        baseline = _short(paths)[0]
    answer = compare_answer(found, baseline, claims, asked)
    if figure:
        _draw(answer, figure)
    show("compare", answer, compare_report, as_json=as_json)


def _of_campaign(
    path: str, baseline: str, axes: Mapping[str, Sequence[str]], places: tuple[str, ...]
) -> "list[Comparison]":
    from finegauge.campaign.axes import Folder
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


def _of_runs(paths: tuple[str, ...], names: Sequence[str], gpu: str) -> "Comparison":
    from finegauge.campaign.gains import Comparison, gains_over

    assumed = "" if gpu else common_gpu(paths)
    found = {path: _facts(path, gpu or assumed) for path in paths}
    kinds = dict.fromkeys(one.source for facts in found.values() for one in facts)
    if len(kinds) > 1:
        raise FieldError(
            "Measured and predicted runs are not compared with each other; give runs of one kind."
        )
    others = dict(zip(names[1:], (found[path] for path in paths[1:]), strict=True))
    labels = {"gpu": assumed} if assumed else {}
    return Comparison(labels, next(iter(kinds)), gains_over(found[paths[0]], others))


def _short(paths: tuple[str, ...]) -> Sequence[str]:
    """Return what runs are called: the names of their files, or the paths where two have one name."""
    names = [os.path.basename(path) if os.path.exists(path) else path for path in paths]
    return names if len({*names}) == len(paths) else paths


def common_gpu(paths: tuple[str, ...]) -> str:
    """Return the GPU for runs that name none: this machine's, else the largest that one of them needs."""
    from finegauge.answers.runs import FROM_COMMON
    from finegauge.catalogue.gpus import THIS
    from finegauge.catalogue.gpus import gpu as spec
    from finegauge.run.run import FROM_THIS_MACHINE

    asked = [runs(path, (), (), unnamed="one")[0] for path in paths if not path.endswith(".jsonl")]
    origins = {run.origins["gpu"] for run in asked}
    if origins == {FROM_THIS_MACHINE}:
        return THIS
    if origins != {FROM_COMMON}:
        return ""
    return max((str(run.gpu) for run in asked), key=lambda name: spec(name).memory_bytes)


def _facts(path: str, gpu: str) -> "list[Facts]":
    """Return the facts of a run: of one that is predicted, or of all trials that a journal holds."""
    from finegauge.prediction.predictor import predict
    from finegauge.store.document import facts_in, profile_document
    from finegauge.store.journal import Trials

    if path.endswith(".jsonl"):
        ends = [one.facts for one in Trials(path).look().entries]
        found = [one for one in ends if one is not None and one.outcome == "completed"]
        if not found:
            raise InputError(f"{shown(path)} holds no completed trial.")
        return found
    (run,) = runs(path, (), (gpu,) if gpu else (), unnamed="none")[:1]
    return [facts_in(profile_document(predict(run)))]


def _draw(answer: "CompareAnswer", path: str) -> None:
    from finegauge.render.campaign import panels
    from finegauge.render.plots.drawing import check_matplotlib, save_charts

    check_matplotlib("calibrate")
    if (number := len(answer.comparisons)) > MOST_DRAWN:
        raise InputError(f"{number} comparisons are too many for one figure; choose by --at AXIS=VALUE.")
    save_charts(
        list(panels(answer.comparisons)),
        os.path.splitext(path)[0],
        "SpeedUp, MemoryUp, EnergyUp over the baseline",
    )


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--where", metavar="SQL", help='Only rows that meet a condition: "seq_len > 512".')
@click.option("--columns", "chosen", metavar="NAME,NAME", help="These columns, in this order.")
@click.option("--sql", metavar="SQL", help='A whole question: "SELECT … FROM results GROUP BY …".')
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows to print.")
@click.option("--export", "output", metavar="FILE", help="Write all rows as .csv or .parquet.")
@json_option
def results(
    paths: tuple[str, ...],
    where: str | None,
    chosen: str | None,
    sql: str | None,
    limit: int,
    output: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the results in PATHs: campaign folders, or journals of 'measure --store'.

    They are one table named results, a row per trial that ended, a column per field of the run and per
    fact of its step, in SI units; what is not known is NULL. 'DESCRIBE results' lists the columns.
    """
    from finegauge.answers.campaign import results_answer
    from finegauge.render.campaign import results_report
    from finegauge.render.json import lines
    from finegauge.store.table import ask, export, table_of, texts_of

    if sql and (where or chosen):
        raise InputError("--sql is a whole question; put the condition and the columns into it.")
    table, quarantined = table_of(paths)
    gc.enable()  # so that DuckDB's own objects go at the end; reading is twice as fast without
    whole = sql is None and chosen is None
    if sql is None:
        sql = f"SELECT {_listed(chosen, table.column_names)} FROM results"
        sql += f" WHERE {where}" if where else ""
    found = ask(table, sql)
    if output:
        export(found, output)
    answer = results_answer(found, quarantined, whole=whole, most=0 if as_json else limit)
    if as_json:
        for line in lines("results", answer, texts_of(found)):
            say(line)
    else:
        show("results", answer, lambda answer: results_report(answer, limit, output), as_json=False)


def _listed(chosen: str | None, known: list[str]) -> str:
    if chosen is None:
        return "*"
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UnknownKeyError("--columns", name, known=known)
    return ", ".join(f'"{name}"' for name in names)
