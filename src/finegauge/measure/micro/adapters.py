"""How modules of PEFT and bitsandbytes are called in training, each a use like those of `operators`."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from finegauge.measure.micro.bench import Bench, Use
from finegauge.measure.micro.operators import Operator, plain


def lora_linear(bench: Bench, *, rows: int, n: int, k: int, rank: int) -> Use:
    """Return PEFT's LoRA module around a frozen linear, without dropout."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    base = plain(bench, n, k).requires_grad_(False)
    module: Any = Linear(base, "default", config=LoraConfig(r=rank, lora_alpha=2 * rank), r=rank)
    module.to(bench.device)
    x = bench.rows(1, rows, k)
    adapter = (module.lora_A["default"].weight, module.lora_B["default"].weight)
    return Use(lambda: module(x), (x,), adapter)


def nf4_linear(bench: Bench, *, rows: int, n: int, k: int) -> Use:
    """Return bitsandbytes' 4-bit linear, doubly quantised; its weight never trains."""
    module = _quantised(bench, n, k)
    x = bench.rows(1, rows, k)
    return Use(lambda: module(x), (x,))


def _quantised(bench: Bench, n: int, k: int) -> Any:
    """Return a 4-bit linear on the bench's device."""
    from bitsandbytes.nn import Linear4bit

    with torch.device("meta"):
        module = Linear4bit(k, n, bias=False, compute_dtype=bench.dtype, quant_type="nf4")
    module.weight = type(module.weight)(
        bench.weight(n, k).cpu(),
        requires_grad=False,
        quant_type="nf4",
        compress_statistics=True,
        module=module,
    )
    return module.to(bench.device)


def nf4_dequantise(bench: Bench, *, n: int, k: int) -> Use:
    """Return the dequantisation of one weight."""
    from bitsandbytes.functional import dequantize_4bit

    weight = _quantised(bench, n, k).weight

    def forward() -> Tensor:
        dequantised: Tensor = dequantize_4bit(weight.data, weight.quant_state)
        return dequantised

    return Use(forward, ())


def _product(*, rows: int, n: int, k: int, rank: int = 0) -> float:
    return 2.0 * rows * (n * k + rank * (n + k))


ADAPTERS: Mapping[str, Operator] = {
    "lora_linear": Operator(lora_linear, ("backward", "backward_first"), _product),
    "nf4_linear": Operator(nf4_linear, ("backward_frozen",), _product),
    "nf4_dequantise": Operator(nf4_dequantise, ()),
}
