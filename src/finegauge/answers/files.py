"""What training files mean: `finegauge read`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from finegauge.answers.written import written
from finegauge.errors import FineGaugeError

if TYPE_CHECKING:
    from finegauge.formats.writing import Written
    from finegauge.run.run import Run

Value = str | float | bool | tuple[str, ...] | None  # of a field of a run


class RunOfFile(NamedTuple):
    """The run that a training file states, and who states each field."""

    file: str
    run: Mapping[str, Value]
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


class LauncherFile(NamedTuple):
    """What a launcher's file states: accelerate's or DeepSpeed's."""

    file: str
    fields: Mapping[str, Value]


class Exported(NamedTuple):
    """The files that were written, how to start them, and what the framework cannot say."""

    framework: str
    paths: tuple[str, ...]
    command: str
    warnings: tuple[str, ...]


@written(absent=("exported",))
class ReadAnswer(NamedTuple):
    """One result for each file; with --export the run as the written files read back."""

    results: tuple[RunOfFile | LauncherFile, ...]
    exported: Exported | None = None


def run_of_file(file: str, run: "Run") -> RunOfFile:
    """Return one run; a name that the catalogue lacks is a warning here."""
    warnings = list(run.warnings)
    try:
        run.check_names()
    except FineGaugeError as error:
        warnings.append(str(error))
    fields = run.fields()
    return RunOfFile(file, fields, {name: run.origins.get(name, "") for name in fields}, tuple(warnings))


def export_answer(framework: str, written: "Written") -> ReadAnswer:
    """Return what was written for another framework."""
    exported = Exported(framework, tuple(written.paths), written.command, tuple(written.warnings))
    return ReadAnswer((run_of_file(written.paths[0], written.run),), exported)
