"""No tracked file names a path of one machine, and nothing is left open in code or tests."""

import re

from tests.house.sources import ROOT, texts

# Put together from pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.])/(" + "work|farm|root" + r")/|\." + "library/")
LEFT_OPEN = re.compile(r"TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error")
XFAIL = re.compile(r"pytest\.mark\." + r"(skip\b|xfail)")


def hits(pattern: re.Pattern[str], *folders: str, suffixes: tuple[str, ...] = ()) -> list[str]:
    """Return "file:line" for every match of `pattern` in the tracked text files."""
    found = []
    for path, text in texts().items():
        name = path.relative_to(ROOT).as_posix()
        if (folders and not name.startswith(folders)) or (suffixes and path.suffix not in suffixes):
            continue
        found += [f"{name}:{n}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    return found


def test_no_path_of_this_machine() -> None:
    assert hits(MACHINE_PATH) == []


def test_nothing_left_open() -> None:
    assert hits(LEFT_OPEN, "src/", "tests/", "benchmarks/", "examples/", suffixes=(".py",)) == []


def test_no_test_is_switched_off() -> None:
    found = [
        hit for hit in hits(XFAIL, "tests/", suffixes=(".py",)) if not hit.startswith("tests/conftest.py")
    ]
    assert found == []


def test_contributing_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines()) < 60
