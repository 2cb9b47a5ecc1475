r"""What crosses between a GPU, its host and its drives where weights or states are kept there.

Offloaded, Adam runs on the host: gradients come down, updated weights go up, and the host moves its
own copy, gradient and moments at the bandwidth of its memory [1]. On NVMe the fp32 copy and both
moments are read and written once per step, and 16-bit weights read for every pass [2].

Neglected: reading ahead from the drives while the host computes (`pipeline_read` is off by default).

[1] Ren et al. 2021, arXiv:2101.06840, section 4   [2] Rajbhandari et al. 2021, arXiv:2104.07857,
sections 5 and 6; figure 2b gives 1.6 GB/s of drives per GPU, all reading at once
"""

from collections.abc import Iterator
from typing import Any

from finegauge.predict.calibration import Calibration
from finegauge.predict.sharding import WEIGHTS_OFFLOADED, Share, shard_degree
from finegauge.predict.stages import stage_layers
from finegauge.workload.run import Run

ADAM_BYTES = 28.0  # per value on the host: gradient read, fp32 copy and two moments read and written
STATE_BYTES = 12.0  # per value on the drives: fp32 copy and two moments
NVME_BYTES_PER_S = 1.6e9  # of a GPU's share of its node's drives [2]: an assumption for any machine


def offloaded(
    run: Run, share: Share, micro_steps: Any, host_bytes_per_s: Any, calibration: Calibration
) -> Iterator[tuple[str, Any]]:
    """Yield (what, seconds per step) of all that crosses the host link, and of the update on the host."""
    if run.cpu_offload == "none":
        return
    low, weights = share.graph.lowering, share.graph.weights
    values = weights.trained_params + weights.adapter_params
    rank_weights = _rank_weights(run, share)
    crossing = values * low.compute_bytes / host_bytes_per_s
    if run.cpu_offload in WEIGHTS_OFFLOADED:
        yield "weights from the host", 2 * micro_steps * rank_weights / host_bytes_per_s
        yield "gradients to the host", crossing
    else:
        yield "gradients and weights over the host link", 2 * crossing
    yield (
        "optimizer on the host",
        values * ADAM_BYTES * share.value_bytes / 4.0 / calibration.host_bytes_per_s,
    )
    if run.cpu_offload == "nvme":
        trained = rank_weights if not run.trains_adapters else values * low.adapter_bytes
        yield "states on the drives", 2 * values * STATE_BYTES / NVME_BYTES_PER_S
        yield "weights on the drives", (2 * micro_steps * rank_weights + trained) / NVME_BYTES_PER_S


def _rank_weights(run: Run, share: Share) -> float:
    """Return the bytes of weights that one rank keeps on its host."""
    layers = stage_layers(run, share.graph.model)
    return (layers * share.layer_bytes + share.outer_bytes) / shard_degree(run)
