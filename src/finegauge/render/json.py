"""The JSON that every command prints under `--json`; `render/schemas/` holds its schemas."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.planning.capacity import Capacity, MeasuredCapacity
from finegauge.planning.estimate import Estimate
from finegauge.planning.quote import ManagedPrice, PricedOffer, Quote
from finegauge.prediction.collectives import exchanges
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.profile import Path
from finegauge.render.bars import Table
from finegauge.render.report import Report

if TYPE_CHECKING:
    from finegauge.run.run import Run

SCHEMA_VERSION = 1
MOST_OFFERS = 20


def document(
    command: str,
    run: "Run",
    results: Sequence[Mapping[str, Any]],
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return the whole JSON text of one command: the question, `more` about it, then the results."""
    from finegauge import __version__

    fields = run.fields()
    fields.pop("gpu")
    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "finegauge_version": __version__,
        "run": fields,
        "origins": dict(run.origins),
        "warnings": list(run.warnings),
        **(more or {}),
        "results": list(results),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """Return the whole answer about one run on one GPU."""
    return {
        **verdict_json(estimate),
        "micro_batch_size": estimate.run.micro_batch_size,
        "max_micro_batch_size": estimate.capacity.value,
        "profile": estimate.profile.to_json(),
        "bottleneck": estimate.profile.bottleneck,
        "quote": None if estimate.verdict == WILL_NOT_FIT else quote_json(estimate.quote),
    }


def explain_json(estimate: Estimate, formulas: Mapping[Path, str]) -> dict[str, Any]:
    """Return the answer about one run on one GPU, with the formula of each part."""
    whole = estimate_json(estimate)
    whole["formulas"] = {" / ".join(path): formula for path, formula in formulas.items()}
    whole["exchanged"] = [volume._asdict() for volume in exchanges(estimate.profile.run)]
    return whole


def verdict_json(estimate: Estimate) -> dict[str, Any]:
    """Return whether one run fits one GPU."""
    profile = estimate.profile
    return {
        "gpu": profile.run.gpu,
        "verdict": estimate.verdict,
        "out_of_memory_fraction": estimate.out_of_memory_fraction,
        "safe_micro_batch_size": estimate.safe_micro_batch_size,
        "device_memory_bytes": profile.device_memory_bytes.total,
        "capacity_bytes": profile.capacity_bytes,
    }


def unsupported_json(gpu: str, reason: str) -> dict[str, Any]:
    """Return the result for a GPU that has no answer, with the reason."""
    return {"gpu": gpu, "verdict": "unsupported", "reason": reason}


def capacity_json(gpu: str | None, capacity: Capacity) -> dict[str, Any]:
    """Return the largest value that fits one GPU, with the memory on both sides of the border."""
    profile, above = capacity.profile, capacity.first_that_fails
    return {
        "gpu": gpu,
        "field": capacity.field,
        "value": capacity.value,
        "limit": capacity.limit,
        "at_limit": capacity.at_limit,
        "num_probes": capacity.num_probes,
        "device_memory_bytes": profile.device_memory_bytes.total if profile else None,
        "step_time_s": profile.step_time_s.total if profile else None,
        "tokens_per_s": profile.tokens_per_s if profile else None,
        "samples_per_s": profile.samples_per_s if profile else None,
        "first_that_fails_bytes": above.device_memory_bytes.total if above else None,
    }


def measured_capacity_json(found: MeasuredCapacity) -> dict[str, Any]:
    """Return the largest value that a trial has shown to fit, with the bounds and every trial."""
    return {
        **capacity_json(found.capacity.profile.run.gpu if found.capacity.profile else None, found.capacity),
        "bounds": found.bounds._asdict(),
        "untried": found.untried,
        "trials": [
            {
                "micro_batch_size": trial.run.micro_batch_size,
                "outcome": trial.outcome,
                "reason": trial.reason,
                "peak_memory_bytes": trial.peak_memory_bytes.total or None,
                "step_time_s": trial.step_time_s.total or None,
            }
            for trial in found.trials
        ],
    }


def quote_json(quote: Quote) -> dict[str, Any]:
    """Return the bill; unknown figures are null, offers the cheapest first."""
    on_demand, spot = quote.cheapest_on_demand, quote.cheapest_spot
    return {
        "num_steps": quote.num_steps,
        "wall_s": quote.wall_s,
        "wall_time_s": quote.wall_time_s.to_json(),
        "boards_energy_j": quote.boards_energy_j,
        "wall_energy_j": quote.wall_energy_j,
        "emissions_kg": quote.emissions_kg,
        "grid": quote.grid,
        "grid_kg_per_kwh": quote.grid_kg_per_kwh,
        "pue": quote.pue,
        "cheapest_on_demand": offer_json(on_demand) if on_demand else None,
        "cheapest_spot": offer_json(spot) if spot else None,
        "num_offers": len(quote.offers),
        "offers": [offer_json(priced) for priced in quote.offers[:MOST_OFFERS]],
        "managed": [managed_json(price) for price in quote.managed],
        "warnings": list(quote.warnings),
    }


def offer_json(priced: PricedOffer) -> dict[str, Any]:
    """Return one offer with its cost."""
    offer = priced.offer
    return {
        "provider": offer.provider,
        "instance_type": offer.instance_type,
        "region": offer.region,
        "tier": offer.tier,
        "date": offer.date,
        "outlier": offer.outlier,
        "gpu_count": offer.gpu_count,
        "instances": priced.instances,
        "idle_gpus": priced.idle_gpus,
        "on_demand_usd_per_h": offer.on_demand_usd_per_h,
        "spot_usd_per_h": offer.spot_usd_per_h,
        "on_demand_usd": priced.on_demand_usd,
        "spot_usd": priced.spot_usd,
    }


def managed_json(price: ManagedPrice) -> dict[str, Any]:
    """Return what a managed service would bill."""
    return {
        "provider": price.provider,
        "model": price.model,
        "method": price.method,
        "billed_tokens": price.billed_tokens,
        "low_usd": price.low_usd,
        "high_usd": price.high_usd,
        "date": price.date,
        "trust": price.trust,
    }


def estimate_answer(asked: "Run", estimates: "Sequence[Estimate]", unsupported: Mapping[str, str]) -> str:
    """Return memory, time, cost and energy, once per GPU; last the GPUs that have no answer, with why."""
    results = [estimate_json(one) for one in estimates]
    results += [unsupported_json(name, reason) for name, reason in unsupported.items()]
    return document("estimate", asked, results)


def check_answer(estimates: "Sequence[Estimate]") -> str:
    """Return whether a run fits, once per GPU."""
    return document("check", estimates[0].run, [verdict_json(one) for one in estimates])


def explain_answer(estimates: "Sequence[Estimate]") -> str:
    """Return every byte and second with its formula, once per GPU."""
    from finegauge.prediction.explanation import formulas

    return document("explain", estimates[0].run, [explain_json(one, formulas(one.run)) for one in estimates])


def capacity_answer(command: str, found: "Sequence[tuple[Run, Capacity]]") -> str:
    """Return the largest value that fits, once per GPU; `command` is max-batch or max-length."""
    results = [capacity_json(str(run.gpu), capacity) for run, capacity in found]
    return document(command, found[0][0], results)


def read_answer(content: Mapping[str, Any]) -> str:
    """Return what files mean: `results`, and what was exported."""
    from finegauge import __version__

    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "read",
        "finegauge_version": __version__,
        **content,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def read_result(file: str, run: "Run") -> dict[str, Any]:
    """Return one run as plain values; a name that the catalogue lacks is a warning here."""
    from finegauge.errors import FineGaugeError

    warnings = list(run.warnings)
    try:
        run.check_names()
    except FineGaugeError as error:
        warnings.append(str(error))
    origins = {name: run.origins.get(name, "") for name in run.fields()}
    return {"file": file, "run": run.fields(), "origins": origins, "warnings": warnings}


def report_json(report: Report, written: Sequence[str]) -> str:
    """Return the whole JSON text.

    Args:
        report: What is shown.
        written: The files that were written.
    """
    whole = {
        "schema_version": 1,
        "command": "report",
        "title": report.title,
        "verdict": report.verdict,
        "tone": report.tone,
        "facts": [fact._asdict() for fact in report.facts],
        "figures": [
            {"name": one.key, "title": one.title, "caption": one.caption, **_table(one.table)}
            for one in report.drawings
        ],
        "tables": [_table(table) for part in report.sections for table in part.tables],
        "written": list(written),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _table(table: Table) -> dict[str, Any]:
    """Return a table's texts."""
    return {
        "table": table.caption,
        "columns": list(table.headings),
        "rows": [list(row) for row in table.rows],
    }
