"""Bytes and counts as a person reads them."""

import pytest

from finegauge.units import GIB, count, gib


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0.5 * GIB, "0.50 GiB"), (23.44 * GIB, "23.4 GiB"), (0, "0.00 GiB")]
)
def test_gib(num_bytes: float, text: str) -> None:
    assert gib(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(812, "812"), (7_240_000, "7.24 M"), (46_702_792_704, "46.7 B"), (1.2e12, "1.20 T"), (4096, "4.10 k")],
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text
