"""A Python text as its first training has it: a notebook's cells, what a script takes from files beside it.

Definitions that a script imports from its own project stand before its lines: those that it uses, and what
these use. Calls of partial(f, a=1) are those of f. Branches that its constants rule out, what stands behind a
first training, and adapters that no call is handed say nothing of it, and are taken out.
"""

import ast
import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress

from finegauge.documents import parse_json
from finegauge.errors import FileFormatError
from finegauge.formats import MAX_SCRIPT
from finegauge.formats.python_values import Files, Values
from finegauge.formats.script_changes import OPAQUE, callee, last_name

_MAX_SOUGHT, _MAX_NEIGHBOURS = 200, 20  # modules that are looked for, and that are read
_MAX_NEIGHBOUR = 40_000  # characters
_FAR = 1_000_000  # lines: a neighbour's stand before those of the text that asks for it


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


def with_neighbours(tree: ast.Module, files: Files) -> None:
    """Put what a script takes from files beside it before its own lines."""
    seen = dict[str, ast.Module]()  # an empty one where no such file is
    done = set[tuple[str, str]]()

    def module(path: str) -> ast.Module:
        if path not in seen and len(seen) < _MAX_SOUGHT:
            seen[path] = ast.Module([], [])
            named = [f"{up}{path}{end}" for up in ("", "../") for end in (".py", "/__init__.py")]
            text = next(filter(None, map(files, named)), "")
            few = sum(bool(one.body) for one in seen.values()) < _MAX_NEIGHBOURS
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the text's own escapes
                seen[path] = ast.parse(text if few and len(text) < _MAX_NEIGHBOUR else "")
            for node in ast.walk(seen[path]):
                if isinstance(node, ast.expr | ast.stmt | ast.arg):
                    node.lineno, node.end_lineno = (
                        line - len(seen) * _FAR for line in (node.lineno, node.end_lineno or 0)
                    )
        return seen.get(path, ast.Module([], []))

    def taken(body: Sequence[ast.stmt], folder: str) -> list[ast.stmt]:
        used, found = [node for one in body for node in ast.walk(one)], list[ast.stmt]()
        asked = {node.attr for node in used if isinstance(node, ast.Attribute)}
        for node in used:
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                of = str(node.module or "") if isinstance(node, ast.ImportFrom) else ""
                level = node.level if isinstance(node, ast.ImportFrom) else 0
                root = folder + "../" * (level - 1) if level else ""
                whole, part = (
                    root + name.strip(".").replace(".", "/") for name in (f"{of}.{alias.name}", of)
                )
                is_module = bool(module(whole).body)  # its constants are then those of a class of its name
                path, wanted = (whole, asked) if is_module else (part, {alias.name})
                again = (path, alias.name) in done
                done.add((path, alias.name))
                held = _definitions(module(path).body, wanted) if path and not again else []
                found += [*taken(held, "".join(path.rpartition("/")[:2])), *held]
                constants = [one for one in held if isinstance(one, ast.Assign | ast.AnnAssign)]
                found += [] if is_module else _renamed(held, alias)
                if is_module and constants:
                    found.append(ast.ClassDef(alias.asname or alias.name, [], [], [*constants], []))
        return found

    tree.body[:0] = {id(one): one for one in taken(tree.body, "")}.values()


def _renamed(held: Sequence[ast.stmt], alias: ast.alias) -> list[ast.stmt]:
    """Have definitions go by the name that an import gives them; return the line that says so of values."""
    if not held or not alias.asname:
        return []
    for one in held:
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name in (alias.name, alias.asname):
            one.name = alias.asname
            return []
    other = ast.Name(alias.name, ast.Load(), lineno=held[0].lineno)
    return [ast.Assign([ast.Name(alias.asname, ast.Store())], other, col_offset=0)]


def _definitions(body: Sequence[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
    """Return the statements that define or change names, "*" of all, and those that these need."""
    given = [(one, _names(one)) for one in body if not isinstance(one, ast.Expr)]
    asked = {name for _, names in given for name in names} if "*" in wanted else {*wanted}
    kept, count = set[int](), -1
    while len(kept) > count:
        count = len(kept)
        found = [one for one, names in given if id(one) not in kept and names & asked]
        kept |= {id(one) for one in found}
        asked |= {node.id for one in found for node in ast.walk(one) if isinstance(node, ast.Name)}
    return [one for one in body if id(one) in kept]


def _names(statement: ast.stmt) -> set[str]:
    """Return what a statement gives names to, or sets something within."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    nodes = list(ast.walk(statement))
    return {
        *(one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)),
        *(last_name(one.value) for one in nodes if isinstance(one, ast.Subscript)),
        *(one.asname or one.name.partition(".")[0] for one in nodes if isinstance(one, ast.alias)),
    }


def unfold_partials(nodes: Sequence[ast.AST]) -> None:
    """Have calls of a name that is partial(f, a=1) be those of f, with what that hands on."""
    made = {
        last_name(node.targets[0]): node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if last_name(node.value.func) == "partial" and node.value.args
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in made:
            held = made[node.func.id]
            told = {one.arg for one in node.keywords}
            node.func, node.args[:0] = held.args[0], held.args[1:]
            node.keywords += [one for one in held.keywords if one.arg not in told]


def drop_dead_branches(nodes: Sequence[ast.AST], values: Values) -> bool:
    """Empty the branches whose conditions the text decides the other way; return whether there were any.

    What a function takes unasked decides nothing: its callers may say otherwise.
    """
    taken = [one for one in nodes if isinstance(one, ast.arguments)]
    defaults = {arg.arg for one in taken for arg in [*one.posonlyargs, *one.args, *one.kwonlyargs]}
    dropped, left = False, set[str]()
    for node in nodes:
        if not isinstance(node, ast.If | ast.IfExp) or any(
            isinstance(part, ast.Name)
            and part.id in defaults
            and not values.is_handed(part)
            and values.of(part) is not OPAQUE
            for part in ast.walk(node.test)
        ):
            continue
        if (test := values.of(node.test)) is not OPAQUE:
            dead = ("orelse" if test else "body"), isinstance(node, ast.If)
            dropped |= bool(getattr(node, dead[0]))
            behind = getattr(node, dead[0]) if dead[1] else ()
            left |= {one.id for part in behind for one in ast.walk(part) if isinstance(one, ast.Name)}
            empty = [] if test else [ast.Pass()]
            setattr(node, dead[0], empty if dead[1] else ast.Constant(None))
            node.test = ast.Constant(bool(test))
    kept = {one.id for one in ast.walk(nodes[0]) if isinstance(one, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name in left - kept:  # called there alone
            node.body = [ast.Pass(lineno=node.lineno)]
    return dropped


def drop_later(nodes: Sequence[ast.AST]) -> bool:
    """Drop what stands behind a first training where another follows; return whether one does.

    Adapters that a script with a trainer defines and hands nobody are dropped likewise.
    """
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    several, trains = False, any(map(_makes_trainer, nodes))
    for node in nodes:
        body, made = getattr(node, "body", None), set[str]()
        body = body if isinstance(body, list) else []
        for at, one in enumerate(body):
            if isinstance(one, ast.Assign) and any(map(_makes_trainer, ast.walk(one))):
                made.add(last_name(one.targets[0]))
            if _is_train(getattr(one, "value", None), made):
                later = [part for behind in body[at + 1 :] for part in ast.walk(behind)]
                if any(_makes_trainer(part) or _is_train(part, made) for part in later):
                    several = True
                    del body[at + 1 :]
                break
        if trains and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            unread = isinstance(node.targets[0], ast.Name) and node.targets[0].id not in read
            if unread and last_name(node.value.func) == "LoraConfig":
                node.value = ast.Constant(None)
    return several


def _is_train(node: ast.AST | None, trainers: set[str]) -> bool:
    owner = getattr(node.func, "value", None) if isinstance(node, ast.Call) else None
    trains = isinstance(node, ast.Call) and last_name(node.func) == "train"
    return trains and (last_name(owner) in trainers or _makes_trainer(owner))


def _makes_trainer(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and callee(node.func)[1].endswith("Trainer")
