"""One training under way: its live figures for the trainer's log, and at its end a measured Profile.

    tokens_per_s              padding included, all devices, since the last log
    mfu_fraction              model FLOPs (no recomputation) over the devices' peak
    energy_j                  of this machine's devices since the start
    cost_usd                  hours since the start x price of an hour
    eta_s                     steps left x mean time of a step, logs and evaluation included
    cost_at_completion_usd    the cost so far and that of the time left

A figure that is not known is left out, never 0. No gauge waits for the device. Between two logs of a trainer
the device's queue is emptied by the trainer itself (it reads the loss), so that rates over the time between
two logs are exact; the split of a single step is the host's view, and is kept only where the host does the
work.
"""

import math
from collections import deque
from collections.abc import Mapping
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

from finegauge.catalogue.gpus import known_gpu
from finegauge.catalogue.offers import Offer, holding, offers
from finegauge.data.batch_shape import shape
from finegauge.errors import InputError, UnknownNameError
from finegauge.measurement.device import (
    capacity_bytes,
    device_name,
    fingerprint,
    model_flops,
    peak_flops_per_s,
)
from finegauge.measurement.instruments.counters import SampledPower, ThrottleWatch, Unavailable, counter_of
from finegauge.measurement.instruments.memory_meter import peak_resident_bytes, resident_bytes
from finegauge.measurement.options import Options
from finegauge.measurement.subject import refusal
from finegauge.measurement.watching import timing_of
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.field import number
from finegauge.run.run import Run
from finegauge.units import HOUR_S

MOST_USD_PER_HOUR = 1e7


class Price(NamedTuple):
    """Dollars of an hour of all machines together."""

    usd_per_h: float
    said: str  # its origin


def price_of(
    usd_per_hour: float | None, offer: str | None, *, gpu: str, num_gpus: int, num_nodes: int
) -> Price | None:
    """Return the price of an hour of all machines; None where it is not known.

    `usd_per_hour` is as the caller states it, and wins; `offer` is a provider, an instance, or
    "provider/instance" of `finegauge offers`; `gpu` is what the device calls itself, "" for a processor.

    Raises: FieldError for a price that is none, UnknownNameError for an offer that no row has.
    """
    if usd_per_hour is not None:
        return Price(number(0.0, MOST_USD_PER_HOUR)("usd_per_hour", usd_per_hour), "as stated")
    spec = known_gpu(gpu) if gpu else None
    if spec is None:
        if offer is not None:
            what = f"'{gpu}' is in no row of the catalogue" if gpu else "this run uses no GPU"
            raise InputError(f"offer={offer} names no price: {what}; state usd_per_hour instead.")
        return None
    per_node = ceil(num_gpus / max(1, num_nodes))
    held = [
        row
        for one in offers(spec.name)
        if (row := holding(one, per_node))
        and row.on_demand_usd_per_h
        and (num_nodes < 2 or not row.is_scaled)
    ]
    if offer is not None:
        wanted = [row for row in held if offer.casefold() in _names(row)]
        if not wanted:
            known = {name for row in held for name in _names(row)}
            raise UnknownNameError(
                f"offer of {per_node} x {spec.name}", offer, known=known, listing="finegauge offers"
            )
        return _cheapest(wanted, num_nodes, "as the catalogue has it")
    ranked = [row for row in held if row.is_ranked]
    return _cheapest(ranked, num_nodes, "the cheapest on demand of the catalogue") if ranked else None


def _names(row: Offer) -> set[str]:
    whole = f"{row.provider}/{row.instance_type}" if row.instance_type else row.provider
    return {name.casefold() for name in (row.provider, row.instance_type, whole) if name}


def _cheapest(rows: list[Offer], num_nodes: int, said: str) -> Price:
    row = min(rows, key=lambda row: row.on_demand_usd_per_h or 0.0)
    which = f"{row.provider} {row.instance_type}".strip()
    day = f" of {row.date}" if row.date else ""
    day += f" (a card's price times {row.gpu_count})" if row.is_scaled else ""
    return Price((row.on_demand_usd_per_h or 0.0) * max(1, num_nodes), f"{said}: {which}{day}")


KEPT_STEPS = 1_000
READ_EVERY_S = 10.0  # a counter may wrap round between two readings; RAPL's do after minutes

FORWARD_BACKWARD, OPTIMIZER, REST, DATA = "forward and backward", "optimizer", "rest", "data"


class StepTimer:
    """The seconds of each optimizer step, its batches' loading included; logs, evaluation and saving not."""

    def __init__(self) -> None:
        self.steps_s: deque[float] = deque(maxlen=KEPT_STEPS)
        self.stages_s: dict[str, deque[float]] = {}
        self.num_steps = 0
        self.busy_s = 0.0  # of all steps together
        self.started_s = self._mark = perf_counter()
        self.first_ended_s = self.started_s
        self._stage_s: dict[str, float] = {}
        self._since = self._mark

    def resume(self) -> None:
        """Leave out what happened since the last step: a log, an evaluation, a checkpoint."""
        self._mark = self._since = perf_counter()

    def extend(self) -> None:
        """Count the time since the last step as that step's: the trainer has waited for the device."""
        now = perf_counter()
        waited_s = now - self._mark
        self.busy_s += waited_s
        if self.num_steps > 1:
            self.steps_s[-1] += waited_s
        else:
            self.first_ended_s = now
        self._mark = self._since = now

    def stage(self, name: str) -> None:
        """Count the time since the last stage as `name`."""
        now = perf_counter()
        self._stage_s[name] = self._stage_s.get(name, 0.0) + now - self._since
        self._since = now

    def end_step(self) -> None:
        """Note a step."""
        self.stage(REST)
        now = self._since
        self.num_steps += 1
        self.busy_s += now - self._mark
        if self.num_steps == 1:  # the warm-up: kernels are chosen, memory is taken
            self.first_ended_s = now
        else:
            self.steps_s.append(now - self._mark)
            for name, seconds in self._stage_s.items():
                self.stages_s.setdefault(name, deque(maxlen=KEPT_STEPS)).append(seconds)
        self._stage_s.clear()
        self._mark = now

    def remaining_s(self, steps: int) -> float | None:
        """Return how long so many more steps take, at the pace since the first; None before the second."""
        if self.num_steps < 2:
            return None
        return steps * (perf_counter() - self.first_ended_s) / (self.num_steps - 1)


class TokenCounter:
    """Counts the tokens that a model reads while it trains, padding included, by the shapes of its inputs."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        self._handle = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def stop(self) -> None:
        """Watch no more."""
        self._handle.remove()

    @staticmethod
    def suits(model: Any) -> bool:
        """Return whether a hook would not disturb the model: a compiled one would be compiled anew."""
        return not hasattr(model, "_orig_mod") and getattr(model, "_compiled_call_impl", None) is None

    def _count(self, module: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Add one batch; evaluation and generation (no gradients) do not count."""
        if not module.training or not torch.is_grad_enabled():
            return
        batch = named.get("input_ids")
        if batch is None:
            batch = named.get("inputs_embeds", inputs[0] if inputs else None)
        shape: tuple[Any, ...] = tuple(getattr(batch, "shape", ()))
        if len(shape) >= 2 and isinstance(shape[0], int) and isinstance(shape[1], int):
            self.tokens += shape[0] * shape[1]


class EnergyCounter:
    """The joules of this machine's devices in the run, added up reading by reading."""

    def __init__(self, device: torch.device, num_devices: int = 1) -> None:
        """Start the best counters that there are; where one device has none, the energy is not known.

        `device` is that of this process; `num_devices` the GPUs of this machine that take part, the first
        ones.
        """
        self.total_j: float | None = None  # None: not known, or no counter has moved yet
        self.source, self.why = "none", ""
        cuda = device.type == "cuda"
        devices = (
            [torch.device("cuda", n) for n in range(num_devices)] if cuda and num_devices > 1 else [device]
        )
        self._read_s = perf_counter()
        self._running: list[Any] = [counter_of(one) for one in devices]
        missing = [one.why for one in self._running if isinstance(one, Unavailable)]
        if missing:
            self._running, self.why = [], missing[-1]
        for counter in self._running:
            self.source = counter.source
            counter.start()

    def read(self, *, last: bool = False) -> float | None:
        """Return the joules since the beginning, None where they are not known; `last` ends the counters."""
        for counter in self._running:
            joules = counter.stop()
            if joules is not None:
                self.total_j = (self.total_j or 0.0) + joules
            if not last and (joules is not None or isinstance(counter, SampledPower)):
                counter.start()
        if last:
            self._running = []
        self._read_s = perf_counter()
        return self.total_j

    def keep_up(self) -> None:
        """Read the counters if that was long ago."""
        if self._running and perf_counter() - self._read_s > READ_EVERY_S:
            self.read()


def memory_figures(device: torch.device) -> dict[str, float]:
    """Return the bytes allocated now, at the peak, and of the whole device (or process) in use.

    On a processor PyTorch does not count: the peak and what is held are the process's resident memory.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return {
            "memory_allocated_bytes": float(torch.cuda.memory_allocated(device)),
            "memory_peak_bytes": float(torch.cuda.max_memory_allocated(device)),
            "memory_device_bytes": float(total - free),
        }
    if device.type != "cpu":
        return {}
    figures = {"memory_peak_bytes": peak_resident_bytes(), "memory_device_bytes": resident_bytes()}
    return {name: value for name, value in figures.items() if value > 0}


SOURCE = "a training under TrainerCallback"
_LOSSES = ("loss", "grad_norm", "train_loss")


class LiveTrial:
    """The instruments of one training, from its start on; `run` is None where it is not supported."""

    def __init__(
        self, run: Run | None, model: Any, device: torch.device, *, price: Price | None, processes: int,
        devices_here: int, is_compiled: bool,
    ) -> None:  # fmt: skip
        """Start the clocks and counters of the model in this process.

        `price` is that of an hour of all machines; `devices_here` the GPUs of this machine that take part, 0
        where other machines take part too.
        """
        self.run, self.device, self.price = run, device, price
        self.timer = StepTimer()
        self._counter = TokenCounter(model) if TokenCounter.suits(model) and not is_compiled else None
        self._energy = EnergyCounter(device, devices_here) if devices_here else None
        self._throttle = ThrottleWatch(device).__enter__()
        self._bad = ""  # a number in the log that is none
        self._logged = (0.0, 0.0)  # tokens and busy seconds at the last log
        self._model, self._processes, self._ranks = model, processes, processes
        self._flops_per_token = self._peak_flops_per_s = self._samples_per_step = 0.0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        if run is not None:
            self._ranks = max(1, processes // (run.num_gpus // run.data_parallel))
            batch = shape(run)
            self._samples_per_step = batch.samples * run.gradient_accumulation_steps * run.data_parallel
            self._flops_per_token = model_flops(run) / (batch.tokens * run.gradient_accumulation_steps)
            self._peak_flops_per_s = peak_flops_per_s(run, device) * run.num_gpus

    def end_step(self) -> None:
        """Note that a step has ended."""
        self.timer.end_step()
        if self._energy is not None:
            self._energy.keep_up()

    def figures(self, state: Any, logs: dict[str, Any]) -> dict[str, float]:
        """Return the figures for one log of the trainer, which has just waited for the device."""
        self.timer.extend()
        self._note_bad(state, logs)
        found = {**self._speed(self._tokens(state, logs)), **memory_figures(self.device)}
        energy_j = self._energy.read() if self._energy is not None else None
        if energy_j is not None:
            found["energy_j"] = energy_j
        left_s = self.timer.remaining_s(max(0, state.max_steps - state.global_step))
        if left_s is not None:
            found["eta_s"] = left_s
        if self.price is not None:
            so_far = (perf_counter() - self.timer.started_s) / HOUR_S * self.price.usd_per_h
            found["cost_usd"] = so_far
            if left_s is not None:
                found["cost_at_completion_usd"] = so_far + left_s / HOUR_S * self.price.usd_per_h
        self.timer.resume()
        return found

    def stop(self) -> None:
        """Take the instruments off."""
        if self._counter is not None:
            self._counter.stop()
        if self._energy is not None:
            self._energy.read(last=True)
        self._throttle.__exit__()

    def profile(self) -> Profile:
        """Return the measured profile; `stop` came before.

        What is no data (a loss that is no number, a throttled device) has the outcome failed, and says why.
        """
        assert self.run is not None
        steps_s = list(self.timer.steps_s)
        step_s = median(steps_s) if steps_s else 0.0
        per_step = 1.0 / max(1, self.timer.num_steps)
        counted = self._counter.tokens * self._ranks if self._counter is not None else 0
        tokens = (counted or self._logged[0]) * per_step
        joules = self._energy.total_j if self._energy is not None else None
        seen = f"steps: 1 discarded as warm-up, the last {len(steps_s)} kept"
        profile = Profile(
            run=self.run,
            source=Source("measured", f"{SOURCE}, {device_name(self.device)}", assumptions=(seen,)),
            step_time_s=Breakdown.of(step=step_s),
            step_times_s=tuple(steps_s),
            step_energy_j=Breakdown({("device",): joules * per_step} if joules else {}),  # all of the run's
            step_flops=self._flops_per_token * tokens,
            step_tokens=tokens,
            step_sequences=self._samples_per_step,
            peak_flops_per_s=self._peak_flops_per_s / self.run.num_gpus,
            capacity_bytes=capacity_bytes(Options(), self.device),
            fingerprint=fingerprint(self.device),
            observations=self._observations(steps_s),
            **profile_memory(self.device),
        )
        reason = (
            self._bad
            or self._broken_weight()
            or (not steps_s and "fewer than two steps were taken, and the first is warm-up")
        )
        impossible = profile.mfu_fraction if self.device.type == "cuda" else 0.0
        reason = reason or refusal(
            (), step_times_s=steps_s, mfu_fraction=impossible, throttled=self._throttle.reasons
        )
        if not reason:
            return profile
        return Profile(
            run=self.run, source=profile.source, outcome="failed", reason=reason,
            fingerprint=profile.fingerprint, capacity_bytes=profile.capacity_bytes,
        )  # fmt: skip

    def _tokens(self, state: Any, logs: dict[str, Any]) -> float:
        """Return the tokens so far, of all processes: counted, or as the log has them; 0: not known."""
        if self._counter is not None and self._counter.tokens:
            return float(self._counter.tokens * self._ranks)
        return float(logs.get("num_tokens") or getattr(state, "num_input_tokens_seen", 0) or 0)

    def _speed(self, tokens: float) -> dict[str, float]:
        seconds = self.timer.busy_s - self._logged[1]
        moved = tokens - self._logged[0]
        self._logged = (tokens, self.timer.busy_s)
        if seconds <= 0 or moved <= 0:
            return {}
        found = {"tokens_per_s": moved / seconds}
        if self._flops_per_token and self._peak_flops_per_s:
            found["mfu_fraction"] = moved / seconds * self._flops_per_token / self._peak_flops_per_s
        return found

    def _note_bad(self, state: Any, logs: dict[str, Any]) -> None:
        for name in _LOSSES:
            value = logs.get(name)
            if not self._bad and isinstance(value, float) and not math.isfinite(value):
                self._bad = (
                    f"{name} is {value} at step {state.global_step}: check the weights and the learning rate"
                )

    def _broken_weight(self) -> str:
        """Return that a trained weight is no number, which a trainer's log may hide; "" where all are.

        Looked at in a process alone: of weights that are spread over several, none holds them all.
        """
        if self._processes > 1:
            return ""
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad and not torch.isfinite(parameter).all():
                return f"the weight {name} is no finite number at the end: check the learning rate"
        return ""

    def _observations(self, steps_s: list[float]) -> dict[str, Any]:
        found: dict[str, Any] = {"timing": timing_of(self.timer.num_steps, steps_s)}
        if self.device.type == "cpu":  # the host does the work, so its view of the stages is the step's
            stages = self.timer.stages_s
            found["stages"] = {name: median(seconds) for name, seconds in stages.items()}
            found["memory"] = memory_figures(self.device)
        if self._energy is not None:
            found["energy"] = {
                "energy_j": self._energy.total_j, "source": self._energy.source, "note": self._energy.why
            }  # fmt: skip
        return found


def profile_memory(device: torch.device) -> dict[str, Any]:
    """Return the profile's memory: the allocator's peak and what lies beside it; nothing of a CPU."""
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats(device)
    peak, reserved = float(stats["allocated_bytes.all.peak"]), float(stats["reserved_bytes.all.peak"])
    free, total = torch.cuda.mem_get_info(device)
    unused = max(0.0, reserved - peak)
    slack = min(unused, float(stats["inactive_split_bytes.all.peak"]))
    context = max(0.0, total - free - float(torch.cuda.memory_reserved(device)))
    return {
        "peak_memory_bytes": Breakdown.of(allocated=peak),
        "device_memory_bytes": Breakdown.of(allocated=peak, slack=slack, context=context),
        "cached_bytes": unused - slack,
    }
