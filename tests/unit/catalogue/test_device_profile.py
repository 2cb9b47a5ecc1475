"""The file of a device profile: what is read is what was written, and what is wrong in it is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finegauge.catalogue.device_profile import (
    DIRECTIONS,
    OPERATORS,
    DeviceProfile,
    Reading,
    device_profile,
    own_profile_path,
    write,
)
from finegauge.errors import FineGaugeError

LINEAR = Reading("linear", "fp32", "forward", {"rows": 8.0, "n": 4.0, "k": 2.0}, 1e-5, 0.02, 128.0, 256.0)
PROFILE = DeviceProfile(
    name="A processor, 1 thread",
    device="cpu",
    memory_bytes=8e9,
    usable_bytes=7e9,
    memory_bytes_per_s=1e10,
    flops_per_s={"fp32": 5e10},
    threads=1,
    readings=(LINEAR, LINEAR._replace(direction="backward", seconds=2e-5)),
    host={"launch_s": 2e-6, "peft_backward_s": 0.0},
    fingerprint={"torch": "2.13.0"},
    notes=("bf16 is left out",),
)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(PROFILE, str(tmp_path / "cpu.json"))
    return tmp_path / "cpu.json"


def test_what_is_read_is_what_was_written(path: Path) -> None:
    assert device_profile(str(path)) == PROFILE


def test_readings_are_selected_by_kind() -> None:
    assert PROFILE.select("linear", "fp32", "forward") == (LINEAR,)
    assert PROFILE.select("linear", "bf16", "forward") == ()


def test_the_shelf_is_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", "/somewhere")
    assert own_profile_path("cpu") == "/somewhere/devices/cpu.json"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("kind"), "is not a device profile"),
        (lambda d: d.update(schema_version=9), "schema_version '9'; this FineGauge reads 1"),
        (lambda d: d.update(devise="cpu"), "unknown key 'devise'. Did you mean 'device'"),
        (lambda d: d.pop("usable_bytes"), "'usable_bytes' is missing"),
        (lambda d: d.update(device="tpu"), "should be cpu or cuda, not 'tpu'"),
        (lambda d: d.update(memory_bytes=-1), "'memory_bytes' should be a number above zero"),
        (lambda d: d.update(readings=[]), "at least one reading"),
        (lambda d: d.update(readings=[3]), r"readings\[0\] should be a mapping"),
        (lambda d: d["readings"][1].update(operator="liner"), "unknown key 'liner'. Did you mean 'linear'"),
        (lambda d: d["readings"][1].update(direction="back"), "unknown key 'back'. Did you mean 'backward"),
        (lambda d: d["readings"][1]["sizes"].pop("n"), r"readings\[1\]: linear needs the size 'n'"),
        (lambda d: d["readings"][1]["sizes"].update(m=1), "sizes: unknown key 'm'"),
        (lambda d: d["readings"][1].update(seconds=0), "'seconds' should be a number above zero"),
        (lambda d: d["readings"][1].update(seconds=True), "'seconds' should be a number"),
        (lambda d: d["host"].update(lunch_s=1), "unknown key 'lunch_s'. Did you mean 'launch_s'"),
        (lambda d: d.update(host=[]), "host should be a mapping"),
        (lambda d: d.update(fingerprint=[]), "'fingerprint' should be a mapping"),
        (lambda d: d.update(notes="none"), "'notes' should be a list"),
        (lambda d: d.update(flops_per_s={"fp32": 0}), "flops_per_s.fp32 should be a number above zero"),
    ],
)
def test_what_is_wrong_is_said(path: Path, change: Change, said: str) -> None:
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(FineGaugeError, match=said) as caught:
        device_profile(str(path))
    assert caught.value.exit_code == 64
    assert "\n" not in str(caught.value)


def test_every_operator_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "device-profile.md").read_text("utf-8")
    missing = [name for name in (*OPERATORS, *DIRECTIONS) if f"`{name}`" not in text]
    assert missing == []
