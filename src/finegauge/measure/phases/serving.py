"""Serving: the prompts of a batch read at once (prefill), answers written token by token (decode).

The details of a step are what users of a service see: seconds to the first token, seconds
for each further one, tokens written per second.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from finegauge.measure.batches import Batch
from finegauge.measure.models import autocasting
from finegauge.measure.phases.writing import Answers, Prompts, write
from finegauge.measure.subject import Clock, StepFacts, Subject


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
