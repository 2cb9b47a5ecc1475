"""Arguments of OpenRLHF (`openrlhf.cli.train_sft`, `_dpo`, `_rm`, `_ppo_ray`), hidden defaults included.

What no argument says but the framework does (read from its command lines, 0.5 to 0.11): every weight trains
in bf16 under DeepSpeed's ZeRO-2 where `bf16` is given; LoRA on all linear layers where `lora_rank` is above
0; no checkpointing; micro-batches of 8 (rewards: 1; PPO: 4, since 0.10: 1) of 128 sequences a step over all
GPUs; samples cut at 2,048 (DPO and rewards: 512), padded to the longest, kept apart without padding by
`packing_samples`; two epochs (others one). In PPO and its kin answers are written by vLLM, on GPUs of its
own with 0.95 of their memory unless all models are colocated; a rollout of 1,024 prompts, of one answer
each, is learnt from in steps of 128 answers, once (`max_epochs`). The reference is a copy, adapters or not;
it, critic and reward model have GPUs of their own unless colocated; a rule or a server (`remote_rm_url`) may
judge in the reward model's place.
"""

from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, model_key
from finegauge.formats.sheet import dotted
from finegauge.run.field import number, whole
from finegauge.run.rules import PAIRED, RL

_PHASES = {"sft": "sft", "dpo": "dpo", "kto": "dpo", "rm": "reward", "ppo_ray": "ppo", "ppo": "ppo"}
# Arguments in groups (0.10: --train.batch_size), where their names before are not "group_name" or "name".
_GROUPED = {
    **dict.fromkeys(("model.model_name_or_path", "actor.model_name_or_path"), "pretrain"),
    **{f"{one}.model_name_or_path": f"{one}_pretrain" for one in ("critic", "reward")},
    **{"train.batch_size": "train_batch_size", "train.micro_batch_size": "micro_train_batch_size"},
    **{"train.colocate_all": "colocate_all_models", "train.async_enable": "async_train"},
    **{"train.dynamic_batch_enable": "use_dynamic_batch", "ref.offload": "ref_reward_offload"},
    **{"train.max_tokens_per_gpu": "train_max_tokens_per_gpu", "data.prompt_dataset": "prompt_data"},
    **{"rollout.batch_size": "rollout_batch_size", "rollout.max_new_tokens": "generate_max_len"},
    **{"algo.kl.init_coef": "init_kl_coef", "algo.advantage.estimator": "advantage_estimator"},
    **{"ds.enable_sleep": "deepspeed_enable_sleep", "ds.offload_optimizer": "adam_offload"},
    "reward.remote_url": "remote_rm_url",
    **{f"ds.lora.{name}": f"lora_{name}" for name in ("rank", "alpha", "dropout")},
    **{f"{one}.gradient_checkpointing_enable": "gradient_checkpointing" for one in ("actor", "model")},
}
_RULES = ("remote_rm_url", "agent_func_path")  # which judge in the reward model's place
_WITH_GROUP = ("vllm", "actor", "ref", "critic", "reward")  # --vllm.num_engines was --vllm_num_engines
_ADAPTERS = trainer_keys.Adapters(
    "lora_rank lora_alpha lora_dropout target_modules modules_to_save", defaults=(8, 16, 0.0)
)


def _adapt(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in groups (0.10: --train.batch_size) under the names that they had before."""
    found = {
        key: value for key, value in keys.items() if not isinstance(value, Mapping) or key == "finegauge"
    }
    inside = dotted({key: value for key, value in keys.items() if key not in found})
    if "model_name_or_path" in found:  # a group's, without the group
        found.setdefault("pretrain", found.pop("model_name_or_path"))
    for path, value in inside.items():
        group, last = path.partition(".")[0], path.rpartition(".")[2]
        usual = f"{group}_{last}" if group in _WITH_GROUP else last
        found[_GROUPED.get(path, usual)] = value
    if any(path.startswith(("fsdp.", "fsdp2_")) for path in (*inside, *found)):  # in place of DeepSpeed
        found["fsdp"] = True
    if inside and found.get("trainer") in ("ppo", "ppo_ray"):
        found = {"micro_train_batch_size": 1, "max_len": 2048, **found}
        found["generate_max_len"] = found.get("generate_max_len") or found["max_len"]
    if "max_new_tokens" in found:  # of 0.9
        found = {"generate_max_len": found.pop("max_new_tokens"), "max_len": 2048, **found}
    return found


def _read_phase(reading: Reading) -> None:
    trainer = reading.text("trainer", "sft")
    if trainer not in _PHASES:
        raise FieldError(
            f"OpenRLHF's {shown(f'train_{trainer}')} is not supported; sft, dpo, rm and ppo_ray are."
        )
    phase = _PHASES[trainer]
    rollout_keys.read_preference(reading, trainer, "trainer")
    estimator = reading.text("advantage_estimator", "gae")
    if phase == "ppo" and estimator != "gae":
        phase = "grpo"
    reading.set("phase", phase, "trainer", "advantage_estimator")
    prompt, answer = reading.get("prompt_max_len", 1024), reading.get("generate_max_len", 1024)
    if phase not in ("ppo", "grpo"):
        cut = 2048 if phase == "sft" else 512
        reading.take("seq_len", "max_len", cut)
        return
    answer = whole(1, 10**7)("generate_max_len", answer)
    if reading.get("max_len"):  # of both together
        reading.take("seq_len", "max_len")
        answer = min(answer, int(reading.fields["seq_len"]) - 1)
    else:
        both = whole(1, 10**7)("prompt_max_len", prompt) + answer
        reading.set("seq_len", both, "prompt_max_len", "generate_max_len")
    reading.set("max_new_tokens", answer, "generate_max_len")
    if phase == "grpo":
        rollout_keys.read_group(reading, "n_samples_per_prompt")


def _read_engine(reading: Reading) -> None:
    """Read vLLM's engines, and how often a rollout is learnt from."""
    if reading.fields["phase"] not in RL:
        reading.take("epochs", "max_epochs", 2 if reading.fields["phase"] == "sft" else 1)
        offloaded = reading.which("ref_offload", "ref_reward_offload")  # DPO's and KTO's
        if reading.flag(offloaded):
            reading.set("reference_offload", True, offloaded)
        return
    batch = reading.whole("train_batch_size", 128, 10**9)
    rollout = reading.whole("n_samples_per_prompt", 1) * reading.whole("rollout_batch_size", 1024, 10**9)
    reading.set("num_mini_batches", max(1, round(rollout / batch)), "rollout_batch_size", "train_batch_size")
    reading.take("ppo_epochs", "max_epochs", 1)
    reading.take("epochs", "num_episodes", 1)
    _read_judges(reading)
    reading.set("ema", reading.flag("enable_ema"), "enable_ema")
    reading.set("reference_offload", reading.flag("ref_reward_offload"), "ref_reward_offload")
    if not reading.text("trainer").endswith("ray"):
        return
    engines = reading.whole("vllm_num_engines", 1, 10**5, 0)
    if not engines:
        return
    degree = reading.whole("vllm_tensor_parallel_size", 1, 10**4)
    asynchronous, share = reading.flag("async_train"), "vllm_gpu_memory_utilization"
    colocated = reading.flag("colocate_all_models") and not asynchronous
    reading.set("inference_engine", "vllm", "vllm_num_engines")
    reading.set("rollout_tensor_parallel", degree, "vllm_tensor_parallel_size")
    reading.set("rollout_gpus", 0 if colocated else engines * degree, "vllm_num_engines")
    reading.take("gpu_memory_utilization", share, 0.95)
    reading.set("old_log_probs", reading.fields["phase"] == "grpo")
    if asynchronous:
        reading.take("off_policy_steps", "async_queue_size", 1)
    if colocated:
        reading.set("rollout_sleep", int(reading.flag("vllm_enable_sleep")), "vllm_enable_sleep")
        gone = reading.flag("deepspeed_enable_sleep")
        reading.set("rollout_offload", "optimizer" if gone else "none", "deepspeed_enable_sleep")


def _read_judges(reading: Reading) -> None:
    """Read who judges beside the policy: a reference, a model of rewards or a rule, a critic."""
    judged = number(-1e9, 1e9)("init_kl_coef", reading.get("init_kl_coef", 0.01)) > 0
    reading.set("reference_model", "copy" if judged else "none", "init_kl_coef")
    rollout_keys.other_model(reading, "reward_model", "reward_pretrain")
    by_rule = reading.stated(*_RULES)
    if by_rule:
        reading.set("reward_model", "none" if reading.fields["phase"] == "ppo" else None, *_RULES)
    if not reading.flag("colocate_all_models"):
        reference = judged and not reading.flag("colocate_actor_ref")
        learns = reading.fields["phase"] == "ppo"
        if roles := ["reference"] * reference + ["critic"] * learns + ["reward model"] * (not by_rule):
            reading.warn(f"GPUs of their own: {', '.join(roles)}; they are counted among the actor's.")
    if reading.fields["phase"] == "ppo":  # which begins as the reward model, unless stated otherwise
        rollout_keys.other_model(reading, "critic_model", reading.which("critic_pretrain", "reward_pretrain"))


def _read_method(reading: Reading) -> None:
    rank = reading.whole("lora_rank", 0, 65_536, 0)
    four = reading.flag("load_in_4bit")
    reading.set("method", ("qlora" if four else "lora") if rank else "full", "lora_rank", "load_in_4bit")
    low = "bf16" if reading.flag("bf16", default=reading.text("param_dtype", "") != "fp16") else "fp16"
    reading.set("autocast", low, "bf16", "param_dtype")
    reading.set("weights_dtype", "nf4" if four and rank else low, "bf16", "load_in_4bit")
    if rank:
        _ADAPTERS.read(reading)
        reading.set("adapter_dtype", low)


def _read_parallelism(reading: Reading) -> None:
    zero = ("none", "zero1", "zero2", "zero3")[int(reading.whole("zero_stage", 2, 3, 0))]
    reading.set("sharding", "fsdp" if reading.flag("fsdp") else zero, "zero_stage", "fsdp")
    reading.set("cpu_offload", "optimizer" if reading.flag("adam_offload") else "none", "adam_offload")
    ring = reading.whole("ring_attn_size", 1, 10**4)
    if ring > 1:
        reading.set("context_parallel", ring, "ring_attn_size")
    if reading.stated("actor_num_gpus_per_node"):
        nodes = reading.whole("actor_num_nodes", 1, 10**5)
        each = reading.whole("actor_num_gpus_per_node", most=10**4)
        reading.set("num_gpus", nodes * each, "actor_num_gpus_per_node")
        reading.launched_gpus = int(nodes * each)
    micro = {"ppo": 4, "grpo": 4, "reward": 1}.get(str(reading.fields["phase"]), 8)
    reading.take("micro_batch_size", "micro_train_batch_size", micro)
    if reading.flag("use_dynamic_batch") and reading.fields["phase"] in RL:  # by tokens
        tokens = reading.whole("train_max_tokens_per_gpu", 16192, 10**9)
        most = max(1, tokens * ring // whole(1, 10**9)("seq_len", reading.fields["seq_len"]))
        reading.set("micro_batch_size", most, "train_max_tokens_per_gpu")
    batch = reading.whole("train_batch_size", 128, 10**9)
    ranks = reading.data_ranks(reading.launched_gpus) or 1
    size = min(
        batch // ranks or 1, whole(1, 10**6)("micro_train_batch_size", reading.fields["micro_batch_size"])
    )
    reading.set("micro_batch_size", size, "micro_train_batch_size", "train_max_tokens_per_gpu")
    reading.set("gradient_accumulation_steps", max(1, batch // (size * ranks)), "train_batch_size")


def _read_batching(reading: Reading) -> None:
    dynamic = reading.flag("use_dynamic_batch") and reading.fields["phase"] in RL
    packs = reading.flag("packing_samples") or "context_parallel" in reading.fields
    joined = dynamic or (packs and reading.fields["phase"] not in PAIRED)
    reading.set("padding", "free" if joined else "longest", "packing_samples")
    if reading.flag("packing_samples") and not joined:
        reading.warn("packing_samples of pairs is not modelled: they are taken as padded to the longest.")
    reading.set("packing", dynamic, "use_dynamic_batch")
    asked = reading.text("attn_implementation", "eager" if reading.before(0, 8) else "flash")
    flash = reading.flag("flash_attn") or "flash" in asked or packs or joined
    reading.set("attention", "flash" if flash else asked, "flash_attn", "attn_implementation")
    named = reading.first(("dataset", "prompt_data"))
    most = reading.get("max_samples")
    most = None if most is None else whole(1, 10**12)("max_samples", most)
    trainer_keys.read_dataset(reading, named, "dataset", "prompt_data", "max_samples", num_samples=most)


FORMAT = Format(
    "OpenRLHF",
    (
        model_key("pretrain"),
        Row(
            "trainer advantage_estimator max_len prompt_max_len generate_max_len n_samples_per_prompt "
            "colocate_all_models colocate_actor_ref",
            _read_phase,
        ),
        Row(f"{_ADAPTERS.keys} load_in_4bit bf16 param_dtype", _read_method),
        Row(
            "zero_stage fsdp adam_offload ring_attn_size actor_num_nodes actor_num_gpus_per_node "
            f"{' '.join(f'{role}_num_nodes {role}_num_gpus_per_node' for role in _WITH_GROUP[2:])} "
            "micro_train_batch_size train_batch_size",
            _read_parallelism,
        ),
        Row(
            "vllm_num_engines vllm_tensor_parallel_size vllm_gpu_memory_utilization vllm_enable_sleep "
            "deepspeed_enable_sleep async_train async_queue_size rollout_batch_size num_episodes max_epochs "
            "init_kl_coef reward_pretrain critic_pretrain enable_ema ref_offload ref_reward_offload "
            f"micro_rollout_batch_size {' '.join(_RULES)}",
            _read_engine,
        ),
        Row(
            "use_dynamic_batch train_max_tokens_per_gpu packing_samples flash_attn attn_implementation "
            "dataset prompt_data max_samples",
            _read_batching,
        ),
        trainer_keys.checkpointing_row(default=False, reentrant=False),
        trainer_keys.liger_row(),
        fixed(optimizer="adamw", optimizer_implementation="fused", pad_to_multiple_of=1),
    ),
    model_key="pretrain",
    lists_its_keys=False,
    adapt=_adapt,
    not_modelled="zpg use_ds_universal_ckpt ds_tensor_parallel_size aux_loss_coef enforce_eager",
)
