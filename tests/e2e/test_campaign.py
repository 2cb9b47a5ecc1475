"""`finegauge campaign` on real trials of a tiny model: killed, interrupted, resumed, asked, compared."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pyarrow import parquet

from finegauge.campaign.axes import Folder
from finegauge.campaign.sweep import read_sweep
from finegauge.render.schema import schema
from finegauge.store import table
from finegauge.store.journal import Journal
from tests.e2e.commands import finegauge
from tests.e2e.processes import children, descendants, gone
from tests.unit.store.results import read_back

SCHEMAS = {name: schema(name) for name in ("campaign", "results", "compare")}
FIGURES = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SWEEP = """
name: tiny
about: A tiny Llama, predicted and measured.
run: {model: config.json, method: full, weights_dtype: fp32, seq_len: 16, gpu: a40}
predicted: {axes: {switch: [baseline, checkpointing, zero1]}}
measured: {axes: {switch: [MEASURED]}, steps: STEPS, warmup_steps: 1, threads: 1}
"""
DRIVER = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from finegauge.cli import main
main(sys.argv[1:])
"""
WAIT_S = 120.0
STEPS_TOLD_BYTES = 500  # a step is told in some fifty bytes; nothing else is written before


def document(name: str, out: str) -> Any:
    """Return what a command printed under --json, checked against its schema."""
    whole = json.loads(out)
    Draft202012Validator(SCHEMAS[name]).validate(whole)
    return whole


def sweep_in(folder: Path, measured: str, steps: int) -> str:
    """Write the sweep and its model into `folder`, and return the sweep's path."""
    (folder / "config.json").write_text(json.dumps(FIGURES), "utf-8")
    path = folder / "sweep.yaml"
    path.write_text(SWEEP.replace("MEASURED", measured).replace("STEPS", str(steps)), "utf-8")
    return str(path)


def ends(folder: str) -> Counter[tuple[str, str]]:
    """Return how often each cell ended how."""
    records = read_back(Journal(os.path.join(folder, "results.jsonl"))).records
    return Counter(
        (record["asked"]["cell"], record["profile"]["outcome"])
        for record in records
        if record["event"] == "ended"
    )


def until_steps_run(driver: "subprocess.Popen[str]") -> None:
    """Return once the trial of a campaign has told of its first steps."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at and driver.poll() is None:
        for trial in children(driver.pid)[:1]:
            with suppress(OSError):
                counters = Path(f"/proc/{trial}/io").read_text("ascii").split()
                if int(counters[counters.index("wchar:") + 1]) > STEPS_TOLD_BYTES:
                    return
        time.sleep(0.02)
    raise AssertionError(f"no trial: {driver.communicate()}")


@contextmanager
def driving(sweep: str, folder: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield the process of a campaign whose first trial is at work; whatever happens, nothing is left."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, "campaign", sweep, "-o", folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    started: set[int] = set()
    try:
        until_steps_run(driver)
        started = descendants(driver.pid)
        assert len(started) >= 2, "the trial and its guard"
        yield driver
        assert gone(started)
    finally:
        for process in {driver.pid, *started}:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        driver.communicate()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a campaign that was carried out to its end."""
    folder = tmp_path_factory.mktemp("campaign")
    sweep = sweep_in(folder, "baseline, checkpointing", 3)
    done = finegauge("campaign", sweep, "-o", str(folder / "out"), "--json")
    assert (done.code, done.err) == (0, "")
    (folder / "said.json").write_text(done.out, "utf-8")
    return folder


def test_the_schemas_are_schemas() -> None:
    for content in SCHEMAS.values():
        Draft202012Validator.check_schema(content)


def test_predicted_and_measured_cells_are_answered(kept: Path) -> None:
    whole = document("campaign", (kept / "said.json").read_text("utf-8"))
    assert whole["outcomes"] == {"completed": 4, "refused": 1}
    assert (whole["num_cells"], whole["done_before"]) == (5, 0)
    assert [refusal["labels"] for refusal in whole["refused"]] == [{"switch": "zero1"}]
    measured = [one["profile"] for one in whole["results"] if one["estimator"] == "measured"]
    assert len(measured) == 2
    for profile in measured:
        assert profile["step_time_s"] > 0
        assert profile["step_energy_j"] is None  # nobody asked the meter, and 0 would be a lie
        assert {"forward", "backward", "optimizer"} <= profile["time_breakdown_s"].keys()


def test_a_second_call_asks_nothing(kept: Path) -> None:
    done = finegauge("campaign", str(kept / "sweep.yaml"), "-o", str(kept / "out"))
    assert (done.code, done.err) == (0, "")
    assert "0 cells asked, 5 were done before." in done.out
    again = finegauge("campaign", str(kept / "sweep.yaml"), "-o", str(kept / "out"), "--dry-run")
    assert "0 of 5 cells are to be asked." in again.out


def test_results_are_filtered_chosen_and_asked(kept: Path) -> None:
    folder = str(kept / "out")
    everything = document("results", finegauge("results", folder, "--json").out)
    assert (len(everything["results"]), everything["num_quarantined"]) == (4, 0)
    measured = ("results", folder, "--where", "source = 'measured' AND step_time_s > 0")
    rows = document("results", finegauge(*measured, "--columns", "switch,outcome", "--json").out)["results"]
    assert rows == [{"switch": s, "outcome": "completed"} for s in ("baseline", "checkpointing")]
    sql = "SELECT source, count(*) AS n FROM results GROUP BY source ORDER BY source"
    (one, other) = document("results", finegauge("results", folder, "--sql", sql, "--json").out)["results"]
    assert (one, other) == ({"source": "measured", "n": 2}, {"source": "predicted", "n": 2})
    shown = finegauge("results", folder, "--limit", "1").out
    assert "1 of 4 rows" in shown


def test_what_is_exported_reads_back(kept: Path, tmp_path: Path) -> None:
    folder = str(kept / "out")
    rows = document("results", finegauge("results", folder, "--json").out)["results"]
    for name in ("all.csv", "all.parquet"):
        done = finegauge("results", folder, "--export", str(tmp_path / name))
        assert (done.code, done.err) == (0, "")
        assert f"Written: {tmp_path / name}" in done.out
    assert parquet.read_table(tmp_path / "all.parquet").to_pylist() == rows
    with open(tmp_path / "all.csv", encoding="utf-8", newline="") as file:
        back = list(csv.DictReader(file))
    assert [float(row["step_time_s"]) for row in back] == [row["step_time_s"] for row in rows]
    assert [row["switch"] for row in back] == [row["switch"] for row in rows]


def test_a_large_campaign_leaves_the_table_that_its_results_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "WORTH_BYTES", 0)
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("run: {model: llama-2-7b, method: lora, gpu: a40}\n", "utf-8")
    folder = tmp_path / "out"
    assert finegauge("campaign", str(sweep), "-o", str(folder)).code == 0
    assert (folder / f"results.jsonl{table.SUFFIX}").exists()
    assert "1 row\n" in finegauge("results", str(folder)).out


def test_one_corrupt_line_costs_one_line(kept: Path, tmp_path: Path) -> None:
    content = (kept / "out" / "results.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if b'"event":"ended"' in line)
    lines[last] = lines[last].replace(b'"outcome":"completed"', b'"outcome":"improved "')
    store = tmp_path / "results.jsonl"
    store.write_bytes(b"".join(lines))
    whole = document("results", finegauge("results", str(tmp_path), "--json").out)
    assert (len(whole["results"]), whole["num_quarantined"]) == (3, 1)
    assert "1 line did not read back" in finegauge("results", str(store)).out


def test_a_campaign_is_compared_switch_by_switch(kept: Path, tmp_path: Path) -> None:
    folder = str(kept / "out")
    whole = document("compare", finegauge("compare", folder, "--json").out)
    predicted, measured = whole["comparisons"]
    assert (predicted["estimator"], measured["estimator"]) == ("predicted", "measured")
    (gain,) = measured["gains"]
    assert gain["name"] == "checkpointing"
    low, high = gain["SpeedUp_interval"]
    assert 0 < low <= gain["SpeedUp"] <= high
    assert gain["EnergyUp"] > 0
    assert gain["energy_by"] in ("joules", "processor seconds")  # as this machine has a meter or not
    done = finegauge("compare", folder, "--figure", str(tmp_path / "gains.png"))
    assert done.code == 0
    assert "EnergyUp" in done.out
    assert {path.name for path in tmp_path.iterdir()} >= {"gains.png", "gains.svg"}


def test_points_of_a_campaign_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(
        "claims: chen2024\n"
        "run: {model: opt-350m, method: full, gpu: a40, num_gpus: 2}\n"
        "axes: {phase: [sft, reward], switch: [zero3, zero1, baseline, checkpointing]}\n",
        "utf-8",
    )
    folder = str(tmp_path / "out")
    assert finegauge("campaign", str(tmp_path / "sweep.yaml"), "-o", folder).code == 0
    whole = document("compare", finegauge("compare", folder, "--json").out)
    assert [one["labels"]["phase"] for one in whole["comparisons"]] == ["sft", "reward"]
    assert [gain["name"] for gain in whole["comparisons"][0]["gains"]] == ["zero3", "zero1", "checkpointing"]
    assert whole["claims"]["name"] == "chen2024"
    held = {one["claim"]: one for one in whole["claims"]["held"]}
    assert len(held["none-best"]["holds_at"]) + len(held["none-best"]["fails_at"]) == 2
    (only,) = document("compare", finegauge("compare", folder, "--at", "phase=reward", "--json").out)[
        "comparisons"
    ]
    assert only["labels"] == {"phase": "reward"}
    text = finegauge("compare", folder).out
    assert "SpeedUp: " in text
    assert "> baseline" in text
    assert "reconstruction" in text
    for place, said in (("fase=sft", "Did you mean 'phase'"), ("phase=rewards", "Did you mean 'reward'")):
        wrong = finegauge("compare", folder, "--at", place)
        assert (wrong.code, wrong.err.count("\n")) == (64, 1)
        assert said in wrong.err


def test_shipped_sweeps_are_listed_and_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = finegauge("campaign", "--list")
    assert listed.code == 0
    assert {"xia2024", "deepspeed_chat", "dissecting"} <= set(listed.out.split())
    monkeypatch.chdir(tmp_path)
    dry = finegauge("campaign", "dissecting", "--only", "measured", "--dry-run")
    assert dry.code == 0
    assert "10 of 10 cells are to be asked" in dry.out
    wrong = finegauge("campaign", "disecting")
    assert (wrong.code, wrong.err.count("\n")) == (64, 1)
    assert "Did you mean 'dissecting'" in wrong.err
    (tmp_path / "sweep.yaml").write_text("run: {model: llama-2-7b, method: lora, gpu: a40}\n", "utf-8")
    none = finegauge("campaign", "sweep.yaml", "--only", "measured")
    assert (none.code, "nothing is measured there" in none.err) == (64, True)


def test_two_runs_are_compared(kept: Path, tmp_path: Path) -> None:
    def written(name: str, checkpointing: str) -> str:
        fields = {"model": "llama-2-7b", "method": "lora", "gpu": "a100-80gb", "micro_batch_size": 2}
        path = tmp_path / name
        path.write_text(json.dumps({**fields, "activation_checkpointing": checkpointing}), "utf-8")
        return str(path)

    base, other = written("base.yaml", "none"), written("other.yaml", "full")
    whole = document("compare", finegauge("compare", base, other, "--json").out)
    (gain,) = whole["comparisons"][0]["gains"]
    assert gain["name"] == other
    assert gain["SpeedUp"] < 1 < gain["MemoryUp"]
    assert whole["baseline"] == "base.yaml"
    mixed = finegauge("compare", base, str(kept / "out" / "results.jsonl"))
    assert (mixed.code, mixed.err.count("\n")) == (64, 1)


def test_a_killed_driver_leaves_nothing_behind_and_the_next_one_completes(tmp_path: Path) -> None:
    sweep, folder = sweep_in(tmp_path, "baseline", 400), str(tmp_path / "out")
    with driving(sweep, folder) as driver:
        second = finegauge("campaign", sweep, "-o", folder)
        assert (second.code, second.err.count("\n")) == (64, 1)
        assert f"is being worked on by process {driver.pid} on" in second.err
        driver.kill()
        driver.wait(WAIT_S)
    assert len(Folder(folder).results()) == 2  # the predictions were on the disk
    done = finegauge("campaign", sweep, "-o", folder)
    assert (done.code, done.err) == (0, "")
    assert "1 cell asked, 3 were done before." in done.out
    asked = {cell.key for cell in read_sweep(sweep).cells if cell.run is not None}
    assert len(asked) == 3
    (interrupted,) = [cell for (cell, outcome) in ends(folder) if outcome == "interrupted"]
    assert ends(folder) == Counter(
        {(key, "completed"): 1 for key in asked} | {(interrupted, "interrupted"): 1}
    )


def test_a_killed_trial_is_a_failure_that_can_be_asked_again(tmp_path: Path) -> None:
    sweep, folder = sweep_in(tmp_path, "baseline", 400), str(tmp_path / "out")
    with driving(sweep, folder) as driver:
        os.kill(children(driver.pid)[0], signal.SIGKILL)
        out, err = driver.communicate(timeout=WAIT_S)
        assert (driver.returncode, err) == (0, "")
        assert "killed by SIGKILL" in out
    (failed,) = [result for result in Folder(folder).results() if result.profile.outcome == "failed"]
    assert "the trial's process was killed by SIGKILL" in failed.profile.reason
    assert "0 cells asked" in finegauge("campaign", sweep, "-o", folder).out
    assert finegauge("campaign", sweep, "-o", folder, "--retry").code == 0
    assert Folder(folder).done()[failed.key] == "completed"
    assert ends(folder)[failed.key, "completed"] == ends(folder)[failed.key, "failed"] == 1


def test_ctrl_c_ends_the_trial_and_the_campaign(tmp_path: Path) -> None:
    sweep, folder = sweep_in(tmp_path, "baseline, checkpointing", 10_000_000), str(tmp_path / "out")
    with driving(sweep, folder) as driver:
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=WAIT_S)
        assert driver.returncode == 130
        assert "Traceback" not in err
    outcomes = Counter(outcome for _, outcome in ends(folder).elements())
    assert outcomes == {"completed": 2, "interrupted": 1}
    left = {cell.key for cell in read_sweep(sweep).cells} - Folder(folder).done().keys()
    assert len(left) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("campaign", "nowhere.yaml"), "nowhere.yaml"),
        (("results", "nowhere"), "holds no results"),
        (("compare", "nowhere"), "is no campaign's folder"),
    ],
)
def test_a_wrong_question_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = finegauge(*arguments)
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert said in done.err


def test_wrong_questions_about_results_are_one_line(kept: Path) -> None:
    for options, said in (
        (("--columns", "swich"), "Did you mean 'switch'"),
        (("--where", "nothing > 1"), "DuckDB does not accept the question"),
        (("--sql", "SELECT 1", "--where", "true"), "--sql is a whole question"),
        (("--export", "all.xlsx"), "should end in .csv or .parquet"),
    ):
        done = finegauge("results", str(kept / "out"), *options)
        assert (done.code, done.err.count("\n")) == (64, 1)
        assert said in done.err
