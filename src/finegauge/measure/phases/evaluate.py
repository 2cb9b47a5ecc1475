"""Evaluation: a forward pass and its loss, nothing kept, nothing trained."""

from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.measure.batches import Batch
from finegauge.measure.models import autocasting
from finegauge.measure.phases.inputs import inputs_of
from finegauge.measure.phases.token_losses import IGNORED, refuse_fused, token_losses
from finegauge.measure.phases.writing import inference
from finegauge.measure.subject import Clock, StepFacts, Subject


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
