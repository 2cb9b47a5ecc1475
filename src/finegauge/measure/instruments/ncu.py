"""SM and DRAM utilisation of one layer of one step, kernel by kernel, by Nsight Compute.

`ncu` replays every kernel to read the hardware's counters, which is far too slow for a
step, so a child process takes one step with the profiler let in for one layer alone: the
child opens the range `RANGE` around that layer's forward and backward and starts and
stops the profiler around the step (ncu_step.py). Fractions of all kernels together are
weighted by their durations, as the seed paper weighted them:

    u = sum(t_i u_i) / sum(t_i)

Replayed kernels run alone and with cold caches: their durations serve as weights, never
as times of the step.
"""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from finegauge.measure.instruments.op_kinds import kind_of_kernel
from finegauge.measure.instruments.utilisation import weighted
from finegauge.measure.options import Options
from finegauge.workload.run import Run

RANGE = "finegauge-layer"  # a start/end range; ncu marks push/pop ranges by a trailing "/", these by none
TIMEOUT_S = 600.0
_DURATION = "gpu__time_duration.sum"
_METRICS = {
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
        *("--metrics", ",".join(_METRICS), "--target-processes", "all"),
        *("--replay-mode", "kernel", "--clock-control", "none", "--profile-from-start", "off"),
        *("--nvtx", "--nvtx-include", RANGE),
        *target,
    ]


def layer_utilisation(run: Run, options: Options) -> dict[str, Any]:
    """Return the utilisation of one layer of one step, as a JSON document, or why there is none."""
    from finegauge.store.document import run_document

    ncu = shutil.which("ncu")
    if options.device != "cuda":
        return {"unavailable": "ncu watches NVIDIA GPUs only; measure with --device cuda"}
    if ncu is None:
        return {"unavailable": "ncu (Nsight Compute) is not on the PATH; it comes with the CUDA toolkit"}
    with tempfile.TemporaryDirectory(prefix="finegauge-ncu-") as folder:
        trial, log = Path(folder) / "trial.json", Path(folder) / "ncu.csv"
        asked = {"run": run_document(run), "options": options._asdict()}
        trial.write_text(json.dumps(asked), "utf-8")
        target = [sys.executable, "-m", "finegauge.measure.instruments.ncu_step", str(trial)]
        return _profiled(command(target, log, ncu=ncu), log)


def _profiled(words: list[str], log: Path) -> dict[str, Any]:
    """Run ncu and return what it saw, or why it saw nothing."""
    timeout_s = float(os.environ.get("FINEGAUGE_NCU_TIMEOUT_S", TIMEOUT_S))
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"unavailable": f"ncu took more than {timeout_s:g} s; set FINEGAUGE_NCU_TIMEOUT_S for more"}
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    kernels = parse(text)
    if kernels:
        return summary(kernels)
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
    rows = list(csv.DictReader(io.StringIO("\n".join(table))))
    found = _long(rows) if rows and "Metric Name" in rows[0] else _wide(rows)
    kernels = []
    for (name, _), values in found.items():
        fractions = {key: value for key, value in values.items() if key != "time_s"}
        kernels.append(ProfiledKernel(name, values.get("time_s", 0.0), fractions))
    return kernels


def summary(kernels: Sequence[ProfiledKernel]) -> dict[str, Any]:
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
    """Return the total of the durations and the fractions weighted by them."""
    names = dict.fromkeys(name for kernel in kernels for name in kernel.fractions)
    means = {
        name: weighted((k.time_s, k.fractions[name]) for k in kernels if name in k.fractions)
        for name in names
    }
    return {"time_s": sum(kernel.time_s for kernel in kernels), "num_kernels": len(kernels), **means}


_Values = dict[tuple[str, str], dict[str, float]]  # by (kernel's name, process and number)


def _long(rows: Iterable[Mapping[str, str]]) -> _Values:
    """Return the values of a page with one row a metric."""
    found: _Values = {}
    for row in rows:
        values = found.setdefault((row["Kernel Name"], f"{row.get('Process ID')}:{row['ID']}"), {})
        _note(values, row["Metric Name"], row["Metric Value"], row.get("Metric Unit") or "")
    return found


def _wide(rows: Sequence[Mapping[str, str]]) -> _Values:
    """Return the values of a page with one column a metric, whose first row holds the units."""
    found: _Values = {}
    units: Mapping[str, str] = {}
    for row in rows:
        if not row["ID"]:
            units = row
            continue
        values = found.setdefault((row["Kernel Name"], f"{row.get('Process ID')}:{row['ID']}"), {})
        for metric in _METRICS:
            if row.get(metric):
                _note(values, metric, row[metric], units.get(metric) or "")
    return found


def _note(values: dict[str, float], metric: str, text: str, unit: str) -> None:
    """Put a metric's value among a kernel's, in seconds or as a fraction; what is no number is left out."""
    name = _METRICS.get(metric)
    if name is None:
        return
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return
    values[name] = value * _SECONDS.get(unit, 1e-9) if metric == _DURATION else value / 100
