"""Grids, overheads and links."""

import pytest

from finegauge.catalogue.gpus import interconnects
from finegauge.catalogue.offers import grid, pue
from finegauge.catalogue.tables import table
from finegauge.errors import UnknownNameError


@pytest.mark.parametrize(
    ("region", "provider", "kg_per_kwh"),
    [
        (None, None, 0.475),
        ("any", "lambda", 0.475),
        ("us-east-1", "aws", 0.4158),
        ("us-east-1", None, 0.4158),
        ("eastus", "azure", 0.4158),
        ("europe-west9", "gcp", 0.034),
        ("nowhere-1", "aws", 0.475),
        ("FRA", None, None),
        ("France", None, None),
        ("US-VA", None, None),
        ("CA-Quebec", None, 0.0312),
    ],
)
def test_grid(region: str | None, provider: str | None, kg_per_kwh: float | None) -> None:
    found = grid(region, provider)
    assert 0.01 < found.kg_per_kwh < 1
    assert kg_per_kwh is None or found.kg_per_kwh == pytest.approx(kg_per_kwh)
    assert found.source


def test_country_by_code_and_name_agree() -> None:
    assert grid("DEU") == grid("germany")
    assert len(table("grid_carbon.csv")) == 405


def test_unknown_place() -> None:
    with pytest.raises(UnknownNameError, match="No grid named 'Atlantis'"):
        grid("Atlantis")


def test_pue() -> None:
    assert pue("aws").pue == 1.135
    assert pue("gcp", "us-east4").pue == 1.08
    assert pue("lambda") == pue()
    assert pue().year == 2025


def test_interconnects() -> None:
    (p4d,) = [link for link in interconnects("A100-SXM4-40GB", "aws") if link.instance == "p4d.24xlarge"]
    assert p4d.inter_bytes_per_s == 400e9 / 8 / 8
    assert p4d.gpus_per_node == 8
    assert len(interconnects()) >= 124
