"""Axolotl's files: what they state, what the framework does unasked, what is warned of."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, UnknownKeyError
from finegauge.formats.reading import read
from finegauge.run.run import FROM_COMMAND_LINE, FROM_FILE, Run


def axolotl(folder: Path, text: str = "", *words: str) -> Run:
    path = folder / "axolotl.yaml"
    path.write_text("base_model: Qwen/Qwen3-8B\n" + text, encoding="utf-8")
    return read(path, words)


def test_hidden_defaults(tmp_path: Path) -> None:
    run = axolotl(tmp_path)
    expected = {
        "method": "full", "phase": "sft", "seq_len": 512, "micro_batch_size": 1, "epochs": 1.0,
        "gradient_accumulation_steps": 1, "weights_dtype": "bf16", "autocast": "bf16",
        "optimizer": "adamw", "optimizer_implementation": "fused", "activation_checkpointing": "none",
        "attention": "sdpa", "loss": "full_logits", "kernels": (), "packing": False,
        "padding": "longest", "pad_to_multiple_of": 64, "sharding": "none",
    }  # fmt: skip
    assert {name: getattr(run, name) for name in expected} == expected
    assert run.origins["seq_len"] == "framework default: Axolotl"
    assert run.origins["model"] == FROM_FILE
    assert run.warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("adapter: lora\nlora_r: 8\nlora_target_linear: true", {"lora_targets": ("all-linear",)}),
        ("adapter: lora\nlora_r: 8", {"lora_targets": ("q_proj", "v_proj"), "adapter_dtype": "fp32"}),
        ("adapter: lora\npeft_autocast_adapter_dtype: false", {"adapter_dtype": "bf16"}),
        ("adapter: qlora\nload_in_4bit: true", {"method": "qlora", "weights_dtype": "nf4_dq"}),
        ("adapter: lora\nload_in_8bit: yes", {"method": "qlora", "weights_dtype": "int8"}),
        ("adapter: lora\nlora_modules_to_save: [embed_tokens]", {"trainable_extra": ("embed_tokens",)}),
        ("bfloat16: true", {"autocast": "bf16", "weights_dtype": "bf16"}),
        ("bf16: false", {"autocast": "none", "weights_dtype": "fp32"}),
        ("fp16: true", {"autocast": "fp16", "weights_dtype": "fp16"}),
        ("gradient_checkpointing: offload", {"activation_checkpointing": "offload"}),
        ("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}",
         {"activation_checkpointing": "full", "checkpointing_reentrant": False}),
        ("selective_checkpointing: {save: [attention]}", {"activation_checkpointing": "selective"}),
        ("flash_attention: true", {"attention": "flash"}),
        ("eager_attention: true", {"attention": "eager"}),
        ("plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rms_norm: true",
         {"kernels": ("liger",), "loss": "full_logits"}),
        ("chunked_cross_entropy: true", {"loss": "chunked"}),
        ("sample_packing: true", {"packing": True, "padding": "free"}),
        ("pad_to_sequence_len: true", {"padding": "max"}),
        ("batch_flattening: auto\nmicro_batch_size: 2", {"padding": "longest"}),  # no kernel for it
        ("batch_flattening: auto\nmicro_batch_size: 2\nflash_attention: true", {"padding": "free"}),
        ("batch_size: 16\nmicro_batch_size: 4", {"gradient_accumulation_steps": 1}),
        ("reward_model: true", {"phase": "reward", "padding": "max"}),
        ("micro_batch_size: 2\nval_set_size: 0.1", {"eval_batch_size": 2}),
        ("micro_batch_size: 2\neval_batch_size: 4", {"eval_batch_size": 4}),
        ("rl: dpo", {"phase": "dpo"}),
        ("pretraining_dataset: [{path: x}]", {"phase": "pretrain"}),
        ("datasets: [{path: math_14k}]\nval_set_size: 0.1",
         {"dataset": "math_14k", "num_samples": None, "validation_fraction": 0.1, "eval_samples": 1393}),
        ("deepspeed: deepspeed_configs/zero3_bf16.json", {"sharding": "zero3"}),
        ("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}",
         {"sharding": "fsdp", "cpu_offload": "params"}),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: false}", {"sharding": "fsdp_shard_grad_op"}),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}\ndp_shard_size: 4\ndp_replicate_size: 2",
         {"sharding": "hybrid", "num_gpus": 8}),
        ("tensor_parallel_size: 2\nsequence_parallel_degree: 4", {"tensor_parallel": 2, "num_gpus": 8}),
        ("optimizer: lion_8bit\nlearning_rate: 2e-4", {"optimizer": "lion_8bit"}),
        ("sequence_len: '1024'\nnum_epochs: 2e0", {"seq_len": 1024, "epochs": 2.0}),
    ],
)  # fmt: skip
def test_keys(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    run = axolotl(tmp_path, text)
    assert {name: getattr(run, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("adapter: qlora", "needs 'load_in_4bit: true'"),
        ("load_in_4bit: true", "need an adapter"),
        ("adapter: lora\nload_in_4bit: true\nload_in_8bit: true", "both true"),
        ("adapter: llama-adapter", "is not supported"),
        ("bf16: true\nfp16: true", "bf16 and fp16 are both true"),
        ("deepspeed: z2.json\nfsdp: [full_shard]", "deepspeed and fsdp are both stated"),
        ("rl: nonsense", "is not supported"),
        ("micro_batch_size: many", "micro_batch_size='many'"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FieldError, match=sentence):
        axolotl(tmp_path, text)


def test_overrides_in_either_language(tmp_path: Path) -> None:
    run = axolotl(tmp_path, "adapter: lora\nlora_r: 8\n", "sequence_len=128", "epochs=2", "method=qlora")
    assert (run.seq_len, run.epochs, run.weights_dtype, run.method) == (128, 2.0, "nf4_dq", "qlora")
    assert {run.origins[name] for name in ("seq_len", "epochs", "method")} == {FROM_COMMAND_LINE}
    assert axolotl(tmp_path, "", "model=mixtral-8x7b").model == "mixtral-8x7b"
    with pytest.raises(UnknownKeyError, match="Did you mean 'sequence_len'"):
        axolotl(tmp_path, "", "sequence_lenn=4")


def test_typos_warn_and_secrets_are_never_shown(tmp_path: Path) -> None:
    token = "hf_EXAMPLEEXAMPLE"
    run = axolotl(
        tmp_path, f"lora_rr: 8\nhub_token: {token}\nmy_key: {token}\noptimizer: grokadamw\nwarmup_steps: 9\n"
    )
    said = " ".join((*run.warnings, repr(run), run.to_yaml()))
    assert "'lora_rr', which is ignored. Did you mean 'lora_r'" in said
    assert "optimizer='grokadamw' is not modelled" in said
    assert "warmup_steps" not in said
    assert token not in said


@pytest.mark.parametrize("word", ["none", "full", "selective", "offload"])
def test_an_override_of_checkpointing_is_in_our_words(tmp_path: Path, word: str) -> None:
    run = axolotl(tmp_path, "", f"activation_checkpointing={word}")
    assert (run.activation_checkpointing, run.origins["activation_checkpointing"]) == (
        word,
        FROM_COMMAND_LINE,
    )
