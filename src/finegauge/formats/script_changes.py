"""What lines of Python set within what a name holds: args.size = 2, config["lora"]["r"] = 8, words.update(a=1)."""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from finegauge.records import NamedTuple


class Change(NamedTuple):
    """One value that is set within what a name holds."""

    path: tuple[ast.expr, ...]  # keys, the outermost first
    value: ast.expr
    sure: bool  # whatever else is true
    merges: bool = False  # the entries of a mapping, laid over what is there


def changes_of(nodes: Sequence[ast.AST], decided: Callable[[ast.expr], bool]) -> dict[str, list[Change]]:
    """Return what is set within names, {name: changes}; `decided`: whether a condition is known to hold."""
    found: dict[str, list[Change]] = {}
    doubtful = {
        id(part)
        for node in nodes
        if isinstance(node, ast.For | ast.While) or (isinstance(node, ast.If) and not decided(node.test))
        for part in ast.walk(node)
    }
    for node in nodes:
        for target, value, merges in _settings(node):
            path, place = list[ast.expr](), target
            while isinstance(place, ast.Attribute | ast.Subscript):
                path.insert(0, ast.Constant(place.attr) if isinstance(place, ast.Attribute) else place.slice)
                place = place.value
            if isinstance(place, ast.Name) and place.id != "self" and (path or merges):
                sure = id(node) not in doubtful and not isinstance(node, ast.AugAssign)
                found.setdefault(place.id, []).append(Change(tuple(path), value, sure, merges))
    return found


def _settings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield (place, value, whether it merges) of what a statement or a call sets."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value, False) for target in node.targets)
    elif isinstance(node, ast.AugAssign):
        yield node.target, node.value, False
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        mapping = [*node.args[:1], ast.Dict([one.arg and ast.Constant(one.arg) for one in node.keywords],
                                            [one.value for one in node.keywords])]  # fmt: skip
        yield from ((node.func.value, one, True) for one in mapping)


def changed(
    held: dict[str, Any], changes: Sequence[Change], of: Callable[[Any], Any], opaque: Any
) -> dict[str, Any]:
    """Return a mapping with what is set within it; `opaque` stands for what only running the text would tell.

    Args:
        held: What a name holds at first.
        changes: In the order of the text.
        of: Returns what an expression comes to.
        opaque: Of a value that `of` cannot tell, or that is set in a branch that may not be taken.
    """
    result = dict(held)
    for path, value, sure, merges in changes:
        keys, place, told = [of(part) for part in path], result, of(value)
        if not all(isinstance(key, str) for key in keys):
            continue
        for key in keys if merges else keys[:-1]:
            below = of(place.get(key, opaque))
            place[key] = place = dict(below) if isinstance(below, dict) else {}
        entries = (told if isinstance(told, dict) else {}) if merges else {keys[-1]: told}
        for key, one in entries.items():
            place[key] = one if sure or of(place.get(key, opaque)) == of(one) else opaque
    return result
