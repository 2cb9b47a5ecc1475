"""No module of the package imports itself by way of others: neither late, nor for types, nor by a string."""

from pathlib import Path

from tests.house.cycles import cycles, imports, shortest
from tests.house.sources import PACKAGE


def test_no_import_cycles() -> None:
    graph = imports(PACKAGE)
    assert len(graph) > 10
    found = [" -> ".join(shortest(graph, group)) for group in cycles(graph)]
    assert not found, "\n".join(found)


def test_every_kind_of_import_counts(tmp_path: Path) -> None:
    root = tmp_path / "house"
    texts = {
        "__init__": "",
        "late": "def f():\n    from house import typed\n",
        "typed": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.string import name\n",
        "string": 'COMMANDS = {"run": ("house.relative:run", "help")}\n',
        "relative": "from . import late\nimport house.alone\n",
        "alone": "import sys\nCHILD = [sys.executable, '-m', 'house.late']\n",
        "table": "from importlib import import_module\nONE = 'row'\nimport_module(f'house.{ONE}')\n",
        "row": "from house.table import ONE\n",
    }
    root.mkdir()
    for name, text in texts.items():
        (root / f"{name}.py").write_text(text, "utf-8")
    graph = imports(root)
    ring = ["house.late", "house.typed", "house.string", "house.relative"]
    assert cycles(graph) == [sorted(ring), ["house.row", "house.table"]]
    assert shortest(graph, sorted(ring)) == [*ring, "house.late"]
    assert graph["house.alone"] == set()
