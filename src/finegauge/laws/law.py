"""Laws: equations with fitted constants, their intervals, their test and the data behind them.

A law is a JSON file. One that was edited by hand is checked like any other input.
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor, log
from typing import Any, NamedTuple

from finegauge.documents import figure
from finegauge.errors import FileFormatError, UnknownNameError, UnsupportedError, shown
from finegauge.profile import Interval
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

    @property
    def num_fitted(self) -> int:
        """Return how many constants the data chose."""
        return len(self.constants) - len(self.held)

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
