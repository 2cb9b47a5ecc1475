"""What follows from a run's stated fields, and which of them contradict each other or the model."""

from collections.abc import Collection, Mapping
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.frameworks import framework_of
from finegauge.errors import FieldError, shown
from finegauge.run.field import Check, choice, choices, flag, label, names, number, text, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

WEIGHTS_DTYPES = ("bf16", "fp16", "fp32", "nf4", "nf4_dq", "gptq4", "gptq8", "fp8", "int8")
FLOAT_DTYPES = ("bf16", "fp16", "fp32")
QUANTIZED_BY_METHOD = {"qlora": ("nf4_dq", "nf4", "int8"), "gptq_lora": ("gptq4", "gptq8")}
QUANTIZED_DTYPES = frozenset(dtype for dtypes in QUANTIZED_BY_METHOD.values() for dtype in dtypes)
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}

PRECISION_CHECKS: dict[str, Check] = {
    "weights_dtype": choice(WEIGHTS_DTYPES, _ALIASES),
    "autocast": choice(("none", "bf16", "fp16"), {**_ALIASES, "no": "none", "false": "none"}),
    "adapter_dtype": choice(FLOAT_DTYPES, _ALIASES),
    "upcast_unquantized": flag,
    "fp8": flag,
    "quantize_experts": flag,
}


def settle_precision(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in the weights' format by method and refuse what contradicts it."""
    del stated  # every contradiction below holds whoever stated it
    method, quantized = values["method"], QUANTIZED_BY_METHOD.get(values["method"])
    if values["weights_dtype"] is None:
        values["weights_dtype"] = quantized[0] if quantized else "bf16"
    if values["adapter_dtype"] is None:
        values["adapter_dtype"] = "bf16"
    dtype = values["weights_dtype"]
    if quantized and dtype not in quantized:
        raise FieldError(
            f"method={method} needs weights_dtype {' or '.join(quantized)}, not {dtype}; or use method=lora."
        )
    if not quantized and dtype in QUANTIZED_DTYPES:
        trained = "qlora" if dtype in QUANTIZED_BY_METHOD["qlora"] else "gptq_lora"
        raise FieldError(
            f"weights_dtype={dtype} cannot be used with method={method}; use method={trained} or bf16."
        )
    if values["upcast_unquantized"] and not quantized:
        raise FieldError(
            f"upcast_unquantized needs quantised weights, but method={method}; use qlora or remove it."
        )


PHASES = ("sft", "pretrain", "reward", "dpo", "ppo", "grpo", "evaluate", "prefill", "decode")
METHODS = ("full", "lora", "qlora", "gptq_lora", "freeze")
ADAPTER_METHODS = ("lora", "qlora", "gptq_lora")
TRAINABLE_EXTRAS = ("embed_tokens", "lm_head", "norms")

LORA_FIELDS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "adapter_dtype")

METHOD_CHECKS: dict[str, Check] = {
    "phase": choice(PHASES, {"pt": "pretrain", "rm": "reward", "eval": "evaluate"}),
    "method": choice(METHODS),
    "lora_rank": whole(1, 65_536),
    "lora_alpha": number(1e-6, 1e6),
    "lora_dropout": number(0.0, 1.0),
    "lora_targets": names,
    "trainable_extra": choices(TRAINABLE_EXTRAS),
    "freeze_trainable_layers": whole(1, 10_000, "layers"),
}


def settle_method(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in what follows from the method and refuse what contradicts it."""
    method = values["method"]
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            if name in stated:
                raise FieldError(
                    f"{name} is stated, but method={method} trains no adapters; use method=lora or remove it."
                )
    if "freeze_trainable_layers" in stated and method != "freeze":
        raise FieldError(
            f"freeze_trainable_layers is stated, but method={method}; use method=freeze or remove it."
        )
    if method == "freeze" and values["freeze_trainable_layers"] is None:
        values["freeze_trainable_layers"] = 2
    if values["lora_rank"] is None:
        values["lora_rank"] = 16
    if values["lora_alpha"] is None:
        values["lora_alpha"] = 2.0 * values["lora_rank"]
    if values["lora_dropout"] is None:
        values["lora_dropout"] = 0.0
    targets = values["lora_targets"] or ("all-linear",)
    values["lora_targets"] = ("all-linear",) if "all" in targets or "all-linear" in targets else targets


def forget(values: dict[str, Any], method: str) -> None:
    """Remove from stated `values` what another method had needed and `method` does not."""
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            values.pop(name, None)
    if method != "freeze":
        values.pop("freeze_trainable_layers", None)
    quantized = QUANTIZED_BY_METHOD.get(method)
    if not quantized:
        values.pop("upcast_unquantized", None)
    rest = str(values.get("weights_dtype")).strip().lower()
    if rest not in quantized if quantized else rest in QUANTIZED_DTYPES:
        values.pop("weights_dtype", None)


OPTIMIZERS = (
    "adamw",
    "adamw_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "adafactor",
    "lion",
    "lion_8bit",
    "sgd",
)
ACTIVATION_CHECKPOINTING = ("none", "full", "selective", "offload")
ATTENTION = ("sdpa", "flash", "eager")
ATTENTION_KERNELS = ("triton", "flash3")  # of FlashAttention's first generation, and its third
KERNELS = ("liger", "unsloth", "foak", "megatron", *ATTENTION_KERNELS)
LOSSES = ("full_logits", "chunked", "fused")

_FLASH = ("fa", "fa2", "fa3", "flash_attn", "flash_attention", "flash_attention_2", "flash_attention_3")
_ADAMW = ("adam", "adamw_torch", "adamw_hf", "adamw_torch_fused", "adamw_fused", "adamw_apex_fused")


def version_numbers(version: str) -> tuple[int, int, int]:
    """Return the numbers of a version: (4, 40, 2) of "4.40.2", (5, 0, 0) of "v5"."""
    parts = [*version.lower().removeprefix("v").split(".")[:3], "0", "0"][:3]
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise FieldError(f"{shown(version)} is not a version; write it as 5.23 or 4.40.2.")
    return int(parts[0]), int(parts[1]), int(parts[2])


def version(name: str, value: Any) -> str:
    """Return a version such as "4.40", which YAML reads as the number 4.4 unless it is quoted."""
    if isinstance(value, float) and round(value, 1) == value:
        raise FieldError(f"{name}={value} may have lost a zero; put the version in quotes, as '4.40'.")
    written = text(name, value)
    try:
        version_numbers(written)
    except FieldError as error:
        raise FieldError(f"{name}: {error}") from None
    return written


IMPLEMENTATION_CHECKS: dict[str, Check] = {
    "optimizer": choice(
        OPTIMIZERS,
        {
            **dict.fromkeys(_ADAMW, "adamw"),
            **dict.fromkeys(("adamw8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
            "paged_adamw_32bit": "paged_adamw",
            "lion_32bit": "lion",
        },
    ),
    "optimizer_implementation": choice(("fused", "foreach", "loop", "in_backward")),
    "activation_checkpointing": choice(ACTIVATION_CHECKPOINTING, {"true": "full", "false": "none"}),
    "checkpointing_reentrant": flag,
    "synchronous": flag,
    "attention": choice(ATTENTION, dict.fromkeys(_FLASH, "flash")),
    "kernels": choices(KERNELS),
    "loss": choice(LOSSES, {"full": "full_logits"}),
    "experts_implementation": choice(("eager", "grouped_mm")),
    "ssm_kernels": choice(("fused", "slow")),
    "compile": flag,
    "framework": label,
    "framework_version": label,
    "transformers_version": version,
    "bitsandbytes_version": version,
}


def settle_implementation(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in what the software version does unasked."""
    del stated  # nothing here contradicts
    version = version_numbers(values["transformers_version"])
    fused_experts = version >= (5, 0)
    if values["optimizer_implementation"] is None:
        values["optimizer_implementation"] = "fused" if version >= (4, 56) else "foreach"
    if values["experts_implementation"] is None:
        values["experts_implementation"] = "grouped_mm" if fused_experts else "eager"
    if values["quantize_experts"] is None:
        values["quantize_experts"] = not fused_experts
    if values["loss"] is None:
        values["loss"] = "fused" if "liger" in values["kernels"] else "full_logits"


FSDP = ("fsdp", "fsdp_shard_grad_op", "hybrid")
SHARDING = ("none", "zero1", "zero2", "zero3", *FSDP)
PIPELINE_SCHEDULES = ("1f1b", "gpipe", "naive")  # naive: layers spread over GPUs, one working at a time
CPU_OFFLOAD = ("none", "optimizer", "params", "all", "nvme")  # nvme: states and weights, on local drives
MODEL_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel")
DATA_DEGREES = ("data_parallel_replicate", "data_parallel_shard")
MAX_GPUS = 1_000_000

PARALLELISM_CHECKS: dict[str, Check] = {
    "num_gpus": whole(1, MAX_GPUS),
    "num_nodes": whole(1, MAX_GPUS),
    "node_network_gbit_per_s": number(0.1, 1e6, "Gbit/s"),
    **{name: whole(1, MAX_GPUS) for name in (*DATA_DEGREES, *MODEL_DEGREES, "expert_parallel")},
    "sequence_parallel": flag,
    "virtual_pipeline_stages": whole(1, 1000),
    "pipeline_schedule": choice(PIPELINE_SCHEDULES, {"naive_mp": "naive"}),
    "sharding": choice(SHARDING, {"false": "none", "ddp": "none", "zero0": "none"}),
    "cpu_offload": choice(CPU_OFFLOAD, {"false": "none", "true": "all"}),
}


def num_held_out(num_samples: int, fraction: float) -> int:
    """Return how many samples are validated on: the share rounded up, but never all of them."""
    return min(max(0, num_samples - 1), ceil(fraction * num_samples - 1e-9))


def settle_parallelism(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in the degrees that the others leave open and refuse those that do not multiply."""
    del stated  # the degrees must multiply whoever stated them
    _check_schedule(values)
    model_parallel = prod(values[name] for name in MODEL_DEGREES)
    data_parallel = prod(values[name] or 1 for name in DATA_DEGREES)
    if values["num_gpus"] is None:
        values["num_gpus"] = model_parallel * data_parallel
    num_gpus, num_nodes = values["num_gpus"], values["num_nodes"]
    if num_gpus % num_nodes:
        raise FieldError(
            f"num_gpus={num_gpus} (all nodes together) is not a multiple of num_nodes={num_nodes}."
        )
    open_degrees = [name for name in DATA_DEGREES if values[name] is None]
    left, remainder = divmod(num_gpus, model_parallel * data_parallel)
    if remainder or (left > 1 and not open_degrees) or not left:
        degrees = " · ".join(
            f"{n}={values[n]}" for n in (*DATA_DEGREES, *MODEL_DEGREES) if (values[n] or 1) > 1
        )
        product = model_parallel * data_parallel
        raise FieldError(
            f"{degrees} multiply to {product}, which does not fill num_gpus={num_gpus}; "
            f"set num_gpus={product} or change a degree."
        )
    replicated = values["sharding"] == "none" or "data_parallel_shard" not in open_degrees
    rest = "data_parallel_replicate" if replicated else "data_parallel_shard"
    for name in open_degrees:
        values[name] = left if name == rest or len(open_degrees) == 1 else 1


def accumulates_whole(run: "Run") -> bool:
    """Return whether FSDP's gradients stay whole on every rank until the last micro-batch of a step.

    So they do under `no_sync`, which accelerate enters unless told `sync_each_batch` (its guide to
    gradient synchronization says so) and litgpt by Fabric's `no_backward_sync`.
    """
    if run.sharding not in FSDP or run.gradient_accumulation_steps == 1:
        return False
    return not framework_of(run.framework).reduces_every_micro_batch


def _check_schedule(values: dict[str, Any]) -> None:
    """Refuse chunks of stages that no schedule passes in turn, and drives that nothing streams from."""
    chunks, schedule = values["virtual_pipeline_stages"], values["pipeline_schedule"]
    if chunks > 1 and schedule != "1f1b":
        raise FieldError(
            f"virtual_pipeline_stages={chunks} is interleaved 1F1B, which pipeline_schedule={schedule} is "
            f"not; use pipeline_schedule=1f1b."
        )
    if values["cpu_offload"] == "nvme" and values["sharding"] != "zero3":
        raise FieldError(
            f"cpu_offload=nvme is DeepSpeed's ZeRO-Infinity, which sharding={values['sharding']} is not; use "
            f"sharding=zero3."
        )


CLUSTER_CHECKS: dict[str, Check] = {
    "gpu": text,
    "provider": text,
    "region": text,
    "startup_s": number(0.0, 1e7, "s"),
    "saves_per_epoch": number(0.0, 1e6),
    "eval_samples": whole(0, 10**10),
}

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def num_experts(config: Mapping[str, Any]) -> int:
    """Return how many routed experts a layer of the model has; 0 if it has none."""
    for key in _EXPERT_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    pattern = config.get("mamba_moe_layers")  # BlackMamba: "r" a Mamba layer, "8" eight experts
    if isinstance(pattern, list | tuple):
        return max((int(kind) for kind in map(str, pattern) if kind.isdecimal()), default=0)
    return 0


def fit(values: dict[str, Any], whole_config: Mapping[str, Any]) -> None:
    """Resolve "all" experts and refuse what the model cannot be divided into.

    Raises: FieldError naming the model's figure that stands against the field.
    """
    text_config = whole_config.get("text_config")
    config = text_config if isinstance(text_config, Mapping) else whole_config
    _fit_experts(values, config)
    _fit_heads(values, config)
    for field, key in (
        ("pipeline_parallel", "num_hidden_layers"),
        ("freeze_trainable_layers", "num_hidden_layers"),
    ):
        layers = config.get(key)
        if isinstance(layers, int) and (values[field] or 1) > max(layers, 1):
            raise FieldError(f"{field}={values[field]} exceeds the {layers} layers of {values['model']}.")
    chunks, stages = values["virtual_pipeline_stages"], values["pipeline_parallel"]
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and stages > 1 and chunks * stages > max(layers, 1):
        raise FieldError(
            f"virtual_pipeline_stages={chunks} of pipeline_parallel={stages} stages exceed the {layers} "
            f"layers of {values['model']}; use at most {max(1, layers // stages)}."
        )
    hidden_size = config.get("hidden_size")
    if isinstance(hidden_size, int) and values["lora_rank"] > max(hidden_size, 16):
        raise FieldError(
            f"lora_rank={values['lora_rank']} exceeds hidden_size={hidden_size} of {values['model']}; "
            f"a rank of 8 to 256 is usual."
        )


def _fit_experts(values: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Resolve and check the experts per token and the expert-parallel degree."""
    asked, model = values["num_experts_per_tok"], values["model"]
    experts = num_experts(config)
    if not experts and (asked is not None or values["expert_parallel"] > 1):
        field = "expert_parallel" if asked is None else "num_experts_per_tok"
        raise FieldError(f"{field} is stated, but {model} has no experts; remove it.")
    if asked == "all":
        values["num_experts_per_tok"] = asked = experts
    if asked is not None and asked > experts:
        raise FieldError(
            f"num_experts_per_tok={asked} exceeds the {experts} experts of {model}; use 1 to {experts}."
        )
    if experts % values["expert_parallel"]:
        raise FieldError(
            f"expert_parallel={values['expert_parallel']} does not divide the {experts} experts of {model}; "
            f"use {_divisors(experts)}."
        )


def _fit_heads(values: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a tensor-parallel degree that does not divide the heads."""
    degree = values["tensor_parallel"]
    for key in ("num_key_value_heads", "num_attention_heads"):
        heads = config.get(key)
        if isinstance(heads, int) and heads > 0 and heads % degree:
            raise FieldError(
                f"tensor_parallel={degree} does not divide {key}={heads} of {values['model']}; "
                f"use {_divisors(heads)}."
            )


def _divisors(number: int) -> str:
    """Return the divisors of `number` as "1, 2, 4 or 8", at most eight of them."""
    found = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0][:8]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]
