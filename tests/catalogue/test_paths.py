"""Every accelerator has a way to its neighbours and to the next node, with a source or an assumption."""

import pytest

from finegauge.catalogue.gpus import GpuSpec, gpu, gpus
from finegauge.catalogue.paths import ETHERNET_BYTES_PER_S, fabrics, host_of, hosts, paths_of

ALL = list(gpus().values())


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_every_gpu_has_a_host_and_a_way_to_its_neighbour_and_to_the_next_node(spec: GpuSpec) -> None:
    paths = paths_of(spec)
    assert len(paths.neighbour_source) > 10
    assert len(paths.network_source) > 10
    assert paths.joined == 1 or paths.link_bytes_per_s > 20e9
    assert paths.joined > 1 or paths.pcie_bytes_per_s > 7e9
    assert paths.network_bytes_per_s >= ETHERNET_BYTES_PER_S
    if spec.form_factor.startswith(
        ("SXM", "OAM", "NVL72", "TPU")
    ):  # no board of a data centre falls to these
        assert paths.joined >= 8
        assert paths.network_bytes_per_s > ETHERNET_BYTES_PER_S or (spec.launch_year or 0) < 2019
    host = host_of(spec, None, 8)
    assert len(host.source) > 10
    assert host.cores / host.num_gpus >= 4
    assert host.ram_bytes_per_s / host.num_gpus >= 15e9


@pytest.mark.parametrize(
    ("name", "joined", "node", "gbit_per_s"),
    [
        ("H100", 8, 8, 400),
        ("H100-96GB", 8, 8, 400),
        ("B300", 8, 8, 800),
        ("GB200", 72, 4, 400),
        ("GB300", 72, 4, 800),
        ("MI325X", 8, 8, 400),
        ("MI355X", 8, 8, 400),
        ("RTX 3090", 1, 8, 12.5),
    ],
)
def test_known_machines(name: str, joined: int, node: int, gbit_per_s: float) -> None:
    paths = paths_of(gpu(name))
    assert (paths.joined, paths.node_gpus) == (joined, node)
    assert paths.network_bytes_per_s * 8 / 1e9 == pytest.approx(gbit_per_s)


@pytest.mark.parametrize(("name", "allowed"), [("RTX 4090", False), ("RTX 5090", False), ("L40S", True)])
def test_geforce_cards_do_not_write_to_each_other(name: str, allowed: bool) -> None:
    assert paths_of(gpu(name)).p2p is allowed


def test_a_timed_fabric_is_that_of_a_gpu_of_the_catalogue() -> None:
    for one in fabrics():
        assert not one.architecture or one.name in gpus()
        assert 0 < one.median_error_fraction < 0.12
        assert 0.3 < one.ring_fraction < 1.0
        assert 0.3 < one.exchange_fraction < 1.0


def test_hosts_name_gpus_of_the_catalogue_and_a_providers_own_come_first() -> None:
    assert {name for host in hosts() for name in host.gpus} <= gpus().keys()
    assert host_of(gpu("a100-80gb"), "aws").cores < host_of(gpu("a100-80gb")).cores
    assert host_of(gpu("RTX 4090"), None, 2).machine == "desktop"
    assert host_of(gpu("RTX 4090"), None, 8).machine == "server of two sockets"
