"""Campaigns that are killed, and stores whose bits flip: what was kept stays, and nothing is there twice.

`kills` forks drivers and readers of a campaign and kills them at random moments. `damages` flips bits of a
campaign's files, or cuts them, and asks every command. `make slow` has a thousand of each.
"""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from finegauge.campaign import driver
from finegauge.campaign.axes import Folder
from finegauge.campaign.driver import carry_out
from finegauge.campaign.sweep import Sweep, read_sweep
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.store import table
from finegauge.store.journal import ENDED, STARTED
from tests.e2e.commands import finegauge
from tests.unit.campaign.sweeps import SaidEngine, sweep_file
from tests.unit.store.results import read_back

SIZES = ", ".join(map(str, range(1, 9)))
AXES = f"axes: {{switch: [baseline, checkpointing], micro_batch_size: [{SIZES}], seq_len: [64, 128]}}"
LONGEST_S = 0.25  # from a start to its kill; longer where kills come before the work


class Soak(NamedTuple):
    """What a soak did."""

    number: int  # kills, or damages
    campaigns: int  # that were carried out to their end
    num_kept: int  # cells that were on the disk at a kill; lines that were whole after a damage
    num_interrupted: int  # trials of killed drivers; lines that did not read back
    refused: int  # commands that ended in a sentence


def predicted(run: Run) -> Profile:
    """Return a prediction that takes no time to speak of."""
    time.sleep(0.001)
    return Profile(
        run=run,
        source=Source("predicted", "a soak"),
        step_time_s=Breakdown.of(forward=0.1, backward=0.2),
        peak_memory_bytes=Breakdown.of(weights=1e9),
        step_sequences=float(run.micro_batch_size),
    )


class SlowEngine(SaidEngine):
    """Takes a few milliseconds for a trial."""

    def answer_run(self, run: Run) -> Profile:
        """Return the answer to a run."""
        time.sleep(0.003)
        return super().answer_run(run)


@contextmanager
def quick() -> Iterator[None]:
    """Let drivers write at once, and readers keep every table."""
    kept = driver.WRITE_EVERY_S, driver._predicted, table.WORTH_BYTES
    driver.WRITE_EVERY_S, driver._predicted, table.WORTH_BYTES = 0.0, predicted, 0
    try:
        yield
    finally:
        driver.WRITE_EVERY_S, driver._predicted, table.WORTH_BYTES = kept


def kills(folder: Path, number: int, seed: int) -> Soak:
    """Kill drivers and readers `number` times, and hold every campaign to its end against what it keeps."""
    random = Random(seed)
    sweep = read_sweep(sweep_file(folder, AXES, "predicted: {}", "measured: {repetitions: 2}"))
    campaigns = num_kept = interrupted = 0
    known: set[str] = set()
    longest_s = LONGEST_S
    path = str(folder / "0")
    with quick():
        for _ in range(number):
            reads = random.random() < 0.2 and known
            _killed(sweep, path, random.uniform(0.0, longest_s), reads=bool(reads))
            done = Folder(path).done().keys()
            assert known <= done, "a cell that was on the disk is gone"
            longest_s *= 1.0 if reads else 0.85 if known < done else 1.3
            known = set(done)
            num_kept += len(known)
            if len(known) == len(sweep.cells):
                interrupted += ended_once(sweep, path)
                campaigns += 1
                known, path = set(), str(folder / str(campaigns))
        interrupted += ended_once(sweep, path)
    return Soak(number, campaigns + 1, num_kept, interrupted, 0)


def _killed(sweep: Sweep, path: str, after_s: float, *, reads: bool) -> None:
    """Start a process on a campaign's folder, and kill it."""
    child = os.fork()
    if not child:
        with suppress(BaseException):
            for _ in range(1000 if reads else 1):
                if reads:
                    Path(path, table.JOURNAL + table.SUFFIX).unlink(missing_ok=True)
                    table.table_of([path])
                else:
                    carry_out(sweep, path, SlowEngine())
        os._exit(0)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def ended_once(sweep: Sweep, path: str) -> int:
    """Carry a campaign out to its end, hold its folder against the sweep, and return what was interrupted."""
    carry_out(sweep, path, SaidEngine())
    seen = read_back(Folder(path).trials.journal).records
    ends = [one for one in seen if one["event"] == ENDED]
    whole = [one["asked"]["cell"] for one in ends if one["profile"]["outcome"] != "interrupted"]
    assert Counter(whole) == Counter(cell.key for cell in sweep.cells), "a cell is lost, or there twice"
    started = [one["trial"] for one in seen if one["event"] == STARTED]
    assert Counter(started) <= Counter(one["trial"] for one in ends), "a trial has no end, or two"
    rows = table.table_of([path])[0]
    assert sorted(rows["cell"].to_pylist()) == sorted(one["asked"]["cell"] for one in ends)
    return len(ends) - len(whole)


def damages(folder: Path, number: int, seed: int) -> Soak:
    """Damage a campaign's files `number` times, ask a command, and carry it out again."""
    random = Random(seed)
    file = sweep_file(folder, AXES)
    sweep = read_sweep(file)
    whole, hurt = folder / "whole", folder / "hurt"
    kept = torn = refused = 0
    with quick():
        carry_out(sweep, str(whole), SaidEngine())
        table.table_of([str(whole)])
        lines = Path(whole, table.JOURNAL).read_bytes().splitlines()
        names = [table.JOURNAL] * 6 + [table.JOURNAL + table.SUFFIX, "sweep.json", "driver"]
        for _ in range(number):
            shutil.rmtree(hurt, ignore_errors=True)
            shutil.copytree(whole, hurt)
            damage(hurt / random.choice(names), random)
            untouched = set(Path(hurt, table.JOURNAL).read_bytes().splitlines()) & set(lines)
            refused += _refused(random.choice(_questions(str(hurt))))
            done = Folder(str(hurt)).done()
            assert len(untouched) <= len(done) <= len(lines), "a whole line was passed by"
            summary = carry_out(sweep, str(hurt), SaidEngine())
            assert (summary.before, sum(summary.outcomes.values())) == (len(done), len(lines) - len(done))
            results = Folder(str(hurt)).results()
            assert Counter(one.key for one in results) == Counter(cell.key for cell in sweep.cells)
            kept += len(untouched)
            torn += len(lines) - len(done)
    return Soak(number, number, kept, torn, refused)


def _questions(folder: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("results", folder, "--limit", "3"),
        ("compare", folder, "--json"),
        ("report", folder),
        ("campaign", str(Path(folder).with_name("sweep.yaml")), "-o", folder, "--dry-run"),
    )


def _refused(arguments: tuple[str, ...]) -> bool:
    """Return whether a command ended in a sentence; anything but that and an answer is an error."""
    done = finegauge(*arguments)
    assert done.code in (0, 64), (arguments, done)
    assert done.code == 0 or (done.err.count("\n") == 1 and "Traceback" not in done.err), (arguments, done)
    return done.code != 0


def damage(path: Path, random: Random) -> None:
    """Flip bits of a file, cut it, or lay zeros or another part of it over a part of it."""
    content = bytearray(path.read_bytes())
    if not content:
        return
    at = random.randrange(len(content))
    match random.randrange(5):
        case 0 | 1:
            content[at] ^= 1 << random.randrange(8)
        case 2:
            for _ in range(random.randrange(2, 20)):
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        case 3:
            del content[at:]
        case _:
            some = bytes(4096) if random.random() < 0.5 else bytes(content[: random.randrange(5000)])
            content[at : at + len(some)] = some
    path.write_bytes(content)
