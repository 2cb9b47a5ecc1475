"""What is no data: losses that are no numbers, steps without tokens, a throttled or impossible speed."""

import math
from collections.abc import Sequence

from finegauge.measure.subject import StepFacts


def refusal(
    facts: Sequence[StepFacts],
    *,
    first_step: int = 1,
    step_times_s: Sequence[float] = (),
    mfu_fraction: float = 0.0,
    throttled: Sequence[str] = (),
) -> str:
    """Return why the measured steps are refused as data; "" where they are not.

    Args:
        facts: Of the steps.
        first_step: The number of the first of them, for the message.
        step_times_s: Of the measured steps.
        mfu_fraction: Model FLOPs over the device's peak; 0 where the peak is not known.
        throttled: Why the device ran slower than it can, in the driver's words.
    """
    for number, fact in enumerate(facts, first_step):
        if fact.loss is not None and not math.isfinite(fact.loss):
            return f"the loss of step {number} is {fact.loss}: check the weights and the learning rate"
        if fact.tokens <= 0:
            return f"step {number} worked on no tokens: check the data set and seq_len"
    if any(seconds <= 0 for seconds in step_times_s):
        return "a step took no time: the clock is broken"
    if throttled:
        return f"the device was throttled ({', '.join(throttled)}): measure again when it is cool and idle"
    if mfu_fraction > 1.0:
        return (
            f"the step would use {100 * mfu_fraction:.0f} % of the device's peak FLOP/s, which cannot be: "
            "check the GPU's figures and the clock"
        )
    return ""
