"""Python that starts a training, as a script or a notebook's cells: read as text and never run.

Followed are names, arithmetic, f-strings, mappings and classes of constants, what argparse, HfArgumentParser,
TrlParser, click and fire take unasked, and the command line that the script is started with. What is left is
computed by the script: it is reported, and not read.
"""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.errors import FileFormatError
from finegauge.records import NamedTuple


class Script(NamedTuple):
    """What a script says."""

    keys: dict[str, Any]
    reader: str  # the module of formats that reads them
    warnings: tuple[str, ...] = ()


_TRL_ARGUMENTS = {
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "GRPOConfig": "grpo",
    "RewardConfig": "reward",
    "KTOConfig": "kto",
    "ORPOConfig": "orpo",
    "CPOConfig": "cpo",
    "PPOConfig": "ppo",
    "RLOOConfig": "rloo",
}
_TRL_TRAINERS = {name.replace("Config", "Trainer"): word for name, word in _TRL_ARGUMENTS.items()}
_HF_ARGUMENTS = {"TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments"}
_TRAINERS = {*_TRL_TRAINERS, "Trainer", "Seq2SeqTrainer", "UnslothTrainer"}
_UNSLOTH = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastSentenceTransformer")
# Classes whose arguments are a framework's own keys: the module that reads them.
_OTHERS = {
    "DictDefault": "axolotl",
    "TrainArguments": "ms_swift",
    "SftArguments": "ms_swift",
    "RLHFArguments": "ms_swift",
}
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
    "full_finetuning",
)
_OF_TRAINER = ("max_seq_length", "packing", "max_length", "max_prompt_length", "beta")
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
            *("max_seq_length", "load_in_4bit", "load_in_8bit", "trainer"),
            *("num_generations", "max_completion_length", "max_prompt_length", "fast_inference"),
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
_BF16_ASKED = ("is_bfloat16_supported", "is_bf16_supported")
_PARSED = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
_MAX_NODES = 50_000
_MAX_DEPTH = 40  # of names that stand for names
_MAX_TEXT = 4096
_OPAQUE = object()
_BINARY: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def load_python(text: str, name: str, options: Mapping[str, Any] = {}) -> Script:
    """Return what a script's training calls say, under the keys of the framework that it calls.

    Args:
        text: Of the script.
        name: For messages.
        options: The command line that it is started with, {name: value}.

    Raises: FileFormatError for text that is no Python, or that starts no training.
    """
    script = _Reader(_parsed(text, name), options)
    warnings = tuple(
        f"{name}: {key} is computed by the script and is not read; state it on the command line."
        for key in sorted(script.opaque)[:20]
    )
    if script.theirs:
        return Script(script.keys, script.theirs, warnings)
    if not script.calls & ({*_TRL_ARGUMENTS} | _HF_ARGUMENTS | _TRAINERS):
        raise FileFormatError(f"{name} starts no training that is known: {_instead(script.calls)}.")
    keys = {key: value for key, value in script.keys.items() if key not in script.opaque}
    if script.is_unsloth:
        return Script(_unsloth(keys, adapts=script.adapts), "unsloth", warnings)
    if keys.pop("bf16_asked", False):
        warnings += (f"{name}: whether the GPU has bf16 is asked by the script and taken as yes.",)
    if script.adapts:
        keys = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_peft": True, **keys}
    if script.loads_itself:
        keys.setdefault("dtype", keys.pop("torch_dtype", "auto"))
    return Script(keys, "trl" if script.calls & {*_TRL_ARGUMENTS, *_TRL_TRAINERS} else "trl:TRAINER", warnings)


def _instead(calls: set[str]) -> str:
    for call, reason in (
        ("Accelerator", "its loop is its own (accelerate's Accelerator)"),
        ("LightningModule", "it trains by Lightning"),
        ("fit", "it trains by Lightning or Keras"),
        ("LLM", "it generates, by vLLM"),
    ):
        if call in calls:
            return f"{reason}; write the run as FineGauge's own fields, such as model and method"
    return "it calls neither SFTConfig nor TrainingArguments nor a Trainer with literal arguments"


def calculated(node: ast.expr) -> Any:
    """Return the number that constants joined by operators make; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = calculated(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _joined(node.op, calculated(node.left), calculated(node.right))
    return None


def _joined(kind: ast.operator, left: Any, right: Any) -> Any:
    """Return two plain values joined by an operator; None where that cannot be."""
    plain = isinstance(left, int | float) and isinstance(right, int | float)
    texts = isinstance(left, str) and isinstance(right, str) and isinstance(kind, ast.Add)
    lists = isinstance(left, list) and isinstance(right, list) and isinstance(kind, ast.Add)
    if not (plain or texts or lists) or (plain and max(abs(left), abs(right)) > 1e15):
        return None
    try:
        return _BINARY[type(kind)](left, right)
    except (ZeroDivisionError, KeyError, OverflowError):
        return None


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
    found["training"]["training_type"] = "lora" if adapts and not keys.get("full_finetuning") else "full"
    return whole


class _Reader:
    """The training calls of one script and what their arguments come to."""

    def __init__(self, tree: ast.Module, options: Mapping[str, Any]) -> None:
        """Read `tree`, names first."""
        self.keys: dict[str, Any] = {}
        self.opaque: set[str] = set()  # keys whose value is computed
        self.calls: set[str] = set()
        self.theirs = ""  # the module that reads the keys of a framework's own class
        self.is_unsloth = False
        self.adapts = False
        self.loads_itself = False
        self._options = options
        self._depth = 0
        self._assigned: dict[str, list[ast.expr | Mapping[str, Any]]] = {}
        self._namespace: dict[str, Any] = {}  # of argparse
        self._classes: dict[str, dict[str, Any]] = {}  # constants of the script's own classes
        self._trainings: set[str] = set()  # names of training arguments
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._define(node)
        for node in nodes:
            self._parse(node)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._read(node, *_callee(node.func))
        for node in nodes:
            self._amend(node)

    # Names

    def _define(self, node: ast.AST) -> None:
        """Note what a statement calls by a name."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._assigned.setdefault(node.target.id, []).append(node.target)  # itself: never resolved
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args]
            defaults = node.args.defaults
            pairs = [*zip(given[len(given) - len(defaults) :], defaults, strict=True)] if defaults else []
            pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
            for argument, default in pairs:
                self._assigned.setdefault(argument.arg, []).append(default)
        elif isinstance(node, ast.ClassDef):
            self._classes[node.name] = {}
        elif isinstance(node, ast.Call):
            name = _callee(node.func)[1]
            if name in ("add_argument", "option", "Option"):
                self._declare(node)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(value)
            if isinstance(value, ast.Call) and _callee(value.func)[1] in {*_TRL_ARGUMENTS} | _HF_ARGUMENTS:
                self._trainings.add(target.id)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._bind(one, its)

    def _declare(self, call: ast.Call) -> None:
        """Note an option that the script takes, and its default."""
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        words = {one.arg: one.value for one in call.keywords}
        named = next((one for one in flags if one.startswith("--")), flags[0] if flags else "")
        name = named.lstrip("-").partition("/")[0].replace("-", "_")
        if isinstance(words.get("dest"), ast.Constant):
            name = str(words["dest"].value)  # type: ignore[attr-defined]
        action = words.get("action")
        if isinstance(action, ast.Constant) and str(action.value).startswith("store_"):
            self._namespace.setdefault(name, action.value == "store_false")
        elif "default" in words:
            self._namespace.setdefault(name, words["default"])

    def _parse(self, node: ast.AST) -> None:
        """Note the constants of a class, and what a parser's result is."""
        if isinstance(node, ast.ClassDef):
            fields = self._classes[node.name]
            for part in ast.walk(node):
                if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                    target = part.targets[0] if isinstance(part, ast.Assign) else part.target
                    of_self = isinstance(target, ast.Attribute) and _owner(target) == "self"
                    named = target.attr if of_self else target.id if isinstance(target, ast.Name) else ""  # type: ignore[union-attr]
                    if named:
                        fields.setdefault(named, part.value)
            bases = {_last(base) for base in node.bases}
            if bases & ({*_TRL_ARGUMENTS} | _HF_ARGUMENTS):
                self.calls |= bases
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            owner = node.value.func.value if isinstance(node.value.func, ast.Attribute) else None
            if _callee(node.value.func)[1] in _PARSED and owner is not None:
                self._parsed_to(node.targets[0], owner)

    def _parsed_to(self, target: ast.expr, parser: ast.expr) -> None:
        """Note the names that hold what a parser returned."""
        made = self._assigned.get(parser.id, [None])[0] if isinstance(parser, ast.Name) else parser
        classes: list[str] = []
        if isinstance(made, ast.Call) and _callee(made.func)[1] in ("HfArgumentParser", "TrlParser", "H4ArgumentParser"):
            given = [*made.args, *(one.value for one in made.keywords if one.arg == "dataclass_types")]
            listed = given[0] if given else None
            parts = listed.elts if isinstance(listed, ast.Tuple | ast.List) else [listed]
            classes = [_last(part) for part in parts if isinstance(part, ast.expr)]
            self.calls |= {one for one in classes if one in _TRL_ARGUMENTS or one in _HF_ARGUMENTS}
            self.adapts |= "ModelConfig" in classes and str(self._options.get("use_peft", "")).lower() in ("true", "")\
                and "use_peft" in self._options
            for one in classes:
                for field, default in self._classes.get(one, {}).items():
                    self.keys.setdefault(field, self._options.get(field, default))
            self.keys = {key: self._value(v) if isinstance(v, ast.expr) else v for key, v in self.keys.items()}
            self.keys = {key: v for key, v in self.keys.items() if v is not _OPAQUE and v is not None}
            self.keys |= self._options
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for at, one in enumerate(targets):
            if isinstance(one, ast.Name):
                held = self._classes.get(classes[at], {}) if at < len(classes) else self._namespace
                self._assigned[one.id] = [{**held, **self._options}]

    # Calls

    def _read(self, call: ast.Call, owner: str, name: str) -> None:
        """Read one call, if it is one of those that make up a training."""
        self.calls.add(name)
        if name in _OTHERS and (call.keywords or call.args):
            self.theirs = _OTHERS[name]
            self._take(call, None)
            for argument in call.args[:1]:
                self._spread(argument, None)
        elif name in _TRL_ARGUMENTS or name in _HF_ARGUMENTS:
            self.keys.setdefault("trainer", _TRL_ARGUMENTS.get(name))
            self._take(call, None)
        elif name in _TRAINERS:
            if name in _TRL_TRAINERS:
                self.keys["trainer"] = _TRL_TRAINERS[name]
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
            self._take(call, dict.fromkeys((*_OF_MODEL, "max_seq_length", "fast_inference")))
        elif name == "get_peft_model" and owner in _UNSLOTH:
            self.adapts = True
            self._take(call, {**_OF_LORA, "use_gradient_checkpointing": None})
        elif name == "gradient_checkpointing_enable":
            self._note("gradient_checkpointing", True)
        elif name == "load_dataset" and call.args:
            self._note("dataset_name", self._value(call.args[0]))

    def _amend(self, node: ast.AST) -> None:
        """Read an argument that is set after the call: training_args.max_steps = 10."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if _owner(target) in self._trainings:
                value = self._value(node.value)
                self.keys.pop(target.attr, None)
                self._note(target.attr, value)

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
                entry = self._value(entry) if isinstance(entry, ast.expr) else entry
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

    # Values

    def _value(self, node: Any) -> Any:
        """Return what an expression comes to, `_OPAQUE` where only running it would tell."""
        if not isinstance(node, ast.AST):
            return node
        self._depth += 1
        try:
            return _OPAQUE if self._depth > _MAX_DEPTH else self._resolved(node)
        finally:
            self._depth -= 1

    def _resolved(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._named(node.id)
            case ast.Attribute():
                return self._attribute(node)
            case ast.List() | ast.Tuple() | ast.Set():
                items = [self._value(item) for item in node.elts]
                return _OPAQUE if any(item is _OPAQUE for item in items) else items
            case ast.Dict():
                pairs = [(self._value(k), v) for k, v in zip(node.keys, node.values, strict=True) if k]
                return {key: self._value(v) for key, v in pairs if isinstance(key, str)}
            case ast.Call():
                return self._called(node)
            case ast.Subscript():
                held, key = self._value(node.value), self._value(node.slice)
                return self._value(held.get(key, _OPAQUE)) if isinstance(held, dict) and isinstance(key, str) else _OPAQUE
            case ast.BinOp():
                joined = _joined(node.op, self._value(node.left), self._value(node.right)) if type(node.op) in _BINARY else None
                return _OPAQUE if joined is None or (isinstance(joined, str) and len(joined) > _MAX_TEXT) else joined
            case ast.UnaryOp():
                value = self._value(node.operand)
                if isinstance(node.op, ast.Not):
                    return _OPAQUE if value is _OPAQUE else not value
                return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else _OPAQUE
            case ast.BoolOp():
                values = [self._value(one) for one in node.values]
                stops = bool if isinstance(node.op, ast.Or) else (lambda value: not value)
                first = next((one for one in values if one is _OPAQUE or stops(one)), values[-1])
                return first
            case ast.IfExp():
                test = self._value(node.test)
                return _OPAQUE if test is _OPAQUE else self._value(node.body if test else node.orelse)
            case ast.Compare() if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
                left, right = self._value(node.left), self._value(node.comparators[0])
                same = left == right
                return _OPAQUE if _OPAQUE in (left, right) else same is isinstance(node.ops[0], ast.Is | ast.Eq)
            case ast.JoinedStr():
                parts = [self._value(p.value if isinstance(p, ast.FormattedValue) else p) for p in node.values]
                return _OPAQUE if any(p is _OPAQUE for p in parts) else "".join(map(str, parts))[:_MAX_TEXT]
        return _OPAQUE

    def _named(self, name: str) -> Any:
        """Return what a name stands for, if every assignment says the same."""
        if name in self._options and name not in self._trainings:
            return self._options[name]
        values = self._assigned.get(name)
        if not values:
            return dict(self._classes[name]) if name in self._classes else _OPAQUE
        if len(values) > 8 or any(isinstance(one, ast.Name) and one.id == name for one in values):
            return _OPAQUE
        found = [self._value(one) for one in values]
        return found[0] if all(one == found[0] for one in found[1:]) else _OPAQUE

    def _attribute(self, node: ast.Attribute) -> Any:
        """Return torch.bfloat16 as "bfloat16", and a constant of an object or a class."""
        if _owner(node) == "torch":
            return node.attr
        held = self._value(node.value)
        return self._value(held.get(node.attr, _OPAQUE)) if isinstance(held, dict) else _OPAQUE

    def _called(self, node: ast.Call) -> Any:
        """Return what a call of a few plain functions returns."""
        owner, name = _callee(node.func)
        if name in _BF16_ASKED:
            self.keys.setdefault("bf16_asked", True)
            return True
        if name in ("dict", "SimpleNamespace", "OmegaConf", "EasyDict") or name in self._classes:
            held = dict(self._classes.get(name, {}))
            return held | {word.arg: word.value for word in node.keywords if word.arg}
        if name in ("getenv", "get") and len(node.args) > 1 and (owner in ("environ", "os")):
            return self._value(node.args[1])
        if name in ("field", "Field", "Option", "Argument"):
            default = [one.value for one in node.keywords if one.arg == "default"]
            return self._value((default or node.args or [None])[0])
        if not owner and name in ("int", "float", "str", "bool") and len(node.args) == 1:
            value = self._value(node.args[0])
            try:
                plain = isinstance(value, int | float | str) and len(str(value)) < _MAX_TEXT
                return {"int": int, "float": float, "str": str, "bool": bool}[name](value) if plain else _OPAQUE
            except (ValueError, OverflowError):
                return _OPAQUE
        return _OPAQUE


def _owner(node: ast.Attribute) -> str:
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _callee(function: ast.expr) -> tuple[str, str]:
    """Return (owner, name) of what is called: ("FastLanguageModel", "from_pretrained")."""
    return (_last(function.value), function.attr) if isinstance(function, ast.Attribute) else ("", _last(function))


def cells(text: str, name: str) -> tuple[str, str, dict[str, str]]:
    """Return a notebook's Python, its shell lines, and the files that its cells write.

    Raises: FileFormatError for text that is no notebook.
    """
    from finegauge.documents import parse_yaml

    notebook = parse_yaml(text, name)
    listed = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(listed, list):
        raise FileFormatError(f"{name} is no notebook: it holds no list of cells.")
    python, shell, files = list[str](), list[str](), dict[str, str]()
    for cell in listed:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        code = "".join(map(str, source)) if isinstance(source, list) else str(source or "")
        first, _, rest = code.lstrip("\n").partition("\n")
        magic = re.match(r"%%(\w+)\s*(?:-a\s+)?(\S*)", first)
        if magic and magic[1] in ("bash", "sh", "script", "shell"):
            shell.append(rest)
        elif magic and magic[1] in ("writefile", "file"):
            files[magic[2]] = rest
        elif not magic or magic[1] in ("capture", "time", "timeit"):
            python += _plain(rest if magic else code, shell)
    return "\n".join(python), "\n".join(shell), files


def _plain(code: str, shell: list[str]) -> Iterator[str]:
    """Yield a cell's lines of Python; lines for the shell go to `shell`, each leaving a `pass`."""
    continued = False
    for line in code.split("\n"):
        stripped = line.lstrip()
        if continued or stripped.startswith(("!", "%")):
            told = stripped.lstrip("!%") if not continued else stripped
            if continued or stripped.startswith("!"):
                shell.append(told)
            if not continued:
                yield f"{line[: len(line) - len(stripped)]}pass"
            continued = stripped.endswith("\\")
        else:
            yield line
