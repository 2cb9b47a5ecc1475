"""The table of frameworks: fields of a run, modules that there are, names that add up."""

import re
from importlib import import_module
from typing import Any

import pytest

from finegauge.catalogue.frameworks import Framework, framework_of, frameworks, named_in
from finegauge.formats.measurement_tables import CONFIGURATION
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

ROWS = {row.name: row for row in frameworks()}
NOTHING = dict.fromkeys(CONFIGURATION, "")


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_says_what_a_run_can_hold(row: Framework) -> None:
    assert row in named_in(row.name) or not row.words
    assert bool(row.source) == any(change.defaults for change in row.defaults)
    for change in row.defaults:
        assert set(change.where) <= set(CONFIGURATION)
        assert all(re.compile(pattern) for pattern in change.where.values())
        method = "full" if change.where.get("method") == "full" else "lora"
        sharded = {"num_gpus": 2} if "sharding" in change.defaults else {}
        divided = {"num_gpus": 2, "tensor_parallel": 2} if "sequence_parallel" in change.defaults else {}
        Run.from_fields({"model": "llama-2-7b", "method": method} | sharded | divided | dict(change.defaults))


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.module], ids=lambda row: row.name)
def test_what_reads_or_writes_a_framework_is_there(row: Framework) -> None:
    module, _, constant = row.module.partition(":")
    found = import_module(f"finegauge.formats.{module}")
    assert row.exports or hasattr(found, constant or "FORMAT")
    assert not row.signatures or getattr(found, constant or "FORMAT").name == row.name


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.source], ids=lambda row: row.name)
def test_a_row_cites_what_its_rules_rest_on(row: Framework) -> None:
    based = [other for other in ROWS.values() if other.sources and other.defaults[:1] == row.defaults[:1]]
    cited = [line for other in (row, *based) for line in other.sources]
    assert cited
    assert all(re.match(r"github\.com/[\w.-]+/[\w.-]+.*\(\d{4}-\d\d-\d\d\)", line) for line in cited)
    assert set(row.inferred) <= set().union(*(change.defaults for change in row.defaults))


def test_what_rests_on_rows_alone_is_less_sure() -> None:
    fields: dict[str, Any] = {"model": "llama-2-7b", "method": "full", "gpu": "A100-SXM4-80GB"}
    inferred, read = (predict(Run(**fields, framework=name)).source for name in ("InternEvo", "HF Trainer"))
    assert framework_of("InternEvo").inferred == ("kernels",)
    assert (inferred.time_interval, inferred.memory_interval) != (read.time_interval, read.memory_interval)
    assert "its kernels, which no source states" in inferred.assumptions[-1]


def test_a_name_of_two_does_what_either_does() -> None:
    both = framework_of("fms-hf-tuning/HF Trainer")
    assert (both.fuses_gptq, both.transformers_plan, both.own_models) == (True, True, False)
    assert framework_of("LLaMA-Factory v1").transformers_plan
    assert framework_of("Axolotl").batching.samples_per_pack == 200
    assert framework_of("") == Framework()


def test_defaults_follow_version_and_row() -> None:
    torchtune = ROWS["torchtune"]
    old = torchtune.unasked(NOTHING | {"framework_version": "0.2", "method": "full"})
    assert (old["optimizer"], old["optimizer_implementation"]) == ("paged_adamw_8bit", "in_backward")
    assert "loss" not in old
    new = torchtune.unasked(NOTHING | {"framework_version": "0.4.1", "method": "lora", "num_gpus": "2"})
    assert (new["loss"], new["optimizer_implementation"], new["lora_rank"]) == ("chunked", "fused", 8)
    nemo = ROWS["NeMo"]
    assert nemo.unasked(NOTHING | {"num_gpus": "16"})["sharding"] == "zero1"
    assert "sharding" not in nemo.unasked(NOTHING | {"num_gpus": "1"})


def test_a_name_that_holds_anothers_by_accident_stands_alone() -> None:
    alone = framework_of("universal-llm-trainer (HF Transformers)")
    assert (alone.takes_loss_itself, alone.transformers_plan, alone.timed) == (True, True, False)
    assert [row.name for row in named_in("universal-llm-trainer")] == ["universal-llm-trainer"]


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("llm-foundry/Composer", "delayed"), ("NeMo", "delayed"), ("torchtitan", "tensorwise")],
)
def test_transformer_engine_takes_scales_of_steps_before(name: str, recipe: str) -> None:
    assert Run(model="llama-2-7b", method="full", framework=name, fp8=True).fp8_recipe == recipe


@pytest.mark.parametrize("name", ["NeMo Automodel", "NeMo-RL"])
def test_nemo_is_megatron_only_where_it_runs_megatron(name: str) -> None:
    assert framework_of("NeMo").megatron_layers
    assert not framework_of(name).megatron_layers
    assert framework_of(name).fully_shard


@pytest.mark.parametrize(
    ("version", "loss"),
    [
        ("torch 2024-12-23; torchtitan 9dec370 (2024-12-26)", None),
        ("pytorch version: 2.7.0a0+gitb98af95, torchtitan version: 0.0.2", None),
        ("torch 2025-06-14; torchtitan 820504e", "compiled"),
        ("pytorch version: 2.9.0.dev20250815+cu128", "compiled"),
        ("2026", "compiled"),
        ("", "compiled"),
    ],
)
def test_torchtitan_compiles_its_loss_from_2025_on(version: str, loss: str | None) -> None:
    cells = NOTHING | {"framework_version": version, "compile": "true"}
    assert ROWS["torchtitan"].unasked(cells).get("loss") == loss
    assert "loss" not in ROWS["torchtitan"].unasked(cells | {"compile": "false"})
