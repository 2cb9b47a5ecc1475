"""Joules of one step on the boards, as NVML would count them.

A board draws its idle power plus a share of the way to its limit: nearly all of it while
matrix products run, about two thirds while memory-bound kernels do, none while the device
waits for the host. Wall power (the node around the boards, the room around the node) is
the quote's business, and the two are never mixed.

Source: MLPerf Training v4.0 power logs, 8xH100: 895 W per GPU at the wall, 1.28 times the
board limit, with everything else in the node included.
"""

from typing import NamedTuple

from finegauge.arithmetic import largest
from finegauge.catalogue.gpus import GpuSpec
from finegauge.predict.calibration import Calibration
from finegauge.predict.time import StepTime
from finegauge.profile import Breakdown


class BoardPower(NamedTuple):
    """What one board may draw, and what it draws with clocks up and nothing to do."""

    limit_w: float
    idle_w: float


def board_power(gpu: GpuSpec, calibration: Calibration) -> BoardPower | None:
    """Return the power of a board of `gpu`; None where none is known."""
    if gpu.board_power_w is None:
        return None
    return BoardPower(
        gpu.board_power_w, gpu.idle_power_w or calibration.idle_power_fraction * gpu.board_power_w
    )


def step_energy_j(
    power: BoardPower | None, step: StepTime, calibration: Calibration, num_gpus: int = 1
) -> Breakdown:
    """Return the joules of one step of all boards by what they do; empty where no board power is known."""
    if power is None:
        return Breakdown({})
    limit, idle = power
    other = largest(0.0, step.device_s - step.matrix_s)
    parts = step.parts.parts.items()  # of a whole step, or of one of its stages
    exchanging = sum(seconds for path, seconds in parts if "communication" in path[:2])
    return Breakdown.of(
        matrix=num_gpus * step.matrix_s * largest(idle, calibration.active_power_fraction * limit),
        memory=num_gpus * other * largest(idle, calibration.memory_power_fraction * limit),
        waiting=num_gpus * step.host_bound_s * idle,
        communication=num_gpus * exchanging * largest(idle, calibration.exchange_power_fraction * limit),
    )
