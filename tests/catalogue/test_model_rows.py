"""The models: enough of them, each with figures that count to what it says."""

import csv
import json

import pytest

from finegauge.catalogue.models import ModelFigures, models
from finegauge.errors import UnsupportedError
from finegauge.model.families import architecture, supported_model_types
from tests.shared import SHARED, needs_shared

ALL = list(models().values())
COUNTED = {
    each.name for each in ALL if each.parameters and each.config["model_type"] in supported_model_types()
}


def test_at_least_150_models() -> None:
    assert len(ALL) >= 150
    assert len(COUNTED) >= 100


@pytest.mark.parametrize("figures", ALL, ids=lambda figures: figures.name)
def test_row_is_complete_and_its_count_exact(figures: ModelFigures) -> None:
    assert figures.source
    assert "from memory" not in figures.source  # a page that was looked at
    assert figures.checked in ("2026-11-20", "2026-11-22", "2026-11-23", "2026-11-24", "2026-11-28")
    assert isinstance(figures.config["model_type"], str)
    assert figures.parameters is None or figures.parameters > 1e6
    assert bool(figures.parameters) == bool(figures.parameters_from)
    assert all(alias == alias.casefold() for alias in figures.aliases)
    if figures.name in COUNTED:
        assert architecture(figures.config).num_parameters == figures.parameters


def test_every_name_means_one_model() -> None:
    owners: dict[str, str] = {}
    for figures in ALL:
        for name in (figures.name.casefold(), *figures.aliases):
            assert owners.setdefault(name, figures.name) == figures.name, name


def test_figures_only() -> None:
    for figures in ALL:
        for part in (figures.config, figures.config.get("text_config", {})):
            assert not {"bos_token_id", "eos_token_id", "auto_map", "transformers_version"} & part.keys()


@needs_shared
def test_trimming_changes_no_shape() -> None:
    folder = SHARED / "data" / "hf_configs"
    with (folder / "INDEX.csv").open(encoding="utf-8") as file:
        files = {row["hf_model_id"]: row["file"] for row in csv.DictReader(file)}
    assert files.keys() == {name for name, row in models().items() if row.checked == "2026-11-20"}
    for name, filename in files.items():
        full = json.loads((folder / filename).read_text("utf-8"))
        full.setdefault("model_type", models()[name].config["model_type"])
        try:
            expected = architecture(full)
        except UnsupportedError:
            continue
        assert architecture(models()[name].config) == expected, name
