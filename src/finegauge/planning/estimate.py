"""The whole answer about one run on one GPU: one step, the room that is left, the bill, every batch of it.

This is what `finegauge estimate` and `finegauge check` show. Whether a run survives its whole data set is
worked out from its own batches, those of a file's samples, not from an average one. An error of the
prediction is the model's, so it is the same for all batches of a run:

    P(some batch runs out of memory) = max over batches of P(this batch does)

Between predictions, memory is taken as a line in the tokens of a batch. It rises ever faster with them,
or evenly, so that this is never too little.

Neglects: batches of another seed than the framework's default; fragmentation that grows over a run.

The grid of what fits over micro-batch and sequence length: the pairs of one graph are arrays to the
functions that predict a single run, as in a search, and the same numbers come out: 150 pairs take some 30
ms, one after the other 130. Whether a pair survives evaluation, a save and the rest of its job is asked pair
by pair, and only where its step may fit.

One by one, and fewer: phases of more than passes of training, devices known by their readings. Neglects: the
graph of a model with windows changes where sequences outgrow them, so that each graph is priced apart.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from finegauge.data.batch_shape import BatchShape, epoch_of, epochs_drawn, shape_of_samples
from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.model.graph import build
from finegauge.planning.capacity import Capacity, max_micro_batch_size, safe_memory_utilization, unit_within
from finegauge.planning.quote import Quote, quote
from finegauge.prediction.calibration import current
from finegauge.prediction.device import Device
from finegauge.prediction.moments import Moment, Shortage, moments_of, shortages
from finegauge.prediction.predictor import device_of, needed, predict, predict_steps
from finegauge.prediction.time import TRAINED
from finegauge.prediction.uncertainty import (
    RISKY_FROM_FRACTION,
    WILL_NOT_FIT,
    Verdict,
    exceeding_fraction,
    probability_out_of_memory,
    verdict,
)
from finegauge.profile import Estimator, Profile, RolloutUse
from finegauge.records import NamedTuple
from finegauge.run.rules import RL
from finegauge.run.run import Run
from finegauge.units import GIB

if TYPE_CHECKING:
    from finegauge.data.packing import Batches
    from finegauge.data.token_lengths import Lengths

READ_AS_THEY_ARE = ("sft", "pretrain", "evaluate")  # phases whose batches are the data set's own sequences
PREDICTED = 48  # batches of different size whose memory is predicted; the others lie on lines between
WORST = 10
SAMPLES_NAMED = 10


class Estimate(NamedTuple):
    """One run on one GPU: its step, its largest micro-batch, its bill."""

    profile: Profile
    out_of_memory_fraction: float  # the probability that the run runs out of memory
    capacity: Capacity
    quote: Quote
    moments: tuple[Moment, ...] = ()  # of the whole job
    shortage: Shortage | None = None  # the first moment that needs more than there is
    rollout: RolloutUse | None = None  # the engine beside the trainer

    @property
    def run(self) -> Run:
        """Return the run that is estimated."""
        return self.profile.run

    @property
    def verdict(self) -> Verdict:
        """Return fits, risky or will_not_fit."""
        return verdict(self.out_of_memory_fraction)


def estimate(run: Run, estimator: Estimator | None = None, *, at_max_batch: bool = False) -> Estimate:
    """Return the whole answer about `run`, which states its GPU.

    `at_max_batch` asks about the largest micro-batch that is safe, where none is about the largest that may
    fit.
    """
    ask: Estimator = cache(estimator or predict)
    own = ask(run)  # before the search, so that it keeps the run's own origins

    def memory(asked: Run) -> Profile:
        return own if asked == run else needed(asked)

    capacity = max_micro_batch_size(run, ask if estimator else memory)
    largest = capacity.safe_profile or capacity.profile
    profile = ask(largest.run) if largest and at_max_batch else own
    bill = quote(profile.run, profile)
    whole = of_all_moments(profile, bill)._asdict()
    return Estimate(profile, capacity=capacity, quote=bill, rollout=_rollout(profile, ask), **whole)


def _rollout(profile: Profile, ask: Estimator) -> RolloutUse | None:
    if profile.run.phase not in RL:
        return None
    from finegauge.prediction.rollout import rollout_use

    return rollout_use(profile, safe_memory_utilization(profile.run, ask))


class OfAllMoments(NamedTuple):
    """Whether a job survives all its moments, those beside the steps too."""

    out_of_memory_fraction: float
    moments: tuple[Moment, ...]
    shortage: Shortage | None


def of_all_moments(profile: Profile, bill: Quote) -> OfAllMoments:
    """Return whether the job whose step is `profile` survives all its moments."""
    moments = moments_of(profile)
    shortage = _shortage(profile, moments, bill)
    chances = (_chance(profile, one, shortage) for one in moments)
    return OfAllMoments(max(probability_out_of_memory(profile), *chances), moments, shortage)


def _shortage(profile: Profile, moments: Sequence[Moment], bill: Quote) -> Shortage | None:
    """Return the first moment that needs more than the GPU, its host or the disk have.

    Host memory that the run does not state is the most that an instance of the catalogue has.
    """
    run = profile.run
    known = [one.offer.ram_bytes for one in bill.offers if one.offer and one.offer.ram_bytes]
    host = run.host_memory_gib * GIB if run.host_memory_gib else max(known, default=None)
    disk = run.disk_gib * GIB if run.disk_gib else None
    return next(shortages(moments, profile.capacity_bytes, host, disk), None)


def _chance(profile: Profile, moment: Moment, shortage: Shortage | None) -> float:
    if shortage is not None and shortage.what != "device":
        return 1.0
    interval, needed = profile.source.memory_interval, moment.device_bytes
    if moment.moment == "train" or interval is None or needed <= 0 or profile.capacity_bytes <= 0:
        return 0.0
    return exceeding_fraction(needed, profile.capacity_bytes, interval)


def estimates(
    runs: Sequence[Run], estimator: Estimator | None = None, *, at_max_batch: bool = False
) -> tuple[list[Estimate], dict[str, str]]:
    """Return the whole answer about each of `runs`, and by GPU why there is none.

    Raises: UnsupportedError where none has an answer.
    """
    found, unsupported = [], {}
    for run in runs:
        try:
            found.append(estimate(run, estimator, at_max_batch=at_max_batch))
        except UnsupportedError as error:
            unsupported[str(run.gpu)] = str(error)
    if not found:
        raise UnsupportedError(next(iter(unsupported.values())))
    return found, unsupported


class Offender(NamedTuple):
    """A sample that makes a batch large."""

    sample: int  # place among the samples, from 0
    row: int  # line or record of the file, from 1
    tokens: int  # trained of it, after the cut-off


class RiskyBatch(NamedTuple):
    """One of the largest micro-batches of a run."""

    epoch: int  # from 1
    step: int  # of the run, from 1
    tokens: int  # padding included
    memory_bytes: float
    out_of_memory_fraction: float
    offenders: tuple[Offender, ...]  # its longest samples, the longest first


class WholeRun(NamedTuple):
    """A run over every batch that it will make."""

    out_of_memory_fraction: float
    num_steps: int  # looked at: those of the epochs drawn, no more than the run takes
    steps_at_risk: int  # in which some micro-batch is risky
    first_at_risk: int | None  # the first such step, from 1
    worst: tuple[RiskyBatch, ...]
    safe_seq_len: int | None  # the longest cut-off at which no batch is risky; None: as it is, or none found
    too_long: tuple[Offender, ...]  # samples beyond it, the longest first
    num_too_long: int
    verdict: Verdict


def whole_run(run: Run, lengths: "Lengths") -> WholeRun | None:
    """Return what becomes of `run` on its GPU over all batches of its samples.

    None where no GPU is named, or the phase makes other batches of the samples than they are.
    """
    if run.gpu is None or run.phase not in READ_AS_THEY_ARE:
        return None
    epochs = [epoch_of(run, lengths, epoch) for epoch in range(epochs_drawn(run, lengths))]
    shape = shape_of_samples(run, lengths)
    memory = _BatchMemory(run, shape)
    sizes = _sizes(epochs, shape.steps_total)
    chances, memories = memory.all(sizes)
    steps = sizes["step"]
    risky = steps[chances >= RISKY_FROM_FRACTION]
    worst = _worst(epochs, sizes, memories, chances, lengths)
    at_risk = sorted(set(risky.tolist()))
    safe = _safe_seq_len(run, memory, sizes) if at_risk and not run.packing else None
    beyond = _longer_than(lengths, safe, epochs[0]) if safe else []
    return WholeRun(
        out_of_memory_fraction=float(chances.max()),
        num_steps=int(steps.max()) + 1,
        steps_at_risk=len(at_risk),
        first_at_risk=at_risk[0] + 1 if at_risk else None,
        worst=worst,
        safe_seq_len=safe,
        too_long=tuple(beyond[:SAMPLES_NAMED]),
        num_too_long=len(beyond),
        verdict=verdict(float(chances.max())),
    )


class _BatchMemory:
    """Predicts the memory of single batches of one run."""

    def __init__(self, run: Run, shape: BatchShape) -> None:
        self.run, self.shape = run, shape

    def profile(self, rows: int, tokens: int, longest: int) -> Profile:
        """Return the predicted step whose longest micro-batch has this size."""
        batch = self.shape._replace(sequences=rows, longest_len=longest, longest_tokens=tokens)
        return predict(self.run, batch=batch)

    def all(self, sizes: Any) -> tuple[Any, Any]:
        """Return the chance of running out of memory, and the bytes, of every batch."""
        import numpy as np

        known = np.unique(np.stack([sizes["tokens"], sizes["longest"], sizes["rows"]]), axis=1)
        places = np.unique(np.linspace(0, known.shape[1] - 1, PREDICTED).round().astype(int))
        profiles = [
            self.profile(rows, tokens, longest) for tokens, longest, rows in known[:, places].T.tolist()
        ]
        predicted = [profile.device_memory_bytes.total for profile in profiles]
        memory = np.interp(sizes["tokens"], known[0, places].astype(float), predicted)
        room, interval = profiles[0].capacity_bytes, profiles[0].source.memory_interval
        if interval is None:
            return (memory > room).astype(float), memory
        return exceeding_fraction(memory, room, interval), memory


def _sizes(epochs: "list[Batches]", steps_total: int | None) -> dict[str, Any]:
    import numpy as np

    columns: dict[str, list[Any]] = {
        name: [] for name in ("epoch", "number", "step", "rows", "tokens", "longest")
    }
    for epoch, batches in enumerate(epochs):
        numbers = np.arange(batches.number)
        columns["epoch"].append(np.full(batches.number, epoch))
        columns["number"].append(numbers)
        columns["step"].append(epoch * batches.steps + numbers // batches.per_step)
        columns["rows"].append(np.diff(batches.dealt.offsets))
        columns["tokens"].append(batches.tokens)
        columns["longest"].append(batches.longest)
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    within = whole["step"] < (steps_total or np.inf)
    return {name: values[within] for name, values in whole.items()}


def _worst(
    epochs: "list[Batches]", sizes: dict[str, Any], memories: Any, chances: Any, lengths: "Lengths"
) -> tuple[RiskyBatch, ...]:
    import numpy as np

    first = np.lexsort((sizes["step"], -memories))[:WORST].tolist()
    return tuple(
        RiskyBatch(
            epoch=int(sizes["epoch"][n]) + 1,
            step=int(sizes["step"][n]) + 1,
            tokens=int(sizes["tokens"][n]),
            memory_bytes=float(memories[n]),
            out_of_memory_fraction=float(chances[n]),
            offenders=_offenders(epochs[int(sizes["epoch"][n])], int(sizes["number"][n]), lengths),
        )
        for n in first
    )


def _offenders(batches: "Batches", number: int, lengths: "Lengths") -> tuple[Offender, ...]:
    stretches = sorted((one for row in batches.stretches(number) for one in row), key=lambda one: -one.length)
    named, tokens = [], 0
    for one in stretches[:SAMPLES_NAMED]:
        named.append(Offender(one.sample, lengths.rows[one.sample], one.length))
        tokens += one.length
        if batches.recipe.padding == "longest" or 2 * tokens >= int(batches.real_tokens[number]):
            break
    return tuple(named)


def _safe_seq_len(run: Run, memory: _BatchMemory, sizes: dict[str, Any]) -> int | None:
    rows = run.micro_batch_size
    low, high = 0, int(sizes["longest"].max())
    while high - low > 1:
        middle = (low + high) // 2
        chance = probability_out_of_memory(memory.profile(rows, rows * middle, middle))
        low, high = (middle, high) if chance < RISKY_FROM_FRACTION else (low, middle)
    multiple = run.pad_to_multiple_of if run.padding == "longest" else 1
    return low // multiple * multiple or None


def _longer_than(lengths: "Lengths", seq_len: int, batches: "Batches") -> list[Offender]:
    import numpy as np

    pieces = batches.rows.pieces
    places = np.flatnonzero(pieces.length > seq_len)
    places = places[np.argsort(-pieces.length[places], kind="stable")]
    found = zip(pieces.sample[places].tolist(), pieces.length[places].tolist(), strict=True)
    return [Offender(sample, lengths.rows[sample], tokens) for sample, tokens in found]


LENGTHS = (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
LONG = (2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072)
LONG_FROM = 8192  # tokens of the run
FINE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
COARSE = tuple(2**power for power in range(12))
FEW = slice(None, None, 2)  # of what is predicted one by one
FINE_UP_TO = 48  # the largest micro-batch that fits, beyond which steps are coarse


class FitCell(NamedTuple):
    """The run with one micro-batch and one sequence length."""

    micro_batch_size: int
    seq_len: int
    verdict: Verdict
    out_of_memory_fraction: float
    device_memory_bytes: float
    step_time_s: float
    tokens_per_s: float


class FitGrid(NamedTuple):
    """Every pair of a micro-batch and a sequence length; None where the run cannot have them."""

    run: Run
    capacity_bytes: float
    micro_batch_sizes: tuple[int, ...]
    seq_lens: tuple[int, ...]
    rows: tuple[tuple[FitCell | None, ...], ...]  # [micro-batch][sequence length]
    same_from: int | None  # longer cut-offs change nothing, for no sample is longer


def fit_grid(run: Run) -> FitGrid:
    """Return what fits around `run`, which states its GPU; its own pair is among them."""
    own = predict(run)
    bill = quote(run, own)
    together = run.phase in TRAINED and _has_rates(run)
    most, unit = max_micro_batch_size(run, needed).value, unit_within(run, 4096)
    steps: tuple[int, ...] = FINE if most <= FINE_UP_TO * unit else COARSE
    ladder: tuple[int, ...] = LENGTHS if run.seq_len <= LONG_FROM else LONG
    if not together:
        steps, ladder = steps[FEW], ladder[FEW]
    sizes = sorted({run.micro_batch_size, *(unit * step for step in steps)})
    lengths = tuple(sorted({run.seq_len, *ladder}))
    runs = {(size, length): _replaced(run, size, length) for size in sizes for length in lengths}
    asked = [one for one in runs.values() if one is not None]
    profiles = _together(asked) if together else _one_by_one(asked)
    cells = {
        (one.run.micro_batch_size, one.run.seq_len): _cell(one, bill) for one in profiles if one is not None
    }
    kept, same_from = _different(lengths, sizes, cells, run.seq_len)
    rows = tuple(tuple(cells.get((size, length)) for length in kept) for size in sizes)
    return FitGrid(run, own.capacity_bytes, tuple(sizes), kept, rows, same_from)


def _has_rates(run: Run) -> bool:
    dtype = build(run).lowering.compute_dtype
    return isinstance(device_of(str(run.gpu), current(), dtype, run.power_limit_w), Device)


def _replaced(run: Run, size: int, length: int) -> Run | None:
    if (size, length) == (run.micro_batch_size, run.seq_len):
        return run
    try:
        return run.replace(micro_batch_size=size, seq_len=length)
    except FineGaugeError:
        return None


def _one_by_one(runs: Sequence[Run]) -> Iterator[Profile]:
    for run in runs:
        try:
            yield predict(run)
        except FineGaugeError:
            continue


def _together(runs: Sequence[Run]) -> Iterator[Profile]:
    alike: dict[int, list[Run]] = {}
    graphs: dict[int, Any] = {}
    for run in runs:
        if run.seq_len not in graphs:
            graphs[run.seq_len] = build(run)  # the batch does not enter
        alike.setdefault(id(graphs[run.seq_len]), []).append(run)
    for group in alike.values():
        yield from predict_steps(group)


def _cell(profile: Profile, bill: Quote) -> FitCell:
    """Return what one pair takes; what its job needs beside its step is asked where the step may fit."""
    chance, run = probability_out_of_memory(profile), profile.run
    if verdict(chance) != WILL_NOT_FIT:
        chance = of_all_moments(profile, bill).out_of_memory_fraction
    return FitCell(
        run.micro_batch_size, run.seq_len, verdict(chance), chance, profile.device_memory_bytes.total,
        profile.step_time_s.total, profile.tokens_per_s,
    )  # fmt: skip


def _different(
    lengths: Sequence[int], sizes: Sequence[int], cells: dict[tuple[int, int], FitCell], own: int
) -> tuple[tuple[int, ...], int | None]:
    """Return the lengths up to the last that changes anything, the run's own with them."""
    kept, same_from = list(lengths), None

    def figures(length: int) -> list[Any]:
        found = (cells.get((size, length)) for size in sizes)
        return [one and (one.device_memory_bytes, one.step_time_s) for one in found]

    while len(kept) > 1 and figures(kept[-1]) == figures(kept[-2]):
        same_from = kept[-2]
        kept.pop()
    return tuple(sorted({*kept, own})), same_from
