"""The operators of this machine, timed one by one, as a device profile.

Each operator is timed the way training calls it, many uses in a row, at the sizes of a grid and of given
runs; then the host's own costs. What a dtype or a library cannot do here is left out and noted. The number
of threads is fixed throughout and recorded.

The host's costs, what an operator, a module call, a whole layer take at no size at all, are timed on a few
values, so that nothing is left but Python, the dispatcher and autograd. A layer and a model are transformers'
Llama with one layer and with five on two tokens: their difference is a layer's, the rest is the model's; what
readings of their operators say is taken off. That is for processors, whose readings hold the host's calls;
beside a GPU the host runs ahead.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LlamaConfig, LlamaForCausalLM

from finegauge.catalogue.device_profile import NF4_INFERENCE, DeviceProfile, Reading
from finegauge.catalogue.machine import proc_bytes
from finegauge.errors import UnsupportedError
from finegauge.measurement.bench.operators import OPERATORS, lora_linear, nf4_linear
from finegauge.measurement.bench.points import Point, asked_points, compute_dtypes, default_points, in_turns
from finegauge.measurement.bench.timing import (
    Bench,
    Timing,
    Use,
    collective_readings,
    copy_timing,
    timed,
    update_timing,
)
from finegauge.measurement.device import device_name, fingerprint
from finegauge.measurement.weights import repacks_for_inference
from finegauge.progress import Heard, Progress
from finegauge.run.run import Run

MEMINFO = "/proc/meminfo"  # whose MemAvailable is Linux's estimate of what needs no swapping
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def full_name(device: torch.device) -> str:
    """Return what the device calls itself; a processor with the threads that work on it."""
    threads = torch.get_num_threads()
    with_threads = f", {threads} thread{'s' if threads > 1 else ''}" if device.type == "cpu" else ""
    return f"{device_name(device)}{with_threads}"


def memory_bytes(device: torch.device) -> tuple[float, float]:
    """Return the bytes that the device has and those that a process could still allocate now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return float(total), float(free)
    physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    capacity = min([physical, *map(_limit_bytes, LIMITS)])
    return capacity, min(capacity, proc_bytes("MemAvailable", MEMINFO) or capacity)


def _limit_bytes(path: Path) -> float:
    with suppress(OSError, ValueError):
        return float(path.read_text("ascii"))
    return inf


COPIES = ("copy", "to_device", "to_host")
SLOW_RATIO = 4.0  # a dtype whose products take so much longer than fp32's has no arithmetic of its own here
TRIAL = {"rows": 128, "n": 256, "k": 256}
ADAMW_BYTES = 28.0  # per fp32 parameter: weight, gradient and two moments read, all but the gradient written


def micro(
    runs: Sequence[Run] = (),
    *,
    device: str = "cpu",
    threads: int = 0,
    ranks: int = 0,
    within_s: float = 0.0,
    heard: Heard | None = None,
) -> DeviceProfile:
    """Return this machine's device profile.

    Args:
        runs: What else to time: the operators of these runs at their own sizes, halves and doubles.
        device: "cpu" or "cuda".
        threads: Of the host's arithmetic; 0 leaves torch's own choice.
        ranks: Processes between which collectives are timed too; 0: none.
        within_s: Seconds after which no further point is begun; by turns over all operators. 0: no end.
        heard: Told before each operator.

    Raises: UnsupportedError if there is no such device, or too few of them for `ranks`.
    """
    place = _place(device)
    notes: list[str] = []
    with _quiet(threads):
        dtypes = _dtypes(place, notes, compute_dtypes(runs))
        benches = {dtype: Bench(place, dtype) for dtype in dtypes}
        points = [(dtype, point) for dtype in dtypes for point in _points(runs, device, dtype)]
        found = collective_readings(device, ranks) if ranks else []
        found += _all_readings(benches, points, within_s, heard, notes)
        host = host_costs(Bench(place, "fp32"), notes)
        total, usable = memory_bytes(place)
        return DeviceProfile(
            name=full_name(place),
            device=device,
            memory_bytes=total,
            usable_bytes=usable,
            memory_bytes_per_s=_copy_rate(found),
            flops_per_s={dtype: rate for dtype in dtypes if (rate := _product_rate(found, dtype))},
            threads=torch.get_num_threads(),
            readings=tuple(found),
            host=host,
            fingerprint=fingerprint(place),
            notes=tuple(dict.fromkeys(notes)),
        )


def _all_readings(
    benches: Mapping[str, Bench],
    points: Sequence[tuple[str, Point]],
    within_s: float,
    heard: Heard | None,
    notes: list[str],
) -> list[Reading]:
    found: list[Reading] = []
    ends_s = perf_counter() + within_s if within_s else inf
    for i, (dtype, point) in enumerate(in_turns(points) if within_s else points):
        if i and perf_counter() > ends_s:
            notes.append(f"{len(points) - i} of {len(points)} points were left out: {within_s:g} s were over")
            break
        if heard is not None:
            heard(Progress(f"{point.operator} {dtype}", i, len(points)))
        found += _readings(benches[dtype], dtype, point, notes)
    return found


def _place(device: str) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(
            "torch finds no CUDA device here; use --device cpu, or install torch for CUDA."
        )
    if device not in ("cpu", "cuda"):
        raise UnsupportedError(f"micro times cpu and cuda, not '{device}'.")
    return torch.device(device)


@contextmanager
def _quiet(threads: int) -> Iterator[None]:
    """Fix the number of threads; keep the garbage collector and transformers' advice out of the readings."""
    import gc

    from transformers.utils import logging

    spoken = logging.get_verbosity()
    logging.set_verbosity_error()
    before, collecting = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads or before)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        logging.set_verbosity(spoken)
        if collecting:
            gc.enable()


def _dtypes(place: torch.device, notes: list[str], asked: Sequence[str]) -> list[str]:
    """Return the dtypes to time: those `asked` for, and those that training uses on this device."""
    usual = ["fp32"]
    if place.type == "cuda":
        usual = ["bf16" if torch.cuda.is_bf16_supported() else "fp16", "fp32"]
    elif "bf16" not in asked:
        ratio = _trial_s(place, "bf16") / _trial_s(place, "fp32")
        if ratio < SLOW_RATIO:
            usual.append("bf16")
        else:
            notes.append(
                f"bf16 is left out: a product takes {ratio:.0f} times as long as in fp32 on this processor"
            )
    return list(dict.fromkeys([*usual, *asked]))


def _trial_s(place: torch.device, dtype: str) -> float:
    bench = Bench(place, dtype)
    make = partial(OPERATORS["linear"].make, bench, **TRIAL)
    return timed(make, bench, ("backward",)).directions["forward"].seconds


def _points(runs: Sequence[Run], device: str, dtype: str) -> list[Point]:
    """Return what is timed in one dtype: the grid, and what the runs ask for beside it."""
    points = {(point.operator, *point.sizes.items()): point for point in default_points(device)}
    for point in asked_points(runs, dtype):
        points.setdefault((point.operator, *point.sizes.items()), point)
    repacked = repacks_for_inference(torch.device(device))
    return [point for point in points.values() if repacked or point.operator != NF4_INFERENCE]


def _readings(bench: Bench, dtype: str, point: Point, notes: list[str]) -> list[Reading]:
    """Return the readings of one operator at one size, none (and a note) if it does not run here."""
    operator, sizes = point
    try:
        if operator in OPERATORS:
            return _use_readings(bench, dtype, point)
        if operator in COPIES:
            num_bytes = sizes["bytes"]
            timing = copy_timing(bench, operator, num_bytes=num_bytes)
            moved = num_bytes * (2.0 if operator == "copy" else 1.0)
            direction = "forward" if operator == "copy" else "transfer"
            return [_reading(point, dtype, direction, timing, moved=moved)]
        timing = update_timing(bench, operator, **sizes)
        moved = (ADAMW_BYTES if operator != "clip" else 12.0) * sizes["params"] * bench.dtype.itemsize / 4
        return [_reading(point, dtype, "update", timing, moved=moved)]
    except (ImportError, RuntimeError, ValueError) as error:
        notes.append(f"{operator} {dtype}: {str(error).splitlines()[0][:200]}")
        return []


def _use_readings(bench: Bench, dtype: str, point: Point) -> list[Reading]:
    kind = OPERATORS[point.operator]
    result = timed(partial(kind.make, bench, **point.sizes), bench, kind.directions)
    work = kind.flops(**point.sizes) if kind.flops else 0.0
    read = result.output_bytes if kind.looks_up else result.input_bytes + result.weight_bytes
    readings = []
    for direction, timing in result.directions.items():
        passes = 2.0 if direction == "backward" else 1.0
        moved = passes * (read + result.output_bytes)
        readings.append(_reading(point, dtype, direction, timing, flops=passes * work, moved=moved))
    return readings


def _reading(
    point: Point, dtype: str, direction: str, timing: Timing, *, flops: float = 0.0, moved: float
) -> Reading:
    return Reading(point.operator, dtype, direction, dict(point.sizes), *timing, flops=flops, bytes=moved)


def _copy_rate(readings: Iterable[Reading]) -> float:
    """Return the bytes per second, read and written, of the largest copy; 0 where none was read."""
    copies = [one for one in readings if one.operator == "copy"]
    return max(((one.bytes, one.bytes / one.seconds) for one in copies), default=(0.0, 0.0))[1]


def _product_rate(readings: Iterable[Reading], dtype: str) -> float:
    """Return the FLOP/s of the best matrix product in `dtype`; 0 where none was read."""
    products = (one for one in readings if one[:3] == ("linear", dtype, "forward"))
    return max((one.flops / one.seconds for one in products), default=0.0)


CALLS = 400
MODULE_CALLS = 40
MODEL_CALLS = 10
MORE_LAYERS = 4
BLOCKS = 7

TOKENS, WIDTH, HEADS, VOCAB = 2, 16, 2, 16  # of the tiny model
ROWS = {"rows": TOKENS, "width": WIDTH}
HEAD_SIZES = {"heads": HEADS, "kv_heads": HEADS, "head_dim": WIDTH // HEADS}
SQUARE = {"rows": TOKENS, "n": WIDTH, "k": WIDTH}
LAYER = (
    (2, "rms_norm", ROWS),
    (7, "linear", SQUARE),
    (1, "rotary", {"sequences": 1, "seq_len": TOKENS, **HEAD_SIZES}),
    (1, "attention_sdpa", {"sequences": 1, "seq_len": TOKENS, **HEAD_SIZES}),
    (1, "swiglu", ROWS),
    (2, "add", ROWS),
)
MODEL = (
    (1, "embedding", {**ROWS, "vocab": VOCAB}),
    (1, "rms_norm", ROWS),
    (1, "linear", SQUARE),
    (1, "cross_entropy", {"rows": TOKENS, "vocab": VOCAB}),
)


def host_costs(bench: Bench, notes: list[str]) -> dict[str, float]:
    """Return the host's seconds by the names of `HOST_COSTS`; `notes` gets what could not be measured."""
    costs = {**_launches(bench), "call_s": _call_s(bench)}
    plain = _use_s(bench, OPERATORS["linear"].make, rows=1, n=16, k=16)
    for prefix, make, sizes in (
        ("peft", lora_linear, {"rows": 1, "n": 16, "k": 16, "rank": 4}),
        ("nf4", nf4_linear, {"rows": 1, "n": 64, "k": 64}),
    ):
        try:
            forward_s, backward_s = _use_s(bench, make, **sizes)
        except (ImportError, RuntimeError) as error:
            notes.append(f"{prefix}_call_s: {error}")
            continue
        costs[f"{prefix}_call_s"] = max(forward_s - plain[0], 0.0)
        if prefix == "peft":
            costs["peft_backward_s"] = max(backward_s - plain[1], 0.0)
    return {**costs, **_model_costs(bench)} if bench.device.type == "cpu" else costs


def _model_costs(bench: Bench) -> dict[str, float]:
    """Return what a layer and a model take beyond their operators, and what checkpointing adds to a layer."""
    one, several = _model_s(bench, 1), _model_s(bench, 1 + MORE_LAYERS)
    in_layer, in_model = _operators_s(bench, LAYER), _operators_s(bench, MODEL)
    layer = [(many - single) / MORE_LAYERS for single, many in zip(one, several, strict=True)]
    again = _model_s(bench, 1, checkpointing=True), _model_s(bench, 1 + MORE_LAYERS, checkpointing=True)
    checkpointed = [(many - single) / MORE_LAYERS for single, many in zip(*again, strict=True)]
    costs = {"token_s": _token_s(bench)}
    for i, direction in enumerate(("forward", "backward")):
        recomputed_s = layer[0] if direction == "backward" else 0.0
        costs[f"layer_rest_{direction}_s"] = max(layer[i] - in_layer[i], 0.0)
        costs[f"model_rest_{direction}_s"] = max(one[i] - layer[i] - in_model[i], 0.0)
        costs[f"checkpoint_{direction}_s"] = max(checkpointed[i] - layer[i] - recomputed_s, 0.0)
    return costs


def _token_s(bench: Bench) -> float:
    model = _tiny_llama(bench, 1).eval()
    model.generation_config.eos_token_id = None  # no token ends an answer
    tokens = torch.ones(1, TOKENS, dtype=torch.int64, device=bench.device)
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"  # before 5.24
    past: dict[str, Any] = {name: DynamicCache()}

    def write(count: int) -> None:
        asked = GenerationConfig(max_new_tokens=count, do_sample=True, top_k=0, pad_token_id=0)
        with torch.no_grad():
            model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=asked)

    def read(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(input_ids=tokens[:, :1], **past)

    few, many = (count * _quickest(bench, count, write) for count in (1, 1 + MODULE_CALLS))
    return max((many - few) / MODULE_CALLS - _quickest(bench, MODEL_CALLS, read), 0.0)


def _operators_s(
    bench: Bench, operators: Iterable[tuple[int, str, Mapping[str, int]]]
) -> tuple[float, float]:
    """Return the seconds, forward and backward, that readings give operators which a model calls so often."""
    forward_s = backward_s = 0.0
    for times, name, sizes in operators:
        make = partial(OPERATORS[name].make, bench, **sizes)
        directions = timed(make, bench, ("backward",), repeats=BLOCKS).directions
        forward_s += times * directions["forward"].seconds
        backward_s += times * directions["backward"].seconds
    return forward_s, backward_s


def _quickest(bench: Bench, calls: int, block: Callable[[int], Any]) -> float:
    block(calls)
    times = []
    for _ in range(BLOCKS):
        start = bench.now()
        block(calls)
        times.append(bench.now() - start)
    return min(times) / calls


def _launches(bench: Bench) -> dict[str, float]:
    """Return the seconds of a small operator with autograd, without, and of its backward."""
    x, one = torch.ones(16, device=bench.device), torch.ones(16, device=bench.device)
    recorded: Tensor = torch.ones(16, device=bench.device, requires_grad=True)

    def forward(calls: int) -> Tensor:
        y = recorded
        for _ in range(calls):
            y = y + one
        return y

    def both(calls: int) -> None:
        forward(calls).backward(one)
        recorded.grad = None

    def unrecorded(calls: int) -> None:
        y = x
        with torch.no_grad():
            for _ in range(calls):
                y = y + one

    forward_s = _quickest(bench, CALLS, forward)
    return {
        "launch_s": forward_s,
        "launch_no_grad_s": _quickest(bench, CALLS, unrecorded),
        "backward_s": max(_quickest(bench, CALLS, both) - forward_s, 0.0),
    }


def _call_s(bench: Bench) -> float:
    module, x = torch.nn.Identity(), torch.ones(1)

    def calls(count: int) -> None:
        for _ in range(count):
            module(x)

    return _quickest(bench, CALLS, calls)


def _use_s(bench: Bench, make: Callable[..., Use], **sizes: int) -> tuple[float, float]:
    use = make(bench, **sizes)
    leaves = (*use.inputs, *use.weights)
    for leaf in leaves:
        leaf.requires_grad_()
    return _both_ways(bench, use.forward, leaves, MODULE_CALLS)


def _model_s(bench: Bench, layers: int, *, checkpointing: bool = False) -> tuple[float, float]:
    """Return the host's seconds of a tiny Llama's forward with its loss, and of its backward."""
    model = _tiny_llama(bench, layers).train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    tokens = torch.ones(1, TOKENS, dtype=torch.int64, device=bench.device)
    leaves = tuple(model.parameters())
    return _both_ways(bench, lambda: model(input_ids=tokens, labels=tokens).loss, leaves, MODEL_CALLS)


def _tiny_llama(bench: Bench, layers: int) -> Any:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        use_cache=False,
    )
    model: Any = LlamaForCausalLM(config).to(bench.device)
    return model


def _both_ways(
    bench: Bench, forward: Callable[[], Tensor], leaves: Iterable[Tensor], calls: int
) -> tuple[float, float]:
    gradient = torch.ones_like(forward())
    forwards, backwards = [], []
    for _ in range(1 + BLOCKS):
        forward_s = backward_s = 0.0
        for _ in range(calls):
            start = bench.now()
            output = forward()
            between = bench.now()
            output.backward(gradient)
            backward_s += bench.now() - between
            forward_s += between - start
            for leaf in leaves:
                leaf.grad = None
        forwards.append(forward_s / calls)
        backwards.append(backward_s / calls)
    return min(forwards), min(backwards)
