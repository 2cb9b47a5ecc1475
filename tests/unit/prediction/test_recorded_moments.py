"""Moments of jobs in four processes, as `python -m benchmarks.moments --record` measured them.

What is replayed: peaks of torch and of the process while a model of 67 or 133 million parameters is loaded,
trained, evaluated, saved and resumed, sharded by DeepSpeed and by torch.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.moments import cells, recorded, rows_of

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "replay" / "moments.json").read_text("utf-8")
)


@pytest.mark.parametrize("name", RECORDED)
def test_every_moment_is_as_full_as_predicted(name: str, tmp_path: Path) -> None:
    cell = next(one for one in cells() if one.name == name)
    rows = list(rows_of(cell, [recorded(cell, RECORDED[name], tmp_path)]))
    assert len(rows) == 20
    assert [str(row) for row in rows if row.is_over] == []


def test_adapters_and_whole_models_were_recorded_in_four_processes() -> None:
    assert {name.split()[0] for name in RECORDED} == {"4"}
    assert {name.split()[1] for name in RECORDED} == {"zero3", "fsdp", "fsdp-sharded"}
    assert {name.split()[2] for name in RECORDED} == {"lora", "full"}
