"""The accelerators: dense peaks, memory below what is sold, and names that mean one card."""

import pytest

from finegauge.catalogue.gpus import GpuSpec, fold, gpu, gpus
from finegauge.catalogue.tables import table
from finegauge.units import GIB

ALL = list(gpus().values())


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_row(spec: GpuSpec) -> None:
    check_usable_memory(spec)
    check_rates(spec)
    check_nothing_is_sparse(spec)


def check_usable_memory(spec: GpuSpec) -> None:
    """Raise unless usable memory is below what is sold."""
    sold_bytes = spec.memory_bytes / 1e9 * GIB  # "80 GB" of HBM holds 80 GiB, less what is reserved
    least = 0.66 if spec.vendor == "Apple" else 0.88  # Metal leaves the rest to the system
    assert least * sold_bytes < spec.usable_bytes < sold_bytes
    assert spec.usable_from


def check_rates(spec: GpuSpec) -> None:
    """Raise unless rates agree with each other."""
    rates = spec.flops_per_s
    assert rates or spec.vendor == "Apple"
    if "bf16" in rates and "fp16" in rates and spec.architecture not in ("CDNA", "RDNA2"):
        assert rates["bf16"] >= rates["fp16"]
    if "fp8" in rates and spec.vendor in {"NVIDIA", "AMD"}:
        assert 1.9 * rates["bf16"] <= rates["fp8"] <= 2.1 * rates["bf16"]
    if spec.measured_matmul_flops_per_s:
        assert spec.measured_matmul_flops_per_s < rates["bf16"]


def check_nothing_is_sparse(spec: GpuSpec) -> None:
    """Raise unless NVIDIA's rates are dense: at most 4096 (or 8192 on Blackwell) flops per SM and clock."""
    if spec.vendor != "NVIDIA" or not (spec.num_sms and spec.boost_hz and "bf16" in spec.flops_per_s):
        return
    per_clock = spec.flops_per_s["bf16"] / spec.num_sms / spec.boost_hz
    assert (
        per_clock < 8192 * 1.06
        if spec.compute_capability.startswith(("10", "11"))
        else per_clock < 4096 * 1.06
    )
    if spec.compute_capability in {"8.6", "8.9", "12.0"}:
        assert per_clock < 1024 * 1.06


@pytest.mark.parametrize(
    ("name", "bf16_flops_per_s", "usable_gib"),
    [
        ("A40", 149.7e12, 44.35),
        ("A100-40GB", 312e12, 39.56),
        ("A100-80GB", 312e12, 79.15),
        ("H100-80GB", 989.4e12, 79.18),
        ("H200", 989.4e12, 139.8),
        ("B200", 2250e12, 178.35),
        ("L40S", 362.05e12, 44.4),
        ("RTX 4090", 165.2e12, 23.51),
    ],
)
def test_known_figures(name: str, bf16_flops_per_s: float, usable_gib: float) -> None:
    assert gpu(name).peak_flops_per_s("bf16") == pytest.approx(bf16_flops_per_s)
    assert gpu(name).usable_bytes / GIB == pytest.approx(usable_gib, abs=0.01)


def test_every_name_means_one_card() -> None:
    owners: dict[str, str] = {}
    for spec in ALL:
        for name in (spec.name, *spec.aliases):
            assert owners.setdefault(fold(name), spec.name) == spec.name, name


def test_interconnects_and_offers_name_gpus_of_the_catalogue() -> None:
    for filename in ("offers.csv", "interconnects.csv"):
        for row in table(filename):
            assert row["gpu"] == "" or row["gpu"] in gpus(), row


def test_interconnects_agree_with_the_gpu_rows() -> None:
    """One direction in both files: 300 GB/s on A100 SXM, never the headline of both directions."""
    for row in table("interconnects.csv"):
        if row["intra_type"].startswith("NVLink") and row["gpu"] and row["intra_bytes_per_s"]:
            assert float(row["intra_bytes_per_s"]) == gpus()[row["gpu"]].nvlink_bytes_per_s, row
