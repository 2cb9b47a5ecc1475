"""The search finds the winner that brute force finds, in 200 random cases.

Brute force asks `predict` and `quote` for every run of a space, one by one. A case is a random part of
that space with random limits, searched anew; its winner is the smallest of what brute force knows of it.
"""

from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from finegauge.planning.search import search
from finegauge.planning.selection import Choice, Wanted
from finegauge.planning.space import Space, space_of
from finegauge.planning.whatif import Standing
from finegauge.run.run import Run
from tests.unit.planning.brute_force import brute_force, runs_of

CASES_PER_RUN = 50
GPUS = ("L4", "L40S", "H100-SXM5-80GB")
PROVIDERS = ("aws", "gcp", "runpod")
COUNTS = (1, 2)
CHECKPOINTING = ("none", "full")
SHARDING = ("none", "fsdp")
RUNS = {
    "dense": Run(
        model="tinyllama", method="lora", num_samples=4000, seq_len=1024, gradient_accumulation_steps=8
    ),
    "lengths": Run(
        model="llama-3.2-3b", method="lora", dataset="commonsense_15k", seq_len=512, micro_batch_size=8
    ),
    "experts": Run(
        model="mixtral", method="qlora", num_samples=1000, seq_len=512, gradient_accumulation_steps=4,
        transformers_version="4.57",
    ),
    "state space": Run(model="mamba-130m", method="full", max_steps=300, micro_batch_size=4),
}  # fmt: skip


@cache
def whole(name: str) -> tuple[Space, tuple[Standing, ...]]:
    """Return the whole space of a run, and every plan of it by brute force."""
    run = RUNS[name]
    space = space_of(run, gpus=GPUS, providers=PROVIDERS, max_gpus=max(COUNTS), keep_method=True)
    layouts = tuple({"sharding": sharding, "cpu_offload": "none"} for sharding in SHARDING)
    space = space._replace(
        layouts=layouts, packing=(run.packing,), optimizers=(run.optimizer,), divisions=space.divisions[:1]
    )
    sizes = [size for size in (1, 2, 4, 8) if run.global_batch_size % size == 0]
    runs = runs_of(
        run,
        {
            "gpu": GPUS,
            "num_gpus": COUNTS,
            "sharding": SHARDING,
            "activation_checkpointing": CHECKPOINTING,
            "micro_batch_size": sizes,
        },
    )
    return space, brute_force(runs).candidates


def some(random: Random, values: Any) -> list[Any]:
    """Return a random part of `values`, at least one."""
    return random.sample(list(values), random.randint(1, len(values)))


def figure(plan: Standing, minimise: str, *, spot: bool) -> float:
    """Return what is to be minimised; nan if it is not known."""
    value = plan.outcome.amount(minimise, spot=spot)
    return float("nan") if value is None else value


def keeps(plan: Standing, limits: Wanted, *, spot: bool) -> bool:
    """Return whether a plan keeps the limits, told plainly."""
    usd = plan.outcome.usd(spot=spot)
    return (
        plan.outcome.out_of_memory_fraction < limits.risk_fraction
        and usd is not None
        and (limits.budget_usd is None or usd <= limits.budget_usd)
        and (limits.within_s is None or plan.outcome.wall_s <= limits.within_s)
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_search_finds_the_winner_of_brute_force(name: str) -> None:
    space, everything = whole(name)
    random, found_any = Random(name), 0
    for _ in range(CASES_PER_RUN):
        gpus, providers, checkpointing, sharding = (
            some(random, values) for values in (GPUS, PROVIDERS, CHECKPOINTING, SHARDING)
        )
        part = space._replace(
            offers=tuple(o for o in space.offers if o.gpu in gpus and o.provider in providers),
            checkpointing=tuple(checkpointing),
            layouts=tuple(one for one in space.layouts if one["sharding"] in sharding),
        )
        plans = [
            plan
            for plan in everything
            if plan.run.gpu in gpus
            and plan.run.provider in providers
            and plan.run.activation_checkpointing in checkpointing
            and plan.run.sharding in sharding
        ]
        minimise, spot = random.choice(["cost", "time", "energy"]), random.random() < 0.3
        walls = sorted(plan.outcome.wall_s for plan in plans) or [1.0]
        limits = Wanted(
            within_s=random.choice([None, random.choice(walls) * 1.01]),
            budget_usd=random.choice([None, random.uniform(0.05, 5.0)]),
            risk_fraction=random.choice([0.01, 0.05, 0.3]),
            minimise=minimise,  # type: ignore[arg-type]
            spot=spot,
        )
        values = [figure(p, minimise, spot=spot) for p in plans if keeps(p, limits, spot=spot)]
        expected = np.nanmin(values) if values and not np.isnan(values).all() else None
        choice = Choice.of(space.run, search(part), limits)
        figures = choice.column(minimise)[choice.keeps_limits()]
        winner = np.nanmin(figures) if figures.size and not np.isnan(figures).all() else None
        assert (winner is None) == (expected is None)
        if expected is not None and winner is not None:
            assert winner == pytest.approx(expected, rel=1e-9)
            found_any += 1
    assert found_any > CASES_PER_RUN / 4


@pytest.mark.parametrize("name", RUNS)
def test_every_plan_is_what_predict_and_quote_say(name: str) -> None:
    space, everything = whole(name)

    def key(plan: Standing) -> tuple[object, ...]:
        run = plan.run
        return (
            run.gpu, run.provider, run.num_gpus, run.num_nodes, run.sharding,
            run.activation_checkpointing, run.micro_batch_size,
        )  # fmt: skip

    result = search(space)
    theirs = {key(plan): plan for plan in everything}
    rows = Random(name).sample(range(len(result.columns["wall_s"])), 40)
    for plan in map(result.candidate, rows):
        other = theirs[key(plan)]
        assert plan.run.gradient_accumulation_steps == other.run.gradient_accumulation_steps
        assert plan.outcome.wall_s == pytest.approx(other.outcome.wall_s, rel=1e-9)
        assert plan.outcome.device_memory_bytes == pytest.approx(other.outcome.device_memory_bytes, rel=1e-9)
        assert plan.outcome.wall_energy_j == pytest.approx(other.outcome.wall_energy_j, rel=1e-9)
        for spot in (False, True):
            mine, best = (one.outcome.usd(spot=spot) for one in (plan, other))
            assert mine is None or (best is not None and mine >= best * (1 - 1e-9))  # a region may be dearer


def test_the_space_is_small_but_not_trivial() -> None:
    sizes = [len(whole(name)[1]) for name in RUNS]
    assert all(60 < size < 2000 for size in sizes)
    assert sum(1 for _ in product(RUNS, range(CASES_PER_RUN))) == 200
