"""`finegauge plan` and `whatif`: the cheapest, fastest or greenest way to do a run, and single changes."""

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from finegauge.catalogue.gpus import THIS, counted, gpu
from finegauge.cli.run_options import (
    alongside_options,
    gpu_names,
    json_option,
    launch_options,
    listing_option,
    overrides_argument,
    progress_bar,
    run_argument,
    run_of,
    runs,
    say,
    show,
)
from finegauge.errors import InputError, shown
from finegauge.formats.run_argument import in_words
from finegauge.planning.quote import OBJECTIVES
from finegauge.planning.whatif import SWITCHES, what_if
from finegauge.units import HOUR_S

if TYPE_CHECKING:
    from finegauge.render.report import Report

_UNITS_S = {"s": 1.0, "m": 60.0, "h": HOUR_S, "d": 24 * HOUR_S, "w": 168 * HOUR_S}
_WORDS = r"s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:(?:ee)?ks?)?"
_DURATION = re.compile(rf"(\d+(?:\.\d+)?)\s*({_WORDS})?", re.IGNORECASE)


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return the seconds that a time such as 24h, 90min or 3d means; a number alone is hours."""
    if value is None:
        return None
    found = _DURATION.fullmatch(value.strip())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{shown(value)} is no time; write it as 24h, 90min or 3d.")
    return float(found[1]) * _UNITS_S[(found[2] or "h")[0].lower()]


def _dollars(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Return the dollars that an amount such as 200 or $200 means."""
    if value is None:
        return None
    try:
        amount = float(value.strip().removeprefix("$").replace(",", ""))
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e12:
        raise click.BadParameter(f"{shown(value)} is no amount; write it as 200.")
    return amount


@click.command()
@run_argument
@overrides_argument
@click.option(
    "--within", "within_s", callback=_seconds, metavar="TIME", help="The longest it may take: 24h, 3d."
)
@click.option("--budget", "budget_usd", callback=_dollars, metavar="USD", help="The most it may cost.")
@click.option(
    "--minimise", "--minimize", type=click.Choice(["cost", "time", "energy"]), default="cost",
    show_default=True, help="What to look for.",
)  # fmt: skip
@click.option("--gpus", "--gpu", "gpus", metavar="NAME,NAME", multiple=True,
              help="Only these: h100, so many: 8, or both: h100:8.")  # fmt: skip
@click.option("--providers", "--provider", "providers", metavar="NAME,NAME", multiple=True,
              help="Only these clouds.")  # fmt: skip
@click.option(
    "--max-gpus",
    type=click.IntRange(1, 65_536),
    default=64,
    show_default=True,
    help="The most GPUs, of all nodes together.",
)
@click.option("--keep-method", is_flag=True, help="Keep full, lora or qlora as the run has it.")
@click.option("--spot", is_flag=True, help="Cost and budget are of spot instances.")
@click.option(
    "--risk", "risk_fraction", type=click.FloatRange(0.0, 0.5, min_open=True), default=0.05,
    show_default=True, help="The probability of running out of memory to stay below.",
)  # fmt: skip
@click.option("--export", "framework", metavar="FRAMEWORK", help="Write the plan as this framework's config.")
@click.option("-o", "folder", metavar="DIR", type=click.Path(file_okay=False), help="Where to write it.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@click.option("--figure", metavar="FILE.png", type=click.Path(dir_okay=False), help="Draw the front there.")
@json_option
@launch_options
def plan(
    run_file: str,
    overrides: tuple[str, ...],
    *,
    framework: str | None,
    folder: str | None,
    figure: str | None,
    overwrite: bool,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Find the cheapest, fastest or greenest way to do RUN, on one GPU or many, and say why not another.

    It searches GPU, count, provider, method, sharding, micro-batch, checkpointing, optimizer and offload;
    model, data and the samples of an optimizer step stay. The exit code is 0 whatever it finds.
    """
    from finegauge.planning.plan import plan as best
    from finegauge.planning.selection import Wanted

    framework = _checked_export(framework, folder)
    _check_figure(figure)
    run_file, said = in_words(run_file, overrides)
    run = run_of(run_file, said)
    asked = dict(word.split("=", 1) for word in said if word not in overrides)
    if "gpu" in asked and not wanted["gpus"]:  # "on 2 h100" is --gpu h100:2
        wanted["gpus"] = (f"{asked['gpu']}:{asked['num_gpus']}" if "num_gpus" in asked else asked["gpu"],)
    wanted |= _counted(wanted["gpus"], wanted["max_gpus"])
    wanted["providers"] = tuple(gpu_names(wanted["providers"])[0])
    with progress_bar("searching") as heard:
        found = best(run, Wanted(framework=framework or "", **wanted), heard=heard)
    written = None
    if framework is not None and folder is not None and found.winner is not None:
        from finegauge.planning.plan import export

        written = export(found, framework, folder, recipe=run_file, overwrite=overwrite)
    from finegauge.answers.plan import plan_answer
    from finegauge.render.plan import plan_report, save_front

    answer = plan_answer(found, written)
    if figure is not None and answer.front:
        save_front(answer, figure)
    show("plan", answer, plan_report, as_json=as_json)
    if as_json:
        return
    if figure is not None and answer.front:
        say(f"Drew {figure}")
    if written is not None:
        from finegauge.render.files import written_section
        from finegauge.render.terminal import section_lines

        say(section_lines(written_section(written)))
    elif framework is not None:
        say("Nothing was written: there is no plan.")


def _counted(texts: Sequence[str], max_gpus: int) -> dict[str, Any]:
    """Return the GPUs that a plan may have and, where stated, exactly how many."""
    names, number = gpu_names(texts)
    found = [counted(name) for name in names]
    numbers = {one for one in (number, *(one for _, one in found)) if one is not None}
    if len(numbers) > 1:
        raise InputError(f"A plan has one number of GPUs, not {' and '.join(map(str, sorted(numbers)))}.")
    gpus = tuple(gpu(name).name if name.casefold() == THIS else name for name, _ in found)
    exact = numbers.pop() if numbers else None
    return {"gpus": gpus, "num_gpus": exact, "max_gpus": max_gpus if exact is None else exact}


def _checked_export(framework: str | None, folder: str | None) -> str | None:
    """Return the framework's name; raise where an export is half stated, before the search."""
    if framework is None and folder is not None:
        raise InputError("-o says where to write a config; add --export llamafactory (or another framework).")
    if framework is None:
        return None
    from finegauge.formats.writing import known_name

    name = known_name(framework)
    if folder is None:
        raise InputError(f"--export {framework} needs a folder to write to: add -o DIR.")
    return name


def _check_figure(path: str | None) -> None:
    """Raise where no PNG can be drawn at `path`, before the search."""
    if path is None:
        return
    if not path.lower().endswith(".png"):
        raise InputError(f"--figure {path} is drawn as PNG: let its name end in .png.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise InputError(f"--figure {path}: there is no folder {folder!r}; make it first.")
    from finegauge.render.plots.drawing import check_matplotlib

    check_matplotlib("calibrate")


def _switches() -> "Report":
    from finegauge.render.whatif import switches_report

    return switches_report((one.name, one.breaks) for one in SWITCHES)


@click.command()
@run_argument
@click.argument("switches", nargs=-1, metavar="[SWITCH]...")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="A field of the run as it is.")
@click.option("--gpu", metavar="NAME", default="", help="The GPU of the run as it is.")
@click.option(
    "--minimise",
    "--minimize",
    type=click.Choice(OBJECTIVES),
    default="cost",
    show_default=True,
    help="What to sort by.",
)
@click.option("--spot", is_flag=True, help="Cost on spot instances.")
@click.option("--all", "everything", is_flag=True, help="Show changes that gain nothing too.")
@json_option
@listing_option("List the switches.", _switches)
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
    from finegauge.answers.plan import whatif_answer
    from finegauge.render.whatif import whatif_report

    (run,) = runs(run_file, overrides, (gpu,) if gpu else (), unnamed="one")[:1]
    answer = whatif_answer(what_if(run, switches, minimise=minimise, spot=spot))
    show(
        "whatif",
        answer,
        lambda found: whatif_report(found, named=bool(switches), everything=everything),
        as_json=as_json,
    )
