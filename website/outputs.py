"""What a command prints, below the command, as of this build.

A hook of MkDocs. A block of the language `console` that holds nothing but lines of the form
`$ finegauge ...` is run, and every line gets its output. Commands are taken apart as a shell would
take them, but no shell runs: pipes and redirections are refused.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
SECONDS = 120
COLUMNS = 90
_BLOCK = re.compile(r"^```console\n((?:\$ finegauge .*\n)+)```$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the output of its commands."""
    return with_outputs(markdown)


def with_outputs(markdown: str) -> str:
    """Return Markdown whose blocks of commands alone have the output of each."""
    return _BLOCK.sub(lambda found: f"```console\n{_played(found.group(1))}```", markdown)


def _played(lines: str) -> str:
    """Return every command with what it prints below it."""
    return "\n".join(f"{line}\n{output(line.removeprefix('$ '))}" for line in lines.splitlines())


def output(line: str) -> str:
    """Return what the command of `line` prints, as wide as a page, called at the root of the repository.

    Raises: RuntimeError if it ends as no example should.
    """
    words = shlex.split(line)
    if words[0] != "finegauge" or {"|", ">", "<", "&&", ";"} & set(words):
        raise RuntimeError(f"Only plain calls of finegauge are run, not: {line}")
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 10, 20):  # the last two are answers of `check`
        raise RuntimeError(f"'{line}' ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
