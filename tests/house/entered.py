"""How much code one question enters: files and functions of the package, seen by `sys.setprofile`.

    python -m tests.house.entered [--root CHECKOUT] [--list]

A function is what is called, told apart by file, name and first line: functions and methods, lambdas,
comprehensions and generator expressions (frames of their own up to Python 3.11), and bodies of classes,
which run where a module is imported late. Bodies of modules (imports) and what dataclasses write for
themselves are left out. Each command runs in a process of its own. The first version: 100 files and 785
functions for `estimate`, 114 and 1,150 for `plan`.
"""

import argparse
import io
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

COMMANDS = (
    ("estimate", "examples/mixtral_qlora_commonsense.yaml", "--gpu", "a40"),
    ("plan", "examples/plans/mixtral_qlora.yaml"),
)
COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
OPTIMISED = 0x1  # flag of a code object: a function's, not a class body's

Entered = list[tuple[str, str, int, str]]  # file, name, first line, kind


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.entered")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--list", action="store_true", help="every function, by file")
    parser.add_argument("--one", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    root = given.root.resolve()
    if given.one:
        sys.stdout.write(json.dumps(entered(root, given.one)))
        return
    for words in COMMANDS:
        asked = [sys.executable, "-m", "tests.house.entered", "--root", str(root), "--one", *words]
        own = Path(__file__).resolve().parents[2]
        answer = subprocess.run(asked, cwd=own, capture_output=True, text=True, check=True).stdout
        print_entered(
            " ".join(words), [(file, name, line, kind) for file, name, line, kind in json.loads(answer)]
        )
        if given.list:
            print_functions([(file, name, line, kind) for file, name, line, kind in json.loads(answer)])


def entered(root: Path, words: list[str]) -> Entered:
    """Return what `words` enter of the package in `root`; this process can be used once."""
    package = f"{root}/src/finegauge/"
    os.chdir(root)
    sys.path.insert(0, f"{root}/src")
    os.environ |= {
        "FINEGAUGE_HOME": "/nonexistent",
        "FINEGAUGE_CACHE_DIR": "/nonexistent",
        "PYTHONPATH": f"{root}/src",
    }
    from finegauge.cli import main as finegauge

    codes: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    with redirect_stdout(io.StringIO()):
        sys.setprofile(profile)
        try:
            finegauge(words)
        except SystemExit as done:
            if done.code:
                raise
        finally:
            sys.setprofile(None)
    found = {
        (code.co_filename.removeprefix(package), code.co_qualname, code.co_firstlineno, _kind(code))
        for code in codes
        if code.co_filename.startswith(package) and code.co_name != "<module>"
    }
    by_key = {
        (file, name.rpartition(".")[2], line): (file, name, line, kind) for file, name, line, kind in found
    }
    return sorted(by_key.values())


def _kind(code: CodeType) -> str:
    if not code.co_flags & OPTIMISED:
        return "class bodies"
    if code.co_name in COMPREHENSIONS:
        return "comprehensions"
    return "lambdas" if code.co_name == "<lambda>" else "functions"


def print_entered(command: str, found: Entered) -> None:
    """Print the counts of one command."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(kind for *_, kind in found).most_common())
    files = len({file for file, *_ in found})
    print(f"{command}: {files} files, {len(found):,} functions ({kinds})")


def print_functions(found: Entered) -> None:
    """Print every function, by file."""
    by_file: dict[str, list[str]] = {}
    for file, name, line, _ in found:
        by_file.setdefault(file, []).append(f"{line}: {name}")
    for file, names in sorted(by_file.items(), key=lambda item: -len(item[1])):
        print(f"  {file}: {len(names)}")
        for name in names:
            print(f"    {name}")


if __name__ == "__main__":
    main()
