"""How much of the device's peaks the operators of a step reached, weighted by time.

An operator's FLOPs follow from the shapes of its inputs: a product of matrices, attention
(half of the pairs where causal, 2.5 times as much backward) and convolution are counted, a
multiply-add as 2; elementwise arithmetic is not. Its bytes are the least it can move:
every input read once, the output written once. Achieved rates are those over the seconds
in which the operator ran; over the peaks, and weighted by those seconds, they are the
utilisation of a step:

    u = sum(t_i u_i) / sum(t_i)

Neglects: what caches save, what a kernel reads twice.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import NamedTuple

from finegauge.measure.instruments.chrome_trace import Operator

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "signed char": "int8",
}
_BYTES = {
    **{"double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "TensorList": 4, "GenericList": 4},
    **{"c10::BFloat16": 2, "c10::Half": 2, "short": 2, "unsigned char": 1, "signed char": 1, "bool": 1},
    **{"c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1},
}
_ATTENTION_BACKWARD_RATIO = 2.5  # five products instead of two
_ATTENTION = re.compile(r"_(?:scaled_dot_product_)?(?:flash|efficient|cudnn|fused)\w*attention\w*\Z")
_LOOKS_UP = re.compile(
    r"(?:embedding|index_select|index|gather)\Z"
)  # reads the rows asked for, not the table

Shape = tuple[int, ...]


class Peaks(NamedTuple):
    """What the device can do at most."""

    flops_per_s: Mapping[str, float]  # by dtype: bf16, fp32, ...
    memory_bytes_per_s: float


class Work(NamedTuple):
    """What an operator computes and moves."""

    flops: float
    num_bytes: float
    dtype: str  # in which it multiplies; "" where it does not


def work_of(operator: Operator) -> Work:
    """Return the FLOPs and bytes of one call, from the shapes that the profiler noted."""
    name = operator.name.rpartition("::")[2]
    flops, output = _product(name, operator)
    inputs = [
        prod(shape) * _BYTES.get(kind, 0)
        for shape, kind in zip(operator.shapes, operator.types, strict=False)
        if shape and kind in _BYTES
    ]
    kind = next((k for k in operator.types if k in DTYPES), "")
    if _LOOKS_UP.match(name):
        moved = 2.0 * _looked_up(operator) * _BYTES.get(kind, 4)
    elif flops:
        moved = sum(inputs) + output * _BYTES.get(kind, 4)
    else:
        moved = sum(inputs) + max(inputs, default=0) * _growth(operator)
    return Work(flops, float(moved), DTYPES.get(kind, "") if flops else "")


def weighted(items: Iterable[tuple[float, float]]) -> float:
    """Return the mean of `items`, pairs of (seconds, value), weighted by the seconds; 0 without any."""
    pairs = list(items)
    total = sum(seconds for seconds, _ in pairs)
    return sum(seconds * value for seconds, value in pairs) / total if total > 0 else 0.0


def _product(name: str, operator: Operator) -> tuple[float, float]:
    """Return the FLOPs of an operator that multiplies, and the elements of its output; else zeros."""
    shapes = [shape for shape in operator.shapes if shape]
    if _ATTENTION.match(name):
        return _attention(operator, backward="backward" in name)
    if name in ("convolution", "convolution_backward", "mkldnn_convolution"):
        return _convolution(operator, backward="backward" in name)
    if name in ("gemm_4bit", "gemv_4bit"):
        n = _numbers(operator.values[2])[0] if len(operator.values) > 2 else 0
        return 2.0 * prod(shapes[0]) * n, prod(shapes[0][:-1]) * n
    factors = _FACTORS.get(name)
    if factors is None:
        return 0.0, 0.0
    first = factors[0]
    return factors[1](*shapes[first : first + 2]) if len(shapes) >= first + 2 else (0.0, 0.0)


def _matrices(a: Shape, b: Shape) -> tuple[float, float]:
    """Return the FLOPs and output elements of [m, k] x [k, n], batches in front."""
    output = prod(a[:-1]) * b[-1]
    return 2.0 * output * a[-1], output


def _grouped(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of a product per group: rows x stack, or stack from two sets of rows.

    [T, k] x [E, k, n]: each row meets one of the stack. [m, T] x [T, n]: each of the T meets
    its group's sum; how many groups there are, hence how much is written, the shapes do not say.
    """
    if len(a) == len(b) == 3:
        return _matrices(a, b)
    if len(a) == 3:  # [E, m, k] x [k, T]
        return 2.0 * a[1] * a[2] * b[1], a[1] * b[1]
    output = a[0] * b[-1]
    return 2.0 * output * a[1], output


def _linear(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of [.., k] x [n, k] transposed."""
    return 2.0 * prod(a) * b[0], prod(a[:-1]) * b[0]


def _vector(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of [m, k] x [k]."""
    return 2.0 * prod(a), prod(a) / b[-1]


_FACTORS: Mapping[str, tuple[int, Callable[[Shape, Shape], tuple[float, float]]]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), (0, _matrices)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (1, _matrices)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), (0, _grouped)),
    **dict.fromkeys(("mkldnn_linear", "_linear_pointwise", "_mkl_linear"), (0, _linear)),
    "mv": (0, _vector),
    "addmv": (1, _vector),
}


def _attention(operator: Operator, *, backward: bool) -> tuple[float, float]:
    """Return the FLOPs of fused attention over q, k, v of [batch, heads, length, width]."""
    shapes = operator.shapes[1:4] if backward else operator.shapes[:3]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return 0.0, 0.0
    query, key, value = shapes
    pairs = float(query[2] * key[2])
    if "True" in operator.values and query[2] == key[2]:
        pairs /= 2
    flops = 2.0 * prod(query[:2]) * pairs * (query[3] + value[3])
    if backward:
        return _ATTENTION_BACKWARD_RATIO * flops, prod(query) + prod(key) + prod(value)
    return flops, prod(query[:3]) * value[3]


def _convolution(operator: Operator, *, backward: bool) -> tuple[float, float]:
    """Return the FLOPs of a convolution that keeps the length: [batch, in, ..], [out, in / groups, ..]."""
    shapes = operator.shapes[1:3] if backward else operator.shapes[:2]
    if len(shapes) < 2 or len(shapes[0]) < 3:
        return 0.0, 0.0
    inputs, weight = shapes
    output = inputs[0] * weight[0] * prod(inputs[2:])
    return 2.0 * output * prod(weight[1:]) * (2 if backward else 1), output


def _looked_up(operator: Operator) -> float:
    """Return the elements that a look-up copies: the rows asked for, each of the table's width."""
    shapes = [shape for shape in operator.shapes if shape]
    if len(shapes) < 2:
        return 0.0
    return float(prod(shapes[-1]) * prod(shapes[0][1:]))


def _growth(operator: Operator) -> float:
    """Return the bytes of the output over those of the largest input."""
    name = operator.name.rpartition("::")[2]
    if name == "dequantize_4bit" and len(operator.values) > 4:
        return 2.0 * _BYTES.get(operator.types[1], 4)  # two values in a byte
    return 0.0 if name in ("sum", "mean", "copy_", "max", "min", "amax") else 1.0


def _numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers in a list that the profiler wrote as text."""
    return tuple(int(number) for number in re.findall(r"-?\d+", text)) or (0,)
