"""The soak of stores at full length: a thousand kills, a thousand damages; `make slow`."""

import os
from pathlib import Path

from tests.unit.campaign.soak import damages, kills

NUMBER = int(os.environ.get("FINEGAUGE_SOAK", "1000"))


def test_a_thousand_kills(tmp_path: Path) -> None:
    soak = kills(tmp_path, NUMBER, seed=11)
    print(soak)
    assert soak.num_interrupted > 0


def test_a_thousand_damages(tmp_path: Path) -> None:
    soak = damages(tmp_path, NUMBER, seed=12)
    print(soak)
    assert soak.num_interrupted > 0
