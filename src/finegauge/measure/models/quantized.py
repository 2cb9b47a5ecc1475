"""Linears held in 4 or 8 bit by bitsandbytes, as its integration in transformers holds them.

Every linear is replaced but the head, the routers, and Mamba's step projection, whose
weight the mixer reads past its module. Quantising is done on the device that the model
is for, one linear at a time.
"""

from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from finegauge.measure.models.classes import DTYPES
from finegauge.workload.run import Run

QUANTISABLE = (nn.Linear, Conv1D)
UNTOUCHED = ("dt_proj", "router", "gate")


def quantize(model: Any, run: Run, device: torch.device) -> None:
    """Hold the linears of `model` in the format of `run.weights_dtype`, everything on `device`.

    A model of shapes ("meta") gets random weights first, one layer at a time, as its class
    initialises them, so that it never takes more than its quantised self and one layer.
    """
    head = model.get_output_embeddings()
    random = any(parameter.is_meta for parameter in model.parameters())
    done: set[nn.Module] = set()
    for part in (*_layers(model), model):
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


def _layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: the members of its outermost lists of modules."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [layer for child in model.children() for layer in _layers(child)]


def _materialise(part: nn.Module, device: torch.device) -> None:
    """Give what is a shape memory on `device`, whatever it holds."""
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


def _quantized(linear: Any, run: Run, device: torch.device) -> nn.Module:
    """Return a quantised linear with the weights of `linear`, on `device`."""
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
    if bias:
        made.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    return made.to(device)
