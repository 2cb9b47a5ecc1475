"""Vision-language models: their text decoders as layers, their towers as tensors beside them.

Gemma 3, Qwen2-VL to Qwen3.5, Mistral Small 3.1, LLaVA, Kimi K2.5, Llama 4 and Llama 3.2 Vision. Figures
of the decoder stand under `text_config`, those of the tower under `vision_config`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Attention, Layer, Mixer, Norm, Routing, Tensor
from finegauge.model.families import architecture as described
from finegauge.model.families import towers
from finegauge.model.families.gemma import GEMMA3_TEXT, gemma3_of
from finegauge.model.families.latent import DEEPSEEK_V3, deepseek_of
from finegauge.model.families.llama import QWEN3
from finegauge.model.families.moe import LOCAL_QWEN, experts, qwen3_moe_of
from finegauge.model.families.parts import (
    attention,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    numerics,
    rms_layer,
    stack,
    window_below,
)
from finegauge.model.families.qwen_next import QWEN3_5, QWEN3_5_MOE, qwen3_5_moe_of, qwen3_5_of
from finegauge.model.families.reading import Config, Figures

QWEN3_VL_TEXT = {**QWEN3, "max_position_embeddings": 128000}
QWEN3_VL_MOE_TEXT = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
    "max_position_embeddings": 128000, "attention_bias": False, "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_experts": 60,
}  # fmt: skip
LLAMA4_TEXT = {
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "hidden_act": "silu", "max_position_embeddings": 131072, "num_experts_per_tok": 1,
    "num_local_experts": 16, "interleave_moe_layer_step": 1, "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192, "attention_bias": False, "tie_word_embeddings": False,
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
CHUNK_NOTE = "Chunked attention is counted as a sliding window of the chunk's length."
CROSS_NOTE = "Cross-attention layers are held but not run: text alone passes them by."


def _parts(config: Config, text: Config, vision: Config, *, tied: bool) -> tuple[Figures, Figures, bool]:
    """Return the figures of decoder and tower, and whether the head is tied (`tied`: the default)."""
    whole = Figures(config, {"tie_word_embeddings": tied})
    return (
        whole.part("text_config", text),
        whole.part("vision_config", vision),
        whole.flag("tie_word_embeddings"),
    )


@numerics(wide_norms=True, unit_norms=True)
def gemma3(config: Config) -> Architecture:
    """Return Gemma 3 with its SigLIP tower."""
    f, vision, tied = _parts(config, GEMMA3_TEXT, towers.SIGLIP, tied=True)
    seen = towers.tower("vision_tower", towers.siglip(vision, f.size("hidden_size")))
    return gemma3_of(f, tied=tied, other=seen)


def qwen3_vl(config: Config) -> Architecture:
    """Return Qwen3-VL: Qwen3 behind a tower whose layers feed several of the decoder's."""
    f, vision, tied = _parts(config, QWEN3_VL_TEXT, towers.QWEN3_VL_VISION, tied=False)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]))
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    layers = ((rms_layer(hidden, mixer, mlp), f.num_layers()),)
    seen = towers.tower("visual", towers.qwen3_vl(vision, deepstack=True))
    return language_model(f, layers, final_norm=Norm("norm", hidden), tied=tied, other=seen)


def qwen3_vl_moe(config: Config) -> Architecture:
    """Return Qwen3-VL with experts."""
    f, vision, tied = _parts(config, QWEN3_VL_MOE_TEXT, towers.QWEN3_VL_VISION, tied=False)
    f.aliases = LOCAL_QWEN
    return qwen3_moe_of(f, tied=tied, other=towers.tower("visual", towers.qwen3_vl(vision, deepstack=True)))


@numerics(wide_norms=True, unit_norms=True)
def qwen3_5(config: Config) -> Architecture:
    """Return Qwen3.5, dense, with its tower."""
    return _qwen3_5(config, QWEN3_5, qwen3_5_of)


@numerics(wide_norms=True, unit_norms=True)
def qwen3_5_moe(config: Config) -> Architecture:
    """Return Qwen3.5 with experts, with its tower."""
    return _qwen3_5(config, QWEN3_5_MOE, qwen3_5_moe_of)


def _qwen3_5(config: Config, text: Config, build: Callable[..., Architecture]) -> Architecture:
    f, vision, tied = _parts(config, text, towers.QWEN3_VL_VISION, tied=False)
    return build(f, tied=tied, other=towers.tower("visual", towers.qwen3_vl(vision, deepstack=False)))


def kimi_k25(config: Config) -> Architecture:
    """Return Kimi K2.5: DeepSeek-V3's decoder behind a MoonViT tower."""
    f, vision, tied = _parts(config, DEEPSEEK_V3, towers.KIMI_VISION, tied=True)
    projection = Figures(config, {"projection_hidden_size": 1152}).size("projection_hidden_size")
    seen = towers.tower("vision_tower", towers.kimi(vision, projection, f.size("hidden_size")))
    return deepseek_of(f, tied=tied, other=seen)


@numerics(narrow_softmax=True)
def llama4(config: Config) -> Architecture:
    """Return Llama 4 with its tower."""
    f, vision, _ = _parts(config, LLAMA4_TEXT, towers.LLAMA4_VISION, tied=False)
    seen = towers.tower("vision_model", towers.llama4(vision, f.size("hidden_size")))
    return _llama4(f, other=seen)


@numerics(narrow_softmax=True)
def llama4_text(config: Config) -> Architecture:
    """Return the text decoder of Llama 4."""
    return _llama4(Figures(config, LLAMA4_TEXT))


def _llama4(f: Figures, *, other: tuple[Tensor, ...] = ()) -> Architecture:
    """Return Llama 4's decoder: chunked attention with positions, full attention without, routed in turns."""
    num_layers, step, every = (
        f.num_layers(),
        f.size("interleave_moe_layer_step"),
        f.size("no_rope_layer_interval"),
    )
    rotary = [bool(flag) for flag in f.items("no_rope_layers") or ()]
    rotary = rotary or [(index + 1) % every != 0 for index in range(num_layers)]
    if len(rotary) != num_layers:
        raise FieldError(
            f"no_rope_layers has {len(rotary)} entries, but there are {num_layers} layers; give one each."
        )
    routed = f.items("moe_layers")
    chosen = range(step - 1, num_layers, step) if routed is None else routed

    def build(kind: tuple[bool, bool]) -> Layer:
        return _llama4_layer(f, *kind)

    kinds = zip(rotary, [index in chosen for index in range(num_layers)], strict=True)
    layers, notes = stack(kinds, build), (CHUNK_NOTE,)
    return language_model(f, layers, final_norm=Norm("norm", f.size("hidden_size")), other=other, notes=notes)


def _llama4_layer(f: Figures, rotary: bool, routed: bool) -> Layer:
    hidden, act, bias = f.size("hidden_size"), f.text("hidden_act"), f.flag("attention_bias")
    window = window_below(f.optional("attention_chunk_size"), f.optional("max_position_embeddings"))
    style: dict[str, Any] = {"window": window if rotary else None, "rotary": rotary}
    of = heads(f)
    if rotary and f.raw("use_qk_norm") is not False:  # of heads, without weights
        style["qk_norms"] = tuple(Norm(name, of[2], weight=False) for name in ("q_norm", "k_norm"))
    mixer: Attention = attention(hidden, of, bias=bias, out_bias=bias, **style)
    feed: Mixer
    if routed:
        shared = gated_mlp(hidden, f.size("intermediate_size"), act)
        feed = experts(
            f,
            num="num_local_experts",
            size="intermediate_size",
            router_name="router",
            shared=shared,
            routing=Routing("sigmoid"),
        )._replace(visits_all=True, transposed=True)
    else:
        feed = gated_mlp(hidden, f.size("intermediate_size_mlp"), act)
    return rms_layer(hidden, mixer, feed)


def mllama(config: Config) -> Architecture:
    """Return Llama 3.2 Vision: Llama, with cross-attention layers that only images pass through."""
    f, vision, _ = _parts(config, MLLAMA_TEXT, towers.MLLAMA_VISION, tied=False)
    hidden, of = f.size("hidden_size"), heads(f)
    crossed = f.items("cross_attention_layers") or ()
    count = sum(index in crossed for index in range(f.num_layers()))
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    own = rms_layer(hidden, attention(hidden, of), mlp)
    cross = rms_layer(hidden, attention(hidden, of, qk_norms=head_norms(of[2])), mlp)
    gates = 2
    crossing = count * (sum(tensor.size for tensor in cross.tensors()) + gates)
    other = towers.tower("vision_model", towers.mllama(vision, hidden))
    other += towers.tower("cross_attention_layers", crossing)
    extra_rows = (Tensor("embed_tokens.images", (8, hidden), "embedding"),)
    return language_model(
        f,
        ((own, f.num_layers() - count),),
        final_norm=Norm("norm", hidden),
        tied=False,
        embeddings=extra_rows,
        other=other,
        notes=(CROSS_NOTE,),
    )


def qwen2_vl(config: Config) -> Architecture:
    """Return Qwen2-VL: Qwen2 behind a tower."""
    return _qwen2_vl(config, towers.QWEN2_VL_VISION, towers.qwen2_vl)


def qwen2_5_vl(config: Config) -> Architecture:
    """Return Qwen2.5-VL: Qwen2 behind a tower that mostly attends within windows."""
    return _qwen2_vl(config, towers.QWEN2_5_VL_VISION, towers.qwen2_5_vl)


def _qwen2_vl(config: Config, vision: Config, count: Callable[[Figures], int]) -> Architecture:
    """Return the model of a file that has the decoder's figures under `text_config` or beside the tower's."""
    text = config.get("text_config") or {k: v for k, v in config.items() if k != "vision_config"}
    seen = towers.tower("visual", count(Figures(config, {}).part("vision_config", vision)))
    whole = Figures(config, {"tie_word_embeddings": False})
    return _behind(whole, {**QWEN2_VL_TEXT, **_mapping(whole, text)}, "qwen2", seen)


def mistral3(config: Config) -> Architecture:
    """Return Mistral Small 3.1, Ministral 3 and Devstral 2: a text decoder behind a Pixtral tower."""
    whole = Figures(config, {"tie_word_embeddings": True, "spatial_merge_size": 2})
    behind = _behind(
        whole, _mapping(whole, config.get("text_config") or MISTRAL3_TEXT), "mistral", (), inherits=False
    )
    tower = towers.PIXTRAL if "vision_config" in config else towers.MISTRAL3_VISION
    vision, bias = whole.part("vision_config", tower), whole.flag("multimodal_projector_bias")
    hidden = vision.size("hidden_size")
    merged = hidden * whole.size("spatial_merge_size") ** 2
    total = towers.pixtral(vision) + hidden + merged * hidden
    total += towers.projector(hidden, behind.hidden_size, bias=bias)
    return behind._replace(other=towers.tower("vision_tower", total))


def llava(config: Config) -> Architecture:
    """Return LLaVA 1.5 and 1.6's kin: a text decoder behind a CLIP tower and two projections."""
    whole = Figures(config, {"tie_word_embeddings": False, "multimodal_projector_bias": True})
    text = _mapping(whole, config.get("text_config") or {})
    vision = whole.part("vision_config", towers.CLIP)
    kind = vision.raw("model_type") or "clip_vision_model"
    if kind != "clip_vision_model" or isinstance(whole.raw("vision_feature_layer"), list):
        raise whole.unsupported(f"a vision tower of kind {shown(kind)}, or more than one of its layers")
    behind = _behind(whole, text, "llama", ())
    bias = whole.flag("multimodal_projector_bias")
    total = towers.clip(vision)
    total += towers.projector(vision.size("hidden_size"), behind.hidden_size, bias=bias)
    return behind._replace(other=towers.tower("vision_tower", total))


def _mapping(f: Figures, value: object) -> dict[str, Any]:
    """Return a nested config as a mapping, or raise the error that says it is none."""
    if not isinstance(value, Mapping):
        raise FieldError(
            f"model_type '{f.model_type}': text_config={shown(value)} is not a mapping of figures."
        )
    return dict(value)


def _behind(
    whole: Figures, text: dict[str, Any], default: str, seen: tuple[Tensor, ...], *, inherits: bool = True
) -> Architecture:
    """Return the text decoder that `text` describes, with the tower `seen` beside it.

    Head and embedding are one where the whole says so or, if it `inherits`, its text part.
    """
    model_type = text.get("model_type", default)
    if model_type in ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"):
        model_type = "qwen2"
    tied = whole.flag("tie_word_embeddings") or (inherits and bool(text.get("tie_word_embeddings")))
    decoder = described({**text, "model_type": model_type, "tie_word_embeddings": tied})
    return decoder._replace(model_type=whole.model_type, other=(*decoder.other, *seen))
