"""Latency and bandwidth of collectives, fitted to a device profile's readings, and predictions by them."""

import csv
from math import inf
from statistics import median
from typing import Any

import pytest

from finegauge.answers.measurement import micro_answer
from finegauge.catalogue.device_profile import COLLECTIVES, DeviceProfile, Reading
from finegauge.catalogue.gpus import gpu, gpus
from finegauge.catalogue.paths import NVLINK, PCIE, common, fabric, paths_of
from finegauge.errors import UnsupportedError
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.collectives import Collective
from finegauge.prediction.communication import forward_communication
from finegauge.prediction.links import (
    NEVER,
    Level,
    Link,
    Network,
    _levels,
    assumed,
    fitted,
    links_of,
    work_of,
)
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import share_of
from finegauge.render.device_profile import micro_report
from finegauge.render.terminal import report_lines
from finegauge.run.run import Run
from tests.shared import SHARED

HOP_S, RATE = 2e-5, 3e9
TIMINGS = SHARED / "data/operators/collectives.csv"


def reading(kind: str, ranks: int, num_bytes: float, seconds: float) -> Reading:
    return Reading(kind, "fp32", "transfer", {"bytes": num_bytes, "ranks": ranks}, seconds)


def exact(kind: str) -> list[Reading]:
    link = Link(kind, HOP_S, RATE)
    return [reading(kind, n, b, link.seconds(b, n)) for n in (2, 4, 8) for b in (4096.0, 65536.0, 2.0**24)]


def profile(readings: list[Reading]) -> DeviceProfile:
    return DeviceProfile(
        name="two processors", device="cpu", memory_bytes=1e9, usable_bytes=1e9, memory_bytes_per_s=1e10,
        threads=1, readings=tuple(readings), flops_per_s={}, host={}, fingerprint={}, notes=(),
    )  # fmt: skip


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_readings_of_a_ring_give_its_latency_and_bandwidth_back(kind: str) -> None:
    link = fitted(kind, exact(kind))
    assert link.hop_s == pytest.approx(HOP_S)
    assert link.bytes_per_s == pytest.approx(RATE)
    assert link.error_fraction == pytest.approx(0.0, abs=1e-9)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    for ranks in (2, 3, 8):
        both = zip(work_of("reduce_scatter", ranks), work_of("all_gather", ranks), strict=True)
        assert work_of("all_reduce", ranks) == pytest.approx(tuple(map(sum, both)))


def test_neither_latency_nor_bandwidth_is_negative() -> None:
    falling = [reading("send", 2, 1e3, 2e-3), reading("send", 2, 1e6, 1e-3)]
    assert fitted("send", falling).bytes_per_s == inf
    steep = [reading("send", 2, 1e3, 1e-9), reading("send", 2, 1e6, 1e-3)]
    assert fitted("send", steep).hop_s >= 0.0


def test_readings_that_no_ring_explains_say_how_far_they_are_off() -> None:
    wild = [*exact("send"), reading("send", 2, 2.0**24, 1.0)]
    assert fitted("send", wild).error_fraction > 0.1


def test_a_network_takes_what_was_measured_inside_a_node() -> None:
    links = links_of(profile(exact("all_reduce")))
    board = Level.of(8, 1e9, common(NVLINK))
    network = Network(board, board, 1e9, 1e9, 1e9, 1e9, 1e9, 1e-3, links)
    plain = network._replace(links=())
    inside = Collective("all_reduce", "data", "gradients", 1e6, 4, 4, 1)
    assert network.seconds(inside) == pytest.approx(Link("all_reduce", HOP_S, RATE).seconds(1e6, 4))
    for other in (inside._replace(span=16, ranks=16), inside._replace(kind="all_gather")):
        assert network.seconds(other) == plain.seconds(other)


def test_between_two_payloads_the_readings_count() -> None:
    sizes = (2.0**12, 2.0**20, 2.0**24)
    slowing = {size: (1e-4 + size / 1e9) * (1 + size / 2**24) for size in sizes}
    link = fitted("send", [reading("send", 2, *one) for one in slowing.items()])
    for size, seconds in slowing.items():
        assert link.measured(size, 2) == pytest.approx(seconds)
    first, middle, last, beyond = (
        link.measured(size, 2) / link.seconds(size, 2) for size in (2.0**20, 2.0**22, 2.0**24, 2.0**30)
    )
    assert (middle, beyond) == (pytest.approx((first * last) ** 0.5), pytest.approx(last))
    assert link.measured(2.0**24, 4) == link.seconds(2.0**24, 4)  # nobody timed four
    assert link.measured(0.0, 2) == 0.0


def test_a_unit_of_fsdp_on_processors_is_exchanged_beside_nothing() -> None:
    links = links_of(profile([*exact("all_gather"), *exact("unit_gather"), *exact("unit_reduce")]))
    board = Level.of(8, 1e9, common(NVLINK))
    network = Network(board, board, 1e9, 1e9, 1e9, 1e9, 1e9, 1e-3, links)
    slower = Link("unit_gather", 10 * HOP_S, RATE)
    network = network._replace(links=tuple(slower if x.kind == slower.kind else x for x in links))
    layer = Collective("all_gather", "data", "weights", 1e6, 4, 4, 3, beside="forward")
    plain = Run(model="llama-3-8b", method="full", num_gpus=4)
    sharded = plain.replace(sharding="fsdp")
    share = share_of(sharded)
    for run, seconds in ((sharded, 3 * slower.seconds(1e6, 4)), (plain.replace(sharding="zero3"), 0.0)):
        shown = forward_communication(run, share, [layer], 1e3, 0.0, network, DATASHEET)
        assert shown.get("all-gather", 0.0) == pytest.approx(seconds)
        assert ("slows computation" in shown) is (not seconds)


def test_a_profile_without_collectives_has_no_links() -> None:
    assert not links_of(profile([Reading("add", "fp32", "forward", {"rows": 1, "width": 1}, 1e-6)]))


def test_the_report_says_the_fit_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = "\n".join(
        report_lines(micro_report(micro_answer(profile([*exact("send"), *exact("all_reduce")]))))
    )
    rows = [line.split() for line in text.splitlines() if line.startswith(("send", "all_reduce"))]
    assert [row[:3] for row in rows] == [[k, n, "3"] for k in ("send", "all_reduce") for n in ("2", "4", "8")]
    assert rows[0][-6:] == ["2.99", "20.0", "us", "3.00", "<1", "%"]


def level(name: str, **fields: Any) -> Network:
    return Network.of(Run(model="llama-3-8b", method="full", gpu=name, **fields), gpu(name), DATASHEET)


def took(network: Network, kind: str, ranks: int, num_bytes: float = 2.0**30) -> float:
    return network.seconds(Collective(kind, "data", "weights", num_bytes, ranks, ranks, 1))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"])
def test_a_rack_joins_what_a_board_cannot(kind: str) -> None:
    rack, boards = (level(name, num_gpus=64) for name in ("GB200", "H100"))
    assert rack.gpus_per_node == 64
    assert boards.gpus_per_node == 8
    for ranks in (2, 8, 16, 64):
        assert took(rack, kind, ranks) < took(boards, kind, ranks)


def test_a_rack_divides_evenly_into_what_a_run_has() -> None:
    sizes = {256: 64, 128: 64, 144: 72, 72: 72, 36: 36, 4: 4}
    assert {n: level("GB200", num_gpus=n).gpus_per_node for n in sizes} == sizes
    assert level("GB200", num_gpus=64, num_nodes=16).gpus_per_node == 64
    assert level("GB200", num_gpus=64, nvlink=32).gpus_per_node == 32


def test_a_run_says_what_its_machine_has_otherwise() -> None:
    """A bridge between two 3090, and a driver that lets cards write to each other."""
    plain, bridged, peers = (level("RTX 3090", num_gpus=2, **f) for f in ({}, {"nvlink": 2}, {"p2p": True}))
    plain_s, bridged_s, peers_s = (took(one, "all_reduce", 2) for one in (plain, bridged, peers))
    assert bridged_s < peers_s < plain_s
    assert plain_s == pytest.approx(2 * peers_s, rel=0.05)
    four = level("RTX 3090", num_gpus=4, nvlink=2)
    assert took(four, "all_reduce", 2) == bridged_s
    assert took(four, "all_reduce", 4) > 3 * bridged_s
    with pytest.raises(UnsupportedError, match="RTX 4090 has no NVLink; remove it"):
        level("RTX 4090", num_gpus=2, nvlink=2)


def test_two_of_a_mesh_have_one_link() -> None:
    """48 GB/s between 2 MI300X, 313 GB/s of bus bandwidth between 8 (4 GiB; ml-engineering)."""
    for ranks, rate in ((2, 47.7e9), (8, 312.9e9)):
        seconds = took(level("MI300X", num_gpus=ranks), "all_reduce", ranks, 2.0**32)
        assert 2 * (ranks - 1) / ranks * 2.0**32 / seconds == pytest.approx(rate, rel=0.06)


def timed_s(name: str, kind: str, num_bytes: float, ranks: int, *, switched: bool) -> float:
    """Return the seconds of one collective among GPUs of one machine, as NCCL is timed in isolation."""
    spec = gpu(name)
    near, node = _levels(spec, paths_of(spec), ranks, fabric(spec, PCIE))
    level = near if ranks <= near.num_gpus else node
    return float(level.seconds(kind, num_bytes, ranks, switched=switched))


def test_the_switch_adds_up_what_is_not_of_8_bit() -> None:
    wide, narrow = (
        timed_s("H100", "all_reduce", 2.0**30, 8, switched=switched) for switched in (True, False)
    )
    assert wide < 0.9 * narrow
    pair = [timed_s("H100", "all_reduce", 2.0**30, 2, switched=switched) for switched in (True, False)]
    assert pair[0] == pair[1]


@pytest.mark.skipif(not TIMINGS.is_file(), reason="the timings (../shared/data) are absent")
def test_timings_of_nccl_are_met() -> None:
    errors: dict[str, list[float]] = {}
    with TIMINGS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            num_bytes = float(row["message_size"]) * {"half": 2, "int8": 1}[row["dtype"]]
            kind = row["operation"].replace("alltoall", "all_to_all")
            seconds = timed_s(
                row["gpu"], kind, num_bytes, int(row["num_gpus"]), switched=row["dtype"] != "int8"
            )
            if num_bytes >= 2**20:
                errors.setdefault(row["gpu"], []).append(abs(seconds / float(row["seconds"]) - 1.0))
    medians = {name: median(found) for name, found in errors.items()}
    assert max(medians.values()) < 0.08, medians
    assert median([one for found in errors.values() for one in found]) < 0.065


@pytest.mark.parametrize("count", [8, 16, 64])
@pytest.mark.parametrize("layout", [{"tensor_parallel": 8}, {"expert_parallel": 8, "sharding": "fsdp"}])
def test_no_step_on_a_rack_is_slower_than_on_boards(layout: dict[str, Any], count: int) -> None:
    fields: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "method": "full",
        "num_gpus": count,
        "attention": "flash",
        **layout,
    }
    rack, boards = (predict(Run(gpu=name, **fields)).step_time_s.total for name in ("GB200", "H100"))
    assert rack <= boards


COUNTS = (1, 8, 16, 64)
SLOWER = 2.0  # per GPU and step than with fewer GPUs: a cliff


@pytest.mark.parametrize("name", [n for n, spec in gpus().items() if {"fp16", "fp32"} <= {*spec.flops_per_s}])
def test_no_gpu_falls_off_a_cliff_without_a_reason(name: str) -> None:
    """The same job on more GPUs: who slows down has no fabric, or no network but Ethernet, and says so."""
    spec, paths = gpu(name), paths_of(gpu(name))
    half: dict[str, Any] = (
        {} if "bf16" in spec.flops_per_s else {"weights_dtype": "fp16", "adapter_dtype": "fp16"}
    )
    seconds = [
        predict(
            Run(
                model="llama-3-8b",
                method="lora",
                gpu=name,
                num_gpus=count,
                sharding="fsdp",
                **half,
                activation_checkpointing="full",
                micro_batch_size=4,
                seq_len=2048,
            )
        ).step_time_s.total
        for count in COUNTS
    ]
    reasons = {8: paths.joined < 8, 16: "100 Gbit/s for a node" in paths.network_source}
    reasons[64] = False
    for count, before, after in zip(COUNTS[1:], seconds[:-1], seconds[1:], strict=True):
        slow = paths.network_bytes_per_s < 12e9 and count > paths.joined
        assert after < SLOWER * before or reasons[count] or slow, (count, seconds)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu": "H100", "num_gpus": 8}, []),
        ({"gpu": "H100", "num_gpus": 64, "num_nodes": 8}, ["400 Gbit/s per GPU"]),
        ({"gpu": "H100", "num_gpus": 64}, ["64 GPUs are nodes of 8", "400 Gbit/s per GPU"]),
        ({"gpu": "GB200", "num_gpus": 64, "num_nodes": 16}, []),
        ({"gpu": "RTX 4090", "num_gpus": 2}, ["through the memory of their host"]),
        ({"gpu": "RTX 4090", "num_gpus": 2, "p2p": True}, []),
        ({"gpu": "RTX 3090", "num_gpus": 2}, ["none assumed", "through the memory of their host"]),
        ({"gpu": "RTX 3090", "num_gpus": 2, "nvlink": 2}, []),
        ({"gpu": "A40", "num_gpus": 16, "num_nodes": 2, "nvlink": 1}, ["assumed: 100 Gbit/s"]),
        ({"gpu": "A100-80GB", "num_gpus": 8, "num_nodes": 2}, ["nodes of 4 is Ethernet"]),
    ],
)
def test_what_is_assumed_of_links_is_said(fields: dict[str, Any], said: list[str]) -> None:
    run = Run.from_fields({"model": "llama-3-8b", "method": "lora", "sharding": "fsdp", **fields})
    found = assumed(run, gpu(str(run.gpu)))
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))
    assert all(text in predict(run).source.assumptions for text in found)


def test_an_engine_adds_up_in_one_kernel_where_gpus_read_each_others_memory() -> None:
    def level(name: str, link: str, count: int) -> Level:
        near, node = _levels(gpu(name), paths_of(gpu(name)), count, common(PCIE))
        return near if link == NVLINK else node

    board, bridges, staged = level("h100", NVLINK, 8), level("l40s", PCIE, 8), level("rtx4090", PCIE, 8)
    small, large = 2.0**16, 2.0**23
    assert board.at_once(small, 8) < 0.6 * board.seconds("all_reduce", small, 8)
    assert board.at_once(small, 2) == board.base_s + board.hop_s + small / board.exchange_bytes_per_s
    assert bridges.at_once(small, 2) < bridges.seconds("all_reduce", small, 2)
    refused = [
        board.at_once(large, 8),
        board.at_once(small, 3),
        board.at_once(small, 16),
    ]
    refused += [bridges.at_once(small, 4), staged.at_once(small, 2)]
    assert refused == [NEVER] * 5
