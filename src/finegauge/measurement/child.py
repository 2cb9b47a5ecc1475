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
from typing import Any

from finegauge.measurement.process import die_with_parent
from finegauge.progress import Progress
from finegauge.store.document import run_of


def main() -> None:
    """Take one trial from standard input, and answer on standard output."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    trial = json.loads(_first_line())
    if len(sys.argv) > 1:
        _guard(int(sys.argv[1]))
    from finegauge.measurement.session import answer, measured_here

    def say(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    def heard(progress: Progress) -> None:
        say(what=progress.what, done=progress.done, total=progress.total)

    backend = measured_here
    if run_of(trial["run"]).num_gpus > 1:
        from finegauge.measurement.rank_launch import over_ranks

        backend = over_ranks
    say(profile=answer(trial, heard, backend))


def _first_line() -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            break
        text += chunk
    return text


def _guard(parent: int) -> None:
    die_with_parent()
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
