"""Processes that compute answers beside the server, with a deadline that is kept.

Two lanes: questions that a page asks at every edit, and searches, so that no search holds up an edit. What
runs longer than its lane allows is ended with its process, and a new one takes its place, as one does where a
process has died, idle or busy: each has a pipe of its own, so that none takes a lock of the others with it. A
lane lets so many wait and sends others away with the time after which to come back.

The fork server has imported all that answers need and answered once; each process is born from it, warm.

How much one request may ask is bounded before: bytes, depth, fields, characters. A body is read up to its
limit and no further, so that a hostile one costs no more than an honest one.
"""

import asyncio
import gc
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import get_all_start_methods, get_context
from queue import SimpleQueue
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from finegauge.documents import num_values
from finegauge.sandbox import EndedError, Seat, Worker, bound_memory, is_alive
from finegauge.web.storage import Figures, Reply, ResponseCache, key_of, upload_store

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_BODY_BYTES = 262_144
MAX_QUERY_BYTES = 65_536  # a share link
MAX_DEPTH = 16
MAX_KEYS = 2_000  # and items of lists, all together
MAX_FIELDS = 200  # of a form
BODY_WITHIN_S = 10.0
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class RefusedError(Exception):
    """A request that is not answered, and why.

    Attributes:
        status: Of HTTP.
        sentence: What is wrong and what to do.
        field: Whose value is wrong; None where it is no field's.
        retry_after_s: When to ask again; None where asking again does not help.
    """

    def __init__(
        self, status: int, sentence: str, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        """Say why, and when to ask again."""
        super().__init__(sentence)
        self.status, self.sentence, self.field, self.retry_after_s = status, sentence, field, retry_after_s


async def body_of(request: "Request", media_type: str) -> bytes:
    """Return the body of a request.

    Raises: RefusedError (408, 413, 415) where it is slow, too long or of another type.
    """
    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated != media_type:
        raise RefusedError(415, f"Send the body as {media_type}, not as {stated or 'nothing stated'}.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:12]) > MAX_BODY_BYTES:
        raise _too_long()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await _read(request)
    except TimeoutError:
        raise RefusedError(
            408, f"The body did not arrive within {BODY_WITHIN_S:.0f} s; send it again."
        ) from None


async def _read(request: "Request") -> bytes:
    from starlette.requests import ClientDisconnect

    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise _too_long()
    except ClientDisconnect:
        raise RefusedError(400, "The body ended early; send it again.") from None
    return b"".join(parts)


def _too_long() -> RefusedError:
    return RefusedError(413, f"The body is too long; at most {MAX_BODY_BYTES // 1024} KiB are read.")


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds.

    Raises: RefusedError (400, 422) where it is none, nests deep, repeats a key, or holds NaN or NUL.
    """
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_object
        )
    except RefusedError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        at = error if isinstance(error, json.JSONDecodeError) else None
        where = f" (line {at.lineno}, column {at.colno})" if at else ""
        raise RefusedError(400, f"The body is no JSON{where}; send an object such as {{}}.") from None
    if not isinstance(value, dict):
        raise RefusedError(422, "The body must be a JSON object, such as {}.")
    if (number := num_values(value, MAX_DEPTH)) is None:
        raise _too_deep()
    if number > MAX_KEYS:
        raise RefusedError(422, f"The JSON is too large; at most {MAX_KEYS:,} keys and items are read.")
    for name, item in value.items():
        _check_text(name, item)
    return value


def _too_deep() -> RefusedError:
    return RefusedError(422, f"The JSON nests too deep; at most {MAX_DEPTH} levels are read.")


def form_fields(text: bytes) -> dict[str, str]:
    """Return the fields of a form or of a query: of a repeated one, the last value.

    Raises: RefusedError (422) for too many of them, and for text that is none.
    """
    from urllib.parse import parse_qsl

    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except UnicodeDecodeError:
        raise RefusedError(422, "The fields are not UTF-8 text; send them percent-encoded.") from None
    except ValueError:
        raise RefusedError(422, f"Too many fields; at most {MAX_FIELDS} are read.") from None
    fields = dict(pairs)
    for name, value in fields.items():
        _check_text(name, value)
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise RefusedError(422, "A key stands twice in one object; keep one.", _field(twice))
    return found


def _no_constant(word: str) -> float:
    raise RefusedError(400, f"{word} is no JSON; send a finite number or null.")


def _integer(digits: str) -> int:
    if len(digits) > 40:
        raise RefusedError(422, "A number has more than 40 digits; send a shorter one.")
    return int(digits)


def _check_text(name: str, value: Any) -> None:
    """Raise where a text holds NUL or half a character, which no file and no terminal takes."""
    texts = [name, value] if isinstance(value, str) else [name]
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(key, item)
    elif isinstance(value, list):
        for item in value:
            _check_text(name, item)
    for text in texts:
        if _NO_TEXT.search(text):
            raise RefusedError(422, "A text holds NUL or half a character; send plain UTF-8.", _field(name))


def _field(name: str) -> str | None:
    return name if name.isidentifier() and len(name) <= 60 else None


FOLDER = "finegauge-serve-"  # what the server's temporary folder is called, before its process
QUOTA = "/sys/fs/cgroup/cpu.max"
PRELOADED = ("finegauge.web.preloaded",)

Job = Callable[..., Reply]

MOST_MEMORY_BYTES = 4 * 2**30  # of one process, virtual
BEHIND = 10  # niceness of searches: where cores are few, an edit goes first


class Lane(NamedTuple):
    """One kind of question, with its processes."""

    name: str
    workers: int
    waiting: int  # questions that may wait beside those being answered
    within_s: float  # for one answer
    full_status: int  # said where no more may wait
    retry_after_s: int


def lanes(workers: int = 0) -> tuple[Lane, Lane]:
    """Return the lanes of questions and of searches, as wide as this machine, or this container, is.

    `workers` processes answer questions, where any are asked for.
    """
    cores = num_cores()
    quick = Lane("questions", workers or min(10, cores + 2), 200, 10.0, 503, 1)
    return quick, Lane("searches and reports", max(1, min(4, cores // 2)), 8, 30.0, 429, 5)


def num_cores() -> int:
    """Return how many cores this process may use: those of the machine, or what its container is allowed.

    QUOTA holds "microseconds of each period" and the period of a control group, version 2.
    """
    cores = os.cpu_count() or 1
    with suppress(OSError, ValueError):
        with open(QUOTA, encoding="ascii") as file:
            allowed, _, period = file.read().partition(" ")
        cores = min(cores, max(1, math.ceil(int(allowed) / int(period))))  # "max" is no number
    return cores


class Answering(Protocol):
    """Computes answers."""

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        """Return what `job` answers; `args` are plain values."""


class Workers:
    """The processes of both lanes, and the answers given lately."""

    def __init__(self, quick: Lane, searches: Lane) -> None:
        """Prepare; processes start with `start`."""
        _sweep()
        self._cache = ResponseCache()
        self._running: dict[str, asyncio.Future[Reply]] = {}
        self._folder = tempfile.TemporaryDirectory(
            prefix=f"{FOLDER}{os.getpid()}-", ignore_cleanup_errors=True
        )
        self._lanes = {False: quick, True: searches}
        self._idle: dict[bool, SimpleQueue[Seat]] = {search: SimpleQueue() for search in self._lanes}
        self._threads = {search: ThreadPoolExecutor(lane.workers) for search, lane in self._lanes.items()}
        self._busy = {False: 0, True: 0}
        self._num_started = {False: 0, True: 0}
        self._num_kept = 0  # answers that were there already
        forks = "forkserver" in get_all_start_methods()
        self._context: Any = get_context("forkserver" if forks else "spawn")
        if forks:
            self._context.set_forkserver_preload([*PRELOADED])

    def start(self) -> None:
        """Start the processes; each is warm when this returns."""
        for search, lane in self._lanes.items():
            seats = [Seat(partial(self._started, search=search)) for _ in range(lane.workers)]
            for seat in seats:
                seat.worker.wait()
                self._idle[search].put(seat)

    def stop(self) -> None:
        """End the processes once they have answered, and remove what they wrote."""
        for search, threads in self._threads.items():
            threads.shutdown(cancel_futures=True)
            while not self._idle[search].empty():
                self._idle[search].get().worker.end()
        self._folder.cleanup()

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        """Return what `job` answers, computed once for all who ask the same.

        Raises: RefusedError (429, 503) where too many wait, or where it takes too long.
        """
        key = key_of(job.__module__, job.__qualname__, *args)
        if (kept := self._cache.get(key)) is not None:
            self._num_kept += 1
            return kept
        if (running := self._running.get(key)) is None:
            lane = self._lanes[search]
            if self._busy[search] >= lane.workers + lane.waiting:
                raise _full(lane)
            self._busy[search] += 1
            running = asyncio.ensure_future(self._computed(key, job, args, search=search))
            self._running[key] = running
        return await asyncio.shield(running)

    async def _computed(self, key: str, job: Job, args: tuple[Any, ...], *, search: bool) -> Reply:
        """Return the answer of a process, and keep it."""
        asking = asyncio.get_running_loop()
        try:
            reply = await asking.run_in_executor(self._threads[search], self._asked, search, job, args)
        except EndedError as error:
            raise RefusedError(503, str(error)) from None
        finally:
            self._busy[search] -= 1
            del self._running[key]
        if reply.status < 500 and reply.body:
            self._cache.add(key, reply)
        return reply

    def _asked(self, search: bool, job: Job, args: tuple[Any, ...]) -> Reply:
        """Return the answer of an idle process; called in a thread of the lane."""
        seat = self._idle[search].get()
        try:
            reply: Reply = seat.asked(job, args, self._lanes[search].within_s)
            return reply
        finally:
            self._idle[search].put(seat)

    def figures(self) -> Figures:
        """Return what the processes and the cache hold now."""
        named = {lane.name: search for search, lane in self._lanes.items()}
        workers = {name: self._lanes[search].workers for name, search in named.items()}
        return Figures(
            workers,
            {name: self._busy[search] for name, search in named.items()},
            {name: max(0, self._num_started[search] - workers[name]) for name, search in named.items()},
            self._cache.num_bytes,
            self._num_kept,
        )

    def _started(self, *, search: bool) -> Worker:
        self._num_started[search] += 1
        return Worker(self._context, _settle, self._folder.name, PRELOADED, BEHIND if search else 0)


def _sweep() -> None:
    for name in os.listdir(tempfile.gettempdir()):
        process = name.removeprefix(FOLDER).partition("-")[0]
        if name.startswith(FOLDER) and process.isdecimal() and not is_alive(int(process)):
            rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)


def _full(lane: Lane) -> RefusedError:
    sentence = f"Too many {lane.name} at once; try again in {lane.retry_after_s} s."
    return RefusedError(lane.full_status, sentence, retry_after_s=lane.retry_after_s)


def _settle(folder: str, preloaded: tuple[str, ...], behind: int) -> None:
    """Limit a new process's memory, and start it in an empty folder, away from the user's files."""
    tempfile.tempdir = folder
    if behind and hasattr(os, "nice"):
        os.nice(behind)
    bound_memory(MOST_MEMORY_BYTES)
    for module in preloaded:  # where processes are spawned, not forked
        import_module(module)
    upload_store().enter()
    gc.freeze()


def ready() -> Reply:
    """Answer nothing: a process that does so is well."""
    return Reply("", 204)
