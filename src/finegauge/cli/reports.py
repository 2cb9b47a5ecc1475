"""`finegauge report` and `reproduce`: files to look at."""

import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.run_options import alongside_options, json_option, parted, run_of, runs, say, show
from finegauge.documents import write_file
from finegauge.errors import InputError, UnknownNameError, shown
from finegauge.render.report import FILE, TERMINAL, Plot, Report, plain

if TYPE_CHECKING:
    from finegauge.answers.estimate import GpuEstimate
    from finegauge.answers.validation import ReproduceAnswer
    from finegauge.prediction.predictor import Prediction
    from finegauge.profile import Profile
    from finegauge.reproduction.published import Reproduction

PICTURES = (".png", ".svg")
PAGES = (".html", ".htm", ".md")
MOST_SIDES = 8


@click.command()
@click.argument("subject", metavar="SUBJECT")
@click.argument("more", nargs=-1, metavar="[SUBJECT]... [KEY=VALUE]...")
@click.option(
    "-o", "--output", metavar="FILE|DIR", help="A .html, .md, .png or .svg, or a folder for all of them."
)
@click.option("--figure", "key", metavar="NAME", help="Which figure a .png or .svg shows.")
@click.option("--gpu", metavar="NAME", help="Of a run; 'finegauge gpus'.")
@click.option("--plan", "planned", is_flag=True, help="Report the plan of a run, not the run as it is.")
@click.option(
    "--baseline", default="baseline", show_default=True, help="Of a campaign, what the others beat."
)
@json_option
@alongside_options
def report(
    subject: str,
    more: tuple[str, ...],
    *,
    output: str | None,
    key: str | None,
    gpu: str | None,
    planned: bool,
    baseline: str,
    as_json: bool,
) -> None:
    """Write what there is to see about SUBJECT into one file, that opens offline and prints.

    SUBJECT is a RUN as 'estimate' takes it (predicted now), what 'estimate', 'explain', 'measure' or 'plan'
    printed under --json, a journal of 'measure --store', or a campaign's folder. Several of them, except
    plans and campaigns, are shown side by side. Without -o it prints Markdown.
    """
    kind = _kind(output)
    if key is not None and kind not in PICTURES:
        raise InputError("--figure chooses what a .png or .svg shows; add -o FILE.png or -o FILE.svg.")
    named, overrides = parted((subject, *more))
    subject, *others = named or [subject]
    if others and planned:
        raise InputError("--plan is for one run; leave the others out.")
    if others:
        found = _side_by_side((subject, *others), overrides, gpu)
    else:
        found = _report(subject, overrides, gpu, baseline, planned=planned)
    written = () if output is None else _write(found, output, kind, key)
    if as_json:
        from finegauge.render.schema import report_text

        show("report", report_text(found, written), as_json=True)
    elif output is None:
        from finegauge.render.terminal import markdown_page

        say(markdown_page(found).rstrip())
    else:
        say([plain(found.headline), *(f"Wrote {path}" for path in written)])


def _report(
    subject: str, overrides: tuple[str, ...], gpu: str | None, baseline: str, *, planned: bool
) -> Report:
    from finegauge.render.json import document_of

    stored = os.path.isfile(os.path.join(subject, "results.jsonl")) or subject.endswith(".jsonl")
    document = None if stored else document_of(subject)
    if not stored and document is None:
        return _of_run(subject, overrides, gpu, planned=planned)
    if overrides or gpu or planned:
        raise InputError(
            f"{shown(subject)} holds answers that stand; KEY=VALUE, --gpu and --plan are for a run."
        )
    if document is not None:
        return _of_document(document, subject)
    return _of_results(subject, baseline)


def _side_by_side(paths: tuple[str, ...], overrides: tuple[str, ...], gpu: str | None) -> Report:
    from finegauge.answers.study import side_by_side
    from finegauge.cli.campaigns import common_gpu
    from finegauge.render.json import document_of
    from finegauge.render.side_by_side import side_by_side_report

    if len(paths) > MOST_SIDES:
        raise InputError(f"{len(paths)} runs do not stand side by side; give at most {MOST_SIDES}.")
    for path in paths:
        if paths.count(path) > 1:
            raise InputError(f"{shown(path)} is named twice; name another run beside it.")
        if os.path.isfile(os.path.join(path, "results.jsonl")):
            raise InputError(f"{shown(path)} is a campaign's folder, which has a report of its own.")
    documents = {path: None if path.endswith(".jsonl") else document_of(path) for path in paths}
    asked = tuple(path for path, known in documents.items() if known is None and not path.endswith(".jsonl"))
    if (overrides or gpu) and len(asked) < len(documents):
        raise InputError(
            "Of runs that stand as they were, KEY=VALUE and --gpu change nothing; leave them out."
        )
    stated = any(word.startswith("gpu=") for word in overrides)
    on = gpu or ("" if stated or not asked else common_gpu(asked))
    return side_by_side_report(
        side_by_side({path: _side(path, documents[path], overrides, on) for path in documents})
    )


def _side(
    path: str, document: dict[str, object] | None, overrides: tuple[str, ...], gpu: str
) -> "GpuEstimate | Profile":
    """Return what is known of one run: its estimate, or a measured profile."""
    from finegauge.render.json import estimates_in, profiles_in

    if path.endswith(".jsonl"):
        from finegauge.render.campaign import labelled
        from finegauge.store.journal import Trials

        if os.path.isfile(path) and (results := labelled(Trials(path))):
            return results[-1].profile
    elif document is None:
        from finegauge.answers.estimate import gpu_estimate
        from finegauge.planning.estimate import estimate

        return gpu_estimate(estimate(runs(path, overrides, (gpu,) if gpu else (), unnamed="one")[0]))
    elif document["command"] == "measure":
        for profile, _ in profiles_in(document, path):
            return profile
    elif document["command"] != "plan" and (found := estimates_in(document, path).found):
        return found[0]
    raise InputError(f"{shown(path)} holds no run that could stand beside others.")


def _of_run(path: str, overrides: tuple[str, ...], gpu: str | None, *, planned: bool) -> Report:
    if planned:
        run = run_of(path, overrides)
        from finegauge.answers.plan import plan_answer
        from finegauge.planning.plan import plan
        from finegauge.planning.selection import Wanted
        from finegauge.render.plan import plan_report

        return plan_report(plan_answer(plan(run, Wanted(gpus=(gpu,) if gpu else ()))), FILE)
    from finegauge.answers.study import study_answer
    from finegauge.render.estimate import estimate_report

    answer, study = study_answer(runs(path, overrides, (gpu,) if gpu else (), unnamed="one")[0])
    return estimate_report(answer, FILE, study)


def _of_document(document: dict[str, object], path: str) -> Report:
    """Return the report about what a command printed; of several answers, the first in full."""
    if document["command"] == "plan":
        from finegauge.render.json import plan_in
        from finegauge.render.plan import plan_report

        return plan_report(plan_in(document, path), FILE)
    from finegauge.render.json import estimates_in, profiles_in

    if document["command"] == "measure":
        for profile, prediction in profiles_in(document, path):
            return _of_trial(profile, prediction)
    elif (answer := estimates_in(document, path)).found:
        from finegauge.render.estimate import estimate_report

        return estimate_report(answer, FILE)
    raise InputError(f"{shown(path)} holds no answer that could be shown.")


def _of_trial(measured: "Profile", prediction: "Prediction | None" = None) -> Report:
    from finegauge.answers.measurement import MeasureAnswer, measurement
    from finegauge.render.measurement import measure_report

    return measure_report(MeasureAnswer(measured.run, (measurement(measured, prediction),)), FILE)


def _of_results(path: str, baseline: str) -> Report:
    from finegauge.answers.campaign import campaign_study
    from finegauge.campaign.axes import Folder
    from finegauge.render.campaign import labelled, study_report
    from finegauge.store.journal import Trials

    name = os.path.basename(os.path.normpath(path))
    if os.path.isdir(path):
        folder = Folder(path)
        axes = folder.described().axes
        return study_report(campaign_study(f"Campaign {name}", folder.results(), baseline, axes))
    if not os.path.isfile(path):
        raise InputError(f"There is no journal {shown(path)}; 'finegauge measure --store' writes one.")
    results = labelled(Trials(path))
    if not results:
        raise InputError(f"{shown(path)} holds no trial that ended.")
    if len(results) == 1:
        return _of_trial(results[0].profile)
    return study_report(campaign_study(f"Trials in {name}", results, baseline))


def _kind(output: str | None) -> str:
    """Return the suffix that says what is to be written; "" for a folder."""
    if output is None:
        return ""
    suffix = os.path.splitext(output)[1].lower()
    if os.path.isdir(output) or not suffix or output.endswith(os.sep):
        return ""
    if suffix not in (*PAGES, *PICTURES):
        raise InputError(f"-o {output}: write {', '.join((*PAGES, *PICTURES))}, or name a folder.")
    return suffix


def _write(found: Report, output: str, kind: str, key: str | None) -> tuple[str, ...]:
    from finegauge.render.html import html_page
    from finegauge.render.plots.drawing import check_matplotlib, png, svg
    from finegauge.render.terminal import markdown_page

    contents: dict[str, str | bytes] = {}
    if kind == ".md":
        contents[output] = markdown_page(found)
    elif kind in PAGES:
        contents[output] = html_page(found)
    elif kind:
        check_matplotlib()
        drawing = _chosen(found, key, output)
        contents[output] = png(drawing) if kind == ".png" else svg(drawing)
    else:
        contents[os.path.join(output, "report.html")] = html_page(found)
        contents[os.path.join(output, "report.md")] = markdown_page(found)
        for plot in found.plots:
            contents[os.path.join(output, f"{plot.key}.png")] = png(plot)
            contents[os.path.join(output, f"{plot.key}.svg")] = svg(plot)
    for path, content in contents.items():
        write_file(path, content)
    return tuple(contents)


def _chosen(found: Report, key: str | None, output: str) -> Plot:
    known = {plot.key: plot for plot in found.plots}
    if key is None and len(known) == 1:
        return next(iter(known.values()))
    if key is None:
        raise InputError(
            f"-o {output} shows one figure: add --figure NAME ({', '.join(known) or 'there is none'})."
        )
    if key not in known:
        raise UnknownNameError("figure", key, known=known)
    return known[key]


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
@json_option
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
        from finegauge.render.plots.drawing import check_matplotlib

        check_matplotlib("calibrate")
    from finegauge.answers.validation import reproduce_answer
    from finegauge.render.validation import reproduction_report
    from finegauge.reproduction.xia2024 import reproduce as whole_paper

    answer = reproduce_answer(_measured(device, threads, output) if measured else whole_paper(items))
    files = () if output is None else _write_pages(answer, output, f"{paper}_measured" if measured else paper)
    show("reproduce", answer, lambda answer: reproduction_report(answer, TERMINAL, files), as_json=as_json)


def _measured(device: str, threads: int, output: str | None) -> "Reproduction":
    """Return the findings measured here; progress goes to stderr, profiles to a journal in the folder."""
    from finegauge.measurement.options import Options
    from finegauge.reproduction.measured_findings import measure_findings

    store = None if output is None else os.path.join(output, STORE)
    options = Options(device=device, threads=threads)
    return measure_findings(options, told=lambda what: say(f"{what} ...", err=True), store=store)


def _write_pages(answer: "ReproduceAnswer", folder: str, paper: str) -> tuple[str, ...]:
    from finegauge.render.html import html_page
    from finegauge.render.plots.drawing import save_charts
    from finegauge.render.validation import reproduction_report

    drawn = [one.item for one in answer.items if one.item.panels]
    path = os.path.join(folder, f"{paper}.html")
    for item in drawn:
        save_charts(item.panels, os.path.join(folder, item.key), item.title)
    write_file(path, html_page(reproduction_report(answer, FILE)))
    return path, f"{len(drawn)} charts as PNG and SVG beside it"
