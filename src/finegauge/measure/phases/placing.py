"""Where the models of a phase go, and who trains them: whole, in this process, with one optimizer."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from finegauge.measure.batches import Batch, batches
from finegauge.measure.models.optimizers import optimizer_of
from finegauge.measure.options import Options
from finegauge.measure.subject import Subject
from finegauge.workload.run import Run


class Trained(NamedTuple):
    """A model where it runs, and the optimizer that trains it."""

    subject: Subject
    optimizer: Any


class Here:
    """This process holds every model whole."""

    rank = 0

    def trained(self, *subjects: Subject) -> tuple[Trained, ...]:
        """Return `subjects`, all of which train in one phase, with one optimizer for all of them."""
        parameters = chain.from_iterable(subject.trained for subject in subjects)
        optimizer = optimizer_of(subjects[0].run, parameters)
        return tuple(Trained(subject, optimizer) for subject in subjects)

    def frozen(self, subject: Subject) -> Subject:
        """Return a model that is only asked."""
        return subject

    def data(self, run: Run, options: Options) -> Iterator[Batch]:
        """Return the batches of `run` for this process."""
        vocabulary = int(run.config["vocab_size"])
        return batches(run, vocabulary, options.device, options.seed, rank=self.rank)
