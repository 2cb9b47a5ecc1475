"""A file as a Run: recognised by its keys, overridden, checked against the catalogue.

Most frameworks refuse keys that they do not know, so that their files cannot hold a block `finegauge:`.
Comments can: `# finegauge: {gpu: A40, num_gpus: 8}` among those that the file begins with.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.tables import refused
from finegauge.documents import MAX_BYTES, parse_toml, parse_yaml, read_text
from finegauge.errors import FileFormatError, FineGaugeError, UnknownKeyError, UnknownNameError, shown
from finegauge.formats import key_table, launcher_files, model_names
from finegauge.formats.key_table import RUN_FILE, Format, lay_over, recognise
from finegauge.formats.launcher_files import ALONE, Alongside
from finegauge.formats.run_argument import (
    ARGUMENTS,
    COMMAND,
    FILE,
    LAUNCHES,
    MODEL,
    RunArgument,
    content,
    in_words,
    parse,
    resolve,
)
from finegauge.formats.sheet import BLOCK
from finegauge.records import NamedTuple
from finegauge.run.rules import INFERENCE, NOT_CHECKPOINTED, QUANTIZED_BY_METHOD
from finegauge.run.run import (
    FIELDS,
    FROM_COMMAND_LINE,
    FROM_DEFAULT,
    FROM_FILE,
    FROM_MODEL_ALONE,
    Run,
    figures,
    positions_of,
)

if TYPE_CHECKING:
    from finegauge.formats.launch import Launch

USUAL_LENGTH = int(FIELDS["seq_len"].default)
USUAL_ANSWER = 128  # tokens, as transformers' examples of summaries have it
USUAL_DATA = "alpaca"  # whose lengths a run has that names a model alone
MAX_COMMENT_LINES = 100
_MAX_NOTEBOOK_BYTES = 20_000_000  # its pictures included
_COMMENT = r"#\s*finegauge:\s*(\{.*\})\s*$"
_TRAINS = frozenset(("learning_rate", "lr", "optim", "batch_size", "gradient_accumulation_steps"))  # none's
_OF_ADAPTERS = ("adapter", "lora_", "trainable_extra")  # how the names of their fields begin
_CONFIG_KEYS = frozenset(("architectures", "model_type", "mamba_moe_layers"))  # of a config.json


def read(
    path: str | os.PathLike[str],
    overrides: Iterable[str] = (),
    alongside: Alongside = ALONE,
    fetch: Callable[[UnknownNameError], None] | None = None,
) -> Run:
    """Return the run that a file describes, with `key=value` overrides laid over it.

    A model that is not known is fetched, where `fetch` does so; else it is read as the one that its name
    says it was tuned from, which is warned of.

    Args:
        path: A run file, a training framework's file (docs/run-file.md lists them), a Python or shell
            script that starts a training (read, never run); a model's name, Hub id, page, config.json or
            folder; "-" for standard input, " -- COMMAND" for what a shell would start.
        overrides: Words such as "micro_batch_size=4"; for a framework's file its own keys too.
        alongside: Files and figures that the launcher gets beside it.
        fetch: What fetches the configuration of an unknown model, or raises.

    Raises: InputError in one sentence, whatever the file holds.
    """
    words = tuple(overrides)
    try:
        return _known(path, words, alongside)
    except UnknownNameError as error:
        unknown: FineGaugeError = error
        base = model_names.base_of(error)
        try:
            if fetch is not None:
                fetch(error)
                return _known(path, words, alongside)
        except FineGaugeError as refusal:
            unknown = refusal
        if not base:
            raise unknown from None
        asked = base if _resolved(path).kind == MODEL else path
        try:
            run = _known(asked, (*words, f"model={base}"), alongside)
        except UnknownNameError:  # another role's model
            raise unknown from None
        return model_names.read_as(run, error.name)


def _known(path: str | os.PathLike[str], words: tuple[str, ...], alongside: Alongside) -> Run:
    run = describe(path, words, alongside)
    run.check_names()
    return run


def describe(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), alongside: Alongside = ALONE
) -> Run:
    """Return the run that a file describes, whether or not the catalogue knows its model and GPU.

    Raises: InputError in one sentence, whatever the file holds.
    """
    path, words = in_words(os.fspath(path), tuple(overrides))
    asked = _resolved(path)
    if asked.kind == MODEL:
        return _model_alone(asked.value, words, alongside)
    loaded = _loaded(asked)
    keys, reader, warnings, inline = loaded[:4]
    file, name = loaded.file or asked.place, os.path.basename(asked.place)
    if loaded.accelerate is not None and alongside.accelerate is None:
        alongside = alongside._replace(accelerate=loaded.accelerate, beside=file)
    if not isinstance(keys, dict) or not keys:
        held = "no keys" if not keys else f"a {type(keys).__name__}, not keys with values"
        raise FileFormatError(f"{name} holds {held}; a run file is YAML such as 'model: llama-3-8b'.")
    _refuse_foreign(keys, name)
    if "defaults" in keys:
        from finegauge.formats.recipes import over_defaults

        keys = over_defaults(keys, file)
    reader = reader or recognise(keys)
    if reader not in (RUN_FILE, ""):
        format_ = _format(reader)
        if "peft_type" in keys and name == "adapter_config.json":  # which tells of no training
            told = key_table.read(format_, format_.adapt(keys), file)
            return _model_alone(told.model, words, alongside, told)
        block = keys.get(BLOCK) or {}
        if inline and isinstance(block, Mapping):
            keys = {**keys, BLOCK: {**inline, **block}}
        return key_table.read(format_, format_.adapt(keys), file, words, alongside, warnings)
    sized = {"hidden_size", "vocab_size"} <= {*keys} or not _CONFIG_KEYS.isdisjoint(keys)
    if reader == "" and sized and _TRAINS.isdisjoint(keys):
        return _model_alone(file, words, alongside)
    _refuse_others(keys, name)
    return _run(beside(dict(keys), file), {}, words, alongside, [])


def framework_of(path: str | os.PathLike[str]) -> tuple[Format, Mapping[str, Any]] | None:
    """Return whose file it is and what keys it holds; None of a run file, a script, a model's config.json.

    Raises: InputError in one sentence, whatever the file holds.
    """
    asked = _resolved(path)
    if asked.kind in (MODEL, COMMAND) or asked.value.endswith((".py", *LAUNCHES)):
        return None
    keys = _loaded(asked).keys
    reader = recognise(keys) if isinstance(keys, dict) else ""
    if reader in (RUN_FILE, ""):
        return None
    format_ = _format(reader)
    return format_, format_.adapt(keys)


def _format(reader: str) -> Format:
    """Return the format of "module" or "module:CONSTANT"."""
    module, _, constant = reader.partition(":")
    format_: Format = getattr(import_module(f"finegauge.formats.{module}"), constant or "FORMAT")
    return format_


def no_training(path: str) -> str:
    """Return why a file counts as none that describes a training, right or wrong; "" where it does.

    Raises: InputError where it cannot be opened.
    """
    try:
        keys, reader, *_ = _loaded(RunArgument(FILE, path))
    except FileFormatError as error:
        return "" if _looks_like_training(path) else str(error)
    if not isinstance(keys, dict) or not keys:
        return "it holds no keys with values."
    reader = reader or recognise(keys)
    if reader == RUN_FILE and "method" not in keys and not set(keys) <= set(FIELDS):
        reader = ""  # a `model` among keys that are none of ours
    return "" if reader else "it has the keys of no training framework."


def _looks_like_training(path: str) -> bool:
    try:
        text = read_text(path)
    except FileFormatError:
        return False
    words = "base_model|model_name_or_path|finetuning_type|tuner_type|per_device_train_batch_size|lora_rank"
    return re.search(rf"^(?:{words})\s*:", text, re.MULTILINE) is not None


def companion_fields(path: str) -> tuple[str, dict[str, Any]] | None:
    """Return ("accelerate" or "deepspeed", the fields it states) of a launcher's file; None of any other."""
    name = os.path.basename(path)
    if not os.path.isfile(path) or os.path.splitext(name)[1].lower() not in (".yaml", ".yml", ".json"):
        return None
    try:
        keys = parse_yaml(read_text(path), name)
    except FileFormatError:  # manifests of several documents
        return None
    if not isinstance(keys, dict) or recognise(keys) not in ("", RUN_FILE):
        return None
    if launcher_files.is_accelerate(keys):
        return "accelerate", launcher_files.accelerate_fields(keys, path)
    if launcher_files.is_deepspeed(keys):
        return "deepspeed", launcher_files.deepspeed_fields(keys)
    return None


def _resolved(argument: str | os.PathLike[str]) -> RunArgument:
    return resolve(os.fspath(argument), lambda path: not no_training(path))


class _Loaded(NamedTuple):
    """What a RUN holds."""

    keys: Any
    reader: str = ""  # where the kind of file decides it
    warnings: tuple[str, ...] = ()
    inline: Mapping[str, Any] = {}  # fields of its comment
    file: str = ""  # beside which the files lie that its keys name, where that is another
    accelerate: Mapping[str, Any] | None = None  # accelerate's keys, of a launch line


def _loaded(asked: RunArgument) -> _Loaded:
    """Return what a RUN holds."""
    if asked.kind == FILE and asked.place.endswith(".md"):
        what = f"{os.path.basename(asked.place)} describes a model, not a run"
        raise FileFormatError(f"{what}; name its model, or the file of its training.")
    if os.path.basename(asked.place) != ARGUMENTS:
        return _of_text(asked, os.path.basename(asked.place))
    from finegauge.formats.finished_runs import saved_run

    reader, keys = saved_run(asked.value)
    said = "the run that wrote this folder is read; for a new one name the model, or its config.json."
    return _Loaded(keys, reader, (f"{ARGUMENTS}: {said}",))


def _of_text(asked: RunArgument, name: str) -> _Loaded:
    if asked.kind == FILE:
        kind = os.path.splitext(name)[1].lower()
        text = read_text(asked.value, _MAX_NOTEBOOK_BYTES if kind == ".ipynb" else MAX_BYTES)
    else:
        text, kind = content(asked)
    if kind == ".py":
        return _of_python(text, asked.place, name)
    if asked.kind == FILE and _is_build(name.lower()):
        from finegauge.formats import containers, launch

        return _launched(launch.of_tasks(containers.of_build(text, name), asked.place, name))
    if kind in LAUNCHES or text.startswith("#!"):
        from finegauge.formats import launch

        if asked.kind == COMMAND:
            found = launch.of_shell(text, os.path.join(os.curdir, "the command"), "the command", trusted=True)
        else:
            found = (launch.of_notebook if kind == ".ipynb" else launch.of_shell)(text, asked.place, name)
        return _launched(found)
    if kind != ".toml" and re.search(r'^[{ \t]*"?(apiVersion|services|jobs|script)"?:', text, re.MULTILINE):
        from finegauge.formats import containers, launch

        if (tasks := containers.tasks_of(text, name)) is not None:
            return _launched(launch.of_tasks(tasks, asked.place, name))
    keys = parse_toml(text, name) if kind == ".toml" else parse_yaml(text, name)
    if isinstance(keys, dict) and {"run", "command", "commands", "MODEL_ARGS", "tasks"} & {*keys}:
        from finegauge.formats import containers, launch

        if (task := containers.of_task(keys)) is not None:
            return _launched(launch.of_tasks([task], asked.place, name))
    return _Loaded(keys, inline=inline_fields(text, name))


def _is_build(name: str) -> bool:
    """Return whether a file of that name holds commands that build something."""
    of_make = name in ("makefile", "gnumakefile", "justfile", ".justfile")
    container = any(part.partition("-")[0] in ("dockerfile", "containerfile") for part in name.split("."))
    return of_make or container or name.endswith((".mk", ".bat", ".cmd", ".ps1"))


def _of_python(text: str, file: str, name: str) -> _Loaded:
    """Return the training of a script, or of the commands that it starts."""
    from finegauge.formats import launch
    from finegauge.formats.containers import tasks_of_python
    from finegauge.formats.launchers import Place, of_dotenv
    from finegauge.formats.scripts import load_python

    reason: FileFormatError | None = None
    is_job = re.search(r"^\s*(?:from|import) sagemaker\b", text, re.MULTILINE) is not None
    for tells in ("job", "own", "started") if is_job else ("own", "started"):
        try:
            if tells == "own":
                place = Place(file, name)
                script = load_python(text, name, {}, of_dotenv(text, place), place.beside)
                return _Loaded(script.keys, script.reader, script.warnings)
            if tasks := tasks_of_python(text):
                return _launched(launch.of_tasks(tasks, file, name))
        except FileFormatError as error:
            reason = error if reason is None or (tells == "started" and launch.says_more(error)) else reason
    raise reason or FileFormatError(f"{name} starts no training that is known.")


def _launched(found: "Launch") -> _Loaded:
    return _Loaded(dict(found.keys), found.reader, found.warnings, {}, found.file, found.accelerate)


def inline_fields(text: str, name: str) -> Mapping[str, Any]:
    """Return the fields that the comment at the head of a file states; {} where there is none.

    Raises: FileFormatError where it holds no fields with values.
    """
    for line in text.splitlines()[:MAX_COMMENT_LINES]:
        if not line.startswith("#"):
            break
        if "finegauge:" in line and (found := re.match(_COMMENT, line[:10_000])):
            fields = parse_yaml(found.group(1), f"{name} (its comment)")
            if not isinstance(fields, dict):
                raise FileFormatError(
                    f"{name}: the comment finegauge: must hold fields, such as {{gpu: A40}}."
                )
            return fields
    return {}


def _model_alone(model: str, words: tuple[str, ...], alongside: Alongside, adapted: Run | None = None) -> Run:
    """Return the run that somebody means who names a model and nothing else: LoRA, 16 sequences a step.

    Lengths are Alpaca's, where nothing is said of the data. Checkpointing is not what inference has, and
    pre-training trains every weight. The rest are the defaults of every run: rank 16 on all linear layers,
    bf16 (fp16 where the GPU has none), seq_len 2,048, or as many positions as an older model has. Of
    `adapted` are the adapters.
    """
    said = parse(words, FIELDS)
    phase = str(FIELDS["phase"]("phase", said.get("phase", "sft")))
    assumed: dict[str, Any] = {"method": "full"}
    if phase not in (*INFERENCE, "pretrain"):
        stated = said.get("weights_dtype", "bf16")
        weights = FIELDS["weights_dtype"]("weights_dtype", stated)
        over = (method for method, formats in QUANTIZED_BY_METHOD.items() if weights in formats)
        assumed["method"] = next(over, "lora")
    if phase not in INFERENCE:
        assumed |= {"activation_checkpointing": "full", "gradient_accumulation_steps": 16}
    if phase == "sft" and not {"dataset", "tokenizer"} & {*said}:
        assumed |= {"dataset": USUAL_DATA}
    with suppress(FineGaugeError):  # a model that is not known is told below
        config = figures(model).config
        if config.get("model_type") in NOT_CHECKPOINTED and phase not in INFERENCE:
            assumed["activation_checkpointing"] = "none"
        writes = {"decoder_layers", "num_decoder_layers"} & {*config}
        if writes and "target_seq_len" not in said and phase == "sft":
            assumed |= {"target_seq_len": USUAL_ANSWER}
        positions = positions_of(config)
        if positions is not None and 1 < positions < USUAL_LENGTH and "seq_len" not in said:
            assumed |= {"seq_len": positions}
    origins = {"model": FROM_COMMAND_LINE, **dict.fromkeys(assumed, FROM_MODEL_ALONE)}
    said_of = {} if adapted is None else {k: v for k, v in adapted.origins.items() if v != FROM_DEFAULT}
    told = {name: getattr(adapted, name) for name in said_of if name.startswith(_OF_ADAPTERS)}
    origins |= dict.fromkeys(told, FROM_FILE)
    fields: dict[str, Any] = {"model": model, "phase": phase, **assumed, **told}
    warnings = list(adapted.warnings if adapted else ())
    model_names.take_copy(fields, origins, warnings)
    del fields["phase"]  # the command line's own
    return _run(fields, origins, words, alongside, warnings)


def _run(
    fields: dict[str, Any],
    origins: dict[str, str],
    words: tuple[str, ...],
    alongside: Alongside,
    warnings: list[str],
) -> Run:
    """Return the run of stated fields under what is given alongside and the command line's overrides."""
    if alongside != ALONE:
        origins = dict.fromkeys(fields, FROM_FILE) | origins
        alongside.lay_over(fields, origins, warnings)
    lay_over(fields, origins, parse(words, FIELDS))
    model_names.take_samples(fields, warnings)
    return Run.from_fields(fields, origins, tuple(warnings))


FILE_FIELDS = (  # which may name a file or a folder
    *("model", "gpu", "dataset", "tokenizer"),
    *("critic_model", "reward_model", "reference_model"),
)
NO_FILES = ("policy", "copy", "none")  # what a reference may be said to be


def beside(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return `fields` with files that lie beside the run file named by their path."""
    for key in FILE_FIELDS:
        named = fields.get(key)
        path = os.path.join(os.path.dirname(file), named) if isinstance(named, str) and named else ""
        if named not in NO_FILES and os.path.exists(path):
            fields[key] = path
    return fields


def _refuse_foreign(keys: Mapping[str, Any], name: str) -> None:
    """Raise for a file of a program that trains nothing, or whose files are not read."""
    foreign = next((row["reason"] for row in refused("file") if {*row["keys"]} <= {*keys}), None)
    if foreign is not None:
        hint = "" if ";" in foreign else "; write a run file, with model and method"
        raise FileFormatError(f"{name} is a file of {foreign}{hint}.")


def _refuse_others(keys: Mapping[str, Any], name: str) -> None:
    """Raise for a launcher's file, which describes no run by itself, and for keys that are none of a run."""
    for launcher, found in (
        ("accelerate", launcher_files.is_accelerate(keys)),
        ("DeepSpeed", launcher_files.is_deepspeed(keys)),
    ):
        if found:
            raise FileFormatError(
                f"{name} looks like a file of {launcher}, which states no model; name the training file "
                f"and add --{launcher.lower()} {shown(name)}."
            )
    if (task := keys.get("task")) and re.match(
        r"text-(class|reg)|token|image|vlm|seq2seq|tabular|extractive", str(task)
    ):
        raise FileFormatError(
            f"{name} is of the task {shown(str(task))}; only language models are supported."
        )
    nested = sum(isinstance(value, Mapping) for key, value in keys.items() if key not in FIELDS)
    if not (ours := {*keys} & {*FIELDS}) or 2 * len(ours) < len(keys) > 5 or nested > 1:
        listed = ", ".join([shown(str(key)) for key in keys][:6])
        raise FileFormatError(
            f"{name} has the keys of no framework that is read ({listed}); write a run file, with model and "
            "method."
        )
    for key in keys:
        if key not in FIELDS:
            raise UnknownKeyError(name, key, known=FIELDS)
