"""Measurement tables as runs: tolerant, honest about guesses, and blind to what was measured."""

import csv
from pathlib import Path

import pytest

from finegauge.errors import FileFormatError
from finegauge.formats.measurement_rows import parallelism
from finegauge.formats.measurement_tables import MEASURED, MeasuredRow, read_table
from finegauge.validation.summary import answer

ROW = {
    "id": "r1",
    "source": "mine",
    "model": "mistralai/Mistral-7B-v0.1",
    "method": "lora",
    "lora_rank": "16",
    "lora_targets": "q_proj v_proj",
    "weights_dtype": "bf16",
    "autocast": "none",
    "optimizer": "adamw",
    "attention": "fa2",
    "activation_checkpointing": "full",
    "compile": "false",
    "packing": "true",
    "seq_len": "4096",
    "micro_batch_size": "4",
    "gradient_accumulation_steps": "1",
    "num_gpus": "1",
    "gpu": "A100-SXM4-80GB",
    "framework": "fms-hf-tuning/HF Trainer",
    "framework_version": "torch 2.4.1; transformers 4.48.1; bnb 0.43.3",
    "tokens_per_s_per_gpu": "3324.16",
    "step_time_s": "4.92877",
    "peak_memory_gib": "24.8706",
    "memory_metric": "torch_allocated",
    "outcome": "ok",
}


def table(folder: Path, *rows: dict[str, str], name: str = "t.csv") -> list[MeasuredRow]:
    path = folder / name
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        writer.writerows(rows)
    return read_table(path)


def test_a_complete_row_needs_no_guess(tmp_path: Path) -> None:
    (row,) = table(tmp_path, ROW)
    assert row.run is not None
    assert row.times_complete
    assert row.memory_complete
    assert row.run.transformers_version == "4.48.1"
    assert row.run.adapter_dtype == "fp32"
    assert any("adapter_dtype=fp32" in default for default in row.defaults)
    assert row.measured.peak_memory_gib == pytest.approx(24.8706)


def test_the_predictor_never_sees_what_was_measured(tmp_path: Path) -> None:
    blank = ROW | dict.fromkeys((c for c in MEASURED if c in ROW and c != "memory_metric"), "")
    known, unknown = table(tmp_path, ROW, blank)
    assert known.run == unknown.run
    first, second = answer(known), answer(unknown)
    assert first.prediction == second.prediction
    assert first.step_time_error is not None
    assert second.step_time_error is None
    assert second.peak_memory_error is None


def test_errors_are_signed_and_relative(tmp_path: Path) -> None:
    (row,) = table(tmp_path, ROW)
    ours = answer(row)
    assert ours.prediction is not None
    assert ours.step_time_error == pytest.approx(ours.prediction.step_time_s / 4.92877 - 1)
    assert ours.peak_memory_error == pytest.approx(ours.prediction.peak_memory_gib / 24.8706 - 1)


def test_a_micro_batch_time_counts_once_per_accumulation_step(tmp_path: Path) -> None:
    whole = ROW | {"gradient_accumulation_steps": "4", "step_time_s": "20"}
    part = whole | {"step_time_s": "5", "notes": "step = micro-batch"}
    first, second = (answer(row).step_time_error for row in table(tmp_path, whole, part))
    assert first == pytest.approx(second)


def test_memory_follows_the_metric_of_the_row(tmp_path: Path) -> None:
    metrics = ("torch_allocated", "torch_reserved", "nvidia_smi")
    rows = table(tmp_path, *(ROW | {"memory_metric": metric} for metric in metrics))
    peaks = [answer(row).prediction.peak_memory_gib for row in rows]  # type: ignore[union-attr]
    assert peaks == sorted(peaks)
    assert len(set(peaks)) == 3


def test_missing_columns_are_guessed_and_named(tmp_path: Path) -> None:
    (row,) = table(tmp_path, {"model": "mistral-7b", "method": "lora", "gpu": "A100-80GB"})
    assert row.run is not None
    assert not row.times_complete
    said = " ".join(row.assumptions)
    for field in ("seq_len", "optimizer", "lora_rank", "autocast", "num_gpus"):
        assert field in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "mistralai/Mistrall-7B-v0.1"}, "Did you mean"),
        ({"gpu": "A1111"}, "No GPU named"),
        ({"gpu": ""}, "does not name its GPU"),
        ({"method": ""}, "does not state its method"),
        ({"method": "other"}, "method=other"),
        ({"seq_len": "many"}, "seq_len"),
        ({"num_gpus": "2.5"}, "num_gpus"),
        ({"num_gpus": "2", "parallelism": "fsdq"}, "Did you mean 'fsdp'"),
        ({"num_gpus": "6", "parallelism": "tp4"}, "do"),
        ({"model": "../../etc/passwd"}, "No model"),
        ({"model": "/etc/passwd"}, "No model"),
        ({"lora_rank": "-3"}, "too small"),
    ],
)
def test_a_row_that_is_no_run_keeps_its_place_with_the_reason(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    first, second = table(tmp_path, ROW | change, ROW)
    assert first.run is None
    assert said in first.reason
    assert answer(first).prediction is None
    assert second.run is not None


@pytest.mark.parametrize("cell", ["nan", "inf", "-3", "0", "fast", "1e400"])
def test_a_measured_cell_without_a_positive_number_counts_as_empty(tmp_path: Path, cell: str) -> None:
    (row,) = table(tmp_path, ROW | {"peak_memory_gib": cell})
    assert row.measured.peak_memory_gib is None


def test_a_configuration_beside_the_table_wins(tmp_path: Path) -> None:
    (tmp_path / "hf_configs").mkdir()
    text = '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 512, "num_attention_heads": 4, "intermediate_size": 512}'  # noqa: E501
    (tmp_path / "hf_configs" / "tiny.json").write_text(text)
    beside, inside = tmp_path / "tables", tmp_path
    beside.mkdir()
    for folder in (beside, inside):
        (row,) = table(folder, ROW | {"hf_config": "tiny", "model": "nobody/knows-it"})
        assert row.run is not None, row.reason
        assert row.run.config["hidden_size"] == 256


def test_quantised_copies_are_read_as_their_model(tmp_path: Path) -> None:
    (row,) = table(tmp_path, ROW | {"model": "TheBloke/Mistral-7B-v0.1-GPTQ"})
    assert row.run is not None
    assert row.run.model == "mistralai/Mistral-7B-v0.1"


def test_a_base_model_is_known_by_its_chat_model(tmp_path: Path) -> None:
    (row,) = table(tmp_path, ROW | {"model": "internlm/internlm-7b"})
    assert row.run is not None
    assert row.run.model == "internlm/internlm-chat-7b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no column 'model'"),
        (b"name,speed\na,1\n", "no column 'model'"),
        (b"model,model\na,b\n", "two columns"),
        (b"\xff\xfe\x00m", "not UTF-8"),
        (b"model,gpu\n\0,b\n", "binary"),
        (b'model,gpu\n"a,b\n', "comma-separated"),
    ],
)
def test_a_malformed_table_is_refused_in_one_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=said):
        read_table(path)


def test_a_row_with_too_many_cells_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("model,method,gpu\nmistral-7b,full,A40,4\n")
    (row,) = read_table(path)
    assert "4 cells" in row.reason


def test_parallelism_tokens() -> None:
    assert parallelism("fsdp+ep2", 2) == {"sharding": "fsdp", "expert_parallel": 2}
    assert parallelism("zero1(size 8)tp1", 64) == {
        "sharding": "zero1", "tensor_parallel": 1, "data_parallel_shard": 8,
    }  # fmt: skip
    assert parallelism("zero1(size -1)tp2", 64) == {"sharding": "zero1", "tensor_parallel": 2}
    assert parallelism("naive_mp", 4) == {"pipeline_schedule": "naive", "pipeline_parallel": 4}
    assert parallelism("sp4+zero3", 8) == {"sharding": "zero3", "context_parallel": 4}
    assert parallelism("fsdp", 1) == {}
    assert parallelism("zero3+tp1", 1) == {"sharding": "zero3"}  # whose engine keeps fp32 copies
    assert parallelism("tp8+sp+pp8+vpp3", 64) == {
        "tensor_parallel": 8, "sequence_parallel": True, "pipeline_parallel": 8, "virtual_pipeline_stages": 3,
    }  # fmt: skip
    assert parallelism("tp4+sp4", 4) == {"tensor_parallel": 4, "sequence_parallel": True}
    assert parallelism("dp8+sp", 8) == {"data_parallel_replicate": 8}


@pytest.mark.parametrize(
    ("version", "metric", "counted"),
    [
        ("0.3", "unknown", "torch_allocated"),
        ("0.1", "unknown", "unknown"),
        ("0.4", "nvidia_smi", "nvidia_smi"),
    ],
)
def test_a_framework_that_prints_its_own_peak(
    tmp_path: Path, version: str, metric: str, counted: str
) -> None:
    cells = {"framework": "torchtune", "framework_version": version, "memory_metric": metric}
    (row,) = table(tmp_path, {**ROW, **cells})
    assert row.measured.memory_metric == counted


@pytest.mark.parametrize(
    ("framework", "fields"),
    [
        ("Megatron-LM", {"kernels": ("megatron",), "attention": "flash", "weights_dtype": "bf16"}),
        ("NeMo 2.0", {"kernels": ("megatron",), "optimizer_implementation": "fused"}),
        ("NeMo Automodel", {"kernels": (), "autocast": "none", "activation_checkpointing": "none"}),
        (
            "torchtitan",
            {"weights_dtype": "fp32", "autocast": "bf16", "activation_checkpointing": "selective"},
        ),
        ("Unsloth", {"kernels": ("unsloth",), "loss": "fused", "activation_checkpointing": "offload"}),
    ],
)
def test_what_frameworks_do_unasked(tmp_path: Path, framework: str, fields: dict[str, object]) -> None:
    blank = dict.fromkeys(
        ("weights_dtype", "autocast", "optimizer", "attention", "activation_checkpointing", "compile"), ""
    )
    method = "lora" if framework == "Unsloth" else "full"
    (row,) = table(tmp_path, {**ROW, **blank, "method": method, "framework": framework})
    assert row.run is not None, row.reason
    assert {name: getattr(row.run, name) for name in fields} == fields
    assert all(
        any(default.startswith(f"{name}=") for default in row.defaults) for name in fields if fields[name]
    )


def test_torchtune_rows_take_the_recipes_defaults(tmp_path: Path) -> None:
    (row,) = table(
        tmp_path,
        {
            **{"model": "meta-llama/Llama-3.1-8B", "method": "lora", "gpu": "RTX 4090", "num_gpus": "1"},
            **{"packing": "true", "seq_len": "2048", "micro_batch_size": "2", "weights_dtype": "bf16"},
            **{"framework": "torchtune", "framework_version": "~v0.4"},
        },
    )
    assert row.run is not None
    assert (row.run.loss, row.run.adapter_dtype, row.run.optimizer_implementation) == (
        "chunked",
        "bf16",
        "fused",
    )
    assert row.times_complete


def test_fsdp_mixed_precision_keeps_fp32_shards(tmp_path: Path) -> None:
    full = {**ROW, "method": "full", "autocast": "bf16", "num_gpus": "2", "parallelism": "fsdp"}
    del full["lora_rank"], full["lora_targets"]
    (row,) = table(tmp_path, full)
    assert row.run is not None
    assert row.run.weights_dtype == "fp32"


def test_the_liger_option_of_foak_is_its_loss_alone(tmp_path: Path) -> None:
    plain, fused, whole = table(
        tmp_path,
        ROW | {"kernels": "foak-fast-kernels"},
        ROW | {"kernels": "foak-fast-kernels-liger"},
        ROW | {"kernels": "liger"},
    )
    found = [(row.run.kernels, row.run.loss) for row in (plain, fused, whole) if row.run]
    assert found == [(("foak",), "full_logits"), (("foak",), "fused"), (("liger",), "fused")]
