"""A model that the catalogue lacks: from the Hub's cache, fetched from a local server, or a way out."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from finegauge.catalogue import hub
from tests.e2e.commands import finegauge

NAME = "somebody/nobody-knows-7b"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    **{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000},
}


class Hub(ThreadingHTTPServer):
    """A server that answers as the Hub does, or as it should not."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str]] = []  # path, Authorization

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        code, headers, body = self.server.answers.get(self.path, (404, {"X-Error-Code": "RepoNotFound"}, b""))
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def started() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for one in started():
        monkeypatch.setenv("HF_ENDPOINT", f"{one.address}/")
        yield one


def path_of(name: str = NAME) -> str:
    return f"/{name}/resolve/main/config.json"


def config(**changes: Any) -> bytes:
    return json.dumps(CONFIG | changes).encode()


def test_it_is_fetched_once_and_said(server: Hub, tmp_path: Path) -> None:
    server.answers[path_of()] = (200, {"X-Repo-Commit": COMMIT}, config())
    done = finegauge("estimate", NAME, "--gpu", "l4", "--json")
    assert done.code == 0
    assert done.err.startswith(f"Fetched {NAME}/config.json (0.2 kB) from {server.address}, kept as ")
    kept = (
        tmp_path
        / "cache"
        / "hub"
        / "models--somebody--nobody-knows-7b"
        / "snapshots"
        / COMMIT
        / "config.json"
    )
    assert json.loads(kept.read_text("utf-8")) == CONFIG
    assert json.loads(done.out)["run"]["model"] == NAME
    again = finegauge("check", f"https://huggingface.co/{NAME}", "--gpu", "l4")
    assert (again.code, again.err) == (0, "")
    assert server.asked == [(path_of(), "")]


def test_a_training_file_that_names_it(server: Hub, tmp_path: Path) -> None:
    server.answers[path_of()] = (200, {}, config())
    (tmp_path / "run.yaml").write_text(f"model: {NAME}\nmethod: lora\ntensor_parallel: 2\n", "utf-8")
    assert finegauge("plan", str(tmp_path / "run.yaml"), "--gpus", "L4").code == 0


def test_the_cache_of_huggingface_hub_comes_first(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "hub" / "models--somebody--nobody-knows-7b"
    for commit, width in (("a" * 40, 128), ("b" * 40, 256)):
        (folder / "snapshots" / commit).mkdir(parents=True)
        (folder / "snapshots" / commit / "config.json").write_bytes(config(hidden_size=width))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40, "utf-8")
    done = finegauge("estimate", NAME, "--gpu", "l4", "--offline")
    assert (done.code, done.err, server.asked) == (0, "", [])
    assert hub.cached_config(NAME) == str(folder / "snapshots" / ("a" * 40) / "config.json")
    (folder / "refs" / "main").write_text("../../../../etc", "utf-8")
    assert str(hub.cached_config(NAME)).startswith(str(folder / "snapshots"))


def test_the_token_goes_to_the_first_host_alone(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for other in started():
        elsewhere = "/elsewhere/config.json"
        server.answers[path_of()] = (307, {"Location": "/moved", "X-Repo-Commit": COMMIT}, b"")
        server.answers["/moved"] = (302, {"Location": other.address + elsewhere}, b"")
        other.answers[elsewhere] = (200, {}, config())
        assert finegauge("estimate", NAME, "--gpu", "l4").code == 0
        assert server.asked == [(path_of(), "Bearer hf_secret"), ("/moved", "Bearer hf_secret")]
        assert other.asked == [(elsewhere, "")]


@pytest.mark.parametrize(("words", "variable"), [(("--offline",), ""), ((), "HF_HUB_OFFLINE")])
def test_offline_asks_nobody(
    server: Hub, words: tuple[str, ...], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "1")
    done = finegauge("estimate", NAME, "--gpu", "l4", *words)
    assert (done.code, server.asked) == (64, [])
    assert (
        f"{NAME} is not in the catalogue, and {variable or '--offline'} forbids asking 127.0.0.1" in done.err
    )
    assert f"'hf download {NAME} config.json' fetches it; or name a config.json in its place." in done.err


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {"X-Error-Code": "RepoNotFound"}, b""), "knows no such model, or it is private"),
        ((404, {"X-Error-Code": "EntryNotFound"}, b""), "has no config.json there"),
        (
            (403, {"X-Error-Code": "GatedRepo"}, b""),
            "is gated, and HF_TOKEN is not set: accept them at http://",
        ),
        ((500, {}, b""), "answered HTTP 500"),
        ((200, {}, b"<html>"), "is not JSON"),
        ((200, {}, b"[1, 2]"), "describes no model"),
        ((200, {}, b'{"a": 1}'), "describes no model"),
        ((200, {}, b"\xff\xfe"), "is not UTF-8 text"),
        ((200, {}, b" " * 2_100_000), "is over 2 MB"),
        ((302, {"Location": "/somebody/nobody-knows-7b/resolve/main/config.json"}, b""), "HTTP 302"),
        ((302, {"Location": "ftp://127.0.0.1/x"}, b""), "HTTP 302"),
        ((302, {"Location": "file:///etc/hostname"}, b""), "HTTP 302"),
    ],
)
def test_what_is_no_config_is_refused(
    server: Hub, answer: tuple[int, dict[str, str], bytes], sentence: str, tmp_path: Path
) -> None:
    server.answers[path_of()] = answer
    done = finegauge("estimate", NAME, "--gpu", "l4")
    assert done.code == 64
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "cache" / "hub").exists()
    assert len(server.asked) <= hub.MAX_REDIRECTS + 2


def test_a_mistyped_name_says_what_is_close(server: Hub) -> None:
    done = finegauge("estimate", "Qwen/Qwen3-8", "--gpu", "l4")
    assert "knows no such model, or it is private" in done.err
    assert "Did you mean 'Qwen/Qwen3-8B'" in done.err


@pytest.mark.parametrize("endpoint", ["file:///etc", "nonsense"])
def test_an_endpoint_that_is_none(server: Hub, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert "is no http(s) address" in finegauge("estimate", NAME, "--gpu", "l4").err


def test_a_server_that_is_not_there(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9 cannot be reached" in finegauge("estimate", NAME, "--gpu", "l4").err


def test_a_server_that_drips_is_left(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "DEADLINE_S", -1.0)
    server.answers[path_of()] = (200, {}, config())
    assert "cannot be reached (no answer within" in finegauge("estimate", NAME, "--gpu", "l4").err
