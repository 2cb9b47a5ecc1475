"""The kernel table: a replayed step of a GPU, and real steps of tiny models on this CPU."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from finegauge.measurement.instruments.kernel_table import Peaks, document, watch_kernels
from finegauge.measurement.instruments.kernel_trace import parse_trace
from finegauge.measurement.instruments.module_roles import roles_of
from finegauge.measurement.subject import Clock, StepFacts
from tests.replay.gpu_trace import qlora_moe_step

TINY: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
TOKENS = 2 * 32
CPU = torch.device("cpu")


def names(path: str) -> tuple[str, ...]:
    """Return the last two names of a path for a role."""
    return tuple(path.split(".")[-2:])


class Supervised:
    """One step of a model on the same tokens again and again."""

    subject: Any = None

    def __init__(self, model: Any) -> None:
        self.models: Mapping[str, Any] = {"policy": model}
        self.model = model.train()
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        self.ids = torch.arange(TOKENS).view(2, 32) % 256
        self.losses: list[float] = []

    def step(self, clock: Clock) -> StepFacts:
        with clock.stage("forward"):
            loss = self.model(input_ids=self.ids, labels=self.ids).loss
        with clock.stage("backward"):
            loss.backward()
        with clock.stage("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.losses.append(loss.item())
        return StepFacts(TOKENS, 2, self.losses[-1], TOKENS)


def watched(phase: Supervised, **options: Any) -> dict[str, Any]:
    return watch_kernels(phase, role_of=roles_of(phase.model), **options)


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM._from_config(LlamaConfig(**TINY, **changes), attn_implementation="sdpa")


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2)
    return MixtralForCausalLM._from_config(config)


def share(found: dict[str, Any], kind: str) -> float:
    total = sum(found["by_kind_s"].values())
    return float(found["by_kind_s"].get(kind, 0.0) / total)


def flops(found: dict[str, Any], stage: str, kind: str) -> float:
    return float(sum(r["flops"] for r in found["rows"] if (r["stage"], r["kind"]) == (stage, kind)))


@pytest.fixture(scope="module")
def replayed() -> dict[str, Any]:
    peaks = Peaks({"bf16": 1e15}, 3e12)
    return document(parse_trace(qlora_moe_step()), names, steps=1, peaks=peaks)


def row(found: dict[str, Any], stage: str, operator: str) -> dict[str, Any]:
    return next(dict(r) for r in found["rows"] if (r["stage"], r["operator"]) == (stage, operator))


def test_gpu_time_is_that_of_kernels(replayed: dict[str, Any]) -> None:
    assert replayed["timed_on"] == "device"
    assert sum(r["time_s"] for r in replayed["rows"]) == pytest.approx(replayed["busy_s"])
    assert replayed["by_kind_s"]["matmul"] == pytest.approx(1030e-6)
    assert replayed["by_kind_s"]["dequantise"] == pytest.approx(80e-6)
    assert "other" not in replayed["by_kind_s"]
    assert "host" not in replayed["by_kind_s"]


def test_gpu_rows_say_where_they_belong(replayed: dict[str, Any]) -> None:
    assert row(replayed, "forward", "aten::mm")["role"] == ["self_attn", "q_proj"]
    assert row(replayed, "backward", "aten::mm")["role"] == ["self_attn", "q_proj"]
    assert row(replayed, "backward", "bitsandbytes::dequantize_4bit")["role"] == ["self_attn", "q_proj"]
    assert row(replayed, "recompute", "aten::_grouped_mm")["role"] == ["mlp", "experts"]
    assert row(replayed, "backward", "aten::_grouped_mm")["calls_per_step"] == 2
    assert row(replayed, "forward", "aten::_log_softmax")["role"] == ["loss", "cross entropy"]
    assert row(replayed, "optimizer", "aten::_fused_adamw_")["kind"] == "optimizer"
    assert row(replayed, "optimizer", "aten::_fused_adamw_")["role"] == ["parameters", "adamw"]
    assert row(replayed, "backward", "LigerRMSNormBackward")["kind"] == "norm"  # by the kernel's name
    assert row(replayed, "forward", "aten::copy_")["num_bytes"] == 4096


def test_gpu_utilisation_is_achieved_over_peak(replayed: dict[str, Any]) -> None:
    product = 2 * 512 * 1024 * 1024
    grouped = 2 * 1024 * 1024 * 4096
    everything = replayed["utilisation"]["matmul"]
    assert everything["flops_per_s"] == pytest.approx((2 * product + 4 * grouped) / 1030e-6)
    assert everything["compute_fraction"] == pytest.approx(everything["flops_per_s"] / 1e15)
    assert replayed["utilisation"]["dequantise"]["memory_fraction"] > 0
    assert replayed["utilisation"]["all"]["time_s"] == pytest.approx(replayed["busy_s"])


def test_a_peak_that_is_not_known_gives_no_fraction() -> None:
    found = document(parse_trace(qlora_moe_step()), names, steps=1, peaks=Peaks({}, 0.0))
    assert "compute_fraction" not in found["utilisation"]["matmul"]
    assert "memory_fraction" not in found["utilisation"]["matmul"]


def test_host_share_is_what_the_device_waits(replayed: dict[str, Any]) -> None:
    step_s, busy_s = replayed["step_time_s"], replayed["busy_s"]
    assert replayed["host_bound_fraction"] == pytest.approx(1 - busy_s / step_s)
    undisturbed = document(parse_trace(qlora_moe_step()), names, steps=1, unwatched_step_s=2 * busy_s)
    assert undisturbed["host_bound_fraction"] == pytest.approx(0.5)


@pytest.fixture(scope="module", params=["llama", "mixtral"])
def measured(request: pytest.FixtureRequest) -> dict[str, Any]:
    torch.set_num_threads(1)
    phase = Supervised(llama() if request.param == "llama" else mixtral())
    watched(phase, device=CPU, steps=1)
    return {"name": request.param, **watched(phase, device=CPU, steps=2)}


def test_cpu_operators_all_have_a_kind(measured: dict[str, Any]) -> None:
    assert share(measured, "other") == 0
    assert share(measured, "optimizer") > 0
    assert share(measured, "norm") > 0
    assert ("top-k" in measured["by_kind_s"]) == (measured["name"] == "mixtral")


def test_cpu_time_lies_within_the_step(measured: dict[str, Any]) -> None:
    assert measured["timed_on"] == "cpu"
    assert 0 < measured["busy_s"] < measured["step_time_s"]
    assert measured["host_bound_fraction"] == pytest.approx(1 - measured["busy_s"] / measured["step_time_s"])
    assert sum(r["time_s"] for r in measured["rows"]) < measured["step_time_s"]


def test_cpu_flops_are_those_of_the_model(measured: dict[str, Any]) -> None:
    hidden, ffn, vocab = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
    dense = measured["name"] == "llama"
    per_token = 4 * hidden**2 + (3 * hidden * ffn if dense else 2 * 3 * hidden * ffn + 4 * hidden)
    forward = 2 * TOKENS * (2 * per_token + hidden * vocab)
    backward = 2 * forward
    assert flops(measured, "forward", "matmul") == pytest.approx(forward, rel=1e-3)  # and rotary's angles
    assert flops(measured, "backward", "matmul") == pytest.approx(backward, rel=1e-3)


def test_cpu_projections_are_found_in_both_passes(measured: dict[str, Any]) -> None:
    for stage in ("forward", "backward"):
        found = {
            tuple(r["role"])
            for r in measured["rows"]
            if r["stage"] == stage and r["kind"] == "matmul" and r["role"]
        }
        assert {("attention", "q_proj"), ("attention", "o_proj"), ("head", "lm_head")} <= found
        part, up = ("moe", "gate_up_proj") if measured["name"] == "mixtral" else ("mlp", "up_proj")
        assert {(part, up), (part, "down_proj")} <= found
        kernels = {
            tuple(r["role"]) for r in measured["rows"] if r["kind"] == "attention" and r["stage"] == stage
        }
        assert kernels == {("attention", "attention kernel")}


def test_cpu_fused_products_share_the_flops_as_their_shapes_do(measured: dict[str, Any]) -> None:
    if measured["name"] == "llama":
        return
    amount = {"gate_up_proj": 0.0, "down_proj": 0.0}
    for r in measured["rows"]:
        if r["kind"] == "matmul" and r["role"][:1] == ["moe"] and r["role"][-1] in amount:
            amount[r["role"][-1]] += r["flops"]
    assert amount["gate_up_proj"] == pytest.approx(2 * amount["down_proj"])


def test_cpu_adapters_of_fused_experts_are_not_their_products() -> None:
    from peft import LoraConfig, get_peft_model

    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = LoraConfig(r=4, target_modules=["q_proj"], target_parameters=targets, task_type="CAUSAL_LM")
    found = watched(Supervised(get_peft_model(mixtral(), config)), device=CPU, steps=1)
    amount: dict[str, float] = {}
    for r in found["rows"]:
        if r["kind"] == "matmul" and r["stage"] == "forward":
            amount[r["role"][-1]] = amount.get(r["role"][-1], 0.0) + r["flops"]
    hidden, ffn = TINY["hidden_size"], TINY["intermediate_size"]
    assert amount["gate_up_proj"] == 2 * (2 * TOKENS) * 2 * hidden * 2 * ffn
    assert amount["down_proj"] == amount["gate_up_proj"] / 2
    queries = 2 * 2 * TOKENS * 4 * (hidden + hidden)
    weights = 2 * 2 * 4 * 4 * hidden * 3 * ffn
    assert amount["adapter"] > queries
    assert (amount["adapter"] - queries) % weights == 0  # made each time that PEFT reads the weights


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_stage(reentrant: bool) -> None:
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = watched(Supervised(model), device=CPU, steps=1)
    hidden, ffn = TINY["hidden_size"], TINY["intermediate_size"]
    layers = 2 * TOKENS * 2 * (4 * hidden**2 + 3 * hidden * ffn)
    # without reentry it stops when the last tensor that the layer's backward needs is back
    assert flops(found, "recompute", "matmul") == pytest.approx(layers, rel=0 if reentrant else 0.12)
    assert share(found, "other") == 0


def test_trace_is_written_and_nothing_stays_behind(tmp_path: Path) -> None:
    plain, phase = Supervised(llama()), Supervised(llama())
    plain.step(RangelessClock())
    plain.step(RangelessClock())
    path = tmp_path / "trace.json"
    watched(phase, device=CPU, steps=2, trace_path=str(path))
    assert json.loads(path.read_text("utf-8"))["traceEvents"]
    assert phase.losses == plain.losses
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in phase.model.modules())


class RangelessClock:
    def stage(self, name: str) -> Any:
        from contextlib import nullcontext

        return nullcontext(name)
