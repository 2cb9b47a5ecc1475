"""Generation: prompts and their completions, and serving them in one batch or by continuous batching.

Prompts are padded on the left, so that all completions begin in one column; every completion has exactly
as many tokens as the run says, whatever they are, so that steps compare. Serving reads the prompts of a
batch at once (prefill) and generates token by token (decode); the details of a step are what users of a
service see: seconds to the first token, seconds for each further one, tokens generated per second.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch

from finegauge.errors import UnsupportedError
from finegauge.measurement.batches import IGNORED, Batch
from finegauge.measurement.models.build import autocasting
from finegauge.measurement.phases.training import inference, inputs_with, mask_of
from finegauge.measurement.subject import Clock, StepFacts, Subject
from finegauge.run.phases import BATCHES_PER_STEP

PAGE_TOKENS = 32  # of a page of the key-value cache


class Prompts(NamedTuple):
    """The prompts of a batch: ids [B, P] and which of them are real."""

    ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, repeats: int = 1) -> "Prompts":
        """Return the sequences of `batch` as prompts, each `repeats` times."""
        mask = mask_of(batch)
        shift = mask.shape[1] - mask.sum(1, keepdim=True)
        columns = (torch.arange(mask.shape[1], device=mask.device) - shift) % mask.shape[1]
        ids, mask = batch.input_ids.gather(1, columns), mask.gather(1, columns)
        return cls(ids.repeat_interleave(repeats, 0), mask.repeat_interleave(repeats, 0))


class Completions(NamedTuple):
    """Prompts with their completions: ids [B, P + N], and when each token of them was known."""

    ids: torch.Tensor
    mask: torch.Tensor
    prompt_length: int
    requested_s: float = 0.0
    token_times_s: tuple[float, ...] = ()

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the arguments of a forward pass over prompts and completions."""
        return inputs_with(self.ids, self.mask)

    @property
    def labels(self) -> torch.Tensor:
        """Return the ids with -100 in place of the prompts."""
        labels = self.ids.clone()
        labels[:, : self.prompt_length] = IGNORED
        return labels

    def select(self, by_token: torch.Tensor) -> torch.Tensor:
        """Return, of values [B, S] at the token before, those of the completions' tokens: [B, N]."""
        return by_token[:, self.prompt_length - 1 : -1]

    def split(self, rows: int) -> "list[Completions]":
        """Return the same completions, `rows` at a time."""
        pieces = zip(self.ids.split(rows), self.mask.split(rows), strict=True)
        return [self._replace(ids=ids, mask=mask) for ids, mask in pieces]


class _TokenTimes:
    """A logits processor that notes when the logits of every token are there."""

    def __init__(self, device: torch.device, first: Any = None) -> None:
        self.device, self.first = device, first
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times_s.append(time.perf_counter())
        if self.first is not None and len(self.times_s) == 1:
            self.first()
        return scores


def generate(
    subject: Subject, prompts: Prompts, new_tokens: int, *, sample: bool = True, first: Any = None
) -> Completions:
    """Return the model's completions of `prompts`, `new_tokens` long each; adapters take part.

    `sample` draws tokens by their probability, else the likeliest is taken; `first` is called when the first
    token's logits are there.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    times = _TokenTimes(subject.device, first)
    subject.base.generation_config.eos_token_id = None  # no token ends a completion
    requested_s = time.perf_counter()
    with inference(subject.model):
        settings = GenerationConfig(
            max_new_tokens=new_tokens,
            do_sample=sample,
            top_k=0 if sample else None,
            use_cache=True,
            pad_token_id=0,
        )
        ids = subject.strategy.infer(
            partial(
                subject.model.generate,
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                logits_processor=LogitsProcessorList([times]),
                generation_config=settings,
            )
        )
    length = int(prompts.ids.shape[1])
    mask = torch.cat([prompts.mask, torch.ones_like(ids[:, length:])], 1)
    return Completions(ids, mask, length, requested_s, tuple(times.times_s))


class Serving:
    """Completes batches of prompts, all of a batch in step."""

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Serve the prompts of `data`; the prefill phase generates one token only."""
        self.subject, self.data = subject, data
        self.new_tokens = subject.run.max_new_tokens if subject.run.phase == "decode" else 1
        self.models: Mapping[str, Any] = {"policy": subject.model}

    def step(self, clock: Clock) -> StepFacts:
        """Serve one batch."""
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data))
        with ExitStack() as stages, autocasting(self.subject.run, self.subject.device):
            stages.enter_context(clock.stage("prefill"))

            def first_token() -> None:
                stages.close()
                stages.enter_context(clock.stage("decode"))

            first = first_token if self.new_tokens > 1 else None
            found = generate(self.subject, prompts, self.new_tokens, sample=False, first=first)
        mask = found.mask if self.new_tokens > 1 else prompts.mask  # the one token is no input of anything
        times, generated = found.token_times_s, len(found.ids) * len(found.token_times_s)
        details = {
            "ttft_s": times[0] - found.requested_s,
            "written_tokens_per_s": generated / (times[-1] - found.requested_s),
        }
        if len(times) > 1:
            details["time_per_output_token_s"] = (times[-1] - times[0]) / (len(times) - 1)
        return StepFacts(mask.numel(), len(mask), None, float(mask.sum()), details)


class ContinuousServing:
    """Serves one queue of prompts of all lengths: a request enters the batch when another leaves it.

    transformers' `generate_batch` keeps keys and values in pages. Its own settings take all the memory there
    is; here the cache holds what `micro_batch_size` requests at a time need.
    """

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
        """Serve the requests of a step; prompts and completions share forward passes."""
        with clock.stage("data"):
            batches = [next(self.data) for _ in range(BATCHES_PER_STEP)]
            prompts = [
                ids[real].tolist()
                for batch in batches
                for ids, real in zip(batch.input_ids, mask_of(batch).bool(), strict=True)
            ]
        requested_s = time.perf_counter()
        autocast = autocasting(self.subject.run, self.subject.device)
        with clock.stage("decode"), inference(self.subject.model), autocast:
            answers = self._serve(prompts)
        done_s = time.perf_counter()
        generated = sum(len(answer.generated_tokens) for answer in answers)
        times = [answer.timestamps for answer in answers]
        details = {
            "ttft_s": median(stamps[0] - requested_s for stamps in times),
            "written_tokens_per_s": generated / (done_s - requested_s),
        }
        gaps = [(stamps[-1] - stamps[0]) / (len(stamps) - 1) for stamps in times if len(stamps) > 1]
        if gaps:
            details["time_per_output_token_s"] = median(gaps)
        tokens = float(sum(map(len, prompts)) + generated)
        return StepFacts(tokens, len(answers), None, tokens, details)

    def _serve(self, prompts: list[list[int]]) -> list[Any]:
        """Return transformers' answers to `prompts`.

        Raises: UnsupportedError with its words where a request failed.
        """
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        run = self.subject.run
        longest = max(map(len, prompts)) + run.max_new_tokens
        self.subject.base.generation_config.eos_token_id = None  # no token ends a completion
        answers = self.subject.base.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(max_new_tokens=run.max_new_tokens, do_sample=False),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=run.micro_batch_size * ceil(longest / PAGE_TOKENS) + 1,
                max_batch_tokens=max(longest, run.micro_batch_size),
                max_requests_per_batch=run.micro_batch_size,
                use_cuda_graph=False,
                use_async_batching=False,
            ),
            record_timestamps=True,
            warmup=False,
        )
        failed = [answer.error for answer in answers.values() if answer.error]
        if failed or len(answers) < len(prompts):
            raise UnsupportedError(f"generate_batch answered {len(answers)} of {len(prompts)}: {failed[:1]}.")
        return list(answers.values())
