"""Which data set a LLaMA-Factory file names, and how many of its samples are used.

Names are looked up in the catalogue, then in the project's dataset_info.json; a data set
known to neither leaves every sequence as long as the cut-off, and says so.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.errors import InputError, UnknownNameError, shown
from finegauge.workload.field import names, whole
from finegauge.workload.readers import yaml_safe
from finegauge.workload.readers.text_file import read_text


class Samples(NamedTuple):
    """The catalogue's data set, if it is one, and how many samples of all data sets are used."""

    dataset: str | None
    num_samples: int | None  # None: not known, or all of the catalogue's
    num_in_catalogue: int | None
    warnings: list[str]


def read_samples(keys: Mapping[str, Any], file: str, *, strict: bool) -> Samples:
    """Return the data that `keys` name; a `strict` name must be in the catalogue."""
    named = names("dataset", keys.get("dataset") or ())
    warnings: list[str] = []
    known, total, unknown = None, 0, False
    limit = whole(1, 10**10)("max_samples", keys["max_samples"]) if keys.get("max_samples") else None
    for name in named:
        found, size = _look_up(name, keys, file, strict=strict)
        known = found or known
        unknown = unknown or found is None
        size = limit if size is None else min(size, limit or size)
        total = -1 if size is None or total < 0 else total + size
    if unknown or len(named) != 1:
        shown_names = ", ".join(shown(name) for name in named)
        if named:
            warnings.append(
                f"The lengths of {shown_names} are not in the catalogue: "
                "every sequence is taken as cutoff_len long."
            )
        known = None
    if total <= 0:
        return Samples(known, None, None, warnings)
    as_catalogued = known is not None and limit is None
    return Samples(known, None if as_catalogued else total, total if as_catalogued else None, warnings)


def _look_up(name: str, keys: Mapping[str, Any], file: str, *, strict: bool) -> tuple[str | None, int | None]:
    """Return (name that a run may have, samples) of a data set; None where unknown.

    A file of texts that the command line names is one of its own; a tokenizer says how long they are.
    """
    from finegauge.catalogue.datasets import dataset
    from finegauge.workload.dataset_files.source import holds_texts

    if strict and holds_texts(name, has_tokenizer=False):
        return name, None

    beside = os.path.join(os.path.dirname(file), name)
    path_or_name = beside if os.path.isfile(beside) else name
    try:
        found = dataset(path_or_name)
    except UnknownNameError:
        if strict:
            raise
        return None, _listed_samples(name, keys, file)
    return path_or_name if found.lengths else None, found.num_samples


def _listed_samples(name: str, keys: Mapping[str, Any], file: str) -> int | None:
    """Return the num_samples that the project's dataset_info.json lists for `name`."""
    folder = str(keys.get("dataset_dir") or "data")
    for base in (os.path.realpath(os.path.dirname(file)), os.path.realpath(os.curdir)):
        try:
            listing = os.path.realpath(os.path.join(base, folder, "dataset_info.json"))
            if listing.startswith(os.path.join(base, "")) and os.path.isfile(listing):
                entry = yaml_safe.load(read_text(listing), "dataset_info.json")[name]
                return int(whole()("num_samples", entry["num_samples"]))
        except (InputError, KeyError, TypeError, OSError, ValueError, RuntimeError):
            continue  # a listing that cannot be read tells nothing
    return None
