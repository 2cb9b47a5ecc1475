"""A product of groups of rows with a weight each, in any dtype: PyTorch's refuses fp32 without data."""

from typing import Any

import torch
from torch import Tensor

from finegauge.measurement.tracer.tracker import spend


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


SCAN_FLOPS = 9.0
SCAN_BACKWARD_RATIO = 2.5
STATE_EVERY_TOKENS = 2048
DELTA_CHUNK = 64


def _dense(tensor: Tensor) -> Tensor:
    """Return `tensor` as the kernels want it: its last dimension contiguous."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _narrowed(*weights: Any) -> tuple[Any, ...]:
    """Return projection weights as a kernel takes them: cast, under autocast."""
    if not torch.is_autocast_enabled("cpu"):
        return weights
    half = torch.get_autocast_dtype("cpu")
    return tuple(None if weight is None else weight.to(half) for weight in weights)


def _gradients(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return one new tensor like each of `tensors`, None for None."""
    return tuple(None if tensor is None else torch.empty_like(tensor) for tensor in tensors)


class Convolution(torch.autograd.Function):
    """causal_conv1d over [batch, channels, length]; keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolved and activated input."""
        x = x if 1 in (x.stride(1), x.stride(2)) else x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        ctx.flops = 2.0 * x.numel() * weight.shape[-1]
        spend(ctx.flops)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients; the activation's input is computed again, uncounted."""
        spend(2 * ctx.flops)
        return _gradients(*ctx.saved_tensors)


class SelectiveScan(torch.autograd.Function):
    """mamba_ssm's selective scan with gate: keeps its inputs, its output before the gate and states."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any, z: Any, bias: Any
    ) -> Tensor:
        """Return the gated output."""
        u, dt, b, c = (_dense(t) for t in (u, dt, b, c))
        z = None if z is None else _dense(z)
        batch, width, length = u.shape
        out = torch.empty_like(u)
        chunks = -(-length // STATE_EVERY_TOKENS)
        states = u.new_empty((batch, width, chunks, 2 * a.shape[1]), dtype=torch.float32)
        ctx.save_for_backward(u, dt, a, b, c, d, z, bias, states, None if z is None else out)
        ctx.flops = SCAN_FLOPS * u.numel() * a.shape[1]
        spend(ctx.flops)
        return out if z is None else torch.empty_like(u)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients; those of B and C are accumulated in fp32."""
        saved = ctx.saved_tensors  # once: checkpointing hands them out a single time
        spend(SCAN_BACKWARD_RATIO * ctx.flops, 4.0 * sum(t.numel() for t in saved[3:5]))
        return _gradients(*saved[:8])


class MambaInner(torch.autograd.Function):
    """mamba_ssm's whole inner block of Mamba-1, at its default of recomputing convolution and step."""

    @staticmethod
    def forward(
        ctx: Any, xz: Tensor, conv_w: Tensor, conv_b: Any, x_w: Tensor, dt_w: Tensor, out_w: Tensor,
        out_b: Any, a: Tensor, d: Tensor, bias: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return the output projection of the gated scan."""
        x_w, dt_w, out_w, out_b = _narrowed(x_w, dt_w, out_w, out_b)
        batch, both, length = xz.shape
        width, n, rank = both // 2, a.shape[1], dt_w.shape[1]
        xz = _dense(xz)
        low_rank = xz.new_empty((batch * length, rank + 2 * n))
        b, c = (xz.new_empty((batch, 1, n, length)) for _ in range(2))
        states = xz.new_empty((batch, width, -(-length // STATE_EVERY_TOKENS), 2 * n), dtype=torch.float32)
        out = xz.new_empty((batch, width, length))
        ctx.save_for_backward(xz, conv_w, conv_b, low_rank, x_w, dt_w, out_w, a, b, c, d, bias, states, out)
        ctx.has_out_bias, tokens = out_b is not None, float(batch * length)
        ctx.products = 2.0 * tokens * width * (2 * rank + 2 * n + out_w.shape[0])
        ctx.convolution = 2.0 * tokens * width * conv_w.shape[-1]
        ctx.scan = SCAN_FLOPS * tokens * width * n
        spend(ctx.products + ctx.convolution + ctx.scan, 3.0 * out.nbytes)
        return xz.new_empty((batch, length, out_w.shape[0]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients; convolution and step size are computed again, uncounted."""
        xz, conv_w, conv_b, _, x_w, dt_w, out_w, a, _, _, d, bias, _, out = ctx.saved_tensors
        passing = 4.0 * out.nbytes
        spend(2 * (ctx.products + ctx.convolution) + SCAN_BACKWARD_RATIO * ctx.scan, passing)
        made = _gradients(xz, conv_w, conv_b, x_w, dt_w, out_w)
        out_b = gradient.new_empty(out_w.shape[0]) if ctx.has_out_bias else None
        return (*made, out_b, *_gradients(a, d, bias))


class Mamba2Combined(torch.autograd.Function):
    """mamba_ssm's whole inner block of Mamba-2; keeps its input, the scan's output and the norm's scale."""

    @staticmethod
    def forward(
        ctx: Any, zx: Tensor, conv_w: Tensor, conv_b: Any, dt_bias: Tensor, a: Tensor, d: Tensor,
        norm_w: Any, out_w: Any, out_b: Any, sizes: tuple[int, int, int, int],
    ) -> Tensor:  # fmt: skip
        """Return the output; `sizes` are head width, groups, state size, chunk."""
        out_w, out_b = _narrowed(out_w, out_b)
        batch, length, _ = zx.shape
        head, groups, state, chunk = sizes
        heads, width = d.shape[0], d.shape[0] * head
        scanned = zx.new_empty((batch, length, width))
        scale = None if norm_w is None else zx.new_empty((batch * length * groups,), dtype=torch.float32)
        ctx.save_for_backward(zx, conv_w, conv_b, scanned, a, d, dt_bias, norm_w, scale, out_w, out_b)
        tokens = float(batch * length)
        inside = groups * chunk * state / 2 + heads * (chunk * head / 2 + 2 * state * head)
        ctx.scan = 2.0 * tokens * inside
        ctx.rest = 2.0 * tokens * (width + 2 * groups * state) * conv_w.shape[-1]
        if out_w is not None:
            ctx.rest += 2.0 * tokens * width * out_w.shape[0]
        states = 4.0 * batch * heads * -(-length // chunk) * state * head
        spend(ctx.scan + ctx.rest, states + 2.0 * scanned.nbytes)
        return zx.new_empty((batch, length, width if out_w is None else out_w.shape[0]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients; convolution and chunk states are computed again, uncounted."""
        zx, conv_w, conv_b, scanned, a, d, dt_bias, norm_w, _, out_w, out_b = ctx.saved_tensors
        spend(SCAN_BACKWARD_RATIO * ctx.scan + 2 * ctx.rest, 4.0 * scanned.nbytes)
        return (*_gradients(zx, conv_w, conv_b, dt_bias, a, d, norm_w, out_w, out_b), None)


class DeltaRule(torch.autograd.Function):
    """fla's chunked gated delta rule: keeps normalised q and k, v, decay, beta, one matrix per chunk."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """Return the output, [batch, length, value heads, value width]."""
        batch, length, heads, width = v.shape
        q_norm, k_norm = torch.empty_like(q), torch.empty_like(k)
        q_scale, k_scale = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (q, k))
        decay = g.new_empty(g.shape, dtype=torch.float32)
        matrix = k.new_empty((batch, length, heads, DELTA_CHUNK))
        ctx.save_for_backward(q_norm, q_scale, k_norm, k_scale, v, decay, beta, matrix)
        ctx.like = g.dtype
        inner = DELTA_CHUNK * (k.shape[-1] + width) + 2 * k.shape[-1] * width
        ctx.flops = 2.0 * batch * length * heads * inner
        spend(ctx.flops, 2.0 * v.nbytes)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of q, k, v, decay and beta."""
        q, _, k, _, v, decay, beta, _ = ctx.saved_tensors
        spend(SCAN_BACKWARD_RATIO * ctx.flops, 3.0 * v.nbytes)
        return (*_gradients(q, k, v), torch.empty_like(decay, dtype=ctx.like), torch.empty_like(beta))


def _convolve(x: Tensor, weight: Tensor, bias: Any = None, activation: Any = None, **kwargs: Any) -> Tensor:
    """Stand for causal_conv1d_fn."""
    del activation, kwargs
    return Convolution.apply(x, weight, bias)


def _scan(
    u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, D: Any = None, z: Any = None,
    delta_bias: Any = None, return_last_state: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Stand for selective_scan_fn."""
    del kwargs
    out = SelectiveScan.apply(u, dt, a, b, c, D, z, delta_bias)
    return (out, None) if return_last_state else out


def _mamba(xz: Tensor, conv_w: Tensor, conv_b: Any, x_w: Tensor, dt_w: Tensor, out_w: Tensor, out_b: Any,
           a: Tensor, b: Any = None, c: Any = None, D: Any = None, delta_bias: Any = None,
           **kwargs: Any) -> Tensor:  # fmt: skip
    """Stand for mamba_inner_fn."""
    del b, c, kwargs
    return MambaInner.apply(xz, conv_w, conv_b, x_w, dt_w, out_w, out_b, a, D, delta_bias)


def _mamba2(
    zx: Tensor, conv_w: Tensor, conv_b: Any, dt_bias: Tensor, a: Tensor, D: Tensor, chunk_size: int,
    headdim: int, ngroups: int = 1, rmsnorm_weight: Any = None, outproj_weight: Any = None,
    outproj_bias: Any = None, **kwargs: Any,
) -> Tensor:  # fmt: skip
    """Stand for mamba_split_conv1d_scan_combined."""
    del kwargs
    state = (conv_w.shape[0] - D.shape[0] * headdim) // (2 * ngroups)
    sizes = (headdim, ngroups, state, chunk_size)
    return Mamba2Combined.apply(
        zx, conv_w, conv_b, dt_bias, a, D, rmsnorm_weight, outproj_weight, outproj_bias, sizes
    )


def _delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Stand for fla's chunk_gated_delta_rule."""
    del kwargs
    return DeltaRule.apply(query, key, value, g, beta), None


SUBSTITUTES: dict[str, Any] = {
    "causal_conv1d_fn": _convolve,
    "mamba_selective_scan": _scan,
    "mamba_inner_fn": _mamba,
    "mamba2_split_conv1d_scan_combined": _mamba2,
    "torch_chunk_gated_delta_rule": _delta_rule,
}
