"""Gauges of a training process that do not disturb a step: time, tokens, memory, energy.

Nothing here waits for the device. Between two logs of a trainer the device's queue is emptied by the
trainer itself (it reads the loss), so that rates over the time between two logs are exact; the split of
a single step is the host's view, and is kept only where the host does the work.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch

from finegauge.measurement.instruments.counters import (
    POWERCAP,
    SampledPower,
    Unavailable,
    gpu_counter,
    nvml_of,
    rapl,
)
from finegauge.measurement.instruments.memory_meter import peak_resident_bytes, resident_bytes

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
        self._open = [_opener(one) for one in devices]
        self._running: list[Any] = []
        self._read_s = perf_counter()
        self._running = [counter for number in range(len(devices)) if (counter := self._begun(number))]
        if self.why:
            self._running, self.source = [], "none"

    def read(self, *, last: bool = False) -> float | None:
        """Return the joules since the beginning, None where they are not known; `last` ends the counters."""
        for number, counter in enumerate(self._running):
            joules = counter.stop()
            if joules is not None:
                self.total_j = (self.total_j or 0.0) + joules
            if not last and (joules is not None or isinstance(counter, SampledPower)):
                self._running[number] = self._begun(number) or counter
        if self.why or last:
            self._running = []
        self._read_s = perf_counter()
        return self.total_j

    def keep_up(self) -> None:
        """Read the counters if that was long ago."""
        if self._running and perf_counter() - self._read_s > READ_EVERY_S:
            self.read()

    def _begun(self, number: int) -> Any:
        """Return a counter of one device, started; None where there is none, which `why` explains."""
        counter = self._open[number]()
        if isinstance(counter, Unavailable):
            self.why = counter.why
            return None
        self.source = counter.source
        counter.start()
        return counter


def _opener(device: torch.device) -> Callable[[], Any]:
    if device.type == "cpu":
        return partial(rapl, POWERCAP)
    nvml = nvml_of(device)
    return (lambda: nvml) if isinstance(nvml, Unavailable) else partial(gpu_counter, nvml)


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
