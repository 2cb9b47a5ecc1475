r"""Seconds of one operator on the device.

$$ t = \max\left(\frac{flops}{peak \cdot e_c},\ \frac{bytes}{bandwidth \cdot e_m}\right) $$

A matrix product is cut into tiles, one per multiprocessor and wave: $e_c$ falls where the
last wave is partly empty, where a tile hangs over the edge, and where the inner dimension
is too short to fill the pipeline. Of the tile shapes a library has, the best is taken.
Neglected: clocks that sink with power, cache hits between operators.
"""

from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from finegauge.catalogue.gpus import GpuSpec
from finegauge.graph.op import Cost, Extents, Gemm, Op
from finegauge.predict.calibration import Calibration

if TYPE_CHECKING:
    from finegauge.predict.sharding import Share

FOREACH_VALUES, FUSED_VALUES, CLIP_VALUES = 21.0, 7.0, 3.0  # read or written per parameter

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.80), (64, 64, 0.62), (64, 32, 0.45))
PIPELINE_DEPTH = 96.0  # elements of k before a tile's pipeline is full
SPLIT_K = 4  # a product of few tiles may divide its inner dimension over this many blocks
DEFAULT_SMS = 100
VECTOR_FRACTION = 0.5  # of the fp32 peak: kernels without matrix instructions
CHUNKED_SCAN_FRACTION = 0.5  # of a large product's rate: small products inside a chunk


class Device(NamedTuple):
    """A GPU under a calibration: rates ready to divide by."""

    gpu: GpuSpec
    calibration: Calibration
    matmul_flops_per_s: dict[str, float]
    memory_bytes_per_s: float
    dequantise_bytes_per_s: float

    @classmethod
    def of(cls, gpu: GpuSpec, calibration: Calibration, dtypes: Iterable[str]) -> "Device":
        """Return the device, with matmul rates for `dtypes`."""
        rates = {dtype: calibration.matmul_flops_per_s(gpu, dtype) for dtype in dtypes}
        return cls(
            gpu,
            calibration,
            rates,
            calibration.memory_bytes_per_s(gpu),
            calibration.dequantise_bytes_per_s(gpu),
        )

    def seconds(self, op: Op, cost: Cost, extents: Extents, *, backward: bool) -> float:
        """Return the device seconds of `cost`, one direction of `op`."""
        rate = self.dequantise_bytes_per_s if op.kind == "dequantise" else self.memory_bytes_per_s
        moved = cost.bytes.at(extents) / rate
        if cost.gemms:
            rate = self.matmul_flops_per_s[op.dtype]
            compute = sum(self._gemm_seconds(gemm, extents.tokens, rate) for gemm in cost.gemms)
            return max(compute, moved)
        flops = cost.flops.at(extents.windowed(op.window))
        if not flops:
            return moved
        return max(flops / self._rate(op, backward=backward), moved)

    def moving_seconds(self, num_bytes: float) -> float:
        """Return the seconds of reading or writing so many bytes."""
        return num_bytes / self.memory_bytes_per_s

    def update_seconds(self, share: "Share") -> float:
        """Return the seconds of gradient clipping and the optimizer step over the values `share` holds."""
        weights, run, moved, size = share.graph.weights, share.run, 0.0, share.value_bytes
        values = FUSED_VALUES if run.optimizer_implementation == "fused" else FOREACH_VALUES
        for params in (weights.trained_params, weights.adapter_params):
            if run.optimizer.endswith("8bit"):
                moved += params * (3.0 * size + 4.0)
            else:
                moved += params * size * values
            moved += params * size * CLIP_VALUES
        return moved / self.memory_bytes_per_s

    def _rate(self, op: Op, *, backward: bool) -> float:
        """Return FLOP/s of a kernel that is not a plain matrix product."""
        if op.kind == "attention":
            rate = self.calibration.attention_flops_per_s(self.gpu, op.dtype)
            return rate * (self.calibration.flash_backward_fraction if backward else 1.0)
        if op.kind == "scan" and op.dtype == "fp32":
            return self.gpu.peak_flops_per_s("fp32") * VECTOR_FRACTION
        return self.matmul_flops_per_s[op.dtype] * CHUNKED_SCAN_FRACTION

    def _gemm_seconds(self, gemm: Gemm, tokens: float, rate: float) -> float:
        """Return the seconds of `gemm` at the efficiency of its best tiling."""
        rows = max(1.0, gemm.rows_per_token * tokens / gemm.groups)
        flops = 2.0 * rows * gemm.n * gemm.k * gemm.groups
        sms = self.gpu.num_sms or DEFAULT_SMS
        best = 0.0
        for tile_m, tile_n, quality in TILES:
            tiles = ceil(rows / tile_m) * ceil(gemm.n / tile_n) * gemm.groups
            covered = rows * gemm.n * gemm.groups / (tiles * tile_m * tile_n)
            blocks, depth = tiles, float(gemm.k)
            if tiles < sms and gemm.k > SPLIT_K * PIPELINE_DEPTH:
                blocks, depth = tiles * SPLIT_K, gemm.k / SPLIT_K
            waves = blocks / (ceil(blocks / sms) * sms)
            best = max(best, quality * covered * waves * depth / (depth + PIPELINE_DEPTH))
        return flops / (rate * best)
