"""The table keeps its bars: it must be able to fail."""

from io import StringIO

import pytest
from rich.console import Console

from tests.oracle import table
from tests.oracle.cells import Cell, all_cells, attentions, cells_of, representative_cells
from tests.oracle.compare import Outcome, relative_error
from tests.oracle.configs import CONFIGS
from tests.oracle.table import EXACT, NEAR, summary, table_of, worst

RIGHT = dict.fromkeys((*EXACT, *NEAR), 0.0)


def outcomes(**errors: float) -> list[Outcome]:
    wrong = {name.replace("_", " "): error for name, error in errors.items()}
    return [
        Outcome(Cell("llama"), RIGHT),
        Outcome(Cell("llama"), RIGHT),
        Outcome(Cell("gpt2"), RIGHT | wrong),
    ]


def test_agreement_keeps_the_bars() -> None:
    assert summary(outcomes())[1]
    assert summary(outcomes(saved_bytes=0.019))[1]


@pytest.mark.parametrize("name", ["forward_FLOPs", "parameters", "tensors", "trained_parameters"])
def test_a_wrong_parameter_or_flop_breaks_a_bar(name: str) -> None:
    lines, kept = summary(outcomes(**{name: 1e-6}))
    assert not kept
    assert any("wrong in    1 cells" in line for line in lines)


def test_bytes_far_off_break_a_bar() -> None:
    assert not summary(outcomes(backward_peak=-0.021))[1]


def test_bytes_off_on_the_whole_break_a_bar() -> None:
    every = [Outcome(Cell("llama"), RIGHT | {"saved bytes": 0.006})] * 3
    assert not summary(every)[1]


def test_a_failure_breaks_the_table_and_a_refusal_does_not() -> None:
    assert not summary([*outcomes(), Outcome(Cell("opt"), {}, failure="ours: KeyError")])[1]
    assert summary([*outcomes(), Outcome(Cell("opt"), {}, refusal="does not support sdpa")])[1]
    assert not summary([])[1]


def test_the_worst_is_that_furthest_from_zero() -> None:
    assert worst(outcomes(loss_peak=-0.3), ["loss peak", "saved bytes"]) == -0.3


def test_an_error_out_of_nothing() -> None:
    assert relative_error(0, 0) == 0
    assert relative_error(5, 0) == 1
    assert relative_error(11, 10) == pytest.approx(0.1)


def test_a_row_shows_its_worst_error() -> None:
    printed = StringIO()
    Console(file=printed, width=200).print(table_of(outcomes(backward_peak=-0.5)))
    assert "-50.00 %" in printed.getvalue()
    assert "gpt2" in printed.getvalue()


def test_the_exit_status_says_whether_the_bars_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [RIGHT, RIGHT | {"forward FLOPs": 0.1}]

    def compared(cells: list[Cell], processes: int, console: Console) -> list[Outcome]:
        del processes, console
        answer = answers.pop(0)
        return [Outcome(cell, answer) for cell in cells]

    monkeypatch.setattr(table, "outcomes_of", compared)
    assert [table.main(["--only", "qwen3"]) for _ in range(2)] == [0, 1]


def test_cells_differ_and_cover_the_axes() -> None:
    cells = all_cells()
    assert len(set(cells)) == len(cells)
    assert {cell.model for cell in cells} >= set(CONFIGS)
    assert {cell.attention for cell in cells} == {"flash", "sdpa", "eager"}
    assert {cell.precision for cell in cells} == {"bf16", "autocast"}
    assert {cell.checkpointing for cell in cells} == {"none", "full", "reentrant"}
    assert {cell.loss for cell in cells} == {"full_logits", "chunked"}
    assert len({cell.batch for cell in cells}) >= 3
    assert {cell.model for cell in representative_cells()} <= set(CONFIGS)


@pytest.mark.parametrize("model", ["bloom", "falcon", "gemma2", "mamba"])
def test_cells_keep_to_what_a_class_offers(model: str) -> None:
    assert {cell.attention for cell in cells_of(model)} <= set(attentions(model))
