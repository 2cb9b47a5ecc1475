"""`finegauge estimate`: does it fit, how long, what cost, what energy, and where it goes."""

import click

from finegauge.cli.question import question, runs, say
from finegauge.errors import UnsupportedError


@click.command()
@question
@click.option("--at-max-batch", is_flag=True, help="On each GPU, take the largest micro-batch that fits it.")
def estimate(
    run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool, at_max_batch: bool
) -> None:
    """Estimate memory, time, cost and energy of RUN, on one GPU or several.

    With no GPU stated, it compares a few common ones. A run that does not fit is an answer, not an
    error: the exit code is 0 ('finegauge check' is for scripts).
    """
    from finegauge.plan.estimate import estimate as answer

    asked = runs(run_file, overrides, gpus)
    estimates, unsupported = [], {}
    for run in asked:
        try:
            estimates.append(answer(run, at_max_batch=at_max_batch))
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
