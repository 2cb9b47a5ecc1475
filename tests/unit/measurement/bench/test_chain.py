"""Many uses forward, then all of them backward: what is divided by what, and what is left behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from finegauge.measurement.bench.timing import MAX_USES, MIN_USES, REPEATS, Bench, Timing, Use, timed

ALL = ("backward", "backward_frozen", "backward_first")


class _Counted(Bench):
    """A bench whose clock says 1 s for each forward call's pass and 2 s for each backward's."""

    def seconds(self, *calls: Callable[[], Any]) -> list[float]:
        """Run the calls for what they do, not for how long."""
        for call in calls:
            call()
        return [float(i + 1) for i in range(len(calls))]


@pytest.fixture
def bench() -> Bench:
    return _Counted(torch.device("cpu"), "fp32")


def test_timing_is_the_quickest_and_says_how_far_the_median_lies_above() -> None:
    assert Timing.of([1.0, 1.5, 3.0]) == (1.0, 0.5)


def test_seconds_are_of_one_use(bench: Bench) -> None:
    made: list[Use] = []

    def make() -> Use:
        x, weight = bench.rows(2, 4), bench.weight(3, 4)
        made.append(Use(lambda: torch.nn.functional.linear(x, weight), (x,), (weight,)))
        return made[-1]

    found = timed(make, bench, ALL)
    assert len(made) == MIN_USES  # a pass takes longer than CHAIN_S
    assert found.directions["forward"].seconds == 1.0 / len(made)
    assert {found.directions[name].seconds for name in ALL} == {2.0 / len(made)}
    assert (found.input_bytes, found.weight_bytes, found.output_bytes) == (32.0, 48.0, 24.0)
    assert all(leaf.grad is None for use in made for leaf in (*use.inputs, *use.weights))


def test_quick_uses_are_many_but_not_without_end() -> None:
    bench = Bench(torch.device("cpu"), "fp32")
    uses = 0

    def make() -> Use:
        nonlocal uses
        uses += 1
        x = bench.rows(2)
        return Use(lambda: x + 1, (x,))

    assert timed(make, bench, ("backward",)).directions["backward"].seconds > 0
    assert MIN_USES < uses <= MAX_USES


def test_what_has_no_backward_is_timed_forward_alone(bench: Bench) -> None:
    calls = 0

    def forward() -> Tensor:
        nonlocal calls
        calls += 1
        return torch.ones(1)

    found = timed(lambda: Use(forward, ()), bench, ())
    assert list(found.directions) == ["forward"]
    assert calls == 1 + 2 + (1 + REPEATS) * MIN_USES
