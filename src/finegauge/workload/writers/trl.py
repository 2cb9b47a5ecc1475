"""TRL's YAML (`trl sft --config trl.yaml`) with accelerate's beside it: the reverse of `readers.trl`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
    ACCELERATE,
    Sheet,
    dataset_name,
    file_kind,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "TRL"
FILE = "trl.yaml"
COMMANDS = {"sft": "sft", "dpo": "dpo"}


def sheet(run: "Run") -> Sheet:
    """Return the files of TRL for `run`.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    keys = training_keys(run)
    beside: dict[str, dict[str, Any]] = {}
    program = f"trl {COMMANDS[run.phase]} --config {FILE}"
    if run.num_gpus > 1 or launcher.uses_deepspeed(run) or launcher.uses_fsdp(run):
        beside[ACCELERATE] = launcher.accelerate(run)
        where = ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' if run.num_nodes > 1 else ""
        program += f" --accelerate_config {ACCELERATE}{where}"
    return Sheet(FILE, keys, program, packages(run), beside)


def training_keys(run: "Run") -> dict[str, Any]:
    """Return the keys of TRL's configuration, of its trainer and of PEFT.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    if run.phase not in COMMANDS:
        raise refuse(NAME, "phase", run.phase, f"its files tell {' and '.join(COMMANDS)} apart, no more.")
    return without(
        {
            "model_name_or_path": repository(run),
            **_method(run),
            "attn_implementation": trainer.ATTENTION[run.attention],
            **_dataset(dataset_name(run)),
            **_phase(run),
            **trainer.batch(run),
            **trainer.duration(run),
            **trainer.evaluation(run),
            **trainer.grouping(run),
            **trainer.precision(run),
            **_checkpointing(run),
            "use_liger_kernel": True if "liger" in run.kernels else None,
            "optim": trainer.optimizer(run),
            **trainer.compiled(run),
            "output_dir": "output",
        }
    )


def packages(run: "Run") -> str:
    """Return what pip has to install."""
    words = ["trl"]
    words += ["peft"] if run.trains_adapters else []
    words += ["bitsandbytes"] if run.method == "qlora" or "8bit" in run.optimizer else []
    words += ["liger-kernel"] if "liger" in run.kernels else []
    words += ["deepspeed"] if launcher.uses_deepspeed(run) else []
    return " ".join(words)


def _method(run: "Run") -> dict[str, Any]:
    """Return how the model is loaded, and which parameters train."""
    if run.method == "full":
        return {"dtype": trainer.DTYPES.get(run.weights_dtype, run.weights_dtype)}
    if run.method == "gptq_lora":
        raise refuse(NAME, "method", run.method, "its files do not tell that a checkpoint is GPTQ's.")
    adapted = targets(run)
    quantized = run.method == "qlora"
    four = quantized and run.weights_dtype != "int8"
    return {
        "dtype": None if quantized else trainer.DTYPES.get(run.weights_dtype, run.weights_dtype),
        "load_in_4bit": True if four else None,
        "load_in_8bit": True if quantized and not four else None,
        "bnb_4bit_quant_type": "nf4" if four else None,
        "use_bnb_nested_quant": run.weights_dtype == "nf4_dq" if four else None,
        "use_peft": run.trains_adapters,
        "lora_r": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_target_modules": "all-linear" if adapted == ("all-linear",) else list(adapted),
        "lora_modules_to_save": trainer.saved_modules(run),
    }


def _dataset(named: str | None) -> dict[str, Any]:
    """Return the data set: of a hub by its name, a file as what reads it."""
    kind = file_kind(named) if named else None
    return {"datasets": [{"path": kind, "data_files": named}]} if kind else {"dataset_name": named}


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing; TRL keeps activations on the host by a key of its own."""
    if run.activation_checkpointing == "offload":
        return {**trainer.checkpointing(run), "activation_offloading": True}
    return trainer.checkpointing(run)


def _phase(run: "Run") -> dict[str, Any]:
    """Return the keys of one trainer: the cut-off, packing and loss of SFT, DPO's beta."""
    multiple = {"pad_to_multiple_of": run.pad_to_multiple_of if run.pad_to_multiple_of > 1 else None}
    if run.phase == "dpo":
        return {"max_length": run.seq_len, "beta": 0.1, **multiple}
    joined = run.padding == "free"
    experts = {"experts_implementation": run.experts_implementation}
    return {
        "max_length": run.seq_len,
        "packing": run.packing,
        "packing_strategy": _strategy(run) if run.packing else None,
        "padding_free": True if joined and not run.packing else None,
        **multiple,
        "loss_type": "chunked_nll" if run.loss == "chunked" and _is_old(run) else None,
        **({} if run.experts_implementation == "grouped_mm" else {"model_init_kwargs": experts}),
    }


def _strategy(run: "Run") -> str:
    """Return how samples are packed: joined and cut anywhere, or whole, kept apart."""
    if run.packing_strategy == "wrapped":
        return "wrapped"
    return "bfd_split" if run.over_length == "split" else "bfd"


def _is_old(run: "Run") -> bool:
    """Return whether the run is TRL's of a stated version: before 1.8, whole logits are the default."""
    return run.framework == NAME and bool(run.framework_version)
