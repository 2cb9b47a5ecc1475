"""Answers about what to change: the best plan with its alternatives, single changes, what fits at all.

The fields are those of `--json`, in its order; a plan is given by its machine and by the fields that it
changes of the run, so that one read back from a file is shown as one just found.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from finegauge.answers import Rules
from finegauge.answers.changes import ChangedRun, Current, Exported, changed_run, current
from finegauge.errors import FineGaugeError
from finegauge.planning.plan import Plan, changes
from finegauge.planning.quote import Outcome, Quote
from finegauge.planning.selection import Wanted
from finegauge.planning.whatif import (
    GPUS_OF_A_NODE,
    UNDIVIDED,
    Refused,
    Standing,
    Switch,
    WhatIf,
    standing,
    tried_with,
    with_known_length,
)
from finegauge.prediction.offload import kept_on_host
from finegauge.prediction.predictor import gpu_of, needed, predict
from finegauge.prediction.sharding import share_of
from finegauge.profile import Profile
from finegauge.progress import Heard, told
from finegauge.records import NamedTuple, same
from finegauge.run.run import Run, positions_of

if TYPE_CHECKING:
    from finegauge.formats.writing import Written


@Rules(flat=("outcome",))
class Candidate(NamedTuple):
    """One plan: its machines, what it changes of the run, and what it takes."""

    gpu: str
    num_gpus: int
    num_nodes: int
    provider: str | None
    changes: Mapping[str, Any]
    outcome: Outcome


@Rules(hidden=("needs",), flat=("candidate",))
class Winner(NamedTuple):
    """The plan to take: a candidate with its whole run, its step, its bill, and what its changes need."""

    candidate: Candidate
    run: Mapping[str, Any]
    profile: Profile | None
    quote: Quote | None
    needs: tuple[str, ...] = ()


@Rules(signed=("over_fraction",))
class AlternativePlan(NamedTuple):
    """The best plan with one choice made otherwise, and what stands against it."""

    value: Any
    reason: Literal["beaten", "memory", "time", "budget", "unknown"]
    over_fraction: float | None
    plan: Candidate | None


@Rules(signed=("more_fraction",))
class RaisedLimit(NamedTuple):
    """One limit moved, and the best plan that then is allowed."""

    limit: Literal["memory", "time", "budget", "risk"]
    more_bytes: float
    more_fraction: float
    saves: Literal["cost", "time", "energy"]
    saved_fraction: float
    plan: Candidate


@Rules(signed=("over_fraction",))
class Nearest(NamedTuple):
    """The plan that comes closest where none keeps the limits."""

    limit: Literal["memory", "time", "budget", "unknown"]
    over_fraction: float | None
    plan: Candidate | None


class PlanAnswer(NamedTuple):
    """The best way to do a run; `results` holds the plan to take, nothing where none keeps the limits."""

    run: Run
    wanted: Wanted
    assumed_samples: int | None
    notes: tuple[str, ...]
    base: Current | None
    front: tuple[Candidate, ...]
    num_on_front: int
    alternatives: Mapping[str, tuple[AlternativePlan, ...]]
    relaxations: tuple[RaisedLimit, ...]
    nearest: Nearest | None
    num_candidates: int
    num_evaluated: int
    search_s: float
    exported: Exported | None
    results: tuple[Winner, ...]

    @property
    def winner(self) -> Winner | None:
        """Return the plan to take."""
        return self.results[0] if self.results else None


class WhatIfAnswer(NamedTuple):
    """The run as it is, and with one change after the other, the largest gain first."""

    run: Run
    minimise: Literal["cost", "time", "energy", "memory"]
    spot: bool
    assumed_samples: int | None
    base: Current
    refused: tuple[Refused, ...]
    results: tuple[ChangedRun, ...]


def plan_answer(plan: Plan, written: "Written | None" = None) -> PlanAnswer:
    """Return a plan, with the files that it was written to, if it was."""
    run = plan.run

    def candidate(one: Standing) -> Candidate:
        return Candidate(
            str(one.run.gpu), one.run.num_gpus, one.run.num_nodes, one.run.provider, changes(run, one.run),
            one.outcome,
        )  # fmt: skip

    def maybe(one: Standing | None) -> Candidate | None:
        return None if one is None else candidate(one)

    winner, miss = plan.winner, plan.miss
    whole = (
        ()
        if winner is None
        else (Winner(candidate(winner), winner.run.fields(), plan.profile, plan.quote, plan.asks),)
    )
    figures = {
        "base": None if plan.base is None else current(str(run.gpu), plan.base),
        "front": tuple(map(candidate, plan.front)),
        "alternatives": {
            aspect: tuple(
                AlternativePlan(**same(AlternativePlan, one), plan=maybe(one.candidate)) for one in found
            )
            for aspect, found in plan.alternatives.items()
        },
        "relaxations": tuple(
            RaisedLimit(**same(RaisedLimit, one), plan=candidate(one.candidate)) for one in plan.relaxations
        ),
        "nearest": None if miss is None else Nearest(**same(Nearest, miss), plan=maybe(miss.candidate)),
        "exported": None if written is None else Exported(written.paths, written.command, written.warnings),
        "results": whole,
    }
    return PlanAnswer(**same(PlanAnswer, plan) | figures)


def whatif_answer(found: WhatIf) -> WhatIfAnswer:
    """Return single changes of a run, as the planner found them."""
    base = found.base
    results = tuple(changed_run(found, one) for one in found.variants)
    return WhatIfAnswer(
        base.run, found.minimise, found.spot, found.assumed_samples, current(str(base.run.gpu), base),  # type: ignore[arg-type]
        found.refused, results,
    )  # fmt: skip


COUNTS = (1, 2, 4, 8, 16, 32, 64)


class ScalingPoint(NamedTuple):
    """The run on one number of GPUs."""

    num_gpus: int
    num_nodes: int
    outcome: Outcome
    samples_per_s: float
    efficiency_fraction: float  # 1 with the fewest GPUs


class ScalingAnswer(NamedTuple):
    """The run on 1 to 64 GPUs, and why it cannot have some of these."""

    run: Run
    assumed_samples: int | None
    points: tuple[ScalingPoint, ...]
    refused: tuple[Refused, ...]


def scaling_answer(run: Run) -> ScalingAnswer:
    """Return what `run`, which states its GPU, takes on each number of GPUs."""
    sized, assumed = with_known_length(run)
    base = standing(sized)
    per_node = run.num_gpus // run.num_nodes if run.num_nodes > 1 else GPUS_OF_A_NODE
    found: list[Standing] = []
    refused: list[Refused] = []
    for count in sorted({*COUNTS, run.num_gpus}):
        if count == run.num_gpus:
            found.append(base)
            continue
        nodes = -(-count // per_node)
        fields = {"num_gpus": count, "num_nodes": nodes, **UNDIVIDED}
        one = tried_with(Switch(f"{count} GPUs", "", fields), base)
        if isinstance(one, Refused):
            refused.append(one)
        else:
            found.append(one.standing)
    return ScalingAnswer(run, assumed, tuple(_point(one, found[0]) for one in found), tuple(refused))


def _point(one: Standing, fewest: Standing) -> ScalingPoint:
    of_each, before = _rate(one) / one.run.num_gpus, _rate(fewest) / fewest.run.num_gpus
    run = one.run
    return ScalingPoint(run.num_gpus, run.num_nodes, one.outcome, _rate(one), of_each / before)


def _rate(one: Standing) -> float:
    return one.samples_per_step / one.outcome.step_time_s


# What fits a GPU. Every sequence is taken as long as the length asked about, so that what is safe is safe
# with any data. A micro-batch is safe below a probability of 5 % of running out of memory; it may fit where
# the predicted peak does. Memory rises with both, so that the two borders per length say all.
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


def can_answer(runs: Sequence[Run], heard: Heard | None = None) -> CanAnswer:
    """Return what fits the GPUs of `runs`, one kind each; of a run, its method and batch are left open."""
    return CanAnswer(runs[0], MOST_SEQUENCES, tuple(_on(run, heard) for run in runs))


def _on(run: Run, heard: Heard | None) -> FitsOn:
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
    from finegauge.planning.capacity import max_micro_batch_size

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
