r"""What a whole run takes: hours, kWh, kg of CO2e, and dollars per offer.

$$ t = t_{start} + n_{steps} t_{step} + t_{evaluation} + t_{saves} $$
$$ E_{wall} = 1.39 E_{boards}, \qquad CO_2e = E_{wall} \cdot PUE \cdot intensity $$

Energy of the boards (what NVML reads) and at the wall (what the bill reads) are two
figures with two names. Neglects: failed attempts, set-up by hand, storage and traffic.

[1] MLPerf Training logs, 8 x H100 (700 W boards) on Llama-2-70B LoRA, one node: 895 W at the
    wall per GPU, power logged at the wall from run_start to run_stop; the boards themselves
    are taken at 92 % of their limit, as `prediction.time` takes them.
"""

from collections.abc import Iterable
from math import ceil, inf
from operator import attrgetter

from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.models import model
from finegauge.catalogue.offers import Offer, grid, holding, managed_prices, offers, stale_warning
from finegauge.catalogue.offers import pue as site_overhead
from finegauge.data.batch_shape import epochs_of, shape, times_of
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.time import board_power
from finegauge.prediction.uncertainty import Verdict
from finegauge.profile import Breakdown, Profile
from finegauge.records import NamedTuple
from finegauge.run.phases import micro_steps
from finegauge.run.run import Run
from finegauge.units import HOUR_S, KWH_J

# [1]: CPUs, memory, fans, network and power supplies as well
WALL_POWER_RATIO = 895.0 / (DATASHEET.active_power_fraction * 700.0)
SAVE_BYTES_PER_S = 1e9  # a checkpoint to one NVMe or a good network disk; assumption
# Assumption: a spot instance is taken away now and then, and work since the last checkpoint is
# done again. Interruption rates differ by cloud, card and hour; none is published for all.
SPOT_REPEATED_FRACTION = 0.10
OBJECTIVES = ("cost", "time", "energy", "memory")
LONG_CONTEXT_TOKENS = 65_536  # managed services ask more beyond


class OfferCost(NamedTuple):
    """One offer, and what the whole run would cost on it: hours x price of the instance x instances.

    An instance is rented whole: one with more GPUs than the run uses bills them all. A price that is not
    known stays unknown (None), never 0.
    """

    provider: str
    instance_type: str
    region: str
    tier: str
    date: str
    outlier: bool
    gpu_count: int
    instances: int
    idle_gpus: int  # rented and billed, but not asked for
    on_demand_usd_per_h: float | None
    spot_usd_per_h: float | None
    on_demand_usd: float | None
    spot_usd: float | None  # with the hours that interruptions make it repeat
    is_ranked: bool = True
    source: str = ""
    is_scaled: bool = False  # the price of one card times their number
    offer: Offer | None = None  # of the catalogue; None where it was read from an answer


class ManagedPrice(NamedTuple):
    """What a managed fine-tuning service would bill; low and high are equal where one price is printed."""

    provider: str
    model: str  # the model or the band of sizes that is priced
    method: str
    billed_tokens: float  # training tokens times epochs; padding is not billed
    low_usd: float
    high_usd: float
    date: str  # of the price; "" where none is printed
    trust: str


class StepQuantities(NamedTuple):
    """What one step takes, of which the whole run is made; each may be an array, one per candidate."""

    step_s: float
    sequence_forward_s: float
    checkpoint_bytes: float
    step_j: float  # of all boards


class Quote(NamedTuple):
    """What a whole run takes; figures of the whole are None where the number of steps is not known."""

    num_steps: int | None
    wall_s: float | None  # from start to end
    wall_time_s: Breakdown  # startup, steps, evaluation, saves; empty where the steps are not known
    boards_energy_j: float | None
    wall_energy_j: float | None
    emissions_kg: float | None  # CO2 equivalent
    grid: str  # whose electricity
    grid_kg_per_kwh: float
    pue: float  # what the site draws over what its machines draw
    cheapest_on_demand: OfferCost | None  # outliers and historical prices left out
    cheapest_spot: OfferCost | None  # likewise
    num_offers: int
    offers: tuple[OfferCost, ...]  # the cheapest on demand first
    managed: tuple[ManagedPrice, ...]
    warnings: tuple[str, ...]

    @property
    def on_demand_usd(self) -> float | None:
        """Return the dollars of the whole run at the cheapest offer on demand."""
        return self.cheapest_on_demand.on_demand_usd if self.cheapest_on_demand else None

    @property
    def spot_usd(self) -> float | None:
        """Return the dollars of the whole run at the cheapest spot offer."""
        return self.cheapest_spot.spot_usd if self.cheapest_spot else None


class Outcome(NamedTuple):
    """What a run takes from start to end, and whether it fits; None where a figure is not known."""

    verdict: Verdict
    device_memory_bytes: float  # all that has to fit
    capacity_bytes: float
    out_of_memory_fraction: float
    step_time_s: float
    wall_s: float
    on_demand_usd: float | None  # on the cheapest ranked offer; of a plan, on its own
    spot_usd: float | None
    wall_energy_j: float | None
    emissions_kg: float | None

    def usd(self, *, spot: bool) -> float | None:
        """Return the dollars of the whole run, on spot instances or on demand."""
        return self.spot_usd if spot else self.on_demand_usd

    @property
    def lacking_bytes(self) -> float:
        """Return the memory that is missing."""
        return max(0.0, self.device_memory_bytes - self.capacity_bytes)

    def amount(self, objective: str, *, spot: bool = False) -> float | None:
        """Return the figure that `objective` (cost, time, energy, memory) is about; None if not known."""
        found: float | None = getattr(self, figure_of(objective, spot=spot))
        return found


def figure_of(objective: str, *, spot: bool) -> str:
    """Return the name of the figure that `objective` is about."""
    cost = "spot_usd" if spot else "on_demand_usd"
    return {"time": "wall_s", "energy": "wall_energy_j", "memory": "device_memory_bytes"}.get(objective, cost)


def quote(run: Run, profile: Profile | None = None, *, prices: Iterable[Offer] | None = None) -> Quote:
    """Return what `run` takes from start to end, and what that costs on each offer.

    Args:
        run: With a GPU; its provider and region, where stated, narrow the offers.
        profile: One step of it; FineGauge's prediction by default.
        prices: The offers to price; those of the catalogue for this GPU by default.
    """
    if profile is None:
        from finegauge.prediction.predictor import predict

        profile = predict(run)
    run = profile.run
    batch = shape(run)
    num_steps, num_epochs = batch.steps_total, epochs_of(run, batch)
    if prices is None:
        prices = offers(run.gpu, provider=run.provider, region=run.region if run.provider else None)
    intensity = grid(run.region, run.provider)
    overhead = run.pue or site_overhead(run.provider, run.region).pue
    wall, boards_j, wall_j, kilograms = Breakdown({}), None, None, None
    costs: tuple[OfferCost, ...] = ()
    services: tuple[ManagedPrice, ...] = ()
    if num_steps is not None:
        step = _step_quantities(run, profile)
        power = board_power(gpu(run.gpu or ""), DATASHEET, run.power_limit_w)
        known = power is not None and step.step_j  # else nothing is known about the power of the board
        wall, joules = run_totals(run, step, num_steps, num_epochs, power.idle_w if power and known else 0.0)
        if known:
            boards_j, wall_j = joules, joules * WALL_POWER_RATIO
            kilograms = emissions_kg(wall_j, overhead, intensity.kg_per_kwh)
        costs = priced(run, wall.total, prices)
        tokens = num_steps * micro_steps(run) * run.data_parallel * batch.real_tokens
        if batch.num_samples is not None:  # all samples of all epochs, without padding
            tokens = num_epochs * batch.num_samples * batch.real_tokens / batch.samples
        services = managed(run, tokens)
    return Quote(
        num_steps=num_steps,
        wall_s=wall.total if num_steps is not None else None,
        wall_time_s=wall,
        boards_energy_j=boards_j,
        wall_energy_j=wall_j,
        emissions_kg=kilograms,
        grid=intensity.name,
        grid_kg_per_kwh=intensity.kg_per_kwh,
        pue=overhead,
        cheapest_on_demand=cheapest(costs),
        cheapest_spot=cheapest(costs, spot=True),
        num_offers=len(costs),
        offers=costs,
        managed=services,
        warnings=_warnings(run, costs) if num_steps is not None else _unknown_end(profile, prices),
    )


def _step_quantities(run: Run, profile: Profile) -> StepQuantities:
    at_update = profile.phase_memory_bytes.under("optimizer")  # the phase that holds all gradients
    held = at_update if at_update.parts else profile.device_memory_bytes
    forward_s = profile.step_time_s["forward"] / profile.step_sequences if profile.step_sequences else 0.0
    return StepQuantities(
        step_s=profile.step_time_s.total,
        sequence_forward_s=forward_s,
        checkpoint_bytes=checkpoint_bytes(run, held),
        step_j=profile.step_energy_j.total,
    )


def checkpoint_bytes(run: Run, held: Breakdown) -> float:
    """Return what a save writes: what trains, and the state of its optimizer.

    Trainable weights are as large as their gradients in `held`, a rank's memory at the optimizer step; a
    full fine-tune writes the model whole.
    """
    written = held["gradients"] if run.trains_adapters else held["weights"]
    return written + held["optimizer"]


def run_totals(
    run: Run, step: StepQuantities, num_steps: int, num_epochs: float, idle_w: float
) -> tuple[Breakdown, float]:
    """Return the seconds from start to end, by part, and the joules of all boards.

    Around the steps the boards are idle.
    """
    wall = Breakdown.of(
        startup=run.startup_s,
        steps=num_steps * step.step_s,
        evaluation=times_of(run.eval_steps, num_steps, num_epochs)
        * run.eval_samples
        * step.sequence_forward_s,
        saves=times_of(run.save_steps, num_steps, num_epochs * run.saves_per_epoch)
        * step.checkpoint_bytes
        / SAVE_BYTES_PER_S,
    )
    around_s = wall.total - wall["steps"]
    return wall, num_steps * step.step_j + around_s * idle_w * run.all_gpus


def emissions_kg(wall_j: float, overhead: float, kg_per_kwh: float) -> float:
    """Return the CO2 equivalent of `wall_j` joules at the wall of a site with that overhead (PUE)."""
    return wall_j / KWH_J * overhead * kg_per_kwh


def priced(run: Run, wall_s: float, offered: Iterable[Offer]) -> tuple[OfferCost, ...]:
    """Return every offer that holds the run, cheapest on demand first, unknown prices last.

    Slices of a card and nodes that are too small are left out. A seller of single cards is asked for as many
    of one machine as the run takes; such machines are not joined.
    """
    hours, instances, found = wall_s / HOUR_S, run.num_nodes, []
    for one in offered:
        offer = holding(one, ceil(run.all_gpus / instances))
        if offer is None or (offer.is_scaled and instances > 1):
            continue
        usd, spot_usd = offer.on_demand_usd_per_h, offer.spot_usd_per_h
        if usd is not None:
            usd = hours * usd * instances
        if spot_usd is not None:
            spot_usd = hours * (1 + SPOT_REPEATED_FRACTION) * spot_usd * instances
        idle_gpus = offer.gpu_count * instances - run.all_gpus
        found.append(
            OfferCost(
                offer.provider, offer.instance_type, offer.region, offer.tier, offer.date, offer.outlier,
                offer.gpu_count, instances, idle_gpus, offer.on_demand_usd_per_h, offer.spot_usd_per_h,
                usd, spot_usd, offer.is_ranked, offer.source, offer.is_scaled, offer,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=_rank))


def _rank(offer: OfferCost) -> tuple[bool, float, str, str]:
    usd = offer.on_demand_usd
    return usd is None, usd or 0.0, offer.provider, offer.instance_type


def cheapest(priced_offers: Iterable[OfferCost], *, spot: bool = False) -> OfferCost | None:
    """Return the ranked offer with the lowest cost, or None where no price is known.

    Where nothing ranked is on offer (a marketplace asked for by name), the lowest of the rest
    that is no outlier.
    """
    found, least = None, (True, inf)
    for one in priced_offers:
        usd = one.spot_usd if spot else one.on_demand_usd
        if usd is None or one.outlier:
            continue
        place = not one.is_ranked, usd
        if found is None or place < least:
            found, least = one, place
    return found


def managed(run: Run, billed_tokens: float) -> tuple[ManagedPrice, ...]:
    """Return what managed services would bill for the run's training tokens, cheapest first.

    Only supervised fine-tuning is compared; prices of low trust and prices that hold only
    for longer contexts are left out.
    """
    figures = model(run.model)
    parameters = figures.parameters or figures.published_parameters
    if run.phase != "sft" or not parameters:
        return ()
    found = []
    for price in managed_prices(figures.name, parameters):
        low = price.usd_per_million_tokens or price.lowest_usd_per_million_tokens
        high = price.usd_per_million_tokens or price.highest_usd_per_million_tokens
        longer = price.max_context is not None and price.max_context > LONG_CONTEXT_TOKENS
        if low is None or high is None or price.trust == "low" or longer or "RL" in price.method:
            continue
        low_usd, high_usd = low * billed_tokens / 1e6, high * billed_tokens / 1e6
        whose = price.provider, price.model, price.method
        found.append(ManagedPrice(*whose, billed_tokens, low_usd, high_usd, price.date, price.trust))
    return tuple(sorted(found, key=attrgetter("low_usd")))


def _unknown_end(profile: Profile, offered: Iterable[Offer]) -> tuple[str, ...]:
    least = cheapest(priced(profile.run, HOUR_S, offered))
    each = ""
    if least and least.on_demand_usd and profile.tokens_per_s:
        usd = least.on_demand_usd / HOUR_S / profile.tokens_per_s * 1e6
        rate = f"{'~' * least.is_scaled}${usd:{',.2f' if usd >= 0.1 else '.2g'}}"
        each = f": {rate} per 1 M tokens on demand from {least.provider}"
    return (
        f"The number of steps is not known, so neither is the cost{each}. Add num_samples=…, max_steps=… or "
        "a dataset that 'finegauge datasets' lists.",
    )


def _warnings(run: Run, costs: tuple[OfferCost, ...]) -> tuple[str, ...]:
    ranked = [cost.offer for cost in costs if cost.offer and cost.is_ranked]
    if not ranked:
        where = f" from {run.provider}" if run.provider else ""
        return (f"No price is known for {run.all_gpus} x {run.gpu}{where}.",)
    stale = stale_warning(ranked)
    return (stale,) if stale else ()
