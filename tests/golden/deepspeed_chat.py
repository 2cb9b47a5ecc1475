"""DeepSpeed-Chat's published times: a table of step 3 on seven machines, and the logs of three steps.

The table prints hours for 264,292 prompts of 256 tokens with answers of 256, learnt from once, in the largest
batch that fits and at most 1,024 answers a step (microsoft/DeepSpeedExamples, step3_rlhf_finetuning,
BenckmarkSetting.md; the figures: blogs/deepspeed-chat of microsoft/DeepSpeed, both of April 2023). How the
models are divided follows the scripts beside it: LoRA of rank 128 and a checkpointed actor, a critic of 350 M
that trains whole, ZeRO-3 on several GPUs (ZeRO-2 for 1.3 B), answers generated among 2 GPUs (13 B) or 8. On
one GPU DeepSpeed without ZeRO, fp32 copies and moments whole, trains adapters alone, for 40 GB hold no more
of 6.7 B.

The logs are of 16 V100-SXM2-32GB on two machines: medians of seconds and of samples/s. `eval()` and `train()`
of deepspeed/runtime/hybrid_engine.py say what their columns hold: training, from the end of generation to the
actor's update, has the scoring in it, and others the critic's update.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from finegauge.catalogue.gpus import gpu
from finegauge.prediction.predictor import predict, predict_memory
from finegauge.profile import Profile
from finegauge.run.run import Run

PROMPTS, MOST_ANSWERS = 264_292, 1_024
HOURS = {  # of an epoch of step 3, by GPUs and actor
    ("V100-SXM2-32GB", 1): {"opt-1.3b": 43.2},
    ("RTX A6000", 1): {"opt-1.3b": 26.4, "opt-6.7b": 134.4},
    ("A100-SXM4-40GB", 1): {"opt-1.3b": 15.4, "opt-6.7b": 81.6},
    ("A100-SXM4-80GB", 1): {"opt-1.3b": 11.7, "opt-6.7b": 40.8, "opt-13b": 117.6},
    ("A100-SXM4-40GB", 8): {"opt-1.3b": 2.0, "opt-6.7b": 5.7, "opt-13b": 10.8, "opt-30b": 44.4},
    ("A100-SXM4-80GB", 8): {
        **{"opt-1.3b": 1.4, "opt-6.7b": 4.1, "opt-13b": 9.0, "opt-30b": 18.0, "opt-66b": 50.4},
    },
    ("A100-SXM4-80GB", 64): {
        **{"opt-1.3b": 31 / 60, "opt-6.7b": 51 / 60, "opt-13b": 1.25, "opt-30b": 4.0, "opt-66b": 7.5},
        "opt-175b": 20.0,
    },
}
DIVIDED_BY = {"opt-13b": 2, "opt-30b": 8, "opt-66b": 8, "opt-175b": 8}
LOG = {"generation": 2.52, "training": 1.06, "others": 0.22}  # median seconds of 476 steps of 64 answers
FIRST_STEPS = {"sft": 171.63, "reward": 218.52}  # samples/s of steps 1 and 2
PEAK_GIB = {"sft": 22.95, "reward": 12.81}  # MaxMemAllocated
COMMON: dict[str, Any] = {
    **{"framework": "DeepSpeed-Chat", "weights_dtype": "fp16", "attention": "eager", "seq_len": 512},
    **{"transformers_version": "4.28", "optimizer_implementation": "fused", "padding": "max"},
}


class Cell(NamedTuple):
    """One cell of the table."""

    run: Run | None  # at the largest batch; None where nothing fits
    published_h: float
    predicted_h: float

    @property
    def error(self) -> float:
        """Return the relative error."""
        return self.predicted_h / self.published_h - 1.0


def cells() -> Iterator[Cell]:
    """Yield every cell of the table of step 3, predicted at the largest batch that fits."""
    for (name, num_gpus), actors in HOURS.items():
        for actor, hours in actors.items():
            asked = step_3(actor, name, num_gpus)
            rows = _largest(asked, MOST_ANSWERS // num_gpus)
            if not rows:
                yield Cell(None, hours, float("inf"))
                continue
            run = asked.replace(micro_batch_size=rows)
            steps = PROMPTS / (rows * num_gpus)
            yield Cell(run, hours, steps * predict(run).step_time_s.total / 3600)


def step_3(actor: str, name: str, num_gpus: int) -> Run:
    """Return step 3 as the scripts have it, one answer at a time."""
    extra = () if num_gpus == 1 else ("embed_tokens", "lm_head", "norms")
    sharding = "zero1" if num_gpus == 1 else "zero2" if actor == "opt-1.3b" else "zero3"
    return Run(
        **COMMON, model=actor, critic_model="opt-350m", phase="ppo", max_new_tokens=256, method="lora",
        lora_rank=128, adapter_dtype="fp16", trainable_extra=extra,
        activation_checkpointing="full", gpu=gpu(name).name, num_gpus=num_gpus, sharding=sharding,
        num_nodes=max(1, num_gpus // 8),
        rollout_tensor_parallel=DIVIDED_BY.get(actor, 1) if num_gpus > 1 else 1,
    )  # fmt: skip


def _largest(run: Run, most: int) -> int:
    """Return the largest micro-batch up to `most` that fits; 0 where none does."""

    def fits(rows: int) -> bool:
        return predict_memory(run.replace(micro_batch_size=rows)).outcome == "completed"

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def logged(**fields: Any) -> Run:
    """Return a run on the machines of the logs."""
    machines = {"gpu": "V100-SXM2-32GB", "num_gpus": 16, "num_nodes": 2}
    return Run(**{**COMMON, **machines, "method": "full", **fields})


def rollout() -> Profile:
    """Return the prediction of a step of the log of step 3."""
    return predict(
        logged(
            phase="ppo", model="opt-1.3b", critic_model="opt-350m", max_new_tokens=256, micro_batch_size=4,
            sharding="zero2", ema=True,
        )
    )  # fmt: skip


def columns(profile: Profile) -> dict[str, float]:
    """Return a step's seconds by the columns of the log."""
    critic = predict(logged(phase="reward", model="opt-350m", micro_batch_size=2, sharding="zero2"))
    generation, whole = profile.step_time_s["generation"], profile.step_time_s.total
    average = profile.step_time_s.under("optimizer")["moving average"]
    others = critic.step_time_s.total + average
    return {"generation": generation, "training": whole - generation - others, "others": others}


def first_steps() -> dict[str, Profile]:
    """Return the predictions of the logs of steps 1 and 2."""
    return {
        "sft": predict(logged(phase="sft", model="opt-1.3b", micro_batch_size=8, sharding="zero2")),
        "reward": predict(
            logged(
                phase="reward", model="opt-350m", micro_batch_size=4, sharding="zero1", data_parallel_shard=1
            )
        ),
    }
