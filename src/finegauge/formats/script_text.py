"""A Python text as its first training has it: with what it takes from files beside it, and no further.

Definitions that a script imports from its own project stand before its lines, those alone that it uses and
what these use. Branches that its constants rule out, what stands behind a first training, and adapters that
no call is handed say nothing of it, and are taken out.
"""

import ast
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from finegauge.formats.python_values import OPAQUE, Files, Values, callee, last_name

_MAX_NEIGHBOURS = 30
_MAX_NEIGHBOUR = 100_000  # characters
_FAR = 1_000_000  # lines: a neighbour's stand before those of the text that asks for it
_DEFINES = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.If | ast.Import | ast.ImportFrom


def with_neighbours(tree: ast.Module, files: Files) -> None:
    """Put what a script takes from files beside it before its own lines."""
    seen = dict[str, ast.Module | None]()

    def taken(body: Sequence[ast.stmt], folder: str) -> Iterator[ast.stmt]:
        used = [node for one in body for node in ast.walk(one)]
        for node in [one for one in used if isinstance(one, ast.Import | ast.ImportFrom)]:
            for alias in node.names:
                named = alias.name if isinstance(node, ast.Import) else f"{node.module or ''}.{alias.name}"
                below = folder if isinstance(node, ast.ImportFrom) and node.level else ""
                found = _found(below + named.strip(".").replace(".", "/"), files, seen)
                if found:  # a module: its constants are those of a class of that name
                    name = alias.asname or named.rpartition(".")[2]
                    asked = {one.attr for one in used if isinstance(one, ast.Attribute)}
                    asked = {part for part in asked if f"{name}.{part}" in _dotted(used)}
                    held = _definitions(found[0].body, asked)
                    yield from taken(held, found[1])
                    yield from held
                    constants = [one for one in held if isinstance(one, ast.Assign | ast.AnnAssign)]
                    if constants:
                        yield ast.ClassDef(name, [], [], constants, [], lineno=constants[0].lineno)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found = _found(below + node.module.replace(".", "/"), files, seen)
                    held = _definitions(found[0].body, {alias.name}) if found else []
                    yield from taken(held, found[1] if found else "")
                    yield from held

    before = list({id(one): one for one in taken(tree.body, "")}.values())
    tree.body[:0] = before


def _dotted(nodes: Sequence[ast.AST]) -> set[str]:
    """Return what is asked of names, as "name.attribute"."""
    return {f"{last_name(one.value)}.{one.attr}" for one in nodes if isinstance(one, ast.Attribute)}


def _found(
    path: str, files: Files, seen: dict[str, ast.Module | None]
) -> tuple[ast.Module, str] | None:
    """Return a module of the project that is here, and its folder."""
    if path not in seen and len(seen) < 10 * _MAX_NEIGHBOURS:
        text = next(filter(None, (files(f"{up}{path}{end}") for up in ("", "../") for end in (
            ".py", "/__init__.py"))), None)  # fmt: skip
        seen[path] = None
        if text and len(text) <= _MAX_NEIGHBOUR and sum(map(bool, seen.values())) < _MAX_NEIGHBOURS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the text's own escapes
                    seen[path] = ast.parse(text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            for node in ast.walk(seen[path] or ast.Module([], [])):
                if isinstance(node, ast.expr | ast.stmt | ast.arg):
                    node.lineno -= len(seen) * _FAR
                    node.end_lineno = (node.end_lineno or 0) - len(seen) * _FAR
    tree = seen.get(path)
    return (tree, "".join(path.rpartition("/")[:2])) if tree else None


def _definitions(body: Sequence[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
    """Return the statements that define names, "*" of all, and those that these need."""
    by_name = dict[str, list[ast.stmt]]()
    for one in body:
        for name in _names(one) if isinstance(one, _DEFINES) else ():
            by_name.setdefault(name, []).append(one)
    asked, chosen = [*(by_name if "*" in wanted else wanted)], set[str]()
    while asked:
        if (name := asked.pop()) not in chosen:
            chosen.add(name)
            nodes = [node for one in by_name.get(name, ()) for node in ast.walk(one)]
            asked += [node.id for node in nodes if isinstance(node, ast.Name)]
    kept = {id(one) for name in chosen for one in by_name.get(name, ())}
    return [one for one in body if id(one) in kept]


def _names(statement: ast.stmt) -> set[str]:
    """Return what a statement gives names to."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    changed = {last_name(one.value) for one in ast.walk(statement) if isinstance(one, ast.Subscript)}
    return {node.id for node in stored if isinstance(node.ctx, ast.Store)} | changed - {""}


def drop_dead_branches(nodes: Sequence[ast.AST], values: Values) -> bool:
    """Empty the branches whose conditions the text decides the other way; return whether there were any.

    What a function takes unasked decides nothing: its callers may say otherwise.
    """
    taken = [one for one in nodes if isinstance(one, ast.arguments)]
    defaults = {arg.arg for one in taken for arg in [*one.posonlyargs, *one.args, *one.kwonlyargs]}
    dropped = False
    for node in nodes:
        if not isinstance(node, ast.If | ast.IfExp) or any(
            isinstance(part, ast.Name)
            and part.id in defaults
            and not values.is_handed(part)
            and values.of(part) is not OPAQUE
            for part in ast.walk(node.test)
        ):
            continue
        test = values.of(node.test)
        if test is OPAQUE:
            continue
        if isinstance(node, ast.If):
            dead = node.orelse if test else node.body
            dropped |= bool(dead)
            dead[:] = [] if test else [ast.Pass()]
            if test:
                node.test = ast.Constant(value=True)
        else:
            setattr(node, "orelse" if test else "body", ast.Constant(value=None))
            node.test, dropped = ast.Constant(value=bool(test)), True
    return dropped


def drop_later(nodes: Sequence[ast.AST]) -> bool:
    """Drop what stands behind a first training where another follows; return whether one does.

    Adapters that a script defines and hands nobody are dropped likewise.
    """
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = {callee(node.func)[1] for node in nodes if isinstance(node, ast.Call)}
    several = False
    for node in nodes:
        body: Any = getattr(node, "body", None)
        for at, one in enumerate(body if isinstance(body, list) else ()):
            if _trains(one, body[:at]) and any(map(_makes_trainer, body[at + 1 :])):
                del body[at + 1 :]
                several = True
                break
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id not in read and any(
            name.endswith("Trainer") for name in made
        ):
            call = getattr(node, "value", None)
            if isinstance(call, ast.Call) and callee(call.func)[1] == "LoraConfig":
                node.value = ast.Constant(value=None)  # type: ignore[attr-defined]
    return several


def _trains(statement: ast.stmt, before: Sequence[ast.stmt]) -> bool:
    """Return whether a statement is trainer.train() of a trainer that one before it makes."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if not isinstance(call, ast.Call) or callee(call.func)[1] != "train":
        return False
    owner = getattr(call.func, "value", None)
    return _makes_trainer(ast.Expr(owner)) if isinstance(owner, ast.Call) else any(
        isinstance(one, ast.Assign) and last_name(one.targets[0]) == last_name(owner) and _makes_trainer(one)
        for one in before
    )  # fmt: skip


def _makes_trainer(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(callee(call.func)[1].endswith("Trainer") for call in calls)
