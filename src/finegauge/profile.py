"""One optimizer step of a run: predicted, measured or published.

A `Breakdown` is parts of one quantity, keyed by path, so that "backward", "backward / moe"
and "backward / moe / experts.down_proj" are depths 1, 2 and 3 of one thing. A `Profile`
is three of them (memory, time, energy) with the run, the outcome and the source, and
`compare` holds two Profiles against each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from finegauge.arithmetic import present
from finegauge.records import NamedTuple

if TYPE_CHECKING:
    from finegauge.run.run import Run

Path = tuple[str, ...]

HOST_BOUND_FRACTION = 0.35  # above it, launching kernels is the first thing to say
PART_NAMES = {
    "moe": "the experts",
    "mlp": "the feed-forward layers",
    "attention": "attention",
    "mamba": "the Mamba mixers",
    "head": "the output head",
    "loss": "the loss",
}


class Breakdown:
    """Parts of one quantity by path; parts add up to the total.

    The unit is the name of the field that holds it (`step_time_s`, `peak_memory_bytes`).
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[Path, float]) -> None:
        self.parts: Final = parts

    @classmethod
    def of(cls, **parts: float) -> "Breakdown":
        """Return a breakdown of depth 1."""
        return cls({(name,): value for name, value in parts.items() if present(value)})

    @classmethod
    def add_up(cls, items: Iterable[tuple[Path, float]]) -> "Breakdown":
        """Return the sum of `items`, equal paths together."""
        parts: dict[Path, float] = {}
        for path, value in items:
            parts[path] = parts.get(path, 0.0) + value
        return cls(parts)

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        return sum(self.parts.values())

    @property
    def depth(self) -> int:
        """Return the length of the longest path."""
        return max((len(path) for path in self.parts), default=0)

    def at(self, depth: int) -> "Breakdown":
        """Return the same quantity with paths cut to `depth` names."""
        return Breakdown.add_up((path[:depth], value) for path, value in self.parts.items())

    def under(self, *prefix: str) -> "Breakdown":
        """Return the parts whose path starts with `prefix`, with the prefix removed."""
        n = len(prefix)
        return Breakdown.add_up((path[n:], value) for path, value in self.parts.items() if path[:n] == prefix)

    def __getitem__(self, name: str) -> float:
        """Return the sum of the parts under the first-level `name`; 0 if there is none."""
        total = 0.0
        for path, value in self.parts.items():
            if path[0] == name:
                total = total + value
        return total

    def __iter__(self) -> Iterator[tuple[Path, float]]:
        """Yield (path, value), largest first."""
        return iter(sorted(self.parts.items(), key=itemgetter(1), reverse=True))

    def __add__(self, other: "Breakdown") -> "Breakdown":
        """Return the sum, path by path."""
        parts = dict(self.parts)
        for path, value in other.parts.items():
            parts[path] = parts.get(path, 0.0) + value
        return Breakdown(parts)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Breakdown) and self.parts == other.parts

    def __repr__(self) -> str:
        return f"Breakdown({self.parts})"

    def to_json(self) -> dict[str, float]:
        """Return {"a / b / c": value} with the longest paths, in the order of insertion."""
        return {" / ".join(path): value for path, value in self.parts.items()}


class Interval(NamedTuple):
    """The 10th and 90th percentile of a predicted quantity, as factors of its median."""

    low_ratio: float
    high_ratio: float

    def of(self, median: float) -> tuple[float, float]:
        """Return (p10, p90) of a quantity whose median is `median`."""
        return median * self.low_ratio, median * self.high_ratio


class Source(NamedTuple):
    """The provenance of a profile: predicted, measured or published; by what; how sure."""

    kind: str
    name: str
    memory_interval: Interval | None = None
    time_interval: Interval | None = None
    assumptions: tuple[str, ...] = ()


class Exchange(NamedTuple):
    """The messages of one kind that one rank takes part in during one optimizer step."""

    kind: str  # all_reduce | all_gather | reduce_scatter | all_to_all | send
    group: str  # data | tensor | context | expert | pipeline
    num_per_step: float
    bytes_per_step: float  # of the payloads


class Work(NamedTuple):
    """What one path of a step time computes and moves."""

    flops: float = 0.0
    num_bytes: float = 0.0  # read and written


class Held(NamedTuple):
    """What a rank holds between steps for the models that it trains."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float


class RolloutUse(NamedTuple):
    """What the rollout engine of a run takes of a GPU."""

    engine: str
    gpus: int  # of its own; 0: it shares the trainer's
    memory_fraction: float  # of a GPU's memory
    held_bytes: float
    weights_bytes: float
    cache_bytes: float
    cache_tokens: float
    at_once: int  # answers that a replica runs at once, of the length that they have on average
    answers: int  # that a replica writes in a step
    trainer_bytes: float  # of the fullest GPU, without the engine
    safe_memory_fraction: float | None  # the largest that is not risky; None: none, or it has its own GPUs


class Explanation:
    """What a prediction rests on; empty for profiles that are measured or published."""

    @property
    def formulas(self) -> Mapping[Path, str]:
        """Return how each part of memory and of time is worked out."""
        return {}

    @property
    def exchanged(self) -> Sequence[Exchange]:
        """Return what one rank exchanges in a step, by kind and group, the most bytes first."""
        return ()

    @property
    def work(self) -> Mapping[Path, Work]:
        """Return the work of each path of the step time; nothing for phases that are more than one pass."""
        return {}

    @property
    def held(self) -> Held | None:
        """Return what one rank holds between steps."""
        return None


NOT_EXPLAINED = Explanation()

Estimator = Callable[["Run"], "Profile"]


_NOTHING = Breakdown({})


class Profile(NamedTuple):
    """One optimizer step of a run.

    `phase_memory_bytes` is the live memory at the peak of each phase of the step (path:
    phase, kind); `peak_memory_bytes` is the largest of them by kind, as the torch
    allocator counts it; `device_memory_bytes` adds allocator slack and what lives outside
    the allocator: all that has to fit. nvidia-smi shows `cached_bytes` more, freed blocks
    that the allocator keeps and gives back when memory runs short.

    A measured profile has more: the seconds of every measured step, the machine's
    fingerprint, and what each instrument saw beside, by the instrument's name. A predicted one
    has an `explanation`, which is worked out when somebody reads it.
    """

    run: "Run"
    source: Source
    outcome: str = "completed"  # or out_of_memory, unsupported, failed, interrupted
    reason: str = ""  # why it did not complete
    peak_memory_bytes: Breakdown = _NOTHING
    device_memory_bytes: Breakdown = _NOTHING
    cached_bytes: float = 0.0
    phase_memory_bytes: Breakdown = _NOTHING
    peak_phase: str = ""
    step_time_s: Breakdown = _NOTHING
    step_energy_j: Breakdown = _NOTHING
    step_flops: float = 0.0
    step_tokens: float = 0.0
    step_sequences: float = 0.0
    host_bound_fraction: float = 0.0
    peak_flops_per_s: float = 0.0
    capacity_bytes: float = 0.0
    step_times_s: tuple[float, ...] = ()  # of every measured step, in order; `step_time_s` is their median
    fingerprint: Mapping[str, str] = {}  # device, driver, versions, commit
    observations: Mapping[str, Any] = {}  # by instrument; each a JSON document
    explanation: Explanation = NOT_EXPLAINED  # is neither compared nor stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.run, self.source))

    def memory_bytes(self, metric: str) -> float:
        """Return the peak memory of the fullest GPU as `metric` counts it.

        Unknown is taken for nvidia_smi: a source that does not say how memory was counted mostly looked
        there.
        """
        if metric == "torch_allocated":
            return self.peak_memory_bytes.total
        if metric == "torch_reserved":
            return self.peak_memory_bytes.total + self.device_memory_bytes["slack"] + self.cached_bytes
        return self.device_memory_bytes.total + self.cached_bytes

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second, padding included, over all GPUs."""
        return _rate(self.step_tokens, self.step_time_s.total)

    @property
    def samples_per_s(self) -> float:
        """Return sequences (the seed paper's queries) per second over all GPUs."""
        return _rate(self.step_sequences, self.step_time_s.total)

    @property
    def mfu_fraction(self) -> float:
        """Return the model FLOPs (no recomputation) over what the GPUs' peak would do."""
        return _rate(self.step_flops, self.step_time_s.total * self.peak_flops_per_s * self.run.all_gpus)

    @property
    def waited_fraction(self) -> float:
        """Return the share of a measured step in which other programs had the processor; 0: not known."""
        return float(self.observations.get("timing", {}).get("waited_fraction") or 0.0)

    @property
    def own_step_s(self) -> float:
        """Return the seconds of a step without those in which other programs had the processor."""
        return self.step_time_s.total * (1.0 - self.waited_fraction)

    @property
    def bottleneck(self) -> str:
        """Return one sentence: what most of the step's time goes to, and why."""
        total = self.step_time_s.total
        if not total:
            return "No time is known for this step."
        if self.host_bound_fraction > HOST_BOUND_FRACTION:
            return (
                f"The host: {100 * self.host_bound_fraction:.0f} % of the step the GPU waits for Python to "
                "launch kernels; a larger micro-batch is nearly free."
            )
        shares: dict[str, float] = {}
        for path, seconds in self.step_time_s.parts.items():
            if path[0] == "optimizer":
                name = "the optimizer"
            elif path[-1] == "dequantise":
                name = "dequantising 4-bit weights"
            else:
                name = PART_NAMES.get(path[1], path[1]) if len(path) > 1 else path[0]
            shares[name] = shares.get(name, 0.0) + seconds
        name, seconds = max(shares.items(), key=itemgetter(1))
        mfu, of = 100 * self.mfu_fraction, " of the 16-bit peak" if self.run.fp8 else ""
        return f"{name[0].upper()}{name[1:]}: {100 * seconds / total:.0f} % of the step; MFU {mfu:.0f} %{of}."

    @property
    def fits(self) -> bool:
        """Return whether the step completes within the GPU's usable memory."""
        return self.outcome == "completed"


class Difference(NamedTuple):
    """One quantity at one path, ours against theirs."""

    quantity: str
    path: Path
    ours: float
    theirs: float

    @property
    def error_ratio(self) -> float | None:
        """Return (ours - theirs) / theirs; None where theirs is 0."""
        return (self.ours - self.theirs) / self.theirs if self.theirs else None


def compare(ours: Profile, theirs: Profile) -> list[Difference]:
    """Return the differences between two profiles, at the finest depth that both know.

    A quantity that one of them does not know (an empty breakdown) is left out.
    """
    differences = []
    for quantity in ("peak_memory_bytes", "device_memory_bytes", "step_time_s", "step_energy_j"):
        a: Breakdown = getattr(ours, quantity)
        b: Breakdown = getattr(theirs, quantity)
        depth = min(a.depth, b.depth)
        if not depth:
            continue
        a, b = a.at(depth), b.at(depth)
        differences.append(Difference(quantity, (), a.total, b.total))
        if len(a.parts) > 1 or len(b.parts) > 1:
            paths = dict.fromkeys([*a.parts, *b.parts])
            differences += [Difference(quantity, p, a.parts.get(p, 0.0), b.parts.get(p, 0.0)) for p in paths]
    return differences


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
