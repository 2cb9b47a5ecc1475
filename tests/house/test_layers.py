"""The layers of the house stand in one list: the linter's is CONTRIBUTING's."""

import re
import tomllib

from tests.house.sources import ROOT

Layers = list[frozenset[str]]


def linted() -> Layers:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert len(contracts) == 1
    assert "ignore_imports" not in contracts[0], "no exception to the layers"
    return [frozenset(re.split(r"\s*\|\s*", layer)) for layer in contracts[0]["layers"]]


def written(text: str) -> Layers:
    return [frozenset(re.split(r"\s*\|\s*", layer)) for layer in re.findall(r"`([a-z_ |]+)`", text)]


def test_contributing_lists_the_layers_of_the_linter() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    chain = text[text.index("`cli` →") :].partition("\n\n")[0]
    assert written(chain) == linted()


def test_siblings_are_kept_apart_and_nothing_is_left_out() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.importlinter]")[2]
    assert " : " not in text, "siblings may not import each other: '|', not ':'"
    package = ROOT / "src" / "finegauge"
    rooms = {
        path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert rooms - {"__init__", "__main__"} == frozenset().union(*linted())
