"""BlackMamba as a module: its published size, its kinds of layers, its state, its router."""

import pytest
import torch

from finegauge.catalogue.models import model as catalogued
from finegauge.errors import FieldError, UnsupportedError
from finegauge.measurement.blackmamba import BlackMambaConfig, BlackMambaForCausalLM
from finegauge.model.graph import build
from finegauge.run.run import Run
from tests.oracle.step_trace import trace_step
from tests.unit.measurement.subjects import BLACKMAMBA, run_of, subject


def test_the_published_shape() -> None:
    row = catalogued("blackmamba-2.8b")
    with torch.device("meta"):
        model = BlackMambaForCausalLM(BlackMambaConfig.of(row.config, 2))
    model.tie_weights()
    assert sum(p.numel() for p in model.parameters()) == row.parameters == 2_783_213_584
    kinds = [type(layer.mixer).__name__ for layer in model.backbone.layers]
    assert kinds == ["MambaMixer", "_BlackMambaMoE"] * 18
    # 630 million of them see a token: of eight experts one, of the embedding (it is the head too) all
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    active = row.parameters - experts * 7 // 8
    assert active == pytest.approx(630e6, rel=0.02)


def test_tensors_are_those_of_the_graph() -> None:
    asked = subject("blackmamba")
    graph = build(asked.run).model
    ours = [tuple(t.shape) for layer, count in graph.layers for _ in range(count) for t in layer.tensors()]
    theirs = [tuple(p.shape) for n, p in asked.model.named_parameters() if ".layers." in n]
    assert sorted(ours) == sorted(theirs)


def test_state_gives_what_the_whole_sequence_gives() -> None:
    model = subject("blackmamba", weights_dtype="fp32").model.eval()
    ids = torch.arange(1, 13).view(1, 12)
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        first = model(input_ids=ids[:, :11], use_cache=True)
        (state,) = ({name: value} for name, value in first.items() if name.startswith("cache"))
        last = model(input_ids=ids[:, 11:], **state, use_cache=True).logits
        written = [
            model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=cached, pad_token_id=0)
            for cached in (True, False)
        ]
    assert torch.allclose(first.logits, whole[:, :11], atol=1e-5)
    assert torch.allclose(last[:, 0], whole[:, 11], atol=1e-4)
    assert torch.equal(*written)


def test_router_weighs_by_the_softmax_over_all() -> None:
    router = (
        subject("blackmamba", weights_dtype="fp32", num_experts_per_tok="all")
        .model.backbone.layers[1]
        .mixer.router
    )
    logits, weights, chosen = router(torch.randn(5, BLACKMAMBA["hidden_size"]))
    assert weights.shape == chosen.shape == (5, 4)
    assert torch.allclose(weights.sum(-1), torch.ones(5))
    assert torch.equal(chosen[:, 0], logits.argmax(-1))


def test_grouped_and_looped_experts_agree() -> None:
    ids = torch.arange(1, 33).view(2, 16)
    answers = [
        subject("blackmamba", weights_dtype="fp32", experts_implementation=how).model(input_ids=ids).logits
        for how in ("eager", "grouped_mm")
    ]
    assert torch.allclose(*answers, atol=1e-5)


def test_it_is_traced_like_any_other() -> None:
    run = run_of("blackmamba", micro_batch_size=2, seq_len=32)
    trace = trace_step(run)
    assert sum(trace.flops.values()) > 0
    assert sum(torch.Size(shape).numel() for shape, _, _ in trace.parameters.values()) == (
        build(run).model.num_parameters
    )


def test_unpublished_variants_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="SwiGLU experts without biases only"):
        BlackMambaConfig.of({**BLACKMAMBA, "swiglu": False}, None)
    with pytest.raises(FieldError, match="neither 'r' nor a number"):
        BlackMambaConfig.of({**BLACKMAMBA, "mamba_moe_layers": ["r", "x"]}, None)


def test_the_catalogue_name_is_a_run() -> None:
    assert "mamba_moe_layers" in Run(model="blackmamba-2.8b", method="full").config
