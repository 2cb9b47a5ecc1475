"""The transformers class of a run, without weights, ready to take a step.

Weights exist as shapes ("meta"). Two cases need more: autocast follows the device of a
tensor, so its run gets fake CPU tensors; and experts that loop over their tokens, or fp32
experts, cannot run on shapes, so theirs are real and must be small.
"""

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from finegauge.errors import FieldError, UnsupportedError
from finegauge.measure.models.adapters import adapted
from finegauge.measure.models.checkpointing import checkpoint_layers
from finegauge.measure.models.classes import DTYPES, class_of
from finegauge.measure.models.trained import select_trained
from finegauge.measure.trace.kernels import flash_attention
from finegauge.workload.model import num_experts
from finegauge.workload.run import Run

FLASH = "opaque_fa2"  # transformers looks for a package behind any name with "flash" in it
ATTENTION = {"flash": FLASH, "sdpa": "sdpa", "eager": "eager"}
OPTIMIZERS = ("adamw", "sgd")


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
    settings, model_class = class_of(run.config if config is None else config, run.num_experts_per_tok)
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
            model = adapted(model, run, device)
        select_trained(model, run)
        model.train()
        checkpoint_layers(model.get_base_model() if run.trains_adapters else model, run)
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
