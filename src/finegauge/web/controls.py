"""The fields of the form: which run field each states, how it is called, and what may be chosen."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from finegauge.data import batch_shape
from finegauge.run import rules
from finegauge.run.run import CHECKS
from finegauge.web import form

_METHODS = {
    "full": "full fine-tuning",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "gptq_lora": "GPTQ + LoRA",
    "freeze": "last layers",
}
_PHASES = {
    "sft": "fine-tuning (SFT)",
    "pretrain": "pre-training",
    "reward": "reward model",
    "dpo": "DPO",
    "ppo": "PPO",
    "grpo": "GRPO",
}
_SHARDING = {
    "none": "none (DDP)",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp": "FSDP",
    "fsdp_shard_grad_op": "FSDP, weights kept",
    "hybrid": "hybrid FSDP",
}
_ATTENTION = {"sdpa": "SDPA", "flash": "FlashAttention", "eager": "eager"}
_OPTIMIZERS = {
    "adamw": "AdamW",
    "adamw_8bit": "AdamW, 8 bits",
    "paged_adamw": "AdamW, paged",
    "paged_adamw_8bit": "AdamW, paged, 8 bits",
    "adafactor": "Adafactor",
    "lion": "Lion",
    "lion_8bit": "Lion, 8 bits",
    "sgd": "SGD",
}
_KERNELS = {"liger": "Liger", "unsloth": "Unsloth", "foak": "FOAK", "megatron": "Megatron"}


class Option(NamedTuple):
    """One entry of a list."""

    value: str
    text: str
    group: str = ""  # the heading under which it stands


class Control(NamedTuple):
    """One field of the form."""

    name: str  # of a run's field, or one of `lengths.LENGTH_FIELDS`
    label: str
    options: tuple[Option, ...] = ()  # a list to choose from; none: a line to fill in
    unit: str = ""
    kind: str = "text"  # or number, area
    suggestions: str = ""  # the id of the list of suggestions
    hint: str = ""
    is_wide: bool = False


class Group(NamedTuple):
    """Fields that stand together."""

    title: str
    controls: tuple[Control, ...]
    is_open: bool = True
    note: str = ""


def _options(values: tuple[str, ...], **texts: str) -> tuple[Option, ...]:
    return tuple(Option(value, texts.get(value, value.replace("_", " "))) for value in values)


def _number(name: str, label: str, unit: str = "", hint: str = "") -> Control:
    return Control(name, label, unit=unit, kind="number", hint=hint)


def _flag(name: str, label: str) -> Control:
    return Control(name, label, (Option("true", "yes"), Option("false", "no")))


@cache
def groups() -> tuple[Group, ...]:
    """Return every field of the form, in the order in which it shows them."""
    named = (_model(), _data(), _lengths(), _machine(), _step(), _kernels())
    known = {control.name for group in named for control in group.controls}
    rest = tuple(_plain(name) for name in CHECKS if name not in known and name != "tokenizer")
    return (*named, Group("All other fields", rest, is_open=False, note="Named as in a run file."))


def controls() -> Iterator[Control]:
    """Yield every field of the form."""
    for group in groups():
        yield from group.controls


def _plain(name: str) -> Control:
    """Return a field by the name that a run file gives it."""
    options = {
        "pipeline_schedule": rules.PIPELINE_SCHEDULES,
        "over_length": batch_shape.OVER_LENGTH,
        "padding": batch_shape.PADDING,
        "packing_strategy": batch_shape.PACKING_STRATEGIES,
        "adapter_dtype": rules.FLOAT_DTYPES,
        "loss": rules.LOSSES,
        "optimizer_implementation": ("fused", "foreach", "loop", "in_backward"),
        "experts_implementation": ("eager", "grouped_mm"),
        "ssm_kernels": ("fused", "slow"),
    }
    if name in options:
        return Control(name, name, _options(options[name]))
    if CHECKS[name].__name__ == "flag":
        return _flag(name, name)
    return Control(name, name)


def _model() -> Group:
    """Return what is trained, and how."""
    return Group(
        "Model and method",
        (
            Control("model", "Model", suggestions="models", is_wide=True),
            Control("method", "Method", _options(rules.METHODS, **_METHODS)),
            _number("lora_rank", "LoRA rank"),
            Control("weights_dtype", "Weights", _options(rules.WEIGHTS_DTYPES, nf4_dq="nf4, nested")),
            Control("phase", "Phase", _options(rules.PHASES, **_PHASES)),
        ),
    )


def _data() -> Group:
    """Return what is read."""
    return Group(
        "Data",
        (
            Control("dataset", "Data set", _datasets(), is_wide=True),
            _number("seq_len", "Cut-off", "tokens"),
            _flag("packing", "Packing"),
            _number("num_samples", "Samples"),
            _number("epochs", "Epochs"),
            _number("max_steps", "Steps at most"),
        ),
    )


def _lengths() -> Group:
    """Return how long samples are, where no data set says so."""
    return Group(
        "Lengths of your own data",
        (
            _number(form.MEAN, "Mean", "tokens"),
            _number(form.LONGEST, "Longest", "tokens"),
            Control(
                form.HISTOGRAM,
                "Histogram",
                kind="area",
                hint="One line per length: tokens, samples",
                is_wide=True,
            ),
        ),
        is_open=False,
        note="A mean and the longest, or a histogram, in place of a data set.",
    )


def _machine() -> Group:
    """Return where it runs."""
    return Group(
        "Machine",
        (
            Control("gpu", "GPU", _gpus(), is_wide=True),
            _number("num_gpus", "GPUs, all nodes"),
            _number("num_nodes", "Nodes"),
            Control("sharding", "Sharding", _options(rules.SHARDING, **_SHARDING)),
            Control("cpu_offload", "Offload to host", _options(rules.CPU_OFFLOAD, nvme="NVMe")),
            Control("provider", "Provider", _providers()),
        ),
    )


def _step() -> Group:
    """Return how large a step is."""
    return Group(
        "Step",
        (
            _number("micro_batch_size", "Micro-batch", "per GPU"),
            _number("gradient_accumulation_steps", "Accumulation", "steps"),
        ),
    )


def _kernels() -> Group:
    """Return how the work is carried out."""
    checkpointing = _options(rules.ACTIVATION_CHECKPOINTING)
    return Group(
        "Memory and kernels",
        (
            Control("activation_checkpointing", "Checkpointing", checkpointing),
            Control("attention", "Attention", _options(rules.ATTENTION, **_ATTENTION)),
            Control("optimizer", "Optimizer", _options(rules.OPTIMIZERS, **_OPTIMIZERS)),
            Control("autocast", "Autocast", _options(("none", "bf16", "fp16"))),
            Control("kernels", "Fused kernels", _options(("none", *rules.KERNELS), **_KERNELS)),
            _flag("compile", "torch.compile"),
        ),
    )


def _gpus() -> tuple[Option, ...]:
    from finegauge.catalogue.gpus import gpus
    from finegauge.units import gib

    return tuple(
        Option(name, f"{name} · {gib(one.usable_bytes)}", one.architecture) for name, one in gpus().items()
    )


def _datasets() -> tuple[Option, ...]:
    from finegauge.catalogue.datasets import datasets

    return tuple(
        Option(name, f"{name} · {one.num_samples:,} × {one.mean_tokens:.0f} tokens")
        for name, one in datasets().items()
        if one.mean_tokens
    )


def _providers() -> tuple[Option, ...]:
    from finegauge.catalogue.offers import providers

    return tuple(Option(name, name) for name in providers())


@cache
def models() -> tuple[Option, ...]:
    """Return the models of the catalogue, by the short name where there is one."""
    from finegauge.catalogue.models import models as known
    from finegauge.units import count

    found = []
    for figures in known().values():
        parameters = figures.parameters or figures.published_parameters
        found.append(Option(figures.name, count(parameters) if parameters else ""))
    return tuple(found)
