"""Decoders of 2026 of known blocks in new orders: block-sparse attention, zero experts, per-layer embeddings.

MiniMax-M3, Step 3.5 and 3.7, LongCat-Flash (arXiv:2509.01322), Flint, Gemma 4. Defaults are those of the
transformers 5.23 classes.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import (
    Architecture,
    Branch,
    Chain,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Norm,
    Part,
    Routing,
    Tensor,
    Tower,
)
from finegauge.model.families.decoder import HEAD_NORMS, Family, rotary_where_sliding, sizes
from finegauge.model.families.experts import LOCAL, WIDE_SIGMOID
from finegauge.model.families.latent import INDEXER_NOTE, latent_attention
from finegauge.model.families.parts import (
    FULL,
    SLIDING,
    Figures,
    Heads,
    attention,
    experts,
    feedforward,
    head_norms,
    heads,
    language_model,
    layer,
    mlp_of,
    stack,
    window_of,
)
from finegauge.model.families.vision import Behind, defaults

SPARSE = "minimax_m3_sparse"


def _listed_flags(f: Figures, key: str, given: object) -> list[bool]:
    num_layers = f.num_layers()
    if not isinstance(given, (list, tuple)) or len(given) != num_layers:
        raise FieldError(
            f"{key}={shown(given)} is not a list of 0 and 1, one for each of {num_layers} layers."
        )
    return [bool(flag) for flag in given]


def _m3_sparse(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    nested = f.part("sparse_attention_config", {}).raw("sparse_attention_freq")
    if f.items("layer_types") is None and nested is not None:
        return _listed_flags(f, "sparse_attention_freq", nested)
    return [kind == SPARSE for kind in f.layer_kinds(lambda _: FULL, (FULL, SPARSE))]


def _m3_routes(f: Figures) -> Sequence[bool]:
    if f.items("mlp_layer_types") is None and f.raw("moe_layer_freq") is not None:
        return _listed_flags(f, "moe_layer_freq", f.raw("moe_layer_freq"))
    kinds = f.layer_kinds(lambda _: "sparse", ("sparse", "dense"), "mlp_layer_types")
    return [kind == "sparse" for kind in kinds]


def _m3_indexed(f: Figures, of: Heads, slides: bool, sparse: Any) -> Mapping[str, Any]:
    if not sparse:
        return {}
    hidden, nested = f.size("hidden_size"), f.part("sparse_attention_config", {})
    num = nested.optional("sparse_num_index_heads") or f.size("index_n_heads")
    dim = nested.optional("sparse_index_dim") or f.size("index_head_dim")
    parts = (
        Linear("indexer.q_proj", hidden, num * dim),
        Linear("indexer.k_proj", hidden, dim),
        Norm("indexer.q_norm", dim),
        Norm("indexer.k_norm", dim),
    )
    return {"extra": tuple(tensor for part in parts for tensor in part.tensors())}


def _m3_experts(f: Figures) -> Mixer:
    hidden, act = f.size("hidden_size"), "clamped_swiglu"
    shared = feedforward(hidden, f.size("shared_intermediate_size"), act, fused="gate_up_proj")
    routing = Routing("sigmoid", normalised=True, wide_weights=True)
    return experts(f, **LOCAL, shared=shared, shared_first=True, activation=act, routing=routing)


def _step_routes(f: Figures) -> Sequence[bool]:
    num_layers = f.num_layers()
    if f.items("mlp_layer_types") is not None:
        return [kind == "sparse" for kind in _cut(f, "mlp_layer_types")]
    listed = f.raw("moe_layers_enum")
    if listed is None:
        return [index >= 3 for index in range(num_layers)]
    items = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(items, list) or not all(str(item).strip().isdecimal() for item in items):
        raise FieldError(f"moe_layers_enum={shown(listed)} is not a list of layers such as 3,4,5.")
    chosen = {int(item) for item in items}
    return [index in chosen for index in range(num_layers)]


def _cut(f: Figures, key: str) -> Sequence[Any]:
    """Return a list for every layer, without what follows for those that predict further tokens."""
    listed, num_layers = f.items(key) or (), f.num_layers()
    if len(listed) not in (num_layers, num_layers + f.count("num_nextn_predict_layers")):
        raise FieldError(f"{key} has {len(listed)} entries, but num_hidden_layers={num_layers}.")
    return listed[:num_layers]


def _step(f: Figures) -> Family:
    if f.items("layer_types") is not None:
        f.config = {**f.config, "layer_types": list(_cut(f, "layer_types"))}
    return {}


def _step_attends(f: Figures, of: Heads, slides: bool, mark: Any) -> Mapping[str, Any]:
    """Return attention with a gate on every head, and more of them in layers that slide."""
    (num, kv, dim), own = of, f.optional("num_sliding_attention_heads")
    if slides:
        num = own or f.part("attention_other_setting", {}).optional("num_attention_heads") or num
    f.divided("num_attention_heads", num, "num_key_value_heads", kv)
    gate = Linear("g_proj", f.size("hidden_size"), num)
    return {"of": (num, kv, dim), "output_gate": True, "gate_size": num, "more": (gate,)}


def longcat_flash(f: Figures) -> Architecture:
    """Return LongCat-Flash: layers of two latent attentions and two feed-forwards, experts beside the first.

    A token's choice may fall on experts that do nothing. All are taken as equally probable, so that of
    `moe_topk` choices those that compute are the share of the real experts, rounded. transformers 5.23 makes
    first projections for the others too, which no checkpoint has; they are not counted.
    """
    hidden, num, idle = f.size("hidden_size"), f.size("n_routed_experts"), f.count("zero_expert_num")
    own, mlp, act = latent_attention(f), mlp_of(f), f.text("hidden_act")
    chosen, size = f.size("num_experts_per_tok"), f.size("moe_intermediate_size")
    routed = MixtureOfExperts(
        hidden_size=hidden,
        intermediate_size=size,
        num_experts=num,
        top_k=max(1, round(chosen * num / (num + idle))),
        router=Linear("router.classifier", hidden, num + idle, f.flag("router_bias"), kind="router"),
        activation=act,
        routing=Routing(wide_logits=True, wide_weights=True),
        looped=True,
    )

    def norm(name: str, turn: int) -> Norm:
        return Norm(f"{name}.{turn}", hidden)

    first, second = "input_layernorm", "post_attention_layernorm"
    branches = (
        Branch(own, norm(first, 0)),
        Branch(mlp, norm(second, 0)),
        Branch(routed),
        Branch(own, norm(first, 1)),
        Branch(mlp, norm(second, 1)),
    )
    layers = ((layer(*branches), f.num_layers("num_layers")),)
    return language_model(f, layers, Norm("norm", hidden))


def _flint_slides(f: Figures) -> Any:
    last = f.num_layers() - 1
    return lambda i: not (i < 2 or i % 4 == 1 or i == last)


def _flint_routes(f: Figures) -> Sequence[bool]:
    listed = f.items("mlp_only_layers")
    dense, step = (0, 1) if listed is None else listed, f.size("decoder_sparse_step")
    return [index not in dense and (index + 1) % step == 0 for index in range(f.num_layers())]


def _flint_experts(f: Figures) -> Mixer:
    shared = mlp_of(f, "shared_expert_intermediate_size")
    return experts(f, shared=shared, routing=WIDE_SIGMOID._replace(normalised=f.flag("norm_topk_prob")))


# --- Gemma 4 and 3n


def gemma4(f: Figures) -> Architecture:
    """Return Gemma 4's decoder.

    Full layers have wider heads, and in some models no values of their own; the last layers attend to keys
    and values of earlier ones; per-layer embeddings enter each layer through a narrow gate; a mixture stands
    beside the feed-forward, not in its place.
    """
    hidden, num_layers = f.size("hidden_size"), f.num_layers()
    if f.raw("use_bidirectional_attention") == "all":
        raise f.unsupported("bidirectional attention")
    kinds = f.layer_kinds(lambda i: SLIDING if (i + 1) % 6 else FULL, (FULL, SLIDING))
    kinds[-1] = FULL
    shared, narrow = f.count("num_kv_shared_layers"), f.count("hidden_size_per_layer_input")
    if shared >= num_layers:
        raise FieldError(f"num_kv_shared_layers={shared} leaves none of {num_layers} layers.")
    marks = [(kind, index >= num_layers - shared) for index, kind in enumerate(kinds)]
    layers = stack(marks, lambda mark: _gemma4_layer(f, *mark))
    fields: dict[str, Any] = {}
    if narrow:
        words, all_layers = f.size("vocab_size_per_layer_input"), num_layers * narrow
        fields["tables"] = (Tensor("embed_tokens_per_layer.weight", (words, all_layers), "embedding"),)
        fields["beside"] = (
            Linear("per_layer_model_projection", hidden, all_layers),
            Norm("per_layer_projection_norm", narrow),
        )
    return language_model(f, layers, Norm("norm", hidden), **fields)


def _gemma4_layer(f: Figures, kind: str, reuses: bool) -> Layer:
    hidden, act = f.size("hidden_size"), f.text("hidden_activation")
    narrow = f.count("hidden_size_per_layer_input")
    size = f.size("intermediate_size") * (2 if reuses and f.flag("use_double_wide_mlp") else 1)

    def norm(name: str) -> Norm:
        return Norm(name, hidden)

    routed, after = f.flag("enable_moe_block"), "post_feedforward_layernorm"
    branches = [
        Branch(_gemma4_attention(f, kind, reuses), norm("input_layernorm"), norm("post_attention_layernorm")),
        Branch(
            feedforward(hidden, size, act),
            norm("pre_feedforward_layernorm"),
            norm(f"{after}_1" if routed else after),
        ),
    ]
    if routed:
        scales = Tensor("router.scale", (hidden,), "state"), "router.per_expert_scale"
        mixture = experts(
            f, top_k="top_k_experts", router="router.proj", act="hidden_activation",
            router_extra=(scales[0], Tensor(scales[1], (f.size("num_experts"),), "state")),
            routing=Routing(normalised=True, wide_weights=True),
        )  # fmt: skip
        branches += [
            Branch(mixture, norm("pre_feedforward_layernorm_2"), norm(f"{after}_2")),
            Branch(Chain(()), None, norm(after)),
        ]
    if narrow:
        names = ("per_layer_input_gate", "per_layer_projection")
        fed = feedforward(hidden, narrow, act, gated=False, names=names)
        branches.append(Branch(fed, None, norm("post_per_layer_input_norm")))
    return layer(*branches)


def _gemma4_attention(f: Figures, kind: str, reuses: bool) -> Mixer:
    hidden, num, bias = f.size("hidden_size"), f.size("num_attention_heads"), f.flag("attention_bias")
    kv, dim, alone = f.size("num_key_value_heads"), f.size("head_dim"), False
    if kind == FULL:
        dim, alone = f.size("global_head_dim"), f.flag("attention_k_eq_v")
        kv = (f.optional("num_global_key_value_heads") if alone else None) or kv
    f.divided("num_attention_heads", num, "num_key_value_heads", kv)
    norms = [Norm("q_norm", dim), Norm("k_norm", dim), Norm("v_norm", dim, weight=False)]
    own = attention(hidden, (num, kv, dim), bias=bias, out_bias=bias, copies_values=True)
    queries, keys, values, output = own.projections
    inputs = (queries,) if reuses else (queries, keys) if alone else (queries, keys, values)
    return own._replace(
        projections=(*inputs, output),
        norms=tuple(norms[:1] if reuses else norms),
        window=window_of(f) if kind == SLIDING else None,
    )


def step_tower(whole: Figures, text_hidden: int) -> Tower:
    """Return the tensors of Step 3.7's tower, two convolutions and the projector; images are not modelled."""
    f = whole.part("vision_config", STEP_VISION)
    hidden = f.optional("width") or f.size("hidden_size")
    layers = f.optional("layers") or f.num_layers()
    size, patch = int(hidden * f.ratio("mlp_ratio")), f.size("patch_size")
    total = f.size("num_channels") * patch**2 * hidden + (f.size("image_size") // patch) ** 2 * hidden
    block = 4 * (hidden + 1) * hidden + (hidden + 1) * size + (size + 1) * hidden + 6 * hidden
    total += 2 * hidden + layers * block
    total += (9 * hidden + 1) * 2 * hidden + (18 * hidden + 1) * 4 * hidden  # two convolutions of 3 x 3
    total += (4 * hidden + whole.flag("projector_bias")) * text_hidden
    return Tower(hidden, (), (Tensor("vision_model", (total,), "conv"),))


def gemma4_towers(whole: Figures, text_hidden: int) -> Tower | None:
    """Return Gemma 4's towers, those of vision and audio that it has, and what projects from them."""
    parts: tuple[Part, ...] = ()
    tables: list[Tensor] = []
    hidden = text_hidden
    if whole.config.get("vision_config") is not None:
        f = whole.part("vision_config", GEMMA4_VISION)
        hidden, (num, kv, dim) = f.size("hidden_size"), heads(f)
        names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm")
        first, after, second, last = (Norm(n, hidden) for n in (*names, "post_feedforward_layernorm"))
        norms = (*head_norms(dim), Norm("v_norm", dim, weight=False))
        mixer = attention(hidden, (num, kv, dim), norms=norms, causal=False)
        feed = feedforward(hidden, f.size("intermediate_size"), "gelu_pytorch_tanh")
        pooled = f.size("pooling_kernel_size") ** 2
        parts = (
            Part(Linear("input_proj", 3 * f.size("patch_size") ** 2, hidden, kind="conv")),
            Part(layer(Branch(mixer, first, after), Branch(feed, second, last)), f.num_layers()),
            Part(Linear("embedding_projection", hidden, text_hidden), projector=True, joined=pooled),
        )
        shape = (2, f.size("position_embedding_size"), hidden)
        tables.append(Tensor("position_embedding_table", shape, "state"))
    if whole.config.get("audio_config") is not None:
        size = _gemma4_audio(whole.part("audio_config", GEMMA4_AUDIO), text_hidden)
        tables.append(Tensor("audio_tower", (size,), "conv"))
    return Tower(hidden, parts, tuple(tables)) if tables else None


def _gemma4_audio(f: Figures, text_hidden: int) -> int:
    """Return the parameters of the audio tower, which nothing here runs."""
    hidden, channels = f.size("hidden_size"), f.sizes("subsampling_conv_channels", 2)
    leaves = f.size("output_proj_dims")
    head = f.divided("audio_config: hidden_size", hidden, "heads", f.size("num_attention_heads"))
    block = 24 * hidden**2 + (9 + f.size("conv_kernel_size")) * hidden + head
    total = f.num_layers() * block + 10 * channels[0] + (9 * channels[0] + 1) * channels[1]
    total += MEL_CHANNELS // 4 * channels[1] * hidden  # two strides of 2
    return total + (hidden + 1) * leaves + leaves * text_hidden


MEL_CHANNELS = 128


def gemma3n(f: Figures) -> Architecture:
    """Return Gemma 3n in its two published sizes: a traced decoder, and towers that nothing here runs.

    Raises: UnsupportedError for other sizes.
    """
    from finegauge.model.traced import read_trace

    text, seen, heard = (f.part(f"{name}_config", {}).config for name in ("text", "vision", "audio"))
    found, _ = read_trace(gemma3n_text(text))
    of_others = seen.get("architecture", GEMMA3N_EYE) != GEMMA3N_EYE or heard.get("hidden_size", 1536) != 1536
    if found is None or of_others:
        raise f.unsupported(
            "another size than E2B and E4B (save its text_config as a config.json of its own, and "
            "'finegauge trace' of that folder counts the decoder)"
        )
    towers = tuple(Tensor(name, (size,), "conv") for name, size in GEMMA3N_TOWERS.items())
    return found._replace(model_type=f.model_type, tower=Tower(found.hidden_size, (), towers))


def gemma3n_text(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what decides the shapes of Gemma 3n's decoder, as its trace is filed."""
    known = {key: text[key] for key in GEMMA3N_TEXT if key in text}
    if isinstance(size := known.get("intermediate_size"), list) and len(set(map(str, size))) == 1:
        known["intermediate_size"] = size[0]
    return {"model_type": "gemma3n_text", **known}


GEMMA3N_EYE = "mobilenetv5_300m_enc"
STEP_VISION, GEMMA4_VISION, GEMMA4_AUDIO, GEMMA3N_TOWERS, GEMMA3N_TEXT = defaults(
    "STEP_VISION", "GEMMA4_VISION", "GEMMA4_AUDIO", "GEMMA3N_TOWERS", "GEMMA3N_TEXT"
)

# fmt: off
NEWEST: dict[str, Family] = {
    "minimax_m3_vl_text": Family(
        qk_norms=HEAD_NORMS, partly_rotary=True, marks=_m3_sparse, attends=_m3_indexed, sparse=_m3_routes,
        experts=_m3_experts, mlp_size="dense_intermediate_size", mlp_fused="gate_up_proj",
        activation="clamped_swiglu",
        numerics={"wide_norms": True, "unit_norms": True}, fields={"notes": (INDEXER_NOTE,)},
        defaults=sizes(
            200064, 6144, 3072, 60, 64, 4, 128, 524288, hidden_act="silu", num_experts_per_tok=4,
            num_local_experts=128, dense_intermediate_size=12288, shared_intermediate_size=3072,
            index_n_heads=4, index_head_dim=128,
        ),
    ),
    "minimax_m3": Family(like="minimax_m3_vl_text"),  # its decoder alone
    "step3p5": Family(  # Step 3.5 Flash, and the decoder of Step 3.7
        qk_norms=HEAD_NORMS, bias="attention_bias", mlp_bias="mlp_bias", varies=_step,
        slides=lambda _: lambda _: False, attends=_step_attends,
        per_layer=(SLIDING, {"num_attention_heads": "num_sliding_attention_heads"}), sparse=_step_routes,
        aliases={"n_routed_experts": "num_experts", "num_key_value_heads": "num_attention_groups"},
        experts={
            "num": "n_routed_experts", "shared": "share_expert_dim", "shared_bias": "mlp_bias",
            "shared_first": True, "routing": Routing("sigmoid", normalised=True, wide_weights=True),
        },
        numerics={"wide_norms": True, "unit_norms": True, "tables_by_kind": True},
        defaults=sizes(
            128815, 4096, 11264, 45, 64, 8, 128, 128000, hidden_act="silu", num_experts_per_tok=8,
            n_routed_experts=288, moe_intermediate_size=1280, share_expert_dim=1280,
        ),
    ),
    "step3p7": Family(
        behind=Behind("step3p5", step_tower, flat=True),
        defaults={"tie_word_embeddings": False},
    ),
    "longcat_flash": Family(
        build=longcat_flash,
        aliases={
            "num_experts_per_tok": "moe_topk", "intermediate_size": "ffn_hidden_size",
            "moe_intermediate_size": "expert_ffn_hidden_size",
        },
        defaults=sizes(
            131072, 6144, 12288, None, 64, None, None, 131072, num_layers=28, hidden_act="silu",
            q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
            num_experts_per_tok=12, n_routed_experts=512, zero_expert_num=256, moe_intermediate_size=2048,
        ),
    ),
    "flint": Family(  # Qwen3-MoE with sinks; full layers have no positions, an ungated shared expert
        like="qwen3_moe", bias="attention_bias", slides=_flint_slides, slides_if="", sinks=True,
        marks=rotary_where_sliding, sparse=_flint_routes, experts=_flint_experts,
        numerics={"wide_norms": True, "sinks": "column", "wide_scores": True, "kernels": ("flash",)},
        defaults=sizes(
            150144, 2048, 6144, 49, 32, 4, 128, 262144, sliding_window=513, moe_intermediate_size=512,
            shared_expert_intermediate_size=1024, num_experts_per_tok=6, num_experts=256, norm_topk_prob=True,
        ),
    ),
    "gemma3n": Family(build=gemma3n),
    "gemma4": Family(
        behind=Behind("gemma4_text", gemma4_towers), defaults={"tie_word_embeddings": True},
    ),
    "gemma4_text": Family(
        build=gemma4,
        per_layer=(
            FULL, {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"},
        ),
        numerics={
            "wide_norms": True, "hands_on_keys": True,
            "logit_cap": "final_logit_softcapping", "capped": False,
        },
        defaults=sizes(
            262144, 2304, 9216, 30, 8, 4, 256, 131072, hidden_activation="gelu_pytorch_tanh",
            global_head_dim=512, sliding_window=512, vocab_size_per_layer_input=262144,
            hidden_size_per_layer_input=256, tie_word_embeddings=True,
        ),
    ),
}
# fmt: on
