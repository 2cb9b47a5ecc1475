"""How frameworks' own model code differs from the transformers class: litgpt and Megatron-LM.

litgpt: one projection makes queries, keys and values, and one dropout serves its adapters, whose result is
put in its place between zeros where not all three are adapted. Activations are single kernels, gate and up
are two projections, no class casts to fp32 in a way of its own, and the head is never tied to the embedding.
Lightning's BitsandbytesPrecision quantises every Linear, the head included, from fp16: a weight is
dequantised to fp16 and then copied to bf16. Fabric returns the logits as fp32, a list of chunks whose
log-probabilities are kept in fp32, too. The loop's `logits` outlives the step: until the next ones are there,
they and the graph behind them stay, and with it the inputs that old 4-bit linears pin to it.

Megatron-LM: its parallel linears, their exchanges, norms, softmax, GELU and dropout are autograd functions
written in Python, so every operator of a layer is one call of Python each way beside the kernels it launches.

Sources: litgpt 0.4.9 model.py, lora.py, utils.py, finetune/lora.py; lightning 2.3
fabric/plugins/precision/bitsandbytes.py; megatron/core/tensor_parallel and megatron/core/fusions, read
2026-11-21; and what autograd keeps of litgpt's model and its bitsandbytes linears, run on shapes: of the LoRA
and QLoRA rows of its config_hub none is off by more than 3.2 %.
"""

from collections.abc import Iterable

from finegauge.model.blocks import Architecture, Attention, Branch, FeedForward, Linear, Numerics
from finegauge.model.op import Op

QKV = ("q_proj", "k_proj", "v_proj")
FUSED, GATE_UP = "qkv_proj", ("gate_proj", "up_proj")


def litgpt_model(model: Architecture) -> Architecture:
    """Return `model` as litgpt holds and computes it."""
    numerics = Numerics(softcap=model.numerics.softcap, logit_cap=model.numerics.logit_cap)
    layers = tuple(
        (layer._replace(branches=tuple(map(_litgpt_branch, layer.branches))), count)
        for layer, count in model.layers
    )
    return model._replace(numerics=numerics, layers=layers, head=model.projection)


def _litgpt_branch(branch: Branch) -> Branch:
    block = branch.mixer
    if isinstance(block, Attention):  # the values are a view of what one projection returns
        *inputs, output = block.projections
        if len(inputs) == len(QKV):
            width = sum(linear.out_features for linear in inputs)
            inputs = [Linear(FUSED, block.hidden_size, width, any(linear.bias for linear in inputs))]
        return branch._replace(mixer=block._replace(projections=(*inputs, output), copies_values=False))
    if isinstance(block, FeedForward):
        *ups, down = block.projections
        if block.gated and len(ups) == 1:
            ups = [Linear(name, block.hidden_size, block.intermediate_size, ups[0].bias) for name in GATE_UP]
        act = "gelu_pytorch_tanh" if block.activation == "gelu_new" else block.activation  # one kernel
        return branch._replace(mixer=block._replace(projections=(*ups, down), activation=act))
    return branch


def litgpt_targets(lora_targets: Iterable[str]) -> tuple[str, ...]:
    """Return the names of litgpt's projections that the names of transformers' mean."""
    names = set(lora_targets)
    if names & set(QKV):
        names.add(FUSED)
    if "gate_up_proj" in names:
        names |= set(GATE_UP)
    return tuple(sorted(names))


def padded_adapters(lora_targets: Iterable[str]) -> tuple[str, ...]:
    """Return which of queries, keys and values have adapters where not all three do."""
    found = tuple(name for name in QKV if name in set(lora_targets))
    return found if len(found) < len(QKV) else ()


def called_by_python(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return Megatron's operators: each that launches a kernel is called by Python forward and backward."""
    return tuple(
        op._replace(
            forward=op.forward._replace(calls=max(op.forward.calls, min(1.0, op.forward.launches))),
            backward=op.backward._replace(calls=max(op.backward.calls, min(1.0, op.backward.launches))),
        )
        for op in ops
    )
