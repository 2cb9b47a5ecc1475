"""How the fields of training files look: `finegauge read`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from finegauge.answers.files import ReadAnswer, RunOfFile
from finegauge.formats.skypilot import COMMAND, FILE
from finegauge.render import number_format as fmt
from finegauge.render.report import Note, Section, Table, notes, section
from finegauge.run.rules import LORA_FIELDS

if TYPE_CHECKING:
    from finegauge.answers.changes import Fixed
    from finegauge.formats.writing import Written


def read_sections(answer: ReadAnswer) -> Iterator[Section]:
    """Yield each file's fields as a table, its warnings below."""
    for one in answer.results:
        if isinstance(one, RunOfFile):
            table = _field_table(one.run, one.origins)
            yield section("file", one.file, table, *notes(one.warnings, tone="risky"))
        else:
            yield section("file", one.file, _field_table(one.fields, {}))


def written_section(written: "Written") -> Section:
    """Return what was written, how to start it, and what the framework cannot say."""
    return section("written", "", *written_notes(written))


def written_notes(written: "Written | Fixed") -> Iterator[Note]:
    """Yield what was written, how to start it, and what the framework cannot say."""
    yield from (Note(f"Wrote {path}") for path in written.paths)
    yield Note(f"Start it with: {written.command}")
    if written.command != COMMAND and any(path.endswith(FILE) for path in written.paths):
        yield Note(f"Rent the machines and start it, by one command: {COMMAND}")
    yield from notes(written.warnings, tone="risky")


def _field_table(fields: Mapping[str, Any], origins: Mapping[str, str]) -> Table:
    adapts = fields.get("method") not in ("full", "freeze")
    rows = tuple(
        (name, fmt.plain(value), origins.get(name, "file"))
        for name, value in fields.items()
        if value not in (None, "") and (adapts or name not in LORA_FIELDS)
    )
    return Table("Fields", ("field", "value", "origin"), rows, 3, indent=2)
