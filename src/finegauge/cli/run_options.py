"""Shared by every command that takes a RUN: arguments, GPUs, printing, unknown models, the progress bar.

Of models that FineGauge does not know yet the config.json is fetched and the class traced. The bar is on
stderr, on a terminal only, and comes after half a second.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import click

from finegauge.errors import InputError, UnknownNameError, UnsupportedError, cleaned, shown

if TYPE_CHECKING:
    from finegauge.formats.launcher_files import Alongside
    from finegauge.progress import Heard, Progress
    from finegauge.render.report import Report
    from finegauge.run.run import Run

_COLOURS = "\x1b\\[(?:0|(?:[12]|3[1-6])(?:;(?:[12]|3[1-6]))*)m"  # of ours
_ALONGSIDE = "finegauge.alongside"  # where click keeps what is given beside RUN
_OFFLINE, _GPUS = "finegauge.offline", "finegauge.gpus"


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        context.meta.setdefault(_ALONGSIDE, {})[option.name] = value


def alongside_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options for what a launcher gets beside the training file."""

    def keep(context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> None:
        context.meta[_GPUS], number = gpu_names(value)
        if number is not None:
            context.meta.setdefault(_ALONGSIDE, {})["num_gpus"] = number

    says = "How many, of all nodes together (8), or what --gpu takes (h100:8)."
    option = click.option("--gpus", metavar="N", multiple=True, help=says, callback=keep, expose_value=False)
    return option(launch_options(command))


def gpu_names(texts: Iterable[str]) -> tuple[list[str], int | None]:
    """Return the GPUs among comma-separated texts, and the bare number if one says how many.

    Raises: click.BadParameter for a number that cannot be.
    """
    from finegauge.catalogue.gpus import known_gpu

    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    numbers = [word for word in words if word.lstrip("+-").isdecimal() and known_gpu(word) is None]
    if len(set(numbers)) > 1 or any(not 1 <= int(word) <= 1_000_000 for word in numbers):
        raise click.BadParameter(
            f"'{', '.join(numbers)}' is no number of GPUs; it is one from 1 to 1,000,000."
        )
    return [word for word in words if word not in numbers], int(numbers[0]) if numbers else None


def gpu_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the option --gpu."""
    says = "GPUs to ask about: h100, h100:8 or 8xh100, this (machine's); 'finegauge gpus' lists them."
    option = click.option(
        "--gpu", "gpus", metavar="NAME,NAME", multiple=True, help=says, shell_complete=_complete_gpu
    )
    return option(command)


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options for the files that a launcher gets beside the training file."""
    for name, says in (
        ("deepspeed", "DeepSpeed JSON given beside RUN."),
        ("accelerate", "accelerate YAML given beside RUN."),
    ):
        option = click.option(f"--{name}", metavar="FILE", help=says, callback=_keep, expose_value=False)
        command = option(command)
    return offline_option(command)


def offline_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the option to stay off the network."""

    def keep(context: click.Context, _option: click.Parameter, value: bool) -> None:
        context.meta[_OFFLINE] = value

    says = "Fetch no config.json of a model that the catalogue lacks."
    return click.option("--offline", is_flag=True, expose_value=False, callback=keep, help=says)(command)


def stated_alongside() -> "Alongside":
    """Return what the command line gives beside the training file."""
    from finegauge.formats.launcher_files import Alongside

    return Alongside(**(_meta(_ALONGSIDE) or {}))


def _meta(key: str) -> Any:
    context = click.get_current_context(silent=True)
    return context.meta.get(key) if context else None


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from finegauge.run.fields import completions

    return [CompletionItem(word, help=says) for word, says in completions(incomplete)]


def _complete_gpu(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from finegauge.catalogue.gpus import fold, gpus

    names = dict.fromkeys(["this", *(spec.name.replace(" ", "") for spec in gpus().values())])
    return [CompletionItem(name) for name in names if fold(name).startswith(fold(incomplete))]


def _complete_run(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from finegauge.catalogue.models import models

    wanted = incomplete.casefold()
    names = dict.fromkeys(name for figures in models().values() for name in (figures.name, *figures.aliases))
    found = [CompletionItem(name) for name in names if wanted and name.casefold().startswith(wanted)]
    return found or [CompletionItem(incomplete, type="file")]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
overrides_argument = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=_complete)
run_argument = click.argument("run_file", metavar="RUN", shell_complete=_complete_run)


def listing_option(says: str, listed: Callable[[], "Report"]) -> Callable[..., Any]:
    """Return the option --list, which prints what `listed` lays out and ends the command."""

    def show_list(context: click.Context, _option: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            show("", None, lambda _: listed(), as_json=False)
            context.exit()

    return click.option(
        "--list", is_flag=True, is_eager=True, expose_value=False, callback=show_list, help=says
    )


def fix_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options --fix, -o and --overwrite, as one argument: "" or the folder to write to."""

    @click.option("--fix", is_flag=True, help="Write RUN with the best change that makes it fit.")
    @click.option("-o", "--output", "folder", metavar="DIR", help="Where --fix writes it.  [default: fixed]")
    @click.option("--overwrite", is_flag=True, help="Let --fix replace files of the same names.")
    @wraps(command)
    def fixing(*args: Any, fix: bool, folder: str | None, overwrite: bool, **others: Any) -> Any:
        if not fix and (folder is not None or overwrite):
            raise InputError("-o and --overwrite go with --fix; add it, or leave them out.")
        return command(*args, fixed=(folder or "fixed") if fix else "", overwrite=overwrite, **others)

    return fixing


def question(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the arguments RUN [KEY=VALUE]... and the options --gpu, --json and alongside's."""
    command = alongside_options(command)
    for decorate in (json_option, gpu_option, overrides_argument, run_argument):
        command = decorate(command)
    return command


def runs(
    run_file: str,
    overrides: Iterable[str],
    gpus: Iterable[str],
    *,
    unnamed: Literal["all", "one", "none"] = "all",
) -> list["Run"]:
    """Return the run, once per GPU asked about; where none is named, on this machine's.

    Args:
        run_file: What `finegauge.formats.reading` can read.
        overrides: "key=value" each.
        gpus: Names, comma-separated; they win over the GPU that the run states.
        unnamed: Which of the common GPUs to ask about where this machine has none either: all, the first that
            the run is safe on, or none, which is an error.
    """
    from finegauge.answers.runs import on_gpus, on_this_machine
    from finegauge.catalogue.gpus import counted

    names, number = gpu_names([*gpus, *(_meta(_GPUS) or ())])
    each = {counted(name)[1] for name in names}  # 8xh100: the launcher's number, which batches hang on
    if number is None and len(each) == 1 and None not in each:
        click.get_current_context().meta.setdefault(_ALONGSIDE, {})["num_gpus"] = each.pop()
    run = run_of(run_file, overrides)
    if number is not None:
        run = run.replace(origin="command line", num_gpus=number)
    if not names and (here := on_this_machine(run)) is not None:
        return [here]
    return on_gpus(run, names, unnamed=unnamed)


def one_run(run_file: str, overrides: Iterable[str], gpus: Iterable[str], what: str) -> "Run":
    """Return the run on the one GPU asked about, or raise in the name of `what`, which takes no more."""
    run, *others = runs(run_file, overrides, gpus, unnamed="one")
    if others:
        raise InputError(f"{what} takes one GPU, not {len(others) + 1}; name one.")
    return run


def parted(words: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the RUNs among the arguments of a command that takes several, and the overrides.

    Several words that name one model and its GPU are one RUN, where none of them is a file.
    """
    named = [word for word in words if "=" not in word or word.startswith(" ") or os.path.exists(word)]
    overrides = tuple(word for word in words if word not in named)
    if len(named) > 1 and not any(map(os.path.exists, named[1:])):
        from finegauge.formats.run_argument import in_words

        run, settings = in_words(named[0], tuple(named[1:]))
        if all("=" in word for word in settings):  # one, said in words
            return [run], (*settings, *overrides)
    return named, overrides


def run_of(run_file: str, overrides: Iterable[str]) -> "Run":
    """Return the run that `run_file` states with `overrides`, its texts counted."""
    run = read_run(run_file, overrides)
    if run.tokenizer is None:
        return run
    from finegauge.answers.runs import states_texts, with_counted_texts

    if not states_texts(run):
        return run

    gc.enable()  # which a command does without: this one is long
    with progress_bar(file_name(str(run.dataset))) as heard:
        return with_counted_texts(run, heard)


def read_run(run_file: str, overrides: Iterable[str] = ()) -> "Run":
    """Return the run that `run_file` states with `overrides` and what is given alongside.

    The config.json of a model that the catalogue lacks is fetched, and a model_type that FineGauge does not
    describe is traced; each is said.
    """
    from finegauge.formats.reading import read

    fetched = partial(fetch, offline=bool(_meta(_OFFLINE)))
    run = read(run_file, tuple(overrides), stated_alongside(), fetched)
    from finegauge.model.families import is_described

    if not is_described(run.config):
        trace_once(run.model, run.config)
    return run


def file_name(path: str) -> str:
    """Return the last part of a path."""
    return os.path.basename(os.path.normpath(path))


def show(
    command: str, answer: Any, layout: Callable[[Any], "Report"] | None = None, *, as_json: bool
) -> None:
    """Print an answer as JSON, or as `layout` lays it out."""
    if as_json or layout is None:
        from finegauge.render.json import document

        say(document(command, answer))
    else:
        from finegauge.render.terminal import report_lines

        say(report_lines(layout(answer)))


# What old encodings lack, or have at other places.
_PLAIN = str.maketrans("█▸→≥≤–×·…▏▎▍▌▋▊▉", "#>>><-x|~-------")


def say(lines: Iterable[str] | str, *, err: bool = False) -> None:
    """Print to stdout or stderr, in characters that its encoding has, and no control but our colours."""
    text = lines if isinstance(lines, str) else "\n".join(lines)
    text = cleaned(text, _COLOURS) if "\x1b" in text and _has_colour() else cleaned(text)
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    if not encoding.casefold().startswith("utf"):  # a pipe on Windows
        text = text.translate(_PLAIN)
    click.echo(text.encode(encoding, errors="replace").decode(encoding), err=err, color=True)


def _has_colour() -> bool:
    from finegauge.render.terminal import has_colour

    return has_colour()


def fetch(error: UnknownNameError, *, offline: bool) -> None:
    """Fetch the config.json of the model that `error` says is unknown, and say so.

    Raises: the error where no model of the Hub is meant; UnsupportedError where it is not to be had.
    """
    from finegauge.catalogue.hub import fetch_config, is_hub_id

    if error.kind != "model" or not is_hub_id(error.name):
        raise error
    got = fetch_config(error.name, error.near, offline=offline)
    size = f"{got.num_bytes / 1e3:.1f} kB"
    click.echo(f"Fetched {got.model}/config.json ({size}) from {got.endpoint}, kept as {got.path}", err=True)


def trace_once(model: str, config: Mapping[str, Any]) -> None:
    """Trace the class of a model_type that nothing describes, and keep what was found.

    Raises: UnsupportedError with the exact command where it cannot be traced here.
    """
    from finegauge.model.families import untraced
    from finegauge.model.traced import write_trace

    why = untraced(config)
    if not why:
        return
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"{why} Its transformers class can be traced, once, but {' and '.join(missing)} is missing: "
            f"pip install torch==2.13.0 'finegauge[measure]', then run this again."
        )
    click.echo(f"{cleaned(why)} Tracing its transformers class, once ...", err=True)
    path = write_trace(traced_document(config), config)
    click.echo(f"Traced {shown(model)}, kept as {path}", err=True)


def traced_document(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trace of a configuration; a bar on stderr tells how far it is."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from finegauge.measurement.tracer.document import trace_document
    except ImportError as error:
        raise UnsupportedError(
            f"'finegauge trace' runs the transformers class, and {shown(error.name or 'torch')} is not "
            "installed: pip install torch==2.13.0, then pip install 'finegauge[measure]'."
        ) from None
    gc.enable()  # a trace is long enough to have garbage
    with progress_bar("tracing") as heard:
        return trace_document(config, heard)


AFTER_S = 0.5


@contextmanager
def progress_bar(name: str) -> "Iterator[Heard | None]":
    """Yield a function that shows the progress of `name`; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _LateBar(name)
    try:
        yield bar.heard
    finally:
        bar.stop()


class _LateBar:
    """A bar that comes up after a while."""

    def __init__(self, name: str) -> None:
        self.name, self.started_s = name, perf_counter()
        self.bar: Any = None

    def heard(self, progress: "Progress") -> None:
        """Show how far it is."""
        if self.bar is None and perf_counter() - self.started_s > AFTER_S:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.add_task(self.name, total=None)
            self.bar.start()
        if self.bar is not None:
            from finegauge.render.number_format import duration

            left = f", about {duration(progress.left_s)} left" if progress.left_s is not None else ""
            said = f"{self.name} {progress.what}{left}".strip()
            task = self.bar.task_ids[0]
            self.bar.update(task, description=said, completed=progress.done, total=progress.total)

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
