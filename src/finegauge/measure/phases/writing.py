"""Prompts, and the answers that a model writes to them.

Prompts are filled up on the left, so that all answers begin in one column; every answer
has exactly as many tokens as the run says, whatever they are, so that steps compare.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch

from finegauge.measure.batches import Batch
from finegauge.measure.phases.inputs import mask_of
from finegauge.measure.phases.token_losses import IGNORED
from finegauge.measure.subject import Subject


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
