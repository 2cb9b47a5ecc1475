"""One training under way: its live figures for the trainer's log, and at its end a measured Profile.

    tokens_per_s              padding included, all devices, since the last log
    mfu_fraction              model FLOPs (no recomputation) over the devices' peak
    energy_j                  of this machine's devices since the start
    cost_usd                  hours since the start x price of an hour
    eta_s                     steps left x mean time of a step, logs and evaluation included
    cost_at_completion_usd    the cost so far and that of the time left

A figure that is not known is left out, never 0.
"""

import math
from math import ceil
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch

from finegauge.callbacks.gauges import EnergyCounter, StepTimer, TokenCounter, memory_figures
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
from finegauge.measurement.instruments.counters import ThrottleWatch
from finegauge.measurement.options import Options
from finegauge.measurement.subject import refusal
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
        profile = Profile(
            run=self.run,
            source=_source(self.device, len(steps_s)),
            step_time_s=Breakdown.of(step=step_s),
            step_times_s=tuple(steps_s),
            step_energy_j=self._energy_per_step(per_step),
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
        return without_data(profile, "failed", reason) if reason else profile

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

    def _energy_per_step(self, per_step: float) -> Breakdown:
        """Return the joules of a step, all of the run's time shared out; empty where not known."""
        joules = self._energy.total_j if self._energy is not None else None
        return Breakdown({("device",): joules * per_step}) if joules else Breakdown({})

    def _observations(self, steps_s: list[float]) -> dict[str, Any]:
        found: dict[str, Any] = {"timing": {"steps": self.timer.num_steps, "warmup_steps": 1}}
        if len(steps_s) > 1:
            tenths = quantiles(steps_s, n=10)
            found["timing"] |= {"p10_s": tenths[0], "p90_s": tenths[-1]}
        if self.device.type == "cpu":  # the host does the work, so its view of the stages is the step's
            stages = self.timer.stages_s
            found["stages"] = {name: median(seconds) for name, seconds in stages.items()}
            found["memory"] = memory_figures(self.device)
        if self._energy is not None:
            found["energy"] = {
                "energy_j": self._energy.total_j, "source": self._energy.source, "note": self._energy.why
            }  # fmt: skip
        return found


def without_data(profile: Profile, outcome: str, reason: str) -> Profile:
    """Return the profile of a training that brought no data."""
    return Profile(
        run=profile.run, source=profile.source, outcome=outcome, reason=reason,
        fingerprint=profile.fingerprint, capacity_bytes=profile.capacity_bytes,
    )  # fmt: skip


def _source(device: torch.device, steps: int) -> Source:
    seen = f"steps: 1 discarded as warm-up, the last {steps} kept"
    return Source("measured", f"{SOURCE}, {device_name(device)}", assumptions=(seen,))


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
