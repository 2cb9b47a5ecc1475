"""`finegauge watch`: a training while it runs; on a terminal a table below its output, else its end."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import click

from finegauge.answers.measurement import WatchAnswer, Watched, ended_answer, settled, watch_answer
from finegauge.cli.run_options import json_option, offline_option, parted, run_of, say
from finegauge.data.batch_shape import shape
from finegauge.errors import EXIT_DONE, EXIT_INTERRUPTED, FineGaugeError, InputError, cleaned, shown
from finegauge.formats.evidence import MOVES
from finegauge.formats.run_argument import COMMAND_MARK
from finegauge.measurement.watching import Seen, Watch, gpu_here, watched_command, watched_until
from finegauge.planning.quote import quote
from finegauge.profile import Profile
from finegauge.render.terminal import report_lines
from finegauge.render.training import watch_report
from finegauge.sandbox import born, is_alive
from finegauge.store.journal import Trials

DRAW_EVERY_S = 1.0
PRINT_EVERY_S = 0.5  # at most, what a training prints in a rush
QUIET_S = 600.0  # a folder in which nothing has changed for as long is one of a training that has ended


class Asked(NamedTuple):
    """What the command line states."""

    run: str  # "": none
    overrides: tuple[str, ...]
    logs: str
    usd_per_h: float | None
    store: str | None
    as_json: bool


def watch_command(asked: Asked, command: str) -> int:
    """Start a command and watch it; return its exit code."""
    words = shlex.split(command.removeprefix(COMMAND_MARK))
    told = _settled(asked)
    with _view(told, asked) as (look, pass_on):
        code, seen, printed = watched_command(words, asked.logs, look, pass_on)
    _end(asked, told, *ended_answer(told, seen, code, printed))
    return code


def watch_process(asked: Asked, process: int) -> int:
    """Watch a process until it ends; how it ended is not known."""
    since = born(process)
    if (not since and born(os.getpid())) or not is_alive(process, since):  # ended, or waits to be reaped
        raise InputError(f"No process {process} runs.")
    return _watch(asked, Watch(process, asked.logs), lambda: not is_alive(process, since))


def watch_folder(asked: Asked) -> int:
    """Watch what a training writes until it has done all its steps, or is silent."""
    if not os.path.isdir(asked.logs):
        raise InputError(f"No folder {shown(asked.logs)}; name one, or what to start after --.")
    watch, reached_s = Watch(0, asked.logs), dict[int, float]()  # the last number of steps, and since when

    def ends() -> bool:
        done, total = watch.steps.done, watch.steps.total
        if done not in reached_s:
            reached_s.clear()
        quiet_s = time.monotonic() - reached_s.setdefault(done, time.monotonic())
        return bool(total and done >= total) or quiet_s > QUIET_S

    return _watch(asked, watch, ends)


def _watch(asked: Asked, watch: Watch, ends: Callable[[], bool]) -> int:
    told, code = _settled(asked), EXIT_DONE
    seen = watch.look()
    with _view(told, asked) as (look, _):
        try:
            look(seen)
            seen = watched_until(watch, ends, look)
        except KeyboardInterrupt:
            seen, code = watch.look(), EXIT_INTERRUPTED
    answer, profile = ended_answer(told, seen, 0, "")
    goes_on = code == EXIT_INTERRUPTED or not (seen.steps or seen.peak_bytes)
    _end(asked, told, answer._replace(outcome="running") if goes_on else answer, profile)
    return code


def _settled(asked: Asked) -> Watched:
    """Return what is predicted, before anything starts: during the first steps it would disturb them."""
    gpu = gpu_here()
    try:
        run = run_of(asked.run, asked.overrides) if asked.run else None
        if run is not None:
            run.check_names()
            shape(run)
    except FineGaugeError as error:
        return settled(None, str(error), gpu, asked.usd_per_h)
    told = settled(run, "" if run else "no RUN is named.", gpu, asked.usd_per_h)
    if told.usd_per_h is None and told.predicted is not None and gpu:
        with suppress(FineGaugeError):
            offer = quote(told.predicted.run, told.predicted).cheapest_on_demand
            if offer is not None and offer.on_demand_usd_per_h:
                told = told._replace(usd_per_h=offer.on_demand_usd_per_h * offer.instances)
    return told


@contextmanager
def _view(
    told: Watched, asked: Asked
) -> Iterator[tuple[Callable[[Seen], None], Callable[[bytes, bool], None]]]:
    """Yield what shows the training's figures, and what passes its output on."""
    if not sys.stderr.isatty():
        yield lambda _: None, (lambda one, _: _as_it_is(one, True)) if asked.as_json else _as_it_is
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    rest, printed = {False: b"", True: b""}, list[str]()
    drawn, next_draw_s, next_print_s = list[str](), 0.0, 0.0

    def pass_on(chunk: bytes, is_error: bool) -> None:
        *lines, rest[is_error] = (rest[is_error] + chunk).split(b"\n")
        # of a progress bar, what stands in the end
        ends = (line.rpartition(b"\r")[2].decode("utf-8", errors="replace") for line in lines)
        printed.extend(cleaned(MOVES.sub("", line)) for line in ends)
        if time.monotonic() >= next_print_s:
            print_all()

    def print_all() -> None:
        nonlocal next_print_s
        if printed:  # the table is drawn anew below
            console.print(Text("\n".join(printed)))
            printed.clear()
            next_print_s = time.monotonic() + PRINT_EVERY_S

    def look(seen: Seen) -> None:
        nonlocal drawn, next_draw_s
        now_s = time.monotonic()
        if now_s >= next_draw_s:
            next_draw_s = now_s + DRAW_EVERY_S
            lines = report_lines(watch_report(watch_answer(told, seen), told.why_not))
            if lines != drawn:
                live.update(Text.from_ansi("\n".join(lines)), refresh=not printed)
                drawn = lines
        print_all()

    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
        try:
            yield look, pass_on
        finally:
            for is_error in [name for name, line in rest.items() if line]:
                pass_on(b"\n", is_error)
            print_all()


def _as_it_is(chunk: bytes, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    with suppress(BrokenPipeError):
        stream.buffer.write(chunk)
        stream.buffer.flush()


def _end(asked: Asked, told: Watched, answer: WatchAnswer, profile: Profile | None) -> None:
    """Keep the profile, and say how it ended: on stderr, for stdout is the training's."""
    if profile is not None and asked.store is not None:
        trials = Trials(asked.store)
        try:
            trials.end(trials.start(profile.run, {"by": "finegauge watch"}), profile)
            answer = answer._replace(stored=asked.store)
        except FineGaugeError as error:
            say(f"finegauge watch: {error}", err=True)
    if asked.as_json:
        from finegauge.render.json import document

        say(document("watch", answer))
    else:
        say(["", *report_lines(watch_report(answer, told.why_not))], err=True)


JOURNAL = "finegauge.jsonl"


@click.command()
@click.argument("words", nargs=-1, metavar="RUN | LOGDIR [KEY=VALUE]... [-- COMMAND...]")
@click.option("--pid", type=click.IntRange(1, 2**31), help="Watch a training that runs already.")
@click.option(
    "--logs", metavar="DIR", default="", help="Where it writes trainer_state.json or TensorBoard's events."
)
@click.option(
    "--usd-per-hour", type=click.FloatRange(0, 1e7), help="Of all machines.  [default: the cheapest offer]"
)
@click.option("--store", metavar="FILE", help=f"The journal that keeps its profile.  [default: {JOURNAL}]")
@click.option("--no-store", is_flag=True, help="Keep no profile.")
@offline_option
@json_option
@click.pass_context
def watch(
    ctx: click.Context, words: tuple[str, ...], *, pid: int | None, logs: str, usd_per_hour: float | None,
    store: str | None, no_store: bool, as_json: bool,
) -> None:  # fmt: skip
    """Watch a training beside its prediction: memory, steps, time left, cost, energy.

    finegauge watch -- torchrun train.py CONFIG starts it and ends with its exit code (128 and the signal's
    number where one ended it); finegauge watch train.yaml --pid N looks at one that is running, finegauge
    watch LOGDIR at what one writes, until it ends or Ctrl-C. RUN is what is predicted; it is read from
    COMMAND where it is not named.
    """
    named, overrides = parted(words)
    command = next((one for one in named if one.startswith(COMMAND_MARK)), "")
    named = [one for one in named if one != command]
    kept = None if no_store else store or JOURNAL
    asked = Asked(named[0] if named else command, overrides, logs, usd_per_hour, kept, as_json)
    if command:
        ctx.exit(watch_command(asked, command))
    elif pid is not None:
        ctx.exit(watch_process(asked, pid))
    elif not named:
        raise InputError("Nothing to watch; name a folder, --pid N, or what to start after --.")
    ctx.exit(watch_folder(asked._replace(run=named[1] if named[1:] else "", logs=named[0])))
