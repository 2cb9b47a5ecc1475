"""Launch lines: a command, a shell script or a notebook that starts a training, read and never run.

    environment launcher its-options program [config file] --key value key=value

The program says whose keys the options are: they are those of the framework's file, and lie over it. What
the launcher is told (processes, nodes, accelerate's and DeepSpeed's own options) describes the machine.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from finegauge.catalogue.tables import refusal
from finegauge.documents import parse_toml, parse_yaml
from finegauge.errors import FileFormatError, shown
from finegauge.formats import programs, scripts
from finegauge.formats.containers import Task, of_build, tasks_of_python, unread
from finegauge.formats.expansions import UNSET
from finegauge.formats.key_table import RUN_FILE, recognise
from finegauge.formats.launchers import (
    CONFIGS,
    LAUNCHERS,
    MAX_FOLLOWED,
    OF_FILES,
    OF_LAUNCHERS,
    SCRIPT_ENDINGS,
    SHELL_ENDINGS,
    Place,
    batch_options,
    known_card,
    machine,
    of_dotenv,
    of_engine,
    of_env_file,
    of_slurm,
    options_of,
    until_pipe,
    whole_of,
)
from finegauge.formats.programs import LLAMA_FACTORY, MODULES, SCRIPTS, TOOLS, Program
from finegauge.formats.script_text import cells
from finegauge.formats.sheet import BLOCK, laid_over, mapping_in
from finegauge.formats.shell import Command, Shell
from finegauge.records import NamedTuple


class Launch(NamedTuple):
    """A training as a launch line states it."""

    keys: Mapping[str, Any]
    reader: str  # the module of formats that reads the keys; "" where they have to tell
    warnings: tuple[str, ...]
    file: str  # beside which the files lie that the keys name
    accelerate: Mapping[str, Any] | None = None  # accelerate's options, as keys of its file


class _Line(NamedTuple):
    """A command of a script, divided at the program that it starts."""

    named: str  # a program, a script or a module
    launcher: list[str]  # what stands before it
    rest: list[str]
    command: Command
    place: Place
    batch: Mapping[str, Any]  # options of Slurm


class _DoubtfulError(FileFormatError):
    """Of a script that is not there, whose options are nobody's: it may prepare a training."""


class _PreparesError(_DoubtfulError):
    """Of a script that by its name makes data."""


class _TrainsNothingError(_PreparesError):
    """Of a command of a known program that prepares or follows a training."""


# Whose keys a script that is not there may take.
_GENERIC = ("trl", "trl:TRAINER", "llamafactory", "deepspeed_chat", "nemo_rl", "verl", "nemo_automodel",
            "openrlhf", "megatron_lm", "verl:SLIME")  # fmt: skip
_CONFIG_OPTIONS = ("config", "config_file", "job.config_file", "config_path", "c", "training_config")
# Commands that handle files and words: what they name is started by others.
_SILENT = re.compile(
    r"\[\[?|test|echo|printf|pip3?|mkdir|cd|ls|wget|curl|git|apt-get|cp|mv|rm|cat|sed|awk|grep|chmod|source|\."
    r"|export|touch|tar|head|eval"
)
_TRAINS_NOTHING = re.compile(
    r"(run_)?(export|merge|convert|infer|eval|predict|generate|serve)\w*\.py$|axolotl\.cli\.(?!train)\w+$"
)
_TRAINS = re.compile(r"train|tun|sft|dpo|grpo|lora")
_ARRAY = re.compile(r"(?ms)=\(\s*$.*?^\s*\)")  # whose comments end with their lines
_CUT_SHORT = re.compile(r"\\\n[ \t]*#[^\n]*\n[ \t]*-|\\ +#")
_SERVERS = "serving_engines"
_IMAGES = ("vllm-openai", "text-generation-inference")  # containers that are called as their programs are
_MAX_LAUNCHER = 60  # words before a program's name
_OF_FILE = re.compile(r"\$\{[a-z]\w*(\.\w+)+\}")  # what a file of OmegaConf takes of its own


def of_shell(
    text: str, file: str, name: str, arguments: Sequence[str] = (), *, trusted: bool = False
) -> Launch:
    """Return the training that the first command of a script starts; `trusted`: its user names the files.

    Raises: FileFormatError where none does.
    """
    return _of_shell(text, Place(file, name, trusted=trusted), arguments)


def of_notebook(text: str, file: str, name: str) -> Launch:
    """Return the training of a notebook's cells: of their Python, or of a line for the shell.

    Raises: FileFormatError where there is none.
    """
    python, shell, files = cells(text, name)
    named = re.findall(r'"(?:gpuType|accelerator)":\s*"([\w-]{2,40})"', text)[:4]  # Colab's and Kaggle's
    card = next(filter(None, map(known_card, named)), {})
    try:
        script = scripts.load_python(python, name, files=Place(file, name, files).beside)
        block = {**card, **mapping_in(script.keys, BLOCK)}
        keys = {**script.keys, "finegauge": block} if block else script.keys
        return Launch(keys, script.reader, script.warnings, file)
    except FileFormatError as error:
        reason = error
    jobs = [task._replace(files=files) for task in tasks_of_python(python)]
    for tasks in ([Task(shell, files=files)] if shell else [], jobs):
        try:
            return of_tasks(tasks, file, name)
        except FileFormatError as error:
            more = says_more(error) if tasks is jobs else type(error) is FileFormatError
            reason = error if tasks and more else reason
    raise reason


def of_tasks(tasks: Sequence[Task], file: str, name: str, depth: int = 0) -> Launch:
    """Return the training of the first of the tasks that starts one, on the machine that it gets.

    Raises: FileFormatError where none does.
    """
    refused, trainings = list[FileFormatError](), list[Launch]()
    for task in tasks:
        place = Place(file, name, task.files, depth=depth)
        place.mounts |= task.mounts
        files = [of_env_file(held[0]) for named in task.env_files if (held := place.text(named))]
        told = {k: v for one in (*files, task.variables) for k, v in one.items()}
        words = [f"export {k}={shlex.quote(v)}" for k, v in told.items() if re.fullmatch(r"\w+", k)]
        try:
            found = _of_shell("\n".join([*words, task.script]), place, ())
        except FileFormatError as error:
            refused.append(error)
            continue
        machines: dict[str, Any] = {"num_gpus": task.nodes * task.each} if task.nodes * task.each else {}
        machines |= {"num_nodes": task.nodes} if machines and task.nodes > 1 else {}
        machines |= {"gpu": task.card} if task.card else {}
        machines |= mapping_in(found.keys, BLOCK)
        trainings.append(found._replace(keys={**found.keys, BLOCK: machines} if machines else found.keys))
    if not trainings:
        raise min(refused, key=_doubts, default=unread(name))
    return _first(trainings, name, "")


def _of_shell(text: str, place: Place, arguments: Sequence[str], given: Mapping[str, str] = {}) -> Launch:
    batch = batch_options(text)
    shell = Shell(text, place.name, arguments)
    shell.files, shell.read, shell.calls = place.files, place.text, place.calls
    shell.variables |= of_slurm(batch) | {name: given[name] for name in given if name.isidentifier()}
    refused: list[FileFormatError] = []
    trainings, served = list[Launch](), list[Launch]()  # a server may write a training's answers
    for command in shell.commands():
        try:
            found = _of_command(command, place, batch)
            if found is None and command.document and re.search(r"(^|/)python[\d.]*$", command.words[0]):
                found = _of_document(command.document, place)
        except FileFormatError as error:
            refused.append(error)
            continue
        if found is not None:
            (served if found.reader.startswith(_SERVERS) else trainings).append(found)
    if trainings:
        first = _first(trainings, place.name, text)
        return first._replace(keys=programs.with_server(first.keys, served[0].keys)) if served else first
    if served and all(map(_doubts, refused)):
        return served[0]
    none = _TrainsNothingError(
        f"{place.name} starts no training that is known: no line such as 'swift sft --model …' or "
        "'python train.py --model_name_or_path …'."
    )
    raise min(refused, key=_doubts, default=none)


def _first(trainings: Sequence[Launch], name: str, text: str) -> Launch:
    """Return the first training of a script, which says how many others it starts, and where it is cut."""
    different = list[Mapping[str, Any]]()
    for one in trainings:
        different += [one.keys] if one.keys not in different else []
    said = list[str]()
    if _CUT_SHORT.search(_ARRAY.sub("", text)):
        said.append(f"{name}: a comment within a command ends it: what stands behind is not passed.")
    if re.search(r"\\[ \t]+\r?\n[ \t]*-", text):
        said.append(f"{name}: a space behind a backslash ends a command: what follows is read all the same.")
    if len(different) > 1:
        said.append(
            f"{name} starts {len(different)} trainings: the first is read; name another by its "
            "command, after --."
        )
    return trainings[0]._replace(warnings=(*trainings[0].warnings, *said))


def _doubts(error: FileFormatError) -> int:
    """Return how little a refusal says of the training that is looked for."""
    kinds = (_DoubtfulError, _PreparesError, _TrainsNothingError)
    return sum(isinstance(error, kind) for kind in kinds)


def says_more(refusal: FileFormatError) -> bool:
    """Return whether a refusal is of a training, rather than of commands that start none."""
    return not isinstance(refusal, _TrainsNothingError)


def _of_document(text: str, place: Place) -> Launch:
    """Return the training of Python that a here-document holds."""
    try:
        script = scripts.load_python(text, place.name, files=place.beside)
    except FileFormatError as error:  # it may well prepare one
        raise _TrainsNothingError(str(error)) from None
    return Launch(script.keys, script.reader, script.warnings, place.file)


def _of_command(command: Command, place: Place, batch: Mapping[str, Any] = {}) -> Launch | None:
    """Return the training that one command starts; None where it starts none."""
    words = until_pipe(command.words)
    if not words or words[0][:1] == "-" or _SILENT.fullmatch(words[0].rpartition("/")[2]):
        return None
    if build := place.build(words[0]):
        tasks = of_build(build[0], os.path.basename(build[1]), words[1:])
        return of_tasks(tasks, build[1], place.name, place.depth + 1)
    mounts, told = of_engine(words, place.text)
    if mounts or told:
        place.mounts |= mounts
        command = command._replace(environment={**command.environment, **told})
    for at, word in enumerate(words):
        tool = MODULES.get(word, word.rpartition("/")[2])
        tool = next((image for image in _IMAGES if tool.startswith(f"{image}:")), tool)
        spellings = (word, tool, " ".join(words[max(0, at - 1) : at + 1]))
        reasons = (refusal("command", one[:200]) for one in spellings if at < _MAX_LAUNCHER)
        why = next(filter(None, reasons), "")
        if why and (at == 0 or not words[at - 1].startswith("--")):
            raise FileFormatError(
                f"{place.name}: {why}; state the run in FineGauge's own fields, such as model."
            )
        following, by_name = "".join(words[at + 1 : at + 2]), TOOLS.get(tool, {})
        named = word in MODULES or not (at and re.match(r"-[^=]*.(?<!^--)$", words[at - 1]))
        if tool in TOOLS and (named or (following and following in by_name)):
            program = by_name.get(following) or by_name.get("")
            if program is None:
                raise _TrainsNothingError(
                    f"{place.name}: {shown(f'{tool} {following}')} trains nothing that is known; "
                    f"use {tool} {' or '.join(filter(None, by_name))}."
                )
            rest = words[at + 1 + (following in by_name) :]
            return _read(program, _Line(tool, words[:at], rest, command, place, batch))
        is_module = at > 0 and words[at - 1] in ("-m", "--module")
        if (is_module and word in LAUNCHERS) or (
            word.endswith(SCRIPT_ENDINGS)
            and _hands_on(words[at + 1 :], wraps=word.endswith(SHELL_ENDINGS) and place.text(word) is None)
        ):
            continue
        if is_module or word.endswith(SCRIPT_ENDINGS) or word.startswith("--module="):
            started = word.removeprefix("--module=")
            line = _Line(started, words[:at], words[at + 1 :], command, place, batch)
            return _started(line, module=is_module)
    return None


def _hands_on(rest: Sequence[str], *, wraps: bool) -> bool:
    """Return whether a script only starts what stands behind its options: submit.py --gpus 8 -- COMMAND."""
    behind = rest[rest.index("--") + 1 :] if "--" in rest[:-1] else ()
    if wraps and rest and rest[0].endswith(".py"):
        return True
    return any(word in ("accelerate", "torchrun", "deepspeed") or word in TOOLS for word in behind[:3]) or (
        any(word.endswith(SCRIPT_ENDINGS) for word in behind[:4])
    )


def _started(line: _Line, *, module: bool) -> Launch | None:
    """Return the training of a script or a module that a command starts."""
    named, launcher, rest, place = line.named, line.launcher, line.rest, line.place
    if _TRAINS_NOTHING.match(os.path.basename(named)) or (
        "--do_predict" in rest and "--do_train" not in rest
    ):
        raise _TrainsNothingError(
            f"{place.name} starts {shown(named)}, which by its name or options trains nothing."
        )
    for pattern, program in SCRIPTS:
        if found := re.fullmatch(pattern, named[:200]):
            if not module and not _is_of(program, named, rest, place):
                break
            kind = found.groupdict().get("kind")
            known = program._replace(keys={**program.keys, "trainer": kind}) if kind else program
            return _read(known, line)
    text = place.text(named.replace(".", "/") + ".py" if module else named)
    if named.endswith(SHELL_ENDINGS):
        if text is None or place.depth >= MAX_FOLLOWED:
            if text is None and _TRAINS.search(os.path.basename(named)):
                raise _DoubtfulError(
                    f"{place.name} starts {shown(named)}, which is not here to be read; add it."
                )
            return None
        inside = Place(text[1], os.path.basename(named), place.files, trusted=place.trusted)
        inside.depth, inside.calls = place.depth + 1, place.calls
        return _of_shell(text[0], inside, rest, line.command.environment)
    starts = bool(launcher) and (
        any(word.rpartition("/")[2] in ("accelerate", "torchrun", "deepspeed", "srun") for word in launcher)
        or any(word.startswith("-") or "=" in word or word.endswith(CONFIGS) for word in rest)
    )
    if text is None and not starts:
        if _TRAINS.search(os.path.basename(named)) and not module:
            raise _DoubtfulError(
                f"{place.name} starts {os.path.basename(named)}, which is not here to be read and has no "
                "options; add the script, or write a run file."
            )
        return None
    composed = text is None and launcher[:1] == ["composer"]
    return _read(Program("llm_foundry", hydra=True) if composed else Program(), line, text)


def _is_of(program: Program, named: str, rest: Sequence[str], place: Place) -> bool:
    """Return whether a script that is called as a framework's is its own, by its text or its options.

    Those are src/train.py, as LLaMA-Factory's is called, and finetuning.py, as llama-recipes' is.
    """
    if program.reader == "llama_recipes":
        return not ({"model_name_or_path", "model_path", "model_id", "batch_size"} & {*options_of(rest)[0]})
    if program is not LLAMA_FACTORY:
        return True
    if (held := place.text(named)) and not re.search("run_exp|llamafactory|llmtuner", held[0]):
        return False
    if not re.match(r"(\.\./)*src/", named) or any(word.endswith(CONFIGS) for word in rest[:1]):
        return True
    return programs.is_llama_factory(options_of(rest)[0])


def _places_workers(program: Program, named: str) -> bool:
    """Return whether a program starts its workers by Ray, on as many GPUs as its own keys tell."""
    driver = re.search(r"\b(main_\w+|\w+_main|train_ppo_ray)\b", named)
    return program.reader == "nemo_rl" or (program.reader in ("verl", "openrlhf") and driver is not None)


def _read(program: Program, line: _Line, script: tuple[str, str] | None = None) -> Launch:
    """Return what a program's command line says: its file, its options over it, and its launcher's."""
    named, launcher, rest, command, place, batch = line
    if not program.reader and any(word.startswith("--job.config_file") for word in rest):
        program, script = Program("torchtitan"), None  # whose train.py it is
    arrays = [word for word in rest if re.fullmatch(r"\$\{\w+\[[@*]\]\}", word)]  # that nobody sets
    rest, settles = [word for word in rest if word not in arrays], programs.own_settings(script, place.beside)
    options, loose = options_of(rest, hydra=program.hydra or settles == "hydra" or _looks_like_hydra(rest))
    if str(options.get("do_train", "")).lower() in ("false", "0"):
        raise _TrainsNothingError(
            f"{place.name} starts {shown(named)} with do_train false, which trains nothing."
        )
    serves, warnings = program.reader.startswith(_SERVERS), list[str]()
    unknown = [word for before, word in pairwise(["", *rest])
               if word[:1] == "$" and (before[:1] != "-" or "=" in before)] + arrays  # fmt: skip
    if "config_name" in options and {"output_dir", "tokenizer_name"} & {*options}:  # no file of Hydra's
        options.setdefault("model_name_or_path", options.pop("config_name"))
    keys, file = ({}, "") if settles else _config(options, loose, command, place, warnings)
    takes = (keys, {"accelerate_config"}), (options, () if serves else OF_LAUNCHERS)  # of TRL's files, too
    own = {key: held.pop(key) for held, names in takes for key in names if key in held}
    options, variables = _of_its_own(program, line, options, keys, warnings)
    counted = {"all_gpus": program.all_gpus, "placed": _places_workers(program, named)}
    block, accelerate = machine(launcher, own, variables, batch, place, warnings, **counted)
    block = {key: value for key, value in block.items() if not serves or key == "gpu"}
    seen = {**of_dotenv(script[0] if script else "", place), **variables}
    seen |= {"WORLD_SIZE": str(block["num_gpus"])} if "num_gpus" in block else {}
    options, keys = _as_keys(named, program, options, loose, keys)
    reader, whose = program.reader, "its framework's"
    if script is None and program == Program() and not keys:
        options, whose = programs.of_copies(options, whole_of(seen.get("WORLD_SIZE")) or 1)
    if script is not None:
        parsed = "HfArgumentParser(" in script[0] or "TrlParser(" in script[0]
        options = programs.in_full(options, script[0]) if parsed else options
        loaded = _of_script(script, named, {**keys, **options, "argv": rest}, reader, seen, place)
        options = {key: value for key, value in options.items() if key not in loaded.own} | loaded.keys
        reader, warnings = loaded.reader, [*warnings, *loaded.warnings]
    told = laid_over({**program.keys, **keys}, options)
    unset = [key for key, value in {**keys, **options}.items()
             if isinstance(value, str | list) and UNSET.search(_OF_FILE.sub("", str(value)))]  # fmt: skip
    warnings += [
        f"{place.name}: {key} holds a variable that the script does not set; state it as an override."
        for key in [key for key in unset if not OF_FILES.search(key)][:10]
    ]
    warnings += [f"{place.name}: what {shown(one)} adds to the command is not known." for one in unknown[:5]]
    keys, options = (place.filled(held, unset) for held in (keys, options))
    keys = laid_over({**program.keys, **keys}, options)
    if not reader:
        reader = programs.reader_of(told, named) or program.usual
        if script is None and program == Program():
            missing = f"{os.path.basename(named)}, which is not here to be read"
            if reader not in _GENERIC and not file:
                raise _refusal(named, launcher)(
                    f"{place.name} starts {missing}, and whose options are those of no framework that is "
                    "known; add the script, or write a run file."
                )
            keys, reader = _with_trainer(keys, reader, os.path.basename(named).lower())
            keys = programs.in_full(keys) if reader in ("trl", "trl:TRAINER") else keys
            reader = "trl:SCRIPT" if reader == "trl" and not file else reader
            warnings.append(f"{place.name} starts {missing}: what it does unasked is {whose}.")
    if block:
        keys = {**keys, BLOCK: {**block, **mapping_in(keys, BLOCK)}}
    return Launch(keys, reader, tuple(warnings), file or place.file, accelerate)


def _of_its_own(
    program: Program, line: _Line, options: dict[str, Any], keys: Mapping[str, Any], warnings: list[str]
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return options and environment of the programs that take some by ways of their own."""
    named, variables = line.named, line.command.environment
    if program.reader == "torchtitan":
        from finegauge.formats.torchtitan import of_registry

        if "NGPU" in variables or named.endswith("run_train.sh"):
            variables = {**variables, "NPROC_PER_NODE": variables.get("NGPU", "8")}
        options, warning = (options, "") if keys else of_registry(options, variables, line.place.text)
        warnings += [warning] if warning else []
    if program.usual == "llamafactory" and re.fullmatch("(?i)1|true|yes|y", variables.get("USE_MCA", "")):
        options = {"use_mca": True, **options}
    if re.fullmatch("(?i)1|true", variables.get("ACCELERATE_USE_FSDP", "")) and "fsdp" not in {
        *options,
        *keys,
    }:
        options = {"fsdp": "full_shard auto_wrap", **options}
    if program.reader.startswith("ms_swift"):
        pixels = {f"{end}_pixels": variables[f"{end.upper()}_PIXELS"] for end in ("min", "max")
                  if f"{end.upper()}_PIXELS" in variables}  # fmt: skip
        options = {**pixels, **options}
    said = {*options, *keys}
    if re.search(r"(^|/)run_(clm|mlm|plm|fim)\.py$", named) and "do_train" not in said:
        warnings.append(
            f"{os.path.basename(named)} is started without --do_train, without which it trains nothing."
        )
    return options, variables


def _refusal(named: str, launcher: Sequence[str]) -> type[FileFormatError]:
    """Return how sure it is that a script trains, whose options are nobody's."""
    if re.search(r"accelerate|torchrun|deepspeed|torch\.distributed", " ".join(launcher)):
        return FileFormatError
    prepares = re.match(
        r"(create|prepare|preprocess|gen|make|build|download|process|tokeni)", os.path.basename(named)
    )
    return _PreparesError if prepares else _DoubtfulError


def _with_trainer(keys: dict[str, Any], reader: str, script: str) -> tuple[dict[str, Any], str]:
    """Return the keys with what a script that is not there trains, by its name, and their reader."""
    from finegauge.formats.trl import named_trainer

    if reader == "verl:SLIME":
        return {**keys, "asynchronous": "async" in script}, reader
    named = re.fullmatch(r"train_(\w+)\.py", script) if reader == "openrlhf" else None
    other = re.match(r"(?:run_|train_)?(reward|nash_md|xpo|gkd|online_dpo|rloo|ppo)(?=[_.])", script)
    learns = named[1] if named else other[1] if other else named_trainer(script)
    if "trainer" in keys or not learns or (learns == "sft" and reader != "openrlhf"):
        return keys, reader
    if reader in ("trl", "trl:TRAINER", "openrlhf"):
        return {**keys, "trainer": learns}, reader.partition(":")[0]
    return keys, reader


def _as_keys(
    named: str, program: Program, options: dict[str, Any], loose: list[str], keys: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options and file of a program whose options have other names than its file's, under these."""
    if program.reader == "torchtune":
        keys = _of_torchtune(options, re.findall(r"(\w+)\.py$", named) or loose, keys)
    elif program.reader == "nemo:NEMO":
        from finegauge.formats.nemo import recipe_of_command

        keys = {**keys, **recipe_of_command(named, options, loose)}
    elif program.renamed is not None:
        options = program.renamed(options)
    elif named == "autotrain":
        from finegauge.formats.autotrain import of_options

        options = of_options(options)
    if program.model and loose:
        options = {program.model: loose[0], **options}
    return programs.in_full(options) if program.reader in ("trl", "trl:TRAINER") else options, keys


def _of_script(
    script: tuple[str, str],
    named: str,
    options: Mapping[str, Any],
    reader: str,
    environment: Mapping[str, str],
    place: Place,
) -> scripts.Script:
    """Return what a script on disk says under its options; where it says nothing, the options alone."""
    try:
        near = Place(script[1], place.name, place.files, trusted=place.trusted, mounts=place.mounts)
        return scripts.load_python(script[0], os.path.basename(named), options, environment, near.beside)
    except FileFormatError:
        found = reader or recognise(options)
        if found not in _GENERIC:
            raise
        return scripts.Script(dict(options), found)


def _config(
    options: dict[str, Any], loose: list[str], command: Command, place: Place, warnings: list[str]
) -> tuple[dict[str, Any], str]:
    """Return the keys of the file that the command line names, and its path; take it off the options."""
    named = next((options.pop(key) for key in _CONFIG_OPTIONS if isinstance(options.get(key), str)), None)
    folder = options.pop("config_path", "") if named is not None else ""
    within = options.pop("config_name", None)
    if within is not None:
        named = os.path.join(str(named or folder or ""), str(within))
        named = named if named.endswith(CONFIGS) else f"{named}.yaml"
        if "megatron" in named:  # verl's ppo_megatron_trainer
            options.setdefault("actor_rollout_ref.actor.strategy", "megatron")
    if named is None:
        named = next((word for word in loose if word.endswith(CONFIGS)), None)
    if named is None and command.environment.get("CONFIG_FILE"):
        named = command.environment["CONFIG_FILE"]
    if named is None:  # an option of any name
        named = next((options.pop(key) for key, value in options.items() if _is_training(value, place)), None)
    if named is None:
        return {}, ""
    found = place.text(str(named))
    if found is None:
        if within is not None:
            warnings.append(f"{shown(str(named))} is not here and is not read: only its overrides are.")
        else:
            options |= _known_to_programs(str(named), place)
        return {}, ""
    text, path = found
    name = os.path.basename(path)
    keys = parse_toml(text, name) if name.endswith(".toml") else parse_yaml(text, name)
    if not isinstance(keys, dict):
        raise FileFormatError(f"{name} holds no keys with values.")
    return keys, path


def _is_training(value: Any, place: Place) -> bool:
    """Return whether an option's value names a file that holds a training framework's keys."""
    found = (
        place.text(value) if isinstance(value, str) and value.endswith((".yaml", ".yml", ".json")) else None
    )
    keys = parse_yaml(found[0], value) if found else None
    return isinstance(keys, dict) and recognise(keys) not in ("", RUN_FILE)


def _known_to_programs(named: str, place: Place) -> dict[str, str]:
    """Return the options of a configuration that is not here: a program's own, or torchtitan's."""
    if titan := re.search(r"(?:^|/)train_configs/(\w+?)_(\d[\w.]*)\.toml$", named[-200:]):
        return {"module": titan[1], "config": f"{titan[1]}_{titan[2].replace('.', '_')}"}
    if not named.endswith(CONFIGS):
        return {"config": named}
    why = "which is not here; the run is in it."
    if UNSET.search(named):
        why = "by variables that it does not set; name that file, or the whole call after --."
    raise FileFormatError(f"{place.name} names the file {shown(named)}, {why}")


def _of_torchtune(options: dict[str, Any], loose: list[str], keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a recipe, of a file or of those that torchtune ships, with the recipe's name."""
    from finegauge.formats.torchtune import shipped

    recipe = next((word for word in loose if not word.startswith("-")), "")
    if re.search(r"eval|generat|quantize$", recipe):
        raise _TrainsNothingError(f"torchtune's recipe {shown(recipe)} trains nothing.")
    if "distillation" in recipe:
        raise FileFormatError(
            f"torchtune's recipe {shown(recipe)} distils a teacher, which is not supported."
        )
    config = options.pop("config", None)
    for part in {"model", "optimizer", "dataset", "loss"} & {*options}:  # optimizer=torch.optim.SGD
        options[f"{part}._component_"] = options.pop(part)
    if not keys:
        keys = shipped(recipe, str(config or ""))
    return {"recipe": recipe, **keys}


def _looks_like_hydra(words: Sequence[str]) -> bool:
    told = [word for word in words if re.match(r"\+{0,2}[a-z_]\w*(\.\w+)+=", word)]
    behind_file = any(before.endswith(CONFIGS) and word in told for before, word in pairwise(words))
    return len(told) > 1 or behind_file or any(word.startswith(("policy.", "+policy.")) for word in told)
