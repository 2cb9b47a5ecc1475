"""What a sweep file asks: the cells of its axes, and what it may not say."""

from pathlib import Path

import pytest

from finegauge.campaign.sweep import read_sweep
from finegauge.errors import FineGaugeError
from finegauge.planning.capacity import max_micro_batch_size
from tests.unit.campaign.sweeps import sweep_file


def test_the_grid_of_all_axes_is_asked(tmp_path: Path) -> None:
    sweep = read_sweep(
        sweep_file(tmp_path, "axes: {micro_batch_size: [1, 2], seq_len: [512, 1024], method: [lora, full]}")
    )
    asked = {(c.run.micro_batch_size, c.run.seq_len, c.run.method) for c in sweep.cells if c.run}
    assert asked == {(b, s, m) for b in (1, 2) for s in (512, 1024) for m in ("lora", "full")}
    assert {cell.estimator for cell in sweep.cells} == {"predicted"}
    assert dict(sweep.cells[0].labels) == {"micro_batch_size": "1", "seq_len": "512", "method": "lora"}


def test_each_part_lays_its_own_run_and_axes_over_the_shared_ones(tmp_path: Path) -> None:
    path = sweep_file(
        tmp_path,
        "axes: {seq_len: [512]}",
        "predicted: {axes: {gpu: [a40, h100]}}",
        "measured: {run: {seq_len: 64}, axes: {micro_batch_size: [1]}, steps: 3, timeout_s: 60,"
        " repetitions: 2}",
    )
    cells = read_sweep(path).cells
    predicted = [cell.run.gpu for cell in cells if cell.run and cell.estimator == "predicted"]
    measured = [cell for cell in cells if cell.estimator == "measured"]
    assert len(predicted) == 2
    assert [cell.repetition for cell in measured] == [0, 1]
    assert measured[0].options is not None
    assert (measured[0].options.steps, measured[0].options.timeout_s) == (3, 60.0)
    assert measured[0].run is not None
    assert measured[0].run.seq_len == 512  # an axis has the last word


def test_switches_are_thrown_together_and_the_baseline_throws_none(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, "axes: {switch: [baseline, checkpointing, checkpointing+fused-loss]}")
    plain, one, both = (cell.run for cell in read_sweep(path).cells)
    assert plain is not None
    assert one is not None
    assert both is not None
    assert plain.activation_checkpointing == "none"
    assert (one.activation_checkpointing, one.loss) == ("full", plain.loss)
    assert (both.activation_checkpointing, both.loss) == ("full", "fused")


def test_a_switch_that_changes_nothing_makes_no_run_and_says_why(tmp_path: Path) -> None:
    (cell,) = read_sweep(sweep_file(tmp_path, "axes: {switch: [zero1]}")).cells
    assert cell.run is None
    assert "one data-parallel rank" in cell.refusal


def test_named_values_set_several_fields(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, "axes: {kind: {short: {seq_len: 128, epochs: 2}, as it is: }}")
    short, plain = read_sweep(path).cells
    assert short.run is not None
    assert plain.run is not None
    assert (short.run.seq_len, short.run.epochs) == (128, 2.0)
    assert (plain.labels["kind"], plain.run.seq_len) == ("as it is", 2048)


def test_the_largest_batch_is_the_one_that_is_predicted_to_fit(tmp_path: Path) -> None:
    (cell,) = read_sweep(sweep_file(tmp_path, "axes: {micro_batch_size: [max]}")).cells
    assert cell.run is not None
    assert cell.run.micro_batch_size == max_micro_batch_size(cell.run).value > 1


def test_equal_questions_are_asked_once(tmp_path: Path) -> None:
    path = sweep_file(
        tmp_path, "axes: {switch: [baseline, sdpa+baseline], kind: {a: {}, b: {seq_len: 2048}}}"
    )
    cells = read_sweep(path).cells
    assert [cell.run is None for cell in cells] == [False, True]  # sdpa is there already


def test_a_run_may_be_a_file_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("model: llama-2-7b\nmethod: qlora\ngpu: a40\n", encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text("run: own.yaml\naxes: {seq_len: [256]}\n", encoding="utf-8")
    (cell,) = read_sweep(str(tmp_path / "sweep.yaml")).cells
    assert cell.run is not None
    assert (cell.run.method, cell.run.seq_len) == ("qlora", 256)


def test_the_key_is_the_content(tmp_path: Path) -> None:
    one = read_sweep(sweep_file(tmp_path, "name: a", "axes: {seq_len: [64, 128]}")).cells
    other = read_sweep(sweep_file(tmp_path, "name: b", "axes: {seq_len: [128, 256]}")).cells
    assert one[1].key == other[0].key
    assert len({cell.key for cell in (*one, *other)}) == 3


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("axes: {seq_length: [1]}",), "Did you mean 'seq_len'"),
        (("axis: {}",), "Did you mean 'axes'"),
        (("axes: {switch: [checkpoint]}",), "Did you mean 'checkpointing'"),
        (("axes: {seq_len: 4}",), "should be a list of values"),
        (("axes: {seq_len: []}",), "has no values"),
        (("axes: {seq_len: [4, 4]}",), "names a value twice"),
        (("axes: {kind: {a: {seq: 1}}}",), "unknown key 'seq'"),
        (("axes: {kind: {a: 4}}",), "should have fields"),
        (("measured: {stepz: 4}",), "Did you mean 'steps'"),
        (("measured: {steps: many}",), "should be like 10"),
        (("measured: {repetitions: 0}",), "from 1 to 1000"),
        (("measured: 4",), "keys with values"),
        (("prune: [batch]",), "unknown key 'batch'"),
        (("axes: {seq_len: [" + ",".join(map(str, range(1, 1001))) + "], epochs: [" +
          ",".join(map(str, range(1, 1001))) + "]}",), "1,000,000 cells are more than 100,000"),
    ],
)  # fmt: skip
def test_what_a_sweep_may_not_say_is_refused_in_one_sentence(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    with pytest.raises(FineGaugeError) as caught:
        read_sweep(sweep_file(tmp_path, *lines))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("model: llama-2-7b\n", encoding="utf-8")
    with pytest.raises(FineGaugeError, match="is no sweep"):
        read_sweep(str(tmp_path / "other.yaml"))
