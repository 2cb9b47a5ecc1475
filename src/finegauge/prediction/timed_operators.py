r"""Seconds of products, attention, experts and collectives, from what others timed, over surfaces of physics.

$$ t(x) = s(x) \, \exp\left(\textstyle\sum_i w_i \, K(x, x_i)\right) $$

$s$ is the surface of the kernel under the GPU's datasheet; K falls with the distance
between shapes in the logarithms of their sizes (Matérn, 3/2), and the weights $w_i$ are those with which the
sum passes near the logarithms of timed over $s$ at all timed shapes (kriging; timings scatter by
`NOISE_FRACTION`). Far from every timed shape the surface alone speaks.

A GPU that was not timed takes constants and weights of the nearest one that was, under its own
datasheet: its architecture's where one was timed, else the mean over those that were. Such an answer says so,
and its interval is what leaving out one timed GPU after the other has shown.

Constants and weights are fitted by `benchmarks.operator_fits` and read per GPU, when it is asked for.

A surface is what physics has, with the few constants that a kernel brings:

$$ t = launch + \left(compute^p + memory^p\right)^{1/p} + cast $$

Compute is what the multiprocessors take for the tiles of an operator, wave after wave, at a fraction of
the datasheet's rate; memory is what has to be moved, at a fraction of the bandwidth or, where the operator
before left it in the cache, by the multiprocessors' clocks, as casts and exponentials are; p says how well
both overlap (1: one after the other; large: the longer alone). A product is cut into the tile that is
quickest for it, or nearly (`choice`): libraries choose by heuristics. Reductions too long for few tiles are
divided. From 128 rows on whole tiles make steps, as timings of GPUs that are left out show them; below, where
nothing was timed, tiles are as high as the rows ask for.

All sizes may be numbers or arrays of them. Every constant is a plain number of its own unit, and the same
equation serves every GPU: the chip's datasheet (`Chip`) is what differs, so that constants of one GPU may
speak for another.

Neglected: clocks that sink with power (all timings are isolated), swizzling of tiles, tails of persistent
kernels. What they leave is interpolated between timed shapes.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import dist, sqrt
from math import exp as number_exp
from typing import Any, NamedTuple

from finegauge.arithmetic import PLAIN, ceil, exponential, largest, log, smallest, where
from finegauge.catalogue.device_profile import SHAPE_COLUMNS, Timed, timed_kernels, timings
from finegauge.catalogue.gpus import GpuSpec
from finegauge.catalogue.gpus import gpu as gpu_named
from finegauge.catalogue.paths import BOARD_GPUS, paths_of
from finegauge.documents import read_document
from finegauge.errors import UnsupportedError, shown
from finegauge.model.moe import most_loaded
from finegauge.prediction import device
from finegauge.prediction.device import at_full_rate, best_fraction
from finegauge.profile import Interval

Constants = Mapping[str, float]
Sizes = Mapping[str, Any]

VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}  # NVFP4: a scale for 16 values
TILES = (
    (256, 256), (256, 128), (128, 256), (128, 128), (256, 64), (128, 64), (64, 128), (64, 64), (64, 32),
    (32, 64),
)  # fmt: skip
FULL_TILE = 256.0 * 128.0
FEWEST_ROWS, MOST_ROWS = 16, 128  # of a matrix instruction, and below which no product was timed
SPLIT_K, SPLIT_LEAST_K, SPLIT_SLOWER = 4, 256, 1.05
SPLIT_WAVES = 1.5  # no product is divided that has more tiles than this would fill
QUERY_TILE = 128.0
CACHE_BYTES = 12.0  # from the cache, of a multiprocessor in a clock: 9 to 14 in bf16 products on five GPUs
NEVER_S = 1e9


class Chip(NamedTuple):
    """What an equation needs of a GPU and number format: its datasheet."""

    flops_per_s: float  # dense peak of the format
    bytes_per_s: float
    num_sms: float
    l2_bytes: float
    link_bytes_per_s: float  # of one GPU to its neighbours, one direction
    link_gpus: int  # that such links join; more of them meet over PCIe
    link_peers: int  # over how many links, one to each, they are divided; 0: a switch
    bridge_bytes_per_s: float
    value_bytes: float  # of an operand
    ceiling_flops_per_s: float  # of the datasheet, where `flops_per_s` is what kernels are taken to be given
    clocks_per_s: float  # of all multiprocessors together: caches, casts and exponentials go by them
    exponential_ratio: float = 1.0  # how much faster it takes exponentials than the chips before it
    is_asynchronous: bool = False  # its matrix instructions: see `BESIDE`


def overlapped(first: Any, second: Any, power: float) -> Any:
    """Return the p-norm of both: their sum where p is 1, the larger where it is large."""
    most = largest(first, second)
    return most * (1.0 + (smallest(first, second) / most) ** power) ** (1.0 / power)


def product(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of [m, k] x [k, n], with the cast of the first operand where the kernel casts."""
    m, n, k = s["m"], s["n"], s["k"]
    per_sm = chip.flops_per_s * c["rate_fraction"] / chip.num_sms
    height, shrinks, options = largest(m, FEWEST_ROWS), max(0.0, 1.0 - c["small_tile"]), []
    for tile_m, tile_n in TILES:
        area = smallest(tile_m * tile_n, FULL_TILE)
        rate = per_sm * (area / FULL_TILE) ** c["small_tile"]
        down, tile_s = ceil(m / tile_m), 2.0 * tile_m * tile_n / rate
        if tile_m <= MOST_ROWS:
            down = where(m < MOST_ROWS, largest(1.0, m / tile_m), down)
            tile_s = tile_s * smallest(1.0, height / tile_m) ** shrinks
        tiles = down * ceil(n / tile_n)
        options.append(_waves(c, tiles / chip.num_sms) * (tile_s * (k + c["ramp_k"]) + c["wave_s"]))
        divides = (tiles * SPLIT_K <= SPLIT_WAVES * chip.num_sms) & (k >= SPLIT_K * SPLIT_LEAST_K)
        one_s = tile_s * (k / SPLIT_K + c["ramp_k"]) + c["wave_s"]
        divided = _waves(c, tiles * SPLIT_K / chip.num_sms) * one_s * SPLIT_SLOWER
        options.append(where(divides, divided, NEVER_S))
    best = smallest(*options)
    near = sum((best / one) ** c["choice"] for one in options) / len(options)
    compute = best * near ** (-1.0 / c["choice"])
    moved = chip.value_bytes * (m * k + n * k) + 2.0 * m * n
    memory = _moved_s(c, moved, chip, c["cache_share"], c["cache_bytes"])
    seconds = c["launch_s"] + overlapped(compute, memory, c["overlap"])
    if "cast_s" in c:
        seconds += c["cast_s"] + m * k * (2.0 + chip.value_bytes) / (chip.clocks_per_s * c["cast_bytes"])
    return seconds


def _waves(c: Constants, waves: Any) -> Any:
    """Return how many waves' time so many take: the last one counts as whole in the share `last_wave`."""
    return c["last_wave"] * ceil(waves) + (1.0 - c["last_wave"]) * largest(waves, 1.0)


def _moved_s(c: Constants, moved: Any, chip: Chip, share: float = 1.0, width: float = CACHE_BYTES) -> Any:
    """Return the seconds of moving so many bytes, part of which the operator before left in the cache."""
    found = moved / (moved + chip.l2_bytes * share)  # in memory
    near_s = moved / (chip.clocks_per_s * width)
    return found * moved / (chip.bytes_per_s * c["bandwidth_fraction"]) + (1.0 - found) * near_s


def attention(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of causal attention forward, softmax and all, of queries as long as their keys."""
    batch, length, heads, kv_heads, head_dim = (
        s[name] for name in ("batch_size", "seq_len", "num_heads", "num_kv_heads", "head_dim")
    )
    pairs = length * (length + c["diagonal"]) / 2.0 * batch * heads
    products = 4.0 * pairs * head_dim / (chip.flops_per_s * c["rate_fraction"])
    softmax = pairs * c["softmax_clocks"] / (chip.clocks_per_s * chip.exponential_ratio)
    waves = batch * heads * ceil(length / QUERY_TILE) / chip.num_sms
    compute = overlapped(products, softmax, BESIDE if chip.is_asynchronous else 1.0)
    compute = compute * _waves(c, waves) / waves + ceil(waves) * c["wave_s"]
    moved = batch * length * (2.0 * heads + 2.0 * kv_heads) * head_dim * 2.0
    return c["launch_s"] + overlapped(compute, _moved_s(c, moved, chip), c["overlap"])


def experts(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of a layer's routed experts on the rank that has most to do."""
    tokens, hidden, inner, top_k, number = (s[name] for name in SHAPE_COLUMNS["experts"][:5])
    rows, active = most_loaded(tokens, top_k, number, s["expert_parallel"], s["skew"])
    products = 6.0 * hidden * inner * c.get("products", 1.0)
    compute = products * (rows + active * c["tile_rows"]) / (chip.flops_per_s * c["rate_fraction"])
    weights = products / 2.0 * active * chip.value_bytes
    moved = rows * (c["hidden_bytes"] * hidden + c["inner_bytes"] * inner)
    moved = moved + tokens * top_k * c["all_hidden_bytes"] * hidden
    memory = weights / (chip.bytes_per_s * c["bandwidth_fraction"]) + _moved_s(c, moved, chip)
    return c["launch_s"] + overlapped(compute, memory, c["overlap"])


def collective(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of one collective inside a node: steps, and what crosses one GPU's link.

    Of a mesh, ranks use the links among themselves. Behind PCIe bridges the rate of a rank falls with a
    power of their number.
    """
    ranks = s["num_gpus"]
    meshed = smallest(1.0, (ranks - 1.0) / chip.link_peers) if chip.link_peers else 1.0
    shared = chip.bridge_bytes_per_s * (ranks / 2.0) ** -c.get("sharing", 0.0)
    rate = where(ranks <= chip.link_gpus, chip.link_bytes_per_s * meshed, shared) * c["link_fraction"]
    crossing = s["bytes"] * (ranks - 1.0) / ranks / rate
    return overlapped(c["launch_s"] + c["hop_s"] * (ranks - 1.0), crossing, c["overlap"])


class Surface(NamedTuple):
    """One kind of operator: its equation, its constants' usual values, and where a shape stands."""

    seconds: Callable[[Constants, Sizes, Chip], Any]
    usual: Constants
    place: Callable[[Sizes], tuple[Any, ...]]  # coordinates in which near shapes err alike


def _attention_place(s: Sizes) -> tuple[Any, ...]:
    heads, kv_heads = log(s["num_heads"]), log(s["num_kv_heads"])
    return log(s["batch_size"]), log(s["seq_len"]), heads, 0.7 * (heads - kv_heads), 2.0 * log(s["head_dim"])


def _experts_place(s: Sizes) -> tuple[Any, ...]:
    wide = 2.0 * log(s["hidden_size"]), 2.0 * log(s["intermediate_size"])
    names = ("num_experts_per_tok", "num_experts", "expert_parallel")
    return (log(s["num_tokens"]), *wide, *(log(s[name]) for name in names), 1.5 * s["skew"])


SURFACES: Mapping[str, Surface] = {
    "gemm": Surface(
        product,
        {
            "launch_s": 3e-6, "rate_fraction": 0.8, "bandwidth_fraction": 0.8, "ramp_k": 100.0,
            "cache_bytes": CACHE_BYTES, "cache_share": 1.0, "overlap": 3.0, "small_tile": 0.15, "choice": 8.0,
            "wave_s": 0.3e-6, "last_wave": 0.5,
        },
        lambda s: (log(s["m"]), log(s["n"]), log(s["k"])),
    ),
    "attention": Surface(
        attention,
        {
            "launch_s": 5e-6, "rate_fraction": 0.6, "bandwidth_fraction": 0.7, "diagonal": 128.0,
            "softmax_clocks": 0.06, "overlap": 3.0, "wave_s": 1e-6, "last_wave": 0.5,
        },
        _attention_place,
    ),
    "experts": Surface(
        experts,
        {
            "launch_s": 2e-5, "rate_fraction": 0.6, "bandwidth_fraction": 0.7, "tile_rows": 64.0,
            "hidden_bytes": 2.0, "inner_bytes": 4.0, "all_hidden_bytes": 4.0, "overlap": 3.0,
        },
        _experts_place,
    ),
    "collective": Surface(
        collective,
        {"launch_s": 1e-5, "hop_s": 1e-6, "link_fraction": 0.7, "overlap": 1.5},
        lambda s: (log(s["bytes"]), 2.0 * log(s["num_gpus"])),
    ),
}  # fmt: skip

FOLDER = os.path.join(os.path.dirname(__file__), "data", "operators")
LENGTH = 1.5  # of K, in logarithms of sizes: shapes within a factor of 4 err alike
NOISE_FRACTION = 0.05  # of the variance of what the surface leaves
ROOT_3 = sqrt(3.0)
FEED = 0.34  # see `_fed`
# exponentials per multiprocessor and clock over those of the others: Blackwell Ultra has twice as many
# (NVIDIA, Inside NVIDIA Blackwell Ultra, developer.nvidia.com/blog, 2025-08-22: attention-layer instructions)
EXPONENTIAL_RATIOS = {"Blackwell Ultra": 2.0}
# where matrix instructions are asynchronous (Hopper's, and Blackwell's of large chips), attention takes one
# tile's exponentials beside another's products; on others the same warps do both
BESIDE = 3.0
LANE_FLOPS, USUAL_HZ = 256.0, 1.8e9  # of a multiprocessor in a clock in fp32, where no clock is printed
LEAST_ROWS = 30  # of a kernel's timings, three for each constant, to speak for another architecture
BLOCK = 2048  # places whose K is worked out together
FORMATS = {  # what a number format is timed as
    "bf16": "bf16", "fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "fp8": "fp8",
    "fp8_block": "fp8_block", "mxfp8": "fp8_block", "nvfp4": "nvfp4", "mxfp4": "nvfp4", "fp4": "nvfp4",
}  # fmt: skip
PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
COLLECTIVE_FORMATS = {"half": "half", "bf16": "half", "fp16": "half", "bfloat16": "half", "int8": "int8"}
# training's own calls, first of those that were timed: torch's linear, FlashAttention, fused experts;
# TensorRT-LLM's fp8 product is cuBLAS's, as Transformer Engine's and torch._scaled_mm are
DEFAULT_ENGINES = {
    ("gemm", "fp8"): ("trtllm", "sglang", "vllm"),
    ("gemm", "fp8_block"): ("trtllm", "sglang", "vllm"),
    ("gemm", "nvfp4"): ("trtllm", "vllm", "sglang"),
}
ENGINES = ("vllm", "trtllm", "sglang", "nccl")
# what kernels of experts are written in, which decides their rate, by words of their names: vLLM's own are
# Triton's, and TensorRT-LLM's way through PyTorch is CUTLASS's, unless they say otherwise
LANGUAGES = (("triton", "vllm_fused_moe"), ("deepgemm",), ("trtllm",), ("cutlass", "moe_torch_flow"))
LEAST_WIDTHS = 3  # of experts, timed with one kernel, for it to speak for kernels of other names
SIBLINGS = {"fp8": "fp8_block", "fp8_block": "fp8"}  # one rate and width
UNGATED, OF_GATED = "nongated", 2 / 3  # experts of two products in place of three
PATHS = ("torch_flow",)  # TensorRT-LLM's way through PyTorch: which kernel runs depends on the GPU


class Fit(NamedTuple):
    """A kernel on the GPU on which it was timed."""

    timed: Timed
    constants: Mapping[str, float]
    weights: tuple[float, ...]
    places: tuple[tuple[float, ...], ...]
    interval: Interval  # of timed over predicted, of shapes left out


class Source(NamedTuple):
    """Whose timings answer for a GPU, and in how far."""

    parts: tuple[tuple[Fit, Chip], ...]  # one, or several that weigh alike, each under the GPU's datasheet
    evidence: str  # timed | architecture | other
    interval: Interval
    note: str

    @property
    def timed(self) -> Timed:
        """Return the kernel that answers, or the nearest of them."""
        return self.parts[0][0].timed


def sizes_of(kind: str, shapes: Iterable[Iterable[str]]) -> list[dict[str, float]]:
    """Return sizes by name of rows of cells in the order of the kind's columns."""
    names = SHAPE_COLUMNS[kind]
    return [
        {"skew" if name == "distribution" else name: skew(cell) if name == "distribution" else float(cell)
         for name, cell in zip(names, cells, strict=True)}
        for cells in shapes
    ]  # fmt: skip


def skew(distribution: str) -> float:
    """Return the exponent of a distribution of tokens over experts, 0 of an even one; of others 1.01."""
    if distribution in ("", "balanced"):
        return 0.0
    try:
        return min(max(float(distribution.removeprefix("power_law_")), 0.1), 4.0)
    except ValueError:
        return 1.01


@cache
def _document(name: str) -> Any:
    return read_document(os.path.join(FOLDER, f"{name.replace(' ', '_')}.json"))


@cache
def fit_of(timed: Timed, kernel: str = "") -> Fit:
    """Return the fitted kernel `timed`, for experts of as many products as those of `kernel`."""
    found = _document(timed.gpu)[timed.kind][timed.column]
    shapes = timings(timed.gpu, timed.kind)[timed.column].shapes
    place = SURFACES[timed.kind].place
    places = tuple(place(sizes) for sizes in sizes_of(timed.kind, shapes))
    weights = tuple(map(float, found["weights"].split()))
    products = OF_GATED ** ((UNGATED in (kernel or timed.kernel)) - (UNGATED in timed.kernel))
    constants = {**found["constants"], "products": products}
    return Fit(timed, constants, weights, places, Interval(*found["interval"]))


def chip_of(spec: GpuSpec, dtype: str, like: GpuSpec | None = None, kind: str = "") -> Chip:
    """Return the datasheet of `spec` for `dtype`; what is unknown of it, in proportion to the GPU `like`.

    `kind` of operator: what `spec` reaches of its peak is known of products, experts' too, not of attention.

    Raises: UnsupportedError if it has no such rate.
    """
    peak = spec.peak_flops_per_s(PEAKS[dtype]) if dtype in PEAKS else 1.0  # a collective computes nothing
    ceiling = peak
    if like is not None:
        board, rate = at_full_rate(spec) if PEAKS.get(dtype) == "fp4" else spec, PEAKS.get(dtype, "")
        peak *= _reached(board, like, kind) * _fed(board, like, rate)
    known, paths = spec if spec.num_sms or like is None else like, paths_of(spec)
    num_sms = float(known.num_sms or 100)
    hz = known.boost_hz or known.flops_per_s.get("fp32", 0.0) / (LANE_FLOPS * num_sms) or USUAL_HZ
    l2_bytes = spec.l2_bytes or (like.l2_bytes if like is not None else None)
    return Chip(
        flops_per_s=peak,
        bytes_per_s=spec.memory_bytes_per_s,
        num_sms=num_sms,
        l2_bytes=float(l2_bytes or 50e6),
        link_bytes_per_s=spec.nvlink_bytes_per_s,
        link_gpus=paths.joined,
        link_peers=paths.peers,
        bridge_bytes_per_s=paths.bridge_bytes_per_s,
        value_bytes=VALUE_BYTES.get(dtype, 2.0),
        ceiling_flops_per_s=ceiling,
        clocks_per_s=num_sms * hz,
        exponential_ratio=EXPONENTIAL_RATIOS.get(spec.architecture, 1.0),
        is_asynchronous=spec.architecture in device.HOPPER_KIN and _is_datacentre(spec),
    )


def _reached(spec: GpuSpec, like: GpuSpec, kind: str) -> float:
    """Return how much more of its peak `spec` reaches than `like`.

    Products as the best ones of both do, where that of `spec` was measured or its kind of chip is another.

    Power and operands keep up with chips that accumulate at half rate, AMD's reach less of theirs, and a chip
    whose board is given less power for its peak (an L4 beside an L40S) clocks lower.
    """
    known = kind != "attention" and (spec.measured_matmul_flops_per_s or not is_kin(spec, like))
    if known or spec.vendor != like.vendor or spec.halves_accumulation != like.halves_accumulation:
        return _best_alone(spec) / _best_alone(like)
    usual = device.BEST_MATMUL_FRACTION.get(spec.architecture)
    if spec.measured_matmul_flops_per_s or spec.halves_accumulation or not usual:
        return 1.0
    return best_fraction(spec) / usual


def _best_alone(spec: GpuSpec) -> float:
    """Return what the best product reaches of the peak, alone.

    Blackwell's small chips have Ada's process and instruction: Ada's share, by the watts of their boards
    (0.87 of RTX PRO 6000, whose own timings say 0.846). Steps of its workstation board reach less.
    """
    best, known = best_fraction(spec), spec.measured_matmul_flops_per_s or spec.halves_accumulation
    if known or not spec.compute_capability.startswith("12"):
        return best
    watts = device.CEILING_W_PER_FLOPS["12.0"] / device.CEILING_W_PER_FLOPS["8.9"]
    ratio = device.BEST_MATMUL_FRACTION["Ada Lovelace"] / device.BEST_MATMUL_FRACTION["Blackwell"]
    return float(best * ratio * watts**device.POWER_EXPONENT)


def _fed(spec: GpuSpec, like: GpuSpec, rate: str) -> float:
    """Return by how much less `spec` gains by a rate over bf16's that `like` has less of.

    What feeds the multipliers takes `FEED` of a bf16 product's time at its peak in every format:
    on B200 0.28, 0.3 to 0.4 and 0.35 of it in bf16, fp8 and NVFP4.
    """
    if rate in ("", "bf16", "fp16"):
        return 1.0
    own, other = (one.flops_per_s.get(rate, 0.0) / one.peak_flops_per_s("bf16") for one in (spec, like))
    if not own or not other:
        return 1.0
    return ((1.0 / other + FEED) / other**-1) / ((1.0 / own + FEED) / own**-1)


def _generation(spec: GpuSpec) -> float:
    """Return the compute capability as a number; that of Hopper for others than NVIDIA's."""
    return float(spec.compute_capability) if spec.compute_capability[:1].isdigit() else 9.0


def _is_datacentre(spec: GpuSpec) -> bool:
    """Return whether the chip is of NVIDIA's large kind: 7.0, 8.0, 9.0, 10.x, not 7.5, 8.6, 8.9, 12.0."""
    generation = _generation(spec)
    return (generation % 1.0 < 0.05 and generation < 11.0) or 10.0 <= generation < 11.0


def _distance(spec: GpuSpec, other: GpuSpec) -> tuple[Any, ...]:
    """Return how far `other` is as a stand-in for `spec`: kind of chip, generation, form, power, age."""
    apart = abs(_generation(spec) - _generation(other))
    power = abs(log((spec.board_power_w or 500.0) / (other.board_power_w or 500.0)))
    differs = _is_datacentre(spec) != _is_datacentre(other)
    return differs, apart, spec.form_factor != other.form_factor, -(other.launch_year or 0), power


def is_kin(spec: GpuSpec, other: GpuSpec) -> bool:
    """Return whether both are of one generation and kind of chip."""
    near = int(_generation(spec)) == int(_generation(other))
    return near and _is_datacentre(spec) == _is_datacentre(other) and spec.vendor == other.vendor


def engine_of(kernel: str) -> str:
    """Return whose kernel `kernel` is; "" where nothing timed has the name or one that begins so."""
    own = (one.engine for one in timed_kernels() if one.kernel == kernel)
    return next(own, None) or next((name for name in ENGINES if name in kernel.casefold()), "")


def _is_foreign(one: Timed, kernel: str) -> bool:
    """Return whether `one`, of experts, is in another language than `kernel`, or was timed too narrowly."""
    wanted = [words for words in LANGUAGES if any(word in kernel for word in words)][:1]
    own = [words for words in LANGUAGES if any(word in one.kernel for word in words)][:1]
    if one.kind != "experts" or not wanted:
        return False
    shapes = timings(one.gpu, one.kind)[one.column].shapes
    return wanted != own or len({shape[1:3] for shape in shapes}) < LEAST_WIDTHS


def source_for(
    spec: GpuSpec, kind: str, dtype: str, kernel: str = "", engine: str = "", without: Collection[str] = ()
) -> Source:
    """Return what answers for an operator: its own kernel where timed, else the engine's, else the usual one.

    Of collectives, `dtype` is the type of what is sent and `kernel` the operation. `engine` says whose
    kernel it is where the name does not; the timed GPUs in `without` are not asked, for validation.

    Raises: UnsupportedError where nothing answers.
    """
    timed_as = (COLLECTIVE_FORMATS if kind == "collective" else FORMATS).get(dtype)
    if timed_as is None:
        raise UnsupportedError(f"No {kind} was timed in {shown(dtype)}; give one of {', '.join(FORMATS)}.")
    formats = {timed_as, SIBLINGS.get(timed_as, "") if kind == "experts" and kernel else ""}
    known = [
        one for one in timed_kernels()
        if one.kind == kind and one.dtype in formats and one.gpu not in without
        and (one.kernel == kernel or kind != "collective")
    ]  # fmt: skip
    if not known:
        raise UnsupportedError(f"No {kind} {shown(kernel)} was timed in {dtype}.")
    rated = "fp16" if dtype in ("fp16", "float16") else timed_as  # whose rate it runs at
    chip_of(spec, rated)  # refuses a format that the GPU does not have
    wanted = engine or engine_of(kernel)
    order = DEFAULT_ENGINES.get((kind, timed_as), ENGINES)

    def match(one: Timed) -> tuple[int, int, int]:
        same = one.kernel == kernel and (kernel not in PATHS or is_kin(spec, gpu_named(one.gpu)))
        closeness = 0 if same else 1 if one.engine == wanted else 2
        closeness += 3 * (one.dtype != timed_as) + 6 * (not same and _is_foreign(one, kernel))
        return closeness, order.index(one.engine), -one.rows

    stands, chosen = _chosen(spec, known, match)
    fits = [fit_of(one, kernel) for one in chosen]
    chips = [chip_of(spec, rated, gpu_named(one.gpu), kind) for one in chosen]
    interval = fits[0].interval if stands == "timed" else _left_out(kind, stands)
    note = f"{chosen[0].kernel} timed on it ({chosen[0].source})"
    if stands != "timed":
        named = " and ".join(f"{one.kernel} of {one.gpu}" for one in chosen)
        note = f"{spec.name} was not timed: {named} under its datasheet"
    if dtype in device.TIMED_AS:
        low, high = _left_out(kind, "other")
        interval = Interval(min(interval.low_ratio, low), max(interval.high_ratio, high))
        note += f"; {dtype} was not timed, taken as {timed_as}"
    return Source(tuple(zip(fits, chips, strict=True)), stands, interval, note)


def _chosen(
    spec: GpuSpec, known: Sequence[Timed], match: Callable[[Timed], tuple[int, int, int]]
) -> tuple[str, list[Timed]]:
    """Return what stands behind an answer, and the kernels that give it.

    The GPU's own, or that of its nearest kin. Of strangers all that match the kernel best: those of its kind
    of chip if there are any, the nearest of each architecture, best first.
    """
    kind = known[0].kind

    def best_of(name: str) -> Timed:
        return min((one for one in known if one.gpu == name), key=match)

    if any(one.gpu == spec.name for one in known):
        return "timed", [best_of(spec.name)]
    if kind == "collective":  # bridges are the machine's, not the GPU's: all that were timed weigh alike
        known = [one for one in known if _bridged(gpu_named(one.gpu)) == _bridged(spec)] or known
        if _bridged(spec):
            return "other", [best_of(other) for other in sorted({one.gpu for one in known})]
    near = sorted({one.gpu for one in known}, key=lambda other: _distance(spec, gpu_named(other)))
    kin = [other for other in near if is_kin(spec, gpu_named(other))]
    if kin:
        return "architecture", [best_of(kin[0])]
    known = [one for one in known if one.rows >= LEAST_ROWS or kind == "collective"] or known
    near = [other for other in near if any(one.gpu == other for one in known)]
    best = [best_of(other) for other in near]
    closest = min(match(one)[0] for one in best)
    best = [one for one in best if match(one)[0] == closest]
    if kind != "experts":  # whose kernels are the engine's choice, more than the chip's kind
        alike = [one for one in best if _is_datacentre(gpu_named(one.gpu)) == _is_datacentre(spec)]
        best = alike or best
    by_generation: dict[int, Timed] = {}
    for one in best:
        by_generation.setdefault(int(10 * _generation(gpu_named(one.gpu))), one)
    return "other", list(by_generation.values())


def _bridged(spec: GpuSpec) -> bool:
    """Return whether the GPUs of a usual node meet over PCIe, all or beyond the pairs that a bridge joins."""
    return paths_of(spec).joined < BOARD_GPUS


def _left_out(kind: str, stands: str) -> Interval:
    """Return truth over prediction where a GPU was left out.

    The only kin among the timed ones are twins, B200 and GB200, nearer to each other than most: where the
    architecture alone was timed, the interval lies between what leaving out a twin and a stranger shows.
    """
    found = evidence()["intervals"][kind]
    low, high = found["other"]
    if stands == "architecture":
        twin_low, twin_high = found.get("architecture", (low, high))
        low, high = sqrt(low * twin_low), sqrt(high * twin_high)
    return Interval(low, high)


def evidence() -> Mapping[str, Any]:
    """Return how wrong all this was where shapes or GPUs were left out: "intervals" and "errors"."""
    document: Mapping[str, Any] = _document("evidence")
    return document


def seconds_of(source: Source, sizes: Sizes) -> Any:
    """Return the seconds of an operator of `sizes`, numbers or arrays; of several parts their mean.

    No product is quicker than the peak, or than memory brings the operands that no cache holds.
    """
    logarithm: Any = 0.0
    for fit, chip in source.parts:
        surface = SURFACES[fit.timed.kind]
        base, place = surface.seconds(fit.constants, sizes, chip), surface.place(sizes)
        logarithm = logarithm + log(base) + interpolated(place, fit.places, fit.weights)
    seconds, chip = exponential(logarithm / len(source.parts)), source.parts[0][1]
    if source.timed.kind != "gemm":
        return seconds
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    read_s = (chip.value_bytes * (m + n) * k - chip.l2_bytes) / chip.bytes_per_s
    return largest(seconds, 2.0 * m * n * k / chip.ceiling_flops_per_s, read_s)


def interpolated(place: tuple[Any, ...], timed: Any, weights: Any) -> Any:
    """Return the logarithm of truth over surface at one place, or at the places that arrays say."""
    if all(isinstance(one, PLAIN) for one in place):
        found = 0.0
        for weight, other in zip(weights, timed, strict=True):
            far = ROOT_3 / LENGTH * dist(place, other)
            found += weight * (1.0 + far) * number_exp(-far)
        return found
    import numpy

    places = numpy.stack(numpy.broadcast_arrays(*place), axis=-1)
    known, weight = numpy.asarray(timed), numpy.asarray(weights)
    blocks = [places[start : start + BLOCK] for start in range(0, len(places), BLOCK)]
    return numpy.concatenate([kernel_of(block, known) @ weight for block in blocks])


def kernel_of(places: Any, others: Any) -> Any:
    """Return K between every two places, as a matrix."""
    import numpy

    squares = sum((places[:, None, i] - others[None, :, i]) ** 2 for i in range(others.shape[1]))
    far = ROOT_3 / LENGTH * numpy.sqrt(squares)
    return (1.0 + far) * numpy.exp(-far)
