"""What a RUN argument is, and the words beside it: one resolver for every command that takes one.

What people have in hand, told apart in this order: a command after `--` (" -- accelerate launch train.py"),
standard input ("-"), a file or folder that is there, a page of the Hugging Face Hub, the path of a file that
is not there, a model's name. Nothing is opened but a folder, to see which of its files to read.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple

from finegauge.documents import MAX_BYTES, text_of
from finegauge.errors import (
    FieldError,
    FileFormatError,
    InputError,
    UnknownKeyError,
    UnknownNameError,
    did_you_mean,
    shown,
)
from finegauge.run.options import SPELLINGS
from finegauge.run.run import FIELDS, field_of_choice

COMMAND, STDIN, FILE, MODEL = "command", "stdin", "file", "model"
COMMAND_MARK = " -- "  # before a command; click takes no word with a space in front for an option
LAUNCHES = (".sh", ".bash", ".zsh", ".fish", ".slurm", ".sbatch", ".ipynb")  # that hold launch lines
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".py", *LAUNCHES)
MAX_FOLDER_FILES = 200
ARGUMENTS = "training_args.bin"  # those of transformers' Trainer, beside what it saves
_HUB_PAGE = (  # and its mirrors; ModelScope's models have the same names
    r"(?i)(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.(?:cn|ai))/)"
    r"(?:models/)?"
)
_UNSAID = frozenset(  # between a model, its settings and its GPU
    (
        *("on", "a", "an", "the", "my", "with", "using", "at", "in", "for"),
        *("context", "tokens", "gpu", "gpus", "training", "finetuning", "fine-tuning"),
    )
)
_MOST_WORDS = 16
_OF_LEARNING = r"lr|learning_rate|lr_scheduler\w*|warmup\w*|weight_decay|max_grad_norm|seed"
_OLLAMA_PAGE = r"(?i)(?:https?://)?(?:www\.)?ollama\.com/(?:library/)?"
_HUB_ID = r"(?a)[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9_][\w.-]{0,95})?"  # compiled where one is needed


class RunArgument(NamedTuple):
    """What one RUN argument stands for."""

    kind: str  # COMMAND | STDIN | FILE | MODEL
    value: str  # the command; ""; the path; the model's name, Hub id or folder

    @property
    def place(self) -> str:
        """Return the path of the file, or what messages call that which has none."""
        return {COMMAND: "the command", STDIN: "standard input"}.get(self.kind, self.value)


def resolve(argument: str, is_training: Callable[[str], bool]) -> RunArgument:
    """Return what `argument` stands for; of the files in a folder, `is_training` tells those to read.

    Raises: InputError in one sentence where it is neither there nor the name of a model.
    """
    if argument == "-":
        return RunArgument(STDIN, "")
    if argument.startswith(COMMAND_MARK):
        return RunArgument(COMMAND, argument.removeprefix(COMMAND_MARK))
    if os.path.isdir(argument):
        return _in_folder(argument, is_training)
    if os.path.exists(argument):
        return RunArgument(FILE, argument)
    argument = re.sub(_OLLAMA_PAGE, "", argument, count=1) if "ollama.com/" in argument else argument
    argument = argument.removesuffix(":latest")
    page = re.match(_HUB_PAGE, argument)
    if not page and not argument.startswith((".", "/")):
        argument = argument.rstrip("/") or argument
    if page is None and "/" in argument and (at := re.fullmatch(r"([^@\s]+)@[\w./-]{1,80}", argument)):
        argument = at[1]  # of a revision: Qwen/Qwen3-8B@main
    if "/" in argument and (at := re.fullmatch(r"(?i)(.*[-_.]gguf):[\w.-]{1,40}", argument)):
        argument = at[1]  # of one of its files, as llama.cpp and Ollama name it
    if not (page or _may_be_name(argument)):
        return _spoken(argument)
    name = _of_page(argument, argument[page.end() :]) if page else _known_model(argument)
    return RunArgument(MODEL, name)


def in_words(argument: str, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return RUN and its key=value words where people say both: llama 3.1 8b qlora on two a100.

    What stands without "=" is the rest of the model's name, words that are settings by themselves (qlora,
    zero3), and the GPU, with `on` before it or not. Arguments of which that cannot be said stay as they are.
    """
    whole = os.path.exists(argument) or argument.startswith(COMMAND_MARK)
    first, *rest = [argument] if whole else argument.split() or [argument]
    rest += words
    if argument == "-" or all("=" in word for word in rest):
        return argument, words
    from finegauge.catalogue.gpus import counted, known_gpu

    set_by = {word: _setting(word) for word in rest}
    settings = tuple(filter(None, map(set_by.__getitem__, rest)))
    spoken = [word for word in rest if not set_by[word]]
    names = [first, *(word for word in spoken if word.casefold() not in _UNSAID)]
    if len(names) > _MOST_WORDS:
        return argument, words
    models = [_model_of(names[: end + 1]) for end in range(len(names))]
    for end, model in enumerate(models, start=1):
        gpu, number = counted(" ".join(names[end:]))
        if model and end == len(names):
            return model, settings
        if model and known_gpu(gpu) is not None:
            return model, (f"gpu={gpu}", *((f"num_gpus={number}",) if number else ()), *settings)
    is_question = len(names) <= len(spoken) or not {*spoken}.isdisjoint(words)  # by an "on", or unquoted
    if is_question and any(models):
        end = max(at for at, model in enumerate(models) if model)
        return models[end], (*names[end + 1 :], *settings)  # of which the first is refused
    return argument, words


def parse(words: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Return {key: value} of the command line's `key=value` words, keys also spelled as trainers do.

    Raises: FieldError for a word without "=", UnknownKeyError for a key not in `known`.
    """
    overrides: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name not in known and (spelled := SPELLINGS.get(name.lower())):
            field, _, implied = spelled.partition("=")
            if not implied:
                name = field
            elif not equals or value.strip().lower() == "true":
                name, equals, value = field, "=", implied
        if not equals or not name:
            meant = _meant(name)
            raise FieldError(f"{shown(word)} is not of the form key=value, such as {meant}.")
        if name not in known and re.fullmatch(_OF_LEARNING, name):
            raise FieldError(f"{name} changes neither memory nor time; leave it out.")
        if name not in known:
            raise UnknownKeyError("command line", name, known=known)
        overrides |= _of_method(value) if name == "method" else {name: value.strip()}
    return overrides


def _of_method(value: str) -> dict[str, str]:
    """Return the fields that a method means: dora is an adapter, galore an optimizer, dpo a phase."""
    word = value.strip().lower().replace("-", "_")
    name = field_of_choice(word, ("method", "adapter", "optimizer", "phase"))
    if name in ("", "method"):
        return {"method": FIELDS["method"].aliases.get(word, value.strip())}
    method = {"adapter": "lora", "optimizer": "full"}.get(name)
    return {name: word} | ({"method": method} if method else {})


def _meant(word: str) -> str:
    """Return how a value without its field is written: `attention=flash`, `packing=true`."""
    field, flag = field_of_choice(word.lower(), FIELDS), word in FIELDS and FIELDS[word].kind == "flag"
    return f"{word}=true" if flag else f"{field}={word}" if field else "micro_batch_size=4"


def _setting(word: str) -> str:
    """Return the setting that a word is by itself (qlora, zero3, dpo, 4k), as a word of the command line."""
    plain = word.removeprefix("--").replace("-", "_").casefold()
    if "=" in (spelled := SPELLINGS.get(plain, word)):
        return spelled
    if field_of_choice(plain, ("phase", "adapter", "optimizer")):
        return f"method={plain}"
    return f"seq_len={word}" if re.fullmatch(r"\d{1,4}[kK]", word) else ""


def _model_of(words: Sequence[str]) -> str:
    """Return the model, or the file, that these words name; "" where they name none of the catalogue."""
    from finegauge.catalogue.models import named_like

    named = "-".join(words)
    if len(words) == 1 and ("/" in named or os.path.exists(named) or named.startswith(COMMAND_MARK)):
        return named
    return "" if "/" in named else named_like(named) or ""


def content(asked: RunArgument) -> tuple[str, str]:
    """Return the text of a RUN that is no file on disk, and the suffix that such a file has."""
    if asked.kind == COMMAND:
        return asked.value, ".sh"
    text = standard_input()
    return text, suffix_of(text)


def suffix_of(text: str) -> str:
    """Return the suffix of a file that holds `text`: notebook, Python, launch line, TOML, YAML or JSON."""
    first = text.lstrip()[:200]
    if first.startswith("#!") and "sh" in first.partition("\n")[0]:
        return ".sh"
    if first.startswith("{") and '"cells"' in text:
        return ".ipynb"
    if re.search(r"^(?:import \w|from [\w.]+ import )", text, re.MULTILINE):
        return ".py"
    if re.match(r"(?:#.*\s+)*\[[\w.]+\]\s*$", text.lstrip(), re.MULTILINE):
        return ".toml"
    has_keys = first.startswith(("{", "[")) or re.search(
        r"^['\"]?[\w./-]+['\"]?\s*:(?:\s|$)", text, re.MULTILINE
    )
    has_options = re.search(r"^[^#\n]*\S\s+--?[A-Za-z]", text, re.MULTILINE)
    return ".sh" if has_options and not has_keys else ".yaml"


@cache
def standard_input() -> str:
    """Return what is piped in, read once.

    Raises: FileFormatError for nothing, for too much, and for what is no text.
    """
    import sys

    if sys.stdin is None or sys.stdin.isatty():
        raise FileFormatError("'-' reads a training file from standard input, and nothing is piped in.")
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileFormatError(f"Standard input cannot be read: {error.strerror or error}.") from None
    if len(data) > MAX_BYTES:
        raise FileFormatError(
            f"Standard input is too long: FineGauge reads at most {MAX_BYTES / 1e6:.0f} MB."
        )
    return text_of(data, "standard input")


def _in_folder(folder: str, is_training: Callable[[str], bool]) -> RunArgument:
    """Return what a folder stands for: a training that was, adapters, a model, or its only training file."""
    for name in (ARGUMENTS, "adapter_config.json"):
        if os.path.isfile(found_in := os.path.join(folder, name)):
            return RunArgument(FILE, found_in)
    if os.path.isfile(os.path.join(folder, "config.json")):
        return RunArgument(MODEL, folder)
    inside = os.listdir(folder)[:MAX_FOLDER_FILES]
    names = sorted(name for name in inside if name.endswith(SUFFIXES))
    paths = [os.path.join(folder, name) for name in names if not name.startswith(".")]
    found = [path for path in paths if os.path.isfile(path) and is_training(path)]
    if len(found) == 1:
        return RunArgument(FILE, found[0])
    if found:
        names = [os.path.basename(path) for path in found]
        listed = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
        raise InputError(
            f"The folder {shown(folder)} holds {len(names)} training files: name one of {listed}."
        )
    if saved := [name for name in inside if re.fullmatch(r"checkpoint-\d{1,9}", name)]:
        newest = max(saved, key=lambda name: int(name.rpartition("-")[2]))
        return _in_folder(os.path.join(folder, newest), is_training)
    raise FileFormatError(
        f"The folder {shown(folder)} holds no config.json, no adapter_config.json and no training file; "
        f"name a run file or a model's folder."
    )


def _of_page(page: str, path: str) -> str:
    parts = [part for part in re.split(r"[?#]", path)[0].split("/") if part]
    if parts[:1] in (["datasets"], ["spaces"], ["collections"], ["papers"], ["docs"]):
        raise InputError(f"{shown(page)} is no model's page; name a model, such as hf.co/Qwen/Qwen3-8B.")
    name = "/".join(parts[:2]).partition("@")[0]
    if not re.fullmatch(_HUB_ID, name):
        raise InputError(f"{shown(page)} names no model; write it as hf.co/Qwen/Qwen3-8B.")
    return name


def _spoken(argument: str) -> RunArgument:
    """Return a model as people say it (llama3.1:8b, "qwen3 8b"), where the catalogue has it; else a path."""
    dashed = re.sub(r"[:\s]+", "-", argument.strip())
    try:
        if dashed != argument and "/" not in argument and _may_be_name(dashed):
            return RunArgument(MODEL, _known_model(dashed))
    except InputError:
        if re.search(r"\d", argument) and not re.search(r"[\\]|\.[a-z]{2,8}$", argument):
            raise
    return RunArgument(FILE, argument)


def _may_be_name(argument: str) -> bool:
    """Return whether what nothing on disk is called may be a model's name, and no path that is mistyped."""
    starts = argument.startswith(("./", "../")) or argument.casefold().endswith(SUFFIXES)
    return not starts and re.fullmatch(_HUB_ID, argument) is not None


def _known_model(name: str) -> str:
    """Return `name` where it may be a model's: one of the catalogue, or owner/name."""
    if "/" in name or name.casefold().endswith(".gguf"):
        return name
    from finegauge.catalogue.gpus import known_gpu
    from finegauge.catalogue.models import called, model, models, named_like
    from finegauge.catalogue.naming import base_of, sizes_of
    from finegauge.formats.model_names import copied

    try:
        return called(model(name), name)
    except UnknownNameError:
        if (like := named_like(name)) is not None:
            return like
        if ((copy := copied(name)) is not None and copy.base) or base_of(name):
            return name
        if known_gpu(name) is not None:
            raise InputError(
                f"{shown(name)} is a GPU; name a model before it, such as Qwen/Qwen3-8B --gpu {name}."
            ) from None
        if len(sizes := sizes_of(name)) > 1:
            raise InputError(
                f"{shown(name)} comes in several sizes ({', '.join(sizes)}): name one, as {name}:{sizes[0]}."
            ) from None
        names = [key for row in models().values() for key in (*row.aliases, row.name)]
        near = did_you_mean(name, [*os.listdir()[:1000], *names])
    raise InputError(
        f"No file, folder or model named {shown(name)}.{near} List models with 'finegauge models', or name "
        f"one of the Hugging Face Hub with its owner: Qwen/Qwen3-8B."
    )
