"""LLaMA-Factory's YAML (the v0 format of `llamafactory-cli train`), hidden defaults included.

What no key says but the framework does (read from its source, v0.9.x): LoRA of rank 8 on all
linear layers; gradient checkpointing on; trained parameters kept in fp32 unless pure_bf16 or
unquantised ZeRO-3; the base model loaded in the training precision; 4 bits mean NF4, double
quantised; micro-batches of 8, padded to the longest and a multiple of 8; three epochs.

A block `finegauge:` states fields that the framework cannot express, such as the GPU.
Secrets, paths and everything that touches neither memory nor time are left unread.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from finegauge.errors import FieldError, FileFormatError, UnknownKeyError, shown
from finegauge.workload.field import flag, names, number, whole
from finegauge.workload.readers import command_line
from finegauge.workload.run import CHECKS, FROM_COMMAND_LINE, FROM_FILE, Run

FRAMEWORK = "LLaMA-Factory"
FROM_FRAMEWORK = f"framework default: {FRAMEWORK}"

# LLaMA-Factory's key: the field it states, and the framework's default.
_DIRECT: dict[str, tuple[str, Any]] = {
    "model_name_or_path": ("model", None),
    "stage": ("phase", "sft"),
    "cutoff_len": ("seq_len", 2048),
    "per_device_train_batch_size": ("micro_batch_size", 8),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    "num_train_epochs": ("epochs", 3.0),
    "torch_compile": ("compile", False),
    "use_reentrant_gc": ("checkpointing_reentrant", True),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_rank": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", None),
    "lora_dropout": ("lora_dropout", 0.0),
    "lora_target": ("lora_targets", "all-linear"),
}
_DERIVED = """
finetuning_type quantization_bit quantization_type double_quantization pure_bf16 bf16 fp16
upcast_layernorm additional_target freeze_trainable_layers disable_gradient_checkpointing
use_unsloth_gc flash_attn enable_liger_kernel use_liger_kernel use_unsloth optim dataset dataset_dir
max_samples val_size packing neat_packing max_steps deepspeed fsdp eval_strategy evaluation_strategy
save_strategy
"""
KEYS = frozenset((*_DIRECT, *_OF_LORA, *_DERIVED.split()))
_TELLING = frozenset(
    (
        "stage",
        "finetuning_type",
        "template",
        "cutoff_len",
        "dataset",
        "dataset_dir",
        "lora_target",
        "quantization_bit",
    )
)
_ATTENTION = {
    "auto": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
    "true": "flash",
    "disabled": "eager",
    "false": "sdpa",
}
_NOT_MODELLED = (
    "use_galore",
    "use_apollo",
    "use_badam",
    "use_dora",
    "use_adam_mini",
    "use_muon",
    "mixture_of_depths",
)


def recognises(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a LLaMA-Factory training file."""
    return "model_name_or_path" in keys and not _TELLING.isdisjoint(keys)


def read(keys: Mapping[str, Any], file: str, words: Iterable[str] = ()) -> Run:
    """Return the run of a LLaMA-Factory file; `words` may use its keys or the fields' names."""
    overrides = command_line.parse(words, {*KEYS, *CHECKS})
    own = {key: value for key, value in overrides.items() if key not in KEYS and key != "method"}
    theirs = {key: value for key, value in overrides.items() if key in KEYS}
    theirs |= _method_keys(overrides["method"]) if "method" in overrides else {}
    theirs |= {"model_name_or_path": own.pop("model")} if "model" in own else {}
    reading = _Reading(keys, theirs, file)
    reading.read_model_and_method()
    reading.read_precision()
    reading.read_implementation()
    reading.read_data()
    reading.read_parallelism()
    reading.read_block()
    reading.warn_of_keys()
    command_line.lay_over(reading.fields, reading.origins, own)
    if reading.fields.get("sharding") not in (None, "none") and "num_gpus" not in reading.fields:
        reading.warnings.append(
            "The number of GPUs is the launcher's and is taken as 1; add num_gpus=8 for eight."
        )
    return Run.from_fields(reading.fields, reading.origins, tuple(reading.warnings))


def _method_keys(method: str) -> dict[str, str]:
    """Return the framework's keys for the field `method` of the command line."""
    kinds = {"full": ("full", ""), "freeze": ("freeze", ""), "lora": ("lora", ""), "qlora": ("lora", "4")}
    if method not in kinds:
        CHECKS["method"]("method", method)
        raise FieldError(f"method={method} cannot be laid over a {FRAMEWORK} file; write a run file instead.")
    finetuning_type, bits = kinds[method]
    return {"finetuning_type": finetuning_type, "quantization_bit": bits}


class _Reading:
    """The fields read so far, with their origins and the warnings."""

    def __init__(self, keys: Mapping[str, Any], overrides: Mapping[str, str], file: str) -> None:
        self._keys = {**keys, **overrides}
        self._overridden = overrides
        self._file = file
        self._name = os.path.basename(file)
        self.fields: dict[str, Any] = {"framework": FRAMEWORK}
        self.origins: dict[str, str] = {"framework": FROM_FILE}
        self.warnings: list[str] = []

    def read_model_and_method(self) -> None:
        """Read which model trains, and how."""
        self._direct(_DIRECT)
        if "model" not in self.fields:
            raise FieldError(f"{self._name} does not state its model; add 'model_name_or_path: …'.")
        kind = str(self._get("finetuning_type", "lora")).lower()
        bits = self._get("quantization_bit")
        if bits in (None, ""):
            method = kind
        elif kind == "lora":
            method = "qlora"
        else:
            raise FieldError(f"quantization_bit={shown(bits)} needs finetuning_type lora, not {shown(kind)}.")
        self._set("method", method, "finetuning_type", "quantization_bit")
        if kind == "lora":
            self._direct(_OF_LORA)
        else:
            self._note_ignored(_OF_LORA, f"finetuning_type is {kind}")
        if kind == "freeze":
            layers = number(-1e4, 1e4)("freeze_trainable_layers", self._get("freeze_trainable_layers", 2))
            self._set("freeze_trainable_layers", abs(int(layers)), "freeze_trainable_layers")
        extra = [n for n in names("additional_target", self._get("additional_target") or ())]
        self._set(
            "trainable_extra", [n for n in extra if n in ("embed_tokens", "lm_head")], "additional_target"
        )

    def read_precision(self) -> None:
        """Read the number formats of weights, adapters and arithmetic."""
        pure, bf16, fp16 = (self._flag(key) for key in ("pure_bf16", "bf16", "fp16"))
        if fp16 and (bf16 or pure):
            raise FieldError("bf16 and fp16 are both true; keep one.")
        low = "bf16" if bf16 or pure else "fp16" if fp16 else self._checkpoint_dtype()
        self._set("autocast", "none" if pure or not (bf16 or fp16) else low, "bf16", "fp16", "pure_bf16")
        method, kept_low = self.fields["method"], pure or (self._zero3() and self.fields["method"] != "qlora")
        trained = low if kept_low else "fp32"
        if method == "qlora":
            self._set("weights_dtype", self._quantized(), "quantization_bit", "double_quantization")
        else:
            self._set("weights_dtype", trained if method == "full" else low, "bf16", "fp16", "pure_bf16")
        if method in ("lora", "qlora"):
            self._set("adapter_dtype", trained, "pure_bf16")
        upcast = self._flag("upcast_layernorm") and method == "qlora"
        self._set("upcast_unquantized", upcast, "upcast_layernorm")

    def read_implementation(self) -> None:
        """Read checkpointing, attention, kernels and optimizer."""
        off, offload = self._flag("disable_gradient_checkpointing"), self._flag("use_unsloth_gc")
        checkpointing = "none" if off else "offload" if offload else "full"
        self._set(
            "activation_checkpointing", checkpointing, "disable_gradient_checkpointing", "use_unsloth_gc"
        )
        attention = str(self._get("flash_attn", "auto")).lower()
        self._set("attention", _ATTENTION.get(attention, attention), "flash_attn")
        liger = self._flag("enable_liger_kernel") or self._flag("use_liger_kernel")
        kernels = (["liger"] if liger else []) + (["unsloth"] if self._flag("use_unsloth") else [])
        self._set("kernels", kernels, "enable_liger_kernel", "use_liger_kernel", "use_unsloth")
        self._set("loss", "fused" if liger else "full_logits", "enable_liger_kernel", "use_liger_kernel")
        optimizer = str(self._get("optim", "adamw")).lower()
        self._set("optimizer", optimizer, "optim")
        if optimizer in ("adamw_torch", "adamw_torch_fused"):
            implementation = "fused" if optimizer == "adamw_torch_fused" else "foreach"
            self._set("optimizer_implementation", implementation, "optim")
        for key in _NOT_MODELLED:
            if self._get(key) not in (None, "", False):
                self.warnings.append(f"{key} is not modelled: the run is taken as without it.")

    def read_data(self) -> None:
        """Read the data set, how it is batched, and for how long."""
        from finegauge.workload.readers.llamafactory_data import read_samples

        packing = self._get("packing")
        neat = self._flag("neat_packing")
        packed = neat or (
            flag("packing", packing) if packing not in (None, "") else self.fields["phase"] == "pt"
        )
        self._set("packing", packed, "packing", "neat_packing")
        self._set("padding", ("free" if neat else "max") if packed else "longest", "neat_packing")
        steps = number(-1, 1e10)("max_steps", self._get("max_steps") or -1)
        if steps > 0:
            self._set("max_steps", steps, "max_steps")
        samples = read_samples(self._keys, self._file, strict="dataset" in self._overridden)
        self.warnings += samples.warnings
        self._set("dataset", samples.dataset, "dataset")
        self._set("num_samples", samples.num_train, "max_samples", "val_size", "dataset")
        evaluates = (
            str(self._get("eval_strategy") or self._get("evaluation_strategy") or "no").lower() != "no"
        )
        self._set("eval_samples", samples.num_eval if evaluates else 0, "val_size", "eval_strategy")
        saves = {"epoch": 1.0, "no": 0.0, "false": 0.0}.get(str(self._get("save_strategy")).lower())
        if saves is not None:
            self._set("saves_per_epoch", saves, "save_strategy")

    def read_parallelism(self) -> None:
        """Read DeepSpeed's or FSDP's sharding; the number of GPUs is the launcher's."""
        if self._get("deepspeed"):
            from finegauge.workload.readers.deepspeed import sharding

            kind, offload, warning = sharding(self._get("deepspeed"), self._file)
            self.warnings += [warning] if warning else []
            self._set("sharding", kind, "deepspeed")
            self._set("cpu_offload", offload, "deepspeed")
        elif self._get("fsdp"):
            words = str(self._get("fsdp")).lower()
            kinds = (
                ("hybrid_shard", "hybrid"),
                ("shard_grad_op", "fsdp_shard_grad_op"),
                ("full_shard", "fsdp"),
            )
            kind = next((kind for word, kind in kinds if word in words), "fsdp")
            self._set("sharding", kind, "fsdp")
            self._set("cpu_offload", "params" if "offload" in words else "none", "fsdp")

    def read_block(self) -> None:
        """Read the fields that the file states in a block of its own."""
        block = self._keys.get("finegauge") or {}
        if not isinstance(block, Mapping):
            raise FileFormatError(
                f"{self._name}: finegauge: must hold fields and their values, such as gpu: A40."
            )
        for key, value in block.items():
            if key not in CHECKS:
                raise UnknownKeyError(f"{self._name}: finegauge", key, known=CHECKS)
            self.fields[key] = value
            self.origins[key] = FROM_FILE

    def warn_of_keys(self) -> None:
        """Warn of keys that the framework does not know; values are never shown."""
        unread = [key for key in self._keys if key not in KEYS and key != "finegauge"]
        if unread:
            from finegauge.workload.readers.llamafactory_keys import unknown_key_warnings

            self.warnings += unknown_key_warnings(unread, self._name, KEYS)
        if self._keys.get("trust_remote_code"):
            self.warnings.append("trust_remote_code is not acted on: no code of a model repository is run.")

    def _get(self, key: str, default: Any = None) -> Any:
        value = self._keys.get(key)
        return default if value is None else value

    def _flag(self, key: str) -> bool:
        return flag(key, self._get(key, False))

    def _set(self, field: str, value: Any, *keys: str) -> None:
        """Note `value` as stated by whichever of `keys` the file has, else as the framework's default."""
        if value is None:
            return
        if any(key in self._overridden for key in keys):
            origin = FROM_COMMAND_LINE
        else:
            origin = FROM_FILE if any(self._keys.get(key) is not None for key in keys) else FROM_FRAMEWORK
        self.fields[field] = value
        self.origins[field] = origin

    def _direct(self, table: Mapping[str, tuple[str, Any]]) -> None:
        for key, (field, default) in table.items():
            self._set(field, self._get(key, default), key)

    def _note_ignored(self, keys: Iterable[str], reason: str) -> None:
        ignored = [key for key in keys if key in self._keys]
        if ignored:
            self.warnings.append(f"{', '.join(ignored)} has no effect: {reason}.")

    def _zero3(self) -> bool:
        named = self._get("deepspeed")
        if not named:
            return False
        from finegauge.workload.readers.deepspeed import sharding

        return sharding(named, self._file)[0] == "zero3"

    def _quantized(self) -> str:
        bits = whole(1, 64)("quantization_bit", self._get("quantization_bit"))
        if bits not in (4, 8):
            raise FieldError(f"quantization_bit={bits} is not described; use 4 (NF4) or 8.")
        if str(self._get("quantization_type", "nf4")).lower() != "nf4":
            self.warnings.append("quantization_type is taken as nf4, which takes as much memory as fp4.")
        double = flag("double_quantization", self._get("double_quantization", True))
        return "int8" if bits == 8 else "nf4_dq" if double else "nf4"

    def _checkpoint_dtype(self) -> str:
        from finegauge.workload.run import figures

        config = figures(str(self.fields["model"])).config
        stated = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "fp16"}.get(stated, "fp32")
