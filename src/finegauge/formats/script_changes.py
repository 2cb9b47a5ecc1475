"""What lines of Python set within what a name holds, and what calls hand the text's own functions.

Set is by args.size = 2, config["a"]["b"] = 8, words.update(a=1); handed is what a function takes that is
called once.
"""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from finegauge.formats.sheet import held_by
from finegauge.records import NamedTuple

OPAQUE = object()  # what only running a text would tell
Handed = dict[tuple[tuple[int, ...], str], ast.expr]  # {(lines of a function, argument): value}; "": the call


class Change(NamedTuple):
    """One value that is set within what a name holds."""

    path: tuple[ast.expr, ...]  # keys, the outermost first
    value: ast.expr
    sure: bool  # in no branch that may not be taken
    merges: bool  # the entries of a mapping, laid over what is there


def callee(function: ast.expr) -> tuple[str, str]:
    """Return (owner, name) of what is called: ("FastLanguageModel", "from_pretrained")."""
    if isinstance(function, ast.Attribute):
        return last_name(function.value), function.attr
    return "", last_name(function)


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a dotted name, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def changes_of(nodes: Sequence[ast.AST], holds: Callable[[ast.expr], bool]) -> dict[str, list[Change]]:
    """Return what is set within names, {name: changes}; `holds`: whether a condition is known to."""
    found: dict[str, list[Change]] = {}
    doubtful = set[int]()
    for node in nodes:
        if isinstance(node, ast.For | ast.While) or (isinstance(node, ast.If) and not holds(node.test)):
            doubtful |= {id(part) for part in ast.walk(node)}
    for node in nodes:
        function = getattr(node, "func", None)
        if isinstance(node, ast.Assign | ast.AugAssign):
            place, values = node.targets[0] if isinstance(node, ast.Assign) else node.target, [node.value]
        elif isinstance(node, ast.Call) and isinstance(function, ast.Attribute) and function.attr == "update":
            named = ast.Call(ast.Name("dict", ast.Load()), [], node.keywords, lineno=node.lineno)
            place, values = function.value, [*node.args[:1], *([named] if node.keywords else [])]
        else:
            continue
        path = list[ast.expr]()
        if isinstance(place, ast.Call) and last_name(place.func) == "vars" and place.args:
            place = place.args[0]
        while isinstance(place, ast.Attribute | ast.Subscript):
            key = ast.Constant(place.attr) if isinstance(place, ast.Attribute) else place.slice
            path[:0] = [] if getattr(key, "value", "") == "__dict__" else [key]
            place = place.value
        if isinstance(place, ast.Name) and place.id != "self" and (path or function):
            sure = id(node) not in doubtful and not isinstance(node, ast.AugAssign)
            changes = [Change(tuple(path), value, sure, function is not None) for value in values]
            found.setdefault(place.id, []).extend(changes)
    return found


def changed(held: dict[str, Any], changes: Sequence[Change], of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a mapping with what is set within it; `of` returns what an expression comes to."""
    result = dict(held)
    for path, value, sure, merges in changes:
        keys, place, told = [of(part) for part in path], result, of(value)
        if not all(isinstance(key, str) for key in keys):
            continue
        for key in keys if merges else keys[:-1]:
            below = of(place.get(key, OPAQUE))
            place[key] = place = dict(below) if isinstance(below, dict) else {}
        entries = {keys[-1]: told} if not merges else told if isinstance(told, dict) else held_by(told) or {}
        for key, one in entries.items():
            place[key] = one if sure or of(place.get(key, OPAQUE)) == of(one) else OPAQUE
    return result


def handed(nodes: Sequence[ast.AST], classes: Collection[str], assigned: Callable[[str], Any]) -> Handed:
    """Return what arguments of functions are that the text calls once; `assigned`: a name's one value."""
    methods = {id(one): node.name for node in nodes if isinstance(node, ast.ClassDef) for one in node.body}
    functions = [
        (methods.get(id(one), "") if one.name == "__init__" else one.name, one)
        for one in nodes
        if isinstance(one, ast.FunctionDef)
    ]
    uses = Counter([name for name, _ in functions])
    read = [one for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    uses.update(one.id for one in read)
    found, called = Handed(), dict[str, list[ast.Call]]()
    for node in nodes:
        if isinstance(node, ast.Call) and (call := _own_call(node, classes, assigned)):
            called.setdefault(last_name(call.func), []).append(call)
    for name, function in functions:
        taken, calls = function.args, called.get(name, ())
        if len(calls) != 1 or uses[name] > 2 or calls[0] in ast.walk(function):
            continue
        names = [one.arg for one in (*taken.posonlyargs, *taken.args)]
        by_name = {str(one.arg): one.value for one in calls[0].keywords}  # "None" of what ** unpacks
        defaults = zip(names[len(names) - len(taken.defaults) :], taken.defaults, strict=True)
        others = zip([one.arg for one in taken.kwonlyargs], taken.kw_defaults, strict=True)
        unasked = {name: value for name, value in (*defaults, *others) if value}
        told = dict(zip(names[id(function) in methods :], calls[0].args, strict=False)) | by_name
        if any(isinstance(one, ast.Starred) for one in calls[0].args):
            told = by_name
        elif "None" not in by_name:
            told = unasked | told
        if taken.kwarg:
            rest = {name: value for name, value in by_name.items() if name not in {*names, *unasked}}
            told[taken.kwarg.arg] = ast.Dict([ast.Constant(name) for name in rest], [*rest.values()])
        stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(
            node.ctx, ast.Store)}  # fmt: skip
        body = (function.body[0].lineno, function.end_lineno or 0)
        found |= {(body, name): value for name, value in told.items() if name not in stored}
        found[body, ""] = calls[0]
    return found


def _own_call(node: ast.Call, classes: Collection[str], assigned: Callable[[str], Any]) -> ast.Call | None:
    """Return the call of one of the text's own functions that a call is, or hands on: partial(f, size=2)."""
    owner, told = getattr(node.func, "value", None), {one.arg: one.value for one in node.keywords}
    if last_name(node.func) == "partial" and node.args:
        return ast.Call(node.args[0], node.args[1:], node.keywords, lineno=node.lineno)
    if last_name(node.func) == "map" and node.args and isinstance(node.args[0], ast.Name):
        return ast.Call(node.args[0], [], [], lineno=node.lineno)
    if "train_loop_config" in told:  # Ray's
        loop = told.get("train_loop_per_worker") or (node.args or [node])[0]
        return ast.Call(loop, [told["train_loop_config"]], [], lineno=node.lineno)
    made = assigned(last_name(owner)) if isinstance(owner, ast.Name) else owner
    own = isinstance(made, ast.Call) and last_name(made.func) in classes
    return node if not owner or own or last_name(owner) in ("self", "cls", *classes) else None
