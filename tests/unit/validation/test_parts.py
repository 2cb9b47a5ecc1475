"""Parts of steps that generate and learn: columns of a table, and predictions under the same names."""

from pathlib import Path

import pytest

from finegauge.answers.validation import validation_answer
from finegauge.formats.measurement_tables import PARTS, SERVED, read_table
from finegauge.validation.summary import answer, part_errors, parts_of, validate

ROW = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "phase": "grpo", "method": "full", "gpu": "H100-SXM5-80GB",
    "num_gpus": "16", "framework": "NeMo-RL", "seq_len": "4096", "max_new_tokens": "3946",
    "mean_new_tokens": "900", "num_generations": "32", "micro_batch_size": "1",
    "gradient_accumulation_steps": "64", "parallelism": "pp2", "step_time_s": "50", "generation_s": "30",
    "training_s": "10",
}  # fmt: skip


def table(folder: Path, **changes: str) -> str:
    path, row = folder / "rl.csv", ROW | changes
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n", encoding="utf-8")
    return str(path)


def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path) -> None:
    (row,) = read_table(table(tmp_path))
    assert row.measured.parts == {"generation_s": 30.0, "training_s": 10.0}
    one = answer(row)
    assert one.profile is not None
    parts = parts_of(one.profile)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(one.profile.step_time_s.total)
    errors = part_errors([one])
    assert errors["generation_s"].bias == pytest.approx(parts["generation_s"] / 30 - 1)


def test_predictions_stand_under_the_names_of_the_columns(tmp_path: Path) -> None:
    found = validation_answer(validate([table(tmp_path)]))
    assert found.rows[0].generation_s is not None
    assert set(found.summary.parts or ()) == {"generation_s", "training_s"}
    plain = validation_answer(validate([table(tmp_path, phase="sft", max_new_tokens="", mean_new_tokens="")]))
    assert plain.rows[0].generation_s is None
    assert plain.summary.parts is None


def test_what_nemo_rl_does_unasked_is_filled_in(tmp_path: Path) -> None:
    run = read_table(table(tmp_path))[0].run
    assert run is not None
    asked = (run.inference_engine, run.gpu_memory_utilization, run.rollout_sleep, run.rollout_offload)
    assert asked == ("vllm", 0.6, 1, "all")
    assert run.old_log_probs
    assert run.packing
    plain = read_table(table(tmp_path, phase="sft", max_new_tokens="", mean_new_tokens=""))[0].run
    assert plain is not None
    assert plain.inference_engine == "hf"


SERVICE = {
    "model": "Qwen/Qwen3-8B", "phase": "decode", "method": "full", "gpu": "H100-SXM5-80GB", "num_gpus": "1",
    "framework": "vLLM", "framework_version": "0.11", "seq_len": "903", "max_new_tokens": "647",
    "micro_batch_size": "32", "max_num_seqs": "32", "kv_cache_dtype": "auto", "output_tokens_per_s": "2928",
    "time_per_output_token_s": "0.01056", "joules_per_token": "0.163", "ttft_s": "0.05",
}  # fmt: skip


def test_what_a_service_gives_stands_under_the_names_of_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "served.csv"
    path.write_text(f"{','.join(SERVICE)}\n{','.join(SERVICE.values())}\n", encoding="utf-8")
    found = validation_answer(validate([str(path)]))
    (row,) = found.rows
    assert row.output_tokens_per_s == pytest.approx(2928, rel=0.15)
    assert row.time_per_output_token_s == pytest.approx(0.01056, rel=0.15)
    assert row.joules_per_token == pytest.approx(0.163, rel=0.2)
    assert row.ttft_s is not None
    assert set(found.summary.parts or ()) == set(SERVED)
    assert row.generation_s is None


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"model": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"}, {"weights_dtype": "fp8", "fp8": False}),
        ({"model": "openai/gpt-oss-20b"}, {"weights_dtype": "mxfp4"}),
        ({"model": "meta-llama/Llama-3.1-70B-Instruct-AWQ"}, {"weights_dtype": "gptq4"}),
        ({"method": "", "weights_dtype": "fp8"}, {"method": "full", "weights_dtype": "fp8"}),
        (
            {"model": "Qwen/Qwen3-30B-A3B-Thinking-2507", "num_gpus": "2", "expert_parallel": "2"},
            {"tensor_parallel": 2, "expert_parallel": 2, "data_parallel": 1, "inference_engine": "vllm"},
        ),
    ],
)
def test_what_a_service_is_follows_from_its_row(
    changes: dict[str, str], fields: dict[str, object], tmp_path: Path
) -> None:
    row = SERVICE | changes
    path = tmp_path / "served.csv"
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n", encoding="utf-8")
    run = read_table(str(path))[0].run
    assert run is not None
    assert {name: getattr(run, name) for name in fields} == fields
