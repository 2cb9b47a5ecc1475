"""Which constants are fitted, what each of them means, and how sure one is before any measurement.

Every constant is positive and multiplies or divides something, so it is fitted as the logarithm of
its ratio to the datasheet's value; `spread` is the standard deviation of that logarithm before the
first measurement. Where data are thin a constant stays near its datasheet value.
"""

from typing import NamedTuple


class Constant(NamedTuple):
    """A field of `Calibration` that measurements may move."""

    name: str
    meaning: str
    spread: float


CONSTANTS = (
    Constant("sustained_fraction", "large matrix products in training over the best benchmark", 0.08),
    Constant("bandwidth_fraction", "bandwidth of large elementwise kernels over the datasheet's", 0.05),
    Constant("grouped_fraction", "one kernel for the products of all experts over a single product", 0.30),
    Constant("flash_fraction", "FlashAttention forward over the dense peak, Ampere and Ada", 0.25),
    Constant("hopper_flash_fraction", "FlashAttention forward over the dense peak, Hopper and later", 0.25),
    Constant("flash_backward_fraction", "rate of FlashAttention's backward over its forward's", 0.15),
    Constant("dequantise_fraction", "bandwidth of dequantisation kernels over the datasheet's", 0.20),
    Constant("launch_s", "host seconds per kernel of eager PyTorch", 0.30),
    Constant("call_s", "host seconds of Python per adapter or 4-bit module call", 0.70),
    Constant("wait_s", "host seconds such a call waits for the device in instrumented code", 1.00),
    Constant("link_fraction", "collectives inside a node over the link's rate", 0.08),
    Constant("network_fraction", "collectives between nodes over the network cards' rate", 0.30),
    Constant("unit_wait_s", "host seconds before a sharded layer may gather the next", 0.50),
    Constant("module_wait_s", "the same where every module is gathered on its own (ZeRO-3)", 0.50),
    Constant("contention_fraction", "of a collective's time, lost by the computation beside it", 0.50),
)
