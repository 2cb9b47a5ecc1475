"""The passes of a trial: each takes its own steps with one instrument, so that none disturbs another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median, quantiles
from time import process_time
from typing import Any, NamedTuple

from finegauge.measure.instruments.stage_clock import NoClock, StageClock
from finegauge.measure.options import Options
from finegauge.measure.refusal import refusal
from finegauge.measure.subject import Clock, Phase, StepFacts
from finegauge.profile import Breakdown

COMPARED_STEPS = 10  # under the layer clock and without it, in turn
Tell = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much


class RefusedError(Exception):
    """A step whose result is no data; the message says why."""


class Trial:
    """A phase under measurement: takes its steps, and refuses those that are no data."""

    def __init__(self, phase: Phase, options: Options, tell: Tell) -> None:
        """Take steps of `phase`; `tell` is told of each."""
        self.phase, self.options, self.tell = phase, options, tell
        self.facts: list[StepFacts] = []  # of every step that was taken
        self.device = phase.subject.device

    def step(self, clock: Clock) -> StepFacts:
        """Take one step.

        Raises: RefusedError where its loss is no number, or it worked on no tokens.
        """
        facts = self.phase.step(clock)
        self.facts.append(facts)
        if reason := refusal([facts], first_step=len(self.facts)):
            raise RefusedError(reason)
        return facts

    def steps(self, what: str, count: int, clock: Clock) -> Iterator[StepFacts]:
        """Take `count` steps, telling of each."""
        for number in range(count):
            self.tell(what, number, count)
            yield self.step(clock)
        self.tell(what, count, count)

    @property
    def models(self) -> list[Any]:
        """Return every model in memory."""
        return list(self.phase.models.values()) or [self.phase.subject.model]


class HostShare:
    """What the host gave to the process while it was watched."""

    processor_s = 0.0  # of all threads
    waited_s = 0.0  # in which the main thread could have run and another program's did


class Timing(NamedTuple):
    """What the timing pass found."""

    steps: tuple[Breakdown, ...]  # the seconds of every step by stage
    facts: tuple[StepFacts, ...]
    energy: Mapping[str, Any] | None  # the energy meter's document; None where it was not asked for
    throttled: tuple[str, ...]  # why the device ran slower than it can
    host: HostShare

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the seconds of every step."""
        return tuple(step.total for step in self.steps)

    @property
    def median_s(self) -> Breakdown:
        """Return the median step by stage."""
        return median_of(self.steps)

    def spread(self) -> dict[str, float]:
        """Return how far the steps lie apart."""
        times = self.step_times_s
        tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
        middle = median(times)
        return {
            "steps": len(times),
            "median_s": middle,
            "min_s": min(times),
            "max_s": max(times),
            "p10_s": tenths[0],
            "p90_s": tenths[-1],
            "spread_fraction": (tenths[-1] - tenths[0]) / middle if middle else 0.0,
            "processor_s": self.host.processor_s / len(times),
            "waited_fraction": self.host.waited_s / sum(times) if sum(times) else 0.0,
        }


def warm_up(trial: Trial) -> None:
    """Take the steps that are discarded: they allocate optimizer state and fill caches."""
    for _ in trial.steps("warm-up", trial.options.warmup_steps, NoClock()):
        pass


def timing(trial: Trial) -> Timing:
    """Time steps by stage with nothing else on, but for the energy meter, which only reads counters."""
    before = len(trial.facts)
    energy: dict[str, Any] | None = None
    with (
        StageClock(trial.device, *trial.models) as clock,
        _throttle_watch(trial) as throttled,
        _energy_meter(trial) as meter,
        _host_share() as host,
    ):
        _clocked(trial, "timing", clock)
    if meter is not None:
        energy = {**meter.reading.to_json(), "steps": len(clock.steps)}
    return Timing(tuple(clock.steps), tuple(trial.facts[before:]), energy, tuple(throttled()), host)


def layers(trial: Trial) -> tuple[tuple[Breakdown, ...], dict[str, Any]]:
    """Return the seconds of steps by stage, part and operator, and what the layer clock costs.

    The first of them take turns with steps under the stage clock alone, so that whatever else
    the machine does meets both; the cost is the median ratio of neighbours.
    """
    from finegauge.measure.instruments.layer_clock import LayerClock

    plain = StageClock(trial.device, *trial.models)
    clock = LayerClock(trial.phase.subject, *trial.models)
    count = trial.options.steps
    for number in range(count):
        trial.tell("layers", number, count)
        for each in (plain, clock) if number < COMPARED_STEPS else (clock,):
            with each, each.step():
                trial.step(each)
    trial.tell("layers", count, count)
    ratios = [own.total / bare.total for own, bare in zip(clock.steps, plain.steps, strict=False)]
    return tuple(clock.steps), {"overhead_ratio": median(ratios), "compared_steps": len(ratios)}


def _clocked(trial: Trial, what: str, clock: Any) -> None:
    """Take the measured steps, each as one step of `clock`."""
    count = trial.options.steps
    for number in range(count):
        trial.tell(what, number, count)
        with clock.step():
            trial.step(clock)
    trial.tell(what, count, count)


@contextmanager
def _host_share() -> Iterator[HostShare]:
    """Watch how much of the processor the process gets."""
    found = HostShare()
    processor_s, waited_s = process_time(), _waited_s()
    yield found
    found.processor_s, found.waited_s = process_time() - processor_s, _waited_s() - waited_s


def _waited_s() -> float:
    """Return the seconds for which this thread has waited for a processor; 0 where nobody counts them."""
    with (
        suppress(OSError, IndexError, ValueError),
        open("/proc/thread-self/schedstat", encoding="ascii") as text,
    ):
        return int(text.read().split()[1]) / 1e9
    return 0.0


@contextmanager
def _throttle_watch(trial: Trial) -> Iterator[Callable[[], Sequence[str]]]:
    """Watch why a GPU runs slower than it can."""
    if trial.device.type != "cuda":
        yield tuple
        return
    from finegauge.measure.instruments.throttle import ThrottleWatch

    with ThrottleWatch(trial.device) as watch:
        yield lambda: watch.reasons


@contextmanager
def _energy_meter(trial: Trial) -> Iterator[Any]:
    """Yield the energy meter, already running; None where it was not asked for."""
    if not trial.options.energy:
        yield None
        return
    from finegauge.measure.instruments.energy_meter import EnergyMeter

    with EnergyMeter(trial.device) as meter:
        yield meter


def median_of(steps: Sequence[Breakdown]) -> Breakdown:
    """Return the median step: the median of every part, scaled to add up to the median of the totals."""
    paths = dict.fromkeys(path for step in steps for path in step.parts)
    parts = {path: median(step.parts.get(path, 0.0) for step in steps) for path in paths}
    whole, total = sum(parts.values()), median(step.total for step in steps)
    return Breakdown({path: value * total / whole for path, value in parts.items() if value} if whole else {})


def shared_out(stages: Breakdown, finer: Breakdown) -> Breakdown:
    """Return `stages`, each divided in the proportions that `finer` shows within it.

    A stage that `finer` does not know stays whole.
    """
    parts: dict[tuple[str, ...], float] = {}
    for path, seconds in stages.parts.items():
        within = finer.under(path[0])
        known = within.total
        if known <= 0:
            parts[path] = seconds
            continue
        for rest, value in within.parts.items():
            parts[(path[0], *rest)] = seconds * value / known
    return Breakdown(parts)
