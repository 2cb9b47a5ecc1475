"""The lock files hold every package by version and hash, name no index, and fit pyproject.toml."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house.audit import NO_DATABASE, told
from tests.house.sources import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = {"web": ROOT / "requirements" / "web.txt", "dev": ROOT / "requirements" / "dev.txt"}


def locked(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Return (version, its hashes) by package."""
    text = re.sub(r"(?m)^#.*\n", "", path.read_text("utf-8"))
    found: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"\n(?=[A-Za-z0-9])", text):
        name, _, rest = part.partition("==")
        found.setdefault(name.lower().replace("_", "-"), []).append((rest.split()[0], rest))
    return found


def stated(extra: str) -> list[Requirement]:
    """Return what an extra asks for, with the extras that it names and what every install needs."""
    wanted = [Requirement(text) for text in PROJECT["optional-dependencies"][extra] + PROJECT["dependencies"]]
    inner = [
        one for name in wanted if name.name == "finegauge" for part in name.extras for one in stated(part)
    ]
    return inner + [one for one in wanted if one.name != "finegauge"]


@pytest.mark.parametrize("extra", LOCKS)
def test_every_package_has_a_version_and_hashes(extra: str) -> None:
    packages = locked(LOCKS[extra])
    assert len(packages) > 20
    for name, versions in packages.items():
        for version, rest in versions:
            assert version[0].isdigit(), name
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", rest), name


@pytest.mark.parametrize("extra", LOCKS)
def test_the_lock_fits_what_is_asked_for(extra: str) -> None:
    packages = locked(LOCKS[extra])
    for asked in stated(extra):
        versions = packages[asked.name.lower().replace("_", "-")]
        assert any(asked.specifier.contains(version, prereleases=True) for version, _ in versions), asked


@pytest.mark.parametrize("extra", LOCKS)
def test_no_index_is_named(extra: str) -> None:
    text = LOCKS[extra].read_text("utf-8")
    assert not re.search(r"https?:|file:|--(?:extra-)?index|--find-links|--trusted|@ ", text)


def test_both_locks_agree() -> None:
    web, dev = (locked(path) for path in LOCKS.values())
    for name, versions in web.items():
        assert {version for version, _ in versions} == {version for version, _ in dev[name]}, name


@pytest.mark.parametrize(
    ("found", "said", "code"),
    [
        ("", NO_DATABASE, 0),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, NO_DATABASE, 0),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": []}]},
            "1 of 1 packages audited, 0 holes.",
            0,
        ),
        (
            {
                "dependencies": [
                    {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
                ]
            },
            "a 1: CVE-1, mended in 2",
            1,
        ),
    ],
)
def test_what_an_audit_says(found: object, said: str, code: int) -> None:
    text, ended = told(found if isinstance(found, str) else json.dumps(found))
    assert said in text
    assert ended == code
