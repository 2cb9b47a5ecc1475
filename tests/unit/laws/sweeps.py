"""Sweeps that follow a law exactly, for tests that want it back."""

from finegauge.laws.law import Condition, Constants, Observation, form
from finegauge.units import GB

AFFINE = {"a": 2.0, "c": 0.1, "d": 0.4}
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)


def followed(
    name: str, constants: Constants, *, sparsities: tuple[float, ...] = (1.0, 0.25)
) -> list[Observation]:
    """Return what a law with these constants would measure."""
    conditions = [Condition(batch=b, sparsity_fraction=s) for s in sparsities for b in BATCHES]
    return [Observation(at, form(name).evaluate(constants, at)) for at in conditions]


def capacities(constants: Constants) -> list[Observation]:
    """Return the largest batches that equation 1 gives, whole."""
    conditions = [
        Condition(sparsity_fraction=s, seq_len=512, gpu_memory_bytes=gb * GB, model_memory_bytes=23.35 * GB)
        for s in (1.0, 0.25)
        for gb in (40.0, 48.0, 80.0, 96.0, 141.0, 192.0)
    ]
    return [Observation(at, form("xia-eq1").answer(constants, at)) for at in conditions]
