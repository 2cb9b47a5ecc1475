"""`finegauge doctor`: what this machine has, and what works on it."""

import click

from finegauge.cli.run_options import show


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def doctor(*, as_json: bool) -> None:
    """Show this machine's GPU, host and disk, which extras are installed, and the way to what is missing."""
    from finegauge.answers.doctor import doctor_answer
    from finegauge.render.doctor import doctor_report

    show("doctor", doctor_answer(), doctor_report, as_json=as_json)
