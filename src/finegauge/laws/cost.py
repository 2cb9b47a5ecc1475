"""The seed paper's cost: queries x epochs over throughput, times the price of an hour.

Neglects what the paper neglects: start-up, evaluation and checkpoints.
"""

from finegauge.units import HOUR_S


def cost_usd(*, queries: float, epochs: float, samples_per_s: float, usd_per_h: float) -> float:
    """Return the dollars of `epochs` passes over `queries` at a steady rate on one GPU."""
    return queries * epochs / samples_per_s / HOUR_S * usd_per_h
