"""A run's data set of texts, in tokens: its lengths as the catalogue has them, or the tokens themselves."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finegauge.catalogue.datasets import Dataset

Tokens = list[int]


def tokenised(path: str, tokenizer: str) -> list[Tokens]:
    """Return the tokens of every sample of the data set at `path`, in the order of its lengths.

    Args:
        path: A file of texts, or a folder of `datasets`.
        tokenizer: A `tokenizer.json`, or the folder that holds it.
    Raises: InputError for what cannot be read as texts, UnsupportedError where a library is not installed.
    """
    from finegauge.workload.dataset_files.counting import token_ids

    return token_ids(path, tokenizer)


def text_dataset(path: str, tokenizer: str) -> "Dataset":
    """Return the lengths of the texts at `path`, under `tokenizer`. Raises: as `tokenised` does."""
    from finegauge.workload.dataset_files.counting import token_lengths

    return _dataset(path, tokenizer, token_lengths(path, tokenizer).content)


@lru_cache(maxsize=4)
def _dataset(path: str, tokenizer: str, content: str) -> "Dataset":
    """Return lengths as a data set of the catalogue has them; `content` tells one data set from another."""
    del content
    from finegauge.catalogue.datasets import Dataset
    from finegauge.workload.dataset_files.counting import token_lengths
    from finegauge.workload.dataset_files.lengths import quantiles

    lengths = token_lengths(path, tokenizer)
    pairs = lengths.pairs()
    found, missed = lengths.findings, lengths.findings.num_unreadable + lengths.findings.num_empty
    left_out = f" ({missed:,} of {found.num_rows:,} {found.row_name}s empty or unreadable)" if missed else ""
    return Dataset(
        name=lengths.path,
        aliases=(),
        num_samples=lengths.num_samples,
        lengths=pairs,
        median_tokens=quantiles(pairs, (0.5,))[0],
        tokenizer=tokenizer,
        source=lengths.path + left_out,
        checked="",
    )
