"""verl's overrides and YAML (`python -m verl.trainer.main_ppo`, `...sft_trainer`), hidden defaults included.

What no key says but the framework does (read from its trainer configurations, 0.4 to 0.9): fp32 weights under
FSDP computed in bf16; checkpointing on, off under Megatron; sequences side by side without padding (padded
before 0.7); prompts and answers of 512 tokens; `train_batch_size` of 1,024 prompts written to before they are
learnt from in mini-batches of 256; vLLM beside the trainer on two GPUs each, with half of their memory,
asleep while weights learn, and the policy's own likelihoods in a pass of their own; 30 epochs (SFT: 256
sequences a step, 4 at a time, cut at 1,024, 4 epochs); one node of 8 GPUs.
The estimator `gae` is PPO, all others are GRPO's passes; a reference there is where a KL term asks for it,
which FSDP keeps on the host. Weights and states that verl parks there between its phases (`param_offload`,
`optimizer_offload`) are gone while answers are generated alone.

slime's arguments (`train.py --hf-checkpoint ...`) are Megatron-LM's for the actor, and its own for SGLang and
what lies between. What no argument says but it does (slime/utils/arguments.py of commit 002fa9d, read
2026-11-28): 8 GPUs; bf16, the distributed optimizer; an engine for each GPU, on others unless `colocate` is
stated; sequences side by side without padding; no reference model unless a KL term asks for it, which then
lies on the host; rules judge.
"""

import re
from collections.abc import Mapping
from math import ceil, gcd, prod
from typing import Any

from finegauge.errors import FieldError
from finegauge.formats import megatron_lm, rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, model_key, read_degrees
from finegauge.formats.sheet import dotted
from finegauge.run.field import names, number, whole

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_PATHS = (f"{_MODEL}.path", "model.partial_pretrain", "model.path")
_MICRO = (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu")
_MICRO_OF_ALL = (f"{_ACTOR}.ppo_micro_batch_size", "data.micro_batch_size")
_CHECKPOINTING = (f"{_MODEL}.enable_gradient_checkpointing", "model.enable_gradient_checkpointing")
_OFFLOADED = f"{_MODEL}.enable_activation_offload"
_RECOMPUTE = tuple(
    f"{_ACTOR}.megatron.override_transformer_config.recompute_{name}"
    for name in ("granularity", "method", "num_layers")
)
_SHARDS = f"{_ACTOR}.fsdp_config"
_ULYSSES = tuple(f"{stem}ulysses_sequence_parallel_size" for stem in (f"{_ACTOR}.", "", f"{_SHARDS}."))
_LORA = ("lora_rank", "lora_alpha", "target_modules")  # FSDP's; Megatron's
_LORA_MEGATRON = ("lora.rank", "lora.alpha", "lora.target_modules")
_JOINED = (f"{_MODEL}.use_remove_padding", "use_remove_padding", "model.use_remove_padding")
_ATTENTION = (f"{_MODEL}.override_config.attn_implementation", "model.override_config.attn_implementation")
_CRITIC = (
    *("critic.model.path", "critic.model.enable_gradient_checkpointing", "critic.model.lora_rank"),
    "critic.ppo_micro_batch_size_per_gpu",
)
_JUDGES = ("reward_model.enable", "reward.reward_model.enable")  # the second since 0.7
_JUDGE = ("reward_model.model.path", "reward.reward_model.model_path")
_DYNAMIC = f"{_ACTOR}.use_dynamic_bsz"
_OF_ENGINE = {  # of rollout: field, and what verl takes unasked
    "gpu_memory_utilization": ("gpu_memory_utilization", 0.5),
    "tensor_model_parallel_size": ("rollout_tensor_parallel", 2),
    "max_num_batched_tokens": ("max_num_batched_tokens", 8192),
    "max_num_seqs": ("max_num_seqs", 256),  # before 0.9: 1,024
}
_BYPASS = "algorithm.rollout_correction.bypass_mode"
_MOST_OFF = 0.03  # of a step's sequences, where micro-batches are of tokens
_OWN_GPUS = ("rollout.nnodes", "rollout.n_gpus_per_node")
_STREAM = tuple(
    f"async_training.{name}"
    for name in ("staleness_threshold", "trigger_parameter_sync_step", "require_batches")
)
_CORE = f"{_ACTOR}.megatron"
_PARKED = tuple(f"{one}.{what}_offload" for one in (_SHARDS, _CORE) for what in ("param", "optimizer"))
_DTYPES = (f"{_SHARDS}.model_dtype", "model.fsdp_config.model_dtype")  # of the actor, of SFT
# FSDP keeps it on the host whatever the second says.
_PARKED_REFERENCE = tuple(f"actor_rollout_ref.ref.{one}.param_offload" for one in ("megatron", "fsdp_config"))
_REFERENCE = (f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward")
_MEGATRON = {f"{_ACTOR}.megatron.{key}": field for key, field in megatron_lm.DEGREES.items()}
_OPTIMIZER = (f"{_ACTOR}.optim.optimizer", "optim.optimizer")  # since 0.6
_RESHARD = f"{_SHARDS}.reshard_after_forward"
# Of FSDP2; of SFT, which under FSDP1 needs the other too.
_ON_HOST = (f"{_SHARDS}.offload_policy", "model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params")
_STRATEGIES = (f"{_ACTOR}.strategy", "model.strategy", f"{_SHARDS}.strategy")
_GROUP = f"{_SHARDS}.fsdp_size"
_OF_CORE = (
    f"{_ACTOR}.megatron.expert_tensor_parallel_size",
    f"{_ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload",
    f"{_ACTOR}.megatron.sequence_parallel",
    f"{_ACTOR}.megatron.virtual_pipeline_model_parallel_size",
)

# What sft_trainer (verl 0.6 on) does unasked, which divides micro-batches by tokens.
_OF_SFT_TRAINER = {"data.max_length": 1024, "data.max_token_len_per_gpu": 8192, "data.use_dynamic_bsz": True}


def _adapt(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys dotted; those of sft_trainer as fsdp_sft_trainer before it had them."""
    found = dotted(keys)
    engine = found.get("engine.chosen", found.pop("model_engine", found.pop("engine", None)))
    if engine == "megatron":
        found[f"{_ACTOR}.strategy"] = engine
    if "model.path" not in found:
        return found
    section = _CORE if engine == "megatron" else _SHARDS
    found = {re.sub("^engine(?=[.])", section, k): v for k, v in {**_OF_SFT_TRAINER, **found}.items()}
    tokens, length = (found.pop("data.max_token_len_per_gpu"), found["data.max_length"])
    if str(found.pop("data.use_dynamic_bsz")).lower() == "true":
        of_one = whole(1, 10**8)("max_token_len_per_gpu", tokens)
        cut = whole(1, 64)("ulysses_sequence_parallel_size", found.get(_ULYSSES[2], 1))
        found[_MICRO[1]] = max(1, of_one * cut // whole(1, 10**8)("max_length", length))
    return found


def _read_phase(reading: Reading) -> None:
    learns = reading.stated(_PATHS[0])
    estimator = reading.text("algorithm.adv_estimator", "gae")
    valued = reading.flag("critic.enable", default=estimator == "gae")
    phase = "sft" if not learns else "ppo" if valued else "grpo"
    reading.set("phase", phase, "critic.enable", "algorithm.adv_estimator", *_PATHS)
    if estimator == "remax":
        reading.warn("algorithm.adv_estimator=remax: the greedy answer to each prompt is not counted.")
    usual = 8
    if not learns and reading.launched_gpus is None:  # of a launcher: no more than there are sequences
        usual = min(8, reading.whole("data.train_batch_size", 256, 10**8))
    gpus = reading.whole("trainer.n_gpus_per_node", usual, 10**4)
    nodes = reading.whole("trainer.nnodes", 1, 10**5)
    if learns or reading.launched_gpus is None:
        reading.set("num_gpus", gpus * nodes, "trainer.n_gpus_per_node", "trainer.nnodes")
        reading.launched_gpus = reading.launched_gpus or int(gpus * nodes)
    if nodes > 1:
        reading.set("num_nodes", nodes, "trainer.nnodes")


def _read_method(reading: Reading) -> None:
    stem = _MODEL if reading.stated(_PATHS[0]) else "model"
    rank, alpha, targets = (
        reading.which(f"{stem}.{name}", f"{stem}.{other}")
        for name, other in zip(_LORA, _LORA_MEGATRON, strict=True)
    )
    adapts = reading.whole(rank, 0, 65_536, 0) > 0
    reading.set("method", "lora" if adapts else "full", rank)
    reading.set("weights_dtype", reading.first(_DTYPES, "fp32"), *_DTYPES)
    reading.set("autocast", "bf16")
    if adapts:
        reading.take("lora_rank", rank)
        reading.take("lora_alpha", alpha, 16 if rank.endswith(_LORA[0]) else 32)
        named = names(targets, reading.get(targets, ["all-linear"]))
        theirs = megatron_lm.TARGETS
        reading.set("lora_targets", [t for name in named for t in theirs.get(name, (name,))], targets)
        reading.set("adapter_dtype", "fp32")
    megatron = reading.text(f"{_ACTOR}.strategy") == "megatron" or reading.stated(*_MEGATRON)
    _read_checkpointing(reading, megatron=megatron)
    reading.set("sharding", "zero1" if megatron else "fsdp", f"{_ACTOR}.strategy")
    if megatron:
        reading.set("weights_dtype", "bf16")
        reading.set("autocast", "none")
        read_degrees(reading, {**_MEGATRON, _OF_CORE[3]: "virtual_pipeline_stages"})
        reading.take("expert_tensor_parallel", _OF_CORE[0])
        sequence = "tensor_parallel" in reading.fields and reading.flag(_OF_CORE[2], default=True)
        reading.set("sequence_parallel", sequence, _OF_CORE[2])
        if reading.flag(_OF_CORE[1]):
            reading.set("cpu_offload", "optimizer", _OF_CORE[1])
    read_degrees(reading, dict.fromkeys(_ULYSSES, "context_parallel"))
    unpadded = reading.which(*_JOINED), not (reading.before(0, 7) or reading.stated(_PATHS[1]))
    joined = megatron or reading.flag(_DYNAMIC) or reading.flag(unpadded[0], default=unpadded[1])
    padded = "longest" if reading.stated(_PATHS[2]) else "max"
    reading.set("padding", "free" if joined else padded, *_JOINED, _DYNAMIC)
    reading.take("attention", reading.which(*_ATTENTION), "flash")
    of_group, gpus = reading.whole(_GROUP, -1, 10**6, -1), reading.launched_gpus or 1
    if 0 < of_group < gpus and not megatron:  # copies of groups that shard
        reading.set("sharding", "hybrid", _GROUP)
        reading.set("data_parallel_shard", of_group, _GROUP)
    kind = reading.text(reading.which(*_STRATEGIES), "fsdp2" if reading.stated(_PATHS[1]) else "fsdp")
    if kind == "fsdp2" and not reading.flag(_RESHARD, default=True):
        reading.set("sharding", "fsdp_shard_grad_op", _RESHARD)
    on_host = any(map(reading.flag, _ON_HOST[:2])) and (kind == "fsdp2" or reading.flag(_ON_HOST[2]))
    if on_host and not megatron:
        reading.set("cpu_offload", "params", *_ON_HOST[:2])
    trainer_keys.read_optimizer(reading, reading.which(*_OPTIMIZER), "adamw")
    liger = reading.flag(f"{stem}.use_liger")
    reading.set("kernels", ["megatron"] if megatron else ["liger"] * liger, f"{stem}.use_liger")
    # flash-attn's cross-entropy widens the logits inside its kernel (verl/utils/torch_functional.py)
    whole_logits = "full_logits" if stem == "model" else "compiled"
    reading.set("loss", "fused" if liger or reading.flag(f"{stem}.use_fused_kernels") else whole_logits)


def _read_checkpointing(reading: Reading, *, megatron: bool) -> None:
    """Read which activations are kept: Megatron's by its own words, without which all are."""
    on = not megatron and reading.flag(reading.which(*_CHECKPOINTING), default=True)
    kind = "none" if not on else "offload" if reading.flag(_OFFLOADED) else "full"
    granularity = reading.text(_RECOMPUTE[0])
    if megatron and granularity in ("full", "selective"):
        kind = granularity
        for key in _RECOMPUTE[1:] if kind == "full" else ():
            reading.take(key.rpartition(".")[2], key)
    reading.set("activation_checkpointing", kind, *_CHECKPOINTING, _RECOMPUTE[0], _OFFLOADED)


def _read_lengths(reading: Reading) -> None:
    """Read lengths and batches: of prompts and their answers, or of samples."""
    ranks = reading.data_ranks(reading.launched_gpus) or 1
    if reading.fields["phase"] == "sft":
        reading.take("seq_len", "data.max_length", 1024)
        sequences, micro = reading.whole("data.train_batch_size", 256, 10**8), 4
    else:
        answer = reading.whole("data.max_response_length", 512, 10**7)
        prompt = reading.whole("data.max_prompt_length", 512, 10**7)
        reading.set("seq_len", answer + prompt, "data.max_prompt_length", "data.max_response_length")
        reading.set("max_new_tokens", answer, "data.max_response_length")
        answers = reading.whole(f"{_ROLLOUT}.n", 1, 4096)
        if reading.fields["phase"] == "grpo":
            rollout_keys.read_group(reading, f"{_ROLLOUT}.n")
        key, rollout = f"{_ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
        of_stream = prod(reading.whole(name, 1) for name in _STREAM[1:])  # answers come one by one
        prompts = reading.whole(rollout, 1024, 10**8, 0) or of_stream * reading.whole(key, 256, 10**8)
        learnt = min(prompts, reading.whole(key, 256, 10**8))
        sequences, micro = answers * learnt, 1
        reading.set("num_mini_batches", max(1, round(prompts / learnt)), key, rollout)
        reading.take("ppo_epochs", f"{_ACTOR}.ppo_epochs", 1)
        _read_other_models(reading)
        _read_engine(reading)
        if reading.flag(_DYNAMIC):
            tokens = reading.whole(f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384, 10**8)
            cut = int(reading.fields.get("context_parallel", 1))  # tokens of a GPU, of which each has a part
            micro = max(1, tokens * cut // (answer + prompt))
            reading.set("packing", True, _DYNAMIC)
    dynamic = reading.flag(_DYNAMIC)
    older = reading.first(_MICRO_OF_ALL)  # of all ranks together, before 0.3
    if older is not None and not dynamic:
        micro = max(1, int(whole(1, 10**8)("ppo_micro_batch_size", older)) // ranks)
    stated = micro if dynamic else reading.first(_MICRO, micro)
    reading.set("micro_batch_size", stated, *_MICRO, *_MICRO_OF_ALL)
    _divide(reading, sequences, f"{_ACTOR}.ppo_mini_batch_size", "data.train_batch_size")
    reading.take("epochs", "trainer.total_epochs", 4 if reading.fields["phase"] == "sft" else 30)
    reading.take("max_steps", "trainer.total_training_steps")


def _divide(reading: Reading, sequences: float, *keys: str) -> None:
    """Divide the sequences of an optimizer step among ranks and micro-batches, of whole groups of answers."""
    ranks = reading.data_ranks(reading.launched_gpus) or 1
    micro = int(whole(1, 10**6)("micro_batch_size", reading.fields["micro_batch_size"]))
    share, group = sequences / ranks, int(reading.fields.get("num_generations", 1))
    most = min(micro, ceil(share))
    found: list[tuple[float, int, int]] = []  # how far off, size, steps
    for size in range(most, max(0, most - 64), -1):
        unit = group // gcd(group, size * ranks)  # all answers to a prompt lie in one step
        steps = max(1, round(share / size / unit)) * unit
        found.append((abs(size * steps / share - 1), size, steps))
    close = (one for one in found if one[0] <= _MOST_OFF)
    size, steps = next(close, min(found))[1:]
    reading.set("micro_batch_size", size)
    reading.set("gradient_accumulation_steps", steps, *keys)


def _read_other_models(reading: Reading) -> None:
    """Read who judges beside the policy: a critic that learns, a model of rewards, a reference."""
    sharded = reading.fields["sharding"] != "zero1"  # not Megatron's
    if reading.fields["phase"] == "ppo":
        rollout_keys.other_model(reading, "critic_model", _CRITIC[0])
        checkpoints = sharded and reading.flag(_CRITIC[1], default=True)
        reading.set("critic_checkpointing", checkpoints, _CRITIC[1])
        adapts = reading.fields["method"] == "lora" and reading.whole(_CRITIC[2], 0, 65_536, 0) > 0
        reading.set("critic_method", "lora" if adapts else "full", _CRITIC[2])
        if str(reading.get(_CRITIC[3], reading.first(_MICRO))) != str(reading.first(_MICRO)):
            reading.warn(f"{_CRITIC[3]} is not modelled: the critic is taken to learn as many at a time.")
    if reading.flag(reading.which(*_JUDGES)):
        rollout_keys.other_model(reading, "reward_model", reading.which(*_JUDGE))
        if "reward_model" not in reading.fields:
            reading.not_modelled(*_JUDGES)
    elif reading.fields["phase"] == "ppo":  # a rule judges
        reading.set("reward_model", "none", *_JUDGES)
    if not any(map(reading.flag, _REFERENCE)):
        reading.set("reference_model", "none", *_REFERENCE)
    parked = reading.flag(_PARKED_REFERENCE[0], default=reading.flag(_PARKED[2]))
    reading.set("reference_offload", sharded or parked, *_PARKED_REFERENCE)


def _read_own_gpus(reading: Reading) -> None:
    """Read the GPUs that generate alone (one_step_off_policy, fully_async_policy)."""
    nodes, each = (reading.whole(name, 1, 10**5) for name in _OWN_GPUS)
    reading.set("rollout_gpus", nodes * each, *_OWN_GPUS)
    reading.set("rollout_sleep", 0)
    reading.set("rollout_offload", "none")
    stale = number(0.0, 1e6)(_STREAM[0], reading.get(_STREAM[0], 0.0))
    streams = reading.stated(*_STREAM)
    reading.set("off_policy_steps", ceil(stale) if streams else 1, _STREAM[0])
    if 0 < stale < 1:
        reading.warn(f"{_STREAM[0]}={stale:g} of a step is taken as a whole one.")


def _read_engine(reading: Reading) -> None:
    """Read what generates, and what of the trainer waits on the host meanwhile."""
    name = reading.text(f"{_ROLLOUT}.name", "vllm")
    reading.set("inference_engine", name, f"{_ROLLOUT}.name")
    for key, (field, default) in _OF_ENGINE.items():
        if name != "sglang" or field != "max_num_batched_tokens":  # SGLang is not told
            reading.take(field, f"{_ROLLOUT}.{key}", default)
    if not reading.stated(f"{_ROLLOUT}.tensor_model_parallel_size"):
        reading.set("rollout_tensor_parallel", min(2, reading.launched_gpus or 1))
    frees = reading.flag(f"{_ROLLOUT}.free_cache_engine", default=True)
    reading.set("rollout_sleep", 2 if frees else 0, f"{_ROLLOUT}.free_cache_engine")
    if reading.before(0, 9):
        reading.take("max_num_seqs", f"{_ROLLOUT}.max_num_seqs", 1024)
    reading.set("old_log_probs", not reading.flag(_BYPASS), _BYPASS)
    if reading.stated(f"{_ROLLOUT}.quantization"):
        reading.set("rollout_dtype", reading.text(f"{_ROLLOUT}.quantization"), f"{_ROLLOUT}.quantization")
    gone = [stem for stem in _PARKED if reading.flag(stem)]
    weights = any("param" in stem for stem in gone)
    reading.set("rollout_offload", ("all" if weights else "optimizer") if gone else "none", *_PARKED)
    reading.not_modelled(f"{_ROLLOUT}.enforce_eager", f"{_ROLLOUT}.multi_turn.enable")
    if reading.stated(_OWN_GPUS[1]):
        _read_own_gpus(reading)
    for name in ("pipeline_model_parallel_size", "data_parallel_size", "expert_parallel_size"):
        key = f"{_ROLLOUT}.{name}"
        if str(reading.get(key, 1)) != "1":
            reading.warn(f"{key} is not modelled: the engine is taken as without it.")


_OF_MODEL = (*_LORA, *_LORA_MEGATRON, "use_liger", "use_fused_kernels")
_OF_ROLLOUT = ("n", "name", *_OF_ENGINE, "free_cache_engine", "quantization")
_OF_UPDATES = ("ppo_mini_batch_size", "ppo_epochs", "ppo_max_token_len_per_gpu")
_KEYS = (
    *(f"{stem}.{name}" for stem in (_MODEL, "model") for name in _OF_MODEL),
    *(f"{_ROLLOUT}.{name}" for name in _OF_ROLLOUT),
    *(f"{_ACTOR}.{name}" for name in _OF_UPDATES),
    *(*_CHECKPOINTING, *_RECOMPUTE, *_DTYPES, *_OPTIMIZER, _OFFLOADED, *_ULYSSES, *_JOINED, *_ATTENTION),
    *(*_MEGATRON, *_OF_CORE, *_ON_HOST, *_STRATEGIES, _RESHARD, _GROUP, "critic.enable"),
    *(_DYNAMIC, *_CRITIC, *_JUDGES, *_JUDGE, *_PARKED, *_OWN_GPUS, *_STREAM, _BYPASS),
    *(*_REFERENCE, *_PARKED_REFERENCE, *_MICRO, *_MICRO_OF_ALL),
)
FORMAT = Format(
    "verl",
    (
        model_key(*_PATHS)._replace(write=None),
        Row("algorithm.adv_estimator trainer.n_gpus_per_node trainer.nnodes", _read_phase),
        Row(" ".join(_KEYS), _read_method),
        Row(
            "data.max_length data.max_prompt_length data.max_response_length data.train_batch_size "
            "trainer.total_epochs trainer.total_training_steps",
            _read_lengths,
        ),
        trainer_keys.dataset_row("data.train_files"),
        fixed(checkpointing_reentrant=False),
    ),
    model_key=_PATHS[0],
    lists_its_keys=False,
    adapt=_adapt,
    not_modelled="trainer.test_freq data.gen_batch_size "
    f"{_ACTOR}.entropy_from_logits_with_chunking {_ACTOR}.entropy_checkpointing",
)


def _of_slime(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return slime's arguments with what it does unasked; Megatron's sizes say what its checkpoint does."""
    sizes = {*megatron_lm.MODEL.keys.split()}
    found = {key: value for key, value in keys.items() if key not in sizes}
    found["step_batch"] = found.pop("global_batch_size", None)
    nodes, each = (found.get(f"actor_num_{name}") for name in ("nodes", "gpus_per_node"))
    return {"bf16": True, "num_nodes": nodes or 1, "num_gpus_per_node": each or 8, **found}


def _read_slime(reading: Reading) -> None:
    """Read what is learnt, lengths and batches."""
    if reading.text("train_backend", "megatron") != "megatron":
        raise FieldError("slime's train_backend=fsdp is not read; state the run in FineGauge's own fields.")
    tunes = reading.text("loss_type") == "sft_loss"
    phase = "sft" if tunes else "ppo" if reading.text("advantage_estimator", "grpo") == "ppo" else "grpo"
    reading.set("phase", phase, "loss_type", "advantage_estimator")
    sequences = prod(reading.whole(key, 1, 10**8) for key in ("rollout_batch_size", "n_samples_per_prompt"))
    batch = reading.whole("step_batch", sequences // reading.whole("num_steps_per_rollout", 1), 10**9)
    tokens = reading.whole("max_tokens_per_gpu", 0, 10**9, 0) if reading.flag("use_dynamic_batch_size") else 0
    tokens *= reading.whole("context_parallel_size", 1, 10**4)
    if tunes:
        if not tokens:
            reading.warn("Nothing cuts samples: state seq_len=… of the longest.")
        reading.set("seq_len", tokens or None, "max_tokens_per_gpu")
    else:
        _read_answers(reading, phase)
        reading.set("num_mini_batches", max(1, round(sequences / batch)), "rollout_batch_size", "step_batch")
    length = int(whole(1, 10**9)("seq_len", reading.fields.get("seq_len") or 1))
    micro = max(1, tokens // length) if tokens else reading.get("micro_batch_size", 1)
    reading.set("micro_batch_size", micro, "max_tokens_per_gpu", "micro_batch_size")
    reading.set("packing", bool(tokens), "use_dynamic_batch_size")
    _divide(reading, min(batch, sequences), "step_batch", "num_steps_per_rollout")
    reading.take("max_steps", "num_rollout")
    reading.take("epochs", "num_epoch")


def _read_answers(reading: Reading, phase: str) -> None:
    """Read what SGLang's engines write, and where."""
    prompt, answer, both = (f"rollout_max_{name}_len" for name in ("prompt", "response", "context"))
    if not reading.stated(prompt):
        reading.warn(f"{prompt} is unstated: prompts are taken as 512 tokens long; seq_len=… says another.")
    written, most = reading.whole(answer, 1024, 10**7), reading.whole(both, 10**8, 10**8)
    reading.set("seq_len", min(most, written + reading.whole(prompt, 512, 10**7)), prompt, answer, both)
    reading.set("max_new_tokens", min(written, most - 1), answer)
    answers, degree = "n_samples_per_prompt", "rollout_num_gpus_per_engine"
    if phase == "grpo":
        rollout_keys.read_group(reading, answers)
    if not (reading.flag("use_kl_loss") or number(-1e9, 1e9)("kl_coef", reading.get("kl_coef", 0.0))):
        reading.set("reference_model", "none", "use_kl_loss", "kl_coef")
    reading.set("reference_offload", True)
    if phase == "ppo":
        reading.set("reward_model", "none")
    shared, gpus = reading.flag("colocate"), reading.whole("rollout_num_gpus", reading.launched_gpus, 10**6)
    reading.set("inference_engine", "sglang")
    reading.take("gpu_memory_utilization", "sglang_mem_fraction_static")
    reading.take("rollout_tensor_parallel", degree, 1)
    reading.set("rollout_gpus", 0 if shared else gpus, "rollout_num_gpus", "colocate")
    reading.set("rollout_sleep", 2 if shared else 0, "colocate")
    reading.set("rollout_offload", "all" if shared else "none", "colocate")
    reading.set("old_log_probs", not reading.flag("use_rollout_logprobs"), "use_rollout_logprobs")
    reading.set("off_policy_steps", int(reading.flag("asynchronous") and not shared))


SLIME = Format(
    "slime",
    (
        model_key("hf_checkpoint")._replace(write=None),
        *(megatron_lm.METHOD, megatron_lm.PARALLELISM, megatron_lm.OPTIMIZER, megatron_lm.ATTENTION),
        megatron_lm.KERNELS,
        Row(
            "train_backend loss_type advantage_estimator rollout_batch_size n_samples_per_prompt step_batch "
            "num_steps_per_rollout use_dynamic_batch_size max_tokens_per_gpu micro_batch_size num_rollout "
            "num_epoch rollout_max_prompt_len rollout_max_response_len rollout_max_context_len use_kl_loss "
            "kl_coef colocate sglang_mem_fraction_static rollout_num_gpus_per_engine rollout_num_gpus "
            "use_rollout_logprobs actor_num_nodes actor_num_gpus_per_node asynchronous",
            _read_slime,
        ),
        trainer_keys.dataset_row("prompt_data"),
        fixed(padding="free"),
    ),
    model_key="hf_checkpoint",
    lists_its_keys=False,
    adapt=_of_slime,
    not_modelled="optimizer_offload_fraction eval_interval mtp_num_layers enable_mtp_training use_opd "
    "only_train_params_name_list freeze_params_name_list partial_rollout "
    "over_sampling_batch_size release_train",
)
