"""How fast does the page answer while many use it at once, and does it stay in its memory?

`finegauge serve` is started as a user starts it, and locust plays the people (benchmarks/web_users.py): each
edits, compares and searches as people do, with pauses. Printed are the times by kind of request, the
errors, the processor's seconds by request (of the server with all its processes), and the memory of all its
processes together (what each maps for itself, and a share of what they map together) soon after the start
and at the end. The promises: no error; 95 of 100 edits are answered within 150 ms; memory grows by less
than a tenth in the second half. It ends with 1 where one is broken.

Where the machine does other work the times mean little: how fast edits are is then printed and not judged, as
in `web_edits`, and it ends with 75 where nothing else is broken. The processor's seconds stand.

    python -m benchmarks.web_load --users 50 --seconds 600 --kill-every 20        (make slow)

kills a worker at random every 20 s. What it was answering ends in a 503 that says so; nothing else may fail,
memory stays, and how fast edits are is printed without being promised.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

EDITS = "an edit"
ENDED = "The process that computed this ended"  # what is said of the request that a killed worker had
MAX_P95_S = 0.150
MAX_GROWTH = 1.10
NOT_JUDGED = (
    75  # exit code (EX_TEMPFAIL of sysexits.h): nothing is broken, but the machine was too busy to tell
)
QUIET_FRACTION, LOOK_S = 0.25, 3.0  # of all processors, at work on something else; how long that is looked at
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
USERS = Path(__file__).with_name("web_users.py")


def main() -> int:
    """Print the table; return 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kill-every", type=int, default=0, metavar="SECONDS")
    options = parser.parse_args()
    judged = is_quiet()
    with serving() as (url, process):
        return load(url, process, options.users, options.seconds, options.kill_every, judged=judged)


def is_quiet() -> bool:
    """Return whether the processors have time for a benchmark of waiting; say how much others take.

    Looked at before anything of the benchmark runs, and not by the load average, which has the minute before
    in it: that of the benchmark before this one.
    """
    busy, idle = processors_ticks()
    time.sleep(LOOK_S)
    busy, idle = (after - before for after, before in zip(processors_ticks(), (busy, idle), strict=True))
    fraction = busy / max(1, busy + idle)
    quiet = fraction < QUIET_FRACTION
    print(
        f"others take {fraction:.0%} of the processors{'' if quiet else ': not quiet, so no time is judged'}"
    )
    return quiet


def processors_ticks() -> tuple[int, int]:
    """Return the ticks that all processors have been at work and idle."""
    cells = [int(cell) for cell in Path("/proc/stat").read_text("ascii").partition("\n")[0].split()[1:9]]
    idle = cells[3] + cells[4]  # waiting for drives is idle too
    return sum(cells) - idle, idle


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """Run the page's server; yield its address and its process."""
    command = [sys.executable, "-m", "finegauge", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server did not start"
            yield found.group().rstrip("/"), server.pid
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)


def load(url: str, process: int, users: int, seconds: int, kill_every: int, *, judged: bool) -> int:
    """Let people use the server at `url`; print what they met."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(USERS), "--headless", "--host", url),
        *("-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--json", "--only-summary"),
        *("--loglevel", "ERROR", "--exit-code-on-error", "0", "--stop-timeout", "20"),
    ]
    before_s, memory, killed = processor_s(process), [memory_bytes(process)], 0
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as people,
    ):
        for _ in range(2):
            killed += waited(process, seconds / 2, kill_every)
            memory.append(memory_bytes(process))
        told = people.communicate(timeout=120)[0]
        said.seek(0)
        failed = Counter(line.strip() for line in said if line.startswith("FAILED "))
    used_s = processor_s(process) - before_s
    return printed(json.loads(told), used_s, memory, failed, killed, judged=judged)


def waited(server: int, seconds: float, kill_every: int) -> int:
    """Wait; return how many workers were killed meanwhile."""
    until, killed = time.monotonic() + seconds, 0
    while kill_every and time.monotonic() + kill_every < until:
        time.sleep(kill_every)
        with suppress(ProcessLookupError):
            os.kill(Random(killed + server).choice(workers(server)), signal.SIGKILL)
            killed += 1
    time.sleep(max(0.0, until - time.monotonic()))
    return killed


def workers(server: int) -> list[int]:
    """Return the processes that answer: the children of the server's children."""
    return [one for child in children(server) for one in children(child)]


def printed(
    kinds: list[dict[str, Any]],
    used_s: float,
    memory: list[int],
    failed: Counter[str],
    killed: int,
    *,
    judged: bool,
) -> int:
    """Print the table; return 1 where a promise is broken, NOT_JUDGED where times alone would decide."""
    print(f"{'':18}{'requests':>9}{'errors':>8}{'p50 ms':>8}{'p95 ms':>8}{'p99 ms':>8}{'max ms':>8}")
    for kind in kinds:
        cells = [quantile_s(kind, part) * 1e3 for part in (0.5, 0.95, 0.99)] + [kind["max_response_time"]]
        counts = f"{kind['num_requests']:>9,}{kind['num_failures']:>8,}"
        print(f"{kind['name']:18}{counts}" + "".join(f"{cell:>8,.0f}" for cell in cells))
    requests = sum(kind["num_requests"] for kind in kinds)
    begun, middle, end = memory
    print(f"{used_s / max(1, requests) * 1e3:.1f} ms of the processor by request, {used_s:.1f} s in all")
    print(f"memory: {begun / 1e6:.0f} MB first, {middle / 1e6:.0f} MB half-way, {end / 1e6:.0f} MB last")
    if killed:
        print(f"{killed} workers killed, {failed.total()} requests failed")
    for line, count in failed.most_common():
        print(f"{count:>4} {line}")
    edits = next(kind for kind in kinds if kind["name"] == EDITS)
    in_flight = sum(
        count for line, count in failed.items() if line.startswith("FAILED 503 ") and ENDED in line
    )
    broken = [
        *(["there were errors"] if failed.total() > min(in_flight, killed) else []),
        *(["edits are slow"] if judged and not killed and quantile_s(edits, 0.95) > MAX_P95_S else []),
        *(["memory grows"] if end > MAX_GROWTH * middle else []),
    ]
    print("; ".join(broken) or f"every promise {'' if judged else 'that was judged '}is kept")
    return 1 if broken else 0 if judged or killed else NOT_JUDGED


def quantile_s(kind: dict[str, Any], part: float) -> float:
    """Return the seconds within which this part of the requests was answered."""
    times = sorted((float(ms), count) for ms, count in kind["response_times"].items())
    wanted, seen = part * sum(count for _, count in times), 0
    for ms, count in times:
        seen += count
        if seen >= wanted:
            return ms / 1e3
    return 0.0


def children(process: int) -> list[int]:
    """Return the processes that a process started."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text("ascii").split()]


def tree(process: int) -> list[int]:
    """Return a process and all that it started."""
    return [process, *(one for child in children(process) for one in tree(child))]


def processor_s(process: int) -> float:
    """Return the seconds of the processor that a process and all that it started have used."""
    used = 0
    for one in tree(process):
        with suppress(OSError):
            cells = Path(f"/proc/{one}/stat").read_text("ascii").rpartition(")")[2].split()
            used += sum(map(int, cells[11:15]))  # user and system, its own and of children that ended
    return used / TICKS_PER_S


def memory_bytes(process: int) -> int:
    """Return what a process and all that it started hold in memory, what they share counted once."""
    held = 0
    for one in tree(process):
        with suppress(OSError):  # it has been killed just now
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text("ascii")
            held += 1024 * sum(map(int, re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)))
    return held


if __name__ == "__main__":
    sys.exit(main())
