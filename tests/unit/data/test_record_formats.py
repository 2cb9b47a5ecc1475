"""Records of every format, and what none of them is."""

from typing import Any

import pytest

from finegauge.data.record_formats import Chat, Counted, Instruction, Pair, Plain, Unreadable, read_record
from tests.unit.data.made import talk

SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("record", "name", "said"),
    [
        ("a text", "text", Plain("a text")),
        ({"text": "a text", "id": 3}, "text", Plain("a text")),
        ({"messages": talk("a", "b")}, "messages", Chat(talk("a", "b"))),
        (talk("a", "b"), "messages", Chat(talk("a", "b"))),
        ({"conversations": SHAREGPT}, "sharegpt", Chat(talk("a", "b"))),
        ({"conversations": SHAREGPT, "system": "s"}, "sharegpt", Chat(talk("a", "b", system="s"))),
        ({"conversations": talk("a", "b")}, "sharegpt", Chat(talk("a", "b"))),
        ({"messages": SHAREGPT}, "messages", Chat(talk("a", "b"))),
        ({"messages": talk("a"), "tools": '[{"name": "f"}]'}, "messages", Chat(talk("a"), [{"name": "f"}])),
        ({"instruction": "a", "input": "", "output": "b"}, "alpaca", Instruction("a", "", "b", "", ())),
        (
            {"instruction": "a", "input": None, "output": "b", "system": "s", "history": [["c", "d"]]},
            "alpaca",
            Instruction("a", "", "b", "s", (("c", "d"),)),
        ),
        ({"instruction": "a", "output": "b", "text": "a b"}, "alpaca", Instruction("a", "", "b", "", ())),
        ({"prompt": "a", "completion": "b"}, "prompt-completion", Pair("a", "b")),
        ({"question": "a", "answer": "b"}, "prompt-completion", Pair("a", "b", "\n")),
        (
            {"prompt": talk("a"), "completion": [{"role": "assistant", "content": "b"}]},
            "prompt-completion",
            Chat(talk("a", "b")),
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference", Pair("a", "b")),
        ({"chosen": talk("a", "b"), "rejected": talk("a", "c")}, "preference", Chat(talk("a", "b"))),
        ({"input_ids": [1, 2, 3]}, "tokens", Counted([1, 2, 3], 3)),
        ({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}, "tokens", Counted([1, 2, 3], 2)),
    ],
)
def test_formats(record: Any, name: str, said: Any) -> None:
    assert read_record(record, None) == (name, said)
    assert read_record(record, name) == (name, said)


def test_a_format_of_ones_own_choice() -> None:
    record = {"instruction": "a", "output": "b", "text": "### a ### b"}
    assert read_record(record, "text") == ("text", Plain("### a ### b"))
    with pytest.raises(Unreadable, match="instruction, output, text is no record of format messages"):
        read_record(record, "messages")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (3, "'3' is neither a text nor a mapping"),
        (None, "neither a text nor a mapping"),
        ({}, r"none of the keys \(none\) holds its text"),
        ({"body": "alpha"}, "none of the keys body holds its text"),
        ({"text": 3}, "none of the keys text"),
        ({"messages": [{"role": "user"}]}, "a turn of the conversation has no text"),
        ({"messages": ["hello"]}, "a turn of the conversation is no mapping"),
        ({"conversations": [{"from": "human", "value": 3}]}, "does not say who speaks, or what"),
        ({"instruction": "a", "output": "b", "history": 3}, "history is no list of pairs"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "history is no list of pairs"),
        ({"input_ids": ["a"]}, "input_ids holds more than token numbers"),
        ({"messages": talk("a"), "tools": "{"}, "tools is no JSON"),
        ({"prompt": 3, "completion": [3]}, "none of the keys"),
    ],
)
def test_what_is_no_record(record: Any, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_record(record, None)
