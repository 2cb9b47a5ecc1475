"""What fits a GPU; a run as it is and with single changes, and the changes that make it fit.

Where what fits is asked (methods, micro-batches, lengths), every sequence is taken as long as the length
asked about, so that what is safe is safe with any data. A micro-batch is safe below a probability of 5 % of
running out of memory; it may fit where the predicted peak does. Memory rises with both, so that the two
borders per length say all.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from finegauge.answers import Rules
from finegauge.errors import FineGaugeError
from finegauge.planning.capacity import max_micro_batch_size
from finegauge.prediction.offload import kept_on_host
from finegauge.prediction.predictor import gpu_of, needed, predict
from finegauge.prediction.sharding import share_of
from finegauge.prediction.uncertainty import Verdict, verdict
from finegauge.records import NamedTuple, same
from finegauge.run.run import Run, positions_of

if TYPE_CHECKING:
    from finegauge.planning.advice import Advice
    from finegauge.planning.whatif import Standing, Variant, WhatIf
    from finegauge.progress import Heard


class Outcome(NamedTuple):
    """What a run takes from start to end, and whether it fits."""

    verdict: Verdict
    device_memory_bytes: float
    capacity_bytes: float
    out_of_memory_fraction: float
    step_time_s: float
    wall_s: float
    on_demand_usd: float | None
    spot_usd: float | None
    wall_energy_j: float | None
    emissions_kg: float | None

    def usd(self, *, spot: bool) -> float | None:
        """Return the dollars of the whole run, on spot instances or on demand."""
        return self.spot_usd if spot else self.on_demand_usd

    @property
    def lacking_bytes(self) -> float:
        """Return the memory that is missing."""
        return max(0.0, self.device_memory_bytes - self.capacity_bytes)


@Rules(flat=("outcome",))
class Current(NamedTuple):
    """What the run takes as it is."""

    gpu: str
    samples_per_step: float
    outcome: Outcome


@Rules(signed=("cost", "time", "energy", "memory"))
class Objectives(NamedTuple):
    """By what share a change moves each figure: -0.2 is a fifth less."""

    cost: float | None
    time: float | None
    energy: float | None
    memory: float | None


@Rules(hidden=("gains", "helps"), flat=("outcome",))
class ChangedRun(NamedTuple):
    """The run with one change: its fields, what it needs in return, and what it then takes."""

    switch: str
    changes: Mapping[str, Any]
    breaks: tuple[str, ...]
    samples_per_step: float
    outcome: Outcome
    change_fraction: Objectives
    gains: bool = False  # saves anything that is worth a line
    helps: bool = False  # leaves a run that works, or one that is nearer to it


class AdviceAnswer(NamedTuple):
    """What makes a run safe that is not: changes that alone do, the one that costs least first."""

    ways: tuple[ChangedRun, ...]
    together: ChangedRun | None  # several changes on the same GPUs, where no single one does
    smallest: ChangedRun | None  # hardware, where nothing on the same GPUs or no other kind of them does


class Fixed(NamedTuple):
    """A run written with the change that makes it fit, in the files of a framework."""

    change: ChangedRun
    framework: str
    paths: tuple[str, ...]  # the training file first
    command: str  # starts the training
    warnings: tuple[str, ...]  # what the framework cannot say


def advice_answer(advice: "Advice") -> AdviceAnswer:
    """Return what makes a run safe, as the planner found it."""

    def maybe(one: "Variant | None") -> ChangedRun | None:
        return None if one is None else changed_run(advice.found, one)

    ways = tuple(changed_run(advice.found, one) for one in advice.found.variants)
    return AdviceAnswer(ways, maybe(advice.together), maybe(advice.smallest))


def fixed_run(run: Run, advice: "Advice", folder: str, *, recipe: str, overwrite: bool) -> Fixed | None:
    """Write `run`, read from `recipe`, with the cheapest change that makes it fit; None where none does.

    Raises: InputError where files are there already.
    """
    from finegauge.planning.advice import fix

    done = fix(run, advice, folder, recipe=recipe, overwrite=overwrite)
    if done is None:
        return None
    files, change = done.written, changed_run(advice.found, done.variant)
    return Fixed(change, done.framework, files.paths, files.command, files.warnings)


def changed_run(found: "WhatIf", one: "Variant") -> ChangedRun:
    """Return a run with one change, beside the run as it is."""
    chance = one.standing.out_of_memory_fraction
    return ChangedRun(
        **same(ChangedRun, one),
        samples_per_step=one.standing.samples_per_step,
        outcome=outcome(one.standing),
        change_fraction=Objectives(*(found.change_fraction(one, name) for name in Objectives._fields)),
        gains=found.gains(one),
        helps=not one.standing.fails or chance < found.base.out_of_memory_fraction,
    )


def current(gpu: str, one: "Standing") -> Current:
    """Return what a run takes as it is."""
    return Current(gpu, one.samples_per_step, outcome(one))


def outcome(one: "Standing") -> Outcome:
    """Return what a run takes, as the planner found it."""
    return Outcome(
        verdict(one.out_of_memory_fraction), one.memory_bytes, one.capacity_bytes, one.out_of_memory_fraction,
        one.step_time_s, one.wall_s, one.usd, one.spot_usd, one.energy_j, one.emissions_kg,
    )  # fmt: skip


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
MOST_SEQUENCES = 64
ORIGIN = "what fits"
_WHOLE: dict[str, Any] = {"sharding": "none", "cpu_offload": "none"}
_FSDP: dict[str, Any] = {"sharding": "fsdp", "cpu_offload": "none"}
_FUSED: dict[str, Any] = {"loss": "fused"}  # beside the trainer's own kernels
_OFFLOADED: dict[str, Any] = {"sharding": "zero3", "cpu_offload": "all"}


class FitsAt(NamedTuple):
    """How many sequences of one length a GPU takes at a time; 0: not even one."""

    seq_len: int
    safe_micro_batch_size: int
    max_micro_batch_size: int  # that may fit


class FitsWith(NamedTuple):
    """What fits with one method."""

    method: str
    sharding: str
    cpu_offload: str
    kernels: tuple[str, ...]  # fused ones, the loss among them: Unsloth's on one GPU, Liger's on several
    lengths: tuple[FitsAt, ...]
    host_bytes: float | None  # of the host memory of a node; None where nothing is offloaded
    tokens_per_s: float | None  # of all GPUs, at the run's seq_len and the largest safe micro-batch
    reason: str  # why there is no answer; "" where there is one


class FitsOn(NamedTuple):
    """What fits one kind of GPU."""

    gpu: str
    num_gpus: int
    capacity_bytes: float
    methods: tuple[FitsWith, ...]


class CanAnswer(NamedTuple):
    """Which methods, micro-batches and lengths fit, once per GPU."""

    run: Run
    limit: int  # no larger micro-batch was tried
    results: tuple[FitsOn, ...]


def can_answer(runs: Sequence[Run], heard: "Heard | None" = None) -> CanAnswer:
    """Return what fits the GPUs of `runs`, one kind each; of a run, its method and batch are left open."""
    return CanAnswer(runs[0], MOST_SEQUENCES, tuple(_on(run, heard) for run in runs))


def _on(run: Run, heard: "Heard | None") -> FitsOn:
    from finegauge.progress import told

    lengths, ways = _lengths(run), _ways(run)
    found = [_with(run, *ways[number], lengths) for number in told(heard, "methods", len(ways))]
    found = [way for way in found if not (way.kernels and way.reason)]  # none for this model
    return FitsOn(str(run.gpu), run.num_gpus, gpu_of(run).usable_bytes, tuple(found))


def _ways(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """Return methods, the smallest first, each as whole copies and divided over the GPUs where it can be."""
    places = (_WHOLE, _FSDP) if run.num_gpus > 1 else (_WHOLE,)
    fused = {**places[-1], **_FUSED, "kernels": ("unsloth",) if run.num_gpus == 1 else ("liger",)}
    adapters = [(method, place) for method in ("qlora", "lora") for place in (*places, fused)]
    return [*adapters, ("full", places[-1]), ("full", _OFFLOADED)]


def _lengths(run: Run) -> list[int]:
    """Return the lengths to ask about: up to what the model has positions for, the run's own among them."""
    most = positions_of(run.config) or LENGTHS[-1]
    return sorted({run.seq_len, *(length for length in LENGTHS if length <= most)})


def _with(run: Run, method: str, place: dict[str, Any], lengths: Sequence[int]) -> FitsWith:
    way = method, place["sharding"], place["cpu_offload"], place.get("kernels", ())
    try:
        asked = run.replace(
            ORIGIN, method=method, dataset=None, micro_batch_size=1, gradient_accumulation_steps=1,
            data_parallel_replicate=None, data_parallel_shard=None, **place,
        )  # fmt: skip
        known = lru_cache(maxsize=None)(needed)  # both borders lie close: most steps are predicted twice
        borders = {
            length: max_micro_batch_size(asked.replace(ORIGIN, seq_len=length), known, limit=MOST_SEQUENCES)
            for length in lengths
        }
        fits = tuple(FitsAt(length, one.safe_value, one.value) for length, one in borders.items())
        safe = borders[run.seq_len].safe_value
        rate = predict(asked.replace(ORIGIN, micro_batch_size=safe)).tokens_per_s if safe else None
    except FineGaugeError as error:
        return FitsWith(*way, (), None, None, str(error))
    host_bytes = None
    if place["cpu_offload"] != "none":
        per_node = asked.num_gpus // asked.num_nodes
        host_bytes = kept_on_host(asked, share_of(asked)).total * per_node
    return FitsWith(*way, fits, host_bytes, rate, "")
