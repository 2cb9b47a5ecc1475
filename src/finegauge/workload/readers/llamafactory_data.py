"""Which data set a LLaMA-Factory file names, and how many of its samples train and evaluate.

Names are looked up in the catalogue, then in the project's dataset_info.json; a data set
known to neither leaves every sequence as long as the cut-off, and says so.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.errors import InputError, UnknownNameError, shown
from finegauge.workload.field import names, number, whole
from finegauge.workload.readers import yaml_safe
from finegauge.workload.readers.text_file import read_text


class Samples(NamedTuple):
    """The catalogue's data set, if it is one, and the samples on either side of the split."""

    dataset: str | None
    num_train: int | None
    num_eval: int
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
        return Samples(known, None, 0, warnings)
    num_eval = _held_out(keys.get("val_size"), total)
    as_catalogued = known is not None and limit is None and not num_eval
    return Samples(known, None if as_catalogued else max(1, total - num_eval), num_eval, warnings)


def _look_up(name: str, keys: Mapping[str, Any], file: str, *, strict: bool) -> tuple[str | None, int | None]:
    """Return (catalogue name, samples) of a data set; None where unknown."""
    from finegauge.catalogue.datasets import dataset

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


def _held_out(val_size: Any, total: int) -> int:
    """Return how many samples are held out: a share below 1, a number from 1 on."""
    if not val_size:
        return 0
    size = number(0, 1e10)("val_size", val_size)
    return min(total - 1, int(size * total if size < 1 else size))
