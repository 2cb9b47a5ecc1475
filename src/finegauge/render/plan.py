"""How a plan looks: the one to take first, what it changes, what surrounds it, and why not another."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finegauge.answers.plan import AlternativePlan, Candidate, PlanAnswer, RaisedLimit, Winner
from finegauge.planning.selection import BEATEN, BUDGET, EQUAL_FRACTION, MEMORY, RISK, TIME, UNKNOWN
from finegauge.prediction.time import TRAINED
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.render import number_format as fmt
from finegauge.render.report import (
    FILE,
    TERMINAL,
    Block,
    Note,
    Plot,
    Report,
    Section,
    Table,
    Text,
    Tile,
    Toned,
    notes,
    section,
)
from finegauge.render.run_parts import (
    TONES,
    WORDS,
    approximately,
    input_table,
    memory_bar,
    seller,
    subject,
    time_bar,
    title_of,
    usd_per_million_tokens,
)
from finegauge.run.run import Run
from finegauge.units import GIB, count, gib

SUPERLATIVES = {"cost": "Cheapest", "time": "Fastest", "energy": "Greenest"}
ASPECTS = {
    "method": "method", "gpu": "GPU", "num_gpus": "count", "sharding": "sharding",
    "activation_checkpointing": "checkpointing", "provider": "provider",
}  # fmt: skip
FRONT_HEADINGS = (
    *("\nGPUs", "\nbatch", "\nrecipe", "\nprovider", "memory\nGiB"),
    *("\ntime", "on\ndemand", "\nspot", "kWh\nwall"),
)
FIRST_TO_GO = (8, 7, 3, 4, 2)  # where it is narrow: GPUs, batch, time and cost decide, and stay
FOLLOWS_FROM = {
    "padding": "packing",
    "critic_sharding": "sharding",
    "weights_dtype": "method",
    "loss": "kernels",
}  # not shown beside it
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
NAMED = ("activation_checkpointing", "optimizer", "cpu_offload", "packing", "attention", "loss")
MOST_ALTERNATIVES = 5  # of one aspect
FAR_FRACTION = 19.0  # beyond twenty times the winner it is not shown


def plan_report(answer: PlanAnswer, medium: str = TERMINAL) -> Report:
    """Return what is shown of a plan; a FILE has figures, of a winner its step too."""
    winner = answer.winner
    front, raised = _front_table(answer, medium), [_raised_text(answer, one) for one in answer.relaxations]
    if medium == FILE:
        sections: tuple[Section, ...] = (
            section("cost", "Cost against time", *notes(_closing_texts(answer)), plan_front(answer), front),
            section("changes", "What the plan changes", _change_table(answer)),
            section("relaxations", "If you raise a limit", *map(Note, raised)),
            section("alternatives", "Why not another", *_alternative_tables(answer)),
            section("plan", "The plan's step", *_step_blocks(winner)),
            section("assumptions", "The run as it is, and who stated it", *notes(answer.run.warnings),
                    _input_table(answer.run)),
        )  # fmt: skip
    else:
        why = [Note(text, label=ASPECTS[aspect]) for aspect, text in _alternative_texts(answer)]
        listed: list[Block] = [
            Table("", ("",), tuple((text,) for text in raised), ends_in_text=True, indent=2)
        ]
        if medium != TERMINAL:
            listed = [Note(text) for text in raised]
        against = Table("", ("", ""), tuple((Toned(one.label, "strong"), one.text) for one in why),
                        ends_in_text=True, indent=2)  # fmt: skip
        sections = (
            section("take", "", _take_table(answer) if medium == TERMINAL else None),
            section("front", "Cost, time and energy", front, said=_front_text(answer)),
            section("relaxations", "If you raise a limit", *listed),
            section("alternatives", "Why not", *([against] if medium == TERMINAL else why)),
            section("basis", "", *_closing_notes(answer)),
        )  # fmt: skip
    return Report.of(
        f"Plan for {title_of(answer.run).partition(' on ')[0]}",
        _headline(answer),
        *sections,
        tone="bad" if winner is None else TONES[winner.candidate.outcome.verdict],
        subject=(subject(answer.run),),
        tiles=() if winner is None or medium == TERMINAL else _tiles(winner.candidate),
    )


def planned_fields(run: Run, candidate: Candidate) -> dict[str, Any]:
    """Return the fields of the run that a candidate is."""
    machine = {name: getattr(candidate, name) for name in ("gpu", "num_gpus", "num_nodes", "provider")}
    changed = {name: tuple(v) if isinstance(v, list) else v for name, v in candidate.changes.items()}
    return {**run.fields(), **changed, **machine}


def plan_name(fields: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> str:
    """Return "2 x L40S · 4 x 2 · qlora · zero3 · full checkpoints", less what `beside` shares."""
    return " · ".join(_plan_parts(fields, beside))


def _plan_parts(fields: Mapping[str, Any], beside: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return the machine, micro-batch by accumulation, and the rest of a plan."""
    parts = [fields["method"]]
    parts += [f"{name.partition('_')[0]} {fields[name]}" for name in DEGREES if fields[name] > 1]
    if fields["sharding"] != "none":
        parts.append(fields["sharding"])
    for name in NAMED:
        value = fields[name]
        if beside is not None and value == beside[name]:
            continue
        if name == "activation_checkpointing":
            parts.append("no checkpoints" if value == "none" else f"{value} checkpoints")
        elif name == "packing":
            parts.append("packed" if value else "not packed")
        elif name != "cpu_offload":
            parts.append(str(value))
        elif value != "none":
            parts.append(f"offload {value}")
    batch = f"{fields['micro_batch_size']} x {fields['gradient_accumulation_steps']}"
    return _machine(fields["gpu"], fields["num_gpus"], fields["num_nodes"]), batch, " · ".join(parts)


def _machine(gpu: str | None, num_gpus: int, num_nodes: int) -> str:
    return f"{num_nodes} x {num_gpus // num_nodes} {gpu}" if num_nodes > 1 else f"{num_gpus} x {gpu}"


def machine_text(one: Candidate | Run) -> str:
    """Return "2 x L40S" or "4 x 8 H100-SXM5-80GB"."""
    return _machine(one.gpu, one.num_gpus, one.num_nodes)


def _headline(answer: PlanAnswer) -> Text:
    wanted, winner = answer.wanted, answer.winner
    limits = []
    if wanted.within_s is not None:
        limits.append(fmt.hours(wanted.within_s))
    if wanted.budget_usd is not None:
        limits.append(fmt.dollars(wanted.budget_usd))
    within = f" within {' and '.join(limits)}" if limits else ""
    if winner is None:
        return (Toned("No plan", "strong", "bad"), f"{within}: {_miss_text(answer)}")
    takes = winner.candidate.outcome
    return (
        Toned(f"{SUPERLATIVES[wanted.minimise]}{within}", "strong", "good"),
        f": {winner.run['method']} on {machine_text(winner.candidate)} ({winner.candidate.provider}), "
        f"{fmt.hours(takes.wall_s)}, {fmt.dollars(takes.usd(spot=wanted.spot))} "
        f"{'spot' if wanted.spot else 'on demand'}, P(OOM) {fmt.probability(takes.out_of_memory_fraction)}.",
    )


def _miss_text(answer: PlanAnswer) -> str:
    """Return which limit is nearest to being met, and by how much it is missed."""
    miss, wanted = answer.nearest, answer.wanted
    if miss is None or miss.plan is None:
        if not answer.num_candidates:
            return "no provider offers such machines; 'finegauge offers' lists who has what."
        return "every plan needs far more memory than its GPUs have; name larger --gpus or raise --max-gpus."
    plan, beyond = miss.plan, miss.over_fraction or 0.0
    closest = plan.outcome
    texts = {
        MEMORY: f"memory is short by {gib(closest.lacking_bytes)} at least"
        if closest.lacking_bytes
        else f"P(OOM) is {fmt.probability(closest.out_of_memory_fraction)} at least, where "
        f"{fmt.percent(wanted.risk_fraction)} is allowed",
        TIME: f"the closest takes {fmt.hours(closest.wall_s)}",
        BUDGET: f"the closest costs {fmt.dollars(closest.usd(spot=wanted.spot))}",
        UNKNOWN: "no price or power is known of what fits",
    }
    over = f", {fmt.percent(beyond)} over" if beyond > 0 else ""
    if beyond >= 1:
        over = f", {fmt.digits(1 + beyond, 2)} x {'what there is' if miss.limit == MEMORY else 'the limit'}"
    name = plan_name(planned_fields(answer.run, plan), answer.run.fields())
    return f"{texts[miss.limit]}{over} ({name}, {plan.provider})."


def led_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes less those that follow from another of them."""
    return {name: value for name, value in changes.items() if FOLLOWS_FROM.get(name) not in changes}


def _take_table(answer: PlanAnswer) -> Table | None:
    """Return what to change and rent, what the plan takes, and how the run stands as it is."""
    winner, run = answer.winner, answer.run
    if winner is None or winner.profile is None:
        return None
    before, source, plan = run.fields(), winner.profile.source, winner.candidate
    takes = plan.outcome
    pieces: list[str] = []
    for name, value in led_changes(plan.changes).items():
        pieces += [f"{', ' if pieces else ''}{name} {fmt.plain(before[name])} → ",
                   Toned(fmt.plain(value), "strong")]  # fmt: skip
    needed = fmt.gib_interval(takes.device_memory_bytes, source.memory_interval)
    step = fmt.seconds_interval(takes.step_time_s, source.time_interval)
    energy = "energy not known"
    if takes.wall_energy_j is not None:
        carbon = fmt.digits(takes.emissions_kg, 2)
        energy = f"{fmt.kwh(takes.wall_energy_j)} kWh at the wall, {carbon} kg CO2e"
    whole = (
        f"{needed} of {gib(takes.capacity_bytes)}; {step} s a step, {fmt.hours(takes.wall_s)} with start "
        f"and saves; {energy}."
    )
    rows: list[tuple[str, Text]] = [("Change", (*(pieces or ["nothing in the recipe"]), "."))]
    if winner.needs:
        rows.append(("Needs", f"{'; '.join(winner.needs)}."))
    rows += [("Rent", f"{machine_text(plan)}: {rent_text(winner)}"), ("Takes", whole)]
    base = answer.base
    if base is not None:
        now = base.outcome
        needed = f"{gib(now.device_memory_bytes)} of {gib(now.capacity_bytes)}"
        text = f"{WORDS[now.verdict].lower()} with {needed}"
        if now.verdict != WILL_NOT_FIT:
            text += f", {fmt.hours(now.wall_s)}, {fmt.dollars(now.usd(spot=answer.wanted.spot))}"
        current = f"{run.method} on {machine_text(run)} "
        rows.append(("Current run", (current, Toned(text, TONES[now.verdict]), ".")))
    return Table("", ("", ""), tuple((Toned(name, "strong"), text) for name, text in rows), ends_in_text=True)


def rent_text(winner: Winner) -> str:
    """Return the cheapest offers of the winner, on demand and spot."""
    texts = []
    quote = winner.quote
    for spot, offer in ((False, quote and quote.cheapest_on_demand), (True, quote and quote.cheapest_spot)):
        if not offer:
            texts.append("no spot price known" if spot else "no price on demand known")
            continue
        usd, rate, market = offer.on_demand_usd, offer.on_demand_usd_per_h, "on demand"
        if spot:
            usd, rate, market = offer.spot_usd, offer.spot_usd_per_h, "spot"
        sign = approximately(offer)
        times = f"{offer.instances} x " if offer.instances > 1 else ""
        name = f" {offer.instance_type}" if offer.instance_type else ""
        tokens = usd_per_million_tokens(offer, winner.profile, spot=spot) if winner.profile else ""
        each = f", {tokens}" if tokens else ""
        idle = f", {offer.idle_gpus} GPUs idle" if offer.idle_gpus else ""
        where = "" if offer.region in ("", "any") else f" {offer.region}"
        texts.append(
            f"{sign}{fmt.dollars(usd)} {market} ({times}{sign}{fmt.dollars(rate)}/h "
            f"{seller(offer)}{name}{where}, {offer.date}{idle}{each})"
        )
    return "; ".join(texts) + "."


def _tiles(plan: Candidate) -> Iterator[Tile]:
    takes = plan.outcome
    yield Tile("Machine", machine_text(plan), str(plan.provider or ""))
    yield Tile("Whole run", fmt.hours(takes.wall_s), f"{fmt.duration(takes.step_time_s)} a step")
    yield Tile("On demand", fmt.dollars(takes.on_demand_usd), f"spot {fmt.dollars(takes.spot_usd)}")
    chance = fmt.probability(takes.out_of_memory_fraction)
    room = f"of {gib(takes.capacity_bytes)} on each GPU, P(OOM) {chance}"
    yield Tile("Memory", gib(takes.device_memory_bytes), room)
    kilograms = fmt.digits(takes.emissions_kg, 2)
    yield Tile("Energy", f"{fmt.kwh(takes.wall_energy_j)} kWh", f"at the wall; {kilograms} kg CO2e")


def _front_text(answer: PlanAnswer) -> str:
    shown = len(answer.front)
    of = f", {shown} of {answer.num_on_front:,}" if shown < answer.num_on_front else ""
    return f"the Pareto front{of}{'' if answer.winner else '; beyond the limits'}"


def _front_table(answer: PlanAnswer, medium: str) -> Table:
    """Return the Pareto front; the plan to take is marked."""
    rows: list[tuple[Text, ...]] = []
    for one, (machine, batch, recipe), taken in _named_front(answer):
        takes = one.outcome
        mark = Toned("▸ ", "good") if taken else "  " if medium == TERMINAL else ""
        memory = f"{takes.device_memory_bytes / GIB:.1f}/{takes.capacity_bytes / GIB:.0f}"
        rows.append((
            (mark, machine), batch, recipe, one.provider or "", memory, fmt.hours(takes.wall_s),
            fmt.dollars(takes.on_demand_usd), fmt.dollars(takes.spot_usd), fmt.kwh(takes.wall_energy_j),
        ))  # fmt: skip
    caption = f"In cost, time and energy at once {_front_text(answer)}"
    return Table(caption, FRONT_HEADINGS, tuple(rows), 4, folded=medium == FILE, first_to_go=FIRST_TO_GO)


def _named_front(answer: PlanAnswer) -> Iterator[tuple[Candidate, tuple[str, str, str], bool]]:
    winner = answer.winner and answer.winner.candidate
    beside = answer.run.fields() if winner is None else planned_fields(answer.run, winner)
    for one in answer.front:
        yield one, _plan_parts(planned_fields(answer.run, one), beside), one == winner


def plan_front(answer: PlanAnswer) -> Plot | None:
    """Return the front as a figure; None where no price is known of it."""
    from finegauge.answers.study import Way
    from finegauge.render.plots.many_runs import front_plot

    spot = answer.wanted.spot
    ways = [
        Way(" · ".join(parts), one.gpu, one.outcome.wall_s, usd, one.outcome.wall_energy_j, taken)
        for one, parts, taken in _named_front(answer)
        if (usd := one.outcome.usd(spot=spot)) is not None
    ]
    return front_plot(ways, about="Plans of the Pareto front of cost, time and energy", spot=spot)


def save_front(answer: PlanAnswer, path: str) -> str:
    """Draw the front to the PNG at `path`, and return that path.

    Raises: UnsupportedError where matplotlib is missing.
    """
    from finegauge.render.plots.drawing import check_matplotlib, png

    check_matplotlib("calibrate")
    drawing = plan_front(answer)
    if drawing is not None:
        with open(path, "wb") as file:
            file.write(png(drawing))
    return path


def _raised_text(answer: PlanAnswer, one: RaisedLimit) -> Text:
    """Return "1.4 GiB more would cut the cost by 22 %, to $31: micro_batch_size=8"."""
    winner, new = answer.winner, one.plan
    assert winner is not None
    takes = new.outcome
    usd = takes.usd(spot=answer.wanted.spot)
    reached = {"cost": fmt.dollars(usd), "time": fmt.hours(takes.wall_s)}
    figure = reached.get(one.saves, f"{fmt.kwh(takes.wall_energy_j)} kWh")
    asked = {
        MEMORY: f"{gib(one.more_bytes)} more memory on each GPU",
        TIME: f"{fmt.percent(one.more_fraction)} more time than allowed",
        RISK: f"A P(OOM) of {fmt.probability(takes.out_of_memory_fraction)}",
    }.get(one.limit, f"{fmt.percent(one.more_fraction)} more money ({fmt.dollars(usd)})")
    return (
        Toned(asked, "strong"),
        f" would cut the {one.saves} by {fmt.percent(one.saved_fraction)}, to "
        f"{figure}: {_difference(answer.run, winner.candidate, new)}.",
    )


def _difference(run: Run, winner: Candidate, other: Candidate) -> str:
    """Return what `other` has otherwise than the winner, as few words as say it."""
    parts = []
    if machine_text(winner) != machine_text(other) or winner.provider != other.provider:
        parts.append(f"{machine_text(other)} ({other.provider})")
    before, after = planned_fields(run, winner), planned_fields(run, other)
    names = dict.fromkeys([*winner.changes, *other.changes])
    parts += [f"{name}={fmt.plain(after[name])}" for name in names if after[name] != before[name]]
    return ", ".join(parts)


def _alternative_texts(answer: PlanAnswer) -> Iterator[tuple[str, Text]]:
    for aspect, found in answer.alternatives.items():
        near = [one for one in found if one.reason != BEATEN or (one.over_fraction or 0.0) < FAR_FRACTION]
        told, pieces = (near or list(found[:1]))[:MOST_ALTERNATIVES], list[str]()
        for one in told:
            pieces += [*(["; "] if pieces else []), *_alternative(answer, aspect, one)]
        rest = len(found) - len(told)
        yield aspect, (*pieces, f"{f'; {rest} more' if rest else ''}.")


def _alternative(answer: PlanAnswer, aspect: str, one: AlternativePlan) -> Sequence[str]:
    """Return "L40S +12 % ($31.40, 8.2 h)" or "L4 short of 3.1 GiB"."""
    value = one.value
    name = Toned(f"{value} GPU{'s' * (value != 1)}" if aspect == "num_gpus" else fmt.plain(value), "strong")
    plan = one.plan
    if plan is None:
        return name, " no valid plan"
    takes = plan.outcome
    machine = "" if aspect == "gpu" else f" on {machine_text(plan)}"
    if one.reason == MEMORY:
        short, chance = takes.lacking_bytes, fmt.probability(takes.out_of_memory_fraction)
        return name, f" {f'short of {gib(short)}' if short else f'P(OOM) {chance}'}{machine}"
    bill = f"{fmt.dollars(takes.usd(spot=answer.wanted.spot))}, {fmt.hours(takes.wall_s)}{machine}"
    return name, f" {_against(one)} ({bill})"


def _against(one: AlternativePlan) -> str:
    """Return what stands against an alternative that has the memory; beaten: "+12 %", or "2.9 x"."""
    beyond = one.over_fraction or 0.0
    if one.reason == BEATEN:
        if abs(beyond) <= EQUAL_FRACTION:
            return "as good"
        return f"{fmt.digits(1 + beyond, 2)} x" if beyond >= 1 else f"{100 * beyond:+.0f} %"
    over = fmt.percent(beyond)
    return {TIME: f"{over} too slow", BUDGET: f"{over} over budget"}.get(
        one.reason, "price or power not known"
    )


def _alternative_tables(answer: PlanAnswer) -> Iterator[Table]:
    """Yield a table per aspect: the best plan with that choice made otherwise, and why it loses."""
    headings = ("instead", "why not", "machine", "time", "on demand", "kWh")
    for aspect, found in answer.alternatives.items():
        rows = []
        for one in found:
            plan, value = one.plan, fmt.plain(one.value)
            if plan is None:
                rows.append((value, "no valid plan", *[fmt.UNKNOWN] * 4))
                continue
            takes = plan.outcome
            short = f"short of {gib(takes.lacking_bytes)}" if takes.lacking_bytes else "P(OOM)"
            rows.append((
                value, short if one.reason == MEMORY else _against(one), machine_text(plan),
                fmt.hours(takes.wall_s), fmt.dollars(takes.on_demand_usd), fmt.kwh(takes.wall_energy_j),
            ))  # fmt: skip
        yield Table(f"Another {ASPECTS.get(aspect, aspect)}", headings, tuple(rows), 3)


def _change_table(answer: PlanAnswer) -> Table | None:
    if answer.winner is None:
        return None
    before, after = answer.run.fields(), planned_fields(answer.run, answer.winner.candidate)
    rows = tuple(
        (name, fmt.plain(before.get(name)), fmt.plain(after[name]))
        for name in answer.winner.candidate.changes
    )
    return Table("Fields that the plan has otherwise", ("field", "run", "plan"), rows, num_text_columns=3)


def _input_table(run: Run) -> Table:
    """Return the fields of the run; the GPU that it starts from is the plan's to choose."""
    table = input_table(run)
    return table._replace(rows=tuple(row for row in table.rows if row[0] != "gpu"))


def _step_blocks(winner: Winner | None) -> tuple[Block | None, ...]:
    from finegauge.render.plots.step import memory_plot, step_time_plot

    if winner is None or winner.profile is None:
        return ()
    profile = winner.profile
    return memory_bar(profile), time_bar(profile), memory_plot(profile, {}), step_time_plot(profile)


def assumed_samples_text(num_samples: int) -> str:
    """Return what is said where the length of a run is not known."""
    return (
        f"The length of the run is not known: every figure is for {num_samples:,} samples; state "
        "num_samples=…, max_steps=… or a dataset."
    )


def _closing_texts(answer: PlanAnswer) -> Iterator[str]:
    if answer.winner is not None and answer.winner.quote is not None:
        yield from answer.winner.quote.warnings
    if answer.assumed_samples:
        yield assumed_samples_text(answer.assumed_samples)
    yield from answer.notes


def _closing_notes(answer: PlanAnswer) -> Iterator[Note]:
    managed = answer.winner.quote.managed if answer.winner and answer.winner.quote else ()
    if managed:
        named = "; ".join(f"{m.provider} ({m.model}) {fmt.dollars(m.low_usd)}" for m in managed[:3])
        billed = count(managed[0].billed_tokens)
        yield Note(f"{named} for {billed} training tokens, padding not billed.", label="Managed")
    yield from notes(_closing_texts(answer), tone="risky")
    kept = "the method, " if answer.wanted.keep_method else ""
    one_by_one = "" if answer.run.phase in TRAINED else " one by one"
    fewer = f", {answer.num_evaluated:,} of them in full" * (answer.num_evaluated < answer.num_candidates)
    yield Note(
        f"Searched {answer.num_candidates:,} plans{one_by_one} in {fmt.duration(answer.search_s)}{fewer}; "
        f"unchanged: {kept}samples per step, seq_len, adapters, epochs; P(OOM) below "
        f"{fmt.percent(answer.wanted.risk_fraction)}.",
        tone="soft",
    )
