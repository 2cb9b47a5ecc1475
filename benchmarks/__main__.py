"""Run every benchmark, or those that are named, one after another; sum up at the end.

    python -m benchmarks [NAME ...]

Each runs in a process of its own and prints its own table. Ends with 1 where one breaks a promise or fails:
the others run all the same. What could not be judged says so:
the machine is busy, or lacks a browser.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.web_load import NOT_JUDGED


class Benchmark(NamedTuple):
    """One benchmark: its module here, the promise that it holds FineGauge to, its options."""

    name: str
    promise: str
    options: tuple[str, ...] = ()
    one_thread: bool = False  # NumPy and torch use one thread


BENCHMARKS = (
    Benchmark("cold_start", "a cold estimate takes at most 2.8 times bare Python"),
    Benchmark("search", "a million plans per second of one core, linear, a plan in 2 s", one_thread=True),
    Benchmark("batching", "batches of a million samples in 3 s", one_thread=True),
    Benchmark("tokenise", "0.8 of the bare tokenizer's rate, 1 GiB, 0.3 s when asked again"),
    Benchmark("results", "10,000 stored results answer in 1 s"),
    Benchmark("instruments", "clocks add up, and make a step 3 % or 10 % longer at most", one_thread=True),
    Benchmark("moments", "peaks of real processes within 3 % allocated, 10 % resident", one_thread=True),
    Benchmark("rollouts", "real RL steps: generation's share within 20 %, moments 2 %", one_thread=True),
    Benchmark("callback", "the callback takes less than 1 % of a training", one_thread=True),
    Benchmark("watch", "watching takes less than half a percent of one core", one_thread=True),
    Benchmark("web_edits", "first paint and edits of the page in 150 ms (p95), drags at 30 frames/s"),
    Benchmark("web_load", "50 users: no error, edits in 150 ms (p95), steady memory", ("--seconds", "20")),
)


class Outcome(NamedTuple):
    """How one benchmark ended."""

    benchmark: Benchmark
    exit_code: int
    wall_s: float

    @property
    def verdict(self) -> str:
        """Return what became of the promise; one that raised has kept none."""
        return {0: "kept", NOT_JUDGED: "not judged"}.get(self.exit_code, "BROKEN")


def run(benchmark: Benchmark) -> Outcome:
    """Run one benchmark, its output as it comes."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if benchmark.one_thread else {})}
    print(f"== {benchmark.name}: {benchmark.promise}", flush=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.{benchmark.name}", *benchmark.options]
    code = subprocess.run(command, env=environment, check=False).returncode
    print(flush=True)
    return Outcome(benchmark, code, time.perf_counter() - start)


def table(outcomes: list[Outcome]) -> str:
    """Return one line for each benchmark."""
    lines = [
        f"{one.benchmark.name:<12} {one.wall_s:>6.0f} s  {one.verdict:<10} {one.benchmark.promise}"
        for one in outcomes
    ]
    return "\n".join(lines)


def main() -> int:
    """Run, print the table; return 1 where a promise is broken."""
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all by default")
    asked = parser.parse_args().names
    if unknown := [name for name in asked if name not in names]:
        parser.error(f"no benchmark named {unknown[0]!r}; there are {', '.join(names)}")
    outcomes = [run(benchmark) for benchmark in BENCHMARKS if not asked or benchmark.name in asked]
    print(table(outcomes))
    return int(any(one.verdict == "BROKEN" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
