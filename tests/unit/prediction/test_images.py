"""What images do to a step: tokens, memory and time of the tower, and what is frozen."""

from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, UnsupportedError
from finegauge.model.graph import build
from finegauge.prediction.predictor import predict
from finegauge.run.phases import image_tokens
from finegauge.run.run import Run

ONE = {
    "model": "Qwen/Qwen3-VL-8B-Instruct", "method": "full", "gpu": "H200-SXM-141GB", "seq_len": 2048,
    "images_per_sample": 1, "image_size": "1024x768",
}  # fmt: skip


def run_of(**fields: Any) -> Run:
    return Run(**{**ONE, **fields})


def test_images_are_part_of_a_sequence_that_no_data_set_makes() -> None:
    assert image_tokens(run_of()) == 768 + 2
    assert shape(run_of()).tokens == 2048


def test_images_come_to_the_length_of_every_sample_of_a_data_set() -> None:
    alone = shape(run_of(dataset="alpaca", images_per_sample=0, pad_to_multiple_of=1))
    shown = shape(run_of(dataset="alpaca", pad_to_multiple_of=1, seq_len=2048 + 770))
    assert shown.real_tokens == pytest.approx(alone.real_tokens + 770)


def test_more_and_larger_images_take_more_of_everything() -> None:
    steps = [
        predict(run_of(seq_len=8192, **fields))
        for fields in ({"images_per_sample": 0}, {}, {"images_per_sample": 4}, {"image_size": "3000x2000"})
    ]
    for less, more in ((0, 1), (1, 2), (1, 3)):
        assert steps[more].step_flops > steps[less].step_flops
        assert steps[more].step_time_s.total > steps[less].step_time_s.total
        assert steps[more].peak_memory_bytes.total > steps[less].peak_memory_bytes.total


def test_a_frozen_tower_has_no_gradients_states_or_backward() -> None:
    trained, frozen = (
        build(run_of(freeze_vision_tower=is_frozen, freeze_projector=is_frozen))
        for is_frozen in (False, True)
    )
    tower = trained.model.tower
    assert tower is not None
    own = sum(count * tensor.size for tensor, count, _ in tower.tensors())
    assert trained.weights.trained_params - frozen.weights.trained_params == own
    assert all(op.backward.launches == 0 for part in frozen.tower for op in part.ops)
    assert any(op.backward.launches for part in trained.tower for op in part.ops)


def test_only_the_projector_trains_in_the_first_stage_of_llava() -> None:
    graph = build(run_of(freeze_language_model=True, freeze_vision_tower=True))
    tower = graph.model.tower
    assert tower is not None
    assert graph.weights.trained_params == sum(n * t.size for t, n, is_last in tower.tensors() if is_last)
    assert any(op.backward.launches for op in graph.layers[0].ops)  # the gradient comes through the text


def test_adapters_are_in_the_tower_unless_it_is_frozen() -> None:
    lora = {"method": "lora", "lora_rank": 8}
    inside = build(run_of(**lora)).weights.adapter_params
    outside = build(run_of(**lora, freeze_vision_tower=True, freeze_projector=True)).weights.adapter_params
    text = build(run_of(**lora, images_per_sample=0)).weights.adapter_params
    assert inside > outside == text


def test_frameworks_that_freeze_the_tower_do_so_unless_told() -> None:
    assert run_of(framework="LLaMA-Factory").freeze_vision_tower
    assert not run_of(framework="TRL").freeze_vision_tower
    assert not run_of(framework="ms-swift", freeze_projector=False).freeze_projector


@pytest.mark.parametrize("kind", ["none", "full"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_method_is_answered_with_a_tower(method: str, kind: str) -> None:
    profile = predict(run_of(method=method, activation_checkpointing=kind, micro_batch_size=2))
    assert profile.peak_memory_bytes.total > 0
    assert any(path[1] == "vision tower" for path in profile.step_time_s.parts)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": None}, "images need image_size"),
        ({"image_size": "big"}, "is not width x height"),
        ({"videos_per_sample": 1}, "needs video_frames"),
        ({"phase": "grpo"}, "phase=grpo with images"),
        ({"packing": True, "dataset": "alpaca"}, "packing=true with images"),
        ({"model": "meta-llama/Llama-3.2-11B-Vision-Instruct"}, "'mllama' with images is not predicted"),
        ({"model": "Qwen/Qwen3-8B"}, "has no rule for images"),
        ({"tensor_parallel": 2, "num_gpus": 2}, "tensor_parallel=2 with images"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((FieldError, UnsupportedError), match=message):
        build(run_of(**fields))
