"""What crosses the host link and the drives, what the host computes and keeps, by hand."""

from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.links import NVME_BYTES_PER_S
from finegauge.prediction.offload import kept_on_host
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import share_of
from finegauge.profile import Profile
from finegauge.run.run import Run

PARAMETERS = 6_738_415_616  # Llama-2-7B
VALUES = PARAMETERS / 8  # of a rank
PAGEABLE, CORE = DATASHEET.pageable_bytes_per_s, 28e9 * DATASHEET.shared_core_fraction


def stated(**fields: Any) -> Run:
    known: dict[str, Any] = {"gpu": "A100-SXM4-80GB", "num_gpus": 8, "sharding": "zero3", "method": "full"}
    return Run(model="llama-2-7b", **{**known, **fields})


def step(**fields: Any) -> Profile:
    return predict(stated(**fields), DATASHEET)


def shown(profile: Profile, name: str) -> float:
    return profile.step_time_s.parts.get(("communication", name), 0.0)


def test_stage_2_sends_the_sum_of_gradients_back_and_forth_and_the_host_updates_by_one_thread() -> None:
    profile = step(sharding="zero2", cpu_offload="optimizer", gradient_accumulation_steps=4)
    sent = VALUES * (2 * (4 + 3) + 4)  # 16-bit: four down, three up; fp32 at last
    assert shown(profile, "gradients to the host") == pytest.approx(sent / PAGEABLE)
    assert shown(profile, "optimizer on the host") == pytest.approx(VALUES * (8 + 28 + 6) / CORE)
    assert shown(profile, "updated weights from the host") == pytest.approx(2 * VALUES / PAGEABLE)
    alone = step(sharding="zero2", cpu_offload="optimizer")
    assert shown(alone, "gradients to the host") == pytest.approx(4 * VALUES / PAGEABLE)


def test_stage_3_casts_into_new_pages_unless_its_weights_lie_on_the_host() -> None:
    profile, both = step(cpu_offload="optimizer"), step(cpu_offload="all")
    assert shown(profile, "gradients to the host") == pytest.approx((2 * 2 + 4) * VALUES / PAGEABLE)
    assert shown(profile, "optimizer on the host") == pytest.approx(VALUES * (8 + 28 + 6 + 2 * 8) / CORE)
    assert shown(both, "optimizer on the host") == pytest.approx(VALUES * (8 + 28 + 6) / CORE)
    assert shown(both, "updated weights from the host") == 0.0
    assert shown(both, "weights from the host") == pytest.approx(2 * 2 * VALUES / PAGEABLE)


def test_page_locked_copies_run_beside_the_gpu_at_the_rate_of_a_switch() -> None:
    profile = step(cpu_offload="all", offload_pinned=True)  # of a short micro-batch: copies take longer
    link = 31e9 * DATASHEET.link_fraction / 2  # two GPUs on a switch
    computed = profile.step_time_s["forward"] + profile.step_time_s["backward"]
    assert shown(profile, "weights from the host") <= 2 * 2 * VALUES / link
    assert 2 * 2 * VALUES / link - shown(profile, "weights from the host") <= computed
    apart = step(cpu_offload="optimizer", offload_pinned=True, gpus_per_pcie_switch=1, seq_len=64)
    shared = step(cpu_offload="optimizer", offload_pinned=True, seq_len=64)
    assert shown(apart, "gradients to the host") < shown(shared, "gradients to the host")
    wider = step(cpu_offload="optimizer", offload_pinned=True, pcie="5.0 x16", seq_len=64)
    assert shown(wider, "gradients to the host") < shown(shared, "gradients to the host")


def test_threads_help_until_memory_is_the_limit() -> None:
    one, two, all_of_them = (
        shown(step(cpu_offload="all", host_threads=number), "optimizer on the host") for number in (1, 2, 16)
    )
    assert one / two == pytest.approx(2)
    memory = 409.6e9 * DATASHEET.host_memory_fraction / 8
    assert all_of_them == pytest.approx(VALUES * 42 / memory)
    quicker = step(cpu_offload="all", host_threads=16, host_memory_gb_per_s=819.2)
    assert shown(quicker, "optimizer on the host") == pytest.approx(all_of_them / 2)
    fewer = step(cpu_offload="all", host_threads=16, host_cores=16)
    assert shown(fewer, "optimizer on the host") == pytest.approx(VALUES * 42 / (2 * CORE))


def test_fsdp_updates_by_torchs_adam_and_adds_up_on_the_host_where_every_micro_batch_reduces() -> None:
    plain: dict[str, Any] = {"sharding": "fsdp", "cpu_offload": "params"}
    fused = step(**plain, optimizer_implementation="fused")
    looped = step(**plain, optimizer_implementation="foreach")
    host = "optimizer on the host"
    assert shown(fused, host) == pytest.approx(VALUES * 2 / 4 * (12 + 28) / CORE)
    assert shown(looped, host) == pytest.approx(VALUES * 2 / 4 * (12 + 144) / CORE)
    tuned: dict[str, Any] = {**plain, "framework": "torchtune", "optimizer_implementation": "fused"}
    once, twice = step(**tuned), step(**tuned, gradient_accumulation_steps=2)
    assert shown(once, host) == pytest.approx(VALUES * 2 / 4 * 28 / CORE)  # it clips nothing
    assert shown(twice, host) == pytest.approx(VALUES * 2 / 4 * (28 + 12 + 4 * 8) / CORE)
    assert shown(twice, "gradients to the host") >= 2 * VALUES / PAGEABLE
    for kind in ("optimizer", "all"):  # torch offloads all or nothing
        assert step(**{**plain, "cpu_offload": kind}).step_time_s.parts == step(**plain).step_time_s.parts


def test_drives_are_read_and_written_once_for_states_and_read_for_every_pass() -> None:
    profile, host = step(cpu_offload="nvme", gradient_accumulation_steps=4), step(cpu_offload="all")
    assert shown(profile, "states on the drives") == pytest.approx(2 * VALUES * 16 / NVME_BYTES_PER_S)
    weights = 2 * VALUES
    assert shown(profile, "weights on the drives") == pytest.approx((2 * 4 + 1) * weights / NVME_BYTES_PER_S)
    assert shown(profile, "optimizer on the host") == shown(host, "optimizer on the host") > 0
    assert shown(host, "states on the drives") == 0.0
    raid = step(cpu_offload="nvme", gradient_accumulation_steps=4, nvme_gb_per_s=25.6)
    assert shown(raid, "states on the drives") == pytest.approx(2 * VALUES * 16 / 3.2e9)


def test_what_lies_on_drives_is_not_on_the_gpu() -> None:
    profile = step(cpu_offload="nvme")
    assert profile.peak_memory_bytes["weights"] == profile.peak_memory_bytes["optimizer"] == 0.0
    assert profile.device_memory_bytes.total == step(cpu_offload="all").device_memory_bytes.total


def test_gradients_lie_beside_the_states_that_they_update() -> None:
    on_gpu, on_host = step(sharding="zero2"), step(sharding="zero2", cpu_offload="optimizer")
    assert on_host.peak_memory_bytes["gradients"] == on_host.peak_memory_bytes["optimizer"] == 0.0
    assert on_gpu.phase_memory_bytes["optimizer"] > on_host.phase_memory_bytes["optimizer"]
    alone = step(cpu_offload="params")  # DeepSpeed keeps states and the update on the GPU
    assert alone.peak_memory_bytes["optimizer"] == pytest.approx(12 * VALUES, rel=1e-3)
    assert shown(alone, "optimizer on the host") == 0.0 < shown(alone, "updated weights to the host")


def test_nvme_is_zero3s() -> None:
    with pytest.raises(FieldError, match="use sharding=zero3"):
        Run(model="llama-2-7b", method="full", num_gpus=8, sharding="fsdp", cpu_offload="nvme")


@pytest.mark.parametrize(("kind", "sharding"), [("optimizer", "zero2"), ("all", "zero3"), ("nvme", "zero3")])
def test_one_gpu_that_offloads_is_deepspeeds(kind: str, sharding: str) -> None:
    alone = stated(num_gpus=1, sharding="none", cpu_offload=kind)
    assert alone.sharding == sharding
    assert predict(alone) == predict(alone.replace(sharding=sharding))


def test_the_host_keeps_weights_moments_and_gradients() -> None:
    def kept(**fields: Any) -> dict[str, float]:
        run = stated(**fields)
        return {path[-1]: size / VALUES for path, size in kept_on_host(run, share_of(run)).parts.items()}

    assert kept() == {}
    states = {"gradients, fp32": 4, "moments": 8, "fp32 weights": 4}
    two = kept(sharding="zero2", cpu_offload="optimizer")
    assert two == pytest.approx({**states, "16-bit copies of weights": 2}, rel=1e-3)
    several = kept(sharding="zero2", cpu_offload="optimizer", gradient_accumulation_steps=2)
    assert several["gradients, summed"] == pytest.approx(2, rel=1e-3)
    three = kept(cpu_offload="all")
    assert three == pytest.approx({**states, "weights": 2, "gradients, summed": 2}, rel=1e-3)
    torch = kept(sharding="fsdp", cpu_offload="params", offload_pinned=False)
    assert torch == pytest.approx({"weights": 2, "gradients": 2, "moments": 4}, rel=1e-3)
    locked = kept(cpu_offload="all", offload_pinned=True)
    assert locked["gradients, fp32"] * VALUES == 2.0**32  # powers of two, of 3.4 GB
    assert locked["moments"] == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize("phase", ["dpo", "grpo", "ppo", "evaluate", "decode"])
def test_every_pass_of_every_phase_fetches_the_weights_that_lie_on_the_host(phase: str) -> None:
    fields: dict[str, Any] = {"phase": phase, "seq_len": 512, "micro_batch_size": 8}
    near, far = step(**fields), step(**fields, cpu_offload="all")
    assert far.step_time_s.total > near.step_time_s.total
    assert far.device_memory_bytes.total < near.device_memory_bytes.total
    fetched = [path for path in far.step_time_s.parts if path[-1] == "weights from the host"]
    stages = {"dpo": ["scoring"], "grpo": ["scoring", "generation"], "ppo": ["scoring", "generation"]}
    for stage in stages.get(phase, []):
        assert (stage, "communication", "weights from the host") in fetched
    assert fetched
    if phase == "grpo":  # gathered once for all answers, or fetched for every token
        once = step(**fields, cpu_offload="all", framework="LLaMA-Factory")
        assert once.step_time_s["generation"] < far.step_time_s["generation"] / 10


def test_what_is_assumed_of_a_host_is_said() -> None:
    said = " ".join(step(cpu_offload="all").source.assumptions)
    assert "the host is a DGX A100 80GB" in said
    assert "not page-locked" in said
    assert "one thread" in said
    stating = {"offload_pinned": True, "host_threads": 8, "host_cores": 64, "host_memory_gb_per_s": 300.0}
    silent = " ".join(step(cpu_offload="all", **stating).source.assumptions)
    assert not any(word in silent for word in ("host is", "page-locked", "thread"))
    assert "host is" not in " ".join(step().source.assumptions)
