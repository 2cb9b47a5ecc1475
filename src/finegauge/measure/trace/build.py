"""The transformers class of a run, without weights, ready to take a step.

Only classes of the installed transformers are built, never code of a model repository,
and nothing is fetched. Weights exist as shapes ("meta"). Two cases need more: autocast
follows the device of a tensor, so its run gets fake CPU tensors; and experts that loop
over their tokens, or fp32 experts, cannot run on shapes, so theirs are real and must be
small.

Adapters are PEFT's: names of modules become `target_modules`, names of bare parameters
(fused experts, their router) `target_parameters`, and what PEFT makes of them stands.
"""

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from finegauge.errors import FieldError, UnsupportedError
from finegauge.measure.trace.kernels import flash_attention
from finegauge.workload.model import num_experts
from finegauge.workload.run import Run

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
FLASH = "opaque_fa2"  # transformers looks for a package behind any name with "flash" in it
ATTENTION = {"flash": FLASH, "sdpa": "sdpa", "eager": "eager"}
OPTIMIZERS = ("adamw", "sgd")
_TOP_K_KEYS = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token", "top_k_experts")


class Built(NamedTuple):
    """A model ready to step, and the mode in which its tensors live."""

    model: Any
    device: str
    tensors: AbstractContextManager[Any]  # enter it to make tensors of the model's kind

    @property
    def base(self) -> Any:
        """Return the transformers model inside, without PEFT's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model


def build(run: Run, config: Mapping[str, Any] | None = None) -> Built:
    """Return the model of `run`, or of `config` under `run`'s method, in training mode.

    Raises: UnsupportedError where no class of the installed transformers fits, and
        FieldError for what cannot be traced.
    """
    _check(run)
    _register()
    settings, model_class = _class_of(dict(run.config if config is None else config), run.num_experts_per_tok)
    attention = _attention(run, settings, model_class)
    experts = num_experts(settings.get_text_config().to_dict())
    real = experts > 0 and (run.experts_implementation == "eager" or run.weights_dtype == "fp32")
    device = "cpu" if real else "meta"
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        model = model_class._from_config(
            settings, dtype=DTYPES[run.weights_dtype], attn_implementation=attention
        )
        if experts and model._can_set_experts_implementation():
            model.set_experts_implementation(run.experts_implementation)
        model.tie_weights()
        model.config.use_cache = False
        if run.trains_adapters:
            model = _adapted(model, run, device)
        _select_trained(model, run)
        model.train()
        if run.activation_checkpointing == "full":
            inner = model.get_base_model() if run.trains_adapters else model
            inner.activation_checkpointing_enable({"use_reentrant": run.checkpointing_reentrant})
    if run.autocast != "none" and not real:
        return Built(model, "cpu", _faked(model))
    return Built(model, device, nullcontext())


def _attention(run: Run, settings: Any, model_class: Any) -> str:
    """Return transformers' name for the run's attention.

    Raises: UnsupportedError for flash attention where the class has none, or one of its
        own that calls the package.
    """
    if not hasattr(type(settings.get_text_config())(), "num_attention_heads"):
        return "eager"  # there is none to choose
    if run.attention == "flash" and not model_class._supports_flash_attn:
        raise UnsupportedError(f"{model_class.__name__} does not support flash attention in transformers.")
    if run.attention == "flash" and not model_class._can_set_attn_implementation():
        raise UnsupportedError(
            f"{model_class.__name__} does not support another function in place of its own flash attention; "
            f"trace it with attention=sdpa or eager."
        )
    return ATTENTION[run.attention]


def _faked(model: Any) -> AbstractContextManager[Any]:
    """Turn the tensors of a model on "meta" into fake CPU tensors; return the mode they live in."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, Any] = {}
    with mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in fakes:
                    fresh = torch.empty_like(parameter, device="cpu")
                    fakes[id(parameter)] = torch.nn.Parameter(fresh, parameter.requires_grad)
                if parameter is not None:
                    module._parameters[name] = fakes[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty_like(buffer, device="cpu")
    return mode


def _check(run: Run) -> None:
    """Refuse what a trace does not cover."""
    if run.weights_dtype not in DTYPES:
        raise FieldError(f"weights_dtype={run.weights_dtype} cannot be traced; use bf16, fp16 or fp32.")
    if run.activation_checkpointing not in ("none", "full"):
        raise FieldError(
            f"activation_checkpointing={run.activation_checkpointing} cannot be traced; use none or full."
        )
    if run.optimizer not in OPTIMIZERS:
        raise FieldError(f"optimizer={run.optimizer} cannot be traced; use adamw or sgd.")


def _register() -> None:
    """Make the opaque flash attention known to transformers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils import logging

    logging.set_verbosity_error()
    ALL_ATTENTION_FUNCTIONS.register(FLASH, flash_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, lambda *args, **kwargs: None)


def _class_of(figures: dict[str, Any], top_k: int | None) -> tuple[Any, Any]:
    """Return the config object and the language-model class of a config's figures."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    model_type = str(figures.get("model_type", ""))
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"model_type '{model_type}' is not a class of the installed transformers, and code of a model "
            f"repository is never run; use a newer transformers."
        )
    settings = CONFIG_MAPPING[model_type].from_dict({k: v for k, v in figures.items() if k != "auto_map"})
    if top_k is not None:
        text = settings.get_text_config()
        for key in _TOP_K_KEYS:
            if hasattr(text, key):
                setattr(text, key, top_k)
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        if type(settings) in mapping:
            return settings, mapping[type(settings)]
    raise UnsupportedError(f"model_type '{model_type}' has no language-model class in transformers.")


def _adapted(model: Any, run: Run, device: str) -> Any:
    """Return `model` with PEFT's adapters on what `lora_targets` means, in `adapter_dtype`."""
    from peft import LoraConfig, get_peft_model

    modules, parameters = lora_targets(model, run.lora_targets)
    config = LoraConfig(
        r=run.lora_rank,
        lora_alpha=run.lora_alpha,
        lora_dropout=run.lora_dropout,
        target_modules=modules,
        target_parameters=parameters or None,
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(
        model, config, low_cpu_mem_usage=device == "meta", autocast_adapter_dtype=run.adapter_dtype == "fp32"
    )
    wanted = DTYPES[run.adapter_dtype]
    for name, parameter in list(adapted.named_parameters()):
        if "lora_" in name and parameter.dtype != wanted:
            owner, _, leaf = name.rpartition(".")
            fresh = torch.nn.Parameter(parameter.detach().to(wanted))
            setattr(adapted.get_submodule(owner), leaf, fresh)
    return adapted


def lora_targets(model: Any, targets: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return PEFT's `target_modules` and `target_parameters` for a run's targets.

    "attention" means every linear inside such a module; other names are as PEFT
    takes them. A name that no module bears but a bare parameter does is a parameter.
    """
    if targets == ("all-linear",):
        return "all-linear", []
    linears = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) or _is_conv1d(m)}
    bare = {n for n, p in model.named_parameters() if p.dim() == 3 or not _owner_is_linear(n, linears)}
    modules: list[str] = []
    parameters: list[str] = []
    for target in targets:
        if target == "attention":
            modules += sorted(n for n in linears if _is_attention(model, n))
            continue
        if not any(n == target or n.endswith(f".{target}") for n in linears):
            found = {n for n in bare if n.removesuffix(".weight").endswith(f".{target}")}
            if found:
                parameters += sorted({_in_layer(name) for name in found})
                continue
        modules.append(target)
    return modules, parameters


def _in_layer(name: str) -> str:
    """Return a parameter's name without what comes before its layer's number, and the number."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[numbers[0] + 1 :]) if numbers else name


def _is_attention(model: Any, linear: str) -> bool:
    """Return whether a linear is part of softmax attention, by its path or by the class that holds it."""
    if "linear_attn" in linear:
        return False
    owner = type(model.get_submodule(linear.rpartition(".")[0])).__name__
    return any(word in part.lower() for part in (linear, owner) for word in ("attn", "attention"))


def _is_conv1d(module: Any) -> bool:
    """Return whether a module is GPT-2's transposed linear."""
    return type(module).__name__ == "Conv1D"


def _owner_is_linear(parameter: str, linears: set[str]) -> bool:
    """Return whether a parameter belongs to a linear module."""
    return parameter.rpartition(".")[0] in linears


def _select_trained(model: Any, run: Run) -> None:
    """Let only the parameters train that the run says."""
    if run.method == "freeze":
        _freeze_all_but_last(model, run.freeze_trainable_layers or 0)
    for name, parameter in model.named_parameters():
        lowered = name.lower()
        for extra, mark in (("norms", "norm"), ("embed_tokens", "embed_tokens"), ("lm_head", "lm_head")):
            if extra in run.trainable_extra and mark in lowered and "lora_" not in lowered:
                parameter.requires_grad_(True)


def _freeze_all_but_last(model: Any, trained: int) -> None:
    """Freeze everything but the last `trained` layers."""
    numbers = {n: int(p) for n, _ in model.named_parameters() for p in n.split(".") if p.isdecimal()}
    first = max(numbers.values(), default=0) + 1 - trained
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(numbers.get(name, -1) >= first)
