"""Every kind of value is read as what it says, or refused in one sentence."""

from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.run.field import Check, choice, choices, flag, label, names, number, text, whole


@pytest.mark.parametrize(("value", "expected"), [(4, 4), ("4", 4), (4.0, 4), ("1e3", 1000), ("1_000", 1000)])
def test_whole_reads(value: Any, expected: int) -> None:
    found = whole()("n", value)
    assert found == expected
    assert isinstance(found, int)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -3,
        2.5,
        "two",
        True,
        None,
        [],
        {},
        float("nan"),
        float("inf"),
        "nan",
        "1e400",
        10**13,
        10**400,
        "9" * 80,
    ],
)
def test_whole_refuses(value: Any) -> None:
    with pytest.raises(FieldError, match=r"^n=.*[.]$") as caught:
        whole()("n", value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_bounds_are_told_with_their_unit() -> None:
    with pytest.raises(FieldError, match="seq_len=70 is too large; it must be at most 64 tokens"):
        whole(1, 64, "tokens")("seq_len", 70)
    with pytest.raises(FieldError, match="startup_s=-1 is too small; it must be at least 0 s"):
        number(0, 10, "s")("startup_s", -1)


@pytest.mark.parametrize(("value", "expected"), [(2e-4, 2e-4), ("2e-4", 2e-4), (3, 3.0), ("+.5", 0.5)])
def test_number_reads(value: Any, expected: float) -> None:
    assert number(0, 10)("x", value) == expected


@pytest.mark.parametrize("value", ["", "e", "--1", "0x10", "1.2.3", "٣", False, float("-inf"), 10**400])
def test_number_refuses(value: Any) -> None:
    with pytest.raises(FieldError):
        number(-10, 10)("x", value)


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("yes", True), ("Off", False), (0, False), ("1", True)]
)
def test_flag_reads(value: Any, expected: bool) -> None:
    assert flag("x", value) is expected


@pytest.mark.parametrize("value", ["maybe", 2, None, 1.0, []])
def test_flag_refuses(value: Any) -> None:
    with pytest.raises(FieldError, match="neither true nor false"):
        flag("x", value)


@pytest.mark.parametrize("check", [text, label])
@pytest.mark.parametrize("value", ["a\nb", "x" * 5000, {}, [1], True, None, "\x1b[31m"])
def test_text_refuses(check: Check, value: Any) -> None:
    with pytest.raises(FieldError) as caught:
        check("x", value)
    assert str(caught.value).isprintable()


def test_label_may_be_empty_and_text_not() -> None:
    assert label("x", "") == ""
    with pytest.raises(FieldError):
        text("x", " ")


def test_names_read_a_list_or_a_line() -> None:
    assert names("x", "w1, w2,w1,") == ("w1", "w2")
    assert names("x", ["w1", "w2"]) == ("w1", "w2")
    with pytest.raises(FieldError, match="a list of at most"):
        names("x", {"a": 1})
    with pytest.raises(FieldError, match="a list of at most"):
        names("x", ["a"] * 10_000)


def test_choice_knows_aliases_and_neighbours() -> None:
    attention = choice(("sdpa", "flash"), {"fa2": "flash"})
    assert attention("attention", "FA2") == "flash"
    with pytest.raises(FieldError, match="Did you mean 'flash'") as caught:
        attention("attention", "flsh")
    assert "Use one of sdpa, flash." in str(caught.value)


def test_choices_drop_none() -> None:
    kernels = choices(("liger", "foak"))
    assert kernels("kernels", "none") == ()
    assert kernels("kernels", ["foak", "liger", "foak"]) == ("foak", "liger")
