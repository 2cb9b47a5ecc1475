"""What `finegauge plan` prints: the plan to take, what it changes, what surrounds it, and why not others."""

from typing import TYPE_CHECKING

from finegauge.plan.alternatives import BEATEN, BUDGET, MEMORY, TIME, UNKNOWN, Alternative
from finegauge.plan.plan import Plan, Wanted
from finegauge.plan.plan_choice import EQUAL_FRACTION
from finegauge.plan.relaxations import MEMORY as MORE_MEMORY
from finegauge.plan.relaxations import RISK, Relaxation
from finegauge.plan.relaxations import TIME as MORE_TIME
from finegauge.plan.verdict import WILL_NOT_FIT, verdict
from finegauge.predict.phases import TRAINED
from finegauge.report import figures
from finegauge.report.estimate import COLOURS, WORDS, subject_lines
from finegauge.report.terminal import columns, item, paint, wrapped
from finegauge.report.whatif import assumed_samples_text
from finegauge.units import GIB, count, gib

if TYPE_CHECKING:
    from finegauge.plan.search import Candidate
    from finegauge.workload.run import Run

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
FOLLOWS = {"padding": "packing", "weights_dtype": "method", "loss": "kernels"}  # not told beside its cause
MOST_ALTERNATIVES = 5  # of one aspect
FAR_FRACTION = 19.0  # beyond twenty times the winner nobody asks why not
PLAN_WIDTH = 56


def plan_lines(plan: Plan) -> list[str]:
    """Return the answer, the plan to take first."""
    lines = [*wrapped(verdict_line(plan), indent="  "), *subject_lines(plan.run)]
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
        parts.append(f"within {figures.hours(wanted.within_s)}")
    if wanted.budget_usd is not None:
        parts.append(f"{'and' if parts else 'within'} {figures.dollars(wanted.budget_usd)}")
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
        f"{figures.hours(winner.wall_s)}, {figures.dollars(usd)} {market}, "
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
    short, risk = _short_bytes(candidate), figures.percent(plan.wanted.risk_fraction)
    texts = {
        MEMORY: f"memory is short by {gib(short)} at least"
        if short
        else f"P(OOM) is {_chance(candidate)} at least, where {risk} is allowed",
        TIME: f"the closest takes {figures.hours(candidate.wall_s)}",
        BUDGET: f"the closest costs {figures.dollars(usd)}",
        UNKNOWN: "no price or power is known of what fits",
    }
    beyond = miss.over_fraction or 0.0
    over = f", {figures.percent(beyond)} over" if beyond > 0 else ""
    if beyond >= 1:
        limit = "what there is" if miss.limit == MEMORY else "the limit"
        over = f", {figures.digits(1 + beyond, 2)} x {limit}"
    return f"{texts[miss.limit]}{over} ({where} of {candidate.run.provider})."


def _short_bytes(candidate: "Candidate") -> float:
    return max(0.0, candidate.memory_bytes - candidate.capacity_bytes)


def _change_lines(plan: Plan) -> list[str]:
    """Return what to change in the run."""
    before = plan.run.fields()
    texts = [
        f"{name} {figures.plain(before[name])} → {paint(figures.plain(value), 'cyan')}"
        for name, value in plan.changes.items()
        if not (name in FOLLOWS and FOLLOWS[name] in plan.changes)
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
    needed = figures.gib_interval(winner.memory_bytes, profile.source.memory_interval)
    step = figures.seconds_interval(winner.step_time_s, profile.source.time_interval)
    takes = (
        f"{paint('Takes', 'bold')}   {needed} of {gib(winner.capacity_bytes)}; {step} s a step, "
        f"{figures.hours(winner.wall_s)} with start and saves; {_energy_text(winner)}."
    )
    return [line for text in (*rents, takes) for line in wrapped(text, indent="  ")]


def _energy_text(winner: "Candidate") -> str:
    """Return "0.34 kWh at the wall, 0.26 kg CO2e"."""
    if winner.energy_j is None:
        return "energy not known"
    carbon = figures.digits(winner.emissions_kg, 2)
    return f"{figures.kwh(winner.energy_j)} kWh at the wall, {carbon} kg CO2e"


def rent_text(plan: Plan) -> str:
    """Return the offers of the winner: on demand and spot."""
    assert plan.quote is not None
    texts = []
    for spot, priced in ((False, plan.quote.cheapest_on_demand), (True, plan.quote.cheapest_spot)):
        if priced is None:
            texts.append("no spot price known" if spot else "no price on demand known")
            continue
        offer, usd = priced.offer, priced.spot_usd if spot else priced.on_demand_usd
        rate = figures.dollars(offer.usd_per_h(spot=spot))
        times = f"{priced.instances} x " if priced.instances > 1 else ""
        name = f" {offer.instance_type}" if offer.instance_type else ""
        idle = f", {priced.idle_gpus} GPUs idle" if priced.idle_gpus else ""
        where = "" if offer.region in ("", "any") else f" {offer.region}"
        texts.append(
            f"{figures.dollars(usd)} {'spot' if spot else 'on demand'} ({times}{rate}/h {offer.provider}"
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
        text += (
            f", {figures.hours(base.wall_s)}, {figures.dollars(base.amount('cost', spot=plan.wanted.spot))}"
        )
    now = f"{paint('Now', 'bold')}     {base.run.method} on {machine_text(base.run)}"
    return wrapped(f"{now} {paint(text, COLOURS[word])}.", indent="  ")


def _front_lines(plan: Plan) -> list[str]:
    """Return the Pareto front as a table; the plan to take is marked."""
    of = f", {len(plan.front)} of {plan.num_on_front:,}" if len(plan.front) < plan.num_on_front else ""
    beyond = "" if plan.winner is not None else "; beyond the limits"
    title = f"{paint('Cost, time and energy', 'bold')}  nothing beats these{of}{beyond}"
    return [title, *columns(FRONT_HEADINGS, [_front_row(plan, one) for one in plan.front])]


def _front_row(plan: Plan, one: "Candidate") -> list[str]:
    """Return one plan's row."""
    mark = paint("▸ ", "green") if plan.winner is not None and one.run == plan.winner.run else "  "
    name = plan_name(one.run, plan.winner.run if plan.winner else plan.run)
    return [
        mark + (name if len(name) <= PLAN_WIDTH else name[: PLAN_WIDTH - 1] + "…"),
        f"{one.memory_bytes / GIB:.1f}/{one.capacity_bytes / GIB:.0f}",
        figures.hours(one.wall_s),
        figures.dollars(one.usd),
        figures.dollars(one.spot_usd),
        figures.kwh(one.energy_j),
    ]


def relaxation_text(plan: Plan, one: Relaxation) -> str:
    """Return "1.4 GiB more would cut 22 % of the cost: micro_batch_size=8"."""
    assert plan.winner is not None
    new, winner = one.candidate, plan.winner
    figure = {"cost": "cost", "time": "time", "energy": "energy"}[one.saves]
    what = f"would cut the {figure} by {figures.percent(one.saved_fraction)}"
    usd = new.spot_usd if plan.wanted.spot else new.usd
    to = {"cost": figures.dollars(usd), "time": figures.hours(new.wall_s)}.get(
        one.saves, f"{figures.kwh(new.energy_j)} kWh"
    )
    if one.limit == MORE_MEMORY:
        asked = f"{gib(one.more_bytes)} more memory on each GPU"
    elif one.limit == MORE_TIME:
        asked = f"{figures.percent(one.more_fraction)} more time than allowed"
    elif one.limit == RISK:
        asked = f"A P(OOM) of {_chance(new)}"
    else:
        asked = f"{figures.percent(one.more_fraction)} more dollars ({figures.dollars(usd)})"
    how = difference(winner.run, new.run)
    return f"{paint(asked, 'cyan')} {what}, to {to}: {how}."


def difference(run: "Run", other: "Run") -> str:
    """Return what `other` has otherwise than `run`, as few words as say it."""
    from finegauge.plan.plan import changes

    parts = []
    if machine_text(run) != machine_text(other) or run.provider != other.provider:
        parts.append(f"{machine_text(other)} ({other.provider})")
    parts += [f"{name}={figures.plain(value)}" for name, value in changes(run, other).items()]
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
    called = (
        f"{one.value} GPU{'s' * (one.value != 1)}" if one.aspect == "num_gpus" else figures.plain(one.value)
    )
    name, candidate = paint(called, "bold"), one.candidate
    if candidate is None:
        return f"{name} nothing workable"
    usd = candidate.spot_usd if plan.wanted.spot else candidate.usd
    over = figures.percent(one.over_fraction or 0.0)
    machine = "" if one.aspect == "gpu" else f" on {machine_text(candidate.run)}"
    bill = f"{figures.dollars(usd)}, {figures.hours(candidate.wall_s)}{machine}"
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


def _chance(candidate: "Candidate") -> str:
    return figures.probability(candidate.out_of_memory_fraction)


def _beaten_by(fraction: float) -> str:
    """Return "+12 %", "2.9 x" from twice on, "as good", or "-12 %" of one that trains something else."""
    if abs(fraction) <= EQUAL_FRACTION:
        return "as good"
    if fraction >= 1:
        return f"{figures.digits(1 + fraction, 2)} x"
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
        f"Searched {plan.num_candidates:,} plans{one_by_one} in {figures.duration(plan.search_s)}"
        f"{f', {plan.num_evaluated:,} of them in full' if plan.num_evaluated < plan.num_candidates else ''}; "
        f"kept {kept}the samples of a step, seq_len, adapters, epochs; P(OOM) below "
        f"{figures.percent(plan.wanted.risk_fraction)}."
    )
    return [*lines, *[paint(line, "dim") for line in wrapped(searched, indent="  ")]]


def _managed_lines(plan: Plan) -> list[str]:
    """Return what managed services would bill for the same tokens."""
    assert plan.quote is not None
    managed = plan.quote.managed
    if not managed:
        return []
    named = [f"{m.provider} ({m.model}) {figures.dollars(m.low_usd)}" for m in managed[:3]]
    billed = count(managed[0].billed_tokens)
    text = f"{paint('Managed', 'bold')}  {'; '.join(named)} for {billed} training tokens, padding not billed."
    return wrapped(text, indent="  ")
