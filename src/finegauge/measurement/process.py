"""One trial in a process of its own: started, listened to, and never left behind.

The child leads its own session, so that Ctrl-C reaches the parent alone and one signal
reaches every process of the trial. It reads its trial from standard input and holds on to
that pipe: when the parent goes, by kill -9 too, the pipe closes and the child's guard kills
the group (see child.py). What it says comes back line by line; what it prints is kept in
memory, for the reason of a failure, so that a full disk cannot hurt it.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from finegauge.progress import Heard, Progress

CHILD = (sys.executable, "-m", "finegauge.measurement.child")
GROUP = "FINEGAUGE_TRIAL_GROUP"  # of the environment: the process group that torchrun is in
PR_SET_PDEATHSIG = 1  # linux/prctl.h
OUT_OF_MEMORY = (  # what libraries say when an allocation fails
    "can't allocate memory", "Cannot allocate memory", "out of memory", "not enough memory",
)  # fmt: skip
TAIL_BYTES = 20_000
CHUNK_BYTES = 1 << 20
LOOK_EVERY_S = 1.0
LIMITED = {  # what malloc keeps back would count against an address-space limit
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


class Ended(NamedTuple):
    """How a child process ended."""

    answer: Mapping[str, Any] | None  # the profile's document; None where it gave none
    code: int  # exit code; negative: the signal that ended it
    printed: str  # the end of what it printed
    timed_out: bool = False
    kernel_killed: bool = False  # the OOM killer struck meanwhile


def run_trial(
    trial: Mapping[str, Any], *, timeout_s: float = 0.0, limited: bool = False, heard: Heard | None = None
) -> Ended:
    """Run `trial` (run and options as JSON values) in a child process; nothing of it is left running.

    It is ended after `timeout_s` (0: never). `limited` says that its memory will be limited, so that malloc
    must not keep any back.
    """
    kills = kernel_kills()
    environment = {**os.environ, **(LIMITED if limited else {})}
    with TemporaryFile() if not hasattr(os, "memfd_create") else _memory_file() as printed:
        with _child(environment, printed) as child:
            with suppress(BrokenPipeError):
                assert child.stdin is not None
                child.stdin.write(json.dumps(trial).encode() + b"\n")
                child.stdin.flush()  # and left open: its end is the parent's end
            answer, timed_out = _listen(child, timeout_s, heard)
            code = child.wait() if not timed_out else -signal.SIGKILL
        return Ended(
            answer=answer,
            code=code,
            printed=_tail(printed),
            timed_out=timed_out,
            kernel_killed=kernel_kills() > kills,
        )


@contextmanager
def _child(environment: Mapping[str, str], printed: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the child process; whatever happens, its whole group is gone afterwards."""
    child = subprocess.Popen(
        [*CHILD, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=printed,
        env=environment,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _listen(
    child: subprocess.Popen[bytes], timeout_s: float, heard: Heard | None
) -> tuple[Mapping[str, Any] | None, bool]:
    assert child.stdout is not None
    ends_at = time.monotonic() + timeout_s if timeout_s else None
    answer: Mapping[str, Any] | None = None
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left = LOOK_EVERY_S if ends_at is None else min(LOOK_EVERY_S, ends_at - time.monotonic())
            if left <= 0:
                return answer, answer is None
            if not selector.select(left):
                if child.poll() is not None:  # somebody else holds the pipe that it left
                    return answer, False
                continue
            chunk = os.read(child.stdout.fileno(), CHUNK_BYTES)
            if not chunk:
                return answer, False
            *lines, text = (text + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                answer = message.get("profile", answer)
                if heard is not None and "what" in message:
                    heard(Progress(message["what"], message["done"], message["total"]))


def _memory_file() -> IO[bytes]:
    return os.fdopen(os.memfd_create("printed", os.MFD_CLOEXEC), "w+b")


def _tail(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - TAIL_BYTES))
    return printed.read().decode("utf-8", errors="replace")


def kernel_kills() -> int:
    """Return how many processes the OOM killer has killed since the machine started."""
    with suppress(OSError), open("/proc/vmstat", encoding="utf-8") as counters:
        for line in counters:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent is gone (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
