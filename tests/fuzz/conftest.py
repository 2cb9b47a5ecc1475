"""Coverage looks away here: the same lines of the package run for thousands of spoiled inputs."""

from tests.untraced import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
