"""What the frameworks' files say of over-long samples, packing, grouping and validation sets."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError
from finegauge.formats.reading import describe, read
from finegauge.run.run import Run

LF = "model_name_or_path: llama-2-7b\nstage: sft\ndataset: math_14k\ntemplate: llama3\n"
TRL = "model_name_or_path: llama-2-7b\ndataset_name: math_14k\n"
AXOLOTL = "base_model: llama-2-7b\ndatasets: [{path: math_14k}]\n"
TUNE = (
    "model: {_component_: torchtune.models.llama2.llama2_7b}\ntokenizer: {max_seq_len: 512}\n"
    "dataset: {_component_: torchtune.datasets.%s, packed: true%s}\n"
)
SWIFT = "model: Qwen/Qwen2.5-7B-Instruct\ntuner_type: lora\ndataset: math_14k\nmax_length: 1024\n"
NEMO = "model: {pretrained_model_name_or_path: Qwen/Qwen3-8B}\nstep_scheduler: {local_batch_size: 1}\n"
BEST, FIRST, WRAPPED = "best_fit_decreasing", "first_fit", "wrapped"


def read_text(folder: Path, text: str, **fields: Any) -> Run:
    path = folder / "file.yaml"
    path.write_text(text, "utf-8")
    reads = describe if fields else read  # data sets named beside the file are not there
    return reads(path, tuple(f"{key}={value}" for key, value in fields.items()))


@pytest.mark.parametrize(
    ("text", "over_length", "strategy", "grouped", "held_out"),
    [
        (LF, "truncate", BEST, False, 0.0),
        (LF + "packing: true\nval_size: 0.1", "truncate", BEST, False, 0.1),
        (LF.replace("sft", "pt"), "truncate", WRAPPED, False, 0.0),
        (LF + "group_by_length: true", "truncate", BEST, True, 0.0),
        (TRL, "truncate", BEST, False, 0.0),
        (TRL + "train_sampling_strategy: group_by_length", "truncate", BEST, True, 0.0),
        (TRL + "packing: true\npacking_strategy: bfd_split", "split", BEST, False, 0.0),
        (TRL + "packing: true\npacking_strategy: bfd-requeue", "split", BEST, False, 0.0),
        (TRL + "packing: true\npacking_strategy: wrapped", "truncate", WRAPPED, False, 0.0),
        (AXOLOTL, "drop", FIRST, False, 0.0),
        (AXOLOTL + "val_set_size: 0.02\nsample_packing: true", "drop", FIRST, False, 0.02),
        (AXOLOTL + "excess_length_strategy: truncate", "truncate", FIRST, False, 0.0),
        (AXOLOTL + "group_by_length: true", "drop", FIRST, True, 0.0),
        (TUNE % ("alpaca_dataset", ""), "truncate", FIRST, False, 0.0),
        (TUNE % ("alpaca_dataset", ", split_across_pack: true"), "truncate", WRAPPED, False, 0.0),
        (TUNE % ("text_completion_dataset", ""), "truncate", WRAPPED, False, 0.0),
        (SWIFT, "drop", BEST, False, 0.0),
        (SWIFT + "truncation_strategy: split", "split", BEST, False, 0.0),
        (SWIFT + "truncation_strategy: right\nsplit_dataset_ratio: 0.05", "truncate", BEST, False, 0.05),
        (SWIFT + "rlhf_type: dpo", "truncate", BEST, False, 0.0),
        (NEMO + "packed_sequence: {packed_sequence_size: 512}", "truncate", FIRST, False, 0.0),
    ],
)  # fmt: skip
def test_what_the_file_says(
    text: str, over_length: str, strategy: str, *, grouped: bool, held_out: float, tmp_path: Path
) -> None:
    run = read_text(tmp_path, text)
    found = (run.over_length, run.packing_strategy, run.group_by_length, run.validation_fraction)
    assert found == (over_length, strategy, grouped, held_out)


def test_a_number_of_a_data_set_of_unknown_size_is_not_held_out(tmp_path: Path) -> None:
    run = read_text(tmp_path, AXOLOTL.replace("math_14k", "mine") + "val_set_size: 200")
    assert run.validation_fraction == 0.0
    assert any("val_set_size=200" in warning for warning in run.warnings)


def test_a_file_of_texts_takes_the_place_of_a_named_data_set(tmp_path: Path) -> None:
    for text in (
        LF + "max_samples: 50",
        TRL.replace("math_14k", "mine"),
        AXOLOTL.replace("math_14k", "mine"),
        SWIFT,
    ):
        run = read_text(tmp_path, text, dataset="texts.jsonl", tokenizer="here")
        assert (run.dataset, run.tokenizer) == ("texts.jsonl", "here")
        assert not any("every sequence is taken as" in warning for warning in run.warnings)
    assert read_text(tmp_path, LF + "max_samples: 50", dataset="texts.jsonl").num_samples == 50


def test_packs_are_not_grouped_by_length(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="group_by_length cannot hold"):
        Run(model="llama-2-7b", method="lora", packing=True, group_by_length=True)
    for text in (LF + "packing: true\n", AXOLOTL + "\nsample_packing: true\n", TRL + "\npacking: true\n"):
        run = read_text(tmp_path, text + "group_by_length: true")  # which their trainers take
        assert (run.packing, run.group_by_length) == (True, False)
        assert "group_by_length has no effect: packing fills every sequence." in run.warnings


def test_a_histogram_is_truncated_dropped_split() -> None:
    run = Run(model="llama-2-7b", method="lora", dataset="math_14k", seq_len=256, micro_batch_size=4)
    truncated, dropped, split = (
        shape(run.replace(over_length=fate)) for fate in ("truncate", "drop", "split")
    )
    assert truncated.num_samples == 13_921
    assert dropped.num_samples is not None
    assert split.num_samples is not None
    assert dropped.num_samples < 13_921 < split.num_samples
    assert {each.longest_len for each in (truncated, dropped, split)} == {256}
    whole = shape(run.replace(seq_len=100_000))
    assert split.real_tokens * split.num_samples == pytest.approx(whole.real_tokens * 13_921)


def test_dropping_everything_is_refused() -> None:
    run = Run(model="llama-2-7b", method="lora", dataset="math_14k", seq_len=8, over_length="drop")
    with pytest.raises(FieldError, match="leaves nothing of math_14k: its shortest sample has"):
        shape(run)


def test_a_share_is_held_out_of_an_epoch() -> None:
    run = Run(model="llama-2-7b", method="lora", dataset="math_14k", validation_fraction=0.1)
    assert shape(run).num_samples == 13_921 - 1393
    assert shape(run.replace(num_samples=1000)).num_samples == 900


def test_wrapped_text_fills_every_row() -> None:
    run = Run(model="llama-2-7b", method="lora", dataset="math_14k", packing=True, seq_len=512)
    wrapped, best = shape(run.replace(packing_strategy="wrapped")), shape(run)
    assert wrapped.real_tokens == pytest.approx(512, rel=1e-3)
    assert best.real_tokens < wrapped.real_tokens
    assert best.steps_per_epoch is not None
    assert wrapped.steps_per_epoch is not None
    assert wrapped.steps_per_epoch <= best.steps_per_epoch * 1.02


def test_packs_of_trl_are_not_filled_up() -> None:
    run = Run(
        model="llama-2-7b", method="lora", dataset="math_14k", packing=True, padding="free", seq_len=512
    )
    filled, joined = shape(run), shape(run.replace(framework="TRL"))
    assert filled.tokens == 512
    assert joined.tokens == pytest.approx(filled.real_tokens)
    assert joined.longest_tokens == 512


def test_grouping_by_length_pads_less() -> None:
    run = Run(model="llama-2-7b", method="lora", dataset="math_14k", seq_len=1024, micro_batch_size=8)
    shuffled, grouped = shape(run), shape(run.replace(group_by_length=True))
    assert grouped.real_tokens == shuffled.real_tokens
    assert grouped.real_tokens < grouped.tokens < 1.1 * grouped.real_tokens
    assert grouped.tokens < 0.8 * shuffled.tokens
    assert grouped.longest_tokens == shuffled.longest_tokens
