"""Vision-language models: their text decoders as layers, their towers as tensors beside them.

Fine-tuning on text does not run a tower, so each is one number: the sum over its tensors as the transformers
5.23 classes build them, whose defaults stand here too. Figures of the decoder stand under `text_config`,
those of the tower under `vision_config`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Mixer, Norm, Routing, Tensor
from finegauge.model.families.decoder import Family, sizes
from finegauge.model.families.dense import no_rope_layers
from finegauge.model.families.parts import (
    Config,
    Figures,
    attention,
    head_norms,
    heads,
    language_model,
    mlp_of,
    rms_layer,
    window_of,
)

CHUNK_NOTE = "Chunked attention is counted as a sliding window of the chunk's length."
CROSS_NOTE = "Cross-attention layers are held but not run: text alone passes them by."


class Behind(NamedTuple):
    """A text decoder behind a tower."""

    text: str  # the family of the decoder
    tower: str  # the name of what stands for the tower
    parameters: Callable[[Figures, int], int]  # parameters of tower and projector, by the decoder's width
    defaults: Config = MappingProxyType({})  # of the decoder, where they are not its family's
    named: bool = False  # `text_config` may name another family
    tied: str = "whole"  # who says that head and embedding are one: the whole config, its text, "either"
    flat: bool = False  # older files have the decoder's figures beside the tower's


def behind_tower(
    config: Config, row: Family, model_type: str, describe: Callable[[Config], Architecture]
) -> Architecture:
    """Return the decoder that `describe` makes of the text part, its tower beside it.

    Raises: FieldError where the text part is no mapping.
    """
    behind: Behind = row["behind"]
    whole = Figures(config, row["defaults"], model_type=model_type)
    text = config.get("text_config") or row["defaults"].get("text_config") or {}
    if not text and behind.flat:
        text = {k: v for k, v in config.items() if k not in ("vision_config", "model_type")}
    if not isinstance(text, Mapping):
        raise FieldError(f"model_type '{model_type}': text_config={shown(text)} is not a mapping of figures.")
    kind = (text.get("model_type") if behind.named else None) or behind.text
    if str(kind).startswith(("qwen2_vl", "qwen2_5_vl")):
        kind = behind.text
    said = {"whole": whole.flag("tie_word_embeddings"), "text": bool(text.get("tie_word_embeddings"))}
    tied = said[behind.tied] if behind.tied in said else any(said.values())
    described = describe({**behind.defaults, **text, "model_type": kind, "tie_word_embeddings": tied})
    tower = Tensor(behind.tower, (behind.parameters(whole, described.hidden_size),), "linear")
    return described._replace(model_type=model_type, other=(*described.other, tower))


def llama4_rotary(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    """Return which layers rotate queries and keys, and attend in chunks: the others attend to all."""
    rotary = no_rope_layers(f)
    if len(f.items("no_rope_layers") or rotary) != len(rotary):
        raise FieldError(
            f"no_rope_layers has {len(f.items('no_rope_layers') or ())} entries, but there are "
            f"{len(rotary)} layers; give one each."
        )
    return rotary


def _llama4_attention(f: Figures, rotary: Any) -> Mixer:
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    style: dict[str, Any] = {"rotary": rotary}
    if rotary:
        style["window"] = window_of(f, "attention_chunk_size")
        if f.raw("use_qk_norm") is not False:  # of heads, without weights
            style["norms"] = head_norms(of[2], weight=False)
    return attention(hidden, of, bias=bias, out_bias=bias, **style)


def _llama4_routes(f: Figures) -> Sequence[bool]:
    step, num_layers, listed = f.size("interleave_moe_layer_step"), f.num_layers(), f.items("moe_layers")
    chosen = range(step - 1, num_layers, step) if listed is None else listed
    return [index in chosen for index in range(num_layers)]


def mllama(whole: Figures) -> Architecture:
    """Return Llama 3.2 Vision: Llama, with cross-attention layers that only images pass through."""
    f = whole.part("text_config", MLLAMA_TEXT)
    hidden, of, mlp = f.size("hidden_size"), heads(f), mlp_of(f)
    crossed = f.items("cross_attention_layers") or ()
    count = sum(index in crossed for index in range(f.num_layers()))
    own = rms_layer(hidden, attention(hidden, of), mlp)
    cross = rms_layer(hidden, attention(hidden, of, norms=head_norms(of[2])), mlp)
    gates = 2
    sizes = {
        "vision_model": mllama_tower(whole.part("vision_config", MLLAMA_VISION), hidden),
        "cross_attention_layers": count * (sum(tensor.size for tensor in cross.tensors()) + gates),
    }
    return language_model(
        f,
        ((own, f.num_layers() - count),),
        Norm("norm", hidden),
        tied=False,
        tables=(Tensor("embed_tokens.images", (8, hidden), "embedding"),),
        other=tuple(Tensor(name, (size,), "linear") for name, size in sizes.items()),
        notes=(CROSS_NOTE,),
    )


# --- parameters of the towers and of the projectors behind them, by the decoder's width


def siglip(whole: Figures, text_hidden: int) -> int:
    """Return Gemma 3's."""
    f = whole.part("vision_config", SIGLIP)
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    embeddings = _linear(f.size("num_channels") * patch**2, hidden)
    embeddings += (f.size("image_size") // patch) ** 2 * hidden
    total = embeddings + f.num_layers() * _encoder_layer(hidden, size) + 2 * hidden
    if f.flag("vision_use_head"):
        probe = hidden + _linear(hidden, 3 * hidden) + _linear(hidden, hidden)
        total += probe + 2 * hidden + _mlp(hidden, size)
    return total + hidden * text_hidden + hidden


def qwen3_vl(whole: Figures, text_hidden: int, *, deepstack: bool = True) -> int:
    """Return Qwen3-VL's; Qwen3.5's has no `deepstack` mergers."""
    f = whole.part("vision_config", QWEN3_VL_VISION)
    hidden, size = _width(f, "num_heads"), f.size("intermediate_size")
    wide = hidden * f.size("spatial_merge_size") ** 2
    merger = _linear(wide, wide) + _linear(wide, f.size("out_hidden_size"))
    total = _linear(_patch_values(f), hidden) + f.size("num_position_embeddings") * hidden
    total += f.num_layers("depth") * _encoder_layer(hidden, size) + merger + 2 * hidden
    if deepstack:
        total += len(f.items("deepstack_visual_indexes") or ()) * (merger + 2 * wide)
    return total


def qwen2_vl(whole: Figures, text_hidden: int) -> int:
    """Return Qwen2-VL's."""
    f = whole.part("vision_config", QWEN2_VL_VISION)
    hidden = f.size("embed_dim")
    f.divided("vision_config: embed_dim", hidden, "num_heads", f.size("num_heads"))
    wide = hidden * f.size("spatial_merge_size") ** 2
    merger = 2 * hidden + _linear(wide, wide) + _linear(wide, f.size("hidden_size"))
    size = int(f.ratio("mlp_ratio") * hidden)
    return _patch_values(f) * hidden + f.num_layers("depth") * _encoder_layer(hidden, size) + merger


def qwen2_5_vl(whole: Figures, text_hidden: int) -> int:
    """Return Qwen2.5-VL's: RMS norms, gated feed-forwards with biases."""
    f = whole.part("vision_config", QWEN2_5_VL_VISION)
    hidden, size = _width(f, "num_heads"), f.size("intermediate_size")
    wide = hidden * f.size("spatial_merge_size") ** 2
    merger = hidden + _linear(wide, wide) + _linear(wide, f.size("out_hidden_size"))
    feed = 2 * _linear(hidden, size) + _linear(size, hidden)
    block = 4 * _linear(hidden, hidden) + feed + 2 * hidden
    return _patch_values(f) * hidden + f.num_layers("depth") * block + merger


def pixtral(whole: Figures, text_hidden: int) -> int:
    """Return Mistral 3's: Llama's layers over patches, and a merger of patches."""
    own = PIXTRAL if "vision_config" in whole.config else {**PIXTRAL, "patch_size": 14, "head_dim": 64}
    f = whole.part("vision_config", own)
    hidden, size = _width(f, "num_attention_heads"), f.size("intermediate_size")
    block = 4 * hidden * hidden + 3 * hidden * size + 2 * hidden
    total = f.size("num_channels") * f.size("patch_size") ** 2 * hidden + hidden + f.num_layers() * block
    merged = hidden * whole.size("spatial_merge_size") ** 2
    return total + hidden + merged * hidden + _projector(whole, hidden, text_hidden)


def clip(whole: Figures, text_hidden: int) -> int:
    """Return LLaVA's."""
    f = whole.part("vision_config", CLIP)
    kind = f.raw("model_type") or "clip_vision_model"
    if kind != "clip_vision_model" or isinstance(whole.raw("vision_feature_layer"), list):
        raise whole.unsupported(f"a vision tower of kind {shown(kind)}, or more than one of its layers")
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    rows = (f.size("image_size") // patch) ** 2 + 1
    embeddings = hidden + f.size("num_channels") * patch**2 * hidden + rows * hidden
    total = embeddings + f.num_layers() * _encoder_layer(hidden, size) + 4 * hidden
    return total + _projector(whole, hidden, text_hidden)


def kimi(whole: Figures, text_hidden: int) -> int:
    """Return Kimi K2.5's."""
    f, projected = whole.part("vision_config", KIMI_VISION), whole.size("projection_hidden_size")
    hidden, rows = _width(f, "num_attention_heads"), f.size("pos_emb_height") * f.size("pos_emb_width")
    total = _linear(3 * f.size("patch_size") ** 2, hidden) + rows * hidden
    total += f.num_layers() * _encoder_layer(hidden, f.size("intermediate_size")) + 2 * hidden
    height, width = f.sizes("merge_kernel_size", 2)
    wide = hidden * height * width
    return total + 2 * projected + _linear(wide, wide) + _linear(wide, text_hidden)


def llama4(whole: Figures, text_hidden: int) -> int:
    """Return Llama 4's, with adapter and projector."""
    f = whole.part("vision_config", LLAMA4_VISION)
    hidden, size, patch = _width(f, "num_attention_heads"), f.size("intermediate_size"), f.size("patch_size")
    patches = (f.size("image_size") // patch) ** 2 + 1
    total = hidden + patches * hidden + f.size("num_channels") * patch**2 * hidden + 4 * hidden
    total += f.num_layers() * _encoder_layer(hidden, size)
    out = f.size("projector_output_dim")
    total += size * f.size("projector_input_dim") + out * out
    return total + f.size("vision_output_dim") * text_hidden


def mllama_tower(f: Figures, text_hidden: int) -> int:
    """Return Llama 3.2 Vision's, with its gated global layers."""
    hidden, patch, tiles = _width(f, "attention_heads"), f.size("patch_size"), f.size("max_num_tiles")
    patches = (f.size("image_size") // patch) ** 2 + 1
    ratios = f.items("supported_aspect_ratios")
    rows = (8 if ratios is None else len(ratios)) + 1
    total = hidden + f.size("num_channels") * patch**2 * hidden + 4 * hidden
    total += 1 + patches * hidden + rows * tiles * patches * hidden + 2 * (1 + rows * tiles * hidden)
    block = 4 * hidden * hidden + _mlp(hidden, f.size("intermediate_size")) + 4 * hidden
    layers, gated = f.num_layers(), f.size("num_global_layers")
    total += (layers + gated) * block + 2 * gated
    return total + _linear(f.size("vision_output_dim"), text_hidden)


def _projector(whole: Figures, inputs: int, outputs: int) -> int:
    bias = 2 * outputs if whole.flag("multimodal_projector_bias") else 0
    return inputs * outputs + outputs * outputs + bias


def _patch_values(f: Figures) -> int:
    return f.size("in_channels") * f.size("temporal_patch_size") * f.size("patch_size") ** 2


def _width(f: Figures, heads: str) -> int:
    hidden = f.size("hidden_size")
    f.divided("vision_config: hidden_size", hidden, heads, f.size(heads))
    return hidden


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _mlp(hidden: int, size: int) -> int:
    return _linear(hidden, size) + _linear(size, hidden)


def _encoder_layer(hidden: int, size: int) -> int:
    return 4 * _linear(hidden, hidden) + _mlp(hidden, size) + 4 * hidden


SIGLIP = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_channels": 3,
    "image_size": 224, "patch_size": 16, "vision_use_head": True, "num_attention_heads": 12,
}  # fmt: skip
QWEN3_VL_VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": (8, 16, 24), "num_heads": 16,
}  # fmt: skip
KIMI_VISION = {
    "patch_size": 14, "pos_emb_height": 64, "pos_emb_width": 64, "num_hidden_layers": 27,
    "hidden_size": 1152, "intermediate_size": 4304, "merge_kernel_size": (2, 2), "num_attention_heads": 16,
}  # fmt: skip
LLAMA4_VISION = {
    "hidden_size": 768, "num_hidden_layers": 34, "num_channels": 3, "intermediate_size": 5632,
    "vision_output_dim": 7680, "image_size": 448, "patch_size": 14, "num_attention_heads": 16,
    "projector_input_dim": 4096, "projector_output_dim": 4096,
}  # fmt: skip
MLLAMA_VISION = {
    "hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "num_channels": 3,
    "intermediate_size": 5120, "vision_output_dim": 7680, "image_size": 448, "patch_size": 14,
    "max_num_tiles": 4, "attention_heads": 16,
}  # fmt: skip
QWEN2_VL_VISION = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
QWEN2_5_VL_VISION = {
    "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "patch_size": 16,
}  # fmt: skip
CLIP = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "image_size": 336, "patch_size": 14,
}  # fmt: skip
MLLAMA_TEXT = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 131072, "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_VL_TEXT = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_window_layers": 80, "sliding_window": 4096,
}  # fmt: skip
MISTRAL3_TEXT = {
    "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    "sliding_window": None,
}  # fmt: skip
QWEN3_VL_MOE_TEXT = {
    "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000,
    "moe_intermediate_size": 1408, "intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60,
}  # fmt: skip
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
WIDE_NORMS = {"wide_norms": True, "unit_norms": True}

# fmt: off
VISION: dict[str, Family] = {
    "gemma3": Family(
        behind=Behind("gemma3_text", "vision_tower", siglip), defaults=TIED, numerics=WIDE_NORMS,
    ),
    "qwen2_vl": Family(
        behind=Behind("qwen2", "visual", qwen2_vl, QWEN2_VL_TEXT, named=True, tied="either", flat=True),
        defaults=UNTIED,
    ),
    "qwen2_5_vl": Family(
        behind=Behind("qwen2", "visual", qwen2_5_vl, QWEN2_VL_TEXT, named=True, tied="either", flat=True),
        defaults=UNTIED,
    ),
    "qwen3_vl": Family(
        behind=Behind("qwen3", "visual", qwen3_vl, {"max_position_embeddings": 128000}), defaults=UNTIED,
    ),
    "qwen3_vl_moe": Family(
        behind=Behind("qwen3_moe", "visual", qwen3_vl, QWEN3_VL_MOE_TEXT), defaults=UNTIED,
    ),
    "qwen3_5": Family(
        behind=Behind("qwen3_5_text", "visual", partial(qwen3_vl, deepstack=False)), defaults=UNTIED,
    ),
    "qwen3_5_moe": Family(
        behind=Behind("qwen3_5_moe_text", "visual", partial(qwen3_vl, deepstack=False)), defaults=UNTIED,
    ),
    "mistral3": Family(  # Mistral Small 3.1, Ministral 3 and Devstral 2
        behind=Behind("mistral", "vision_tower", pixtral, named=True),
        defaults={**TIED, "spatial_merge_size": 2, "text_config": MISTRAL3_TEXT},
    ),
    "llava": Family(  # LLaVA 1.5 and 1.6's kin
        behind=Behind("llama", "vision_tower", clip, named=True, tied="either"),
        defaults={**UNTIED, "multimodal_projector_bias": True},
    ),
    "kimi_k25": Family(
        behind=Behind("deepseek_v3", "vision_tower", kimi), defaults={**TIED, "projection_hidden_size": 1152},
    ),
    "llama4": Family(behind=Behind("llama4_text", "vision_model", llama4, tied="text"), defaults=UNTIED),
    "llama4_text": Family(  # chunked attention with positions, full attention without, routed in turns
        mixer=_llama4_attention, marks=llama4_rotary, sparse=_llama4_routes, mlp_size="intermediate_size_mlp",
        experts={
            "num": "num_local_experts", "size": "intermediate_size", "router": "router",
            "shared": "intermediate_size", "routing": Routing("sigmoid"), "visits_all": True,
            "transposed": True,
        },
        fields={"notes": (CHUNK_NOTE,)}, numerics={"narrow_softmax": True},
        defaults=sizes(
            202048, 5120, 8192, 48, 40, 8, 128, 131072, intermediate_size_mlp=16384, hidden_act="silu",
            num_experts_per_tok=1, num_local_experts=16, interleave_moe_layer_step=1,
            no_rope_layer_interval=4, attention_chunk_size=8192,
        ),
    ),
    "mllama": Family(build=mllama),
}
# fmt: on
