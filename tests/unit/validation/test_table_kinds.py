"""Rows that state a mean length alone, products in fp8, or an attention kernel."""

from pathlib import Path

import pytest

from finegauge.data.batch_shape import shape
from finegauge.validation.summary import answer
from tests.unit.validation.test_tables import ROW, table

VARIED = ROW | {"seq_len": "", "packing": "false", "micro_batch_size": "8"}
PADDED = VARIED | {"notes": "mean HF-counted tokens per sample = 524"}
JOINED = VARIED | {"notes": "mean HF-counted tokens per sample = 289", "kernels": "aadp-padding-free"}


def test_a_stated_mean_is_that_of_padded_batches(tmp_path: Path) -> None:
    (row,) = table(tmp_path, PADDED)
    assert row.run is not None
    assert row.lengths == "mean"
    assert row.run.padding == "longest"
    batch = shape(row.run)
    assert batch.tokens / 8 == pytest.approx(524, rel=0.03)
    assert batch.longest_len > 3 * 524  # what has to fit is the longest sequence
    assert batch.longest_len <= row.run.seq_len


def test_without_padding_the_mean_is_that_of_the_sequences(tmp_path: Path) -> None:
    (row,) = table(tmp_path, JOINED)
    assert row.run is not None
    assert row.run.padding == "free"
    batch = shape(row.run)
    assert batch.tokens == pytest.approx(8 * 289, rel=0.01)
    assert batch.tokens < batch.longest_tokens < 8 * batch.longest_len


def test_multipack_gives_every_rank_as_much(tmp_path: Path) -> None:
    (row,) = table(tmp_path, JOINED | {"kernels": "padding-free-multipack"})
    assert row.run is not None
    assert row.run.group_by_length


@pytest.mark.parametrize(
    "cells",
    [
        {"weights_dtype": "fp8", "autocast": "bf16"},
        {"autocast": "fp8"},
        {"kernels": "torchao float8", "autocast": "bf16"},
    ],
)
def test_fp8_means_products_over_weights_as_they_are(tmp_path: Path, cells: dict[str, str]) -> None:
    full = {k: v for k, v in ROW.items() if not k.startswith("lora")}
    sharded = {"method": "full", "num_gpus": "8", "parallelism": "fsdp", "gpu": "H100-SXM5-80GB"}
    (row,) = table(tmp_path, full | sharded | cells)
    assert row.run is not None, row.reason
    assert row.run.fp8
    assert (row.run.weights_dtype, row.run.autocast) == ("fp32", "bf16")
    assert answer(row).prediction is not None


@pytest.mark.parametrize("cells", [{"attention": "fa3"}, {"kernels": "cuDNN attention"}])
def test_an_attention_kernel_of_the_third_generation_is_recognised(
    tmp_path: Path, cells: dict[str, str]
) -> None:
    (row,) = table(tmp_path, ROW | cells)
    assert row.run is not None
    assert row.run.kernels == ("flash3",)
    assert row.run.attention == "flash"


def test_llm_foundry_ran_triton_before_flash_attention_2(tmp_path: Path) -> None:
    row = {k: v for k, v in ROW.items() if not k.startswith("lora")} | {
        "model": "mosaicml/mpt-7b", "method": "full", "framework": "llm-foundry", "parallelism": "fsdp",
    }  # fmt: skip
    few, many = table(tmp_path, row | {"num_gpus": "8"}, row | {"num_gpus": "128"})
    assert few.run is not None
    assert many.run is not None
    assert "triton" in few.run.kernels
    assert "triton" not in many.run.kernels


def test_memory_of_an_unnamed_metric_is_read_as_nvidia_smi(tmp_path: Path) -> None:
    unnamed, smi = table(tmp_path, *(ROW | {"memory_metric": metric} for metric in ("unknown", "nvidia_smi")))
    assert answer(unnamed).peak_memory_error == answer(smi).peak_memory_error
