r"""Seconds of single operators as physics has them, with the few constants that a kernel brings.

$$ t = launch + \left(compute^p + memory^p\right)^{1/p} + cast $$

Compute is what the multiprocessors take for the tiles of an operator, wave after wave, at a fraction of
the datasheet's rate; memory is what has to be moved, at a fraction of the bandwidth; p says how well both
overlap (1: one after the other; large: the longer alone). A product is cut into the tile that is quickest
for it, or nearly (`choice`): libraries choose by heuristics. Reductions too long for few tiles are divided.

All sizes may be numbers or arrays of them. Every constant is a plain number of its own unit, and the same
equation serves every GPU: the chip's datasheet (`Chip`) is what differs, so that constants of one GPU may
speak for another.

Neglected: clocks that sink with power (all timings are isolated), swizzling of tiles, tails of persistent
kernels. What they leave is interpolated between timed shapes by `timed_operators`.
"""

from collections.abc import Callable, Mapping
from math import exp as number_exp
from typing import Any, NamedTuple

from finegauge.arithmetic import PLAIN, ceil, largest, log, smallest, where

Constants = Mapping[str, float]
Sizes = Mapping[str, Any]

VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}  # NVFP4: a scale for 16 values
TILES = (
    (256, 256), (256, 128), (128, 256), (128, 128), (256, 64), (128, 64), (64, 128), (64, 64), (64, 32),
    (32, 64),
)  # fmt: skip
FULL_TILE = 256.0 * 128.0
SPLIT_K, SPLIT_LEAST_K, SPLIT_SLOWER = 4, 256, 1.05
SPLIT_WAVES = 1.5  # no product is divided that has more tiles than this would fill
QUERY_TILE = 128.0
SOFTMAX_HEAD = 128.0  # the head size in whose products the softmax of a pair is counted
NEVER_S = 1e9


class Chip(NamedTuple):
    """What an equation needs of a GPU and number format: its datasheet."""

    flops_per_s: float  # dense peak of the format
    bytes_per_s: float
    num_sms: float
    l2_bytes: float
    link_bytes_per_s: float  # of one GPU to its neighbours, one direction
    value_bytes: float  # of an operand
    exponential_ratio: float = 1.0  # how much faster it takes exponentials than the chips before it


def overlapped(first: Any, second: Any, power: float) -> Any:
    """Return the p-norm of both: their sum where p is 1, the larger where it is large."""
    most = largest(first, second)
    return most * (1.0 + (smallest(first, second) / most) ** power) ** (1.0 / power)


def product(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of [m, k] x [k, n], with the cast of the first operand where the kernel casts."""
    m, n, k = s["m"], s["n"], s["k"]
    per_sm = chip.flops_per_s * c["rate_fraction"] / chip.num_sms
    options = []
    for tile_m, tile_n in TILES:
        area = smallest(tile_m * tile_n, FULL_TILE)
        rate = per_sm * (area / FULL_TILE) ** c["small_tile"]
        tiles = ceil(m / tile_m) * ceil(n / tile_n)
        tile_s = 2.0 * tile_m * tile_n / rate
        options.append(_waves(c, tiles / chip.num_sms) * (tile_s * (k + c["ramp_k"]) + c["wave_s"]))
        divides = (tiles * SPLIT_K <= SPLIT_WAVES * chip.num_sms) & (k >= SPLIT_K * SPLIT_LEAST_K)
        one_s = tile_s * (k / SPLIT_K + c["ramp_k"]) + c["wave_s"]
        divided = _waves(c, tiles * SPLIT_K / chip.num_sms) * one_s * SPLIT_SLOWER
        options.append(where(divides, divided, NEVER_S))
    best = smallest(*options)
    near = sum((best / one) ** c["choice"] for one in options) / len(options)
    compute = best * near ** (-1.0 / c["choice"])
    moved = chip.value_bytes * (m * k + n * k) + 2.0 * m * n
    found = moved / (moved + chip.l2_bytes * c["cache_share"])  # the rest was left in the cache
    memory = moved / (chip.bytes_per_s * c["bandwidth_fraction"]) * (found + (1.0 - found) / c["cache_ratio"])
    seconds = c["launch_s"] + overlapped(compute, memory, c["overlap"])
    if "cast_s" in c:
        cast = m * k * (2.0 + chip.value_bytes) / (chip.bytes_per_s * c["cast_fraction"])
        seconds = seconds + c["cast_s"] + cast
    return seconds


def _waves(c: Constants, waves: Any) -> Any:
    """Return how many waves' time so many take: the last one counts as whole in the share `last_wave`."""
    return c["last_wave"] * ceil(waves) + (1.0 - c["last_wave"]) * largest(waves, 1.0)


def attention(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of causal attention forward, softmax and all, of queries as long as their keys."""
    batch, length, heads, kv_heads, head_dim = (
        s[name] for name in ("batch_size", "seq_len", "num_heads", "num_kv_heads", "head_dim")
    )
    pairs = length * (length + c["diagonal"]) / 2.0
    flops = 4.0 * pairs * (head_dim + c["softmax"] / chip.exponential_ratio * SOFTMAX_HEAD) * batch * heads
    waves = batch * heads * ceil(length / QUERY_TILE) / chip.num_sms
    filled = _waves(c, waves) / waves
    compute = flops / (chip.flops_per_s * c["rate_fraction"]) * filled + ceil(waves) * c["wave_s"]
    moved = batch * length * (2.0 * heads + 2.0 * kv_heads) * head_dim * 2.0
    memory = moved / (chip.bytes_per_s * c["bandwidth_fraction"])
    return c["launch_s"] + overlapped(compute, memory, c["overlap"])


def experts(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of a layer's routed experts on the rank that has most to do.

    A share of ep^-x of the tokens comes to it where they are spread by a power law, 1 / ep where evenly.
    """
    tokens, hidden, inner = s["num_tokens"], s["hidden_size"], s["intermediate_size"]
    chosen, divided, skew = s["num_experts_per_tok"], s["expert_parallel"], s["skew"]
    spread = where(skew == 0, 1.0, where(skew == 1, c["spread_steep"], c["spread_flat"]))
    pairs = tokens * chosen
    rows = pairs * divided ** (-spread)
    own = largest(s["num_experts"] / divided, 1.0)
    active = own * (1.0 - exponential(-rows / own))
    products = 6.0 * hidden * inner
    compute = products * (rows + active * c["tile_rows"]) / (chip.flops_per_s * c["rate_fraction"])
    moved = 3.0 * hidden * inner * active * chip.value_bytes
    moved = moved + rows * (c["hidden_bytes"] * hidden + c["inner_bytes"] * inner)
    moved = moved + pairs * c["all_hidden_bytes"] * hidden
    memory = moved / (chip.bytes_per_s * c["bandwidth_fraction"])
    return c["launch_s"] + overlapped(compute, memory, c["overlap"])


def collective(c: Constants, s: Sizes, chip: Chip) -> Any:
    """Return the seconds of one collective inside a node: steps, and what crosses one GPU's link.

    Behind PCIe bridges the rate of a rank falls with a power of their number.
    """
    ranks = s["num_gpus"]
    rate = chip.link_bytes_per_s * c["link_fraction"] * (ranks / 2.0) ** -c.get("sharing", 0.0)
    crossing = s["bytes"] * (ranks - 1.0) / ranks / rate
    return overlapped(c["launch_s"] + c["hop_s"] * (ranks - 1.0), crossing, c["overlap"])


def exponential(value: Any) -> Any:
    """Return e to the power of the quantity."""
    if isinstance(value, PLAIN):
        return number_exp(value)
    import numpy

    return numpy.exp(value)


def _ratio(over: Any, under: Any) -> Any:
    return log(over) - log(under)


class Surface(NamedTuple):
    """One kind of operator: its equation, its constants' usual values, and where a shape stands."""

    seconds: Callable[[Constants, Sizes, Chip], Any]
    usual: Constants
    place: Callable[[Sizes], tuple[Any, ...]]  # coordinates in which near shapes err alike
    columns: tuple[str, ...]  # of a table, the sizes


def _product_place(s: Sizes) -> tuple[Any, ...]:
    return log(s["m"]), log(s["n"]), log(s["k"])


def _attention_place(s: Sizes) -> tuple[Any, ...]:
    shared = 0.7 * _ratio(s["num_heads"], s["num_kv_heads"])
    return (
        log(s["batch_size"]), log(s["seq_len"]), log(s["num_heads"]), shared, 2.0 * log(s["head_dim"]),
    )  # fmt: skip


def _experts_place(s: Sizes) -> tuple[Any, ...]:
    skew = where(s["skew"] == 0, 0.0, where(s["skew"] == 1, 1.5, 2.0))
    wide = 2.0 * log(s["hidden_size"]), 2.0 * log(s["intermediate_size"])
    names = ("num_experts_per_tok", "num_experts", "expert_parallel")
    return (log(s["num_tokens"]), *wide, *(log(s[name]) for name in names), skew)


def _collective_place(s: Sizes) -> tuple[Any, ...]:
    return log(s["bytes"]), 2.0 * log(s["num_gpus"])


SKEWS = {"balanced": 0.0, "power_law_1.2": 1.0, "power_law_1.01": 2.0}
SURFACES: Mapping[str, Surface] = {
    "gemm": Surface(
        product,
        {
            "launch_s": 3e-6, "rate_fraction": 0.8, "bandwidth_fraction": 0.8, "ramp_k": 100.0,
            "cache_ratio": 2.0, "cache_share": 1.0, "overlap": 3.0, "small_tile": 0.15, "choice": 8.0,
            "wave_s": 0.3e-6, "last_wave": 0.5,
        },
        _product_place,
        ("m", "n", "k"),
    ),
    "attention": Surface(
        attention,
        {
            "launch_s": 5e-6, "rate_fraction": 0.6, "bandwidth_fraction": 0.7, "diagonal": 128.0,
            "softmax": 0.25, "overlap": 3.0, "wave_s": 1e-6, "last_wave": 0.5,
        },
        _attention_place,
        ("batch_size", "seq_len", "num_heads", "num_kv_heads", "head_dim"),
    ),
    "experts": Surface(
        experts,
        {
            "launch_s": 2e-5, "rate_fraction": 0.6, "bandwidth_fraction": 0.7, "tile_rows": 64.0,
            "hidden_bytes": 2.0, "inner_bytes": 4.0, "all_hidden_bytes": 4.0, "spread_steep": 0.6,
            "spread_flat": 0.7, "overlap": 3.0,
        },
        _experts_place,
        (
            "num_tokens", "hidden_size", "intermediate_size", "num_experts_per_tok", "num_experts",
            "expert_parallel", "skew",
        ),
    ),
    "collective": Surface(
        collective,
        {"launch_s": 1e-5, "hop_s": 1e-6, "link_fraction": 0.7, "overlap": 1.5},
        _collective_place,
        ("num_gpus", "bytes"),
    ),
}  # fmt: skip
CASTING = {"cast_s": 2e-6, "cast_fraction": 0.5}  # of products in formats narrower than 16 bit
SHARING = {"sharing": 0.1}  # of links behind PCIe bridges
