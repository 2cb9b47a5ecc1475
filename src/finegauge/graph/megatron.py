"""What Megatron-LM's own code of a layer costs its host.

Its parallel linears, their exchanges, norms, softmax, GELU and dropout are autograd functions written in
Python, so every operator of a layer is one call of Python each way beside the kernels it launches
(megatron/core/tensor_parallel and megatron/core/fusions, read 2026-11-21).
"""

from collections.abc import Iterable

from finegauge.graph.op import Op


def called(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the operators of a layer, each that launches a kernel called by Python forward and backward."""
    return tuple(
        op._replace(
            forward=op.forward._replace(calls=max(op.forward.calls, min(1.0, op.forward.launches))),
            backward=op.backward._replace(calls=max(op.backward.calls, min(1.0, op.backward.launches))),
        )
        for op in ops
    )
