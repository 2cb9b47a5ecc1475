"""A user's sweep is read under many column names, and a mistake in it is one sentence."""

from pathlib import Path

import pytest

from finegauge.errors import FineGaugeError
from finegauge.laws.fit import SweepTable, read_sweep
from finegauge.laws.law import form


def read(folder: Path, text: str, law: str = "affine", where: tuple[str, ...] = ()) -> SweepTable:
    """Return the table that `text` is."""
    path = folder / "sweep.csv"
    path.write_text(text, "utf-8")
    return read_sweep(str(path), form(law), where)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("batch,samples_per_s\n4,2.0\n", 2.0),
        ("batch_size,throughput_qps\n4,2.0\n", 2.0),
        ("micro_batch_size,step_time_s\n4,2.0\n", 2.0),
        ("micro_batch_size,gradient_accumulation_steps,step_time_s\n4,8,16.0\n", 2.0),
        ("micro_batch_size,seq_len,tokens_per_s_per_gpu\n4,512,1024\n", 2.0),
        ("batch,num_gpus,samples_per_s\n4,2,4.0\n", 2.0),
        ("\ufeffBatch , queries_per_s\n4,2.0\n", 2.0),
    ],
)
def test_speeds_by_many_names(text: str, rate: float, tmp_path: Path) -> None:
    (seen,) = read(tmp_path, text).observations
    assert seen.condition.batch == 4
    assert seen.condition.sparsity_fraction == 1.0
    assert seen.value == pytest.approx(rate)


def test_a_row_without_one_speed_may_state_another(tmp_path: Path) -> None:
    table = read(tmp_path, "batch,samples_per_s,step_time_s\n4,2.0,\n4,,2.0\n")
    assert [seen.value for seen in table.observations] == [2.0, 2.0]


def test_context_mixture_and_failed_rows(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "batch,sparsity,samples_per_s,gpu,dataset,outcome\n"
        "1,1,1.0,a40,x,ok\n2,0.25,1.5,A40,y,ok\n64,0.25,,A40,y,oom\n",
    )
    assert table.context == {"gpu": "A40"} or table.mixed["gpu"] == ("a40", "A40")
    assert table.mixed["dataset"] == ("x", "y")
    assert table.num_left_out == 1
    assert [seen.condition.sparsity_fraction for seen in table.observations] == [1.0, 0.25]


def test_where_takes_some_rows(tmp_path: Path) -> None:
    text = "batch,samples_per_s,gpu\n1,1.0,A40\n2,1.5,H100\n"
    assert [seen.value for seen in read(tmp_path, text, where=("gpu=h100",)).observations] == [1.5]
    assert read(tmp_path, text, where=("gpu=h100",)).context == {"gpu": "H100-SXM5-80GB"}


def test_capacities(tmp_path: Path) -> None:
    text = "gpu_mem_gb,model_mem_gb,seq_len,sparsity,max_batch\n48,23.35,512,0.25,8\n"
    (seen,) = read(tmp_path, text, "xia-eq1").observations
    assert seen.value == 8.0
    assert seen.condition.gpu_memory_bytes == 48e9
    assert seen.condition.seq_len == 512


@pytest.mark.parametrize(
    ("text", "law", "where", "said"),
    [
        ("", "affine", (), "empty"),
        ("bacth,samples_per_s\n1,1\n", "affine", (), "no column 'batch'.*'bacth'"),
        ("batch,samples\n1,1\n", "affine", (), "no column samples_per_s, step_time_s"),
        ("batch,samples_per_s\n1,x\n", "affine", (), "line 2: samples_per_s should be a number above 0"),
        ("batch,samples_per_s\n1,-1\n", "affine", (), "above 0, not '-1'"),
        ("batch,samples_per_s\n1,nan\n", "affine", (), "above 0"),
        ("batch,samples_per_s\n1.5,1\n", "affine", (), "whole number"),
        ("batch,samples_per_s\n1\n", "affine", (), "line 2: 2 cells expected, 1 found"),
        ("batch,samples_per_s,outcome\n1,1,oom\n", "affine", (), "no completed row"),
        ("batch,tokens_per_s_per_gpu\n1,1\n", "affine", (), "no column 'seq_len'"),
        ("batch,samples_per_s\n1,1\n", "xia-eq1", (), "no column 'max_batch'"),
        ("batch,samples_per_s,gpu\n1,1,A40\n", "affine", ("gpuu=A40",), "Did you mean 'gpu'"),
        ("batch,samples_per_s,gpu\n1,1,A40\n", "affine", ("gpu",), "COLUMN=VALUE"),
        ("batch,samples_per_s,gpu\n1,1,A40\n", "affine", ("gpu=H100",), "no completed row with gpu=H100"),
    ],
)
def test_a_mistake_is_one_sentence(
    text: str, law: str, where: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FineGaugeError, match=said):
        read(tmp_path, text, law, where)
