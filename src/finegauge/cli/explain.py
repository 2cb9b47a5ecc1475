"""`finegauge explain`: every byte and second with its formula, every input with its origin."""

import click

from finegauge.cli.question import question, runs, say


@click.command()
@question
def explain(run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool) -> None:
    """Explain the memory and time of RUN, line by line, up to the figure that nvidia-smi shows."""
    from finegauge.plan.estimate import estimate

    estimates = [estimate(run) for run in runs(run_file, overrides, gpus, common=False)]
    if as_json:
        from finegauge.report.answers import explain_answer

        say(explain_answer(estimates))
    else:
        from finegauge.predict.formulas import formulas
        from finegauge.report.explain import explain_lines

        for number, one in enumerate(estimates):
            say([*([""] if number else []), *explain_lines(one, formulas(one.run))])
