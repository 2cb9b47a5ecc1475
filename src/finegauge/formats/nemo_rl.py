"""NeMo-RL's YAML and overrides (`examples/run_grpo_math.py`, `run_sft.py`, ...), hidden defaults included.

What no key says but the framework does (read from its example configurations, 0.4): the model in fp32,
computed in `precision` by FSDP2 (`dtensor_cfg`), or Megatron's bf16 with sharded states (`megatron_cfg`);
one GPU unless `cluster` says more. Answers are written by vLLM on the same GPUs with 0.6 of their memory,
asleep at level 1 while weights learn, whose states and weights wait on the host meanwhile; the policy's own
likelihoods are taken in a pass of their own, and sequences are packed. The reference lies on the host, and
comes for its pass. Megatron adds gradients up in bf16 and keeps what is left of fp32 weights beside bf16
ones. A file lies over those that it names as `defaults`; where one is not here it has the batches of
grpo_math_1B.yaml: 32 prompts of 16 answers, 512 to a step.
"""

from finegauge.errors import FieldError
from finegauge.formats import megatron_lm, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, model_key, read_degrees
from finegauge.formats.sheet import dotted
from finegauge.run.field import number, whole

_MODEL = "policy.model_name"
_PHASES = {"grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward"}
_DEGREES = {
    "policy.dtensor_cfg.tensor_parallel_size": "tensor_parallel",
    "policy.dtensor_cfg.context_parallel_size": "context_parallel",
}
_MEGATRON = {
    **{f"policy.megatron_cfg.{key}": field for key, field in megatron_lm.DEGREES.items()},
    **{
        f"policy.megatron_cfg.num_layers_in_{end}_pipeline_stage": f"{end}_stage_layers"
        for end in ("first", "last")
    },
}
_EXPERT_TENSOR = "policy.megatron_cfg.expert_tensor_parallel_size"
_ON_HOST = "policy.megatron_cfg.optimizer.optimizer_cpu_offload"
_IN_FP32 = "policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32"
_PRECISE = "policy.megatron_cfg.optimizer.use_precision_aware_optimizer"
_SKIPS = "grpo.skip_reference_policy_logprobs_calculation"
PROMPT = 512  # tokens, where nothing says
_GENERATION = "policy.generation"
_COLOCATED = f"{_GENERATION}.colocated"
_OF_ENGINE = ("gpu_memory_utilization", "tensor_parallel_size", "kv_cache_dtype", "precision", "async_engine")
_FP8 = "policy.megatron_cfg.fp8_cfg"
_SEQUENCES = ("policy.megatron_cfg.sequence_parallel", "policy.dtensor_cfg.sequence_parallel")
_KINDS = ("policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled")
_LORAS = ("policy.megatron_cfg.peft", "policy.dtensor_cfg.lora_cfg")
_PENALTY = "loss_fn.reference_policy_kl_penalty"
_DATA = ("data.train.dataset_name", "data.dataset_name", "data.train.data_path", "data.train_data_path")
_EVALUATIONS = ("val_period", "val_batches", "val_global_batch_size", "val_micro_batch_size")
_ANSWERS = (
    "grpo.num_generations_per_prompt",
    "grpo.num_prompts_per_step",
    "policy.generation.max_new_tokens",
)


def _read_phase(reading: Reading) -> None:
    found = [name for name in _PHASES if any(key.startswith(f"{name}.") for key in reading.keys)]
    if reading.stated("defaults"):
        missing = f"{reading.file_name} names other files as its defaults, which are not here"
        if len(found) != 1 or not reading.stated(_MODEL):
            raise FieldError(f"{missing}; add them: the model and what it learns are in them.")
        reading.warn(f"{missing}; state what they do.")
    if not reading.stated(_MODEL):
        return  # which is said next
    if len(found) != 1:
        raise FieldError(
            f"{reading.file_name} needs one of the sections grpo, sft, dpo and rm to tell what is learnt."
        )
    reading.set("phase", _PHASES[found[0]], *(key for key in reading.keys if key.startswith(f"{found[0]}.")))
    nodes = reading.whole("cluster.num_nodes", 1, 10**5)
    each = reading.whole("cluster.gpus_per_node", 1, 10**4)
    apart = _read_own_gpus(reading, nodes, each) if found[0] == "grpo" else 0
    gpus, nodes = nodes * each - apart, nodes - (apart // each if nodes > 1 else 0)
    reading.set("num_gpus", gpus, "cluster.gpus_per_node", "cluster.num_nodes")
    reading.launched_gpus = reading.launched_gpus or int(gpus)
    if nodes > 1:
        reading.set("num_nodes", nodes, "cluster.num_nodes")


def _read_own_gpus(reading: Reading, nodes: int, each: int) -> int:
    """Read and return how many of the cluster's GPUs generate alone."""
    if reading.flag(f"{_COLOCATED}.enabled", default=True):
        return 0
    own_nodes, own_gpus = (f"{_COLOCATED}.resources.{name}" for name in ("num_nodes", "gpus_per_node"))
    count = reading.whole(own_gpus, each if nodes > 1 else max(1, each // 2), 10**4)
    apart = count * (reading.whole(own_nodes, 1, 10**4) if nodes > 1 else 1)
    if apart >= nodes * each:
        raise FieldError(f"{own_nodes} leaves no GPU of the cluster's {nodes * each} to train on.")
    reading.set("rollout_gpus", apart, own_nodes, own_gpus, f"{_COLOCATED}.enabled")
    return int(apart)


def _read_engine(reading: Reading) -> None:
    """Read what generates, and where the trainer's states and weights are meanwhile."""
    engine, vllm = f"{_GENERATION}.backend", f"{_GENERATION}.vllm_cfg"
    name = reading.text(engine, "vllm")
    reading.set("inference_engine", name if name in ("vllm", "sglang") else "hf", engine)
    if name == "megatron":
        reading.warn(f"{engine}=megatron is not modelled: answers are timed as transformers'.")
    reading.take("gpu_memory_utilization", f"{vllm}.gpu_memory_utilization", 0.6)
    reading.take("rollout_tensor_parallel", f"{vllm}.tensor_parallel_size", 1)
    reading.take("kv_cache_dtype", f"{vllm}.kv_cache_dtype")
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        reading.take(name, f"{_GENERATION}.vllm_kwargs.{name}")
    if reading.text(f"{vllm}.precision") == "fp8":
        reading.set("rollout_dtype", "fp8", f"{vllm}.precision")
    for key in ("pipeline_parallel_size", "expert_parallel_size"):
        if str(reading.get(f"{vllm}.{key}", 1)) != "1":
            reading.warn(f"{vllm}.{key} is not modelled: the engine is taken as without it.")
    reading.not_modelled(f"{vllm}.enforce_eager")
    shared = not reading.fields.get("rollout_gpus")
    reading.set("rollout_sleep", 1 if shared else 0)
    reading.set("rollout_offload", "all" if shared else "none")
    reading.set("old_log_probs", True)
    ahead = "grpo.async_grpo.max_trajectory_age_steps"
    if reading.flag("grpo.async_grpo.enabled"):
        reading.set("off_policy_steps", reading.get(ahead, 1), "grpo.async_grpo.enabled", ahead)
    if number(-1e9, 1e9)(_PENALTY, reading.get(_PENALTY, 0.01)) == 0 or reading.flag(_SKIPS):
        reading.set("reference_model", "none", _PENALTY, _SKIPS)


def _read_model(reading: Reading) -> None:
    megatron = reading.flag(_KINDS[0])
    section = "policy.megatron_cfg" if megatron else "policy.dtensor_cfg"
    lora = _LORAS[not megatron]
    adapts = reading.flag(f"{lora}.enabled")
    reading.set("method", "lora" if adapts else "full", f"{lora}.enabled")
    if adapts:
        trainer_keys.read_ranks(
            reading, [f"{lora}.{name}" for name in ("dim", "alpha", "dropout")], (8, 32, 0.0)
        )
        reading.set("adapter_dtype", "fp32")
    low = reading.get("policy.precision", "bfloat16")
    reading.set("weights_dtype", low if megatron else "fp32", "policy.precision", *_KINDS)
    reading.set("autocast", "none" if megatron else low, "policy.precision", *_KINDS)
    reading.set("sharding", "zero1" if megatron else "fsdp", *_KINDS)
    reading.set("kernels", ["megatron"] if megatron else [], *_KINDS)
    read_degrees(reading, _MEGATRON if megatron else _DEGREES)
    if megatron:
        reading.take("expert_tensor_parallel", _EXPERT_TENSOR)
        if low == "bfloat16":
            reading.set("gradient_dtype", "fp32" if reading.flag(_IN_FP32) else "bf16", _IN_FP32)
            in_full = not reading.flag(_PRECISE, default=True)
            reading.set("master_dtype", "fp32" if in_full else "remainder", _PRECISE)
        if reading.flag(_ON_HOST):
            reading.set("cpu_offload", "optimizer", _ON_HOST)
    if reading.flag(_SEQUENCES[not megatron]):
        reading.set("sequence_parallel", True, _SEQUENCES[not megatron])
    if megatron and reading.flag(f"{_FP8}.enabled"):
        reading.set("fp8", True, f"{_FP8}.enabled")
        reading.take("fp8_recipe", f"{_FP8}.fp8_recipe")
    key = f"{section}.activation_checkpointing"
    reading.set("activation_checkpointing", "full" if reading.flag(key) else "none", key)
    if reading.flag("policy.dtensor_cfg.cpu_offload") and not megatron:
        reading.set("cpu_offload", "params", "policy.dtensor_cfg.cpu_offload")
    reading.set("reference_offload", reading.fields["phase"] in ("grpo", "dpo"))
    learns, packs = reading.fields["phase"] == "grpo", "policy.sequence_packing.enabled"
    dynamic = learns and reading.flag("policy.dynamic_batching.enabled")
    joined = dynamic or (reading.flag(packs, default=learns) and reading.fields["phase"] in ("sft", "grpo"))
    reading.set("padding", "free" if joined else "max", packs)
    reading.set("packing", joined and learns, packs, "policy.dynamic_batching.enabled")


def _read_batch(reading: Reading) -> None:
    reading.take("seq_len", "policy.max_total_sequence_length", 512)
    micro, total = "policy.train_micro_batch_size", "policy.train_global_batch_size"
    inherits = reading.stated("defaults") and reading.fields["phase"] == "grpo"
    reading.take("micro_batch_size", micro, 4 if inherits else 1)
    for kind in ("sequence_packing", "dynamic_batching"):  # of so many tokens, if the file says how many
        key = f"policy.{kind}.train_mb_tokens"
        if reading.flag(f"policy.{kind}.enabled") and str(reading.get(key)).isdecimal():
            tokens = reading.whole(key, most=10**9)
            size = max(1, tokens // whole(1, 10**9)("seq_len", reading.fields["seq_len"]))
            reading.set("micro_batch_size", size, key)
    sequences = reading.get(total, 512 if inherits else None)
    if reading.fields["phase"] == "grpo":
        reading.take("num_generations", _ANSWERS[0], 16)
        length = whole(2, 10**7)("max_total_sequence_length", reading.fields["seq_len"])
        new = min(int(length) - 1, reading.whole(_ANSWERS[2], length, 10**7))
        if new == length - 1 and not reading.replaces("max_new_tokens"):
            prompt = min(PROMPT, int(length) // 2)
            new = int(length) - prompt
            reading.warn(f"Answers may fill the sequence: prompts are taken as {prompt} tokens long.")
        reading.set("max_new_tokens", new, _ANSWERS[2])
        _read_engine(reading)
        prompts = reading.whole(_ANSWERS[1], 32, 10**8)
        rollout = prompts * whole(1, 10**6)(_ANSWERS[0], reading.fields["num_generations"])
        if sequences is not None:
            learnt = min(rollout, whole(1, 10**9)(total, sequences))
            reading.set("num_mini_batches", max(1, round(rollout / learnt)), *_ANSWERS[:2], total)
    ranks = reading.data_ranks(reading.launched_gpus)
    if reading.stated(total):
        reading.set_accumulation(total, data_parallel=ranks)
    elif sequences is not None:
        at_once = whole(1, 10**6)(micro, reading.fields["micro_batch_size"]) * (ranks or 1)
        reading.set("gradient_accumulation_steps", max(1, sequences // at_once))
    for phase in _PHASES:
        for name, field in (("max_num_steps", "max_steps"), ("max_num_epochs", "epochs")):
            reading.take(field, f"{phase}.{name}")
        _read_evaluation(reading, phase)
    trainer_keys.read_dataset(reading, reading.first(_DATA), *_DATA)


def _read_evaluation(reading: Reading, phase: str) -> None:
    """Read the evaluations, each of so many batches; those that generate are said."""
    if _PHASES[phase] == "grpo":
        reading.not_modelled("grpo.val_period")
    elif reading.whole(f"{phase}.val_period", 0, 10**9, 0) and reading.stated(f"{phase}.val_batches"):
        reading.take("eval_steps", f"{phase}.val_period")
        reading.take("eval_batch_size", f"{phase}.val_micro_batch_size")
        batch, batches = (
            reading.whole(f"{phase}.val_{one}", 1, 10**7) for one in ("global_batch_size", "batches")
        )
        reading.set("eval_samples", batch * batches, f"{phase}.val_batches", f"{phase}.val_global_batch_size")


_OF_LORA = [f"{lora}.{name}" for lora in _LORAS for name in ("enabled", "dim", "alpha", "dropout")]
_OF_POLICY = (
    *(f"policy.{name}.activation_checkpointing" for name in ("dtensor_cfg", "megatron_cfg")),
    *("policy.precision", "policy.dtensor_cfg.cpu_offload", f"{_FP8}.enabled", f"{_FP8}.fp8_recipe"),
    *("policy.sequence_packing.enabled", "policy.dynamic_batching.enabled"),
    *(_EXPERT_TENSOR, _ON_HOST, _IN_FP32, _PRECISE, _SKIPS),
)
_OF_GENERATION = (
    *(f"{_COLOCATED}.{name}" for name in ("enabled", "resources.num_nodes", "resources.gpus_per_node")),
    *(f"{_GENERATION}.vllm_cfg.{name}" for name in _OF_ENGINE),
    *(
        f"{_GENERATION}.{name}"
        for name in ("backend", "vllm_kwargs.max_num_seqs", "vllm_kwargs.max_num_batched_tokens")
    ),
    *("grpo.async_grpo.enabled", "grpo.async_grpo.max_trajectory_age_steps"),
)
_OF_STEPS = (
    *("policy.max_total_sequence_length", "policy.train_micro_batch_size", "policy.train_global_batch_size"),
    *("policy.sequence_packing.train_mb_tokens", "policy.dynamic_batching.train_mb_tokens"),
    *(f"{phase}.{name}" for phase in _PHASES for name in ("max_num_steps", "max_num_epochs", *_EVALUATIONS)),
)
FORMAT = Format(
    "NeMo-RL",
    (
        Row("cluster.gpus_per_node cluster.num_nodes", _read_phase),
        model_key(_MODEL)._replace(write=None),
        Row(" ".join((*_KINDS, *_DEGREES, *_MEGATRON, *_SEQUENCES, *_OF_LORA, *_OF_POLICY)), _read_model),
        Row(f"defaults {_PENALTY} {' '.join((*_OF_GENERATION, *_ANSWERS, *_OF_STEPS, *_DATA))}", _read_batch),
        fixed(attention="flash", optimizer="adamw", loss="full_logits", checkpointing_reentrant=False),
    ),
    model_key=_MODEL,
    lists_its_keys=False,
    adapt=lambda keys: {
        key.replace("automodel_cfg", "dtensor_cfg"): one for key, one in dotted(keys).items()
    },
)
