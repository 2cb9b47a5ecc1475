"""Sweep files for the tests, and an engine that answers at once."""

from collections.abc import Iterator
from pathlib import Path

from finegauge.campaign.axes import Cell
from finegauge.campaign.driver import Start
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run

RUN = "run: {model: llama-2-7b, method: lora, gpu: a100-80gb}"


def sweep_file(folder: Path, *lines: str) -> str:
    """Write a sweep of LoRA on Llama-2-7B and return its path."""
    path = folder / "sweep.yaml"
    path.write_text("\n".join((RUN, *lines)) + "\n", encoding="utf-8")
    return str(path)


class SaidEngine:
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, *, too_large: int = 10**9) -> None:
        """Run out of memory from `too_large` sequences on."""
        self.too_large = too_large
        self.asked: list[Cell] = []

    def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[tuple[str, Cell, Profile]]:
        """Yield an answer to every cell."""
        for cell in cells:
            trial = start(cell)
            self.asked.append(cell)
            yield trial, cell, self.answer(cell)

    def answer(self, cell: Cell) -> Profile:
        """Return the answer to one cell."""
        assert cell.run is not None
        return self.answer_run(cell.run)

    def answer_run(self, run: Run) -> Profile:
        """Return the answer to a run."""
        fits = run.micro_batch_size < self.too_large
        return Profile(
            run=run,
            source=Source("measured", "a test"),
            outcome="completed" if fits else "out_of_memory",
            step_time_s=Breakdown.of(forward=0.1 * run.micro_batch_size),
            step_times_s=(0.1 * run.micro_batch_size,) * 3,
            step_sequences=float(run.micro_batch_size),
            peak_memory_bytes=Breakdown.of(weights=1e9),
        )
