"""What lies out of reach is not opened, whoever names it; workers are ended where they must, and replaced."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from finegauge.catalogue.models import model
from finegauge.documents import read_bytes, read_text, write_whole
from finegauge.errors import InputError
from finegauge.formats.run_argument import resolve
from finegauge.sandbox import EndedError, Seat, Worker, bound_memory, lies_in, reading_only

OUTSIDE = "lies outside the folder of this server"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return a folder within reach and one that is not, with a file each."""
    for name in ("inside", "inside-not"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.yaml").write_text("model: llama-3-8b\n", "utf-8")
    os.symlink(tmp_path / "inside-not", tmp_path / "inside" / "link")
    os.symlink(tmp_path / "inside" / "file.yaml", tmp_path / "inside-not" / "back.yaml")
    return tmp_path / "inside", tmp_path / "inside-not"


def test_only_what_lies_within_is_opened(places: tuple[Path, Path]) -> None:
    inside, outside = map(str, places)
    with reading_only(inside):
        assert read_text(f"{inside}/file.yaml")
        assert read_bytes(f"{outside}/back.yaml", 99)  # leads inside
        for path in (f"{outside}/file.yaml", f"{inside}/link/file.yaml", f"{inside}/../inside-not/file.yaml"):
            with pytest.raises(InputError, match=OUTSIDE):
                read_text(path)
            with pytest.raises(InputError, match=OUTSIDE):
                read_bytes(path, 99)
        with pytest.raises(InputError, match=OUTSIDE):
            write_whole(f"{outside}/new", b"")
        with pytest.raises(InputError, match=OUTSIDE):
            resolve(f"{inside}/link", lambda _: True)  # a folder, listed
        with pytest.raises(InputError, match=OUTSIDE):
            model(f"{outside}/file.yaml")
        assert model("llama-3-8b").name  # what ships with the package
        with TemporaryDirectory(prefix="finegauge-") as scratch:
            write_whole(f"{scratch}/a", b"1")
            assert read_text(f"{scratch}/a") == "1"
    assert read_text(f"{outside}/file.yaml")
    assert not os.path.exists(f"{outside}/new")


@pytest.mark.extras
def test_libraries_go_about_their_own_business() -> None:
    """A process that has loaded nothing draws and types its answers: fonts, types of files, modules."""
    form = "{'model': 'llama-3-8b', 'method': 'qlora', 'gpu': 'A40', 'num_samples': '1000'}"
    asked = (
        f"from finegauge.web.jobs import page; print([page(n, {form}).status for n in ('index', 'report')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "[200, 200]\n", done.stderr


def test_a_folder_is_no_prefix() -> None:
    assert lies_in("/a/b/c", "/a/b")
    assert lies_in("/a/b", "/a/b")
    assert not lies_in("/a/bc", "/a/b")


def settle() -> None:
    """Let a worker have little memory."""
    bound_memory(2**30)


def doubled(number: int) -> int:
    """Answer at once."""
    return 2 * number


def late(seconds: float) -> str:
    """Answer late."""
    time.sleep(seconds)
    return "slept"


def large(num_bytes: int) -> int:
    """Ask for memory."""
    return len(bytearray(num_bytes))


def gone() -> None:
    """End the process."""
    os._exit(9)


@contextmanager
def seat() -> Iterator[Seat]:
    found = Seat(lambda: Worker(get_context("spawn"), settle))
    try:
        yield found
    finally:
        found.worker.end()


def test_a_worker_is_ended_where_it_must_and_replaced() -> None:
    with seat() as found:
        assert found.asked(doubled, (21,), 20.0) == 42
        with pytest.raises(EndedError, match="longer than"):
            found.asked(late, (60.0,), 0.1)
        assert found.asked(doubled, (1,), 20.0) == 2
        with pytest.raises(EndedError, match="ended; it may"):
            found.asked(gone, (), 20.0)
        with pytest.raises(EndedError, match="out of memory"):
            found.asked(large, (8 * 2**30,), 20.0)
        assert found.asked(late, (0.0,), 20.0) == "slept"
