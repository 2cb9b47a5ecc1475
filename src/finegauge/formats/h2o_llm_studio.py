"""H2O LLM Studio's YAML of an experiment (`cfg.yaml`), hidden defaults included.

What no key says but the framework does (read from its source, 1.0 to 1.13): LoRA of rank 4, alpha 16, dropout
0.05 on every linear layer over NF4 weights, singly quantised, whose other weights are cast to fp32; `lora`
false trains every weight, and then mixed precision is off unless the backbone is in fp32; checkpointing on;
samples padded to the longest of a batch; the GPUs are those that it lists.
A file is read, and none is written.
"""

from finegauge.errors import FieldError, shown
from finegauge.formats import rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, model_key, switch
from finegauge.formats.sheet import dotted
from finegauge.run.field import names, number

_DTYPE, _MIXED = "architecture.backbone_dtype", "environment.mixed_precision"
_ADAPTERS = trainer_keys.Adapters(
    "training.lora_r training.lora_alpha training.lora_dropout training.lora_target_modules - "
    "training.use_dora",
    defaults=(4, 16, 0.05),
)
_WEIGHTS = {"int4": "nf4", "int8": "int8", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_PROBLEMS = {  # what is learnt: the phase and the head
    "text_causal_language_modeling": ("sft", None),
    "text_sequence_to_sequence_modeling": ("sft", None),
    "text_dpo_modeling": ("dpo", None),
    "text_causal_classification_modeling": ("sft", "sequence_classification"),
    "text_causal_regression_modeling": ("sft", "sequence_classification"),
}
_CLASSES, _DEEPSPEED = "dataset.num_classes", "environment.use_deepspeed"


def _read_problem(reading: Reading) -> None:
    problem = reading.text("problem_type", "text_causal_language_modeling")
    if problem not in _PROBLEMS:
        raise FieldError(f"problem_type={shown(problem)} is not supported; use {', '.join(_PROBLEMS)}.")
    phase, task = _PROBLEMS[problem]
    reading.set("phase", phase, "problem_type")
    reading.set("task", task, "problem_type")
    if task:
        reading.set("num_labels", reading.get(_CLASSES, 1), _CLASSES)
    if phase == "dpo":
        loss = reading.text("training.loss_function", "dpoloss").removesuffix("loss")
        rollout_keys.read_preference(reading, loss, "training.loss_function")


def _read_method(reading: Reading) -> None:
    dtype = reading.word(_DTYPE, "int4", _WEIGHTS, ", ".join(_WEIGHTS))
    adapts, quantized = reading.flag("training.lora", default=True), dtype in ("nf4", "int8")
    if quantized and not adapts:
        raise FieldError(f"{_DTYPE} quantises weights that training.lora=false would train; keep one.")
    reading.set("method", "qlora" if quantized else "lora" if adapts else "full", _DTYPE, "training.lora")
    reading.set("weights_dtype", dtype, _DTYPE)
    reading.set("upcast_unquantized", quantized, _DTYPE)
    mixed = reading.flag(_MIXED, default=True) and (adapts or dtype == "fp32")
    low = "fp16" if "bf" not in reading.text(f"{_MIXED}_dtype", "float16") else "bf16"
    reading.set("autocast", low if mixed else "none", _MIXED, f"{_MIXED}_dtype")
    if adapts:
        _ADAPTERS.read(reading)
        reading.set("adapter_dtype", "fp32")


def _read_gpus(reading: Reading) -> None:
    listed = names("environment.gpus", reading.get("environment.gpus") or ())
    reading.set("num_gpus", len(listed) or None, "environment.gpus")
    stage = reading.text(_DEEPSPEED, "false")
    if stage not in ("false", "na", "none", "0"):
        told = reading.text("environment.deepspeed_method", stage if "zero" in stage else "zero2")
        reading.set("sharding", told, _DEEPSPEED, "environment.deepspeed_method")
        if reading.flag("environment.deepspeed_offload_optimizer"):
            reading.set("cpu_offload", "optimizer", "environment.deepspeed_offload_optimizer")


def _read_share(reading: Reading) -> None:
    if number(0, 1)("data_sample", reading.get("dataset.data_sample", 1)) < 1:
        reading.warn("dataset.data_sample takes a part of the data: all is taken; state num_samples=….")


FORMAT = Format(
    "H2O LLM Studio",
    (
        model_key("llm_backbone"),
        Row(f"problem_type training.loss_function {_CLASSES}", _read_problem),
        Row(f"{_ADAPTERS.keys} training.lora {_DTYPE} {_MIXED} {_MIXED}_dtype", _read_method),
        Row(
            f"environment.gpus {_DEEPSPEED} environment.deepspeed_method "
            "environment.deepspeed_offload_optimizer",
            _read_gpus,
        ),
        key("tokenizer.max_length", "seq_len", 512),
        key("training.batch_size", "micro_batch_size", 2),
        key("training.grad_accumulation", "gradient_accumulation_steps", 1),
        key("training.epochs", "epochs", 1),
        trainer_keys.optimizer_row("training.optimizer", "adamw"),
        switch("architecture.gradient_checkpointing", "activation_checkpointing", "full", default=True),
        switch("training.use_flash_attention_2", "attention", "flash", off="sdpa"),
        key("environment.compile_model", "compile", False),
        trainer_keys.dataset_row("dataset.train_dataframe"),
        Row("dataset.data_sample", _read_share),
        fixed(loss="full_logits", padding="longest"),
    ),
    model_key="llm_backbone",
    lists_its_keys=False,
    adapt=dotted,
    not_modelled="training.freeze_layers training.lora_unfreeze_layers "
    "architecture.force_embedding_gradients",
)
