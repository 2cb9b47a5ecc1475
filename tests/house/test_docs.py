"""What the documentation shows can be done: its commands are commands, its options exist, its code runs."""

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import click
import pytest

from finegauge.cli import root
from finegauge.formats.key_table import read
from tests.house.sources import MODULES, PACKAGE, ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SYNOPSIS = re.compile(r"[\[\]]|\.\.\.|\bCOMMAND\b")  # marks of "finegauge plan RUN [KEY=VALUE]..."
OPERATORS = "|&;<>"  # a shell's business, and what follows too
OF_OTHERS = {
    "ERR_NVGPUCTRPERM",
    "CAP_SYS_ADMIN",
    "NO_COLOR",
    "NPROC_PER_NODE",
    "RAYON_NUM_THREADS",
    "RAY_ADDRESS",
}
SOURCE = "\n".join(path.read_text("utf-8") for path in (*MODULES, ROOT / "Makefile"))
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def lines_of(page: Path) -> Iterator[str]:
    """Yield every call of finegauge in the blocks of a page, from "finegauge" on, lines joined."""
    for block in re.findall(
        r"^ *```[^\n]*\n(.*?)^ *```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
    ):
        joined = re.sub(r"\\\n\s*|\n {8,}(?=\[)", " ", block)
        for line in joined.splitlines():
            found = re.match(r"\s*(?:\$ |# |sudo |[A-Z_]+=\S+ |\S*bin/)*(finegauge(?: .*)?)$", line)
            if found:
                yield found.group(1)


def inline(page: Path) -> Iterator[str]:
    """Yield every `finegauge ...` of the prose of a page."""
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(found.split()) for found in re.findall(r"`(finegauge [^`]+)`", prose))


def called(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that `words` call, its parent's context and what is left of them."""
    context: click.Context = click.Context(root, info_name="finegauge")
    command: click.Command = root
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])
        if found is None:
            break
        command, words = found, words[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    return command, context, words


def words_of(line: str) -> list[str]:
    """Return the words of a call as a shell would hand them over, without what belongs to the shell."""
    parser = shlex.shlex(re.sub(r"\$\([^)]*\)", "FILE", line), posix=True, punctuation_chars=OPERATORS)
    parser.whitespace_split = True
    words = takewhile(lambda word: not set(word) <= set(OPERATORS), parser)
    return list(words)[1:]


def options_of(command: click.Command) -> set[str]:
    """Return every spelling of the options of a command and of what it groups."""
    context = click.Context(command)
    own = {name for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
    if isinstance(command, click.Group):
        parts = [command.get_command(context, name) for name in command.list_commands(context)]
        own |= {name for part in parts if part is not None for name in options_of(part)}
    return own


def wrong_names(line: str) -> str:
    """Return what a call names that does not exist; "" where all of it does."""
    words = words_of(line) if not SYNOPSIS.search(line) else line.split()[1:]
    if not words or words[0] == "COMMAND" or words[0].startswith("-"):
        return ""
    command, _, rest = called(words)
    if command is root:
        return "no such command"
    rest = list(takewhile(lambda word: word != "--", rest))  # what follows is another program's
    unknown = {*OPTION.findall(" ".join(rest))} - options_of(command)
    return f"no option {', '.join(sorted(unknown))}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    lines = [*lines_of(page), *inline(page)]
    assert {line: wrong for line in lines if (wrong := wrong_names(line))} == {}


def refused(line: str) -> str:
    """Return why a call is refused when it is taken apart; "" where it is not."""
    words = words_of(line)
    command, context, rest = called(words)
    if isinstance(command, click.Group) or {"--help", "-h", "--version"} & set(words):
        return ""
    try:
        with suppress(click.exceptions.Exit):  # --list and the like are done already
            command.make_context(str(command.name), rest, parent=context.parent).close()
    except click.UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_taken_apart_without_an_error(page: Path) -> None:
    lines = [line for line in lines_of(page) if not SYNOPSIS.search(line)]
    assert {line: said for line in lines if (said := refused(line))} == {}


def test_examples_are_found() -> None:
    assert sum(1 for page in PAGES for _ in lines_of(page)) > 50
    assert sum(1 for page in PAGES for _ in inline(page)) > 50


@pytest.mark.parametrize("line", ["finegauge estimate", "finegauge plan run.yaml --withn 8h"])
def test_a_wrong_example_is_noticed(line: str) -> None:
    assert refused(line)


def test_a_wrong_name_is_noticed() -> None:
    assert wrong_names("finegauge gues run.yaml") == "no such command"
    assert wrong_names("finegauge plan [RUN] --withn 8h") == "no option --withn"
    assert wrong_names("finegauge plan run.yaml --within 8h") == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", page.read_text("utf-8"))
    known = [ROOT, ROOT / "src", PACKAGE, PACKAGE / "model"]
    missing = [name for name in named if not any((folder / name).is_file() for folder in known)]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_constants_and_variables_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", page.read_text("utf-8"))) - OF_OTHERS
    missing = [name for name in named if not re.search(rf"\b{name}\b", SOURCE)]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_python_imports_from_finegauge_is_there(page: Path) -> None:
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for block in blocks:
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "finegauge":
                spec = find_spec(node.module or "")
                text = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
                assert all(re.search(rf"\b{alias.name}\b", text) for alias in node.names), ast.unparse(node)


def test_the_reader_that_is_shown_reads() -> None:
    """docs/adding-a-framework.md shows a whole reader: it is taken from the page and used."""
    text = (ROOT / "docs" / "adding-a-framework.md").read_text("utf-8")
    space: dict[str, object] = {}
    exec(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0], space)
    keys = {"base": "llama-3-8b", "train": {"rows": 2, "cutt": 9}}
    run = read(space["FORMAT"], keys, "job.yaml", ["train.accumulate=8"])  # type: ignore[arg-type]
    assert (run.micro_batch_size, run.gradient_accumulation_steps, run.seq_len) == (2, 8, 2048)
    assert run.origins["seq_len"] == "framework default: Example"
    assert "Did you mean 'train.cut'" in " ".join(run.warnings)
