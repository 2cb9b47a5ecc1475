"""JSON out is one function that takes whatever an answer holds."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegauge.documents import MAX_DEPTH, json_text, parse_yaml, read_document
from finegauge.errors import FileFormatError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


@given(PLAIN, st.sampled_from([None, 2]))
def test_every_reader_takes_it(value: object, indent: int | None) -> None:
    def refused(word: str) -> None:
        raise AssertionError(word)

    text = json_text(value, indent)
    text.encode()
    back = json.loads(text, parse_constant=refused)
    assert json_text(back, indent) == text


def test_numbers_that_json_lacks_are_null() -> None:
    assert json.loads(json_text({"a": [float("inf"), 1.5], "b": float("nan")})) == {
        "a": [None, 1.5],
        "b": None,
    }


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_a_number_of_four_hundred_digits_is_no_count(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"config.{ending}"
    path.write_text(f'{{"a": {10**400}, "b": {10**17}}}', "utf-8")
    assert read_document(str(path)) == {"a": float("inf"), "b": 10**17}


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_deep_json_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"config.{ending}"
    path.write_text('{"a": ' + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2) + "}", "utf-8")
    with pytest.raises(FileFormatError, match="nested more than 24 levels"):
        read_document(str(path))
    assert parse_yaml('{"a": ' + "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2) + "}", "x")
