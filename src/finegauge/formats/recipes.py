"""Recipes that a Python text states: NeMo 2's and Megatron-Bridge's, and torchtitan's configurations.

They are calls whose arguments are the framework's own keys; read as text and never run.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from finegauge.formats.python_values import OPAQUE, Values, callee, last_name

READER = "reader"  # the key under which a recipe says which module reads it
_OF_NEMO = re.compile(r"\bnemo\.(collections|lightning)|\bnemo_run|\bmegatron\.bridge")
_CHECKPOINTS = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "selective"}
_SECTIONS = ("training", "parallelism", "optimizer", "compile", "activation_checkpoint", "validation")
_MOST_DERIVED = 8  # configurations, each of another
_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


def recipe_in(
    nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str], wanted: str = ""
) -> tuple[dict[str, Any], set[str], tuple[str, ...]]:
    """Return the keys of the recipe `wanted` with its reader, what the text computes, and warnings."""
    named = " ".join(modules.values())
    if _OF_NEMO.search(named):
        recipe, computed, remark = _of_nemo(nodes, values, modules, wanted)
        return {**recipe, READER: "megatron_lm:NEMO"} if recipe else {}, computed, remark
    if "torchtitan" not in named:
        return {}, set(), ()
    recipe, remark = _of_torchtitan(nodes, values, wanted)
    return {**recipe, READER: "torchtitan"} if recipe else {}, set(), remark


def _several(what: str, found: Collection[str], name: str) -> tuple[str, ...]:
    """Return the warning of a text that holds several, of which one is read."""
    others = ", ".join(one for one in found if one != name)
    said = f"It holds {len(found)} {what}, of which {name} is read, not {others[:200]}."
    return (said,) if others else ()


def _of_nemo(
    nodes: Sequence[ast.AST], values: Values, modules: Mapping[str, str], wanted: str
) -> tuple[dict[str, Any], set[str], tuple[str, ...]]:
    """Return what a script states over a NeMo 2 or Megatron-Bridge recipe, and computes."""
    from finegauge.formats.megatron_lm import FORMAT, recipe_of

    stated, recipe = dict[str, Any](), dict[str, Any]()
    makers = {one.name: one for one in nodes if isinstance(one, ast.FunctionDef) and recipe_of(one.name, "")}
    asked = wanted if wanted in makers else next(iter(makers), "")
    if makers:
        nodes, recipe = [*ast.walk(makers[asked])], recipe_of(asked, "")
    for node in nodes:
        if isinstance(node, ast.Call):
            owner, name = callee(node.func)
            recipe = recipe or recipe_of(name, owner or modules.get(name, "").rpartition(".")[2])
            prefix = "peft_" if "LoRA" in (name, *map(last_name, node.args)) else ""
            stated |= {"peft_scheme": "lora"} if prefix else {}
            stated |= {
                prefix + str(one.arg): values.of(one.value) for one in node.keywords if not _is_its_own(one)
            }
            if name == "from_hf_pretrained" and node.args:
                stated["model"] = values.of(node.args[0])
            for word in {name, *map(last_name, node.args[:1])} & {"pretrain", "finetune"}:  # of run.Partial
                stated["command"] = word
        elif isinstance(node, ast.Attribute | ast.Name) and re.search(
            r"Config\d|Provider\d", last_name(node)
        ):
            stated.setdefault("recipe_model", last_name(node))
    for node in nodes:  # over what the calls say
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            prefix = "peft_" if last_name(target.value) == "peft" else ""
            stated[prefix + target.attr] = values.of(node.value)
            if target.attr in ("mixed_precision", "plugins"):
                stated |= _narrow(node.value, values)
    known = {*FORMAT.keys, "max_steps", "sequence_length", "peft", "performance_mode", "val_check_interval"}
    computed = {key for key, value in stated.items() if key in known and value is OPAQUE}
    told = {
        key: v for key, v in stated.items() if key in known and isinstance(v, str | int | float | list | None)
    }
    known_already = {"model", "peft"} if recipe or "recipe_model" in stated else set[str]()
    found = {**recipe, **told, **{key: recipe[key] for key in recipe.keys() & {"recipe_model"}}}
    return found, computed - known_already, _several("recipes", makers, asked) if not wanted else ()


def _is_its_own(given: ast.keyword) -> bool:
    """Return whether a call gets what the recipe has itself: seq_length=recipe.model.config.seq_length."""
    return isinstance(given.value, ast.Attribute) and given.value.attr == given.arg


def _narrow(node: ast.expr, values: Values) -> dict[str, Any]:
    """Return the fp8 recipe that a name of mixed precision tells: bf16_with_fp8_current_scaling_mixed."""
    call = node if isinstance(node, ast.Call) else None
    told = [values.of(node), *(values.of(one) for one in call.args)] if call else [values.of(node)]
    named = " ".join([callee(call.func)[1] if call else "", *(one for one in told if isinstance(one, str))])
    if not re.search(r"fp8|fp4", named):
        return {}
    scaled = {"current": "current", "delayed": "delayed", "subchannel": "blockwise", "mxfp8": "mxfp8",
              "nvfp4": "nvfp4"}  # fmt: skip
    return {
        "fp8": "hybrid",
        "fp8_recipe": next((to for word, to in scaled.items() if word in named), "delayed"),
    }


def _of_torchtitan(
    nodes: Sequence[ast.AST], values: Values, wanted: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of the configuration `wanted`, else of the first that is no toy, and a warning."""
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    found = {name: keys for name in functions if (keys := _configuration(name, functions, values, 0))}
    if not found:
        return {}, ()
    name = wanted if wanted in found else min(found, key=lambda one: "debug" in one)
    keys = found[name]
    if keys.get(_MODE, "selective") == "selective":
        keys.setdefault(_OPTION, "op")
    kept = {key: value for key, value in keys.items() if value is not OPAQUE}
    return kept, _several("configurations", found, name) if not wanted else ()


def _configuration(
    name: str, functions: Mapping[str, ast.FunctionDef], values: Values, depth: int
) -> dict[str, Any]:
    """Return the keys of what a function returns: a Trainer.Config, or another function's with changes."""
    held = dict[str, dict[str, Any]]()

    def made(node: ast.expr | None) -> dict[str, Any]:
        if not isinstance(node, ast.Call):
            return held.get(last_name(node), {})
        called, keys = callee(node.func), dict[str, Any]()
        if called[1] in functions and depth < _MOST_DERIVED:
            keys = _configuration(called[1], functions, values, depth + 1)
        elif called[1] in ("replace", "deepcopy") and node.args:
            keys = dict(made(node.args[0]))
        elif called != ("Trainer", "Config"):
            return {}
        for part in node.keywords:
            _change(keys, [str(part.arg)], part.value, name, values)
        return keys

    def change(keys: dict[str, Any], path: Sequence[str], node: ast.expr) -> None:
        _change(keys, path, node, name, values)

    return _returned(functions[name].body, held, made, change)


def _returned(
    body: Sequence[ast.stmt],
    held: dict[str, dict[str, Any]],
    made: Callable[[ast.expr | None], dict[str, Any]],
    change: Callable[[dict[str, Any], Sequence[str], ast.expr], None],
) -> dict[str, Any]:
    """Return the configuration that a function returns; `held` keeps those of its local variables."""
    for node in body:
        if isinstance(node, ast.Return):
            return made(node.value)
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name):
            held[target.id] = made(node.value)
        elif isinstance(node, ast.Assign) and isinstance(target, ast.Attribute):
            of, *path = ast.unparse(target).split(".")
            if held.get(of):
                change(held[of], path, node.value)
    return {}


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
            keys["model.converters"] = [*keys.get("model.converters", ()), kind[1].lower()]
            keys |= {f"float8.{key}": value for key, value in told.items()}


def _section(section: str, made: Any, function: str, values: Values) -> dict[str, Any]:
    """Return the keys of one part of a Trainer.Config: training=TrainingConfig(seq_len=8192)."""
    if not isinstance(made, ast.Call):
        return {"model.hf_assets_path": values.of(made)} if section == "hf_assets_path" else {}
    if section == "model_spec":
        flavour = str(values.of(made.args[0])) if made.args else ""
        family = function.partition("_" + re.sub(r"\W", "_", flavour.lower()))[0]
        return {"model.flavor": flavour, "model.name": family.removeprefix("sft_")}
    owner, name = callee(made.func)
    if section == "loss":
        return {"loss.kind": "chunked" if owner.startswith("Chunked") else "full_logits"}
    section = section.replace("validator", "validation")
    if section not in _SECTIONS:
        return {}
    found = {f"{section}.{key}": value for key, value in values.named(made).items()}
    found |= {_MODE: _CHECKPOINTS[owner]} if owner in _CHECKPOINTS else {}
    return found | ({"optimizer.early_step_in_backward": True} if "InBackward" in owner + name else {})
