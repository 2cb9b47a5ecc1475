"""The search without a search: every run of a small space through `predict` and `quote`, one by one.

It is slow and obvious, and what the vectorised search is held against.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, UnsupportedError
from finegauge.planning.quote import Outcome, Quote, quote
from finegauge.planning.whatif import Standing
from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import probability_out_of_memory, verdict
from finegauge.profile import Profile
from finegauge.run.run import Run

LABELS = (
    *("method", "gpu", "num_gpus", "provider", "sharding", "activation_checkpointing", "optimizer"),
    *("micro_batch_size", "packing", "tensor_parallel", "pipeline_parallel", "cpu_offload"),
)
COLUMNS = (
    *("on_demand_usd", "spot_usd", "wall_s", "wall_energy_j", "device_memory_bytes", "capacity_bytes"),
    *("out_of_memory_fraction", "samples_per_step", "num_nodes"),
)


class BruteForce(NamedTuple):
    """What the loop found, in the form of a SearchResult."""

    columns: Mapping[str, NDArray[np.float64]]
    labels: Mapping[str, tuple[tuple[object, ...], NDArray[np.intp]]]
    candidates: tuple[Standing, ...]
    num_candidates: int
    num_evaluated: int

    def candidate(self, index: int) -> Standing:
        """Return one plan."""
        return self.candidates[index]


def runs_of(run: Run, choices: Mapping[str, Sequence[Any]]) -> Iterator[Run]:
    """Yield `run` with every combination of `choices` that makes a run with the same global batch."""
    batch = run.global_batch_size
    for values in product(*choices.values()):
        changes: dict[str, Any] = dict(zip(choices, values, strict=True))
        changes |= {"data_parallel_replicate": None, "data_parallel_shard": None}
        try:
            made = run.replace(origin="plan", gradient_accumulation_steps=1, **changes)
            steps, rest = divmod(batch, made.micro_batch_size * made.data_parallel)
            if not rest and (made.sharding == "none" or made.num_gpus > 1):
                yield made.replace(origin="plan", gradient_accumulation_steps=steps)
        except FieldError:
            continue


def brute_force(runs: Iterable[Run]) -> BruteForce:
    """Return every run that can be answered, each once per provider that offers its machines."""
    rows, asked = [], 0
    for run in runs:
        for provider in _providers(run):
            asked += 1
            try:
                rows.append(_row(run.replace(origin="plan", provider=provider)))
            except (FieldError, UnsupportedError):
                continue
    candidates = tuple(candidate for candidate, _, _ in rows)
    return BruteForce(
        columns={name: np.array([column[name] for _, column, _ in rows]) for name in COLUMNS},
        labels={name: _labels([label[name] for _, _, label in rows]) for name in LABELS},
        candidates=candidates,
        num_candidates=asked,
        num_evaluated=len(rows),
    )


def _providers(run: Run) -> list[str]:
    """Return who offers the machines of `run` at a price that is ranked."""
    bill = quote(run, _nothing(run))
    return sorted({priced.provider for priced in bill.offers if priced.is_ranked})


def _nothing(run: Run) -> Profile:
    """Return a step that takes nothing, to ask for offers only."""
    from finegauge.profile import Source

    return Profile(run=run, source=Source("predicted", "nothing"))


def _row(run: Run) -> tuple[Standing, dict[str, float], dict[str, object]]:
    """Return one plan: itself, its figures, and what it is labelled with."""
    profile = predict(run)
    bill = quote(run, profile)
    figures = _figures(run, profile, bill)
    return candidate_of(run, profile, bill, figures), figures, {name: getattr(run, name) for name in LABELS}


def _figures(run: Run, profile: Profile, bill: Quote) -> dict[str, float]:
    """Return what a plan takes, nan where it is not known."""
    known = {
        "on_demand_usd": bill.on_demand_usd,
        "spot_usd": bill.spot_usd,
        "wall_s": bill.wall_s,
        "wall_energy_j": bill.wall_energy_j,
        "device_memory_bytes": profile.device_memory_bytes.total,
        "capacity_bytes": profile.capacity_bytes,
        "out_of_memory_fraction": probability_out_of_memory(profile),
        "num_nodes": float(run.num_nodes),
        "samples_per_step": shape(run).samples * run.gradient_accumulation_steps * run.data_parallel,
    }
    return {name: float("nan") if value is None else value for name, value in known.items()}


def _labels(values: Sequence[object]) -> tuple[tuple[object, ...], NDArray[np.intp]]:
    """Return the different values, and for each plan which of them it has."""
    known = tuple(dict.fromkeys(values))
    place = {value: n for n, value in enumerate(known)}
    return known, np.array([place[value] for value in values], dtype=np.intp)


def candidate_of(run: Run, profile: Profile, bill: Quote, figures: Mapping[str, float]) -> Standing:
    """Return the plan as a search would."""
    on_demand = bill.cheapest_on_demand
    took = Outcome(
        verdict=verdict(figures["out_of_memory_fraction"]),
        device_memory_bytes=figures["device_memory_bytes"],
        capacity_bytes=figures["capacity_bytes"],
        out_of_memory_fraction=figures["out_of_memory_fraction"],
        step_time_s=profile.step_time_s.total,
        wall_s=figures["wall_s"],
        on_demand_usd=bill.on_demand_usd,
        spot_usd=bill.spot_usd,
        wall_energy_j=bill.wall_energy_j,
        emissions_kg=bill.emissions_kg,
    )
    return Standing(run, took, figures["samples_per_step"], on_demand.offer if on_demand else None)
