"""LLaMA-Factory's v1 files, read as what the framework would do."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import InputError
from finegauge.formats.reading import describe
from finegauge.run.run import Run

MODEL = "model: Qwen/Qwen3-8B\ntrain_dataset: data/mine.yaml\n"
LORA = "peft_config: {name: lora, r: 16, lora_alpha: 32, target_modules: all}\n"
FSDP = "dist_config: {name: fsdp2, dcp_path: null}\n"


def v1(folder: Path, text: str = "", *words: str) -> Run:
    """Return the run of a v1 file of that text."""
    (folder / "train.yaml").write_text(MODEL + text)
    return describe(folder / "train.yaml", words)


def test_hidden_defaults(tmp_path: Path) -> None:
    run = v1(tmp_path)
    assert (run.framework, run.method, run.seq_len, run.epochs) == ("LLaMA-Factory v1", "full", 2048, 3.0)
    assert (run.micro_batch_size, run.gradient_accumulation_steps) == (1, 1)
    assert (run.weights_dtype, run.autocast, run.loss) == ("bf16", "none", "full_logits")
    assert (run.activation_checkpointing, run.checkpointing_reentrant) == ("full", False)
    assert (run.attention, run.optimizer, run.optimizer_implementation) == ("sdpa", "adamw", "foreach")
    assert (run.padding, run.pad_to_multiple_of, run.sharding) == ("longest", 1, "none")
    assert run.origins["epochs"] == "framework default: LLaMA-Factory v1"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (LORA, {"method": "lora", "lora_rank": 16, "lora_dropout": 0.05, "adapter_dtype": "fp32"}),
        (
            "peft_config: {name: lora, modules_to_save: [norm]}\n",
            {"lora_alpha": 16, "trainable_extra": ("norms",)},
        ),
        (
            LORA + "quant_config: {name: bnb, quantization_bit: 4}\n",
            {"method": "qlora", "weights_dtype": "nf4_dq"},
        ),
        (LORA + "quant_config: {name: auto, quantization_bit: 8}\n", {"weights_dtype": "int8"}),
        ("peft_config: {name: freeze}\n", {"method": "freeze", "freeze_trainable_layers": 2}),
        (
            "flash_attn: flash_attention_2\nkernel_config: {name: liger_kernel}\n",
            {"attention": "flash", "kernels": ("liger",)},
        ),
        ("enable_activation_checkpointing: no\n", {"activation_checkpointing": "none"}),
        ("batching_strategy: padding_free\n", {"padding": "free", "packing": False}),
        (
            "batching_strategy: dynamic_padding_free\nmax_steps: 10\n",
            {"packing": True, "padding": "free", "max_steps": 10},
        ),
        ("save_epochs: 0.5\n", {"saves_per_epoch": 2.0}),
        (FSDP, {"sharding": "fsdp", "cpu_offload": "none"}),
        ("dist_config: {name: fsdp2, reshard_after_forward: no}\n", {"sharding": "fsdp_shard_grad_op"}),
        ("dist_config: {name: fsdp2, offload_params: yes}\n", {"cpu_offload": "params"}),
        ("dist_config: {name: deepspeed, config_file: ds_z3.json}\n", {"sharding": "zero3"}),
        (
            "dist_config: {name: fsdp2, mp_replicate_size: 2}\nfinegauge: {num_gpus: 8}\n",
            {"sharding": "hybrid", "data_parallel_shard": 4},
        ),
        (
            FSDP + "cp_size: 2\nglobal_batch_size: 16\nfinegauge: {num_gpus: 8}\n",
            {"context_parallel": 2, "gradient_accumulation_steps": 4},
        ),
    ],
)
def test_keys(tmp_path: Path, text: str, fields: dict[str, Any]) -> None:
    run = v1(tmp_path, text)
    assert {name: getattr(run, name) for name in fields} == fields


def test_overrides_in_either_language(tmp_path: Path) -> None:
    assert v1(tmp_path, LORA, "peft_config.r=4", "cutoff_len=64").lora_rank == 4
    assert v1(tmp_path, LORA, "method=full").method == "full"
    assert v1(tmp_path, "", "method=qlora").weights_dtype == "nf4_dq"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("peft_config: {name: oft}\n", "use lora or freeze"),
        ("quant_config: {name: bnb, quantization_bit: 4}\n", "needs adapters"),
        (LORA + "quant_config: {name: bnb, quantization_bit: 3}\n", "use 4 .NF4. or 8"),
        ("batching_strategy: smart\n", "use normal or padding_free"),
        ("micro_batch_size: 3\nglobal_batch_size: 4\n", "is not a multiple"),
    ],
)
def test_contradictions(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        v1(tmp_path, text)


def test_what_is_not_modelled_is_told(tmp_path: Path) -> None:
    text = "kernel_config: {name: npu_swiglu}\nbatching_strategy: dynamic_batching\ncutof_len: 5\n"
    warnings = " ".join(v1(tmp_path, text).warnings)
    for part in ("npu_swiglu", "dynamic_batching", "Did you mean 'cutoff_len'"):
        assert part in warnings
