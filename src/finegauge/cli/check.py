"""`finegauge check`: will it fit, as an exit code for scripts and job queues."""

import click

from finegauge.cli.question import question, runs, say


@click.command()
@question
@click.pass_context
def check(
    ctx: click.Context, run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool
) -> None:
    """Say whether RUN fits its GPU: exit code 0 fits, 10 risky, 20 will not fit.

    Risky is a probability of running out of memory from 5 % on, will not fit from 50 % on. Of several
    GPUs, the worst decides.
    """
    from finegauge.plan.estimate import estimate
    from finegauge.plan.verdict import EXIT_CODES

    estimates = [estimate(run) for run in runs(run_file, overrides, gpus, common=False)]
    if as_json:
        from finegauge.report.json_form import document, verdict_json

        say(document("check", estimates[0].run, [verdict_json(one) for one in estimates]))
    else:
        from finegauge.report.estimate import one_verdict

        say(one_verdict(one) for one in estimates)
    ctx.exit(max(EXIT_CODES[one.verdict] for one in estimates))
