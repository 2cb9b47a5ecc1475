"""The files of the repository, as the house rules read them."""

import ast
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "finegauge"
MODULES = sorted(PACKAGE.rglob("*.py"))
EXAMPLE = ROOT / "examples" / "mixtral_qlora_commonsense.yaml"


def name_of(path: Path) -> str:
    """Return `path` as a test id: relative to the repository."""
    return str(path.relative_to(ROOT))


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text("utf-8"), filename=str(path))


@cache
def definitions(path: Path) -> tuple[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    """Return the classes and functions of a module, those within others too; no expression is searched."""
    found, left = [], list[ast.AST]([tree_of(path)])
    while left:
        node = left.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, part, ())
    return tuple(found)


@cache
def tracked_files() -> tuple[Path, ...]:
    """Return the files git tracks or would add; skip the test where git cannot tell."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("git: not a clone, so there is no list of tracked files")
    command = [git, "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


@cache
def texts() -> dict[Path, str]:
    """Return the text of every tracked file that is text."""
    found = {}
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content:
            found[path] = content.decode("utf-8", errors="replace")
    return found
