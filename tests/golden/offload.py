"""What offloading costs: each offloaded row of the shipped table beside the same row without."""

from typing import NamedTuple

from finegauge.catalogue.tables import held_out_tables
from finegauge.formats.measurement_tables import read_table
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run


class Slowdown(NamedTuple):
    """Throughput of an offloaded run over that of the same run on GPUs alone."""

    run: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return the relative error."""
        return self.predicted / self.measured - 1.0


def slowdowns() -> list[Slowdown]:
    """Return the ratios of all offloaded rows; where no other row has its micro-batch, of the closest."""
    path = next(path for path in held_out_tables() if path.endswith("offload-a800.csv"))
    speeds = {row.run: row.measured.samples_per_s or 0.0 for row in read_table(path) if row.run}
    found = []
    for run, speed in speeds.items():
        if run.cpu_offload != "none":
            near = min(
                (one for one in speeds if one.cpu_offload == "none" and alike(one) == alike(run)),
                key=lambda one: abs(one.micro_batch_size - run.micro_batch_size),
            )
            ratio = predict(near).step_time_s.total / predict(run).step_time_s.total
            found.append(Slowdown(f"{run.sharding}, {run.cpu_offload}", speed / speeds[near], ratio))
    return found


def alike(run: Run) -> tuple[object, ...]:
    """Return what an offloaded run and its counterpart have in common."""
    return run.sharding, run.activation_checkpointing, run.global_batch_size
