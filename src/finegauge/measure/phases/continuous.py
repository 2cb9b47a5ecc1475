"""Serving with continuous batching: a request enters the batch when another leaves it.

transformers' `generate_batch` keeps keys and values in pages. Its own settings take all
the memory there is; here the cache holds what the requests of one step need.
"""

import time
from collections.abc import Iterator, Mapping
from math import ceil
from statistics import median
from typing import Any

from finegauge.errors import UnsupportedError
from finegauge.measure.batches import Batch
from finegauge.measure.models import autocasting
from finegauge.measure.phases.inputs import mask_of
from finegauge.measure.phases.writing import inference
from finegauge.measure.subject import Clock, StepFacts, Subject
from finegauge.workload.prompts import BATCHES_PER_STEP

PAGE_TOKENS = 32


class ContinuousServing:
    """Answers requests of all lengths from one queue, `micro_batch_size` of them at a time."""

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Serve the prompts of `data`, three batches a step.

        Raises: UnsupportedError for models that keep more than keys and values.
        """
        self.subject, self.data = subject, data
        if not hasattr(subject.base, "generate_batch"):
            raise UnsupportedError(
                f"{type(subject.base).__name__} has no generate_batch for padding=free; use padding=longest."
            )
        self.models: Mapping[str, Any] = {"policy": subject.model}

    def step(self, clock: Clock) -> StepFacts:
        """Serve the requests of a step; prompts and answers share forward passes."""
        run = self.subject.run
        with clock.stage("data"):
            batches = [next(self.data) for _ in range(BATCHES_PER_STEP)]
            prompts = [prompt for batch in batches for prompt in _sequences(batch)]
        asked_s = time.perf_counter()
        with (
            clock.stage("decode"),
            inference(self.subject.model),
            autocasting(run, self.subject.device),
        ):
            answers = self._serve(prompts)
        done_s = time.perf_counter()
        written = sum(len(answer.generated_tokens) for answer in answers)
        times = [answer.timestamps for answer in answers]
        details = {
            "ttft_s": median(stamps[0] - asked_s for stamps in times),
            "written_tokens_per_s": written / (done_s - asked_s),
        }
        gaps = [(stamps[-1] - stamps[0]) / (len(stamps) - 1) for stamps in times if len(stamps) > 1]
        if gaps:
            details["time_per_output_token_s"] = median(gaps)
        tokens = float(sum(map(len, prompts)) + written)
        return StepFacts(tokens, len(answers), None, tokens, details)

    def _serve(self, prompts: list[list[int]]) -> list[Any]:
        """Return transformers' answers to `prompts`.

        Raises: UnsupportedError with its words where a request failed.
        """
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        run = self.subject.run
        longest = max(map(len, prompts)) + run.max_new_tokens
        self.subject.base.generation_config.eos_token_id = None  # no token ends an answer
        settings = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=run.micro_batch_size * ceil(longest / PAGE_TOKENS) + 1,
            max_batch_tokens=max(longest, run.micro_batch_size),
            max_requests_per_batch=run.micro_batch_size,
            use_cuda_graph=False,
            use_async_batching=False,
        )
        wanted = GenerationConfig(max_new_tokens=run.max_new_tokens, do_sample=False)
        answers = self.subject.base.generate_batch(
            inputs=prompts,
            generation_config=wanted,
            continuous_batching_config=settings,
            record_timestamps=True,
            warmup=False,
        )
        failed = [answer.error for answer in answers.values() if answer.error]
        if failed or len(answers) < len(prompts):
            raise UnsupportedError(f"generate_batch answered {len(answers)} of {len(prompts)}: {failed[:1]}.")
        return list(answers.values())


def _sequences(batch: Batch) -> list[list[int]]:
    """Return the token ids of a batch's rows without padding."""
    kept = mask_of(batch).bool()
    return [row[real].tolist() for row, real in zip(batch.input_ids, kept, strict=True)]
