"""What newer tables state in words: number formats, networks, batches, what a loop holds."""

from typing import Any

import pytest

from finegauge.formats.measurement_tables import CONFIGURATION, MeasuredRow, read_table

ROW = {
    **{"model": "meta-llama/Meta-Llama-3-8B", "method": "full", "gpu": "H100-SXM5-80GB", "packing": "true"},
    **{"seq_len": "4096", "micro_batch_size": "1", "framework": "Megatron-LM", "phase": "pretrain"},
}


@pytest.fixture
def read(tmp_path: Any) -> Any:
    """Return a reader of one row with some cells changed."""

    def reads(**cells: str) -> MeasuredRow:
        columns = (*CONFIGURATION, "step_time_s")
        row = {**dict.fromkeys(columns, ""), **ROW, **cells}
        quoted = ",".join(f'"{row[column]}"' for column in columns)
        path = tmp_path / "table.csv"
        path.write_text(f"{','.join(columns)}\n{quoted}\n", "utf-8")
        (found,) = read_table(path)
        return found

    return reads


@pytest.mark.parametrize(
    ("kernels", "recipe", "products"),
    [
        ("te fp8", "delayed", "all"),
        ("float8 rowwise", "rowwise", "all"),
        ("mxfp8 Linears only", "mxfp8", "linears"),
        ("mxfp8 Grouped GEMMs only", "mxfp8", "experts"),
        ("mxfp8 Linears + Grouped GEMMs", "mxfp8", "all"),
        ("nvfp4", "nvfp4", "all"),
        ("te fp8 current scaling", "tensorwise", "all"),
        ("fp8 blockwise", "blockwise", "all"),
    ],
)
def test_kernels_name_the_number_format(read: Any, kernels: str, recipe: str, products: str) -> None:
    run = read(kernels=kernels).run
    assert (run.fp8, run.fp8_recipe, run.fp8_products) == (True, recipe, products)


def test_a_float8_all_gather_is_one_of_fsdp(read: Any) -> None:
    sharded = {
        "framework": "torchtitan",
        "num_gpus": "8",
        "notes": "scaling=tensorwise with float8 all-gather",
    }
    assert read(kernels="float8", parallelism="fsdp", **sharded).run.fp8_all_gather
    assert not read(kernels="float8", parallelism="ddp", **sharded).run.fp8_all_gather


def test_a_network_is_stated_per_gpu(read: Any) -> None:
    run = read(num_gpus="64", parallelism="zero1", notes="400 Gb/s per GPU between hosts").run
    assert (run.num_nodes, run.node_network_gbit_per_s) == (8, 3200)


def test_micro_batches_follow_from_the_sequences_of_a_step(read: Any) -> None:
    row = read(num_gpus="16", parallelism="zero1+tp2", notes="precision FP8; GBS=128; and so on")
    assert row.run.gradient_accumulation_steps == 16
    assert not any(one.startswith("gradient_accumulation") for one in row.assumptions)
    stated = read(num_gpus="16", parallelism="zero1+tp2", notes="GBS=128", gradient_accumulation_steps="4")
    assert stated.run.gradient_accumulation_steps == 4


def test_a_step_that_was_multiplied_is_an_optimizer_step(read: Any) -> None:
    printed = "the printed step is a micro-batch: step_time_s is accumulation x printed"
    assert not read(step_time_s="8", notes=printed).measured.step_is_micro_batch
    assert read(step_time_s="8", notes="the printed step is a micro-batch").measured.step_is_micro_batch


def test_a_gpu_without_bf16_computed_in_fp16(read: Any) -> None:
    row = read(method="qlora", weights_dtype="nf4", gpu="T4", framework="transformers")
    assert row.run.adapter_dtype == "fp32"
    assert read(gpu="T4", framework="transformers").run.weights_dtype == "fp16"


def test_words_about_the_loop(read: Any) -> None:
    assert read(notes="its loop keeps the outputs (logits) alive through backward").run.keeps_outputs
    assert read(notes="async TP", num_gpus="8", parallelism="fsdp+tp8+sp").run.tensor_parallel_overlap
    assert read(notes="chunked loss from the recipe").run.loss == "chunked"


def test_what_torchaos_developers_time_runs_on_their_own_h100(read: Any) -> None:
    built = "pytorch version: 2.7.0a0, torchao version: 0.10.0+git890e0ac8"
    assert read(framework="torchtitan", framework_version=built).run.gpu == "H100-SXM-96GB-HBM2e"
    for others in ("torch 2.7.0", "torchao version: 0.10.0"):
        assert read(framework="torchtitan", framework_version=others).run.gpu == ROW["gpu"]
