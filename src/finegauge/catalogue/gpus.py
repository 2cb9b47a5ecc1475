"""Datasheets of accelerators, one row each, nothing fitted; and the GPUs of machines that clouds rent.

Peaks are *dense* (marketing prints twice that, for 2:4 sparsity), 16-bit matrix peaks accumulate
in fp32 (GeForce cards then run at half rate), and a multiply-add is 2 flops. Short names that fit
several cards mean the SXM form and, where sizes differ, the one that clouds call so: `h100` is
H100-SXM5-80GB, `a100` is A100-SXM4-40GB (`a100-80gb` is the larger), `v100` is V100-SXM2-16GB.

Machines that clouds rent under names of their own, as g5.12xlarge, are those of the tables of prices and of
links. SageMaker calls Amazon's machines with "ml." before; Azure's
names are written without "Standard_" too, and without the version where one version alone has them.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.tables import (
    checked_row,
    filled,
    parse,
    positive,
    read_shipped,
    refusal,
    rows_as,
    rows_of,
    table,
    user_rows,
)
from finegauge.documents import by_state, home
from finegauge.errors import FieldError, UnknownKeyError, UnknownNameError, UnsupportedError, shown
from finegauge.records import NamedTuple
from finegauge.units import GIB, gib

if TYPE_CHECKING:
    from finegauge.catalogue.device_profile import DeviceProfile

THIS = "this"  # the GPU of this machine, by its datasheet, with the memory that is free now
HERE = "here"  # this machine's own device, as 'finegauge micro' kept it
CPU = "CPU"  # the architecture of a device profile's processor

BEFORE_AMPERE = frozenset({"Pascal", "Volta", "Turing"})
MATRIX_DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
_BRANDS = ("nvidia", "amd", "intel", "geforce", "tesla", "instinct", "radeon")
# What people say beside a card's name: who lends it, or what it is in.
_LENDER = r"google|kaggle|colab|runpod|lambda( labs)?|modal|vast(\.ai)?|lightning|paperspace|free"
_LENDERS = (
    rf"(?i)^(({_LENDER}|mac(book)?( pro| air| mini| studio)?|apple|pro\+?|gpu)(?![a-z])|[\s:_-])+"
    rf"|[\s:_(-]+((on|from|in) )?(({_LENDER}|gpus?|cards?|oam)[\s)]*)+$"
)
_COUNTED = (
    r"(?P<n>\d{1,7})\s*[x×*][\s_]*(?P<name>.+)",
    r"(?P<name>.+?)\s*[x×*]\s*(?P<n>\d{1,7})",
    *(r"(?P<n>[1-9]\d?)\s+(?P<name>.+)", r"(?P<n>[1-9]\d?)\s+(?P<name>.+)s"),  # 8 H100s
)
_COUNTS = {"one": 1, "single": 1, "two": 2, "dual": 2, "three": 3, "four": 4, "quad": 4, "eight": 8}
_BOXES = (  # how many GPUs are in what is called so, which its name leaves unsaid
    (r"[dh]gx[\s_-]+(?P<name>a100[\s_-]*[48]0gb|h[12]00|b[23]00)", 8),
    (r"(?P<name>gb[23]00)[\s_-]*nvl[\s_-]*72", 72),
    (r"nd[\s_-]*(?P<name>h[12]00|mi300x)[\s_-]*v5", 8),  # Azure's series
)
_BY_CORES = ("v4", "v5p")  # Google counts the cores of such a slice, two to a chip
_UNIFIED_GB = (8, 16, 18, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)  # as Apple sells its chips
_MOST_AT_TWO_THIRDS_GB = 36  # of unified memory; Metal's default working set is three quarters above it
_SLICE = (
    r"(?i)(.{2,60}?)[\s:_/-]+(?:mig[\s:_/-]*)?([1-7])g[._](\d{1,3})gb(?:\+me)?"  # of a GPU that MIG divides
)
_REQUIRED = ("name", "memory_bytes", "memory_bytes_per_s", "flops_per_s")


class GpuSpec(NamedTuple):
    """One accelerator, as its datasheet describes it."""

    name: str  # chip, form factor, memory as sold: "A100-SXM4-80GB"
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str  # "8.6"; the LLVM target for AMD; "" for others
    memory_bytes: float  # the GB it is sold with, times 1e9
    usable_bytes: float  # what a process may allocate: torch's total_memory where it is known
    usable_from: str  # where usable_bytes comes from: "torch", "driver less 0.5 GiB", ...
    memory_bytes_per_s: float
    l2_bytes: float | None
    num_sms: int | None
    boost_hz: float | None
    flops_per_s: Mapping[str, float]  # dense peak by dtype; int8 counts operations
    measured_matmul_flops_per_s: float | None  # best bf16 matmul shape anyone published
    nvlink_bytes_per_s: float  # one direction, per GPU (vendors print both); 0: none known
    link_gpus: int | None  # that reach each other over it in a usual machine; 1: none; None: not stated
    node_gpus: int | None  # of a usual node
    p2p: bool | None  # over PCIe, as the driver allows it
    link_source: str  # of these three
    pcie: str
    board_power_w: float | None
    idle_power_w: float | None
    form_factor: str
    launch_year: int | None
    confidence: str  # high: two agreeing sources; medium; derived: SM x clock; low
    source: str
    checked: str  # the day when the source was last read
    notes: str
    measured: "DeviceProfile | None" = None  # readings of its operators, which then stand for the datasheet

    @property
    def halves_accumulation(self) -> bool:
        """Return whether 16-bit products accumulate in fp32 at half rate, as GeForce cards and A10G do.

        Their TF32 rate is then that of the shaders; full-rate parts have at least twice it.
        """
        tf32, fp32 = self.flops_per_s.get("tf32", 0.0), self.flops_per_s.get("fp32", 0.0)
        return 0.0 < tf32 <= 1.05 * fp32

    def peak_flops_per_s(self, dtype: str) -> float:
        """Return the dense matrix peak for `dtype`.

        Raises: UnsupportedError if the GPU has no such rate, naming those it has.
        """
        if dtype in self.flops_per_s:
            return self.flops_per_s[dtype]
        known = ", ".join(self.flops_per_s) or "none"
        hint = (
            " Use fp16 there: weights_dtype=fp16." if dtype == "bf16" and "fp16" in self.flops_per_s else ""
        )
        raise UnsupportedError(f"{self.name} has no {dtype} matrix rate; it has {known}.{hint}")


def gpu(name: str) -> GpuSpec:
    """Return the GPU called `name`, whatever its case, dashes and spaces.

    Args:
        name: A name, an alias, what nvidia-smi prints, the path of a YAML file of a GPU, the path of a
            device profile (JSON), or "here": the profile that this machine keeps of itself, or
            "this": what this machine has.

    Raises: UnknownNameError naming its neighbours.
    """
    if name.casefold() == THIS:
        name = this_gpu()[0]
    if name.casefold() == HERE or name.endswith(".json"):
        return _measured(_own_profile() if name.casefold() == HERE else name)
    if name.endswith((".yaml", ".yml")):
        return _from_file(name)
    found = known_gpu(name)
    if found is None and name.casefold() == "cpu":
        raise FieldError(
            "A processor is timed, not looked up: run 'finegauge micro --device cpu' once, then ask with "
            "--gpu here."
        )
    if found is None:
        if reason := refusal("gpu", fold(re.sub(_LENDERS, "", name[:100]))):
            raise FieldError(f"{shown(name)} {reason}; list those that are with 'finegauge gpus'.")
        rented = r"\d\.\d*x|^ml\.|_v\d$|-\d+g$|^(standard_)?n[cdv]\d|^[bv]m\.gpu"
        known = [key for spec in gpus().values() for key in (spec.name, *spec.aliases)]
        if re.search(rented, name.casefold()):
            known = [one.name for one in _machines().values()]
        instead = ", or describe yours in a YAML file (--gpu mine.yaml; docs/adding-a-gpu.md)"
        raise UnknownNameError("GPU", name, known=known, listing="finegauge gpus", instead=instead)
    return found


def this_gpu(num_gpus: int = 1) -> tuple[str, float]:
    """Return the name of this machine's GPU, and the bytes free on each of the `num_gpus` freest.

    Raises: UnsupportedError where there is none, or several kinds, or a kind that the catalogue lacks.
    """
    from finegauge.catalogue.machine import only_kind

    found, free_bytes = only_kind(num_gpus)
    unit = GIB if found.name.startswith("Apple") else 1e9
    size, inner = round(found.total_bytes / unit), found.name.partition("[")[2].rstrip("]")
    for name in (f"{found.name} {size}GB", found.name, found.name.removeprefix("Apple "), inner):
        spec = known_gpu(name)  # inner: "Arcturus GL-XL [AMD Instinct MI100]"
        if spec is not None and found.total_bytes < 1.15 * spec.memory_bytes:
            return spec.name, free_bytes
    raise UnsupportedError(
        f"This machine's {found.name} ({gib(found.total_bytes)}) is not in the catalogue: describe it in a "
        f"YAML file (--gpu mine.yaml), or time it with 'finegauge micro' and ask with --gpu here."
    )


def counted(text: str) -> tuple[str, int | None]:
    """Return the name and number of h100:8, 8xh100, h100x8 or "8 x h100"; None where no number is said.

    A name of the catalogue that looks alike ("MI300X", "RTX 4090") stays whole; a machine of a cloud
    (g5.12xlarge, a3-highgpu-8g) is the GPUs in it.
    """
    if is_file(text) or known_gpu(text) is not None:
        return text, None
    if (rented := cloud_machine(text)) is not None:
        return rented.gpu, rented.num_gpus
    text = re.sub(r"(?i)^gpu_(?=\d+x_)", "", text)  # as Lambda calls its machines: gpu_8x_h100_sxm5
    name, colon, number = text.rpartition(":")
    if colon and number.strip().isdecimal():
        if (rented := cloud_machine(name)) is not None:
            raise FieldError(
                f"{shown(text)} is {number} machines of {rented.num_gpus} GPUs: name one of them, and add "
                f"num_nodes={number} num_gpus={int(number[:7]) * rented.num_gpus}."
            )
        return name.strip(), _count(number, text)
    bare = re.sub(_LENDERS, "", text.strip()[:200])
    if (boxed := _boxed(bare)) is not None:
        return boxed
    first, _, rest = bare.partition(" ")
    spoken = f"{_COUNTS.get(first.casefold(), '')} {rest}"  # "two 3090s"
    for written in (text.strip(), bare, spoken):
        for pattern in _COUNTED:
            found = re.fullmatch(pattern, written, re.IGNORECASE)
            named = found["name"] if found else ""
            if found and (known_gpu(named) or is_file(named) or named.casefold() == THIS):
                return named, _count(found["n"], text)
    return text, None


def _boxed(bare: str) -> tuple[str, int] | None:
    """Return the GPU and number of what is called by its box (DGX H100) or its slice (v5litepod-8)."""
    for pattern, held in _BOXES:
        if box := re.fullmatch(pattern, bare, re.IGNORECASE):
            return box["name"], held
    found = re.fullmatch(r"(?i)(?:tpu[\s_-]*)?(v4|v5p|v5e|v5litepod|v6e)-([1-9]\d{0,4})", bare)
    if found is None:
        return None
    cores_of_chip = 2 if found[1].casefold() in _BY_CORES else 1
    return f"TPU {found[1]}", max(1, int(found[2]) // cores_of_chip)


def _count(number: str, text: str) -> int:
    if not 0 < int(number) <= 1_000_000:
        raise FieldError(f"{shown(text)} names {int(number)} GPUs; write it as h100:8.")
    return int(number)


def is_file(name: str) -> bool:
    """Return whether `name` stands for a file of the user's: a GPU of theirs, or a device profile."""
    return name.casefold() == HERE or name.endswith((".yaml", ".yml", ".json"))


def is_cpu(name: str | None) -> bool:
    """Return whether `name` is the device profile of a processor."""
    return name is not None and is_file(name) and gpu(name).architecture == CPU


def repacks_4bit(name: str | None) -> bool:
    """Return whether `name` is the profile of a processor for which bitsandbytes repacks 4-bit weights."""
    measured = gpu(name).measured if name is not None and is_cpu(name) else None
    return measured is not None and measured.repacks_4bit


def multiplies_bf16(name: str | None) -> bool:
    """Return whether the GPU called `name` multiplies in bf16, as all but Volta and Turing do."""
    found = _catalogued(name)
    return found is None or "bf16" in found.flops_per_s or "fp16" not in found.flops_per_s


def has_no_flash(name: str | None) -> bool:
    """Return whether PyTorch has no FlashAttention for the GPU called `name`: NVIDIA's before Ampere."""
    found = _catalogued(name)
    return found is not None and found.architecture in BEFORE_AMPERE


def has_tensor_memory(name: str | None) -> bool:
    """Return whether the GPU called `name` is of capability 10: B200 and its kin."""
    found = _catalogued(name)
    return found is not None and found.compute_capability.startswith("10.")


def _catalogued(name: str | None) -> GpuSpec | None:
    return known_gpu(name) if name is not None and not is_file(name) else None


def known_gpu(name: str) -> GpuSpec | None:
    """Return the GPU called `name`, or None if the catalogue has none; no file is read by that name."""
    return _known(name, home())


@lru_cache(maxsize=1024)
def _known(name: str, folder: str) -> GpuSpec | None:
    index = _index(folder)
    found = next((index[key] for key in map(fold, _spellings(name)) if key in index), None)
    if found is not None:
        return _spec(found)
    if cut := re.fullmatch(_SLICE, name.strip()):
        whole = _known(cut[1], folder)
        return _slice(whole, int(cut[2]), int(cut[3])) if whole else None
    sized = re.fullmatch(r"(?i)(.{2,80}?)[\s_-]*(\d{1,3}) ?gi?b?", name.strip())  # "RTX 4090 24GB"
    spec = _known(sized[1], folder) if sized else None
    if sized and spec and spec.vendor == "Apple" and int(sized[2]) in _UNIFIED_GB:
        return _of_memory(spec, int(sized[2]))
    return spec if sized and spec and round(spec.memory_bytes / 1e9) == int(sized[2]) else None


def smaller(name: str, spec: GpuSpec) -> str:
    """Return a card with less memory that `name`, taken as `spec`, means as well; "" where it tells."""
    stem = re.sub(r"[\s-]\d+GB$", "", spec.name)
    if stem == spec.name or re.search(rf"(?<!\d){spec.memory_bytes / 1e9:.0f}(?!\d)", name):
        return ""
    sizes = [num_gb for num_gb in _UNIFIED_GB if num_gb * 1e9 < spec.memory_bytes]
    return next((one.name for num_gb in reversed(sizes) if (one := known_gpu(f"{stem} {num_gb}GB"))), "")


def _slice(whole: GpuSpec, num: int, num_gb: int) -> GpuSpec | None:
    """Return an instance that MIG makes: shares of seven, or four, of the processors; memory in eighths."""
    in_four = whole.name.startswith(("A30", "RTX PRO"))
    share, of_memory = num / (4 if in_four else 7), num_gb * 1e9 / whole.memory_bytes
    has_mig = in_four or whole.compute_capability in ("8.0", "9.0", "10.0", "10.3")
    if not (has_mig and share <= 1 and of_memory <= 1.01):
        return None
    shares = ("measured_matmul_flops_per_s", "board_power_w", "idle_power_w")
    shared: dict[str, Any] = {key: (getattr(whole, key) or 0.0) * share or None for key in shares}
    return whole._replace(
        name=f"{whole.name} MIG {num}g.{num_gb}gb",
        memory_bytes=num_gb * 1e9,
        usable_bytes=whole.usable_bytes * of_memory,
        memory_bytes_per_s=whole.memory_bytes_per_s * max(1, round(8 * of_memory)) / 8,
        num_sms=whole.num_sms and int(whole.num_sms * share),
        flops_per_s=MappingProxyType({dtype: share * rate for dtype, rate in whole.flops_per_s.items()}),
        **shared,
        nvlink_bytes_per_s=0.0,
        link_gpus=1,
        p2p=False,
    )


def _of_memory(spec: GpuSpec, num_gb: int) -> GpuSpec:
    """Return a chip of Apple's with another memory, of which Metal takes a share at most."""
    share = 0.75 if num_gb > _MOST_AT_TWO_THIRDS_GB else 2 / 3
    return spec._replace(
        name=f"{spec.name.rpartition(' ')[0]} {num_gb}GB",
        memory_bytes=num_gb * 1e9,
        usable_bytes=num_gb * GIB * share,
    )


def _spellings(name: str) -> Iterator[str]:
    """Yield `name`, then the names that it may stand for."""
    yield name
    name = re.sub(r"(?i)^(laptop|mobile)[\s_-]+(.+)", r"\2 laptop", name.strip())
    outer, _, inner = name.rstrip(" )").partition("(")  # "A100 (80GB)", "NVIDIA Blackwell GPU (GB200)"
    yield from (outer + inner, inner)
    parts = re.split(r"[\s_-]+", name.strip())  # "H100_80GB_SXM5": how it is plugged in may stand last
    if len(parts) > 2:
        yield "-".join([*parts[:-2], parts[-1], parts[-2]])
    words = inner.split()  # "A100 (40 GB SXM4)"
    if len(words) == 3:
        yield "-".join([outer, *words[2:], *words[:2]])
    yield re.sub(r"(?i)(\d)g$", r"\1gb", name.strip())
    bare = re.sub(_LENDERS, "", name.strip()[:200])
    yield bare
    yield re.sub(r"[\s_-](\d{2,3})$", r"-\1gb", bare)  # "a100 80"
    if bare[:1].isdecimal():
        yield f"RTX {bare}"  # "4090 laptop"


def gpus() -> Mapping[str, GpuSpec]:
    """Return every GPU of the catalogue and the user's own, by name."""
    return _gpus(home())


def matching_gpus(text: str) -> tuple[str, ...]:
    """Return the names of the GPUs that `text` covers: "h100" is every H100, an alias is one card."""
    start = text.casefold()
    covered = [name for name in gpus() if name.casefold().startswith(start)]
    names = [name for name in covered if not name[len(start) : len(start) + 1].isalnum()]
    return tuple(names) or (gpu(text).name,)


def fold(name: str) -> str:
    """Return `name` as lookups compare it: no case, dashes, spaces or brand."""
    text = name.casefold().replace("-", "").replace("_", "").replace(" ", "")
    if text.startswith(_BRANDS):
        for brand in _BRANDS:
            text = text.removeprefix(brand)
    return text


_Row = Mapping[str, str] | GpuSpec


@cache
def _index(folder: str) -> dict[str, _Row]:
    """Return the rows by every folded name; a user's row wins over a shipped one."""
    index: dict[str, _Row] = {}
    for row in table("gpus.csv"):
        for alias in (row["name"], *row["aliases"].split(";")):
            index[fold(alias)] = row
    for path, user_row in user_rows(folder, "gpus"):
        spec = _user_gpu(user_row, path)
        index.update(dict.fromkeys(map(fold, (spec.name, *spec.aliases)), spec))
    index.pop("", None)
    return index


@cache
def _gpus(folder: str) -> Mapping[str, GpuSpec]:
    specs = (_spec(row) for row in {id(row): row for row in _index(folder).values()}.values())
    return MappingProxyType({spec.name: spec for spec in specs})


def _spec(row: _Row) -> GpuSpec:
    if isinstance(row, GpuSpec):
        return row
    rates = {dtype: float(row[dtype]) for dtype in MATRIX_DTYPES if row[dtype]}
    return filled(GpuSpec, row, flops_per_s=MappingProxyType(rates))


_USER_FIELDS = dict(GpuSpec.__annotations__)
del _USER_FIELDS["measured"]


def _empty() -> dict[str, Any]:
    empty: dict[str, Any] = {name: "" if kind is str else None for name, kind in _USER_FIELDS.items()}
    return empty | {"aliases": (), "nvlink_bytes_per_s": 0.0}


def _user_gpu(row: Mapping[str, Any], path: str) -> GpuSpec:
    zero = ("nvlink_bytes_per_s", "idle_power_w")
    given = checked_row(row, path, _USER_FIELDS, required=_REQUIRED, zero=zero)
    given["flops_per_s"] = _rates(given["flops_per_s"], path)
    memory_bytes = given["memory_bytes"]
    usable_bytes = given.setdefault("usable_bytes", max(memory_bytes - 0.5 * GIB, memory_bytes / 2))
    if usable_bytes > memory_bytes / 1e9 * GIB:
        raise FieldError(f"{path}: usable_bytes is above memory_bytes={memory_bytes:.4g}.")
    own = {"vendor": "user", "confidence": "user", "source": path, "usable_from": "user"}
    return GpuSpec(**_empty() | own | given)


def _rates(rates: object, path: str) -> Mapping[str, float]:
    if not isinstance(rates, dict) or not rates:
        raise FieldError(f"{path}: 'flops_per_s' should give dense rates by dtype, such as 'bf16: 2.5e15'.")
    for dtype in rates:
        if dtype not in MATRIX_DTYPES:
            raise UnknownKeyError(f"{path}: flops_per_s", str(dtype), known=MATRIX_DTYPES)
    return MappingProxyType({d: positive(v, f"{path}: flops_per_s.{d}") for d, v in rates.items()})


def _own_profile() -> str:
    """Return the path of this machine's own profile: of its GPU, or else of its processor."""
    from finegauge.catalogue.device_profile import own_profile_path

    found = [path for path in map(own_profile_path, ("cuda", "cpu")) if os.path.isfile(path)]
    if not found:
        raise FieldError(
            "gpu 'here' is this machine, which has no device profile yet; run 'finegauge micro' once."
        )
    return found[0]


@by_state
def _from_file(path: str) -> GpuSpec:
    _, row = next(rows_of(path), (path, {}))
    return _user_gpu(row, path)


@by_state
def _measured(path: str) -> GpuSpec:
    """Return the device of a profile, with the datasheet of its name where there is one."""
    from finegauge.catalogue.device_profile import device_profile

    profile = device_profile(path)
    known = known_gpu(profile.name) if profile.device == "cuda" else None
    if known is not None:
        return known._replace(usable_bytes=profile.usable_bytes, usable_from=path, measured=profile)
    return GpuSpec(**_empty() | {
        "name": profile.name,
        "vendor": "measured",
        "architecture": CPU if profile.device == "cpu" else "",
        "memory_bytes": profile.memory_bytes,
        "usable_bytes": profile.usable_bytes,
        "usable_from": path,
        "memory_bytes_per_s": profile.memory_bytes_per_s,
        "flops_per_s": profile.flops_per_s,
        "confidence": "measured",
        "source": path,
        "checked": profile.fingerprint.get("date", ""),
        "measured": profile,
    })  # fmt: skip


class Interconnect(NamedTuple):
    """The links of one instance type.

    Rates are one direction and per GPU: the number that a transfer time divides by (headlines count
    both directions, and network rates are per node). Expect 80 to 90 % of it with large payloads.
    """

    provider: str  # "generic" for boards that many clouds use
    instance: str
    gpu: str  # a name of the catalogue; "" for a bus alone
    gpus_per_node: int | None
    inter_bytes_per_s: float | None  # of the network
    source: str


def interconnects(gpu: str | None = None, provider: str | None = None) -> tuple[Interconnect, ...]:
    """Return the listed gpus, of one GPU (its catalogue name) or one provider if asked."""
    return tuple(
        link
        for link in rows_as(Interconnect, "interconnects.csv")
        if (gpu is None or link.gpu == gpu) and (provider is None or link.provider == provider.casefold())
    )


_CLOUDS = ("aws", "azure", "gcp", "oci")  # the others price cards, not machines


class Machine(NamedTuple):
    """A machine of a cloud."""

    name: str
    gpu: str  # of the catalogue
    num_gpus: int


def cloud_machine(name: str) -> Machine | None:
    """Return the machine that a cloud calls `name`; None where none, or where several kinds are called so."""
    wanted = _plain(name)
    if not re.search(r"[a-z]\d|\d[a-z]", wanted):
        return None
    known = _machines()
    if wanted in known:
        return known[wanted]
    begun = {one[1:]: one for key, one in known.items() if key.startswith(f"{wanted}_v")}
    return next(iter(begun.values())) if len(begun) == 1 else None


def _plain(name: str) -> str:
    return re.sub(r"^(ml\.|standard_)", "", name.strip().casefold())


@cache
def _machines() -> dict[str, Machine]:
    rows = [
        (row["provider"], row[name], row["gpu"], row[number])
        for table, name, number in (
            ("offers.csv", "instance_type", "gpu_count"), ("interconnects.csv", "instance", "gpus_per_node"))
        for row in parse(read_shipped(table))
    ]  # fmt: skip
    return {
        _plain(name): Machine(name, gpu, int(number))
        for provider, name, gpu, number in reversed(rows)  # what is rented counts most
        if provider in _CLOUDS and gpu and number.isdecimal() and re.fullmatch(r"[\w.-]+", name)
    }
