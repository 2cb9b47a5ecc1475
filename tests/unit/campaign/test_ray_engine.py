"""The engine of a Ray cluster, on a cluster that answers as it is told to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from finegauge.campaign import ray_engine
from finegauge.campaign.axes import Folder
from finegauge.campaign.driver import carry_out
from finegauge.campaign.ray_engine import RayEngine
from finegauge.campaign.sweep import read_sweep
from finegauge.store.document import profile_document, profile_of, run_of
from tests.unit.campaign.sweeps import SaidEngine, sweep_file
from tests.unit.store.results import read_back

SIZES = "axes: {micro_batch_size: [1, 2, 4, 8, 16]}"


class LostError(Exception):
    """What the cluster raises for a trial that it gave up."""


class SaidCluster:
    """Runs a task when it is waited for, the first one first."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self, *resources: Mapping[str, float], too_large: int = 10**9, gives_up: int = 0) -> None:
        """Have nodes with `resources`; out of memory from `too_large` sequences on; give up `gives_up`."""
        self.resources = list(resources)
        self.said, self.gives_up = SaidEngine(too_large=too_large), gives_up
        self.launched: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self.most_at_once = 0
        self.interrupted = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.resources]

    def remote(self, function: Any) -> Any:
        def options(**asked: Any) -> Any:
            def launch(run: Mapping[str, Any], *_: Any) -> int:
                self.launched.append({**asked, "run": run_of(run)})
                return len(self.launched) - 1

            return SimpleNamespace(remote=launch)

        return SimpleNamespace(options=options)

    def wait(self, tasks: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        self.most_at_once = max(self.most_at_once, len(tasks))
        return [tasks[0]], list(tasks[1:])

    def get(self, task: int) -> dict[str, Any]:
        run = self.launched[task]["run"]
        if run.micro_batch_size == self.gives_up:
            raise LostError("The node was lost four times.\nAnd more.")
        return profile_document(self.said.answer_run(run))

    def cancel(self, task: int, *, force: bool) -> None:
        assert force
        self.cancelled.append(task)


@contextmanager
def connected(cluster: SaidCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayEngine]:
    """Yield an engine whose cluster is `cluster`."""

    @contextmanager
    def connect(address: str) -> Iterator[SaidCluster]:
        yield cluster

    monkeypatch.setattr(ray_engine, "_connected", connect)
    yield RayEngine()


def carried_out(
    cluster: SaidCluster, folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str
) -> dict[str, int]:
    """Carry a sweep out on `cluster` and return how its cells ended."""
    sweep = read_sweep(sweep_file(folder, *lines), trust=True)
    with connected(cluster, monkeypatch) as engine:
        return dict(carry_out(sweep, str(folder / "out"), engine).outcomes)


def test_as_many_trials_are_under_way_as_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SaidCluster({"CPU": 4.0}, {"CPU": 2.0})
    ended = carried_out(cluster, tmp_path, monkeypatch, SIZES, "measured: {threads: 2}")
    assert ended == {"completed": 5}
    assert cluster.most_at_once == 3
    assert [(one["num_cpus"], one["num_gpus"]) for one in cluster.launched] == [(2, 0)] * 5
    assert {one["max_retries"] for one in cluster.launched} == {ray_engine.RETRIES}
    results = Folder(str(tmp_path / "out")).results()
    assert sorted(result.profile.run.micro_batch_size for result in results) == [1, 2, 4, 8, 16]


def test_trials_of_one_endpoint_never_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SaidCluster({"CPU": 4.0})
    asked = "measured: {run: {phase: decode}, endpoint: 'http://127.0.0.1:8000', threads: 1}"
    carried_out(cluster, tmp_path, monkeypatch, "axes: {micro_batch_size: [1, 2, 4]}", asked)
    assert (len(cluster.launched), cluster.most_at_once) == (3, 1)


def test_what_is_not_launched_yet_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SaidCluster({"CPU": 1.0}, too_large=4)
    ended = carried_out(cluster, tmp_path, monkeypatch, SIZES, "measured: {threads: 1}")
    assert ended == {"completed": 2, "out_of_memory": 3}
    assert [one["run"].micro_batch_size for one in cluster.launched] == [1, 2, 4]


def test_on_a_gpu_a_trial_takes_its_gpus_and_else_a_whole_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {"CPU": 8.0, "GPU": 4.0}, {"CPU": 6.0}
    for part, need in (("{device: cuda}", (1, 2)), ("{}", (6, 0))):
        cluster = SaidCluster(*nodes)
        folder = tmp_path / f"{need[0]}"
        folder.mkdir()
        run = "axes: {num_gpus: [2], micro_batch_size: [1, 2, 4]}"
        assert carried_out(cluster, folder, monkeypatch, run, f"measured: {part}") == {"completed": 3}
        assert {(one["num_cpus"], one["num_gpus"]) for one in cluster.launched} == {need}
        assert cluster.most_at_once == 2


def test_what_no_node_can_hold_has_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SaidCluster({"CPU": 8.0, "GPU": 1.0})
    axes = "axes: {num_gpus: [1, 2]}"
    ended = carried_out(cluster, tmp_path, monkeypatch, axes, "measured: {device: cuda}")
    assert ended == {"completed": 1, "unsupported": 1}
    reasons = [r.profile.reason for r in Folder(str(tmp_path / "out")).results() if r.profile.reason]
    assert reasons == ["no node of the Ray cluster has 2 GPUs"]


def test_a_trial_whose_last_node_was_lost_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SaidCluster({"CPU": 1.0})

    def lost(tasks: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        cluster.resources.clear()
        return [], list(tasks)

    monkeypatch.setattr(cluster, "wait", lost)
    axes = "axes: {micro_batch_size: [1]}"
    assert carried_out(cluster, tmp_path, monkeypatch, axes, "measured: {threads: 1}") == {"failed": 1}
    (result,) = Folder(str(tmp_path / "out")).results()
    assert result.profile.reason == "the last node with 1 CPU was lost"
    assert cluster.cancelled == [0]


def test_a_trial_that_the_cluster_gives_up_is_a_failure_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SaidCluster({"CPU": 2.0}, gives_up=2)
    ended = carried_out(cluster, tmp_path, monkeypatch, SIZES, "measured: {threads: 1}")
    assert ended == {"completed": 4, "failed": 1}
    (failed,) = [r for r in Folder(str(tmp_path / "out")).results() if r.profile.outcome == "failed"]
    assert failed.profile.reason == "the Ray cluster gave the trial up: The node was lost four times."


def test_an_interruption_ends_every_task_and_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SaidCluster({"CPU": 3.0})
    cluster.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        carried_out(cluster, tmp_path, monkeypatch, SIZES, "measured: {threads: 1}")
    assert set(cluster.cancelled) == {0, 1, 2}
    records = read_back(Folder(str(tmp_path / "out")).trials.journal).records
    ended = [profile_of(record["profile"]) for record in records if record["event"] == "ended"]
    assert [(one.outcome, one.reason) for one in ended] == [("interrupted", "Ctrl-C")] * 3
