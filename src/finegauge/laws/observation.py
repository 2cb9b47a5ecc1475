"""One measured point of a sweep: under which condition, and what was seen."""

from typing import NamedTuple


class Condition(NamedTuple):
    """What the laws know of a run; a law reads only some of it."""

    batch: int = 1  # sequences of one micro-batch
    sparsity_fraction: float = 1.0  # experts active over all experts; 1 is dense
    seq_len: int = 0  # tokens of the longest sequence
    gpu_memory_bytes: float = 0.0  # as the GPU is sold
    model_memory_bytes: float = 0.0  # what the weights take


class Observation(NamedTuple):
    """A condition and the value of the law's quantity there."""

    condition: Condition
    value: float  # in the unit of the form's quantity
