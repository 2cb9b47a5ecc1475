"""Coverage looks away from hundreds of pages and requests, each parsed or checked against a document."""

from collections.abc import Generator

import pytest

from tests import untraced


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the tests of these two files without a trace function."""
    if item.path.name in ("test_injection.py", "test_openapi.py"):
        return (yield from untraced.pytest_runtest_call())
    return (yield)
