"""NeMo Automodel's YAML: the reverse of `readers.nemo_automodel`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
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

NAME = "NeMo Automodel"
FILE = "nemo_automodel.yaml"
_LOSSES = {
    "full_logits": "masked_ce.MaskedCrossEntropy",
    "chunked": "chunked_ce.ChunkedCrossEntropy",
    "fused": "linear_ce.FusedLinearCrossEntropy",
}
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor",
    "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
    "paged_adamw": "bitsandbytes.optim.PagedAdamW",
    "paged_adamw_8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "lion": "bitsandbytes.optim.Lion",
    "lion_8bit": "bitsandbytes.optim.Lion8bit",
}


def sheet(run: "Run") -> Sheet:
    """Return the file of NeMo Automodel for `run`.

    Raises: InputError for a phase or a method that its recipe for fine-tuning does not have.
    """
    if run.phase != "sft" or run.method not in ("full", "lora", "qlora"):
        field = "phase" if run.phase != "sft" else "method"
        raise refuse(NAME, field, getattr(run, field), "its recipe fine-tunes, whole or by LoRA.")
    keys = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": without(
            {
                "global_batch_size": run.global_batch_size,
                "local_batch_size": run.micro_batch_size,
                "num_epochs": whole_number(run.epochs),
                "max_steps": run.max_steps,
            }
        ),
        "dist_env": {"backend": "nccl"},
        "model": _model(run),
        "compile": {"enabled": True} if run.compile else None,
        "quantization": _quantization(run),
        "peft": _peft(run),
        "distributed": _distributed(run),
        "loss_fn": {"_target_": f"nemo_automodel.components.loss.{_LOSSES[run.loss]}"},
        "dataset": _dataset(run),
        "packed_sequence": without(
            {
                "packed_sequence_size": run.seq_len if run.packing else 0,
                "split_across_pack": True if run.packing and run.packing_strategy == "wrapped" else None,
            }
        ),
        "optimizer": {"_target_": _OPTIMIZERS[run.optimizer]},
    }
    where = f"--nproc-per-node {launcher.per_node(run)}"
    command = f"automodel {FILE} {where}"
    if run.num_nodes > 1:
        command = launcher.torchrun(run, f"-m nemo_automodel.cli.app {FILE}")
    return Sheet(FILE, without(keys), command, "nemo-automodel")


def _model(run: "Run") -> dict[str, Any]:
    """Return the model, the format of its weights and its kernels."""
    low = run.adapter_dtype if run.method == "qlora" else run.weights_dtype
    return without(
        {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": repository(run),
            "torch_dtype": trainer.DTYPES.get(low, low),
            "attn_implementation": trainer.ATTENTION[run.attention],
            "use_liger_kernel": "liger" in run.kernels,
        }
    )


def _quantization(run: "Run") -> dict[str, Any] | None:
    """Return how the frozen weights are quantised."""
    if run.method != "qlora":
        return None
    if run.weights_dtype == "int8":
        return {"load_in_8bit": True}
    double = run.weights_dtype == "nf4_dq"
    return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}


def _peft(run: "Run") -> dict[str, Any] | None:
    """Return the adapters."""
    if run.method == "full":
        return None
    adapted = targets(run)
    everything = adapted == ("all-linear",)
    return without(
        {
            "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
            "match_all_linear": True if everything else None,
            "target_modules": None if everything else [f"*.{name}" for name in adapted],
            "dim": run.lora_rank,
            "alpha": whole_number(run.lora_alpha),
            "dropout": run.lora_dropout,
        }
    )


def _distributed(run: "Run") -> dict[str, Any]:
    """Return the strategy, the degrees and checkpointing; DDP goes with no other division of the model."""
    whole = launcher.degrees_beyond_data(run) == 1
    return {
        "strategy": "ddp" if run.sharding == "none" and whole else "fsdp2",
        "dp_size": "none",
        "dp_replicate_size": run.data_parallel_replicate if run.sharding != "none" else 1,
        "tp_size": run.tensor_parallel,
        "pp_size": run.pipeline_parallel,
        "cp_size": run.context_parallel,
        "ep_size": run.expert_parallel,
        "sequence_parallel": run.sequence_parallel,
        "cpu_offload": run.cpu_offload != "none",
        "activation_checkpointing": run.activation_checkpointing != "none",
    }


def _dataset(run: "Run") -> dict[str, Any]:
    """Return the data set and where its samples are cut."""
    named = dataset_name(run)
    return without(
        {
            "_target_": "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset",
            "path_or_dataset_id": named,
            "seq_length": run.seq_len,
            "limit_dataset_samples": run.num_samples if named else None,
        }
    )
