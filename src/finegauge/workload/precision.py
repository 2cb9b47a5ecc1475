"""In which number formats weights rest, train and compute."""

from collections.abc import Collection
from typing import Any

from finegauge.errors import FieldError
from finegauge.workload.field import Check, choice, flag

WEIGHTS_DTYPES = ("bf16", "fp16", "fp32", "nf4", "nf4_dq", "gptq4", "gptq8", "fp8", "int8")
FLOAT_DTYPES = ("bf16", "fp16", "fp32")
QUANTIZED_BY_METHOD = {"qlora": ("nf4_dq", "nf4", "int8"), "gptq_lora": ("gptq4", "gptq8")}
QUANTIZED_DTYPES = frozenset(dtype for dtypes in QUANTIZED_BY_METHOD.values() for dtype in dtypes)
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}

CHECKS: dict[str, Check] = {
    "weights_dtype": choice(WEIGHTS_DTYPES, _ALIASES),
    "autocast": choice(("none", "bf16", "fp16"), {**_ALIASES, "no": "none", "false": "none"}),
    "adapter_dtype": choice(FLOAT_DTYPES, _ALIASES),
    "upcast_unquantized": flag,
    "fp8": flag,
    "quantize_experts": flag,
}


def settle(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in the weights' format by method and refuse what contradicts it."""
    del stated  # every contradiction below holds whoever stated it
    method, quantized = values["method"], QUANTIZED_BY_METHOD.get(values["method"])
    if values["weights_dtype"] is None:
        values["weights_dtype"] = quantized[0] if quantized else "bf16"
    if values["adapter_dtype"] is None:
        values["adapter_dtype"] = "bf16"
    dtype = values["weights_dtype"]
    if quantized and dtype not in quantized:
        raise FieldError(
            f"method={method} needs weights_dtype {' or '.join(quantized)}, not {dtype}; or use method=lora."
        )
    if not quantized and dtype in QUANTIZED_DTYPES:
        trained = "qlora" if dtype in QUANTIZED_BY_METHOD["qlora"] else "gptq_lora"
        raise FieldError(
            f"weights_dtype={dtype} cannot be used with method={method}; use method={trained} or bf16."
        )
    if values["upcast_unquantized"] and not quantized:
        raise FieldError(
            f"upcast_unquantized needs quantised weights, but method={method}; use qlora or remove it."
        )
