"""The fields of the form, and what can be chosen in them by name.

Models are those of the catalogue and those whose config.json lies in the Hub's cache on this machine; GPUs
stand by where they are met; six jobs are there to begin with.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from finegauge.catalogue.datasets import datasets
from finegauge.catalogue.examples import examples
from finegauge.catalogue.gpus import gpu, gpus, this_gpu
from finegauge.catalogue.hub import cached_models
from finegauge.catalogue.machine import gpus_here
from finegauge.catalogue.models import model, models
from finegauge.catalogue.offers import offers, providers
from finegauge.errors import FineGaugeError
from finegauge.run.run import FIELDS
from finegauge.units import count, gib
from finegauge.web.form import HISTOGRAM, LONGEST, MEAN

NUM_POPULAR = 8
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CONTEXT = ("max_position_embeddings", "max_seq_len", "n_positions", "model_max_length", "context_length")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NESTED = ("text_config", "ffn_config", "llm_config", "thinker_config")
_JOBS = {
    "qwen3_axolotl": "Qwen3-8B LoRA, Axolotl",
    "plans/llama2_7b_lora": "7B LoRA on an RTX 4090",
    "plans/llama3_70b_qlora": "70B QLoRA on one A100",
    "plans/llama3_70b_full": "70B in full on 16 H100",
    "mixtral_qlora_math": "Mixtral, LLaMA-Factory",
    "grpo_vllm": "GRPO beside vLLM",
}


class Option(NamedTuple):
    """One entry of a list."""

    value: str
    text: str
    group: str = ""  # the heading under which it stands


class ModelChoice(NamedTuple):
    """A model and what one chooses it by; "" of what its config.json does not say."""

    name: str
    aliases: tuple[str, ...]
    parameters: str
    layers: str
    context: str  # tokens
    kind: str  # dense, or MoE with its experts
    origin: str  # "" of the catalogue


class Job(NamedTuple):
    """An example: its name among the package's, and what it is."""

    name: str
    title: str


def model_choices() -> Iterator[ModelChoice]:
    """Yield the models of the catalogue, then those in the Hub's cache that it lacks."""
    known = {name.casefold() for one in models().values() for name in (one.name, *one.aliases)}
    for one in models().values():
        yield _choice(one, "")
    for name in cached_models():
        if name.casefold() not in known:
            try:
                yield _choice(model(name), "Hub cache of this machine")
            except FineGaugeError:  # no model's config.json
                continue


def _choice(one: Any, origin: str) -> ModelChoice:
    config: dict[str, Any] = {}
    for nested in (*_NESTED, ""):
        config |= (one.config.get(nested) or {}) if nested else one.config
    parameters = one.parameters or one.published_parameters
    experts, layers, context = (_first(config, names) for names in (_EXPERTS, _LAYERS, _CONTEXT))
    active = config.get("num_experts_per_tok") or config.get("moe_top_k")
    sparse = f"MoE, {experts} experts" + (f", {active} active" if active else "")
    return ModelChoice(
        name=one.name,
        aliases=one.aliases,
        parameters=count(parameters) if parameters else "",
        layers=str(layers or ""),
        context=f"{context:,}" if context else "",
        kind=sparse if isinstance(experts, int) and experts > 1 else "dense",
        origin=origin,
    )


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


@cache
def gpu_choices() -> tuple[Option, ...]:
    """Return the GPUs of this machine, those that most providers rent out, then all by maker."""
    by_maker: dict[str, list[Option]] = {}
    for spec in gpus().values():
        heading = spec.vendor if spec.architecture == spec.vendor else f"{spec.vendor} {spec.architecture}"
        by_maker.setdefault(heading, []).append(_gpu(spec.name, heading))
    makers = sorted(by_maker, key=lambda heading: (not heading.startswith("NVIDIA"), heading))
    everywhere = (one for heading in makers for one in by_maker[heading])
    return (*_here(), *(_gpu(name, "Rented out most") for name in _popular()), *everywhere)


def _gpu(name: str, group: str, more: str = "") -> Option:
    return Option(name, f"{name} · {gib(gpu(name).usable_bytes)}{more}", group)


def _here() -> Iterator[Option]:
    try:
        name, _ = this_gpu()
    except FineGaugeError:  # none, several kinds, or one that the catalogue lacks
        return
    yield _gpu(name, "This machine", f" · {len(gpus_here())} here")


def _popular() -> list[str]:
    sellers = {(one.gpu, one.provider) for one in offers() if one.gpu in gpus()}
    return [name for name, _ in Counter(gpu for gpu, _ in sorted(sellers)).most_common(NUM_POPULAR)]


@cache
def jobs() -> tuple[Job, ...]:
    """Return the jobs to begin with, of the examples that are installed."""
    return tuple(Job(name, title) for name, title in _JOBS.items() if name in _paths())


def job_text(name: str) -> str:
    """Return the file of a job; "" where there is none of that name."""
    path = _paths().get(name)
    if path is None:
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def job_folders() -> tuple[str, ...]:
    """Return what must be readable for `job_text`."""
    return tuple(_paths().values())


@cache
def _paths() -> Mapping[str, str]:
    return {name: os.path.realpath(path) for name, path in examples().items() if name in _JOBS}


class Control(NamedTuple):
    """One field of the form."""

    name: str  # of a run's field, or one of `lengths.LENGTH_FIELDS`
    label: str
    options: tuple[Option, ...] = ()  # a list to choose from; none: a line to fill in
    unit: str = ""
    kind: str = "text"  # or number, area
    hint: str = ""
    is_wide: bool = False

    @property
    def option_groups(self) -> tuple[tuple[str, tuple[Option, ...]], ...]:
        """Return the options by heading, in their order."""
        return tuple(
            (heading, tuple(under)) for heading, under in groupby(self.options, lambda one: one.group)
        )


class Group(NamedTuple):
    """Fields that stand together."""

    title: str
    controls: tuple[Control, ...]
    is_open: bool = True
    note: str = ""


_LENGTHS = (
    Control(MEAN, "Mean", unit="tokens", kind="number"),
    Control(LONGEST, "Longest", unit="tokens", kind="number"),
    Control(HISTOGRAM, "Histogram", kind="area", hint="One line per length: tokens, samples", is_wide=True),
)
_UNITS = {"seq_len": "tokens", "micro_batch_size": "per GPU", "gradient_accumulation_steps": "steps"}


@cache
def groups() -> tuple[Group, ...]:
    """Return every field of the form, in the order in which it shows them."""
    named = (
        _group("Model and method", "model method lora_rank weights_dtype phase"),
        _group("Data", "dataset seq_len packing num_samples epochs max_steps"),
        Group(
            "Lengths of your own data",
            _LENGTHS,
            is_open=False,
            note="A mean and the longest, or a histogram, in place of a data set.",
        ),
        _group("Machine", "gpu num_gpus num_nodes sharding cpu_offload provider"),
        _group("Step", "micro_batch_size gradient_accumulation_steps"),
        _group("Memory and kernels", "activation_checkpointing attention optimizer autocast kernels compile"),
    )
    known = {control.name for group in named for control in group.controls}
    rest = " ".join(name for name in FIELDS if name not in known and name != "tokenizer")
    return (*named, _group("All other fields", rest, is_open=False, note="Named as in a run file."))


def controls() -> Iterator[Control]:
    """Yield every field of the form."""
    for group in groups():
        yield from group.controls


def _group(title: str, names: str, *, is_open: bool = True, note: str = "") -> Group:
    return Group(title, tuple(map(_control, names.split())), is_open, note)


def _control(name: str) -> Control:
    field = FIELDS[name]
    listed: dict[str, Callable[[], tuple[Option, ...]]]
    listed = {"gpu": gpu_choices, "dataset": _datasets, "provider": _providers}
    options: tuple[Option, ...] = ()
    if name in listed:
        options = listed[name]()
    elif field.kind == "flag":
        options = (Option("true", "yes"), Option("false", "no"))
    elif field.kind == "choice" or name == "kernels":
        words = {"none": "", **field.options} if name == "kernels" else field.options
        options = tuple(Option(value, text or value.replace("_", " ")) for value, text in words.items())
    return Control(
        name,
        field.label or name,
        options,
        unit=_UNITS.get(name, ""),
        kind="number" if field.label and field.kind in ("whole", "number") else "text",
        is_wide=name in ("model", "dataset"),
    )


def _datasets() -> tuple[Option, ...]:
    return tuple(
        Option(name, f"{name} · {one.num_samples:,} × {one.mean_tokens:.0f} tokens")
        for name, one in datasets().items()
        if one.mean_tokens
    )


def _providers() -> tuple[Option, ...]:
    return tuple(Option(name, name) for name in providers())
