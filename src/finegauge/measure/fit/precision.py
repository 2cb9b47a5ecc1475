"""What autocast does to the arguments of a PyTorch function, for tensors without data.

PyTorch's own autocast refuses the meta device. CUDA's rule is short: matrix products compute in
16 bit, a list of reductions and exponentials in 32, everything else as its inputs are.
Source: "CUDA Ops that autocast to float16/float32", PyTorch documentation of torch.amp.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

NARROW = frozenset(
    {
        *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addmv", "addbmm"),
        *("baddbmm", "einsum", "conv1d", "conv2d", "conv3d", "chain_matmul", "multi_dot", "prelu"),
        "scaled_dot_product_attention",
    }
)
WIDE = frozenset(
    {
        *("softmax", "log_softmax", "softmin", "layer_norm", "group_norm", "pow", "__pow__", "__rpow__"),
        *("rsqrt", "reciprocal", "exp", "expm1", "log", "log10", "log2", "log1p", "acos", "asin", "cosh"),
        *("sinh", "tan", "softplus", "cumsum", "cumprod", "prod", "sum", "norm", "logsumexp", "nll_loss"),
        *("cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "cosine_similarity", "dist", "renorm"),
    }
)


def width_of(function: Callable[..., Any]) -> torch.dtype | None:
    """Return the dtype in which autocast computes a function, None if it leaves it alone."""
    name = getattr(function, "__name__", "")
    if name in NARROW:
        return torch.bfloat16
    return torch.float32 if name in WIDE else None


def cast(values: Any, dtype: torch.dtype, made: Callable[[torch.Tensor, torch.Tensor], None]) -> Any:
    """Return the arguments with every floating tensor in `dtype`; `made(old, new)` hears of each copy."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if value.dtype == torch.float64:
            return value
        copy = value.to(dtype)
        made(value, copy)
        return copy

    return tree_map(one, values)
