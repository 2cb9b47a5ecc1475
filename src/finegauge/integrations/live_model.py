"""What of a model in memory trains, and in which number formats: adapters, quantisation, frozen layers."""

import json
from collections.abc import Mapping
from typing import Any

from finegauge.errors import UnsupportedError

_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_OF_LORA = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_dora": "use_dora",
    "rank_pattern": "rank_pattern", "target_parameters": "target_parameters",
}  # fmt: skip


def config_of(model: Any) -> dict[str, Any]:
    """Return the configuration of the model in memory as JSON values."""
    config = model.config
    whole: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    whole["_name_or_path"] = getattr(config, "_name_or_path", "")
    whole.pop("quantization_config", None)  # how it is stored, which `method_fields` says
    return whole


def adapter_keys(model: Any) -> dict[str, Any]:
    """Return PEFT's adapters, the quantiser and the attention of a model, under the keys of a TRL file.

    Raises: UnsupportedError for an adapter that is not LoRA.
    """
    keys: dict[str, Any] = {}
    for key, attribute in (
        ("attn_implementation", "_attn_implementation"),
        ("experts_implementation", "_experts_implementation"),
    ):
        word = getattr(model.config, attribute, None)
        if isinstance(word, str) and word:
            keys[key] = word
    if keys.get("experts_implementation") not in (None, "eager", "grouped_mm"):
        keys.pop("experts_implementation")
    keys |= _quantiser_keys(model)
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return keys | {"use_peft": False}
    adapter = next(iter(adapters.values()))
    kind = str(getattr(adapter.peft_type, "value", adapter.peft_type))
    if kind != "LORA":
        raise UnsupportedError(f"PEFT's {kind} is not described; only LORA is.")
    keys |= {"use_peft": True, "lora_target_modules": _adapted(model)}
    keys |= {
        theirs: getattr(adapter, name) for name, theirs in _OF_LORA.items() if getattr(adapter, name, None)
    }
    keys.setdefault("lora_dropout", 0.0)
    if adapter.modules_to_save:
        keys["lora_modules_to_save"] = sorted(adapter.modules_to_save)
    return keys


def method_fields(model: Any) -> dict[str, Any]:
    """Return the fields of method and number formats that only the weights in memory tell.

    Raises: UnsupportedError for a choice of parameters that no method describes.
    """
    fields: dict[str, Any] = {}
    bits = _gptq_bits(model)
    if bits:
        fields |= {"method": "gptq_lora", "weights_dtype": f"gptq{bits}"}
    elif not _quantiser_keys(model):
        dtype = _most_common(model, adapters=False)
        fields |= {"weights_dtype": dtype} if dtype else {}
    if getattr(model, "peft_config", None):
        dtype = _most_common(model, adapters=True)
        return fields | ({"adapter_dtype": dtype} if dtype else {})
    trained = _trained_last_layers(model)
    if trained:
        fields |= {"method": "freeze", "freeze_trainable_layers": trained}
    return fields


def _quantiser_keys(model: Any) -> dict[str, Any]:
    """Return bitsandbytes' options, where it quantised the model."""
    stated = getattr(model.config, "quantization_config", None)
    if stated is None:
        return {}
    options = stated if isinstance(stated, Mapping) else stated.to_dict()
    if options.get("load_in_4bit"):
        return {
            "load_in_4bit": True,
            "use_bnb_nested_quant": bool(options.get("bnb_4bit_use_double_quant")),
            "bnb_4bit_quant_type": options.get("bnb_4bit_quant_type", "nf4"),
        }
    return {"load_in_8bit": True} if options.get("load_in_8bit") else {}


def _gptq_bits(model: Any) -> int:
    """Return the bits of a GPTQ model; 0 for any other."""
    stated = getattr(model.config, "quantization_config", None)
    options = stated if isinstance(stated, Mapping) else stated.to_dict() if stated is not None else {}
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method")))
    return int(options.get("bits") or 0) if method == "gptq" else 0


def _adapted(model: Any) -> list[str]:
    """Return the last names of the modules that carry an adapter, whatever words had chosen them."""
    names = {name.rpartition(".")[2] for name, module in model.named_modules() if hasattr(module, "lora_A")}
    return sorted(names)


def _most_common(model: Any, *, adapters: bool) -> str | None:
    """Return the float format of most of the weights: of the adapters', or of the others."""
    sizes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and ("lora_" in name) == adapters:
            dtype = str(parameter.dtype)
            sizes[dtype] = sizes.get(dtype, 0) + parameter.numel()
    if not sizes:
        return None
    dtype = max(sizes, key=lambda name: sizes[name])
    if dtype not in _DTYPES:
        raise UnsupportedError(f"weights in {dtype} are not described; fp32, bf16 and fp16 are.")
    return _DTYPES[dtype]


def _trained_last_layers(model: Any) -> int:
    """Return how many of the last layers train alone; 0 where everything trains.

    Raises: UnsupportedError where something else trains.
    """
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if all(trained.values()):
        return 0
    of_layer: dict[int, set[bool]] = {}
    for name, trains in trained.items():
        of_layer.setdefault(_layer(name), set()).add(trains)
    outside = of_layer.pop(-1, {False})
    numbers = [number for number, flags in sorted(of_layer.items()) if flags == {True}]
    last = list(range(max(of_layer, default=-1) + 1))[-len(numbers) :] if numbers else []
    mixed = any(len(flags) > 1 for flags in of_layer.values())
    if outside != {False} or not numbers or numbers != last or mixed:
        count = sum(trained.values())
        raise UnsupportedError(
            f"{count} of the model's {len(trained)} weight tensors train, which is neither all of them, "
            "adapters, nor the last layers alone."
        )
    return len(numbers)


def _layer(parameter: str) -> int:
    """Return the number of the layer that a parameter belongs to; -1 outside the layers."""
    return next((int(part) for part in parameter.split(".") if part.isdecimal()), -1)
