"""A server for others: under which names, with which token, how often, below which path; what it counts."""

import os
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from finegauge.web import jobs, workers
from finegauge.web.api import API
from finegauge.web.assets import later_scripts
from finegauge.web.guard import BURST_S, MOST_CLIENTS, SEARCH_COSTS, Access, Rates
from finegauge.web.storage import BOUNDS_S, Figures, Metrics
from tests.unit.web.inline import client

NAME = "gauge.example.org"
WHOLE = ("index", "submitted", "report")  # what is no fragment
ROOT = "/tools/finegauge"
TOKEN = "open-sesame"
RUN = {"run": {"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}}
SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\\\n]*"(,[a-z]+="[^"\\\n]*")*\})? [0-9.e+-]+')


@pytest.fixture(scope="module")
def below() -> Iterator[TestClient]:
    with client(Access(names=(NAME,), root_path=ROOT), f"http://{NAME}") as found:
        yield found


@pytest.mark.parametrize(
    ("host", "named", "by_address"),
    [
        (NAME, True, False),
        (f"{NAME.upper()}:8443", True, False),
        ("127.0.0.1:8317", True, True),
        ("10.1.2.3:8317", False, True),
        ("[fd00::7]:8317", False, True),
        (f"evil.{NAME}", False, False),
        (f"{NAME}.evil.example", False, False),
        ("10.1.2.3.evil.example", False, False),
        ("evil.example", False, False),
        ("", False, False),
    ],
)
def test_names_that_were_stated_and_addresses_are_answered(host: str, named: bool, by_address: bool) -> None:
    for access, passes in ((Access(names=(NAME,)), named), (Access(by_address=True), by_address)):
        got = client(access).get("/live", headers={"host": host})
        assert got.status_code == (204 if passes else 400)
        assert passes or "--allow-host" in got.text


def test_another_site_is_refused_under_a_stated_name_too() -> None:
    browser = client(Access(names=(NAME,)), f"http://{NAME}")
    for origin, status in ((f"https://{NAME}", 200), ("https://evil.example", 403), ("null", 403)):
        assert browser.post(f"{API}/check", json=RUN, headers={"origin": origin}).status_code == status


def basic(user: str, password: str) -> str:
    """Return what a browser sends for a name and a password."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("sent", "passes"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (basic("me", TOKEN), True),
        (basic("", TOKEN), True),
        (basic(TOKEN, ""), False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN}x", False),
        (f"Token {TOKEN}", False),
        ("Basic %%%", False),
        ("Basic", False),
        ("Bearer \u00e4".encode().decode("latin-1"), False),
        ("", False),
    ],
)
def test_a_token_is_asked_of_everybody_but_probes(sent: str, passes: bool) -> None:
    browser = client(Access(token=TOKEN))
    headers = {b"authorization": sent.encode("latin-1")} if sent else {}
    for path in ("/", f"{API}/gpus?pattern=h100", "/metrics", "/openapi.json", "/static/page.js"):
        got = browser.get(path, headers=headers)
        assert got.status_code == (200 if passes else 401), path
        assert passes or got.headers["www-authenticate"].startswith("Basic ")
        assert TOKEN not in got.text
    assert browser.get("/health").status_code == 204
    assert browser.get("/live").status_code == 204


def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    browser = client(Access(requests_per_s=0.2))  # two at once
    assert [browser.get("/openapi.json").status_code for _ in range(3)] == [200, 200, 429]
    refused = browser.get(f"{API}/gpus")
    assert 1 <= int(refused.headers["retry-after"]) <= 5
    assert "0.2 requests a second" in refused.json()["error"]
    assert browser.get("/health").status_code == 204  # a probe waits for nobody


class Clock:
    """A clock that is set by hand."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_clients_have_a_rate_each() -> None:
    clock = Clock()
    rates = Rates(2.0, clock)
    at_once = int(2.0 * BURST_S)
    assert not any(rates.wait_s("10.0.0.1") for _ in range(at_once))
    assert rates.wait_s("10.0.0.1") == pytest.approx(0.5)
    assert not rates.wait_s("10.0.0.2")
    clock.now_s += 0.5
    assert not rates.wait_s("10.0.0.1")
    assert rates.wait_s("10.0.0.1") > 0
    clock.now_s += BURST_S
    assert not any(rates.wait_s("10.0.0.1", SEARCH_COSTS) for _ in range(at_once // int(SEARCH_COSTS)))
    assert rates.wait_s("10.0.0.1", SEARCH_COSTS) > 0
    assert not Rates(0.01, clock).wait_s("10.0.0.1", SEARCH_COSTS), "a single search is never too much"


def test_one_network_of_ipv6_is_one_client_and_their_number_is_bounded() -> None:
    rates = Rates(1.0 / BURST_S, Clock())
    assert not rates.wait_s("2001:db8:1:2::1")
    assert rates.wait_s("2001:db8:1:2:ffff::9") > 0
    assert not rates.wait_s("2001:db8:1:3::1")
    assert not rates.wait_s("::ffff:10.0.0.1")
    assert rates.wait_s("10.0.0.1") > 0
    for number in range(MOST_CLIENTS):
        rates.wait_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(rates._ahead_until_s) == MOST_CLIENTS


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.floats(0.5, 20))
def test_no_more_than_the_rate_passes(waits: list[float], rate: float) -> None:
    clock, passed = Clock(), 0
    rates, begun_s = Rates(rate, clock), clock.now_s
    for one in waits:
        clock.now_s += one
        passed += not rates.wait_s("10.0.0.1")
    assert passed <= rate * (clock.now_s - begun_s + BURST_S) + 1e-6


@pytest.mark.parametrize("prefix", ["", ROOT])
def test_a_proxy_may_strip_its_path_or_leave_it(prefix: str, below: TestClient) -> None:
    assert below.get(f"{prefix}/").status_code == 200
    assert below.get(f"{prefix}{API}/gpus?pattern=h100").json()
    assert below.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": ROOT}]
    assert below.get(f"{prefix}/no/such").status_code == 404


def test_the_path_alone_leads_to_the_page(below: TestClient) -> None:
    got = below.get(ROOT, follow_redirects=False)
    assert (got.status_code, got.headers["location"]) == (308, f"{ROOT}/")
    assert below.get(f"{ROOT}-other/").status_code == 404


def test_every_link_of_every_page_leads_below_the_path(below: TestClient) -> None:
    fields = {"model": "llama-3-8b", "gpu": "A40", "document": "model: /models/llama-3-8b\n"}
    texts = {
        "page": below.get("/").text,
        "": below.post("/", data=fields).text,
        **{name: below.post(f"/{name}", data=fields).text for name in jobs.PAGES if name not in WHOLE},
        "wrong": below.post("/download/run.yaml", data={"seq_len": "none"}).text,
    }
    for name, text in texts.items():
        links = re.findall(r'\s(?!data-value)((?:readonly )?[a-z-]+)="(/[^"]*)"', text)
        links = [link for link in links if link[0] != "value"]  # what is typed
        assert not [link for link in links if not link[1].startswith(f"{ROOT}/")], name
    page = texts["page"]
    assert f'action="{ROOT}/"' in page
    for link in re.findall(r'(?:href|src|data-htmx)="(/[^"#]*)"', page):
        assert below.get(link).status_code == 200, link
    replaced = below.post("/answer", data={"gpu": "A40"}).headers["hx-replace-url"]
    assert replaced.startswith(f"{ROOT}/?s=")


def test_what_is_typed_is_no_link(below: TestClient) -> None:
    typed = 'x" href="/evil'
    assert f"{ROOT}/evil" not in below.post("/", data={"document": f"model: '{typed}'"}).text
    report = below.post("/report", data={"model": "llama-3-8b", "gpu": "A40"})
    assert report.headers["content-disposition"].startswith("attachment")
    assert ROOT not in report.text


def counted(text: str, sample: str) -> float:
    """Return the number of one sample."""
    (number,) = re.findall(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(number)


def test_requests_are_counted_as_prometheus_reads_them() -> None:
    browser = client(Access(by_address=True))
    for path in ("/", "/openapi.json", "/openapi.json", "/no/such/1", "/no/such/2", "/static/page.js"):
        browser.get(path)
    browser.request('GE"T', "/")
    browser.get("/", headers={"host": "evil.example"})
    got = browser.get("/metrics")
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = got.text
    for line in text.splitlines():
        assert line.startswith(("# HELP finegauge_", "# TYPE finegauge_")) or SAMPLE.fullmatch(line), line
    requests = "finegauge_requests_total"
    assert counted(text, requests + '{path="/openapi.json",method="GET",status="200"}') == 2
    assert counted(text, requests + '{path="other",method="GET",status="404"}') == 2
    assert counted(text, requests + '{path="/static/",method="GET",status="200"}') == 1
    assert counted(text, requests + '{path="/",method="GET",status="400"}') == 1
    assert counted(text, requests + '{path="/",method="other",status="405"}') == 1
    assert counted(text, 'finegauge_request_duration_seconds_count{path="/"}') == 3
    assert counted(text, 'finegauge_request_duration_seconds_bucket{path="/",le="+Inf"}') == 3
    assert counted(text, 'finegauge_request_duration_seconds_sum{path="/"}') > 0
    assert requests + '{path="/metrics"' in browser.get("/metrics").text


def test_a_request_falls_into_the_bucket_that_holds_it() -> None:
    metrics = Metrics()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] + 1e-6, 99.0):
        metrics.add("/", "GET", 200, seconds)
    lanes = Figures({"questions": 3}, {"questions": 1}, {"questions": 2}, 10, 4)
    text = metrics.text("1.0", lanes)
    name = "finegauge_request_duration_seconds_bucket"
    within = [counted(text, f'{name}{{path="/",le="{bound}"}}') for bound in (*BOUNDS_S, "+Inf")]
    assert within == [2.0, *[3.0] * (len(BOUNDS_S) - 1), 4.0]
    assert counted(text, 'finegauge_workers_replaced_total{lane="questions"}') == 2
    assert counted(text, "finegauge_cache_hits_total") == 4


def test_a_container_has_the_cores_that_it_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(workers, "QUOTA", str(quota))
    for text, cores in (("150000 100000", 2), ("50000 100000", 1), ("max 100000", 64), ("nonsense", 64)):
        quota.write_text(text, "ascii")
        assert workers.num_cores() == cores
    quota.unlink()
    assert workers.num_cores() == 64
    assert workers.lanes(5)[0].workers == 5


def test_scripts_that_load_later_lie_below_the_path_of_a_proxy(below: TestClient) -> None:
    page = below.get(f"{ROOT}/").text
    (later,) = re.findall(r'data-later="([^"]+)"', page)
    names = later.split()
    assert [name.partition("?")[0] for name in names] == [f"static/{name}" for name in later_scripts()]
    for name in names:
        assert below.get(f"{ROOT}/{name}").headers["content-type"].startswith("text/javascript")
