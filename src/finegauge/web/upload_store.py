"""Temporary storage for pasted configs."""

import os
from functools import cache
from hashlib import sha256
from tempfile import TemporaryDirectory

MOST_TEXTS = 400


class UploadStore:
    """A folder of texts, by content."""

    def __init__(self) -> None:
        """Make the folder; it is removed when the process ends."""
        self._held = TemporaryDirectory(prefix="finegauge-page-")
        self.folder = os.path.realpath(self._held.name)
        self._texts = os.path.join(self.folder, "pasted")
        self._empty = os.path.join(self.folder, "empty")
        for folder in (self._texts, self._empty):
            os.mkdir(folder)

    def keep(self, text: str, name: str) -> str:
        """Return the path of a file called `name` that holds `text`, in a folder with nothing beside it."""
        folder = os.path.join(self._texts, sha256(f"{name}\n{text}".encode()).hexdigest()[:32])
        path = os.path.join(folder, name)
        if os.path.exists(path):
            os.utime(folder)
            return path
        self._make_place()
        os.makedirs(folder, exist_ok=True)
        unfinished = f"{path}.{os.getpid()}.part"
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(unfinished, path)
        return path

    def holds(self, path: str) -> bool:
        """Return whether `path` is a text that was kept here."""
        if not path.isprintable():  # no name of ours, and perhaps none of a file
            return False
        return os.path.realpath(path).startswith(os.path.join(self._texts, ""))

    def text_of(self, path: str) -> str:
        """Return a text that was kept here."""
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()

    def enter(self) -> None:
        """Make an empty folder the process's own, so that no relative name reaches the user's files."""
        os.chdir(self._empty)

    def _make_place(self) -> None:
        """Remove the texts used longest ago, where there are too many."""
        with os.scandir(self._texts) as found:
            by_use = sorted((entry.stat().st_mtime, entry.path) for entry in found)
        for _, folder in by_use[: max(0, len(by_use) - MOST_TEXTS + 1)]:
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)


def upload_store() -> UploadStore:
    """Return the store of this process."""
    return _store_of(os.getpid())


@cache
def _store_of(process: int) -> UploadStore:
    """Return the store of one process: a child that was forked gets its own."""
    del process
    return UploadStore()
