"""The data sets: histograms that sum to their sizes and have the published medians."""

import pytest

from finegauge.catalogue.datasets import dataset, datasets
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run


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


@pytest.mark.parametrize(
    ("name", "num_samples", "printed_tokens", "turns"),
    [
        ("tatsu-lab/alpaca", 52_002, 19.67 + 64.51, 1),
        ("databricks/databricks-dolly-15k", 15_011, 110.25 + 91.14, 1),
        ("OpenAssistant/oasst1", 46_283, 2.34 * (33.41 + 211.76), 2.34),
        ("HuggingFaceH4/ultrachat_200k", 208_000, 238e6 / 208e3, 3.16),
        ("vicgalle/alpaca-gpt4", 52_002, 28.0 + 161.8, 1),
        ("Anthropic/hh-rlhf", 166_353, 225.3, 3),
        ("GAIR/lima", 1_000, 750, 1),
        ("alpaca_en_demo", 1_000, 198.6, 1),
    ],
)
def test_names_that_frameworks_use(name: str, num_samples: int, printed_tokens: float, turns: float) -> None:
    found = dataset(name)
    assert found.kind == "mean"
    assert found.num_samples == num_samples == sum(count for _, count in found.lengths)
    assert found.mean_tokens == pytest.approx(
        printed_tokens + 10 * turns, rel=0.01
    )  # and the template's tokens


def test_a_printed_deviation_is_kept() -> None:
    found = dataset("openhermes")
    mean = found.mean_tokens or 0.0
    variance = sum(count * (length - mean) ** 2 for length, count in found.lengths) / found.num_samples
    assert variance**0.5 == pytest.approx(258.45, rel=0.03)
    assert (found.median_tokens or 0) < mean < (found.max_tokens or 0)


def test_every_mean_has_a_page_that_prints_it() -> None:
    means = [found for found in datasets().values() if found.kind == "mean"]
    assert len(means) >= 20
    assert all("https://" in found.source and any(map(str.isdigit, found.source)) for found in means)
    assert len({each.casefold() for found in means for each in (found.name, *found.aliases)}) == sum(
        1 + len(found.aliases) for found in means
    )


def test_unsure_lengths_widen_the_interval_of_time() -> None:
    run = {"model": "qwen3-8b", "gpu": "a100-80gb", "method": "lora"}
    counted, spread = (
        predict(Run.from_fields({**run, "dataset": name})) for name in ("math_14k", "ultrachat_200k")
    )
    sure, unsure = counted.source.time_interval, spread.source.time_interval
    assert sure is not None
    assert unsure is not None
    assert unsure.low_ratio < sure.low_ratio < 1.0 < sure.high_ratio < unsure.high_ratio
    assert any("published mean" in one for one in spread.source.assumptions)
    assert not any("published mean" in one for one in counted.source.assumptions)
