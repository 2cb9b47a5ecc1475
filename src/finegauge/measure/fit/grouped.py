"""A product of groups of rows with a weight each, in any dtype: PyTorch's refuses fp32 without data."""

from typing import Any

import torch
from torch import Tensor


class Grouped(torch.autograd.Function):
    """[rows, k] x [groups, k, n] -> [rows, n]; rows are kept for the weights, the weights for the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        """Return the product's shape; nothing is computed."""
        rows_need, weights_need = ctx.needs_input_grad
        ctx.shapes = rows.shape if rows_need else None, weights.shape if weights_need else None
        ctx.save_for_backward(rows if weights_need else None, weights if rows_need else None)
        return rows.new_empty((rows.shape[0], weights.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """Return the gradients that are wanted."""
        return tuple(None if shape is None else gradient.new_empty(shape) for shape in ctx.shapes)


def grouped(rows: Tensor, weights: Tensor, *_: Any, **__: Any) -> Tensor:
    """Multiply as `torch.nn.functional.grouped_mm` does; where groups end does not matter to sizes."""
    product: Tensor = Grouped.apply(rows, weights)  # type: ignore[no-untyped-call]
    return product
