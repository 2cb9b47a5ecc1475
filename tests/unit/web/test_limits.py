"""What goes beyond a limit is refused in a sentence, before it costs anything."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from finegauge.web import workers
from finegauge.web.api import API
from finegauge.web.workers import RefusedError, form_fields, json_object
from tests.unit.web.inline import client

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def browser() -> Iterator[TestClient]:
    with client() as found:
        yield found


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "line 1"),
        (b"{'a': 1}", 400, "no JSON"),
        (b"\xff\xfe{}", 400, "no JSON"),
        (b'{"a": "\xff"}', 400, "no JSON"),
        (b"[]", 422, "JSON object"),
        (b"null", 422, "JSON object"),
        (b'{"run": NaN}', 400, "NaN is no JSON"),
        (b'{"run": -Infinity}', 400, "-Infinity is no JSON"),
        (b'{"run": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 422, "nests too deep"),
        (b'{"run": ' + b"[" * 100_000, 422, "nests too deep"),
        (b'{"a": "' + b"[" * 1_000 + b'"}', 422, "unknown key"),
        (b'{"run": ' + b"9" * 5_000 + b"}", 422, "40 digits"),
        (b'{"run": {}, "run": {}}', 422, "stands twice"),
        (b'{"document": "\\u0000"}', 422, "NUL"),
        (b'{"document": "\\ud800"}', 422, "half a character"),
        (b'{"run": {"model": "\\udfff"}}', 422, "half a character"),
        (b'{"run": {"a\\u0000": 1}}', 422, "NUL"),
        (b'{"gpus": [' + b",".join([b'"a"'] * 3_000) + b"]}", 422, "too large"),
    ],
    ids=range(19),
)
def test_a_body_that_is_none(body: bytes, status: int, said: str, browser: TestClient) -> None:
    got = browser.post(f"{API}/check", content=body, headers=JSON)
    assert got.status_code == status
    assert said in got.json()["error"]


def test_a_text_in_json_is_told_by_its_key() -> None:
    with pytest.raises(RefusedError) as refused:
        json_object(b'{"run": {"model": "\\udfff"}}')
    assert refused.value.field == "model"


@pytest.mark.parametrize("length", [True, False], ids=["stated", "streamed"])
def test_a_long_body_is_not_read(length: bool, browser: TestClient) -> None:
    body = b"x" * (workers.MAX_BODY_BYTES + 1)
    content: Any = body if length else iter([body[:200_000], body[200_000:]])
    got = browser.post(f"{API}/check", content=content, headers=JSON)
    assert got.status_code == 413
    assert "256 KiB" in got.json()["error"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_type_is_refused(kind: str, browser: TestClient) -> None:
    got = browser.post(f"{API}/check", content=b"{}", headers={"content-type": kind})
    assert got.status_code == 415


def test_a_page_takes_forms_only(browser: TestClient) -> None:
    got = browser.post("/answer", content=b"{}", headers=JSON)
    assert got.status_code == 415
    assert got.headers["content-type"].startswith("text/plain")


def test_a_slow_body_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BODY_WITHIN_S", 0.01)

    async def never() -> AsyncIterator[Any]:
        await asyncio.sleep(60)
        yield {}

    async def receive() -> Any:
        return await anext(never())

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(RefusedError) as refused:
        asyncio.run(workers.body_of(Request(scope, receive), "application/json"))
    assert refused.value.status == 408


def test_a_long_link_is_not_read(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegauge.web.app.MAX_QUERY_BYTES", 1_000)
    got = browser.get(f"{API}/models?pattern={'x' * 1_100}")
    assert got.status_code == 414
    assert got.json()["error"]


@pytest.mark.parametrize(
    "text", [b"a=%00", b"a=%ed%a0%80", b"a=%ff", "a=\u00e4".encode("latin-1"), b"&".join([b"a=1"] * 300)]
)
def test_a_form_that_is_none(text: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        form_fields(text)
    assert refused.value.status == 422


def test_the_last_of_repeated_fields_counts() -> None:
    assert form_fields(b"a=1&a=2&b=%C3%A4+c&c=") == {"a": "2", "b": "ä c", "c": ""}


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789.eE-+tfn\\u ', max_size=200).map(str.encode)
)
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    try:
        found: object = json_object(body)
    except RefusedError as refused:
        found = refused.status, bool(refused.sentence)
    assert isinstance(found, dict) or found in ((400, True), (422, True))
