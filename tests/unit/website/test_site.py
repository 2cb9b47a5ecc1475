"""The documentation builds strictly, shows what it promises, and asks nobody for anything when viewed."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from finegauge.cli import COMMANDS, root
from tests.house.sources import ROOT
from website import commands, equations, gallery, outputs

pytestmark = pytest.mark.extras

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
CONCEPTS = ("memory", "time", "cost", "several-gpus", "uncertainty")


class Requests(HTMLParser):
    """What a browser fetches by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = dict(attrs)
        if tag == "link" and (wanted.get("rel") or "") in ("canonical", "next", "prev", "alternate"):
            return  # nothing is fetched
        self.found.append(wanted.get(LOADING.get(tag, "")) or "")


def outside(page: Path) -> list[str]:
    """Return what a page of the site fetches from elsewhere."""
    requests = Requests()
    requests.feed(page.read_text("utf-8"))
    return [address for address in requests.found if re.match(r"(https?:)?//", address)]


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """One test, since building takes seconds and drawing the gallery more."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    pages = sorted(site.rglob("*.html"))
    assert {page.name: outside(page) for page in pages if outside(page)} == {}
    own = [
        style
        for style in site.rglob("*.css")
        if re.search(r"url\(\s*['\"]?(https?:)?//", style.read_text("utf-8"))
    ]
    assert own == []

    assert {name for name in COMMANDS if (site / "commands" / name / "index.html").is_file()} == set(COMMANDS)
    for name in CONCEPTS:
        text = (site / "concepts" / name / "index.html").read_text("utf-8")
        assert text.count("<math") > 3
        assert "arithmatex" not in text
    plain = [page for page in pages if "concepts" not in page.parts and "<math" in page.read_text("utf-8")]
    assert plain == [], "dollars that are money were taken for an equation"

    shown = (site / "index.html").read_text("utf-8")
    assert "GiB" in shown, "the commands of the quick start have their output"
    for picture in (picture.path for one in gallery.drawable() for picture in one.pictures):
        assert (site / "gallery" / picture).stat().st_size > 5_000
        assert picture in (site / "gallery" / "index.html").read_text("utf-8")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_page_has_what_help_has(name: str) -> None:
    text = commands.page(name, ["plan.md"])
    context = click.Context(root, info_name="finegauge")
    command = root.get_command(context, name)
    assert command is not None
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert all(option in text for option in param.opts), param.name
    assert text.startswith(f"# finegauge {name}\n")
    assert "(../plan.md)" in text


def test_subcommands_have_a_section() -> None:
    assert "## finegauge gpus show" in commands.page("gpus", [])


def test_an_equation_becomes_mathml() -> None:
    page = r'<p><span class="arithmatex">\(a &lt; \frac{b}{c}\)</span></p>'
    drawn = equations.with_mathml(page)
    assert ElementTree.fromstring(drawn).find(".//{*}mfrac") is not None
    assert 'display="block"' in equations.with_mathml(r'<div class="arithmatex">\[x\]</div>')


def test_a_command_gets_its_output() -> None:
    text = "```console\n$ finegauge --version\n```"
    played = outputs.with_outputs(text)
    assert re.fullmatch(r"```console\n\$ finegauge --version\nfinegauge [\d.]+\n```", played)


@pytest.mark.parametrize("line", ["finegauge gpus | head", "rm -rf x", "finegauge estimate none.yaml"])
def test_what_is_no_plain_call_or_fails_ends_the_build(line: str) -> None:
    with pytest.raises(RuntimeError):
        outputs.output(line)


def test_a_block_with_its_output_written_is_left_alone() -> None:
    text = "```console\n$ finegauge --version\n1.0\n```"
    assert outputs.with_outputs(text) == text


def test_a_gallery_that_draws_nothing_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = gallery.Shown("None", ("finegauge --version",), (gallery.Picture("none.png", "Nothing."),))
    monkeypatch.setattr(gallery, "SHOWN", (empty,))
    with pytest.raises(RuntimeError, match=r"did not draw none\.png"):
        gallery.draw(tmp_path)
