"""Coverage looks away here: it reads sources and starts commands as processes of their own."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder: tracing lines costs a third to a half of its time."""
    item.add_marker("no_cover")
