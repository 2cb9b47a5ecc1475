"""What follows from a run's stated fields, and which of them contradict each other or the model.

The degrees of parallelism multiply to the number of GPUs (torchtitan's vocabulary):

    data_parallel_replicate · data_parallel_shard · tensor · pipeline · context = num_gpus

What a version of transformers does unasked: fused AdamW is the default optimizer from 4.56 on; experts are
one fused tensor per projection from 5.0 on, run as grouped matrix products and left alone by bitsandbytes.

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA)
[2] Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
"""

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

from finegauge.catalogue.frameworks import Framework, framework_of
from finegauge.catalogue.gpus import multiplies_bf16
from finegauge.errors import FieldError, FineGaugeError, did_you_mean, shown
from finegauge.run.field import version_numbers

STATED = ("file", "command line", "caller")  # origins of stated values
ADAPTER_METHODS = ("lora", "qlora", "gptq_lora")
_OF_LORA = "lora_rank lora_alpha lora_dropout lora_targets adapter_dtype adapter adapter_size"
LORA_FIELDS = (*_OF_LORA.split(), "adapter_hidden_size")
PROJECTING, LOMO = ("galore", "apollo"), ("lomo", "adalomo")  # optimizers
PROMPTS = ("prompt_tuning", "prefix_tuning", "p_tuning")  # adapters that put tokens before a sequence's own
OFF_PROJECTIONS = (*PROMPTS, "trainable_tokens", "ln_tuning")  # adapters that no projection has
ADAPTER_SIZES = {"oft": 32, "boft": 4, "fourierft": 1000, "trainable_tokens": 1, **dict.fromkeys(PROMPTS, 20)}
ADAPTER_RANKS = {"vera": 256, "randlora": 32, "miss": 64}  # PEFT's defaults, unlike LoRA's
RANKLESS = (*ADAPTER_SIZES, "ia3", "ln_tuning")
# PEFT has no modules of these over quantised weights, and of GPTQ's only those of the second (0.21)
ON_WIDE_WEIGHTS = ("boft", "loha", "lokr", "fourierft")
ON_GPTQ = ("lora", "lora_fa", "adalora", "oft", *OFF_PROJECTIONS)
TRAINABLE_EXTRAS = ("embed_tokens", "lm_head", "norms")
QUANTIZED_BY_METHOD = {"qlora": ("nf4_dq", "nf4", "int8"), "gptq_lora": ("gptq4", "gptq8")}
QUANTIZED_DTYPES = frozenset(dtype for dtypes in QUANTIZED_BY_METHOD.values() for dtype in dtypes)
ATTENTION_KERNELS = {"triton": 1, "flash2": 2, "flash3": 3}  # generations of FlashAttention
NARROW_RECIPES = ("delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4", "mxfp4")
RECIPE_ALIASES = {"current": "tensorwise", "hybrid": "delayed", "block": "blockwise", "fp8": "tensorwise"}
V_SHAPED = ("zb_v", "dualpipe_v")  # schedules whose stages hold two chunks, down the pipeline and up again
BOTH_ENDS = (*V_SHAPED, "dualpipe")  # whose first stage has both ends of the model
INTERLEAVED = ("1f1b", "zb_h1")
WHOLE_LAYERS = ("full", "offload")  # checkpointing of whole layers
MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")
ZERO = ("zero1", "zero2", "zero3")
FSDP = ("fsdp", "fsdp_shard_grad_op", "hybrid")
MODEL_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel")
DATA_DEGREES = ("data_parallel_replicate", "data_parallel_shard")

_TRUTH, _FRACTION = "[Tt]rue|[Ff]alse|0|1", r"0?\.\d+|1(\.0*)?"
ALLOC_OPTIONS = {  # of PYTORCH_CUDA_ALLOC_CONF, and the values that each takes
    **dict.fromkeys(("expandable_segments", "release_lock_on_cudamalloc"), _TRUTH),
    **dict.fromkeys(("pinned_use_cuda_host_register", "pinned_use_background_threads"), _TRUTH),
    **dict.fromkeys(
        ("max_split_size_mb", "max_non_split_rounding_mb", "pinned_num_register_threads"), r"\d+"
    ),
    **dict.fromkeys(("garbage_collection_threshold", "per_process_memory_fraction"), _FRACTION),
    "roundup_power2_divisions": r"\d+|\[[\d:, >]+\]",
    "backend": "native|cudaMallocAsync",
}

RL = ("ppo", "grpo")  # phases that generate answers and learn from them
GENERATING = (*RL, "decode", "serve")
SERVING = ("prefill", "decode", "serve")
# families whose generation_config.json asks for top-k or top-p: Qwen2 and later (20, 0.8 or 0.95), Gemma 3
# (64, 0.95), Llama 3 (0.9), DeepSeek-R1 and Nemotron (0.95); gpt-oss, Mistral and Llama 2's base ask for none
TRUNCATING = ("qwen2", "qwen3", "gemma-3", "llama-3", "deepseek-r1", "nemotron")
NOT_CHECKPOINTED = ("albert", "mpnet")  # model types whose classes in transformers 5.23 refuse it
NARROW_CHECKPOINTS = ("fp8", "int8", "gptq4", "gptq8", "nvfp4", "mxfp4")
INFERENCE = ("evaluate", *SERVING)  # phases that train nothing
PAIRED = ("reward", "dpo")
COMPARING = ("reward", "dpo", "ppo", "grpo")

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


BY_GPU = ", by GPU"  # ends the origin of a 16-bit format that a framework chooses: bf16 where there is any


def settle(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse fields that contradict each other, then fill in those that follow from the others, in place.

    `origins` says where each value comes from.

    Raises: FieldError.
    """
    _check_method(values, origins)
    _check_optimizer(values, origins)
    _check_batches(values, origins)
    _check_arrivals(values)
    _check_images(values)
    alloc_options(values["cuda_alloc_conf"] or "")
    for name in ("weights_dtype", "autocast"):
        if origins.get(name, "").endswith(BY_GPU):
            values[name] = "bf16" if multiplies_bf16(values["gpu"]) else "fp16"
    if values["cpu_offload"] != "none" and values["sharding"] == "none":
        # DeepSpeed's, on one GPU too: what is offloaded is sharded there
        values["sharding"] = "zero2" if values["cpu_offload"] == "optimizer" else "zero3"
    _fill_in(values)
    _settle_degrees(values)


def alloc_options(conf: str) -> dict[str, str]:
    """Return the options of PyTorch's allocator, "name:value,name:value" as PYTORCH_CUDA_ALLOC_CONF has them.

    Raises: FieldError for an option that PyTorch does not know, or a value that is none of its.
    """
    found: dict[str, str] = {}
    for option in re.split(r",(?![^\[]*\])", conf) if conf else ():
        name, _, value = (part.strip() for part in option.partition(":"))
        if name not in ALLOC_OPTIONS:
            hint = did_you_mean(name, ALLOC_OPTIONS)
            raise FieldError(f"cuda_alloc_conf: {shown(name)} is no option of PyTorch's allocator.{hint}")
        if not re.fullmatch(ALLOC_OPTIONS[name], value):
            raise FieldError(f"cuda_alloc_conf: {name}:{shown(value)} is not what PyTorch's allocator takes.")
        found[name] = value
    return found


def _check_method(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    method, dtype = values["method"], values["weights_dtype"]
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            if origins[name] in STATED:
                raise FieldError(
                    f"{name} is stated, but method={method} trains no adapters; use method=lora or remove it."
                )
    if method != "freeze" and origins["freeze_trainable_layers"] in STATED:
        raise FieldError(
            f"freeze_trainable_layers is stated, but method={method}; use method=freeze or remove it."
        )
    quantized = QUANTIZED_BY_METHOD.get(method)
    if quantized and dtype is not None and dtype not in quantized:
        raise FieldError(
            f"method={method} needs weights_dtype {' or '.join(quantized)}, not {dtype}; or use method=lora."
        )
    if dtype in ("mxfp4", "nvfp4") and values["phase"] not in INFERENCE:
        raise FieldError(
            f"weights_dtype={dtype}: transformers' trainer refuses such weights, which have no gradients; "
            "use bf16, as Mxfp4Config(dequantize=True) loads them."
        )
    if not quantized and dtype in QUANTIZED_DTYPES and values["phase"] not in INFERENCE:
        trained = "qlora" if dtype in QUANTIZED_BY_METHOD["qlora"] else "gptq_lora"
        raise FieldError(
            f"weights_dtype={dtype} cannot be used with method={method}; use method={trained} or bf16."
        )
    _check_adapter(values, origins)
    if not quantized and values["upcast_unquantized"]:
        raise FieldError(
            f"upcast_unquantized needs quantised weights, but method={method}; use qlora or remove it."
        )


def _check_adapter(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    kind, method = values["adapter"], values["method"]
    for name in ("adapter_size", "adapter_hidden_size", "lora_rank", "lora_targets"):
        if name in unused_by(kind) and origins[name] in STATED and method in ADAPTER_METHODS:
            raise FieldError(f"{name} is stated, but adapter={kind} has none; remove it.")
    if (method in QUANTIZED_BY_METHOD and kind in ON_WIDE_WEIGHTS) or (
        method == "gptq_lora" and kind not in ON_GPTQ
    ):
        raise FieldError(
            f"adapter={kind} cannot be used with method={method}: PEFT has none over such weights; use "
            f"method=lora, or another adapter."
        )
    if kind == "prefix_tuning" and values["activation_checkpointing"] != "none":
        raise FieldError(
            "adapter=prefix_tuning holds a cache, which activation_checkpointing cannot rebuild: PEFT "
            "refuses both together; use activation_checkpointing=none or adapter=prompt_tuning."
        )
    if kind in PROMPTS and (phase := values["phase"]) not in ("sft", "pretrain", *PAIRED, "evaluate"):
        raise FieldError(f"adapter={kind} is not predicted for phase={phase}; use another adapter, or sft.")
    if kind in PROMPTS and (values["packing"] or values["padding"] == "free"):
        raise FieldError(f"adapter={kind} puts a prompt before every sequence, so that none can be joined.")


def unused_by(adapter: str) -> tuple[str, ...]:
    """Return the fields that mean nothing to an adapter."""
    unused: tuple[str, ...] = () if adapter in ADAPTER_SIZES else ("adapter_size",)
    unused += ("lora_rank",) if adapter in RANKLESS else ()
    unused += () if adapter in ("p_tuning", "prefix_tuning") else ("adapter_hidden_size",)
    return (*unused, "lora_targets") if adapter in OFF_PROJECTIONS else unused


def _check_arrivals(values: Mapping[str, Any]) -> None:
    arrivals, per_s, phase = values["arrivals"], values["arrivals_per_s"], values["phase"]
    if phase != "serve" and (per_s is not None or arrivals not in (None, "users")):
        raise FieldError(f"arrivals are those of phase=serve, not of phase={phase}; remove them.")
    if arrivals is not None and (arrivals == "poisson") != (per_s is not None):
        raise FieldError("arrivals=poisson and arrivals_per_s need each other; state both or remove one.")


def _check_images(values: Mapping[str, Any]) -> None:
    """Refuse images without a size, and where nothing here says what they cost."""
    if not (values["images_per_sample"] or values["videos_per_sample"]):
        return
    if values["image_size"] is None:
        raise FieldError(
            "images need image_size: add their width x height unresized, as image_size=1024x768."
        )
    if values["videos_per_sample"] and values["video_frames"] is None:
        raise FieldError("videos_per_sample needs video_frames, the frames taken of each video.")
    if values["phase"] in (*RL, *SERVING):
        raise FieldError(
            f"phase={values['phase']} with images is not predicted; sft, pretrain, dpo, reward and evaluate "
            "are: remove images_per_sample and videos_per_sample, or change the phase."
        )
    if values["packing"] and values["dataset"] is not None:
        raise FieldError("packing=true with images is not predicted over a data set; remove one of them.")
    for name in MODEL_DEGREES:
        if values[name] > 1:
            raise FieldError(f"{name}={values[name]} with images is not predicted; set {name}=1.")


def _check_optimizer(values: dict[str, Any], origins: Mapping[str, str]) -> None:
    name, how = values["optimizer"], values["optimizer_implementation"]
    if origins["optimizer_rank"] in STATED and not name.startswith(PROJECTING):
        raise FieldError(f"optimizer_rank is stated, but optimizer={name} has none; remove it.")
    if name not in LOMO:
        return
    if how not in (None, "in_backward"):
        raise FieldError(
            f"optimizer={name} updates in the backward pass, which optimizer_implementation={how} does not; "
            f"remove it."
        )
    values["optimizer_implementation"] = "in_backward"


def _check_batches(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    phase, packing, new_tokens = values["phase"], values["packing"], values["max_new_tokens"]
    if packing and values["group_by_length"]:
        raise FieldError("packing=true fills every sequence, so group_by_length cannot hold; remove one.")
    if packing and values["padding"] == "longest" and origins["padding"] in STATED:
        raise FieldError(
            "packing=true fills every sequence to seq_len, so padding=longest cannot hold; remove one."
        )
    if new_tokens is not None and phase not in GENERATING:
        raise FieldError(
            f"max_new_tokens is stated, but phase={phase} generates nothing; remove it or use "
            f"{', '.join(GENERATING)}."
        )
    if new_tokens is not None and new_tokens >= values["seq_len"]:
        raise FieldError(
            f"max_new_tokens={new_tokens} leaves no room for a prompt in seq_len={values['seq_len']}; "
            f"use less than {values['seq_len']}."
        )
    mean = values["mean_new_tokens"]
    if mean is not None and new_tokens is not None and mean > new_tokens:
        raise FieldError(
            f"mean_new_tokens={mean:g} is more than max_new_tokens={new_tokens}; answers end there."
        )
    if values["off_policy_steps"] and not values["rollout_gpus"]:
        raise FieldError(
            f"off_policy_steps={values['off_policy_steps']} needs GPUs that generate while others train; "
            "set rollout_gpus."
        )
    if values["rollout_gpus"] % values["rollout_tensor_parallel"]:
        raise FieldError(
            f"rollout_tensor_parallel={values['rollout_tensor_parallel']} does not divide "
            f"rollout_gpus={values['rollout_gpus']}."
        )
    if phase in PAIRED and (packing or values["padding"] == "free"):
        joined = "packing=true" if packing else "padding=free"
        raise FieldError(f"phase={phase} compares whole sequences, so {joined} cannot hold; remove it.")
    if phase in SERVING and values["gradient_accumulation_steps"] > 1:
        raise FieldError(
            f"gradient_accumulation_steps={values['gradient_accumulation_steps']}, but phase={phase} trains "
            f"nothing; remove it."
        )


# whose experts transformers has never had as linears (its modelling files; read 2026-11-24)
ALWAYS_FUSED = ("gpt_oss", "llama4", "llama4_text", "dbrx", "granitemoe", "granitemoeshared", "jetmoe")


def _fill_in(values: dict[str, Any]) -> None:
    method, packing = values["method"], values["packing"]
    version = version_numbers(values["transformers_version"])
    fused_experts = version >= (5, 0)
    framework = framework_of(values["framework"])
    by_megatron = framework.megatron_layers or "megatron" in values["kernels"]
    half = "bf16" if multiplies_bf16(values["gpu"]) else "fp16"
    if values["inference_engine"] is None:
        values["inference_engine"] = framework.engine.name if framework.engine else "hf"
    values["weights_dtype"] = values["weights_dtype"] or _checkpoint_format(values)
    follows: dict[str, Any] = {
        "fp8_recipe": "delayed" if framework.megatron_layers or framework.delays_scales else "tensorwise",
        "counted_as_layers": (),
        "master_dtype": "fp32" if values["moments_dtype"] == "fp32" else "remainder",
        "recompute_modules": ("core_attn",) if by_megatron else (),
        "optimizer_rank": 128 if values["optimizer"].startswith(PROJECTING) else None,
        "optimizer_implementation": "fused" if version >= (4, 56) else "foreach",
        "experts_implementation": "grouped_mm" if fused_experts else "eager",
        "quantize_experts": _quantizes_experts(values, fused_experts=fused_experts),
        "loss": "fused" if "liger" in values["kernels"] else "full_logits",
        "weights_dtype": QUANTIZED_BY_METHOD.get(method, (half,))[0],
        "adapter_dtype": half,
        "lora_rank": ADAPTER_RANKS.get(values["adapter"], 16),
        "lora_alpha": 2.0 * (values["lora_rank"] or 16),
        "adapter_size": ADAPTER_SIZES.get(values["adapter"]) if method in ADAPTER_METHODS else None,
        "lora_dropout": 0.0,
        "freeze_trainable_layers": 2 if method == "freeze" else None,
        "max_new_tokens": (values["seq_len"] // 2 or 1) if values["phase"] in GENERATING else None,
        "padding": _padding(values),
        "offload_pinned": values["sharding"] in FSDP,
        "sync_each_batch": framework.reduces_every_micro_batch,
        "arrivals": "users" if values["arrivals_per_s"] is None else "poisson",
        "truncated_sampling": any(family in values["model"].casefold() for family in TRUNCATING),
        "loading": "host",
        "save_state": "full",
        **dict.fromkeys(("freeze_vision_tower", "freeze_projector"), framework.freezes_tower),
    }
    if by_megatron:
        follows |= {"loading": "sharded", "save_state": "sharded"}
    elif method in QUANTIZED_BY_METHOD:
        divides = values["sharding"] in FSDP and (framework.own_models or framework.fuses_gptq)
        # before 5.0 from_pretrained moved each tensor to the host as soon as it was quantised, where FSDP or
        # ZeRO-3 divides it later (_load_state_dict_into_meta_model of 4.39 to 4.57)
        moves = version < (5, 0) and (values["sharding"] in FSDP or values["sharding"] == "zero3")
        follows["loading"] = "host" if divides or moves else "device"
    elif values["sharding"] == "zero3":
        follows["loading"] = "rank0"
    if packing and values["padding"] == "longest":
        values["padding"] = None
    follows |= _roles(values, framework, values["inference_engine"] or follows["inference_engine"])
    for name, value in follows.items():
        if values[name] is None:
            values[name] = value
    targets = values["lora_targets"] or ("all-linear",)
    values["lora_targets"] = ("all-linear",) if "all" in targets or "all-linear" in targets else targets
    if values["packing_strategy"] is None:
        values["packing_strategy"] = framework.batching.packing_strategy


def _roles(values: Mapping[str, Any], framework: Framework, engine: str) -> dict[str, Any]:
    """Return what nothing says of the models of a step: who they are, how they train and generate.

    Raises: FieldError where DeepSpeed's engine is to divide weights that are not sharded, and where the
    critic is divided by other means than the policy.
    """
    method, degree = values["method"], values["rollout_tensor_parallel"]
    if engine == "deepspeed" and degree > 1 and values["phase"] in RL and values["sharding"] != "zero3":
        raise FieldError(
            f"rollout_tensor_parallel={degree}: DeepSpeed's engine divides the weights that ZeRO-3 gathers; "
            f"set sharding=zero3."
        )
    adapters = method in ADAPTER_METHODS and values["phase"] in ("dpo", *RL)  # elsewhere nothing follows
    critic = values["phase"] == "ppo"
    own, others = values["sharding"], values["critic_sharding"] or values["sharding"]
    if critic and others != own and not (own in ZERO and others in ("none", *ZERO)):
        raise FieldError(
            f"critic_sharding={others} beside sharding={own}: only stages of DeepSpeed's ZeRO are mixed; "
            "remove it, or set sharding to one of zero1, zero2 and zero3."
        )
    checkpointed = values["activation_checkpointing"] != "none" and critic
    return {
        "ppo_epochs": 4 if values["phase"] == "ppo" and not framework.updates_once else 1,
        "critic_method": "lora" if adapters and critic and not framework.trains_whole_critic else "full",
        "critic_checkpointing": checkpointed and not framework.trains_whole_critic,
        "critic_sharding": own if critic else "none",
        "reference_model": "policy" if adapters and not framework.copies_reference else "copy",
        "fuse_lora": method == "lora" and engine != "hf",
        "gather_for_generation": framework.gathers_to_write or engine == "deepspeed",
    }


def _padding(values: Mapping[str, Any]) -> str:
    """Return to what sequences are padded where nothing says."""
    answers_end = values["phase"] in RL and values["mean_new_tokens"] is not None
    if values["packing"]:
        return "free" if values["phase"] in RL else "max"
    return "longest" if values["dataset"] or answers_end else "max"


def _checkpoint_format(values: Mapping[str, Any]) -> str | None:
    """Return the narrow format of a served model's own checkpoint, where it is one that engines read."""
    if values["phase"] not in SERVING or values["inference_engine"] == "hf":
        return None
    from finegauge.catalogue.models import model

    try:
        stated = model(values["model"]).config.get("quantization_config")
    except FineGaugeError:  # said where the model is looked up
        return None
    method = str(stated.get("quant_method", "")) if isinstance(stated, Mapping) else ""
    return {"mxfp4": "mxfp4", "fp8": "fp8", "awq": "gptq4", "gptq": "gptq4"}.get(method)


def _quantizes_experts(values: Mapping[str, Any], *, fused_experts: bool) -> bool:
    """Return whether a quantiser reaches the experts: it replaces linears, and passes over fused parameters.

    Unsloth's own experts of gpt-oss are linears, and its 4-bit copies are stored so.
    """
    if values["method"] != "qlora" or _is_served_narrow(values):
        return not fused_experts or _is_served_narrow(values)
    from finegauge.catalogue.models import model

    try:
        kind = model(values["model"]).config.get("model_type")
    except FineGaugeError:  # said where the model is looked up
        return not fused_experts
    stored = kind == "gpt_oss" and "bnb-4bit" in values["model"].casefold()
    linear = stored or kind in framework_of(values["framework"]).linear_experts
    return linear or not (fused_experts or kind in ALWAYS_FUSED)


def _is_served_narrow(values: Mapping[str, Any]) -> bool:
    """Return whether an engine reads weights in a format in which checkpoints hold experts too."""
    return values["phase"] in SERVING and values["weights_dtype"] in NARROW_CHECKPOINTS


def _divide_as_experts(values: dict[str, Any]) -> None:
    """Divide the rest of a served model among the ranks that divide its experts, as vLLM does.

    Copies of attention, whose ranks share experts too, are stated (`data_parallel_replicate`).

    Raises: FieldError where the experts are divided among more GPUs than there are.
    """
    ranks, stages, gpus = (values[name] for name in ("expert_parallel", "pipeline_parallel", "num_gpus"))
    if gpus is not None and ranks > 1 and ranks * stages > gpus:
        raise FieldError(
            f"expert_parallel={ranks} with pipeline_parallel={stages} needs more GPUs than num_gpus={gpus}; "
            f"set num_gpus={ranks * stages} or a smaller degree."
        )
    if values["phase"] not in SERVING or values["inference_engine"] == "hf" or ranks == 1 or gpus is None:
        return
    copies = (values["data_parallel_replicate"] or 1) * (values["data_parallel_shard"] or 1)
    if values["tensor_parallel"] == 1 and gpus == ranks * stages and copies < ranks:
        values["tensor_parallel"] = ranks // copies


def _settle_degrees(values: dict[str, Any]) -> None:
    """Fill in the degrees that the others leave open and refuse those that do not multiply."""
    chunks, schedule = values["virtual_pipeline_stages"], values["pipeline_schedule"]
    if chunks > 1 and schedule not in INTERLEAVED:
        raise FieldError(
            f"virtual_pipeline_stages={chunks} is interleaved 1F1B, which pipeline_schedule={schedule} is "
            f"not; use pipeline_schedule=1f1b or zb_h1."
        )
    uneven = values["first_stage_layers"] is not None or values["last_stage_layers"] is not None
    if uneven and values["counted_as_layers"]:
        raise FieldError(
            "counted_as_layers divides all stages, which first_stage_layers or last_stage_layers do too; "
            "remove one."
        )
    if values["cpu_offload"] == "nvme" and values["sharding"] != "zero3":
        raise FieldError(
            f"cpu_offload=nvme is DeepSpeed's ZeRO-Infinity, which sharding={values['sharding']} is not; use "
            f"sharding=zero3."
        )
    _divide_as_experts(values)
    product, open_degrees = 1, []
    for name in (*MODEL_DEGREES, *DATA_DEGREES):
        product *= values[name] or 1
        if values[name] is None:
            open_degrees.append(name)
    if values["num_gpus"] is None:
        experts = values["expert_parallel"] * values["pipeline_parallel"] if open_degrees else 1
        values["num_gpus"] = product * max(1, -(-experts // product))  # which divide the data ranks
    num_gpus, num_nodes = values["num_gpus"], values["num_nodes"]
    if num_gpus % num_nodes:
        raise FieldError(
            f"num_gpus={num_gpus} (all nodes together) is not a multiple of num_nodes={num_nodes}."
        )
    left, remainder = divmod(num_gpus, product)
    if remainder or (left > 1 and not open_degrees) or not left:
        degrees = " · ".join(
            [f"{n}={values[n]}" for n in (*DATA_DEGREES, *MODEL_DEGREES) if (values[n] or 1) > 1]
        )
        raise FieldError(
            f"{degrees} multiply to {product}, which does not fill num_gpus={num_gpus}; "
            f"set num_gpus={product} or change a degree."
        )
    replicated = values["sharding"] == "none" or "data_parallel_shard" not in open_degrees
    rest = "data_parallel_replicate" if replicated else "data_parallel_shard"
    for name in open_degrees:
        values[name] = left if name == rest or len(open_degrees) == 1 else 1


def forget_method(values: dict[str, Any], method: str) -> None:
    """Remove from stated `values` what another method had needed and `method` does not."""
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            values.pop(name, None)
    if method != "freeze":
        values.pop("freeze_trainable_layers", None)
    quantized = QUANTIZED_BY_METHOD.get(method)
    if not quantized:
        values.pop("upcast_unquantized", None)
    dtype = str(values.get("weights_dtype")).strip().lower()
    if dtype not in quantized if quantized else dtype in QUANTIZED_DTYPES:
        values.pop("weights_dtype", None)


# What the model stands against


def num_experts(config: Mapping[str, Any]) -> int:
    """Return how many routed experts a layer of the model has; 0 if it has none."""
    for key in _EXPERT_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    pattern = config.get("mamba_moe_layers")  # BlackMamba: "r" a Mamba layer, "8" eight experts
    if isinstance(pattern, list | tuple):
        return max((int(kind) for kind in map(str, pattern) if kind.isdecimal()), default=0)
    return 0


def fit_model(values: dict[str, Any], whole_config: Mapping[str, Any]) -> None:
    """Resolve "all" experts and an "auto" bucket, and refuse what the model cannot be divided into.

    Raises: FieldError naming the model's figure that stands against the field.
    """
    text_config = whole_config.get("text_config")
    config = text_config if isinstance(text_config, Mapping) else whole_config
    model = values["model"]
    _fit_experts(values, config)
    degree = values["tensor_parallel"]
    copies = values["phase"] in INFERENCE or "megatron" in values["kernels"]  # where ranks are more
    for key in ("num_key_value_heads", "num_attention_heads"):
        heads = config.get(key)
        copied = key == "num_key_value_heads" and copies
        if isinstance(heads, int) and heads > 0 and heads % degree and not (copied and degree % heads == 0):
            raise FieldError(
                f"tensor_parallel={degree} does not divide {key}={heads} of {model}; use {_divisors(heads)}."
            )
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int):
        for field in ("pipeline_parallel", "freeze_trainable_layers"):
            if (values[field] or 1) > max(layers, 1):
                raise FieldError(f"{field}={values[field]} exceeds the {layers} layers of {model}.")
        chunks, stages = values["virtual_pipeline_stages"], values["pipeline_parallel"]
        places = layers + sum(counted(values["counted_as_layers"]))
        if stages > 1 and chunks * stages > max(places, 1):
            raise FieldError(
                f"virtual_pipeline_stages={chunks} of pipeline_parallel={stages} stages exceed the {layers} "
                f"layers of {model}; use at most {max(1, places // stages)}."
            )
        if stages > 1:
            _fit_ends(values, layers, stages)
    hidden_size = config.get("hidden_size")
    if values["reduce_bucket_size"] == "auto":  # transformers/integrations/deepspeed.py
        values["reduce_bucket_size"] = hidden_size**2 if isinstance(hidden_size, int) else 500_000_000
    if isinstance(hidden_size, int) and values["lora_rank"] > max(hidden_size, 16):
        raise FieldError(
            f"lora_rank={values['lora_rank']} exceeds hidden_size={hidden_size} of {model}; "
            f"a rank of 8 to 256 is usual."
        )


def counted(ends: Iterable[str]) -> tuple[int, int]:
    """Return as how many layers the embedding and the loss count where stages are divided."""
    return int("embedding" in ends), int("loss" in ends)


def _fit_ends(values: Mapping[str, Any], layers: int, stages: int) -> None:
    ends = [values[name] for name in ("first_stage_layers", "last_stage_layers") if values[name] is not None]
    rest, between = layers - sum(ends), stages - len(ends)
    if ends and (rest < between or (not between and rest)):
        raise FieldError(
            f"first_stage_layers and last_stage_layers leave {rest} of the {layers} layers of "
            f"{values['model']} to the other {between} of pipeline_parallel={stages} stages."
        )


def _fit_experts(values: dict[str, Any], config: Mapping[str, Any]) -> None:
    active, model, degree = values["num_experts_per_tok"], values["model"], values["expert_parallel"]
    names = ("num_experts_per_tok", "expert_capacity_factor", "expert_parallel")
    if not (stated := [name for name in names if values[name] not in (None, 1)]):
        return
    experts = num_experts(config)
    if not experts:
        raise FieldError(f"{stated[0]} is stated, but {model} has no experts; remove it.")
    if active == "all":
        values["num_experts_per_tok"] = active = experts
    if active is not None and active > experts:
        asked = f"num_experts_per_tok={active}"
        raise FieldError(f"{asked} exceeds the {experts} experts of {model}; use 1 to {experts}.")
    if experts % degree:
        raise FieldError(
            f"expert_parallel={degree} does not divide the {experts} experts of {model}; "
            f"use {_divisors(experts)}."
        )


def _divisors(number: int) -> str:
    """Return the divisors of `number` as "1, 2, 4 or 8", at most eight of them."""
    found = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0][:8]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]


def num_held_out(num_samples: int, fraction: float) -> int:
    """Return how many samples are validated on: the share rounded up, but never all of them."""
    return min(max(0, num_samples - 1), ceil(fraction * num_samples - 1e-9))
