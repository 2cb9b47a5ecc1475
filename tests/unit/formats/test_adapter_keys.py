"""Adapters and optimizers under each framework's own keys, read and written back."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, InputError
from finegauge.formats.reading import read
from finegauge.formats.writing import as_written
from finegauge.run.run import Run

MODEL = "meta-llama/Meta-Llama-3-8B"
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "llamafactory-dora": (
        f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: lora\nuse_dora: true\ncutoff_len: 512",
        {"adapter": "dora", "lora_rank": 8},
    ),
    "llamafactory-oft": (
        f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: oft\noft_block_size: 64\ncutoff_len: 512",
        {"method": "lora", "adapter": "oft", "adapter_size": 64},
    ),
    "llamafactory-galore": (
        f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: full\nuse_galore: true\n"
        "galore_layerwise: true\ngalore_rank: 64\ncutoff_len: 512",
        {"optimizer": "galore_adamw", "optimizer_rank": 64, "optimizer_implementation": "in_backward"},
    ),
    "llamafactory-muon": (
        f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: full\nuse_muon: true\ncutoff_len: 512",
        {"optimizer": "muon"},
    ),
    "swift-vera": (
        f"model: {MODEL}\ntuner_type: vera\nvera_rank: 128\nmax_length: 512",
        {"adapter": "vera", "lora_rank": 128},
    ),
    "swift-bone": (f"model: {MODEL}\ntuner_type: bone\nmax_length: 512", {"adapter": "miss", "lora_rank": 8}),
    "axolotl-dora": (
        f"base_model: {MODEL}\nadapter: lora\npeft_use_dora: true\nlora_r: 8\n"
        "optimizer: galore_adamw_layerwise\noptim_args: rank=32\nsequence_len: 512",
        {"adapter": "dora", "optimizer": "galore_adamw", "optimizer_rank": 32},
    ),
    "trl-schedule-free": (
        f"model_name_or_path: {MODEL}\nuse_peft: true\nlora_r: 8\nuse_dora: true\n"
        "optim: schedule_free_adamw\nmax_length: 512",
        {"adapter": "dora", "optimizer": "schedule_free_adamw"},
    ),
    "unsloth-dora": (
        f"model: {MODEL}\ntraining: {{training_type: lora, max_seq_length: 512}}\nlora: {{use_dora: true}}",
        {"adapter": "dora"},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_frameworks_say_their_adapter_and_optimizer(tmp_path: Path, name: str) -> None:
    text, expected = FILES[name]
    path = tmp_path / "train.yaml"
    path.write_text(text, "utf-8")
    run = read(path)
    assert {field: getattr(run, field) for field in expected} == expected
    assert not [warning for warning in run.warnings if "modelled" in warning]
    again, _ = as_written(run, name.partition("-")[0].replace("swift", "ms-swift"))
    assert {field: getattr(again, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"peft_type": "VERA", "r": 64, "target_modules": ["q_proj"]}, {"adapter": "vera", "lora_rank": 64}),
        ({"peft_type": "OFT", "oft_block_size": 16}, {"adapter": "oft", "adapter_size": 16}),
        ({"peft_type": "ADALORA", "init_r": 12, "r": 8}, {"adapter": "adalora", "lora_rank": 12}),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 32}, {"adapter_size": 32}),
        ({"peft_type": "TRAINABLE_TOKENS", "token_indices": [1, 2]}, {"adapter_size": 2}),
        (
            {"peft_type": "P_TUNING", "num_virtual_tokens": 9, "encoder_hidden_size": 128},
            {"adapter": "p_tuning", "adapter_size": 9, "adapter_hidden_size": 128},
        ),
    ],
)
def test_adapter_configurations_of_peft(tmp_path: Path, config: dict[str, Any], expected: Any) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": MODEL, **config}), "utf-8")
    run = read(path)
    assert {field: getattr(run, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"peft_type": "XLORA"}, "peft_type='XLORA' is not supported"),
        ({"peft_type": "LOKR", "r": 8, "decompose_both": True}, "decompose_both='True' of peft_type=LOKR"),
    ],
)
def test_what_is_not_modelled_of_peft_is_refused(tmp_path: Path, config: dict[str, Any], match: str) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"base_model_name_or_path": MODEL, **config}), "utf-8")
    with pytest.raises(FieldError, match=match):
        read(path)


def test_scripts_name_other_classes_of_peft(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from peft import BOFTConfig\nfrom trl import SFTConfig, SFTTrainer\n"
        "adapter = BOFTConfig(boft_block_size=8, target_modules=['q_proj', 'v_proj'])\n"
        f"SFTTrainer(model='{MODEL}', args=SFTConfig(max_length=512), peft_config=adapter).train()\n",
        "utf-8",
    )
    run = read(path)
    assert (run.adapter, run.adapter_size, run.lora_targets) == ("boft", 8, ("q_proj", "v_proj"))


def test_a_trainer_that_has_no_such_optimizer_is_not_written() -> None:
    run = Run(model="llama-3-8b", method="full", optimizer="soap")
    with pytest.raises(InputError, match="optimizer=soap"):
        as_written(run, "trl")
    with pytest.raises(InputError, match="optimizer=soap"):
        as_written(run, "torchtune")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("axolotl", f"base_model: {MODEL}\nrl: orpo\nsequence_len: 512"),
        ("llamafactory", f"model_name_or_path: {MODEL}\nstage: dpo\npref_loss: simpo\ncutoff_len: 512"),
        ("swift", f"model: {MODEL}\ntuner_type: lora\nrlhf_type: cpo\nmax_length: 512"),
        ("trl", f"model_name_or_path: {MODEL}\ntrainer: orpo\nmax_length: 512\nbeta: 0.1"),
    ],
)
def test_preferences_without_a_reference_hold_none(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, "utf-8")
    run = read(path)
    assert (run.phase, run.reference_model) == ("dpo", "none")
    assert not [warning for warning in run.warnings if "taken as" in warning]


def test_kto_is_told_to_be_taken_as_dpo(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"model_name_or_path: {MODEL}\nstage: kto\ncutoff_len: 512", "utf-8")
    run = read(path)
    assert (run.phase, run.reference_model) == ("dpo", "copy" if run.method == "full" else "policy")
    assert any("kto is taken as dpo" in warning for warning in run.warnings)


@pytest.mark.parametrize(
    ("model", "keys", "targets", "said"),
    [
        ("llama-3-8b", {"target_modules": r".*(self_attn|mlp).*[kp]_proj$"},
         "k_proj up_proj gate_up_proj", "a pattern"),
        ("llama-3-8b", {"target_modules": ["model.layers.1.self_attn.q_proj"]},
         "model.layers.1.self_attn.q_proj", "single layers"),
        ("llama-3-8b", {"target_modules": ["q_proj", "lm_head"]}, "q_proj lm_head", "on lm_head are not"),
        ("mixtral-8x7b", {"target_modules": ["q_proj", "down_proj"]}, "q_proj", ""),
        ("mixtral-8x7b", {"target_parameters": ["mlp.experts.down_proj"]}, "down_proj", ""),
    ],
)  # fmt: skip
def test_what_targets_of_peft_mean(
    tmp_path: Path, model: str, keys: dict[str, Any], targets: str, said: str
) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", "r": 8, "base_model_name_or_path": model, **keys}))
    run = read(file)
    assert list(run.lora_targets) == targets.split()
    assert said in " ".join(run.warnings)


def test_targets_that_are_no_layers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    keys = {"base_model_name_or_path": "mixtral-8x7b", "target_modules": ["down_proj"]}
    file.write_text(json.dumps({"peft_type": "LORA", "r": 8, **keys}))
    with pytest.raises(FieldError, match="are no layers of a mixtral model"):
        read(file)
