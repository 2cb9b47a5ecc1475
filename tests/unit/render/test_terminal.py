"""Columns, bars and colour."""

import re

import pytest

from finegauge.render.report import Table, Toned
from finegauge.render.terminal import filled_bar, pad, painted, table_lines, visible_width, wrapped


@pytest.fixture
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")


def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert painted("fits", "good") == "fits"


def test_no_colour_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert painted("fits", "good") == "fits"


@pytest.mark.usefixtures("colour")
def test_paint_takes_no_room() -> None:
    fits = painted(Toned("fits", "strong", "good"))
    assert fits == "\x1b[1;32mfits\x1b[0m"
    assert visible_width(fits) == 4
    assert visible_width(pad(fits, 10)) == 10
    assert painted("", "good") == ""


def test_columns_align() -> None:
    assert table_lines(Table("", ("name", "most\nbatch"), (("a", "1"), ("longer", "1,000")))) == [
        "         most",
        "name    batch",
        "a           1",
        "longer  1,000",
    ]


def test_a_table_too_wide_folds_its_texts_and_cuts_no_number() -> None:
    rows = (("a-name", " ".join(["word"] * 20), "long-" * 12, "1,234,567"), ("b", "short", "x", "16.0"))
    lines = table_lines(Table("", ("name", "said", "of", "bytes"), rows, 3))
    assert max(map(len, lines)) <= 100
    assert sum("1,234,567" in line for line in lines) == sum("16.0" in line for line in lines) == 1
    assert " ".join(lines).count("word") == 20
    assert " ".join(lines).count("long-") == 12


def test_columns_without_a_second_heading_line() -> None:
    assert table_lines(Table("", ("x", "y"), (("a", "b"),), 2)) == ["x  y", "a  b"]


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.53125, "██▏"), (2.0, "████"), (-1.0, "")],
)
def test_bar(fraction: float, drawn: str) -> None:
    assert filled_bar(fraction, 4) == drawn


def test_wrapped() -> None:
    assert wrapped("one two three", indent="  ", width=8) == ["one two", "  three"]
    assert wrapped("", indent="") == [""]


@pytest.mark.usefixtures("colour")
def test_paint_is_not_folded_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    state, words = Toned("works", "good"), Toned("a longer text that is folded here", "bad")
    rows = (("device profile", state, "x" * 20), ("disk", words, "y"))
    lines = table_lines(Table("", ("", "", ""), rows, num_text_columns=3))
    assert "\x1b[32mworks\x1b[0m" in lines[0]
    assert all(line.count("\x1b[31m") == line.count("\x1b[0m") for line in lines[1:])
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert not [line for line in plain if "[" in line or "\x1b" in line]
