"""A campaign on a real Ray cluster of two nodes, one of which is lost in the middle of a trial."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from finegauge.campaign.axes import Folder
from finegauge.campaign.sweep import read_sweep
from finegauge.store.journal import Journal
from tests.e2e.commands import finegauge
from tests.e2e.processes import descendants, gone
from tests.unit.store.results import read_back

pytestmark = pytest.mark.extras

FIGURES = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
STORE_BYTES = 80 * 2**20  # the least that Ray takes for a node's objects
WAIT_S = 180.0
CHILD = "finegauge.measurement.child"
# Two nodes of one CPU each, as cluster_utils starts them for Ray's own tests. It says where the cluster is,
# and loses its second node, with all that runs on it, at a line on standard input; its end is the cluster's.
CLUSTER = """
import json, os, signal, sys
from ray.cluster_utils import Cluster
size = {"num_cpus": 1, "object_store_memory": int(sys.argv[1])}
quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
head = {**size, "include_dashboard": False, "_system_config": quick}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(**size)
raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, second)]
print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class Cluster(NamedTuple):
    """A running cluster."""

    address: str
    raylets: tuple[int, int]  # the head's, the other's


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(STORE_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert process.stdout is not None
    try:
        told: dict[str, Any] = {}
        for line in process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                break
        head, second = told["raylets"]
        yield Cluster(told["address"], (head, second))
    finally:
        started = descendants(process.pid)
        process.communicate()  # which closes its standard input
        assert gone(started)


def sweep_in(folder: Path, sizes: list[int], steps: int) -> str:
    """Write a sweep of measured cells into `folder`, and return its path."""
    (folder / "config.json").write_text(json.dumps(FIGURES), "utf-8")
    run = {"model": "config.json", "method": "full", "weights_dtype": "fp32", "seq_len": 16}
    measured = {"steps": steps, "warmup_steps": 1, "threads": 1}
    path = folder / "sweep.yaml"
    path.write_text(
        json.dumps({"run": run, "axes": {"micro_batch_size": sizes}, "measured": measured}), "utf-8"
    )
    return str(path)


def trials_under(*processes: int) -> set[int]:
    """Return the processes of trials among those that `processes` started."""
    return {child for process in processes for child in descendants(process) if CHILD in _command(child)}


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text("utf-8")
    except OSError:
        return ""


def until(what: str, driver: "subprocess.Popen[str]", done: Any) -> None:
    """Wait until `done()`."""
    ends_at = time.monotonic() + WAIT_S
    while not done():
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < ends_at, what
        time.sleep(0.05)


def driver_of(cluster: Cluster, sweep: str, folder: str) -> "subprocess.Popen[str]":
    """Return the driver of a campaign on the cluster."""
    command = ("campaign", sweep, "-o", folder, "--engine", "ray", "--address", cluster.address, "--json")
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from finegauge.cli import main; main(sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_trial_that_no_node_can_hold_says_so(cluster: Cluster, tmp_path: Path) -> None:
    sweep, folder = Path(sweep_in(tmp_path, [1], 1)), str(tmp_path / "out")
    sweep.write_text(sweep.read_text("utf-8").replace('"threads"', '"device": "cuda", "threads"'), "utf-8")
    address = ("--engine", "ray", "--address", cluster.address)
    done = finegauge("campaign", str(sweep), "-o", folder, *address, "--json")
    assert done.code == 0
    (result,) = json.loads(done.out)["results"]
    assert result["profile"]["outcome"] == "unsupported"
    assert result["profile"]["reason"] == "no node of the Ray cluster has 1 GPU"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_driver_that_ends_leaves_no_task(
    cluster: Cluster, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = str(tmp_path / "out")
    driver = driver_of(cluster, sweep_in(tmp_path, [1], 10_000_000), folder)
    until("a trial", driver, lambda: trials_under(*cluster.raylets))
    trials = trials_under(*cluster.raylets)
    driver.send_signal(number)
    driver.communicate(timeout=WAIT_S)
    assert driver.returncode == code
    assert gone(trials)
    with Folder(folder).driven():  # which records what nobody was left to record
        (profile,) = Folder(folder).trials.profiles()
    assert profile.outcome == "interrupted"
    assert (profile.reason == "Ctrl-C") == (number == signal.SIGINT)


@pytest.mark.slow
def test_a_lost_node_costs_no_result_and_doubles_none(cluster: Cluster, tmp_path: Path) -> None:
    head, second = cluster.raylets
    sweep, folder = sweep_in(tmp_path, [1, 2, 3], 5), str(tmp_path / "out")
    driver = driver_of(cluster, sweep, folder)
    until("a trial on each node", driver, lambda: trials_under(head) and trials_under(second))
    for process in {second} | descendants(second):
        with suppress(ProcessLookupError):  # without its node a worker ends by itself
            os.kill(process, signal.SIGKILL)
    out, _ = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == 0
    assert json.loads(out)["outcomes"] == {"completed": 3}
    records = read_back(Journal(f"{folder}/results.jsonl")).records
    started = Counter(record["asked"]["cell"] for record in records if record["event"] == "started")
    ended = Counter(record["asked"]["cell"] for record in records if record["event"] == "ended")
    assert started == ended == {cell.key: 1 for cell in read_sweep(sweep).cells}
    assert {result.profile.outcome for result in Folder(folder).results()} == {"completed"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "ray", "--address", "127.0.0.1:1"), "No Ray cluster answers at '127.0.0.1:1'"),
        (("--engine", "ray", "--address", "here"), "should be HOST:PORT"),
        (("--address", "127.0.0.1:1"), "add --engine ray"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = finegauge("campaign", sweep_in(tmp_path, [1], 1), "-o", str(tmp_path / "out"), *options)
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert said in done.err
