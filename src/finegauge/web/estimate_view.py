"""What the page says about one run, as texts, bars and tables for its template."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from finegauge.planning.estimate import Estimate
from finegauge.prediction.uncertainty import RISKY, WILL_NOT_FIT
from finegauge.profile import Breakdown
from finegauge.render import number_format as fmt
from finegauge.render.bars import Bar, Table, memory_bar, stage_bar
from finegauge.render.estimate import WORDS, one_verdict
from finegauge.render.terminal import unpainted
from finegauge.units import GIB, count

if TYPE_CHECKING:
    from finegauge.planning.quote import PricedOffer

MOST_OFFERS = 24
INDENT = "\u2003"  # before the name of a part of a part
FIRST_OFFERS = 6
LEAST_SHARE_FRACTION = 0.002  # of memory or time: smaller parts are not listed
_TONES = {RISKY: "risky", WILL_NOT_FIT: "bad"}


class Tile(NamedTuple):
    """One figure of the answer."""

    name: str
    value: str
    detail: str = ""
    key: str = ""


class Answer(NamedTuple):
    """All of it."""

    verdict: str  # Fits, Risky, Will not fit
    tone: str  # good, risky or bad
    sentence: str
    memory: Bar
    step: Bar | None
    tiles: tuple[Tile, ...]
    offers: Table | None
    more_offers: Table | None
    breakdowns: tuple[Table, ...]
    bottleneck: str
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    constants: str


def answer_of(estimate: Estimate) -> Answer:
    """Return what is said about one run on its GPU."""
    profile, quote = estimate.profile, estimate.quote
    works = estimate.verdict != WILL_NOT_FIT
    tables = list(_offer_tables(quote.offers)) if works else []
    breakdowns = [_parts("Memory of the fullest moment", "GiB", profile.device_memory_bytes, 1 / GIB)]
    if works:
        breakdowns.append(_parts("Time of one step", "ms", profile.step_time_s, 1e3))
        if quote.num_steps is not None:
            breakdowns.append(
                _parts(f"Whole run: {quote.num_steps:,} steps", "min", quote.wall_time_s, 1 / 60)
            )
    return Answer(
        verdict=WORDS[estimate.verdict],
        tone=_TONES.get(estimate.verdict, "good"),
        sentence=unpainted(one_verdict(estimate)),
        memory=memory_bar(profile),
        step=stage_bar(profile) if works else None,
        tiles=tuple(_tiles(estimate, works=works)),
        offers=tables[0] if tables else None,
        more_offers=tables[1] if len(tables) > 1 else None,
        breakdowns=tuple(breakdowns),
        bottleneck=profile.bottleneck if works else "",
        warnings=tuple(dict.fromkeys((*estimate.run.warnings, *(quote.warnings if works else ())))),
        assumptions=profile.source.assumptions,
        constants=profile.source.name,
    )


def _tiles(estimate: Estimate, *, works: bool) -> Iterator[Tile]:
    """Yield the figures that a decision is made by."""
    profile, quote, capacity = estimate.profile, estimate.quote, estimate.capacity
    used = f"now {estimate.run.micro_batch_size:,}"
    if estimate.safe_micro_batch_size is not None:
        used += (
            f", {estimate.safe_micro_batch_size:,} is safe"
            if estimate.safe_micro_batch_size
            else ", none is safe"
        )
    yield Tile(
        "Largest micro-batch", f"{'≥ ' if capacity.at_limit else ''}{capacity.value:,}", used, "max-batch"
    )
    yield Tile("P(out of memory)", fmt.probability(estimate.out_of_memory_fraction), "", "oom")
    if not works:
        return
    interval = profile.source.time_interval
    step_s = profile.step_time_s.total
    around = "" if interval is None else f"{_range(*interval.of(step_s))} s, 10–90 %"
    yield Tile("One step", f"{fmt.digits(step_s)} s", around, "step")
    rate = f"{fmt.digits(profile.samples_per_s)} sequences/s, {fmt.percent(profile.mfu_fraction)} MFU"
    yield Tile("Tokens per second", count(profile.tokens_per_s), rate, "tokens")
    steps = "" if quote.num_steps is None else f"{quote.num_steps:,} steps"
    yield Tile("Whole run", fmt.hours(quote.wall_s), steps, "time")
    on_demand, spot = quote.cheapest_on_demand, quote.cheapest_spot
    usd = on_demand.on_demand_usd if on_demand else None
    yield Tile("On demand, cheapest", fmt.dollars(usd), _whose(on_demand), "usd")
    usd = spot.spot_usd if spot else None
    yield Tile("Spot, cheapest", fmt.dollars(usd), _whose(spot), "spot")
    boards = f"{fmt.kwh(quote.boards_energy_j)} kWh of the boards"
    yield Tile("Energy at the wall", f"{fmt.kwh(quote.wall_energy_j)} kWh", boards, "energy")
    grid = f"{quote.grid_kg_per_kwh:.3f} kg/kWh, PUE {quote.pue:.2f} ({quote.grid})"
    yield Tile("CO₂ equivalent", f"{fmt.digits(quote.emissions_kg, 2)} kg", grid, "co2")


def _whose(offer: "PricedOffer | None") -> str:
    """Return whose price it is, and of which day."""
    return f"{offer.offer.provider}, {offer.offer.date}" if offer else "no price is known"


def _range(low: float, high: float) -> str:
    return f"{fmt.digits(low, 2)}–{fmt.digits(high, 2)}"


def _offer_tables(offers: "tuple[PricedOffer, ...]") -> Iterator[Table]:
    """Yield the cheapest offers, then the others."""
    known = [one for one in offers if one.on_demand_usd is not None or one.spot_usd is not None]
    known.sort(key=lambda one: not one.offer.is_ranked)  # what nobody would call cheapest stands last
    headings = ("provider", "instance", "region", "tier", "$/h", "spot $/h", "on demand", "spot", "price of")
    rows = tuple(_offer_row(one) for one in known[:MOST_OFFERS])
    if rows:
        yield Table("What the whole run costs, by provider", headings, rows[:FIRST_OFFERS], 4)
    if len(rows) > FIRST_OFFERS:
        rest = rows[FIRST_OFFERS:]
        yield Table(f"{len(rest)} more offers", headings, rest, 4)


def _offer_row(one: "PricedOffer") -> tuple[str, ...]:
    """Return the row of one offer."""
    offer = one.offer
    times = f"{one.instances} × " if one.instances > 1 else ""
    idle = f", {one.idle_gpus} idle" if one.idle_gpus else ""
    return (
        offer.provider,
        f"{times}{offer.instance_type or f'{offer.gpu_count} GPU'}{idle}",
        offer.region,
        offer.tier + (", outlier" if offer.outlier else ""),
        fmt.dollars(offer.on_demand_usd_per_h),
        fmt.dollars(offer.spot_usd_per_h),
        fmt.dollars(one.on_demand_usd),
        fmt.dollars(one.spot_usd),
        offer.date,
    )


def _parts(caption: str, unit: str, whole: Breakdown, per_unit: float) -> Table:
    """Return a breakdown as rows: each kind with its share, below it its parts."""
    rows: list[tuple[str, ...]] = []
    total = whole.total or 1.0
    for path, value in whole.at(1):
        if value < LEAST_SHARE_FRACTION * total:
            continue
        rows.append((path[0], fmt.digits(value * per_unit), fmt.percent(value / total)))
        below = [(part, amount) for part, amount in whole.at(2).under(path[0]) if part]
        rows += [
            (
                f"{INDENT}{part[0]}",
                fmt.digits(amount * per_unit),
                fmt.percent(amount / total),
            )
            for part, amount in below
            if len(below) > 1 and amount >= LEAST_SHARE_FRACTION * total
        ]
    rows.append(("total", fmt.digits(whole.total * per_unit), "100 %"))
    return Table(caption, ("part", unit, "share"), tuple(rows), 1)
