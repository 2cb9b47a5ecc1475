"""Latency and bandwidth of collectives, fitted to a device profile's readings, and predictions by them."""

from math import inf

import pytest

from finegauge.answers.device_profile import micro_answer
from finegauge.catalogue.device_profile import COLLECTIVES, DeviceProfile, Reading
from finegauge.prediction.collectives import Collective
from finegauge.prediction.communication import Link, Network, fitted, links_of, work_of
from finegauge.render.device_profile import micro_report
from finegauge.render.terminal import report_lines

HOP_S, RATE = 2e-5, 3e9


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
    network = Network(
        gpus_per_node=8, intra_bytes_per_s=1e9, inter_bytes_per_s=1e9, host_bytes_per_s=1e9, hop_s=1e-3,
        network_hop_s=1e-3, links=links,
    )  # fmt: skip
    plain = network._replace(links=())
    inside = Collective("all_reduce", "data", "gradients", 1e6, 4, 4, 1)
    assert network.seconds(inside) == pytest.approx(Link("all_reduce", HOP_S, RATE).seconds(1e6, 4))
    for other in (inside._replace(span=16, ranks=16), inside._replace(kind="all_gather")):
        assert network.seconds(other) == plain.seconds(other)


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
