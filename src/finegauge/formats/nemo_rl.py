"""NeMo-RL's YAML and overrides (`examples/run_grpo_math.py`, `run_sft.py`, ...), hidden defaults included.

What no key says but the framework does (read from its example configurations, 0.4): the model in fp32,
computed in `precision` by FSDP2 (`dtensor_cfg`), or Megatron's bf16 with sharded states (`megatron_cfg`); one
GPU unless `cluster` says more; answers are written by vLLM. A file that names `defaults` is read alone.
"""

from finegauge.errors import FieldError
from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, dotted, fixed, read_degrees
from finegauge.run.field import whole

_MODEL = "policy.model_name"
_PHASES = {"grpo": "grpo", "dpo": "dpo", "sft": "sft", "rm": "reward"}
_DEGREES = {
    "policy.dtensor_cfg.tensor_parallel_size": "tensor_parallel",
    "policy.dtensor_cfg.context_parallel_size": "context_parallel",
}
_MEGATRON = {
    "policy.megatron_cfg.tensor_model_parallel_size": "tensor_parallel",
    "policy.megatron_cfg.pipeline_model_parallel_size": "pipeline_parallel",
    "policy.megatron_cfg.context_parallel_size": "context_parallel",
    "policy.megatron_cfg.expert_model_parallel_size": "expert_parallel",
}
_KINDS = ("policy.megatron_cfg.enabled", "policy.dtensor_cfg.enabled")
_LORAS = ("policy.megatron_cfg.peft", "policy.dtensor_cfg.lora_cfg")
_ANSWERS = (
    "grpo.num_generations_per_prompt",
    "grpo.num_prompts_per_step",
    "policy.generation.max_new_tokens",
)


def _read_phase(reading: Reading) -> None:
    reading.set("model", reading.get(_MODEL), _MODEL)
    reading.need_model()
    if reading.stated("defaults"):
        reading.warn(
            f"{reading.file_name} names other files as its defaults, which are not read; state what they do."
        )
    found = [name for name in _PHASES if any(key.startswith(f"{name}.") for key in reading.keys)]
    if len(found) != 1:
        raise FieldError(
            f"{reading.file_name} needs one of the sections grpo, sft, dpo and rm to tell what is learnt."
        )
    reading.set("phase", _PHASES[found[0]], *(key for key in reading.keys if key.startswith(f"{found[0]}.")))
    nodes = whole(1, 10**5)("cluster.num_nodes", reading.get("cluster.num_nodes", 1))
    each = whole(1, 10**4)("cluster.gpus_per_node", reading.get("cluster.gpus_per_node", 1))
    reading.set("num_gpus", nodes * each, "cluster.gpus_per_node", "cluster.num_nodes")
    reading.launched_gpus = reading.launched_gpus or int(nodes * each)
    if nodes > 1:
        reading.set("num_nodes", nodes, "cluster.num_nodes")


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
    key = f"{section}.activation_checkpointing"
    reading.set("activation_checkpointing", "full" if reading.flag(key) else "none", key)
    if reading.flag("policy.dtensor_cfg.cpu_offload") and not megatron:
        reading.set("cpu_offload", "params", "policy.dtensor_cfg.cpu_offload")
    joined = reading.flag("policy.sequence_packing.enabled") and reading.fields["phase"] == "sft"
    reading.set("padding", "free" if joined else "max", "policy.sequence_packing.enabled")


def _read_batch(reading: Reading) -> None:
    reading.set(
        "seq_len", reading.get("policy.max_total_sequence_length", 512), "policy.max_total_sequence_length"
    )
    micro, total = "policy.train_micro_batch_size", "policy.train_global_batch_size"
    reading.set("micro_batch_size", reading.get(micro, 1), micro)
    if reading.fields["phase"] == "grpo":
        reading.set("num_generations", reading.get(_ANSWERS[0], 16), _ANSWERS[0])
        length = whole(2, 10**7)("max_total_sequence_length", reading.fields["seq_len"])
        new = min(int(length) - 1, whole(1, 10**7)("max_new_tokens", reading.get(_ANSWERS[2], length // 2)))
        if new == length - 1:
            new = length // 2
            reading.warn("max_new_tokens is the whole sequence: answers are taken as half of it.")
        reading.set("max_new_tokens", new, _ANSWERS[2])
        reading.warn("Answers are written by vLLM, which is not modelled: they are timed as transformers'.")
    if reading.stated(total):
        reading.set_accumulation(total, data_parallel=reading.data_ranks(reading.launched_gpus))
    for phase in _PHASES:
        for name, field in (("max_num_steps", "max_steps"), ("max_num_epochs", "epochs")):
            reading.set(field, reading.get(f"{phase}.{name}"), f"{phase}.{name}")


FORMAT = Format(
    "NeMo-RL",
    (
        Row(f"{_MODEL} cluster.gpus_per_node cluster.num_nodes", _read_phase),
        Row(
            " ".join(
                (
                    *_KINDS,
                    *_DEGREES,
                    *_MEGATRON,
                    "policy.precision",
                    "policy.dtensor_cfg.cpu_offload",
                    "policy.dtensor_cfg.activation_checkpointing",
                    "policy.megatron_cfg.activation_checkpointing",
                    *(f"{lora}.{name}" for lora in _LORAS for name in ("enabled", "dim", "alpha", "dropout")),
                    "policy.sequence_packing.enabled",
                )
            ),
            _read_model,
        ),
        Row(
            " ".join(
                (
                    "policy.max_total_sequence_length policy.train_micro_batch_size",
                    "policy.train_global_batch_size",
                    *_ANSWERS,
                    *(f"{phase}.{name}" for phase in _PHASES for name in ("max_num_steps", "max_num_epochs")),
                )
            ),
            _read_batch,
        ),
        fixed(attention="flash", optimizer="adamw", loss="full_logits", checkpointing_reentrant=False),
    ),
    model_key=_MODEL,
    lists_its_keys=False,
    adapt=dotted,
)
