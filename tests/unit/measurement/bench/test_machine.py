"""What the machine has, read from files of the system that a test writes itself."""

from pathlib import Path

import pytest
import torch

from finegauge.measurement.bench import microbenchmarks

CPU = torch.device("cpu")


def test_a_containers_limit_is_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1000000\n", encoding="utf-8")
    monkeypatch.setattr(microbenchmarks, "LIMITS", (limit, tmp_path / "absent"))
    assert microbenchmarks.memory_bytes(CPU)[0] == 1e6
    limit.write_text("max\n", encoding="utf-8")
    assert microbenchmarks.memory_bytes(CPU)[0] > 1e6


def test_usable_is_what_the_system_says_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    monkeypatch.setattr(microbenchmarks, "LIMITS", ())
    monkeypatch.setattr(microbenchmarks, "MEMINFO", meminfo)
    assert microbenchmarks.memory_bytes(CPU)[1] == 4096
    meminfo.write_text("")
    capacity, usable = microbenchmarks.memory_bytes(CPU)
    assert usable == capacity


def test_a_gpu_says_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert microbenchmarks.memory_bytes(torch.device("cuda")) == (8.0, 3.0)
    assert microbenchmarks.full_name(torch.device("cuda")) == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(("threads", "ending"), [(1, ", 1 thread"), (2, ", 2 threads")])
def test_a_processor_is_named_with_its_threads(
    threads: int, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert microbenchmarks.full_name(CPU).endswith(ending)
