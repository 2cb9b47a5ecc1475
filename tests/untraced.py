"""Coverage looks away where the same lines run thousands of times: tracing is half of their time.

A folder whose `conftest.py` imports this hook has it. pytest-cov's `no_cover` does nothing in the workers of
pytest-xdist: version 7.1 starts two collectors there, and stops one of them.
"""

import sys
import threading
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["pytest_runtest_call"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Run the test without a trace function, in threads that it starts too."""
    tracers: tuple[Any, Any] = sys.gettrace(), threading.gettrace()
    nobody: Any = None
    sys.settrace(nobody)
    threading.settrace(nobody)
    try:
        return (yield)
    finally:
        sys.settrace(tracers[0])
        threading.settrace(tracers[1])
