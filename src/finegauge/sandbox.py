"""Untrusted requests: worker processes with limits of time and memory, and a list of readable folders.

`reading_only` decides which files an answer may open: every opening by this package is checked as the
interpreter reports it (PEP 578), links and ".." resolved. A `Seat` holds one worker process: it answers one
job at a time, is ended where it takes too long or too much memory, and is replaced where it died. `apart`
gives a long job a process of its own.
"""

import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from finegauge.errors import FineGaugeError, InputError, shown

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

STARTS_WITHIN_S = 60.0
ANSWERS_PER_PROCESS = 20_000  # then a new one takes its place
_OPENINGS = ("open", "os.listdir", "os.scandir")
_OPENERS = ("os", "io", "codecs", "gzip", "pathlib", "shutil", "tempfile", "zipfile")  # of Python, for others
_MACHINE = ("/proc/cpuinfo", "/proc/meminfo", os.devnull)
_PACKAGE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "")
NOT_READ = "lies outside the folder of this server; it is not read."
_END = "end"  # after the last that a job yields
_REACH: ContextVar[tuple[str, ...] | None] = ContextVar("reach", default=None)


@contextmanager
def reading_only(*folders: str, refusal: str = NOT_READ) -> Iterator[None]:
    """Let this package open, in this thread, only what lies in `folders`, in itself and in its scratch.

    Raises: InputError where something else is about to be opened: its path and the `refusal`.
    """
    _listen()
    scratch = os.path.join(os.path.realpath(tempfile.gettempdir()), "finegauge-")  # begins each name
    settled = _REACH.set((refusal, scratch, *map(os.path.realpath, folders)))
    try:
        yield
    finally:
        _REACH.reset(settled)


def lies_in(path: str, folder: str) -> bool:
    """Return whether a path is a folder or something below it; both without links."""
    return path == folder or path.startswith(os.path.join(folder, ""))


@cache
def _listen() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _OPENINGS or (reach := _REACH.get()) is None or not _is_ours():
        return
    if not isinstance(arguments[0], str | bytes | os.PathLike):  # a file that is open
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    refusal, scratch, *folders = reach
    if path.startswith((_PACKAGE, scratch)) or path in _MACHINE:
        return
    if not any(lies_in(path, folder) for folder in folders):
        raise InputError(f"{shown(os.fsdecode(arguments[0]))} {refusal}")


def _is_ours() -> bool:
    """Return whether this package opens a file: no import, and no library at its own business."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _OPENERS:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "finegauge"


def bound_memory(num_bytes: int, limit: str = "RLIMIT_AS") -> None:
    """Let this process have no more memory than this; where the system knows no such limit, nothing."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        kind = getattr(resource, limit)
        _, most = resource.getrlimit(kind)
        allowed = num_bytes if most == resource.RLIM_INFINITY else min(most, num_bytes)
        resource.setrlimit(kind, (allowed, most))


def born(process: int) -> str:
    """Return when a process began, in the kernel's clock ticks of this boot; "" if it is gone or not told."""
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
        state, *rest = stat.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot:
            return "" if state in "ZX" else f"{boot.read().strip()}:{rest[18]}"
    return ""


def is_alive(process: int, born_then: str = "") -> bool:
    """Return whether a process runs: the one that was `born_then`, where that is known, not a later one."""
    if born_then:
        return born(process) == born_then
    if os.name == "nt":  # there a signal of 0 ends it
        return True
    with suppress(PermissionError):
        try:
            os.kill(process, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


class EndedError(FineGaugeError):
    """A process was ended, or ended, before it answered; says why and what to do."""


class Worker:
    """A process that answers one question at a time, and the pipe by which it is asked."""

    def __init__(self, context: Any, settle: Callable[..., None], *settled: Any) -> None:
        """Start it; it first calls `settle`, a function of a module, with `settled`."""
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, settle, *settled), daemon=True)
        self._process.start()
        theirs.close()
        self._has_started = False
        self._left = ANSWERS_PER_PROCESS

    def wait(self) -> None:
        """Wait until it is warm.

        Raises: TimeoutError, or OSError or EOFError where it ended.
        """
        self._has_started = self._has_started or self._heard(STARTS_WITHIN_S)

    def take(self, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Let it begin with `job`.

        Raises: OSError or EOFError where it ended before, or has answered so much that a new one is due.
        """
        self.wait()
        if not self._left:
            raise EOFError
        self._left -= 1
        self._pipe.send((job, args))
        self._heard(STARTS_WITHIN_S)

    def answer(self, within_s: float) -> Any:
        """Return what the job that it took answers; of an iterator, the next that it yields.

        Raises: TimeoutError, MemoryError, or OSError or EOFError where it ended; end it after any of these.
        """
        answer = self._heard(within_s)
        if answer is None:
            raise MemoryError
        return answer

    def _heard(self, within_s: float) -> Any:
        if not any(self._pipe.poll(min(1.0, within_s)) for _ in range(math.ceil(within_s))):
            raise TimeoutError  # by the second: a time during which all was stopped (Ctrl-Z) counts as one
        return self._pipe.recv()

    def end(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Seat:
    """A place for one worker, which a new one takes where the last has died, idle or busy."""

    def __init__(self, start: Callable[[], Worker]) -> None:
        """Start its worker."""
        self._start = start
        self.worker = start()

    def asked(self, job: Callable[..., Any], args: tuple[Any, ...], within_s: float) -> Any:
        """Return what `job` answers; never None.

        Raises: EndedError where it takes too long or too much memory.
        """
        try:
            try:
                self.worker.take(job, args)
            except (OSError, EOFError):  # it died while it was idle
                self.worker.end()
                self.worker = self._start()
                self.worker.take(job, args)
            return self.worker.answer(within_s)
        except BaseException as error:
            self.worker.end()  # the next to ask replaces it
            if isinstance(error, TimeoutError):
                raise EndedError(
                    f"This takes longer than {within_s:.0f} s and was ended; ask for less, or use the "
                    "command line, which has no limit."
                ) from None
            if isinstance(error, OSError | EOFError | MemoryError):
                raise EndedError(
                    "The process that computed this ended; it may have run out of memory. Ask for less."
                ) from None
            raise


def apart(
    make: Callable[..., Iterator[Any]], args: tuple[Any, ...], most_bytes: int, within_s: float
) -> Iterator[Any]:
    """Yield what `make(*args)` yields in a process of its own; in one that has limits already, here.

    `most_bytes` bounds its memory where the system can, `within_s` the time from one result to the next.

    Raises: FineGaugeError as `make` does; TimeoutError, MemoryError, or OSError or EOFError where it ended.
    """
    from multiprocessing import current_process, get_context

    if current_process().daemon:
        yield from make(*args)
        return
    with _no_main():
        worker = Worker(get_context("spawn"), _bound, most_bytes, _REACH.get())
    try:
        worker.take(_to_end, (make, args))
        while (one := worker.answer(within_s)) != _END:
            if isinstance(one, FineGaugeError):
                raise one
            yield one
    finally:
        worker.end()


@contextmanager
def _no_main() -> Iterator[None]:
    """Let a process that is spawned not run the user's script again, which may have no `if __name__`."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _bound(most_bytes: int, reach: tuple[str, ...] | None) -> None:
    bound_memory(most_bytes, "RLIMIT_DATA")  # what threads and libraries merely reserve does not count
    if reach is not None:
        _listen()
        _REACH.set(reach)


def _to_end(make: Callable[..., Iterator[Any]], args: tuple[Any, ...]) -> Iterator[Any]:
    try:
        yield from make(*args)
    except FineGaugeError as error:
        yield error
    yield _END


def _answer(asked: "Connection", settle: Callable[..., None], *settled: Any) -> None:
    """Answer what comes, until the asker ends; no answer says that memory did not suffice."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    settle(*settled)
    with suppress(EOFError, OSError):
        asked.send(True)
        while True:
            job, args = asked.recv()
            asked.send(True)
            try:
                answer = job(*args)
                if isinstance(answer, Iterator):
                    for one in answer:
                        asked.send(one)
                    continue
            except MemoryError:
                answer = None
            asked.send(answer)
