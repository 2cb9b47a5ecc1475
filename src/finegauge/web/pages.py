"""The pages and fragments of the local page: what each request answers, as a pure function of its fields.

An empty field takes its value from the pasted text or, where there is none, from an example. Every answer
gives the value of each field and its origin; the error of a wrong value stands beside its field.
"""

import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, wraps
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.answers.estimate import EstimateAnswer, estimate_answer
from finegauge.answers.plan import plan_answer, scaling_answer, whatif_answer
from finegauge.answers.study import study_answer
from finegauge.catalogue.gpus import gpu
from finegauge.errors import FieldError, FineGaugeError, InputError
from finegauge.formats.run_argument import suffix_of
from finegauge.formats.writing import FRAMEWORKS, Written, known_name, own_framework, write
from finegauge.planning.estimate import fit_grid
from finegauge.planning.plan import Plan, export
from finegauge.planning.plan import plan as best
from finegauge.planning.whatif import what_if
from finegauge.prediction.predictor import predict
from finegauge.render.estimate import estimate_report
from finegauge.render.html import environment, html_page
from finegauge.render.json import document
from finegauge.render.report import FILE, PAGE
from finegauge.run.run import Run
from finegauge.web import drawings
from finegauge.web.assets import first_script, icon, later_scripts, style, url
from finegauge.web.choices import controls, groups, job_text, jobs, model_choices
from finegauge.web.form import (
    DOCUMENT,
    LENGTH_FIELDS,
    MAX_DOCUMENT,
    State,
    asked,
    field_of,
    origin_of,
    shown_value,
    state_of,
    token_of,
)
from finegauge.web.plan_view import (
    PLAN_FIELDS,
    Pinned,
    compared_of,
    pins_of,
    plan_field_of,
    planned_of,
    switches_of,
    wanted_of,
)
from finegauge.web.storage import Reply, upload_store

if TYPE_CHECKING:
    from jinja2 import Environment

EXAMPLE = """\
model: meta-llama/Llama-3.1-8B
method: qlora
lora_rank: 16
dataset: math_14k
seq_len: 1024
micro_batch_size: 4
gradient_accumulation_steps: 4
epochs: 3
gpu: L40S
activation_checkpointing: full
"""
EXPORT = "export_framework"  # the field of the framework whose files are asked for
DEFAULT_GPU = "A100-SXM4-80GB"  # where the pasted text states none
GPUS_FIELD = "beside_gpus"
MOST_GPUS = 6  # side by side
USUAL = ("RTX 4090", "A40", "L40S", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "B200-SXM-180GB")


class Told(NamedTuple):
    """What an answer says of one field."""

    name: str
    value: str  # of the field while it is empty
    origin: str
    error: str = ""


class Asked(NamedTuple):
    """One request understood: the run with its answer, or the error and the field that it belongs to."""

    state: State
    estimate: EstimateAnswer | None = None
    error: str = ""
    field: str | None = None


Handler = Callable[[Mapping[str, str]], Reply]


def _fragment(handler: Handler) -> Handler:
    """Let a fragment say in its place why there is no answer."""

    @wraps(handler)
    def answered(form: Mapping[str, str]) -> Reply:
        try:
            return handler(form)
        except FineGaugeError as error:
            return Reply(rendered("problem.html", {"error": _one_line(error)}))

    return answered


def index(query: Mapping[str, str]) -> Reply:
    """Return the whole page, with what the link carries."""
    token, job = query.get("s", ""), query.get("example", "")
    try:
        state = State(job_text(job)) if job else state_of(token)
    except FieldError as error:
        return _whole(Asked(State(), error=str(error)), query, 400)
    return _whole(_answered(state), query)


def submitted(form: Mapping[str, str]) -> Reply:
    """Return the whole page for a form that was sent without a script."""
    found = _answered(State.of(form))
    return _whole(found, form, 422 if found.error else 200)


def answer(form: Mapping[str, str]) -> Reply:
    """Return the fragment that answers an edit: figures, what each field holds, what is wrong.

    What makes a run fit takes five times as long as all else: the fragment asks for it by itself.
    """
    found = _answered(State.of(form), advises=False)
    token = token_of(found.state)
    headers = {} if token is None else {"HX-Replace-Url": f"/?s={token}" if token else "/"}
    if found.error:
        headers["HX-Reswap"] = "none"
    return Reply(rendered("answer_reply.html", _context(found)), headers=headers)


def advice(form: Mapping[str, str]) -> Reply:
    """Return the fragment of what makes the run fit."""
    found = _answered(State.of(form)).estimate
    sections = estimate_report(found, PAGE).sections if found else ()
    return Reply(rendered("advice.html", {"sections": [one for one in sections if one.key == "advice"]}))


@_fragment
def whatif(form: Mapping[str, str]) -> Reply:
    """Return the fragment of single changes, the largest gain first."""
    found = switches_of(whatif_answer(what_if(run_of(State.of(form)))))
    return Reply(rendered("whatif.html", {"found": found}))


def plan(form: Mapping[str, str]) -> Reply:
    """Return the fragment of the best plan under the limits of the form."""
    try:
        found = plan_answer(_plan(form))
    except FineGaugeError as error:
        wrong = {"error": _one_line(error), "field": plan_field_of(error), "names": PLAN_FIELDS}
        return Reply(rendered("plan_problem.html", wrong))
    context = {"plan": planned_of(found), "scatter": drawings.scatter_of(found), "names": PLAN_FIELDS}
    return Reply(rendered("planned.html", context))


def compare(form: Mapping[str, str]) -> Reply:
    """Return the fragment of several runs side by side, each by the token of its link."""
    pinned = []
    for name, token in pins_of(form):
        try:
            found = _answered(state_of(token), advises=False)
        except FieldError as error:
            found = Asked(State(), error=str(error))
        pinned.append(Pinned(name, token, found.estimate, found.error))
    return Reply(rendered("compared.html", {"compared": compared_of(pinned)}))


@_fragment
def files(form: Mapping[str, str]) -> Reply:
    """Return the fragment of the run as the files of a framework: their texts, and what they cannot say."""
    _, written, texts = _written(form)
    found = {"texts": texts, "command": written.command, "warnings": written.warnings}
    return Reply(rendered("files.html", found))


@_fragment
def heatmap(form: Mapping[str, str]) -> Reply:
    """Return what fits over micro-batch and sequence length, with the run's own point."""
    heat = drawings.heat_of(fit_grid(run_of(State.of(form))))
    return Reply(rendered("heatmap.html", {"heat": heat, "signs": drawings.SIGNS}))


@_fragment
def beside(form: Mapping[str, str]) -> Reply:
    """Return the run on up to six GPUs side by side, its own first unless others are chosen."""
    run = run_of(State.of(form))
    chosen = [gpu(name.strip()).name for name in form.get(GPUS_FIELD, "").split(",") if name.strip()]
    names = list(dict.fromkeys(chosen or [str(run.gpu), *USUAL]))
    if chosen and len(names) > MOST_GPUS:
        raise FieldError(f"{len(names)} GPUs are chosen; {MOST_GPUS} stand side by side at most.")
    names = names[:MOST_GPUS]
    runs = [run if name == run.gpu else run.replace(gpu=name) for name in names]
    rows = drawings.beside_of(estimate_answer(runs, advises=False))
    context = {"rows": rows, "names": names, "chosen": chosen, "most": MOST_GPUS, "field": GPUS_FIELD}
    return Reply(rendered("beside.html", context))


@_fragment
def timeline(form: Mapping[str, str]) -> Reply:
    """Return one step by stage, layer and operator."""
    line = drawings.time_line_of(predict(run_of(State.of(form))))
    return Reply(rendered("timeline.html", {"line": line}))


@_fragment
def scaling(form: Mapping[str, str]) -> Reply:
    """Return the run on 1 to 64 GPUs."""
    found = scaling_answer(run_of(State.of(form)))
    context = {"found": found, "charts": drawings.scaling_of(found), "rows": drawings.scaling_rows(found)}
    return Reply(rendered("scaling.html", context))


def choices(_: Mapping[str, str]) -> Reply:
    """Return the models that the picker offers, as JSON: a list for each, by ModelChoice's fields."""
    return Reply(json.dumps([*model_choices()], separators=(",", ":")), media_type="application/json")


def report(form: Mapping[str, str]) -> Reply:
    """Return the self-contained HTML report about the run as it is."""
    try:
        answer, study = study_answer(run_of(State.of(form)))
        page = html_page(estimate_report(answer, FILE, study))
    except FineGaugeError as error:
        return _file_problem(error, form)
    return Reply(page, filename="finegauge-report.html")


def download(name: str, form: Mapping[str, str]) -> Reply:
    """Return a file to keep: run.yaml, profile.json, plan.zip, files.zip.

    Raises: InputError for any other name.
    """
    kinds = {
        "run.yaml": _run_file,
        "profile.json": _profile_file,
        "plan.zip": _plan_file,
        "files.zip": _framework_files,
    }
    if name not in kinds:
        raise InputError(f"There is no download of that name; there are {', '.join(kinds)}.")
    try:
        return kinds[name](form)
    except FineGaugeError as error:
        return _file_problem(error, form)


def _profile_file(form: Mapping[str, str]) -> Reply:
    """Return the answer as `finegauge estimate --json` prints it."""
    text = document("estimate", estimate_answer([run_of(State.of(form))]))
    return Reply(text, media_type="application/json", filename="finegauge-profile.json")


def _plan(form: Mapping[str, str]) -> Plan:
    wanted = wanted_of(form)
    return best(run_of(State.of(form)), wanted)


def run_of(state: State) -> Run:
    """Return the run that a state asks about, on a GPU.

    Raises: InputError, UnsupportedError.
    """
    run = asked(state.document if state.document.strip() else EXAMPLE, state.overrides)
    if run.gpu is None:
        return run.replace(origin="default of this page", gpu=DEFAULT_GPU)
    name = gpu(run.gpu).name
    return run if run.gpu == name else run.replace(origin=run.origins["gpu"], gpu=name)


def _answered(state: State, *, advises: bool = True) -> Asked:
    try:
        return Asked(state, estimate_answer([run_of(state)], advises=advises))
    except FineGaugeError as error:
        return Asked(state, error=_one_line(error), field=field_of(error, state.overrides))


def _one_line(error: Exception) -> str:
    return re.sub(r"\bpasted\.[a-z]+\b", "the pasted text", " ".join(str(error).split()))


def _whole(found: Asked, form: Mapping[str, str], status: int = 200) -> Reply:
    context = _context(found) | {
        "groups": groups(),
        "jobs": jobs(),
        "form": {name: form.get(name, "") for name in (*PLAN_FIELDS, EXPORT)},
        "frameworks": tuple(name for name in FRAMEWORKS if name != "skypilot"),  # a plan's has it beside
        "exports": FRAMEWORKS,
        "max_document": MAX_DOCUMENT,
    }
    return Reply(rendered("page.html", context), status)


def _context(found: Asked) -> dict[str, Any]:
    told = {one.name: one for one in _told(found)}
    shown = estimate_report(found.estimate, PAGE) if found.estimate else None
    beside = found.field if found.field == DOCUMENT or found.field in told else None
    return {
        "state": found.state,
        "answer": shown,
        "title": f"{shown.title} · {shown.subject[0].partition(' · ')[2]}" if shown else "",
        "told": told,
        "error": found.error,
        "field": beside,
        "token": token_of(found.state),
    }


def _told(found: Asked) -> list[Told]:
    """Return the value of each field of the form, and its origin."""
    run = found.estimate.run if found.estimate else None
    pasted = bool(found.state.document.strip())
    told = []
    for control in controls():
        error = found.error if control.name == found.field else ""
        if run is None or control.name in LENGTH_FIELDS:
            told.append(Told(control.name, "", "", error))
            continue
        origin = origin_of(run, control.name)
        origin = origin if pasted or origin != "pasted text" else "example"
        told.append(Told(control.name, shown_value(run, control.name), origin, error))
    return told


def _file_problem(error: FineGaugeError, form: Mapping[str, str]) -> Reply:
    state = State.of(form)
    return _whole(Asked(state, error=_one_line(error), field=field_of(error, state.overrides)), form, 422)


def rendered(template: str, context: Mapping[str, Any]) -> str:
    """Return a template filled in."""
    return str(_environment().get_template(template).render(context))


@cache
def _environment() -> "Environment":
    """Return the templates of the page, with those that it shares with the report."""
    from markupsafe import Markup

    found = environment("finegauge.web")
    found.globals |= {"asset": url, "icon": Markup(icon()), "style": Markup(style())}
    found.globals["first_script"] = Markup(first_script())
    found.globals["later_scripts"] = " ".join(url(name)[1:] for name in later_scripts())
    return found


_BESIDE = {"model": "config.json", "dataset": "lengths.csv"}
_WHEN = (2026, 1, 1, 0, 0, 0)  # of every file in an archive, so that equal contents are equal archives


def _run_file(form: Mapping[str, str]) -> Reply:
    """Return the run as a run file; an archive of it and what it names, where that was pasted."""
    run = run_of(State.of(form))
    beside = {
        name: upload_store().text_of(getattr(run, field))
        for field, name in _BESIDE.items()
        if getattr(run, field) and upload_store().holds(getattr(run, field))
    }
    if not beside:
        return Reply(run.to_yaml(), media_type="application/yaml", filename="run.yaml")
    named = run.to_yaml()
    for field, name in _BESIDE.items():
        if name in beside:
            named = named.replace(str(getattr(run, field)), name)
    return _archive({"run.yaml": named, **beside}, "run.zip")


def _plan_file(form: Mapping[str, str]) -> Reply:
    """Return the plan to take as the files of a framework.

    Raises: InputError where the framework cannot say the plan, or there is none.
    """
    plan, framework = _plan(form), form.get("plan_framework", "").strip() or "finegauge"
    written, texts = _texts_of(form, lambda folder, recipe: export(plan, framework, folder, recipe=recipe))
    return _archive(_with_readme(written, texts), f"plan-{framework}.zip")


def _framework_files(form: Mapping[str, str]) -> Reply:
    """Return the run as the files of a framework, with how to start it and what they cannot say."""
    framework, written, texts = _written(form)
    return _archive(_with_readme(written, texts), f"{framework}.zip")


def _written(form: Mapping[str, str]) -> tuple[str, Written, dict[str, str]]:
    """Return the framework that a form asks for, and the run as its files.

    Raises: InputError where it is not known, or cannot say the run.
    """
    run = run_of(State.of(form))
    framework = known_name(form.get(EXPORT, "").strip() or own_framework(run) or "finegauge")
    return framework, *_texts_of(form, lambda folder, recipe: write(run, framework, folder, recipe=recipe))


def _texts_of(
    form: Mapping[str, str], write: Callable[[str, str | None], Written]
) -> tuple[Written, dict[str, str]]:
    """Return what `write` writes into a folder that is gone afterwards, and the text of each file.

    What a run does not know is taken from the pasted text.
    """
    document = State.of(form).document
    with TemporaryDirectory(prefix="finegauge-") as folder:
        recipe = upload_store().keep(document, f"recipe{suffix_of(document)}") if document.strip() else None
        written = write(folder, recipe)
        texts = {}
        for path in written.paths:
            with open(path, encoding="utf-8") as file:
                texts[os.path.relpath(path, folder)] = file.read()
    return written, texts


def _with_readme(written: Written, texts: dict[str, str]) -> dict[str, str]:
    notes = [f"Start it with: {written.command}", *written.warnings]
    return {**texts, "README.txt": "\n".join(notes) + "\n"}


def _archive(texts: dict[str, str], name: str) -> Reply:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            archive.writestr(zipfile.ZipInfo(path, _WHEN), text)
    return Reply(whole.getvalue(), media_type="application/zip", filename=name)
