r"""Seconds of the graph's operators on a measured device, in place of datasheet rates.

Every operator of the graph is one of a device profile's, or is counted as so many additions of tensors
as it moves bytes. On a processor nothing runs ahead of anything: an operator's reading holds the host's
call as well, so that no host time stands beside it.

At a size that was not measured:

$$ t(x) = b(x) \, \exp\left(\textstyle\sum_i w_i(x) \log\frac{t_i}{b(x_i)}\right), \qquad
   b = \frac{flops}{F} + \frac{bytes}{B} + L $$

$b$ is what the operator's arithmetic and traffic would take at the best rate $F$ and the bandwidth $B$
of the same device, and the call $L$; the readings say by what factor the truth is above it, and that
factor changes slowly with size. The weights $w_i$ fall with the distance in the logarithms of the
sizes, over the nearest readings on every side: at a reading, the answer is the reading. Beyond the last
reading the factor stays.

Neglects: what an operator finds in cache because of the one before it, beyond what the readings' own
order of passes shows; steps between sizes (tiles, caches) that fall between two readings.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import exp, log, prod
from typing import TYPE_CHECKING, NamedTuple

from finegauge.catalogue.device_profile import NF4_INFERENCE, DeviceProfile, Reading
from finegauge.catalogue.gpus import CPU, GpuSpec
from finegauge.errors import UnsupportedError
from finegauge.model.attention import ROTARY_BYTES
from finegauge.model.layers import FULL_LOSS_FORWARD_BYTES
from finegauge.model.lowering import QUANTIZED_BYTES
from finegauge.model.op import NOTHING, Cost, Extents, Gemm, Op
from finegauge.model.op_builder import RMS_FORWARD_BYTES
from finegauge.prediction.calibration import Calibration
from finegauge.profile import Interval
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.prediction.sharding import Share

NEAREST = 8  # readings that have a say: the corners of a cell in three sizes
POWER = 3.0
SAME = 1e-9  # a distance at which a size is a reading's

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
Sizes = Mapping[str, float]


class Work(NamedTuple):
    """What an operator of some sizes takes at least, and where it stands among its kind."""

    flops: float
    bytes: float
    place: tuple[float, ...]  # sizes whose logarithms say which readings are near


def work(operator: str, sizes: Sizes, width: float, *, backward: bool) -> Work:
    """Return the least work of one use of `operator`; `width` is the bytes of a value."""
    special = _SPECIAL.get(operator)
    if special is not None:
        return special(sizes, width, 2.0 if backward else 1.0)
    values = _values(operator, sizes)
    return Work(0.0, 3.0 * values * width * (2.0 if backward else 1.0), (values,))


def _product(s: Sizes, width: float, passes: float) -> Work:
    rows, n, k, groups = s["rows"], s["n"], s["k"], s.get("groups", 1.0)
    moved = rows * (n + k) + n * k * groups
    return Work(2.0 * rows * n * k * passes, moved * width * passes, (rows / groups, n, k, groups))


def _adapter(s: Sizes, width: float, passes: float) -> Work:
    rows, n, k, rank = s["rows"], s["n"], s["k"], s["rank"]
    flops, moved = 2.0 * rows * rank * (n + k), rows * (k + 5.0 * n)
    return Work(flops * passes, moved * width * passes, (rows, n, k, rank))


def _attention_work(s: Sizes, width: float, passes: float, *, eager: bool) -> Work:
    """Return the work of attention; the eager one also moves scores, and skips no pair."""
    heads, length = s["sequences"] * s["heads"], s["seq_len"]
    pairs = heads * length**2
    moved = 2.0 * s["sequences"] * length * s["head_dim"] * (s["heads"] + s["kv_heads"])
    place = (heads, length, s["head_dim"], s["heads"] / s["kv_heads"])
    if eager:
        return Work(4.0 * pairs * s["head_dim"] * passes, (moved + 6.0 * pairs) * width * passes, place)
    passes = 2.5 if passes > 1 else 1.0  # its backward computes the scores again
    return Work(2.0 * pairs * s["head_dim"] * passes, moved * width * passes, place)


def _cached_work(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of one query per sequence; appending to the cache copies it, attention reads it."""
    heads, context = s["sequences"] * s["heads"], s["context"]
    moved = 6.0 * s["sequences"] * s["kv_heads"] * context * s["head_dim"] * width
    place = (heads, context, s["head_dim"], s["heads"] / s["kv_heads"])
    return Work(4.0 * heads * context * s["head_dim"] * passes, moved, place)


def _update(s: Sizes, values: float) -> Work:
    return Work(0.0, 4.0 * values * s["params"], (s["params"], s["tensors"]))


def _embedding(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of a look-up; backward makes the gradient of the whole table."""
    values, table = _values("embedding", s), s["table"] if "table" in s else s["vocab"] * s["width"]
    if passes == 1.0:
        return Work(0.0, 3.0 * values * width, (values,))
    return Work(0.0, (2.0 * table + 3.0 * values) * width, (values, table))


_SPECIAL: Mapping[str, Callable[[Sizes, float, float], Work]] = {
    **dict.fromkeys(("linear", "grouped_linear", "nf4_linear", NF4_INFERENCE), _product),
    "adapter": _adapter,
    "attention_sdpa": partial(_attention_work, eager=False),
    "attention_eager": partial(_attention_work, eager=True),
    "attention_cached": _cached_work,
    **dict.fromkeys(("adamw_fused", "adamw_foreach", "adamw_loop"), lambda s, w, p: _update(s, 7.0)),
    "clip": lambda s, w, p: _update(s, 2.0),
    "embedding": _embedding,
    "router": lambda s, w, p: Work(0.0, 16.0 * s["rows"] * s["experts"] * p, (s["rows"], s["experts"])),
}
_FACTORS: Mapping[str, tuple[str, ...]] = {  # sizes whose product is the number of values
    "rotary": ("sequences", "seq_len", "head_dim"),
    "scan": ("sequences", "seq_len", "channels", "state"),
    "convolution": ("sequences", "seq_len", "channels"),
    "cross_entropy": ("rows", "vocab"),
    "nf4_dequantise": ("n", "k"),
    "copy": ("bytes",),
}


def _values(operator: str, s: Sizes) -> float:
    """Return how many values a memory-bound operator works on, if they are not stated themselves."""
    if "values" in s:
        return s["values"]
    heads = s["heads"] + s["kv_heads"] if operator == "rotary" else s.get("top_k", 1.0)
    return heads * prod(s[name] for name in _FACTORS.get(operator, ("rows", "width")))


class Curve:
    """The readings of one operator in one dtype and direction."""

    def __init__(self, operator: str, dtype: str, *, backward: bool, points: Iterable[tuple[Sizes, float]],
                 bytes_per_s: float) -> None:  # fmt: skip
        """Take the readings as (sizes, seconds)."""
        self.operator, self.backward, self.width = operator, backward, BYTES.get(dtype, 4.0)
        found = [(self._work(sizes), seconds) for sizes, seconds in points]
        self.bytes_per_s = bytes_per_s
        self.flops_per_s = max((one.flops / seconds for one, seconds in found), default=0.0)
        self.call_s = min((seconds for _, seconds in found), default=0.0)
        self.points = [
            (tuple(log(x) for x in one.place), log(seconds / self._least(one))) for one, seconds in found
        ]

    def _work(self, sizes: Sizes) -> Work:
        return work(self.operator, sizes, self.width, backward=self.backward)

    def _least(self, one: Work) -> float:
        compute = one.flops / self.flops_per_s if self.flops_per_s else 0.0
        return compute + one.bytes / self.bytes_per_s + self.call_s

    def seconds(self, sizes: Sizes) -> float:
        """Return the seconds of one use at `sizes`."""
        one = self._work(sizes)
        place = tuple(log(max(x, 1e-9)) for x in one.place)
        factor = _between(self.points, place[0]) if len(place) == 1 else _near(self.points, place)
        return self._least(one) * exp(factor)


def _between(points: list[tuple[tuple[float, ...], float]], at: float) -> float:
    """Return the value at `at` on the straight lines between points of one size."""
    ordered = sorted((place[0], value) for place, value in points)
    below = [point for point in ordered if point[0] <= at] or ordered[:1]
    above = [point for point in ordered if point[0] > at] or ordered[-1:]
    (x0, y0), (x1, y1) = below[-1], above[0]
    return y0 if x1 <= x0 else y0 + (y1 - y0) * min(1.0, max(0.0, (at - x0) / (x1 - x0)))


def _near(points: list[tuple[tuple[float, ...], float]], at: tuple[float, ...]) -> float:
    """Return the value at `at` by the nearest points, the nearer the more."""
    measured = sorted(
        (sum((a - b) ** 2 for a, b in zip(place, at, strict=True)) ** 0.5, value) for place, value in points
    )[:NEAREST]
    if measured[0][0] < SAME:
        return measured[0][1]
    weights = [float(distance**-POWER) for distance, _ in measured]
    return sum(w * value for w, (_, value) in zip(weights, measured, strict=True)) / sum(weights)


class Readings:
    """A device profile, asked for the seconds of operators."""

    def __init__(self, profile: DeviceProfile) -> None:
        """Sort the readings by operator, dtype and direction."""
        self.profile = profile
        self._by: dict[tuple[str, str, str], list[Reading]] = {}
        for one in profile.readings:
            self._by.setdefault(one[:3], []).append(one)
        self._curves: dict[tuple[str, str, str], Curve | None] = {}
        self.bytes_per_s = profile.memory_bytes_per_s

    def dtypes(self) -> set[str]:
        """Return the dtypes in which matrix products have been measured."""
        return {dtype for operator, dtype, _ in self._by if operator == "linear"}

    def seconds(self, operator: str, dtype: str, direction: str, sizes: Sizes) -> float | None:
        """Return the seconds of one use of `operator`; None where there is no reading of it."""
        curve = self._curve(operator, dtype, direction)
        return curve.seconds(sizes) if curve else None

    def _curve(self, operator: str, dtype: str, direction: str) -> Curve | None:
        key = (operator, dtype, direction)
        if key not in self._curves:
            points = self._points(key)
            self._curves[key] = (
                Curve(operator, dtype, backward=direction.startswith("backward"), points=points,
                      bytes_per_s=self.bytes_per_s)
                if points else None
            )  # fmt: skip
        return self._curves[key]

    def _points(self, key: tuple[str, str, str]) -> list[tuple[Sizes, float]]:
        """Return (sizes, seconds) of one kind's readings; an adapter's are what it adds to its linear."""
        operator, dtype, direction = key
        if operator != "adapter":
            return [(one.sizes, one.seconds) for one in self._by.get(key, ())]
        alone = "forward" if direction == "forward" else "backward_frozen"
        found = []
        for one in self._by.get(("lora_linear", dtype, direction), ()):
            plain = self.seconds("linear", dtype, alone, one.sizes)
            if plain is not None:
                found.append((one.sizes, max(one.seconds - plain, 0.1 * one.seconds)))
        return found


FORWARD, BACKWARD, FROZEN, FIRST = "forward", "backward", "backward_frozen", "backward_first"
FUSED_LOSS_LAUNCHES = 3.0
ADDED = 3.0  # values that an addition of two tensors reads and writes
# 10th to 90th percentile of truth over prediction, widened below: the 40 tiny runs of 'finegauge validate
# --here' with seeds 0 and 1 on one core of an EPYC, torch 2.13 (2026-11-21): times 1.01 to 1.32, median 1.12;
# peaks of live bytes agreed to 0.1 %
CPU_TIME_INTERVAL = Interval(0.95, 1.35)
CPU_MEMORY_INTERVAL = Interval(0.99, 1.01)
GATED_RATIO = 1.75  # above it, backward over forward bytes are those of a gated activation, 9 over 5
# bytes per value and byte of a value that the graph counts for one forward
PER_VALUE = {
    "rotary": ROTARY_BYTES / 2,
    "residual": ADDED,
    "gather tokens": 2.0,
    "weighted sum": 5.0,
    "look up": 2.0,
}
OPERATORS = {
    "rotary": "rotary",
    "residual": "add",
    "gather tokens": "gather",
    "weighted sum": "weighted_sum",
    "look up": "embedding",
}


class ProfiledDevice:
    """A device under its own readings; it answers what `Device` answers."""

    pace_ratio, trainer_s, trainer_step_s = 1.0, 0.0, 0.0  # by `Learned`
    host_ratio = 1.0

    def __init__(self, gpu: GpuSpec, profile: DeviceProfile, calibration: Calibration, dtype: str) -> None:
        """Refuse a dtype in which nothing was measured."""
        self.gpu, self.readings = gpu, Readings(profile)
        self.calibration = calibrated_by(profile, calibration)
        known = self.readings.dtypes()
        if not (known and self.readings.bytes_per_s):
            raise UnsupportedError(
                f"{gpu.name}: its device profile lacks the rate of a copy or of a matrix product: the time "
                "it was given was over before; run 'finegauge micro' anew, with more time."
            )
        if dtype not in known:
            raise UnsupportedError(
                f"{gpu.name}: its device profile has no {dtype} readings, only {', '.join(sorted(known))}; "
                f"set weights_dtype to one of these, or run 'finegauge micro' with a run in {dtype}."
            )

    @property
    def host_in_readings(self) -> bool:
        """Return whether a reading holds the host's time too: on a processor, where nothing runs ahead."""
        return self.gpu.architecture == CPU

    def check(self, run: Run) -> None:
        """Refuse adapters in a dtype in which nothing was measured.

        Raises: UnsupportedError.
        """
        known = self.readings.dtypes()
        if run.trains_adapters and run.autocast == "none" and run.adapter_dtype not in known:
            raise UnsupportedError(
                f"{self.gpu.name}: its device profile has no {run.adapter_dtype} readings for the adapters, "
                f"only {', '.join(sorted(known))}; set adapter_dtype to one of these."
            )

    def seconds(self, op: Op, cost: Cost, extents: Extents, *, backward: bool) -> float:
        """Return the seconds of `cost`, one direction of `op`."""
        if cost == NOTHING:
            return 0.0
        if op.path[-1] == "adapter" and cost.gemms:
            return self._adapter(op, extents, backward=backward)
        if cost.gemms:
            return self._product(op, cost, extents, backward=backward)
        named = _named(op, extents)
        if named is not None:
            operator, sizes = named
            trains = op.gradient_bytes > 0 or operator not in ("rms_norm", "layer_norm")
            again = op.kind == "dequantise"  # backward does what forward did
            direction = (BACKWARD if trains else FROZEN) if backward and not again else FORWARD
            found = self.readings.seconds(operator, op.dtype, direction, sizes)
            if found is not None:
                return found
        return self._moved(op, cost, extents)

    def host_seconds(self, of: str, *, backward: bool) -> float:
        """Return the seconds of Python around operators, of a "layer", "model", "checkpoint" or "token"."""
        if self.gpu.architecture != CPU:
            return 0.0  # the host runs ahead of a GPU, and its launches are counted
        direction = "backward" if backward else "forward"
        if of == "token":
            return self.readings.profile.host.get("token_s", 0.0)
        rest = "" if of == "checkpoint" else "rest_"
        return self.readings.profile.host.get(f"{of}_{rest}{direction}_s", 0.0)

    def cache_seconds(self, num_bytes: float) -> float:
        """Return the seconds of moving so many bytes of keys and values; 0 where readings hold them."""
        held = any(one.operator == "attention_cached" for one in self.readings.profile.readings)
        return 0.0 if held else num_bytes / self.readings.bytes_per_s

    def update_seconds(self, share: "Share") -> float:
        """Return the seconds of clipping and of the optimizer step."""
        weights, run = share.graph.weights, share.run
        sizes = {
            "params": weights.trained_params + weights.adapter_params,
            "tensors": weights.num_trained_tensors,
        }
        dtype = "fp32" if share.value_bytes == BYTES["fp32"] else share.graph.lowering.compute_dtype
        names = [f"{run.optimizer}_{run.optimizer_implementation}", "clip"]
        update_s, clip_s = (self.readings.seconds(name, dtype, "update", sizes) for name in names)
        if update_s is None:
            update_s = 7.0 * sizes["params"] * share.value_bytes / self.readings.bytes_per_s
        return update_s + (clip_s or 0.0)

    def _product(self, op: Op, cost: Cost, extents: Extents, *, backward: bool) -> float:
        gemm, direction = cost.gemms[0], FORWARD
        if backward:
            direction = BACKWARD if len(cost.gemms) > 1 else FIRST if op.gradient_bytes else FROZEN
        rows = gemm.rows_per_token * extents.tokens
        looped = gemm.groups > 1 and op.forward.launches >= gemm.groups
        linear = NF4_INFERENCE if op.reads_4bit else "linear"
        if looped:
            sizes = {"rows": rows / gemm.groups, "n": gemm.n, "k": gemm.k}
            slices = self._slices(op, gemm) if backward and op.gradient_bytes else 0.0
            return gemm.groups * self._matrix(linear, op.dtype, direction, sizes) + slices
        sizes = {"rows": rows, "n": gemm.n, "k": gemm.k}
        if gemm.groups > 1:
            return self._matrix("grouped_linear", op.dtype, direction, {**sizes, "groups": gemm.groups})
        return self._matrix(linear, op.dtype, direction, sizes)

    def _matrix(self, operator: str, dtype: str, direction: str, sizes: Sizes) -> float:
        found = self.readings.seconds(operator, dtype, direction, sizes)
        if found is None and direction == FIRST:
            return self._matrix(operator, dtype, FROZEN, sizes)
        if found is None and operator == NF4_INFERENCE:
            return self._matrix("linear", dtype, direction, sizes)
        if found is None and operator == "grouped_linear":
            groups = sizes["groups"]
            one = {"rows": sizes["rows"] / groups, "n": sizes["n"], "k": sizes["k"]}
            return groups * self._matrix("linear", dtype, direction, one)
        if found is None:
            raise UnsupportedError(
                f"{self.gpu.name}: its device profile has no reading of {operator} in {dtype}, {direction}; "
                "run 'finegauge micro' again."
            )
        return found

    def _slices(self, op: Op, gemm: Gemm) -> float:
        """Return the seconds in which a loop over experts makes one gradient of all from each one's slice.

        Every slice's gradient is first a tensor of zeros as large as all, and is added to the others'.
        """
        values = float(gemm.n * gemm.k * gemm.groups)
        return gemm.groups * 2.0 * self._added(op.dtype, values)

    def _adapter(self, op: Op, extents: Extents, *, backward: bool) -> float:
        down, up = op.forward.gemms[0], op.forward.gemms[-1]
        rows = down.rows_per_token * extents.tokens
        sizes = {"rows": rows, "n": up.n, "k": down.k, "rank": down.n}
        direction = BACKWARD if backward else FORWARD
        reached = not backward or len(op.backward.gemms) == 2 * len(op.forward.gemms)
        dropped: float | None = 0.0
        if op.drops_input and reached:  # older profiles have no reading of it
            dropped = self.readings.seconds("dropout", op.dtype, direction, {"values": rows * down.k})
        found = self.readings.seconds("adapter", op.dtype, direction, sizes)
        if found is not None:
            return found + (dropped or 0.0)
        pair = ({"rows": rows, "n": g.n, "k": g.k} for g in (down, up))
        products = sum(self._matrix("linear", op.dtype, direction, one) for one in pair)
        return products + 2.0 * self._added(op.dtype, rows * up.n) + (dropped or 0.0)

    def _moved(self, op: Op, cost: Cost, extents: Extents) -> float:
        """Return the seconds of an operator without a reading: additions that move as much."""
        launches = max(1.0, cost.launches)
        values = cost.bytes.at(extents) / (ADDED * BYTES.get(op.dtype, 4.0))
        return launches * self._added(op.dtype, values / launches)

    def _added(self, dtype: str, values: float) -> float:
        found = self.readings.seconds("add", dtype, FORWARD, {"values": max(1.0, values)})
        if found is None:
            found = ADDED * BYTES.get(dtype, 4.0) * values / self.readings.bytes_per_s
        return found


def calibrated_by(profile: DeviceProfile, calibration: Calibration) -> Calibration:
    """Return `calibration` with what `profile` has measured; a processor has no driver to hold memory."""
    name = f"device profile of {profile.name}"
    if profile.device == "cpu":
        return calibration._replace(
            name=name, launch_s=0.0, call_s=0.0, wait_s=0.0, context_bytes=0.0, slack_fraction=0.0,
            varied_slack_fraction=0.0, cached_temporaries_ratio=0.0, varied_cached_fraction=0.0,
            memory_interval=CPU_MEMORY_INTERVAL,
            time_interval=CPU_TIME_INTERVAL,
        )  # fmt: skip
    host = profile.host
    return calibration._replace(
        name=name,
        launch_s=host.get("launch_s", calibration.launch_s),
        call_s=host.get("peft_call_s", calibration.call_s),
    )


class _Named(NamedTuple):
    operator: str
    sizes: Sizes


def _named(op: Op, extents: Extents) -> _Named | None:
    """Return which of a profile's operators `op` is, and its sizes; None where it is none of them."""
    name, width = op.path[-1], BYTES.get(op.dtype, 4.0)
    if op.heads:
        return _attention(op, extents, width)
    moved = op.forward.bytes.at(extents)
    if name == "top-k":
        return _Named("router", {"rows": extents.tokens, "experts": moved / (16.0 * extents.tokens)})
    found = _per_value(op, name, moved, extents)
    if found is None:
        return None
    operator, per_value = found
    sizes = {"values": moved / (per_value * (1.0 if operator == "cross_entropy" else width))}
    if operator == "embedding":
        sizes["table"] = op.backward.bytes.const / (2.0 * width)
    return _Named(operator, sizes)


def _per_value(op: Op, name: str, moved: float, extents: Extents) -> tuple[str, float] | None:
    """Return a profile's name of a memory-bound operator, and what the graph moves per value of it.

    That is in values of its dtype; in bytes for the loss, which is in fp32.
    """
    launches = op.forward.launches
    if name == "norm":
        return ("rms_norm", RMS_FORWARD_BYTES / 2) if launches > 1 else ("layer_norm", 2.0)
    if name == "activation":
        backward = op.backward.bytes.at(extents)
        if backward and backward < GATED_RATIO * moved:
            return "gelu", 2.0
        return ("swiglu_fused" if op.path[0] == "moe" else "swiglu"), 5.0
    if name == "dequantise":
        return "nf4_dequantise", 1.0 + QUANTIZED_BYTES["nf4"] / BYTES.get(op.dtype, 4.0)
    if op.kind == "loss":
        return ("cross_entropy", FULL_LOSS_FORWARD_BYTES) if launches > FUSED_LOSS_LAUNCHES else None
    return (OPERATORS[name], PER_VALUE[name]) if name in OPERATORS else None


def _attention(op: Op, extents: Extents, width: float) -> _Named:
    """Return attention's sizes, read back from what it computes and moves."""
    seen, eager = extents.windowed(op.window), op.kind == "attention_eager"
    whole = eager or op.saved_bytes.pair > 0  # nothing skipped under a mask
    channels = op.forward.flops.pair / (2.0 if whole else 1.0)  # of queries and outputs
    shared = op.forward.bytes.token / width - channels  # of keys and values
    kv_heads, head_dim = op.heads * shared / channels, channels / 2.0 / op.heads
    heads = {"heads": op.heads, "kv_heads": kv_heads, "head_dim": head_dim}
    if seen.tokens == seen.sequences:  # one query for each, over keys none of which is hidden
        context = extents.pairs / (2.0 * extents.tokens)
        return _Named("attention_cached", {"sequences": extents.sequences, "context": context, **heads})
    seq_len = seen.pairs / seen.tokens
    sizes = {"sequences": seen.tokens / seq_len, "seq_len": seq_len, **heads}
    return _Named("attention_eager" if eager else "attention_sdpa", sizes)
