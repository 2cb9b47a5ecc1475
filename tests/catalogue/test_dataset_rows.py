"""The data sets: histograms that sum to their sizes and have the published medians."""

import pytest

from finegauge.catalogue.datasets import dataset, datasets


@pytest.mark.parametrize(
    ("name", "num_samples", "median_tokens", "longest"),
    [("commonsense_15k", 15_119, 79, 512), ("math_14k", 13_921, 174, 1470)],
)
def test_seed_paper_histograms(name: str, num_samples: int, median_tokens: int, longest: int) -> None:
    found = dataset(name)
    assert found.num_samples == num_samples == sum(count for _, count in found.lengths)
    assert found.median_tokens == median_tokens
    assert found.max_tokens == longest
    tokens = sorted(length for length, count in found.lengths for _ in range(count))
    assert tokens[(num_samples - 1) // 2] == median_tokens


def test_every_row_is_whole() -> None:
    for found in datasets().values():
        assert found.source
        assert found.checked
        assert found.tokenizer
        assert list(found.lengths) == sorted(found.lengths)
        assert all(length > 0 and count > 0 for length, count in found.lengths)
