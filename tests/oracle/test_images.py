"""Vision towers and projectors against transformers' own classes, in a small size: parameters, FLOPs, peaks.

What an image adds is counted: the FLOPs of a step with it, less those of the same step without.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

from finegauge.catalogue.images import IMAGES, Seen, fitted, image_of
from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.run.run import Run
from tests.oracle.real_step import peak_of, predicted

ROTATED = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}
WORD, IMAGE, WORDS = 5, 7, 20
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
CLIP = {"model_type": "clip_vision_model", "image_size": 56, "patch_size": 14}
PINPOINTS = {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]]}


class Small(NamedTuple):
    """A small model of one type, and the image that it is shown."""

    text: dict[str, Any]
    vision: dict[str, Any]
    whole: dict[str, Any]
    height: int
    width: int


SMALL = {
    "qwen2_vl": Small({"rope_parameters": ROTATED}, {"embed_dim": 32, "mlp_ratio": 2}, {}, 112, 168),
    "qwen2_5_vl": Small({"rope_parameters": ROTATED}, {"fullatt_block_indexes": [1]}, {}, 224, 336),
    "qwen3_vl": Small(
        {"rope_parameters": ROTATED},
        {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        {},
        256,
        320,
    ),
    "llava": Small({"model_type": "llama"}, CLIP, {}, 56, 56),
    "llava_next": Small({"model_type": "llama"}, CLIP, PINPOINTS, 100, 90),
    "llava_onevision": Small({"model_type": "qwen2"}, {**CLIP, **SIGLIP}, PINPOINTS, 100, 90),
    "gemma3": Small(
        {"layer_types": ["full_attention"] * 2},
        {**CLIP, **SIGLIP, "image_size": 112},
        {"mm_tokens_per_image": 16},
        112,
        112,
    ),
    "paligemma": Small({"model_type": "gemma"}, {**CLIP, **SIGLIP}, {"projection_dim": 64}, 56, 56),
    "internvl": Small(
        {"model_type": "qwen2"},
        {"image_size": [56, 56], "patch_size": [14, 14]},
        {"image_seq_length": 4},
        56,
        112,
    ),
    "idefics3": Small(
        {"model_type": "llama"}, {"image_size": 56, "patch_size": 14}, {"scale_factor": 2}, 56, 112
    ),
    "mistral3": Small(
        {"model_type": "mistral"},
        {"model_type": "pixtral", "head_dim": 16, "image_size": 1540, "patch_size": 14},
        {"spatial_merge_size": 2},
        84,
        112,
    ),
    "glm4v": Small(
        {"rope_parameters": {**ROTATED, "partial_rotary_factor": 1.0}},
        {"out_hidden_size": 64, "image_size": 112}, {}, 112, 168,
    ),
    "llama4": Small(
        {
            "model_type": "llama4_text", "intermediate_size_mlp": 64, "num_local_experts": 2,
            "interleave_moe_layer_step": 99,
        },
        {
            "image_size": 56, "patch_size": 14, "intermediate_size": 128, "projector_input_dim": 32,
            "projector_output_dim": 32, "vision_output_dim": 32,
        },
        {},
        56,
        112,
    ),
}  # fmt: skip


@pytest.mark.parametrize("model_type", SMALL)
def test_what_an_image_adds_is_what_transformers_computes(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Llama 4 of transformers 5.24.0 asks its decoder's output for a field that it has not
    monkeypatch.setattr(MoeCausalLMOutputWithPast, "image_outputs", None, raising=False)
    small = SMALL[model_type]
    model = _model(model_type, small)
    config = json.loads(model.config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(config))
    seen = image_of(config, small.height, small.width)
    length = seen.length + WORDS
    run = Run(
        model=str(tmp_path), method="full", weights_dtype="fp32", attention="eager", seq_len=length,
        images_per_sample=1, image_size=f"{small.width}x{small.height}",
    )  # fmt: skip
    graph, without = build(run), build(run.replace(images_per_sample=0.0))
    assert graph.model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    ours = [
        shown - hidden
        for shown, hidden in zip(
            graph.flops(Extents.of(1, length)), without.flops(Extents.of(1, length)), strict=True
        )
    ]
    words, image = _inputs(model, model_type, seen, small, length)
    plain = {name: value for name, value in image.items() if name in ("token_type_ids", "use_cache")}
    theirs = [
        shown - hidden
        for shown, hidden in zip(
            _counted(model, words, image),
            _counted(model, torch.full_like(words, WORD), plain),
            strict=True,
        )
    ]
    assert ours == theirs


def _model(model_type: str, small: Small) -> Any:
    text = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "pad_token_id": 0,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    if model_type.startswith(("qwen", "glm")):
        width = 64 if model_type == "qwen2_vl" else 32
        vision = {"hidden_size": width, "intermediate_size": 48, "depth": 3, "num_heads": 2}
        vision |= {} if model_type == "qwen2_vl" else {"out_hidden_size": 64}
    kinds = {"text_config": {**text, **small.text}, "vision_config": {**vision, **small.vision}}
    by_index = model_type.startswith("llava") or model_type in ("paligemma", "llama4")
    tokens = {"image_token_index" if by_index else "image_token_id": IMAGE}
    if model_type.startswith(("qwen", "glm")):
        tokens["video_token_id"] = IMAGE + 1
    config = CONFIG_MAPPING[model_type](**kinds, **small.whole, **tokens)
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).train()


def _inputs(model: Any, model_type: str, seen: Seen, small: Small, length: int) -> tuple[Any, dict[str, Any]]:
    """Return the words of a sequence with an image in it, and what else the model is given."""
    words, config = torch.full((1, length), WORD), model.config
    rows = seen.crops * seen.patches // seen.joined
    words[0, 1 : 1 + (seen.tokens if model_type in ("llava_next", "llava_onevision") else rows)] = IMAGE
    if model_type.startswith(("qwen", "glm")):
        patch, row = config.vision_config.patch_size, IMAGES[model_type]
        high, wide = fitted(small.height, small.width, 2 * patch, row["min_pixels"], row["max_pixels"])
        return words, {
            "pixel_values": torch.randn(seen.patches, 3 * 2 * patch * patch),
            "image_grid_thw": torch.tensor([[1, high // patch, wide // patch]]),
            "mm_token_type_ids": (words == IMAGE).int(),
            "use_cache": False,
        }
    side = config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    shape: tuple[int, ...] = (seen.crops, 3, side, side)
    more: dict[str, Any] = {}
    if model_type == "mistral3":
        shape, more = (1, 3, small.height, small.width), {"image_sizes": [[small.height, small.width]]}
    elif model_type in ("llava_next", "llava_onevision"):
        shape, more = (1, *shape), {"image_sizes": [[small.height, small.width]]}
    elif model_type == "idefics3":
        shape = (1, *shape)
    given = {"pixel_values": torch.randn(shape), **{key: torch.tensor(each) for key, each in more.items()}}
    if model_type in ("paligemma", "gemma3"):
        given["token_type_ids"] = torch.zeros_like(words)
    return words, given


def _counted(model: Any, words: Any, given: dict[str, Any]) -> tuple[int, int]:
    """Return the FLOPs of a forward pass, and of both."""
    with FlopCounterMode(display=False) as counter:
        loss = model(input_ids=words, labels=words, **given).loss
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


LARGER = {"hidden_size": 192, "intermediate_size": 512, "num_heads": 6, "depth": 6, "out_hidden_size": 128}
QWEN3_VL = Small(  # as many key heads as query heads: grouped ones take another kernel on a GPU, in fp32
    {
        "rope_parameters": {**ROTATED, "mrope_section": [4, 6, 6]}, "num_key_value_heads": 4,
        "hidden_size": 128, "head_dim": 32, "num_hidden_layers": 3,
    },
    {**LARGER, "num_position_embeddings": 256, "deepstack_visual_indexes": [1]},
    {},
    384,
    512,
)  # fmt: skip


@pytest.mark.parametrize("trained", ["all", "text", "projector", "adapters"])
def test_the_peak_of_a_step_with_an_image_is_that_of_a_real_one(trained: str, tmp_path: Path) -> None:
    model: Any = _model("qwen3_vl", QWEN3_VL)
    model.set_attn_implementation("sdpa")
    config = json.loads(model.config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(config))
    seen = image_of(config, QWEN3_VL.height, QWEN3_VL.width)
    length, adapters = seen.length + WORDS, trained == "adapters"
    words, given = _inputs(model, "qwen3_vl", seen, QWEN3_VL, length)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        of_tower, of_projector = "visual" in name, "merger" in name
        if not adapters and trained != "all":
            parameter.requires_grad_(of_projector if trained == "projector" else not of_tower)
    method: dict[str, Any] = {"method": "lora", "adapter_dtype": "fp32"} if adapters else {"method": "full"}
    run = Run(
        model=str(tmp_path), **method, weights_dtype="fp32", seq_len=length,
        images_per_sample=1, image_size="512x384",
        freeze_language_model=trained == "projector", freeze_vision_tower=trained in ("text", "projector"),
        freeze_projector=trained == "text",
    )  # fmt: skip
    real = peak_of(model, lambda: model(input_ids=words, labels=words, **given).loss)
    if trained == "all":  # autograd keeps the pixels, which a trainer holds, and this test before it begins
        real += given["pixel_values"].untyped_storage().nbytes()
    assert predicted(run) == pytest.approx(real, rel=0.02)
