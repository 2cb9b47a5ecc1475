r"""How long ranks wait for the slowest of them: the one with the longest sequences, or the busiest experts.

Padded to the longest of its B sequences, a micro-batch of one of R ranks costs what its longest does, so
the slowest of R costs what the longest of B·R sequences does, exactly. Where ranks meet once per step
only, after m micro-batches, and where sequences are joined, sums decide:

$$ E[\max_R \sum] = m\,\mu + \sqrt{m}\,\sigma\,e_R \qquad e_R = E[\max of R standard normal numbers] $$

Of T·k rows that a rank hands to experts spread evenly over n ranks, the fullest rank gets
$e_n / \sqrt{T k}$ more than its share [1], in every layer.

Neglected: that routing is learned and uneven, so that this imbalance is the least there can be; the
lengths of samples inside packed sequences; slow machines.

[1] the multinomial's normal limit: loads less their mean are as normal numbers less theirs
"""

from functools import lru_cache
from math import erf, sqrt
from typing import Any

from finegauge.graph.op import Extents
from finegauge.predict.sharding import GATHERING, Share
from finegauge.profile import Breakdown
from finegauge.workload.data import BatchShape, lengths
from finegauge.workload.prompts import WRITING
from finegauge.workload.run import Run

STEPS, FARTHEST = 400, 8.0  # of the integral over the normal distribution, in standard deviations


def slowest_extents(run: Run, batch: BatchShape) -> Extents:
    """Return the micro-batch of the slowest data-parallel rank; the average one where all are alike.

    Where ranks meet once per step, it is the average over the slowest rank's micro-batches.
    """
    mean = Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)
    alike = run.packing or run.padding == "max" or run.group_by_length or run.phase in WRITING
    known = None if alike or run.data_parallel == 1 else lengths(run, padded=run.padding == "longest")
    if known is None:
        return mean
    ranks, rows = run.data_parallel, batch.sequences
    sums = 1 if meets_every_micro_batch(run) else run.gradient_accumulation_steps
    if run.padding == "longest":
        most = [rows * known.expected_max(rows * ranks, power) for power in (1, 2)]
        if sums == 1:
            return mean._replace(tokens=most[0], pairs=most[1])
        moments = [known.expected_max(rows, power) for power in (1, 2, 4)]
        spread = [rows * _deviation(moments[0], moments[1]), rows * _deviation(moments[1], moments[2])]
    else:
        most = [float(rows * known.longest), float(rows * known.longest**2)]
        moments = [known.mean(power) for power in (1, 2, 4)]
        spread = [_deviation(moments[0], moments[1]), _deviation(moments[1], moments[2])]
        spread = [sqrt(rows) * value for value in spread]
    above = expected_largest(ranks) / sqrt(sums)
    tokens, pairs = (
        min(most[i], average + above * spread[i])
        for i, average in enumerate((batch.tokens, batch.tokens_square))
    )
    return mean._replace(tokens=max(batch.tokens, tokens), pairs=max(batch.tokens_square, pairs))


def meets_every_micro_batch(run: Run) -> bool:
    """Return whether ranks wait for each other in every micro-batch, not at the end of a step alone."""
    return run.sharding in (*GATHERING, "zero2") or run.expert_parallel > 1


def expert_waits_s(share: Share, extents: Extents, parts: Breakdown) -> Any:
    """Return the seconds that a micro-batch, of `parts`, waits for the rank with the busiest experts."""
    run = share.run
    if run.expert_parallel == 1:
        return 0.0
    routed = [op for group in share.graph.layers for op in group.ops if op.kind == "grouped_gemm"]
    if not routed:
        return 0.0
    paths = {op.path for op in routed}
    seconds = sum(value for path, value in parts.parts.items() if path[1:] in paths)
    rows = extents.tokens * routed[0].forward.gemms[0].rows_per_token
    return expected_largest(run.expert_parallel) / rows**0.5 * seconds


@lru_cache(maxsize=256)
def expected_largest(number: int) -> float:
    r"""Return the mean of the largest of `number` standard normal numbers.

    $$ E = \int_0^\infty (1 - \Phi^n(x) - \Phi^n(-x))\,dx $$
    """
    if number <= 1:
        return 0.0
    width, total = FARTHEST / STEPS, 0.0
    for step in range(STEPS + 1):
        tail = 0.5 * (1.0 - erf(step * width / sqrt(2.0)))
        weight = 1.0 if step in (0, STEPS) else 4.0 if step % 2 else 2.0  # Simpson's rule
        total += weight * (1.0 - (1.0 - tail) ** number - tail**number)
    return total * width / 3.0


def _deviation(mean: float, mean_square: float) -> float:
    """Return the standard deviation."""
    return sqrt(max(0.0, mean_square - mean * mean))
