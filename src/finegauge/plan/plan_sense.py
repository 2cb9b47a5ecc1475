"""Which plans an engineer would carry out, of those that a search finds possible.

Passed over are several nodes for runs that are over within an hour (clusters are booked by the hour
and by the day), steps of far more or fewer samples than the run's (rows of packed samples cannot be
cut finer than one), and offload to a host that cannot hold what it is given. Nor does a run with
adapters become a full fine-tune, which is another training; as an alternative it is told.

Assumption: a host has twice the memory of its GPUs (8 x A100-80GB of AWS: 1.8 times, 8 x H100: 3.2).
"""

from typing import TYPE_CHECKING

from finegauge.workload.method import ADAPTER_METHODS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finegauge.plan.plan_choice import Found
    from finegauge.workload.run import Run

SHORTEST_ON_NODES_S = 3600.0
MOST_OTHER_SAMPLES_FRACTION = 0.25
HOST_MEMORY_RATIO = 2.0  # over the memory of its GPUs
# On the host, of each parameter: the 16-bit weight; its fp32 copy, two moments and 16-bit gradient.
HELD_WEIGHT_BYTES, HELD_STATE_BYTES = 2.0, 14.0


def workable(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return which of the plans found for `run` somebody would carry out."""
    columns = result.columns
    mask: NDArray[np.bool_] = (columns["num_nodes"] <= 1) | (columns["wall_s"] >= SHORTEST_ON_NODES_S)
    ratio = columns["samples_per_step"] / samples_per_step(run)
    mask &= abs(ratio - 1.0) <= MOST_OTHER_SAMPLES_FRACTION
    if len(mask) and "cpu_offload" in result.labels:
        mask &= _host_holds(run, result)
    return mask


def same_training(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return which plans train what was asked for, or less: all but full ones for a run with adapters."""
    import numpy as np

    methods, method = result.labels["method"]
    if not run.trains_adapters or not len(method):
        return np.ones(len(method), dtype=bool)
    mask: NDArray[np.bool_] = np.array([one in ADAPTER_METHODS for one in methods])[method]
    return mask


def samples_per_step(run: "Run") -> float:
    """Return the samples of the data set in one optimizer step of `run`, all GPUs together."""
    from finegauge.workload.data import shape

    return shape(run).samples * run.gradient_accumulation_steps * run.data_parallel


def _host_holds(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return for which plans the hosts' memory holds what is offloaded to it."""
    import numpy as np

    from finegauge.graph.build import architecture_of

    parameters = float(architecture_of(run.model, run.num_experts_per_tok).num_parameters)
    offloads, offload = result.labels["cpu_offload"]
    methods, method = result.labels["method"]
    counts, count = result.labels["num_gpus"]
    per_parameter = np.array([[_held_bytes(str(o), str(m)) for m in methods] for o in offloads])
    room = HOST_MEMORY_RATIO * result.columns["capacity_bytes"] * np.array(counts, dtype=float)[count]
    mask: NDArray[np.bool_] = parameters * per_parameter[offload, method] <= room
    return mask


def _held_bytes(offload: str, method: str) -> float:
    """Return the bytes of each parameter that lie in the memory of the host."""
    weights = HELD_WEIGHT_BYTES if offload in ("params", "all") else 0.0
    states = HELD_STATE_BYTES if offload in ("optimizer", "all") and method not in ADAPTER_METHODS else 0.0
    return weights + states
