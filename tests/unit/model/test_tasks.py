"""What is refused of a head that is not a causal language model's."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.errors import FineGaugeError
from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.run.run import Run

BERT = {"model_type": "bert", "num_hidden_layers": 2}


def run_of(folder: Path, figures: dict[str, Any], **fields: Any) -> Run:
    folder = folder / str(figures["model_type"])  # a model is known by its path
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(figures))
    return Run(model=str(folder), **{"method": "full", **fields})


@pytest.mark.parametrize(
    ("figures", "fields", "says"),
    [
        (BERT, {"phase": "dpo"}, "head of its own"),
        (BERT, {"loss": "chunked"}, "causal language models"),
        (BERT, {"task": "embedding", "packing": True}, "joins samples"),
        (BERT, {"tensor_parallel": 2}, "tensor_parallel=1"),
        (BERT, {"method": "lora", "adapter": "prompt_tuning"}, "adapter=lora"),
        (BERT, {"task": "causal_lm"}, "masked_lm"),
        ({**BERT, "is_decoder": True}, {}, "its decoder"),
        ({"model_type": "llama"}, {"task": "masked_lm"}, "causal_lm"),
        ({"model_type": "t5"}, {}, "target_seq_len"),
        (BERT, {"target_seq_len": 64}, "remove it"),
        ({"model_type": "t5"}, {"task": "sequence_classification"}, "seq2seq_lm"),
        ({"model_type": "whisper"}, {"target_seq_len": 64, "phase": "dpo"}, "phase=sft"),
        ({"model_type": "big_bird"}, {"task": "token_classification"}, "token_classification"),
    ],
)
def test_what_is_refused_is_named(
    tmp_path: Path, figures: dict[str, Any], fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(FineGaugeError, match=says):
        build(run_of(tmp_path, figures, **fields))


@pytest.mark.parametrize("written", ["seq-cls", "text-classification", "SEQ_CLS", "regression"])
def test_a_task_has_the_names_of_peft_and_of_pipelines(tmp_path: Path, written: str) -> None:
    assert run_of(tmp_path, BERT, task=written).task == "sequence_classification"


def test_a_reranker_has_one_output(tmp_path: Path) -> None:
    reranker = build(run_of(tmp_path, BERT, task="reranker", num_labels=7))
    regression = build(run_of(tmp_path, BERT, task="sequence_classification", num_labels=1))
    assert reranker.model.num_parameters == regression.model.num_parameters


def test_attention_to_the_whole_text_costs_twice_a_causal_one(tmp_path: Path) -> None:
    def attends(figures: dict[str, Any]) -> float:
        graph = build(run_of(tmp_path, figures, attention="flash"))
        return sum(
            op.forward.flops.at(Extents.of(1, 512)) for op in graph.layers[0].ops if op.kind == "attention"
        )

    llama = {"model_type": "llama", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2}
    assert attends(BERT) == 2 * attends(llama)


def test_a_classifier_of_one_row_costs_nothing_per_token(tmp_path: Path) -> None:
    run = run_of(tmp_path, BERT, task="sequence_classification")
    few, many = (
        sum(op.forward.flops.at(Extents.of(4, length)) for op in build(run).head) for length in (16, 512)
    )
    assert few == many > 0


def test_targets_are_what_the_decoder_reads_and_sources_cost_beside(tmp_path: Path) -> None:
    def flops(source: int, target: int) -> float:
        run = run_of(tmp_path, {"model_type": "t5"}, seq_len=source, target_seq_len=target)
        assert shape(run).longest_len == target
        return build(run).flops(Extents.of(1, target))[0]

    both, longer_source, longer_target = flops(128, 64), flops(256, 64), flops(128, 128)
    assert both < longer_source < 2.1 * both
    assert both < longer_target < 2.1 * both


def test_whisper_hears_thirty_seconds_whatever_the_cut_off(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, {"model_type": "whisper"}, seq_len=n, target_seq_len=64) for n in (128, 2048)]
    short, long = (build(run).flops(Extents.of(1, 64)) for run in runs)
    assert short == long
