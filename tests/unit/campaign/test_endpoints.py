"""Serving engines as an axis of a campaign: an engine is a value, a cell a load on a local server."""

from pathlib import Path

import pytest

from finegauge.campaign.axes import Folder
from finegauge.campaign.driver import LocalEngine, carry_out
from finegauge.campaign.sweep import read_sweep
from finegauge.errors import InputError
from finegauge.store.table import ask, table_of
from tests.unit.measurement.endpoint_server import serving

RUN = "run: {model: llama-2-7b, method: full, phase: decode, seq_len: 32, max_new_tokens: 8, gpu: a100-80gb}"


def sweep_at(folder: Path, *lines: str) -> str:
    path = folder / "sweep.yaml"
    path.write_text("\n".join((RUN, *lines)) + "\n", "utf-8")
    return str(path)


def test_engines_and_users_are_axes(tmp_path: Path) -> None:
    folder = str(tmp_path / "results")
    with serving() as one, serving() as other:
        path = sweep_at(
            tmp_path,
            "axes: {micro_batch_size: [1, 3]}",
            "predicted: {}",
            "measured:",
            f"  axes: {{engine: {{vllm: {{endpoint: '{one.url}'}}, "
            f"tgi: {{endpoint: '{other.url}', endpoint_api: chat}}}}}}",
            "  steps: 2",
            "  warmup_steps: 0",
        )
        sweep = read_sweep(path, trust=True)
        first = carry_out(sweep, folder, LocalEngine())
        again = carry_out(sweep, folder, LocalEngine())
    assert (dict(first.outcomes), first.before) == ({"completed": 6}, 0)
    assert (dict(again.outcomes), again.before) == ({}, 6)
    assert [len(server.requests) for server in (one, other)] == [1 + 2 + 1 + 6] * 2
    assert {request.is_chat for request in one.requests} == {False}
    assert {request.is_chat for request in other.requests} == {True}
    measured = [result for result in Folder(folder).results() if result.estimator == "measured"]
    found = {(r.labels["engine"], r.labels["micro_batch_size"]): r.profile for r in measured}
    assert found["tgi", "3"].observations["serving"]["num_users"] == 3
    assert found["vllm", "1"].fingerprint["endpoint"].startswith(one.url)
    table, _ = table_of([folder])
    question = "SELECT engine, ttft_s, written_tokens_per_s FROM results WHERE estimator = 'measured'"
    rows = ask(table, question).to_pylist()
    assert {row["engine"] for row in rows} == {"vllm", "tgi"}
    assert all(row["ttft_s"] > 0 and row["written_tokens_per_s"] > 0 for row in rows)
    assert ask(table, "SELECT count(ttft_s) AS n FROM results WHERE estimator = 'predicted'").to_pylist() == [
        {"n": 0}
    ]


def test_the_rate_of_requests_is_an_axis(tmp_path: Path) -> None:
    path = sweep_at(tmp_path, "measured: {endpoint: 'http://127.0.0.1:1', axes: {requests_per_s: [1, 2.5]}}")
    cells = read_sweep(path, trust=True).cells
    assert [c.options.requests_per_s for c in cells if c.options] == [1.0, 2.5]
    assert [dict(c.labels) for c in cells] == [{"requests_per_s": "1"}, {"requests_per_s": "2.5"}]
    assert len({cell.key for cell in cells}) == 2


def test_an_endpoint_that_does_not_answer_is_a_failed_cell(tmp_path: Path) -> None:
    path = sweep_at(tmp_path, "measured: {endpoint: 'http://127.0.0.1:1'}")
    folder = str(tmp_path / "results")
    assert carry_out(read_sweep(path, trust=True), folder, LocalEngine()).outcomes == {"failed": 1}
    (result,) = Folder(folder).results()
    assert "does not serve" in result.profile.reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("measured: {endpoint: here}", "no URL like"),
        ("measured: {axes: {engine: {a: {endpoint: here}}}}", "no URL like"),
        ("measured: {endpoint: 'http://127.0.0.1:1', layers: true}", "layers cannot be measured"),
        ("measured: {axes: {engine: {a: {endpont: x}}}}", "Did you mean 'endpoint'"),
        ("axes: {requests_per_s: [1]}", "unknown key 'requests_per_s'"),
        ("measured: {axes: {requests_per_s: [many]}}", "should be like 0.0"),
    ],
)
def test_what_a_sweep_may_not_say(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_sweep(sweep_at(tmp_path, line), trust=True)
    assert said in str(error.value)
