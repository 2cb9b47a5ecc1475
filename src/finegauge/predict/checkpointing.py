"""Which operators of a layer activation checkpointing runs again in backward.

Full checkpointing (offloaded or not) keeps a layer's input and reruns the layer; selective
checkpointing keeps what matrix products and attention saved and reruns the cheap rest. Where
attention is made of matrix products, its scores are what memory is short of: then selective
checkpointing reruns the core of attention, from queries, keys and values, and keeps the rest [1].

[1] Korthikanti et al. 2022, arXiv:2205.05198, section 5
"""

from finegauge.graph.build import Graph
from finegauge.graph.frontier import is_adapter, is_passive
from finegauge.graph.op import ZERO, Op, per_token
from finegauge.workload.run import Run

CHEAP_KINDS = frozenset({"norm", "elementwise", "gather", "softmax", "convolution"})

PRODUCTS = frozenset({"gemm", "grouped_gemm"})
SCORES = "attention_eager"

Ops = tuple[Op, ...]


def split(kind: str, ops: Ops) -> tuple[Ops, Ops]:
    """Return the operators of a layer whose saved tensors are kept, and those that run again."""
    if kind == "none":
        return ops, ()
    if kind != "selective":
        return (), ops
    if reruns_scores(kind, ops):
        core = tuple(op for op in ops if op.kind == SCORES)
        inputs = (op._replace(saved_bytes=per_token(op.saved_bytes.token)) for op in core)
        return (*(op for op in ops if op.kind != SCORES), *inputs), core
    cheap = tuple(op for op in ops if op.kind in CHEAP_KINDS)
    return tuple(op for op in ops if op.kind not in CHEAP_KINDS), cheap


def reruns_scores(kind: str, ops: Ops) -> bool:
    """Return whether attention's core is all that runs again: no layer's input is kept for it."""
    return kind == "selective" and any(op.kind == SCORES for op in ops)


def rerun(run: Run, graph: Graph, ops: Ops) -> Ops:
    """Return what runs again of one stretch of `graph`, in full or in part.

    Layers that no gradient comes to do not. A chunked loss computes the logits again, unless it keeps
    its chunks. Reentrant checkpointing runs a whole layer; the other stops when the last tensor that
    backward needs is there: what a product keeps is its input, so the last product is not computed,
    unless a kernel encloses it.
    """
    if ops is graph.head:
        if run.loss != "chunked" or graph.lowering.chunks_kept:
            return ()
        return tuple(op for op in ops if op.kind != "norm")
    if ops is graph.embedding or is_passive(ops):
        return ()
    again = split(run.activation_checkpointing, ops)[1]
    if run.checkpointing_reentrant or run.activation_checkpointing != "full":
        return again
    keepers = (index for index, op in enumerate(again) if op.enclosed or op.saved_bytes != ZERO)
    last = max(keepers, default=-1)
    return again[:last] + _until_kept(again[last]) if last >= 0 else ()


def _until_kept(op: Op) -> Ops:
    """Return what is computed of an operator before it keeps its last tensor."""
    if op.kind not in PRODUCTS or op.enclosed:
        return (op,)
    if not is_adapter(op) or len(op.forward.gemms) < 2:
        return ()
    down = op.forward.gemms[0]  # the second of the pair keeps what the first returns
    flops = op.forward.flops._replace(token=2.0 * down.rows_per_token * down.n * down.k)
    return (op._replace(forward=op.forward._replace(flops=flops, gemms=(down,))),)
