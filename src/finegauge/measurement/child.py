"""The child of a trial: `python -m finegauge.measurement.child [PARENT] < TRIAL > MESSAGES`.

It reads one line, the run and the options as JSON, and writes one line per step of
progress and one with the measured profile. What any library prints goes to standard
error. With PARENT, that process's number, it does not outlive it: a guard, forked before
anything heavy is imported, waits for standard input to end and kills the group; and the
kernel kills the child itself when its parent is gone.
"""

import json
import os
import signal
import sys
from contextlib import suppress
from typing import IO, Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Take one trial from standard input, and answer on standard output."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    trial = json.loads(_first_line())
    if len(sys.argv) > 1:
        _guard(int(sys.argv[1]))
    from finegauge.measurement.session import answer

    def heard(what: str, done: int, total: int) -> None:
        _say(channel, {"what": what, "done": done, "total": total})

    _say(channel, {"profile": answer(trial, heard)})


def _say(channel: IO[str], message: dict[str, Any]) -> None:
    """Write one message."""
    channel.write(json.dumps(message) + "\n")
    channel.flush()


def _first_line() -> bytes:
    """Return the first line of standard input, and read no further."""
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        text += chunk
    return text


def _guard(parent: int) -> None:
    """See to it that nothing of this session outlives `parent`."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if os.fork():
        os.close(0)  # the guard alone holds the pipe
        os.open(os.devnull, os.O_RDONLY)
        return
    with suppress(OSError):
        os.closerange(1, 256)  # the parent hears the end of the messages when the child ends
        while os.read(0, 1 << 16):
            pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
