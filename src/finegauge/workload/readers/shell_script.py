"""Shell lines that start a training: their options as keys. Nothing is run or expanded but plain variables.

Understood: `swift sft --key value …`, `trl sft …`, and `python script.py --key value …` of transformers'
argument parser, alone or after `accelerate launch`, `torchrun`, `deepspeed`, whose options tell the GPUs.
"""

import re
import shlex
from typing import Any

from finegauge.errors import FileFormatError
from finegauge.workload.readers.loaded import Loaded

_SUBCOMMANDS: dict[str, dict[str, dict[str, str]]] = {
    "swift": {"sft": {}, "pt": {"tuner_type": "full"}, "rlhf": {}},
    "trl": {"sft": {}, "dpo": {}, "grpo": {}, "reward": {}},
}
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w{0,63})=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w{1,64})\}|(\w{1,64}))")
_GPUS_PER_NODE = ("nproc_per_node", "num_gpus")
_MAX_WORDS = 5_000


def load(text: str, name: str) -> Loaded:
    """Return the options of the first line of `text` that starts a training.

    Raises: FileFormatError where none does.
    """
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").split("\n"):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            raise FileFormatError(f"{name} has a quote that is never closed.") from None
        if len(words) > _MAX_WORDS:
            raise FileFormatError(f"{name}: a line of more than {_MAX_WORDS:,} words is refused.")
        words = [_expanded(word, variables) for word in words]
        while words and (words[0] == "export" or _ASSIGNMENT.fullmatch(words[0])):
            found = _ASSIGNMENT.fullmatch(words.pop(0))
            if found:
                variables[found[1]] = found[2][:4096]
        start = _start_of_options(words)
        if start:
            return _loaded(words, start, variables, name)
    raise FileFormatError(
        f"{name} starts no training that is known: no line such as 'swift sft --model …' or "
        "'python train.py --model_name_or_path …'."
    )


def _expanded(word: str, variables: dict[str, str]) -> str:
    """Return `word` with the variables that the script itself sets; others stay as they are written."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), word)[:65_536]


def _start_of_options(words: list[str]) -> int:
    """Return where the training's own options begin; 0 where the line starts no training."""
    for index, word in enumerate(words):
        tool = word.rpartition("/")[2]
        if tool in _SUBCOMMANDS and words[index + 1 : index + 2] and words[index + 1] in _SUBCOMMANDS[tool]:
            return index + 2
        if word.endswith(".py") and index and any(one.startswith("--") for one in words[index + 1 :]):
            return index + 1
    return 0


def _loaded(words: list[str], start: int, variables: dict[str, str], name: str) -> Loaded:
    """Return the options from `start` on as keys, with the launcher's GPUs."""
    keys = _options(words[start:])
    tool = words[start - 2].rpartition("/")[2] if start > 1 else ""
    keys = {**_SUBCOMMANDS.get(tool, {}).get(words[start - 1], {}), **keys}
    warnings = [
        f"{name}: {key} holds a variable that the script does not set; state it on the command line."
        for key, value in keys.items()
        if "$" in str(value) or "`" in str(value)
    ]
    gpus = _gpus(_options(words[: start - 1]), variables)
    if gpus:
        keys["finegauge"] = {"num_gpus": gpus}
    if tool == "trl" and words[start - 1] == "sft":
        return Loaded(keys, "trl", tuple(warnings))
    return Loaded(keys, "ms_swift" if tool == "swift" else "", tuple(warnings))


def _options(words: list[str]) -> dict[str, Any]:
    """Return {key: value} of "--key value", "--key=value", "--key a b" and "--key"."""
    found: dict[str, list[str]] = {}
    key = ""
    for word in words:
        if word in ("&", "&&", "|", ";", ">", ">>", "2>&1") or word.startswith((">", "2>")):
            break
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            key = key.replace("-", "_")
            found[key] = [value] if equals else []
        elif key:
            found[key].append(word)
    return {key: True if not v else v[0] if len(v) == 1 else v for key, v in found.items()}


def _gpus(launcher: dict[str, Any], variables: dict[str, str]) -> int | None:
    """Return how many GPUs the launcher is told of, by its options or the environment."""

    def figure(value: Any) -> int | None:
        return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 7 else None

    if total := figure(launcher.get("num_processes")):
        return total
    nodes = (
        figure(launcher.get("nnodes")) or figure(launcher.get("num_nodes")) or figure(variables.get("NNODES"))
    )
    each = next((figure(launcher[key]) for key in _GPUS_PER_NODE if key in launcher), None)
    each = each or figure(variables.get("NPROC_PER_NODE"))
    if not each and "NPROC_PER_NODE" not in variables and variables.get("CUDA_VISIBLE_DEVICES"):
        return None  # one process may drive them all, or only the first
    return each * (nodes or 1) if each else None
