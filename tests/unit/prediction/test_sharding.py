"""What one rank of several holds: ZeRO's closed forms, FSDP, tensor, pipeline and context parallelism."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.model.graph import build
from finegauge.prediction.collectives import exchanges
from finegauge.prediction.explanation import formulas
from finegauge.prediction.memory import FIRST_BACKWARD
from finegauge.prediction.model_parallel import LAST_STAGE, stage_graphs
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import gathered_memory, rank_extents, shard_degree, share_of
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.units import GIB

PARAMETERS = 6_738_415_616  # Llama-2-7B


def run(**fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "method": "full",
        "gpu": "A100-SXM4-80GB",
        "attention": "flash",
        "seq_len": 512,
        "activation_checkpointing": "full",
    }
    return Run(**{**base, **fields})


def step(**fields: Any) -> Profile:
    return predict(run(**fields))


def at_rest(profile: Profile) -> float:
    """Return weights, gradients and states on one rank."""
    parts = profile.phase_memory_bytes.under("optimizer")
    return parts["weights"] + parts["gradients"] + parts["optimizer"]


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("zero1", 2 + 14 / 8),  # for the update DeepSpeed has given back the gradients of others
        ("zero2", 2 + 14 / 8),
        ("zero3", 16 / 8),
    ],
)
def test_zero_holds_what_its_paper_says(sharding: str, expected: float) -> None:
    assert at_rest(step(num_gpus=8, sharding=sharding)) / PARAMETERS == pytest.approx(expected, rel=1e-3)


def test_fsdp_divides_everything_by_its_ranks() -> None:
    alone, shared = step(), step(num_gpus=8, sharding="fsdp")
    assert at_rest(shared) == pytest.approx(at_rest(alone) / 8, rel=1e-6)


def test_mixed_precision_keeps_fp32_shards_and_computes_in_16_bit() -> None:
    mixed = step(num_gpus=8, sharding="fsdp", weights_dtype="fp32", autocast="bf16")
    plain = step(num_gpus=8, sharding="fsdp")
    assert at_rest(mixed) == pytest.approx(2 * at_rest(plain), rel=1e-6)
    assert at_rest(mixed) / PARAMETERS == pytest.approx(16 / 8, rel=1e-3)
    checkpoints = ("forward", "activations", "checkpoints")
    assert mixed.phase_memory_bytes.parts[checkpoints] == plain.phase_memory_bytes.parts[checkpoints]


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_deepspeed_computes_in_16_bits_whole(half: str) -> None:
    mixed = step(num_gpus=8, sharding="zero2", weights_dtype="fp32", autocast=half)
    assert at_rest(mixed) == at_rest(step(num_gpus=8, sharding="zero2", weights_dtype=half))


def test_the_optimizers_peak_of_mistral_under_fsdp() -> None:
    """fms-acceleration: 33.738 GiB on each of two A100, micro-batch 2 of 4,096 tokens."""
    fields: dict[str, Any] = {"model": "mistral-7b-v0.1", "seq_len": 4096, "micro_batch_size": 2}
    profile = step(num_gpus=2, sharding="fsdp", transformers_version="4.48", **fields)
    assert profile.peak_phase == "optimizer"
    assert profile.peak_memory_bytes.total / GIB == pytest.approx(33.738, rel=2e-3)


def test_zero_1_holds_all_gradients_until_they_are_reduced() -> None:
    parts = step(num_gpus=8, sharding="zero1").phase_memory_bytes.under("backward")
    assert parts["gradients"] == pytest.approx(2 * PARAMETERS, rel=0.1)
    assert parts.parts["workspace", "bucket of gradients"] == 2 * 5e8
    small = step(num_gpus=8, sharding="zero1", reduce_bucket_size="auto")  # 4,096 wide
    assert small.phase_memory_bytes.parts["backward", "workspace", "bucket of gradients"] == 2 * 4096**2


def test_the_update_of_zero_takes_its_gradients_flattened_and_in_fp32() -> None:
    for sharding in ("zero1", "zero2", "zero3"):
        parts = step(num_gpus=8, sharding=sharding).phase_memory_bytes.under("optimizer").parts
        expected = (2 + 4) * PARAMETERS / 8
        assert parts["workspace", "gradients of the update"] == pytest.approx(expected, rel=1e-3)


def test_frozen_weights_are_divided_by_stage_three_alone() -> None:
    def weights(**fields: Any) -> float:
        return step(method="lora", num_gpus=4, **fields).peak_memory_bytes["weights"]

    assert weights(sharding="zero2") == pytest.approx(4 * weights(sharding="zero3"), rel=0.02)


def test_ddp_keeps_everything_and_a_second_copy_of_the_gradients() -> None:
    alone, shared = step(), step(num_gpus=4)
    assert at_rest(shared) == at_rest(alone)
    buckets = ("optimizer", "workspace", "gradients being reduced")
    assert shared.phase_memory_bytes.parts[buckets] == pytest.approx(2 * PARAMETERS, rel=1e-3)


def test_shard_grad_op_holds_the_whole_model_while_it_computes() -> None:
    gathered = ("forward", "workspace", "gathered weights")
    full = step(num_gpus=8, sharding="fsdp").phase_memory_bytes.parts[gathered]
    grad_op = step(num_gpus=8, sharding="fsdp_shard_grad_op").phase_memory_bytes.parts[gathered]
    assert grad_op == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert full < 0.25 * grad_op


def test_fsdp_in_a_pipeline_keeps_its_stage_gathered_and_its_gradients_whole() -> None:
    fields = {
        "num_gpus": 32,
        "num_nodes": 4,
        "sharding": "fsdp",
        "pipeline_parallel": 4,
        "gradient_accumulation_steps": 8,
        "weights_dtype": "fp32",
        "autocast": "bf16",
        "framework": "torchtitan",
    }
    parts = step(**fields).phase_memory_bytes.parts
    weights = ("forward", "workspace", "gathered weights")
    gradients = ("forward", "workspace", "gradients being reduced")
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert parts[weights] == pytest.approx(2 * 8 * layer, rel=0.1)  # a stage of 8 layers, in bf16
    assert parts[gradients] == pytest.approx(4 * 8 * layer, rel=0.25)  # in fp32, less its own part
    gathers = [
        {
            one.group: one.bytes_per_step
            for one in exchanges(run(**{**fields, **more}))
            if one.kind == "all_gather"
        }
        for more in ({}, {"gradient_accumulation_steps": 16})
    ]
    assert gathers[0] == gathers[1]  # once a step, however many micro-batches it has


def test_hybrid_sharding_stays_within_a_node() -> None:
    hybrid = run(num_gpus=32, num_nodes=4, sharding="hybrid")
    assert shard_degree(hybrid) == 8
    assert shard_degree(run(num_gpus=32, num_nodes=4, sharding="fsdp")) == 32
    assert at_rest(predict(hybrid)) == pytest.approx(at_rest(step(num_gpus=8, sharding="fsdp")))


def test_a_sharding_group_may_be_smaller_than_data_parallelism() -> None:
    grouped = run(num_gpus=64, num_nodes=8, sharding="zero1", data_parallel_shard=8)
    assert grouped.data_parallel == 64
    assert at_rest(predict(grouped)) / PARAMETERS == pytest.approx(2 + 14 / 8, rel=1e-3)


def test_tensor_parallel_ranks_hold_their_part() -> None:
    alone, shared = step(), step(num_gpus=4, tensor_parallel=4)
    assert at_rest(shared) == pytest.approx(at_rest(alone) / 4, rel=1e-6)


def test_a_stage_holds_its_layers_and_one_end_of_the_model() -> None:
    alone, shared = step(), step(num_gpus=4, pipeline_parallel=4)
    ends = 2 * 32000 * 4096  # embedding and head; the first stage, at its peak, has no final norm
    stage = (PARAMETERS - ends - 4096) / 4 + 32000 * 4096
    assert at_rest(shared) / at_rest(alone) == pytest.approx(stage / PARAMETERS, rel=1e-6)


def test_tensor_parallelism_divides_products_not_norms() -> None:
    alone, shared = share_of(run()).graph, share_of(run(num_gpus=4, tensor_parallel=4)).graph
    for one, part in zip(alone.layers[0].ops, shared.layers[0].ops, strict=True):
        share = 1.0 if one.kind == "norm" or one.path[-1] == "residual" else 0.25
        assert part.forward.flops.token == pytest.approx(share * one.forward.flops.token)
        whole = one.kind == "norm" or one.path[-1] in ("q_proj", "gate_proj")  # they keep the norm's output
        assert part.saved_bytes.token == pytest.approx((1.0 if whole else 0.25) * one.saved_bytes.token)


def test_a_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    def checkpoints(**fields: Any) -> float:
        profile = step(num_gpus=4, pipeline_parallel=4, gradient_accumulation_steps=16, **fields)
        return profile.phase_memory_bytes.parts["forward", "activations", "checkpoints"]

    once = checkpoints(pipeline_schedule="naive")
    assert checkpoints() == pytest.approx(4 * once, rel=0.02)  # 1F1B: four of sixteen
    assert checkpoints(pipeline_schedule="gpipe") == pytest.approx(16 * once, rel=0.02)


def test_context_parallelism_divides_the_sequence() -> None:
    alone = predict(run(seq_len=65536))
    shared = predict(run(seq_len=65536, num_gpus=8, context_parallel=8))
    assert shared.peak_memory_bytes["activations"] < alone.peak_memory_bytes["activations"] / 6
    extents = rank_extents(shared.run, share_extents := predict_extents())
    assert extents.tokens == share_extents.tokens / 8


def predict_extents() -> Any:
    from finegauge.model.op import Extents

    return Extents.of(1, 65536)


def test_offloaded_states_leave_the_gpu() -> None:
    assert step(num_gpus=8, sharding="fsdp", cpu_offload="optimizer").peak_memory_bytes["optimizer"] == 0
    both = step(num_gpus=8, sharding="fsdp", cpu_offload="all")
    assert both.peak_memory_bytes["weights"] == 0
    assert both.step_time_s["communication"] > step(num_gpus=8, sharding="fsdp").step_time_s["communication"]


def test_gradients_used_up_in_backward_are_never_all_there() -> None:
    usual, in_backward = step(), step(optimizer_implementation="in_backward")
    assert in_backward.peak_memory_bytes["gradients"] < 0.1 * at_rest(usual)
    assert in_backward.peak_memory_bytes.total < usual.peak_memory_bytes.total


def test_frozen_layers_under_fsdp_hold_a_second_stream() -> None:
    lora: dict[str, Any] = {"method": "lora", "num_gpus": 2, "sharding": "fsdp", "seq_len": 4096}
    held = ("backward of frozen layers", "activations", "held by FSDP's hooks")
    stream = 32 * 4096 * 4096 * 2
    assert step(**lora).phase_memory_bytes.parts[held] == pytest.approx(stream)
    assert held not in step(**lora, checkpointing_reentrant=False).phase_memory_bytes.parts


@pytest.mark.parametrize("sharding", ["none", "zero2", "zero3", "fsdp", "hybrid"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_part_of_a_rank_has_its_formula(sharding: str, method: str) -> None:
    profile = step(method=method, num_gpus=8, sharding=sharding)
    lines = formulas(profile.run)
    for path in profile.device_memory_bytes.parts:
        assert lines.get(path), path
    assert lines["communication",]


def test_the_allocator_keeps_freed_blocks_until_memory_runs_short() -> None:
    """Full fine-tuning: the optimizer's temporaries find no block of their own among freed activations."""
    small, large = step(), step(micro_batch_size=16, seq_len=4096)
    assert small.cached_bytes > 0
    for profile in (small, large):
        shown = profile.device_memory_bytes.total + profile.cached_bytes
        assert shown <= max(profile.capacity_bytes, profile.device_memory_bytes.total)


def test_muon_keeps_one_moment_of_a_matrix_under_megatron_too() -> None:
    def states(optimizer: str) -> float:
        profile = step(num_gpus=2, framework="Megatron-LM", sharding="none", optimizer=optimizer)
        return profile.peak_memory_bytes["optimizer"]

    params, words = (
        6_738_415_616,
        2 * 32000 * 4096,
    )  # copy and moment; Adam's second one of embedding and head
    assert states("adamw") == 12 * params
    assert states("muon") == pytest.approx(8 * params + 4 * words, rel=1e-3)


def test_a_stage_of_a_hybrid_has_its_share_of_layers(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"model_type": "nemotron_h", "hybrid_override_pattern": "M-MM-MM*-M-MM-MM*-M-MM-M"})
    )
    one = run(model=str(config), num_gpus=2, pipeline_parallel=2, pipeline_schedule="naive")
    _, stage = stage_graphs(one, build(one))[LAST_STAGE]
    assert stage.model.num_layers == sum(group.count for group in stage.layers) == 12


def test_embedding_and_head_as_units_of_their_own_are_gathered_one_at_a_time() -> None:
    def gathered(framework: str) -> float:
        parts = step(num_gpus=8, sharding="fsdp", framework=framework).phase_memory_bytes
        return parts.under("backward").parts["workspace", "gathered weights"]

    outer = 2 * 32000 * 4096  # one of them, 16 bit
    layer = (6_738_415_616 - 2 * 32000 * 4096) / 32 * 2
    assert gathered("TRL") == pytest.approx(2 * outer + 2 * layer, rel=0.01)
    assert gathered("torchtune") == pytest.approx(2 * layer, rel=0.01)  # a layer is the larger unit here


def test_the_gradient_of_the_embedding_is_whole_only_when_no_activation_is_left() -> None:
    end = 2 * 32000 * 4096  # bytes of the embedding's gradient, and of the head's

    def reduced(phase: str, framework: str) -> float:
        parts = step(num_gpus=8, sharding="fsdp", framework=framework).phase_memory_bytes.under(phase)
        return parts.parts["workspace", "gradients being reduced"]

    layer = (6_738_415_616 - end) / 32 * 2
    assert reduced("backward", "") == pytest.approx(7 / 8 * end + layer, rel=0.01)  # beside the rank's part
    assert reduced("reduction", "") == pytest.approx(4 * end, rel=0.01)  # joined in one tensor
    assert reduced("reduction", "litgpt") == pytest.approx(
        4 * end, rel=0.01
    )  # FSDP1 too, its weights still there
    assert reduced("reduction", "torchtune") == pytest.approx(2 * end, rel=0.01)
    parts = step(num_gpus=8, sharding="fsdp").phase_memory_bytes.under("reduction")
    assert parts["activations"] == 0.0
    assert ("workspace", "gathered weights") not in parts.parts  # FSDP2 has let go of them


def test_the_head_has_no_gradient_yet_while_the_loss_goes_backward() -> None:
    """Of a head larger than all layers: beside the logits in backward lie no gradients to be reduced."""
    asked = {"model": "gemma-2-2b", "num_gpus": 8, "sharding": "fsdp", "micro_batch_size": 8, "seq_len": 4096}
    phases = predict(run(**asked)).phase_memory_bytes
    assert phases.under("backward").parts.get(("workspace", "gradients being reduced"), 0.0) == 0.0
    assert phases.under("backward")["logits"] > 0.0


@pytest.mark.parametrize(("framework", "waits"), [("", 0.0), ("torchtune", 1.0)])
def test_no_layer_waits_to_be_reduced_beside_the_first_that_fsdp_reaches(
    framework: str, waits: float
) -> None:
    asked, path = (
        run(num_gpus=8, sharding="fsdp", framework=framework),
        ("workspace", "gradients being reduced"),
    )
    beside = gathered_memory(asked, share_of(asked))
    layer = (PARAMETERS - 2 * 32000 * 4096) / 32 * 2
    apart = beside["backward"][path] - beside[FIRST_BACKWARD][path]
    assert apart == pytest.approx((1.0 - waits) * layer, rel=0.01)
