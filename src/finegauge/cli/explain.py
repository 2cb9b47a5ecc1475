"""`finegauge explain`: every byte and second with its formula, every input with its origin."""

import click

from finegauge.cli.question import question, runs, say


@click.command()
@question
def explain(run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool) -> None:
    """Explain the memory and time of RUN, line by line, up to the figure that nvidia-smi shows."""
    from finegauge.plan.estimate import estimate
    from finegauge.predict.formulas import formulas

    estimates = [estimate(run) for run in runs(run_file, overrides, gpus, common=False)]
    if as_json:
        from finegauge.report.json_form import document, explain_json

        say(document("explain", estimates[0].run, [explain_json(e, formulas(e.run)) for e in estimates]))
    else:
        from finegauge.report.explain import explain_lines

        for number, one in enumerate(estimates):
            say([*([""] if number else []), *explain_lines(one, formulas(one.run))])
