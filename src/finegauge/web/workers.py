"""Processes that compute answers beside the server, with a deadline that is kept.

Two lanes: questions that a page asks at every edit, and searches, so that no search holds up an edit. What
runs longer than its lane allows is ended with its process, and a new one takes its place. A lane lets so
many wait and sends others away with the time after which to come back.

The fork server has imported all that answers need and answered once; each process is born from it, warm.
"""

import asyncio
import gc
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError
from importlib import import_module
from multiprocessing import get_all_start_methods, get_context
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from finegauge.web.limits import RefusedError
from finegauge.web.response_cache import Reply, ResponseCache, key_of

if TYPE_CHECKING:
    from pebble import ProcessPool

PRELOADED = ("finegauge.web.preloaded",)

Job = Callable[..., Reply]

MOST_MEMORY_BYTES = 4 * 2**30  # of one process, virtual
BEHIND = 10  # niceness of searches: where cores are few, an edit goes first
ANSWERS_PER_PROCESS = 20_000  # then a new one takes its place


class Lane(NamedTuple):
    """One kind of question, with its processes."""

    name: str
    workers: int
    waiting: int  # questions that may wait beside those being answered
    within_s: float  # for one answer
    full_status: int  # said where no more may wait
    retry_after_s: int


def lanes() -> "tuple[Lane, Lane]":
    """Return the lanes of questions and of searches, as wide as this machine is."""
    cores = os.cpu_count() or 1
    quick = Lane("questions", min(10, cores + 2), 200, 10.0, 503, 1)
    return quick, Lane("searches and reports", max(1, min(4, cores // 2)), 8, 30.0, 429, 5)


class Answering(Protocol):
    """Who computes answers."""

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        """Return what `job` answers; `args` are plain values."""


class Workers:
    """The processes of both lanes, and the answers given lately."""

    def __init__(self, quick: Lane, searches: Lane) -> None:
        """Prepare; processes start with `start`."""
        self._cache = ResponseCache()
        self._running: dict[str, asyncio.Future[Reply]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="finegauge-serve-", ignore_cleanup_errors=True)
        self._lanes = {False: quick, True: searches}
        self._pools: dict[bool, ProcessPool] = {}
        self._busy = {False: 0, True: 0}

    def start(self) -> None:
        """Start the processes; each is warm when this returns."""
        from pebble import ProcessPool

        forks = "forkserver" in get_all_start_methods()
        context = get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload([*PRELOADED])
        for search, lane in self._lanes.items():
            self._pools[search] = ProcessPool(
                max_workers=lane.workers, max_tasks=ANSWERS_PER_PROCESS, context=context, initializer=_settle,
                initargs=(self._folder.name, PRELOADED, BEHIND if search else 0),
            )  # fmt: skip
            for begun in [self._pools[search].schedule(_ready) for _ in range(lane.workers)]:
                begun.result()

    def stop(self) -> None:
        """End the processes, whatever they are doing, and remove what they wrote."""
        for pool in self._pools.values():
            pool.stop()  # type: ignore[no-untyped-call]
        for pool in self._pools.values():
            pool.join()
        self._folder.cleanup()

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        """Return what `job` answers, computed once for all who ask the same.

        Raises: RefusedError (429, 503) where too many wait, or where it takes too long.
        """
        key = key_of(job.__module__, job.__qualname__, *args)
        if (kept := self._cache.get(key)) is not None:
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
        from pebble import ProcessExpired

        lane = self._lanes[search]
        try:
            scheduled = self._pools[search].schedule(job, args=args, timeout=lane.within_s)
            reply = await asyncio.wrap_future(scheduled)
        except TimeoutError:
            sentence = f"This takes longer than {lane.within_s:.0f} s and was ended; ask for less"
            raise RefusedError(503, f"{sentence}, or use the command line, which has no limit.") from None
        except (ProcessExpired, BrokenExecutor, CancelledError, MemoryError):
            sentence = "The process that computed this ended, perhaps for want of memory; ask for less."
            raise RefusedError(503, sentence) from None
        finally:
            self._busy[search] -= 1
            del self._running[key]
        if reply.status < 500:
            self._cache.add(key, reply)
        return reply


def _full(lane: Lane) -> RefusedError:
    """Return the refusal where too many wait."""
    sentence = f"Too many {lane.name} at once; try again in {lane.retry_after_s} s."
    return RefusedError(lane.full_status, sentence, retry_after_s=lane.retry_after_s)


def _settle(folder: str, preloaded: tuple[str, ...], behind: int) -> None:
    """Bound a new process in memory, and let nothing that a request names reach the user's files."""
    import signal

    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to end
    if behind and hasattr(os, "nice"):
        os.nice(behind)
    try:
        import resource
    except ImportError:  # not on Windows
        pass
    else:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = MOST_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, MOST_MEMORY_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    for module in preloaded:  # where processes are spawned, not forked
        import_module(module)
    from finegauge.web.upload_store import upload_store

    upload_store().enter()
    gc.freeze()


def _ready() -> None:
    """Answer nothing: a process that does so has started."""
