"""Answers about what to change: the best plan with its alternatives, and single changes.

The fields are those of `--json`, in its order; a plan is given by its machine and by the fields that it
changes of the run, so that one read back from a file is shown as one just found.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from finegauge.answers import Rules
from finegauge.answers.changes import ChangedRun, Current, Outcome, changed_run, current, outcome
from finegauge.answers.estimate import Bill, bill
from finegauge.planning.plan import Plan, changes
from finegauge.planning.selection import Wanted
from finegauge.planning.whatif import (
    GPUS_OF_A_NODE,
    UNDIVIDED,
    Refused,
    Standing,
    Switch,
    WhatIf,
    standing,
    tried_with,
    with_known_length,
)
from finegauge.profile import Profile
from finegauge.records import NamedTuple, same
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.formats.writing import Written


@Rules(flat=("outcome",))
class Candidate(NamedTuple):
    """One plan: its machines, what it changes of the run, and what it takes."""

    gpu: str
    num_gpus: int
    num_nodes: int
    provider: str | None
    changes: Mapping[str, Any]
    outcome: Outcome


@Rules(hidden=("needs",), flat=("candidate",))
class Winner(NamedTuple):
    """The plan to take: a candidate with its whole run, its step, its bill, and what its changes need."""

    candidate: Candidate
    run: Mapping[str, Any]
    profile: Profile | None
    quote: Bill | None
    needs: tuple[str, ...] = ()


@Rules(signed=("over_fraction",))
class AlternativePlan(NamedTuple):
    """The best plan with one choice made otherwise, and what stands against it."""

    value: Any
    reason: Literal["beaten", "memory", "time", "budget", "unknown"]
    over_fraction: float | None
    plan: Candidate | None


@Rules(signed=("more_fraction",))
class RaisedLimit(NamedTuple):
    """One limit moved, and the best plan that then is allowed."""

    limit: Literal["memory", "time", "budget", "risk"]
    more_bytes: float
    more_fraction: float
    saves: Literal["cost", "time", "energy"]
    saved_fraction: float
    plan: Candidate


@Rules(signed=("over_fraction",))
class Nearest(NamedTuple):
    """The plan that comes closest where none keeps the limits."""

    limit: Literal["memory", "time", "budget", "unknown"]
    over_fraction: float | None
    plan: Candidate | None


class Exported(NamedTuple):
    """The files that a plan was written to, how to start them, and what the framework cannot say."""

    paths: tuple[str, ...]
    command: str
    warnings: tuple[str, ...]


class PlanAnswer(NamedTuple):
    """The best way to do a run; `results` holds the plan to take, nothing where none keeps the limits."""

    run: Run
    wanted: Wanted
    assumed_samples: int | None
    notes: tuple[str, ...]
    base: Current | None
    front: tuple[Candidate, ...]
    num_on_front: int
    alternatives: Mapping[str, tuple[AlternativePlan, ...]]
    relaxations: tuple[RaisedLimit, ...]
    nearest: Nearest | None
    num_candidates: int
    num_evaluated: int
    search_s: float
    exported: Exported | None
    results: tuple[Winner, ...]

    @property
    def winner(self) -> Winner | None:
        """Return the plan to take."""
        return self.results[0] if self.results else None


class WhatIfAnswer(NamedTuple):
    """The run as it is, and with one change after the other, the largest gain first."""

    run: Run
    minimise: Literal["cost", "time", "energy", "memory"]
    spot: bool
    assumed_samples: int | None
    base: Current
    refused: tuple[Refused, ...]
    results: tuple[ChangedRun, ...]


def plan_answer(plan: Plan, written: "Written | None" = None) -> PlanAnswer:
    """Return a plan, with the files that it was written to, if it was."""
    run = plan.run

    def candidate(one: Standing) -> Candidate:
        return Candidate(
            str(one.run.gpu), one.run.num_gpus, one.run.num_nodes, one.run.provider, changes(run, one.run),
            outcome(one),
        )  # fmt: skip

    def maybe(one: Standing | None) -> Candidate | None:
        return None if one is None else candidate(one)

    winner, quote, miss = plan.winner, plan.quote, plan.miss
    whole = () if winner is None else (
        Winner(candidate(winner), run=winner.run.fields(), profile=plan.profile,
               quote=None if quote is None else bill(quote), needs=plan.asks),
    )  # fmt: skip
    figures = {
        "base": None if plan.base is None else current(str(run.gpu), plan.base),
        "front": tuple(map(candidate, plan.front)),
        "alternatives": {
            aspect: tuple(
                AlternativePlan(**same(AlternativePlan, one), plan=maybe(one.candidate)) for one in found
            )
            for aspect, found in plan.alternatives.items()
        },
        "relaxations": tuple(
            RaisedLimit(**same(RaisedLimit, one), plan=candidate(one.candidate)) for one in plan.relaxations
        ),
        "nearest": None if miss is None else Nearest(**same(Nearest, miss), plan=maybe(miss.candidate)),
        "exported": None if written is None else Exported(written.paths, written.command, written.warnings),
        "results": whole,
    }
    return PlanAnswer(**same(PlanAnswer, plan) | figures)


def whatif_answer(found: WhatIf) -> WhatIfAnswer:
    """Return single changes of a run, as the planner found them."""
    base = found.base
    results = tuple(changed_run(found, one) for one in found.variants)
    return WhatIfAnswer(
        base.run, found.minimise, found.spot, found.assumed_samples, current(str(base.run.gpu), base),  # type: ignore[arg-type]
        found.refused, results,
    )  # fmt: skip


COUNTS = (1, 2, 4, 8, 16, 32, 64)


class ScalingPoint(NamedTuple):
    """The run on one number of GPUs."""

    num_gpus: int
    num_nodes: int
    outcome: Outcome
    samples_per_s: float
    efficiency_fraction: float  # 1 with the fewest GPUs


class ScalingAnswer(NamedTuple):
    """The run on 1 to 64 GPUs, and why it cannot have some of these."""

    run: Run
    assumed_samples: int | None
    points: tuple[ScalingPoint, ...]
    refused: tuple[Refused, ...]


def scaling_answer(run: Run) -> ScalingAnswer:
    """Return what `run`, which states its GPU, takes on each number of GPUs."""
    sized, assumed = with_known_length(run)
    base = standing(sized)
    per_node = run.num_gpus // run.num_nodes if run.num_nodes > 1 else GPUS_OF_A_NODE
    found: list[Standing] = []
    refused: list[Refused] = []
    for count in sorted({*COUNTS, run.num_gpus}):
        if count == run.num_gpus:
            found.append(base)
            continue
        nodes = -(-count // per_node)
        fields = {"num_gpus": count, "num_nodes": nodes, **UNDIVIDED}
        one = tried_with(Switch(f"{count} GPUs", "", fields), base)
        if isinstance(one, Refused):
            refused.append(one)
        else:
            found.append(one.standing)
    return ScalingAnswer(run, assumed, tuple(_point(one, found[0]) for one in found), tuple(refused))


def _point(one: Standing, fewest: Standing) -> ScalingPoint:
    of_each, before = _rate(one) / one.run.num_gpus, _rate(fewest) / fewest.run.num_gpus
    run = one.run
    return ScalingPoint(run.num_gpus, run.num_nodes, outcome(one), _rate(one), of_each / before)


def _rate(one: Standing) -> float:
    return one.samples_per_step / one.step_time_s
