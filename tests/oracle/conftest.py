"""Coverage looks away here: most that runs is of torch, and unit tests reach the same of the package."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder: tracing lines costs a third to a half of its time."""
    item.add_marker("no_cover")
