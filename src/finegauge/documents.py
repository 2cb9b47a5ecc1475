"""Files that users give, read safely, and files written whole or not at all.

Of YAML, JSON and TOML come plain values and nothing else: mappings, lists, text, numbers, true, false and
null. YAML is read as a stream of events with limits on depth and size, so that a bomb of aliases or of
brackets is refused while it is being read. A number such as 2e-4 is a number, as LLaMA-Factory and
torchtune read it and PyYAML does not.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from errno import EINVAL, ELOOP
from functools import lru_cache
from math import isfinite
from stat import S_ISREG
from typing import Any, TypeVar

from finegauge.errors import UNSEEN, FileFormatError, InputError, did_you_mean, shown

MAX_BYTES = 2_000_000  # of a run file or a launcher's
MAX_DOCUMENT_BYTES = 5_000_000  # of rows, configurations and device profiles
MAX_DEPTH = 24
MAX_VALUES = 20_000
MAX_ALIASES = 200
MAX_DOTS = 100  # of a line of TOML
MAX_CELL_CHARS = 100_000  # of a table
MAX_NUMBER = 1e30  # of anything that is counted, measured or paid
SETTLED_AFTER_S = 0.1  # a change of a file within a clock's tick leaves its times as they were
Read = TypeVar("Read")

_CONTROLS = frozenset(map(chr, range(32))) - {"\t", "\n", "\r"}
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_HALF = "[\ud800-\udfff]"  # half a character, which UTF-8 does not write
_NUMERALS = frozenset("0123456789+-.eE_")
_FRACTION = frozenset(".eE")
_PLAIN_LINE = re.compile(
    r'( *)(?:#[ -~]*|([A-Za-z_][\w-]*):(?: +(-?[\w./][\w./+,=-]*|"[\w./+,=: -]*"))? *(?: #[ -~]*)?)?',
    re.ASCII,
)
_MAX_PLAIN_LINES = 1000
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "seq", "map")


def home() -> str:
    """Return the folder of the user's own catalogue files; it need not exist."""
    return os.environ.get("FINEGAUGE_HOME") or os.path.join(os.path.expanduser("~"), ".config", "finegauge")


def cache_path(*parts: str) -> str:
    """Return a path in the folder of what can be made anew: $FINEGAUGE_CACHE_DIR or ~/.cache/finegauge."""
    base = os.environ.get("FINEGAUGE_CACHE_DIR")
    return os.path.join(base or os.path.join(os.path.expanduser("~"), ".cache", "finegauge"), *parts)


def read_text(path: str, max_bytes: int = MAX_BYTES) -> str:
    """Return the UTF-8 text of a small regular file.

    Raises: FileFormatError if it is missing, unreadable, too large, or not text.
    """
    return text_of(read_bytes(path, max_bytes), os.path.basename(path))


def read_bytes(path: str, max_bytes: int, *, links: bool = True) -> bytes:
    """Return the content of a regular file.

    Raises: FileFormatError if it is missing, unreadable or too large.
    """
    name = os.path.basename(path)
    try:
        status = os.stat(path)
        if not S_ISREG(status.st_mode):
            raise FileFormatError(f"{shown(path)} is not a file.")
        if status.st_size > max_bytes:
            raise FileFormatError(
                f"{name} is {status.st_size / 1e6:,.1f} MB; FineGauge reads at most {max_bytes / 1e6:.0f} MB."
            )
        with open(open_regular(path, links=links), "rb") as file:
            return file.read(max_bytes)
    except FileNotFoundError:
        raise FileFormatError(f"No file {shown(path)}.{_neighbours(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name is not a path"
        raise FileFormatError(f"{shown(path)} cannot be read: {reason}.") from None


def by_state(read: Callable[[str], Read]) -> Callable[[str], Read]:
    """Return `read`, a function of a file's path, which reads the file again only once it has changed."""

    @lru_cache(maxsize=16)
    def kept(path: str, *_state: int) -> Read:
        return read(path)

    def found(path: str) -> Read:
        try:
            at = os.stat(path)
        except (OSError, ValueError):
            return read(path)
        if time.time() - max(at.st_mtime, at.st_ctime) < SETTLED_AFTER_S:
            return read(path)
        return kept(path, at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns)

    return found


def text_of(data: bytes, name: str) -> str:
    """Return the text that UTF-8 `data` holds; `name` is how messages call it.

    Raises: FileFormatError where it is something else.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{name} is not UTF-8 text (byte {error.start:,}); save it as UTF-8 YAML or JSON."
        ) from None
    if odd := _CONTROLS.intersection(text):
        first = min(odd, key=text.index)
        raise FileFormatError(
            f"{name} is binary, not YAML or JSON: it holds the control character {ord(first):#04x}."
        )
    return text


def _neighbours(path: str) -> str:
    try:
        return did_you_mean(os.path.basename(path), os.listdir(os.path.dirname(path) or ".")[:1000])
    except (OSError, ValueError):
        return ""


def open_regular(path: str, flags: int = os.O_RDONLY, *, links: bool = False) -> int:
    """Return the descriptor of a file: a pipe is not waited for, a link followed only where `links` says so.

    Raises: OSError.
    """
    for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):  # each where the system has it
        flags |= getattr(os, name, 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if os.path.islink(path):
            raise OSError(ELOOP, "it is a link; name the file that it leads to")
    descriptor = os.open(path, flags, 0o644)
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(EINVAL, "it is not a file")
    return descriptor


def read_document(path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """Return what a JSON file, or else a YAML file, holds.

    Raises: FileFormatError if it is missing, too large, not text, or not YAML or JSON.
    """
    text = read_text(path, max_bytes)
    return parse_json(text, path) if path.endswith(".json") else parse_yaml(text, path)


def parse_json(text: str | bytes, name: str) -> Any:
    """Return the value that JSON `text` holds; `name` is how messages call it.

    Raises: FileFormatError for what is none, or is nested beyond reason.
    """
    import json

    text = text if isinstance(text, str) else text_of(text, name)
    try:
        found = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise FileFormatError(f"{name} cannot be read as JSON: {reason}.") from None
    if num_values(found) is None:
        raise FileFormatError(f"{name} is nested more than {MAX_DEPTH} levels deep.")
    return _whole_characters(found, text, name)


def _whole_characters(found: Any, text: str, name: str) -> Any:
    """Return what was found in `text`, unless an escape is half a character, which nothing can write."""
    if "\\" not in text:
        return found
    import json

    if re.search(_HALF, json.dumps(found, ensure_ascii=False)):
        raise FileFormatError(f"{name} holds half a character (an escape from \\ud800 to \\udfff).")
    return found


def parse_csv(text: str, name: str) -> Iterator[list[str]]:
    """Yield the cells of each line of a table; `name` is how messages call it.

    Raises: FileFormatError for a cell whose quotes do not end, or one beyond reason.
    """
    import csv

    try:
        for cells in csv.reader(text.splitlines(), strict=True):
            if max(map(len, cells), default=0) > MAX_CELL_CHARS:  # csv's own limit is the whole process's
                raise csv.Error(f"a cell has more than {MAX_CELL_CHARS:,} characters")
            yield cells
    except csv.Error as error:
        raise FileFormatError(f"{name} is not a table of comma-separated values: {error}.") from None


def figure(value: Any) -> float:
    """Return the number that `value` is or spells: 0, or one of a size that anything has.

    Raises: ValueError.
    """
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if number and not 1 / MAX_NUMBER <= abs(number) <= MAX_NUMBER:
        raise ValueError(f"{shown(value)} is not a number within ±1e30")
    return number


def json_text(content: Any, indent: int | None = 2) -> str:
    """Return plain values as JSON that every reader takes and every stream prints.

    NaN and infinities, which JSON lacks, are null; what turns or hides text is escaped, and everything beyond
    ASCII where half a character is in a text.
    """
    import json

    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(_finite(content), indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isascii() and "\x7f" not in text:
        return text
    if re.search(_HALF, text):
        return json.dumps(_finite(content), indent=indent)
    return re.sub(f"[{UNSEEN}]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """Return plain values: null for every number that is none, text for what JSON does not know."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def write_document(content: Mapping[str, Any], path: str) -> None:
    """Write `content` as JSON, whole or not at all.

    Raises: InputError if the file cannot be written.
    """
    write_file(path, f"{json_text(content)}\n")


def write_file(path: str, content: str | bytes) -> None:
    """Write a file whole or not at all; its folder is made where missing.

    Raises: InputError if it cannot be written.
    """
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InputError(f"Cannot write {shown(path)}: {error.strerror or error}.") from None


def write_whole(path: str, content: bytes) -> None:
    """Write a file in one step, so that no reader meets half of it; its folder is made where missing.

    Raises: OSError, for a place that holds something else than a file: a device is not replaced.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(EINVAL, "it is not a file")
    unfinished = f"{path}.{os.getpid()}.part"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        if os.path.lexists(unfinished):  # of a process with the same number that was killed
            os.remove(unfinished)
        with open(unfinished, "xb") as file:  # which follows no link
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(OSError):
            os.remove(unfinished)


def parse_yaml(text: str, name: str) -> Any:
    """Return the value that YAML or JSON `text` holds; `name` is how messages call the file.

    Raises: FileFormatError in one sentence, for text that is neither or that is refused.
    """
    if text.lstrip()[:1] in ("{", "["):
        import json

        try:
            found = json.loads(text, object_pairs_hook=_unique, parse_int=_whole)
        except (ValueError, RecursionError):
            found = None  # the YAML reader judges it, and names a repeated key
        if found is not None and num_values(found) is not None:
            return _whole_characters(found, text, name)
    if (keys := _plain_lines(text)) is not None:
        return keys
    return _whole_characters(_parsed_by_yaml(text, name), text, name)


def _plain_lines(text: str) -> dict[str, Any] | None:
    """Return the keys of YAML that is no more than lines `key: word`, in sections or not; None of any other.

    Most training files are no more, and importing PyYAML takes longer than a prediction.
    """
    keys: dict[str, Any] = {}
    place, depth = keys, 0  # what lines of that indent go into
    opened = ""  # the last key at the margin without a word, which may have a section
    lines = text.split("\n")
    for line in lines if len(lines) <= _MAX_PLAIN_LINES else ("\t",):
        found = _PLAIN_LINE.fullmatch(line)
        if found is None:
            return None
        indent, name, word = found.groups()
        if name is None:
            continue
        if not indent:
            place, depth, opened = keys, 0, "" if word else name
        elif opened:
            place = keys[opened] = {}
            depth, opened = len(indent), ""
        if len(indent) != depth or name in place:
            return None
        place[name] = word[1:-1] if word and word[0] == '"' else _plain(word or "")
    return keys or None


def _parsed_by_yaml(text: str, name: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), name).document()
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = [f"line {mark.line + 1}"] if mark is not None else []
        inside = ": ".join([*where, str(problem)] if problem else where)
        raise FileFormatError(f"{name} is not valid YAML{f' ({inside})' if inside else ''}.") from None


def _whole(digits: str) -> int | float:
    """Return a whole number; beyond 18 digits it is no count of anything, and a float."""
    return int(digits) if len(digits) <= 18 else float(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError
    return mapping


class _Builder:
    """Builds plain values from the events of one YAML document, within the limits."""

    def __init__(self, events: Iterator[Any], name: str) -> None:
        self._events = events
        self._name = name
        self._values = 0
        self._aliases = 0
        self._anchors: dict[str, tuple[Any, int]] = {}  # anchor -> value, how many values it holds

    def document(self) -> Any:
        """Return the value of the only document."""
        value = None
        documents = 0
        for event in self._events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise FileFormatError(
                        f"{self._name} holds more than one YAML document; keep the first one."
                    )
            elif kind not in ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent"):
                value = self._value(event, 0)
        return value

    def _value(self, event: Any, depth: int) -> Any:
        line, kind, before = event.start_mark.line + 1, type(event).__name__, self._values
        self._count(1, line)
        if depth > MAX_DEPTH:
            raise self._refused(line, f"nested more than {MAX_DEPTH} levels deep")
        if kind == "AliasEvent":
            return self._alias(event, line)
        tag = event.tag or "!"
        if tag != "!" and tag.removeprefix(_TAG) not in _PLAIN_TAGS:
            tag = shown(tag.replace(_TAG, "!!"))
            raise self._refused(line, f"the tag {tag} is refused; only plain values are read")
        value: Any
        if kind == "ScalarEvent":
            quoted = not event.implicit[0] or tag == f"{_TAG}str"
            value = str(event.value) if quoted else _plain(str(event.value))
        elif kind == "MappingStartEvent":
            value = self._mapping(depth)
        else:
            value = []
            for item in self._events:
                if type(item).__name__ == "SequenceEndEvent":
                    break
                value.append(self._value(item, depth + 1))
        if event.anchor:
            self._anchors[event.anchor] = (value, self._values - before)
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for event in self._events:
            kind, line = type(event).__name__, event.start_mark.line + 1
            if kind == "MappingEndEvent":
                break
            if kind != "ScalarEvent":
                raise self._refused(line, "a key must be plain text")
            value = self._value(next(self._events), depth + 1)
            if event.value == "<<" and event.implicit[0]:
                for held in value if isinstance(value, list) else [value]:
                    if not isinstance(held, dict):
                        raise self._refused(line, "a merge key (<<) takes in mappings alone")
                    merged = {**held, **merged}
                continue
            if None not in (mapping.get(event.value), value) and mapping[event.value] != value:
                raise self._refused(line, f"the key {shown(event.value)} is given twice")
            mapping[event.value] = value
        return {**merged, **mapping}

    def _alias(self, event: Any, line: int) -> Any:
        if event.anchor not in self._anchors:
            raise self._refused(line, "an alias has no anchor before it")
        self._aliases += 1
        value, size = self._anchors[event.anchor]
        if self._aliases > MAX_ALIASES:
            raise self._refused(line, f"more than {MAX_ALIASES} aliases are refused")
        self._count(size, line)
        return value

    def _count(self, number: int, line: int) -> None:
        self._values += number
        if self._values > MAX_VALUES:
            raise self._refused(
                line, f"too many aliases or entries; more than {MAX_VALUES:,} values are refused"
            )

    def _refused(self, line: int, why: str) -> FileFormatError:
        return FileFormatError(f"{self._name} line {line}: {why}.")


def _plain(word: str) -> Any:
    """Return what an unquoted word is: nothing, true or false, a number, or itself."""
    if word in _WORDS:
        return _WORDS[word]
    if len(word) <= 64 and _NUMERALS.issuperset(word):
        try:
            return _whole(word) if _FRACTION.isdisjoint(word) else float(word)
        except ValueError:
            return word
    return word


def parse_toml(text: str, name: str) -> Any:
    """Return the tables that TOML `text` holds, within the limits that YAML has.

    Raises: FileFormatError for text that is none, or that is nested or long beyond reason.
    """
    import tomllib

    if max(map(text.count, "[{,\n")) > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_VALUES:,} values are refused.")
    if any(line.count(".") > MAX_DOTS for line in text.split("\n")):  # of a key: their square is the time
        raise FileFormatError(f"{name}: a line with more than {MAX_DOTS} dots is refused.")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{name} is not valid TOML ({error}).") from None
    except (RecursionError, ValueError):
        raise FileFormatError(f"{name} is not valid TOML: it is nested too deep.") from None
    total = num_values(tables)
    if total is None or total > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_DEPTH} levels or {MAX_VALUES:,} values are refused.")
    return tables


def num_values(whole: Any, depth: int = MAX_DEPTH) -> int | None:
    """Return how many values lists and mappings hold; None where they are nested too deep."""
    level = [whole] if isinstance(whole, dict | list) else []
    total = 0
    for _ in range(depth):
        below = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        total += len(below)
        level = [value for value in below if isinstance(value, dict | list)]
    return None if level else total


def installed_version(package: str) -> str:
    """Return the version of an installed package, "" if it is absent."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
