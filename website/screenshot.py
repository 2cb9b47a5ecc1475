"""Pictures of the page that `finegauge serve` shows, taken by the machine's own Chromium."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 120
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000")


def browser() -> str | None:
    """Return the path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def take(path: Path, width: int, height: int) -> None:
    """Take a picture of the page's first answer, `width` x `height` pixels, as a PNG at `path`.

    Raises: RuntimeError where there is no browser, or it took none.
    """
    chromium = browser()
    if chromium is None:
        raise RuntimeError("A picture of the page needs Chromium: apt-get install chromium.")
    with _served() as address:
        command = [chromium, *FLAGS, f"--window-size={width},{height}", f"--screenshot={path}", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode or not path.is_file():
        raise RuntimeError(f"{chromium} took no picture of the page: {done.stderr[-500:]}")


@contextmanager
def _served() -> Iterator[str]:
    """Yield the address of a page on a free port; its server ends with the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "finegauge", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        said = server.stdout.readline() if server.stdout else ""
        found = re.search(r"http://127\.0\.0\.1:\d+/", said)
        if found is None:
            raise RuntimeError(f"'finegauge serve' did not say where it is, but: {said}")
        yield found.group()
    finally:
        server.terminate()
        server.communicate(timeout=SECONDS)
