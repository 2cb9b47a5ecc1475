"""How many FLOPs one operator call takes: torch's own formulas, and ours where they are wrong or absent.

Convention: a multiply-add is 2 FLOPs; element-wise work is not counted; a causal fused
attention kernel counts half of its query-key pairs, eager attention counts all of them.

[1] torch.utils.flop_counter, whose registry has the formulas of the matrix products.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

CORRECTIONS = (
    "grouped matrix products: no formula in torch's counter; 2·rows·in·out",
    "opaque kernels (fused attention, selective scan, chunked scan, delta rule): counted by their formula",
    "depthwise and grouped convolution, backward: torch ignores the groups; in/groups channels per output",
    "gradients that add up: in place, as autograd does where no dispatch mode watches it",
    "causal fused attention: half of the query-key pairs; backward 2.5 times the forward",
)

Formula = Callable[[tuple[Any, ...], Any], float]


def _grouped_product(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of a product in groups: [rows, k] x [groups, k, n] or [k, rows] x [rows, n]."""
    a, b = args[0], args[1]
    if a.dim() == 2 and b.dim() == 2:
        return float(2.0 * a.shape[0] * a.shape[1] * b.shape[1])
    return float(2.0 * prod(out.shape) * a.shape[-1])


def _grouped_product_fallback(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of transformers' own grouped product, [rows, k] x [groups, k, n]."""
    return float(2.0 * prod(out.shape) * args[0].shape[-1])


def _grouped_product_fallback_backward(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of both gradients of transformers' own grouped product."""
    del out
    rows, weight = args[0], args[1]
    return float(4.0 * rows.shape[0] * weight.shape[1] * weight.shape[2])


def _convolution(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of a convolution; weight is [out, in / groups, *kernel]."""
    return float(2.0 * prod(out.shape) * prod(args[1].shape[1:]))


def _convolution_backward(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of the gradients asked for; each costs what the forward does."""
    del out
    gradient, weight, wanted = args[0], args[2], args[-1]
    return float(2.0 * prod(gradient.shape) * prod(weight.shape[1:]) * sum(map(bool, wanted[:2])))


FORMULAS: dict[str, Formula] = {
    "aten::_grouped_mm": _grouped_product,
    "transformers::grouped_mm_fallback": _grouped_product_fallback,
    "transformers::grouped_mm_fallback_backward": _grouped_product_fallback_backward,
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
