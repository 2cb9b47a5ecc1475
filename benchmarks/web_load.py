"""How fast does the page answer while many use it at once, and does it stay in its memory?

`finegauge serve` is started as a user starts it, and locust plays the people (benchmarks/web_users.py): each
edits, compares and searches as people do, with pauses. Printed are the times by kind of request, the
errors, the processor's seconds by request (of the server with all its processes), and the memory of all its
processes together (what each maps for itself, and a share of what they map together) soon after the start
and at the end. The promises: no error; 95 of 100 edits are answered within 150 ms; memory grows by less
than a tenth in the second half. It ends with 1 where one is broken.

Where the machine does other work at the same time the times mean little; the processor's seconds stand.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EDITS = "an edit"
MAX_P95_S = 0.150
MAX_GROWTH = 1.10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
USERS = Path(__file__).with_name("web_users.py")


def main() -> int:
    """Print the table; return 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    with serving() as (url, process):
        return load(url, process, options.users, options.seconds)


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


def load(url: str, process: int, users: int, seconds: int) -> int:
    """Let people use the server at `url`; print what they met."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(USERS), "--headless", "--host", url),
        *("-u", str(users), "-r", str(users), "-t", f"{seconds}s", "--json", "--only-summary"),
        *("--loglevel", "ERROR", "--exit-code-on-error", "0", "--stop-timeout", "20"),
    ]
    before_s, memory = processor_s(process), [memory_bytes(process)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as people:
        for _ in range(2):
            time.sleep(seconds / 2)
            memory.append(memory_bytes(process))
        told = people.communicate(timeout=120)[0]
    used_s = processor_s(process) - before_s
    return printed(json.loads(told), used_s, memory)


def printed(kinds: list[dict[str, Any]], used_s: float, memory: list[int]) -> int:
    """Print the table; return 1 where a promise is broken."""
    print(f"{'':18}{'requests':>9}{'errors':>8}{'p50 ms':>8}{'p95 ms':>8}{'p99 ms':>8}{'max ms':>8}")
    for kind in kinds:
        cells = [quantile_s(kind, part) * 1e3 for part in (0.5, 0.95, 0.99)] + [kind["max_response_time"]]
        counts = f"{kind['num_requests']:>9,}{kind['num_failures']:>8,}"
        print(f"{kind['name']:18}{counts}" + "".join(f"{cell:>8,.0f}" for cell in cells))
    requests, errors = (sum(kind[name] for kind in kinds) for name in ("num_requests", "num_failures"))
    begun, middle, end = memory
    print(f"{used_s / max(1, requests) * 1e3:.1f} ms of the processor by request, {used_s:.1f} s in all")
    print(f"memory: {begun / 1e6:.0f} MB first, {middle / 1e6:.0f} MB half-way, {end / 1e6:.0f} MB last")
    edits = next(kind for kind in kinds if kind["name"] == EDITS)
    broken = [
        *(["there were errors"] if errors else []),
        *(["edits are slow"] if quantile_s(edits, 0.95) > MAX_P95_S else []),
        *(["memory grows"] if end > MAX_GROWTH * middle else []),
    ]
    print("; ".join(broken) or "every promise is kept")
    return bool(broken)


def quantile_s(kind: dict[str, Any], part: float) -> float:
    """Return the seconds within which this part of the requests was answered."""
    times = sorted((float(ms), count) for ms, count in kind["response_times"].items())
    wanted, seen = part * sum(count for _, count in times), 0
    for ms, count in times:
        seen += count
        if seen >= wanted:
            return ms / 1e3
    return 0.0


def tree(process: int) -> list[int]:
    """Return a process and all that it started."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text("ascii").split()]
    return [process, *(one for child in children for one in tree(child))]


def processor_s(process: int) -> float:
    """Return the seconds of the processor that a process and all that it started have used."""
    used = 0
    for one in tree(process):
        cells = Path(f"/proc/{one}/stat").read_text("ascii").rpartition(")")[2].split()
        used += sum(map(int, cells[11:15]))  # user and system, its own and of children that ended
    return used / TICKS_PER_S


def memory_bytes(process: int) -> int:
    """Return what a process and all that it started hold in memory, what they share counted once."""
    held = 0
    for one in tree(process):
        rollup = Path(f"/proc/{one}/smaps_rollup").read_text("ascii")
        held += int(re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[0]) * 1024
    return held


if __name__ == "__main__":
    sys.exit(main())
