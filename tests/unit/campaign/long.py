"""At full length, by `make slow`: a thousand kills and damages of stores, every cell of shipped sweeps."""

import os
from pathlib import Path

import pytest

from finegauge.campaign.axes import PREDICTED
from finegauge.campaign.sweep import read_sweep
from tests.unit.campaign.soak import damages, kills
from tests.unit.campaign.test_shipped import NAMES, hold_answered

NUMBER = int(os.environ.get("FINEGAUGE_SOAK", "1000"))


def test_a_thousand_kills(tmp_path: Path) -> None:
    soak = kills(tmp_path, NUMBER, seed=11)
    print(soak)
    assert soak.num_interrupted > 0


def test_a_thousand_damages(tmp_path: Path) -> None:
    soak = damages(tmp_path, NUMBER, seed=12)
    print(soak)
    assert soak.num_interrupted > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_prediction_has_an_answer(name: str, tmp_path: Path) -> None:
    hold_answered(read_sweep(name).only(PREDICTED), tmp_path)
