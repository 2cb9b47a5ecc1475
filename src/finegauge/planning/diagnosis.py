"""Why a run ran out of memory: its failure held against what it should need at that moment.

At the failure PyTorch held A bytes and asked for T more. A configuration explains that where

    at rest, low  <=  A          what it holds between two steps was there
    A + T  <=  peak, high        that moment can ask for as much
    before, low  <=  room        it gets as far as that moment

with the ends of the prediction's interval of memory. A peak that was counted explains itself by the first
two. What does not is held against the run with one option, of a failure then two, as if not active: the
ones that explain the figures are what the configuration says and the process does not do. Of those that
explain a peak the nearest comes first; of those that explain a failure the ones that have a tensor of the
size that was asked for, and then what is forgotten most often, a larger micro-batch last.

Neglects: options that work in part; a first step's states, which are made at its end, count as there.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from math import inf, log
from typing import Any

from finegauge.data.batch_shape import shape
from finegauge.errors import FineGaugeError
from finegauge.formats.evidence import STAGES, Evidence
from finegauge.planning.whatif import UNDIVIDED
from finegauge.prediction.moments import moments_of
from finegauge.prediction.predictor import gpu_of, needed
from finegauge.prediction.sharding import longest_extents, rank_extents, share_of
from finegauge.profile import Interval, Profile
from finegauge.records import NamedTuple
from finegauge.run.run import Run
from finegauge.units import GIB, MIB

Changes = Mapping[str, Any]
OUTSIDE = ("context", "NCCL", "slack")  # of a device's memory, what PyTorch counts as no tensor
BEFORE = ("load", "resume", *STAGES, "evaluation", "save", "generation")  # in the order of a job
EXACT = Interval(1.0, 1.0)
ORIGIN = "finegauge why --fix"
LARGE_BLOCK = 10 * MIB  # of the allocator, see formats/evidence.py
MOST_TENSORS = 3
SAMPLES = (16, 64, 256, 1024, 4096)  # whose logits an evaluation may have kept when it failed
OTHERS_LEAST = 0.25 * GIB  # of memory beside this process's: less is the driver's
SMALLER_FRACTION = 0.9  # of the stated GPU: a card with less is another one


class Level(NamedTuple):
    """What the run needs at the moment of the failure: as configured, or with options that are not active."""

    without: tuple[str, ...]  # the options, by their fields; micro_batch_size: larger than stated
    changes: Changes
    at_rest_bytes: float  # tensors between two steps
    peak_bytes: float  # tensors at that moment's peak; on the host or the disk, all that it takes there
    explains: bool | None  # the figures; None where there are none


class Held(NamedTuple):
    """A run at one moment: its level without a verdict, and what comes before."""

    profile: Profile
    at_rest_bytes: float
    peak_bytes: float
    before_bytes: float  # the most that the device must hold before that moment

    @property
    def interval(self) -> Interval:
        """Return the interval of the memory."""
        return self.profile.source.memory_interval or EXACT


def diagnosed(run: Run, found: Evidence) -> tuple[Level, ...]:
    """Return the level as configured, then those that explain what it does not, the likeliest first."""
    own = _held(run, found)
    first = _level((), {}, own, found)
    if first.explains is not False or found.failure in ("host_memory", "disk"):
        return (first,)
    singles = list(inactive(run))
    ways = [one for name, changes in singles if (one := _tried(run, (name,), changes, found))]
    if found.moment == "evaluation" and not run.eval_logits:  # as metrics make it, which few know
        kept = ({"eval_logits": True, "eval_samples": n} for n in SAMPLES if n <= (run.eval_samples or inf))
        ways[:0] = islice((one for more in kept if (one := _tried(run, ("eval_logits",), more, found))), 1)
    wanted = observed_bytes(found)
    if not ways and found.failure and wanted > own.peak_bytes:
        for (name, changes), (other, more) in combinations(singles, 2):
            if "micro_batch_size" not in (name, other) and not changes.keys() & more.keys():
                one = _tried(run, (name, other), {**changes, **more}, found)
                ways += [one] if one else []
    if found.peak_bytes:
        ways.sort(key=lambda one: abs(log(one.peak_bytes / wanted)) if one.peak_bytes else inf)
    else:
        ways.sort(key=lambda one: not tensors_of(run.replace(**one.changes), found))
    return first, *ways


def inactive(run: Run) -> Iterator[tuple[str, Changes]]:
    """Return the changes that make the run one in which an option that saves memory is not active."""
    narrow = run.weights_dtype in ("bf16", "fp16") and run.method != "qlora"
    options: tuple[tuple[str, bool, Changes], ...] = (
        ("cpu_offload", run.cpu_offload != "none", {"cpu_offload": "none"}),
        ("sharding", run.sharding != "none" and run.data_parallel > 1,
         {"sharding": "none", "cpu_offload": "none", **UNDIVIDED}),
        ("qlora", run.method == "qlora", {"method": "lora", "weights_dtype": None}),
        ("activation_checkpointing", run.activation_checkpointing != "none",
         {"activation_checkpointing": "none"}),
        ("method", run.method in ("lora", "freeze"), {"method": "full"}),
        ("optimizer", run.optimizer != "adamw", {"optimizer": "adamw"}),
        ("weights_dtype", narrow, {"weights_dtype": "fp32", "autocast": run.weights_dtype}),
        ("optimizer_implementation", run.optimizer_implementation == "in_backward",
         {"optimizer_implementation": "foreach"}),
        ("attention", run.attention != "eager", {"attention": "eager"}),
        ("loss", run.loss != "full_logits" or bool(run.kernels), {"loss": "full_logits", "kernels": ()}),
        ("padding", run.padding == "free", {"padding": "max", "packing": False}),
        ("dataset", run.dataset is not None, {"dataset": None, "padding": "max", "packing": False}),
        *(("micro_batch_size", True, {"micro_batch_size": n * run.micro_batch_size}) for n in (2, 4, 8)),
    )  # fmt: skip
    return ((name, changes) for name, is_stated, changes in options if is_stated)


def _tried(run: Run, without: tuple[str, ...], changes: Changes, found: Evidence) -> Level | None:
    try:
        level = _level(without, changes, _held(run.replace(**changes), found), found)
    except FineGaugeError:  # the rest of the run does not go with it
        return None
    return level if level.explains else None


def _held(run: Run, found: Evidence) -> Held:
    profile = needed(run)
    by_stage = {name: profile.phase_memory_bytes.under(name) for name in STAGES}
    device: dict[str, float] = {}
    places: dict[str, float] = {}
    for moment in moments_of(profile):
        device[moment.moment] = moment.device_bytes
        inside = moment.device_bytes - sum(moment.device_breakdown_bytes[name] for name in OUTSIDE)
        elsewhere = {"host_memory": moment.host_bytes, "disk": moment.disk_bytes}
        places[moment.moment] = elsewhere.get(found.failure, inside)
    outside = sum(profile.device_memory_bytes[name] for name in OUTSIDE)
    if found.process_bytes is not None and found.allocated_bytes is not None:
        outside = max(0.0, found.process_bytes - found.allocated_bytes)
    if found.failure in ("host_memory", "disk"):
        return Held(profile, 0.0, places.get(found.moment) or max(places.values(), default=0.0), 0.0)
    tensors = profile.peak_memory_bytes
    if found.metric:  # a peak of the whole, however it was counted
        return Held(profile, 0.0, profile.memory_bytes(found.metric), 0.0)
    stage = by_stage.get(found.stage)
    if found.moment in ("train", ""):
        peak = stage.total if stage is not None and stage.parts else tensors.total
    else:
        peak = places.get(found.moment, tensors.total)
    early = (found.step or 0) <= 1
    at_rest = tensors["weights"] + (0.0 if early else tensors["optimizer"])
    if found.moment not in ("train", "") or run.rollout_offload != "none":  # elsewhere for a while
        at_rest = 0.0
    reached = BEFORE.index(found.stage or found.moment) if (found.stage or found.moment) in BEFORE else 0
    not_yet = ("optimizer", "gradients") if early else ()
    earlier = [device["load"]] if "load" in device and found.moment not in ("load", "") else []
    for name in STAGES:
        if name in BEFORE[:reached] and by_stage[name].parts:
            earlier.append(by_stage[name].total - sum(by_stage[name][part] for part in not_yet) + outside)
    return Held(profile, at_rest, peak, max(earlier, default=0.0))


def observed_bytes(found: Evidence) -> float:
    """Return the bytes that were needed at least; 0 where no figure tells."""
    if found.peak_bytes:
        return found.peak_bytes
    if found.failure == "host_memory" and found.host_bytes:
        return found.host_bytes
    return found.allocated_bytes + (found.tried_bytes or 0.0) if found.allocated_bytes is not None else 0.0


def _level(without: tuple[str, ...], changes: Changes, held: Held, found: Evidence) -> Level:
    low, high = held.interval
    needed = observed_bytes(found)
    explains: bool | None = None
    if found.peak_bytes:
        explains = low <= needed / held.peak_bytes <= high if held.peak_bytes else None
    elif needed and found.failure == "host_memory":
        explains = needed <= held.peak_bytes * high
    elif needed and found.failure == "device_memory":
        room = found.total_bytes or held.profile.capacity_bytes
        explains = (
            held.at_rest_bytes * low <= (found.allocated_bytes or 0.0)
            and needed <= held.peak_bytes * high
            and held.before_bytes * low <= room
        )
    return Level(without, changes, held.at_rest_bytes, held.peak_bytes, explains)


def moment_of(run: Run, found: Evidence) -> tuple[str, str]:
    """Return the moment and stage at which the run runs out first, for evidence that does not tell."""
    profile = needed(run)
    room = found.total_bytes or profile.capacity_bytes
    for moment in moments_of(profile):
        if moment.device_bytes > room:
            stage = profile.peak_phase if moment.moment == "train" and profile.peak_phase in STAGES else ""
            return moment.moment, stage
    return "train", profile.peak_phase if profile.peak_phase in STAGES else ""


def tensors_of(run: Run, found: Evidence) -> tuple[str, ...]:
    """Return which tensors of the run have the size that was asked for, those of the stage first.

    On a GPU the size is the allocator's: small ones cannot be told apart. A processor's is exact. Of
    generation none is told: its batches and lengths are not the step's.
    """
    tried, on_gpu = found.tried_bytes, found.failure == "device_memory"
    if not tried or (on_gpu and tried <= 2 * LARGE_BLOCK) or found.moment == "generation":
        return ()
    half_digit = 0.005 * (GIB if tried >= GIB else MIB) if on_gpu else 0.0
    names: dict[str, None] = {}
    for name, size in sorted(_sizes(run), key=lambda one: not _suits(one[0], found)):
        asked = -(-size // (2 * MIB)) * 2 * MIB if on_gpu else size
        if abs(asked - tried) <= half_digit:
            names[name] = None
    return tuple(names)[:MOST_TENSORS]


def _suits(name: str, found: Evidence) -> bool:
    if found.tensor and found.tensor.rstrip("s") in name:
        return True
    of_stage = {
        "loss": "logits", "optimizer": "state", "load": "weight", "backward": "gradient", "forward": "output",
    }  # fmt: skip
    return of_stage.get(found.stage or found.moment, "\0") in name


def _sizes(run: Run) -> Iterator[tuple[str, float]]:
    """Yield the large tensors of one rank, with their bytes."""
    share = share_of(run)
    model, weights = share.graph.model, share.graph.weights
    seen = rank_extents(run, longest_extents(shape(run)))
    tokens, rows = seen.tokens, seen.sequences
    vocab, hidden, one = model.vocab_size, model.hidden_size, tokens / rows if rows else 0.0
    shifted, heads = tokens - rows, run.config.get("num_attention_heads")
    values: list[tuple[str, float]] = [
        (f"the logits in {{}}: {tokens:,.0f} tokens x {vocab:,}", tokens * vocab),
        (f"the logits in {{}}: {shifted:,.0f} tokens x {vocab:,}", shifted * vocab),
        (f"the logits in {{}} of one sequence: {one:,.0f} x {vocab:,}", one * vocab),
    ]
    if isinstance(heads, int):
        scores = seen.pairs * heads / run.tensor_parallel
        values.append((f"the attention scores in {{}}: {rows:g} x {heads} heads x {one:,.0f}²", scores))
    values.append((f"hidden states in {{}}: {tokens:,.0f} x {hidden:,}", tokens * hidden))
    linear = {t.name: t for layer, _ in model.layers for t in layer.tensors() if len(t.shape) > 1}
    of_weight = "weight, gradient or optimizer state of"
    for tensor in (*linear.values(), *model.outer_tensors()):
        name = tensor.name.removesuffix(".weight")
        shaped = " x ".join(f"{size:,}" for size in tensor.shape)
        if len(tensor.shape) > 1:
            values.append((f"{of_weight} {name} in {{}}: {shaped}", tensor.size))
        if len(tensor.shape) == 2 and tensor.kind == "linear":
            out = tensor.shape[0]
            values.append((f"the output of {name} in {{}}: {tokens:,.0f} x {out:,}", tokens * out))
    trained = weights.trained_params + weights.adapter_params
    values.append((f"{of_weight} everything that trains, joined, in {{}}", trained))
    for said, width in (("fp32", 4.0), ("16-bit", 2.0)):
        for name, number in values:
            yield name.format(said), number * width
    yield "one layer's weights, gathered", share.layer_bytes
    yield "the weights of embedding and head, gathered", share.outer_bytes


class Room(NamedTuple):
    """What the failure says of the device beside the run's own need."""

    total_bytes: float | None  # of the card that was there, where it is smaller than the one stated
    others_bytes: float | None  # held by other processes
    unallocated_bytes: float | None  # reserved and free in pieces, where it would have been enough


def room_of(run: Run, found: Evidence) -> Room:
    """Return what else took the memory: a smaller card, other processes, fragments."""
    smaller = others = loose = None
    total, tried = found.total_bytes, found.tried_bytes or 0.0
    if total and total < SMALLER_FRACTION * gpu_of(run).usable_bytes:
        smaller = total
    if total and found.free_bytes is not None and found.process_bytes is not None:
        rest = total - found.free_bytes - found.process_bytes
        others = rest if rest > OTHERS_LEAST else None
    if found.failure == "device_memory" and tried and (found.unallocated_bytes or 0.0) >= tried:
        loose = found.unallocated_bytes
    return Room(smaller, others, loose)


def to_fit(run: Run, found: Evidence, levels: tuple[Level, ...]) -> Run:
    """Return the run as it really was, on the memory that there really was: what a change must make fit."""
    first, *ways = levels
    if ways and "eval_logits" not in ways[0].changes:  # which is no part of the run, but of its metrics
        run = run.replace(**ways[0].changes)
    if found.failure == "host_memory":
        return _on_that_host(run, found)
    room, capacity = room_of(run, found), gpu_of(run).usable_bytes
    left = min(capacity, room.total_bytes or capacity) - (room.others_bytes or 0.0)
    needed = observed_bytes(found)
    unexplained = first.explains is False and not ways and needed > first.peak_bytes > 0
    if unexplained and found.moment not in ("load", "resume"):  # which no smaller step makes smaller
        left *= first.peak_bytes / needed
    return run.replace(ORIGIN, free_memory_bytes=max(1e6, left)) if left < capacity else run


def _on_that_host(run: Run, found: Evidence) -> Run:
    if run.host_memory_gib is not None or not found.host_bytes:
        return run
    held = found.host_bytes * run.num_gpus / run.num_nodes / GIB
    return run.replace(ORIGIN, host_memory_gib=max(0.1, held))
