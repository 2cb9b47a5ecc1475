"""Every row of every shipped table: a source, a date, figures in range, nothing twice."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date

import pytest

from finegauge.catalogue.tables import read_shipped, table

DATE = re.compile(r"20\d\d(-[01]\d(-[0-3]\d)?)?")
TABLES = {  # rows at least: a table may grow
    "gpus.csv": 200,
    "offers.csv": 1481,
    "offer_sources.csv": 26,
    "offer_sizes.csv": 16,
    "finetune_prices.csv": 42,
    "interconnects.csv": 124,
    "fabrics.csv": 9,
    "hosts.csv": 14,
    "grid_carbon.csv": 405,
    "pue.csv": 20,
}
Row = Mapping[str, str]
# What each number may be, wherever a table has such a column.
RANGES: Mapping[str, tuple[float, float]] = {
    "memory_bytes": (4e9, 512e9),
    "usable_bytes": (3.9e9, 420e9),
    "memory_bytes_per_s": (60e9, 8e12),
    "l2_bytes": (1e6, 256e6),
    "num_sms": (6, 320),
    "boost_hz": (0.7e9, 3.2e9),
    "bf16": (10e12, 2.6e15),
    "fp16": (2e12, 2.6e15),
    "fp8": (30e12, 6e15),
    "measured_matmul_flops_per_s": (200e12, 2e15),
    "nvlink_bytes_per_s": (0, 1.3e12),
    "board_power_w": (20, 1500),
    "idle_power_w": (5, 150),
    "launch_year": (2016, 2026),
    "gpu_count": (0.1, 16),
    "on_demand_usd_per_h": (0.01, 400),
    "spot_usd_per_h": (0.01, 200),
    "usd_per_million_tokens": (0.01, 30),
    "kg_per_kwh": (0.001, 1.4),
    "pue": (1.0, 1.7),
    "gpus_per_node": (1, 16),
    "intra_bytes_per_s": (20e9, 1.3e12),
    "inter_bytes_per_s": (0.1e9, 100e9),
    "cores": (8, 384),
    "core_bytes_per_s": (5e9, 60e9),
    "ram_bytes": (4e9, 4.5e12),
    "ram_bytes_per_s": (50e9, 1.3e12),
    "gpus_per_switch": (1, 4),
}


@pytest.mark.parametrize("filename", TABLES)
def test_table_is_plain_and_whole(filename: str) -> None:
    text = read_shipped(filename)
    commas = text.splitlines()[0].count(",")
    assert '"' not in text
    assert all(line.count(",") == commas for line in text.splitlines())
    assert len(table(filename)) >= TABLES[filename]


@pytest.mark.parametrize("filename", TABLES)
def test_every_row_has_source_and_date(filename: str) -> None:
    for row in table(filename):
        assert len(row["source"]) > 2, row
        dates = [row[key] for key in ("date", "checked") if row.get(key)]
        assert filename == "offer_sources.csv" or dates, row
        assert all(DATE.fullmatch(day) for day in dates), row
        assert all(day <= date.today().isoformat() for day in dates), row


@pytest.mark.parametrize("filename", TABLES)
def test_every_number_is_in_range(filename: str) -> None:
    for row in table(filename):
        for column, (low, high) in RANGES.items():
            if row.get(column):
                assert low <= float(row[column]) <= high, (column, row)


@pytest.mark.parametrize(
    ("filename", "key"),
    [
        ("gpus.csv", lambda row: row["name"].casefold()),
        ("offer_sources.csv", lambda row: row["code"]),
        ("grid_carbon.csv", lambda row: (row["scope"], row["code"], row["name"])),
        ("pue.csv", lambda row: (row["name"], row["year"], row["source"])),
        ("fabrics.csv", lambda row: (row["name"], row["link"])),
        ("hosts.csv", lambda row: (row["provider"], row["machine"])),
        ("interconnects.csv", lambda row: (row["provider"], row["instance"], row["gpu"])),
        (
            "finetune_prices.csv",
            lambda row: (row["provider"], row["model"], row["method"], row["max_context"]),
        ),
        ("offers.csv", lambda row: tuple(row.values())),
    ],
)
def test_no_row_twice(filename: str, key: Callable[[Row], object]) -> None:
    repeated = [row for row, times in Counter(map(key, table(filename))).items() if times > 1]
    assert repeated == []


def test_no_path_or_index_number_as_source() -> None:
    internal = re.compile(r"find_string|index id|file \d{6,}|/(home|tmp)/")
    for filename in TABLES:
        assert not internal.search(read_shipped(filename)), filename
    assert not internal.search(read_shipped("models.jsonl"))
    assert not internal.search(read_shipped("datasets.jsonl"))
