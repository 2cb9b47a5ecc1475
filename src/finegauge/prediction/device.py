r"""Seconds of one operator on the device.

$$ t = \max\left(\frac{flops}{peak \cdot e_c},\ \frac{bytes}{bandwidth \cdot e_m}\right) $$

A matrix product is cut into tiles, one per multiprocessor and wave: $e_c$ falls where the
last wave is partly empty, where a tile hangs over the edge, and where the inner dimension
is too short to fill the pipeline. Of the tile shapes a library has, the best is taken.
A board whose limit leaves fewer watts to each FLOP/s of its peak than the one that the ceiling was read
on runs at lower clocks: its rate goes with $(p/p_0)^{0.7}$ of the ratio of those watts, between the cube
root of a voltage that follows the clock and the proportion of one that cannot fall further. Parts that
accumulate in fp32 at half rate never come to their limit, and clock above the datasheet: they reach their
peak.

Attention waits for exponentials, of which a multiprocessor has as many a clock whatever its products'
rate: the slower these, the smaller the share of that wait [2].
Neglected: cache hits between operators.

[2] FlashAttention-2 over the best product, as ai-dynamo/aiconfigurator timed them: 0.65 on A100 (2048 flops a
multiprocessor and clock), 0.75 on L40S and RTX PRO 6000 (1024)
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from finegauge.arithmetic import largest, present, smallest, where
from finegauge.catalogue.gpus import GpuSpec
from finegauge.model.op import Cost, Extents, Gemm, Op
from finegauge.model.op_builder import CASTS, EXPERTS_CASTS
from finegauge.prediction.calibration import DATASHEET, Calibration
from finegauge.records import NamedTuple

if TYPE_CHECKING:
    from finegauge.prediction.sharding import Share

# best published bf16 matmul over the dense peak, by architecture, where the GPU itself has no reading
BEST_MATMUL_FRACTION = {
    "Volta": 0.80,
    "Turing": 0.80,
    "Ampere": 0.85,
    "Ada Lovelace": 0.75,
    "Hopper": 0.80,
    "Blackwell": 0.77,
    "Blackwell Ultra": 0.79,
    "CDNA2": 0.70,
    "CDNA3": 0.55,
    "CDNA4": 0.62,
}
# what large products in a narrow format reach of its peak, over what bf16's reach of theirs: medians of timed
# products above 1e11 flops, at our tiles (catalogue/data/operators: cuBLAS in fp8, DeepGEMM or CUTLASS in
# blocks; a test holds each to 5 %). MXFP8 and MXFP4, which were not timed, as blocks of fp8 and as NVFP4.
NARROW_FRACTIONS: Mapping[str, Mapping[str, float]] = {
    "Ada Lovelace": {"fp8": 0.725, "fp8_block": 0.432},
    "Hopper": {"fp8": 0.731, "fp8_block": 0.615},
    "Blackwell": {"fp8": 0.67, "fp8_block": 0.78, "nvfp4": 0.49},  # B200 and GB200
    "Blackwell 12": {"fp8": 0.815, "fp8_block": 0.648, "nvfp4": 0.751},  # RTX PRO 6000
}
NARROW_MATMUL_FRACTION = 0.88  # of others: 1402.6 of 1979 TFLOP/s to 794.5 of 989, H100 (ml-engineering)
TIMED_AS = {"mxfp8": "fp8_block", "mxfp4": "nvfp4"}
NARROW_RATES = {
    **dict.fromkeys(("fp8", "fp8_block", "mxfp8"), ("fp8",)),
    **dict.fromkeys(("nvfp4", "mxfp4"), ("fp4", "fp8")),
}
HALVED_MATMUL_FRACTION = 1.0  # where fp32 accumulation runs at half rate; sustained: no limit is reached
# watts of the board's limit to each FLOP/s of its 16-bit peak, where these ceilings were read, by compute
# capability: V100-SXM2 (Turing is of its process), A100-SXM4, A40, L40S, H100-SXM5, RTX PRO 6000, MI355X
CEILING_W_PER_FLOPS = {
    "7.0": 300 / 125e12,
    "7.5": 300 / 125e12,
    "8.0": 400 / 312e12,
    "8.6": 300 / 149.7e12,
    "8.9": 350 / 362.05e12,
    "9.0": 700 / 989.4e12,
    "12.0": 600 / 503.8e12,
    "gfx950": 1400 / 2516.6e12,
}
# Blackwell's ceilings were read in short runs. In steps of seconds its board comes to its limit, and bf16
# products to 0.48 of the peak where they have 0.69 alone (SimuMax's 43 rows on 8 B200 of 1000 W): their
# share, and the watts to each FLOP/s of the peak. Hopper's ceilings hold; narrow products draw less.
STEP_FRACTION, STEP_W_PER_FLOPS = 0.70, 1000 / 2250e12
POWER_EXPONENT = 0.7  # T4 at 70 W against V100 at 300 W: 26 TFLOP/s in LoRA (fitcheck 0.3.1)
EXPONENTIAL_EXPONENT = 0.7  # of products' rate, the wait for exponentials: A100 against L40S [2]
A100_FLOPS_PER_CLOCK = 2048.0  # of a multiprocessor
COMPILED = frozenset({"TPU", "NeuronCore", "Gaudi"})  # steps run as graphs of a compiler: XLA, Gaudi's own
# FlashAttention-2 leaves their asynchronous units idle
HOPPER_KIN = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})
HOPPER_PEAK_FLOPS_PER_S = 989.4e12  # of H100 and H200, bf16
HOPPER_CLOCKS_PER_S = 132 * 1830e6  # of their multiprocessors together
A100_MATMUL_FRACTION = 0.869  # best product of a benchmark over the peak

# FlashAttention in Triton over its second version, causal, heads of 128, A100: forward 1.3 to 1.5, backward
# about 2 times slower (Dao 2023, arXiv:2307.08691, section 4.1)
FIRST_FORWARD_FRACTION, FIRST_BACKWARD_FRACTION = 0.70, 0.50
# which is also what PyTorch's sdpa runs on AMD's GPUs, in both directions (AOTriton; aten/src/ATen/native/
# transformers/hip/flash_attn/aot/mha_all_aot.hip, read 2026-11-28)
OF_TRITON = {False: FIRST_FORWARD_FRACTION, True: FIRST_BACKWARD_FRACTION}
SAME = {False: 1.0, True: 1.0}
# PyTorch's memory-efficient kernel (CUTLASS, of xFormers) over FlashAttention-2, both directions: set by hand
# with universal-llm-trainer's rows in view
EFFICIENT_FRACTION = 0.40
# in fp32, over the same share of a third of the TF32 peak: from Ampere on it multiplies in three TF32 parts
# (OpMultiplyAddFastF32 in mem_eff_attention/gemm_kernel_utils.h); before, of the fp32 peak
EFFICIENT_WIDE_FRACTION, SIMT_FRACTION, TF32_PARTS = 0.25, 0.5, 3.0
# Heads beyond 128 channels take 32 queries a block in place of 64 and sum outputs in memory (32x128_gmem);
# backward has tiles of 128 x 128 in registers where a multiprocessor has 160 KiB of shared memory, of 64 x 64
# in memory where it has 100 (mem_eff_attention/kernels/cutlassF.h, cutlassB.h): operands read twice as often
SMALLER_TILES_FRACTION = 0.5
SMALL_SHARED_MEMORY = ("7.5", "8.6", "8.7", "8.9", "12.")
FOREACH_VALUES, FUSED_VALUES, CLIP_VALUES = 21.0, 7.0, 3.0  # read or written per parameter
PARAMETER_VALUES = 3.0  # of them the parameter, twice, and its gradient; states are beside
ADAMW = ("adamw", "paged_adamw")

# rows, columns, and the rate over the largest's
TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93), (128, 64, 0.80), (64, 64, 0.62), (64, 32, 0.45),
)  # fmt: skip
# Up to MOST_ROWS rows have tiles as high as they need, in steps of the rows of a matrix instruction's
# smaller operand (wgmma, and m16n8k16 turned). Their rate is the FLOPs to each byte of operands over those
# that the multipliers ask for, which is what says the rates above too, to 0.03; of the weights memory brings
# what the first rows read, counted beside. Fewer FLOPs to a clock ask for fewer (H20, GeForce).
TILE_COLUMNS, ROW_STEP, MOST_ROWS = (128, 64), 8, 128
ASKED_FLOPS_PER_BYTE = 47.4  # at A100's FLOPs to a multiprocessor and clock, and above
PIPELINE_DEPTH = 96.0  # elements of k before a tile's pipeline is full
HALF_RATE_KEYS = 450.0  # keys per query at which FlashAttention-2 has half its rate of long rows [1, fig. 5]
SPLIT_K = 4  # a product of few tiles may divide its inner dimension over this many blocks
DEFAULT_SMS = 100
VECTOR_FRACTION = 0.5  # of the fp32 peak: kernels without matrix instructions
CHUNKED_SCAN_FRACTION = 0.5  # of a large product's rate: small products inside a chunk


class Device(NamedTuple):
    """A GPU under a calibration, rates ready to divide by; or several, each number an array of theirs."""

    calibration: Calibration
    matmul_flops_per_s: Mapping[str, float]  # by dtype
    attention_flops_per_s: Mapping[str, float]  # of the forward kernel of the second generation, by dtype
    asynchronous_ratio: float  # of the third generation's
    efficient_flops_per_s: Mapping[str, float]  # of PyTorch's memory-efficient kernel, by dtype
    efficient_backward_fraction: float  # of that, backward
    vector_flops_per_s: float  # of kernels without matrix instructions
    memory_bytes_per_s: float
    dequantise_bytes_per_s: float
    num_sms: float
    asked_flops_per_byte: float  # of a tile's operands, for multipliers to be busy
    pace_ratio: float = 1.0  # of seconds, by `Learned`
    trainer_s: float = 0.0
    trainer_step_s: float = 0.0
    host_ratio: float = 1.0  # of the host's seconds: 0 where a compiler makes one graph of a step
    casts_ratio: float = 1.0  # of the casts of narrow products: 0 where they are computed in 16 bit
    sdpa_ratios: Mapping[bool, float] = SAME  # of PyTorch's own kernel over FlashAttention-2, by `backward`
    known: dict[tuple[Gemm, int], tuple[float, float]] | None = None  # of several: (tokens, work) of products

    @property
    def host_in_readings(self) -> bool:
        """Return False: host time stands beside the device's, and the host runs ahead."""
        return False

    @classmethod
    def of(
        cls, gpu: GpuSpec, calibration: Calibration, dtypes: Iterable[str], power_limit_w: float | None = None
    ) -> "Device":
        """Return the device, with rates of products and attention for `dtypes` and fp32.

        `power_limit_w` is what its board may draw, where that was lowered.

        Products in fp8 are computed in the first of `dtypes` where the GPU has no such units.

        Raises: UnsupportedError if the GPU has no such rate.
        """
        peak, constants = gpu.peak_flops_per_s, calibration
        best = best_fraction(gpu, constants, power_limit_w)
        clock = _clock_fraction(gpu, power_limit_w)
        sustained = 1.0 if _never_limited(gpu) else constants.sustained_fraction
        # FlashAttention-2 has the share of what large products reach that it has on an A100. On Hopper and
        # later its instructions are the older ones, no faster on Blackwell than on Hopper.
        flash, most = best * _flash_share(gpu, constants), inf
        hopper_kin = gpu.architecture in HOPPER_KIN and not gpu.compute_capability.startswith("12")
        if hopper_kin:
            hopper_clock = _hopper_clock(gpu, power_limit_w)
            clocks = (gpu.num_sms or 0) * (gpu.boost_hz or 0.0) or HOPPER_CLOCKS_PER_S
            most = HOPPER_PEAK_FLOPS_PER_S * constants.hopper_flash_fraction * hopper_clock
            most *= min(1.0, clocks / HOPPER_CLOCKS_PER_S)
        matmul, attention = {}, {}
        half = gpu.flops_per_s.get("bf16") or gpu.flops_per_s.get("fp16") or 0.0
        computed = sorted({*dtypes, "fp32"})
        for dtype in computed:
            # without matrix units no limit is reached
            alone = 1.0 / clock if dtype == "fp32" else 1.0
            loaded = alone if dtype == "fp32" else _step_fraction(gpu)
            matmul[dtype] = peak(dtype) * best * sustained * loaded
            attention[dtype] = min(peak(dtype) * flash * alone, most)
        for dtype, named in NARROW_RATES.items():  # the rate of the first of them that the GPU has
            matmul[dtype] = matmul[computed[0]]
            has = next((name for name in named if name in gpu.flops_per_s), None)
            if has:
                board = at_full_rate(gpu) if has == "fp4" else gpu
                reached = best_fraction(board, constants, power_limit_w)
                reached *= narrow_fraction(gpu, dtype if has == named[0] else "fp8_block")
                limited = 1.0 if _never_limited(board) else constants.sustained_fraction
                matmul[dtype] = peak(has) * reached * limited
        asynchronous_ratio = 1.0
        if hopper_kin:
            third = peak("bf16") * constants.asynchronous_flash_fraction * hopper_clock
            asynchronous_ratio = max(1.0, third / min(peak("bf16") * flash, most))
        return cls(
            calibration=calibration,
            matmul_flops_per_s=matmul,
            attention_flops_per_s=attention,
            asynchronous_ratio=asynchronous_ratio,
            efficient_flops_per_s=_efficient(gpu, attention, min(half * flash, most) / half if half else 0.0),
            efficient_backward_fraction=SMALLER_TILES_FRACTION
            if gpu.compute_capability.startswith(SMALL_SHARED_MEMORY)
            else 1.0,
            vector_flops_per_s=peak("fp32") * VECTOR_FRACTION,
            memory_bytes_per_s=gpu.memory_bytes_per_s * constants.bandwidth_fraction,
            dequantise_bytes_per_s=gpu.memory_bytes_per_s * constants.dequantise_fraction,
            num_sms=float(gpu.num_sms or DEFAULT_SMS),
            asked_flops_per_byte=ASKED_FLOPS_PER_BYTE * _rate_of_a100(gpu),
            host_ratio=0.0 if gpu.architecture in COMPILED else 1.0,
            casts_ratio=1.0 if "fp8" in gpu.flops_per_s else 0.0,
            sdpa_ratios=OF_TRITON if gpu.vendor == "AMD" else SAME,
        )

    @classmethod
    def side_by_side(cls, devices: Sequence["Device"]) -> "Device":
        """Return `devices`, of one calibration and the same dtypes, as one whose every number is an array."""
        import numpy

        if not devices:
            return cls(DATASHEET, {}, {}, 0.0, {}, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)

        def together(numbers: Sequence[Any]) -> Any:
            if isinstance(numbers[0], Mapping):
                return {key: together([number[key] for number in numbers]) for key in numbers[0]}
            return numpy.array(numbers)

        columns = zip(*(device[1:-1] for device in devices), strict=True)
        numbers: dict[str, Any] = dict(zip(cls._fields[1:-1], map(together, columns), strict=True))
        return cls(calibration=devices[0].calibration, known={}, **numbers)

    def seconds(self, op: Op, cost: Cost, extents: Extents, *, backward: bool) -> float:
        """Return the device seconds of `cost`, one direction of `op`."""
        rate = self.dequantise_bytes_per_s if op.kind == "dequantise" else self.memory_bytes_per_s
        moved = cost.bytes.at(extents) / rate
        if cost.gemms:
            compute = 0.0
            for gemm in cost.gemms:
                compute = compute + self._product_seconds(gemm, extents.tokens, op.dtype)
            if op.kind == "grouped_gemm" and cost.launches < cost.gemms[0].groups:  # one kernel for all
                compute = compute / self.calibration.grouped_fraction
            return largest(compute, moved)
        seen = extents.windowed(op.window)
        flops = cost.flops.at(seen)
        if not present(flops):
            return moved * self.casts_ratio if op.path[-1] in (CASTS, EXPERTS_CASTS) else moved
        if op.kind == "attention":
            flops = flops * (1.0 + HALF_RATE_KEYS * seen.tokens / seen.pairs)
        return largest(flops / self._rate(op, backward=backward), moved)

    def host_seconds(self, of: str, *, backward: bool) -> float:
        """Return 0: the Python around operators is counted by launches and calls."""
        return 0.0

    def cache_seconds(self, num_bytes: float) -> float:
        """Return the seconds of reading or writing so many bytes of keys and values."""
        return num_bytes / self.memory_bytes_per_s

    def update_seconds(self, share: "Share") -> float:
        """Return the seconds of gradient clipping and the optimizer step over the values `share` holds."""
        weights, run = share.graph.weights, share.run
        values, states = PARAMETER_VALUES, 2.0 * weights.optimizer_bytes
        if run.optimizer in ADAMW:
            values = FUSED_VALUES if run.optimizer_implementation == "fused" else FOREACH_VALUES
            states = 0.0
        params = weights.trained_params + weights.adapter_params
        moved = params * share.value_bytes * (values + CLIP_VALUES) + states
        rates = self.matmul_flops_per_s  # those that the run asks for: bf16, else what it computes in
        rate = rates["bf16"] if "bf16" in rates else rates.get("fp16", rates["fp32"])
        return moved / self.memory_bytes_per_s + weights.update_flops / rate

    def _rate(self, op: Op, *, backward: bool) -> float:
        if op.kind == "attention":
            rate = self.attention_flops_per_s[op.dtype]
            if op.generation == 1:
                rate = rate * OF_TRITON[backward]
            elif op.generation <= 0:
                rate = self._efficient_rate(op, backward=backward)
            else:
                rate = rate * (self.asynchronous_ratio if op.generation == 3 else 1.0)
                rate = rate * (self.sdpa_ratios[backward] if op.is_sdpa else 1.0)
            return rate * (self.calibration.flash_backward_fraction if backward else 1.0)
        if op.kind == "scan" and op.dtype == "fp32":
            return self.vector_flops_per_s
        return self.matmul_flops_per_s[op.dtype] * CHUNKED_SCAN_FRACTION

    def _efficient_rate(self, op: Op, *, backward: bool) -> float:
        """Return FLOP/s of PyTorch's memory-efficient kernel: in fp32 its multipliers wait, not its loads."""
        rate = self.efficient_flops_per_s[op.dtype]
        if op.dtype == "fp32":
            return rate
        if op.generation < 0:  # of wide heads
            return rate * SMALLER_TILES_FRACTION
        return rate * self.efficient_backward_fraction if backward else rate

    def _product_seconds(self, gemm: Gemm, tokens: float, dtype: str) -> float:
        """Return the seconds of `gemm`, looked at once for the same tokens."""
        asked, rate = self.asked_flops_per_byte, self.matmul_flops_per_s[dtype]
        if self.known is None:
            return _known_work(gemm, tokens, self.num_sms, asked) / rate
        key = gemm, id(tokens)  # of an array, which is kept so that no other has its place
        if key not in self.known:
            self.known[key] = tokens, gemm_work(gemm, tokens, self.num_sms, asked)
        return self.known[key][1] / rate


def best_fraction(
    gpu: GpuSpec, calibration: Calibration = DATASHEET, power_limit_w: float | None = None
) -> float:
    """Return the share of the dense 16-bit peak that the best product reaches, at the clock of its power."""
    best = BEST_MATMUL_FRACTION.get(gpu.architecture, calibration.default_matmul_fraction)
    if gpu.measured_matmul_flops_per_s:
        best = gpu.measured_matmul_flops_per_s / gpu.peak_flops_per_s("bf16")
    elif _never_limited(gpu):
        best = HALVED_MATMUL_FRACTION
    return best * _clock_fraction(gpu, power_limit_w)


def at_full_rate(gpu: GpuSpec) -> GpuSpec:
    """Return the GPU as its FP4 products have it: they accumulate at the full rate, and come to its power."""
    if not _never_limited(gpu):
        return gpu
    full = gpu.flops_per_s["fp4"] / 4.0
    return gpu._replace(flops_per_s={**gpu.flops_per_s, "tf32": full / 2.0, "fp16": full, "bf16": full})


def _never_limited(gpu: GpuSpec) -> bool:
    return gpu.halves_accumulation and not gpu.measured_matmul_flops_per_s


def _clock_fraction(gpu: GpuSpec, power_limit_w: float | None) -> float:
    """Return the clock of large products over that of the board which the ceiling was read on."""
    board_w, half = gpu.board_power_w, gpu.flops_per_s.get("bf16") or gpu.flops_per_s.get("fp16")
    limit_w = min(power_limit_w or inf, board_w or inf)
    if not (board_w and half):
        return 1.0
    least = CEILING_W_PER_FLOPS.get(gpu.compute_capability, 0.0) * half  # watts at the ceiling
    if gpu.measured_matmul_flops_per_s or gpu.halves_accumulation or not least:
        least = board_w
    return float(min(1.0, limit_w / least) ** POWER_EXPONENT)


def _hopper_clock(gpu: GpuSpec, power_limit_w: float | None) -> float:
    """Return the clock of all kernels of a step over that of an H100 of 700 W, or of a short run on B200.

    A board's power is held over milliseconds, in which many kernels run: products' clock is attention's.
    """
    alone = gpu._replace(measured_matmul_flops_per_s=None)
    return _clock_fraction(alone, power_limit_w) * _step_fraction(gpu)


def _step_fraction(gpu: GpuSpec) -> float:
    """Return what 16-bit products reach in steps of seconds, over short runs: on B200 and its kin.

    A lowered limit is counted by the clock of the best product.
    """
    if not gpu.compute_capability.startswith("10."):
        return 1.0
    limit_w = gpu.board_power_w
    watts = limit_w / gpu.peak_flops_per_s("bf16") if limit_w else STEP_W_PER_FLOPS
    return float(min(1.0, STEP_FRACTION * (watts / STEP_W_PER_FLOPS) ** POWER_EXPONENT))


def _efficient(gpu: GpuSpec, attention: Mapping[str, float], flash: float) -> dict[str, float]:
    """Return rates of PyTorch's memory-efficient kernel, where FlashAttention has the share `flash`."""
    rates = {dtype: rate * EFFICIENT_FRACTION for dtype, rate in attention.items()}
    tensor = gpu.flops_per_s.get("tf32") if gpu.vendor == "NVIDIA" else None
    wide = tensor / TF32_PARTS * flash * EFFICIENT_WIDE_FRACTION if tensor else 0.0
    return {**rates, "fp32": wide or attention["fp32"] * SIMT_FRACTION}


def _flash_share(gpu: GpuSpec, constants: Calibration) -> float:
    """Return FlashAttention-2's rate over that of large products, by that of an A100."""
    ours = constants.flash_fraction / A100_MATMUL_FRACTION
    return float(1.0 / (1.0 + (1.0 / ours - 1.0) * _rate_of_a100(gpu) ** EXPONENTIAL_EXPONENT))


def _rate_of_a100(gpu: GpuSpec) -> float:
    """Return FLOPs to a multiprocessor and clock over A100's; 1 where there are more, or it is not known."""
    half = gpu.flops_per_s.get("bf16") or gpu.flops_per_s.get("fp16")
    if not (half and gpu.num_sms and gpu.boost_hz):
        return 1.0
    return float(min(1.0, half / gpu.num_sms / gpu.boost_hz / A100_FLOPS_PER_CLOCK))


def narrow_fraction(gpu: GpuSpec, dtype: str) -> float:
    """Return the share that large products in `dtype` reach of its peak, over bf16's of its own."""
    family = "Blackwell" if gpu.architecture == "Blackwell Ultra" else gpu.architecture
    if gpu.compute_capability.startswith("12"):
        family = "Blackwell 12"
    return NARROW_FRACTIONS.get(family, {}).get(TIMED_AS.get(dtype, dtype), NARROW_MATMUL_FRACTION)


def gemm_work(gemm: Gemm, tokens: float, sms: float, asked_flops_per_byte: float) -> float:
    """Return the FLOPs that a device of `sms` multiprocessors could have done in the time of `gemm`.

    They are its own over the efficiency of its best tiling.
    """
    rows = largest(1.0, gemm.rows_per_token * tokens / gemm.groups)
    flops = 2.0 * rows * gemm.n * gemm.k * gemm.groups
    height = smallest(MOST_ROWS, -(-rows // ROW_STEP) * ROW_STEP)
    again = 1.0 - ROW_STEP / largest(rows, ROW_STEP)  # what memory does not bring for the first
    own = []
    for columns in TILE_COLUMNS:
        wanted = asked_flops_per_byte * (again / height + 1.0 / columns)
        own.append((height, columns, (rows <= MOST_ROWS) * (1.0 + wanted**4) ** -0.25))
    reached: list[float] = []
    for tile_m, tile_n, quality in (*TILES, *own):
        tiles = -(-rows // tile_m) * -(-gemm.n // tile_n) * gemm.groups  # a part of a tile is a tile
        covered = rows * gemm.n * gemm.groups / (tiles * tile_m * tile_n)
        blocks, depth = tiles, float(gemm.k)
        if gemm.k > SPLIT_K * PIPELINE_DEPTH:
            split = where(tiles < sms, SPLIT_K, 1)
            blocks, depth = tiles * split, gemm.k / split
        waves = blocks / (-(-blocks // sms) * sms)
        reached.append(quality * covered * waves * depth / (depth + PIPELINE_DEPTH))
    return flops / largest(*reached)


_known_work = lru_cache(maxsize=4096)(gemm_work)  # passes and layers repeat the same products
