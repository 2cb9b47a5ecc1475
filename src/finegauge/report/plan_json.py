"""What `finegauge plan` prints under `--json`; report/schemas/plan.schema.json is its schema."""

from typing import TYPE_CHECKING, Any

from finegauge.plan.alternatives import Alternative
from finegauge.plan.plan import Plan, changes
from finegauge.plan.relaxations import Relaxation
from finegauge.plan.verdict import verdict
from finegauge.report.json_form import document, quote_json
from finegauge.report.whatif import standing_json

if TYPE_CHECKING:
    from finegauge.plan.search import Candidate
    from finegauge.workload.run import Run
    from finegauge.workload.writers import Written


def plan_json(plan: Plan, written: "Written | None" = None) -> str:
    """Return the whole JSON text; its one result is the plan to take, none where nothing keeps the limits.

    Args:
        plan: The answer.
        written: The files that it was exported to, if it was.
    """
    wanted = plan.wanted
    more = {
        "wanted": {**wanted._asdict(), "gpus": list(wanted.gpus), "providers": list(wanted.providers)},
        "assumed_samples": plan.assumed_samples,
        "notes": list(plan.notes),
        "base": None if plan.base is None else {"gpu": plan.run.gpu, **standing_json(plan.base)},
        "front": [candidate_json(plan.run, one) for one in plan.front],
        "num_on_front": plan.num_on_front,
        "alternatives": {
            aspect: [_alternative_json(plan.run, one) for one in found]
            for aspect, found in plan.alternatives.items()
        },
        "relaxations": [_relaxation_json(plan.run, one) for one in plan.relaxations],
        "nearest": None if plan.miss is None else _miss_json(plan),
        "num_candidates": plan.num_candidates,
        "num_evaluated": plan.num_evaluated,
        "search_s": plan.search_s,
        "exported": None if written is None else _exported_json(written),
    }
    results = [] if plan.winner is None else [_winner_json(plan, plan.winner)]
    return document("plan", plan.run, results, more)


def candidate_json(run: "Run", candidate: "Candidate") -> dict[str, Any]:
    """Return one plan: its machines, what it changes of `run`, and what it takes."""
    planned = candidate.run
    return {
        "gpu": planned.gpu,
        "num_gpus": planned.num_gpus,
        "num_nodes": planned.num_nodes,
        "provider": planned.provider,
        "changes": {name: _plain(value) for name, value in changes(run, planned).items()},
        "verdict": verdict(candidate.out_of_memory_fraction),
        "device_memory_bytes": candidate.memory_bytes,
        "capacity_bytes": candidate.capacity_bytes,
        "out_of_memory_fraction": candidate.out_of_memory_fraction,
        "step_time_s": candidate.step_time_s,
        "wall_s": candidate.wall_s,
        "on_demand_usd": candidate.usd,
        "spot_usd": candidate.spot_usd,
        "wall_energy_j": candidate.energy_j,
        "emissions_kg": candidate.emissions_kg,
    }


def _winner_json(plan: Plan, winner: "Candidate") -> dict[str, Any]:
    """Return the plan to take, its whole run and its bill."""
    return {
        **candidate_json(plan.run, winner),
        "run": {name: _plain(value) for name, value in winner.run.fields().items()},
        "profile": None if plan.profile is None else plan.profile.to_json(),
        "quote": None if plan.quote is None else quote_json(plan.quote),
    }


def _exported_json(written: "Written") -> dict[str, Any]:
    """Return which files were written, how to start them, and what the framework cannot say."""
    return {
        "paths": list(written.paths),
        "command": written.command,
        "warnings": list(written.warnings),
    }


def _alternative_json(run: "Run", one: Alternative) -> dict[str, Any]:
    """Return the best plan with one choice made otherwise."""
    return {
        "value": one.value,
        "reason": one.reason,
        "over_fraction": one.over_fraction,
        "plan": None if one.candidate is None else candidate_json(run, one.candidate),
    }


def _relaxation_json(run: "Run", one: Relaxation) -> dict[str, Any]:
    """Return what a little more of one limit buys."""
    return {
        "limit": one.limit,
        "more_bytes": one.more_bytes,
        "more_fraction": one.more_fraction,
        "saves": one.saves,
        "saved_fraction": one.saved_fraction,
        "plan": candidate_json(run, one.candidate),
    }


def _miss_json(plan: Plan) -> dict[str, Any]:
    """Return the plan that comes closest where none keeps the limits."""
    assert plan.miss is not None
    candidate = plan.miss.candidate
    return {
        "limit": plan.miss.limit,
        "over_fraction": plan.miss.over_fraction,
        "plan": None if candidate is None else candidate_json(plan.run, candidate),
    }


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
