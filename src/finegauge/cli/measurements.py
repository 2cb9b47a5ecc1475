"""`finegauge measure`, `micro` and `trace`: run the real thing on this machine."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.run_options import (
    json_option,
    offline_option,
    overrides_argument,
    progress_bar,
    read_run,
    run_argument,
    say,
    show,
    traced_document,
)
from finegauge.documents import json_text
from finegauge.errors import EXIT_DONE, EXIT_NO_DATA, EXIT_WILL_NOT_FIT, UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.catalogue.device_profile import DeviceProfile
    from finegauge.model.blocks import Architecture

MOST_USERS = 10_000
NEED_ENDPOINT = {
    "endpoint_api": "--endpoint-api", "endpoint_model": "--endpoint-model", "concurrency": "--concurrency",
    "num_requests": "--requests", "requests_per_s": "--rate", "request_timeout_s": "--request-timeout",
    "api_key_variable": "--api-key-variable",
}  # fmt: skip

Command = Callable[..., Any]


def endpoint_options(command: Command) -> Command:
    """Add the options of a server to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def stated(asked: dict[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Take the options of a server out of `asked`; return those that were stated, and the numbers of users.

    Raises: click.UsageError where a server's options are stated without a server.
    """
    endpoint = asked.pop("endpoint")
    found = {name: asked.pop(name) for name in NEED_ENDPOINT}
    found = {name: value for name, value in found.items() if value is not None}
    if not endpoint and found:
        raise click.UsageError(f"{NEED_ENDPOINT[next(iter(found))]} is about a server: add --endpoint URL.")
    users = found.pop("concurrency", ())
    return ({"endpoint": endpoint, **found} if endpoint else {}), users


def _numbers(ctx: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    del ctx, option
    if value is None:
        return None
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words or not all(w.isdecimal() and w.isascii() and 1 <= int(w[:9]) <= MOST_USERS for w in words):
        raise click.BadParameter(f"'{value}' should be numbers of users from 1 to {MOST_USERS:,}: 1,8,32.")
    return tuple(dict.fromkeys(map(int, words)))


OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--endpoint", metavar="URL", default="", help="Measure an OpenAI-compatible server."),
    click.option("--endpoint-api", type=click.Choice(["completions", "chat"]), help="[default: completions]"),
    click.option("--endpoint-model", metavar="NAME", help="As the server calls it, where it has several."),
    click.option(
        "--concurrency", metavar="N,N", callback=_numbers,
        help="Users at a time, one measurement each.  [default: micro_batch_size]",
    ),
    click.option(
        "--requests", "num_requests", type=click.IntRange(1, 10_000_000),
        help="Measured requests.  [default: --steps of every user]",
    ),
    click.option(
        "--rate", "requests_per_s", type=click.FloatRange(0, 1e6, min_open=True),
        help="Requests a second arriving by chance, instead of users.",
    ),
    click.option(
        "--request-timeout", "request_timeout_s", type=click.FloatRange(0, 1e6),
        help="Seconds of one request; 0: none.  [default: 600]",
    ),
    click.option("--api-key-variable", metavar="NAME", help="Environment variable with the server's key."),
)  # fmt: skip

EXIT_CODES = {"completed": EXIT_DONE, "out_of_memory": EXIT_WILL_NOT_FIT}


@click.command()
@run_argument
@overrides_argument
@offline_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--steps", type=click.IntRange(1, 100_000), default=10, show_default=True, help="Measured steps."
)
@click.option(
    "--warmup", "warmup_steps", type=click.IntRange(0, 10_000), default=2, show_default=True,
    help="Steps before, discarded.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(0, 4096), default=0, help="Of the CPU; 0: what torch takes.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and data.")
@click.option(
    "--memory/--no-memory", default=True, help="One step under the memory meter.  [default: memory]"
)
@click.option(
    "--moments", is_flag=True, help="Memory of load, train, evaluation, save and resume, each done for real."
)
@click.option("--layers", is_flag=True, help="Time every part of every layer.")
@click.option("--kernels", is_flag=True, help="Table of kernels, by torch.profiler.")
@click.option("--ncu", is_flag=True, help="SM and DRAM utilisation of one layer, by Nsight Compute.")
@click.option("--experts", is_flag=True, help="Tokens of each expert.")
@click.option("--energy", is_flag=True, help="Joules of a step.")
@click.option("--evaluate", is_flag=True, help="Accuracy before tuning and after each epoch.")
@click.option("--tasks", default="", metavar="NAME,NAME", help="Score it by lm-evaluation-harness.")
@click.option("--task-folder", type=click.Path(exists=True, file_okay=False), help="YAML files of own tasks.")
@click.option("--task-limit", type=click.IntRange(1), help="Questions of each task; all otherwise.")
@click.option(
    "--trace", "trace_path", type=click.Path(dir_okay=False), default="", help="Write a Chrome trace."
)
@click.option(
    "--memory-limit", "limit", metavar="SIZE", default="", help="The most it may allocate: 2GiB, 500MB."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=0.0, help="Seconds; 0: none.")
@click.option(
    "--store", type=click.Path(dir_okay=False), help="Add the outcome to this journal (JSON lines)."
)
@endpoint_options
@json_option
@click.pass_context
def measure(
    ctx: click.Context,
    /,
    run_file: str,
    overrides: tuple[str, ...],
    *,
    limit: str,
    store: str | None,
    as_json: bool,
    tasks: str,
    task_folder: str | None,
    task_limit: int | None,
    **asked: Any,
) -> None:
    """Run a few steps of RUN on this machine, and show where memory and time go beside the prediction.

    The model is built from its config with random weights, or read from a local checkpoint. It runs in a
    process of its own: out of memory is an outcome (exit code 20), a result that is no data is 30.
    """
    from finegauge.answers.measurement import measure_answer, measured
    from finegauge.data.batch_shape import shape
    from finegauge.measurement.options import Options
    from finegauge.render.measurement import measure_report

    gc.enable()
    run = read_run(run_file, overrides)
    shape(run)  # batches that cannot be are refused before a process starts
    server, users = stated(asked)
    options = Options(
        **asked,
        **server,
        tasks=tuple(filter(None, tasks.replace(" ", "").split(","))),
        task_folder=task_folder or "",
        task_limit=task_limit or 0,
        memory_limit_bytes=byte_size(limit) if limit else 0.0,
    )
    with progress_bar("") as heard:
        found = measured(run, options, users=users, heard=heard, store=store)
    last, _ = found[-1]
    if last.outcome == "unsupported":
        raise UnsupportedError(last.reason)
    show("measure", measure_answer(found), measure_report, as_json=as_json)
    ctx.exit(EXIT_CODES.get(last.outcome, EXIT_NO_DATA))


def byte_size(text: str) -> float:
    """Return the bytes that "2GiB", "500MB" or "1e9" say."""
    units = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 1e3, "mb": 1e6, "gb": 1e9, "b": 1}
    word = text.strip().lower()
    unit = next((name for name in units if word.endswith(name)), "")
    try:
        found = float(word.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e18:
        raise click.BadParameter(
            f"'{text}' is no size; write 2GiB, 500MB or 1000000000.", param_hint="--memory-limit"
        )
    return found


@click.command()
@click.argument("run_files", nargs=-1, metavar="[RUN]...")
@offline_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="What to time; cuda where there is one.")
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Of the host's arithmetic; torch's choice."
)
@click.option(
    "--collectives",
    type=click.IntRange(2),
    metavar="N",
    help="Time collectives between 2, 4 ... N processes too: gloo between CPUs, NCCL between GPUs.",
)
@click.option(
    "--modules", is_flag=True, help="Then measure each RUN module by module, beside its prediction."
)
@click.option("--predict", is_flag=True, help="Predict the profile of --gpu instead of timing this machine.")
@click.option("--gpu", metavar="NAME", help="With --predict: the GPU, which need not be here.")
@click.option("-o", "--output", metavar="FILE", help="Where to write; this machine's own profile otherwise.")
@json_option
def micro(
    run_files: tuple[str, ...],
    device: str | None,
    threads: int,
    collectives: int | None,
    output: str | None,
    gpu: str | None,
    *,
    modules: bool,
    predict: bool,
    as_json: bool,
) -> None:
    """Time the operators of this machine and keep them as a device profile.

    Matrix products, attention, norms, activations, experts, adapters, the loss, the optimizer's update and
    the host's own work, forward and backward, over a grid of sizes: about a minute. With RUNs, also at the
    sizes that these ask for, half and double their batch.

    With --modules, each RUN is then measured module by module (a few steps) beside what the operators
    say it takes: pre-training, fine-tuning and serving, and what they are made of, in one report.

    With --predict, nothing is timed: the profile of the GPU that --gpu names is predicted from operators that
    others timed and its datasheet, and written only where -o says so; -o FILE.png or .svg draws it.

    Predictions take the profile in place of a datasheet: --gpu here, or --gpu FILE.
    """
    if predict or gpu:
        if not (predict and gpu) or modules or device or collectives or threads:
            raise click.UsageError("--predict takes --gpu, RUNs, -o and --json, and nothing of this machine.")
        _predicted(gpu, run_files, output, as_json=as_json)
        return
    from finegauge.answers.measurement import check_libraries, micro_answer, runs_by_module
    from finegauge.catalogue.device_profile import own_profile_path, write
    from finegauge.render.device_profile import micro_report

    check_libraries()
    if modules and not run_files:
        raise click.UsageError("--modules compares runs with their operators: name at least one RUN.")
    runs = {path: read_run(path) for path in run_files}
    import torch

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    path = output or own_profile_path(chosen)
    from finegauge.measurement.bench.microbenchmarks import micro as timed

    with progress_bar("timing") as heard:
        profile = timed(
            list(runs.values()), device=chosen, threads=threads, ranks=collectives or 0, heard=heard
        )
    write(profile, path)
    measured = tuple(runs_by_module(runs, chosen, threads, path)) if modules else None
    answer = micro_answer(profile, path, measured)
    show("micro", answer, partial(micro_report, is_own=not output), as_json=as_json)


def _predicted(name: str, run_files: tuple[str, ...], output: str | None, *, as_json: bool) -> None:
    from finegauge.answers.measurement import micro_answer
    from finegauge.catalogue.device_profile import write
    from finegauge.catalogue.gpus import gpu
    from finegauge.prediction.predicted_profile import predicted_profile
    from finegauge.render.device_profile import micro_report

    profile = predicted_profile(gpu(name), [read_run(path) for path in run_files])
    stem, suffix = os.path.splitext(output or "")
    drawn: tuple[str, ...] = ()
    if suffix in (".png", ".svg"):
        drawn, output = _drawn(profile, stem), None
    if output:
        write(profile, output)
    show("micro", micro_answer(profile, output), micro_report, as_json=as_json)
    if drawn and not as_json:
        say(f"Drawn as {' and '.join(drawn)}")


def _drawn(profile: "DeviceProfile", stem: str) -> tuple[str, ...]:
    from finegauge.render.plots.drawing import check_matplotlib

    check_matplotlib()
    from finegauge.render.device_profile import profile_panels
    from finegauge.render.plots.drawing import save_charts

    return save_charts(profile_panels(profile), stem, f"{profile.name}: predicted operators")


@click.command()
@click.argument("model", metavar="MODEL_DIR")
@json_option
def trace(model: str, *, as_json: bool) -> None:
    """Trace the transformers class of the config.json in MODEL_DIR, once, into this user's cache.

    For a model_type that FineGauge does not describe itself. No weights are needed and no code of
    the model's repository is run. Needs torch and transformers: pip install 'finegauge[measure]'.
    """
    from finegauge.catalogue.models import model as figures_of
    from finegauge.model.families import supported_model_types
    from finegauge.model.traced import traced_architecture, write_trace

    config = figures_of(model).config
    model_type = str(config.get("model_type", ""))
    if model_type in supported_model_types():
        raise UnsupportedError(
            f"model_type {shown(model_type)} is described already, so there is nothing to trace; "
            f"run 'finegauge models show {model}' or 'finegauge estimate {model}'."
        )
    document = traced_document(config)
    traced = traced_architecture(document)
    path = write_trace(document, config)
    say(_json(document, traced, path) if as_json else _lines(model, config, document, traced, path))


def _lines(
    model: str, config: Mapping[str, Any], document: Mapping[str, Any], traced: "Architecture", path: str
) -> Iterator[str]:
    from finegauge.units import count

    yield (
        f"{traced.model_type}: {document['class']} of transformers {document['transformers']}, "
        f"{count(traced.num_parameters)} parameters ({traced.num_parameters:,})"
    )
    for kind, number in traced.layers_by_kind().items():
        yield f"  {number} x {kind}"
    if config.get("auto_map"):
        yield "The repository's own code (auto_map) was not run; transformers' class was."
    yield from (f"Note: {note}" for note in traced.notes)
    yield f"Saved in {path}; every command knows this model now, e.g. finegauge estimate {model}"


def _json(document: Mapping[str, Any], traced: "Architecture", path: str) -> str:
    found = {
        "command": "trace",
        "model_type": traced.model_type,
        "class": document["class"],
        "transformers": document["transformers"],
        "torch": document["torch"],
        "parameters": traced.num_parameters,
        "layers": traced.layers_by_kind(),
        "notes": list(traced.notes),
        "path": path,
    }
    return json_text(found)
