"""Supervised fine-tuning and pre-training: the next token of every sequence."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from finegauge.measurement.batches import Batch
from finegauge.measurement.models.build import autocasting
from finegauge.measurement.phases.generation import inference
from finegauge.measurement.phases.training import IGNORED, Update, inputs_of, refuse_fused, token_losses
from finegauge.measurement.subject import Clock, StepFacts, Subject


class Supervised:
    """Takes optimizer steps on batches of token ids with labels."""

    def __init__(self, subject: Subject, optimizer: Any, data: Iterator[Batch]) -> None:
        """Train `subject` on `data` with `optimizer`."""
        refuse_fused(subject.run)
        self.subject, self.optimizer, self.data = subject, optimizer, data
        self.models: Mapping[str, Any] = {"policy": subject.model}
        self.update = Update(subject.run, optimizer, subject.trained, subject.device, subject.division)

    def step(self, clock: Clock) -> StepFacts:
        """Take one optimizer step over the run's micro-batches."""
        tokens = real_tokens = samples = total = 0.0
        parts = self.subject.run.gradient_accumulation_steps
        for _ in range(parts):
            with clock.stage("data"):
                batch = next(self.data)
            with clock.stage("forward"), self.update.autocast():
                loss = self.subject.division.forward(self.loss, batch)
            with clock.stage("backward"):
                self.update.backward(loss / parts)
            total += float(loss.detach()) / parts
            tokens += batch.input_ids.numel()
            real_tokens += batch.real_tokens
            samples += batch.samples
        with clock.stage("optimizer"):
            self.update.step()
        return StepFacts(tokens, samples, total, real_tokens)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the mean loss of the batch's tokens, by the model's own code where logits are whole."""
        if self.subject.run.loss == "full_logits":
            found: torch.Tensor = self.subject.model(
                **inputs_of(batch), labels=batch.labels, use_cache=False
            ).loss
            return found
        losses = token_losses(self.subject, inputs_of(batch), batch.labels, chunked=True)
        return losses.sum() / (batch.labels[:, 1:] != IGNORED).sum()


class Evaluation:
    """Takes the loss of batches without learning from them."""

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Evaluate `subject` on `data`."""
        refuse_fused(subject.run)
        self.subject, self.data = subject, data
        self.models: Mapping[str, Any] = {"policy": subject.model}

    def step(self, clock: Clock) -> StepFacts:
        """Take the loss of as many batches as a step of the run has."""
        run = self.subject.run
        tokens = real_tokens = samples = total = 0.0
        for _ in range(run.gradient_accumulation_steps):
            with clock.stage("data"):
                batch = next(self.data)
            with clock.stage("forward"), inference(self.subject.model), autocasting(run, self.subject.device):
                losses = token_losses(
                    self.subject, inputs_of(batch), batch.labels, chunked=run.loss == "chunked"
                )
                mean = losses.sum() / (batch.labels[:, 1:] != IGNORED).sum()
            total += float(mean) / run.gradient_accumulation_steps
            tokens += batch.input_ids.numel()
            real_tokens, samples = real_tokens + batch.real_tokens, samples + batch.samples
        return StepFacts(tokens, samples, total, real_tokens)
