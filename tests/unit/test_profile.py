"""Breakdowns add up, cut to a depth, and compare at the finest depth both sides know."""

from typing import Any

import pytest

from finegauge.profile import Breakdown, Difference, Profile, Source, compare
from finegauge.run.run import Run


def profile(**quantities: Any) -> Profile:
    run = Run(model="llama-2-7b", method="full", gpu="A40")
    return Profile(run=run, source=Source(kind="measured", name="test"), **quantities)


def test_parts_add_up_at_every_depth() -> None:
    step = Breakdown.add_up(
        [(("forward", "moe", "w1"), 1.0), (("forward", "moe", "w2"), 2.0), (("backward", "moe", "w1"), 4.0)]
    )
    assert (step.total, step.depth) == (7.0, 3)
    assert step.at(1).parts == {("forward",): 3.0, ("backward",): 4.0}
    assert step.at(2).total == step.at(3).total == step.total
    assert step["forward"] == 3.0
    assert step.under("forward").parts == {("moe", "w1"): 1.0, ("moe", "w2"): 2.0}
    assert step.under("forward", "moe")["w2"] == 2.0


def test_a_breakdown_leaves_out_empty_parts_and_lists_the_largest_first() -> None:
    memory = Breakdown.of(weights=2.0, gradients=0.0, activations=3.0)
    assert [path for path, _ in memory] == [("activations",), ("weights",)]
    assert (memory + memory).total == 10.0
    assert memory.to_json() == {"weights": 2.0, "activations": 3.0}


def test_compare_meets_at_the_finest_common_depth() -> None:
    ours = profile(step_time_s=Breakdown({("forward", "moe"): 1.0, ("backward", "moe"): 3.0}))
    theirs = profile(step_time_s=Breakdown({("forward",): 2.0, ("backward",): 2.0}))
    differences = compare(ours, theirs)
    assert [d.path for d in differences] == [(), ("forward",), ("backward",)]
    assert [d.error_ratio for d in differences] == [0.0, -0.5, 0.5]


def test_compare_leaves_out_what_one_side_does_not_know() -> None:
    ours = profile(step_time_s=Breakdown.of(forward=1.0), peak_memory_bytes=Breakdown.of(weights=1.0))
    theirs = profile(peak_memory_bytes=Breakdown({("total",): 4.0}))
    assert compare(ours, theirs)
    assert all(d.quantity == "peak_memory_bytes" for d in compare(ours, theirs))


def test_an_error_against_nothing_is_not_a_number() -> None:
    assert Difference("step_time_s", (), 1.0, 0.0).error_ratio is None


def test_rates_are_derived_from_the_step() -> None:
    run = Run(model="llama-2-7b", method="full", gpu="A40")
    step = Profile(
        run=run, source=Source(kind="measured", name="test"), step_time_s=Breakdown.of(forward=2.0),
        step_tokens=4096, step_sequences=4, step_flops=1e14, peak_flops_per_s=1e14,
    )  # fmt: skip
    assert (step.tokens_per_s, step.samples_per_s) == (2048, 2)
    assert step.mfu_fraction == pytest.approx(0.5)
    assert profile().tokens_per_s == 0
