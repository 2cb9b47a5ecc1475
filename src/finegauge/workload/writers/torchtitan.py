"""torchtitan's TOML job file: the reverse of `readers.torchtitan`. It pre-trains: every weight learns."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import Sheet, dataset_name, refuse, repository, without

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "torchtitan"
FILE = "torchtitan.toml"
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe"}
_OPTIMIZERS = {"adamw": "AdamW"}
_MODES = {"none": "none", "full": "full", "selective": "selective", "offload": "full"}


def sheet(run: "Run") -> Sheet:
    """Return the job file of torchtitan for `run`.

    Raises: InputError for what it does not train.
    """
    if run.method != "full" or run.phase != "pretrain":
        field = "method" if run.method != "full" else "phase"
        raise refuse(NAME, field, getattr(run, field), "it pre-trains every weight.")
    model = repository(run)
    low = {"bf16": "bfloat16", "fp16": "float16"}.get(run.autocast, "float32")
    in_fp32 = run.weights_dtype == "fp32"
    keys: dict[str, Any] = {
        "model": _model(model),
        "optimizer": {
            "name": _OPTIMIZERS.get(run.optimizer, run.optimizer),
            "implementation": _implementation(run),
        },
        "training": without(
            {
                "local_batch_size": run.micro_batch_size,
                "global_batch_size": run.global_batch_size,
                "seq_len": run.seq_len,
                "steps": run.max_steps,
                "dataset": dataset_name(run) or "c4",
                "dtype": trainer.DTYPES.get(run.weights_dtype, run.weights_dtype),
                "mixed_precision_param": low if in_fp32 else trainer.DTYPES.get(run.weights_dtype),
                "enable_cpu_offload": True if run.cpu_offload != "none" else None,
            }
        ),
        "parallelism": {
            "data_parallel_replicate_degree": run.data_parallel_replicate,
            "data_parallel_shard_degree": _shard_degree(run),
            "fsdp_reshard_after_forward": _reshard(run),
            "tensor_parallel_degree": run.tensor_parallel,
            "pipeline_parallel_degree": run.pipeline_parallel,
            "pipeline_parallel_schedule": _SCHEDULES.get(run.pipeline_schedule, "1F1B"),
            "context_parallel_degree": run.context_parallel,
            "expert_parallel_degree": run.expert_parallel,
        },
        "activation_checkpoint": {"mode": _MODES[run.activation_checkpointing]},
        "compile": {"enable": run.compile},
    }
    program = f"-m torchtitan.train --job.config_file {FILE}"
    return Sheet(FILE, keys, launcher.torchrun(run, program), "torchtitan")


def _model(repository_id: str) -> dict[str, str]:
    """Return torchtitan's name and flavour, and the folder that its assets are downloaded to."""
    name = repository_id.rpartition("/")[2]
    family, _, size = name.rpartition("-")
    plain = family.lower().removeprefix("meta-")
    return {
        "name": {"llama-3.1": "llama3", "llama-3": "llama3"}.get(plain, plain),
        "flavor": size,
        "hf_assets_path": f"./assets/hf/{name}",
    }


def _implementation(run: "Run") -> str:
    """Return how the optimizer is carried out."""
    return {"loop": "for-loop"}.get(run.optimizer_implementation, run.optimizer_implementation)


def _reshard(run: "Run") -> str:
    """Return whether gathered weights are given up after the forward pass."""
    return "never" if run.sharding in ("zero1", "zero2", "fsdp_shard_grad_op") else "default"


def _shard_degree(run: "Run") -> int:
    """Return the shards; 1 is no FSDP at all, -1 whatever the other degrees leave of the GPUs."""
    return -1 if run.data_parallel_shard == 1 and run.sharding != "none" else run.data_parallel_shard
