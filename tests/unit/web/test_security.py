"""Strangers are refused, and every answer forbids what a page does not need."""

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from starlette.testclient import TestClient

from finegauge.web.api import API
from finegauge.web.assets import Asset, assets, url
from finegauge.web.guard import HEADERS
from tests.unit.web.inline import BASE, client

RUN = {"run": {"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}}


@pytest.fixture(scope="module")
def browser() -> Iterator[TestClient]:
    with client() as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("GET", "/openapi.json", {}),
        ("GET", f"{API}/gpus?pattern=h100", {}),
        ("GET", "/no/such/page", {}),
        ("PUT", f"{API}/gpus", {}),
        ("HEAD", "/openapi.json", {}),
        ("GET", "/static/no-such-file.css", {}),
        ("GET", "/favicon.ico", {}),
        ("POST", f"{API}/check", {"json": RUN}),
        ("POST", f"{API}/check", {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("POST", f"{API}/check", {"content": b"x" * 300_000}),
        ("POST", "/answer", {"data": {"micro_batch_size": "0"}}),
        ("POST", "/answer", {"content": b"x", "headers": {"content-type": "text/plain"}}),
        ("GET", "/", {"headers": {"host": "evil.example"}}),
        ("POST", f"{API}/check", {"json": RUN, "headers": {"origin": "http://evil.example"}}),
    ],
)
def test_every_answer_has_the_headers(
    method: str, path: str, asked: dict[str, Any], browser: TestClient
) -> None:
    got = browser.request(method, path, **asked)
    for name, value in HEADERS.items():
        assert got.headers[name] == value
    assert "cache-control" in got.headers
    assert not [name for name in got.headers if name.startswith("access-control")]


def test_an_error_of_our_own_has_the_headers(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("finegauge.web.app.form_fields", breaks)
    got = browser.get(f"{API}/gpus")
    assert got.status_code == 500
    assert got.json()["error"].startswith("Internal error (ZeroDivisionError")
    assert got.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_the_policy_allows_no_code_in_a_page() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert "*" not in policy


@pytest.mark.parametrize(
    ("tag", "directive"), [("style", "style-src "), ("script", "script-src 'self' ")], ids=["style", "script"]
)
def test_the_policy_allows_the_style_and_the_script_of_the_page_and_no_other(
    browser: TestClient, tag: str, directive: str
) -> None:
    page = browser.get("/").text
    (text,) = re.findall(rf"<{tag}(?: [^>]*)?>(.*?)</{tag}>", page, re.DOTALL)
    hash_text = b64encode(sha256(text.encode()).digest()).decode()
    assert f"{directive}'sha256-{hash_text}';" in HEADERS["Content-Security-Policy"]
    assert " style=" not in page


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("127.0.0.1:8317", True),
        ("127.0.0.1", True),
        ("LOCALHOST:80", True),
        ("[::1]:8317", True),
        ("evil.example", False),
        ("evil.example:8317", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8317", False),
        ("127.0.0.1:8317@evil.example", False),
        ("127.0.0.1:evil", False),
        ("192.168.0.7:8317", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_answered(host: str, passes: bool, browser: TestClient) -> None:
    assert browser.get("/openapi.json", headers={"host": host}).status_code == (200 if passes else 400)


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": BASE}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, False),
    ],
)
def test_only_its_own_page_may_ask_to_compute(
    headers: dict[str, str], passes: bool, browser: TestClient
) -> None:
    got = browser.post(f"{API}/check", json=RUN, headers=headers)
    assert got.status_code == (200 if passes else 403)


def test_a_link_from_elsewhere_opens(browser: TestClient) -> None:
    for dest in ({}, {"sec-fetch-dest": "document"}):
        assert (
            browser.get("/openapi.json", headers={"sec-fetch-site": "cross-site"} | dest).status_code == 200
        )


@pytest.mark.parametrize("dest", ["image", "iframe", "empty", "script"])
def test_a_page_elsewhere_makes_it_compute_nothing(dest: str, browser: TestClient) -> None:
    asked = {"sec-fetch-dest": dest, "sec-fetch-site": "cross-site"}
    for path in ("/download/plan.zip?model=llama-3-8b", f"{API}/gpus", "/?model=llama-3-8b"):
        assert browser.get(path, headers=asked).status_code == 403
        assert browser.get(path, headers=asked | {"sec-fetch-site": "same-origin"}).status_code != 403


@pytest.mark.parametrize("name", ["..%2fapp.py", "../app.py", "%2e%2e/security.py", "/etc/passwd", ""])
def test_no_file_but_those_of_the_page(name: str, browser: TestClient) -> None:
    assert browser.get(f"/static/{name}").status_code == 404


def test_a_file_is_kept_under_the_hash_of_its_content(browser: TestClient) -> None:
    first = browser.get(url("page.js"))
    assert first.status_code == 200
    assert first.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert first.headers["content-type"].startswith("text/javascript")
    again = browser.get("/static/page.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.headers["cache-control"] == "no-cache"
    assert again.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    changed = browser.get("/static/page.js", headers={"if-none-match": '"another"'})
    assert changed.status_code == 200


def test_answers_are_packed_where_the_browser_takes_it(browser: TestClient) -> None:
    packed = browser.get("/openapi.json", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = browser.get("/openapi.json", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()


def test_files_have_types() -> None:
    assert all(isinstance(one, Asset) and one.content for one in assets().values())
    assert {one.media_type for one in assets().values()} >= {"text/javascript", "image/svg+xml"}
