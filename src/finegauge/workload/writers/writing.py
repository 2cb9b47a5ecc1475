"""Writing a run down for a framework, and reading back what was written before anybody sees it.

The files are written into a folder of their own, read by the readers that everybody's files go
through, compared with the run, and only then moved to where they were asked for: nothing is half
written, and what a framework cannot say is known and not guessed.
"""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, InputError, UnknownNameError, shown
from finegauge.workload.readers.alongside import Alongside
from finegauge.workload.writers import comparing, skypilot, text
from finegauge.workload.writers.recipe import Recipe, names_data, taken_from
from finegauge.workload.writers.sheet import ACCELERATE, Sheet

if TYPE_CHECKING:
    from finegauge.catalogue.offers import Offer
    from finegauge.workload.run import Run

# Name: the module that writes it. SkyPilot's task starts whatever framework the run has.
FRAMEWORKS: Mapping[str, str] = {
    "llamafactory": "llamafactory",
    "llamafactory-v1": "llamafactory_v1",
    "axolotl": "axolotl",
    "trl": "trl",
    "torchtune": "torchtune",
    "nemo": "nemo_automodel",
    "ms-swift": "ms_swift",
    "unsloth": "unsloth",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
    "skypilot": "",
    "finegauge": "run_file",
}
_ALIASES = {
    "llama-factory": "llamafactory",
    "llama-factory-v1": "llamafactory-v1",
    "nemo-1": "nemo",
    "transformers": "trl",
    "nemo-automodel": "nemo",
    "swift": "ms-swift",
    "run": "finegauge",
}
_HOUSE = "finegauge.workload.writers"


class Written(NamedTuple):
    """What was written, and what it means."""

    paths: tuple[str, ...]  # the training file first
    warnings: tuple[str, ...]
    command: str  # starts the training, in the folder of the files
    run: "Run"  # as our readers read the files
    alongside: Alongside  # what a reader is given beside the training file


def write(
    run: "Run",
    framework: str,
    folder: str | os.PathLike[str],
    *,
    offer: "Offer | None" = None,
    spot: bool = False,
    recipe: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> Written:
    """Write `run` as the files of `framework` into `folder`, which is made where it is not there.

    Args:
        run: What to train.
        framework: A name of FRAMEWORKS, in any case.
        folder: Where the files go.
        offer: The instance to rent; with one, a SkyPilot task is written beside.
        spot: Whether it is rented at the spot price.
        recipe: The file that the run was read from: what a run does not know, such as the learning
            rate, is taken from it.
        overwrite: Whether files of the same names are replaced.

    Raises: InputError where the framework is not known, cannot say the plan, or files are there already.
    """
    name = known_name(framework)
    module = _framework_of(run) if name == "skypilot" else name
    title, sheet = _sheet(module, run)
    source = _recipe(recipe) if recipe is not None and module != "finegauge" else None
    sheet = taken_from(source, sheet, title) if source else sheet
    facts, written, found = _checked(title, sheet, run)
    files = _texts(sheet, run, facts)
    notes = sheet.notes + _to_do(run, facts) + _names_no_data(title, sheet, None if source else run.dataset)
    if offer is not None or name == "skypilot":
        task = skypilot.task(run, sheet, offer, spot=spot)
        head = text.head(run, sheet, {}, main=False)
        files[skypilot.FILE] = text.rendered(skypilot.FILE, task, head)
        notes += skypilot.notes(run, offer)
    paths = _move(files, os.fspath(folder), overwrite=overwrite)
    beside = Alongside(accelerate=_named(paths, ACCELERATE))
    command = f"sky launch {skypilot.FILE}" if name == "skypilot" else sheet.command
    return Written(paths, comparing.warnings(title, found) + notes, command, written, beside)


def as_written(run: "Run", framework: str) -> tuple["Run", tuple[comparing.Difference, ...]]:
    """Return what the files of `framework` would mean, and where that is not `run`; nothing is kept.

    Raises: InputError where the framework is not known, or cannot say the plan.
    """
    name = known_name(framework)
    title, sheet = _sheet(_framework_of(run) if name == "skypilot" else name, run)
    _, written, found = _checked(title, sheet, run)
    return written, tuple(found)


def known_name(framework: str) -> str:
    """Return the name of FRAMEWORKS that is meant.

    Raises: UnknownNameError naming its neighbours.
    """
    word = framework.strip().casefold().replace("_", "-").replace(" ", "-")
    word = _ALIASES.get(word, word)
    if word not in FRAMEWORKS:
        raise UnknownNameError("framework to export to", framework, known=[*FRAMEWORKS, *_ALIASES])
    return word


def _framework_of(run: "Run") -> str:
    """Return the framework whose file the run was read from, TRL where it was none of them."""
    word = run.framework.casefold().replace(" ", "-")
    word = _ALIASES.get(word, word)
    return word if word in FRAMEWORKS and word not in ("skypilot", "finegauge") else "trl"


def _sheet(name: str, run: "Run") -> tuple[str, Sheet]:
    """Return what messages call the framework, and what its module makes of the run."""
    module = import_module(f"{_HOUSE}.{FRAMEWORKS[name]}")
    make: Callable[[Run], Sheet] = module.sheet
    return str(module.NAME), make(run)


def _recipe(file: str | os.PathLike[str]) -> Recipe | None:
    """Return the keys of a framework's file; None of a run file, a script or a model's configuration."""
    from finegauge.workload.readers.reading import framework_of

    found = framework_of(file)
    if found is None:
        return None
    format_, keys = found
    return Recipe(format_.name, keys, format_.keys, format_.known())


def _texts(sheet: Sheet, run: "Run", facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each file by name, the training file first."""
    files = {sheet.file: text.rendered(sheet.file, sheet.keys, text.head(run, sheet, facts, main=True))}
    head = text.head(run, sheet, {}, main=False)
    return files | {name: text.rendered(name, keys, head) for name, keys in sheet.beside.items()}


def _checked(
    title: str, sheet: Sheet, run: "Run"
) -> tuple[dict[str, Any], "Run", list[comparing.Difference]]:
    """Return what `_read_back` finds, in a folder that is gone afterwards.

    Raises: InputError where the files would carry out another plan.
    """
    with TemporaryDirectory(prefix="finegauge-") as scratch:
        try:
            facts, written, found = _read_back(sheet, run, scratch)
        except FieldError as error:
            raise InputError(f"{title} cannot say this run: {error}") from None
    comparing.refuse_another_plan(title, found)
    return facts, written, found


def _read_back(
    sheet: Sheet, run: "Run", scratch: str
) -> tuple[dict[str, Any], "Run", list[comparing.Difference]]:
    """Return the facts to carry in a comment, the run that the files mean with them, and the differences."""
    carried = (*comparing.FACTS, *comparing.TO_DO, *sheet.spoken)
    try:
        alone = _reread(sheet, run, {}, scratch)
        carried = tuple(found.field for found in comparing.differences(run, alone) if found.field in carried)
    except InputError:  # such as degrees that make no sense without the number of GPUs
        pass
    facts = {field: getattr(run, field) for field in carried if getattr(run, field) not in (None, "")}
    written = _reread(sheet, run, facts, scratch)
    return facts, written, comparing.differences(run, written)


def _reread(sheet: Sheet, run: "Run", facts: Mapping[str, Any], scratch: str) -> "Run":
    """Return what our readers make of the files."""
    from finegauge.workload.readers.reading import describe

    for name, content in _texts(sheet, run, facts).items():
        with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
            file.write(content)
    launcher = os.path.join(scratch, ACCELERATE) if ACCELERATE in sheet.beside else None
    return describe(os.path.join(scratch, sheet.file), (), Alongside(accelerate=launcher))


def _names_no_data(framework: str, sheet: Sheet, ours: str | None) -> tuple[str, ...]:
    """Return that the training file names no data set, or one that only our catalogue calls so."""
    from finegauge.catalogue.datasets import datasets

    if framework == "FineGauge":
        return ()
    if names_data(framework, sheet.keys):
        if ours not in datasets():
            return ()
        return (f"{ours} is FineGauge's name of a data set; name yours in {sheet.file}.",)
    return (f"No data set to train on is named; add yours to {sheet.file}.",)


def _named(paths: tuple[str, ...], name: str) -> str | None:
    """Return the path of the file of that name, if it is among them."""
    return next((path for path in paths if os.path.basename(path) == name), None)


def _to_do(run: "Run", facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what somebody has to see to."""
    to_do = comparing.TO_DO
    if run.dataset is not None:
        to_do = to_do | {"num_samples": "cut the data set to as many"}
    return tuple(
        f"{field}={facts[field]} is no key of the file: {what}."
        for field, what in to_do.items()
        if field in facts
    )


def _move(files: Mapping[str, str], folder: str, *, overwrite: bool) -> tuple[str, ...]:
    """Put the files into `folder`, none before all are written; return their paths.

    Raises: InputError where one is there already, or the folder cannot be written to.
    """
    taken = [name for name in files if os.path.lexists(os.path.join(folder, name))]
    if taken and not overwrite:
        raise InputError(
            f"{shown(taken[0])} is in {shown(folder)} already; name another folder, or add --overwrite."
        )
    paths = [os.path.join(folder, name) for name in files]
    unfinished = [f"{path}.{os.getpid()}.tmp" for path in paths]
    try:
        os.makedirs(folder, exist_ok=True)
        for path, content in zip(unfinished, files.values(), strict=True):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        for half, path in zip(unfinished, paths, strict=True):
            os.replace(half, path)
    except OSError as error:
        for path in filter(os.path.exists, unfinished):
            os.remove(path)
        raise InputError(f"{shown(folder)} cannot be written to: {error.strerror}.") from None
    return tuple(paths)
