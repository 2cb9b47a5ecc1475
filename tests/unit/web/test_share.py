"""The link: what goes in comes out, and nothing else does."""

import base64
import contextlib
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.errors import FieldError
from finegauge.web.form import MAX_DOCUMENT, State, state_of, token_of


def token(content: object) -> str:
    """Return a token that carries any JSON."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(json.dumps(content).encode()) + packer.flush()
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


@settings(max_examples=40)
@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=300),
    st.sampled_from(["A40", "7"]),
)
def test_a_token_carries_the_state(document: str, gpu: str) -> None:
    state = State(document, {"gpu": gpu, "seq_len": "512"})
    assert state_of(token_of(state) or "") == state


def test_nothing_is_an_empty_token() -> None:
    assert token_of(State()) == ""
    assert state_of("") == State()


def test_what_does_not_shrink_is_too_long_for_a_link() -> None:
    noise = "".join(chr(0x4E00 + (7919 * n) % 20_000) for n in range(20_000))
    assert token_of(State(noise)) is None


@settings(max_examples=60)
@given(st.text(max_size=80))
def test_any_text_is_a_state_or_one_sentence(text: str) -> None:
    with contextlib.suppress(FieldError):  # and no other error
        assert isinstance(state_of(text), State)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"d": 1, "o": {}},
        {"d": ""},
        {"d": "", "o": []},
        {"d": "", "o": {"gpu": 4}},
        {"d": "x" * 40 * MAX_DOCUMENT, "o": {}},
    ],
    ids=["list", "number", "half", "no mapping", "number within", "bomb"],
)  # fmt: skip
def test_a_forged_token_is_refused(content: object) -> None:
    with pytest.raises(FieldError, match="damaged"):
        state_of(token(content))


def test_unknown_names_are_dropped() -> None:
    assert state_of(token({"d": "", "o": {"gpu": "A40", "__class__": "x"}})) == State("", {"gpu": "A40"})
