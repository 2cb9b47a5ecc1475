"""The questions that both servers answer: their arguments, with schemas and limits, as runs; the answers.

A question names a file below the folder, or states the fields of a run itself; overrides are laid over
either. Every text in it that would lead out of the folder (absolute, "..", "~", a symbolic link) is
refused before anything is opened; what a file names, and what that names, where it would be
(`sandbox.reading_only`).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.answers.estimate import (
    CapacityAnswer,
    CheckAnswer,
    EstimateAnswer,
    capacity_answer,
    check_answer,
    estimate_answer,
)
from finegauge.answers.plan import PlanAnswer, plan_answer
from finegauge.answers.runs import Unnamed, on_gpus
from finegauge.errors import FieldError, InputError, UnknownKeyError, UnknownNameError, did_you_mean, shown
from finegauge.formats.model_names import base_of, read_as
from finegauge.formats.reading import FILE_FIELDS, describe
from finegauge.planning.capacity import MAX_MICRO_BATCH_SIZE, max_micro_batch_size
from finegauge.planning.plan import OBJECTIVES
from finegauge.planning.plan import plan as best
from finegauge.planning.selection import Wanted
from finegauge.run.field import number, whole
from finegauge.run.run import FIELDS, FROM_CALLER, Run
from finegauge.sandbox import lies_in
from finegauge.units import HOUR_S

MAX_KEYS = 100
MAX_LIST = 64
MAX_TEXT = 1_000
MOST_HOURS, MOST_USD, MOST_RISK, MOST_GPUS, MOST_SEQUENCES = 1e6, 1e12, 0.5, 65_536, 1_000_000
_NAMES = {"type": "array", "items": {"type": "string", "maxLength": MAX_TEXT}, "maxItems": MAX_LIST}
_FLAG = {"type": "boolean", "default": False}
_NUMBER = {"type": "number", "minimum": 1e-6}
_WHOLE = {"type": "integer", "minimum": 1}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "gpus": {**_NAMES, "description": "By the names that 'gpus' lists."},
    "at_max_batch": {**_FLAG, "description": "On each GPU, take the largest micro-batch that is safe there."},
    "limit": {**_WHOLE, "maximum": MOST_SEQUENCES, "description": "Look no further."},
    "switches": {
        **_NAMES, "description": "Optimisations, GPUs, or FIELD=VALUE; all are tried where none is named."},
    "minimise": {"enum": list(OBJECTIVES), "default": "cost", "description": "What to look for."},
    "spot": {**_FLAG, "description": "Cost is of spot instances."},
    "within_hours": {**_NUMBER, "maximum": MOST_HOURS, "description": "The longest it may take."},
    "budget_usd": {**_NUMBER, "maximum": MOST_USD, "description": "The most it may cost."},
    "risk_fraction": {
        **_NUMBER, "maximum": MOST_RISK,
        "description": "The probability of running out of memory to stay below."},
    "keep_method": {**_FLAG, "description": "Keep full, lora or qlora as the run has it."},
    "providers": {**_NAMES, "description": "Only these clouds."},
    "max_gpus": {
        **_WHOLE, "maximum": MOST_GPUS, "default": 64,
        "description": "The most GPUs, of all nodes together."},
}  # fmt: skip
PLANNED_BY = (  # what a plan may be given beside the run
    *("within_hours", "budget_usd", "risk_fraction", "minimise", "spot", "keep_method"),
    *("gpus", "providers", "max_gpus"),
)


class Asked(NamedTuple):
    """The arguments of one call, by name; their folder is the only one that is read."""

    arguments: Mapping[str, Any]
    folder: str

    def check_names(self, known: Iterable[str]) -> None:
        """Raise for an argument that the tool does not know."""
        names = list(known)
        for name in self.arguments:
            if name not in names:
                raise UnknownKeyError("arguments", name, known=names)

    def text(self, name: str) -> str:
        """Return a text; "" where it is not given."""
        value = self.arguments.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise FieldError(f"{name} must be text.")
        return _checked_text(name, value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of names, or one comma-separated text of them; none leads out of the folder."""
        value = self.arguments.get(name)
        items = value.split(",") if isinstance(value, str) else value
        if items is None:
            return ()
        if not isinstance(items, list) or len(items) > MAX_LIST:
            raise FieldError(f"{name} must be a list of at most {MAX_LIST} names.")
        found = [_checked_text(name, item).strip() for item in items if isinstance(item, str)]
        if len(found) != len(items):
            raise FieldError(f"{name} must be a list of at most {MAX_LIST} names.")
        for item in found:
            confine(item, self.folder)
        return tuple(dict.fromkeys(filter(None, found)))

    def number(self, name: str, most: float) -> float | None:
        """Return a number above 0; None where it is not given."""
        value = self.arguments.get(name)
        return None if value is None else number(1e-6, most)(name, value)

    def whole(self, name: str, default: int, most: int) -> int:
        """Return a whole number from 1 on."""
        value = self.arguments.get(name)
        return default if value is None else int(whole(1, most)(name, value))

    def flag(self, name: str) -> bool:
        """Return a true or false; false where it is not given."""
        value = self.arguments.get(name, False)
        if not isinstance(value, bool):
            raise FieldError(f"{name} must be true or false.")
        return value

    def choice(self, name: str, options: Sequence[str]) -> str:
        """Return one of `options`; the first where none is given."""
        word = self.arguments.get(name, options[0])
        if word not in options:
            hint = f"{did_you_mean(str(word), options)} Use one of {', '.join(options)}."
            raise FieldError(f"{name}={shown(word)} is unknown.{hint}")
        return str(word)

    def run(self) -> Run:
        """Return the run of the question.

        Raises: InputError in one sentence for whatever is wrong with it.
        """
        stated, overrides = self.mapping("run"), self.mapping("overrides")
        file = self.text("file")
        if bool(file) == bool(stated):
            raise InputError("Give either 'file', a path below the server's folder, or 'run', its fields.")
        if file:
            run = self._described(file, overrides)
        else:
            fields = {**stated, **overrides}
            for name in fields:
                if name not in FIELDS:
                    raise UnknownKeyError("run", name, known=FIELDS)
            run = Run.from_fields(fields, dict.fromkeys(fields, FROM_CALLER))
        for name in FILE_FIELDS:
            confine(str(getattr(run, name) or ""), self.folder)
        return _known(run)

    def runs(self, *, unnamed: Unnamed = "all") -> list[Run]:
        """Return the run, once per GPU asked about; else on those of the common ones that `unnamed` says."""
        return self.on_gpus(self.run(), unnamed)

    def on_gpus(self, run: Run, unnamed: Unnamed) -> list[Run]:
        """Return `run` once per GPU asked about, as `runs` does."""
        return on_gpus(run, self.texts("gpus"), unnamed=unnamed)

    def _described(self, file: str, overrides: Mapping[str, Any]) -> Run:
        confine(file, self.folder)
        path = os.path.join(self.folder, file)
        if not os.path.exists(path):
            beside = os.listdir(self.folder)
            raise InputError(f"No file {shown(file)} below the server's folder.{did_you_mean(file, beside)}")
        words = tuple(f"{key}={_as_word(key, value)}" for key, value in overrides.items())
        return describe(path, words)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping of plain values, none of which leads out of the folder."""
        value = self.arguments.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > MAX_KEYS:
            raise FieldError(f"{name} must be a mapping of at most {MAX_KEYS} fields to their values.")
        for key, item in value.items():
            for part in item if isinstance(item, list) else [item]:
                if not isinstance(part, str | int | float | bool | None):
                    raise FieldError(f"{name}: {shown(key)} must be a plain value or a list of them.")
                if isinstance(part, str):
                    confine(_checked_text(str(key), part), self.folder)
        return value


def _known(run: Run) -> Run:
    """Return `run`, whose model, GPU and data are known; a fine-tune's name is read as its base."""
    try:
        run.check_names()
    except UnknownNameError as error:
        base = base_of(error)
        if not base or error.name != run.model:
            raise
        run = read_as(run.replace(model=base), error.name)
        run.check_names()
    return run


def confine(text: str, folder: str) -> None:
    """Raise where `text`, taken as a path, leads out of `folder`."""
    root = os.path.realpath(folder)
    if not lies_in(os.path.realpath(os.path.join(root, os.path.expanduser(text.strip()))), root):
        raise InputError(f"{shown(text)} lies outside the folder of this server; name a file below it.")


def _as_word(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if value is None:
        raise FieldError(f"overrides: {shown(name)} has no value.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked_text(name: str, value: str) -> str:
    if len(value) > MAX_TEXT or not value.isprintable():
        raise FieldError(f"{shown(name)} must be one line of at most {MAX_TEXT:,} printable characters.")
    return value


def estimate(asked: Asked) -> EstimateAnswer:
    """Return memory, time, cost and energy, once per GPU."""
    at_max_batch, runs = asked.flag("at_max_batch"), asked.runs()
    return estimate_answer(runs, at_max_batch=at_max_batch)


def check(asked: Asked) -> CheckAnswer:
    """Return whether the run fits, once per GPU."""
    return check_answer(asked.runs())


def max_batch(asked: Asked) -> CapacityAnswer:
    """Return the largest micro-batch that fits, once per GPU."""
    limit = asked.whole("limit", MAX_MICRO_BATCH_SIZE, MOST_SEQUENCES)
    return capacity_answer([(run, max_micro_batch_size(run, limit=limit)) for run in asked.runs()])


def plan(asked: Asked) -> PlanAnswer:
    """Return the cheapest, fastest or greenest way to do the run."""
    within_h, default = asked.number("within_hours", MOST_HOURS), Wanted()
    wanted = Wanted(
        within_s=None if within_h is None else within_h * HOUR_S,
        budget_usd=asked.number("budget_usd", MOST_USD),
        risk_fraction=asked.number("risk_fraction", MOST_RISK) or default.risk_fraction,
        minimise=asked.choice("minimise", OBJECTIVES),  # type: ignore[arg-type]
        spot=asked.flag("spot"),
        keep_method=asked.flag("keep_method"),
        gpus=asked.texts("gpus"),
        providers=asked.texts("providers"),
        max_gpus=asked.whole("max_gpus", default.max_gpus, MOST_GPUS),
    )
    return plan_answer(best(asked.run(), wanted))
