"""A sweep file: the runs of a campaign, as a grid of axes over one run.

    name: batch sizes
    run: {model: llama-3-8b, method: lora, gpu: a100-80gb}   # or the path of any file that estimate reads
    axes:
      micro_batch_size: [1, 2, 4, max]      # a field of Run; max: the largest that is predicted to fit
      switch: [baseline, checkpointing, zero3+lora]   # changes that `finegauge whatif` knows
      data: {short: {dataset: commonsense_15k}, long: {dataset: math_14k}}   # names of fields together
    predicted: {axes: {gpu: [a40, h100]}}   # beside what stands above
    measured: {run: {model: models/tiny}, device: cpu, steps: 5, repetitions: 3}

`predicted` and `measured` say what is done with the runs; without either, they are predicted. Each
may override the shared run and axes, and each may be a list of such parts, one grid after the other.
docs/campaigns.md describes every key.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from finegauge import __version__, documents
from finegauge.campaign.axes import (
    BASELINE,
    MEASURED,
    ONLY_TRUSTED,
    PREDICTED,
    Cell,
    Part,
    axis_of,
    reading_in,
    settled,
)
from finegauge.campaign.gains import claims_called
from finegauge.documents import read_text
from finegauge.errors import FieldError, FileFormatError, UnknownKeyError, UnknownNameError, shown
from finegauge.formats.reading import FILE_FIELDS, beside, describe
from finegauge.measurement.endpoint_client import check_options
from finegauge.measurement.options import Options
from finegauge.prediction.calibration import current
from finegauge.run.run import FIELDS

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
ENDINGS = (".yaml", ".yml", ".json")


@cache
def shipped() -> Mapping[str, str]:
    """Return the path of every shipped sweep by its name."""
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml"))
    return MappingProxyType({name.removesuffix(".yaml"): os.path.join(FOLDER, name) for name in names})


def sweep_path(name_or_path: str) -> str:
    """Return the path of the sweep that a user names: a file, or one that is shipped.

    A folder of that name does not stand in the way: it is where a campaign keeps its results.

    Raises: UnknownNameError for a bare word that is neither, naming its neighbours.
    """
    if os.path.isfile(name_or_path):
        return name_or_path
    bare = os.path.basename(name_or_path) == name_or_path and not name_or_path.endswith(ENDINGS)
    if not bare:
        return name_or_path
    known = shipped()
    wanted = name_or_path.strip().casefold().replace("-", "_")
    if wanted in known:
        return known[wanted]
    raise UnknownNameError("sweep", name_or_path, known=known, listing="finegauge campaign --list")


KEYS = ("name", "about", "run", "axes", "predicted", "measured", "prune", "baseline", "claims")
PREDICTED_KEYS = ("run", "axes")
MEASURED_KEYS = ("run", "axes", "repetitions", *Options._fields)
REACHING = {  # options by which a file reaches beyond its folder, and what each may do
    "task_folder": "its tasks may hold code, which would run",
    "trace_path": "a file would be written there",
    "endpoint": "requests would be sent there",
    "api_key_variable": "it sends a secret of your environment",
}
GROWING = ("micro_batch_size", "seq_len")  # what takes more memory the larger it is
MAX_CELLS = 100_000


class Sweep(NamedTuple):
    """The cells of a campaign."""

    name: str
    about: str
    cells: tuple[Cell, ...]  # every content once
    prune: tuple[str, ...]  # fields of which a larger value needs at least as much memory
    baseline: str  # the value of the axis `switch` that others are compared with
    claims: str  # of a paper, that the comparison is checked against; "": none
    axes: Mapping[str, Sequence[str]]  # every axis with its values, in the order of the file

    def only(self, estimator: str) -> "Sweep":
        """Return the part that one estimator answers.

        Raises: FieldError where there is none.
        """
        cells = tuple(cell for cell in self.cells if cell.estimator == estimator)
        if not cells:
            raise FieldError(f"{self.name}: nothing is {estimator} there.")
        return self._replace(cells=cells)


def read_sweep(name_or_path: str, *, trust: bool = False) -> Sweep:
    """Return the sweep that a file describes, or that is shipped under a bare name.

    A file may come from anybody: unless the user trusts it, it names no file outside its folder and none of
    the options in `REACHING`.

    Raises: InputError in one sentence, whatever the file holds.
    """
    path = sweep_path(name_or_path)
    name = os.path.basename(path)
    keys = documents.parse_yaml(read_text(path), name)
    if not isinstance(keys, dict) or "run" not in keys:
        raise FileFormatError(f"{name} is no sweep: it needs 'run:' with what all its cells have in common.")
    _known(keys, KEYS, name)
    folder = os.path.realpath(os.path.dirname(path))
    with nullcontext() if trust else reading_in(folder):
        parts = list(_parts(keys, path, name, folder="" if trust else folder))
    cells: dict[str, Cell] = {}
    axes: dict[str, dict[str, None]] = {}
    if (num_cells := sum(part.num_cells for part in parts)) > MAX_CELLS:
        raise FieldError(f"{name}: {num_cells:,} cells are more than {MAX_CELLS:,}; take values off an axis.")
    for part in parts:
        for axis in part.axes:
            axes.setdefault(axis.name, {}).update(dict.fromkeys(value.label for value in axis.values))
        for cell in _cells(part, name):
            cells.setdefault(cell.key, cell)
    prune = keys.get("prune", GROWING)
    if not isinstance(prune, Sequence) or isinstance(prune, str):
        raise FieldError(f"{name}: prune should be a list of names, not {shown(prune)}.")
    prune = tuple(map(str, prune))
    _known(prune, FIELDS, f"{name}: prune")
    return Sweep(
        name=str(keys.get("name") or os.path.splitext(name)[0]),
        about=" ".join(str(keys.get("about") or "").split()),
        cells=tuple(cells.values()),
        prune=prune,
        baseline=str(keys.get("baseline") or BASELINE),
        claims=claims_called(str(keys["claims"])).name if keys.get("claims") else "",
        axes={axis: list(values) for axis, values in axes.items()},
    )


def about_of(path: str) -> str:
    """Return what a sweep file says it is about, in one line; its cells are not looked at."""
    keys = documents.parse_yaml(read_text(path), os.path.basename(path))
    return " ".join(str(keys.get("about") or "").split()) if isinstance(keys, dict) else ""


def _parts(keys: Mapping[str, Any], path: str, name: str, *, folder: str) -> Iterator[Part]:
    trust = not folder
    base = _base(keys["run"], path, name, trust=trust)
    shared = _mapping(keys.get("axes"), f"{name}: axes")
    asked = [word for word in (PREDICTED, MEASURED) if word in keys] or [PREDICTED]
    listed = {word: of if (of := keys.get(word)) and isinstance(of, list) else [of] for word in asked}
    for estimator, part in ((word, part) for word, parts in listed.items() for part in parts):
        where = f"{name}: {estimator}"
        own = _mapping(part, where)
        _known(own, MEASURED_KEYS if estimator == MEASURED else PREDICTED_KEYS, where)
        stated = {**shared, **_mapping(own.get("axes"), f"{where}: axes")}
        axes = tuple(
            axis_of(axis, values, where, path, Options._fields if estimator == MEASURED else ())
            for axis, values in stated.items()
        )
        own_base = _base(own["run"], path, where, trust=trust) if "run" in own else {}
        if not trust:
            values = [value for axis in axes for value in axis.values]
            for options in (own, *(value.options for value in values)):
                if reach := next((name for name in REACHING if options.get(name)), ""):
                    raise FieldError(f"{where}: '{reach}' {ONLY_TRUSTED.format(f', for {REACHING[reach]}')}")
            for fields in (base, own_base, *(value.fields for value in values)):
                for key in FILE_FIELDS:
                    _refuse_outside(fields.get(key), path, f"{where}: '{key}'")
        yield Part(
            estimator=estimator,
            base=(whole := {**base, **own_base}),
            settled=settled(whole),
            axes=axes,
            repetitions=_whole(own.get("repetitions", 1), f"{where}: repetitions"),
            options=_options(own, where, Options()) if estimator == MEASURED else None,
            calibration="" if estimator == MEASURED else f"{__version__}, {current().name}",
            folder=folder,
        )


def _cells(part: Part, name: str) -> Iterator[Cell]:
    told = part.options is not None and any(value.options for axis in part.axes for value in axis.values)
    for values in product(*(axis.values for axis in part.axes)):
        options = part.options
        if told and options is not None:
            options = _options({k: v for value in values for k, v in value.options.items()}, name, options)
        for repetition in range(part.repetitions):
            yield Cell(part, values, repetition, options)


def _refuse_outside(named: Any, path: str, where: str) -> None:
    """Raise for a file or folder that is not below the folder of the sweep at `path`, links followed."""
    if not isinstance(named, str) or not (os.path.isabs(named) or os.path.exists(named) or ".." in named):
        return
    folder = os.path.realpath(os.path.dirname(path))
    if not os.path.realpath(named).startswith(os.path.join(folder, "")):
        raise FieldError(
            f"{where}: {shown(named)} is outside the sweep's folder, which {ONLY_TRUSTED.format('')}"
        )


def _base(stated: Any, path: str, where: str, *, trust: bool) -> dict[str, Any]:
    if isinstance(stated, str):
        file = os.path.join(os.path.dirname(path), stated)
        if not trust:
            _refuse_outside(file, path, f"{where}: run")
        return dict(describe(file).stated_fields())
    fields = _mapping(stated, f"{where}: run")
    _known(fields, FIELDS, f"{where}: run")
    return beside(fields, path)


def _options(own: Mapping[str, Any], where: str, options: Options) -> Options:
    for field, value in own.items():
        if field in Options._fields:
            options = options._replace(
                **{field: _option(getattr(options, field), value, f"{where}: '{field}'")}
            )
    if options.endpoint:
        check_options(options)
    return options


def _option(default: Any, value: Any, where: str) -> Any:
    found = value
    if isinstance(default, float) and type(value) is int:
        found = float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        found = tuple(map(str, value))
    if type(found) is not type(default):
        raise FieldError(f"{where} should be like {default!r}, not {shown(value)}.")
    return found


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FieldError(f"{where} should be keys with values, not {shown(value)}.")
    return value


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1000:
        raise FieldError(f"{where} should be a whole number from 1 to 1000, not {shown(value)}.")
    return value


def _known(keys: Iterable[Any], known: Any, where: str) -> None:
    for key in keys:
        if key not in known:
            raise UnknownKeyError(where, str(key), known=known)
