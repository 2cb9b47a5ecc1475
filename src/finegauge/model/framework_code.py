"""How frameworks' own model code differs from the transformers class: litgpt and Megatron-LM."""

from collections.abc import Iterable

from finegauge.model.blocks import Architecture, Attention, Branch, FeedForward, Layer, Linear, Numerics
from finegauge.model.op import Op

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


def called(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the operators of a layer, each that launches a kernel called by Python forward and backward."""
    return tuple(
        op._replace(
            forward=op.forward._replace(calls=max(op.forward.calls, min(1.0, op.forward.launches))),
            backward=op.backward._replace(calls=max(op.backward.calls, min(1.0, op.backward.launches))),
        )
        for op in ops
    )
