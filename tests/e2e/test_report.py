"""`finegauge report`: every subject, every form, and one sentence where something cannot be."""

import json
import re
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.answers.profile import profile_of
from finegauge.errors import EXIT_BAD_INPUT, EXIT_DONE
from finegauge.formats.reading import read
from finegauge.profile import Breakdown, Profile, Source
from finegauge.render.json import encoded
from finegauge.render.number_format import dollars, hours
from finegauge.render.schema import schema
from finegauge.store.document import run_document
from finegauge.store.journal import Trials
from tests.e2e.commands import EXAMPLES, MIXTRAL, finegauge

MATH = str(EXAMPLES / "mixtral_qlora_math.yaml")
SCHEMA = schema("report")
SWEEP = """
name: switches
run: {model: llama-3-8b, method: lora, dataset: math_14k}
axes:
  gpu: [a100-80gb, h100]
  switch: [baseline, checkpointing]
  micro_batch_size: [1, 2]
"""


def measured(step_s: float = 2.0, size: int = 1) -> Profile:
    """Return what a measurement on an A40 might have brought."""
    run = read(MATH, (f"micro_batch_size={size}",))
    memory = Breakdown.of(weights=25e9, optimizer=2e9, activations=3e9)
    return Profile(
        run=run,
        source=Source("measured", "trial"),
        peak_memory_bytes=memory,
        device_memory_bytes=memory,
        step_time_s=Breakdown.of(forward=0.5 * step_s, backward=0.5 * step_s),
        step_tokens=180.0 * size,
        step_sequences=size,
        capacity_bytes=47e9,
        step_times_s=(step_s, step_s),
        fingerprint={"device": "NVIDIA A40"},
        observations={"experts": {"layers": {"0": {"tokens_per_expert": [10, 30]}}}},
    )


def journal(path: Path, *profiles: Profile) -> str:
    """Keep trials as `measure --store` does."""
    trials = Trials(str(path))
    for profile in profiles:
        trials.end(trials.start(profile.run, {}), profile)
    return str(path)


def reported(*arguments: str) -> dict[str, list[str]]:
    """Return the names of the figures and the files that a report has."""
    done = finegauge("report", *arguments, "--json")
    assert done.err == ""
    whole = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(whole)
    return {"figures": [one["name"] for one in whole["figures"]], "written": whole["written"]}


@pytest.mark.extras
def test_a_run_as_a_page(tmp_path: Path) -> None:
    path = tmp_path / "made" / "report.html"
    done = finegauge("report", MATH, "-o", str(path))
    assert done.code == 0
    assert re.match(r"(Fits|Risky): [\d.]+ GiB \[", done.out)
    assert f"Wrote {path}" in done.out
    assert path.read_text("utf-8").startswith("<!doctype html>")


def test_a_run_as_markdown_on_the_terminal() -> None:
    done = finegauge("report", MIXTRAL, "--gpu", "a40", "micro_batch_size=1")
    assert done.code == 0
    assert done.out.startswith("## Mixtral-8x7B-v0.1 on A40")
    assert "### Sources" in done.out


@pytest.mark.extras
def test_one_figure_as_png_and_svg(tmp_path: Path) -> None:
    for name, head in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        path = tmp_path / name
        assert finegauge("report", MATH, "-o", str(path), "--figure", "memory").code == 0
        assert path.read_bytes().startswith(head)


@pytest.mark.extras
def test_a_folder_of_everything_about_a_kept_answer(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text(finegauge("explain", MATH, "--json").out, "utf-8")
    found = reported(str(answer), "-o", str(tmp_path / "out"))
    assert found["figures"] == ["memory", "time"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "report.md", "memory.png", "memory.svg", "time.png", "time.svg"}
    assert {Path(path).name for path in found["written"]} == names


def test_a_kept_answer_says_what_it_said(tmp_path: Path) -> None:
    whole = json.loads(finegauge("estimate", MATH, "--json").out)
    said = whole["results"][0]["profile"]
    again = encoded(profile_of(said, read(MATH, ())))
    for name, value in said.items():
        if name not in ("peak_memory_bytes", "phase_memory_bytes"):
            assert again[name] == pytest.approx(value), name


def test_a_kept_answer_of_several_gpus_shows_them_all(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    whole = finegauge("estimate", MATH, "autocast=bf16", "--gpu", "a40,h100,l4,v100", "--json").out
    answer.write_text(whole, "utf-8")
    said = json.loads(finegauge("report", str(answer), "--json").out)
    tables = {one["table"]: one["rows"] for one in said["tables"]}
    (rows,) = (rows for table, rows in tables.items() if table.startswith("Does it fit"))
    assert [row[0] for row in rows] == ["A40", "H100-SXM5-80GB", "L4"]
    assert said["verdict"] == "Fits on A40, H100-SXM5-80GB; will not fit on L4."
    assert "V100-SXM2-16GB has no bf16" in finegauge("report", str(answer)).out
    ways = next(one["rows"] for one in said["figures"] if one["name"] == "cost")
    for row, result in zip(ways, json.loads(whole)["results"], strict=False):
        assert row[2] == hours(result["quote"]["wall_s"])
        assert row[3] == dollars(result["quote"]["cheapest_on_demand"]["on_demand_usd"])
    assert len(ways) == 2


def test_a_trial_beside_its_prediction(tmp_path: Path) -> None:
    found = reported(journal(tmp_path / "trials.jsonl", measured()))
    assert found["figures"] == ["beside-time", "beside-memory", "memory", "time", "experts"]


def test_a_trial_that_ran_out_of_memory_shows_what_was_predicted(tmp_path: Path) -> None:
    lost = Profile(run=read(MATH, ()), source=Source("measured", "trial"), outcome="out_of_memory",
                   reason="asked for more than there is", fingerprint={"device": "NVIDIA A40"})  # fmt: skip
    path = journal(tmp_path / "trials.jsonl", lost)
    assert reported(path)["figures"] == ["memory"]
    done = finegauge("report", path)
    assert "Out of memory: asked for more than there is." in done.out
    assert "this is what is predicted for it" in done.out


def test_a_trial_on_an_unknown_machine_says_how_it_gets_to_be_known(tmp_path: Path) -> None:
    trial = measured()._replace(fingerprint={"device": "Z80"})
    trial = trial._replace(run=trial.run.replace(gpu=None))
    done = finegauge("report", journal(tmp_path / "trials.jsonl", trial))
    assert "Not predicted: there is no device profile of Z80; run 'finegauge micro' on it." in done.out


def test_several_trials(tmp_path: Path) -> None:
    done = finegauge("report", journal(tmp_path / "t.jsonl", measured(), measured(3.0, 2), measured(4.0, 4)))
    assert done.code == 0
    assert "3 results: 3 completed" in done.out
    assert "| 4 | measured | completed |" in done.out


def test_a_campaign(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP, "utf-8")
    folder = str(tmp_path / "kept")
    assert finegauge("campaign", str(tmp_path / "sweep.yaml"), "-o", folder).code == 0
    found = reported(folder)
    gains, sweeps = [f"gains-{n}" for n in range(1, 5)], [f"throughput-{n}" for n in range(1, 5)]
    assert found["figures"] == [*gains, *sweeps, "cost"]
    whole = json.loads(finegauge("report", folder, "--json").out)
    radar = next(one for one in whole["figures"] if one["name"] == "gains-1")
    said = json.loads(finegauge("compare", folder, "--json").out)["comparisons"][0]["gains"]
    assert radar["rows"] == [
        [one["name"], *(f"{one[name]:.2f}" for name in ("SpeedUp", "MemoryUp", "EnergyUp"))] for one in said
    ]


def test_a_plan_found_now_and_one_that_was_kept_look_alike(tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    kept.write_text(finegauge("plan", MATH, "--gpus", "a40", "--json").out, "utf-8")
    old = finegauge("report", str(kept), "--json")
    new = finegauge("report", MATH, "--plan", "--gpu", "a40", "--json")
    assert json.loads(old.out) == json.loads(new.out)
    names = [one["name"] for one in json.loads(old.out)["figures"]]
    assert names == ["cost", "memory", "time"]
    whole = json.loads(kept.read_text("utf-8"))
    others = [one["plan"] for kind in whole["alternatives"].values() for one in kind if one["plan"]]
    assert others
    for one in others:
        one["num_nodes"] = 0
    kept.write_text(json.dumps(whole), "utf-8")
    assert finegauge("report", str(kept)).code == EXIT_DONE
    kept.write_text(kept.read_text("utf-8").replace('"minimise": "cost"', '"minimise": "a"'), "utf-8")
    refused = finegauge("report", str(kept), "--json")
    assert (refused.code, "is no whole plan of FineGauge" in refused.err) == (EXIT_BAD_INPUT, True)


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    seventy, stored = str(EXAMPLES / "plans" / "llama3_70b_full.yaml"), tmp_path / "estimate.json"
    stored.write_text(finegauge("estimate", MATH, "--gpu", "h100", "--json").out, "utf-8")
    trial = journal(tmp_path / "trials.jsonl", measured(2.5))
    found = json.loads(finegauge("report", MATH, seventy, str(stored), trial, "--json").out)
    assert [one["name"] for one in found["figures"]] == ["memory", "time", "cost"]
    tables = {one["table"]: one for one in found["tables"]}
    figures = next(one for name, one in tables.items() if name.startswith("What each run takes"))
    assert figures["columns"] == ["figure", "mixtral_qlora_math", "llama3_70b_full", "estimate", "trials"]
    rows = {name: cells for name, *cells in figures["rows"]}
    assert rows["verdict"] == ["Fits", "Will not fit", "Fits", "completed"]
    alone = {
        one["name"]: one["rows"] for one in json.loads(finegauge("report", MATH, "--json").out)["figures"]
    }
    assert rows["memory"][0].split()[0] in str(alone["memory"])
    assert rows["one step"][3] == "2.50 s"
    assert rows["on demand"][1] == rows["on demand"][3] == "-"
    assert "will not fit: llama3_70b_full" in found["verdict"]
    differing = {name: cells for name, *cells in tables["Fields that are not the same in all runs"]["rows"]}
    assert differing["method"] == ["qlora", "full", "qlora", "qlora"]
    assert "epochs" in differing
    assert "tensor_parallel" not in differing


@pytest.mark.extras
def test_runs_side_by_side_in_a_file_and_on_a_gpu_that_all_share(tmp_path: Path) -> None:
    tiny, page = str(EXAMPLES / "tiny_moe.yaml"), tmp_path / "a.html"
    done = finegauge("report", tiny, MATH, "micro_batch_size=2", "--gpu", "h100", "-o", str(page))
    assert done.code == 0
    text = page.read_text("utf-8")
    assert "1 x H100-SXM5-80GB" in text
    assert "mixtral_qlora_math, weights: " in text
    rows = json.loads(finegauge("report", tiny, MATH, "micro_batch_size=2", "--json").out)["tables"][1][
        "rows"
    ]
    assert "micro_batch_size" not in {row[0] for row in rows}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((MATH, MATH, "--plan"), "--plan is for one run"),
        ((MATH, MATH), "is named twice"),
        ((MATH, "nothing.jsonl"), "holds no run that could stand beside others"),
        ((MATH, *(f"{n}.yaml" for n in range(8))), "give at most 8"),
        ((MATH, "-o", "a.pdf"), "write .html, .htm, .md, .png, .svg, or name a folder"),
        ((MATH, "-o", "a.png", "--figure", "memry"), "Did you mean 'memory'"),
        ((MATH, "-o", "a.png"), "add --figure NAME (memory, time,"),
        ((MATH, "--figure", "memory"), "add -o FILE.png"),
        (("nothing.jsonl",), "There is no journal 'nothing.jsonl'"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    done = finegauge("report", *arguments)
    assert done.code == 64
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.extras
def test_a_gpu_is_assumed_as_estimate_assumes_it(tmp_path: Path) -> None:
    tiny = str(EXAMPLES / "tiny_moe.yaml")
    assert " on L4" in finegauge("report", tiny).out
    longer = tmp_path / "longer.yaml"
    longer.write_text(
        "model: Qwen/Qwen3-8B\nmethod: full\nactivation_checkpointing: full\n", encoding="utf-8"
    )
    done = finegauge("compare", tiny, str(longer))
    assert done.code == 0
    assert done.out.startswith("gpu A100")


def test_a_subject_that_looks_like_a_setting() -> None:
    done = finegauge("report", "a=b")
    assert (done.code, done.err) == (64, "Error: No file 'a=b'.\n")


def test_documents_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, said in (
        ({"command": "micro", "schema_version": 1}, "which has no report"),
        ({"command": "estimate", "schema_version": 1}, "no whole answer"),
        ({"command": "plan", "schema_version": 1}, "states no whole run"),
        ({"command": "plan", "schema_version": 1, "run": run_document(read(MATH, ()))["fields"]}, "no whole"),
    ):
        path.write_text(json.dumps(content), "utf-8")
        done = finegauge("report", str(path))
        assert done.code == 64, content
        assert said in done.err
    path.write_text(json.dumps({"command": "estimate", "schema_version": 1, "results": []}), "utf-8")
    assert "answers that stand" in finegauge("report", str(path), "--gpu", "a40").err


def test_without_the_extra_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, name in (("matplotlib", "a.html"), ("jinja2", "a.html"), ("matplotlib", "a.png")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, module, None)
            figure = ("--figure", "memory") if name.endswith("png") else ()
            done = finegauge("report", MATH, "-o", str(tmp_path / name), *figure)
        assert done.code == 64
        assert "pip install 'finegauge[report]'" in done.err


def test_a_run_that_will_not_fit_keeps_its_offers() -> None:
    said = json.loads(
        finegauge("report", str(EXAMPLES / "plans" / "llama3_70b_full.yaml"), "--gpu", "H100", "--json").out
    )
    assert said["verdict"].startswith("Will not fit")
    offers = next(one for one in said["tables"] if one["table"] == "What the whole run costs, by provider")
    assert offers["rows"]
