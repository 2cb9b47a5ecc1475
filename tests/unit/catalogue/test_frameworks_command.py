"""`finegauge frameworks`: every row of the table, by name, as text and as JSON that its schema describes."""

import json

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from finegauge.catalogue.frameworks import frameworks as rows
from finegauge.cli.catalogue import frameworks
from finegauge.errors import InputError
from finegauge.render.schema import schema


def test_every_row_is_listed() -> None:
    shown = CliRunner().invoke(frameworks, []).stdout
    assert all(row.name in shown for row in rows())
    assert max(map(len, shown.splitlines())) <= 100


def test_a_name_chooses_and_its_defaults_are_told() -> None:
    shown = CliRunner().invoke(frameworks, ["torchtune"]).stdout
    assert "fully shard" in shown
    assert "from 0.3: optimizer_implementation=fused" in " ".join(shown.split())
    assert "Axolotl" not in shown


def test_json_is_what_its_schema_says() -> None:
    found = json.loads(CliRunner().invoke(frameworks, ["--json"]).stdout)
    Draft202012Validator(schema("frameworks")).validate(found)
    by_name = {one["name"]: one for one in found["frameworks"]}
    assert by_name["Axolotl"]["export"] == "axolotl"
    assert by_name["vLLM"]["behaviours"] == ["serving_engine"]
    assert len(by_name) == len(rows())


def test_an_unknown_name_is_one_sentence() -> None:
    with pytest.raises(InputError, match="No framework is called 'nosuch'"):
        CliRunner().invoke(frameworks, ["nosuch"], catch_exceptions=False)
