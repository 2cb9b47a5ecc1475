"""Every error FineGauge raises on purpose.

A message says what was asked, what stands against it and what to do, in one line.

FineGaugeError              root; `exit_code` is what the command returns
├── InputError              the question itself is wrong: exit code 64
│   ├── UnknownNameError    a name that is in no catalogue; suggests its neighbours
│   ├── UnknownKeyError     a key that no field answers to; suggests its neighbours
│   ├── FieldError          a value that its field does not accept
│   └── FileFormatError     a file that cannot be read as what it should be
└── UnsupportedError        a right question that FineGauge cannot answer (yet): exit code 64
"""

import os
import re
from collections.abc import Iterable

EXIT_DONE = 0
EXIT_RISKY = 10
EXIT_WILL_NOT_FIT = 20
EXIT_NO_DATA = 30
EXIT_BAD_INPUT = 64
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

UNSEEN = "\x7f-\x9f\u202a-\u202e\u2066-\u2069"  # of a pattern: what turns or hides text
CONTROLS = f"[\x00-\x08\x0b-\x1f{UNSEEN}]"  # and what moves a cursor; tabs and ends of lines stay


def cleaned(text: str, but: str = "(?!)") -> str:
    """Return `text` as a terminal may show it: each control character but those of a pattern is `?`."""
    if text.replace("\n", "").isprintable():
        return text
    return re.sub(f"({but})|{CONTROLS}", lambda found: found[1] or "?", text)


class FineGaugeError(Exception):
    """A failure that is explained to the user in one line."""

    exit_code = EXIT_BAD_INPUT


class InputError(FineGaugeError):
    """The question is wrong: a file, a name or a value."""


class UnsupportedError(FineGaugeError):
    """The question is right, but FineGauge has no answer to it."""


class UnknownNameError(InputError):
    """A name that is in no catalogue."""

    def __init__(
        self, kind: str, name: str, *, known: Iterable[str], listing: str = "", instead: str = ""
    ) -> None:
        """Say which `kind` of thing `name` should have been, what comes close, and what else would do."""
        hint = f" List them with '{listing}'{instead}." if listing else ""
        self.kind, self.name, self.near = kind, name, did_you_mean(name, known)
        super().__init__(f"No {kind} named {shown(name)}.{self.near}{hint}")


class UnknownKeyError(InputError):
    """A key that no field answers to."""

    def __init__(self, where: str, key: str, *, known: Iterable[str]) -> None:
        """Say where `key` stood, and which field comes close."""
        super().__init__(f"{where}: unknown key {shown(key)}.{did_you_mean(key, known)}")


class FieldError(InputError):
    """A value that its field does not accept."""


class FileFormatError(InputError):
    """A file that cannot be read as what it should be."""


def internal_error(error: Exception) -> str:
    """Return one sentence about an error of our own; under FINEGAUGE_DEBUG=1 the traceback goes to stderr."""
    if os.environ.get("FINEGAUGE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return f"Internal error ({what}); please report it."


def shown(value: object, limit: int | None = None) -> str:
    """Return `value` quoted for a message: one printable line, cut at `limit` (60; paths, 240)."""
    text = value if isinstance(value, str) else repr(value)
    limit = limit or (240 if "/" in text[:60] or "\\" in text[:60] else 60)  # a path's end tells which file
    text = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return f"'{text[:limit]}…'" if len(text) > limit else f"'{text}'"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the closest of `known`, or "" if none is close."""
    import difflib  # only an error pays for it

    by_folded = {candidate.casefold(): candidate for candidate in known}
    folded = name.casefold()[:100]
    close = difflib.get_close_matches(folded, by_folded, n=2, cutoff=0.6)
    if not close:
        parts = (k for k in by_folded if min(len(folded), len(k)) >= 3 and (folded in k or k in folded))
        close = list(parts)[:2]
    if not close:
        return ""
    return " Did you mean " + " or ".join(f"'{by_folded[k]}'" for k in close) + "?"
