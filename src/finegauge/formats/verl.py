"""verl's overrides and YAML (`python -m verl.trainer.main_ppo`, `...sft_trainer`), hidden defaults included.

What no key says but the framework does (read from its trainer configurations, 0.4 to 0.6): fp32 weights under
FSDP computed in bf16; checkpointing on in reinforcement learning, off in SFT; prompts and answers of 512
tokens; `train_batch_size` of 1,024 prompts written to before they are learnt from in mini-batches of 256;
30 epochs (SFT: 256 sequences a step, 4 at a time, cut at 1,024, 4 epochs); one node of 8 GPUs.
The estimator `gae` is PPO, all others are GRPO's passes. Weights and states that verl parks on the host
between its phases (`param_offload`, `optimizer_offload`) are there when a phase runs, and counted.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, dotted, fixed, read_degrees
from finegauge.run.field import whole

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_PATHS = (f"{_MODEL}.path", "model.partial_pretrain", "model.path")
_MICRO = (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu")
_MICRO_OF_ALL = (f"{_ACTOR}.ppo_micro_batch_size", "data.micro_batch_size")
_CHECKPOINTING = (f"{_MODEL}.enable_gradient_checkpointing", "model.enable_gradient_checkpointing")
_ULYSSES = (f"{_ACTOR}.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size")
_LORA = ("lora_rank", "lora_alpha", "target_modules")  # FSDP's; Megatron's
_LORA_MEGATRON = ("lora.rank", "lora.alpha", "lora.target_modules")
_JOINED = (f"{_MODEL}.use_remove_padding", "use_remove_padding", "model.use_remove_padding")
_MEGATRON = {
    f"{_ACTOR}.megatron.tensor_model_parallel_size": "tensor_parallel",
    f"{_ACTOR}.megatron.pipeline_model_parallel_size": "pipeline_parallel",
    f"{_ACTOR}.megatron.context_parallel_size": "context_parallel",
    f"{_ACTOR}.megatron.expert_model_parallel_size": "expert_parallel",
}


def _adapt(keys: Mapping[str, Any]) -> dict[str, Any]:
    return dotted(keys)


def _read_phase(reading: Reading) -> None:
    reading.set("model", reading.first(_PATHS), *_PATHS)
    reading.need_model()
    learns = reading.stated(_PATHS[0])
    estimator = reading.text("algorithm.adv_estimator", "gae")
    phase = ("ppo" if estimator == "gae" else "grpo") if learns else "sft"
    reading.set("phase", phase, "algorithm.adv_estimator", *_PATHS)
    gpus = whole(1, 10**4)("trainer.n_gpus_per_node", reading.get("trainer.n_gpus_per_node", 8))
    nodes = whole(1, 10**5)("trainer.nnodes", reading.get("trainer.nnodes", 1))
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
    adapts = whole(0, 65_536)(rank, reading.get(rank, 0)) > 0
    reading.set("method", "lora" if adapts else "full", rank)
    reading.set("weights_dtype", reading.get(f"{_ACTOR}.fsdp_config.model_dtype", "fp32"))
    reading.set("autocast", "bf16")
    if adapts:
        reading.set("lora_rank", reading.get(rank), rank)
        reading.set("lora_alpha", reading.get(alpha, 16), alpha)
        reading.set("lora_targets", reading.get(targets, "all-linear"), targets)
        reading.set("adapter_dtype", "fp32")
    on = reading.flag(reading.which(*_CHECKPOINTING), default=stem == _MODEL)
    reading.set("activation_checkpointing", "full" if on else "none", *_CHECKPOINTING)
    megatron = reading.text(f"{_ACTOR}.strategy") == "megatron" or reading.stated(*_MEGATRON)
    reading.set("sharding", "zero1" if megatron else "fsdp", f"{_ACTOR}.strategy")
    if megatron:
        reading.set("weights_dtype", "bf16")
        reading.set("autocast", "none")
        read_degrees(reading, _MEGATRON)
    ulysses = reading.first(_ULYSSES, 1)
    if str(ulysses) != "1":
        reading.set("context_parallel", ulysses, *_ULYSSES)
    joined = any(map(reading.flag, _JOINED)) and reading.fields["phase"] == "sft"
    reading.set("padding", "free" if joined else "max", *_JOINED)
    liger = reading.flag(f"{stem}.use_liger")
    reading.set("kernels", ["liger"] if liger else [], f"{stem}.use_liger")
    reading.set("loss", "fused" if liger or reading.flag(f"{stem}.use_fused_kernels") else "full_logits")


def _read_lengths(reading: Reading) -> None:
    """Read lengths and batches: of prompts and their answers, or of samples."""
    ranks = reading.data_ranks(reading.launched_gpus) or 1
    if reading.fields["phase"] == "sft":
        reading.set("seq_len", reading.get("data.max_length", 1024), "data.max_length")
        sequences, micro = whole(1, 10**8)("train_batch_size", reading.get("data.train_batch_size", 256)), 4
    else:
        answer = whole(1, 10**7)("max_response_length", reading.get("data.max_response_length", 512))
        prompt = whole(1, 10**7)("max_prompt_length", reading.get("data.max_prompt_length", 512))
        reading.set("seq_len", answer + prompt, "data.max_prompt_length", "data.max_response_length")
        reading.set("max_new_tokens", answer, "data.max_response_length")
        answers = whole(1, 4096)("rollout.n", reading.get(f"{_ROLLOUT}.n", 1))
        if reading.fields["phase"] == "grpo":
            reading.set("num_generations", max(2, answers), f"{_ROLLOUT}.n")
        key = f"{_ACTOR}.ppo_mini_batch_size"
        prompts = whole(1, 10**8)("data.train_batch_size", reading.get("data.train_batch_size", 1024))
        sequences, micro = answers * min(prompts, whole(1, 10**8)(key, reading.get(key, 256))), 1
        engine = reading.text(f"{_ROLLOUT}.name", "vllm")
        reading.warn(
            f"Answers are written by {engine}, which is not modelled: they are timed as transformers'; its "
            "share of memory (gpu_memory_utilization) is free while weights learn."
        )
        if reading.flag(f"{_ACTOR}.use_dynamic_bsz"):
            tokens = whole(1, 10**8)("tokens", reading.get(f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384))
            micro = max(1, tokens // (answer + prompt))
            reading.warn(
                "use_dynamic_bsz fills micro-batches by tokens: taken as so many of the longest sequences."
            )
    older = reading.first(_MICRO_OF_ALL)  # of all ranks together, before 0.3
    if older is not None:
        micro = max(1, int(whole(1, 10**8)("ppo_micro_batch_size", older)) // ranks)
    stated = reading.first(_MICRO, micro)
    size = min(int(whole(1, 10**6)("micro_batch_size", stated)), ceil(sequences / ranks))
    steps = max(1, ceil(sequences / ranks / size))
    group = reading.fields.get("num_generations", 1)
    if size * steps % int(group):  # a prompt's answers lie on several ranks
        steps = max(1, round(size * steps / int(group))) * int(group) if size % int(group) else steps
    reading.set("micro_batch_size", size, *_MICRO, *_MICRO_OF_ALL)
    reading.set(
        "gradient_accumulation_steps", steps, f"{_ACTOR}.ppo_mini_batch_size", "data.train_batch_size"
    )
    reading.set(
        "epochs",
        reading.get("trainer.total_epochs", 4 if reading.fields["phase"] == "sft" else 30),
        "trainer.total_epochs",
    )
    if reading.stated("trainer.total_training_steps"):
        reading.set("max_steps", reading.get("trainer.total_training_steps"), "trainer.total_training_steps")


FORMAT = Format(
    "verl",
    (
        Row(
            f"{' '.join(_PATHS)} algorithm.adv_estimator trainer.n_gpus_per_node trainer.nnodes", _read_phase
        ),
        Row(
            " ".join(
                (
                    *(
                        f"{stem}.{name}"
                        for stem in (_MODEL, "model")
                        for name in (*_LORA, *_LORA_MEGATRON, "use_liger", "use_fused_kernels")
                    ),
                    *_CHECKPOINTING,
                    *_ULYSSES,
                    *_JOINED,
                    *_MEGATRON,
                    f"{_ACTOR}.strategy",
                    f"{_ACTOR}.fsdp_config.model_dtype",
                )
            ),
            _read_method,
        ),
        Row(
            " ".join(
                (
                    "data.max_length data.max_prompt_length data.max_response_length data.train_batch_size",
                    f"{_ROLLOUT}.n {_ROLLOUT}.name {_ACTOR}.ppo_mini_batch_size {_ACTOR}.use_dynamic_bsz",
                    *_MICRO,
                    *_MICRO_OF_ALL,
                    f"{_ACTOR}.ppo_max_token_len_per_gpu trainer.total_epochs trainer.total_training_steps",
                )
            ),
            _read_lengths,
        ),
        trainer_keys.dataset_row("data.train_files"),
        fixed(attention="flash", optimizer="adamw", checkpointing_reentrant=False),
    ),
    model_key=_PATHS[0],
    lists_its_keys=False,
    adapt=_adapt,
    not_modelled="model.fsdp_config.cpu_offload reward_model.enable",
)
