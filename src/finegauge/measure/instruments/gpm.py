"""How busy a GPU's multiprocessors, tensor cores and memory are over a step, by its own counters.

NVML's GPU performance monitoring (GPM, Hopper and later) [1] compares two samples of
hardware counters and gives averages of the time between, without replaying a kernel and
at no cost to them. Windows must be longer than 0.1 s [1], so whole steps are repeated;
the figure for the steps is the mean of the windows, weighted by their length.

[1] NVML API reference, GPM functions
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from finegauge.measure.instruments.nvml import Nvml, Unavailable, nvml_of
from finegauge.measure.instruments.utilisation import weighted
from finegauge.measure.subject import Phase

WINDOW_S = 0.5
_SHORTEST_S = 0.1
_LEAST_S = 2.0  # of steps in a row
_METRICS = {
    "sm_fraction": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_fraction": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_fraction": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_fraction": "NVML_GPM_METRIC_DRAM_BW_UTIL",
    "graphics_fraction": "NVML_GPM_METRIC_GRAPHICS_UTIL",
}


class Window(NamedTuple):
    """The averages between two samples."""

    window_s: float
    fractions: Mapping[str, float]


class GpmMeter:
    """Samples the counters of a GPU while what is inside its `with` runs."""

    def __init__(self, device: torch.device) -> None:
        """Find the counters, or why there are none."""
        self.reading: dict[str, Any] = {}
        self._device = device
        self._nvml = supported(nvml_of(device))
        self.why_not = self._nvml.why if isinstance(self._nvml, Unavailable) else ""
        self._done = threading.Event()
        self._windows: list[Window] = []
        self._thread = threading.Thread(target=self._watch, name="finegauge-gpm", daemon=True)

    def __enter__(self) -> "GpmMeter":
        """Start to sample."""
        if not isinstance(self._nvml, Unavailable):
            torch.cuda.synchronize(self._device)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and note the reading."""
        if isinstance(self._nvml, Unavailable):
            self.reading = {"unavailable": self._nvml.why}
            return
        torch.cuda.synchronize(self._device)
        self._done.set()
        self._thread.join()
        self.reading = summary(self._windows)

    def _watch(self) -> None:
        """Sample window after window until told to stop."""
        if not isinstance(self._nvml, Unavailable):
            self._windows = windows(self._nvml, self._done)


def watch_utilisation(phase: Phase, *, device: torch.device) -> dict[str, Any]:
    """Return the GPM figures of steps in a row, some seconds of them; warm up before."""
    from finegauge.measure.instruments.stage_clock import NoClock

    meter, count = GpmMeter(device), 0
    if meter.why_not:
        return {"unavailable": meter.why_not}
    started_s = time.perf_counter()
    with meter:
        while time.perf_counter() - started_s < _LEAST_S:
            phase.step(NoClock())
            torch.cuda.synchronize(device)
            count += 1
    return {**meter.reading, "steps": count}


def supported(nvml: Nvml | Unavailable) -> Nvml | Unavailable:
    """Return the device if it has these counters, else why not."""
    if isinstance(nvml, Unavailable):
        return nvml
    support = nvml.ask("nvmlGpmQueryDeviceSupport")
    if support is None or not support.isSupportedDevice:
        return Unavailable("this GPU has no performance monitoring by NVML (Hopper and later have)")
    return nvml


def windows(nvml: Nvml, done: threading.Event) -> list[Window]:
    """Return one window after the other until `done`; the last may be short, but not too short."""
    found: list[Window] = []
    samples = [nvml.driver.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        if nvml.ask("nvmlGpmSampleGet", samples[0]) is None:
            return found
        started_s, ended = time.perf_counter(), False
        while not ended:
            ended = done.wait(WINDOW_S)
            now_s = time.perf_counter()
            if now_s - started_s < _SHORTEST_S or nvml.ask("nvmlGpmSampleGet", samples[1]) is None:
                continue
            fractions = _between(nvml, *samples)
            if fractions:
                found.append(Window(now_s - started_s, fractions))
            samples.reverse()
            started_s = now_s
    finally:
        for sample in samples:
            nvml.driver.nvmlGpmSampleFree(sample)
    return found


def summary(found: list[Window]) -> dict[str, Any]:
    """Return the means over all windows, weighted by their length, and the windows."""
    if not found:
        return {"unavailable": f"no window of {_SHORTEST_S:g} s or more; measure more steps"}
    names = dict.fromkeys(name for window in found for name in window.fractions)
    means = {
        name: weighted((w.window_s, w.fractions[name]) for w in found if name in w.fractions)
        for name in names
    }
    series = [{"window_s": window.window_s, **window.fractions} for window in found]
    return {**means, "window_s": sum(window.window_s for window in found), "windows": series}


def _between(nvml: Nvml, earlier: Any, later: Any) -> dict[str, float]:
    """Return the averages between two samples; a metric that this GPU lacks is left out."""
    library = nvml.driver
    question = library.c_nvmlGpmMetricsGet_t()
    question.version = library.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(_METRICS)
    question.sample1, question.sample2 = earlier, later
    for metric, constant in zip(question.metrics, _METRICS.values(), strict=False):
        metric.metricId = getattr(library, constant)
    try:
        library.nvmlGpmMetricsGet(question)
    except library.NVMLError:
        return {}
    answers = zip(_METRICS, question.metrics, strict=False)
    return {name: metric.value / 100 for name, metric in answers if metric.nvmlReturn == 0}
