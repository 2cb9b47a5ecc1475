"""Modules stay under 600 lines and functions under 80, so that each can be read at one sitting."""

import ast

from tests.house.sources import MODULES, definitions, name_of, tree_of

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80


def test_modules_are_short() -> None:
    lengths = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}


def test_modules_say_what_they_answer() -> None:
    assert [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))] == []


def test_functions_are_short() -> None:
    lengths = {
        f"{name_of(path)}: {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in definitions(path)
        if not isinstance(node, ast.ClassDef)
    }
    assert len(lengths) > 1000
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_modules_are_found() -> None:
    assert len(MODULES) > 10
