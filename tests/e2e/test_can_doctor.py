"""`finegauge can` and `doctor`, end to end: what fits a GPU, what this machine has."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.answers import catalogue
from finegauge.answers.catalogue import EXTRAS
from finegauge.render.schema import schema
from tests.e2e.commands import ROOT, finegauge


def found(command: str, *words: str) -> dict[str, Any]:
    """Return what a command prints as JSON, held against its schema."""
    done = finegauge(command, *words, "--json")
    assert (done.code, done.err) == (0, "")
    whole: dict[str, Any] = json.loads(done.out)
    Draft202012Validator(schema(command)).validate(whole)
    return whole


def test_what_fits_is_what_max_batch_and_check_say() -> None:
    (card,) = found("can", "Qwen/Qwen3-8B", "--gpu", "4090")["results"]
    assert (card["gpu"], card["num_gpus"]) == ("RTX 4090", 1)
    whole = [one for one in card["methods"] if one["cpu_offload"] == "none"]
    by_method = {one["method"]: one for one in whole if not one["kernels"]}
    for fused in [one for one in whole if one["kernels"]]:  # whose logits are never there whole
        assert fused["kernels"] == ["unsloth"]
        plainly = by_method[fused["method"]]["lengths"]
        more = [one["safe_micro_batch_size"] for one in fused["lengths"]]
        assert more[2] > plainly[2]["safe_micro_batch_size"] > 0
    for method in ("qlora", "lora"):
        at = {one["seq_len"]: one for one in by_method[method]["lengths"]}
        words = ("Qwen/Qwen3-8B", f"method={method}", "seq_len=1024", "dataset=", "--gpu", "4090")
        (most,) = json.loads(finegauge("max-batch", *words, "--json").out)["results"]
        assert at[1024]["max_micro_batch_size"] == most["value"] > 0
        safe = at[1024]["safe_micro_batch_size"]
        assert 0 < safe <= most["value"]
        assert finegauge("check", *words, f"micro_batch_size={safe}").code == 0
        assert finegauge("check", *words, f"micro_batch_size={safe + 1}").code in (10, 20)
        assert [one["safe_micro_batch_size"] for one in at.values()] == sorted(
            (one["safe_micro_batch_size"] for one in at.values()), reverse=True
        )
    assert by_method["qlora"]["tokens_per_s"] > 0
    assert not any(one["max_micro_batch_size"] for one in by_method["full"]["lengths"])
    offloaded = next(one for one in card["methods"] if one["cpu_offload"] == "all")
    held = 2 + 2 + 4 + 8 + 4  # bytes of a weight: itself, its gradients as made and in fp32, moments, in fp32
    assert offloaded["host_bytes"] == pytest.approx(held * 8.19e9, rel=0.01)


def test_what_fits_several_gpus_is_a_table() -> None:
    done = finegauge("can", "Qwen/Qwen3-32B", "--gpu", "4090:2")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("Qwen3-32B on 2 x RTX 4090 at 2,048 tokens: QLoRA is safe, LoRA does not fit")
    assert lines[0].endswith("full only with offload.")
    heads = [line.split("  ")[0] for line in lines[3:13]]
    assert heads[0] == "2 x RTX 4090"
    assert {"QLoRA", "QLoRA, FSDP", "QLoRA, FSDP, Liger", "LoRA", "LoRA, FSDP", "full, FSDP"} <= set(heads)
    row = next(line for line in lines if line.startswith("QLoRA, FSDP "))
    assert re.search(r"QLoRA, FSDP +\d+( \(\d+\))? .* no +no ", row)
    assert all(len(line) <= 100 for line in lines)


def test_lengths_end_with_the_positions_of_the_model() -> None:
    results = found("can", "llama-2-7b", "seq_len=1000", "--gpu", "h100,t4")["results"]
    assert [one["gpu"] for one in results] == ["H100-SXM5-80GB", "T4"]
    assert [at["seq_len"] for at in results[0]["methods"][0]["lengths"]] == [512, 1000, 1024, 2048, 4096]


def test_doctor_says_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found("doctor")["findings"]
    assert {"GPU", "device profile", "host memory", "cores", "disk", "Hub"} <= {
        one["name"] for one in findings
    }
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name in ("torch", "mcp") else True)
    extras = {one["name"]: one for one in found("doctor")["findings"] if one["group"] == "extras"}
    assert extras["mcp"]["state"] == "missing"
    assert extras["measure"]["way_out"] == "pip install torch==2.13.0 'finegauge[measure]'"
    assert extras["data"]["state"] == "works"
    done = finegauge("doctor")
    assert "2 extras are not installed" in done.out.splitlines()[0]
    assert "no mcp; pip install 'finegauge[mcp]'" in done.out


def test_doctor_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdef")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    done = finegauge("doctor")
    assert "HF_TOKEN is set" in " ".join(done.out.split())
    assert "hf_abcdef" not in done.out


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(ROOT) / "pyproject.toml").read_text("utf-8"))["project"]
    stated = project["optional-dependencies"]
    assert set(EXTRAS) == {name for name, needed in stated.items() if needed} - {"dev", "dev-core", "docs"}
    for name, (packages, _) in EXTRAS.items():
        own = {re.split(r"[\[<>=!~ ]", line)[0] for line in stated[name]} - {"finegauge"}
        imported = {"nvidia-ml-py": "pynvml"}
        assert {imported.get(one, one) for one in own} <= set(packages.split()), name


def test_doctor_takes_a_relative_cache_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "not-there")
    assert "free for not-there" in " ".join(finegauge("doctor").out.split())
