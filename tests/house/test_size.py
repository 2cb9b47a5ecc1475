"""Modules stay under 600 lines and functions under 80, so that each can be read at one sitting."""

import ast
from pathlib import Path

import pytest

from tests.house.sources import MODULES, name_of, tree_of

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 80


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_short_and_says_what_it_answers(path: Path) -> None:
    num_lines = len(path.read_text("utf-8").splitlines())
    assert num_lines <= MAX_MODULE_LINES, f"{name_of(path)} has {num_lines} lines"
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_short(path: Path) -> None:
    lengths = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    too_long = {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}
    assert not too_long, f"{name_of(path)}: functions over {MAX_FUNCTION_LINES} lines: {too_long}"


def test_modules_are_found() -> None:
    assert len(MODULES) > 10
