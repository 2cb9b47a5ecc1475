"""What assistants may ask: answers as the commands give them, limits, and no file outside the folder."""

import io
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator

from finegauge import mcp as server
from finegauge.answers.questions import confine
from finegauge.answers.runs import COMMON_GPUS
from finegauge.catalogue.gpus import gpu
from finegauge.mcp import MAX_LINE_BYTES, MAX_ROWS, TOOLS, Lines, answered, fault
from finegauge.render.schema import schema
from tests.e2e.commands import finegauge

RUN = {"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the server's folder, with a run in it and a secret beside it."""
    inside = tmp_path / "project"
    inside.mkdir()
    (inside / "run.yaml").write_text("model: llama-3-8b\nmethod: qlora\ngpu: A40\n")
    (inside / "nogpu.yaml").write_text("model: llama-3-8b\nmethod: qlora\n")
    (tmp_path / "secret.json").write_text('{"model_type": "llama", "hidden_size": 8}')
    os.symlink(tmp_path / "secret.json", inside / "link.json")
    return inside


def answer(folder: Path, name: str, **arguments: Any) -> Any:
    text, is_error = answered(name, arguments, str(folder))
    assert not is_error, text
    return json.loads(text)


def refusal(folder: Path, name: str, **arguments: Any) -> str:
    text, is_error = answered(name, arguments, str(folder))
    assert is_error
    assert "\n" not in text
    assert "Internal error" not in text
    return text


@pytest.mark.parametrize(
    ("tool", "command"), [("estimate", "estimate"), ("check", "check"), ("max_batch", "max-batch")]
)
def test_answers_are_those_of_the_command(tool: str, command: str, folder: Path) -> None:
    ours = answer(folder, tool, file="run.yaml", overrides={"micro_batch_size": 2}, gpus=["a40", "h100"])
    shown = finegauge(command, str(folder / "run.yaml"), "micro_batch_size=2", "--gpu", "a40,h100", "--json")
    theirs = json.loads(shown.out)
    assert ours["results"] == theirs["results"]
    Draft202012Validator(schema(command)).validate(ours)


def test_a_run_without_a_file(folder: Path) -> None:
    stated = answer(folder, "check", run=RUN)
    assert stated["results"] == answer(folder, "check", file="run.yaml")["results"]
    assert stated["origins"]["method"] == "caller"


def test_a_check_without_a_gpu_is_one_of_the_common_ones(folder: Path) -> None:
    found = [one["gpu"] for one in answer(folder, "check", file="nogpu.yaml")["results"]]
    assert found == [gpu(name).name for name in COMMON_GPUS]


def test_a_plan(folder: Path) -> None:
    found = answer(
        folder, "plan", run={**RUN, "num_samples": 2_000, "seq_len": 512}, max_gpus=1, gpus=["A40", "L4"],
        minimise="time", keep_method=True,
    )  # fmt: skip
    assert found["command"] == "plan"
    assert found["wanted"]["minimise"] == "time"
    assert {one["gpu"] for one in found["results"]} <= {"A40", "L4"}


def test_lists(folder: Path) -> None:
    found = answer(folder, "models", pattern="mixtral")
    assert found["num_found"] == len(found["results"]) > 0
    assert "config" not in found["results"][0]
    assert len(answer(folder, "models")["results"]) == MAX_ROWS
    assert answer(folder, "gpus", pattern="h100")["results"][0]["flops_per_s"]["bf16"] > 0


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.json", "link.json", "~/x.yaml", "a/../../secret.json"]
)
def test_no_way_out_of_the_folder(path: str, folder: Path) -> None:
    outside = "lies outside the folder"
    assert outside in refusal(folder, "check", file=path)
    assert outside in refusal(folder, "check", run={**RUN, "model": path})
    assert outside in refusal(folder, "check", run={**RUN, "dataset": path})
    assert outside in refusal(folder, "check", file="run.yaml", overrides={"model": path})
    assert outside in refusal(folder, "check", file="run.yaml", gpus=[path])
    assert outside in refusal(folder, "plan", file="run.yaml", gpus=[path])


@pytest.mark.parametrize("field", ["model", "dataset", "tokenizer"])
def test_what_a_file_names_is_confined_too(field: str, folder: Path) -> None:
    lines = {"model": "llama-3-8b", "method": "qlora", "gpu": "A40", field: "../secret.json"}
    (folder / "sly.yaml").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    assert "lies outside" in refusal(folder, "check", file="sly.yaml")


def test_a_deepspeed_file_elsewhere(folder: Path) -> None:
    keys = "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\n"
    (folder / "sly.yaml").write_text(f"{keys}deepspeed: ../secret.json\n")
    assert "lies outside" in refusal(folder, "check", file="sly.yaml", gpus=["H100"])


def test_names_of_models_are_no_paths(tmp_path: Path) -> None:
    confine("meta-llama/Meta-Llama-3-8B", str(tmp_path))
    confine("", str(tmp_path))


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("chekc", {}, "Did you mean 'check'?"),
        ("check", {"fil": "run.yaml"}, "Did you mean 'file'?"),
        ("check", {}, "Give either 'file'"),
        ("check", {"file": "run.yaml", "run": RUN}, "Give either 'file'"),
        ("check", {"file": 7}, "must be text"),
        ("check", {"file": "missing.yaml"}, "missing.yaml"),
        ("check", {"run": [1]}, "must be a mapping"),
        ("check", {"run": {"modle": "x"}}, "Did you mean 'model'?"),
        ("check", {"run": {"model": {"a": 1}}}, "plain value"),
        ("check", {"run": {**RUN, "micro_batch_size": 0}}, "too small"),
        ("check", {"run": RUN, "gpus": ["H1000"]}, "Did you mean"),
        ("check", {"run": RUN, "gpus": "x" * 2_000}, "at most 1,000"),
        ("check", {"run": RUN, "gpus": ["a"] * 100}, "at most 64"),
        ("check", {"run": RUN, "gpus": [1]}, "list of at most"),
        ("check", {"run": {str(n): 1 for n in range(200)}}, "at most 100"),
        ("check", {"file": "run.yaml", "overrides": {"epochs": None}}, "no value"),
        ("estimate", {"run": RUN, "at_max_batch": "yes"}, "true or false"),
        ("plan", {"run": RUN, "minimise": "money"}, "Use one of cost, time, energy"),
        ("plan", {"run": RUN, "within_hours": -1}, "too small"),
        ("plan", {"run": RUN, "max_gpus": 10**9}, "too large"),
        ("models", {"pattern": "a\nb"}, "one line"),
        ("check", {"run": {"model": "x" * 200_000}}, "too long"),
    ],
)
def test_a_wrong_question_is_one_sentence(
    tool: str, arguments: dict[str, Any], said: str, folder: Path
) -> None:
    text = refusal(folder, tool, **arguments)
    assert said in text
    assert len(text) < 500


def test_an_error_of_our_own_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Any) -> str:
        raise ZeroDivisionError("by design")

    monkeypatch.setitem(TOOLS, "check", TOOLS["check"]._replace(answer=breaks))
    text, is_error = answered("check", {"run": RUN}, str(folder))
    assert is_error
    assert text == "Internal error (ZeroDivisionError: by design); please report it."


@pytest.mark.parametrize(
    ("line", "id_", "code", "said"),
    [
        (b"nonsense", None, -32700, "no JSON"),
        (b"\xff\xfe", None, -32700, "no JSON"),
        (b"[" * 50_000, None, -32700, "no JSON"),
        (b"[1, 2]", None, -32600, "no message"),
        (b'{"id": 5}', 5, -32600, "no message"),
        (b'{"jsonrpc": "1.0", "id": "a", "method": "tools/list"}', "a", -32600, "no message"),
        (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "tools/list"}', None, -32600, "no message"),
        (b'{"jsonrpc": "2.0", "id": true, "method": "tools/list"}', None, -32600, "no message"),
        (b'"' + b"x" * MAX_LINE_BYTES + b'"', None, -32600, "at most 1,000,000 bytes"),
    ],
)
def test_a_line_that_is_no_message_is_answered(line: bytes, id_: Any, code: int, said: str) -> None:
    found = fault(line)
    assert found is not None
    assert found[:2] == (id_, code)
    assert said in found[2]


def test_messages_come_through_and_the_rest_is_refused() -> None:
    messages = [
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n',
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"id": 1}}\n',
    ]
    whole = b"\n  \n" + messages[0] + b"x" * 3 * MAX_LINE_BYTES + b"\n" + b"no\n" + messages[1]
    refused: list[Any] = []

    async def refuse(*why: Any) -> None:
        refused.append(why)

    async def read() -> list[str]:
        return [line async for line in Lines(io.BytesIO(whole), refuse)]

    assert [line.encode() for line in anyio.run(read)] == messages
    assert [code for _, code, _ in refused] == [-32600, -32700]


def test_an_answer_has_a_deadline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"file": "run.yaml"}
    assert not server.in_time("check", asked, str(folder))[1]
    monkeypatch.setattr(server, "WITHIN_S", 0.0)
    text, is_error = server.in_time("plan", asked, str(folder))
    assert is_error
    assert text.startswith("This takes longer than 0 s and was ended; ask for less")
    monkeypatch.undo()
    assert not server.in_time("check", asked, str(folder))[1]
    server._seat().worker.end()


def test_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    answer(folder, "estimate", file="run.yaml")
    answer(folder, "plan", file="run.yaml", overrides={"num_samples": 500}, gpus=["A40"], max_gpus=1)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("tool", TOOLS.values(), ids=list(TOOLS))
def test_the_schemas_are_schemas(tool: Any) -> None:
    Draft202012Validator.check_schema(tool.schema())
    assert len(tool.description) > 20


def test_a_fine_tune_is_read_as_the_base_that_its_name_states(folder: Path) -> None:
    asked = {**RUN, "model": "somebody/law-mistral-7b"}
    found = answer(folder, "estimate", run=asked)
    assert found["run"]["model"] == "mistralai/Mistral-7B-v0.1"
    assert any("read as the architecture of mistralai/Mistral-7B-v0.1" in said for said in found["warnings"])
    assert "law-13x" in refusal(folder, "estimate", run={**asked, "model": "somebody/law-13x"})
