"""What a report is made of, before anybody decides whether it is HTML, Markdown or pictures."""

from typing import NamedTuple

from finegauge.render.bars import Bar, Table
from finegauge.render.plots.drawing import Drawing

GOOD, RISKY, BAD, NEUTRAL = "good", "risky", "bad", "neutral"


class Fact(NamedTuple):
    """One number that is asked for first."""

    name: str
    value: str
    note: str = ""


class Section(NamedTuple):
    """One heading with what stands under it."""

    key: str
    title: str
    texts: tuple[str, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    tables: tuple[Table, ...] = ()


class Report(NamedTuple):
    """A whole report."""

    title: str
    verdict: str  # the answer in a sentence
    tone: str  # good, risky, bad or neutral
    about: tuple[str, ...]  # what was asked, a line each
    facts: tuple[Fact, ...]
    bars: tuple[tuple[str, Bar], ...]  # (heading, bar)
    sections: tuple[Section, ...]

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        """Return every figure, in order."""
        return tuple(drawing for section in self.sections for drawing in section.drawings)


def section(
    key: str, title: str, *, texts: tuple[str, ...] = (), drawings: tuple[Drawing | None, ...] = (),
    tables: tuple[Table | None, ...] = (),
) -> Section:  # fmt: skip
    """Return a section of the figures and tables that there are."""
    return Section(
        key, title, texts, tuple(one for one in drawings if one is not None),
        tuple(one for one in tables if one is not None and one.rows),
    )  # fmt: skip


def filled(*sections: Section) -> tuple[Section, ...]:
    """Return the sections that hold anything."""
    return tuple(one for one in sections if one.texts or one.drawings or one.tables)
