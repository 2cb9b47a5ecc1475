"""No input ends in an internal error, takes long or much memory, or moves the cursor of who reads it.

Of `python -m tests.fuzz` a slice runs here, and thousands in `make slow`. What was found is below.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import finegauge
from tests.fuzz.__main__ import CODES, CONTROL, spoil, warmed
from tests.fuzz.corpus import GOOD, RUN, seeds
from tests.unit.catalogue.test_device_profile import PROFILE

NEO = {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100,
       "max_position_embeddings": 128, "intermediate_size": None, "window_size": 256}  # fmt: skip
MACHINE = PROFILE.to_json()
LAW = {"schema_version": 1, "name": "mine", "form_name": "affine", "half_widths": {}, "held": [],
       "scores": {"num_points": 9, "rmse": 0.1, "mape_fraction": 0.1}, "extrapolation": None,
       "smaller_half": "", "interval": None, "batch_range": [1, 9], "context": {}, "table": "",
       "fitted": ""}  # fmt: skip
OFFERS = ("provider,instance_type,gpu,gpu_printed,gpu_count,vcpus,ram_bytes,region,on_demand_usd_per_h,"
          "spot_usd_per_h,tier,date,source,outlier,notes")  # fmt: skip


def _deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


FOUND: dict[str, tuple[str, Any, str, str]] = {  # file, content, command, what is said
    "deep attention types": (
        "c.json",
        {**NEO, "attention_types": _deep(400)},
        "estimate {} method=lora",
        "deep",
    ),
    "a word for how often": (
        *("c.json", {**NEO, "attention_types": [[["global"], "b"]]}),
        *("estimate {} method=lora --gpu a40", "attention_types='b' is not a whole number"),
    ),
    "a device profile as JSON": ("p.json", MACHINE, "gpus show {} --json", '"readings": ['),
    "a denormal in a profile": ("p.json", {**MACHINE, "memory_bytes": 5e-324}, "gpus show {}", "above zero"),
    "a denormal in a law": (
        *("l.json", {**LAW, "constants": {"a": 5e-324, "c": 0, "d": 0}}),
        *(f"estimate {RUN} --law {{}}", "is not a number within ±1e30"),
    ),
    "a law that divides by zero": (
        *("l.json", {**LAW, "constants": {"a": 0, "c": 0, "d": 0}}),
        *(f"estimate {RUN} --law {{}}", "has no value at batch=2"),
    ),
    "prices that are none": (
        "cache/offers.csv",
        f"{OFFERS}\nx,,A40,A40,1,,,any,[],,,,,,\n",
        "offers --json",
        "[",
    ),
    "control characters in a name": ("a.yaml", "model: x\n", "check a\u202eb.yaml a\x1b[31m.yaml", "No file"),
    "a key of a million parts": ("j.toml", f"a{'.a' * 900_000} = 1\n", "read {}", "more than 100 dots"),
    "two lengths of one option": (
        "run.sh",
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_length 1024 2048",
        "max-length {} --gpu a40",
        "is not a whole number",
    ),
    "experts of a dense model": (
        "config.json",
        {
            "model_type": "llama",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_hidden_layers": 12,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": "9" * 400,
        },
        "report {} --gpu a40 -o report.md method=lora",
        "Wrote report.md",
    ),
    "half a character": ("r.json", '{"model": "a\\ud800", "method": "lora"}', "read {}", "half a character"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    file, content, command, says = FOUND[name]
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    (tmp_path / RUN).write_text(GOOD, "utf-8")
    done = finegauge(*command.format(file).split())
    assert done.code in CODES, done.err
    assert says in done.out + done.err
    assert not CONTROL.search(done.out + done.err)


VALUES: tuple[Any, ...] = (None, -1, 1e308, float("nan"), "x", [], {"a": 1}, True, ["x", {}], "\ud800")


@pytest.mark.parametrize("command", ["estimate", "plan", "explain"])
def test_an_answer_given_back_with_any_value_swapped(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.properties.test_readers_fuzz import paths_of, with_value

    monkeypatch.chdir(tmp_path)
    (tmp_path / RUN).write_text(GOOD, "utf-8")
    said = json.loads(finegauge(command, RUN, "--gpu", "a40", "--json").out)
    places = paths_of(said)
    for number, place in enumerate(places[:: max(1, len(places) // 60)]):
        value = VALUES[number % len(VALUES)]
        (tmp_path / "x.json").write_text(json.dumps(with_value(said, place, value)), "utf-8")
        done = finegauge("report", "x.json", "-o", "x.md")
        assert done.code in CODES, (place, value, done.err)


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each batch of inputs has a fork of its own")
def test_a_slice_of_spoiled_inputs(tmp_path: Path) -> None:
    assert list(spoil(range(400), 1, warmed(seeds(tmp_path)))) == []
