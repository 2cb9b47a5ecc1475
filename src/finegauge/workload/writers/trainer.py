"""Keys that every framework on top of transformers' Trainer shares: the reverse of `readers.hf_trainer`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.implementation import version_numbers
from finegauge.workload.run import FROM_DEFAULT
from finegauge.workload.writers.sheet import without

if TYPE_CHECKING:
    from finegauge.workload.implementation import version_numbers
from finegauge.workload.run import Run

_OPTIMIZERS = {
    "paged_adamw": "paged_adamw_32bit",
    "lion": "lion_32bit",
}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
PHASES = {"sft": "sft", "pretrain": "pt", "reward": "rm", "dpo": "dpo", "ppo": "ppo", "grpo": "grpo"}


def optimizer(run: "Run") -> str:
    """Return the optimizer under transformers' name; how AdamW is carried out is part of it."""
    if run.optimizer == "adamw":
        return "adamw_torch_fused" if run.optimizer_implementation == "fused" else "adamw_torch"
    return _OPTIMIZERS.get(run.optimizer, run.optimizer)


def duration(run: "Run", epochs: str = "num_train_epochs") -> dict[str, Any]:
    """Return for how long it trains, and when it saves."""
    stated = run.origins["saves_per_epoch"] != FROM_DEFAULT
    saves = {0.0: "no", 1.0: "epoch"}.get(run.saves_per_epoch) if stated else None
    return without({epochs: float(run.epochs), "max_steps": run.max_steps, "save_strategy": saves})


def precision(run: "Run") -> dict[str, Any]:
    """Return the arithmetic's format; both keys, for the frameworks' defaults differ."""
    return {"bf16": run.autocast == "bf16"} | ({"fp16": True} if run.autocast == "fp16" else {})


def checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing and its kind; offloading is each framework's own."""
    if run.activation_checkpointing == "none":
        return {"gradient_checkpointing": False}
    return {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": run.checkpointing_reentrant},
    }


def batch(run: "Run") -> dict[str, Any]:
    """Return the micro-batch and how many of them make a step."""
    return {
        "per_device_train_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
    }


def grouping(run: "Run") -> dict[str, Any]:
    """Return that samples of similar length share a batch, under transformers' key of the run's version."""
    if not run.group_by_length:
        return {}
    if version_numbers(run.transformers_version) < (5, 0):
        return {"group_by_length": True}
    return {"train_sampling_strategy": "group_by_length"}


def compiled(run: "Run") -> dict[str, Any]:
    """Return torch.compile, where it is on."""
    return {"torch_compile": True} if run.compile else {}


def evaluation(run: "Run") -> dict[str, Any]:
    """Return when it evaluates, where it does."""
    return {"eval_strategy": "epoch"} if run.eval_samples else {}


def saved_modules(run: "Run") -> list[str] | None:
    """Return the modules that train whole beside adapters, by the ends of their names."""
    return [{"norms": "norm"}.get(name, name) for name in run.trainable_extra] or None
