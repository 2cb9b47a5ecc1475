"""What a training writes while it runs: progress in its output, trainer_state.json, TensorBoard, W&B.

Of a line of output: the steps done and all steps (a progress bar, or what Megatron-LM, torchtitan, torchtune
and NeMo print), and the figures of a log by name. Of a folder: the newest trainer_state.json of transformers,
and the wall time of each step in the event files of TensorBoard, whose records are [length, CRC, bytes, CRC]
around a protocol buffer: field 1 the wall time, field 2 the step.

`run-ID.wandb`, as the client of Weights & Biases keeps it on disk (offline, or beside what it has sent),
begins with 7 bytes (":W&B", a magic number, a version) and is then a log in blocks of 32 KiB, as LevelDB has
it: [checksum, length, kind, bytes], a record in one piece or in several. Of a record's fields are read the
configuration (4 lists of keys and JSON values), the history (what was logged, with its time), the GPU that
the client found, and statistics of the machine.

Sources: tensorboard 2.20, compat/proto/event.proto, lib/io/record_writer.cc; transformers 5.23,
trainer_callback.py; wandb 0.31, proto/wandb_internal.proto and core/pkg/leveldb; protobuf.dev/
programming-guides/encoding (read 2026-11-23).
"""

import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from string import ascii_lowercase
from typing import Any, NamedTuple

from finegauge.documents import num_values, open_regular, parse_json, read_bytes, read_text
from finegauge.errors import FileFormatError

MAX_STATE_BYTES = 5_000_000
MAX_EVENTS_BYTES = 50_000_000
MAX_FOLDERS = 1_000
MAX_STEPS = 10**9
MAX_SHAPES = 10_000  # of lines
_NO_LETTERS = re.compile("[^a-z]+")
_parsed = import_module("re._parser").parse
# tqdm's of a trainer, which has no name; those of data sets and files have one, or count something else
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]{0,200}\|\s*(\d{1,9})/(\d{1,9}) \[.{0,60}(?:it/s|s/it)")
_SPOKEN = re.compile(
    r"\biteration\s+(\d{1,9})/\s*(\d{1,9})\b|\b[Ss]tep:? +(\d{1,9})(?:/(\d{1,9}))?\b|^\d+\|(\d{1,9})\|Loss:"
    r"|\"current_steps\": (\d{1,9}), \"total_steps\": (\d{1,9})"
    r"|\"global_step/max_steps\": \"(\d{1,9})/(\d{1,9})\""
)
_LOSS = re.compile(
    r"['\"]loss['\"]: '?(-?[\d.]{1,20}|nan|inf)|\b(?:lm )?[Ll]oss: ?(-?[\d.eE+-]{1,20}|nan|inf)"
)
EVENT_FILE = "events.out.tfevents"
MAX_VALUE_BYTES = 1_000_000
MAX_LOGGED = 200_000
_HEAD, _BLOCK, _PIECE = 7, 32_768, 7
_HISTORY, _CONFIG, _STATS, _RUN, _ENVIRONMENT = 2, 5, 7, 17, 26  # of a record
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Rules:
    """Regexes by name, in order; a line is asked those alone whose letters it has, which mostly are none."""

    def __init__(self, **named: Sequence[str]) -> None:
        """Compile them."""
        self.names = tuple(named)
        self._rules = [(n, re.compile(rule), _needed(_parsed(rule))) for n in named for rule in named[n]]
        self._asked: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def matches(self, line: str, words: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the names of those that match; `words` are the line's, as `words_of` gives them."""
        if words not in self._asked:
            if len(self._asked) >= MAX_SHAPES:
                self._asked.clear()
            fits = [all(any(run in words for run in one) for one in needed) for _, _, needed in self._rules]
            self._asked[words] = [rule[:2] for rule, fit in zip(self._rules, fits, strict=True) if fit]
        yield from ((name, found) for name, rule in self._asked[words] if (found := rule.search(line)))


def words_of(line: str) -> str:
    """Return a line's letters, with spaces for all else."""
    return _NO_LETTERS.sub(" ", line.lower())


def _needed(parsed: Any) -> list[list[str]]:
    """Return the runs of letters that every match of a regex has: one of each list."""
    needed: list[list[str]] = []
    run = ""
    for operator, value in [*parsed, ("end", None)]:
        if str(operator) == "LITERAL" and (letter := chr(value).lower()) in ascii_lowercase:
            run += letter
            continue
        needed, run = [*needed, [run]] if run else needed, ""
        if str(operator) == "SUBPATTERN":
            needed += _needed(value[3])
        elif str(operator) == "BRANCH" and all(ways := [_needed(one) for one in value[1]]):
            needed.append([run for one in ways for run in max(one, key=lambda runs: min(map(len, runs)))])
    return needed


class Progress(NamedTuple):
    """How far a training is."""

    done: int  # optimizer steps
    total: int = 0  # 0: not known
    at_s: float = 0.0  # wall time; 0: now


def progress_of(line: str) -> Progress | None:
    """Return how far a line of output says that the training is; None where it says nothing."""
    if found := _BAR.search(line):
        return Progress(int(found[1]), int(found[2]))
    if found := _SPOKEN.search(line):
        numbers = [int(one) for one in found.groups() if one is not None]
        return Progress(*numbers[:2])
    return None


def loss_of(line: str) -> float | None:
    """Return the loss that a line of output states."""
    found = _LOSS.search(line)
    with suppress(ValueError):
        return float(found[1] or found[2]) if found else None
    return None


def state_of(folder: str, since_s: float = 0.0) -> Progress | None:
    """Return how far the newest trainer_state.json below a folder is; None where there is none to read.

    One that was not written after `since_s` is not read again.
    """
    newest: tuple[float, str] = since_s, ""
    for path in files_below(folder, lambda name, _: name.startswith("trainer_state.json")):
        with suppress(OSError):
            written_s = os.stat(path).st_mtime
            newest = max(newest, (written_s, path)) if written_s > since_s else newest
    if not newest[1]:
        return None
    try:
        state = parse_json(read_text(newest[1], MAX_STATE_BYTES), newest[1])
    except FileFormatError:  # half written
        return None
    done, total = map(state.get, ("global_step", "max_steps")) if isinstance(state, dict) else ("", "")
    if not isinstance(done, int) or not isinstance(total, int) or not 0 <= done <= MAX_STEPS >= total >= 0:
        return None
    return Progress(done, total, newest[0])


def steps_of(folder: str, offsets: dict[str, int] | None = None) -> tuple[Progress, ...]:
    """Return the steps that the event files below a folder tell, each with its wall time, in their order.

    `offsets` keeps how far each file has been read: asked again with it, only what is new is told.
    """
    found: dict[int, Progress] = {}
    offsets = {} if offsets is None else offsets
    for path in files_below(folder, lambda name, _: name.startswith(EVENT_FILE)):
        for record in records(path, offsets.get(path, 0)):
            offsets[path] = offsets.get(path, 0) + len(record) + 16
            event = dict(fields(record))
            wall_s, step = event.get(1), event.get(2, 0)
            if not isinstance(wall_s, float) or not isinstance(step, int) or not 0 < step <= MAX_STEPS:
                continue
            if step not in found or wall_s < found[step].at_s:
                found[step] = Progress(step, 0, wall_s)
    return tuple(found[step] for step in sorted(found))


def files_below(
    top: str, is_wanted: Callable[[str, str], bool], *, levels: int = 3, folders: int = MAX_FOLDERS
) -> Iterator[str]:
    """Yield the files wanted by their name and folder, in a folder and below it; links are not followed."""
    pending, seen = [(top, 0)], 0
    while pending and seen < folders:
        place, depth = pending.pop()
        seen += 1
        with suppress(OSError), os.scandir(place) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.is_file(follow_symlinks=False) and is_wanted(entry.name, place):
                    yield entry.path
                elif depth < levels and entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, depth + 1))


def records(path: str, begin: int = 0) -> Iterator[bytes]:
    """Yield the records of an event file from a byte on; what is torn or no event file ends it."""
    with suppress(OSError), open(open_regular(path), "rb") as file:
        file.seek(begin)
        data = file.read(MAX_EVENTS_BYTES)
        at = 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            if size > len(data) - at - 16:
                return
            yield data[at + 12 : at + 12 + size]
            at += size + 16


class Logged(NamedTuple):
    """What a run of Weights & Biases tells."""

    config: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]  # of each time it logged: figures by name, "_timestamp", "_step"
    gpu: str  # "" where none was found
    num_gpus: int
    statistics: tuple[Mapping[str, Any], ...]  # of the machine, as "gpu.0.memoryAllocatedBytes"


def read_records(path: str) -> Logged:
    """Return what a `.wandb` file holds.

    Raises: FileFormatError for a file that is none.
    """
    data = read_bytes(path, MAX_EVENTS_BYTES)
    if data[:4] != b":W&B":
        raise FileFormatError("it is no file of Weights & Biases: it does not begin with ':W&B'")
    config: dict[str, Any] = {}
    history, statistics = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    gpu, num_gpus = "", 0
    for record in _records(data):
        for number, value in fields(record):
            if not isinstance(value, bytes):
                continue
            if number == _CONFIG:
                config |= _items(value, 1)
            elif number == _RUN:
                config |= {key: one for n, v in fields(value) if n == 4 for key, one in _items(v, 1).items()}
            elif number == _HISTORY and len(history) < MAX_LOGGED:
                history.append(_items(value, 1))
            elif number == _STATS and len(statistics) < MAX_LOGGED:
                statistics.append(_items(value, 3))
            elif number == _ENVIRONMENT:
                gpu, num_gpus = _gpu(value)
    return Logged(config, tuple(history), gpu, num_gpus, tuple(statistics))


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of the log; a torn one ends it."""
    at, pieces = _HEAD, list[bytes]()
    while at + _PIECE <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PIECE:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        at += _PIECE
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or at + size > len(data):
            return
        if kind in (_FULL, _FIRST):
            pieces.clear()
        pieces.append(data[at : at + size])
        at += size
        if kind in (_FULL, _LAST):
            yield b"".join(pieces)


def _items(message: bytes, number: int) -> dict[str, Any]:
    """Return key and value of each item, which are the fields `number` of a message."""
    found: dict[str, Any] = {}
    for field, item in fields(message):
        if field != number or not isinstance(item, bytes):
            continue
        names, value = list[bytes](), None
        for place, content in fields(item):
            if place in (1, 2) and isinstance(content, bytes):
                names.append(content)
            elif place in (5, 6):  # typed numbers, as newer clients may write them
                value = content
            elif place in (8, 16) and isinstance(content, bytes):
                value = json_value(content)
        if names and value is not None:
            found["/".join(name.decode("utf-8", errors="replace") for name in names)] = value
    return found


def json_value(text: bytes) -> Any:
    """Return a JSON value; None for one that is none, or is deeper or larger than any setting."""
    try:
        value = json.loads(text) if len(text) <= MAX_VALUE_BYTES else None
    except (ValueError, RecursionError):
        return None
    return value if num_values(value) is not None else None


def _gpu(environment: bytes) -> tuple[str, int]:
    found = dict(fields(environment))
    name, number = found.get(18, b""), found.get(19, 0)
    text = name.decode("utf-8", errors="replace")[:100] if isinstance(name, bytes) else ""
    return text, number if isinstance(number, int) and 0 <= number <= 1024 else 0


def fields(record: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: a whole number, a float, or the bytes of a text or a message.

    What is torn or no protocol buffer ends it.
    """
    at = 0
    while at < len(record):
        key, at = _varint(record, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(record, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = _varint(record, at)
            if size > len(record) - at:
                return
            yield key >> 3, record[at : at + size]
            at += size
        elif kind in (1, 5):
            layout, size = ("<d", 8) if kind == 1 else ("<f", 4)
            if size > len(record) - at:
                return
            yield key >> 3, struct.unpack_from(layout, record, at)[0]
            at += size
        else:
            return


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(record) and shift < 64:
        byte = record[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at
