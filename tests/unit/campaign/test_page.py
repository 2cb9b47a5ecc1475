"""docs/campaigns.md: its sweep is one, and it names every key."""

import re
from pathlib import Path
from shutil import copytree

import pytest

from finegauge.campaign.sweep import KEYS, MEASURED_KEYS, PREDICTED_KEYS, read_sweep

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "campaigns.md").read_text("utf-8")


def test_the_sweep_of_the_page_is_one(tmp_path: Path) -> None:
    copytree(ROOT / "examples" / "models", tmp_path / "models")
    found = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    path = tmp_path / "sweep.yaml"
    path.write_text(found[1], "utf-8")
    sweep = read_sweep(str(path))
    assert sweep.name == "batch and length"
    measured = [cell for cell in sweep.cells if cell.estimator == "measured" and cell.run is not None]
    predicted = [cell for cell in sweep.cells if cell.estimator == "predicted" and cell.run is not None]
    assert len(measured) == 2 * 3 * 1 * 3  # sizes, switches, data, repetitions
    assert {cell.run.gpu for cell in predicted if cell.run} == {"a40", "h100"}
    assert not [cell.refusal for cell in sweep.cells if cell.estimator == "measured" and cell.refusal]


@pytest.mark.parametrize("key", sorted({*KEYS, *PREDICTED_KEYS, *MEASURED_KEYS}))
def test_every_key_is_named(key: str) -> None:
    assert f"`{key}`" in PAGE
