"""A refresh against a real server that serves the documented quirks, and without one."""

import io
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from finegauge.catalogue import refresh
from finegauge.catalogue.offers import offers, refreshed_path
from finegauge.catalogue.refresh import refresh_offers
from finegauge.errors import InputError, UnsupportedError


def python_literal(mib: float) -> str:
    return f"\"{{'Gpus': [{{'Name': 'X', 'Count': 8.0, 'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}}\""


AWS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,"
    "AvailabilityZone,GpuInfo\n"
    f"p4d.24xlarge,A100,8.0,96.0,1152.0,21.96,9.5,us-east-1,us-east-1a,{python_literal(40960)}\n"
    f"p4d.24xlarge,A100,8.0,96.0,1152.0,21.96,8.5,us-east-1,us-east-1b,{python_literal(40960)}\n"
    f"p5.48xlarge,H100,8.0,192.0,2048.0,,30.1,us-west-2,us-west-2a,{python_literal(81920)}\n"
    f"x1,UnheardOf,1,8.0,32.0,1.0,,us-west-2,us-west-2a,{python_literal(12345)}\n"
    "m7i.large,,,2.0,8.0,0.1,0.04,us-east-1,us-east-1a,\n"
    "broken,A100,8.0,96.0,1152.0,,,us-east-1,us-east-1a,\n"
)
# Another order of columns, JSON in GpuInfo, "A100" of 80 GB.
VERDA = (
    "Region,InstanceType,Price,AcceleratorCount,AcceleratorName,GpuInfo,vCPUs,MemoryGiB,SpotPrice\n"
    'FIN-01,1A100.22V,1.99,1,A100,"{""Gpus"": [{""Count"": ""1"", ""MemoryInfo"": '
    '{""SizeInMiB"": 81920}}]}",22,120,0.9\n'
)
# GiB in the field for MiB; spot price equal to the price.
RUNPOD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,"
    "AvailabilityZone,GpuInfo\n"
    f"1x_A40_SECURE,A40,1.0,9.0,50.0,0.44,0.44,US,US-1,{python_literal(48)}\n"
)
FILES: dict[str, str | bytes] = {
    "/v8/aws/vms.csv": AWS,
    "/v8/verda/vms.csv": VERDA,
    "/v8/runpod/vms.csv": RUNPOD,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = FILES.get(self.path, "")
        body = text if isinstance(text, bytes) else text.encode()
        self.send_response(200 if body else 429)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{httpd.server_address[1]}"
    monkeypatch.setenv("FINEGAUGE_OFFERS_URL", address)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield address
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.usefixtures("server")
def test_refresh_replaces_shipped_prices() -> None:
    before = offers("A100-40GB", provider="aws")
    done = refresh_offers()
    assert done.fetched == ("aws", "runpod", "verda")
    assert "gcp: HTTP 429" in done.failed
    assert done.num_offers == 5
    (a100,) = offers("A100-40GB", provider="aws")
    assert before != (a100,)
    assert (a100.on_demand_usd_per_h, a100.spot_usd_per_h) == (21.96, 8.5)  # the lowest of two zones
    assert a100.gpu_count == 8
    assert a100.date == done.date
    assert Path(done.path) == Path(refreshed_path())


@pytest.mark.usefixtures("server")
def test_quirks() -> None:
    refresh_offers()
    (spot_only,) = offers("H100", provider="aws")
    assert spot_only.on_demand_usd_per_h is None
    assert spot_only.tier == "spot"
    (verda,) = offers("A100-80GB", provider="verda")
    assert verda.on_demand_usd_per_h == 1.99
    assert not any(offer.date == verda.date for offer in offers("A100-40GB", provider="verda"))
    (runpod,) = offers("A40", provider="runpod")
    assert runpod.instance_type == "1x_A40_SECURE"
    (unheard,) = [offer for offer in offers(provider="aws") if offer.gpu_printed == "UnheardOf"]
    assert unheard.gpu == ""
    assert len(offers(provider="azure")) == 758  # what was not fetched stays
    assert any(offer.is_ranked for offer in offers("a40"))


def test_offline_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_OFFERS_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(UnsupportedError, match="the prices at hand stay in use") as caught:
        refresh_offers()
    assert "\n" not in str(caught.value)
    assert not Path(refreshed_path()).exists()
    assert len(offers()) == 1481


def test_only_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_OFFERS_URL", "file:///etc")
    with pytest.raises(UnsupportedError, match=r"not an http\(s\) address"):
        refresh_offers()


def test_not_the_expected_columns(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server
    monkeypatch.setitem(FILES, "/v8/aws/vms.csv", "a,b\n1,2\n")
    with pytest.raises(UnsupportedError, match="no column"):
        refresh_offers(["aws"])


def test_torn_cache_is_ignored(server: str) -> None:
    refresh_offers()
    path = Path(refreshed_path())
    path.write_text(path.read_text("utf-8")[:-40], "utf-8")
    assert server
    assert len(offers()) == 1481


def test_unwritable_cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="FINEGAUGE_CACHE_DIR"):
        refresh_offers()


# dstack's catalogue: a row per market, gigabytes of memory, one archive per cloud.
DSTACK = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor\n"
    "Standard_ND96isr_H100_v5,eastus,98.32,96,1900.0,8,H100,80.0,False,,nvidia\n"
    "Standard_ND96isr_H100_v5,eastus,40.5,96,1900.0,8,H100,80.0,True,,nvidia\n"
    "Standard_D2,eastus,0.1,2,8.0,0,,,False,,\n"
)


def zipped(name: str, text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, text)
    return packed.getvalue()


def test_the_second_source_has_what_the_first_lacks(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server
    monkeypatch.setitem(FILES, "/v3/azure/version", "20261120\n")
    monkeypatch.setitem(FILES, "/v3/azure/20261120/catalog.zip", zipped("azure.csv", DSTACK))
    done = refresh_offers(["aws", "azure"])
    assert done.fetched == ("aws", "azure")
    (h100,) = offers("h100", provider="azure")
    assert (h100.on_demand_usd_per_h, h100.spot_usd_per_h) == (98.32, 40.5)  # two rows of one instance
    assert (h100.gpu_count, h100.source, h100.tier) == (8, "dstack-catalog", "on-demand")


@pytest.mark.parametrize(
    ("version", "archive"),
    [
        ("../../etc", b"x"),
        ("1", b"no archive"),
        ("1", zipped("other.csv", DSTACK)),
        ("1", zipped("azure.csv", "a,b\n1,2\n")),
    ],
)
def test_a_second_source_that_cannot_be_read(
    server: str, monkeypatch: pytest.MonkeyPatch, version: str, archive: bytes
) -> None:
    assert server
    monkeypatch.setitem(FILES, "/v3/azure/version", version)
    monkeypatch.setitem(FILES, f"/v3/azure/{version}/catalog.zip", archive)
    with pytest.raises(UnsupportedError, match="azure: HTTP 429"):  # what the first source said
        refresh_offers(["azure"])


def test_tiers_are_kept(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server
    monkeypatch.setitem(FILES, "/v8/vast/vms.csv", RUNPOD)
    refresh_offers(["runpod", "vast"])
    (vast,), (runpod,) = offers("a40", provider="vast-ai"), offers("a40", provider="runpod")
    assert (vast.tier, vast.is_ranked) == ("marketplace", False)  # its lowest host, seldom the one you get
    assert (runpod.tier, runpod.is_ranked) == ("secure", True)


BROKEN = (
    'a"b"c,"open,A100,8,96,1152,21.96,9.5,us-east-1,us-east-1a,\n'
    "p4d,A100,many,96,1152,21.96,9.5,us-east-1,us-east-1a,\n"
    "p4d,A100,8,96,1152,nan,9.5,us-east-1,us-east-1a,\n"
    "p4d,A100,8\n"
    f"{'x' * 200_000},A100,8,96,1152,21.96,9.5,us-east-1,us-east-1a,\n"
)


def test_broken_rows_are_left_out_and_counted(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FILES, "/v8/aws/vms.csv", AWS + BROKEN + "\0\n" + AWS.splitlines()[3])
    done = refresh_offers(["aws"])
    assert done.num_skipped == 6
    assert done.num_offers == 3
    assert {offer.instance_type for offer in offers("H100", provider="aws")} == {"p5.48xlarge"}


def test_a_refresh_has_a_deadline(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refresh_offers(["aws"])
    before = Path(refreshed_path()).read_bytes()

    def drips(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while True:
                handler.wfile.write(b"x")
                time.sleep(0.02)

    monkeypatch.setattr(_Handler, "do_GET", drips)
    monkeypatch.setattr(refresh, "DEADLINE_S", 0.5)
    begun = time.monotonic()
    with pytest.raises(UnsupportedError, match=r"not all of it came within 0 s|no time was left"):
        refresh_offers()
    assert time.monotonic() - begun < 5
    assert Path(refreshed_path()).read_bytes() == before
