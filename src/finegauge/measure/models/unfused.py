"""Experts as modules: three linears each, which a quantiser finds and adapters can wrap.

Transformers 5 holds the experts of a layer as two tensors, which bitsandbytes passes by.
Here they are taken apart into the w1, w3 and w2 that transformers 4 had; the result is
the same, to the last bit in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn

from finegauge.errors import UnsupportedError


class Expert(nn.Module):
    """One expert: w2(act(w1 x) · w3 x), or w2(act(w1 x)) where it has no gate."""

    def __init__(self, sizes: tuple[int, int], act: Any, *, gated: bool, bias: bool, like: Tensor) -> None:
        """Make an expert of (hidden size, intermediate size), its weights as `like` in dtype and device."""
        super().__init__()
        hidden, inner = sizes
        place = {"device": like.device, "dtype": like.dtype}
        self.w1 = nn.Linear(hidden, inner, bias=bias, **place)
        if gated:
            self.w3 = nn.Linear(hidden, inner, bias=bias, **place)
        self.w2 = nn.Linear(inner, hidden, bias=bias, **place)
        self.act_fn = act
        self.gated = gated

    def forward(self, states: Tensor) -> Tensor:
        """Return the expert's answer to [tokens, hidden] states."""
        inner = self.act_fn(self.w1(states))
        return self.w2(inner * self.w3(states) if self.gated else inner)


class UnfusedExperts(nn.ModuleList):
    """The experts of one layer as a list of modules, run one after the other over their own tokens."""

    def __init__(self, experts: list[Expert]) -> None:
        """Hold `experts`."""
        super().__init__(experts)
        self.num_experts = len(experts)

    def forward(self, states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts, as transformers' loop computes it."""
        out = torch.zeros_like(states)
        for number, expert in enumerate(self):
            token, place = torch.where(top_k_index == number)
            if not token.numel():
                continue
            answer = expert(states[token]) * top_k_weights[token, place, None]
            out.index_add_(0, token, answer.to(out.dtype))
        return out


def is_fused(module: nn.Module) -> bool:
    """Return whether a module holds the experts of a layer as 3-dimensional tensors."""
    down = getattr(module, "down_proj", None)
    return isinstance(down, nn.Parameter) and down.dim() == 3


def unfuse_experts(model: nn.Module) -> int:
    """Replace the fused experts of every layer; return of how many layers.

    On shapes ("meta") there are no weights to copy, and none are.
    Raises: UnsupportedError for experts that are more than linears and an activation.
    """
    fused = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if is_fused(child)
    ]
    for module, name, child in fused:
        setattr(module, name, _apart(child))
    return len(fused)


def _apart(fused: Any) -> UnfusedExperts:
    """Return fused experts as modules."""
    _refuse_unusual(fused)
    first = fused.gate_up_proj if fused.has_gate else fused.up_proj
    if fused.is_transposed:
        _, hidden, width = first.shape
    else:
        _, width, hidden = first.shape
    inner = width // 2 if fused.has_gate else width
    experts = []
    for number in range(len(first)):
        expert = Expert(
            (hidden, inner), fused.act_fn, gated=fused.has_gate, bias=fused.has_bias, like=fused.down_proj
        )
        if not first.is_meta:
            _copy(fused, number, expert)
        experts.append(expert)
    return UnfusedExperts(experts)


def _refuse_unusual(fused: Any) -> None:
    """Raise where the gate is not the product of an activation and a linear."""
    own_gate = type(fused)._apply_gate.__module__ != "transformers.integrations.moe"
    if own_gate or getattr(fused, "has_post_expert_norm", False) or not fused.is_concatenated:
        raise UnsupportedError(
            f"{type(fused).__name__} is more than three linears and an activation per expert, so its experts "
            f"cannot be taken apart; use quantize_experts=false."
        )


@torch.no_grad()
def _copy(fused: Any, number: int, expert: Expert) -> None:
    """Give `expert` the weights of the fused expert of that number."""
    first = fused.gate_up_proj if fused.has_gate else fused.up_proj
    parts = [first[number], fused.down_proj[number]]
    if fused.is_transposed:
        parts = [part.T for part in parts]
    halves = parts[0].chunk(2) if fused.has_gate else (parts[0],)
    for linear, weight in zip(_linears(expert), (*halves, parts[1]), strict=True):
        linear.weight.copy_(weight)
    if fused.has_bias:
        bias = (fused.gate_up_proj_bias if fused.has_gate else fused.up_proj_bias)[number]
        halves = bias.chunk(2) if fused.has_gate else (bias,)
        for linear, value in zip(_linears(expert), (*halves, fused.down_proj_bias[number]), strict=True):
            linear.bias.copy_(value)


def _linears(expert: Expert) -> tuple[nn.Linear, ...]:
    """Return the linears in the order of the fused tensors: gate, up, down."""
    return (expert.w1, expert.w3, expert.w2) if expert.gated else (expert.w1, expert.w2)
