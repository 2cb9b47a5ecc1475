"""What the value of one field of a run may be, and the sentence when it is not.

A check takes the field's name and a value from a file, the command line or Python, and
returns the value in its own type. Quoted numbers and yes/no words are read as what they
say, because every framework's own loader does so.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from finegauge.errors import FieldError, did_you_mean, shown

Check = Callable[[str, Any], Any]

UNSTATED: Any = None  # the default of a field that follows from the other fields

MAX_NAMES = 512
MAX_TEXT = 4096
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_NUMERALS = frozenset("0123456789+-.eE_")


def whole(low: int = 1, high: int = 10**12, unit: str = "") -> Check:
    """Return a check for whole numbers from `low` to `high`."""

    def check(name: str, value: Any) -> int:
        figure = _figure(value)
        if figure is None or figure != int(figure):
            raise FieldError(
                f"{name}={_plain(value)} is not a whole number; give one from {low:,} to {high:,}."
            )
        _refuse_outside(name, int(figure), low, high, unit)
        return int(figure)

    return check


def number(low: float, high: float, unit: str = "") -> Check:
    """Return a check for finite numbers from `low` to `high`."""

    def check(name: str, value: Any) -> float:
        figure = _figure(value)
        if figure is None:
            raise FieldError(
                f"{name}={_plain(value)} is not a finite number; give one from {low:g} to {high:g}."
            )
        _refuse_outside(name, figure, low, high, unit)
        return float(figure)

    return check


def flag(name: str, value: Any) -> bool:
    """Return `value` as true or false."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise FieldError(f"{name}={_plain(value)} is neither true nor false.")


def text(name: str, value: Any) -> str:
    """Return `value` as one line of text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(f"{name} must be text, not {_kind(value)}.")
    line = str(value).strip()
    if not line or len(line) > MAX_TEXT or not line.isprintable():
        raise FieldError(
            f"{name}={shown(str(value))} must be one line of 1 to {MAX_TEXT:,} printable characters."
        )
    return line


def label(name: str, value: Any) -> str:
    """Return `value` as one line of text that may be empty."""
    return "" if value == "" else text(name, value)


def names(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of names, or one comma-separated line of them, as a tuple without repeats."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or len(items) > MAX_NAMES:
        raise FieldError(f"{name} must be a list of at most {MAX_NAMES} names, not {_kind(value)}.")
    stripped = [text(name, item) for item in items if not (isinstance(item, str) and not item.strip())]
    return tuple(dict.fromkeys(stripped))


def choice(options: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> Check:
    """Return a check for one of `options`; `aliases` are read as the option they name."""
    known = aliases or {}

    def check(name: str, value: Any) -> str:
        word = str(value).strip().lower().replace("-", "_") if isinstance(value, str | bool | int) else ""
        word = known.get(word, word)
        if word in options:
            return word
        hint = did_you_mean(str(value), options)
        raise FieldError(f"{name}={_plain(value)} is unknown.{hint} Use one of {', '.join(options)}.")

    return check


def choices(options: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> Check:
    """Return a check for a list of `options`; the word none is the empty list."""
    one = choice((*options, "none"), aliases)

    def check(name: str, value: Any) -> tuple[str, ...]:
        words = [one(name, item) for item in names(name, value)]
        return tuple(dict.fromkeys(word for word in words if word != "none"))

    return check


def _figure(value: Any) -> int | float | None:
    """Return the finite number that `value` is or spells; None if it is none."""
    if isinstance(value, str):
        spelled = value.strip()
        if len(spelled) > 64 or not _NUMERALS.issuperset(spelled):
            return None
        try:
            value = float(spelled) if any(c in spelled for c in ".eE") else int(spelled)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return value


def _refuse_outside(name: str, figure: float, low: float, high: float, unit: str) -> None:
    """Raise where `figure` is below `low` or above `high`."""
    unit = f" {unit}" if unit else ""
    if figure < low:
        raise FieldError(f"{name}={_plain(figure)} is too small; it must be at least {low:,}{unit}.")
    if figure > high:
        raise FieldError(f"{name}={_plain(figure)} is too large; it must be at most {high:,}{unit}.")


def _plain(value: Any) -> str:
    """Return `value` for a message: numbers bare, everything else quoted and short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    return str(value) if isinstance(value, int | float) else shown(value)


def _kind(value: Any) -> str:
    """Return what kind of thing `value` is, in the words of a YAML file."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return _plain(value)
