"""What it costs to make a frozen quantised weight 16-bit before the product, or what it multiplies fp8.

A kernel of its own reads the packed values and writes the weight, forward and again backward.
AutoGPTQ's plain module, which HF and Qwen fine-tune with, unpacks with PyTorch's: int32 values shifted,
cut to int8, masked, less their zero, times their scale; the product that follows keeps the result for
backward, so that nothing is unpacked there (qlinear_cuda_old.py of 0.4, read 2026-11-21).

For products in fp8 TransformerEngine reads 16 bit and writes each value twice, once for the transposed
product: the input and the weights forward, the gradient of the result backward.
"""

from finegauge.graph.lowering import QUANTIZED_BYTES, Lowering
from finegauge.graph.op import Cost, Op, Poly, per_token

UNPACKED_BYTES = 16.5  # per weight: shifted 4.5, to int8 5, masked 2, less the zero 2, times the scale 3
UNPACKING_KERNELS = 9.0


def dequantised(low: Lowering, part: str, weights: float, groups: int) -> Op:
    """Return the operator that makes `weights` values of `groups` matrices 16-bit."""
    path = (part, "dequantise")
    if low.unpacks_in_torch:
        unpacked = Cost(bytes=Poly(const=weights * UNPACKED_BYTES), launches=UNPACKING_KERNELS * groups)
        return Op(path, "dequantise", unpacked, dtype=low.compute_dtype)
    moved = weights * (QUANTIZED_BYTES[low.quantized] + low.compute_bytes)
    kernels = (3.0 if low.quantized == "nf4_dq" else 2.0) * (groups if low.experts == "eager" else 1)
    cost = Cost(bytes=Poly(const=moved), launches=kernels)
    return Op(path, "dequantise", cost, cost, dtype=low.compute_dtype)


def narrowed(low: Lowering, part: str, read: float, made: float, weights: float) -> Op:
    """Return the casts to fp8 of a product that reads and makes so many values per token."""
    both = low.compute_bytes + 2.0
    forward = Cost(bytes=Poly(const=both * weights, token=both * read), launches=2)
    backward = Cost(bytes=per_token(both * made), launches=1)
    return Op((part, "fp8 casts"), "elementwise", forward, backward, dtype=low.compute_dtype)
