"""Coverage looks away here: the same lines of the package run for every row."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder: tracing lines costs a third to a half of its time."""
    item.add_marker("no_cover")
