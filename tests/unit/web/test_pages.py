"""Pages and fragments as text: what they say, what they escape, and what they hand out."""

import io
import json
import re
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.catalogue.gpus import gpus
from finegauge.catalogue.machine import GpuHere
from finegauge.formats.writing import FRAMEWORKS
from finegauge.run.run import FIELDS
from finegauge.web import pages
from finegauge.web.assets import first_script
from finegauge.web.choices import controls, gpu_choices, jobs
from finegauge.web.form import LENGTH_FIELDS, State, state_of, token_of
from finegauge.web.plan_view import MOST_RUNS
from finegauge.web.storage import Reply

pytestmark = pytest.mark.extras

HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>"
CONFIG = '{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, \
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}'


def text(reply: Reply) -> str:
    """Return the body as text."""
    assert isinstance(reply.body, str)
    return reply.body


def told(body: str, field: str) -> dict[str, str]:
    """Return what an answer says of one field."""
    found = re.search(rf'<i data-field="{field}"([^>]*)>', body)
    assert found is not None
    return dict(re.findall(r'data-(\w+)="([^"]*)"', found[1]))


def test_the_page_comes_with_an_answer() -> None:
    reply = pages.index({})
    body = text(reply)
    assert reply.status == 200
    assert body.startswith("\n<!doctype html>") or body.startswith("<!doctype html>")
    assert 'id="verdict">Fits' in body
    assert "style=" not in body  # the page forbids it
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", body, re.DOTALL)
    assert scripts == [first_script()]  # which its policy allows by its hash


def test_every_field_of_a_run_has_a_control() -> None:
    assert {control.name for control in controls()} == {*FIELDS, *LENGTH_FIELDS} - {"tokenizer"}


def test_an_edit_changes_the_answer_and_the_address() -> None:
    fields = {"gpu": "A40", "micro_batch_size": "2"}
    reply = pages.answer(fields)
    token = token_of(State("", fields))
    assert reply.headers["HX-Replace-Url"] == f"/?s={token}"
    assert told(text(reply), "gpu") == {"value": "A40", "origin": "you", "error": ""}
    assert told(text(reply), "seq_len")["origin"] == "example"
    assert "on A40" in text(pages.index({"s": token or ""}))


def test_a_wrong_value_leaves_the_answer_and_tells_its_field() -> None:
    reply = pages.answer({"micro_batch_size": "none at all"})
    assert reply.headers["HX-Reswap"] == "none"
    assert "not a whole number" in told(text(reply), "micro_batch_size")["error"]
    assert 'id="verdict"' not in text(reply)
    assert pages.submitted({"micro_batch_size": "x"}).status == 422


def test_a_run_that_will_not_fit_has_no_bill() -> None:
    body = text(pages.answer({"model": "meta-llama/Llama-3.1-70B", "method": "full"}))
    assert "Will not fit" in body
    assert "tile-usd" not in body


def test_what_makes_a_run_fit_is_asked_for_after_the_edit() -> None:
    """The whole page has it at once: nobody asks for it there without a script."""
    form = {"model": "llama-3.1-70b", "method": "full", "gpu": "A40"}
    edited, whole, later = (text(asked(form)) for asked in (pages.answer, pages.submitted, pages.advice))
    assert 'hx-post="/advice"' in edited
    assert "What makes it fit</h2>" not in edited
    assert "<h2>What makes it fit</h2>" in later
    assert later.partition("</h2>")[2].strip() in whole
    fits = {"model": "llama-3-8b", "method": "qlora", "gpu": "H100"}
    assert 'hx-post="/advice"' not in text(pages.answer(fits))
    assert not text(pages.advice(fits)).strip()
    assert not text(pages.advice({"model": "no such"})).strip()


@pytest.mark.parametrize("field", ["model", "gpu", "document", "length_counts", "framework", "plan_within_h"])
def test_what_is_typed_is_never_markup(field: str) -> None:
    form = {field: HOSTILE}
    for reply in (
        *(
            handler(form)
            for handler in (pages.submitted, pages.answer, pages.whatif, pages.plan, pages.files)
        ),
        pages.index({"s": token_of(State.of(form)) or ""}),
    ):
        assert "<script>alert" not in text(reply)
        assert "<img src=x" not in text(reply)


def test_a_damaged_link_is_said() -> None:
    reply = pages.index({"s": "nonsense"})
    assert reply.status == 400
    assert "The link is damaged" in text(reply)


def test_changes_state_only_what_others_follow_from() -> None:
    body = text(pages.whatif({}))
    fields = re.findall(r'data-fields="([^"]*)"', body)
    assert "packing=true" in "\n".join(fields)
    assert not any("data_parallel" in one or "padding=max" in one for one in fields)
    assert "No answer yet" in text(pages.whatif({"gpu": "B17"}))


def test_the_run_file_gives_the_same_run_again() -> None:
    fields = {"gpu": "A40", "seq_len": "512"}
    kept = pages.download("run.yaml", fields)
    assert kept.filename == "run.yaml"
    again = pages.answer({"document": text(kept)})
    verdict = re.compile(r'<div class="verdict.*?</div>', re.DOTALL)
    assert verdict.findall(text(again)) == verdict.findall(text(pages.answer(fields)))


def test_what_was_pasted_lies_beside_the_run_file() -> None:
    kept = pages.download(
        "run.yaml", {"document": CONFIG, "mean_tokens": "100", "longest_tokens": "300", "gpu": "A40"}
    )
    assert isinstance(kept.body, bytes)
    archive = zipfile.ZipFile(io.BytesIO(kept.body))
    assert sorted(archive.namelist()) == ["config.json", "lengths.csv", "run.yaml"]
    run = yaml.safe_load(archive.read("run.yaml"))
    assert (run["model"], run["dataset"]) == ("config.json", "lengths.csv")
    assert json.loads(archive.read("config.json"))["hidden_size"] == 256


def test_the_figures_are_those_of_the_command() -> None:
    kept = pages.download("profile.json", {"gpu": "A40"})
    found = json.loads(text(kept))
    assert found["command"] == "estimate"
    assert found["results"][0]["gpu"] == "A40"


@pytest.mark.parametrize("name", ["run.yaml", "profile.json", "plan.zip", "files.zip"])
def test_no_file_of_a_wrong_form(name: str) -> None:
    reply = pages.download(name, {"gpu": "B17"})
    assert (reply.status, reply.filename) == (422, "")
    assert "No GPU named" in text(reply)


PLANNED = {"gpu": "A40", "plan_max_gpus": "2", "plan_keep_method": "true", "plan_within_h": "24"}


def test_a_plan_says_what_to_take_and_applies() -> None:
    body = text(pages.plan(PLANNED))
    assert "Cheapest within 24.0 h" in body
    fields = re.search(r'data-fields="([^"]*)"', body)
    assert fields is not None
    stated = dict(line.split("=", 1) for line in fields[1].splitlines())
    assert 'id="verdict">Fits' in text(pages.answer(stated))


def test_a_plan_is_written_for_a_framework() -> None:
    kept = pages.download("plan.zip", {**PLANNED, "plan_framework": "axolotl"})
    assert kept.filename == "plan-axolotl.zip"
    assert isinstance(kept.body, bytes)
    assert "README.txt" in zipfile.ZipFile(io.BytesIO(kept.body)).namelist()


def test_a_run_is_written_for_every_framework_or_says_why_not() -> None:
    for framework in FRAMEWORKS:
        body = text(pages.files({"export_framework": framework, "gpu": "A40"}))
        assert ("Start it with" in body) != ("No answer yet" in body), framework
        kept = pages.download("files.zip", {"export_framework": framework, "gpu": "A40"})
        if kept.status == 200:
            assert kept.filename == f"{framework}.zip"
            assert isinstance(kept.body, bytes)
            assert "README.txt" in zipfile.ZipFile(io.BytesIO(kept.body)).namelist()
    assert "Did you mean" in text(pages.files({"export_framework": "axolot"}))


def test_a_launch_line_is_written_as_a_file() -> None:
    line = "trl sft --model_name_or_path Qwen/Qwen3-8B --max_length 512 --learning_rate 3e-5"
    body = text(pages.files({"document": line, "export_framework": "axolotl"}))
    assert "base_model: Qwen/Qwen3-8B" in body
    assert "sequence_len: 512" in body


def test_runs_are_compared_by_their_links() -> None:
    tokens = [token_of(State("", {"gpu": gpu})) or "" for gpu in ("A40", "H100")]
    body = text(
        pages.compare({"token0": tokens[0], "name0": HOSTILE, "token1": tokens[1], "token2": "broken"})
    )
    assert HOSTILE not in body
    assert "Run 2" in body
    assert "The link is damaged" in body
    assert "H100-SXM5-80GB" in body
    assert '<th scope="row" class="fg-text">Model</th>' not in body  # alike in both
    assert "<table" not in text(pages.compare({}))
    many = {f"token{index}": "" for index in range(20)}
    assert text(pages.compare(many)).count('<th scope="col">') == MOST_RUNS


def test_a_job_of_the_page_is_a_file_of_the_package() -> None:
    for job in jobs():
        reply = pages.index({"example": job.name})
        assert reply.status == 200
        assert 'id="verdict"' in text(reply)
    assert 'id="verdict">Fits' in text(pages.index({"example": "../../etc/passwd"}))


def test_models_in_the_cache_of_the_hub_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--some--body-2L" / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG, "utf-8")
    (tmp_path / "models--half--fetched").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    rows = {row[0]: row for row in json.loads(text(pages.choices({})))}
    assert rows["some/body-2L"][3:] == ["2", "", "dense", "Hub cache of this machine"]
    assert "half/fetched" not in rows
    mixtral = rows["mistralai/Mixtral-8x7B-v0.1"]
    assert mixtral[2:6] == ["46.7 B", "32", "32,768", "MoE, 8 experts, 2 active"]


def test_gpus_stand_under_headings() -> None:
    found = gpu_choices()
    headings = list(dict.fromkeys(one.group for one in found))
    assert headings.index("Rented out most") < headings.index("NVIDIA Hopper")
    assert {one.value for one in found} == set(gpus())


def test_the_gpu_of_this_machine_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    here = (GpuHere("NVIDIA L40S", 46068 * 2**20, 45000 * 2**20, "570"),) * 2
    for reader in ("catalogue.machine", "web.choices"):
        monkeypatch.setattr(f"finegauge.{reader}.gpus_here", lambda: here)
    gpu_choices.cache_clear()
    try:
        assert gpu_choices()[0] == ("L40S", "L40S · 44.4 GiB · 2 here", "This machine")
    finally:
        gpu_choices.cache_clear()


def test_a_wrong_limit_is_told_beside_its_field() -> None:
    body = text(pages.plan({"plan_budget_usd": "cheap"}))
    assert "not a finite number" in told(body, "plan_budget_usd")["error"]
    body = text(pages.plan({"plan_framework": "axolot"}))
    assert "Did you mean" in told(body, "plan_framework")["error"]


NAMES = (*(control.name for control in controls()), "document", "junk", "plan_budget_usd")
ODD = (
    "0",
    "-1",
    "1e999",
    "nan",
    "true",
    "none",
    "null",
    "all",
    "9" * 30,
    "[]",
    "{}",
    "a=b",
    "\x00",
    "é",
    "8",
)
VALUES = st.one_of(st.text(max_size=30), st.sampled_from(ODD))


@settings(max_examples=80)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_no_form_is_more_than_an_answer_or_a_sentence(form: dict[str, str]) -> None:
    body = text(pages.answer(form))
    assert ("No answer yet." in body) != ('id="verdict"' in body)
    assert state_of(token_of(State.of(form)) or "") == State.of(form)
