"""What the launcher is told: accelerate's YAML, DeepSpeed's JSON, and the command that starts it all."""

from math import prod
from typing import TYPE_CHECKING, Any

from finegauge.workload.parallelism import DATA_DEGREES, MODEL_DEGREES
from finegauge.workload.writers.sheet import ACCELERATE, without

if TYPE_CHECKING:
    from finegauge.workload.run import Run

ZERO_STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
FSDP = ("fsdp", "fsdp_shard_grad_op", "hybrid")
_MIXED = {"none": "no", "bf16": "bf16", "fp16": "fp16"}
_DEGREE_KEYS = {
    "data_parallel_replicate": "dp_replicate_size",
    "data_parallel_shard": "dp_shard_size",
    "tensor_parallel": "tp_size",
    "context_parallel": "cp_size",
}


def uses_deepspeed(run: "Run") -> bool:
    """Return whether DeepSpeed shards or offloads."""
    return run.sharding in ("zero1", "zero2", "zero3") or (
        run.sharding == "none" and run.cpu_offload != "none"
    )


def uses_fsdp(run: "Run") -> bool:
    """Return whether FSDP shards."""
    return run.sharding in FSDP


def zero_stage(run: "Run") -> int:
    """Return the ZeRO stage; what is offloaded has to be sharded, on one GPU too."""
    needed = {"none": 0, "optimizer": 2}.get(run.cpu_offload, 3)
    return ZERO_STAGES[run.sharding] if run.sharding != "none" else needed


def per_node(run: "Run") -> int:
    """Return the GPUs of one node."""
    return run.num_gpus // run.num_nodes


def accelerate(run: "Run") -> dict[str, Any]:
    """Return accelerate's YAML for a run on several GPUs, or one that is sharded or offloaded."""
    kind = "DEEPSPEED" if uses_deepspeed(run) else "FSDP" if uses_fsdp(run) else "MULTI_GPU"
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind if run.num_gpus > 1 or kind != "MULTI_GPU" else "NO",
        "mixed_precision": _MIXED[run.autocast],
        "num_machines": run.num_nodes,
        "num_processes": run.num_gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
    }
    if kind == "DEEPSPEED":
        keys["deepspeed_config"] = _inline_deepspeed(run)
    elif kind == "FSDP":
        keys["fsdp_config"] = fsdp_options(run, prefix="fsdp_") | {"fsdp_version": 2}
    degrees = {key: getattr(run, field) for field, key in _DEGREE_KEYS.items()}
    if kind == "FSDP" and (degrees_beyond_data(run) > 1 or run.data_parallel_replicate > 1):
        keys["parallelism_config"] = {f"parallelism_config_{key}": n for key, n in degrees.items()}
    return keys


def _inline_deepspeed(run: "Run") -> dict[str, Any]:
    """Return accelerate's own keys for DeepSpeed."""
    stage, devices = zero_stage(run), offload_devices(run)
    return without(
        {
            "zero_stage": stage,
            "offload_optimizer_device": devices["optimizer"] or "none",
            "offload_param_device": devices["param"] or "none",
            "gradient_accumulation_steps": run.gradient_accumulation_steps,
            "zero3_init_flag": stage == 3,
            "zero3_save_16bit_model": stage == 3,
            "deepspeed_multinode_launcher": "standard" if run.num_nodes > 1 else None,
        }
    )


def offload_devices(run: "Run") -> dict[str, str | None]:
    """Return where DeepSpeed keeps the optimizer's state and the parameters, None: on the GPU."""
    place = "nvme" if run.cpu_offload == "nvme" else "cpu"
    return {
        "optimizer": place if run.cpu_offload in ("optimizer", "all", "nvme") else None,
        "param": place if run.cpu_offload in ("params", "all", "nvme") else None,
    }


def fsdp_options(run: "Run", prefix: str = "") -> dict[str, Any]:
    """Return the keys of `fsdp_config`, as accelerate (with its prefix) and Axolotl (without) have them."""
    keys = {
        "reshard_after_forward": run.sharding != "fsdp_shard_grad_op",
        "offload_params": run.cpu_offload != "none",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": True,
    }
    return {f"{prefix}{key}": value for key, value in keys.items()}


def deepspeed(run: "Run", *, explicit: bool = False) -> dict[str, Any]:
    """Return DeepSpeed's JSON; what the trainer knows too is "auto", unless `explicit`."""
    stage, devices = zero_stage(run), offload_devices(run)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    for what, device in devices.items():
        if device is not None:
            zero[f"offload_{what}"] = {"device": device, "pin_memory": True}
            if device == "nvme":
                zero[f"offload_{what}"]["nvme_path"] = "/local_nvme"
    zero["reduce_bucket_size"] = "auto"
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    keys: dict[str, Any] = {
        "train_batch_size": run.global_batch_size if explicit else "auto",
        "train_micro_batch_size_per_gpu": run.micro_batch_size if explicit else "auto",
        "gradient_accumulation_steps": run.gradient_accumulation_steps if explicit else "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": run.autocast == "bf16" if explicit else "auto"},
        "fp16": {"enabled": run.autocast == "fp16" if explicit else "auto"},
        "zero_optimization": zero,
    }
    if run.tensor_parallel > 1 and stage < 3:  # AutoTP does not go with ZeRO-3
        keys["tensor_parallel"] = {"autotp_size": run.tensor_parallel}
    return keys


def degrees_beyond_data(run: "Run") -> int:
    """Return the GPUs that read the same sequences."""
    return prod(getattr(run, name) for name in MODEL_DEGREES)


def data_ranks(run: "Run") -> int:
    """Return the GPUs that read different sequences."""
    return prod(getattr(run, name) for name in DATA_DEGREES)


def accelerate_launch(run: "Run", program: str) -> str:
    """Return the command that starts `program` under accelerate's file."""
    where = ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500'
    return f"accelerate launch --config_file {ACCELERATE}{where if run.num_nodes > 1 else ''} {program}"


def torchrun(run: "Run", program: str) -> str:
    """Return the command that starts `program` on every GPU by torchrun."""
    where = f"--nnodes {run.num_nodes} --nproc_per_node {per_node(run)}"
    if run.num_nodes > 1:
        where += ' --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port 29500'
    return f"torchrun {where} {program}"


def environment(run: "Run") -> str:
    """Return the variables that frameworks with a launcher of their own read, before the command."""
    words = f"NNODES={run.num_nodes} NPROC_PER_NODE={per_node(run)}"
    where = ' NODE_RANK="$NODE_RANK" MASTER_ADDR="$MASTER_ADDR" MASTER_PORT=29500'
    return f"{words}{where}" if run.num_nodes > 1 else words
