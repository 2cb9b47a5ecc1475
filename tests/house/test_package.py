"""What users install has every file that the checkout has."""

import tomllib
from pathlib import PurePosixPath

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
