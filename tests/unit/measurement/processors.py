"""Processors with AVX512-BF16 and without, whatever this machine has."""

import copy
from typing import Any

import bitsandbytes
import pytest
import torch
from bitsandbytes import functional
from bitsandbytes.nn import modules

from finegauge.prediction import predictor

HAS_KERNEL = modules.has_avx512bf16()


def set_avx512_bf16(monkeypatch: pytest.MonkeyPatch, present: bool) -> None:
    """Let bitsandbytes and the prediction find AVX512-BF16 or not; without its kernel, PyTorch stands in."""
    monkeypatch.setattr(modules, "has_avx512bf16", lambda: present)
    monkeypatch.setattr(predictor, "has_avx512_bf16", lambda: present)
    if present and not HAS_KERNEL:
        monkeypatch.setattr(functional, "gemv_4bit", _product)


@torch.no_grad()
def _product(inputs: torch.Tensor, packed: torch.Tensor, out: Any = None, *, state: Any) -> torch.Tensor:
    """Return the product with repacked weights, in bf16 and without gradients as the kernel has it."""
    assert out is None
    plain = copy.copy(state)
    plain.original_nested = False
    weights, _ = functional._convert_weight_packed_for_cpu_inverse(packed, plain)
    scales = state.absmax.T.reshape(-1).float()
    dequantise = torch.ops.bitsandbytes.dequantize_4bit
    matrix = dequantise(weights, scales, state.blocksize, state.quant_type, state.shape, torch.bfloat16)
    return torch.nn.functional.linear(inputs.to(torch.bfloat16), matrix).to(inputs.dtype)


def repacked(model: torch.nn.Module) -> list[bool]:
    """Return, for every 4-bit linear of `model`, whether its weights are repacked."""
    linears = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    return [bool(getattr(linear.weight.quant_state, "packing_format_for_cpu", False)) for linear in linears]
