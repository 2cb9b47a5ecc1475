"""The size of the package by part: files, lines, and lines of code.

    python -m tests.house.sizes [SOURCE_ROOT]... (src/finegauge if not stated)

Lines of code are those on which a token stands that is no comment and no docstring.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
Size = tuple[int, int, int]  # files, lines, lines of code


def main(roots: list[str]) -> None:
    """Print the table of every root."""
    for root in roots or [str(Path(__file__).resolve().parents[2] / "src" / "finegauge")]:
        table = sizes(Path(root))
        print(f"{root}\n{'package':<16}{'files':>8}{'lines':>10}{'code lines':>12}")
        for name, (files, lines, code) in table.items():
            print(f"{name:<16}{files:>8,}{lines:>10,}{code:>12,}")


def sizes(root: Path) -> dict[str, Size]:
    """Return the size of every package and module right under `root`, and of them all."""
    table: dict[str, Size] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).parts[0]
        text = path.read_text("utf-8")
        files, lines, code = table.get(name, (0, 0, 0))
        table[name] = (files + 1, lines + text.count("\n"), code + code_lines(text))
    files, lines, code = (sum(size[n] for size in table.values()) for n in range(3))
    return {**dict(sorted(table.items(), key=lambda item: -item[1][1])), "all": (files, lines, code)}


def code_lines(text: str) -> int:
    """Return the lines of `text` without blank lines, comments and docstrings."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(found)


if __name__ == "__main__":
    main(sys.argv[1:])
