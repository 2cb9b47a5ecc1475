"""Megatron-LM's own kernels and optimizer: what they keep, hold, move and call, by hand."""

import json
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from finegauge.model.graph import build
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.collectives import collectives
from finegauge.prediction.model_parallel import divided
from finegauge.prediction.predictor import held_between_steps, predict
from finegauge.run.run import Run

HIDDEN, HEADS, LAYERS, LENGTH = 1024, 16, 4, 512


@pytest.fixture
def gpt(tmp_path: Path) -> str:
    path = tmp_path / "gpt.json"
    sizes = {"n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "n_positions": LENGTH}
    path.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 51200, **sizes}))
    return str(path)


def run(model: str, **fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": model,
        "method": "full",
        "phase": "pretrain",
        "gpu": "A100-SXM4-80GB",
        "seq_len": LENGTH,
        "micro_batch_size": 2,
        "packing": True,
        "attention": "eager",
        "kernels": ("megatron",),
        "optimizer_implementation": "fused",
    }
    return Run(**{**base, **fields})


def kept_by_the_layers(asked: Run) -> float:
    return predict(asked).phase_memory_bytes.parts["forward", "activations", "all layers"]


def test_a_layer_keeps_what_its_paper_says(gpt: str) -> None:
    tokens = 2 * LENGTH
    streams, scores = 34 * tokens * HIDDEN, 5 * HEADS * tokens * LENGTH  # Korthikanti et al. 2022, eq. 1
    assert kept_by_the_layers(run(gpt)) == pytest.approx(LAYERS * (streams + scores), rel=0.005)


def test_selective_checkpointing_drops_the_scores_alone(gpt: str) -> None:
    streams = 34 * 2 * LENGTH * HIDDEN
    kept = kept_by_the_layers(run(gpt, activation_checkpointing="selective"))
    assert kept == pytest.approx(LAYERS * streams, rel=0.005)
    steps = predict(run(gpt, activation_checkpointing="selective")).step_time_s.parts
    assert {path[1:] for path in steps if path[0] == "recompute"} == {("attention", "attention kernel")}


def test_scores_are_moved_half_as_often_as_by_eager_pytorch(gpt: str) -> None:
    def moved(*kernels: str) -> float:
        ops = build(run(gpt, kernels=kernels)).layers[0].ops
        (core,) = (op for op in ops if op.kind == "attention_eager")
        return core.forward.bytes.pair / HEADS

    assert moved("megatron") == 4 * 2 + (2 * 2 + 1)  # two products, one softmax; dropout and its mask
    assert moved() > 1.5 * moved("megatron")


def test_eighteen_bytes_for_every_trained_parameter(gpt: str) -> None:
    params = build(run(gpt)).weights.trained_params
    parts = predict(run(gpt)).phase_memory_bytes.under("optimizer")
    assert parts["weights"] + parts["gradients"] + parts["optimizer"] == pytest.approx(18 * params, rel=1e-3)
    shared = predict(run(gpt, num_gpus=8, sharding="zero1")).phase_memory_bytes.under("optimizer")
    held = shared["weights"] + shared["gradients"] + shared["optimizer"]
    assert held == pytest.approx((6 + 12 / 8) * params, rel=1e-3)
    assert parts.parts.get(("workspace", "optimizer"), 0.0) == 0.0


@pytest.mark.parametrize(
    ("sharding", "framework", "kinds", "beside"),
    [
        ("none", "Megatron-LM", {"all_reduce"}, {""}),
        ("none", "NeMo 1", {"all_reduce"}, {"backward"}),
        ("zero1", "Megatron-LM", {"reduce_scatter", "all_gather"}, {""}),
    ],
)
def test_gradients_are_reduced_at_once_in_fp32(
    gpt: str, sharding: str, framework: str, kinds: set[str], beside: set[str]
) -> None:
    asked = run(gpt, num_gpus=8, sharding=sharding, framework=framework)
    found = [c for c in collectives(asked) if c.group == "data"]
    assert {c.kind for c in found} == kinds
    reduced = [c for c in found if c.kind != "all_gather"]
    params = build(asked).weights.trained_params
    assert sum(c.payload_bytes for c in reduced) == pytest.approx(4 * params, rel=1e-3)
    assert {c.beside for c in reduced} == beside


def test_every_operator_of_a_layer_is_a_call_of_python(gpt: str) -> None:
    graph = build(run(gpt))
    assert all(op.forward.calls >= 1 for op in graph.layers[0].ops if op.forward.launches)
    assert not any(op.forward.calls for op in graph.head)
    small = run(gpt, seq_len=32, micro_batch_size=1)
    calls = sum(op.forward.calls + op.backward.calls for op in graph.layers[0].ops) * LAYERS
    assert predict(small, DATASHEET).step_time_s.total > calls * DATASHEET.call_s


def test_the_precision_aware_optimizer_keeps_what_it_is_asked_to() -> None:
    """Per parameter: weight 2, gradient 4 or 2, copy 4 or the 2 bytes that bf16 lacks, moments of 4 or 2."""
    fields: dict[str, Any] = {
        "framework": "Megatron-LM",
        "weights_dtype": "bf16",
        "activation_checkpointing": "full",
    }
    plain = run("llama-3.2-1b", **fields)
    narrow = plain.replace(gradient_dtype="bf16", moments_dtype="bf16")
    parameters = build(plain).weights.trained_params
    held = [held_between_steps(asked) for asked in (plain, narrow)]
    assert [one.gradients_bytes for one in held] == pytest.approx([4 * parameters, 2 * parameters])
    assert [one.optimizer_bytes for one in held] == pytest.approx([12 * parameters, 6 * parameters])
    updates = [predict(asked).step_time_s["optimizer"] for asked in (plain, narrow)]
    assert updates[1] < updates[0]


def test_experts_exchange_tokens_behind_computation_where_asked() -> None:
    asked = Run(
        model="qwen3-30b-a3b", method="full", phase="pretrain", gpu="H100", num_gpus=8, expert_parallel=8,
        framework="Megatron-LM", sharding="zero1", seq_len=4096, packing=True,
    )  # fmt: skip
    shown = "communication", "all-to-all (expert parallel)"
    seconds = [
        predict(one).step_time_s.parts.get(shown, 0.0)
        for one in (asked, asked.replace(expert_parallel_overlap=True))
    ]
    assert seconds[1] < 0.5 * seconds[0]
    bytes_ = [
        sum(m.payload_bytes * m.num_sent for m in collectives(one) if m.kind == "all_to_all")
        for one in (asked, asked.replace(expert_parallel_overlap=True))
    ]
    assert bytes_[0] == pytest.approx(bytes_[1])


def test_the_last_rank_of_a_sequence_computes_most_scores_unless_balanced() -> None:
    asked = Run(
        model="llama-3.1-8b", method="full", phase="pretrain", gpu="H100", num_gpus=8, context_parallel=8,
        framework="Megatron-LM", sharding="zero1", seq_len=131072, packing=True,
    )  # fmt: skip
    path = "forward", "attention", "attention kernel"
    balanced, uneven = (
        predict(one).step_time_s.parts[path] for one in (asked, asked.replace(context_parallel_balance=False))
    )
    assert uneven / balanced == pytest.approx(2 - 1 / 8, rel=0.02)


@pytest.mark.parametrize("framework", ["Megatron-LM", "NeMo", "litgpt", "torchtune"])
def test_adapters_of_experts_stand_beside_the_product_in_models_of_ones_own(framework: str) -> None:
    """PEFT adds B·A to all experts' weights and keeps the sums: 72 GiB of Mixtral's activations."""

    def peak_bytes(method: str, named: str) -> float:
        fields = {"model": "mixtral-8x7b", "gpu": "H100", "num_gpus": 64, "sharding": "fsdp", "seq_len": 2048}
        asked = Run.from_fields({**fields, "method": method, "framework": named})
        return predict(asked).peak_memory_bytes.total

    assert peak_bytes("lora", "TRL") > 1.2 * peak_bytes("full", "TRL")
    assert peak_bytes("lora", framework) < 0.9 * peak_bytes("full", framework)


def test_trainers_that_list_linears_adapt_no_fused_experts() -> None:
    fields = {"model": "mixtral-8x7b", "gpu": "H100", "num_gpus": 64, "sharding": "fsdp", "method": "lora"}
    names = ("TRL", "ms-swift", "LLaMA-Factory", "Axolotl")
    counts = [build(Run.from_fields({**fields, "framework": name})).weights.adapter_params for name in names]
    assert counts[0] > 5 * counts[1]
    assert counts[1] == counts[2] == counts[3]


def test_experts_compute_up_to_their_capacity_whatever_tokens_choose() -> None:
    asked = Run(
        model="qwen3-30b-a3b", method="full", phase="pretrain", gpu="H100", num_gpus=8, expert_parallel=8,
        framework="Megatron-LM", sharding="zero1", seq_len=4096, packing=True,
    )  # fmt: skip
    padded = asked.replace(expert_capacity_factor=1.5)
    experts, chosen, hidden, inner, layers = 128, 8, 2048, 768, 48
    capacity = ceil(4096 * chosen * 1.5 / experts)  # rows of each
    with torch.device("meta"), FlopCounterMode(display=False) as counted:
        rows = torch.empty(experts, capacity, hidden)
        up = torch.bmm(rows, torch.empty(experts, hidden, 2 * inner))
        torch.bmm(up[..., :inner], torch.empty(experts, inner, hidden))
    products = [op for group in build(padded).layers for op in group.ops if op.kind == "grouped_gemm"]
    flops = sum(2 * 4096 * g.rows_per_token * g.n * g.k for op in products for g in op.forward.gemms)
    assert flops == pytest.approx(counted.get_total_flops())
    sent = [
        sum(m.payload_bytes * m.num_sent for m in collectives(one) if m.kind == "all_to_all")
        for one in (asked, padded)
    ]
    assert sent[1] == pytest.approx(1.5 * sent[0])
    kept = [predict(one).peak_memory_bytes["activations"] for one in (asked, padded)]
    more = (
        layers * (capacity * experts - 4096 * chosen) * (2 * hidden + 3 * inner) * 2
    )  # in and out, gate, up
    assert kept[1] - kept[0] == pytest.approx(more, rel=0.25)
    assert predict(padded).step_time_s["waits"] <= predict(asked).step_time_s["waits"]


@pytest.mark.parametrize("fields", [{}, {"weights_dtype": "fp32", "autocast": "bf16"}, {"fp8": True}])
def test_an_input_is_whole_on_every_rank_whatever_is_cast_before_its_product(fields: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"weights_dtype": "bf16", "autocast": "none", "activation_checkpointing": "none"}
    asked = Run(
        model="llama-3-8b", method="full", gpu="H100", num_gpus=8, tensor_parallel=8, framework="torchtitan",
        **{**plain, **fields},
    )  # fmt: skip
    ops = build(asked).layers[0].ops
    kept = {
        op.path[-1]: part.saved_bytes.token / op.saved_bytes.token
        for op, part in zip(ops, divided(asked, ops), strict=True)
        if op.kind == "gemm" and op.saved_bytes.token
    }
    assert kept["q_proj"] == kept["gate_proj"] == 1.0
    assert kept["down_proj"] == 1 / 8
