"""Laws: equations with fitted constants, their intervals, their test and the data behind them.

A law is a JSON file. One that was edited by hand is checked like any other input.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import floor, log
from typing import Any, NamedTuple

from finegauge.catalogue.datasets import dataset
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.models import model
from finegauge.data.batch_shape import dataset_of
from finegauge.documents import figure, home, read_document, write_document
from finegauge.errors import (
    FieldError,
    FileFormatError,
    FineGaugeError,
    InputError,
    UnknownNameError,
    UnsupportedError,
    shown,
)
from finegauge.model.blocks import MixtureOfExperts
from finegauge.model.graph import architecture_of
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.run.run import Run
from finegauge.units import GB, HOUR_S


class Condition(NamedTuple):
    """The quantities of a run that laws use; each law uses some of them."""

    batch: int = 1  # sequences of one micro-batch
    sparsity_fraction: float = 1.0  # experts active over all experts; 1 is dense
    seq_len: int = 0  # tokens of the longest sequence
    gpu_memory_bytes: float = 0.0  # as the GPU is sold
    model_memory_bytes: float = 0.0  # what the weights take


class Observation(NamedTuple):
    """A condition and the value of the law's quantity there."""

    condition: Condition
    value: float  # in the unit of the form's quantity


Constants = Mapping[str, float]
Sweep = Sequence[Observation]
ARTIFACT_C3 = 1.8  # Mixtral's, written into the artifact's plot script

SAMPLES_PER_S, MAX_BATCH = "samples_per_s", "max_batch"


class Form(NamedTuple):
    """One equation: which quantity it gives, of which constants."""

    name: str
    equation: str
    quantity: str  # samples_per_s (of one GPU) or max_batch
    units: Mapping[str, str]  # of each constant, in order
    evaluate: Callable[[Constants, Condition], float]
    start: Callable[[Sweep], dict[str, float]]  # where a fit begins
    held: Callable[[Sweep], dict[str, float]]  # constants that this sweep cannot tell
    limits: Mapping[str, tuple[float, float]]  # what a constant may be, where physics says so

    def value(self, constants: Constants, condition: Condition) -> float:
        """Return the quantity. Raises: UnsupportedError where the equation has no value."""
        try:
            return figure(self.evaluate(constants, condition))
        except (ArithmeticError, ValueError):
            raise UnsupportedError(
                f"The law {self.name} has no value at batch={condition.batch}, sparsity "
                f"{condition.sparsity_fraction:.3g} with these constants; it does not hold there."
            ) from None

    def answer(self, constants: Constants, condition: Condition) -> float:
        """Return the quantity as the law would state it: a batch is a whole number."""
        value = self.value(constants, condition)
        return float(max(0, floor(value + 1e-9))) if self.quantity == MAX_BATCH else value

    def size(self, condition: Condition) -> float:
        """Return what grows along a sweep: the batch, or the memory of the GPU."""
        return condition.gpu_memory_bytes if self.quantity == MAX_BATCH else float(condition.batch)


def form(name: str) -> Form:
    """Return the equation called `name`, or raise UnknownNameError."""
    if name not in FORMS:
        raise UnknownNameError("law", name, known=FORMS)
    return FORMS[name]


def _affine(constants: Constants, at: Condition) -> float:
    per_sequence = constants["c"] + constants["d"] * at.sparsity_fraction
    return at.batch / (constants["a"] + at.batch * per_sequence)


def _affine_start(sweep: Sweep) -> dict[str, float]:
    """Return the line through the smallest and the largest batch, its slope shared evenly."""
    first = min(sweep, key=lambda seen: seen.condition.batch)
    last = max(sweep, key=lambda seen: seen.condition.batch)
    low, high = (seen.condition.batch / seen.value for seen in (first, last))
    rise = last.condition.batch - first.condition.batch
    slope = max((high - low) / rise if rise else low, 1e-3 * low)
    return {"a": max(low - slope * first.condition.batch, 0.1 * low), "c": slope / 2, "d": slope / 2}


def _set_to_zero(constant: str) -> Callable[[Sweep], dict[str, float]]:
    """Return what sets `constant` to 0 where all points have one sparsity, which cannot tell it."""
    return lambda sweep: {constant: 0.0} if len({s.condition.sparsity_fraction for s in sweep}) < 2 else {}


def _eq2(constants: Constants, at: Condition) -> float:
    exponent = 1.0 / (at.sparsity_fraction * constants["C3"])
    return constants["C4"] + constants["C2"] * exponent * log(at.batch)


def _eq2_printed(constants: Constants, at: Condition) -> float:
    scaled = at.batch / (at.sparsity_fraction * constants["C3"])
    return constants["C4"] + constants["C2"] * log(scaled)


def _eq2_start(sweep: Sweep) -> dict[str, float]:
    values = [seen.value for seen in sweep]
    return {"C2": max(values) - min(values) or 1.0, "C3": ARTIFACT_C3, "C4": min(values)}


def _eq1(constants: Constants, at: Condition) -> float:
    free_gb = (at.gpu_memory_bytes - at.model_memory_bytes) / GB
    share = (1.0 - constants["C1"]) + constants["C1"] * at.sparsity_fraction
    return constants["C0"] * free_gb / (at.seq_len * share)


_ANY = (float("-inf"), float("inf"))
_SECONDS = (0.0, float("inf"))
_EQ2: dict[str, Any] = {
    "quantity": SAMPLES_PER_S,
    "units": {"C2": "samples/s", "C3": "", "C4": "samples/s"},
    "start": _eq2_start,
    "held": lambda sweep: {"C3": ARTIFACT_C3},
    "limits": {"C2": _ANY, "C4": _ANY},
}

FORMS: Mapping[str, Form] = {
    each.name: each
    for each in (
        Form(
            name="affine",
            equation="seconds of a step = a + batch * (c + d * sparsity)",
            quantity=SAMPLES_PER_S,
            units={"a": "s", "c": "s/sample", "d": "s/sample"},
            evaluate=_affine,
            start=_affine_start,
            held=_set_to_zero("d"),
            limits={"a": _SECONDS, "c": _SECONDS, "d": _SECONDS},
        ),
        Form(
            name="xia-eq2",
            equation="samples/s = C4 + C2 * ln(batch ^ (1 / (sparsity * C3)))",
            evaluate=_eq2,
            **_EQ2,
        ),
        Form(
            name="xia-eq2-printed",
            equation="samples/s = C4 + C2 * ln(batch / (sparsity * C3))",
            evaluate=_eq2_printed,
            **_EQ2,
        ),
        Form(
            name="xia-eq1",
            equation="max batch = floor(C0 * (GPU GB - model GB) / (tokens * ((1 - C1) + C1 * sparsity)))",
            quantity=MAX_BATCH,
            units={"C0": "tokens/GB", "C1": ""},
            evaluate=_eq1,
            start=lambda sweep: {"C0": 80.0, "C1": 0.5},
            held=_set_to_zero("C1"),
            limits={"C0": (0.0, float("inf")), "C1": (0.0, 1.0)},
        ),
    )
}

SCHEMA_VERSION = 1


class Scores(NamedTuple):
    """How far a law is from the points it is held against."""

    num_points: int
    rmse: float  # in the unit of the law's quantity
    mape_fraction: float  # mean of |law / measured - 1|


class Law(NamedTuple):
    """One equation with its constants."""

    name: str
    form_name: str
    constants: Mapping[str, float]
    half_widths: Mapping[str, float]  # of the 95 % interval of each; left out where the data leave it open
    held: tuple[str, ...]  # constants that were set, not fitted
    scores: Scores  # on the points it was fitted to
    extrapolation: Scores | None = None  # fitted to the smaller half of the sweep, held against the rest
    smaller_half: str = ""  # what that smaller half is: "batch <= 6"
    interval: Interval | None = None  # of measured / law, from the residuals
    batch_range: tuple[int, int] = (1, 1)
    context: Mapping[str, str] = {}  # what all points share: gpu, model, ...
    table: str = ""
    fitted: str = ""  # the day

    @property
    def form(self) -> Form:
        """Return the equation."""
        return form(self.form_name)

    def at(self, condition: Condition) -> float:
        """Return the law's quantity: sequences per second on one GPU, or the largest batch."""
        return self.form.answer(self.constants, condition)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        values = self._asdict()
        for name in ("scores", "extrapolation", "interval"):
            values[name] = None if values[name] is None else values[name]._asdict()
        return {
            "schema_version": SCHEMA_VERSION,
            "quantity": self.form.quantity,
            "equation": self.form.equation,
            **values,
        }


def law_from_json(document: Any, where: str) -> Law:
    """Return the law that a JSON document states.

    Raises: FileFormatError naming what is missing or of the wrong kind.
    """
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise FileFormatError(
            f"{where} is not a law of schema {SCHEMA_VERSION}; 'finegauge calibrate --law' writes them."
        )
    try:
        equation = form(str(document["form_name"]))
        constants = {name: figure(document["constants"][name]) for name in equation.units}
        pair, further = document["interval"], document["extrapolation"]
        low, high = document["batch_range"]
        context = {str(key): str(value) for key, value in document["context"].items()}
        figure(context.get("model_memory_gb", 0.0))
        return Law(
            name=str(document["name"]),
            form_name=equation.name,
            constants=constants,
            half_widths={str(k): figure(v) for k, v in document["half_widths"].items()},
            held=tuple(map(str, document["held"])),
            scores=_scores(document["scores"]),
            extrapolation=None if further is None else _scores(further),
            smaller_half=str(document["smaller_half"]),
            interval=None if pair is None else _interval(pair),
            batch_range=(int(figure(low)), int(figure(high))),
            context=context,
            table=str(document["table"]),
            fitted=str(document["fitted"]),
        )
    except KeyError as error:
        raise FileFormatError(f"{where}: the law has no {shown(str(error.args[0]))}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{where}: the law cannot be read: {error}.") from None


def _scores(values: Mapping[str, Any]) -> Scores:
    return Scores(int(figure(values["num_points"])), figure(values["rmse"]), figure(values["mape_fraction"]))


def _interval(pair: Mapping[str, Any]) -> Interval:
    low, high = figure(pair["low_ratio"]), figure(pair["high_ratio"])
    if not 0 < low <= high:
        raise ValueError(f"interval={[low, high]} is not a pair of growing positive ratios")
    return Interval(low, high)


def cost_usd(*, queries: float, epochs: float, samples_per_s: float, usd_per_h: float) -> float:
    """Return the dollars of `epochs` passes over `queries` at a steady rate on one GPU."""
    return queries * epochs / samples_per_s / HOUR_S * usd_per_h


NONE_STORED = " None is stored yet: 'finegauge calibrate --law'."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return `name` if it can name a law's file."""
    if not _NAME.fullmatch(name):
        raise FieldError(
            f"{shown(name)} cannot name a law; use letters, digits, '.', '_' and '-', at most 64 of them."
        )
    return name


def stored() -> dict[str, str]:
    """Return the path of every stored law by name."""
    folder = _folder()
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {
        name.removesuffix(".json"): os.path.join(folder, name) for name in files if name.endswith(".json")
    }


def load(name_or_path: str) -> Law:
    """Return the law of that name, or that a .json file holds.

    Raises: UnknownNameError naming its neighbours, FileFormatError.
    """
    if name_or_path.endswith(".json"):
        return law_from_json(read_document(name_or_path), name_or_path)
    known = stored()
    if name_or_path not in known:
        have = f" Stored are {', '.join(known)}." if known else NONE_STORED
        raise InputError(f"{UnknownNameError('stored law', name_or_path, known=known)}{have}")
    return law_from_json(read_document(known[name_or_path]), known[name_or_path])


def store(law: Law) -> str:
    """Write `law` under its name, whole or not at all, and return the path."""
    path = os.path.join(_folder(), f"{check_name(law.name)}.json")
    write_document(law.to_json(), path)
    return path


def _folder() -> str:
    return os.path.join(home(), "laws")


Estimator = Callable[["Run"], Profile]


def with_law(law: Law, base: Estimator) -> Estimator:
    """Return an Estimator: time or memory by `law`, the rest by `base`.

    The Estimator raises UnsupportedError for another GPU than the law was fitted on.
    """
    apply = _memory if law.form.quantity == MAX_BATCH else _time

    def answer(run: Run) -> Profile:
        fitted_on = law.context.get("gpu")
        if fitted_on and law.form.quantity != MAX_BATCH and run.gpu and run.gpu != fitted_on:
            raise UnsupportedError(
                f"The law '{law.name}' was fitted on {fitted_on} and says nothing about {run.gpu}; fit "
                "one to a sweep there, or leave --law out."
            )
        return apply(law, base(run))

    return answer


def condition_of(run: Run, law: Law) -> Condition:
    """Return the quantities of `run` that laws use."""
    longest = None if run.dataset is None else dataset_of(run).max_tokens
    return Condition(
        batch=run.micro_batch_size,
        sparsity_fraction=sparsity_fraction(run),
        seq_len=min(run.seq_len, longest or run.seq_len),  # the data's longest sequence, cut off
        gpu_memory_bytes=gpu(run.gpu).memory_bytes if run.gpu else 0.0,
        model_memory_bytes=float(law.context.get("model_memory_gb", 0.0)) * GB,
    )


def sparsity_fraction(run: Run) -> float:
    """Return active experts over all experts; 1 for a model without experts."""
    for layer, _ in architecture_of(run.model, run.num_experts_per_tok).layers:
        for branch in layer.branches:
            if isinstance(routed := branch.mixer, MixtureOfExperts):
                return routed.top_k / routed.num_experts
    return 1.0


def _time(law: Law, profile: Profile) -> Profile:
    run = profile.run
    rate = law.at(condition_of(run, law))
    if rate <= 0:
        raise UnsupportedError(
            f"The law '{law.name}' gives {rate:.3g} samples/s at micro_batch_size={run.micro_batch_size}: "
            f"it does not hold there (fitted on {law.batch_range[0]} to {law.batch_range[1]})."
        )
    seconds = run.gradient_accumulation_steps * run.micro_batch_size / rate
    said = profile.step_time_s.total
    parts = {path: value * seconds / said for path, value in profile.step_time_s.parts.items()}
    joules = {path: value * seconds / said for path, value in profile.step_energy_j.parts.items()}
    inverse = Interval(1 / law.interval.high_ratio, 1 / law.interval.low_ratio) if law.interval else None
    return profile._replace(
        source=_source(law, profile, time_interval=inverse, memory_interval=profile.source.memory_interval),
        step_time_s=Breakdown(parts) if said else Breakdown.of(step=seconds),
        step_energy_j=Breakdown(joules) if said else profile.step_energy_j,
    )


def _memory(law: Law, profile: Profile) -> Profile:
    """Return `profile` with the law's memory: the model, and a share of the rest per sequence."""
    run, condition = profile.run, condition_of(profile.run, law)
    most = law.at(condition)
    free = condition.gpu_memory_bytes - condition.model_memory_bytes
    whole = law.form.value(law.constants, condition)  # before it is cut down to a whole batch
    needed = Breakdown.of(
        weights=condition.model_memory_bytes,
        activations=free * run.micro_batch_size / whole if whole > 0 else free,
    )
    return profile._replace(
        source=_source(law, profile, time_interval=profile.source.time_interval, memory_interval=None),
        outcome="completed" if run.micro_batch_size <= most else "out_of_memory",
        peak_memory_bytes=needed,
        device_memory_bytes=needed,
        phase_memory_bytes=Breakdown({}),
        peak_phase="",
        capacity_bytes=condition.gpu_memory_bytes,
    )


def _source(
    law: Law, profile: Profile, *, time_interval: Interval | None, memory_interval: Interval | None
) -> Source:
    part = "memory" if law.form.quantity == MAX_BATCH else "time"
    table = f" to {law.table}" if law.table else ""
    said = f"{part} by the law '{law.name}' ({law.form_name}, {law.scores.num_points} points fitted{table})"
    return Source(
        kind="predicted",
        name=f"law {law.name}, rest {profile.source.name}",
        memory_interval=memory_interval,
        time_interval=time_interval,
        assumptions=(said, *_off_ground(law, profile.run), *profile.source.assumptions),
    )


def _off_ground(law: Law, run: Run) -> list[str]:
    notes = []
    low, high = law.batch_range
    if law.form.quantity != MAX_BATCH and not low <= run.micro_batch_size <= high:
        notes.append(f"micro_batch_size={run.micro_batch_size} lies outside the law's {low} to {high}")
    for name in ("model", "dataset", "seq_len", "method"):
        was, asked = law.context.get(name), getattr(run, name)
        if was is not None and asked is not None and _known_as(name, was) != _known_as(name, str(asked)):
            notes.append(f"the law was fitted with {name}={was}, not {asked}")
    return notes


def _known_as(field: str, value: str) -> str:
    try:
        if field == "model":
            return model(value).name
        return dataset(value).name if field == "dataset" else value.casefold()
    except FineGaugeError:
        return value.casefold()
