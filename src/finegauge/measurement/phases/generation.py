"""Prompts, and the answers that a model writes to them.

Prompts are filled up on the left, so that all answers begin in one column; every answer
has exactly as many tokens as the run says, whatever they are, so that steps compare.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import torch

from finegauge.errors import UnsupportedError
from finegauge.measurement.batches import Batch
from finegauge.measurement.models.build import autocasting
from finegauge.measurement.phases.training import IGNORED, mask_of
from finegauge.measurement.subject import Clock, StepFacts, Subject
from finegauge.run.phases import BATCHES_PER_STEP


class Prompts(NamedTuple):
    """Questions of a batch: ids [B, P] and which of them are real."""

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

    @property
    def length(self) -> int:
        """Return the columns of a prompt, padding included."""
        return int(self.ids.shape[1])


class Answers(NamedTuple):
    """Prompts with their answers: ids [B, P + N], and when each token of the answers was known."""

    ids: torch.Tensor
    mask: torch.Tensor
    prompt_length: int
    asked_s: float = 0.0
    token_times_s: tuple[float, ...] = ()

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the arguments of a forward pass over prompts and answers."""
        whole = bool(self.mask.all())
        return {"input_ids": self.ids} if whole else {"input_ids": self.ids, "attention_mask": self.mask}

    @property
    def labels(self) -> torch.Tensor:
        """Return the ids with -100 in place of the prompts."""
        labels = self.ids.clone()
        labels[:, : self.prompt_length] = IGNORED
        return labels

    def of_answers(self, by_token: torch.Tensor) -> torch.Tensor:
        """Return, of values [B, S] at the token before, those of the answers' tokens: [B, N]."""
        return by_token[:, self.prompt_length - 1 : -1]

    def split(self, rows: int) -> "list[Answers]":
        """Return the same answers, `rows` at a time."""
        pieces = zip(self.ids.split(rows), self.mask.split(rows), strict=True)
        return [self._replace(ids=ids, mask=mask) for ids, mask in pieces]


class TokenTimes:
    """Told by `generate` of every next token's logits; notes when."""

    def __init__(self, device: torch.device, first: Any = None) -> None:
        """Call `first` when the first token's logits are there."""
        self.device, self.first = device, first
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note the time and pass the logits on."""
        del input_ids
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times_s.append(time.perf_counter())
        if self.first is not None and len(self.times_s) == 1:
            self.first()
        return scores


def write(
    subject: Subject, prompts: Prompts, new_tokens: int, *, sample: bool = True, first: Any = None
) -> Answers:
    """Return what the model writes to `prompts`.

    Args:
        subject: The model; its adapters take part.
        prompts: The questions.
        new_tokens: Tokens of every answer.
        sample: Draw tokens by their probability; else take the likeliest.
        first: Called when the first token's logits are there.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    times = TokenTimes(subject.device, first)
    subject.base.generation_config.eos_token_id = None  # no token ends an answer
    asked_s = time.perf_counter()
    with inference(subject.model):
        ids = subject.division.infer(
            partial(
                subject.model.generate,
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                logits_processor=LogitsProcessorList([times]),
                generation_config=GenerationConfig(
                    max_new_tokens=new_tokens,
                    do_sample=sample,
                    top_k=0 if sample else None,
                    use_cache=True,
                    pad_token_id=0,
                ),
            )
        )
    mask = torch.cat([prompts.mask, torch.ones_like(ids[:, prompts.length :])], 1)
    return Answers(ids, mask, prompts.length, asked_s, tuple(times.times_s))


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """Keep `model` out of training, without gradients or checkpoints, for a while."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


class Serving:
    """Answers batches of prompts, all of a batch in step."""

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Serve the prompts of `data`; the prefill phase writes one token only."""
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
            answers = write(self.subject, prompts, self.new_tokens, sample=False, first=first)
        mask = answers.mask if self.new_tokens > 1 else prompts.mask  # the one token is nobody's input
        return StepFacts(mask.numel(), len(mask), None, float(mask.sum()), seen_by_users(answers))


def seen_by_users(answers: Answers) -> dict[str, float]:
    """Return time to first token, time per output token and written tokens per second."""
    times, asked = answers.token_times_s, answers.asked_s
    written = len(answers.ids) * len(times)
    found = {"ttft_s": times[0] - asked, "written_tokens_per_s": written / (times[-1] - asked)}
    if len(times) > 1:
        found["time_per_output_token_s"] = (times[-1] - times[0]) / (len(times) - 1)
    return found


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
