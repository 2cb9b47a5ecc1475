"""What given runs ask for: their projections, experts and updates at half, whole and double batch."""

import json
from pathlib import Path

import pytest

from finegauge.formats.reading import read
from finegauge.measurement.bench.points import asked_points, compute_dtypes
from finegauge.run.run import Run

MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
FP32 = ("weights_dtype=fp32", "autocast=none", "attention=sdpa", "seq_len=32", "micro_batch_size=2")


@pytest.fixture
def run_of(tmp_path: Path) -> "type[_Runs]":
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL), encoding="utf-8")
    _Runs.folder = str(tmp_path)
    return _Runs


class _Runs:
    """Runs over the model in one folder."""

    folder = ""

    @classmethod
    def of(cls, *overrides: str) -> Run:
        """Return the run with `overrides`."""
        return read(cls.folder, (*FP32, *overrides))


def sizes_of(runs: list[Run], operator: str, dtype: str = "fp32") -> list[dict[str, int]]:
    return [dict(point.sizes) for point in asked_points(runs, dtype) if point.operator == operator]


def test_projections_at_half_whole_and_double_batch(run_of: type[_Runs]) -> None:
    found = sizes_of([run_of.of("method=full")], "linear")
    for rows in (32, 64, 128):
        assert {"rows": rows, "n": 32, "k": 64} in found  # k_proj
        assert {"rows": rows, "n": 512, "k": 64} in found  # lm_head
        assert {"rows": rows, "n": 4, "k": 64} in found  # router


def test_half_of_one_sequence_is_half_as_long(run_of: type[_Runs]) -> None:
    found = sizes_of([run_of.of("method=full", "micro_batch_size=1")], "attention_sdpa")
    assert [(one["sequences"], one["seq_len"]) for one in found] == [(1, 16), (1, 32), (2, 32)]
    assert found[0]["kv_heads"] == 2


def test_experts_are_grouped_or_one_by_one(run_of: type[_Runs]) -> None:
    grouped = sizes_of([run_of.of("method=full", "experts_implementation=grouped_mm")], "grouped_linear")
    assert {"rows": 128, "n": 192, "k": 64, "groups": 4} in grouped
    assert {"rows": 128, "n": 64, "k": 96, "groups": 4} in grouped
    looped = [run_of.of("method=full", "experts_implementation=eager")]
    assert not sizes_of(looped, "grouped_linear")
    assert {"rows": 32, "n": 192, "k": 64} in sizes_of(looped, "linear")


def test_lora_asks_for_adapters_and_a_smaller_update(run_of: type[_Runs]) -> None:
    lora = run_of.of("method=lora", "lora_targets=attention", "lora_rank=4")
    assert {"rows": 64, "n": 32, "k": 64, "rank": 4} in sizes_of([lora], "lora_linear")
    (lora_clip,), (full_clip,) = sizes_of([lora], "clip"), sizes_of([run_of.of("method=full")], "clip")
    assert lora_clip["params"] < full_clip["params"] / 10


def test_nothing_is_asked_twice_and_only_in_the_runs_own_dtype(run_of: type[_Runs]) -> None:
    run = run_of.of("method=full")
    points = [(point.operator, *point.sizes.items()) for point in asked_points([run, run], "fp32")]
    assert len(points) == len(set(points))
    assert compute_dtypes([run]) == ["fp32"]
    assert list(asked_points([run], "bf16")) == []


def test_writing_asks_for_a_row_of_every_sequence_and_for_the_cache(run_of: type[_Runs]) -> None:
    writing = [run_of.of("method=full", "phase=decode", "max_new_tokens=8", "micro_batch_size=4")]
    assert [one["rows"] for one in sizes_of(writing, "linear") if one["n"] == 512 and one["rows"] < 32] == [
        2,
        4,
        8,
    ]
    cached = sizes_of(writing, "attention_cached")
    assert [(one["sequences"], one["context"]) for one in cached] == [(2, 28), (4, 28), (8, 28)]
    assert {one["rows"] for one in sizes_of(writing, "rms_norm")} >= {2, 4, 8}
    assert not sizes_of([run_of.of("method=full")], "attention_cached")
