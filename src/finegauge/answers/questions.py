"""The questions that both servers answer: what each may be given, as JSON schemas, and its answer."""

from typing import TYPE_CHECKING, Any

from finegauge.answers.arguments import MAX_LIST, MAX_TEXT, Asked
from finegauge.planning.capacity import MAX_MICRO_BATCH_SIZE, max_micro_batch_size
from finegauge.planning.plan import OBJECTIVES
from finegauge.units import HOUR_S

if TYPE_CHECKING:
    from finegauge.answers.estimate import CapacityAnswer, CheckAnswer, EstimateAnswer
    from finegauge.answers.plan import PlanAnswer

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


def estimate(asked: Asked) -> "EstimateAnswer":
    """Return memory, time, cost and energy, once per GPU."""
    from finegauge.answers.estimate import estimate_answer

    at_max_batch, runs = asked.flag("at_max_batch"), asked.runs()
    return estimate_answer(runs, at_max_batch=at_max_batch)


def check(asked: Asked) -> "CheckAnswer":
    """Return whether the run fits, once per GPU."""
    from finegauge.answers.estimate import check_answer

    return check_answer(asked.runs())


def max_batch(asked: Asked) -> "CapacityAnswer":
    """Return the largest micro-batch that fits, once per GPU."""
    from finegauge.answers.estimate import capacity_answer

    limit = asked.whole("limit", MAX_MICRO_BATCH_SIZE, MOST_SEQUENCES)
    return capacity_answer([(run, max_micro_batch_size(run, limit=limit)) for run in asked.runs()])


def plan(asked: Asked) -> "PlanAnswer":
    """Return the cheapest, fastest or greenest way to do the run."""
    from finegauge.answers.plan import plan_answer
    from finegauge.planning.plan import plan as best
    from finegauge.planning.selection import Wanted

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
