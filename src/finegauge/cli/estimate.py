"""`finegauge estimate`: does it fit, how long, what cost, what energy, and where it goes."""

from typing import TYPE_CHECKING

import click

from finegauge.cli.question import question, runs, say
from finegauge.errors import UnsupportedError

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
    from finegauge.plan.estimate import estimate as answer

    asked = runs(run_file, overrides, gpus)
    estimator = None if law is None else _with_law(law)
    estimates, unsupported = [], {}
    for run in asked:
        try:
            estimates.append(answer(run, estimator, at_max_batch=at_max_batch))
        except UnsupportedError as error:
            if len(asked) == 1:
                raise
            unsupported[str(run.gpu)] = str(error)
    if not estimates:
        raise UnsupportedError(next(iter(unsupported.values())))
    if as_json:
        from finegauge.report.json_form import document, estimate_json, unsupported_json

        results = [estimate_json(one) for one in estimates]
        results += [unsupported_json(name, reason) for name, reason in unsupported.items()]
        say(document("estimate", asked[0], results))
    else:
        from finegauge.report.estimate import estimate_lines

        say(estimate_lines(estimates, unsupported))


def _with_law(name: str) -> "Estimator":
    """Return predictions in which the law called `name` has the say about its part."""
    from finegauge.laws.estimator import with_law
    from finegauge.laws.shelf import load
    from finegauge.predict import predict

    return with_law(load(name), predict)
