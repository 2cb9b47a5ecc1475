"""Lengths stated by a mean and the longest, or as a histogram."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.errors import FieldError
from finegauge.web.form import lengths_csv, of_mean


@settings(max_examples=20)
@given(st.integers(2, 100_000), st.floats(0.02, 0.98), st.integers(1_000, 10**6))
def test_the_histogram_has_the_mean_and_the_longest(longest: int, share: float, samples: int) -> None:
    mean = max(1.0, share * longest)
    pairs = of_mean(mean, longest, samples)
    total = sum(count for _, count in pairs)
    assert pairs[-1][0] == longest
    assert abs(total - samples) <= 1
    assert all(count > 0 for _, count in pairs)
    found = sum(length * count for length, count in pairs) / total
    assert found == pytest.approx(mean, rel=0.01, abs=2 * longest / samples + 0.01)


def test_a_mean_as_long_as_the_longest_is_one_length() -> None:
    assert of_mean(64.0, 64, 100) == ((64, 100),)


def test_a_histogram_is_merged_and_sorted() -> None:
    text = "tokens, samples\n300,2\n100;5\n300 1\n\n"
    assert lengths_csv({"length_counts": text}) == "length,count\n100,5\n300,3\n"


def test_nothing_stated_is_nothing() -> None:
    assert lengths_csv({"gpu": "A40"}) == ""


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"mean_tokens": "5"}, "longest_tokens is missing"),
        ({"longest_tokens": "5"}, "mean_tokens is missing"),
        ({"mean_tokens": "50", "longest_tokens": "5"}, "mean_tokens=50 is too large"),
        ({"mean_tokens": "5", "longest_tokens": "9", "length_counts": "1,1"}, "remove mean_tokens"),
        ({"length_counts": "a,b\nc,d"}, "is no line such as"),
        ({"length_counts": "tokens"}, "needs 1 to"),
        ({"length_counts": "5,0"}, "no samples"),
        ({"length_counts": "0,5"}, "1 to 1,000,000 tokens"),
    ],
)
def test_what_is_wrong_is_said(stated: dict[str, str], says: str) -> None:
    with pytest.raises(FieldError, match=says):
        lengths_csv(stated)
