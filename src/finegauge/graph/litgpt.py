"""What litgpt's own model code and training loop do differently from transformers' class of a model.

One projection makes queries, keys and values, and one dropout serves its adapters, whose result is
put in its place between zeros where not all three are adapted. Activations are single kernels,
gate and up are two projections, no class casts to fp32 in a way of its own, and the head is never
tied to the embedding. Lightning's BitsandbytesPrecision quantises every Linear, the head included,
from fp16: a weight is dequantised to fp16 and then copied to bf16.

Fabric returns the logits as fp32, a list of chunks whose log-probabilities are kept in fp32, too.
The loop's `logits` outlives the step: until the next ones are there, they and the graph behind
them stay, and with it the inputs that 4-bit linears of bitsandbytes before 0.43.2 pin to it.

Sources: litgpt 0.4.9 model.py, lora.py, utils.py, finetune/lora.py; lightning 2.3
fabric/plugins/precision/bitsandbytes.py, read 2026-11-21, and what autograd keeps of the model and its
bitsandbytes linears, run on shapes: of the LoRA and QLoRA rows of its config_hub none is off by more
than 3.2 %.
"""

from collections.abc import Iterable

from finegauge.graph.blocks import Architecture, Attention, Branch, FeedForward, Layer, Linear
from finegauge.graph.numerics import Numerics

QKV = ("q_proj", "k_proj", "v_proj")
FUSED, GATE_UP = "qkv_proj", ("gate_proj", "up_proj")
ONE_KERNEL = {"gelu_new": "gelu_pytorch_tanh"}


def litgpt_model(model: Architecture) -> Architecture:
    """Return `model` as litgpt holds and computes it."""
    numerics = Numerics(softcap=model.numerics.softcap, logit_cap=model.numerics.logit_cap)
    layers = tuple((_layer(layer), count) for layer, count in model.layers)
    return model._replace(numerics=numerics, layers=layers, head=model.projection)


def litgpt_targets(asked: Iterable[str]) -> tuple[str, ...]:
    """Return the names of litgpt's projections that the names of transformers' mean."""
    names = set(asked)
    if names & set(QKV):
        names.add(FUSED)
    if "gate_up_proj" in names:
        names |= set(GATE_UP)
    return tuple(sorted(names))


def padded_adapters(asked: Iterable[str]) -> tuple[str, ...]:
    """Return which of queries, keys and values have adapters where not all three do."""
    found = tuple(name for name in QKV if name in set(asked))
    return found if len(found) < len(QKV) else ()


def _layer(layer: Layer) -> Layer:
    """Return one layer with its projections as litgpt has them."""
    return layer._replace(branches=tuple(_branch(branch) for branch in layer.branches))


def _branch(branch: Branch) -> Branch:
    """Return one branch with its projections as litgpt has them."""
    mixer = branch.mixer
    if isinstance(mixer, Attention):
        return branch._replace(mixer=_attention(mixer))
    if isinstance(mixer, FeedForward):
        return branch._replace(mixer=_feedforward(mixer))
    return branch


def _attention(block: Attention) -> Attention:
    """Return `block` with queries, keys and values from one projection, of which the values are a view."""
    *inputs, output = block.projections
    if len(inputs) == len(QKV):
        width = sum(linear.out_features for linear in inputs)
        inputs = [Linear(FUSED, block.hidden_size, width, any(linear.bias for linear in inputs))]
    return block._replace(projections=(*inputs, output), copies_values=False)


def _feedforward(block: FeedForward) -> FeedForward:
    """Return `block` with gate and up apart and an activation of one kernel."""
    *ups, down = block.projections
    if block.gated and len(ups) == 1:
        ups = [Linear(name, block.hidden_size, block.intermediate_size, ups[0].bias) for name in GATE_UP]
    activation = ONE_KERNEL.get(block.activation, block.activation)
    return block._replace(projections=(*ups, down), activation=activation)
