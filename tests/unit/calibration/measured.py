"""Measured rows made by the predictor itself, under constants that a fit is to find again."""

from typing import Any

from finegauge.formats.measurement_tables import Measured, MeasuredRow
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from finegauge.units import GIB

SILENT = Measured(None, None, None, False, None, "unknown", "")
SHAPES = [
    {"micro_batch_size": batch, "seq_len": length, "method": method}
    for batch, length in ((1, 256), (1, 2048), (4, 512), (8, 2048), (2, 8192))
    for method in ("full", "lora")
]


def run_of(**fields: Any) -> Run:
    """Return a run whose fields are all stated."""
    base: dict[str, Any] = {
        "model": "qwen3-0.6b",
        "gpu": "A100-SXM4-80GB",
        "attention": "flash",
        "method": "full",
        "seq_len": 1024,
    }
    return Run(**{**base, **fields})


def row(run: Run, measured: Measured, *, source: str = "mine", guessed: bool = False) -> MeasuredRow:
    """Return one row of a table."""
    name = f"{source}-{run.method}-{run.micro_batch_size}-{run.seq_len}"
    assumptions = ("optimizer",) if guessed else ()
    return MeasuredRow(name, source, run, "", (), assumptions, "full", measured)


def timed(truth: Calibration, source: str = "mine", times: float = 1.0, **fields: Any) -> MeasuredRow:
    """Return a row whose step took `times` what `truth` predicts."""
    run = run_of(**fields)
    profile = predict(run, truth)
    return row(
        run,
        SILENT._replace(
            step_time_s=times * profile.step_time_s.total,
            peak_memory_gib=profile.memory_bytes("torch_allocated") / GIB,
            memory_metric="torch_allocated",
            outcome="ok",
        ),
        source=source,
    )


def sweep(truth: Calibration, source: str = "mine", times: float = 1.0, **fields: Any) -> list[MeasuredRow]:
    """Return rows of small and large batches, full and LoRA, under `truth`."""
    return [timed(truth, source, times, **shape, **fields) for shape in SHAPES]
