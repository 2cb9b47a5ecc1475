"""The server as a user starts it: on this machine alone, ended by Ctrl-C, quiet."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from finegauge.cli.servers import _HEADERS_WITHIN_S, HOST
from tests.e2e.commands import finegauge
from tests.e2e.processes import children, descendants, gone

pytestmark = pytest.mark.extras

RUN = {"run": {"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}}


class Served:
    """A server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "finegauge", "serve", "--port", "0"], cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        self.port = urlsplit(next(word for word in self.said.split() if "://" in word)).port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = HTTPConnection(HOST, self.port or 0, timeout=60)
        connection.request(method, path, body, {name.replace("_", "-"): one for name, one in headers.items()})
        got = connection.getresponse()
        content = got.read()
        assert got.headers["Content-Security-Policy"]
        connection.close()
        return got.status, content


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("folder"))
    yield found
    if found.process.poll() is None:
        found.process.send_signal(signal.SIGINT)
    found.process.wait(30)


def test_page_and_answers_over_http(served: Served) -> None:
    assert f"http://127.0.0.1:{served.port}/ (this machine only)" in served.said
    status, page = served.ask("GET", "/")
    assert status == 200
    assert b"<form" in page
    form = urlencode({"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}).encode()
    kind = "application/x-www-form-urlencoded"
    assert served.ask("POST", "/answer", form, content_type=kind)[0] == 200
    asked = json.dumps(RUN).encode()
    status, answer = served.ask("POST", "/api/v1/check", asked, content_type="application/json")
    assert status == 200
    told: Any = json.loads(answer)
    assert told["results"][0]["verdict"] == "fits"
    assert served.ask("GET", "/", host="evil.example")[0] == 400


def test_a_form_without_a_script_passes_as_chromium_sends_it(served: Served) -> None:
    form = urlencode({"model": "llama-3-8b", "method": "qlora", "gpu": "A40"}).encode()
    status, page = served.ask(
        "POST", "/", form, content_type="application/x-www-form-urlencoded", sec_fetch_site="same-origin",
        origin=f"http://127.0.0.1:{served.port}", referer=f"http://127.0.0.1:{served.port}/",
    )  # fmt: skip
    assert status == 200
    assert b"<form" in page


def test_nobody_else_reaches_it(served: Served) -> None:
    listening = Path("/proc/net/tcp").read_text("ascii") + Path("/proc/net/tcp6").read_text("ascii")
    port = f"{served.port:04X}"
    local = [line.split()[1] for line in listening.splitlines()[1:] if line.split()[3:4] == ["0A"]]
    assert {one.partition(":")[0] for one in local if one.endswith(f":{port}")} == {"0100007F"}


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def test_a_request_that_never_ends_is_left(
    served: Served,
    sent: bytes,
) -> None:
    with socket.create_connection((HOST, served.port or 0), timeout=30) as waiting:
        waiting.sendall(sent)
        since = time.monotonic()
        while waiting.recv(4096):
            pass
        assert time.monotonic() - since < _HEADERS_WITHIN_S + 8


def test_a_killed_process_is_not_missed(served: Served) -> None:
    for size in range(512, 517):
        server = served.process.pid
        for worker in descendants(server).difference(children(server)):
            os.kill(worker, signal.SIGKILL)
        asked = json.dumps({"run": RUN["run"] | {"seq_len": size}}).encode()
        assert served.ask("POST", "/api/v1/check", asked, content_type="application/json")[0] == 200
        assert served.ask("GET", "/health")[0] == 204


def test_a_taken_port_is_said_with_the_way_out(served: Served) -> None:
    done = finegauge("serve", "--port", str(served.port))
    assert done.code == 64
    assert done.err.count("\n") == 1
    assert f"Port {served.port} cannot be used" in done.err
    assert "add --port" in done.err


def test_a_port_of_the_system_is_told_another_way() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        done = finegauge("serve", "--port", str(taken.getsockname()[1]))
    assert done.code == 64


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegauge.cli.servers.find_spec", lambda name: None)
    done = finegauge("serve")
    assert done.code == 64
    assert "pip install 'finegauge[web]'" in done.err
    assert done.err.count("\n") == 1


def test_ctrl_c_ends_it_quietly_with_all_its_processes(served: Served) -> None:
    begun = descendants(served.process.pid)
    assert begun
    os.kill(served.process.pid, signal.SIGINT)
    out, err = served.process.communicate(timeout=30)
    assert served.process.returncode == 0
    assert err == ""
    assert out == ""
    assert gone(begun)
