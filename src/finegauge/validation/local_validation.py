"""How wrong predictions are on this very machine, for configurations drawn at random.

Tiny models are drawn from a seed: dense ones and mixtures of experts, full and LoRA, several batches
and lengths. Each is predicted from the machine's device profile first, and only then measured, in a
process of its own. The device profile knows single operators at sizes of its own grid; nothing of it is
fitted to steps. Drawn runs whose predicted step is shorter or longer than `STEP_S` are drawn anew.
"""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Literal, NamedTuple

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.documents import write_document
from finegauge.errors import FineGaugeError
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.progress import Heard, Progress
from finegauge.run.run import Run

STEP_S = (0.02, 0.5)  # of a step worth measuring: above the host's jitter, and short enough to wait for
TIME_BAR_FRACTION, MEMORY_BAR_FRACTION = 0.15, 0.03  # of the median errors
MOST_DRAWS = 50  # for every run that is kept
FAMILIES = ("llama", "mixtral", "qwen3", "qwen3_moe")  # dense and mixtures in turn

Measure = Callable[[Run], Profile]
Outcome = Literal["completed", "out_of_memory", "unsupported", "failed", "interrupted"]


class Trial(NamedTuple):
    """One configuration, predicted and then measured; errors are predicted / measured - 1."""

    run: str  # the configuration in one line
    outcome: Outcome
    reason: str | None
    predicted_step_time_s: float
    measured_step_time_s: float
    predicted_peak_memory_bytes: float
    measured_peak_memory_bytes: float
    waited_fraction: float  # of the measured time, in which another program had the processor
    step_time_error: float | None  # without that time; None where the measurement is no data
    peak_memory_error: float | None

    @property
    def complete(self) -> bool:
        """Return whether the measurement is data."""
        return self.outcome == "completed"

    @property
    def undisturbed_s(self) -> float:
        """Return the measured seconds of a step, without those spent waiting for the processor."""
        return self.measured_step_time_s * (1.0 - self.waited_fraction)


class Summary(NamedTuple):
    """The median errors of all trials, without their signs, and the bars they are held against."""

    completed: int
    step_time_error_median: float | None  # None where nothing was measured
    step_time_error_bar: float
    peak_memory_error_median: float | None
    peak_memory_error_bar: float
    holds: bool  # every trial is data, and both medians are within their bars


class HereValidation(NamedTuple):
    """All configurations of one seed on one machine."""

    device: str  # what the machine calls it
    seed: int
    trials: tuple[Trial, ...]
    summary: Summary


def validate_here(
    gpu: str, measure: Measure, folder: str, *, num: int = 20, seed: int = 0, heard: Heard | None = None
) -> HereValidation:
    """Return `num` configurations, all predicted for the device profile `gpu`, then measured by `measure`.

    `gpu` is the path of a device profile, or "here"; the configurations' model files go to `folder`.
    """
    predictions = list(unseen(gpu, folder, num=num, seed=seed))
    trials = []
    for done, predicted in enumerate(predictions):
        if heard is not None:
            heard(Progress(f"{done + 1} of {num}", done, num))
        trials.append(_trial(predicted, measure(predicted.run)))
    return HereValidation(find_gpu(gpu).name, seed, tuple(trials), _summary(trials))


def _trial(predicted: Profile, measured: Profile) -> Trial:
    step_s, peak = predicted.step_time_s.total, predicted.peak_memory_bytes.total
    trial = Trial(
        run=describe(predicted.run),
        outcome=measured.outcome,  # type: ignore[arg-type]
        reason=measured.reason or None,
        predicted_step_time_s=step_s,
        measured_step_time_s=measured.step_time_s.total,
        predicted_peak_memory_bytes=peak,
        measured_peak_memory_bytes=measured.peak_memory_bytes.total,
        waited_fraction=measured.waited_fraction,
        step_time_error=None,
        peak_memory_error=None,
    )
    if not trial.complete:
        return trial
    return trial._replace(
        step_time_error=step_s / trial.undisturbed_s - 1,
        peak_memory_error=peak / trial.measured_peak_memory_bytes - 1,
    )


def _summary(trials: Sequence[Trial]) -> Summary:
    times = [abs(one.step_time_error) for one in trials if one.step_time_error is not None]
    sizes = [abs(one.peak_memory_error) for one in trials if one.peak_memory_error is not None]
    time, memory = (median(errors) if errors else None for errors in (times, sizes))
    whole = 0 < len(times) == len(trials)
    return Summary(
        completed=len(times),
        step_time_error_median=time,
        step_time_error_bar=TIME_BAR_FRACTION,
        peak_memory_error_median=memory,
        peak_memory_error_bar=MEMORY_BAR_FRACTION,
        holds=whole and median(times) <= TIME_BAR_FRACTION and median(sizes) <= MEMORY_BAR_FRACTION,
    )


def unseen(gpu: str, folder: str, *, num: int, seed: int) -> Iterator[Profile]:
    """Yield the predictions of `num` drawn runs whose steps are worth measuring."""
    drawn = random.Random(seed)
    kept = 0
    for draw in range(MOST_DRAWS * num):
        if kept == num:
            return
        run = _drawn(drawn, FAMILIES[kept % len(FAMILIES)], os.path.join(folder, f"run-{draw}"), gpu)
        profile = predict(run)
        if STEP_S[0] <= profile.step_time_s.total <= STEP_S[1]:
            kept += 1
            yield profile
    if kept < num:
        raise FineGaugeError(
            f"Only {kept} of {num} drawn configurations take {STEP_S[0]:g} to {STEP_S[1]:g} s a step here; "
            f"ask for fewer by --num, or another --seed."
        )


def _drawn(drawn: random.Random, family: str, folder: str, gpu: str) -> Run:
    heads, head_dim = drawn.choice((2, 4, 8)), drawn.choice((32, 64))
    width = heads * head_dim
    routed = family in ("mixtral", "qwen3_moe")
    inner = int(width * drawn.choice((0.5, 1, 2) if routed else (2, 2.75, 4)))
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": drawn.choice((1000, 3000, 8000)),
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": drawn.randint(2, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": drawn.choice((heads, heads // 2)),
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }
    fields: dict[str, Any] = {}
    if routed:
        experts = drawn.choice((4, 8))
        config |= {"num_experts_per_tok": 2, "moe_intermediate_size": inner, "norm_topk_prob": True}
        config["num_local_experts" if family == "mixtral" else "num_experts"] = experts
        fields["num_experts_per_tok"] = drawn.choice((2, 2, experts))
    write_document(config, os.path.join(folder, "config.json"))
    if drawn.random() < 0.5:
        targets = drawn.choice(
            (("attention",), ("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"))
        )
        fields |= {"method": "lora", "lora_rank": drawn.choice((4, 8, 16)), "lora_targets": targets}
        fields["adapter_dtype"] = "fp32"
    return Run(
        model=os.path.join(folder, "config.json"),
        gpu=gpu,
        weights_dtype="fp32",
        attention=drawn.choice(("sdpa", "sdpa", "eager")),
        activation_checkpointing=drawn.choice(("none", "none", "none", "full")),
        checkpointing_reentrant=False,
        optimizer_implementation=drawn.choice(("fused", "foreach", "loop")),
        micro_batch_size=drawn.choice((1, 2, 3, 4, 8)),
        seq_len=drawn.choice((48, 64, 96, 128, 192, 256, 384, 512)),
        pad_to_multiple_of=1,
        **{"method": "full", **fields},
    )


def describe(run: Run) -> str:
    """Return the configuration in one line."""
    config = run.config
    experts = config.get("num_local_experts") or config.get("num_experts")
    top = f", {run.num_experts_per_tok} of {experts} experts" if experts else ""
    lora = f" r={run.lora_rank} on {','.join(run.lora_targets)}" if run.trains_adapters else ""
    recompute = ", checkpointing" if run.activation_checkpointing != "none" else ""
    return (
        f"{config['model_type']} {config['num_hidden_layers']}x{config['hidden_size']}"
        f"/{config['intermediate_size']}{top}, {run.method}{lora}, B={run.micro_batch_size} S={run.seq_len}, "
        f"{run.attention}, {run.optimizer_implementation}{recompute}"
    )
