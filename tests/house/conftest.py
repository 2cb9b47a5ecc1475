"""Coverage looks away here: it reads sources and starts commands as processes of their own."""

from tests.untraced import pytest_runtest_call

__all__ = ["pytest_runtest_call"]
