"""The manual page, docs/finegauge.1, from the program's own help; `make readme` rewrites it."""

from collections.abc import Iterable

from finegauge.cli import COMMANDS, FIRST, GROUPS, root
from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "finegauge.1"
EXITS = (
    ("0", "done; for check: fits"),
    ("10, 20", "check: risky, will not fit; measure: 20 out of memory, 30 no data"),
    ("64", "bad usage or input, told in one sentence"),
    ("70", "an error of FineGauge's own"),
    ("130", "interrupted"),
)
ENVIRONMENT = (
    ("COLUMNS", "the width of the screen, else the terminal's"),
    ("FINEGAUGE_HOME", "your own GPUs, offers, models and data sets; ~/.config/finegauge"),
    ("FINEGAUGE_CACHE_DIR", "what was fetched or can be made anew; ~/.cache/finegauge"),
    ("FINEGAUGE_CALIBRATION", "constants in place of the shipped ones"),
    ("FINEGAUGE_DEBUG", "set: tracebacks of internal errors"),
    ("HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN", "as the Hugging Face Hub's own programs take them"),
    ("NO_COLOR", "set: no colours"),
)


def page() -> str:
    """Return the page as man(7) macros."""
    summary, _, rest = (root.help or "").partition("\n\n")
    lines = [
        '.TH FINEGAUGE 1 "" "FineGauge" "User Commands"',
        ".SH NAME",
        f"finegauge \\- {_plain(summary[0].lower() + summary[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B finegauge\n.I COMMAND\n[\n.I RUN\n] [\n.IR KEY = VALUE\n\\&...] [\n.I options\n]",
        ".SH DESCRIPTION",
        _plain(rest),
        ".PP\n.B finegauge\n.I COMMAND\n.B \\-\\-help\nlists the options of a command.",
    ]
    for group, names in GROUPS.items():
        lines += [f".SH {group.upper()}", *_terms((name, COMMANDS[name][1]) for name in names)]
    lines += [".SH EXIT STATUS", *_terms(EXITS), ".SH ENVIRONMENT", *_terms(ENVIRONMENT)]
    lines += [".SH EXAMPLES", *_terms((command, f"{says}.") for command, says in FIRST.items())]
    return "\n".join(lines) + "\n"


def _terms(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f".TP\n.B {_plain(term)}\n{_plain(text)}" for term, text in pairs]


def _plain(text: str) -> str:
    """Return text as roff prints it: dashes that can be copied, no line that begins like a macro."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
