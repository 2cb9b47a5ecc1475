"""Fused attention as one opaque operator that keeps what the CUDA kernel keeps.

Each stands for a kernel that this machine need not have: it makes tensors of the right
size, saves what the kernel's autograd function saves and reports the kernel's FLOPs and
workspace. The code around it is transformers' own.

FlashAttention-2 [1] keeps q, k, v, the output and the log-sum-exp; its backward takes an
fp32 accumulator of q's gradient and, with grouped heads, one gradient of k and v per
query head. PyTorch's memory-efficient kernel [2] keeps the same and the bias; its rows of
log-sum-exp are padded to 32.

[1] Dao 2023, arXiv:2307.08691   [2] Rabe and Staats 2021, arXiv:2112.05682
"""

from typing import Any

import torch
from torch import Tensor

from finegauge.measure.trace.tracker import spend

BACKWARD_RATIO = 2.5  # five products instead of two
MAX_FLASH_HEAD_DIM = 256

_math_attention = torch.nn.functional.scaled_dot_product_attention


class FlashAttention(torch.autograd.Function):
    """FlashAttention-2 over q, k, v of [batch, sequence, heads, head_dim]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pairs: float) -> Tensor:
        """Return the output; `pairs` counts query-key pairs per sequence and head."""
        batch, length, heads, width = q.shape
        out = q.new_empty((batch, length, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.flops = 2.0 * batch * heads * pairs * (width + v.shape[-1])
        spend(ctx.flops)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of q, k, v."""
        q, k, v, _, _ = ctx.saved_tensors
        batch, length, heads, width = q.shape
        rounded = _round_up(length, 128)
        workspace = 4.0 * batch * heads * rounded * (_round_up(width, 32) + 1)
        if k.shape[2] != heads:
            workspace += 2.0 * q.element_size() * batch * length * heads * width
        made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        spend(BACKWARD_RATIO * ctx.flops, workspace)
        return *made, None


class EfficientAttention(torch.autograd.Function):
    """PyTorch's memory-efficient attention over q, k, v of [batch, heads, sequence, head_dim]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, pairs: float) -> Tensor:
        """Return the output; `pairs` counts query-key pairs per sequence and head."""
        batch, heads, length, width = q.shape
        out = q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)
        lse = q.new_empty((batch, heads, _round_up(length, 32)), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.flops = 2.0 * batch * heads * pairs * (width + v.shape[-1])
        spend(ctx.flops)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of q, k, v; the bias has none."""
        q, k, v, _, _, _ = ctx.saved_tensors
        batch, heads, length, _ = q.shape
        workspace = 4.0 * batch * heads * length
        if q.element_size() < 4:  # gradients are accumulated in fp32
            workspace += 4.0 * (q.numel() + k.numel() + v.numel())
        made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        spend(BACKWARD_RATIO * ctx.flops, workspace)
        return *made, None, None


def flash_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend as transformers' FlashAttention-2 integration does around the kernel."""
    del attention_mask  # without padding there is none
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    width, value_width = q.shape[-1], v.shape[-1]
    if value_width != width:
        v = torch.nn.functional.pad(v, [0, width - value_width])
    if q.dtype == torch.float32:
        target = _half_of(module)
        q, k, v = (t.to(target) for t in (q, k, v))
    length, window = q.shape[1], kwargs.get("sliding_window")
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    out = FlashAttention.apply(q, k, v, causal_pairs(length, window) if causal else float(length**2))
    return (out[..., :value_width] if value_width != width else out), None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend with the kernel that PyTorch picks on a CUDA device.

    Flash: 16 bit, no mask, one head width of at most 256. Memory-efficient: any mask, any
    dtype, but a key head per query head. Otherwise PyTorch's own composite of matrix
    products ("math").
    """
    device = query.device.type
    if device == "cpu" and torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        query, key, value = (t.to(half) if t.dtype == torch.float32 else t for t in (query, key, value))
    kernel = sdpa_kernel(query, key, value, masked=attn_mask is not None)
    length = query.shape[2]
    pairs = causal_pairs(length, None) if is_causal else float(length * key.shape[2])
    if kernel == "flash":
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        return FlashAttention.apply(q, k, v, pairs).transpose(1, 2)
    if kernel == "efficient":
        return EfficientAttention.apply(query, key, value, _additive(attn_mask, query.dtype), pairs)
    return _math_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def sdpa_kernel(query: Tensor, key: Tensor, value: Tensor, *, masked: bool) -> str:
    """Return which kernel serves these tensors on CUDA: "flash", "efficient" or "math"."""
    width = query.shape[-1]
    half = query.dtype in (torch.bfloat16, torch.float16)
    if half and not masked and width == key.shape[-1] == value.shape[-1] <= MAX_FLASH_HEAD_DIM:
        return "flash"
    return "efficient" if query.shape[1] == key.shape[1] == value.shape[1] else "math"


def causal_pairs(length: int, window: int | None) -> float:
    """Return half of S², or what a window leaves of it: S·w - w²/2."""
    if window is None or window >= length:
        return length * length / 2
    return length * window - window * window / 2


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as PyTorch hands it to the kernel: numbers to add, in q's dtype."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype)


def _half_of(module: torch.nn.Module) -> torch.dtype:
    """Return the dtype to which transformers casts fp32 queries for FlashAttention."""
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return next(module.parameters()).dtype


def _round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
