"""What the server keeps: answers by their question, bounded in bytes, pasted configs for a while, and counts.

Of answers, those asked for longest ago go first. A question counts anew every day, for prices age.
"""

import json
import os
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from hashlib import sha256
from tempfile import TemporaryDirectory
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


MOST_TEXTS = 400


class UploadStore:
    """A folder of texts, by content."""

    def __init__(self) -> None:
        """Make the folder; it is removed when the process ends."""
        self._held = TemporaryDirectory(prefix="finegauge-page-")
        self.folder = os.path.realpath(self._held.name)
        self._texts = os.path.join(self.folder, "pasted")
        self._empty = os.path.join(self.folder, "empty")
        for folder in (self._texts, self._empty):
            os.mkdir(folder)

    def keep(self, text: str, name: str) -> str:
        """Return the path of a file called `name` that holds `text`, in a folder with nothing beside it."""
        folder = os.path.join(self._texts, sha256(f"{name}\n{text}".encode()).hexdigest()[:32])
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.utime(folder)
            return path
        self._make_place()
        os.makedirs(folder, exist_ok=True)
        unfinished = f"{path}.{os.getpid()}.part"
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(unfinished, path)
        return path

    def holds(self, path: str) -> bool:
        """Return whether `path` is a text that was kept here."""
        if not path.isprintable():  # no name of ours, and perhaps none of a file
            return False
        return os.path.realpath(path).startswith(os.path.join(self._texts, ""))

    def text_of(self, path: str) -> str:
        """Return a text that was kept here."""
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()

    def enter(self) -> None:
        """Make an empty folder the process's own, so that no relative name reaches the user's files."""
        os.chdir(self._empty)

    def _make_place(self) -> None:
        """Remove the texts used longest ago, where there are too many."""
        with os.scandir(self._texts) as found:
            by_use = sorted((entry.stat().st_mtime, entry.path) for entry in found)
        for _, folder in by_use[: max(0, len(by_use) - MOST_TEXTS + 1)]:
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def upload_store() -> UploadStore:
    """Return the store of this process."""
    return _store_of(os.getpid())


@cache
def _store_of(process: int) -> UploadStore:
    """Return the store of one process: a child that was forked gets its own."""
    del process
    return UploadStore()


MEDIA_TYPE = "text/plain; version=0.0.4"
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH")
_Sample = tuple[Mapping[str, str], float]


class Figures(NamedTuple):
    """What the processes and the cache hold at one moment."""

    workers: Mapping[str, int] = {}  # by lane
    busy: Mapping[str, int] = {}  # questions being answered or waiting, by lane
    replaced: Mapping[str, int] = {}  # processes that took another's place, by lane
    cache_bytes: int = 0
    cache_hits: int = 0


class Metrics:
    """Counters since the server started."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._within: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS_S) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count one request to a known path, or to "other"."""
        self._requests[path, method if method in _METHODS else "other", str(status)] += 1
        self._within[path][bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[path] += seconds

    def text(self, version: str, now: Figures) -> str:
        """Return all of it."""
        lines = [
            *_family("build_info", "gauge", "The version that answers.", [({"version": version}, 1)]),
            *_family(
                "requests_total", "counter", "Requests answered, refused ones too.",
                [({"path": path, "method": method, "status": status}, number)
                 for (path, method, status), number in sorted(self._requests.items())],
            ),
            *self._durations(),
            *_family("workers", "gauge", "Processes that answer.", _by_lane(now.workers)),
            *_family("questions", "gauge", "Questions being answered or waiting.", _by_lane(now.busy)),
            *_family(
                "workers_replaced_total", "counter", "Processes that took the place of one that was ended.",
                _by_lane(now.replaced),
            ),
            *_family("cache_bytes", "gauge", "Answers kept in memory.", [({}, now.cache_bytes)]),
            *_family("cache_hits_total", "counter", "Answers given from memory.", [({}, now.cache_hits)]),
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _durations(self) -> Iterator[str]:
        name = "finegauge_request_duration_seconds"
        yield f"# HELP {name} From a request's headers to the end of its answer."
        yield f"# TYPE {name} histogram"
        for path, within in sorted(self._within.items()):
            total = 0
            for bound_s, number in zip((*BOUNDS_S, "+Inf"), within, strict=True):
                total += number
                yield f"{name}_bucket{_labels({'path': path, 'le': str(bound_s)})} {total}"
            yield f"{name}_sum{_labels({'path': path})} {self._seconds[path]:.6f}"
            yield f"{name}_count{_labels({'path': path})} {total}"


def _by_lane(numbers: Mapping[str, int]) -> list[_Sample]:
    return [({"lane": lane}, number) for lane, number in numbers.items()]


def _family(name: str, kind: str, says: str, samples: list[_Sample]) -> Iterator[str]:
    yield f"# HELP finegauge_{name} {says}"
    yield f"# TYPE finegauge_{name} {kind}"
    for labels, number in samples:
        yield f"finegauge_{name}{_labels(labels)} {number}"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
