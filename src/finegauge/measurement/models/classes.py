"""Which class a config names: one of the installed transformers, or FineGauge's own BlackMamba.

Only installed classes are built, never code of a model repository, and nothing is fetched.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from finegauge.errors import UnsupportedError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BLACKMAMBA = "mamba_moe_layers"  # the key that only its configs have; they name no model_type
_TOP_K_KEYS = ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token", "top_k_experts")


class ModelClass(NamedTuple):
    """A configuration object and the language-model class that it belongs to."""

    settings: Any  # transformers.PreTrainedConfig
    model_class: Any  # a subclass of transformers.PreTrainedModel


def class_of(figures: Mapping[str, Any], top_k: int | None) -> ModelClass:
    """Return the config object and the language-model class of a config under Hugging Face's field names.

    `top_k` replaces the config's experts per token; None: as the config says.

    Raises: UnsupportedError where no installed class fits.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    if BLACKMAMBA in figures:
        from finegauge.measurement.models.blackmamba import BlackMambaConfig, BlackMambaForCausalLM

        return ModelClass(BlackMambaConfig.of(figures, top_k), BlackMambaForCausalLM)
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
            return ModelClass(settings, mapping[type(settings)])
    raise UnsupportedError(f"model_type '{model_type}' has no language-model class in transformers.")
