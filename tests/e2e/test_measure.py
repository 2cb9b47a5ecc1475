"""`finegauge measure` on the real thing in miniature, and the largest batch by trials."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.cli.measurements import byte_size
from finegauge.render.schema import schema
from finegauge.store.journal import Trials
from tests.e2e.commands import ROOT, finegauge

pytestmark = pytest.mark.extras

SCHEMA = schema("measure")
CAPACITY_SCHEMA = schema("max-batch")
TINY = str(ROOT / "examples" / "tiny_moe.yaml")
SMALL = ("seq_len=32", "micro_batch_size=1")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def document(out: str) -> Any:
    whole = json.loads(out)
    Draft202012Validator(SCHEMA).validate(whole)
    return whole


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_a_tiny_mixture_is_taken_apart(tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"
    options = (
        "--steps",
        "3",
        "--warmup",
        "1",
        "--threads",
        "1",
        "--layers",
        "--experts",
        "--store",
        str(store),
    )
    done = finegauge("measure", TINY, *SMALL, *options, "--json")
    assert (done.code, done.err) == (0, "")
    (result,) = document(done.out)["results"]
    measured, predicted = result["measured"], result["predicted"]
    assert result["outcome"] == "completed"
    parts = measured["time_breakdown_s"]
    assert sum(parts.values()) == pytest.approx(measured["step_time_s"])
    assert {"forward / moe / gate_up_proj", "backward / attention / q_proj"} <= parts.keys()
    assert "optimizer / parameters / adamw" in parts
    assert len(measured["step_times_s"]) == 3
    assert measured["peak_memory_bytes"] == pytest.approx(predicted["peak_memory_bytes"], rel=0.03)
    for layer in measured["observations"]["experts"]["layers"].values():
        assert sum(layer["tokens_per_expert"]) == 32 * 2
    assert "micro" in result["not_predicted"]
    (kept,) = Trials(str(store)).profiles()
    assert kept.step_time_s.total == measured["step_time_s"]
    assert kept.run.seq_len == 32


def test_out_of_memory_is_an_answer_with_its_exit_code(tmp_path: Path) -> None:
    done = finegauge("measure", TINY, "micro_batch_size=64", "--memory-limit", "150MB", "--steps", "1")
    assert done.code == 20
    assert done.out.startswith("Out of memory: ")
    assert "Predicted: " in done.out


def test_the_largest_batch_by_trials(tmp_path: Path) -> None:
    figures = {"model_type": "llama", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**figures, "num_hidden_layers": 1, "num_attention_heads": 4}), "utf-8")
    question = (str(config), "weights_dtype=fp32", "seq_len=64", "gradient_accumulation_steps=1")
    done = finegauge("max-batch", *question, "--measured", "--memory-limit", "80MB", "--json")
    assert (done.code, done.err) == (0, "")
    whole = json.loads(done.out)
    Draft202012Validator(CAPACITY_SCHEMA).validate(whole)
    (result,) = whole["results"]
    assert result["value"] > 0
    assert 1 <= len(result["trials"]) <= 4
    assert all(trial["micro_batch_size"] < result["bounds"]["high"] for trial in result["trials"])
    fitting = [t["micro_batch_size"] for t in result["trials"] if t["outcome"] == "completed"]
    assert max(fitting) == result["value"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measure", TINY, "--device", "cuda"), "--device cpu"),
        (("measure", TINY, "--memory-limit", "much"), "'much' is no size; write 2GiB"),
        (("measure", TINY, "--steps", "0"), "0 is not in the range"),
        (("measure", "nowhere.yaml"), "nowhere.yaml"),
        (("measure", TINY, "lora_rank=4"), "lora_rank is stated"),
        (("measure", TINY, "phase=grpo"), "num_generations=8 answers to each prompt"),
        (("measure", TINY, "--task-folder", "nowhere"), "'nowhere' does not exist"),
        (
            ("max-batch", TINY, "phase=grpo", "--limit", "4", "--gpu", "a40"),
            "multiples of 8; raise the limit",
        ),
    ],
)
def test_a_wrong_question_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = finegauge(*arguments)
    assert done.code == 64
    assert said in done.err
    assert done.err.count("\n") == 1


def test_tasks_without_a_tokenizer_are_refused_by_the_trial() -> None:
    done = finegauge("measure", TINY, *SMALL, "--tasks", "gsm8k")
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert "tokenizer: FOLDER" in done.err


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2.0 * 2**30), ("500MB", 5e8), ("1e9", 1e9), ("1.5 kib", 1536.0), ("7b", 7.0)]
)
def test_sizes_are_read(text: str, size: float) -> None:
    assert byte_size(text) == size
