"""Linears in 4 or 8 bit by bitsandbytes, and fused experts taken apart into linears.

Every linear is replaced, as bitsandbytes' integration in transformers does, but the head, the routers, and
Mamba's step projection, whose weight the mixer reads past its module. Quantising is done on the device that
the model is for, one linear at a time.

Transformers 5 holds the experts of a layer as two tensors, which bitsandbytes passes by. Here they are taken
apart into the w1, w3 and w2 that transformers 4 had; the result is the same, to the last bit in fp32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from finegauge.errors import UnsupportedError
from finegauge.measurement.instruments.module_roles import layers_of
from finegauge.measurement.models.classes import DTYPES
from finegauge.run.rules import INFERENCE
from finegauge.run.run import Run


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
    return (expert.w1, expert.w3, expert.w2) if expert.gated else (expert.w1, expert.w2)


QUANTISABLE = (nn.Linear, Conv1D)
UNTOUCHED = ("dt_proj", "router", "gate")
REPACKED_OUTPUTS, REPACKED_INPUTS = 32, 64  # both of a linear are multiples of these, to be repacked


def quantize(model: Any, run: Run, device: torch.device) -> None:
    """Hold the linears of `model` in the format of `run.weights_dtype`, everything on `device`.

    A model of shapes ("meta") gets random weights first, one layer at a time, as its class
    initialises them, so that it never takes more than its quantised self and one layer.
    """
    head = model.get_output_embeddings()
    random = any(parameter.is_meta for parameter in model.parameters())
    done: set[nn.Module] = set()
    for part in (*layers_of(model), model):
        if random:
            _materialise(part, device)
            _initialise(part, model, done)
        for owner in list(part.modules()):
            for name, child in list(owner.named_children()):
                if type(child) in QUANTISABLE and child is not head and name not in UNTOUCHED:
                    made = _quantized(child, run, device)
                    setattr(owner, name, made)
                    done.add(made)
        done.update(part.modules())


def _materialise(part: nn.Module, device: torch.device) -> None:
    for module in part.modules():
        if any(t.is_meta for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            module.to_empty(device=device, recurse=False)


def _initialise(module: nn.Module, owner: Any, done: set[nn.Module]) -> None:
    """Give a module's parts and itself random weights, as the model that owns it does; what is done stays."""
    owner = module if hasattr(module, "_init_weights") else owner
    if module in done:
        return
    for child in module.children():
        _initialise(child, owner, done)
    owner._init_weights(module)


def compute_dtype(run: Run) -> torch.dtype:
    """Return the dtype in which the quantised linears compute and all else is held."""
    return DTYPES["fp16" if run.autocast == "fp16" else "bf16"]


def prepare_for_k_bit(model: Any) -> None:
    """Make what is not quantised fp32, as PEFT's preparation for k-bit training does."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            parameter.data = parameter.data.float()


def repacks_for_inference(device: torch.device) -> bool:
    """Return whether bitsandbytes repacks 4-bit weights here when a module out of training is first called.

    It does so (0.50) on processors with AVX512-BF16, whose kernel then dequantises nothing: the scales of
    the blocks become bf16, in the order in which the kernel reads them. It gives no gradients, and weights
    once repacked stay so in training.
    """
    if device.type != "cpu":
        return False
    from bitsandbytes.nn import modules

    probe = getattr(modules, "has_avx512bf16", None)
    return probe is not None and bool(probe())


def repackable(outputs: int, inputs: int) -> bool:
    """Return whether bitsandbytes can repack a linear of these sizes."""
    return not (outputs % REPACKED_OUTPUTS or inputs % REPACKED_INPUTS)


def _check_repackable(outputs: int, inputs: int) -> None:
    if not repackable(outputs, inputs):
        raise UnsupportedError(
            f"A linear of {inputs} inputs and {outputs} outputs cannot run in 4 bit for inference on this "
            "processor: for AVX512-BF16 bitsandbytes repacks weights in "
            f"blocks of {REPACKED_INPUTS} inputs and {REPACKED_OUTPUTS} outputs; use multiples of these, or "
            "weights_dtype=int8."
        )


def _quantized(linear: Any, run: Run, device: torch.device) -> nn.Module:
    import bitsandbytes

    weight = linear.weight.data.T.contiguous() if isinstance(linear, Conv1D) else linear.weight.data
    outputs, inputs = weight.shape
    bias = linear.bias is not None
    if run.weights_dtype == "int8":
        made = bitsandbytes.nn.Linear8bitLt(inputs, outputs, bias=bias, has_fp16_weights=False, threshold=6.0)
        made.weight = bitsandbytes.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
    else:
        how = {"quant_type": "nf4", "compress_statistics": run.weights_dtype == "nf4_dq"}
        made = bitsandbytes.nn.Linear4bit(
            inputs, outputs, bias=bias, compute_dtype=compute_dtype(run), device="meta", **how
        )
        made.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, **how)
        made.support_avx512bf16_for_cpu = False  # a model that trains needs weights that give gradients
        if run.phase in INFERENCE and repacks_for_inference(device):
            _check_repackable(outputs, inputs)
            made.support_avx512bf16_for_cpu = True
    if bias:
        made.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    return made.to(device)
