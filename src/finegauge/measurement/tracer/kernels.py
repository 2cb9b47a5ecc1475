"""FLOPs of operators, and fused CUDA kernels as opaque operators that keep what the kernels keep.

Convention: a multiply-add is 2 FLOPs; element-wise work is not counted; a causal fused attention kernel
counts half of its query-key pairs, eager attention all of them. Formulas are those of torch's own counter
(torch.utils.flop_counter), and ours where that has none or a wrong one.

An opaque operator stands for a kernel that this machine need not have: it makes tensors of the right size,
saves what the kernel's autograd function saves, and reports the kernel's FLOPs and workspace. The code
around it is transformers' own.

FlashAttention-2 [1] keeps q, k, v, the output and the log-sum-exp; its backward takes an fp32 accumulator of
q's gradient and, with grouped heads, one gradient of k and v per query head. PyTorch's memory-efficient
kernel [2] keeps the same and the bias; its rows of log-sum-exp are padded to 32.

Transformers calls the functions of mamba_ssm, causal_conv1d and flash-linear-attention where they are
installed and its own PyTorch code elsewhere; `SUBSTITUTES` takes their place, under the names that the
modelling files use. Each saves what the autograd functions of these packages save [3]. Selective scan
9·T·d_inner·d_state FLOPs, chunked scan (Mamba-2) 2·T·(groups·Q·N/2 + heads·(Q·P/2 + 2·N·P)), delta rule
2·T·heads·(Q·(dk + dv) + 2·dk·dv); the backward of each is 2.5 times its forward. Projections inside a kernel
count as products, and twice that backward: the kernels compute every gradient, wanted or not, and compute
the convolution again, uncounted.

[1] Dao 2023, arXiv:2307.08691   [2] Rabe and Staats 2021, arXiv:2112.05682
[3] github.com/state-spaces/mamba at 01887ed, Dao-AILab/causal-conv1d at 17f4f2f,
    fla-org/flash-linear-attention at 0315a70
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

Formula = Callable[[tuple[Any, ...], Any], float]


def _grouped_product(args: tuple[Any, ...], out: Any) -> float:
    """[rows, k] x [groups, k, n] or [k, rows] x [rows, n]."""
    a, b = args[0], args[1]
    if a.dim() == 2 and b.dim() == 2:
        return float(2.0 * a.shape[0] * a.shape[1] * b.shape[1])
    return float(2.0 * prod(out.shape) * a.shape[-1])


def _grouped_product_backward(args: tuple[Any, ...], out: Any) -> float:
    del out
    rows, weight = args[0], args[1]
    return float(4.0 * rows.shape[0] * weight.shape[1] * weight.shape[2])


def _convolution(args: tuple[Any, ...], out: Any) -> float:
    """The weight is [out, in / groups, *kernel]."""
    return float(2.0 * prod(out.shape) * prod(args[1].shape[1:]))


def _convolution_backward(args: tuple[Any, ...], out: Any) -> float:
    del out
    gradient, weight, wanted = args[0], args[2], args[-1]
    return float(2.0 * prod(gradient.shape) * prod(weight.shape[1:]) * sum(map(bool, wanted[:2])))


FORMULAS: dict[str, Formula] = {
    "aten::_grouped_mm": _grouped_product,
    "transformers::grouped_mm_fallback": _grouped_product,  # transformers' own, [rows, k] x [groups, k, n]
    "transformers::grouped_mm_fallback_backward": _grouped_product_backward,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}


def flops(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """Return the FLOPs of one call of the overload `op` that returned `out`."""
    own = FORMULAS.get(op._schema.name)
    if own is not None:
        return own(args, out)
    formula = flop_registry.get(op._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


Spend = Callable[[float, float], None]  # FLOPs of the kernel that runs now, bytes that it takes and returns
_LISTENERS: list[Spend] = []


@contextmanager
def listening(spend: Spend) -> Iterator[None]:
    """Let opaque kernels report to `spend` for as long as the block runs."""
    _LISTENERS.append(spend)
    try:
        yield
    finally:
        _LISTENERS.pop()


def _spend(count: float, workspace_bytes: float = 0.0) -> None:
    if _LISTENERS:
        _LISTENERS[-1](count, workspace_bytes)


class _Grouped(torch.autograd.Function):
    """[rows, k] x [groups, k, n] -> [rows, n]; rows are kept for the weights, the weights for the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        rows_need, weights_need = ctx.needs_input_grad
        ctx.shapes = rows.shape if rows_need else None, weights.shape if weights_need else None
        ctx.save_for_backward(rows if weights_need else None, weights if rows_need else None)
        return rows.new_empty((rows.shape[0], weights.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return tuple(None if shape is None else gradient.new_empty(shape) for shape in ctx.shapes)


def grouped(rows: Tensor, weights: Tensor, *_: Any, **__: Any) -> Tensor:
    """Multiply as `torch.nn.functional.grouped_mm` does; where groups end does not matter to sizes."""
    product: Tensor = _Grouped.apply(rows, weights)  # type: ignore[no-untyped-call]
    return product


BACKWARD_RATIO = 2.5  # five products instead of two
MAX_FLASH_HEAD_DIM = 256

_math_attention = torch.nn.functional.scaled_dot_product_attention


class _FlashAttention(torch.autograd.Function):
    """FlashAttention-2 over q, k, v of [batch, sequence, heads, head_dim]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pairs: float) -> Tensor:
        batch, length, heads, width = q.shape
        out = q.new_empty((batch, length, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, length), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.flops = 2.0 * batch * heads * pairs * (width + v.shape[-1])
        _spend(ctx.flops)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, _, _ = ctx.saved_tensors
        batch, length, heads, width = q.shape
        rounded = _round_up(length, 128)
        workspace = 4.0 * batch * heads * rounded * (_round_up(width, 32) + 1)
        if k.shape[2] != heads:
            workspace += 2.0 * q.element_size() * batch * length * heads * width
        made = _gradients(q, k, v)
        _spend(BACKWARD_RATIO * ctx.flops, workspace)
        return *made, None


class _EfficientAttention(torch.autograd.Function):
    """PyTorch's memory-efficient attention over q, k, v of [batch, heads, sequence, head_dim]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, pairs: float) -> Tensor:
        batch, heads, length, width = q.shape
        out = q.new_empty((batch, length, heads, v.shape[-1])).transpose(1, 2)
        lse = q.new_empty((batch, heads, _round_up(length, 32)), dtype=torch.float32)
        ctx.save_for_backward(q, k, v, bias, out, lse)
        ctx.flops = 2.0 * batch * heads * pairs * (width + v.shape[-1])
        _spend(ctx.flops)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, _, _, _ = ctx.saved_tensors
        batch, heads, length, _ = q.shape
        workspace = 4.0 * batch * heads * length
        if q.element_size() < 4:  # gradients are accumulated in fp32
            workspace += 4.0 * (q.numel() + k.numel() + v.numel())
        made = _gradients(q, k, v)
        _spend(BACKWARD_RATIO * ctx.flops, workspace)
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
        is_cast = torch.is_autocast_enabled("cpu")
        target = torch.get_autocast_dtype("cpu") if is_cast else next(module.parameters()).dtype
        q, k, v = (t.to(target) for t in (q, k, v))
    length, window = q.shape[1], kwargs.get("sliding_window")
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    out = _FlashAttention.apply(q, k, v, causal_pairs(length, window) if causal else float(length**2))
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
        return _FlashAttention.apply(q, k, v, pairs).transpose(1, 2)
    if kernel == "efficient":
        return _EfficientAttention.apply(query, key, value, _additive(attn_mask, query.dtype), pairs)
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
    return mask if mask is None or mask.dtype != torch.bool else torch.zeros_like(mask, dtype=dtype)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


SCAN_FLOPS = 9.0
SCAN_BACKWARD_RATIO = 2.5
STATE_EVERY_TOKENS = 2048
DELTA_CHUNK = 64


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _narrowed(*weights: Any) -> tuple[Any, ...]:
    if not torch.is_autocast_enabled("cpu"):
        return weights
    half = torch.get_autocast_dtype("cpu")
    return tuple(None if weight is None else weight.to(half) for weight in weights)


def _gradients(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else torch.empty_like(tensor) for tensor in tensors)


class _Convolution(torch.autograd.Function):
    """causal_conv1d over [batch, channels, length]; keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x if 1 in (x.stride(1), x.stride(2)) else x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        ctx.flops = 2.0 * x.numel() * weight.shape[-1]
        _spend(ctx.flops)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _spend(2 * ctx.flops)
        return _gradients(*ctx.saved_tensors)


class _SelectiveScan(torch.autograd.Function):
    """mamba_ssm's selective scan with gate: keeps its inputs, its output before the gate and states."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Any, z: Any, bias: Any
    ) -> Tensor:
        u, dt, b, c = (_dense(t) for t in (u, dt, b, c))
        z = None if z is None else _dense(z)
        batch, width, length = u.shape
        out = torch.empty_like(u)
        chunks = -(-length // STATE_EVERY_TOKENS)
        states = u.new_empty((batch, width, chunks, 2 * a.shape[1]), dtype=torch.float32)
        ctx.save_for_backward(u, dt, a, b, c, d, z, bias, states, None if z is None else out)
        ctx.flops = SCAN_FLOPS * u.numel() * a.shape[1]
        _spend(ctx.flops)
        return out if z is None else torch.empty_like(u)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        saved = ctx.saved_tensors  # once: checkpointing hands them out a single time
        _spend(SCAN_BACKWARD_RATIO * ctx.flops, 4.0 * sum(t.numel() for t in saved[3:5]))
        return _gradients(*saved[:8])


class _MambaInner(torch.autograd.Function):
    """mamba_ssm's whole inner block of Mamba-1, at its default of recomputing convolution and step."""

    @staticmethod
    def forward(
        ctx: Any, xz: Tensor, conv_w: Tensor, conv_b: Any, x_w: Tensor, dt_w: Tensor, out_w: Tensor,
        out_b: Any, a: Tensor, d: Tensor, bias: Tensor,
    ) -> Tensor:  # fmt: skip
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
        _spend(ctx.products + ctx.convolution + ctx.scan, 3.0 * out.nbytes)
        return xz.new_empty((batch, length, out_w.shape[0]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        xz, conv_w, conv_b, _, x_w, dt_w, out_w, a, _, _, d, bias, _, out = ctx.saved_tensors
        passing = 4.0 * out.nbytes
        _spend(2 * (ctx.products + ctx.convolution) + SCAN_BACKWARD_RATIO * ctx.scan, passing)
        made = _gradients(xz, conv_w, conv_b, x_w, dt_w, out_w)
        out_b = gradient.new_empty(out_w.shape[0]) if ctx.has_out_bias else None
        return (*made, out_b, *_gradients(a, d, bias))


class _Mamba2Combined(torch.autograd.Function):
    """mamba_ssm's whole inner block of Mamba-2; keeps its input, the scan's output and the norm's scale."""

    @staticmethod
    def forward(
        ctx: Any, zx: Tensor, conv_w: Tensor, conv_b: Any, dt_bias: Tensor, a: Tensor, d: Tensor,
        norm_w: Any, out_w: Any, out_b: Any, sizes: tuple[int, int, int, int],
    ) -> Tensor:  # fmt: skip
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
        _spend(ctx.scan + ctx.rest, states + 2.0 * scanned.nbytes)
        return zx.new_empty((batch, length, width if out_w is None else out_w.shape[0]))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        zx, conv_w, conv_b, scanned, a, d, dt_bias, norm_w, _, out_w, out_b = ctx.saved_tensors
        _spend(SCAN_BACKWARD_RATIO * ctx.scan + 2 * ctx.rest, 4.0 * scanned.nbytes)
        return (*_gradients(zx, conv_w, conv_b, dt_bias, a, d, norm_w, out_w, out_b), None)


class _DeltaRule(torch.autograd.Function):
    """fla's chunked gated delta rule: keeps normalised q and k, v, decay, beta, one matrix per chunk.

    Where every channel of the keys decays by a number of its own (Kimi's delta attention) it keeps two.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        batch, length, heads, width = v.shape
        q_norm, k_norm = torch.empty_like(q), torch.empty_like(k)
        q_scale, k_scale = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (q, k))
        decay = g.new_empty(g.shape, dtype=torch.float32)
        matrix = k.new_empty((batch, length, heads, DELTA_CHUNK * (2 if g.dim() == k.dim() else 1)))
        ctx.save_for_backward(q_norm, q_scale, k_norm, k_scale, v, decay, beta, matrix)
        ctx.like = g.dtype
        inner = DELTA_CHUNK * (k.shape[-1] + width) + 2 * k.shape[-1] * width
        ctx.flops = 2.0 * batch * length * heads * inner
        _spend(ctx.flops, 2.0 * v.nbytes)
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, _, k, _, v, decay, beta, _ = ctx.saved_tensors
        _spend(SCAN_BACKWARD_RATIO * ctx.flops, 3.0 * v.nbytes)
        return (*_gradients(q, k, v), torch.empty_like(decay, dtype=ctx.like), torch.empty_like(beta))


def _scan(
    u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, D: Any = None, z: Any = None,
    delta_bias: Any = None, return_last_state: bool = False, **_: Any,
) -> Any:  # fmt: skip
    out = _SelectiveScan.apply(u, dt, a, b, c, D, z, delta_bias)
    return (out, None) if return_last_state else out


def _mamba(xz: Tensor, conv_w: Tensor, conv_b: Any, x_w: Tensor, dt_w: Tensor, out_w: Tensor, out_b: Any,
           a: Tensor, _b: Any = None, _c: Any = None, D: Any = None, delta_bias: Any = None,
           **_: Any) -> Tensor:  # fmt: skip
    return _MambaInner.apply(xz, conv_w, conv_b, x_w, dt_w, out_w, out_b, a, D, delta_bias)


def _mamba2(
    zx: Tensor, conv_w: Tensor, conv_b: Any, dt_bias: Tensor, a: Tensor, D: Tensor, chunk_size: int,
    headdim: int, ngroups: int = 1, rmsnorm_weight: Any = None, outproj_weight: Any = None,
    outproj_bias: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    state = (conv_w.shape[0] - D.shape[0] * headdim) // (2 * ngroups)
    sizes = (headdim, ngroups, state, chunk_size)
    return _Mamba2Combined.apply(
        zx, conv_w, conv_b, dt_bias, a, D, rmsnorm_weight, outproj_weight, outproj_bias, sizes
    )


def _delta_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any) -> Any:
    return _DeltaRule.apply(query, key, value, g, beta), None


SUBSTITUTES: dict[str, Any] = {
    "causal_conv1d_fn": lambda x, weight, bias=None, activation=None, **_: _Convolution.apply(
        x, weight, bias
    ),
    "mamba_selective_scan": _scan,
    "mamba_inner_fn": _mamba,
    "mamba2_split_conv1d_scan_combined": _mamba2,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
}
