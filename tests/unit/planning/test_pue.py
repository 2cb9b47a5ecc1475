"""A site's own PUE takes the place of its provider's, in one bill and in a search."""

import pytest

from finegauge.planning.plan import plan
from finegauge.planning.quote import quote
from finegauge.planning.selection import Wanted
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

RUN = Run(model="tinyllama", method="lora", gpu="A40", num_samples=1000, seq_len=256)


def test_emissions_follow_the_stated_pue() -> None:
    own, usual = RUN.replace(pue=1.1), quote(RUN, predict(RUN))
    stated = quote(own, predict(own))
    assert stated.pue == 1.1
    assert stated.wall_energy_j == usual.wall_energy_j
    assert usual.emissions_kg is not None
    assert stated.emissions_kg == pytest.approx(usual.emissions_kg * 1.1 / usual.pue)


def test_a_search_counts_with_it_too() -> None:
    wanted = Wanted(gpus=("A40",), max_gpus=1, keep_method=True)
    found = plan(RUN.replace(pue=2.0), wanted)
    assert found.winner is not None
    assert found.quote is not None
    assert found.winner.outcome.emissions_kg == pytest.approx(found.quote.emissions_kg)
    assert found.quote.pue == 2.0
