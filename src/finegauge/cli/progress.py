"""The progress bar of long commands: on stderr, on a terminal only, and only after half a second."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegauge.progress import Heard, Progress

AFTER_S = 0.5


@contextmanager
def progress_bar(name: str) -> "Iterator[Heard | None]":
    """Yield a function that shows the progress of `name`; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _LateBar(name)
    try:
        yield bar.heard
    finally:
        bar.stop()


class _LateBar:
    """A bar that comes up after a while."""

    def __init__(self, name: str) -> None:
        self.name, self.started_s = name, perf_counter()
        self.bar: Any = None

    def heard(self, progress: "Progress") -> None:
        """Show how far it is."""
        if self.bar is None and perf_counter() - self.started_s > AFTER_S:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.add_task(self.name, total=None)
            self.bar.start()
        if self.bar is not None:
            from finegauge.render.number_format import duration

            left = f", about {duration(progress.left_s)} left" if progress.left_s is not None else ""
            said = f"{self.name} {progress.what}{left}".strip()
            task = self.bar.task_ids[0]
            self.bar.update(task, description=said, completed=progress.done, total=progress.total)

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
