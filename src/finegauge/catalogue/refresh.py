"""Today's prices, from the public catalogues of SkyPilot and dstack, into this user's cache.

The user's machine fetches the files; FineGauge ships none of them. One CSV per cloud lists every
instance in every zone. A cloud that SkyPilot's catalogue [1] lacks is taken from dstack's [2], where
it has it. What the files are like, and what is done about it:

- the order of columns differs per cloud: they are read by header;
- one row per zone: rows of an instance in a region become one, at the lowest price;
- a price may be missing (sold as spot only, or the reverse): it stays unknown;
- the card's memory stands in `GpuInfo`, as JSON or as a Python literal, in MiB or (one cloud) in GiB;
- "A100" means 40 GB at one cloud and 80 GB at another: a card is known by name *and* memory;
- dstack's has a row for each market: spot and on demand of an instance become one;
- a marketplace's prices, and RunPod's secure and community clouds, keep their tier.

Broken rows are left out and counted. The whole has a deadline; a cloud that is not fetched by then counts as
failed.

Settings: FINEGAUGE_OFFERS_URL (the address in place of all hosts), FINEGAUGE_OFFERS_SCHEMA ("v8"),
FINEGAUGE_CACHE_DIR. Files are replaced whole, so a failure leaves the old prices in place.

[1] skypilot-org/skypilot-catalog; addresses as in skypilot 0.14.1 (sky/catalog/common.py)
[2] dstackai/gpuhunt src/gpuhunt/_internal/catalog.py: CATALOG_URL/<provider>/version, .../catalog.zip
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, NamedTuple

from finegauge.catalogue.gpus import GpuSpec, known_gpu
from finegauge.catalogue.offers import refreshed_path
from finegauge.catalogue.tables import read_shipped
from finegauge.documents import parse_csv, parse_yaml, write_whole
from finegauge.errors import FileFormatError, InputError, UnsupportedError
from finegauge.units import GIB

CLOUDS = ("aws", "gcp", "lambda", "runpod", "vast", "verda", "nebius", "shadeform", "cudo", "azure", "oci")
HOSTS = (
    "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs",
    "https://skypilot-catalog.s3.us-east-1.amazonaws.com/catalogs",
)
DSTACK = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com"
DSTACK_SCHEMA = "v3"
# What dstack's catalogue has of those clouds, as it calls them.
_OF_DSTACK = {name: name for name in ("aws", "azure", "gcp", "nebius", "oci", "runpod", "verda")}
_OF_DSTACK["lambda"] = "lambdalabs"
TIMEOUT_S = 20.0  # of one answer of the network
DEADLINE_S = 120.0  # of the whole
MAX_DOWNLOAD_BYTES = 50_000_000
_PROVIDERS = {"vast": "vast-ai"}  # where our name differs from the catalogue's
_MEMORY_TOLERANCE_FRACTION = 0.12  # a card sold as 24 GB may be listed as 22.5


class Refreshed(NamedTuple):
    """What a refresh brought."""

    num_offers: int
    fetched: tuple[str, ...]  # clouds
    failed: tuple[str, ...]  # clouds, each with the reason
    path: str
    date: str
    num_skipped: int = 0  # rows that are broken


def refresh_offers(clouds: Iterable[str] = CLOUDS) -> Refreshed:
    """Fetch the prices of `clouds` into the user's cache and return what came.

    Raises: UnsupportedError if none could be fetched; the prices at hand then stay as they are.
    """
    from datetime import UTC, datetime
    from http.client import HTTPException

    today, until_s = datetime.now(UTC).date().isoformat(), monotonic() + DEADLINE_S
    rows: list[dict[str, str]] = []
    fetched, failed, num_skipped = [], [], 0
    for cloud in clouds:
        try:
            found, skipped = _offers_of(cloud, _lines_of(cloud, until_s), today)
        except (OSError, ValueError, HTTPException) as error:
            failed.append(f"{cloud}: {_reason(error)}")
        else:
            rows += found
            num_skipped += skipped
            fetched.append(cloud)
    if not rows:
        raise UnsupportedError(
            f"No prices could be fetched ({failed[0] if failed else 'no rows'}); the prices at hand stay in "
            f"use. Check the network, or set FINEGAUGE_OFFERS_URL to a mirror."
        )
    path = refreshed_path()
    try:
        _replace(path, rows)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Set FINEGAUGE_CACHE_DIR.") from None
    return Refreshed(len(rows), tuple(fetched), tuple(failed), path, today, num_skipped)


def _lines_of(cloud: str, until_s: float) -> Iterator[Mapping[str, str | None]]:
    """Return the lines of one cloud in SkyPilot's columns: of its catalogue, else of dstack's."""
    try:
        return _of_skypilot(cloud, until_s)
    except (OSError, ValueError):
        if cloud not in _OF_DSTACK:
            raise
        try:
            return _of_dstack(_OF_DSTACK[cloud], until_s)
        except (OSError, ValueError, EOFError):
            pass
        raise  # what the first said


def _of_skypilot(cloud: str, until_s: float) -> Iterator[Mapping[str, str | None]]:
    schema = os.environ.get("FINEGAUGE_OFFERS_SCHEMA", "v8")
    failure: Exception = OSError("no host is set")
    for host in _hosts(*HOSTS):
        try:
            text = _download(f"{host}/{schema}/{cloud}/vms.csv", until_s).decode("utf-8", "replace")
        except OSError as error:
            failure = error
            continue
        return _table(text, ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"))
    raise failure


def _of_dstack(provider: str, until_s: float) -> Iterator[Mapping[str, str | None]]:
    from io import BytesIO
    from zipfile import BadZipFile, ZipFile

    address = f"{_hosts(DSTACK)[0]}/{DSTACK_SCHEMA}/{provider}"
    version = _download(f"{address}/version", until_s).decode("ascii").strip()
    if not version.replace("-", "").replace(".", "").isalnum():
        raise ValueError("its version is not one")
    try:
        with ZipFile(BytesIO(_download(f"{address}/{version}/catalog.zip", until_s))) as packed:
            name = f"{provider}.csv"
            if packed.getinfo(name).file_size > MAX_DOWNLOAD_BYTES:
                raise ValueError(f"more than {MAX_DOWNLOAD_BYTES / 1e6:.0f} MB")
            text = packed.read(name).decode("utf-8", "replace")
    except (BadZipFile, KeyError, RuntimeError) as error:  # of an unknown compression, or with a password
        raise ValueError(f"not the expected archive ({type(error).__name__})") from None
    return _renamed(_table(text, ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")))


def _renamed(lines: Iterable[Mapping[str, str | None]]) -> Iterator[Mapping[str, str | None]]:
    for line in lines:
        if not line:
            yield line
            continue
        market = "SpotPrice" if (line.get("spot") or "").casefold() == "true" else "Price"
        yield {
            "InstanceType": line["instance_name"],
            "AcceleratorName": line["gpu_name"],
            "AcceleratorCount": line["gpu_count"],
            "vCPUs": line.get("cpu"),
            "MemoryGiB": line.get("memory"),
            "Region": line["location"],
            "GpuMemoryGiB": line.get("gpu_memory"),
            market: line["price"],
        }


def _hosts(*usual: str) -> tuple[str, ...]:
    """Return the addresses to ask: the user's own mirror in place of the usual ones."""
    own = os.environ.get("FINEGAUGE_OFFERS_URL")
    if own and not own.startswith(("http://", "https://")):
        raise ValueError(f"{own} is not an http(s) address")
    return (own.rstrip("/"),) if own else usual


def _download(address: str, until_s: float) -> bytes:
    from urllib.request import Request, urlopen

    request, body = Request(address, headers={"User-Agent": "finegauge"}), bytearray()
    left_s = until_s - monotonic()
    if left_s <= 0:
        raise TimeoutError(f"no time was left of {DEADLINE_S:.0f} s")
    with urlopen(request, timeout=min(TIMEOUT_S, left_s)) as response:
        while chunk := response.read1(65_536):
            body += chunk
            if len(body) > MAX_DOWNLOAD_BYTES:
                raise ValueError(f"more than {MAX_DOWNLOAD_BYTES / 1e6:.0f} MB")
            if monotonic() > until_s:
                raise TimeoutError(f"not all of it came within {DEADLINE_S:.0f} s")
    return bytes(body)


def _table(text: str, needed: Iterable[str]) -> Iterator[Mapping[str, str | None]]:
    """Return the rows of a table by column; {} for one that is broken."""
    head, *lines = text.splitlines() or [""]
    columns = _cells(head)
    if missing := set(needed) - set(columns):
        raise ValueError(f"no column {', '.join(sorted(missing))}")
    rows = (_cells(line) for line in lines if line.strip())
    return (dict(zip(columns, row, strict=True)) if len(row) == len(columns) else {} for row in rows)


def _cells(line: str) -> list[str]:
    try:
        return next(parse_csv(line, "the table"), [])
    except FileFormatError:
        return []


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    code = getattr(error, "code", None)
    return f"HTTP {code}" if code else str(reason).splitlines()[0] if str(reason) else type(error).__name__


def _offers_of(
    cloud: str, lines: Iterable[Mapping[str, str | None]], today: str
) -> tuple[list[dict[str, str]], int]:
    """Return a cloud's rows in our columns, the cheapest by instance and region; how many are broken."""
    lowest: dict[tuple[str, ...], dict[str, str]] = {}
    num_broken = 0
    for line in lines:
        try:
            row = _row(cloud, line, today)
        except ValueError:
            num_broken += 1
            continue
        if row is None:
            continue
        key = (row["instance_type"], row["gpu_printed"], row["gpu_count"], row["region"])
        known = lowest.setdefault(key, row)
        for column in ("on_demand_usd_per_h", "spot_usd_per_h"):
            prices = [cell for cell in (known[column], row[column]) if cell]
            known[column] = min(prices, key=float, default="")
    for row in lowest.values():
        row["tier"] = row["tier"] or ("on-demand" if row["on_demand_usd_per_h"] else "spot")
    return list(lowest.values()), num_broken


def _row(cloud: str, line: Mapping[str, str | None], today: str) -> dict[str, str] | None:
    """Return a line in our columns, None if it has no GPU or price. Raises: ValueError where it is broken."""
    if not line:
        raise ValueError
    name = (line.get("AcceleratorName") or "").strip()
    count, price, spot = (_number(line.get(key)) for key in ("AcceleratorCount", "Price", "SpotPrice"))
    if not name or not count or (price is None and spot is None):
        return None
    ram_gib = _number(line.get("MemoryGiB"))
    cells: dict[str, Any] = {
        "provider": _PROVIDERS.get(cloud, cloud),
        "instance_type": line.get("InstanceType") or "",
        "gpu": _catalogue_name(name, _memory_bytes(line)),
        "gpu_printed": name,
        "gpu_count": f"{count:g}",
        "vcpus": _text(_number(line.get("vCPUs"))),
        "ram_bytes": _text(ram_gib and ram_gib * GIB),
        "region": (line.get("Region") or "any").casefold(),
        "on_demand_usd_per_h": _text(price),
        "spot_usd_per_h": _text(spot),
        "tier": _tier(cloud, line),
        "date": today,
        "source": "dstack-catalog" if "GpuMemoryGiB" in line else "skypilot-catalog",
        "outlier": "",
        "notes": "",
    }
    return {key: " ".join(str(cell).replace(",", ";").split()) for key, cell in cells.items()}


def _number(cell: str | None) -> float | None:
    """Return a figure, None where the cell is empty or 0. Raises: ValueError where it is none."""
    number = float(cell or "0")
    if not 0 <= number < 1e9:
        raise ValueError
    return number or None


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:.12g}"


def _tier(cloud: str, line: Mapping[str, str | None]) -> str:
    """Return the tier where it is another good than a cloud's own machines, else "" for the usual."""
    if cloud == "vast":
        return "marketplace"
    if cloud != "runpod":
        return ""
    named, region = (line.get("InstanceType") or "").upper(), line.get("Region") or ""
    if named.endswith(("_SECURE", "_COMMUNITY")):
        return named.rpartition("_")[2].casefold()
    return "community" if len(region) == 2 else "secure"  # a country, or a data centre


def _memory_bytes(line: Mapping[str, str | None]) -> float | None:
    if "GpuMemoryGiB" in line:
        return (size := _number(line["GpuMemoryGiB"])) and size * GIB
    info = line.get("GpuInfo") or ""
    try:
        size = float(parse_yaml(info, "GpuInfo")["Gpus"][0]["MemoryInfo"]["SizeInMiB"])
    except (FileFormatError, LookupError, TypeError, ValueError):
        return None
    return size * GIB if size < 1000 else size * 2**20  # one cloud writes GiB into this field


def _catalogue_name(name: str, memory_bytes: float | None) -> str:
    sold_gb = round(memory_bytes / GIB) if memory_bytes else 0
    for wanted in (f"{name}-{sold_gb}GB", name):
        found = known_gpu(wanted)
        if found and (memory_bytes is None or _same_memory(found, memory_bytes)):
            return found.name
    return ""


def _same_memory(spec: GpuSpec, memory_bytes: float) -> bool:
    sold_bytes = spec.memory_bytes / 1e9 * GIB
    return abs(memory_bytes / sold_bytes - 1) <= _MEMORY_TOLERANCE_FRACTION


def _replace(path: str, rows: list[dict[str, str]]) -> None:
    header = read_shipped("offers.csv").partition("\n")[0]
    columns = header.split(",")
    text = "\n".join([header, *(",".join(row[column] for column in columns) for row in rows), ""])
    write_whole(path, text.encode())
