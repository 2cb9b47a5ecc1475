"""The questions of the JSON interface: the functions behind the commands' `--json`, asked in JSON.

A question about a run gives either `document`, a text such as the commands read from a file, or `run`, the
fields of one; `overrides` are laid over either. An error is {"error": one sentence, "field": name or null}.

The OpenAPI 3.1 document is made of the schemas that ship with the package: answers are described by the
schemas of the commands of the same name, requests by the fields of a run.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from finegauge import __version__
from finegauge.answers import questions
from finegauge.answers.catalogue import (
    SORTS,
    found_datasets,
    found_gpus,
    found_models,
    found_offers,
    offers_json,
    plain,
)
from finegauge.answers.estimate import explain_answer
from finegauge.answers.files import ReadAnswer, run_of_file
from finegauge.answers.plan import WhatIfAnswer, whatif_answer
from finegauge.answers.questions import ARGUMENTS, MAX_TEXT, Asked
from finegauge.answers.runs import Unnamed
from finegauge.catalogue.gpus import matching_gpus
from finegauge.documents import json_text
from finegauge.errors import FineGaugeError, InputError, internal_error
from finegauge.planning.quote import OBJECTIVES
from finegauge.planning.whatif import what_if
from finegauge.render.json import document
from finegauge.render.schema import schema
from finegauge.run.field import flag
from finegauge.run.run import FIELDS, Run
from finegauge.web import form
from finegauge.web.form import MAX_DOCUMENT
from finegauge.web.storage import Reply, upload_store

JSON = "application/json"
MOST_OFFERS = 100_000
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {  # by JSON's types
    "object": ((dict,), "a mapping of fields to their values"),
    "array": ((list,), "a list of names"),
    "boolean": ((bool,), "true or false"),
    "number": ((int, float), "a number"),
    "integer": ((int, float), "a number"),
    "string": ((str,), "text"),
}

Question = Callable[["RequestAsked"], str]


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
    arguments = RequestAsked(asked, upload_store().folder)
    try:
        arguments.check_names(names)
    except FineGaugeError as error:
        return refusal(422, str(error))
    try:
        if names[: len(SUBJECT)] == SUBJECT:
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
    """Return `text` without the temporary folder of pasted texts."""
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
    """Raise where a value is not of the JSON type that the OpenAPI document states."""
    for name, value in asked.items():
        told = "object" if name in ("run", "overrides") else ARGUMENTS.get(name, {}).get("type", "string")
        kind, said = _KINDS[told]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind != (bool,)):
            raise WrongFieldError(f"{name} must be {said}; leave it out where it is not stated.", name)


@contextmanager
def _beside(field: str) -> Iterator[None]:
    """Attach `field` to errors raised inside."""
    try:
        yield
    except FineGaugeError as error:
        raise WrongFieldError(str(error), field) from None


class RequestAsked(Asked):
    """The arguments of a request: a text in place of a file, and errors that name the argument."""

    __slots__ = ()

    def stated(self) -> tuple[str, dict[str, Any]]:
        """Return the text of a run ("" where its fields are given), and the fields that are stated."""
        document = self.arguments.get("document", "")
        if ("document" in self.arguments) == ("run" in self.arguments):
            raise InputError("Give either 'document', the text of a training file, or 'run', its fields.")
        if "document" in self.arguments and not document.strip():
            raise WrongFieldError("document is empty; give the text of a training file.", "document")
        return document, {**self.mapping("run"), **self.mapping("overrides")}

    def run(self) -> Run:
        """Return the run that is asked about."""
        return form.asked(*self.stated())

    def on_gpus(self, run: Run, unnamed: Unnamed) -> list[Run]:
        """Return `run` once per GPU asked about."""
        with _beside("gpus"):
            return super().on_gpus(run, unnamed)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of names, of which none is a file's."""
        with _beside(name):
            found = super().texts(name)
            for one in found:
                form.refuse_path("gpu", one)
            return found


# --- questions about a run


def _read(asked: RequestAsked) -> ReadAnswer:
    return ReadAnswer((run_of_file("pasted.yaml", form.described(*asked.stated())),))


def _whatif(asked: RequestAsked) -> WhatIfAnswer:
    minimise, spot = asked.choice("minimise", OBJECTIVES), asked.flag("spot")
    switches = asked.texts("switches")
    for switch in switches:
        name, _, value = switch.partition("=")
        with _beside("switches"):
            form.refuse_path(name.strip(), value.strip())
    (run,) = asked.runs(unnamed="one")
    return whatif_answer(what_if(run, switches, minimise=minimise, spot=spot))


# --- the catalogue


def _rows(found: Callable[..., Iterable[Any]], *names: str) -> Question:
    """Return the question that lists the rows which `found` finds by the arguments `names`."""
    return lambda asked: json_text([plain(one) for one in found(*map(asked.text, names))])


def _offers(asked: RequestAsked) -> str:
    gpu = asked.text("gpu")
    with _beside("gpu"):
        form.refuse_path("gpu", gpu)
        if gpu:
            matching_gpus(gpu)
    with _beside("spot"):
        spot = flag("spot", asked.text("spot") or "false")
    sort = asked.choice("sort", ("gpu-price", *(one for one in SORTS if one != "gpu-price")))
    count = asked.whole("count", 0, MOST_OFFERS) or None
    provider, region = asked.text("provider"), asked.text("region")
    with _beside("provider"):
        return json_text(offers_json(found_offers(gpu, provider, region, count, spot=spot, sort=sort)))


SUBJECT = ("document", "run", "overrides")


def _question(name: str, ask: Callable[..., Any], *more: str) -> tuple[Question, tuple[str, ...]]:
    """Return a question that the command `name` prints the answer to, and what it may be given."""
    return lambda asked: document(name, ask(asked)), (*SUBJECT, *more)


QUESTIONS: dict[str, tuple[Question, tuple[str, ...]]] = {
    "read": _question("read", _read),
    "estimate": _question("estimate", questions.estimate, "gpus", "at_max_batch"),
    "explain": _question("explain", lambda asked: explain_answer(asked.runs(unnamed="one")), "gpus"),
    "check": _question("check", questions.check, "gpus"),
    "max-batch": _question("max-batch", questions.max_batch, "gpus", "limit"),
    "whatif": _question("whatif", _whatif, "switches", "minimise", "spot"),
    "plan": _question("plan", questions.plan, *questions.PLANNED_BY),
}
LISTINGS: dict[str, tuple[Question, tuple[str, ...]]] = {
    "models": (_rows(found_models, "pattern"), ("pattern",)),
    "gpus": (_rows(found_gpus, "pattern", "vendor"), ("pattern", "vendor")),
    "offers": (_offers, ("gpu", "provider", "region", "count", "spot", "sort")),
    "datasets": (_rows(found_datasets, "pattern"), ("pattern",)),
}


API = "/api/v1"
_SAYS = {
    "read": "What a training file means: every field of the run, and who states it.",
    "estimate": "Memory, time, cost and energy, once per GPU.",
    "explain": "Every byte and second with its formula, every input with its origin, once per GPU.",
    "check": "Whether the run fits, once per GPU.",
    "max-batch": "The largest micro-batch that is safe, and that may fit, once per GPU.",
    "whatif": "What single changes would do to the run: memory, time, cost, energy.",
    "plan": "The cheapest, fastest or greenest way to do the run, and why not another.",
    "models": "The models that are known, with their configurations.",
    "gpus": "The GPUs that are known, with their figures.",
    "offers": "What GPUs cost per hour, with provider, region and date of every price.",
    "datasets": "The data sets that are known, with their lengths in tokens.",
}
_RUN = {"model": "llama-3-8b", "method": "qlora", "dataset": "math_14k", "micro_batch_size": 4}
_YAML = "model: llama-3-8b\nmethod: qlora\nseq_len: 1024\nnum_samples: 10000\ngpu: H100\n"
_EXAMPLES: dict[str, dict[str, Any]] = {
    "read": {"document": _YAML},
    "estimate": {"run": _RUN, "gpus": ["A40", "H100"]},
    "explain": {"run": _RUN, "gpus": ["A40"]},
    "check": {"document": _YAML, "overrides": {"micro_batch_size": 8}},
    "max-batch": {"run": _RUN, "gpus": ["A40", "H100"]},
    "whatif": {"run": {**_RUN, "gpu": "A40"}, "switches": ["flash-attention", "H100"]},
    "plan": {"run": _RUN, "within_hours": 24, "budget_usd": 200, "max_gpus": 8},
}
_TEXT: dict[str, Any] = {"type": "string", "maxLength": MAX_TEXT}
_QUERIES: dict[str, dict[str, dict[str, Any]]] = {
    "models": {"pattern": {**_TEXT, "examples": ["mixtral"]}},
    "gpus": {"pattern": {**_TEXT, "examples": ["h100"]}, "vendor": {**_TEXT, "examples": ["NVIDIA"]}},
    "offers": {
        "gpu": {**_TEXT, "examples": ["h100"]},
        "provider": {**_TEXT, "examples": ["aws"]},
        "region": _TEXT,
        "count": {"type": "integer", "minimum": 1, "maximum": 100_000},
        "spot": {"type": "boolean"},
        "sort": {"enum": list(SORTS)},
    },
    "datasets": {"pattern": _TEXT},
}
_ERRORS = {
    "400": "The body or the host is none that this server reads.",
    "401": "The server was started with a token, and the request has none or another.",
    "413": "The body is too long.",
    "415": "The body is of another type.",
    "422": "A value is not accepted; `field` says which.",
    "429": "Too many searches at once, or requests of one client; Retry-After says when to ask again.",
    "503": "The answer takes too long, or too many wait.",
}


@cache
def openapi_text(root_path: str = "") -> str:
    """Return the document as JSON; `root_path` is where a proxy shows the interface."""
    placed = {"servers": [{"url": root_path}]} if root_path else {}
    return json.dumps(openapi() | placed, ensure_ascii=False)


def openapi() -> dict[str, Any]:
    """Return the document."""
    paths: dict[str, Any] = {
        f"{API}/{name}": {"post": _operation(name, QUESTIONS[name][1])} for name in QUESTIONS
    }
    paths |= {f"{API}/{name}": {"get": _listing(name)} for name in LISTINGS}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "FineGauge",
            "version": __version__,
            "summary": "What fine-tuning a language model takes: memory, time, cost, energy.",
            "description": "The answers of the commands under --json. SI units throughout, the unit is the "
            "end of each name; a figure that is not known is null. Served on this machine alone, "
            "unless it was started for others.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {
                **{name: _placed(schema(name), f"#/components/schemas/{name}") for name in QUESTIONS},
                "error": _ERROR,
                "fields": _fields(),
                "value": {"anyOf": [_PLAIN, {"type": "array", "items": _PLAIN}]},
            }
        },
    }


_ERROR = {
    "type": "object",
    "required": ["error", "field"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "string",
            "minLength": 1,
            "description": "One sentence: what is wrong, what to do.",
        },
        "field": {
            "type": ["string", "null"],
            "description": "Whose value it is; null where it is no field's.",
        },
    },
}
_PLAIN: dict[str, Any] = {"type": ["string", "number", "boolean"], "maxLength": 1_000}


def _operation(name: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": _SAYS[name],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _request(name, arguments), "example": _EXAMPLES[name]}
            },
        },
        "responses": {
            "200": {
                "description": f"What 'finegauge {name} --json' prints.",
                "content": {"application/json": {"schema": _ref(name)}},
            },
            **_refusals(*_ERRORS),
        },
    }


def _request(name: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    subject = {
        "document": {
            "type": "string",
            "maxLength": MAX_DOCUMENT,
            "description": "The text of a training file: LLaMA-Factory, Axolotl, TRL, torchtune, NeMo, "
            "ms-swift, Unsloth, a FineGauge run file or a config.json, as YAML or JSON. Or give 'run'.",
        },
        "run": _ref("fields"),
        "overrides": {**_ref("fields"), "description": "Laid over the text or the run."},
    }
    more = {name: ARGUMENTS[name] for name in arguments if name in ARGUMENTS}
    if name == "whatif":
        more["minimise"] = {**ARGUMENTS["minimise"], "enum": [*ARGUMENTS["minimise"]["enum"], "memory"]}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": subject | more,
        "oneOf": [{"required": ["document"]}, {"required": ["run"]}],
    }


def _fields() -> dict[str, Any]:
    """Return the schema of the fields of a run; docs/run-file.md says what each means."""
    return {
        "type": "object",
        "description": "Fields of a run, as in a run file.",
        "additionalProperties": False,
        "properties": dict.fromkeys(FIELDS, _ref("value")),
    }


def _listing(name: str) -> dict[str, Any]:
    rows = {
        "type": "array",
        "items": {"type": "object", "required": ["name"] if name != "offers" else ["provider"]},
    }
    return {
        "operationId": name,
        "summary": _SAYS[name],
        "parameters": [
            {"name": query, "in": "query", "required": False, "schema": kind}
            for query, kind in _QUERIES[name].items()
        ],
        "responses": {
            "200": {
                "description": f"What 'finegauge {name} --json' prints.",
                "content": {"application/json": {"schema": rows}},
            },
            **_refusals("400", "422", "503"),
        },
    }


def _refusals(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _ref("error")}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _placed(content: Any, place: str) -> Any:
    """Return a schema whose references to its own parts hold where it stands inside the document."""
    if isinstance(content, Mapping):
        return {
            key: place + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _placed(value, place)
            for key, value in content.items()
            if key != "$schema"
        }
    return [_placed(item, place) for item in content] if isinstance(content, list) else content
