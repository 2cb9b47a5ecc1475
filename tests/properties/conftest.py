"""Coverage looks away here: the same lines of the package run hundreds of times over."""

from tests.untraced import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
