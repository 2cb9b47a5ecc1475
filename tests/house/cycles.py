"""Import cycles between the modules of the package: which modules reach each other.

    python -m tests.house.cycles [SOURCE_ROOT] (src/finegauge if not stated)

Every import counts: of modules, inside functions, under TYPE_CHECKING, and modules named in a string, as
`import_module` and tables of commands have them: "finegauge.cli.plan", "finegauge.cli.plan:command", or
"plan" where the module puts the package before it. A process that is started ("-m", "finegauge...") is no
import. `from package import name` is an import of the module `package.name` where there is one, else of the
package. That a module's packages are imported with it is not counted, unless they are named. The first
version had 13 cycles, 11 of them by import statements alone.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.house.sources import tree_of

Graph = dict[str, set[str]]
Nodes = dict[type[ast.AST], list[Any]]  # of a module, by their type


def main(roots: list[str]) -> int:
    """Print every cycle, and return 1 if there are any."""
    root = Path(roots[0] if roots else Path(__file__).resolve().parents[2] / "src" / "finegauge")
    graph = imports(root)
    found = cycles(graph)
    for group in found:
        print(f"{len(group)} modules: {', '.join(group)}")
        print(f"    {' -> '.join(shortest(graph, group))}")
    print(f"{len(graph)} modules, {sum(map(len, graph.values())):,} imports, {len(found)} cycles")
    return int(bool(found))


def imports(root: Path) -> Graph:
    """Return the modules of the package in `root` that each of them imports."""
    paths = {_module(root, path): path for path in sorted(root.rglob("*.py"))}
    graph: Graph = {}
    for name, path in paths.items():
        nodes: Nodes = defaultdict(list)
        for node in ast.walk(tree_of(path)):
            nodes[type(node)].append(node)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = {_nearest(target, paths) for target in _imported(nodes, package)}
        found |= _named(nodes, package, paths)
        graph[name] = {target for target in found if target is not None} - {name}
    return graph


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _nearest(name: str, known: Container[str]) -> str | None:
    """Return `name`, or what stands above it, that is a module."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def _imported(nodes: Nodes, package: str) -> Iterator[str]:
    """Return the dotted names of the import statements of a module in `package`."""
    for node in nodes[ast.Import]:
        yield from (alias.name for alias in node.names)
    for node in nodes[ast.ImportFrom]:
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*above, *filter(None, [base])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _named(nodes: Nodes, package: str, known: Container[str]) -> set[str | None]:
    """Return the modules that a module in `package` names in strings, to import them."""
    started = {
        id(after)
        for node in (*nodes[ast.List], *nodes[ast.Tuple])
        for before, after in pairwise(node.elts)
        if isinstance(before, ast.Constant) and before.value == "-m"
    }
    strings = {
        node.value.partition(":")[0]
        for node in nodes[ast.Constant]
        if isinstance(node.value, str) and id(node) not in started
    }
    names = {name for name in strings if "." in name and name in known}
    if any(map(_composes, nodes[ast.Call])):
        names |= {f"{above}.{name}" for above in {package, *names} for name in strings if name.isidentifier()}
    return {name for name in names if name in known}


def _composes(call: ast.Call) -> bool:
    """Return whether this is `import_module` of a name that is put together."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return function == "import_module" and bool(call.args) and isinstance(call.args[0], ast.JoinedStr)


def cycles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected groups of two modules or more, the largest first (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            at = stack.index(name)
            groups.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 4 * len(graph) + 1000))
    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def shortest(graph: Graph, group: list[str]) -> list[str]:
    """Return a shortest way round within a group."""
    best: list[str] = []
    for start in group:
        ways, seen = [[start]], {start}
        for way in ways:
            if best and len(way) + 1 >= len(best):
                break
            if start in graph[way[-1]]:
                best = [*way, start]
                break
            more = sorted(graph[way[-1]].intersection(group) - seen)
            seen.update(more)
            ways += [[*way, name] for name in more]
    return best


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
