"""The command `finegauge`: parse, call, show.

A command's module is imported when it runs, so `finegauge --help` and `finegauge estimate`
pay for nothing else. Exit codes: 0 done; `check` 0, 10 or 20; `measure` 0, 20 or 30; 64 bad usage or
input; 70 an error of FineGauge's own; 130 interrupted.
"""

import gc
import os
import sys
from collections.abc import Sequence

import click

from finegauge import __version__
from finegauge.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    FineGaugeError,
    cleaned,
    did_you_mean,
)

# Each returns the commands of one module, imported when one of them runs.


def _campaigns() -> tuple[click.Command, ...]:
    from finegauge.cli.campaigns import campaign, compare, results

    return campaign, compare, results


def _catalogue() -> tuple[click.Command, ...]:
    from finegauge.cli.catalogue import datasets, examples, frameworks, gpus, models, offers

    return models, gpus, offers, datasets, frameworks, examples


def _estimates() -> tuple[click.Command, ...]:
    from finegauge.cli.estimates import can, check, estimate, explain, max_batch, max_length

    return estimate, explain, check, can, max_batch, max_length


def _files() -> tuple[click.Command, ...]:
    from finegauge.cli.files import data, read

    return read, data


def _measurements() -> tuple[click.Command, ...]:
    from finegauge.cli.measurements import measure, micro, trace

    return measure, micro, trace


def _plans() -> tuple[click.Command, ...]:
    from finegauge.cli.plans import plan, whatif

    return plan, whatif


def _reports() -> tuple[click.Command, ...]:
    from finegauge.cli.reports import report, reproduce

    return report, reproduce


def _servers() -> tuple[click.Command, ...]:
    from finegauge.cli.servers import mcp, serve

    return serve, mcp


def _doctor() -> tuple[click.Command, ...]:
    from finegauge.cli.doctor import completion, doctor

    return doctor, completion


def _validation() -> tuple[click.Command, ...]:
    from finegauge.cli.validation import calibrate, validate

    return validate, calibrate


COMMANDS = {  # name: where it is, and what --help says about it
    "estimate": (_estimates, "Memory, time, cost and energy of a run, on one or several GPUs."),
    "read": (_files, "What a training file means: every field, and who says so."),
    "explain": (_estimates, "Why: every byte and second with its formula, every input's origin."),
    "check": (_estimates, "Will it fit? Exit code 0 fits, 10 risky, 20 will not fit."),
    "can": (_estimates, "What fits a GPU: which methods, with which micro-batch, at which length."),
    "max-batch": (_estimates, "The largest micro-batch that fits."),
    "max-length": (_estimates, "The longest sequence that fits."),
    "data": (_files, "How long a data set's samples are in tokens, and the batches they make."),
    "plan": (_plans, "The cheapest, fastest or greenest way to do a run, and why not another."),
    "whatif": (_plans, "One change at a time from a run as it is, sorted by what it saves."),
    "measure": (_measurements, "Run the real thing for a few steps and take it apart."),
    "micro": (_measurements, "Time this machine's operators; predictions then take '--gpu here'."),
    "campaign": (_campaigns, "Many runs, predicted, measured or both; stop and resume at will."),
    "compare": (_campaigns, "SpeedUp, MemoryUp and EnergyUp of optimisations over a baseline."),
    "results": (_campaigns, "What campaigns and measurements found: a table, SQL, CSV, Parquet."),
    "report": (_reports, "One file to look at: a run, a measurement, a campaign, a plan."),
    "validate": (_validation, "How wrong the predictions are, on a table of measured runs."),
    "reproduce": (_reports, "The seed paper's tables and figures, ours beside theirs."),
    "calibrate": (_validation, "Fit a law to your own sweep; 'estimate --law' uses it."),
    "trace": (_measurements, "Learn a model_type that FineGauge does not describe, from its class."),
    "serve": (_servers, "Show these answers as a page in the browser, on this machine alone."),
    "mcp": (_servers, "Serve these answers to assistants (Model Context Protocol)."),
    "doctor": (_doctor, "What this machine has, which extras are installed, and what works."),
    "completion": (_doctor, "What makes bash, zsh or fish complete commands, fields, GPUs and models."),
    "examples": (_catalogue, "Training files to try, with the small models that they name."),
    "models": (_catalogue, "List models, or show one with its parameters and layers."),
    "gpus": (_catalogue, "List GPUs, or show one."),
    "offers": (_catalogue, "List cloud offers with their prices; --refresh fetches today's."),
    "datasets": (_catalogue, "List data sets, or show one with its lengths."),
    "frameworks": (_catalogue, "List training frameworks, and what each does unasked."),
}


GROUPS = {  # of the help
    "Ask": ("estimate", "can", "check", "max-batch", "max-length", "explain", "read", "data"),
    "Decide": ("plan", "whatif", "compare", "report"),
    "Measure": ("measure", "micro", "campaign", "results", "validate", "calibrate", "reproduce", "trace"),
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
        module, _ = COMMANDS[cmd_name]
        return next(command for command in module() if command.name == cmd_name)

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
        return name, command, rest


def _with_command(words: list[str]) -> list[str]:
    """Return the arguments with the command after `--` as the one word that stands for RUN, in its place."""
    import shlex

    place = words.index("--")
    return [f" -- {shlex.join(words[place + 1 :])}", *words[:place]]


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def root() -> None:
    """What fine-tuning a language model takes: does it fit, how long, what cost, what energy, and why.

    RUN is what you have: a model's name or Hugging Face id (Qwen/Qwen3-8B), its folder, a training
    framework's file, script or notebook, - for standard input, or a command after --. KEY=VALUE arguments
    override its fields: finegauge estimate Qwen/Qwen3-8B --gpu rtx4090 seq_len=4096.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; an error is one line on stderr, never a traceback."""
    gc.disable()  # a command is too short to have garbage,
    code = _exit_code(arguments)
    if not gc.isenabled():  # a long one has switched it on
        gc.freeze()  # and looking for it at the end takes longer than a prediction
    sys.exit(code)


def _exit_code(arguments: Sequence[str] | None) -> int:
    """Return the exit code of one command, its error said on stderr."""
    words = None if arguments is None else list(arguments)
    try:
        code = root.main(args=words, prog_name="finegauge", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left; say no more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except (FineGaugeError, click.ClickException) as error:
        return _say_error(error)
    except Exception as error:
        if os.environ.get("FINEGAUGE_DEBUG"):
            raise
        what = f"{type(error).__name__}: {_one_line(error)}"
        sys.stderr.write(
            f"Error: internal error ({what}); please report it. FINEGAUGE_DEBUG=1 shows the traceback.\n"
        )
        return EXIT_INTERNAL
    return code if isinstance(code, int) else EXIT_DONE


def _say_error(error: FineGaugeError | click.ClickException) -> int:
    """Say on stderr what the user can do about `error`, and return its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        width = max(map(len, FIRST))
        first = "\n".join(f"  {command:{width}}  {says}" for command, says in FIRST.items())
        usage = (
            error.format_message()
            if error.ctx and error.ctx.parent
            else f"Usage: finegauge COMMAND\n\n{first}"
        )
        sys.stderr.write(f"{usage}\n\n'finegauge --help' lists all commands.\n")
        return EXIT_BAD_INPUT
    if isinstance(error, FineGaugeError):
        sys.stderr.write(f"Error: {_one_line(error)}\n")
        return error.exit_code
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f" See '{context.command_path} --help'." if context else ""
    sys.stderr.write(f"Error: {_one_line(error.format_message())}{hint}\n")
    return EXIT_BAD_INPUT


def _one_line(message: object, limit: int = 600) -> str:
    """Return `message` as one printable line."""
    text = cleaned(" ".join(str(message).split()))
    return text if len(text) <= limit else f"{text[:limit]}…"
