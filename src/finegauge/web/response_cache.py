"""Answers kept by their question, so that the same one costs nothing twice; bounded in bytes.

Those asked for longest ago go first. A question counts anew every day, for prices age.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from typing import Any, NamedTuple


class Reply(NamedTuple):
    """One answer: a page, a fragment of one, or a file to keep."""

    body: str | bytes
    status: int = 200
    media_type: str = "text/html"
    filename: str = ""  # where not empty, the browser saves the body under this name
    headers: Mapping[str, str] = {}


MOST_BYTES = 32 * 2**20
MOST_BYTES_EACH = 2 * 2**20
_OVERHEAD_BYTES = 500  # of one entry: its key, its record


class ResponseCache:
    """The answers that were given lately."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Keep nothing yet, and never more than `most_bytes`."""
        self._replies: OrderedDict[str, tuple[Reply, int]] = OrderedDict()
        self._most_bytes = most_bytes
        self.num_bytes = 0

    def get(self, key: str) -> Reply | None:
        """Return the answer to a question; None where it is not kept."""
        found = self._replies.get(key)
        if found is None:
            return None
        self._replies.move_to_end(key)
        return found[0]

    def add(self, key: str, reply: Reply) -> None:
        """Keep an answer, unless it is one of the largest."""
        num_bytes = len(reply.body) * (4 if isinstance(reply.body, str) else 1) + _OVERHEAD_BYTES
        if num_bytes > min(MOST_BYTES_EACH, self._most_bytes) or key in self._replies:
            return
        self._replies[key] = reply, num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self._most_bytes:
            _, (_, freed) = self._replies.popitem(last=False)
            self.num_bytes -= freed


def key_of(*question: Any) -> str:
    """Return what names a question of plain values today."""
    text = json.dumps([date.today().isoformat(), *question], sort_keys=True)
    return sha256(text.encode()).hexdigest()
