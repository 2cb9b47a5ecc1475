"""Safe reading of every file that a user gives: YAML, JSON, TOML, text, with limits on size and depth."""

import os
from collections.abc import Iterator
from stat import S_ISREG
from typing import Any

from finegauge.errors import FileFormatError, did_you_mean, shown

MAX_DEPTH = 24
MAX_VALUES = 20_000
MAX_ALIASES = 200

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_NUMERALS = frozenset("0123456789+-.eE_")
_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")}


def parse_yaml(text: str, name: str) -> Any:
    """Return the value that YAML or JSON `text` holds; `name` is how messages call the file.

    Raises: FileFormatError in one sentence, for text that is neither or that is refused.
    """
    value = _load_json(text) if text.lstrip()[:1] == "{" else None
    return _load_yaml(text, name) if value is None else value


def _load_yaml(text: str, name: str) -> Any:
    """Return the value of YAML `text`, read event by event."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), name).document()
    except yaml.YAMLError as error:
        raise FileFormatError(f"{name} is not valid YAML{_place(error)}.") from None


def _load_json(text: str) -> Any:
    """Return the mapping that JSON `text` holds; None if YAML has to judge it."""
    import json

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            raise ValueError  # YAML's reader names the repeated key
        return mapping

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None


def _place(error: Any) -> str:
    """Return " (line 3: what is wrong)" for a YAML error, without quoting the file."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}" if mark is not None else ""
    what = str(problem) if problem else ""
    inside = ": ".join(part for part in (where, what) if part)
    return f" ({inside})" if inside else ""


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
        """Return the value that begins with `event`."""
        line = event.start_mark.line + 1
        self._count(1, line)
        if depth > MAX_DEPTH:
            raise FileFormatError(f"{self._name} line {line}: nested more than {MAX_DEPTH} levels deep.")
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event, line)
        if event.tag not in (None, "!") and event.tag not in _PLAIN_TAGS:
            tag = shown(event.tag.replace("tag:yaml.org,2002:", "!!"))
            raise FileFormatError(
                f"{self._name} line {line}: the tag {tag} is refused; only plain values are read."
            )
        before = self._values
        if kind == "ScalarEvent":
            value = _scalar(event)
        elif kind == "MappingStartEvent":
            value = self._mapping(depth)
        else:
            value = self._sequence(depth)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._values - before + 1)
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        """Return the mapping whose start event was just read."""
        mapping: dict[str, Any] = {}
        for event in self._events:
            if type(event).__name__ == "MappingEndEvent":
                break
            line = event.start_mark.line + 1
            if type(event).__name__ != "ScalarEvent":
                raise FileFormatError(f"{self._name} line {line}: a key must be plain text.")
            if event.value in mapping:
                raise FileFormatError(
                    f"{self._name} line {line}: the key {shown(event.value)} is given twice."
                )
            if event.value == "<<" and event.implicit[0]:
                raise FileFormatError(
                    f"{self._name} line {line}: merge keys (<<) are not read; write the keys out."
                )
            mapping[event.value] = self._value(next(self._events), depth + 1)
        return mapping

    def _sequence(self, depth: int) -> list[Any]:
        """Return the list whose start event was just read."""
        sequence: list[Any] = []
        for event in self._events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            sequence.append(self._value(event, depth + 1))
        return sequence

    def _alias(self, event: Any, line: int) -> Any:
        """Return the value an alias stands for, counted in full."""
        if event.anchor not in self._anchors:
            raise FileFormatError(f"{self._name} line {line}: an alias has no anchor before it.")
        self._aliases += 1
        value, size = self._anchors[event.anchor]
        if self._aliases > MAX_ALIASES:
            raise FileFormatError(f"{self._name} line {line}: more than {MAX_ALIASES} aliases are refused.")
        self._count(size, line)
        return value

    def _count(self, number: int, line: int) -> None:
        """Count `number` more values and refuse too many."""
        self._values += number
        if self._values > MAX_VALUES:
            raise FileFormatError(
                f"{self._name} line {line}: too many aliases or entries; "
                f"more than {MAX_VALUES:,} values are refused."
            )


def _scalar(event: Any) -> Any:
    """Return the plain value of a scalar event; quoted text stays text."""
    word = str(event.value)
    if not event.implicit[0] or event.tag == "tag:yaml.org,2002:str":
        return word
    return _word_value(word)


def _word_value(word: str) -> Any:
    """Return what an unquoted word is: nothing, true or false, a number, or itself."""
    if word in _WORDS:
        return _WORDS[word]
    if len(word) <= 64 and _NUMERALS.issuperset(word) and any(c.isdigit() for c in word):
        try:
            return float(word) if any(c in word for c in ".eE") else int(word)
        except ValueError:
            return word
    return word


def parse_toml(text: str, name: str) -> Any:
    """Return the tables that TOML `text` holds; `name` is how messages call the file.

    Raises: FileFormatError for text that is none, or that is nested or long beyond reason.
    """
    import tomllib

    if max(map(str.count, (text, text), "[{"), default=0) > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_VALUES:,} values are refused.")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{name} is not valid TOML ({error}).") from None
    except (RecursionError, ValueError):
        raise FileFormatError(f"{name} is not valid TOML: it is nested too deep.") from None
    _refuse_too_deep(tables, name)
    return tables


def _refuse_too_deep(tables: Any, name: str) -> None:
    """Raise where tables hold too many values, or nest too deep."""
    level, total = [tables], 0
    for _ in range(MAX_DEPTH):
        below = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        total += len(below)
        level = [value for value in below if isinstance(value, dict | list)]
        if not level:
            break
    if level or total > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_DEPTH} levels or {MAX_VALUES:,} values are refused.")


MAX_BYTES = 2_000_000


def read_text(path: str) -> str:
    """Return the UTF-8 text of a small regular file.

    Raises: FileFormatError if it is missing, unreadable, too large, or not text.
    """
    name = os.path.basename(path)
    try:
        status = os.stat(path)
        if not S_ISREG(status.st_mode):
            raise FileFormatError(f"{shown(path)} is not a file.")
        if status.st_size > MAX_BYTES:
            size = f"{status.st_size / 1e6:,.1f} MB"
            raise FileFormatError(
                f"{name} is {size}; a run file has a few kB, at most {MAX_BYTES / 1e6:.0f} MB."
            )
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise FileFormatError(f"No file {shown(path)}.{_neighbours(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name is not a path"
        raise FileFormatError(f"{shown(path)} cannot be read: {reason}.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{name} is not UTF-8 text (byte {error.start:,}); save it as UTF-8 YAML or JSON."
        ) from None
    odd = next((c for c in text if c < " " and c not in "\t\n\r"), None)
    if odd is not None:
        raise FileFormatError(
            f"{name} is binary, not YAML or JSON: it holds the control character {ord(odd):#04x}."
        )
    return text


def _neighbours(path: str) -> str:
    """Return " Did you mean …" for files of the same folder."""
    try:
        return did_you_mean(os.path.basename(path), os.listdir(os.path.dirname(path) or ".")[:1000])
    except (OSError, ValueError):
        return ""
