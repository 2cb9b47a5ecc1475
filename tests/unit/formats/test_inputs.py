"""What people have in hand, and what is understood of it: the table of inputs.yaml.

`python -m tests.unit.formats.test_inputs` prints the table.
"""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from finegauge.errors import FineGaugeError
from finegauge.formats.reading import describe
from finegauge.run.run import Run

INPUTS: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("inputs.yaml").read_text(encoding="utf-8")
)


def text_of(given: dict[str, Any]) -> str:
    """Return the text of an input's file; of cells, the notebook that has them."""
    if "cells" not in given:
        return str(given["text"])
    code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in given["cells"]]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Title\n"]}, *code], "nbformat": 4})


def understood(given: dict[str, Any], folder: Path) -> Run | str:
    """Return the run of an input in `folder`, or the sentence that refuses it."""
    for name, text in given.get("beside", {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    argument = f" -- {given.get('command')}"
    if "file" in given:
        (folder / given["file"]).write_text(text_of(given), encoding="utf-8")
        argument = str(folder / given["file"])
    try:
        return describe(given.get("name") or argument, given.get("with", ()))
    except FineGaugeError as error:
        return str(error)


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given["what"])
def test_an_input_is_understood(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = understood(given, tmp_path)
    if "refused" in given:
        assert isinstance(found, str)
        assert given["refused"] in found
        assert "\n" not in found
        return
    assert isinstance(found, Run), found
    assert {name: plain(getattr(found, name)) for name in given["gives"]} == given["gives"]
    said = " ".join(found.warnings)
    assert given.get("warns", "") in said
    assert "silent" not in given or given["silent"] not in said


def main() -> None:
    """Print the table."""
    for given in INPUTS:
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            found = understood(given, Path(folder))
            os.chdir("/")
        if isinstance(found, Run):
            found = ", ".join(f"{name}={plain(getattr(found, name))}" for name in given["gives"])
        print(f"{given['what']:45} {found}")


if __name__ == "__main__":
    main()
