"""SM, tensor-core and DRAM utilisation of a GPU: of steps by NVML, of one layer by Nsight Compute.

GPM (Hopper and later) [1] averages hardware counters between two samples at least 0.1 s apart, at no cost
to the kernels, so whole steps are repeated. `ncu` replays every kernel, far too slow for a step, so a child
process (`python -m` this module) takes one step with the profiler let in for one layer alone: a range
around the layer's forward and backward, open across threads since autograd has its own. Fractions are
weighted by time, u = sum(t_i u_i) / sum(t_i). Replayed kernels run alone and with cold caches: weights, not
times.

[1] NVML API reference, GPM functions
"""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finegauge.measurement.instruments.clocks import NoClock
from finegauge.measurement.instruments.counters import Nvml, Unavailable, nvml_of
from finegauge.measurement.instruments.kernel_table import weighted
from finegauge.measurement.instruments.kernel_trace import kind_of_kernel
from finegauge.measurement.instruments.module_roles import layers_of
from finegauge.measurement.options import Options
from finegauge.measurement.subject import Phase
from finegauge.run.run import Run
from finegauge.store.document import run_document, run_of

WINDOW_S = 0.5
_SHORTEST_S = 0.1
_LEAST_S = 2.0  # of steps in a row
_GPM_METRICS = {
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


def watch_utilisation(phase: Phase, *, device: torch.device) -> dict[str, Any]:
    """Return the GPM figures of steps in a row, some seconds of them; warm up before."""
    nvml = supported(nvml_of(device))
    if isinstance(nvml, Unavailable):
        return {"unavailable": nvml.why}
    done, count = threading.Event(), 0
    torch.cuda.synchronize(device)
    with ThreadPoolExecutor(1, "finegauge-gpm") as pool:
        sampling, started_s = pool.submit(windows, nvml, done), time.perf_counter()
        try:
            while time.perf_counter() - started_s < _LEAST_S:
                phase.step(NoClock())
                torch.cuda.synchronize(device)
                count += 1
        finally:
            done.set()
        return {**gpm_summary(sampling.result()), "steps": count}


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


def gpm_summary(found: list[Window]) -> dict[str, Any]:
    """Return the means over all windows, weighted by their length, and the windows."""
    if not found:
        return {"unavailable": f"no window of {_SHORTEST_S:g} s or more; measure more steps"}
    series = [{"window_s": window.window_s, **window.fractions} for window in found]
    return {**_means(found), "window_s": sum(window.window_s for window in found), "windows": series}


def _means(parts: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    names = dict.fromkeys(name for _, fractions in parts for name in fractions)
    return {name: weighted((s, found[name]) for s, found in parts if name in found) for name in names}


def _between(nvml: Nvml, earlier: Any, later: Any) -> dict[str, float]:
    """Return the averages between two samples; a metric that this GPU lacks is left out."""
    library = nvml.driver
    question = library.c_nvmlGpmMetricsGet_t()
    question.version = library.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(_GPM_METRICS)
    question.sample1, question.sample2 = earlier, later
    for metric, constant in zip(question.metrics, _GPM_METRICS.values(), strict=False):
        metric.metricId = getattr(library, constant)
    try:
        library.nvmlGpmMetricsGet(question)
    except library.NVMLError:
        return {}
    answers = zip(_GPM_METRICS, question.metrics, strict=False)
    return {name: metric.value / 100 for name, metric in answers if metric.nvmlReturn == 0}


RANGE = "finegauge-layer"  # a start/end range; ncu marks push/pop ranges by a trailing "/", these by none
TIMEOUT_S = 600.0
_DURATION = "gpu__time_duration.sum"
_NCU_METRICS = {
    _DURATION: "time_s",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_fraction",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_fraction",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory_fraction",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_fraction",
}
_SECONDS = {
    **{"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3},
    **{"second": 1.0, "s": 1.0},
}


class ProfiledKernel(NamedTuple):
    """One kernel as ncu saw it."""

    name: str
    time_s: float
    fractions: Mapping[str, float]  # sm_fraction, dram_fraction, ... 0 to 1


def command(target: Sequence[str], log: Path, *, ncu: str = "ncu") -> list[str]:
    """Return the command that profiles the ranges named `RANGE` of `target` into a CSV file."""
    return [
        *(ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *("--metrics", ",".join(_NCU_METRICS), "--target-processes", "all"),
        *("--replay-mode", "kernel", "--clock-control", "none", "--profile-from-start", "off"),
        *("--nvtx", "--nvtx-include", RANGE),
        *target,
    ]


def layer_utilisation(run: Run, options: Options) -> dict[str, Any]:
    """Return the utilisation of one layer of one step, as a JSON document, or why there is none."""
    ncu = shutil.which("ncu")
    if options.device != "cuda":
        return {"unavailable": "ncu watches NVIDIA GPUs only; measure with --device cuda"}
    if ncu is None:
        return {"unavailable": "ncu (Nsight Compute) is not on the PATH; it comes with the CUDA toolkit"}
    with tempfile.TemporaryDirectory(prefix="finegauge-ncu-") as folder:
        trial, log = Path(folder) / "trial.json", Path(folder) / "ncu.csv"
        asked = {"run": run_document(run), "options": options._asdict()}
        trial.write_text(json.dumps(asked), "utf-8")
        target = [sys.executable, "-m", "finegauge.measurement.instruments.gpu_profilers", str(trial)]
        return _profiled(command(target, log, ncu=ncu), log)


def _profiled(words: list[str], log: Path) -> dict[str, Any]:
    timeout_s = float(os.environ.get("FINEGAUGE_NCU_TIMEOUT_S", TIMEOUT_S))
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"unavailable": f"ncu took more than {timeout_s:g} s; set FINEGAUGE_NCU_TIMEOUT_S for more"}
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    kernels = parse(text)
    if kernels:
        return ncu_summary(kernels)
    if "ERR_NVGPUCTRPERM" in text + ended.stdout + ended.stderr:
        return {
            "unavailable": "this user may not read the GPU's counters (ERR_NVGPUCTRPERM); ask the host's root"
        }
    said = [line for line in (text + ended.stdout + ended.stderr).splitlines() if line.strip()]
    return {
        "unavailable": f"ncu profiled no kernel (exit code {ended.returncode}): {' | '.join(said[-3:])[:300]}"
    }


def parse(text: str) -> list[ProfiledKernel]:
    """Return the kernels in ncu's CSV output, of either layout.

    The raw page has one row a kernel, a column a metric and a row of units first; other
    pages have one row a metric. Lines of progress and of the program come between.
    """
    table = [line for line in text.splitlines() if line.startswith('"')]
    found: dict[tuple[str, str], dict[str, float]] = {}  # by (kernel's name, process and number)
    units: Mapping[str, str] = {}
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        if not row["ID"]:
            units = row
            continue
        values = found.setdefault((row["Kernel Name"], f"{row.get('Process ID')}:{row['ID']}"), {})
        if "Metric Name" in row:
            _note(values, row["Metric Name"], row["Metric Value"], row.get("Metric Unit") or "")
            continue
        for metric in _NCU_METRICS:
            _note(values, metric, row.get(metric) or "", units.get(metric) or "")
    return [ProfiledKernel(name, values.pop("time_s", 0.0), values) for (name, _), values in found.items()]


def ncu_summary(kernels: Sequence[ProfiledKernel]) -> dict[str, Any]:
    """Return the averages over all kernels and by kind, weighted by duration, and the kernels."""
    by_kind: dict[str, list[ProfiledKernel]] = {}
    for kernel in kernels:
        by_kind.setdefault(kind_of_kernel(kernel.name), []).append(kernel)
    return {
        **_averages(kernels),
        "by_kind": {kind: _averages(members) for kind, members in by_kind.items()},
        "kernels": [{"name": k.name, "time_s": k.time_s, **k.fractions} for k in kernels],
    }


def _averages(kernels: Sequence[ProfiledKernel]) -> dict[str, float]:
    means = _means([(kernel.time_s, kernel.fractions) for kernel in kernels])
    return {"time_s": sum(kernel.time_s for kernel in kernels), "num_kernels": len(kernels), **means}


def _note(values: dict[str, float], metric: str, text: str, unit: str) -> None:
    """Put a metric's value among a kernel's, in seconds or as a fraction; what is no number is left out."""
    name = _NCU_METRICS.get(metric)
    if name is None:
        return
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return
    values[name] = value * _SECONDS.get(unit, 1e-9) if metric == _DURATION else value / 100


@contextmanager
def layer_range(layer: torch.nn.Module, nvtx: Any) -> Iterator[None]:
    """Keep one range open in every forward and every backward pass of a layer."""
    opened: list[int] = []

    def begin(*_: Any) -> None:
        if not opened:
            opened.append(nvtx.range_start(RANGE))

    def end(*_: Any) -> None:
        if opened:
            nvtx.range_end(opened.pop())

    handles = [
        layer.register_forward_pre_hook(begin),
        layer.register_forward_hook(end),
        layer.register_full_backward_pre_hook(begin),
        layer.register_full_backward_hook(end),
    ]
    try:
        yield
    finally:
        end()
        for handle in handles:
            handle.remove()


def middle_layer(model: torch.nn.Module) -> torch.nn.Module:
    """Return the layer in the middle of a model."""
    layers = layers_of(model)
    return layers[len(layers) // 2]


def main() -> None:
    """Take the warm-up steps, then one step with the profiler let in."""
    from finegauge.measurement.phases.choice import phase_of

    trial = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    run, options = run_of(trial["run"]), Options(**trial["options"])
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    phase = phase_of(run, options, device)
    for _ in range(max(1, options.warmup_steps)):
        phase.step(NoClock())
    torch.cuda.synchronize(device)
    with layer_range(middle_layer(phase.subject.base.get_decoder()), torch.cuda.nvtx):
        torch.cuda.profiler.start()
        phase.step(NoClock())
        torch.cuda.synchronize(device)
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
