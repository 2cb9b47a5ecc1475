"""Coverage looks away here: most that runs is of torch, and unit tests reach the same of the package."""

from tests.untraced import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
