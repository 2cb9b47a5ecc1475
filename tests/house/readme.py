"""What README.md shows and a program knows better: the file tree, and what the command prints.

`python -m tests.house.readme` (make readme) rewrites both between their marks. The tree comes from the
first sentences of the module docstrings, and a test keeps it true; the output ages with the prices.
"""

import ast
import os
import re
import subprocess
import sys

from tests.house.sources import EXAMPLE, PACKAGE, ROOT, tree_of

TREE_MARKS = "<!-- tree: make readme -->", "<!-- end of tree -->"
OUTPUT_MARKS = "<!-- output: make readme -->", "<!-- end of output -->"


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, without its full stop."""
    paragraph = " ".join(docstring.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[^.])\.(?:\s|$)", paragraph, maxsplit=1)[0]


def rooms() -> dict[str, str]:
    """Return what each package and module at the top of `finegauge` is for."""
    found = {}
    for path in sorted(PACKAGE.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix != ".py" or not source.is_file() or path.name == "__init__.py":
            continue
        name = f"{path.name}/" if path.is_dir() else path.name
        found[name] = first_sentence(ast.get_docstring(tree_of(source)) or "")
    return found


def tree() -> str:
    """Return the file tree as README.md shows it."""
    return "\n".join(["src/finegauge/", *(f"  {name:<14} {sentence}" for name, sentence in rooms().items())])


def output() -> str:
    """Return what `finegauge estimate` prints for the example, at 100 columns."""
    example = EXAMPLE.relative_to(ROOT).as_posix()
    done = subprocess.run(
        [sys.executable, "-m", "finegauge", "estimate", example],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.rstrip() for line in done.stdout.rstrip().splitlines())
    return "\n".join([f"$ finegauge estimate {example}", *lines])


def between(marks: tuple[str, str], content: str) -> str:
    """Return `content` as a block between its two marks."""
    start, end = marks
    return f"{start}\n```text\n{content}\n```\n{end}"


def main() -> None:
    """Rewrite both blocks of README.md."""
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    for marks, content in ((TREE_MARKS, tree()), (OUTPUT_MARKS, output())):
        before, _, rest = text.partition(marks[0])
        _, _, after = rest.partition(marks[1])
        text = before + between(marks, content) + after
    readme.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
