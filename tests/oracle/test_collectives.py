"""What torch's own DDP, FSDP2, DTensor and pipelines send in a step, message by message: ours is equal."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from finegauge.model.op import Extents
from finegauge.prediction import collectives as collectives_module
from finegauge.prediction.collectives import collectives
from finegauge.prediction.sharding import share_of
from tests.house.sources import ROOT
from tests.oracle import gloo_ranks as gloo
from tests.oracle import real_ranks as real
from tests.oracle.counting_group import counted, rank_of
from tests.oracle.deepspeed_ranks import COUNTED, COUNTED_WITHOUT_KEEPING, zero_run

ACCUMULATING = {"gradient_accumulation_steps": 3}
COPIES = {"sharding": "hybrid", "data_parallel_replicate": 2, "data_parallel_shard": 4}
CHECKPOINTED = {"activation_checkpointing": "full"}
LORA = {"method": "lora", "lora_targets": ("q_proj", "v_proj"), "adapter_dtype": "fp32"}


@pytest.mark.parametrize(
    "fields",
    [{}, ACCUMULATING, {"sizes": {"vocab_size": 131072}}, {"sizes": {"tie_word_embeddings": True}}],
)
def test_ddp_reduces_once_a_step_in_buckets(tmp_path: Path, fields: dict[str, Any]) -> None:
    run = real.tiny(tmp_path, num_gpus=8, **fields)
    with rank_of(8):
        assert counted(real.stepping(run, real.replicated(run)), warm_up=2) == real.ours(run)


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp_shard_grad_op", "hybrid"])
@pytest.mark.parametrize("fields", [{}, CHECKPOINTED, ACCUMULATING, LORA])
def test_fsdp_gathers_layer_by_layer(tmp_path: Path, sharding: str, fields: dict[str, Any]) -> None:
    divided = COPIES if sharding == "hybrid" else {"sharding": sharding}
    run = real.tiny(tmp_path, num_gpus=8, **divided, **fields)
    with rank_of(8):
        assert counted(real.stepping(run, real.sharded(run))) == real.ours(run)


def test_the_first_fsdp_sends_what_the_second_does(tmp_path: Path) -> None:
    run = real.tiny(tmp_path, num_gpus=8, sharding="fsdp")
    with rank_of(8):
        assert counted(real.stepping(run, real.sharded_by_the_first_fsdp(run))) == real.ours(run)


def test_mixed_precision_gathers_and_reduces_in_16_bit(tmp_path: Path) -> None:
    run = real.tiny(tmp_path, num_gpus=8, sharding="fsdp", autocast="bf16")
    with rank_of(8):
        assert counted(real.stepping(run, real.sharded(run))) == real.ours(run)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("fields", [{}, CHECKPOINTED, ACCUMULATING])
def test_tensor_parallel_ranks_add_up_streams(tmp_path: Path, sequence: bool, fields: dict[str, Any]) -> None:
    run = real.tiny(tmp_path, num_gpus=4, tensor_parallel=4, sequence_parallel=sequence, **fields)
    with rank_of(4):
        assert counted(real.stepping_divided(run, real.tensor_parallel(run))) == real.ours(run)


def test_transformers_own_plan_adds_up_product_by_product(tmp_path: Path) -> None:
    run = real.tiny(tmp_path, num_gpus=4, tensor_parallel=4, framework="TRL")
    with rank_of(4):
        assert counted(real.stepping(run, real.by_transformers_plan(run))) == real.ours(run)


def test_keys_and_values_go_round_and_their_gradients_come_home(tmp_path: Path) -> None:
    run = real.tiny(tmp_path, num_gpus=4, context_parallel=4)
    ring = [one for one in collectives(run) if one.group == "context"]
    with rank_of(4):
        sent, size = counted(real.stepping_ring(run))["all_to_all"]  # to one rank only: a send
    assert sent == sum(one.num_sent for one in ring)
    assert size == sum(one.num_sent * one.payload_bytes for one in ring)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("fields", [{}, {"pipeline_schedule": "gpipe"}, {"virtual_pipeline_stages": 2}])
def test_a_stage_hands_on_every_micro_batch(tmp_path: Path, stages: int, fields: dict[str, Any]) -> None:
    sizes = {"num_hidden_layers": 8}
    run = real.tiny(tmp_path, num_gpus=stages, pipeline_parallel=stages, gradient_accumulation_steps=8,
                    sizes=sizes, **fields)  # fmt: skip
    sent = []
    for rank in range(stages):
        with rank_of(stages, rank):
            step = real.stepping_stage(run, real.stage_of(run, rank), rank)
            sent.append(counted(step, warm_up=0)["send"])
    assert max(sent) == real.ours(run)["send"]


@pytest.mark.parametrize(("stage", "steps"), sorted(COUNTED))
def test_zero_sends_what_deepspeed_was_counted_to_send(tmp_path: Path, stage: int, steps: int) -> None:
    """ZeRO-3 bundles layers that are gathered one by one in ours: its bytes are equal, its messages fewer."""
    found, theirs = real.ours(zero_run(tmp_path, stage, steps)), COUNTED[stage, steps]
    assert {kind: size for kind, (_, size) in found.items()} == {k: size for k, (_, size) in theirs.items()}
    if stage < 3:
        assert found == theirs


def test_zero3_gathers_all_again_where_it_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives_module, "ZERO3_KEPT", 0.0)
    found = real.ours(zero_run(tmp_path, 3, 1))
    assert found["all_gather"][1] == pytest.approx(COUNTED_WITHOUT_KEEPING["all_gather"][1])


def test_two_processes_over_gloo_send_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.oracle.gloo_ranks"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(gloo.RANKS)
    ]
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), errors
    for rank in range(gloo.RANKS):
        sent = json.loads((tmp_path / str(rank) / "sent.json").read_text("utf-8"))
        for kind, counts in sent.items():
            ours = real.ours(gloo.run_of(kind, tmp_path))
            assert {name: tuple(count) for name, count in counts.items()} == ours
    _holds_and_sends_its_experts(tmp_path)


def _holds_and_sends_its_experts(folder: Path) -> None:
    """Whose tokens chose which experts is drawn: what is sent back and computed is equal on average."""
    found = [
        json.loads((folder / str(rank) / "experts.json").read_text("utf-8")) for rank in range(gloo.RANKS)
    ]
    run = gloo.run_with_experts(folder)
    share, (messages, size) = share_of(run), real.ours(run)["all_to_all"]
    assert {one["held"] for one in found} == {share.graph.weights.base_bytes}
    assert {one["sent"]["all_to_all"][0] for one in found} == {messages}
    assert mean(one["sent"]["all_to_all"][1] for one in found) == size
    assert {tuple(one["sent"]["all_reduce"]) for one in found} == {real.ours(run)["all_reduce"]}
    _, flops = share.graph.flops(Extents.of(run.micro_batch_size, run.seq_len))
    assert mean(one["flops"] for one in found) == pytest.approx(flops, rel=1e-9)
