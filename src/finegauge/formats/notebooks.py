"""A notebook's cells: its Python, its lines for the shell, and the files that they write."""

import ast
import re
import shlex
from collections.abc import Iterator

from finegauge.documents import parse_json
from finegauge.errors import FileFormatError

MAX_SCRIPT = 400_000  # characters


def cells(text: str, name: str) -> tuple[str, str, dict[str, str]]:
    """Return a notebook's Python, its shell lines, and the files that its cells write.

    Raises: FileFormatError for text that is no notebook.
    """
    notebook = parse_json(text, name)
    listed = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(listed, list):
        raise FileFormatError(f"{name} is no notebook: it holds no list of cells.")
    python, shell, files = list[str](), list[str](), dict[str, str]()
    left = MAX_SCRIPT
    for cell in listed:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        code = "".join(map(str, source)) if isinstance(source, list) else str(source or "")
        left -= len(code)
        if left < 0:
            raise FileFormatError(f"{name} is too long; at most {MAX_SCRIPT:,} characters of code are read.")
        first, _, rest = code.lstrip("\n").partition("\n")
        magic = re.match(r"%%(\w+)\s*(?:-a\s+)?(\S*)", first)
        if magic and magic[1] in ("bash", "sh", "script", "shell"):
            shell.append(rest)
        elif magic and magic[1] in ("writefile", "file"):
            files[magic[2]] = rest
        elif not magic or magic[1] in ("capture", "time", "timeit"):
            lines = "\n".join(_plain(rest if magic else code, shell))
            try:
                parsed = ast.parse(lines)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue  # a cell of another language, or a note
            python.append(lines)
            shell += _constants(parsed)
    return "\n".join(python), "\n".join(shell), files


def _constants(tree: ast.Module) -> Iterator[str]:
    """Yield a cell's constants as variables of the shell, whose lines may name them: !python {FILE}."""
    for one in tree.body:
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if (
            isinstance(one, ast.Assign)
            and isinstance(target, ast.Name)
            and isinstance(one.value, ast.Constant)
        ):
            yield f"{target.id}={ast.unparse(one.value)[:1000]}"


def _plain(code: str, shell: list[str]) -> Iterator[str]:
    """Yield a cell's lines of Python; lines for the shell go to `shell`, each leaving a `pass`."""
    continued = False
    for line in code.split("\n"):
        stripped = line.lstrip()
        if continued or stripped.startswith(("!", "%")):
            told = stripped.lstrip("!%") if not continued else stripped
            if continued or stripped.startswith("!"):
                shell.append(re.sub(r"(?<![$\w])\{([A-Za-z]\w*)\}", r"${\1}", told))
            put = re.match(r"%(?:set_)?env\s+(\w+)\s*[= ]\s*(\S+)", stripped)
            shell += [f"export {put[1]}={shlex.quote(put[2])}"] if put else []
            if not continued:
                instead = f'os.environ["{put[1]}"] = {put[2]!r}' if put else "pass"
                yield f"{line[: len(line) - len(stripped)]}{instead}"
            continued = stripped.endswith("\\")
        else:
            yield line
