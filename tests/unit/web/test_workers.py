"""Deadlines are kept, slots are freed, answers are computed once, and what is kept is bounded."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from typing import Any

import pytest

from finegauge.sandbox import born
from finegauge.web import workers
from finegauge.web.storage import Reply, ResponseCache, key_of
from finegauge.web.workers import Lane, RefusedError, Workers

pytestmark = pytest.mark.extras

QUICK = Lane("questions", 1, 1, 0.3, 503, 1)
SEARCHES = Lane("searches", 1, 0, 20.0, 429, 5)


def process(_: str = "") -> Reply:
    """Answer by which process."""
    return Reply(str(os.getpid()))


def sleep(seconds: float) -> Reply:
    """Answer late."""
    time.sleep(seconds)
    return Reply("slept")


def spin(_: int) -> Reply:
    """Never answer, and heed nothing."""
    while True:
        pass


def die(_: int) -> Reply:
    """End the process, as the kernel does where memory runs out."""
    os._exit(137)


def hoard(num_bytes: int) -> Reply:
    """Ask for more memory than a process may have."""
    return Reply(bytes(num_bytes))


def broken(_: int) -> Reply:
    """Answer that something is wrong with us."""
    return Reply(str(os.getpid()), 500)


def folder() -> Reply:
    """Answer what lies in the working folder."""
    return Reply(",".join(os.listdir(".")) + "|" + os.getcwd())


def served(asking: Callable[[Workers], Awaitable[Any]]) -> Any:
    """Return what `asking` finds with the processes at hand."""
    found = Workers(QUICK, SEARCHES)
    found.start()

    async def whole() -> Any:
        return await asking(found)

    try:
        return asyncio.run(whole())
    finally:
        found.stop()
        assert not os.path.exists(found._folder.name)


@pytest.fixture(autouse=True)
def preloading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes start without answering anything first, with the questions of this file."""
    monkeypatch.setattr(workers, "PRELOADED", (__name__,))


async def refused(answer: Awaitable[Reply]) -> RefusedError:
    with pytest.raises(RefusedError) as found:
        await answer
    return found.value


def test_deadlines_slots_and_answers() -> None:
    async def asking(found: Workers) -> None:
        first = await found.reply(process)
        assert int(first.body) != os.getpid()
        assert await found.reply(process) is first  # kept
        for endless in (spin, die):
            error = await refused(found.reply(endless, 1))
            assert error.status == 503
        assert "longer than" in (await refused(found.reply(spin, 2))).sentence
        error = await refused(found.reply(hoard, 10 * 2**30))
        assert error.status == 503
        assert (await found.reply(process, "after")).status == 200  # a new process took the place
        assert await found.reply(broken, 1) is not await found.reply(broken, 1)  # errors are not kept

    served(asking)


def kill(process: int) -> None:
    """Kill a process, and wait until it has ended: a signal takes its time."""
    os.kill(process, signal.SIGKILL)
    while born(process):
        time.sleep(0.001)


def test_a_process_that_dies_is_replaced() -> None:
    async def asking(found: Workers) -> None:
        for _ in range(3):  # while it is idle: nobody notices
            first = int((await found.reply(process, str(time.monotonic()))).body)
            kill(first)
            assert int((await found.reply(process, str(time.monotonic()))).body) != first
        busy = asyncio.create_task(found.reply(sleep, 0.25))
        last = int((await found.reply(process, "other", search=True)).body)
        await asyncio.sleep(0.1)
        for child in multiprocessing.active_children():
            if child.pid != last:
                child.kill()
        assert (await refused(busy)).status == 503  # the one that was under way
        assert int((await found.reply(process, "x", search=True)).body) == last
        kill(vars(_forkserver)["_forkserver_pid"])
        kill(last)
        assert (await found.reply(process, "y", search=True)).status == 200

    served(asking)


def test_health_is_not_kept() -> None:
    async def asking(found: Workers) -> None:
        first = await found.reply(workers.ready)
        assert first.status == 204
        assert await found.reply(workers.ready) is not first

    served(asking)


def test_the_folder_of_a_killed_server_goes_and_that_of_a_live_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (
        f"{workers.FOLDER}{gone.pid}-a",
        f"{workers.FOLDER}{os.getppid()}-b",
        "finegauge-serve-mine",
    ):
        (tmp_path / name).mkdir()
    found = Workers(QUICK, SEARCHES)
    found.stop()
    assert sorted(os.listdir(tmp_path)) == sorted(
        (f"{workers.FOLDER}{os.getppid()}-b", "finegauge-serve-mine")
    )


def test_one_lane_does_not_hold_up_the_other() -> None:
    async def asking(found: Workers) -> None:
        search = asyncio.create_task(found.reply(sleep, 2.0, search=True))
        same = asyncio.create_task(found.reply(sleep, 2.0, search=True))
        await asyncio.sleep(0.2)
        error = await refused(found.reply(sleep, 2.5, search=True))
        assert (error.status, error.retry_after_s) == (429, 5)
        assert not search.done()
        assert (await found.reply(process)).status == 200
        assert not search.done()
        assert await search is await same  # computed once
        assert (await found.reply(process, "now", search=True)).status == 200

    served(asking)


def test_who_leaves_does_not_stop_who_stays() -> None:
    async def asking(found: Workers) -> None:
        leaves = asyncio.create_task(found.reply(sleep, 0.1))
        stays = asyncio.create_task(found.reply(sleep, 0.1))
        await asyncio.sleep(0.02)
        leaves.cancel()
        assert (await stays).body == "slept"

    served(asking)


def test_too_many_questions_are_sent_away() -> None:
    async def asking(found: Workers) -> None:
        waiting = [asyncio.create_task(found.reply(sleep, 0.1 + part / 100)) for part in range(2)]
        await asyncio.sleep(0)
        assert (await refused(found.reply(sleep, 0.2))).status == 503
        assert [reply.body for reply in await asyncio.gather(*waiting)] == ["slept", "slept"]

    served(asking)


def test_a_process_stands_in_an_empty_folder_of_its_own() -> None:
    async def asking(found: Workers) -> str:
        return str((await found.reply(folder)).body)

    inside, place = served(asking).split("|")
    assert inside == ""
    assert "finegauge-serve-" in place


def test_what_is_kept_is_bounded() -> None:
    kept = ResponseCache(most_bytes=10_000)
    for number in range(50):
        kept.add(key_of(number), Reply(b"x" * 1_000))
        kept.get(key_of(0))
    assert kept.num_bytes <= 10_000
    assert kept.get(key_of(0)) is not None  # asked for all the time
    assert kept.get(key_of(1)) is None
    assert kept.get(key_of(49)) is not None
    kept.add("large", Reply(b"x" * 11_000))
    assert kept.get("large") is None


def test_a_question_is_named_by_its_content() -> None:
    assert key_of("a", {"b": 1, "c": 2}) == key_of("a", {"c": 2, "b": 1})
    assert key_of("a", {"b": 1}) != key_of("a", {"b": "1"})


def test_lanes_are_as_wide_as_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUOTA", "no such file")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert [lane.workers for lane in workers.lanes()] == [10, 4]
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert [lane.workers for lane in workers.lanes()] == [3, 1]
