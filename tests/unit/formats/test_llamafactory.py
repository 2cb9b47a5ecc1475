"""LLaMA-Factory's files: what they state, what the framework does unasked, what is warned of."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, FileFormatError, UnknownKeyError, UnknownNameError
from finegauge.formats.reading import read
from finegauge.run.run import FROM_COMMAND_LINE, FROM_FILE, Run
from tests.shared import SHARED, needs_shared

FROM_FRAMEWORK = "framework default: LLaMA-Factory"
CONFIGS = SHARED / "reference" / "configs"
OFFLOADED = {f"offload_{what}": {"device": "nvme"} for what in ("param", "optimizer")}
MODEL = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\n"


def lf(folder: Path, text: str = "", *words: str, name: str = "train.yaml") -> Run:
    path = folder / name
    path.write_text(MODEL + text, encoding="utf-8")
    return read(path, words)


def test_hidden_defaults(tmp_path: Path) -> None:
    run = lf(tmp_path, "bf16: true\n")
    expected = {
        "method": "lora", "lora_rank": 8, "lora_alpha": 16.0, "lora_targets": ("all-linear",),
        "lora_dropout": 0.0,
        "weights_dtype": "bf16", "autocast": "bf16", "adapter_dtype": "fp32", "upcast_unquantized": False,
        "activation_checkpointing": "full", "attention": "sdpa", "kernels": (), "loss": "full_logits",
        "optimizer": "adamw", "seq_len": 2048, "packing": False, "micro_batch_size": 8, "padding": "longest",
        "gradient_accumulation_steps": 1, "epochs": 3.0, "pad_to_multiple_of": 8,
    }  # fmt: skip
    assert {name: getattr(run, name) for name in expected} == expected
    assert run.origins["micro_batch_size"] == FROM_FRAMEWORK
    assert run.origins["autocast"] == FROM_FILE
    assert run.warnings == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("quantization_bit: 4", {"method": "qlora", "weights_dtype": "nf4_dq", "adapter_dtype": "fp32"}),
        ("quantization_bit: 4\ndouble_quantization: false", {"weights_dtype": "nf4"}),
        ("quantization_bit: 8", {"method": "qlora", "weights_dtype": "int8"}),
        ("disable_gradient_checkpointing: true\ngradient_checkpointing: true",
         {"activation_checkpointing": "full"}),
        ("quantization_bit: 4\nupcast_layernorm: true", {"upcast_unquantized": True}),
        ("pure_bf16: true", {"adapter_dtype": "bf16", "autocast": "none", "weights_dtype": "bf16"}),
        ("fp16: true", {"autocast": "fp16", "weights_dtype": "fp16", "adapter_dtype": "fp32"}),
        ("", {"autocast": "none", "weights_dtype": "bf16"}),
        ("finetuning_type: full\nbf16: true", {"method": "full", "weights_dtype": "fp32"}),
        ("finetuning_type: full\nbf16: true", {"autocast": "bf16"}),
        ("finetuning_type: full\npure_bf16: true", {"weights_dtype": "bf16", "autocast": "none"}),
        ("finetuning_type: freeze\nfreeze_trainable_layers: -3", {"freeze_trainable_layers": 3}),
        ("disable_gradient_checkpointing: true", {"activation_checkpointing": "none"}),
        ("use_unsloth_gc: true", {"activation_checkpointing": "offload"}),
        ("flash_attn: fa2", {"attention": "flash"}),
        ("flash_attn: disabled", {"attention": "eager"}),
        ("enable_liger_kernel: true", {"kernels": ("liger",), "loss": "fused"}),
        ("use_unsloth: true", {"kernels": ("unsloth",)}),
        ("optim: adamw_torch", {"optimizer": "adamw", "optimizer_implementation": "foreach"}),
        ("optim: adamw_torch_fused", {"optimizer_implementation": "fused"}),
        ("optim: paged_adamw_8bit", {"optimizer": "paged_adamw_8bit"}),
        ("packing: true", {"packing": True, "padding": "max"}),
        ("neat_packing: true", {"packing": True, "padding": "free"}),
        ("max_steps: -1", {"max_steps": None}),
        ("max_steps: 100", {"max_steps": 100}),
        ("lora_target: q_proj,v_proj\nlora_rank: 4", {"lora_targets": ("q_proj", "v_proj")}),
        ("additional_target: embed_tokens,lm_head,x", {"trainable_extra": ("embed_tokens", "lm_head")}),
        ("fsdp: full_shard auto_wrap offload", {"sharding": "fsdp", "cpu_offload": "params"}),
        ("fsdp: shard_grad_op", {"sharding": "fsdp_shard_grad_op"}),
        ("save_strategy: epoch", {"saves_per_epoch": 1.0}),
        ("use_reentrant_gc: false", {"checkpointing_reentrant": False}),
        ("finegauge: {gpu: A40, num_gpus: 2}", {"gpu": "A40", "num_gpus": 2}),
        (
            "dataset: math_14k\nmax_samples: 100\nval_size: 0.1\neval_strategy: steps",
            {"num_samples": 100, "validation_fraction": 0.1, "eval_samples": 10},
        ),
        ("dataset: math_14k\nval_size: 1000", {"validation_fraction": 1000 / 13_921, "eval_samples": 0}),
        ("dataset: math_14k", {"dataset": "math_14k", "num_samples": None}),
    ],
)  # fmt: skip
def test_keys(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    run = lf(tmp_path, text)
    assert {name: getattr(run, name) for name in expected} == expected


def test_pretraining_packs(tmp_path: Path) -> None:
    path = tmp_path / "pt.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: pt\nfinetuning_type: full\n")
    assert (read(path).phase, read(path).packing) == ("pretrain", True)


def test_overrides_in_either_language(tmp_path: Path) -> None:
    text = "lora_rank: 16\nbf16: true\nfinegauge:\n  gpu: A40\n"
    run = lf(tmp_path, text, "cutoff_len=512", "micro_batch_size=2", "gpu=H100", "dataset=math_14k")
    assert (run.seq_len, run.micro_batch_size, run.gpu, run.dataset) == (512, 2, "H100", "math_14k")
    assert {run.origins[name] for name in ("seq_len", "micro_batch_size", "gpu", "dataset")} == {
        FROM_COMMAND_LINE
    }
    assert lf(tmp_path, text, "method=qlora").weights_dtype == "nf4_dq"
    assert lf(tmp_path, text, "model=mixtral-8x7b").model == "mixtral-8x7b"
    full = lf(tmp_path, text, "method=full")
    assert (full.method, full.weights_dtype) == ("full", "fp32")
    assert full.warnings == ("lora_rank has no effect: finetuning_type is full.",)
    with pytest.raises(UnknownKeyError, match="Did you mean 'cutoff_len'"):
        lf(tmp_path, text, "cutoff_length=512")
    with pytest.raises(UnknownNameError):
        lf(tmp_path, text, "dataset=math_15k")
    with pytest.raises(FieldError, match="cannot be laid over"):
        lf(tmp_path, text, "method=gptq_lora")


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("bf16: true\nfp16: true", FieldError, "bf16 and fp16 are both true"),
        ("finetuning_type: full\nquantization_bit: 4", FieldError, "needs finetuning_type lora"),
        ("quantization_bit: 3", FieldError, "quantization_bit=3 is not supported"),
        ("finetuning_type: reft", FieldError, "finetuning_type='reft' is not supported"),
        ("flash_attn: fa9", FieldError, "attention='fa9' is unknown"),
        ("per_device_train_batch_size: 0", FieldError, "micro_batch_size=0 is too small"),
        ("cutoff_len: ${len}", FieldError, "seq_len="),
        ("finegauge: 3", FileFormatError, "must hold fields"),
        ("finegauge: {gpus: 3}", UnknownKeyError, "Did you mean 'gpu' or 'num_gpus'"),
    ],
)
def test_refused(tmp_path: Path, text: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence.replace("$", r"\$")):
        lf(tmp_path, text)


def test_unknown_data_sets_and_dataset_info(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": {"num_samples": 500}}))
    run = lf(tmp_path, "dataset: mine\nval_size: 0.1\n")
    assert (run.dataset, run.num_samples, shape(run).num_samples) == (None, 500, 450)
    assert "'mine' are not known" in run.warnings[0]
    assert lf(tmp_path, "dataset: mine, other\n").num_samples is None


@pytest.mark.parametrize(
    ("keys", "sharding", "offload"),
    [
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, "zero2", "none"),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "zero3", "optimizer"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "zero3", "params"),
        ({"zero_optimization": {"stage": 3, **OFFLOADED}}, "zero3", "nvme"),
        ({"bf16": {"enabled": "auto"}}, "none", "none"),
    ],
)  # fmt: skip
def test_deepspeed_file(tmp_path: Path, keys: dict[str, Any], sharding: str, offload: str) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(keys))
    run = lf(tmp_path, "deepspeed: ds.json\nfinegauge: {num_gpus: 4}\n")
    assert (run.sharding, run.cpu_offload, run.warnings) == (sharding, offload, ())


def test_deepspeed_file_that_is_absent_broken_or_elsewhere(tmp_path: Path) -> None:
    named = lf(tmp_path, "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n")
    assert (named.sharding, named.cpu_offload) == ("zero3", "all")
    assert "taken from its name" in named.warnings[0]
    assert "launcher" in named.warnings[-1]
    (tmp_path / "ds.json").write_text("{broken")
    assert "not valid YAML" in lf(tmp_path, "deepspeed: ds.json\n").warnings[0]
    elsewhere = {"../../../../../../etc/passwd": "none", "/etc/passwd": "none", "/etc/zero3.json": "zero3"}
    for secret, told in elsewhere.items():
        run = lf(tmp_path, f"deepspeed: {secret}\n")
        assert run.sharding == told  # by the name, never by what it holds
        assert "outside the project folder" in run.warnings[0]
    assert "was not found" in lf(tmp_path, "deepspeed: mine.json\n").warnings[0]


def test_zero3_keeps_trained_weights_in_low_precision(tmp_path: Path) -> None:
    run = lf(
        tmp_path,
        "deepspeed: ds_z3_config.json\nfinetuning_type: full\nbf16: true\nfinegauge: {num_gpus: 8}\n",
    )
    assert (run.weights_dtype, run.data_parallel_shard) == ("bf16", 8)


def test_typos_warn_and_secrets_are_never_shown(tmp_path: Path) -> None:
    token = "hf_EXAMPLEEXAMPLE"
    run = lf(
        tmp_path,
        f"lora_rnak: 4\nhf_hub_token: {token}\nmy_api_key: {token}\ntrust_remote_code: true\n"
        "use_badam: true\n",
    )
    said = " ".join((*run.warnings, repr(run), run.to_yaml()))
    assert "'lora_rnak', which is ignored. Did you mean 'lora_rank'" in said
    assert "no code of a model repository is run" in said
    assert "use_badam is not modelled" in said
    assert token not in said
    many = lf(tmp_path, "".join(f"key_{n}: 1\n" for n in range(100)))
    assert len(many.warnings) == 21


@needs_shared
def test_reads_the_reference_examples_as_expected() -> None:
    lora = read(CONFIGS / "llamafactory" / "lora_sft_qwen3_8b.yaml")
    assert (lora.model, lora.method, lora.lora_rank, lora.lora_alpha) == ("Qwen/Qwen3-8B", "lora", 16, 32.0)
    assert (lora.autocast, lora.adapter_dtype, lora.attention, lora.loss) == (
        "bf16",
        "fp32",
        "flash",
        "full_logits",
    )
    assert (lora.seq_len, lora.micro_batch_size, lora.gradient_accumulation_steps) == (4096, 2, 8)
    assert (lora.epochs, lora.activation_checkpointing, lora.padding) == (3.0, "full", "longest")
    for field in (
        "activation_checkpointing",
        "adapter_dtype",
        "optimizer",
        "padding",
        "loss",
        "lora_dropout",
    ):
        assert lora.origins[field] == FROM_FRAMEWORK
    full = read(CONFIGS / "llamafactory" / "full_sft_qwen3_4b_z3.yaml", ("num_gpus=8",))
    assert (full.method, full.sharding, full.cpu_offload) == ("full", "zero3", "none")
    assert (full.seq_len, full.micro_batch_size, full.gradient_accumulation_steps, full.epochs) == (
        8192,
        1,
        2,
        2.0,
    )
    assert (full.activation_checkpointing, full.attention, full.global_batch_size) == ("full", "sdpa", 16)


@needs_shared
def test_reads_the_traps_as_expected() -> None:
    run = read(CONFIGS / "traps" / "typos_and_secrets.yaml")
    said = " ".join(run.warnings)
    assert (run.micro_batch_size, run.packing, run.autocast, run.sharding) == (4, True, "bf16", "none")
    for typo in ("lora_rnak", "cutoff_length"):
        assert f"'{typo}', which is ignored" in said
    assert "EXAMPLE-TOKEN" not in said
    assert "0000000000" not in said
    for trap, sentence in (("unsafe_tag.yaml", "the tag"), ("alias_bomb.yaml", "too many aliases")):
        with pytest.raises(FileFormatError, match=sentence):
            read(CONFIGS / "traps" / trap)
