"""What users install has every file that the checkout has."""

import re
import tomllib
from pathlib import PurePosixPath

from packaging.requirements import Requirement

import finegauge
from tests.house.manual import PAGE, page
from tests.house.sources import PACKAGE, ROOT, tracked_files


def test_every_file_of_the_package_is_installed_with_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    globs = [PurePosixPath(glob) for glob in project["tool"]["setuptools"]["package-data"]["finegauge"]]
    inside = [path for path in tracked_files() if path.is_relative_to(PACKAGE) and path.suffix != ".py"]
    names = [PurePosixPath(path.relative_to(PACKAGE).as_posix()) for path in inside]
    assert len(names) > 50
    missed = [n for n in names if not any(len(n.parts) == len(g.parts) and n.match(str(g)) for g in globs)]
    assert not missed
    unused = [g for g in globs if not any(len(n.parts) == len(g.parts) and n.match(str(g)) for n in names)]
    assert not unused


def test_a_plain_install_plans() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {Requirement(one).name for one in project["dependencies"]} == {"click", "numpy", "PyYAML", "rich"}
    assert project["optional-dependencies"]["plan"] == []  # for those who name it


def test_the_manual_page_is_that_of_the_program() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale; run 'make readme'"


def test_the_api_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert not [name for name in finegauge.__all__ if f"`finegauge.{name}" not in text]


def test_torch_is_pinned_where_tests_run_and_a_range_where_users_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (pinned,) = re.findall(r"^TORCH := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert f"torch=={pinned}" in extras["dev"]
    (span,) = [one for one in extras["measure"] if one.startswith("torch>")]
    assert Requirement(span).specifier.contains(pinned)
