"""The command `finegauge`: parse, call, show.

A command's module is imported when it runs, so `finegauge --help` and `finegauge estimate`
pay for nothing else. Exit codes: 0 done; `check` 0, 10 or 20; `measure` 0, 20 or 30; 64 bad usage or
input; 70 an error of FineGauge's own; 130 interrupted.
"""

import gc
import os
import sys
from collections.abc import Sequence
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from typing import TextIO

from finegauge import __version__
from finegauge.cli.light_click import click
from finegauge.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    FineGaugeError,
    InputError,
    cleaned,
    did_you_mean,
)

NO_ROOM = (ENOSPC, EDQUOT, EFBIG, EIO)
COMMANDS = {  # name: its module, imported when it runs, and what --help says about it
    "estimate": ("estimates", "Memory, time, cost and energy of a run, on one or several GPUs."),
    "read": ("files", "What a training file means: every field, its value and its origin."),
    "explain": ("estimates", "Why: every byte and second with its formula, every input's origin."),
    "check": ("estimates", "Will it fit? Exit code 0 fits, 10 risky, 20 will not fit."),
    "why": ("estimates", "What ended a training, by its error, log or snapshot, and what to change."),
    "watch": ("watching", "A training while it runs, beside its prediction; keeps its profile."),
    "learn": ("validation", "Finished trainings make predictions for your own machine better."),
    "can": ("estimates", "What fits a GPU: which methods, with which micro-batch, at which length."),
    "max-batch": ("estimates", "The largest micro-batch that fits."),
    "max-length": ("estimates", "The longest sequence that fits."),
    "data": ("files", "How long a data set's samples are in tokens, and the batches they make."),
    "plan": ("plans", "The cheapest, fastest or greenest way to do a run, and why not another."),
    "whatif": ("plans", "One change at a time from a run as it is, sorted by what it saves."),
    "measure": ("measurements", "Run a few real steps, and show where memory and time go."),
    "micro": ("measurements", "Time this machine's operators; predictions then take '--gpu here'."),
    "campaign": ("campaigns", "Many runs, predicted, measured or both; stop and resume at will."),
    "compare": ("campaigns", "SpeedUp, MemoryUp and EnergyUp of optimisations over a baseline."),
    "results": ("campaigns", "What campaigns and measurements found: a table, SQL, CSV, Parquet."),
    "report": ("reports", "A report in one file: a run, a measurement, a campaign or a plan."),
    "validate": ("validation", "How wrong the predictions are, on a table of measured runs."),
    "reproduce": ("reports", "The seed paper's tables and figures, ours beside theirs."),
    "calibrate": ("validation", "Fit a law to your own sweep; 'estimate --law' uses it."),
    "trace": ("measurements", "Add a model_type that FineGauge lacks, by tracing its transformers class."),
    "serve": ("servers", "Show these answers as a page in the browser, on this machine alone."),
    "mcp": ("servers", "Serve these answers to assistants (Model Context Protocol)."),
    "doctor": ("servers", "This machine's GPU, host and disk, the extras installed, and what works."),
    "completion": ("servers", "Shell completion for bash, zsh or fish: commands, fields, GPUs, models."),
    "examples": ("catalogue", "Training files to try, with the small models that they name."),
    "models": ("catalogue", "List models, or show one with its parameters and layers."),
    "gpus": ("catalogue", "List GPUs, or show one."),
    "offers": ("catalogue", "List cloud offers with their prices; --refresh fetches today's."),
    "datasets": ("catalogue", "List data sets, or show one with its lengths."),
    "frameworks": ("catalogue", "List training frameworks and the defaults of each."),
}


GROUPS = {  # of the help
    "Ask": ("estimate", "can", "check", "why", "max-batch", "max-length", "explain", "read", "data"),
    "Decide": ("plan", "whatif", "compare", "report"),
    "Measure": (
        "measure",
        "watch",
        "micro",
        "campaign",
        "results",
        "validate",
        "calibrate",
        "learn",
        "reproduce",
        "trace",
    ),
    "Look up": ("models", "gpus", "offers", "datasets", "frameworks", "examples"),
    "Set up": ("doctor", "completion", "serve", "mcp"),
}
FIRST = {  # what a new user can do
    "finegauge estimate Qwen/Qwen3-8B --gpu rtx4090": "memory, time, cost and energy of a run",
    "finegauge can Qwen/Qwen3-32B --gpu 4090:2": "which methods, batches and lengths fit",
    "finegauge plan train.yaml --gpu h100": "the cheapest way to do it; --minimize time",
    "finegauge whatif train.yaml": "what each change would save",
    "finegauge measure train.yaml": "the real thing, a few steps of it",
}


class LazyGroup(click.Group):
    """A group that imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, its module imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"finegauge.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group without importing them."""
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` name, or say which one they may have meant."""
        meant = [name for name in COMMANDS if args and name.startswith(args[0])]
        if len(meant) == 1:  # est: estimate
            args = [*meant, *args[1:]]
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command '{args[0][:60]}'.{did_you_mean(args[0], COMMANDS)}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if "--" in rest and command and any((one.metavar or "").startswith("RUN") for one in command.params):
            rest = _with_command(rest)
        arguments = [one for one in command.params if isinstance(one, click.Argument)] if command else []
        known = {word for one in command.params for word in one.opts} if command else set[str]()
        if "--set" in known or any("KEY=VALUE" in (one.metavar or "") for one in arguments):
            rest = _with_fields(rest, known)
        return name, command, rest


def _with_command(words: list[str]) -> list[str]:
    """Return the arguments with the command after `--` as one word in the place of RUN."""
    import shlex

    place = words.index("--")
    return [f" -- {shlex.join(words[place + 1 :])}", *words[:place]]


def _with_fields(words: list[str], options: set[str]) -> list[str]:
    """Return the arguments with what is a field of a run, not an option (`--seq-len 4096`), as key=value."""
    if not any(word.startswith("--") and word.partition("=")[0] not in options for word in words):
        return words
    from finegauge.run.options import SPELLINGS
    from finegauge.run.run import FIELDS

    rest, fields, coming = list[str](), list[str](), iter([*words, ""])
    word = next(coming)
    while word:
        following = next(coming)
        option, equals, value = word.partition("=")
        name = option[2:].replace("-", "_")
        if option in options or not word.startswith("--") or name not in {*FIELDS, *SPELLINGS}:
            rest.append(word)
        elif equals:
            fields.append(f"{name}={value}")
        elif following.startswith("-") or not following or "=" in SPELLINGS.get(name, ""):
            fields.append(f"{name}=true")
        else:
            fields.append(f"{name}={following}")
            following = next(coming)
        word = following
    return [*rest, *(word for one in fields for word in (("--set", one) if "--set" in options else (one,)))]


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def root() -> None:
    """What fine-tuning a language model takes: does it fit, how long, what cost, what energy, and why.

    RUN is what you have: a model's name or Hugging Face id (Qwen/Qwen3-8B), its folder, a training
    framework's file, script or notebook, - for standard input, or a command after --. KEY=VALUE arguments
    override its fields: finegauge estimate Qwen/Qwen3-8B --gpu rtx4090 seq_len=4096. Words do, where they
    name model, method and GPU: finegauge estimate llama 3.1 8b qlora on a 3090.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; an error is one line on stderr, never a traceback."""
    gc.disable()  # a command is too short to have garbage,
    _fill_streams()
    code = _exit_code(arguments)
    if not gc.isenabled():  # a long one has switched it on
        gc.freeze()  # and looking for it at the end takes longer than a prediction
    sys.exit(code)


def _fill_streams() -> None:
    """Let what is printed to a closed stream vanish, and no file that is opened later take its place."""
    if sys.stdout is None or sys.stderr is None:
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(descriptor)
        nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere


def _exit_code(arguments: Sequence[str] | None) -> int:
    words = None if arguments is None else list(arguments)
    try:
        code = root.main(args=words, prog_name="finegauge", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left; say no more
        _silence(sys.stdout)
        return EXIT_DONE
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except (FineGaugeError, click.ClickException) as error:
        return _say_error(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _silence(sys.stdout)
            return _say_error(InputError(f"The output cannot be written: {error.strerror}."))
        if os.environ.get("FINEGAUGE_DEBUG"):
            raise
        what = f"{type(error).__name__}: {_one_line(error)}"
        _tell(f"Error: internal error ({what}); please report it. FINEGAUGE_DEBUG=1 shows the traceback.")
        return EXIT_INTERNAL
    return code if isinstance(code, int) else EXIT_DONE


def _say_error(error: FineGaugeError | click.ClickException) -> int:
    """Say on stderr what the user can do about `error`, and return its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        import shutil

        width = max(map(len, FIRST))
        wide = max(len(says) for says in FIRST.values()) + width + 4 <= shutil.get_terminal_size().columns
        between = "  " if wide else "\n      "
        first = "\n".join(
            f"  {command:{width if wide else 0}}{between}{says}" for command, says in FIRST.items()
        )
        usage = (
            error.format_message()
            if error.ctx and error.ctx.parent
            else f"Usage: finegauge COMMAND\n\n{first}"
        )
        _tell(f"{usage}\n\n'finegauge --help' lists all commands.")
        return EXIT_BAD_INPUT
    if isinstance(error, FineGaugeError):
        _tell(f"Error: {_one_line(error)}")
        return error.exit_code
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" See '{context.command_path} --help'." if context else ""
    _tell(f"Error: {_one_line(error.format_message())}{hint}")
    return EXIT_BAD_INPUT


def _tell(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
    except OSError:  # the exit code says it
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Let what is still to be written to a stream vanish, at the end of the process too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _one_line(message: object, limit: int = 600) -> str:
    text = cleaned(" ".join(str(message).split()))
    return text if len(text) <= limit else f"{text[:limit]}…"
