"""`finegauge estimate`: does it fit, how long, what cost, what energy, and where it goes."""

from typing import TYPE_CHECKING

import click

from finegauge.cli.question import question, runs, say

if TYPE_CHECKING:
    from finegauge.plan.capacity import Estimator


@click.command()
@question
@click.option("--at-max-batch", is_flag=True, help="On each GPU, take the largest micro-batch that fits it.")
@click.option(
    "--law", metavar="NAME", help="Take the time from a law of 'finegauge calibrate', or its .json."
)
def estimate(
    run_file: str,
    overrides: tuple[str, ...],
    gpus: tuple[str, ...],
    *,
    as_json: bool,
    at_max_batch: bool,
    law: str | None,
) -> None:
    """Estimate memory, time, cost and energy of RUN, on one GPU or several.

    With no GPU stated, it compares a few common ones. A run that does not fit is an answer, not an
    error: the exit code is 0 ('finegauge check' is for scripts).
    """
    from finegauge.plan.estimate import estimates

    asked = runs(run_file, overrides, gpus)
    estimator = None if law is None else _with_law(law)
    found, unsupported = estimates(asked, estimator, at_max_batch=at_max_batch)
    if as_json:
        from finegauge.report.answers import estimate_answer

        say(estimate_answer(asked[0], found, unsupported))
    else:
        from finegauge.report.estimate import estimate_lines

        say(estimate_lines(found, unsupported))


def _with_law(name: str) -> "Estimator":
    """Return predictions in which the law called `name` has the say about its part."""
    from finegauge.laws.estimator import with_law
    from finegauge.laws.shelf import load
    from finegauge.predict import predict

    return with_law(load(name), predict)
