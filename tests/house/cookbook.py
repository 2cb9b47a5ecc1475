"""The recipes of docs/cookbook: one command each, and what it prints at 90 columns.

`python -m tests.house.cookbook` (make cookbook) writes the outputs anew; a test holds them. Commands run in a
folder of their own that holds the examples, on the day that ships with the pages: how old a price is ages.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from finegauge.catalogue import offers
from tests.e2e.commands import finegauge
from tests.house.sources import ROOT

PAGES = sorted(path for path in (ROOT / "docs" / "cookbook").glob("*.md") if path.name != "index.md")
TODAY = date(2026, 11, 22)
BLOCK = re.compile(r"^```sh\n(finegauge (?:.*\n)+?)```\n\n```text\n((?:.*\n)*?)```$", re.MULTILINE)
_NEW = {"COLUMNS": "90", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
_AGE = offers.age_days


def played(page: str) -> str:
    """Return a page with the output of its command below it."""
    return BLOCK.sub(lambda found: f"```sh\n{found[1]}```\n\n```text\n{output(found[1])}```", page)


def output(line: str) -> str:
    """Return what a command prints.

    Raises: ValueError where it ends as no recipe should.
    """
    with _alone():
        done = finegauge(*shlex.split(line.replace("\\\n", " "))[1:])
    if done.code not in (0, 10, 20) or done.err:  # the latter two are answers of `check`
        raise ValueError(f"{line!r} ended with {done.code}: {done.err}")
    return done.out


@contextmanager
def _alone() -> Iterator[None]:
    """Run as a new user would: nothing cached, no files but the examples."""
    with TemporaryDirectory(prefix="finegauge-") as folder:
        shutil.copytree(ROOT / "examples", Path(folder, "examples"))
        homes = {
            name: str(Path(folder, name))
            for name in ("FINEGAUGE_HOME", "FINEGAUGE_CACHE_DIR", "HF_HUB_CACHE")
        }
        aged = patch.object(offers, "age_days", lambda day, today=None: _AGE(day, today or TODAY))
        with patch.dict(os.environ, _NEW | homes), aged, chdir(folder):
            yield


def lasting(page: str) -> list[str]:
    """Return the words of a page less what no two runs share: how long a search took."""
    return re.sub(r"plans( one by one)?\s+in\s+\S+\s+\S+", "plans", page).split()


def main() -> None:
    """Write every output anew."""
    for path in PAGES:
        path.write_text(played(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
