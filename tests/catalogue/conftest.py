"""Coverage looks away here: the same lines of the package run for every row."""

from tests.untraced import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
