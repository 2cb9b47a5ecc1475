"""The Dockerfile: what it names is there, nobody is root, and it serves where the page listens.

No engine runs here; each of its RUN steps is an ordinary command of pip or useradd.
"""

import json
import re
import tomllib
from fnmatch import fnmatch

import click
import pytest
from dockerfile_parse import DockerfileParser

from finegauge.cli import COMMANDS, root
from tests.house.sources import ROOT

STEPS = DockerfileParser(path=str(ROOT / "Dockerfile"), env_replace=False).structure
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def values(instruction: str) -> list[str]:
    """Return what follows an instruction, wherever it stands."""
    return [step["value"] for step in STEPS if step["instruction"] == instruction]


def copied() -> list[str]:
    """Return the paths that go from the repository into the image."""
    from_here = [value for value in values("COPY") if "--from=" not in value]
    return [source.removeprefix("./") for value in from_here for source in value.split()[:-1]]


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    ignored = [
        line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] not in "#"
    ]
    assert copied()
    for source in copied():
        assert (ROOT / source).exists()
        let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
        assert any(fnmatch(source, line) for line in let_through), f".dockerignore keeps {source} away"


def test_what_pip_needs_is_copied() -> None:
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "src"} <= set(copied())


def test_the_extras_exist() -> None:
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', " ".join(values("RUN")))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "web" in extras.split(",")


def test_it_starts_a_command_that_exists_as_nobody_special() -> None:
    assert json.loads(values("ENTRYPOINT")[-1])[0] in PROJECT["scripts"]
    assert json.loads(values("CMD")[-1])[0] in COMMANDS
    order = [step["instruction"] for step in STEPS]
    assert values("USER")[-1] not in ("root", "0")
    assert f" {values('USER')[-1]}" in " ".join(values("RUN")), "the user is made"
    assert order.index("USER") < order.index("ENTRYPOINT")


def test_every_stage_is_slim_and_new_enough() -> None:
    least = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    (named,) = values("ARG")
    for stage in values("FROM"):
        base = stage.replace("${BASE}", named.removeprefix("BASE="))
        (version,) = re.findall(r"^python:(\d+\.\d+)-slim\b", base)
        assert tuple(map(int, version.split("."))) >= least


def test_the_health_check_asks_where_the_page_listens() -> None:
    (check,) = values("HEALTHCHECK")
    (words,) = [json.loads(found) for found in re.findall(r"CMD (\[.*\])", check)]
    compile(words[-1], "HEALTHCHECK", "exec")
    serve = root.get_command(click.Context(root), "serve")
    assert serve is not None
    (port,) = [param.default for param in serve.params if "--port" in param.opts]
    assert f"http://127.0.0.1:{port}/health" in words[-1]


@pytest.mark.parametrize("page", ["docs/container.md", "Dockerfile"])
def test_nothing_is_published_to_the_network(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert "--network host" in text
    assert not re.search(r"docker run[^\n]* -p |0\.0\.0\.0", text)
