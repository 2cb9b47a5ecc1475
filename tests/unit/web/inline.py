"""The application without processes: answers are computed where they are asked for."""

from typing import Any

from starlette.testclient import TestClient

from finegauge.web.app import create_app
from finegauge.web.response_cache import Reply
from finegauge.web.workers import Job

BASE = "http://127.0.0.1:8317"


class Inline:
    """Answers at once, in this process."""

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        return job(*args)


def client() -> TestClient:
    """Return a browser's view of the application."""
    return TestClient(create_app(Inline()), base_url=BASE, raise_server_exceptions=False)
