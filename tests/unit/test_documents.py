"""Only plain values come out of a file, whatever it holds."""

import csv
import math
import os
from pathlib import Path
from typing import Any

import pytest

from finegauge import documents
from finegauge.documents import by_state, parse_csv, parse_yaml, write_whole
from finegauge.errors import FileFormatError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 2e-4", {"a": 2e-4}),
        ("a: 1.0e-5\nb: 10\nc: +3", {"a": 1e-5, "b": 10, "c": 3}),
        ("a: yes\nb: off\nc: ~\nd:", {"a": True, "b": False, "c": None, "d": None}),
        ("a: 'yes'\nb: \"4\"", {"a": "yes", "b": "4"}),
        ("a: 1-2\nb: 4.40.2", {"a": "1-2", "b": "4.40.2"}),
        ("a: [1, x]\nb: {c: 1}", {"a": [1, "x"], "b": {"c": 1}}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("2024-01-01: 2024-01-01", {"2024-01-01": "2024-01-01"}),
        ('{"a": 1, "b": [true, null]}', {"a": 1, "b": [True, None]}),
        ("{a: 1}", {"a": 1}),
        ("", None),
        ("--- 3", 3),
        ("a: " + "9" * 5000, {"a": "9" * 5000}),
    ],
)
def test_plain_values(text: str, expected: Any) -> None:
    assert parse_yaml(text, "run.yaml") == expected


def test_infinity_is_read_and_left_to_the_fields() -> None:
    assert parse_yaml("a: -.inf", "x")["a"] == -math.inf
    assert math.isnan(parse_yaml("a: .nan", "x")["a"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: !!python/object/apply:os.system ['x']", "tag '!!python/object/apply:os.system' is refused"),
        ("a: !custom 1", "tag '!custom' is refused"),
        ("a: 1\na: 2", "line 2: the key 'a' is given twice"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("a: 1\n---\nb: 2", "more than one YAML document"),
        ("a: *nowhere", "not valid YAML|an alias has no anchor"),
        ("a: &a [*a]", "not valid YAML|an alias has no anchor"),
        ("[" * 100_000, "nested more than|not valid YAML"),
        ('{"a":' * 100_000, "nested more than|not valid YAML"),
        ("base: &b [1]\nrun:\n  <<: *b", "merge key"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("a: [1, 2", "not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("- x\n" * 30_000, "more than 20,000 values"),
        ("a: &a x\nb: [" + "*a, " * 300 + "]", "more than 200 aliases"),
    ],
)
def test_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FileFormatError, match=sentence) as caught:
        parse_yaml(text, "run.yaml")
    message = str(caught.value)
    assert message.startswith("run.yaml")
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 250


def test_a_file_is_read_once_as_long_as_it_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "SETTLED_AFTER_S", 0.0)
    read: list[str] = []
    path = tmp_path / "x"

    @by_state
    def content(name: str) -> str:
        read.append(name)
        return Path(name).read_text("utf-8")

    path.write_text("a")
    assert [content(str(path)), content(str(path)), len(read)] == ["a", "a", 1]
    path.write_text("longer")
    assert [content(str(path)), len(read)] == ["longer", 2]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        content(str(path))


def test_what_may_change_within_a_tick_of_the_clock_is_read_again(tmp_path: Path) -> None:
    path, numbers = tmp_path / "x", iter("12")
    path.write_text("a")
    os.utime(path)
    content = by_state(lambda _: next(numbers))
    assert [content(str(path)), content(str(path))] == ["1", "2"]


def test_a_link_laid_where_a_file_is_being_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / f"x.{os.getpid()}.part").symlink_to(tmp_path / "other")
    write_whole(str(tmp_path / "x"), b"new")
    assert ((tmp_path / "other").read_text(), (tmp_path / "x").read_text()) == ("precious", "new")


@pytest.mark.parametrize("limit", [131_072, 10**7])  # the default of csv, and one that another reader has set
def test_a_cell_beyond_reason_is_refused(limit: int) -> None:
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(FileFormatError, match=r"lengths.csv is not a table .* than 100,000 characters"):
            list(parse_csv(f"a,b\n{'x' * 100_001},1\n", "lengths.csv"))
        assert list(parse_csv(f"a,b\n{'x' * 100_000},1\n", "lengths.csv"))[1] == ["x" * 100_000, "1"]
    finally:
        csv.field_size_limit(before)
