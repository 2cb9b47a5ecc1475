"""`finegauge read`, and the options for what a launcher is given, as a user types them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import MIXTRAL, finegauge

TRAINING = "base_model: Qwen/Qwen3-8B\nadapter: lora\nlora_r: 8\nhub_token: hf_SECRETSECRET\nlora_rr: 3\n"
LAUNCHER = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\nfsdp_config: {}\n"
SCHEMA = schema("read")


def document(*words: str) -> dict[str, Any]:
    """Return what `finegauge read` prints under --json, checked against its schema."""
    done = finegauge("read", *words, "--json")
    assert (done.code, done.err) == (0, "")
    whole: dict[str, Any] = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(whole)
    return whole


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text(TRAINING)
    (tmp_path / "acc.yaml").write_text(LAUNCHER)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_json_has_every_field_with_its_origin() -> None:
    done = finegauge("read", "train.yaml", "acc.yaml", "sequence_len=64", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    (result,) = document["results"]
    assert document["command"] == "read"
    assert set(result["run"]) == set(result["origins"])
    assert (result["run"]["lora_rank"], result["origins"]["lora_rank"]) == (8, "file")
    assert (result["run"]["seq_len"], result["origins"]["seq_len"]) == (64, "command line")
    assert (result["run"]["sharding"], result["origins"]["sharding"]) == ("fsdp", "accelerate file acc.yaml")
    assert result["origins"]["adapter_dtype"] == "framework default: Axolotl"
    assert "SECRET" not in done.out
    assert "'lora_rr'" in " ".join(result["warnings"])


@pytest.mark.usefixtures("folder")
def test_table_and_options() -> None:
    done = finegauge("read", "train.yaml", "--gpus", "2", "--deepspeed", "ds.json")
    assert done.code == 0
    assert "zero2" in done.out
    assert "DeepSpeed file ds.json" in done.out
    assert "SECRET" not in done.out
    alone = finegauge("read", "acc.yaml")
    assert "num_gpus" in alone.out
    assert finegauge("estimate", "train.yaml", "--accelerate", "acc.yaml", "--gpu", "h100").code == 0
    assert "full" in finegauge("read", "train.yaml", "method=full").out


def test_a_run_file_and_a_model_unknown_to_the_catalogue(folder: Path) -> None:
    assert "8x7B" in finegauge("read", MIXTRAL).out
    (folder / "new.yaml").write_text("model_name_or_path: nobody/new-model-1b\nuse_peft: true\n")
    done = finegauge("read", "new.yaml", "--json")
    assert done.code == 0
    assert "No model named 'nobody/new-model-1b'" in json.loads(done.out)["results"][0]["warnings"][-1]
    refused = finegauge("estimate", "new.yaml")
    assert (refused.code, refused.out) == (64, "")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("read", "lora_r=8"), "No file is named"),
        (("read", "nowhere.yaml"), "No file 'nowhere.yaml'"),
        (("read", "train.yaml", "acc.yaml", "--accelerate", "acc.yaml"), "Two files of accelerate"),
        (("read", "train.yaml", "acc.yaml", "ds.json"), "contradicts"),
        (("read", "train.yaml", "--gpus", "0"), "is no number of GPUs"),
        (("estimate", "acc.yaml"), "--accelerate 'acc.yaml'"),
    ],
)
def test_bad_questions_are_one_line(words: tuple[str, ...], sentence: str) -> None:
    done = finegauge(*words)
    assert (done.code, done.out) == (64, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_json_keeps_its_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len(document("train.yaml", MIXTRAL, "acc.yaml")["results"]) == 2
    assert document("acc.yaml")["results"][0]["fields"]["num_gpus"] == 4
    assert document("ds.json")["results"] == [
        {"file": "ds.json", "fields": {"sharding": "zero2", "cpu_offload": "none"}}
    ]


def test_translated_for_another_framework(folder: Path) -> None:
    done = finegauge("read", "train.yaml", "acc.yaml", "lora_alpha=16", "--export", "trl", "-o", "new")
    assert (done.code, done.err) == (0, "")
    assert "Wrote new/trl.yaml" in done.out
    assert "Start it with: trl sft --config trl.yaml --accelerate_config accelerate.yaml" in done.out
    assert "SECRET" not in (folder / "new" / "trl.yaml").read_text()
    again = finegauge("read", "train.yaml", "--export", "trl", "-o", "new")
    assert (again.code, again.out) == (64, "")
    assert "already; name another folder, or add --overwrite" in again.err
    whole = document("train.yaml", "--export", "skypilot", "-o", "new", "--overwrite")
    assert whole["exported"]["paths"] == ["new/axolotl.yaml", "new/skypilot.yaml"]
    assert whole["results"][0]["run"]["lora_rank"] == 8


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--export", "trl"), "add -o DIR"),
        (("-o", "new"), "go with --export"),
        (("--export", "tlr", "-o", "new"), "Did you mean 'trl'"),
        (("acc.yaml", MIXTRAL, "--export", "trl", "-o", "new"), "one training file, not 2"),
        (("tensor_parallel=2", "--export", "llamafactory", "-o", "new"), "cannot say tensor_parallel=2"),
    ],
)
def test_exports_that_cannot_be_are_one_line(words: tuple[str, ...], sentence: str) -> None:
    done = finegauge("read", "train.yaml", *words)
    assert (done.code, done.out) == (64, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
