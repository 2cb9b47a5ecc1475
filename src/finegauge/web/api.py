"""The questions of the JSON interface: the functions behind the commands' `--json`, asked in JSON.

A question about a run gives either `document`, a text such as the commands read from a file, or `run`, the
fields of one; `overrides` are laid over either. An error is {"error": one sentence, "field": name or null}.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from finegauge.answers.arguments import Asked
from finegauge.documents import json_text
from finegauge.errors import FineGaugeError, InputError, did_you_mean, shown
from finegauge.render.json import document
from finegauge.units import HOUR_S
from finegauge.web import form
from finegauge.web.response_cache import Reply, internal_error
from finegauge.web.upload_store import upload_store

if TYPE_CHECKING:
    from finegauge.answers.runs import Unnamed
    from finegauge.run.run import Run

JSON = "application/json"
MOST_OFFERS = 100_000
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {  # of what is no text
    **dict.fromkeys(("run", "overrides"), ((dict,), "a mapping of fields to their values")),
    **dict.fromkeys(("gpus", "switches", "providers"), ((list,), "a list of names")),
    **dict.fromkeys(("at_max_batch", "spot", "keep_method"), ((bool,), "true or false")),
    **dict.fromkeys(
        ("limit", "max_gpus", "within_hours", "budget_usd", "risk_fraction"), ((int, float), "a number")
    ),
}

Question = Callable[[Asked], str]


class WrongFieldError(InputError):
    """A value of the request that is not accepted, and where it stands."""

    def __init__(self, sentence: str, field: str) -> None:
        """Say what is wrong with `field`."""
        super().__init__(sentence)
        self.field = field


def answered(answer: tuple[Question, tuple[str, ...]], asked: Mapping[str, Any]) -> Reply:
    """Return the answer to one question, or in one sentence why there is none.

    Args:
        answer: The function, and the names of what it may be given.
        asked: What it is given.
    """
    function, names = answer
    arguments = Asked(asked, upload_store().folder)
    try:
        arguments.check_names(names)
    except FineGaugeError as error:
        return refusal(422, str(error))
    try:
        if function in _ABOUT_RUNS:
            _check_kinds(asked)
        return Reply(_told(function(arguments)), media_type=JSON)
    except WrongFieldError as error:
        return refusal(422, str(error), error.field)
    except FineGaugeError as error:
        return refusal(422, str(error), _field_of(error, asked))
    except MemoryError:
        raise
    except Exception as error:
        return refusal(500, internal_error(error))


def refusal(status: int, sentence: str, field: str | None = None) -> Reply:
    """Return an error as JSON."""
    content = {"error": " ".join(_told(sentence).split()), "field": field}
    return Reply(json_text(content, None), status, JSON)


def _told(text: str) -> str:
    """Return `text` without the folder in which a pasted text lies while it is read."""
    folder = re.escape(upload_store().folder.replace("\\", "\\\\"))
    return re.sub(rf"{folder}[/\\]+pasted[/\\]+[0-9a-f]{{32}}[/\\]+", "", text)


def _field_of(error: FineGaugeError, asked: Mapping[str, Any]) -> str | None:
    """Return which field of the request an error is about; None where it is about none."""
    first = re.match(r"\W*(\w*)", str(error))
    if first and first[1] in asked:
        return first[1]
    for kind, name in (("switch", "switches"), ("provider", "providers"), ("GPU", "gpus")):
        if name in asked and str(error).startswith(f"No {kind} named"):
            return name
    stated = [asked.get(name) for name in ("run", "overrides")]
    return form.field_of(error, {name: "" for one in stated if isinstance(one, dict) for name in one})


def _check_kinds(asked: Mapping[str, Any]) -> None:
    """Raise where a value is not of the kind that the OpenAPI document says."""
    for name, value in asked.items():
        kind, said = _KINDS.get(name, ((str,), "text"))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind != (bool,)):
            raise WrongFieldError(f"{name} must be {said}; leave it out where it is not stated.", name)


@contextmanager
def _beside(field: str) -> Iterator[None]:
    """Let an error say that it belongs to `field`."""
    try:
        yield
    except FineGaugeError as error:
        raise WrongFieldError(str(error), field) from None


# --- questions about a run


def _stated(asked: Asked) -> tuple[str, dict[str, Any]]:
    """Return the text of a run ("" where its fields are given), and the fields that are stated."""
    document = asked.arguments.get("document", "")
    if ("document" in asked.arguments) == ("run" in asked.arguments):
        raise InputError("Give either 'document', the text of a training file, or 'run', its fields.")
    if "document" in asked.arguments and not document.strip():
        raise WrongFieldError("document is empty; give the text of a training file.", "document")
    return document, {**asked.mapping("run"), **asked.mapping("overrides")}


def _run(asked: Asked) -> "Run":
    """Return the run that is asked about."""
    return form.asked(*_stated(asked))


def _runs(asked: Asked, *, unnamed: "Unnamed" = "all") -> "list[Run]":
    """Return the run once per GPU asked about; else on those of the common ones that `unnamed` says."""
    from finegauge.answers.runs import on_gpus

    run = _run(asked)
    with _beside("gpus"):
        return on_gpus(run, _names(asked, "gpus"), unnamed=unnamed)


def _names(asked: Asked, name: str) -> tuple[str, ...]:
    """Return a list of names, of which none is a file's."""
    with _beside(name):
        found = asked.texts(name)
        for one in found:
            form.refuse_path("gpu", one)
        return found


def _choice(asked: Asked, name: str, options: tuple[str, ...]) -> str:
    """Return one of `options`; the first where none is given."""
    word = asked.arguments.get(name, options[0])
    if word not in options:
        hint = f"{did_you_mean(word, options)} Use one of {', '.join(options)}."
        raise WrongFieldError(f"{name}={shown(word)} is unknown.{hint}", name)
    return str(word)


def _read(asked: Asked) -> str:
    """Return what a text means: every field, and who says so."""
    from finegauge.answers.files import ReadAnswer, run_of_file

    return document("read", ReadAnswer((run_of_file("pasted.yaml", form.described(*_stated(asked))),)))


def _estimate(asked: Asked) -> str:
    """Return memory, time, cost and energy, once per GPU."""
    from finegauge.answers.estimate import estimate_answer

    at_max_batch, runs = asked.flag("at_max_batch"), _runs(asked)
    return document("estimate", estimate_answer(runs, at_max_batch=at_max_batch))


def _explain(asked: Asked) -> str:
    """Return every byte and second with its formula, once per GPU."""
    from finegauge.answers.estimate import explain_answer

    return document("explain", explain_answer(_runs(asked, unnamed="one")))


def _check(asked: Asked) -> str:
    """Return whether the run fits, once per GPU."""
    from finegauge.answers.estimate import check_answer

    return document("check", check_answer(_runs(asked)))


def _max_batch(asked: Asked) -> str:
    """Return the largest micro-batch that fits, once per GPU."""
    from finegauge.answers.estimate import capacity_answer
    from finegauge.planning.capacity import MAX_MICRO_BATCH_SIZE, max_micro_batch_size

    limit = asked.whole("limit", MAX_MICRO_BATCH_SIZE, 1_000_000)
    runs = _runs(asked)
    found = [(run, max_micro_batch_size(run, limit=limit)) for run in runs]
    return document("max-batch", capacity_answer(found))


def _whatif(asked: Asked) -> str:
    """Return what single changes would do to the run."""
    from finegauge.answers.plan import whatif_answer
    from finegauge.planning.whatif import OBJECTIVES, what_if

    minimise, spot = _choice(asked, "minimise", OBJECTIVES), asked.flag("spot")
    switches = _names(asked, "switches")
    for switch in switches:
        name, _, value = switch.partition("=")
        with _beside("switches"):
            form.refuse_path(name.strip(), value.strip())
    (run,) = _runs(asked, unnamed="one")
    return document("whatif", whatif_answer(what_if(run, switches, minimise=minimise, spot=spot)))


def _plan(asked: Asked) -> str:
    """Return the cheapest, fastest or greenest way to do the run."""
    from finegauge.answers.plan import plan_answer
    from finegauge.planning.plan import OBJECTIVES, plan
    from finegauge.planning.selection import Wanted
    from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION

    within_h = asked.number("within_hours", 1e6)
    wanted = Wanted(
        within_s=None if within_h is None else within_h * HOUR_S,
        budget_usd=asked.number("budget_usd", 1e12),
        risk_fraction=asked.number("risk_fraction", 0.5) or RISKY_FROM_FRACTION,
        minimise=_choice(asked, "minimise", OBJECTIVES),
        spot=asked.flag("spot"),
        keep_method=asked.flag("keep_method"),
        gpus=_names(asked, "gpus"),
        providers=_names(asked, "providers"),
        max_gpus=asked.whole("max_gpus", 64, 65_536),
    )
    return document("plan", plan_answer(plan(_run(asked), wanted)))


# --- the catalogue


def _models(asked: Asked) -> str:
    """Return the models whose name, alias or model_type contains the pattern."""
    from finegauge.answers.catalogue_rows import found_models, plain

    return json_text([plain(one) for one in found_models(asked.text("pattern"))])


def _gpus(asked: Asked) -> str:
    """Return the GPUs whose name or alias contains the pattern."""
    from finegauge.answers.catalogue_rows import found_gpus, plain

    return json_text([plain(one) for one in found_gpus(asked.text("pattern"), asked.text("vendor"))])


def _datasets(asked: Asked) -> str:
    """Return the data sets whose name contains the pattern."""
    from finegauge.answers.catalogue_rows import found_datasets, plain

    return json_text([plain(one) for one in found_datasets(asked.text("pattern"))])


def _offers(asked: Asked) -> str:
    """Return what GPUs cost per hour."""
    from finegauge.answers.catalogue_rows import SORTS, found_offers, offers_json
    from finegauge.catalogue.gpus import matching_gpus
    from finegauge.run.field import flag

    gpu = asked.text("gpu")
    with _beside("gpu"):
        form.refuse_path("gpu", gpu)
        if gpu:
            matching_gpus(gpu)
    with _beside("spot"):
        spot = flag("spot", asked.text("spot") or "false")
    sort = _choice(asked, "sort", ("gpu-price", *(one for one in SORTS if one != "gpu-price")))
    count = asked.whole("count", 0, MOST_OFFERS) or None
    provider, region = asked.text("provider"), asked.text("region")
    with _beside("provider"):
        return json_text(offers_json(found_offers(gpu, provider, region, count, spot=spot, sort=sort)))


SUBJECT = ("document", "run", "overrides")
QUESTIONS: dict[str, tuple[Question, tuple[str, ...]]] = {
    "read": (_read, SUBJECT),
    "estimate": (_estimate, (*SUBJECT, "gpus", "at_max_batch")),
    "explain": (_explain, (*SUBJECT, "gpus")),
    "check": (_check, (*SUBJECT, "gpus")),
    "max-batch": (_max_batch, (*SUBJECT, "gpus", "limit")),
    "whatif": (_whatif, (*SUBJECT, "switches", "minimise", "spot")),
    "plan": (
        _plan,
        (
            *SUBJECT,
            *("within_hours", "budget_usd", "risk_fraction", "minimise", "spot", "keep_method"),
            *("gpus", "providers", "max_gpus"),
        ),
    ),
}
LISTINGS: dict[str, tuple[Question, tuple[str, ...]]] = {
    "models": (_models, ("pattern",)),
    "gpus": (_gpus, ("pattern", "vendor")),
    "offers": (_offers, ("gpu", "provider", "region", "count", "spot", "sort")),
    "datasets": (_datasets, ("pattern",)),
}
_ABOUT_RUNS = frozenset(function for function, _ in QUESTIONS.values())
