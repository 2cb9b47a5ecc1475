"""Carrying a sweep out: every cell once, pruned, resumed, by one driver at a time."""

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from finegauge.answers.campaign import campaign_answer
from finegauge.campaign.axes import Cell, Folder
from finegauge.campaign.driver import Start, carry_out
from finegauge.campaign.gains import compare_results
from finegauge.campaign.sweep import read_sweep
from finegauge.errors import InputError
from finegauge.profile import Profile
from finegauge.progress import Progress
from finegauge.run.run import Run
from finegauge.store import journal
from finegauge.store.journal import Journal
from tests.unit.campaign.sweeps import SaidEngine, sweep_file
from tests.unit.store.results import read_back

BATCHES = "axes: {micro_batch_size: [4, 1, 2]}"


def test_every_cell_is_asked_once_and_never_again(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, BATCHES, "predicted: {}", "measured: {repetitions: 2}"))
    engine, folder = SaidEngine(), str(tmp_path / "out")
    summary = carry_out(sweep, folder, engine)
    assert (dict(summary.outcomes), summary.before) == ({"completed": 9}, 0)
    assert [cell.run.micro_batch_size for cell in engine.asked if cell.run] == [1, 2, 4, 1, 2, 4]
    again = carry_out(sweep, folder, engine)
    assert (dict(again.outcomes), again.before) == ({}, 9)
    assert len(engine.asked) == 6
    results = Folder(folder).results()
    assert Counter(result.estimator for result in results) == {"predicted": 3, "measured": 6}
    assert {result.key for result in results} == {cell.key for cell in sweep.cells}


def test_a_campaign_that_is_done_makes_no_run_and_reads_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = sweep_file(tmp_path, BATCHES, "predicted: {}", "measured: {}"), str(tmp_path / "out")
    carry_out(read_sweep(path), folder, SaidEngine())

    def none(*_: object, **__: object) -> None:
        raise AssertionError("of a hundred thousand, it takes minutes")

    monkeypatch.setattr(Run, "_settle", none)
    monkeypatch.setattr(journal, "profile_of", none)
    kept = Folder(folder)
    summary = carry_out(read_sweep(path), kept, SaidEngine())
    assert (dict(summary.outcomes), summary.before) == ({}, 6)
    assert campaign_answer(read_sweep(path), kept, summary, whole=False).ended["measured"] == {"completed": 3}
    assert len(compare_results(kept.results(), "none")) == 0


def test_what_is_larger_than_a_run_out_of_memory_is_not_asked(tmp_path: Path) -> None:
    axes = "axes: {seq_len: [128, 256], micro_batch_size: [1, 2, 4, 8], method: [lora, full]}"
    sweep = read_sweep(sweep_file(tmp_path, axes, "measured: {}"))
    engine, folder = SaidEngine(too_large=4), str(tmp_path / "out")
    carry_out(sweep, folder, engine)
    asked = [(c.run.method, c.run.seq_len, c.run.micro_batch_size) for c in engine.asked if c.run]
    assert len(asked) == 2 * (2 * 2 + 1)  # the fitting ones, and one that does not
    assert all(batch < 4 or (batch, length) == (4, 128) for _, length, batch in asked)
    reasons = [r.profile.reason for r in Folder(folder).results() if r.profile.source.kind == "pruned"]
    assert len(reasons) == 16 - len(asked)
    assert all("micro_batch_size=4" in reason and "out of memory already" in reason for reason in reasons)


def test_a_predicted_failure_prunes_the_predictions_above_it(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, "axes: {gpu: [l4], method: [full], micro_batch_size: [1, 2, 4]}"))
    carry_out(sweep, str(tmp_path / "out"), SaidEngine())
    kinds = [result.profile.source.kind for result in Folder(str(tmp_path / "out")).results()]
    assert kinds == ["predicted", "pruned", "pruned"]


def test_cells_that_make_no_run_are_kept_with_the_reason(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, "axes: {switch: [baseline, zero1]}"))
    summary = carry_out(sweep, str(tmp_path / "out"), SaidEngine())
    assert dict(summary.outcomes) == {"completed": 1, "refused": 1}
    (refusal,) = Folder(str(tmp_path / "out")).refusals()
    assert refusal.labels == {"switch": "zero1"}
    assert carry_out(sweep, str(tmp_path / "out"), SaidEngine()).before == 2


def test_a_failure_is_asked_again_only_where_told_to(tmp_path: Path) -> None:
    class Failing(SaidEngine):
        def answer(self, cell: Cell) -> Profile:
            assert cell.run is not None
            return Profile(
                run=cell.run, source=super().answer(cell).source, outcome="failed", reason="a test"
            )

    sweep = read_sweep(sweep_file(tmp_path, BATCHES, "measured: {}"))
    folder = str(tmp_path / "out")
    carry_out(sweep, folder, Failing())
    assert dict(carry_out(sweep, folder, SaidEngine()).outcomes) == {}
    assert dict(carry_out(sweep, folder, SaidEngine(), retry=True).outcomes) == {"completed": 3}
    assert [result.profile.outcome for result in Folder(folder).results()] == ["completed"] * 3


def test_an_interruption_is_recorded_and_asked_again(tmp_path: Path) -> None:
    class Interrupted(SaidEngine):
        def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[tuple[str, Cell, Profile]]:
            yield from super().measure(iter([next(cells)]), start)
            start(next(cells))
            raise KeyboardInterrupt

    sweep = read_sweep(sweep_file(tmp_path, BATCHES, "measured: {}"))
    folder = str(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        carry_out(sweep, folder, Interrupted())
    summary = carry_out(sweep, folder, SaidEngine())
    assert (dict(summary.outcomes), summary.before) == ({"completed": 2}, 1)
    assert len(Folder(folder).results()) == 3


def test_progress_tells_what_is_left(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, BATCHES, "measured: {}"))
    heard: list[Progress] = []
    carry_out(sweep, str(tmp_path / "out"), SaidEngine(), heard=heard.append)
    assert [one.done for one in heard] == [0, 1, 1, 2, 2, 3]
    assert heard[0].left_s is None
    assert heard[-1].left_s == 0.0
    assert "measured" in heard[0].what


def test_two_drivers_do_not_share_a_folder(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, BATCHES))
    folder = Folder(str(tmp_path / "out"))
    with folder.driven(), pytest.raises(InputError, match=f"process {os.getpid()} on"):
        carry_out(sweep, folder.path, SaidEngine())
    assert dict(carry_out(sweep, folder.path, SaidEngine()).outcomes) == {"completed": 3}


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    sweep = read_sweep(sweep_file(tmp_path, BATCHES))
    with pytest.raises(InputError, match="cannot be used"):
        carry_out(sweep, str(tmp_path / "file"), SaidEngine())


def test_a_full_disk_ends_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sweep = read_sweep(sweep_file(tmp_path, BATCHES))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="cannot be locked: No space left on device"):
        carry_out(sweep, str(tmp_path / "out"), SaidEngine())
    monkeypatch.undo()
    assert dict(carry_out(sweep, str(tmp_path / "out"), SaidEngine()).outcomes) == {"completed": 3}


class Slow(SaidEngine):
    def answer(self, cell: Cell) -> Profile:
        time.sleep(0.05)
        return super().answer(cell)


@pytest.mark.slow
def test_kill_minus_nine_at_twenty_random_points_loses_and_doubles_nothing(tmp_path: Path) -> None:
    sizes = ", ".join(map(str, range(1, 61)))
    sweep = read_sweep(
        sweep_file(
            tmp_path, f"axes: {{micro_batch_size: [{sizes}]}}", "predicted: {}", "measured: {repetitions: 2}"
        )
    )
    folder, random, longest_s = str(tmp_path / "out"), Random(5), 0.5
    for _ in range(20):
        driver = os.fork()
        if not driver:
            with suppress(BaseException):
                carry_out(sweep, folder, Slow())
            os._exit(0)
        time.sleep(random.uniform(0.0, longest_s))
        os.kill(driver, signal.SIGKILL)
        os.waitpid(driver, 0)
        if not Folder(folder).done():  # a busy machine takes longer to come to the work
            longest_s *= 1.5
    interrupted = len(Folder(folder).done())
    summary = carry_out(sweep, folder, SaidEngine())
    assert interrupted > 0  # the kills fell into the work
    assert len(sweep.cells) == 180
    assert summary.before + sum(summary.outcomes.values()) == 180
    ended = [
        record["asked"]["cell"]
        for record in read_back(Journal(os.path.join(folder, "results.jsonl"))).records
        if record["event"] == "ended" and record["profile"]["outcome"] != "interrupted"
    ]
    assert Counter(ended) == {cell.key: 1 for cell in sweep.cells}
