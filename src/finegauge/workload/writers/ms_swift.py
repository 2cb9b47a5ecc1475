"""ms-swift's YAML (`swift sft`, `swift pt`, `swift rlhf`): the reverse of `readers.ms_swift`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
    DEEPSPEED,
    Sheet,
    dataset_name,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "ms-swift"
FILE = "ms_swift.yaml"
_RLHF = {"dpo": "dpo", "grpo": "grpo", "ppo": "ppo", "reward": "rm"}
_ATTENTION = {"sdpa": "sdpa", "flash": "flash_attn", "eager": "eager"}
_TRUNCATION = {"drop": "delete", "truncate": "right", "split": "split"}
_BUILT_IN = {
    ("zero1", "none"): "zero1",
    ("zero2", "none"): "zero2",
    ("zero3", "none"): "zero3",
    ("zero2", "optimizer"): "zero2_offload",
    ("zero3", "all"): "zero3_offload",
}
_FSDP = {"fsdp": "full_shard", "fsdp_shard_grad_op": "shard_grad_op", "hybrid": "hybrid_shard"}


def sheet(run: "Run") -> Sheet:
    """Return the files of ms-swift for `run`."""
    if run.method not in ("full", "lora", "qlora"):
        raise refuse(NAME, "method", run.method, "use method=full, lora or qlora.")
    named = dataset_name(run)
    beside: dict[str, dict[str, Any]] = {}
    keys = {
        "model": repository(run),
        "rlhf_type": _RLHF.get(run.phase),
        **_method(run),
        "torch_dtype": trainer.DTYPES.get(run.weights_dtype, "bfloat16"),
        **trainer.precision(run),
        "dataset": [_counted(run, named)] if named else None,
        "split_dataset_ratio": run.validation_fraction or None,
        "max_length": run.seq_len,
        "truncation_strategy": _TRUNCATION[run.over_length],
        **trainer.grouping(run),
        "packing": run.packing,
        "packing_length": run.seq_len if run.packing else None,
        "padding_free": True if run.padding == "free" and not run.packing else None,
        **trainer.batch(run),
        **trainer.duration(run),
        **trainer.checkpointing(run),
        "attn_impl": _ATTENTION[run.attention],
        "use_liger_kernel": True if "liger" in run.kernels else None,
        "optim": trainer.optimizer(run),
        **trainer.compiled(run),
        **_sharding(run, beside),
        "sequence_parallel_size": run.context_parallel if run.context_parallel > 1 else None,
        "output_dir": "output",
    }
    verb = {"sft": "sft", "pretrain": "pt"}.get(run.phase, "rlhf")
    command = f"swift {verb} {FILE}"
    if run.num_gpus > 1:
        command = f"{launcher.environment(run)} {command}"
    packages = "ms-swift deepspeed" if "deepspeed" in keys else "ms-swift"
    return Sheet(FILE, without(keys), command, packages, beside, spoken=("phase",) if verb == "pt" else ())


def _counted(run: "Run", named: str) -> str:
    """Return the data set with how many of its samples are used."""
    return named if run.num_samples is None else f"{named}#{run.num_samples}"


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train."""
    if run.method == "full":
        return {"tuner_type": "full"}
    quantized = run.method == "qlora"
    four = run.weights_dtype != "int8"
    return {
        "tuner_type": "lora",
        "lora_rank": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_dtype": trainer.DTYPES[run.adapter_dtype],
        "target_modules": list(targets(run)),
        "modules_to_save": trainer.saved_modules(run),
        "quant_method": "bnb" if quantized else None,
        "quant_bits": (4 if four else 8) if quantized else None,
        "bnb_4bit_quant_type": "nf4" if quantized and four else None,
        "bnb_4bit_use_double_quant": run.weights_dtype == "nf4_dq" if quantized and four else None,
    }


def _sharding(run: "Run", beside: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return DeepSpeed by a built-in name or a file put `beside`, or FSDP."""
    if launcher.uses_fsdp(run):
        offload = " offload" if run.cpu_offload != "none" else ""
        return {"fsdp": f"{_FSDP[run.sharding]} auto_wrap{offload}"}
    if not launcher.uses_deepspeed(run):
        return {}
    built_in = _BUILT_IN.get((run.sharding, run.cpu_offload)) if run.tensor_parallel == 1 else None
    if built_in is None:
        beside[DEEPSPEED] = launcher.deepspeed(run)
    return {"deepspeed": built_in or DEEPSPEED}
