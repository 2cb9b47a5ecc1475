"""Whatever a page, an assistant or a Space is asked: it opens only files that the server was started with."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from finegauge.mcp import TOOLS, answered
from finegauge.run.run import FIELDS
from finegauge.sandbox import reading_only
from finegauge.web import jobs
from finegauge.web.api import LISTINGS, QUESTIONS
from finegauge.web.form import DOCUMENT, LENGTH_FIELDS
from finegauge.web.plan_view import PLAN_FIELDS
from spaces import app as space

pytestmark = pytest.mark.extras

CANARY = "31337"
CONFIG = {"model_type": "llama", "hidden_size": 4096, "vocab_size": 31337, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
SECRETS = {
    "config.json": json.dumps(CONFIG),
    "lengths.csv": f"length,count\n{CANARY},5\n",
    "run.yaml": f"model: llama-3-8b\nmethod: full\nseq_len: {CANARY}\ngpu: A40\n",
    "gpu.yaml": f"- name: secret\n  memory_gb: {CANARY}\n",
    "data.jsonl": '{"text": "31337"}\n',
    "ds.json": '{"zero_optimization": {"stage": 3}, "train_batch_size": 31337}',
    "adapter_config.json": '{"peft_type": "LORA", "r": 31337, "base_model_name_or_path": "llama-3-8b"}',
    "dataset_info.json": '{"mine": {"file_name": "data.jsonl", "num_samples": 31337}}',
    "template.jinja": CANARY,
}
SHAPES = (
    *(
        "{0}/{1}",
        "{0}",
        "{2}/{1}",
        "{2}",
        "./{2}/{1}",
        "../{3}/{1}",
        "~/{1}",
        "~",
        "{1}",
        "./{1}",
        "link/{1}",
        "linked",
    ),
    *(
        "file://{0}/{1}",
        "file:{0}/{1}",
        "//{0}/{1}",
        "2x{0}/{1}",
        "2 x {0}/{1}",
        "{0}/{1}:8",
        "8x{2}/{1}",
        "a/../{2}/{1}",
    ),
    *(
        "'{0}/{1}'",
        "x,{0}/{1}",
        "{0}/{1} x 2",
        "{0}/./{1}",
        "here",
        "HERE",
        "here:2",
        "2xhere",
        "/proc/self/environ",
    ),
)
AROUND = st.sampled_from(["", " ", "\t", "\u00a0", "\u2003", "\x1f", "\n", "\r\n", "\u200b", "\0"])
PATHS = st.tuples(AROUND, st.sampled_from(SHAPES), st.sampled_from(list(SECRETS)), AROUND)
START = {"model": "llama-3-8b", "method": "qlora", "gpu": "A40", "num_samples": 1000}
KEYS = (
    *(
        "model",
        "model_name_or_path",
        "base_model",
        "base_model_config",
        "dataset",
        "dataset_dir",
        "dataset_name",
    ),
    *(
        "data_files",
        "deepspeed",
        "deepspeed_config",
        "tokenizer",
        "tokenizer_path",
        "tokenizer_config",
        "gpu",
    ),
    *("adapter", "adapter_name_or_path", "lora_model_dir", "peft_type", "chat_template", "fsdp_config"),
    *("config_file", "accelerate_config", "base_model_name_or_path", "hf_dataset", "trace", "system"),
)
DOCUMENTS = (
    "model: llama-3-8b\nmethod: lora\ngpu: A40\n",
    "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: lora\ndataset: mine\n",
    "base_model: NousResearch/Llama-2-7b-hf\nadapter: lora\nsequence_len: 512\nmicro_batch_size: 1\n",
)
EVERY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


class World(NamedTuple):
    """The folders of one test, and what was opened outside."""

    secret: str
    server: str
    opened: list[str]

    def path(self, drawn: tuple[str, str, str, str]) -> str:
        """Return the path-like value that was drawn."""
        before, shape, name, after = drawn
        words = (self.secret, name, os.path.relpath(self.secret), os.path.basename(self.secret))
        return before + shape.format(*words) + after

    def check(self, said: str, path: str) -> None:
        """Raise where a file outside was opened, or something of one was said."""
        assert not self.opened, (self.opened, path)
        # by itself: its digits may stand within a longer number
        assert not re.search(rf"(?<![\d.]){CANARY}(?!\d)", said), (path, said)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a server's folder with links out of it, in a home with secrets."""
    base = Path(os.path.realpath(tmp_path_factory.mktemp("world")))
    secret, server = base / "secret", base / "server"
    for folder in (secret, server, secret / ".cache" / "finegauge" / "devices"):
        folder.mkdir(parents=True)
    for name, text in SECRETS.items():
        (secret / name).write_text(text, "utf-8")
    (secret / ".cache" / "finegauge" / "devices" / "cpu.json").write_text(f'{{"gpu": {CANARY}}}', "utf-8")
    os.symlink(secret, server / "link")
    os.symlink(secret / "config.json", server / "linked")
    os.mkfifo(server / "pipe.yaml")
    found = World(str(secret), str(server), [])
    listening = [True]

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
            path = os.path.realpath(arguments[0])
            if path.startswith((found.secret, "/proc/self")):
                found.opened.append(path)

    with reading_only():  # the package's own hook comes first: what it refuses is not opened, nor heard here
        pass
    sys.addaudithook(hear)  # cannot be removed; it sleeps when `listening` is empty
    before = {name: os.environ.get(name) for name in ("HOME", "FINEGAUGE_CACHE_DIR", "FINEGAUGE_HOME")}
    working = os.getcwd()
    os.environ["HOME"] = found.secret
    os.environ.pop("FINEGAUGE_CACHE_DIR", None)
    os.chdir(server)
    try:
        yield found
    finally:
        listening.clear()
        os.chdir(working)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@settings(EVERY)
@given(PATHS, st.sampled_from(list(QUESTIONS)), st.data())
def test_the_json_interface(
    world: World, drawn: tuple[str, str, str, str], name: str, data: st.DataObject
) -> None:
    path = world.path(drawn)
    places = [one for one in QUESTIONS[name][1] if one not in ("run", "overrides", DOCUMENT)]
    place = data.draw(st.sampled_from([*places, *FIELDS, *LENGTH_FIELDS]))
    asked: dict[str, Any] = {"run": START}
    if place in places:
        asked[place] = path if data.draw(st.booleans()) else [path]
        if place == "switches":
            asked[place] = [f"{data.draw(st.sampled_from(list(FIELDS)))}={path}"]
    elif data.draw(st.booleans()):
        asked["run"] = START | {place: path}
    else:
        asked["overrides"] = {place: path}
    reply = jobs.question(name, asked)
    assert reply.status in (200, 422), (reply.body, asked)
    world.check(str(reply.body), path)


@settings(EVERY)
@given(
    PATHS,
    st.sampled_from(KEYS),
    st.sampled_from(DOCUMENTS),
    st.sampled_from(["key", "block", "comment", "nested"]),
)
@example(("", "{0}/{1}", "lengths.csv", ""), "dataset", DOCUMENTS[0], "comment")
@example((" ", "{0}/{1}", "config.json", ""), "model", DOCUMENTS[1], "comment")
def test_a_pasted_text(
    world: World, drawn: tuple[str, str, str, str], key: str, document: str, where: str
) -> None:
    path = world.path(drawn)
    quoted = json.dumps(path)
    lines = [line for line in document.splitlines() if line.partition(":")[0] != key]
    added = {
        "key": [*lines, f"{key}: {quoted}"],
        "block": [*lines, "finegauge:", f"  {key}: {quoted}"],
        "comment": [f"# finegauge: {{{key}: {quoted}}}", *lines],
        "nested": [*lines, "datasets:", f"  - path: {quoted}", f"    {key}: {quoted}"],
    }[where]
    for name in ("read", "estimate"):
        reply = jobs.question(
            name, {"document": "\n".join(added), **({} if name == "read" else {"gpus": ["A40"]})}
        )
        assert reply.status in (200, 422), reply.body
        world.check(str(reply.body), path)


@settings(EVERY)
@given(
    PATHS,
    st.sampled_from([*FIELDS, *LENGTH_FIELDS, *PLAN_FIELDS, DOCUMENT, "s", "pattern", "provider"]),
    st.data(),
)
def test_the_page_and_its_lists(
    world: World, drawn: tuple[str, str, str, str], field: str, data: st.DataObject
) -> None:
    path = world.path(drawn)
    form = {name: str(value) for name, value in START.items()} | {field: path}
    entry = data.draw(st.sampled_from(["index", "submitted", "answer", "whatif", *jobs.DOWNLOADS, *LISTINGS]))
    if entry in LISTINGS:
        reply = jobs.question(entry, {data.draw(st.sampled_from(LISTINGS[entry][1])): path})
    else:
        ask = jobs.download if entry in jobs.DOWNLOADS else jobs.page
        reply = ask(entry, form)
    assert reply.status in (200, 400, 422), reply.body
    world.check("" if isinstance(reply.body, bytes) else reply.body, path)


@settings(EVERY)
@given(PATHS, st.sampled_from(list(TOOLS)), st.data())
def test_an_assistant(world: World, drawn: tuple[str, str, str, str], name: str, data: st.DataObject) -> None:
    path = world.path(drawn)
    place = data.draw(st.sampled_from([*TOOLS[name].arguments, *FIELDS, *KEYS]))
    asked: dict[str, Any] = {}
    if "run" in TOOLS[name].arguments:
        asked["run"] = START
    if place == "file":
        asked = {"file": path}
    elif place in TOOLS[name].arguments:
        asked[place] = data.draw(st.sampled_from([path, [path], {"model": path}]))
    elif "run" in asked and place in FIELDS and data.draw(st.booleans()):
        asked["run"] = START | {place: path}
    elif "run" in asked:
        text = (
            data.draw(st.sampled_from(DOCUMENTS))
            + f"{place}: {json.dumps(path)}\ndatasets: [{{path: {json.dumps(path)}}}]\n"
        )
        Path(world.server, "sly.yaml").write_text(text, "utf-8")
        asked = {"file": "sly.yaml"}
    text, _ = answered(name, asked, world.server)
    assert "Internal error" not in text, (text, asked)
    world.check(text, path)


@settings(EVERY, max_examples=60)
@given(PATHS, st.sampled_from(["document", "gpu", "changes"]), st.sampled_from(list(FIELDS)))
def test_a_space(world: World, drawn: tuple[str, str, str, str], place: str, field: str) -> None:
    path = world.path(drawn)
    document, gpu, changes = space.EXAMPLE, "A40", f"num_samples=1000\n{field}={path}"
    if place == "document":
        document, changes = f"# finegauge: {{{field}: {json.dumps(path)}}}\n{space.EXAMPLE}", ""
    if place == "gpu":
        gpu, changes = path, ""
    world.check(str(space.answer(document, gpu, changes)), path)


def test_a_pipe_is_no_file(world: World) -> None:
    text, is_error = answered("check", {"file": "pipe.yaml"}, world.server)
    assert is_error
    assert text.endswith("pipe.yaml' is not a file.")


@pytest.mark.parametrize(
    "line",
    [
        "model: linked",
        "model: sub",
        "model: sub/config.json",
        "dataset: sub/lengths.csv",
        "gpu: sub/gpu.yaml",
    ],
)
def test_what_a_file_beside_names_is_refused_in_a_sentence(world: World, line: str) -> None:
    (sub := Path(world.server, "sub")).mkdir(exist_ok=True)
    for name in ("config.json", "lengths.csv", "gpu.yaml"):
        if not os.path.lexists(sub / name):
            os.symlink(Path(world.secret, name), sub / name)
    run = {"model": "llama-3-8b", "method": "lora", "gpu": "A40"} | dict([line.split(": ")])
    Path(world.server, "sly.yaml").write_text(json.dumps(run), "utf-8")
    text, is_error = answered("check", {"file": "sly.yaml"}, world.server)
    assert is_error
    assert "lies outside the folder of this server" in text
    world.check(text, line)
