"""Python and shell scripts that start a training, read as text and never run."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.errors import FileFormatError

Found = tuple[dict[str, Any], str, tuple[str, ...]]  # keys, the module that reads them, what is computed

_TRL_ARGUMENTS = {"SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig", "KTOConfig", "ORPOConfig"}
_HF_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments"}
_TRAINERS = {"SFTTrainer", "DPOTrainer", "GRPOTrainer", "RewardTrainer", "Trainer", "Seq2SeqTrainer"}
_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastSentenceTransformer")
_OF_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "use_dora": "use_dora",
    "rank_pattern": "rank_pattern",
    "target_parameters": "target_parameters",
}
_OF_BITSANDBYTES = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
}
_OF_MODEL = (
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "load_in_4bit",
    "load_in_8bit",
    "experts_implementation",
)
_OF_TRAINER = ("max_seq_length", "packing")
_TO_UNSLOTH = {
    "model_name_or_path": "model",
    "dataset_name": "data.dataset",
    "per_device_train_batch_size": "training.batch_size",
    "num_train_epochs": "training.num_epochs",
    "use_gradient_checkpointing": "training.gradient_checkpointing",
    "lora_target_modules": "lora.target_modules",
    "lora_modules_to_save": "lora.modules_to_save",
    **{
        name: f"training.{name}"
        for name in (
            *("gradient_accumulation_steps", "max_steps", "optim", "packing", "padding_free", "fp16"),
            *("max_seq_length", "load_in_4bit", "load_in_8bit"),
        )
    },
    **{name: f"lora.{name}" for name in ("lora_r", "lora_alpha", "lora_dropout")},
}
# What a notebook's functions do unasked, where that differs from `unsloth train`.
_NOTEBOOK = {
    "training.batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.optim": "adamw_torch_fused",
    "lora.lora_r": 16,
}
_MAX_NODES = 50_000
_OPAQUE = object()


def load_python(text: str, name: str) -> Found:
    """Return what a script's training calls say, under TRL's keys or Unsloth's.

    Raises: FileFormatError for text that is no Python, or that starts no training.
    """
    script = _Script(_parsed(text, name))
    if not script.calls & (_TRL_ARGUMENTS | _HF_ARGUMENTS | _TRAINERS):
        raise FileFormatError(
            f"{name} starts no training that is known: it calls neither SFTConfig nor TrainingArguments nor "
            "a Trainer with literal arguments."
        )
    warnings = tuple(
        f"{name}: {key} is computed by the script and is not read; state it on the command line."
        for key in sorted(script.opaque)[:20]
    )
    keys = {key: value for key, value in script.keys.items() if key not in script.opaque}
    if script.is_unsloth:
        return _unsloth(keys, adapts=script.adapts), "unsloth", warnings
    if script.adapts:
        keys = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_peft": True, **keys}
    if script.loads_itself:
        keys.setdefault("dtype", keys.pop("torch_dtype", "auto"))
    is_trl = bool(
        script.calls & (_TRL_ARGUMENTS | {"SFTTrainer", "DPOTrainer", "GRPOTrainer", "RewardTrainer"})
    )
    return keys, "trl" if is_trl else "trl:TRAINER", warnings


def _parsed(text: str, name: str) -> ast.Module:
    """Return the syntax tree.

    Raises: FileFormatError for text that is no Python, or too much of it.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise FileFormatError(f"{name} is not valid Python{line}.") from None
    if sum(1 for _ in ast.walk(tree)) > _MAX_NODES:
        raise FileFormatError(f"{name} is too long a script; at most {_MAX_NODES:,} parts are read.")
    return tree


def _unsloth(keys: Mapping[str, Any], *, adapts: bool) -> dict[str, Any]:
    """Return a notebook's keys in the sections of Unsloth's YAML."""
    found: dict[str, dict[str, Any]] = {"data": {}, "training": {}, "lora": {}}
    whole: dict[str, Any] = dict(found)
    flat = {**_NOTEBOOK, **{_TO_UNSLOTH[key]: value for key, value in keys.items() if key in _TO_UNSLOTH}}
    if "max_length" in keys and "max_seq_length" not in keys:
        flat["training.max_seq_length"] = keys["max_length"]
    for key, value in flat.items():
        section, dot, rest = key.partition(".")
        (found[section] if dot else whole)[rest or section] = value
    found["training"]["training_type"] = "lora" if adapts else "full"
    return whole


class _Script:
    """The training calls of one script and their literal arguments."""

    def __init__(self, tree: ast.Module) -> None:
        """Read `tree`, names first."""
        self.keys: dict[str, Any] = {}
        self.opaque: set[str] = set()  # keys whose value is computed
        self.calls: set[str] = set()
        self.is_unsloth = False
        self.adapts = False
        self.loads_itself = False
        self._names = dict(self._constants(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._read(node, *_callee(node.func))

    def _constants(self, tree: ast.Module) -> Iterator[tuple[str, Any]]:
        """Yield the module's names that are set once, to a literal."""
        self._names = {}
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        assigned.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name):
                assigned.setdefault(node.target.id, []).append(node.value or node.target)
        for name, values in assigned.items():
            value = self._value(values[0]) if len(values) == 1 else _OPAQUE
            if value is not _OPAQUE:
                yield name, value

    def _read(self, call: ast.Call, owner: str, name: str) -> None:
        """Read one call, if it is one of those that make up a training."""
        self.calls.add(name)
        if name in _TRL_ARGUMENTS | _HF_ARGUMENTS:
            self._take(call, None)
        elif name in _TRAINERS:
            self._take(call, dict.fromkeys(_OF_TRAINER))
            self._take_model(call, "model")
        elif name == "LoraConfig":
            self.adapts = True
            self._take(call, _OF_LORA)
        elif name == "BitsAndBytesConfig":
            self._take(call, _OF_BITSANDBYTES)
        elif name == "from_pretrained" and (owner in _UNSLOTH or owner.startswith("AutoModel")):
            self.is_unsloth |= owner in _UNSLOTH
            self.loads_itself |= owner not in _UNSLOTH
            self._take_model(call, "model_name" if owner in _UNSLOTH else "pretrained_model_name_or_path")
            self._take(call, dict.fromkeys((*_OF_MODEL, "max_seq_length")))
        elif name == "get_peft_model" and owner in _UNSLOTH:
            self.adapts = True
            self._take(call, {**_OF_LORA, "use_gradient_checkpointing": None})
        elif name == "load_dataset" and call.args:
            self._note("dataset_name", self._value(call.args[0]))

    def _take(self, call: ast.Call, wanted: Mapping[str, str | None] | None) -> None:
        """Note the keyword arguments `wanted` (all, if None), under their new names."""
        for argument in call.keywords:
            if argument.arg is None:
                self._spread(argument.value, wanted)
            elif wanted is None or argument.arg in wanted:
                key = argument.arg if wanted is None else (wanted[argument.arg] or argument.arg)
                self._note(key, self._value(argument.value))

    def _spread(self, value: ast.expr, wanted: Mapping[str, str | None] | None) -> None:
        """Note the entries of a literal mapping that a call unpacks."""
        mapping = self._value(value)
        for name, entry in mapping.items() if isinstance(mapping, dict) else ():
            if isinstance(name, str) and (wanted is None or name in wanted):
                self._note((wanted[name] or name) if wanted else name, entry)

    def _take_model(self, call: ast.Call, keyword: str) -> None:
        """Note the model that a call names: its first argument, or that keyword."""
        given = [argument.value for argument in call.keywords if argument.arg == keyword]
        value = self._value((given or call.args or [call])[0])
        if isinstance(value, str):
            self._note("model_name_or_path", value)

    def _note(self, key: str, value: Any) -> None:
        if value is _OPAQUE:
            self.opaque.add(key)
        elif value is not None:
            self.keys.setdefault(key, value)

    def _value(self, node: ast.expr) -> Any:
        """Return the literal that an expression is: a constant, a list, torch.bfloat16, a name set once."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, _OPAQUE)
        if isinstance(node, ast.Attribute):
            return node.attr if isinstance(node.value, ast.Name) and node.value.id == "torch" else _OPAQUE
        if isinstance(node, ast.List | ast.Tuple):
            items = [self._value(item) for item in node.elts]
            return _OPAQUE if any(item is _OPAQUE for item in items) else items
        if isinstance(node, ast.Call) and _callee(node.func)[1] == "dict" and not node.args:
            return {word.arg: self._value(word.value) for word in node.keywords if word.arg}
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return _OPAQUE


def _callee(function: ast.expr) -> tuple[str, str]:
    """Return (owner, name) of what is called: ("FastLanguageModel", "from_pretrained")."""
    if isinstance(function, ast.Name):
        return "", function.id
    if not isinstance(function, ast.Attribute):
        return "", ""
    owner = function.value
    named = (
        owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    )
    return named, function.attr


_SUBCOMMANDS: dict[str, dict[str, dict[str, str]]] = {
    "swift": {"sft": {}, "pt": {"tuner_type": "full"}, "rlhf": {}},
    "trl": {"sft": {}, "dpo": {}, "grpo": {}, "reward": {}},
}
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w{0,63})=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w{1,64})\}|(\w{1,64}))")
_GPUS_PER_NODE = ("nproc_per_node", "num_gpus")
_MAX_WORDS = 5_000


def load_shell(text: str, name: str) -> Found:
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


def _loaded(words: list[str], start: int, variables: dict[str, str], name: str) -> Found:
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
        return keys, "trl", tuple(warnings)
    return keys, "ms_swift" if tool == "swift" else "", tuple(warnings)


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
