r"""The equations, each with its constants; nothing here is fitted.

affine           $$ q = \frac{B}{a + B (c + d s)} $$  seconds of a step are affine in the batch
xia-eq2          $$ q = C_4 + C_2 \ln B^{1 / (s C_3)} $$  equation 2 as the artifact of [1] fits it
xia-eq2-printed  $$ q = C_4 + C_2 \ln \frac{B}{s C_3} $$  equation 2 as [1] prints it
xia-eq1          $$ B_{max} = \lfloor C_0 \frac{M_{GPU} - M_{model}}{L ((1 - C_1) + C_1 s)} \rfloor $$

B batch, s sparsity (active experts over all), q sequences per second on one GPU, M memory in GB,
L tokens of the longest sequence. In both forms of equation 2 no data can tell C3 from its
neighbour: the artifact's depends on C2 / C3 alone, the printed one on C4 - C2 ln C3 alone. C3 is
therefore held at the artifact's value for Mixtral, and counts as a constant set by hand.

[1] Xia et al. 2024, "Understanding the Performance and Estimating the Cost of LLM Fine-Tuning",
    section V; artifact stsxxx/finetune at 728a01b.
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor, log
from typing import NamedTuple

from finegauge.errors import UnknownNameError
from finegauge.laws.observation import Condition, Observation
from finegauge.units import GB

Constants = Mapping[str, float]
Sweep = Sequence[Observation]
ARTIFACT_C3 = 1.8  # Mixtral's, written into the artifact's plot script

SAMPLES_PER_S, MAX_BATCH = "samples_per_s", "max_batch"


class Form(NamedTuple):
    """One equation: which quantity it gives, of which constants."""

    name: str
    equation: str
    quantity: str  # samples_per_s (of one GPU) or max_batch
    units: Mapping[str, str]  # of each constant, in order
    evaluate: Callable[[Constants, Condition], float]
    start: Callable[[Sweep], dict[str, float]]  # where a fit begins
    held: Callable[[Sweep], dict[str, float]]  # constants that this sweep cannot tell
    limits: Mapping[str, tuple[float, float]]  # what a constant may be, where physics says so

    def answer(self, constants: Constants, condition: Condition) -> float:
        """Return the quantity as the law would state it: a batch is a whole number."""
        value = self.evaluate(constants, condition)
        return float(max(0, floor(value + 1e-9))) if self.quantity == MAX_BATCH else value

    def size(self, condition: Condition) -> float:
        """Return what grows along a sweep: the batch, or the memory of the GPU."""
        return condition.gpu_memory_bytes if self.quantity == MAX_BATCH else float(condition.batch)


def form(name: str) -> Form:
    """Return the equation called `name`, or raise UnknownNameError."""
    if name not in FORMS:
        raise UnknownNameError("law", name, known=FORMS)
    return FORMS[name]


def _affine(constants: Constants, at: Condition) -> float:
    per_sequence = constants["c"] + constants["d"] * at.sparsity_fraction
    return at.batch / (constants["a"] + at.batch * per_sequence)


def _affine_start(sweep: Sweep) -> dict[str, float]:
    """Return the line through the smallest and the largest batch, its slope shared evenly."""
    first = min(sweep, key=lambda seen: seen.condition.batch)
    last = max(sweep, key=lambda seen: seen.condition.batch)
    low, high = (seen.condition.batch / seen.value for seen in (first, last))
    rise = last.condition.batch - first.condition.batch
    slope = max((high - low) / rise if rise else low, 1e-3 * low)
    return {"a": max(low - slope * first.condition.batch, 0.1 * low), "c": slope / 2, "d": slope / 2}


def _affine_held(sweep: Sweep) -> dict[str, float]:
    """Return d = 0 where all points have one sparsity: c then stands for c + d s."""
    return {"d": 0.0} if len({seen.condition.sparsity_fraction for seen in sweep}) < 2 else {}


def _eq2(constants: Constants, at: Condition) -> float:
    exponent = 1.0 / (at.sparsity_fraction * constants["C3"])
    return constants["C4"] + constants["C2"] * exponent * log(at.batch)


def _eq2_printed(constants: Constants, at: Condition) -> float:
    scaled = at.batch / (at.sparsity_fraction * constants["C3"])
    return constants["C4"] + constants["C2"] * log(scaled)


def _eq2_start(sweep: Sweep) -> dict[str, float]:
    values = [seen.value for seen in sweep]
    return {"C2": max(values) - min(values) or 1.0, "C3": ARTIFACT_C3, "C4": min(values)}


def _eq1(constants: Constants, at: Condition) -> float:
    free_gb = (at.gpu_memory_bytes - at.model_memory_bytes) / GB
    share = (1.0 - constants["C1"]) + constants["C1"] * at.sparsity_fraction
    return constants["C0"] * free_gb / (at.seq_len * share)


def _eq1_held(sweep: Sweep) -> dict[str, float]:
    """Return C1 = 0 where all points have one sparsity."""
    return {"C1": 0.0} if len({seen.condition.sparsity_fraction for seen in sweep}) < 2 else {}


_ANY = (float("-inf"), float("inf"))
_SECONDS = (0.0, float("inf"))
_EQ2_UNITS = {"C2": "samples/s", "C3": "", "C4": "samples/s"}

FORMS: Mapping[str, Form] = {
    each.name: each
    for each in (
        Form(
            name="affine",
            equation="seconds of a step = a + batch * (c + d * sparsity)",
            quantity=SAMPLES_PER_S,
            units={"a": "s", "c": "s/sample", "d": "s/sample"},
            evaluate=_affine,
            start=_affine_start,
            held=_affine_held,
            limits={"a": _SECONDS, "c": _SECONDS, "d": _SECONDS},
        ),
        Form(
            name="xia-eq2",
            equation="samples/s = C4 + C2 * ln(batch ^ (1 / (sparsity * C3)))",
            quantity=SAMPLES_PER_S,
            units=_EQ2_UNITS,
            evaluate=_eq2,
            start=_eq2_start,
            held=lambda sweep: {"C3": ARTIFACT_C3},
            limits={"C2": _ANY, "C4": _ANY},
        ),
        Form(
            name="xia-eq2-printed",
            equation="samples/s = C4 + C2 * ln(batch / (sparsity * C3))",
            quantity=SAMPLES_PER_S,
            units=_EQ2_UNITS,
            evaluate=_eq2_printed,
            start=_eq2_start,
            held=lambda sweep: {"C3": ARTIFACT_C3},
            limits={"C2": _ANY, "C4": _ANY},
        ),
        Form(
            name="xia-eq1",
            equation="max batch = floor(C0 * (GPU GB - model GB) / (tokens * ((1 - C1) + C1 * sparsity)))",
            quantity=MAX_BATCH,
            units={"C0": "tokens/GB", "C1": ""},
            evaluate=_eq1,
            start=lambda sweep: {"C0": 80.0, "C1": 0.5},
            held=_eq1_held,
            limits={"C0": (0.0, float("inf")), "C1": (0.0, 1.0)},
        ),
    )
}
