"""The Chrome trace: nesting, own time, ties between threads and with the device."""

import json
from pathlib import Path

import pytest

from finegauge.errors import FileFormatError
from finegauge.measurement.instruments.kernel_trace import Trace, covered_s, parse_trace, read_trace
from tests.replay.gpu_trace import qlora_moe_step


@pytest.fixture(scope="module")
def trace() -> Trace:
    return parse_trace(qlora_moe_step())


def test_operators_nest_on_their_thread(trace: Trace) -> None:
    mm = next(op for op in trace.operators if op.name == "aten::mm")
    names = [outer.name for outer in mm.enclosing()]
    assert names == [
        "aten::mm",
        "aten::linear",
        "MatMul4Bit",
        "finegauge.module:model.layers.0.self_attn.q_proj",
        "finegauge.stage:forward",
        "finegauge.step",
    ]


def test_own_time_leaves_out_what_was_called(trace: Trace) -> None:
    linear = next(op for op in trace.operators if op.name == "aten::linear")
    assert linear.own_s == pytest.approx(2e-6)
    on_host = sum(op.own_s for op in trace.operators if not op.is_range)
    spans = [
        (op.thread * 1e3 + op.start_s, op.thread * 1e3 + op.end_s)
        for op in trace.operators
        if not op.is_range
    ]
    assert on_host == pytest.approx(covered_s(spans))


def test_every_kernel_finds_its_operator(trace: Trace) -> None:
    launched = {(k.name, k.operator.name if k.operator else "") for k in trace.kernels}
    assert ("nvjet_hsh_128x128", "aten::mm") in launched  # one of them by the launch's correlation alone
    assert all(kernel.operator is not None for kernel in trace.kernels)
    assert [k.start_s for k in trace.kernels] == sorted(k.start_s for k in trace.kernels)


def test_backward_operators_know_their_forward_one(trace: Trace) -> None:
    node = next(op for op in trace.operators if op.name == "MatMul4BitBackward")
    assert node.origin is not None
    assert node.origin.name == "MatMul4Bit"
    assert node.parent is not None
    assert node.parent.origin is node.origin


def test_busy_is_the_device_where_there_is_one(trace: Trace) -> None:
    assert trace.busy_s == pytest.approx(sum(k.end_s - k.start_s for k in trace.kernels))


def test_covered_counts_overlap_once() -> None:
    assert covered_s([(0, 2), (1, 3), (5, 6), (5.2, 5.5)]) == 4
    assert covered_s([]) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": 3}', '{"other": []}'])
def test_a_file_that_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FileFormatError, match=r"trace\.json: not a Chrome trace"):
        read_trace(path)


def test_a_file_reads_as_its_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": qlora_moe_step()}), "utf-8")
    assert len(read_trace(path).kernels) == len(parse_trace(qlora_moe_step()).kernels)
