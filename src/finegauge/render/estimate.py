"""How answers about one run look: estimate, explain, max-batch, max-length; check, its headline."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from finegauge.answers.estimate import (
    CapacityAnswer,
    EstimateAnswer,
    GpuCapacity,
    GpuEstimate,
    GpuExplanation,
)
from finegauge.planning.quote import SPOT_REPEATED_FRACTION, WALL_POWER_RATIO, OfferCost
from finegauge.prediction.moments import FORMULAS
from finegauge.profile import Breakdown, Path, Profile
from finegauge.render import number_format as fmt
from finegauge.render.report import (
    FILE,
    PAGE,
    TERMINAL,
    Block,
    Note,
    Report,
    Section,
    Table,
    Text,
    Toned,
    notes,
    section,
)
from finegauge.render.run_parts import (
    TONES,
    approximately,
    assumed,
    basis_notes,
    formula_of,
    gpu_table,
    headline,
    headlines,
    input_table,
    memory_bar,
    method_notes,
    moments_note,
    moments_table,
    offer_tables,
    rollout_notes,
    safe_and_most,
    seller,
    shown_name,
    subject,
    tiles,
    time_bar,
    title_of,
    usd_per_million_tokens,
    usual,
    waits_notes,
)
from finegauge.units import GIB, count, gib

if TYPE_CHECKING:
    from finegauge.answers.study import Study

SUM_BEFORE = {"slack": "= allocated by torch at the peak", "context": "= with the allocator's overhead"}
LEAST_EXPLAINED_FRACTION = 0.005  # of a step: smaller parts are left to --json
LEAST_LISTED_FRACTION = 0.002  # of a whole, in the tables of the page
CAPACITY_TITLES = {"micro_batch_size": "Largest micro-batch", "seq_len": "Longest sequence"}


def estimate_report(answer: EstimateAnswer, medium: str = TERMINAL, study: "Study | None" = None) -> Report:
    """Return what is shown of one run on one or several GPUs; a FILE has figures, with `study` more."""
    found, one = answer.found, usual(answer.found)
    if medium == FILE:
        sections = _file_sections(answer, study)
    else:
        sections = _terminal_sections(answer) if medium == TERMINAL else _page_sections(one)
    return Report.of(
        title_of(one.run),
        headline(one) if len(found) == 1 else headlines(found),
        *sections,
        tone=TONES[one.verdict],
        subject=(subject(one.run),),
        tiles=() if medium == TERMINAL else tiles(one),
    )


def _terminal_sections(answer: EstimateAnswer) -> tuple[Section, ...]:
    """Return a row per GPU; of one, the parts of memory and time; prices; what the answer rests on."""
    found, one = answer.found, usual(answer.found)
    step: tuple[Section, ...] = ()
    if len(found) == 1:
        served = waits_notes(one.profile)
        bottleneck = Note(one.bottleneck, label="Bottleneck")
        step = (
            section(
                "memory",
                "",
                memory_bar(one.profile),
                *rollout_notes(one),
                *([moments_note(one)] if one.moments else []),
            ),
            section("time", "", time_bar(one.profile), *served, bottleneck),
        )
    return (
        section("gpus", "", gpu_table(found), *method_notes(found),
                *(Note(f"{none.gpu}: {none.reason}", tone="risky") for none in answer.unsupported)),
        section("advice", "What makes it fit", *_advice(one)),
        *step,
        section("cost", "", *_price_notes(found)),
        section("basis", "", *basis_notes(one, assumed(one.run))),
    )  # fmt: skip


def _advice(one: GpuEstimate, medium: str = TERMINAL) -> tuple[Block, ...]:
    if one.advice is None:
        return ()
    from finegauge.render.whatif import advice_blocks

    return advice_blocks(one.advice, medium)


def _page_sections(one: GpuEstimate) -> tuple[Section, ...]:
    """Return memory first; then offers, where memory and time go, and what the answer rests on."""
    profile, quote = one.profile, one.quote
    warnings = notes((*one.run.warnings, *(quote.warnings if quote else ())), tone="risky")
    where: list[Block] = [_parts_table("Memory at the peak", "GiB", profile.device_memory_bytes, 1 / GIB)]
    if quote is not None:
        where = [Note(one.bottleneck), time_bar(profile), *where]
        where.append(_parts_table("Time of one step", "ms", profile.step_time_s, 1e3))
        if quote.num_steps is not None:
            title = f"Whole run: {quote.num_steps:,} steps"
            where.append(_parts_table(title, "min", quote.wall_time_s, 1 / 60))
    return (
        section("memory", "", memory_bar(profile), *warnings),
        section("advice", "What makes it fit", *_advice(one, PAGE)),
        section("cost", "Cost by provider", *(offer_tables(quote.offers) if quote else ())),
        section("where", "Where it goes", *where),
        section("basis", "What the answer rests on", *basis_notes(one, ()), folded=True),
    )


def _file_sections(answer: EstimateAnswer, study: "Study | None") -> tuple[Section, ...]:
    """Return figures with their numbers; of several GPUs the first in full."""
    from finegauge.answers.study import ways_of
    from finegauge.render.plots.many_runs import front_plot, throughput_plot
    from finegauge.render.plots.step import memory_plot, roofline_plot, step_time_plot

    one, several = answer.found[0], len(answer.results) > 1
    profile, quote, formulas = one.profile, one.quote, one.formulas or {}
    roofline = roofline_plot(profile, study.work, study.roof) if study and study.roof else None
    about = "The run on each GPU, at its cheapest offer"
    ways = ways_of(answer.found) if several else ()
    if study:
        about = "The run as it is on one kind of GPU after another, each at its cheapest offer"
        ways = study.elsewhere
    missing = (Note(f"{none.gpu}: {none.reason}", tone="risky") for none in answer.unsupported)
    return (
        section("gpus", "On each GPU", gpu_table(answer.found) if several else None, *missing),
        section("memory", "Memory", memory_bar(profile), memory_plot(profile, formulas)),
        section("time", "Time", time_bar(profile), Note(one.bottleneck, label="Bottleneck"),
                step_time_plot(profile), roofline),
        section("throughput", "Batch", throughput_plot(study.throughput) if study else None),
        section("cost", "Cost", *(Note(text) for text in (quote.warnings if quote else ())),
                front_plot(ways, about=about) if len(ways) > (0 if study else 1) else None,
                *offer_tables(quote.offers if quote else one.offers)),
        section("assumptions", "Assumptions and origins", *(Note(text) for text in one.run.warnings),
                input_table(one.run), _formula_table(profile, formulas)),
        section("sources", "Sources", *basis_notes(one, ()),
                Table("Where the figures come from", ("what", "source", "read"),
                      tuple(tuple(each) for each in study.sources) if study else (), 3)),
    )  # fmt: skip


def _formula_table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    """Return how the stages of the step come about; the memory's formulas stand with the waterfall."""
    stages = [path for path in profile.step_time_s.at(1).parts if path in formulas]
    rows = tuple((" · ".join(path), formulas[path]) for path in stages)
    return Table("How the seconds come about", ("stage", "formula"), rows, 2)


def _parts_table(caption: str, unit: str, whole: Breakdown, per_unit: float) -> Table:
    """Return a breakdown as rows: each kind with its share, below it its parts."""
    total = whole.total or 1.0
    rows: list[tuple[str, ...]] = []

    def row(name: str, value: float) -> None:
        if value >= LEAST_LISTED_FRACTION * total:
            rows.append((name, fmt.digits(value * per_unit), fmt.percent(value / total)))

    for (kind, *_), value in whole.at(1):
        row(shown_name(kind), value)
        below = [(part, amount) for part, amount in whole.at(2).under(kind) if part]
        for part, amount in below if len(below) > 1 else ():
            row(f"\u2003{shown_name(part[0])}", amount)
    return Table(
        caption, ("part", unit, "share"), (*rows, ("total", fmt.digits(whole.total * per_unit), "100 %"))
    )


def _price_notes(found: Sequence[GpuEstimate]) -> Iterator[Note]:
    quotes = [one.quote for one in found if one.quote is not None]
    texts = [text for one in found if (text := _offer_text(one))]
    if texts:
        yield Note(f"{'; '.join(texts)}.", label="Offers")
    if found[0].managed:
        cheapest = found[0].managed[0]
        yield Note(
            f"  Managed: {cheapest.provider} ({cheapest.model}) {fmt.dollars(cheapest.low_usd)} for "
            f"{count(cheapest.billed_tokens)} training tokens, padding not billed."
        )
    if texts:
        quote = quotes[0]
        yield Note(
            f"Spot costs include {fmt.percent(SPOT_REPEATED_FRACTION)} for work repeated after "
            f"interruptions. kWh at the wall are {WALL_POWER_RATIO:.2f} x the boards'; CO2e with "
            f"PUE {quote.pue:.2f} and {quote.grid_kg_per_kwh:.3f} kg/kWh ({quote.grid})."
        )
    yield from notes((warning for quote in quotes for warning in quote.warnings), tone="risky")


def _offer_text(one: GpuEstimate) -> str:
    """Return "A40 $0.39/h dataoorts, spot $0.20/h vast-ai, $0.11 per 1 M tokens", at the first of the two.

    Cheaper prices that nothing is ranked by follow: of a marketplace's lowest host, or far below all others.
    """
    if one.quote is None:
        return ""
    on_demand, spot = one.quote.cheapest_on_demand, one.quote.cheapest_spot
    parts = [_rate(on_demand, on_demand.on_demand_usd_per_h)] if on_demand else []
    parts += [f"spot {_rate(spot, spot.spot_usd_per_h)}"] if spot else []
    if cheapest := on_demand or spot:
        parts += filter(None, [usd_per_million_tokens(cheapest, one.profile, spot=on_demand is None)])
    if not parts:
        return ""
    least = on_demand.on_demand_usd if on_demand else None
    lower = [
        _rate(offer, offer.on_demand_usd_per_h)
        for offer in one.quote.offers
        if not offer.is_ranked and offer.on_demand_usd is not None
        if least is not None and offer.on_demand_usd < least and offer.tier != "seed-paper"
    ]
    below = f"; lower, but not ranked: {', '.join(lower[:3])}" if lower else ""
    return f"{one.gpu} {', '.join(parts)}{below}"


def _rate(offer: OfferCost, usd_per_h: float | None) -> str:
    """Return "$0.39/h runpod community (2026-05-24)", with the GPUs that are billed but not used."""
    idle = f", {offer.idle_gpus} more GPUs billed than used" if offer.idle_gpus >= 1 else ""
    far = ", far below others" if offer.outlier else ""
    return f"{approximately(offer)}{fmt.dollars(usd_per_h)}/h {seller(offer)} ({offer.date}{far}{idle})"


def explain_report(one: GpuExplanation) -> Report:
    """Return every byte and second of a run on one GPU with its formula, and who stated each input."""
    profile, formulas = one.profile, one.formulas or {}
    took = f"{fmt.digits(profile.step_time_s.total)} s"
    assumptions = [Note(f"Assumed: {text}.") for text in profile.source.assumptions]
    return Report.of(
        title_of(one.run), headline(one),
        section("memory", "Memory, line by line to the figure of nvidia-smi",
                _waterfall(profile, formulas)),
        section("phases", "Memory by phase, GiB live in torch at its peak", _phase_table(profile)),
        section("moments", "Every moment of the job, GiB at its peak", moments_table(one),
                *_host_notes(one)),
        section("time", "Time of one step", _time_table(profile, formulas),
                Note(one.bottleneck, label="Bottleneck"), said=took),
        section("exchanged", "Sent in one step, as one rank sees it: whole tensors, whatever part of "
                "them is its own", _exchange_table(one)),
        _whole_run(one),
        section("inputs", "Inputs, and who stated them", input_table(one.run), *assumptions,
                Note(f"{profile.source.name}.", label="Calibrated on")),
        tone=TONES[one.verdict],
        subject=(subject(one.run),),
    )  # fmt: skip


def _waterfall(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    """Return the waterfall: each line an amount, the total so far, its name and its formula."""
    total = 0.0
    rows: list[tuple[Text, ...]] = []

    def sum_row(amount_bytes: float, name: str) -> None:
        rows.append(("", Toned(_exact_gib(amount_bytes), "strong"), Toned(name, "strong")))

    for path, amount in _by_kind(profile.device_memory_bytes):
        if path[0] in SUM_BEFORE and total:
            sum_row(total, SUM_BEFORE[path[0]])
        total += amount
        name = " · ".join(map(shown_name, path))
        rows.append((_exact_gib(amount), _exact_gib(total), _explained(name, formula_of(path, formulas))))
    sum_row(total, "= what has to fit")
    if profile.cached_bytes:
        why = "freed blocks, which the allocator returns when memory is short"
        rows.append((_exact_gib(profile.cached_bytes), "", _explained("cached", why)))
        sum_row(profile.memory_bytes("torch_reserved"), "of which torch's allocator reserves")
        sum_row(total + profile.cached_bytes, "= what nvidia-smi shows")
    sum_row(profile.capacity_bytes, f"usable on {profile.run.gpu}")
    return Table("Memory", ("GiB", "so far", ""), tuple(rows), 0, ends_in_text=True, indent=2)


def _by_kind(breakdown: Breakdown) -> Iterator[tuple[Path, float]]:
    for kind in breakdown.at(1).parts:
        yield from ((path, value) for path, value in breakdown.parts.items() if path[:1] == kind)


def _explained(name: str, formula: str) -> Text:
    return (name, Toned(f"  {formula}", "soft")) if formula else name


def _exact_gib(amount_bytes: float) -> str:
    """Return GiB with three decimals: a waterfall has to add up."""
    return f"{amount_bytes / GIB:.3f}"


def _phase_table(profile: Profile) -> Table:
    by_phase = profile.phase_memory_bytes
    kinds = tuple(dict.fromkeys(path[1] for path in by_phase.at(2).parts if len(path) > 1))
    rows = []
    for (phase, *_), _ in by_phase.at(1).parts.items():
        parts = by_phase.under(phase).at(1)
        cells = (_exact_gib(parts[kind]) if parts[kind] else fmt.UNKNOWN for kind in kinds)
        total = _exact_gib(parts.total)
        rows.append((phase, *cells, Toned(total, "strong") if phase == profile.peak_phase else total))
    headings = ("phase", *map(shown_name, kinds), "total")
    return Table("Memory by phase", headings, tuple(rows), indent=2)


def _host_notes(one: GpuExplanation) -> Iterator[Note]:
    paths: dict[Path, None] = {}
    for moment in one.moments:
        parts = moment.host_breakdown_bytes.at(1).parts
        paths |= dict.fromkeys(parts)
        listed = ", ".join(f"{path[0]} {gib(amount)}" for path, amount in parts.items())
        files = f"; {gib(moment.mapped_bytes)} of memory-mapped files, dropped when memory is short"
        yield Note(f"  Host at {moment.moment}: {listed}{files if moment.mapped_bytes else ''}.")
    for path in paths:
        yield Note(f"    {path[0]}: {FORMULAS[path]}.", tone="soft")


def _time_table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    step, total = profile.step_time_s, profile.step_time_s.total
    rows: list[tuple[Text, ...]] = []
    for stage, stage_s in step.at(1).parts.items():
        name = Toned(stage[0], "strong")
        rows.append((*_time_cells(stage_s, total), _explained(name, formulas.get(stage, ""))))
        for path, seconds in _largest(step.under(*stage)):
            if path and seconds >= LEAST_EXPLAINED_FRACTION * total:
                formula = formulas.get((*stage, *path), "")
                rows.append((*_time_cells(seconds, total), _explained(f"  {' · '.join(path)}", formula)))
    return Table("Time of one step", ("", "", ""), tuple(rows), 0, ends_in_text=True, indent=2)


def _time_cells(seconds: float, total_s: float) -> tuple[str, str]:
    said = f"{fmt.digits(seconds)} s" if seconds >= 0.1 else f"{fmt.digits(1e3 * seconds)} ms"
    return said, fmt.percent(seconds / total_s)


def _largest(parts: Breakdown) -> list[tuple[Path, float]]:
    """Return the parts, the largest group first and, within a group, the largest part first."""
    groups = {path[:1]: value for path, value in parts.at(1).parts.items()}
    return sorted(parts.parts.items(), key=lambda item: (-groups[item[0][:1]], -item[1]))


def _exchange_table(one: GpuExplanation) -> Table:
    rows = tuple(
        (volume.kind.replace("_", "-"), volume.group, f"{volume.num_per_step:,.0f}",
         fmt.size(volume.bytes_per_step))
        for volume in one.exchanged or ()
    )  # fmt: skip
    return Table("Sent in one step", ("kind", "among ranks of", "messages", "bytes"), rows, indent=2)


def _whole_run(one: GpuExplanation) -> Section:
    quote = one.quote
    if quote is None:
        return section("run", "Whole run", Note("It will not fit, so it has no end and no bill."))
    if quote.num_steps is None:
        return section("run", "", Note(quote.warnings[0], tone="risky"))
    rows = tuple(
        (fmt.hours(seconds), fmt.percent(seconds / quote.wall_time_s.total), part)
        for (part, *_), seconds in quote.wall_time_s.parts.items()
    )
    boards, wall = fmt.kwh(quote.boards_energy_j), fmt.kwh(quote.wall_energy_j)
    co2 = fmt.digits(quote.emissions_kg, 2)
    energy = f"  Energy: {boards} kWh of the boards, {wall} kWh at the wall, {co2} kg CO2e ({quote.grid})."
    table = Table("Whole run", ("", "", ""), rows, 0, ends_in_text=True, indent=2)
    said = f"{quote.num_steps:,} steps, {fmt.hours(quote.wall_s)}"
    return section("run", "Whole run", table, Note(energy), said=said)


def capacity_report(answer: CapacityAnswer) -> Report:
    """Return the largest value per GPU, with the memory on both sides of the border."""
    first = answer.results[0]
    title = CAPACITY_TITLES[first.field]
    one = Toned(f"{title} on {first.gpu}: {border(first)}", "strong") if len(answer.results) == 1 else ""
    headings = (
        "GPU", "safe", first.field, "memory", "usable", "one more needs", "s/step", "tokens/s", "samples/s",
    )  # fmt: skip
    table = Table(f"{title} by GPU", headings, tuple(map(_capacity_row, answer.results)))
    found = section("gpus", "", table, *_capacity_notes(answer))
    return Report.of(title_of(answer.run), one, found)


def border(one: GpuCapacity) -> str:
    """Return "13 is safe, 15 may fit"."""
    return safe_and_most(one.safe_value, one.value, at_limit=one.at_limit)


def _capacity_row(one: GpuCapacity) -> tuple[Text, ...]:
    sizes = (one.device_memory_bytes, one.capacity_bytes, one.first_that_fails_bytes)
    return (
        str(one.gpu),
        Toned(f"{one.safe_value:,}", "strong"),
        f"{'≥ ' if one.at_limit else ''}{one.value:,}",
        *(fmt.UNKNOWN if size is None else gib(size) for size in sizes),
        *(fmt.digits(amount) for amount in (one.step_time_s, one.tokens_per_s, one.samples_per_s)),
    )


def _capacity_notes(answer: CapacityAnswer) -> Iterator[Note]:
    if answer.results[0].field == "micro_batch_size":
        return
    said = f"Every sequence is taken to be that long, micro_batch_size={answer.run.micro_batch_size}."
    if answer.trained_positions and max(one.value for one in answer.results) > answer.trained_positions:
        said += f" The model was built for {answer.trained_positions:,} positions (max_position_embeddings)."
    yield Note(said, tone="soft")
