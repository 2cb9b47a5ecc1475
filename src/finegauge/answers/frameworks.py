"""The defaults of training frameworks and serving engines: `finegauge frameworks`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.catalogue.frameworks import Framework, frameworks


class DefaultsSince(NamedTuple):
    """Fields that a framework sets where its file leaves them open, from a version on."""

    since: str
    where: Mapping[str, str]  # column of a measurement table: the pattern of those rows alone
    fields: Mapping[str, Any]


class FrameworkRow(NamedTuple):
    """One framework: how it is named, whether its files are read and written, what it does unasked."""

    name: str
    named_by: tuple[str, ...]  # any of these words in a run's `framework`
    reads: bool
    export: str | None  # what --export calls it
    behaviours: tuple[str, ...]  # flags of `catalogue.frameworks.Framework` that hold
    defaults: tuple[DefaultsSince, ...]
    source: str


class FrameworksAnswer(NamedTuple):
    """Every framework whose name or words contain what was asked."""

    frameworks: tuple[FrameworkRow, ...]


def frameworks_answer(pattern: str = "") -> FrameworksAnswer:
    """Return the frameworks whose name or words contain `pattern`; all of them where it is empty."""
    wanted = pattern.casefold()
    found = (one for one in frameworks() if any(wanted in word for word in (one.name.casefold(), *one.words)))
    return FrameworksAnswer(tuple(map(_row, found)))


def _row(one: Framework) -> FrameworkRow:
    behaviours = tuple(name for name, value in one._asdict().items() if value is True)
    defaults = tuple(
        DefaultsSince(".".join(map(str, change.since)), change.where, change.defaults)
        for change in one.defaults
    )
    export = one.exports[0] if one.exports else None
    return FrameworkRow(one.name, one.words, bool(one.signatures), export, behaviours, defaults, one.source)
