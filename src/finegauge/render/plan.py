"""A plan as text, JSON and figure."""

from typing import TYPE_CHECKING, Any

from finegauge.answers.estimate import bill
from finegauge.answers.study import Way
from finegauge.planning.plan import Plan, changes
from finegauge.planning.selection import (
    BEATEN,
    BUDGET,
    EQUAL_FRACTION,
    MEMORY,
    RISK,
    TIME,
    UNKNOWN,
    Alternative,
    Relaxation,
    Wanted,
)
from finegauge.prediction.phases import TRAINED
from finegauge.prediction.uncertainty import WILL_NOT_FIT, verdict
from finegauge.render import number_format as fmt
from finegauge.render.json import encoded, run_document
from finegauge.render.plots.charts import check_matplotlib
from finegauge.render.plots.drawing import png
from finegauge.render.plots.many_runs import front_plot
from finegauge.render.report import Plot
from finegauge.render.run_parts import TONES, WORDS, subject
from finegauge.render.terminal import TONE_COLOURS, columns, item, paint, wrapped
from finegauge.render.whatif import assumed_samples_text, standing_json
from finegauge.units import GIB, count, gib

if TYPE_CHECKING:
    from finegauge.formats.writing import Written
    from finegauge.planning.whatif import Standing
    from finegauge.run.run import Run

SUPERLATIVES = {"cost": "Cheapest", "time": "Fastest", "energy": "Greenest"}
ASPECTS = {
    "method": "method",
    "gpu": "GPU",
    "num_gpus": "count",
    "sharding": "sharding",
    "activation_checkpointing": "checkpointing",
    "provider": "provider",
}
FRONT_HEADINGS = (
    "\nplan", "memory\nGiB", "\ntime", "on\ndemand", "\nspot", "kWh\nwall",
)  # fmt: skip
FOLLOWS_FROM = {
    "padding": "packing",
    "weights_dtype": "method",
    "loss": "kernels",
}  # not told beside its cause
MOST_ALTERNATIVES = 5  # of one aspect
FAR_FRACTION = 19.0  # beyond twenty times the winner nobody asks why not
PLAN_WIDTH = 56


def plan_lines(plan: Plan) -> list[str]:
    """Return the answer, the plan to take first."""
    lines = [*wrapped(verdict_line(plan), indent="  "), *wrapped(paint(subject(plan.run), "dim"), indent="")]
    if plan.winner is not None:
        lines += ["", *_change_lines(plan), *_take_lines(plan), *_base_lines(plan)]
    if plan.front:
        lines += ["", *_front_lines(plan)]
    if plan.relaxations:
        lines += ["", paint("A little more of a limit", "bold")]
        for one in plan.relaxations:
            lines += item(relaxation_text(plan, one))
    if plan.alternatives:
        lines += ["", paint("Why not", "bold"), *_alternative_lines(plan)]
    return [*lines, "", *_note_lines(plan)]


def plan_name(run: "Run", beside: "Run | None" = None) -> str:
    """Return "qlora · 2 x L40S · zero3 · 4 x 2 · full checkpointing", less what `beside` shares."""
    parts = [run.method, machine_text(run)]
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"):
        if getattr(run, name) > 1:
            parts.append(f"{name.partition('_')[0]} {getattr(run, name)}")
    if run.sharding != "none":
        parts.append(run.sharding)
    parts.append(f"{run.micro_batch_size} x {run.gradient_accumulation_steps}")
    for name in ("activation_checkpointing", "optimizer", "cpu_offload", "packing", "attention", "loss"):
        if beside is None or getattr(run, name) != getattr(beside, name):
            said = _setting(name, getattr(run, name))
            if said:
                parts.append(said)
    return " · ".join(parts)


def _setting(name: str, value: object) -> str:
    """Return how a setting is said in a row."""
    if name == "activation_checkpointing":
        return "no checkpoints" if value == "none" else f"{value} checkpoints"
    if name == "cpu_offload":
        return "" if value == "none" else f"offload {value}"
    if name == "packing":
        return "packed" if value else "not packed"
    return str(value)


def machine_text(run: "Run") -> str:
    """Return "2 x L40S" or "4 x 8 H100-SXM5-80GB"."""
    per_node = run.num_gpus // run.num_nodes
    nodes = f"{run.num_nodes} x " if run.num_nodes > 1 else ""
    return f"{nodes}{per_node}{' x' if not nodes else ''} {run.gpu}"


def _limits(wanted: Wanted) -> str:
    """Return " within 24 h and $200" or ""."""
    parts = []
    if wanted.within_s is not None:
        parts.append(f"within {fmt.hours(wanted.within_s)}")
    if wanted.budget_usd is not None:
        parts.append(f"{'and' if parts else 'within'} {fmt.dollars(wanted.budget_usd)}")
    return f" {' '.join(parts)}" if parts else ""


def verdict_line(plan: Plan) -> str:
    """Return the answer in one line."""
    wanted, winner = plan.wanted, plan.winner
    if winner is None:
        return f"{paint('No plan', 'bold', 'red')}{_limits(wanted)}: {_miss(plan)}"
    word = paint(f"{SUPERLATIVES[wanted.minimise]}{_limits(wanted)}", "bold", "green")
    market = "spot" if wanted.spot else "on demand"
    usd = winner.spot_usd if wanted.spot else winner.usd
    return (
        f"{word}: {winner.run.method} on {machine_text(winner.run)} ({winner.run.provider}), "
        f"{fmt.hours(winner.wall_s)}, {fmt.dollars(usd)} {market}, "
        f"P(OOM) {_chance(winner)}."
    )


def _miss(plan: Plan) -> str:
    """Return which limit is nearest to being met, and by how much it is missed."""
    miss = plan.miss
    if miss is None or miss.candidate is None:
        if not plan.num_candidates:
            return "nobody offers such machines; 'finegauge offers' lists who has what."
        return "every plan needs far more memory than its GPUs have; name larger --gpus or raise --max-gpus."
    candidate = miss.candidate
    where = plan_name(candidate.run, plan.run)
    usd = candidate.spot_usd if plan.wanted.spot else candidate.usd
    short, risk = _short_bytes(candidate), fmt.percent(plan.wanted.risk_fraction)
    texts = {
        MEMORY: f"memory is short by {gib(short)} at least"
        if short
        else f"P(OOM) is {_chance(candidate)} at least, where {risk} is allowed",
        TIME: f"the closest takes {fmt.hours(candidate.wall_s)}",
        BUDGET: f"the closest costs {fmt.dollars(usd)}",
        UNKNOWN: "no price or power is known of what fits",
    }
    beyond = miss.over_fraction or 0.0
    over = f", {fmt.percent(beyond)} over" if beyond > 0 else ""
    if beyond >= 1:
        limit = "what there is" if miss.limit == MEMORY else "the limit"
        over = f", {fmt.digits(1 + beyond, 2)} x {limit}"
    return f"{texts[miss.limit]}{over} ({where} of {candidate.run.provider})."


def _short_bytes(candidate: "Standing") -> float:
    return max(0.0, candidate.memory_bytes - candidate.capacity_bytes)


def _change_lines(plan: Plan) -> list[str]:
    """Return what to change in the run."""
    before = plan.run.fields()
    texts = [
        f"{name} {fmt.plain(before[name])} → {paint(fmt.plain(value), 'cyan')}"
        for name, value in plan.changes.items()
        if not (name in FOLLOWS_FROM and FOLLOWS_FROM[name] in plan.changes)
    ]
    lines = wrapped(f"{paint('Change', 'bold')}  {', '.join(texts) or 'nothing in the recipe'}.", indent="  ")
    asks = "; ".join(plan.asks)
    return [*lines, *(wrapped(f"{paint('Asks', 'bold')}    {asks}.", indent="  ") if asks else ())]


def _take_lines(plan: Plan) -> list[str]:
    """Return what to rent, and what the plan takes on it."""
    assert plan.winner is not None
    assert plan.quote is not None
    assert plan.profile is not None
    winner, profile = plan.winner, plan.profile
    run = winner.run
    rents = [f"{paint('Rent', 'bold')}    {machine_text(run)}: {rent_text(plan)}"]
    needed = fmt.gib_interval(winner.memory_bytes, profile.source.memory_interval)
    step = fmt.seconds_interval(winner.step_time_s, profile.source.time_interval)
    takes = (
        f"{paint('Takes', 'bold')}   {needed} of {gib(winner.capacity_bytes)}; {step} s a step, "
        f"{fmt.hours(winner.wall_s)} with start and saves; {_energy_text(winner)}."
    )
    return [line for text in (*rents, takes) for line in wrapped(text, indent="  ")]


def _energy_text(winner: "Standing") -> str:
    """Return "0.34 kWh at the wall, 0.26 kg CO2e"."""
    if winner.energy_j is None:
        return "energy not known"
    carbon = fmt.digits(winner.emissions_kg, 2)
    return f"{fmt.kwh(winner.energy_j)} kWh at the wall, {carbon} kg CO2e"


def rent_text(plan: Plan) -> str:
    """Return the offers of the winner: on demand and spot."""
    assert plan.quote is not None
    texts = []
    for spot, priced in ((False, plan.quote.cheapest_on_demand), (True, plan.quote.cheapest_spot)):
        if priced is None:
            texts.append("no spot price known" if spot else "no price on demand known")
            continue
        offer, usd = priced.offer, priced.spot_usd if spot else priced.on_demand_usd
        rate = fmt.dollars(offer.usd_per_h(spot=spot))
        times = f"{priced.instances} x " if priced.instances > 1 else ""
        name = f" {offer.instance_type}" if offer.instance_type else ""
        idle = f", {priced.idle_gpus} GPUs idle" if priced.idle_gpus else ""
        where = "" if offer.region in ("", "any") else f" {offer.region}"
        texts.append(
            f"{fmt.dollars(usd)} {'spot' if spot else 'on demand'} ({times}{rate}/h {offer.provider}"
            f"{name}{where}, {offer.date}{idle})"
        )
    return "; ".join(texts) + "."


def _base_lines(plan: Plan) -> list[str]:
    """Return how the run stands as it is."""
    base = plan.base
    if base is None:
        return []
    word = verdict(base.out_of_memory_fraction)
    text = f"{WORDS[word].lower()} with {gib(base.memory_bytes)} of {gib(base.capacity_bytes)}"
    if word != WILL_NOT_FIT:
        text += f", {fmt.hours(base.wall_s)}, {fmt.dollars(base.amount('cost', spot=plan.wanted.spot))}"
    now = f"{paint('Now', 'bold')}     {base.run.method} on {machine_text(base.run)}"
    return wrapped(f"{now} {paint(text, TONE_COLOURS[TONES[word]])}.", indent="  ")


def _front_lines(plan: Plan) -> list[str]:
    """Return the Pareto front as a table; the plan to take is marked."""
    of = f", {len(plan.front)} of {plan.num_on_front:,}" if len(plan.front) < plan.num_on_front else ""
    beyond = "" if plan.winner is not None else "; beyond the limits"
    title = f"{paint('Cost, time and energy', 'bold')}  nothing beats these{of}{beyond}"
    return [title, *columns(FRONT_HEADINGS, [_front_row(plan, one) for one in plan.front])]


def _front_row(plan: Plan, one: "Standing") -> list[str]:
    """Return one plan's row."""
    mark = paint("▸ ", "green") if plan.winner is not None and one.run == plan.winner.run else "  "
    name = plan_name(one.run, plan.winner.run if plan.winner else plan.run)
    return [
        mark + (name if len(name) <= PLAN_WIDTH else name[: PLAN_WIDTH - 1] + "…"),
        f"{one.memory_bytes / GIB:.1f}/{one.capacity_bytes / GIB:.0f}",
        fmt.hours(one.wall_s),
        fmt.dollars(one.usd),
        fmt.dollars(one.spot_usd),
        fmt.kwh(one.energy_j),
    ]


def relaxation_text(plan: Plan, one: Relaxation) -> str:
    """Return "1.4 GiB more would cut 22 % of the cost: micro_batch_size=8"."""
    assert plan.winner is not None
    new, winner = one.candidate, plan.winner
    figure = {"cost": "cost", "time": "time", "energy": "energy"}[one.saves]
    what = f"would cut the {figure} by {fmt.percent(one.saved_fraction)}"
    usd = new.spot_usd if plan.wanted.spot else new.usd
    to = {"cost": fmt.dollars(usd), "time": fmt.hours(new.wall_s)}.get(
        one.saves, f"{fmt.kwh(new.energy_j)} kWh"
    )
    if one.limit == MEMORY:
        asked = f"{gib(one.more_bytes)} more memory on each GPU"
    elif one.limit == TIME:
        asked = f"{fmt.percent(one.more_fraction)} more time than allowed"
    elif one.limit == RISK:
        asked = f"A P(OOM) of {_chance(new)}"
    else:
        asked = f"{fmt.percent(one.more_fraction)} more dollars ({fmt.dollars(usd)})"
    how = difference(winner.run, new.run)
    return f"{paint(asked, 'cyan')} {what}, to {to}: {how}."


def difference(run: "Run", other: "Run") -> str:
    """Return what `other` has otherwise than `run`, as few words as say it."""
    parts = []
    if machine_text(run) != machine_text(other) or run.provider != other.provider:
        parts.append(f"{machine_text(other)} ({other.provider})")
    parts += [f"{name}={fmt.plain(value)}" for name, value in changes(run, other).items()]
    return ", ".join(parts)


def _alternative_lines(plan: Plan) -> list[str]:
    """Return for each aspect the closest alternatives, with what stands against each."""
    lines = []
    for aspect, found in plan.alternatives.items():
        near = [one for one in found if one.reason != BEATEN or (one.over_fraction or 0.0) < FAR_FRACTION]
        told = [alternative_text(plan, one) for one in (near or found[:1])[:MOST_ALTERNATIVES]]
        rest = len(found) - len(told)
        text = f"{'; '.join(told)}{f'; {rest} more' if rest else ''}."
        lines += item(f"{paint(ASPECTS[aspect], 'cyan')}  {text}")
    return lines


def alternative_text(plan: Plan, one: Alternative) -> str:
    """Return "L40S +12 % ($31.40, 8.2 h)" or "L4 short of 3.1 GiB"."""
    called = f"{one.value} GPU{'s' * (one.value != 1)}" if one.aspect == "num_gpus" else fmt.plain(one.value)
    name, candidate = paint(called, "bold"), one.candidate
    if candidate is None:
        return f"{name} nothing workable"
    usd = candidate.spot_usd if plan.wanted.spot else candidate.usd
    over = fmt.percent(one.over_fraction or 0.0)
    machine = "" if one.aspect == "gpu" else f" on {machine_text(candidate.run)}"
    bill = f"{fmt.dollars(usd)}, {fmt.hours(candidate.wall_s)}{machine}"
    if one.reason == MEMORY:
        short = _short_bytes(candidate)
        text = f"short of {gib(short)}" if short else f"P(OOM) {_chance(candidate)}"
        return f"{name} {text}{machine}"
    texts = {
        BEATEN: _beaten_by(one.over_fraction or 0.0),
        TIME: f"{over} too slow",
        BUDGET: f"{over} over budget",
        UNKNOWN: "price or power not known",
    }
    return f"{name} {texts[one.reason]} ({bill})"


def _chance(candidate: "Standing") -> str:
    return fmt.probability(candidate.out_of_memory_fraction)


def _beaten_by(fraction: float) -> str:
    """Return "+12 %", "2.9 x" from twice on, "as good", or "-12 %" of one that trains something else."""
    if abs(fraction) <= EQUAL_FRACTION:
        return "as good"
    if fraction >= 1:
        return f"{fmt.digits(1 + fraction, 2)} x"
    return f"{100 * fraction:+.0f} %"


def _note_lines(plan: Plan) -> list[str]:
    """Return the managed alternative, how old prices are, what was assumed, what was searched."""
    lines: list[str] = []
    if plan.quote is not None:
        lines += _managed_lines(plan)
        for warning in plan.quote.warnings:
            lines += [paint(line, "yellow") for line in wrapped(warning, indent="  ")]
    if plan.assumed_samples:
        text = assumed_samples_text(plan.assumed_samples)
        lines += [paint(line, "yellow") for line in wrapped(text, indent="  ")]
    for note in plan.notes:
        lines += [paint(line, "yellow") for line in wrapped(note, indent="  ")]
    kept = "the method, " if plan.wanted.keep_method else ""
    one_by_one = "" if plan.run.phase in TRAINED else " one by one"
    searched = (
        f"Searched {plan.num_candidates:,} plans{one_by_one} in {fmt.duration(plan.search_s)}"
        f"{f', {plan.num_evaluated:,} of them in full' if plan.num_evaluated < plan.num_candidates else ''}; "
        f"kept {kept}the samples of a step, seq_len, adapters, epochs; P(OOM) below "
        f"{fmt.percent(plan.wanted.risk_fraction)}."
    )
    return [*lines, *[paint(line, "dim") for line in wrapped(searched, indent="  ")]]


def _managed_lines(plan: Plan) -> list[str]:
    """Return what managed services would bill for the same tokens."""
    assert plan.quote is not None
    managed = plan.quote.managed
    if not managed:
        return []
    named = [f"{m.provider} ({m.model}) {fmt.dollars(m.low_usd)}" for m in managed[:3]]
    billed = count(managed[0].billed_tokens)
    text = f"{paint('Managed', 'bold')}  {'; '.join(named)} for {billed} training tokens, padding not billed."
    return wrapped(text, indent="  ")


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
    return run_document("plan", plan.run, results, more)


def candidate_json(run: "Run", candidate: "Standing") -> dict[str, Any]:
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


def _winner_json(plan: Plan, winner: "Standing") -> dict[str, Any]:
    """Return the plan to take, its whole run and its bill."""
    return {
        **candidate_json(plan.run, winner),
        "run": {name: _plain(value) for name, value in winner.run.fields().items()},
        "profile": None if plan.profile is None else plan.profile.to_json(),
        "quote": None if plan.quote is None else encoded(bill(plan.quote)),
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


def save_front(plan: Plan, path: str) -> str:
    """Draw the front of `plan` to the PNG at `path`, and return that path.

    Raises: UnsupportedError where matplotlib is missing.
    """
    check_matplotlib()
    drawing = plan_front(plan)
    if drawing is not None:
        with open(path, "wb") as file:
            file.write(png(drawing))
    return path


def plan_front(plan: Plan) -> Plot | None:
    """Return the front of `plan` as a figure; None where no price is known of it."""
    spot, taken = plan.wanted.spot, plan.winner.run if plan.winner else None
    ways = [
        Way(
            plan_name(one.run, taken or plan.run), str(one.run.gpu), one.wall_s, usd, one.energy_j,
            taken=one.run == taken,
        )
        for one in plan.front
        if (usd := one.spot_usd if spot else one.usd) is not None
    ]  # fmt: skip
    return front_plot(ways, about="Plans of the Pareto front of cost, time and energy", spot=spot)
