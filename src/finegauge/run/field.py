"""One field of a run: which values it accepts, its default, unit and label, and what it means.

A `Field` is called with a name and a value from a file, the command line or Python, and returns the
value in its own type. Quoted numbers and yes/no words are read as what they say, because every
framework's own loader does so.
"""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, dataclass_transform

from finegauge.errors import FieldError, did_you_mean, shown
from finegauge.records import NamedTuple

Check = Callable[[str, Any], Any]

UNSTATED: Any = None  # the default of a field that follows from the other fields

MAX_NAMES = 512
MAX_TEXT = 4096
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_NUMERALS = frozenset("0123456789+-.eE_")


class Field(NamedTuple):
    """What a value may be (`kind` and its limits) and how the field is called and explained."""

    kind: str  # a key of _READERS
    low: Any = 0  # of numbers, in `unit`
    high: Any = 0
    unit: str = ""
    options: Mapping[str, str] = {}  # the choices, each with the words of a form ("" for itself)
    aliases: Mapping[str, str] = {}  # read as the option they name
    name: str = ""
    default: Any = UNSTATED
    is_optional: bool = False  # may stay None
    label: str = ""  # of a form; "" for the name
    help: str = ""  # one line of Markdown

    def __call__(self, name: str, value: Any) -> Any:
        """Return `value` in the field's own type. Raises: FieldError in one sentence with `name`."""
        return _READERS[self.kind](self, name, value)


def whole(
    low: int = 1, high: int = 10**12, unit: str = "", *, words: Mapping[str, str] | None = None
) -> Field:
    """Return a field of whole numbers from `low` to `high`, or of one of `words`."""
    return Field("whole", low, high, unit, words or {})


def number(low: float, high: float, unit: str = "") -> Field:
    """Return a field of finite numbers from `low` to `high`."""
    return Field("number", low, high, unit)


def choice(options: Iterable[str], aliases: Mapping[str, str] | None = None) -> Field:
    """Return a field that is one of `options`; as a mapping these come with the words of a form."""
    named = options if isinstance(options, Mapping) else dict.fromkeys(options, "")
    return Field("choice", options=named, aliases=aliases or {})


def choices(options: Iterable[str], aliases: Mapping[str, str] | None = None) -> Field:
    """Return a field that is a list of `options`; the word none is the empty list."""
    return choice(options, aliases)._replace(kind="choices")


def version_numbers(version: str) -> tuple[int, int, int]:
    """Return the numbers of a version: (4, 40, 2) of "4.40.2", (5, 0, 0) of "v5"."""
    parts = [*version.lower().removeprefix("v").split(".")[:3], "0", "0"][:3]
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise FieldError(f"{shown(version)} is not a version; write it as 5.23 or 4.40.2.")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _number(field: Field, name: str, value: Any) -> int | float:
    if field.unit == "tokens" and isinstance(value, str) and value.strip().lower().endswith("k"):
        thousands = _figure(value.strip()[:-1])  # 8k: 8,192 tokens
        value = value if thousands is None else thousands * 1024
    figure, whole_only = _figure(value), field.kind == "whole"
    if isinstance(value, str) and (word := value.strip().lower()) in field.options:
        return word  # type: ignore[return-value]  # a word that stands for a number
    if figure is None or (whole_only and figure != int(figure)):
        form, what = (",", "a whole") if whole_only else ("g", "a finite")
        raise FieldError(
            f"{name}={_plain(value)} is not {what} number; "
            f"give one from {field.low:{form}} to {field.high:{form}}."
        )
    figure = int(figure) if whole_only else figure
    unit = f" {field.unit}" if field.unit else ""
    least = unit[:-1] if field.low == 1 and len(unit) > 3 else unit
    if figure < field.low:
        raise FieldError(f"{name}={_plain(figure)} is too small; it must be at least {field.low:,}{least}.")
    if figure > field.high:
        raise FieldError(f"{name}={_plain(figure)} is too large; it must be at most {field.high:,}{unit}.")
    return figure if whole_only else float(figure)


def _flag(_field: Field, name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, str | int) else ""
    if word not in _TRUE and word not in _FALSE:
        raise FieldError(f"{name}={_plain(value)} is neither true nor false.")
    return word in _TRUE


def _text(field: Field, name: str, value: Any) -> str:
    if field.kind == "label" and value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(f"{name} must be text, not {_kind(value)}.")
    line = str(value).strip()
    if not line or len(line) > MAX_TEXT or not line.isprintable():
        raise FieldError(
            f"{name}={shown(str(value))} must be one line of 1 to {MAX_TEXT:,} printable characters."
        )
    return line


def _version(field: Field, name: str, value: Any) -> str:
    """Return a version such as "4.40", which YAML reads as the number 4.4 unless it is quoted."""
    if isinstance(value, float) and round(value, 1) == value:
        raise FieldError(f"{name}={value} may have lost a zero; put the version in quotes, as '4.40'.")
    written = _text(field, name, value)
    try:
        version_numbers(written)
    except FieldError as error:
        raise FieldError(f"{name}: {error}") from None
    return written


def _names(field: Field, name: str, value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or len(items) > MAX_NAMES:
        raise FieldError(f"{name} must be a list of at most {MAX_NAMES} names, not {_kind(value)}.")
    stripped = [_text(field, name, one) for one in items if not (isinstance(one, str) and not one.strip())]
    if field.kind == "choices":
        one_of = field._replace(options={**field.options, "none": ""})
        stripped = [word for one in stripped if (word := _choice(one_of, name, one)) != "none"]
    return tuple(dict.fromkeys(stripped))


def _choice(field: Field, name: str, value: Any) -> str:
    word = str(value).strip().lower().replace("-", "_") if isinstance(value, str | bool | int) else ""
    word = field.aliases.get(word, word)
    if word in field.options:
        return word
    hint = did_you_mean(str(value), field.options)
    raise FieldError(f"{name}={_plain(value)} is unknown.{hint} Use one of {', '.join(field.options)}.")


_READERS: dict[str, Callable[[Field, str, Any], Any]] = {
    "whole": _number,
    "number": _number,
    "flag": _flag,
    "text": _text,
    "label": _text,
    "version": _version,
    "names": _names,
    "choice": _choice,
    "choices": _names,
}
flag, text, names, version = Field("flag"), Field("text"), Field("names"), Field("version")
label = Field("label")  # text that may be empty


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or isfinite(value) else None  # a whole number of any length


def _plain(value: Any) -> str:
    """Return `value` for a message: numbers bare, everything else quoted and short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    return str(value) if isinstance(value, int | float) else shown(value)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else _plain(value)


def spec(kind: Field, help: str, default: Any = UNSTATED, label: str = "") -> Any:
    """Return one field of a run: what it accepts, what it means, its default, and what a form calls it.

    `help` is one line of Markdown, `{options}` in it the list of choices. The default is UNSTATED where the
    field may stay None, or follows from others (`rules`).
    """
    if "{options}" in help:
        help = help.replace("{options}", ", ".join([f"`{option}`" for option in kind.options]))
    return kind._replace(help=help, default=default, label=label)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Frozen:
    """A class whose fields are given by name and stay as they are."""

    if not TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None:
            self._settle(**fields)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"A run is not changed; '{name}' is replaced by run.replace({name}=...).")
