"""Photographs of every number that the commands print, and the comparison of two of them.

    python -m tests.house.photograph take AFTER.json.gz [--root CHECKOUT] [--quick] [--part NAME]
    python -m tests.house.photograph compare BEFORE.json.gz AFTER.json.gz [--moved MAP.json] [--texts N]

`take` runs the commands of `photo_cases` on the package of CHECKOUT (this one if not stated), through its
public surface alone, so that two versions with nothing in common inside can be compared. `compare` holds
numbers, booleans, nulls and exit codes to 1e-9; a value that is gone is a difference, one that is new is
none. Texts are counted apart, for wording may change. MAP.json is {regular expression: replacement}, laid
over the keys of BEFORE ("command | path/in/its/json"). Exit code 1 where a number differs.
"""

import argparse
import gc
import gzip
import io
import json
import math
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import unified_diff
from glob import glob
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.house.photo_cases import Case, Words, cases

CLOSE = 1e-9  # relative
TIMES = frozenset({"search_s", "finegauge_version"})  # of the clock and of the release, not of the answer
PROCESSES = 2
CASES_PER_PROCESS = 150  # then a fresh one, so that memory stays bounded
PATIENCE_S = 300.0  # for any one command
SHOWN = 20

Shot = dict[str, Any]  # exit code; document, lines, flags or text; error; files


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.house.photograph")
    parts = parser.add_subparsers(dest="command", required=True)
    taking = parts.add_parser("take")
    taking.add_argument("output", type=Path)
    taking.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    taking.add_argument("--quick", action="store_true", help="a subset, in well under a minute")
    taking.add_argument("--part", help="this part alone: examples, plans, campaigns, configs, fields, ...")
    taking.add_argument("--processes", type=int, choices=(1, PROCESSES), default=PROCESSES)
    comparing = parts.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--moved", type=Path, help="JSON: regular expression over the keys of BEFORE to replacement"
    )
    comparing.add_argument(
        "--texts", type=int, default=0, metavar="N", help="show the first N texts that differ"
    )
    comparing.add_argument("--show", type=int, default=SHOWN, metavar="N", help="differences to print")
    given = parser.parse_args()
    if given.command == "take":
        take(given.output.resolve(), given.root.resolve(), given.quick, given.part, given.processes)
        return 0
    moved = json.loads(given.moved.read_text("utf-8")) if given.moved else {}
    return compare(load(given.before), load(given.after), moved, show=given.show, num_texts=given.texts)


# --- taking ---


def take(output: Path, root: Path, quick: bool, part: str | None, processes: int) -> None:
    """Run the cases on the package in `root`, and write what they print."""
    from rich.progress import Progress

    home = tempfile.mkdtemp(prefix="photograph-")
    try:
        _settle(str(root), home)
        todo = [
            (number, case)
            for number, case in enumerate(cases(lambda words: str(_run(words)[1])))
            if (case.quick or not quick) and part in (None, case.part)
        ]
        album: dict[int, dict[str, Shot]] = {}
        fresh: dict[str, Any] = {
            "initializer": _settle,
            "initargs": (str(root), home),
            "maxtasksperchild": CASES_PER_PROCESS,
        }
        with (
            get_context("spawn").Pool(processes, **fresh) as pool,
            Progress(disable=not sys.stderr.isatty()) as bar,
        ):
            task = bar.add_task("photograph", total=len(todo))
            done = pool.imap_unordered(_numbered, todo)
            for _ in todo:
                number, text = done.next(timeout=PATIENCE_S)
                album[number] = json.loads(text)
                bar.advance(task)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    shots = {key: shot for number in sorted(album) for key, shot in album[number].items()}
    if len(shots) < sum(map(len, album.values())):
        raise SystemExit("photograph: two cases run the same commands.")
    data = json.dumps({"format": 1, "shots": shots}, separators=(",", ":")).encode()
    output.write_bytes(gzip.compress(data, compresslevel=6, mtime=0))
    sys.stdout.write(f"{output.name}: {len(shots)} commands, {sum(1 for _ in values(shots)):,} values\n")


def _settle(root: str, home: str) -> None:
    """Stand in `root`, import the package from there, and keep away from the user's own files."""
    os.environ |= {
        "FINEGAUGE_HOME": f"{home}/home",
        "FINEGAUGE_CACHE_DIR": f"{home}/cache",
        "HOME": home,
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TZ": "UTC",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": f"{root}/src",
    }
    for name in ("FINEGAUGE_CALIBRATION", "FORCE_COLOR", "FINEGAUGE_DEBUG"):
        os.environ.pop(name, None)
    os.chdir(root)
    sys.path.insert(0, f"{root}/src")
    import finegauge

    found = str(finegauge.__file__)
    if not found.startswith(f"{root}/src/"):
        raise SystemExit(f"photograph: finegauge was imported from {found}, not from {root}/src.")


def _numbered(item: tuple[int, Case]) -> tuple[int, str]:
    return item[0], shoot(item[1])


def shoot(case: Case) -> str:
    """Return the shots of one case as JSON, by command."""
    folder = tempfile.mkdtemp(prefix="shot-")
    shots: dict[str, Shot] = {}
    try:
        for name, text in case.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{tmp}", folder), "utf-8")
        for words in case.steps:
            key = " ".join(words) + (f" (after: {' '.join(case.steps[0])})" if shots else "")
            if key in shots:
                key += " (again)"
            shots[key] = _shot(words, folder)
            if "--export" in words:
                shots[key]["files"] = _written(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    places = {folder: "TMP", os.environ["HOME"]: "HOME", os.getcwd(): "ROOT"}
    text = json.dumps(shots)
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def _shot(words: Words, folder: str) -> Shot:
    """Return what one command did: its words may end in `> FILE`."""
    asked = [word.replace("{tmp}", folder) for word in words]
    target = asked[-1] if ">" in asked else None
    asked = asked[: asked.index(">")] if target else asked
    asked = [name for word in asked for name in (sorted(glob(word)) if word.endswith("/*") else [word])]
    code, out, error = _run(asked)
    if target:
        Path(target).write_text(out, "utf-8")
    shot: Shot = {"exit": code}
    if error.strip():
        shot["error"] = error
    if words[-1] == "--help":
        shot["flags"] = {flag: True for flag in sorted(set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", out)))}
    document = _parsed(out) if "--json" in asked else None
    return shot | ({"text": out} if document is None else {"document": document})


def _parsed(out: str) -> Any:
    """Return a JSON document, or the list of a document per line; None of other text."""
    try:
        return json.loads(out)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in out.splitlines()] or None
    except ValueError:
        return None


def _written(folder: str) -> dict[str, str]:
    """Return the texts that an export wrote, by file."""
    root = Path(folder, "export")
    return {
        str(path.relative_to(root)): path.read_text("utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _run(words: Sequence[str]) -> tuple[int, str, str]:
    """Return exit code, output and error of one command, run in this process."""
    from finegauge.cli import main as finegauge

    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            finegauge(list(words))
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else int(done.code is not None)
        finally:
            gc.unfreeze()  # what a command does for its short life
            gc.enable()
    return code, out.getvalue(), err.getvalue()


# --- comparing ---


def load(path: Path) -> dict[str, Shot]:
    """Return the shots of a photograph, by command."""
    shots: dict[str, Shot] = json.loads(gzip.decompress(path.read_bytes()))["shots"]
    return shots


def values(shots: dict[str, Shot]) -> Iterator[tuple[str, Any]]:
    """Return every leaf of every shot with its key, "command | path"."""
    for command, shot in shots.items():
        for path, value in _leaves(shot, ()):
            if not TIMES.intersection(path):
                yield f"{command} | {'/'.join(path)}", value


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in items:
            yield from _leaves(value, (*path, str(key)))
        if not node:
            yield path, len(node)  # an empty list is an answer too
    else:
        yield path, node


def compare(
    before: dict[str, Shot],
    after: dict[str, Shot],
    moved: dict[str, str],
    *,
    show: int = SHOWN,
    num_texts: int = 0,
) -> int:
    """Print the differences of two photographs and return 1 if a number differs, else 0."""
    rules = [(re.compile(pattern), new) for pattern, new in moved.items()]
    ours = dict(values(after))
    num_compared = num_same_texts = num_before = 0
    differences: list[tuple[str, str]] = []
    texts: list[tuple[str, str, str]] = []
    for old_key, was in values(before):
        key = old_key
        for pattern, new in rules:
            key = pattern.sub(new, key)
        num_before += 1
        gone = key not in ours
        now = ours.get(key)
        if isinstance(was, str) and isinstance(now, str | None):
            if gone and not _is_row(key):
                differences.append((key, f"{was[:60]!r} is gone"))
            elif was != now:
                texts.append((key, was, str(now or "")))
            else:
                num_same_texts += 1
            continue
        num_compared += 1
        if gone or not _same(was, now):
            differences.append((key, f"{was!r} is gone" if gone else f"{was!r} -> {now!r}"))
    _report(differences, texts, show, num_texts)
    num_new = len(ours) - num_before + sum(text.endswith("is gone") for _, text in differences)
    sys.stdout.write(
        f"{num_compared:,} numbers compared, {len(differences):,} differ; "
        f"{num_same_texts:,} texts are the same, {len(texts):,} differ; {max(num_new, 0):,} values are new.\n"
    )
    return int(bool(differences) or not num_compared)


def _is_row(key: str) -> bool:
    """Return whether a text is one of a list, or printed: where fewer are a matter of wording."""
    path = key.rsplit(" | ", 1)[1].split("/")
    return path[0] in ("text", "error") or path[-1].isdigit()


def _same(was: Any, now: Any) -> bool:
    numbers = (int, float)
    if (
        isinstance(was, bool)
        or isinstance(now, bool)
        or not (isinstance(was, numbers) and isinstance(now, numbers))
    ):
        return was is now or (type(was) is type(now) and was == now)
    return was == now or math.isclose(was, now, rel_tol=CLOSE) or (math.isnan(was) and math.isnan(now))


def _report(
    differences: list[tuple[str, str]], texts: list[tuple[str, str, str]], show: int, num_texts: int
) -> None:
    """Print differences by command, the first ones in full, and the first texts."""
    lines = []
    by_command = Counter(key.split(" ", 1)[0] for key, _ in differences)
    lines += [f"  {name}: {count:,} differences" for name, count in by_command.most_common()]
    lines += [f"    {key}: {text}" for key, text in islice(differences, show)]
    in_texts = Counter(key.split(" ", 1)[0] for key, _, _ in texts)
    if texts:
        lines.append(
            "  texts that differ: " + ", ".join(f"{name} {count:,}" for name, count in in_texts.most_common())
        )
    for key, was, now in islice(texts, num_texts):
        diff = unified_diff(was.splitlines(), now.splitlines(), lineterm="", n=0)
        lines += [f"    {key}", *(f"      {line}" for line in islice(diff, 2, 40))]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
