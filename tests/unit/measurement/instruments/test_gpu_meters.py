"""NVML's counters through a stand-in for the library: energy, reasons to slow down, utilisation."""

import threading
import time
from pathlib import Path

import pytest
import torch

from finegauge.measurement.instruments import counters, gpu_profilers
from finegauge.measurement.instruments.counters import (
    EnergyMeter,
    Nvml,
    SampledPower,
    ThrottleWatch,
    TotalEnergy,
    Unavailable,
    _state,
    gpu_counter,
    integral_j,
    judged,
    nvml_of,
    open_nvml,
)
from finegauge.measurement.instruments.gpu_profilers import (
    Window,
    gpm_summary,
    supported,
    watch_utilisation,
    windows,
)
from tests.replay.fake_nvml import HANDLE, FakeNvml

CPU = torch.device("cpu")


def nvml(**missing: bool) -> Nvml:
    found = open_nvml(FakeNvml(**missing), "0000", 0)
    assert isinstance(found, Nvml)
    return found


def test_device_is_found_by_its_uuid_or_else_its_number() -> None:
    assert nvml().handle == HANDLE
    found = open_nvml(FakeNvml(uuid=True), "0000", 3)
    assert isinstance(found, Nvml)
    assert found.handle == "gpu 3"


def test_without_a_driver_it_says_why() -> None:
    found = open_nvml(FakeNvml(init=True), "0000", 0)
    assert isinstance(found, Unavailable)
    assert "does not start" in found.why
    assert isinstance(open_nvml(FakeNvml(uuid=True, index=True), "0000", 0), Unavailable)
    assert isinstance(nvml_of(CPU), Unavailable)


def test_the_gpus_own_counter_comes_first() -> None:
    gpu = nvml()
    counter = gpu_counter(gpu)
    assert isinstance(counter, TotalEnergy)
    counter.start()
    gpu.driver.energy_mj += 12_500
    assert counter.stop() == 12.5


def test_a_counter_that_stood_still_is_no_data() -> None:
    counter = gpu_counter(nvml())
    assert isinstance(counter, TotalEnergy)
    counter.start()
    assert counter.stop() is None


def test_else_power_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SAMPLE_EVERY_S", 0.001)
    counter = gpu_counter(nvml(energy=True))
    assert isinstance(counter, SampledPower)
    started_s = time.perf_counter()
    counter.start()
    time.sleep(0.02)
    energy_j = counter.stop()
    assert energy_j is not None
    assert 0.02 * 300 <= energy_j <= (time.perf_counter() - started_s) * 300


def test_a_gpu_without_either_is_unavailable() -> None:
    assert isinstance(gpu_counter(nvml(energy=True, power=True)), Unavailable)


def test_power_is_integrated_by_trapezoids() -> None:
    assert integral_j([(0.0, 100.0), (1.0, 200.0), (3.0, 200.0)]) == 150 + 400
    assert integral_j([(0.0, 100.0)]) == 0


def rapl_folder(root: Path, name: str, label: str, energy_uj: int | None) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n", "utf-8")
    (folder / "max_energy_range_uj").write_text("1000000000\n", "utf-8")
    if energy_uj is not None:
        (folder / "energy_uj").write_text(f"{energy_uj}\n", "utf-8")
    return folder / "energy_uj"


def test_rapl_adds_packages_and_memory_once_and_sees_a_wrap(tmp_path: Path) -> None:
    package = rapl_folder(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    memory = rapl_folder(tmp_path, "intel-rapl:0:1", "dram", 10_000_000)
    cores = rapl_folder(tmp_path, "intel-rapl:0:0", "core", 5)
    around = rapl_folder(tmp_path, "intel-rapl:1", "psys", 5)
    with EnergyMeter(CPU, powercap=tmp_path) as meter:
        package.write_text("4000000", "utf-8")  # wrapped: 5 J
        memory.write_text("12000000", "utf-8")  # 2 J
        cores.write_text("100000000", "utf-8")
        around.write_text("100000000", "utf-8")
    assert meter.reading.energy_j == pytest.approx(7.0)
    assert meter.reading.source == "rapl"
    assert meter.reading.window_s > 0


def test_no_counters_is_never_zero(tmp_path: Path) -> None:
    with EnergyMeter(CPU, powercap=tmp_path) as meter:
        pass
    assert meter.reading.energy_j is None
    assert meter.reading.source == "none"
    assert "no RAPL" in meter.reading.note


def test_counters_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    rapl_folder(tmp_path, "intel-rapl:0", "package-0", None)
    with EnergyMeter(CPU, powercap=tmp_path) as meter:
        pass
    assert meter.reading.energy_j is None
    assert "package-0" in meter.reading.note


def test_a_counter_that_did_not_move_says_so(tmp_path: Path) -> None:
    rapl_folder(tmp_path, "intel-rapl:0", "package-0", 7)
    with EnergyMeter(CPU, powercap=tmp_path) as meter:
        pass
    assert meter.reading.energy_j is None
    assert "did not move" in meter.reading.note


def test_heat_refuses_and_the_power_limit_is_only_said() -> None:
    gpu = nvml()
    before = _state(gpu)
    gpu.driver.now_us += 1_000_000
    gpu.driver.violation_ns = {0: 800_000_000, 1: 50_000_000}
    reasons, notes = judged(before, _state(gpu))
    assert reasons == ("too hot for 5% of the time",)
    assert notes == ("at its power limit for 80% of the time",)


def test_a_blink_changes_nothing() -> None:
    gpu = nvml()
    before = _state(gpu)
    gpu.driver.now_us += 1_000_000
    gpu.driver.violation_ns = {0: 0, 1: 1_000_000}
    assert judged(before, _state(gpu)) == ((), ())


@pytest.mark.parametrize(
    ("mask", "reasons", "notes"), [(0x40, 1, 0), (0x84, 1, 1), (0x04, 0, 1), (0x01, 0, 0)]
)
def test_without_counters_the_reasons_at_both_ends_decide(mask: int, reasons: int, notes: int) -> None:
    gpu = nvml(violation=True)
    gpu.driver.mask = mask
    found = judged(_state(gpu), _state(gpu))
    assert (len(found[0]), len(found[1])) == (reasons, notes)
    gpu.driver.mask = 0
    assert judged(_state(nvml(violation=True)), _state(gpu)) == ((), ())


def test_a_cpu_has_nothing_to_say() -> None:
    with ThrottleWatch(CPU) as watch:
        pass
    assert (watch.reasons, watch.notes) == ((), ())
    assert "unavailable" in watch_utilisation(phase=None, device=CPU)  # type: ignore[arg-type]


def test_gpm_reads_window_after_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_profilers, "WINDOW_S", 0.002)
    monkeypatch.setattr(gpu_profilers, "_SHORTEST_S", 0.0)
    gpu, done, found = nvml(), threading.Event(), []
    thread = threading.Thread(target=lambda: found.extend(windows(gpu, done)))
    thread.start()
    time.sleep(0.02)
    done.set()
    thread.join()
    assert len(found) > 1
    assert found[0].fractions == {
        "sm_fraction": 0.8,
        "sm_occupancy_fraction": 0.4,
        "tensor_fraction": 0.55,
        "dram_fraction": 0.3,
        "graphics_fraction": 0.99,
    }
    assert gpu.driver.freed == 2


def test_gpm_needs_hopper() -> None:
    found = supported(nvml(hopper=True))
    assert isinstance(found, Unavailable)
    assert "Hopper" in found.why
    assert isinstance(supported(nvml(gpm=True)), Unavailable)
    assert isinstance(supported(nvml()), Nvml)


def test_gpm_without_samples_has_no_windows() -> None:
    done = threading.Event()
    done.set()
    assert windows(nvml(sample=True), done) == []
    assert windows(nvml(metrics=True), done) == []


def test_windows_are_weighted_by_their_length() -> None:
    found = gpm_summary(
        [Window(1.0, {"sm_fraction": 0.2}), Window(3.0, {"sm_fraction": 0.6, "dram_fraction": 0.5})]
    )
    assert found["sm_fraction"] == pytest.approx(0.5)
    assert found["dram_fraction"] == 0.5
    assert found["window_s"] == 4.0
    assert len(found["windows"]) == 2
    assert "unavailable" in gpm_summary([])
