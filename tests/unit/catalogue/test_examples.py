"""The examples: all that are in the repository, from a checkout and from an installation."""

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from finegauge.catalogue import examples
from finegauge.cli import root
from finegauge.errors import InputError, UnknownNameError
from tests.house.sources import ROOT, tracked_files

FOLDER = ROOT / "examples"


def test_every_example_of_the_repository_is_listed() -> None:
    inside = [path.relative_to(FOLDER) for path in tracked_files() if path.is_relative_to(FOLDER)]
    names = {path.with_suffix("").as_posix() for path in inside if path.parts[0] != "models"}
    assert set(examples.examples()) == names
    assert all(examples.about(name) for name in names)


def test_every_example_is_installed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["data-files"]
    installed = {
        f"{target}/{path.name}"
        for target, globs in data.items()
        for glob in globs
        for path in ROOT.glob(glob)
    }
    for path in tracked_files():
        if path.is_relative_to(FOLDER):
            assert f"share/finegauge/{path.relative_to(ROOT).as_posix()}" in installed, path
    assert "share/man/man1/finegauge.1" in installed


def test_an_installation_finds_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed(metadata.PackagePath):
        def locate(self) -> Path:
            return FOLDER / Path(*self.parts[6:])

    record = [Installed(f"../../../share/{path}") for path in ("finegauge/examples/tiny_moe.yaml", "man/x.1")]
    monkeypatch.setattr(metadata, "files", lambda name: record)
    monkeypatch.setattr(examples, "__file__", str(tmp_path / "site-packages/finegauge/catalogue/examples.py"))
    assert list(examples.examples()) == ["tiny_moe"]
    assert "models/tiny_moe" in examples.example_text("tiny_moe")

    def nothing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", nothing)
    assert not examples.examples()


def test_a_copy_has_the_model_that_it_names_and_answers(tmp_path: Path) -> None:
    written = examples.copy("modules/finetune", str(tmp_path))
    assert {Path(path).relative_to(tmp_path).as_posix() for path in written} == {
        "modules/finetune.yaml",
        "models/tiny_llama/config.json",
    }
    asked = ["estimate", str(tmp_path / "modules/finetune.yaml"), "--gpu", "a40"]
    assert CliRunner().invoke(root, asked).exit_code == 0
    with pytest.raises(InputError, match="is there already"):
        examples.copy("modules/finetune", str(tmp_path))
    assert len(examples.copy("modules/serve", str(tmp_path))) == 1  # its model is there


def test_the_command(tmp_path: Path) -> None:
    listed = CliRunner().invoke(root, ["examples"]).output
    assert all(name in listed for name in examples.examples())
    printed = CliRunner().invoke(root, ["examples", "tiny_moe"]).output
    assert printed == (FOLDER / "tiny_moe.yaml").read_text("utf-8")
    assert CliRunner().invoke(root, ["examples", "--to", str(tmp_path)]).exit_code == 0
    assert len(list(tmp_path.rglob("*.yaml"))) == len(list(FOLDER.rglob("*.yaml")))


def test_an_unknown_example() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'tiny_moe'"):
        examples.copy("tiny_mo", ".")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(InputError, match="Cannot write"):
        examples.copy("tiny_moe", str(tmp_path / "file"))
