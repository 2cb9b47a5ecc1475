"""Which files make up a data set: one file, several shards, or a folder that `datasets` wrote.

Nothing is unpacked or run. Of a folder with splits, `train` is taken.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from finegauge.errors import FileFormatError, InputError, shown
from finegauge.workload.dataset_files.tokenizer import read_bytes

LINES = (".jsonl", ".ndjson", ".jsonl.gz", ".txt")
TABLES = (".parquet", ".arrow", ".tsv")
EITHER = (".json", ".csv")  # texts, or lengths that are counted already
SUFFIXES = (*LINES, *TABLES, *EITHER, ".json.gz", ".csv.gz")
TRAIN = "train"


class Source(NamedTuple):
    """The files of a data set, in the order in which they are read."""

    path: str  # as asked for
    files: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of all files."""
        return sum(os.path.getsize(file) for file in self.files)


def holds_texts(name: str, *, has_tokenizer: bool) -> bool:
    """Return whether a data set's name is that of texts on disk, and not of lengths or of the catalogue.

    A `.json` or `.csv` may hold either: with a tokenizer it is taken for texts, unless it is a CSV with the
    columns of lengths.
    """
    if name.endswith(EITHER):
        return has_tokenizer and not _is_lengths(name)
    is_place = has_tokenizer or os.sep in name
    return name.endswith(SUFFIXES) or (is_place and os.path.isdir(os.path.expanduser(name)))


def _is_lengths(name: str) -> bool:
    """Return whether a file is a CSV of lengths, by its first line."""
    if not name.endswith(".csv") or not os.path.isfile(name):
        return False
    with open(name, "rb") as file:
        return {b"length", b"count"} <= {cell.strip() for cell in file.readline(1000).split(b",")}


def source_of(path: str) -> Source:
    """Return the files of the data set at `path`.

    Raises: InputError where there is none, FileFormatError where a folder holds no data set.
    """
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        return _folder(path, place)
    if not os.path.isfile(place):
        reason = "is no file" if os.path.exists(place) else "No such file or directory"
        raise InputError(f"Cannot read {shown(path)}: {reason}.")
    if not place.endswith(SUFFIXES):
        raise FileFormatError(
            f"{path} is no data set of a known kind; its name should end in {', '.join(SUFFIXES)}."
        )
    return Source(path, (place,), ())


def _folder(path: str, place: str) -> Source:
    """Return the files of a folder: as `datasets` saved it, or the shards that lie in it."""
    if os.path.isfile(os.path.join(place, "dataset_dict.json")):
        splits = _names(_settings(os.path.join(place, "dataset_dict.json")).get("splits"), path)
        split = TRAIN if TRAIN in splits else splits[0]
        others = ", ".join(name for name in splits if name != split)
        note = f"split {split} is read" + (f", {others} left out" if others else "")
        inner = _folder(path, os.path.join(place, split))
        return inner._replace(notes=(note, *inner.notes))
    state = os.path.join(place, "state.json")
    if os.path.isfile(state):
        shards = _settings(state).get("_data_files")
        entries = shards if isinstance(shards, list) else []
        names = _names([one.get("filename") for one in entries if isinstance(one, dict)], path)
        files = tuple(os.path.join(place, name) for name in names)
        if absent := [file for file in files if not os.path.isfile(file)]:
            raise FileFormatError(f"{state} names {os.path.basename(absent[0])}, which is not in the folder.")
        return Source(path, files, ())
    return _shards(path, place)


def _names(values: object, path: str) -> list[str]:
    """Return names of files or folders within a folder; none may lead out of it."""
    names = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    if not names or any(os.path.basename(name) != name or name in ("", ".", "..") for name in names):
        raise FileFormatError(
            f"{path} is no folder that the library datasets saved: it names no files of its own."
        )
    return names


def _settings(path: str) -> Mapping[str, Any]:
    """Return the mapping in a JSON file of `datasets`."""
    import json

    try:
        document = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} cannot be read as JSON: {str(error).splitlines()[0]}.") from None
    return document if isinstance(document, dict) else {}


def _shards(path: str, place: str) -> Source:
    """Return the data files that lie in a folder or in its `data`, those of the split `train` where named."""
    for folder in (place, os.path.join(place, "data")):
        files = _data_files(folder)
        if not files:
            continue
        train = [file for file in files if TRAIN in os.path.basename(file)]
        chosen = train or files
        kinds = {os.path.splitext(file)[1] for file in chosen}
        if len(kinds) > 1:
            raise FileFormatError(f"{path} holds files of {', '.join(sorted(kinds))}; name one of them.")
        note = f"{len(chosen)} of {len(files)} files are read, those named {TRAIN}"
        return Source(path, tuple(chosen), (note,) if len(chosen) < len(files) else ())
    raise FileFormatError(f"{path} holds no data set: neither what datasets saves nor {', '.join(SUFFIXES)}.")


def _data_files(folder: str) -> list[str]:
    """Return the data files of a folder, by name; settings that lie beside them are none."""
    names: Iterable[str] = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
    wanted = tuple(suffix for suffix in SUFFIXES if suffix not in (".json", ".txt"))
    return [os.path.join(folder, name) for name in names if name.endswith(wanted)]
