"""`finegauge whatif`: one row per change, JSON by its schema, errors in one line."""

import json

from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import BLACKMAMBA, MIXTRAL, ROOT, finegauge

SCHEMA = schema("whatif")


def test_the_largest_gain_stands_first() -> None:
    done = finegauge("whatif", MIXTRAL)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("Current run: fits, 28")
    rows = lines[lines.index("") + 3 :]
    assert rows[0].startswith("packing")
    assert "Will not fit: RTX 4090" in done.out
    assert all(len(line) <= 100 for line in lines)


def test_named_changes_are_all_answered() -> None:
    done = finegauge("whatif", MIXTRAL, "full", "zero3", "h100", "seq_len=512")
    assert done.code == 0
    assert all(text in done.out for text in ("full", "H100-SXM5-80GB", "seq_len=512", "zero3: there is one"))


def test_json_keeps_its_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for run in (MIXTRAL, BLACKMAMBA):
        done = finegauge("whatif", run, "--json")
        assert done.err == ""
        Draft202012Validator(SCHEMA).validate(json.loads(done.out))


def test_a_run_of_unknown_length_says_so() -> None:
    done = finegauge("whatif", MIXTRAL, "8bit-optimizer", "--set", "dataset=none.csv")
    assert done.code == 64
    whole = finegauge("whatif", str(ROOT / "examples" / "tiny_moe.yaml"), "lora", "--gpu", "a40")
    assert whole.code == 0
    assert "10,000 samples" in whole.out


def test_an_unknown_switch_is_one_line() -> None:
    done = finegauge("whatif", MIXTRAL, "chekpointing")
    assert done.code == 64
    assert done.err.count("\n") == 1
    assert "Did you mean 'checkpointing'" in done.err


def test_the_list_needs_no_run() -> None:
    done = finegauge("whatif", "--list")
    assert done.code == 0
    assert "8bit-optimizer" in done.out


def test_fields_of_the_run_are_options_too() -> None:
    stated = finegauge("whatif", MIXTRAL, "full", "--set", "seq_len=256", "--set", "lora_rank=8")
    assert finegauge("whatif", MIXTRAL, "full", "--seq-len", "256", "--rank=8") == stated
    assert (stated.code, stated.err) == (0, "")
