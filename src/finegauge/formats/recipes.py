"""Recipes that a Python text states: NeMo 2's, Megatron-Bridge's, torchtitan's, what Hydra composes.

They are calls whose arguments are the framework's own keys; read as text and never run.
"""

import ast
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from finegauge.documents import parse_yaml, read_text
from finegauge.formats import shipped_data
from finegauge.formats.launcher_files import find_inside
from finegauge.formats.model_names import narrow
from finegauge.formats.python_values import Files, Values
from finegauge.formats.script_changes import OPAQUE, callee, last_name
from finegauge.formats.sheet import dotted, laid_over, merged, scalar
from finegauge.records import NamedTuple

READER = "reader"  # the key under which a recipe says which module reads it
_OF_NEMO = re.compile(r"\bnemo\.(collections|lightning)|\bnemo_run|\bmegatron\.bridge")
_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "selective"}
_SECTIONS = ("training", "parallelism", "optimizer", "compile", "activation_checkpoint", "validation")
_MOST_DERIVED = 8  # configurations, each of another, and files over files
_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
FLOAT8, GATHERS = "model.converters", "float8.enable_fsdp_float8_all_gather"


def over_defaults(keys: Mapping[str, Any], file: str, depth: int = 0) -> dict[str, Any]:
    """Return `keys` over those of the files that are its `defaults`, which stay where one is not here."""
    named = keys.get("defaults")
    under: dict[str, Any] = {}
    missing = depth > _MOST_DERIVED
    for one in [] if missing or named is None else named if isinstance(named, list) else [named]:
        path, _ = find_inside(str(one), file, (".yaml", ".yml"))
        found = parse_yaml(read_text(path), os.path.basename(path)) if path else None
        if path is None or not isinstance(found, dict):
            missing = True
            continue
        under = merged(under, over_defaults(found, path, depth + 1))
    own = keys if missing else {key: value for key, value in keys.items() if key != "defaults"}
    return merged(under, own)


def shipped(module: str, name: str) -> dict[str, Any]:
    """Return the keys that a configuration of torchtitan's own states: of one not known, the model alone."""
    flavour = re.sub(r"_(?=\d)", ".", name.removeprefix(f"{module}_")).replace("_", "-")
    keys: dict[str, Any] = {"model.name": module, "model.flavor": flavour}
    known = shipped_data("torchtitan_configurations.json")["configurations"].get(name)
    if known is None:
        return keys
    batch, length, steps, mode, of_parallelism, more = known
    return keys | {
        **{"training.local_batch_size": batch, "training.seq_len": length, "training.steps": steps},
        **{_MODE: mode, **({_OPTION: "op"} if mode == "selective" else {})},
        **{f"parallelism.{kind}_parallel_degree": degree for kind, degree in of_parallelism.items()},
        **more,
    }


def recipe_in(
    nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str], wanted: str = ""
) -> tuple[dict[str, Any], set[str], tuple[str, ...]]:
    """Return the keys of the recipe `wanted` with its reader, what the text computes, and warnings."""
    named = " ".join(modules.values())
    if _OF_NEMO.search(named):
        recipe, computed, remark = _of_nemo(nodes, values, modules, wanted)
        return {**recipe, READER: "nemo:NEMO"} if recipe else {}, computed, remark
    if "torchtitan" not in named:
        return {}, set(), ()
    recipe, remark = _of_torchtitan(nodes, values, modules, wanted)
    return {**recipe, READER: "torchtitan"} if recipe else {}, set(), remark


def hydra_settings(
    nodes: Sequence[ast.AST], options: Mapping[str, Any], files: Files
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what Hydra hands the function that it starts, {argument: settings}, and the file it lacks."""
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        for made in function.decorator_list:
            if isinstance(made, ast.Call) and callee(made.func) == ("hydra", "main") and function.args.args:
                told = {str(one.arg): getattr(one.value, "value", None) for one in made.keywords}
                folder, name = (
                    options.get(key, told.get(key)) or usual
                    for key, usual in (("config_path", "."), ("config_name", "config"))
                )
                path = f"{folder}/{name}"
                held = _composed(path, options, files, 0)
                over = {k: scalar(v) for k, v in options.items() if k not in ("config_path", "config_name")}
                for group, choice in over.items():  # of groups that the defaults do not name
                    if not isinstance(held.get(group), Mapping) and isinstance(choice, str):
                        held = merged(held, _of_group(str(folder), group, choice, options, files, 0))
                choices = {group for group in over if isinstance(held.get(group), Mapping)}
                settings = laid_over(held, {k: v for k, v in over.items() if k not in choices})
                told = {k: v for k, v in dotted(settings).items() if v != "???"}
                return {function.args.args[0].arg: laid_over({}, told)}, "" if held else path
    return {}, ""


def _composed(path: str, options: Mapping[str, Any], files: Files, depth: int) -> dict[str, Any]:
    """Return the keys of a file of Hydra's, over or under those of its defaults."""
    text = files(path if path.endswith(".yaml") else f"{path}.yaml")
    keys = parse_yaml(text, path) if text and depth < _MOST_DERIVED else None
    if not isinstance(keys, dict):
        return {}
    stated, found = keys.pop("defaults", None), dict[str, Any]()
    listed = [*stated] if isinstance(stated, list) else []
    for one in listed if "_self_" in listed else [*listed, "_self_"]:
        if one == "_self_":
            found = merged(found, keys)
            continue
        named, choice = next(iter(one.items())) if isinstance(one, dict) and one else ("", one)
        group = str(named).removeprefix("optional ")
        choice = options.get(group.partition("@")[0].strip("/").replace("/", "."), choice)
        if not isinstance(choice, str) or group.startswith("override "):
            continue
        root = path.rpartition("/")[0] if depth == 0 or not group.startswith("/") else path.partition("/")[0]
        found = merged(found, _of_group(root, group, choice, options, files, depth))
    return found


def _of_group(
    root: str, named: str, choice: str, options: Mapping[str, Any], files: Files, depth: int
) -> dict[str, Any]:
    """Return the keys of a choice of "group" or "group@package", in the sections that those name."""
    group, _, package = named.partition("@")
    path = "/".join(filter(None, (root, *group.strip("/").split("."), choice)))
    below = _composed(path, options, files, depth + 1)
    head = re.match(r"#\s*@package\s+(\S+)", files(f"{path}.yaml") or "")
    package = package or (head[1] if head else group.strip("/"))
    for part in reversed([] if package == "_global_" else re.split("[./]", package)):
        below = {part: below} if part and below else below
    return below


def _several(what: str, found: Collection[str], name: str) -> tuple[str, ...]:
    """Return the warning of a text that holds several, of which one is read."""
    others = ", ".join(one for one in found if one != name)
    said = f"It holds {len(found)} {what}, of which {name} is read, not {others[:200]}."
    return (said,) if others else ()


def _of_nemo(
    nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str], wanted: str
) -> tuple[dict[str, Any], set[str], tuple[str, ...]]:
    """Return what a script states over a NeMo 2 or Megatron-Bridge recipe, and computes."""
    from finegauge.formats.megatron_lm import FORMAT
    from finegauge.formats.nemo import RENAMED, recipe_of

    functions = {one.name: one for one in nodes if isinstance(one, ast.FunctionDef)}
    makers = [name for name in functions if recipe_of(name, "")]
    asked = wanted if wanted in makers else next(iter(makers), "")
    named = values.assigned("NAME")  # of the module that holds NeMo 2's
    recipe = recipe_of(asked, str(named.value) if isinstance(named, ast.Constant) else "")
    lines = _Lines(functions, values, modules, ())
    stated = recipe | (lines.of_function(asked, {}) if makers else lines.of_nodes(nodes)) | recipe
    known = {*FORMAT.keys, *RENAMED, "performance_mode", "val_check_interval", "from_recipe"}
    told = {
        key: v for key, v in stated.items() if key in known and v is not OPAQUE and not isinstance(v, dict)
    }
    computed = {key for key, value in stated.items() if key in known and value is OPAQUE}
    computed -= {"model", "peft"} if "recipe_model" in stated else set()
    return told, computed, _several("recipes", makers, asked) if not wanted else ()


class _Lines(NamedTuple):
    """What the lines of a text state over a recipe of NeMo 2's or Megatron-Bridge's."""

    functions: Mapping[str, ast.FunctionDef]
    values: Values
    modules: Mapping[str, str]
    open: tuple[str, ...]  # functions that are being read

    def of_function(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a function states, handed `given`: what it takes unasked, its locals and calls."""
        taken, held, nodes = self.functions[name].args, dict(given), [*ast.walk(self.functions[name])]
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
                held[target.id] = self.values.within(taken, held).of(node.value)
        values = self.values.within(taken, held)
        return self._replace(values=values, open=(*self.open, name)).of_nodes(nodes)

    def of_nodes(self, nodes: Sequence[ast.AST]) -> dict[str, Any]:
        """Return what calls state, then what is set over them."""
        stated = dict[str, Any]()
        for node in nodes:
            if isinstance(node, ast.Call):
                stated |= self._of_call(node, stated)
        for node in nodes:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
                prefix = "peft_" if last_name(target.value) == "peft" else ""
                value = self.values.of(node.value)
                if value is not OPAQUE or target.attr != "optimizer":  # which a call that is read has made
                    stated[prefix + target.attr] = value
                if target.attr in ("mixed_precision", "plugins"):
                    stated |= _narrow(node.value, self.values)
        named = (last_name(node) for node in nodes if isinstance(node, ast.Attribute | ast.Name))
        sizes = [name for name in named if re.search(r"Config\d|Provider\d", name)]
        return {"recipe_model": sizes[0], **stated} if sizes else stated

    def _of_call(self, call: ast.Call, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one call states, over what stood before it."""
        from finegauge.formats.nemo import BASES, recipe_of, shipped_recipe

        (owner, name), words = callee(call.func), self.values.named(call)
        if self.open and name in self.functions and name not in self.open:
            return self.of_function(name, words)
        own = {
            str(one.arg)
            for one in call.keywords
            if isinstance(one.value, ast.Attribute) and one.value.attr == one.arg
        }  # seq_length=recipe.model.config.seq_length
        made = recipe_of(name, owner or self.modules.get(name, "").rpartition(".")[2]) | shipped_recipe(name)
        found = {**BASES.get(name, {}), **({} if "from_recipe" in before else made)}
        prefix = "peft_" if "LoRA" in (name, *map(last_name, call.args)) else ""
        found |= {"peft_scheme": "lora"} if prefix else {"optimizer": "muon"} if "_muon_" in name else {}
        found |= {prefix + key: value for key, value in words.items() if key not in own}
        if name == "from_hf_pretrained" and call.args:
            found["model"] = self.values.of(call.args[0])
        for word in {name, *map(last_name, call.args[:1])} & {"pretrain", "finetune"}:  # of run.Partial
            found["command"] = word
        return found


def _narrow(node: ast.expr, values: Values) -> dict[str, Any]:
    """Return the fp8 recipe that a name of mixed precision tells."""
    call = node if isinstance(node, ast.Call) else None
    told = [values.of(node), *(values.of(one) for one in call.args)] if call else [values.of(node)]
    named = callee(call.func)[1] if call else ""
    return narrow(" ".join([named, *(one for one in told if isinstance(one, str))]))


def _of_torchtitan(
    nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str], wanted: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of the configuration `wanted`, else of the first that is no toy, and a warning."""
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    text = _Configurations(functions, values, modules)
    made = {name: keys for name in functions if (keys := text.returned(name))}
    found = {name: keys for name, keys in made.items() if name[0] != "_" or name == wanted} or made
    if not found:
        return {}, ()
    name = wanted if wanted in found else min(found, key=lambda one: "debug" in one)
    keys = found[name]
    if keys.get(_MODE, "selective") == "selective":
        keys.setdefault(_OPTION, "op")
    kept = {key: value for key, value in keys.items() if value is not OPAQUE}
    return kept, _several("configurations", found, name) if not wanted else ()


class _Configurations(NamedTuple):
    """The functions of a text that return a Trainer.Config, and the values of its names."""

    functions: Mapping[str, ast.FunctionDef]
    values: Values
    modules: Mapping[str, str]

    def returned(self, name: str, depth: int = 0) -> dict[str, Any]:
        """Return the keys of what a function returns: a Trainer.Config, or another's with changes."""
        held = dict[str, dict[str, Any]]()  # of its local variables
        for node in self.functions[name].body:
            if isinstance(node, ast.Return):
                return self._made(node.value, held, name, depth)
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
                held[target.id] = self._made(node.value, held, name, depth)
            elif isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
                of, *path = ast.unparse(target).split(".")
                if held.get(of):
                    _change(held[of], path, node.value, name, self.values)
        return {}

    def _made(
        self, node: ast.expr | None, held: Mapping[str, dict[str, Any]], function: str, depth: int
    ) -> dict[str, Any]:
        if not isinstance(node, ast.Call):
            return held.get(last_name(node), {})
        called, keys = callee(node.func), dict[str, Any]()
        theirs = re.search(r"torchtitan\.models\.(\w+)\.config_registry", self.modules.get(called[1], ""))
        if theirs and called[1] not in self.functions:
            keys = shipped(theirs[1], called[1])
        elif called[1] in self.functions and depth < _MOST_DERIVED:
            keys = self.returned(called[1], depth + 1)
        elif called[1] in ("replace", "deepcopy") and node.args:
            keys = dict(self._made(node.args[0], held, function, depth))
        elif called != ("Trainer", "Config"):
            return {}
        body = [one for one in self.functions[function].body if isinstance(one, ast.Assign)]
        local = {last_name(one.targets[0]): one.value for one in body}
        for part in node.keywords:
            value = (
                local.get(last_name(part.value), part.value)
                if isinstance(part.value, ast.Name)
                else part.value
            )
            _change(keys, [str(part.arg)], value, function, self.values)
        return keys


def _change(keys: dict[str, Any], path: Sequence[str], node: ast.expr, function: str, values: Values) -> None:
    """Lay one part over a configuration: training=TrainingConfig(...), training.seq_len = 8192."""
    if len(path) > 1:
        keys[".".join(path)] = values.of(node)
        return
    for old in [key for key in keys if key.startswith(f"{path[0]}.")]:
        del keys[old]
    keys |= _section(
        path[0], values.assigned(node.id) if isinstance(node, ast.Name) else node, function, values
    )
    for one in ast.walk(node):
        kind = (
            re.match(r"(Float8|MX)\w*Converter$", callee(one.func)[0]) if isinstance(one, ast.Call) else None
        )
        if kind and isinstance(one, ast.Call):
            told = {
                key: value for key, value in values.named(one).items() if key.startswith(("enable", "rec"))
            }
            keys[FLOAT8] = [*keys.get(FLOAT8, ()), kind[1].lower()]
            keys |= {f"float8.{key}": value for key, value in told.items()}


def _section(section: str, made: Any, function: str, values: Values) -> dict[str, Any]:
    """Return the keys of one part of a Trainer.Config: training=TrainingConfig(seq_len=8192)."""
    if not isinstance(made, ast.Call):
        return {"model.hf_assets_path": values.of(made)} if section == "hf_assets_path" else {}
    if section in ("model_spec", "model"):
        flavour, told = str(values.of(made.args[0])) if made.args else "", values.named(made)
        family = function.partition("_" + re.sub(r"\W", "_", flavour.lower()))[0]
        found = {"model.flavor": flavour, "model.name": family.removeprefix("sft_")}
        return found | {
            f"model.{k}": v for k, v in told.items() if k == "attn_backend" and isinstance(v, str)
        }
    owner, name = callee(made.func)
    if section == "loss":
        return {"loss.kind": "chunked" if owner.startswith("Chunked") else "full_logits"}
    section = section.replace("validator", "validation")
    if section not in _SECTIONS:
        return {}
    found = {f"{section}.{key}": value for key, value in values.named(made).items()}
    found |= {_MODE: _CHECKPOINTS[owner]} if owner in _CHECKPOINTS else {}
    return found | ({"optimizer.early_step_in_backward": True} if "InBackward" in owner + name else {})
