"""Where tensors come from and how seconds are taken, on the processor and (replayed) on a GPU."""

import time
from functools import partial

import pytest
import torch

from finegauge.measurement.bench.timing import AHEAD_S, MOST_AHEAD_S, POOL_BYTES, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(torch.device("cpu"), "fp32")


def test_rows_come_from_one_pool_in_turn(bench: Bench) -> None:
    first, second = bench.rows(4, 8), bench.rows(4, 8)
    start, size = bench.pool.data_ptr(), bench.pool.numel() * 4
    assert first.data_ptr() != second.data_ptr()
    assert all(start <= rows.data_ptr() < start + size for rows in (first, second))


def test_the_pool_begins_again_where_it_ends(bench: Bench) -> None:
    half = bench.rows(bench.pool.numel() // 2 + 1)
    assert bench.rows(bench.pool.numel() // 2 + 1).data_ptr() == half.data_ptr()


def test_rows_larger_than_the_pool_have_memory_of_their_own(bench: Bench) -> None:
    values = POOL_BYTES // 4 + 1
    rows = bench.rows(values)
    assert rows.numel() == values
    assert rows.abs().max() > 0


def test_a_gradient_of_rows_does_not_reach_the_pool(bench: Bench) -> None:
    rows = bench.rows(2, 2).requires_grad_()
    rows.sum().backward()
    assert rows.is_leaf
    assert rows.grad is not None
    assert not bench.pool.requires_grad


def test_weights_are_small_and_their_own(bench: Bench) -> None:
    one, other = bench.weight(3, 5), bench.weight(3, 5)
    assert one.data_ptr() != other.data_ptr()
    assert 0 < one.abs().max() < 0.2


def test_one_thread_is_timed_by_its_own_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert bench.now() == 1.0
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert bench.now() == 2.0


class _Event:
    """A CUDA event that reads a clock which only the test moves."""

    clock_ms = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = -1.0

    def record(self) -> None:
        self.at_ms = _Event.clock_ms

    def elapsed_time(self, later: "_Event") -> float:
        return later.at_ms - self.at_ms


def test_a_gpu_is_timed_between_events_while_it_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    host = iter([0.0, 0.1, 0.0, 100.0])
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    monkeypatch.setattr(
        torch.cuda, "_sleep", lambda cycles: done.append(f"sleep {cycles / 2e9}"), raising=False
    )
    monkeypatch.setattr(time, "perf_counter", lambda: next(host))
    bench.device = torch.device("cuda")

    def work(ms: float) -> None:
        done.append("call")
        _Event.clock_ms += ms

    assert bench.seconds(partial(work, 2.0), partial(work, 3.0)) == pytest.approx([2e-3, 3e-3])
    assert done == ["wait", f"sleep {AHEAD_S}", "call", "call", "wait"]
    assert bench.ahead_s == pytest.approx(0.15)  # next time the device waits until the host is done
    bench.seconds(partial(work, 1.0))
    assert bench.ahead_s == MOST_AHEAD_S
