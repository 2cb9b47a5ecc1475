"""What the caching allocator keeps and loses, by its options and the shapes of batches."""

import pytest

from finegauge import predict
from finegauge.errors import FieldError
from finegauge.prediction.allocator import Allocator
from finegauge.prediction.calibration import DATASHEET
from finegauge.profile import Profile
from finegauge.run.rules import alloc_options
from finegauge.run.run import Run

EXPANDABLE = "expandable_segments:True"


def step(**fields: object) -> Profile:
    stated = {
        "model": "meta-llama/Llama-3.1-8B", "method": "lora", "gpu": "H200", "seq_len": 4096,
        "activation_checkpointing": "full", **fields,
    }  # fmt: skip
    return predict(Run(**stated), calibration=DATASHEET)  # type: ignore[arg-type]


def reserved(profile: Profile) -> float:
    return profile.memory_bytes("torch_reserved") - profile.memory_bytes("torch_allocated")


def test_expandable_segments_join_free_neighbours_of_any_size() -> None:
    """Only the 16-bit logits, freed between two fp32 ones, stay as a hole."""
    plain, expandable = step(), step(cuda_alloc_conf=EXPANDABLE)
    assert expandable.peak_memory_bytes == plain.peak_memory_bytes
    assert expandable.device_memory_bytes["slack"] == 0 < plain.device_memory_bytes["slack"]
    narrow = 2.0 * 128_256 * 4096
    assert reserved(expandable) == pytest.approx(narrow, rel=0.01)
    assert reserved(plain) > 1.2 * narrow


def test_held_or_fused_logits_leave_no_hole() -> None:
    for fields in ({"keeps_outputs": True}, {"loss": "chunked"}, {"weights_dtype": "fp32"}):
        assert reserved(step(cuda_alloc_conf=EXPANDABLE, **fields)) == 0


def test_shapes_that_vary_lose_most_unless_large_blocks_stay_whole() -> None:
    varied = {"dataset": "instructions-of-300-tokens", "micro_batch_size": 8}
    lost = {
        conf: step(cuda_alloc_conf=conf, **varied).device_memory_bytes["slack"]
        for conf in (None, "max_split_size_mb:128", EXPANDABLE)
    }
    assert lost[None] > lost["max_split_size_mb:128"] > lost[EXPANDABLE] == 0


def test_a_threshold_bounds_what_is_kept() -> None:
    free = step(micro_batch_size=16)
    bounded = step(micro_batch_size=16, cuda_alloc_conf="garbage_collection_threshold:0.6")
    assert free.cached_bytes > 0 == bounded.cached_bytes
    assert bounded.device_memory_bytes == free.device_memory_bytes


def test_what_another_stream_holds_is_beside_the_compute_streams() -> None:
    """FSDP2's sharded gradients and gathered buffers lie in pools of their own."""
    divided = {"method": "full", "num_gpus": 8, "sharding": "fsdp", "framework": "torchtitan"}
    profile = step(**divided)
    gathered = profile.phase_memory_bytes.parts["backward", "workspace", "gathered weights"]
    gradients = profile.phase_memory_bytes.parts["optimizer", "gradients"]
    hole = 2.0 * 128_256 * 4096
    assert reserved(profile) == pytest.approx(hole + gathered + gradients, rel=0.05)


def test_frameworks_that_set_it_and_runs_that_state_otherwise() -> None:
    run = step().run
    assert not Allocator.of(run).expandable
    for framework in ("torchtitan", "Unsloth", "Axolotl 0.9"):
        assert Allocator.of(run.replace(framework=framework)).expandable
        stated = run.replace(framework=framework, cuda_alloc_conf="expandable_segments:False")
        assert not Allocator.of(stated).expandable


@pytest.mark.parametrize("conf", ["expandable_segment:True", "max_split_size_mb:lots", "nonsense"])
def test_what_pytorch_does_not_know_is_refused(conf: str) -> None:
    with pytest.raises(FieldError, match="allocator"):
        step(cuda_alloc_conf=conf)


def test_options_may_hold_lists() -> None:
    conf = "expandable_segments:True,roundup_power2_divisions:[32:256,64:128,>:32]"
    assert alloc_options(conf)["roundup_power2_divisions"] == "[32:256,64:128,>:32]"
