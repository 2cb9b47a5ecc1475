"""Uncertainty of a prediction: the interval of its time, the probability that a step runs out of memory.

The interval of times is what a source left out of the fit was off by: one new framework, machine and way of
counting. Where the GPU, the framework, the number format or the division of a run was not timed, it is
what tables held out of every fit were off by, by how many of these are new.

The logarithm of a memory error is taken as Student's t with four degrees of freedom about the median, with
the 10-90 % interval of the profile's source on either side: sources left out have heavier tails than a
normal distribution (`validation/summary.py` holds it against what happened). A run that dies after
hours costs far more than a batch that is one smaller, so the thresholds of a verdict are not symmetric: from
5 % on a run is called risky, from 50 % on it will not fit.
"""

from math import acos, cos, exp, hypot, log, sqrt
from typing import Literal

from finegauge.arithmetic import log as logarithm
from finegauge.arithmetic import where
from finegauge.catalogue.datasets import SPREAD, dataset, holds_texts
from finegauge.catalogue.frameworks import engine, framework_of
from finegauge.catalogue.gpus import GpuSpec
from finegauge.errors import EXIT_DONE, EXIT_RISKY, EXIT_WILL_NOT_FIT
from finegauge.prediction.calibration import Learned
from finegauge.prediction.device import COMPILED
from finegauge.profile import Interval, Profile
from finegauge.run.rules import SERVING
from finegauge.run.run import Run

# what the tables have rows of that constants are fitted to
TIMED_GPUS = frozenset({"A100-SXM4-80GB", "A100-SXM4-40GB", "A40", "H100-SXM5-80GB", "RTX 4090", "A10G"})
DERIVED_RECIPES = ("mxfp8", "mxfp4")  # whose rates are taken from others'
TIMED_ARCHITECTURES = frozenset({"Ampere", "Ada Lovelace", "Hopper"})
TIMED_PHASES = frozenset({"sft", "pretrain"})
P90 = 1.5332062740589438  # 90th percentile of Student's t with four degrees of freedom


def probability_out_of_memory(profile: Profile) -> float:
    """Return the probability that the longest batch of `profile` exceeds the GPU's usable memory."""
    needed, room = profile.device_memory_bytes.total, profile.capacity_bytes
    interval = profile.source.memory_interval
    if needed <= 0 or room <= 0:
        return 0.0 if needed <= room else 1.0
    if interval is None:
        return float(needed > room)
    return exceeding_fraction(needed, room, interval)


def exceeding_fraction(needed_bytes: float, room_bytes: float, interval: Interval) -> float:
    """Return the probability that what is predicted to need `needed_bytes` needs more than `room_bytes`."""
    distance = logarithm(room_bytes / needed_bytes)
    if interval.low_ratio == interval.high_ratio:
        sure: float = where(distance < 0, 1.0, 0.0)
        return sure
    spread = where(distance >= 0, log(interval.high_ratio), -log(interval.low_ratio))
    t = distance / (spread / P90)
    spared = 4.0 + t * t
    fraction: float = 0.5 - 0.75 * t / spared**0.5 * (1.0 - t * t / (3.0 * spared))
    return fraction


# 10th and 90th percentile of truth over prediction by how many things of a run were not timed, all
# sources weighing alike; never narrower than with fewer (`benchmarks/intervals.py`; docs/accuracy.md counts
# what lies inside). Most took longer than predicted: other machines and code lose what nobody has looked for.
UNTIMED = (Interval(0.89, 1.21), Interval(0.89, 1.34), Interval(0.89, 1.45), Interval(0.89, 1.61))

# the same of peak memory under a framework of which no fitted table states any: the 219 rows of torchtitan,
# torchao, universal-llm-trainer, fitcheck, offload-a800 and simumax-b200 (Megatron's constants of time are
# fitted, its memory is in none of those tables), reserved and allocated together
UNMEASURED = Interval(0.90, 1.14)

# the same of memory that is not counted by what torch allocates: what an allocator keeps depends on all that
# came before, and a table may not say what it counted (167 rows of Qwen, torchtune, torchtitan, torchao and
# universal-llm-trainer; 80 % of a source left out, by rows as by sources)
RESERVED = Interval(0.84, 1.12)


def memory_interval(run: Run, interval: Interval, unmeasured: Interval = UNMEASURED) -> Interval:
    """Return the interval of the peak memory of `run`: `interval`, wider where its framework is less sure.

    Nobody measured its memory, or some of what it does is inferred from rows. What an engine takes at its
    start is all that it takes.
    """
    if run.phase in SERVING and engine(run.inference_engine).paged:
        return Interval(1.0, 1.0)
    if not (is_unweighed(run.framework) or framework_of(run.framework).inferred):
        return interval
    return _no_narrower(interval, unmeasured)


def counted_interval(interval: Interval, metric: str, reserved: Interval = RESERVED) -> Interval:
    """Return the interval of peak memory counted by `metric`; `interval` is of what torch allocates."""
    return interval if metric == "torch_allocated" else _no_narrower(interval, reserved)


def _no_narrower(interval: Interval, other: Interval) -> Interval:
    return Interval(min(interval.low_ratio, other.low_ratio), max(interval.high_ratio, other.high_ratio))


def is_unweighed(framework: str) -> bool:
    """Return whether none of the rows that intervals of memory come from is of `framework`."""
    return bool(framework) and not framework_of(framework).weighed


def untimed(run: Run, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what of `run` no constant was fitted to; what weighs double stands twice.

    GPU, framework, number format, experts or sequences divided, memory of the host, the phase.
    """
    found = []
    if gpu.measured is None and gpu.name not in TIMED_GPUS:
        whose = "training steps on this GPU"
        found += [whose] if gpu.architecture in TIMED_ARCHITECTURES else [whose, whose]
    if gpu.architecture in COMPILED and gpu.measured is None:
        found.append("what its compiler makes of them")
    if run.framework and not framework_of(run.framework).timed:
        found.append("steps of this framework")
    found += [f"its {field}, which no source states" for field in framework_of(run.framework).inferred]
    if run.fp8:
        found += ["products in this number format"] * (2 if run.fp8_recipe in DERIVED_RECIPES else 1)
    flags = {
        "experts divided among GPUs": run.expert_parallel > 1,
        "sequences divided among GPUs": run.context_parallel > 1,
        "offloading to the host": run.cpu_offload != "none",
        "this phase": run.phase not in TIMED_PHASES,
    }
    return (*found, *(what for what, holds in flags.items() if holds))


# 10th and 90th percentile of a mean length that one source prints over what another does: Alpaca, Dolly,
# OASST, ShareGPT, LMSYS-Chat and WildChat stand in two or three of the tables that `datasets.jsonl` cites
PUBLISHED_MEAN = Interval(1 / 1.23, 1.23)


def spread_lengths(run: Run) -> str:
    """Return in one line that only a mean or median length of `run`'s data set is published; "" otherwise."""
    if run.dataset is None or holds_texts(run.dataset, has_tokenizer=run.tokenizer is not None):
        return ""
    found = dataset(run.dataset)
    if (about := SPREAD.get(found.kind)) is None:
        return ""
    tokens = getattr(found, f"{about}_tokens")
    return f"the lengths of {found.name}, log-normal about the published {about} of {tokens:,.0f} tokens"


def time_interval(run: Run, gpu: GpuSpec, interval: Interval, learned: Learned | None = None) -> Interval:
    """Return the interval of the step time of `run`: `interval`, wider for what was not timed or counted.

    Where finished runs of its GPU and framework were learned from, it is theirs.
    """
    number = 0 if learned is not None else len(untimed(run, gpu))
    interval = interval if learned is None else learned.time_interval
    if number:
        interval = _no_narrower(interval, UNTIMED[min(number, len(UNTIMED)) - 1])
    if not spread_lengths(run):
        return interval
    wider = [hypot(log(one), log(other)) for one, other in zip(interval, PUBLISHED_MEAN, strict=True)]
    return Interval(exp(-wider[0]), exp(wider[1]))


def evidence(run: Run, gpu: GpuSpec) -> str:
    """Return in one line what stands behind the step time of `run`; "" where a device profile does."""
    if gpu.measured is not None:
        return ""
    missing = ", ".join(dict.fromkeys(untimed(run, gpu)))
    if not missing:
        return ""
    said = f"the step time: no constant was fitted to {missing}, so its interval is that of held-out tables"
    if gpu.architecture in COMPILED:
        said += "; kernels are counted as PyTorch's on CUDA, nothing fused, and launched as one graph"
    if gpu.architecture == "TPU":
        said += "; fp32 products at a sixth of the bf16 rate: six passes, as at XLA's highest precision"
    if gpu.architecture in ("TPU", "NeuronCore") and run.weights_dtype in ("nf4", "nf4_dq", "int8"):
        said += f"; kernels of {run.weights_dtype}, of which bitsandbytes has none for {gpu.vendor}'s chips"
    return said


RISKY_FROM_FRACTION = 0.05
WILL_NOT_FIT_FROM_FRACTION = 0.5

Verdict = Literal["fits", "risky", "will_not_fit"]
FITS: Verdict = "fits"
RISKY: Verdict = "risky"
WILL_NOT_FIT: Verdict = "will_not_fit"

EXIT_CODES = {FITS: EXIT_DONE, RISKY: EXIT_RISKY, WILL_NOT_FIT: EXIT_WILL_NOT_FIT}


def verdict(out_of_memory_fraction: float) -> Verdict:
    """Return the verdict on a run that runs out of memory with this probability."""
    if out_of_memory_fraction >= WILL_NOT_FIT_FROM_FRACTION:
        return WILL_NOT_FIT
    return RISKY if out_of_memory_fraction >= RISKY_FROM_FRACTION else FITS


def margin_ratio(profile: Profile, risk_fraction: float) -> float:
    """Return what a GPU must have over the memory that is predicted for that risk; of even odds at most."""
    interval = profile.source.memory_interval
    return 1.0 if interval is None else exceeded_ratio(risk_fraction, interval)


def exceeded_ratio(fraction: float, interval: Interval) -> float:
    """Return the ratio to what is predicted that the truth exceeds with a probability of `fraction`."""
    root = sqrt(4.0 * fraction * (1.0 - fraction))
    t = 2.0 * sqrt(cos(acos(root) / 3.0) / root - 1.0)  # the quantile for four degrees of freedom
    ratio: float = (interval.high_ratio if fraction < 0.5 else interval.low_ratio) ** (t / P90)
    return ratio


def safe_bytes(profile: Profile) -> float:
    """Return the most that a step like that of `profile` may be predicted to need and not be risky."""
    return profile.capacity_bytes / margin_ratio(profile, RISKY_FROM_FRACTION)


def is_safe(profile: Profile) -> bool:
    """Return whether a step is not even risky."""
    return verdict(probability_out_of_memory(profile)) == FITS
