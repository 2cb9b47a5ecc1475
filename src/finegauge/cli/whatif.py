"""`finegauge whatif`: one change at a time from a run as it is, sorted by what it saves."""

import click

from finegauge.cli.question import alongside_options, runs, say
from finegauge.plan.whatif import OBJECTIVES, what_if


def _list(context: click.Context, option: click.Parameter, value: object) -> None:
    """Print every switch, and stop."""
    if not value or context.resilient_parsing:
        return
    from finegauge.plan.switches import SWITCHES
    from finegauge.report.whatif import switch_lines

    say(switch_lines((one.name, one.breaks) for one in SWITCHES))
    context.exit()


@click.command()
@click.argument("run_file", metavar="RUN")
@click.argument("switches", nargs=-1, metavar="[SWITCH]...")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="A field of the run as it is.")
@click.option("--gpu", metavar="NAME", default="", help="The GPU of the run as it is.")
@click.option(
    "--minimise", type=click.Choice(OBJECTIVES), default="cost", show_default=True, help="What to sort by."
)
@click.option("--spot", is_flag=True, help="Cost on spot instances.")
@click.option("--all", "everything", is_flag=True, help="Show changes that gain nothing too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list,
              help="List the switches.")  # fmt: skip
@alongside_options
def whatif(
    run_file: str,
    switches: tuple[str, ...],
    *,
    overrides: tuple[str, ...],
    gpu: str,
    minimise: str,
    spot: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Say what single changes would do to RUN: memory, time, cost, energy, and what they ask for.

    A SWITCH is the name of an optimisation (--list), of a GPU, or FIELD=VALUE. With none, all are tried
    and those that gain something are shown.
    """
    from finegauge.report.whatif import whatif_json, whatif_lines

    (run,) = runs(run_file, overrides, (gpu,) if gpu else (), common=False)[:1]
    found = what_if(run, switches, minimise=minimise, spot=spot)
    say(whatif_json(found) if as_json else whatif_lines(found, named=bool(switches), everything=everything))
