"""Which plan is taken, why others are not, and what a little more of a limit buys."""

from typing import Any

import pytest

from finegauge.planning.selection import (
    BEATEN,
    BUDGET,
    MEMORY,
    TIME,
    UNKNOWN,
    alternatives,
    nearest_miss,
    relaxations,
    taken,
)
from tests.unit.planning.tables import GIB, Row, choice

NAN = float("nan")


def near(value: float) -> Any:
    """Return what equals `value` to within rounding."""
    return pytest.approx(value)


CHEAP = Row(usd=10, wall_s=1000)
FAST = Row(usd=30, wall_s=200, gpu="H100", energy_j=0.5)


def test_the_least_of_what_is_asked_for() -> None:
    for minimise, expected in (("cost", 0), ("time", 1), ("energy", 1)):
        found = choice(CHEAP, FAST, minimise=minimise)
        assert found.best(found.allowed()) == expected


def test_limits_are_kept() -> None:
    large = Row(usd=1, wall_s=1, memory_gib=50)
    risky = Row(usd=2, wall_s=2, risk=0.05)
    unpriced = Row(usd=NAN, wall_s=3)
    found = choice(large, risky, unpriced, CHEAP, FAST, within_s=500)
    assert found.best(found.allowed()) == 4
    found = choice(large, risky, unpriced, CHEAP, FAST, budget_usd=20, minimise="time")
    assert found.best(found.allowed()) == 3
    found = choice(large, CHEAP, FAST, within_s=500, budget_usd=20)
    assert found.best(found.allowed()) is None


def test_spot_has_its_own_budget() -> None:
    found = choice(CHEAP, FAST, budget_usd=16, spot=True, minimise="time")
    assert found.best(found.allowed()) == 1


def test_of_equals_the_one_that_changes_least() -> None:
    edited = Row(usd=10.0, wall_s=1000, optimizer="adamw_8bit", method="qlora")
    plain = Row(usd=10.05, wall_s=1000)
    found = choice(edited, plain)
    assert found.best(found.allowed()) == 1
    dearer = plain._replace(usd=10.4)
    found = choice(edited, dearer)
    assert found.best(found.allowed()) == 0


def test_the_method_stays_unless_another_saves_over_a_quarter() -> None:
    kept = Row(usd=10, wall_s=1000, method="lora")
    found = taken(choice(kept, Row(usd=8, wall_s=1000, method="qlora")))
    assert (found.row, found.choice.sensible.tolist()) == (0, [True, False])
    assert found.note == "The method stays lora: qlora would save 20 % of the cost, less than a quarter."
    found = taken(choice(kept, Row(usd=7, wall_s=1000, method="qlora")))
    assert (found.row, found.choice.sensible.tolist()) == (1, [True, True])
    assert found.note == "The method changes from lora to qlora: it saves 30 % of the cost."


def test_the_method_changes_where_no_plan_with_it_is_allowed() -> None:
    found = taken(
        choice(Row(usd=10, wall_s=1, method="lora"), Row(usd=9, wall_s=1, method="qlora"), budget_usd=9.5)
    )
    assert (found.row, found.note) == (
        1,
        "The method changes from lora to qlora: no plan with lora is allowed.",
    )
    assert taken(choice(CHEAP)).note == ""


def test_of_equals_in_cost_the_faster() -> None:
    faster = Row(usd=10.05, wall_s=500, optimizer="adamw_8bit")
    found = choice(CHEAP, faster)
    assert found.best(found.allowed()) == 1


def test_alternatives_lose_by_the_figure_or_by_a_limit() -> None:
    rows = (
        CHEAP,
        FAST,
        Row(usd=5, wall_s=9000, gpu="L4"),
        Row(usd=90, wall_s=100, gpu="B200"),
        Row(usd=1, wall_s=1, gpu="T4", memory_gib=22, capacity_gib=16),
        Row(usd=1, wall_s=1, gpu="T4", memory_gib=20, capacity_gib=16),
        Row(usd=NAN, wall_s=1, gpu="X"),
    )
    by_gpu = {one.value: one for one in alternatives(choice(*rows, within_s=1000, budget_usd=50), 0)["gpu"]}
    assert by_gpu["H100"].reason == BEATEN
    assert by_gpu["H100"].over_fraction == near(2.0)
    assert (by_gpu["L4"].reason, by_gpu["L4"].over_fraction) == (TIME, near(8.0))
    assert (by_gpu["B200"].reason, by_gpu["B200"].over_fraction) == (BUDGET, near(0.8))
    assert (by_gpu["T4"].reason, by_gpu["T4"].over_fraction) == (MEMORY, near(0.25))
    assert by_gpu["X"].reason == UNKNOWN
    assert "A40" not in by_gpu


def test_the_nearest_miss_breaks_the_limit_that_is_closest() -> None:
    found = choice(CHEAP, FAST, within_s=190, budget_usd=20)
    everything = found.column("time") > 0
    assert nearest_miss(found, everything) == (1, BUDGET, near(0.5))  # 5 % of time as well
    found = choice(CHEAP, FAST, within_s=900, budget_usd=20)
    assert nearest_miss(found, everything) == (0, TIME, near(1000 / 900 - 1))
    assert nearest_miss(choice(CHEAP, within_s=500), everything[:1]) == (0, TIME, near(1.0))
    found = choice(CHEAP._replace(usd=NAN), within_s=1e9)
    assert nearest_miss(found, everything[:1]) == (0, UNKNOWN, None)
    small = [row._replace(memory_gib=m) for row, m in ((CHEAP, 50.0), (FAST, 44.0))]
    assert nearest_miss(choice(*small), everything) == (1, MEMORY, near(0.1))


def test_more_time_or_dollars_are_told_where_they_save() -> None:
    slow = Row(usd=7, wall_s=1200)
    found = relaxations(choice(CHEAP, slow, FAST, within_s=1000), 0, margin_ratio=1.0)
    (time,) = [one for one in found if one.limit == "time"]
    assert (time.saves, time.saved_fraction) == ("cost", near(0.3))
    assert time.more_fraction == near(0.2)
    assert not [one for one in found if one.limit == "budget"]  # 30 dollars are thrice as much
    nearly = FAST._replace(usd=15)
    (budget,) = relaxations(choice(CHEAP, nearly), 0, margin_ratio=1.0)
    assert (budget.limit, budget.saves, budget.saved_fraction) == ("budget", "time", near(0.8))
    assert budget.more_fraction == near(0.5)


def test_a_little_memory_is_told_with_its_margin() -> None:
    larger = Row(usd=8, wall_s=800, memory_gib=38.0, risk=0.3)
    other_card = Row(usd=1, wall_s=800, memory_gib=41.0, gpu="H100")
    far = Row(usd=1, wall_s=100, memory_gib=80.0)
    found = relaxations(choice(CHEAP, larger, other_card, far), 0, margin_ratio=1.1)
    (memory,) = [one for one in found if one.limit == "memory"]
    assert memory.more_bytes == near((38.0 * 1.1 - 40.0) * GIB)
    assert memory.saved_fraction == near(0.2)


def test_more_risk_is_told_with_the_risk_it_is() -> None:
    risky = Row(usd=5, wall_s=500, risk=0.08)
    (risk,) = [one for one in relaxations(choice(CHEAP, risky), 0, margin_ratio=1.0) if one.limit == "risk"]
    assert risk.saved_fraction == near(0.5)
    assert risk.more_fraction == near(0.6)


def test_nothing_is_told_that_saves_little() -> None:
    assert (
        relaxations(choice(CHEAP, CHEAP._replace(usd=9.7, wall_s=1010), within_s=1000), 0, margin_ratio=1)
        == ()
    )


def test_nobody_books_a_cluster_for_minutes() -> None:
    cluster = Row(usd=5, wall_s=400, num_nodes=4)
    assert choice(CHEAP, cluster).best(choice(CHEAP, cluster).allowed()) == 0
    long = [row._replace(wall_s=row.wall_s * 10) for row in (CHEAP, cluster)]
    assert choice(*long).best(choice(*long).allowed()) == 1


def test_a_step_keeps_its_samples() -> None:
    packed = Row(usd=1, wall_s=10, samples=80.0)
    found = choice(CHEAP, packed, packed._replace(usd=5, samples=9.0))
    assert found.best(found.allowed()) == 2


def test_a_host_holds_what_is_offloaded_to_it() -> None:
    full = Row(usd=1, wall_s=10, method="full", cpu_offload="all")  # 6.7 B x 16 bytes, on one card of 40 GiB
    large = full._replace(usd=5, num_gpus=2)
    adapters = full._replace(usd=8, method="qlora")
    found = choice(full, large, adapters, CHEAP)
    assert found.workable.tolist() == [False, True, True, True]


def test_adapters_do_not_become_a_full_fine_tune() -> None:
    full = Row(usd=1, wall_s=10, method="full")
    found = choice(CHEAP, full)
    assert found.best(found.allowed()) == 0
    (one,) = alternatives(found, 0)["method"]
    assert (one.value, one.reason, one.over_fraction) == ("full", BEATEN, near(-0.9))
    found = found.of(found.run.replace(method="full"), found.result, found.wanted)
    assert found.best(found.allowed()) == 1


def test_what_has_no_figure_to_minimise_is_told() -> None:
    thirsty = Row(usd=1, wall_s=10, energy_j=NAN, gpu="B300")
    found = choice(CHEAP, thirsty, minimise="energy", within_s=5000)
    assert found.best(found.allowed()) == 0
    (one,) = alternatives(found, 0)["gpu"]
    assert (one.reason, one.over_fraction) == (UNKNOWN, None)
