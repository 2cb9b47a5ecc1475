"""Vision-language models: their text decoders as layers, their towers and projectors as parts before them.

Towers are as the transformers 5.23 classes build them, whose defaults stand here too. Figures of the decoder
stand under `text_config`, those of the tower under `vision_config`.
"""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from finegauge.documents import MAX_DOCUMENT_BYTES, parse_json, read_text
from finegauge.errors import FieldError, shown
from finegauge.model.blocks import (
    Architecture,
    Branch,
    FeedForward,
    Layer,
    Linear,
    Mixer,
    Norm,
    Part,
    Routing,
    Tensor,
    Tower,
    tensors_of,
)
from finegauge.model.families.decoder import Family, sizes
from finegauge.model.families.dense import no_rope_layers
from finegauge.model.families.parts import (
    LLAMA_MLP,
    Config,
    Figures,
    attention,
    feedforward,
    head_norms,
    heads,
    language_model,
    layer,
    mlp_of,
    rms_layer,
    window_of,
)

CHUNK_NOTE = "Chunked attention is counted as a sliding window of the chunk's length."
LINEARS = ("linear_1", "linear_2")
CROSS_NOTE = "Cross-attention layers are held but not run: text alone passes them by."


class Behind(NamedTuple):
    """A text decoder behind a tower."""

    text: str  # the family of the decoder
    tower: Callable[[Figures, int], Tower | None]  # tower and projector, by the decoder's width
    defaults: Config = MappingProxyType({})  # of the decoder, where they are not its family's
    named: bool = False  # `text_config` may name another family
    tied: str = "whole"  # who says that head and embedding are one: the whole config, its text, "either"
    flat: bool = False  # older files have the decoder's figures beside the tower's
    versions: Config = MappingProxyType({})  # the family by the file's `version`, where it says one


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
    own = text.get("model_type") if behind.named else behind.versions.get(str(config.get("version")))
    kind = own or behind.text
    if str(kind).startswith(("qwen2_vl", "qwen2_5_vl")):
        kind = behind.text
    said = {"whole": whole.flag("tie_word_embeddings"), "text": bool(text.get("tie_word_embeddings"))}
    tied = said[behind.tied] if behind.tied in said else any(said.values())
    described = describe({**behind.defaults, **text, "model_type": kind, "tie_word_embeddings": tied})
    return described._replace(model_type=model_type, tower=behind.tower(whole, described.hidden_size))


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


# --- the towers and the projectors behind them, by the decoder's width


def siglip(whole: Figures, text_hidden: int, *, connects: str = "") -> Tower:
    """Return SigLIP, which Gemma 3, PaliGemma, LLaVA-OneVision and Idefics 3 connect in four ways."""
    own = whole.defaults.get("vision_config") or {}
    keeps = connects in ("shuffled", "perceiver", "queries") or "vision_config" not in whole.config
    base = {**SIGLIP, **own} if keeps else SIGLIP
    f = whole.part("vision_config", base)
    hidden, size, patches = f.size("hidden_size"), f.size("intermediate_size"), _patches(f)
    tables = [Tensor("position_embedding.weight", (patches, hidden), "state")]
    if f.flag("vision_use_head"):
        head = feedforward(hidden, size, bias=True, gated=False, names=("fc1", "fc2"))
        tables += [
            *(Tensor("probe", (hidden,), "state"), Tensor("in_proj_weight", (3 * hidden, hidden), "conv")),
            Tensor("in_proj_bias", (3 * hidden,), "bias"),
            *(*Linear("attention.out_proj", hidden, hidden, bias=True, kind="conv").tensors(),),
            *(*_layer_norm("head.layernorm", hidden).tensors(), *tensors_of(head)),
        ]
    parts = [_stem(f, hidden), Part(_encoder(f), f.num_layers())]
    parts.append(Part(_layer_norm("post_layernorm", hidden)))
    if connects == "averaged":  # Gemma 3: squares of patches averaged, then normalised and projected
        tokens = whole.size("mm_tokens_per_image")
        pooled = max(1, patches // tokens)
        parts.append(Part(Norm("mm_soft_emb_norm", hidden), projector=True, joined=pooled))
        projection = Linear("mm_input_projection", hidden, text_hidden, kind="conv")
        parts.append(Part(projection, projector=True, joined=pooled))
    elif connects == "linear":
        parts.append(Part(Linear("multi_modal_projector.linear", hidden, text_hidden, True), projector=True))
    elif connects == "shuffled":
        scale = whole.size("scale_factor") ** 2
        wide = Linear("modality_projection.proj", hidden * scale, text_hidden)
        parts.append(Part(wide, projector=True, joined=scale))
    elif connects in ("perceiver", "queries"):
        tables += (_perceiver if connects == "perceiver" else _queries)(whole, hidden, text_hidden)
    else:
        tables.append(Tensor("image_newline", (text_hidden,), "state"))
        parts.append(_of_llava(whole, hidden, text_hidden))
    return Tower(hidden, tuple(parts), tuple(tables))


def _perceiver(whole: Figures, hidden: int, text_hidden: int) -> list[Tensor]:
    """Return the tensors of Idefics 2's projection and resampler; images are not modelled."""
    f = whole.part("perceiver_config", PERCEIVER)
    size = whole.part("text_config", {"intermediate_size": 14336}).size("intermediate_size")
    width = f.size("resampler_head_dim")
    heads, kv = f.size("resampler_n_heads") * width, f.size("num_key_value_heads") * width
    layer: tuple[Any, ...] = (
        Linear("q_proj", text_hidden, heads), Linear("kv_proj", text_hidden, 2 * kv),
        Linear("o_proj", heads, text_hidden), feedforward(text_hidden, 4 * text_hidden),
        *[Norm(name, text_hidden) for name in ("latents_norm", "context_norm", "after_norm")],
    )  # fmt: skip
    first = Linear("gate_up", hidden, 2 * size), Linear("down", size, text_hidden)
    latents = Tensor("latents", (f.size("resampler_n_latents"), text_hidden), "state")
    return [latents, *_held(*first, *layer * f.size("resampler_depth"), Norm("norm", text_hidden))]


def _queries(whole: Figures, hidden: int, text_hidden: int) -> list[Tensor]:
    """Return the tensors of MiniCPM-V's resampler; images are not modelled."""
    wide, query = 3 * text_hidden, Tensor("query", (whole.size("query_num"), text_hidden), "state")
    return [query, *_held(
        Linear("kv_proj", hidden, text_hidden), Linear("in_proj", text_hidden, wide, True, "conv"),
        Linear("out_proj", text_hidden, text_hidden, True),
        Linear("proj", text_hidden, text_hidden, kind="conv"),
        *[_layer_norm(name, text_hidden) for name in ("ln_q", "ln_kv", "ln_post")],
    )]  # fmt: skip


def _held(*parts: Any) -> list[Tensor]:
    return [tensor for part in parts for tensor in tensors_of(part)]


def qwen3_vl(whole: Figures, text_hidden: int, *, deepstack: bool = True) -> Tower:
    """Return Qwen3-VL's; Qwen3.5's has no `deepstack` mergers."""
    f = whole.part("vision_config", QWEN3_VL_VISION)
    hidden, merge = f.size("hidden_size"), f.size("spatial_merge_size") ** 2
    names = ("linear_fc1", "linear_fc2")
    block = _encoder(f, "num_heads", fused="qkv", out="proj", rotary=True, mlp=names)
    merger = _projector(hidden * merge, hidden * merge, f.size("out_hidden_size"), merge, names)
    parts = [_stem(f, hidden, values=_patch_values(f)), Part(block, f.num_layers("depth"))]
    for _ in f.items("deepstack_visual_indexes") or () if deepstack else ():
        parts.append(Part(_layer_norm("norm", hidden * merge), projector=True, joined=merge))
        parts.append(merger)
    parts += [Part(_layer_norm("norm", hidden), projector=True), merger]
    table = Tensor("pos_embed.weight", (f.size("num_position_embeddings"), hidden), "state")
    return Tower(hidden, tuple(parts), (table,))


def qwen2_vl(whole: Figures, text_hidden: int) -> Tower:
    """Return Qwen2-VL's."""
    f = whole.part("vision_config", QWEN2_VL_VISION)
    hidden, merge = f.size("embed_dim"), f.size("spatial_merge_size") ** 2
    block = _encoder(
        f, "num_heads", width="embed_dim", size=int(f.ratio("mlp_ratio") * hidden), fused="qkv", out="proj",
        rotary=True, activation="quick_gelu",
    )  # fmt: skip
    parts = (
        _stem(f, hidden, bias=False, values=_patch_values(f)),
        Part(block, f.num_layers("depth")),
        Part(_layer_norm("ln_q", hidden), projector=True),
        _projector(hidden * merge, hidden * merge, f.size("hidden_size"), merge, ("mlp.0", "mlp.2")),
    )
    return Tower(hidden, parts)


def qwen2_5_vl(whole: Figures, text_hidden: int) -> Tower:
    """Return Qwen2.5-VL's: RMS norms, gated feed-forwards with biases, attention in windows but for a few."""
    f = whole.part("vision_config", QWEN2_5_VL_VISION)
    hidden, merge = f.size("hidden_size"), f.size("spatial_merge_size") ** 2
    block = _encoder(
        f, "num_heads", fused="qkv", out="proj", rotary=True, rms=True, gated=True, mlp=LLAMA_MLP,
        activation="silu",
    )  # fmt: skip
    depth, seen = f.num_layers("depth"), f.items("fullatt_block_indexes") or ()
    full = sum(index in seen for index in range(depth))
    window = (f.size("window_size") // f.size("patch_size")) ** 2
    stem = _stem(f, hidden, bias=False, values=_patch_values(f))
    parts = [stem, Part(block, depth - full, window=window)]
    parts += [Part(block, full)] if full else []
    parts.append(Part(Norm("ln_q", hidden), projector=True))
    wide = hidden * merge
    parts.append(_projector(wide, wide, f.size("out_hidden_size"), merge, ("mlp.0", "mlp.2")))
    return Tower(hidden, tuple(parts))


def glm4v(whole: Figures, text_hidden: int) -> Tower:
    """Return that of GLM-4.1V to 4.6V; the activation behind the first projection is not counted."""
    f = whole.part("vision_config", GLM4V_VISION)
    hidden, out, merge = f.size("hidden_size"), f.size("out_hidden_size"), f.size("spatial_merge_size") ** 2
    block = _encoder(
        f, "num_heads", size=out, bias=f.flag("attention_bias"), out_bias=False, fused="qkv", out="proj",
        rotary=True, rms=True, gated=True, mlp=LLAMA_MLP, activation="silu",
    )  # fmt: skip
    merger = (
        Linear("downsample", hidden * merge, out, True, "conv"), Linear("merger.proj", out, out),
        _layer_norm("post_projection_norm", out), feedforward(out, f.size("intermediate_size")),
    )  # fmt: skip
    parts = (
        _stem(f, hidden, values=_patch_values(f)),
        Part(Norm("post_conv_layernorm", hidden)),
        Part(block, f.num_layers("depth")),
        Part(Norm("post_layernorm", hidden)),
        *(Part(each, projector=True, joined=merge) for each in merger),
    )
    return Tower(hidden, parts, (Tensor("position_embedding", (_patches(f), hidden), "state"),))


def pixtral(whole: Figures, text_hidden: int) -> Tower:
    """Return Pixtral behind Mistral 3 and LLaVA: Llama's layers over patches; Mistral 3 merges them."""
    own = PIXTRAL if "vision_config" in whole.config else {**PIXTRAL, "patch_size": 14, "head_dim": 64}
    f = whole.part("vision_config", own)
    hidden = f.size("hidden_size")
    block = _encoder(
        f, bias=False, out="o_proj", rotary=True, rms=True, gated=True, mlp=LLAMA_MLP, activation="silu"
    )
    parts = [_stem(f, hidden, bias=False), Part(Norm("ln_pre", hidden))]
    parts.append(Part(block, f.num_layers()))
    merge = (whole.optional("spatial_merge_size") or 1) ** 2
    if whole.model_type == "mistral3":
        merged = Linear("merging_layer", merge * hidden, hidden)
        parts.append(Part(Norm("norm", hidden), projector=True))
        parts.append(Part(merged, projector=True, joined=merge))
    parts.append(_of_llava(whole, hidden, text_hidden, merge))
    return Tower(hidden, tuple(parts))


def clip(whole: Figures, text_hidden: int) -> Tower:
    """Return CLIP behind LLaVA and LLaVA-NeXT, whose last layer but one is read; or Pixtral."""
    f = whole.part("vision_config", CLIP)
    kind = f.raw("model_type") or "clip_vision_model"
    if kind == "pixtral":
        return pixtral(whole, text_hidden)
    read = whole.raw("vision_feature_layer")
    if kind != "clip_vision_model" or isinstance(read, list):
        raise whole.unsupported(f"a vision tower of kind {shown(kind)}, or more than one of its layers")
    hidden = f.size("hidden_size")
    tables = _tables(hidden, _patches(f) + 1, ("class_embedding", "positions"))
    tables += _layer_norm("post_layernorm", hidden).tensors()
    if whole.model_type == "llava_next":
        tables.append(Tensor("image_newline", (text_hidden,), "state"))
    block, layers = _encoder(f, activation="quick_gelu"), f.num_layers()
    unread = min(layers, -1 - read) if isinstance(read, int) and read < -1 else 0
    parts = [_stem(f, hidden, bias=False), Part(_layer_norm("pre_layrnorm", hidden), extra=1)]
    parts.append(Part(block, layers - unread, extra=1))
    parts += [Part(block, unread, extra=1, idle=True)] if unread else []
    return Tower(hidden, (*parts, _of_llava(whole, hidden, text_hidden)), tuple(tables))


def internvl(whole: Figures, text_hidden: int) -> Tower:
    """Return InternVL's: what each branch returns is scaled by channel."""
    f = whole.part("vision_config", INTERNVL)
    hidden, patch = f.size("hidden_size"), f.sizes("patch_size", 2)[0]
    if f.flag("use_qk_norm") or f.text("norm_type") != "layer_norm":
        raise whole.unsupported("a vision tower with RMS norms")
    tables = _tables(hidden, (f.sizes("image_size", 2)[0] // patch) ** 2 + 1, ("cls_token", "positions"))
    if not f.flag("use_mean_pooling"):
        tables += _layer_norm("layernorm", hidden).tensors()
    scales = tuple(Tensor(name, (hidden,), "state") for name in ("lambda_1", "lambda_2"))
    block = _encoder(f, bias=f.flag("attention_bias"), out_bias=True, out="projection_layer")
    joined = round(1 / whole.ratio("downsample_ratio")) ** 2
    parts = (
        _stem(f, hidden, values=f.size("num_channels") * patch**2),
        Part(block._replace(extra=scales), f.num_layers(), extra=1),
        Part(_layer_norm("layer_norm", hidden * joined), projector=True, joined=joined),
        _projector(hidden * joined, text_hidden, text_hidden, joined),
    )
    return Tower(hidden, parts, tuple(tables))


def kimi(whole: Figures, text_hidden: int) -> Tower:
    """Return Kimi K2.5's."""
    f, projected = whole.part("vision_config", KIMI_VISION), whole.size("projection_hidden_size")
    hidden, rows = f.size("hidden_size"), f.size("pos_emb_height") * f.size("pos_emb_width")
    height, width = f.sizes("merge_kernel_size", 2)
    wide = hidden * height * width
    parts = (
        _stem(f, hidden, values=3 * f.size("patch_size") ** 2),
        Part(_encoder(f, out="proj", rotary=True), f.num_layers()),
        Part(_layer_norm("final_layernorm", hidden)),
        Part(_layer_norm("pre_norm", projected), projector=True),
        _projector(wide, wide, text_hidden, height * width),
    )
    return Tower(hidden, parts, (Tensor("position_embeddings", (rows, hidden), "state"),))


def llama4(whole: Figures, text_hidden: int) -> Tower:
    """Return Llama 4's, with adapter and projector."""
    f = whole.part("vision_config", LLAMA4_VISION)
    hidden, size, out = f.size("hidden_size"), f.size("intermediate_size"), f.size("projector_output_dim")
    tables = _tables(hidden, _patches(f) + 1, ("class_embedding", "positional_embedding_vlm"))
    joined = round(1 / f.ratio("pixel_shuffle_ratio")) ** 2
    up, down = Linear("fc1", size, f.size("projector_input_dim")), Linear("fc2", out, out)
    adapter = FeedForward(size, up.out_features, False, (up, down), "gelu")
    last = Linear("linear_1", f.size("vision_output_dim"), text_hidden)
    parts = (
        _stem(f, hidden, bias=False),
        Part(_layer_norm("layernorm_pre", hidden), extra=1),
        Part(_encoder(f, out="o_proj", rotary=True), f.num_layers(), extra=1),
        Part(_layer_norm("layernorm_post", hidden), extra=1),
        Part(adapter, joined=joined),
        Part(last, projector=True, joined=joined),
    )
    return Tower(hidden, parts, tuple(tables))


def mllama_tower(f: Figures, text_hidden: int) -> int:
    """Return the parameters of Llama 3.2 Vision's, with its gated global layers."""
    hidden, patch, tiles = f.size("hidden_size"), f.size("patch_size"), f.size("max_num_tiles")
    f.divided("vision_config: hidden_size", hidden, "attention_heads", f.size("attention_heads"))
    patches = _patches(f) + 1
    ratios = f.items("supported_aspect_ratios")
    rows = (8 if ratios is None else len(ratios)) + 1
    total = hidden + f.size("num_channels") * patch**2 * hidden + 4 * hidden
    total += 1 + patches * hidden + rows * tiles * patches * hidden + 2 * (1 + rows * tiles * hidden)
    size = f.size("intermediate_size")
    block = 4 * hidden * hidden + 2 * hidden * size + size + hidden + 4 * hidden
    layers, gated = f.num_layers(), f.size("num_global_layers")
    total += (layers + gated) * block + 2 * gated
    return total + f.size("vision_output_dim") * text_hidden + text_hidden


def _stem(f: Figures, hidden: int, *, bias: bool = True, values: int = 0) -> Part:
    """Return the convolution whose kernel is a patch: a product of its values, which nobody quantises."""
    values = values or f.size("num_channels") * f.size("patch_size") ** 2
    return Part(Linear("patch_embedding", values, hidden, bias, kind="conv"))


def _patches(f: Figures) -> int:
    return (f.size("image_size") // f.size("patch_size")) ** 2


def _tables(hidden: int, rows: int, names: tuple[str, str]) -> list[Tensor]:
    return [Tensor(names[0], (hidden,), "state"), Tensor(names[1], (rows, hidden), "state")]


def _encoder(
    f: Figures, heads: str = "num_attention_heads", *, width: str = "hidden_size", size: int = 0,
    bias: bool = True, out_bias: bool | None = None, fused: str = "", out: str = "out_proj",
    rotary: bool = False, rms: bool = False, gated: bool = False, mlp: Sequence[str] = ("fc1", "fc2"),
    activation: str = "gelu",
) -> Layer:  # fmt: skip
    """Return a layer whose patches all see each other; biases of the feed-forward unless nothing has any.

    `heads` and `width` are keys; `size` of 0 reads `intermediate_size`.
    """
    out_bias, hidden, num = bias if out_bias is None else out_bias, f.size(width), f.size(heads)
    size = size or f.size("intermediate_size")
    of = num, num, f.divided(f"vision_config: {width}", hidden, heads, num)
    mixer = attention(
        hidden, of, bias=bias, out_bias=out_bias, fused=fused, out=out, rotary=rotary, causal=False,
        joins=out == "proj",
    )  # fmt: skip
    feed = feedforward(hidden, size, activation, bias=out_bias, gated=gated, names=mlp)
    first, second = (Norm(name, hidden) if rms else _layer_norm(name, hidden) for name in ("norm1", "norm2"))
    return layer(Branch(mixer, first), Branch(feed, second))


def _projector(
    inputs: int, size: int, out: int, joined: int = 1, names: Sequence[str] = LINEARS, bias: bool = True
) -> Part:
    both = Linear(names[0], inputs, size, bias), Linear(names[1], size, out, bias)
    return Part(FeedForward(inputs, size, False, both, "gelu"), projector=True, joined=joined)


def _of_llava(whole: Figures, inputs: int, outputs: int, joined: int = 1) -> Part:
    return _projector(inputs, outputs, outputs, joined, bias=whole.flag("multimodal_projector_bias"))


def _layer_norm(name: str, hidden: int) -> Norm:
    return Norm(name, hidden, "layer", bias=True)


def _patch_values(f: Figures) -> int:
    return f.size("in_channels") * f.size("temporal_patch_size") * f.size("patch_size") ** 2


@cache
def _towers() -> Mapping[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "..", "data", "towers.json")
    return dict(parse_json(read_text(path, MAX_DOCUMENT_BYTES), path))


def defaults(*names: str) -> Iterator[Any]:
    """Yield defaults of transformers' configuration classes, by name in data/towers.json."""
    yield from map(_towers().__getitem__, names)


SIGLIP, ONEVISION, PALIGEMMA, IDEFICS, INTERNVL, CLIP, PIXTRAL = defaults(
    "SIGLIP", "ONEVISION", "PALIGEMMA", "IDEFICS", "INTERNVL", "CLIP", "PIXTRAL"
)
LLAMA4_VISION, MLLAMA_VISION, KIMI_VISION, QWEN2_VL_VISION, QWEN2_5_VL_VISION = defaults(
    "LLAMA4_VISION", "MLLAMA_VISION", "KIMI_VISION", "QWEN2_VL_VISION", "QWEN2_5_VL_VISION"
)
QWEN3_VL_VISION, GLM4V_VISION, PERCEIVER = defaults("QWEN3_VL_VISION", "GLM4V_VISION", "PERCEIVER")
PALIGEMMA_TEXT, MLLAMA_TEXT, QWEN2_VL_TEXT, MISTRAL3_TEXT, QWEN3_VL_MOE_TEXT = defaults(
    "PALIGEMMA_TEXT", "MLLAMA_TEXT", "QWEN2_VL_TEXT", "MISTRAL3_TEXT", "QWEN3_VL_MOE_TEXT"
)
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
WIDE_NORMS = {"wide_norms": True, "unit_norms": True}

# fmt: off
VISION: dict[str, Family] = {
    "gemma3": Family(
        behind=Behind("gemma3_text", partial(siglip, connects="averaged")),
        defaults={**TIED, "mm_tokens_per_image": 256}, numerics=WIDE_NORMS,
    ),
    "qwen2_vl": Family(
        behind=Behind("qwen2", qwen2_vl, QWEN2_VL_TEXT, named=True, tied="either", flat=True),
        defaults=UNTIED,
    ),
    "qwen2_5_vl": Family(
        behind=Behind("qwen2", qwen2_5_vl, QWEN2_VL_TEXT, named=True, tied="either", flat=True),
        defaults=UNTIED,
    ),
    **{
        kind: Family(behind=Behind(text, partial(qwen3_vl, deepstack=deep), defaults), defaults=UNTIED)
        for kind, text, deep, defaults in (
            ("qwen3_vl", "qwen3", True, {"max_position_embeddings": 128000}),
            ("qwen3_vl_moe", "qwen3_moe", True, QWEN3_VL_MOE_TEXT),
            ("qwen3_5", "qwen3_5_text", False, {}), ("qwen3_5_moe", "qwen3_5_moe_text", False, {}),
        )
    },
    "mistral3": Family(  # Mistral Small 3.1, Ministral 3 and Devstral 2
        behind=Behind("mistral", pixtral, named=True),
        defaults={**TIED, "spatial_merge_size": 2, "text_config": MISTRAL3_TEXT},
    ),
    **dict.fromkeys(("llava", "llava_next"), Family(  # LLaVA 1.5, 1.6 and kin
        behind=Behind("llama", clip, named=True, tied="either"),
        defaults={**UNTIED, "multimodal_projector_bias": True, "vision_feature_layer": -2},
    )),
    "llava_onevision": Family(
        behind=Behind("qwen2", siglip, named=True, tied="either"),
        defaults={**UNTIED, "multimodal_projector_bias": True, "vision_config": ONEVISION},
    ),
    "internvl": Family(
        behind=Behind("qwen2", internvl, named=True), defaults={**TIED, "downsample_ratio": 0.5},
    ),
    "paligemma": Family(
        behind=Behind("gemma", partial(siglip, connects="linear"), named=True),
        defaults={**TIED, "vision_config": PALIGEMMA, "text_config": PALIGEMMA_TEXT},
    ),
    **dict.fromkeys(("idefics3", "smolvlm"), Family(
        behind=Behind("llama", partial(siglip, connects="shuffled"), named=True, tied="either"),
        defaults={**UNTIED, "scale_factor": 2, "vision_config": IDEFICS},
    )),
    "idefics2": Family(
        behind=Behind("mistral", partial(siglip, connects="perceiver"), named=True, tied="either"),
        defaults={**UNTIED, "vision_config": {**IDEFICS, "hidden_size": 768, "num_attention_heads": 12}},
    ),
    "minicpmv": Family(  # 2.5 to 4.5, whose files say of the decoder its version alone
        behind=Behind(
            "llama", partial(siglip, connects="queries"), tied="either", flat=True,
            versions={"2.6": "qwen2", "4.5": "qwen3"},
        ),
        defaults={**UNTIED, "query_num": 64, "vision_config": IDEFICS},
    ),
    **dict.fromkeys(("glm4v", "glm46v"), Family(
        behind=Behind("glm4v_text", glm4v, named=True, tied="either"), defaults=UNTIED,
    )),
    "glm4v_moe": Family(behind=Behind("glm4v_moe_text", glm4v, tied="either"), defaults=UNTIED),
    "glm4v_text": Family(like="glm4"),
    "glm4v_moe_text": Family(
        like="glm4_moe", qk_norms=None,
        defaults={"vocab_size": 151424, "max_position_embeddings": 65536, "attention_bias": True},
    ),
    **{
        kind: Family(behind=Behind("deepseek_v3", kimi), defaults={**tied, "projection_hidden_size": 1152})
        for kind, tied in (("kimi_k25", TIED), ("kimi_vl", UNTIED))
    },
    "llama4": Family(behind=Behind("llama4_text", llama4, tied="text"), defaults=UNTIED),
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
