"""Encoders with their decoders against transformers' classes, in a small size: parameters, FLOPs, peaks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.run.run import Run
from tests.oracle.real_step import peak_of, predicted
from tests.oracle.test_heads import CHECKPOINTED, LORA

SIDES = {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"layers": 3, "attention_heads": 4, "ffn_dim": 320}.items()
}
T5 = {"d_kv": 32, "d_ff": 320, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}
BARTS = ("bart", "mbart", "m2m_100", "pegasus", "marian")
SMALL: dict[str, dict[str, Any]] = {
    "t5": T5,
    "t5-gated": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    **{key: {**SIDES, "max_position_embeddings": 256} for key in BARTS},
    "whisper": {**SIDES, "max_source_positions": 96, "max_target_positions": 128, "num_mel_bins": 20},
}
BATCH, SOURCE, TARGET = 3, 96, 40


def model_of(name: str, folder: Path, *, dropout: bool = True) -> Any:
    words = {"vocab_size": 1500, "d_model": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    own = {
        "decoder_start_token_id": 1,
        "forced_eos_token_id": None,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }
    config = CONFIG_MAPPING[name.partition("-")[0]](**words, **own, **SMALL[name])
    for key in () if dropout else ("dropout", "dropout_rate", "attention_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    (folder / "config.json").write_text(json.dumps(json.loads(config.to_json_string(use_diff=False))))
    torch.manual_seed(0)
    auto = AutoModelForSpeechSeq2Seq if name == "whisper" else AutoModelForSeq2SeqLM
    return auto.from_config(config, attn_implementation="eager", dtype=torch.float32).train()


def given(name: str) -> dict[str, Any]:
    labels = torch.randint(5, 1500, (BATCH, TARGET))
    if name == "whisper":
        return {"input_features": torch.randn(BATCH, 20, 2 * SOURCE), "labels": labels, "use_cache": False}
    return {"input_ids": torch.randint(5, 1500, (BATCH, SOURCE)), "labels": labels, "use_cache": False}


def run_of(folder: Path, **fields: Any) -> Run:
    return Run(
        model=str(folder), weights_dtype="fp32", attention="eager", micro_batch_size=BATCH, seq_len=SOURCE,
        target_seq_len=TARGET, pad_to_multiple_of=1, **{"method": "full", **fields},
    )  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_parameters_and_flops_are_those_of_the_class(name: str, tmp_path: Path) -> None:
    model = model_of(name, tmp_path)
    graph = build(run_of(tmp_path))
    assert graph.model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    with FlopCounterMode(display=False) as counter:
        loss = model(**given(name)).loss
        forward = counter.get_total_flops()
        loss.backward()
    trained = sum(p.numel() for p in model.parameters() if p.grad is not None)
    assert graph.weights.trained_params == trained
    ours = graph.flops(Extents.of(BATCH, TARGET))
    assert ours == pytest.approx((forward, counter.get_total_flops()), rel=1e-9)


METHODS = {
    "full": {},
    "checkpointed": CHECKPOINTED,
    "lora": LORA,
    "lora-checkpointed": {**LORA, **CHECKPOINTED},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SMALL)
def test_the_peak_of_a_step_is_that_of_a_real_one(name: str, method: str, tmp_path: Path) -> None:
    fields, model = METHODS[method], model_of(name, tmp_path, dropout=False)
    if "activation_checkpointing" in fields:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if "lora_rank" in fields:
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
        if "activation_checkpointing" in fields:
            model.enable_input_require_grads()
    batch = given(name)
    run = run_of(tmp_path, **fields)
    ours, theirs = predicted(run), peak_of(model, lambda: model(**batch).loss)
    print(f"PEAK {name} {method} {100 * (ours / theirs - 1):+.2f} %")
    assert ours == pytest.approx(theirs, rel=0.02)
