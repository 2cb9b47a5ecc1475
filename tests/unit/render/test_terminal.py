"""Columns, bars and colour."""

import pytest

from finegauge.render.terminal import columns, filled_bar, pad, paint, visible_width, wrapped


@pytest.fixture
def colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")


def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert paint("fits", "green") == "fits"


def test_no_colour_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert paint("fits", "green") == "fits"


@pytest.mark.usefixtures("colour")
def test_paint_takes_no_room() -> None:
    painted = paint("fits", "bold", "green")
    assert painted == "\x1b[1;32mfits\x1b[0m"
    assert visible_width(painted) == 4
    assert visible_width(pad(painted, 10)) == 10
    assert paint("", "green") == ""


def test_columns_align() -> None:
    assert columns(["name", "most\nbatch"], [["a", "1"], ["longer", "1,000"]]) == [
        "         most",
        "name    batch",
        "a           1",
        "longer  1,000",
    ]


def test_columns_without_a_second_heading_line() -> None:
    assert columns(["x", "y"], [["a", "b"]], left=2) == ["x  y", "a  b"]


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [(0.0, ""), (1.0, "████"), (0.5, "██"), (0.53125, "██▏"), (2.0, "████"), (-1.0, "")],
)
def test_bar(fraction: float, drawn: str) -> None:
    assert filled_bar(fraction, 4) == drawn


def test_wrapped() -> None:
    assert wrapped("one two three", indent="  ", width=8) == ["one two", "  three"]
    assert wrapped("", indent="") == [""]
