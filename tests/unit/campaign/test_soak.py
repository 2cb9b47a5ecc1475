"""A slice of the soak in every test run; `make slow` has the whole."""

from pathlib import Path

from tests.unit.campaign.soak import damages, kills


def test_killed_drivers_and_readers_lose_and_double_nothing(tmp_path: Path) -> None:
    soak = kills(tmp_path, 12, seed=1)
    assert soak.num_kept > 0  # the kills fell into the work


def test_flipped_bits_and_cut_files_cost_the_lines_they_hit(tmp_path: Path) -> None:
    soak = damages(tmp_path, 12, seed=2)
    assert soak.num_kept > 12
