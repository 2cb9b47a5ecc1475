"""Which operators of a layer activation checkpointing runs again in backward.

Full checkpointing (offloaded or not) keeps a layer's input and reruns the layer; selective
checkpointing keeps what matrix products and attention saved and reruns the cheap rest.
"""

from finegauge.graph.op import Op

CHEAP_KINDS = frozenset({"norm", "elementwise", "gather", "softmax", "convolution"})

Ops = tuple[Op, ...]


def split(kind: str, ops: Ops) -> tuple[Ops, Ops]:
    """Return the operators of a layer whose saved tensors are kept, and those that run again."""
    if kind == "none":
        return ops, ()
    if kind != "selective":
        return (), ops
    cheap = tuple(op for op in ops if op.kind in CHEAP_KINDS)
    return tuple(op for op in ops if op.kind not in CHEAP_KINDS), cheap
