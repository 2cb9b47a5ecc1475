"""What a fit leaves behind: constants, how sure they are, how far they were tested, and from what.

A law is a JSON file. One that was edited by hand is checked like any other input.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from finegauge.errors import FileFormatError, shown
from finegauge.laws.forms import Form, form
from finegauge.laws.observation import Condition
from finegauge.profile import Interval

SCHEMA_VERSION = 1


class Scores(NamedTuple):
    """How far a law is from the points it is held against."""

    num_points: int
    rmse: float  # in the unit of the law's quantity
    mape_fraction: float  # mean of |law / measured - 1|


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
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
    context: Mapping[str, str] = field(default_factory=dict)  # what all points share: gpu, model, ...
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
        values = asdict(self)
        for name in ("scores", "extrapolation", "interval"):
            value = getattr(self, name)
            values[name] = value._asdict() if value is not None else None
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
        constants = {name: float(document["constants"][name]) for name in equation.units}
        pair = document["interval"]
        further = document["extrapolation"]
        low, high = document["batch_range"]
        return Law(
            name=str(document["name"]),
            form_name=equation.name,
            constants=constants,
            half_widths={str(k): float(v) for k, v in document["half_widths"].items()},
            held=tuple(map(str, document["held"])),
            scores=_scores(document["scores"]),
            extrapolation=None if further is None else _scores(further),
            smaller_half=str(document["smaller_half"]),
            interval=None if pair is None else Interval(float(pair["low_ratio"]), float(pair["high_ratio"])),
            batch_range=(int(low), int(high)),
            context={str(k): str(v) for k, v in document["context"].items()},
            table=str(document["table"]),
            fitted=str(document["fitted"]),
        )
    except KeyError as error:
        raise FileFormatError(f"{where}: the law has no {shown(str(error.args[0]))}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"{where}: the law cannot be read: {error}.") from None


def _scores(values: Mapping[str, Any]) -> Scores:
    return Scores(int(values["num_points"]), float(values["rmse"]), float(values["mape_fraction"]))
