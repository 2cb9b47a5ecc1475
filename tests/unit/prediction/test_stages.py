"""Stages of a pipeline and ranks of tensor parallelism: what each holds and how long it works, by hand."""

from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.model.op import Extents
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.model_parallel import LAST_STAGE, slowest_share, stage_graphs
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import rank_live_set, share_of
from finegauge.profile import Profile
from finegauge.run.run import Run


def run(**fields: Any) -> Run:
    base: dict[str, Any] = {"model": "llama-3-8b", "method": "full", "gpu": "H100", "seq_len": 2048}
    return Run(**{**base, **fields})


def step(**fields: Any) -> Profile:
    return predict(run(**fields), DATASHEET)


def layers_held(last: bool = False, **fields: Any) -> int:
    """Return the layers whose activations a stage keeps, each counted for every micro-batch."""
    one = run(num_gpus=4, pipeline_parallel=4, gradient_accumulation_steps=16, **fields)
    _, stage = stage_graphs(one, share_of(one).graph)[LAST_STAGE if last else ""]
    return sum(group.count for group in stage.layers)


def bubble(profile: Profile) -> float:
    return profile.step_time_s.parts["communication", "pipeline bubble"]


def test_interleaved_stages_keep_more_at_first_and_more_at_last() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p v) of the model's 32 layers."""
    assert (layers_held(), layers_held(last=True)) == (32, 8)
    assert layers_held(virtual_pipeline_stages=4) == round(32 * (1 + 3 / 16))
    assert layers_held(last=True, virtual_pipeline_stages=4) == round(32 * (1 - 3 / 16))


def test_a_stage_keeps_its_own_layers_not_a_share_of_each_kind() -> None:
    """DeepSeek-V3: three dense layers, then 58 with experts; of 61 the first 13 of 16 stages have four."""
    fields: dict[str, Any] = {"num_gpus": 16, "pipeline_parallel": 16, "gradient_accumulation_steps": 64}
    one = run(model="deepseek-ai/DeepSeek-V3", framework="Megatron-LM", sharding="zero1", **fields)
    share = share_of(one)
    stages = {name: stage for name, (_, stage) in stage_graphs(one, share.graph).items()}
    assert [group.count for group in stages[""].layers] == [16 * 3, 16 * 1]
    assert [group.count for group in stages[LAST_STAGE].layers] == [3]
    first, last = (rank_live_set(one, share, Extents.of(1, 2048), 0.0).phases[f"forward{end}"]["weights"]
                   for end in ("", LAST_STAGE))  # fmt: skip
    assert first < 0.6 * last  # a layer with experts beside three dense ones, and three with experts


def test_the_loss_is_the_last_stages() -> None:
    phases = step(num_gpus=4, pipeline_parallel=4, gradient_accumulation_steps=16).phase_memory_bytes
    assert phases.under("loss")["logits"] == 0.0
    assert phases.under(f"loss{LAST_STAGE}")["logits"] > 0
    assert phases.under("forward")["activations"] > 3 * phases.under(f"forward{LAST_STAGE}")["activations"]


def test_interleaving_divides_the_bubble() -> None:
    fields: dict[str, Any] = {"num_gpus": 4, "pipeline_parallel": 4, "gradient_accumulation_steps": 8}
    assert bubble(step(**fields, virtual_pipeline_stages=4)) == pytest.approx(bubble(step(**fields)) / 4)


def test_the_slowest_stage_has_one_layer_more() -> None:
    one = run(num_gpus=3, pipeline_parallel=3)
    assert slowest_share(one, share_of(one).whole.model) == 11 / 32
    even, odd = step(num_gpus=4, pipeline_parallel=4), step(num_gpus=3, pipeline_parallel=3)
    layers = [p.step_time_s.under("forward")["mlp"] for p in (even, odd)]
    assert layers[1] / layers[0] == pytest.approx(11 / 8)
    assert bubble(odd) / bubble(even) == pytest.approx(21 / 24)  # the work of the other stages


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pipeline_schedule": "gpipe", "virtual_pipeline_stages": 2}, "use pipeline_schedule=1f1b"),
        ({"virtual_pipeline_stages": 9}, "exceed the 32 layers of llama-3-8b; use at most 8"),
    ],
)
def test_chunks_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(FieldError, match=words):
        run(num_gpus=4, pipeline_parallel=4, **fields)


def test_sequence_parallelism_divides_norms_and_streams() -> None:
    fields: dict[str, Any] = {"num_gpus": 8, "tensor_parallel": 8}
    plain, divided = (
        share_of(run(**fields, sequence_parallel=sp)).graph.layers[0].ops for sp in (False, True)
    )
    for whole, part in zip(plain, divided, strict=True):
        share = 1 / 8 if whole.kind == "norm" or whole.path[-1] == "residual" else 1.0
        assert part.saved_bytes.token == pytest.approx(share * whole.saved_bytes.token)
    checkpoints = ("forward", "activations", "checkpoints")
    kept = [
        step(**fields, sequence_parallel=sp, activation_checkpointing="full").phase_memory_bytes.parts
        for sp in (False, True)
    ]
    assert kept[1][checkpoints] == pytest.approx(kept[0][checkpoints] / 8)


def test_megatron_keeps_the_inputs_of_products_divided_too() -> None:
    """Korthikanti et al. 2022, table 2: 34 / t bytes per token and channel, not 10 + 24 / t."""
    fields: dict[str, Any] = {"num_gpus": 8, "tensor_parallel": 8, "sequence_parallel": True}
    torch, megatron = (
        {op.path: op.saved_bytes.token for op in share_of(run(**fields, framework=name)).graph.layers[0].ops}
        for name in ("torchtitan", "Megatron-LM")
    )
    for path in (("attention", "q_proj"), ("mlp", "gate_proj")):
        assert torch[path] == pytest.approx(8 * megatron[path])
    assert torch["mlp", "down_proj"] == megatron["mlp", "down_proj"]


def test_sequence_parallelism_without_tensor_parallelism_changes_nothing() -> None:
    assert step(sequence_parallel=True).step_time_s == step().step_time_s
    assert step(sequence_parallel=True).peak_memory_bytes == step().peak_memory_bytes
