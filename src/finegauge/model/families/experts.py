"""The table of mixtures of experts: one row per `model_type`, with the defaults of its configuration class.

A router scores the experts, `top_k` of them run for each token; some families have shared experts that
always run, or dense layers before the routed ones. Experts are held as transformers 5 holds them, fused.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Layer, Linear, Mixer, Norm, Routing, Tensor
from finegauge.model.families.decoder import (
    ALL,
    BARE_LAYER_NORM,
    HEAD_NORMS,
    LAYER_NORM,
    OWN_HEADS,
    WIDE_HEAD_NORMS,
    Family,
    qk_norms,
    rotary_where_sliding,
    sizes,
)
from finegauge.model.families.parts import (
    SLIDING,
    Figures,
    Heads,
    attention,
    experts,
    feedforward,
    heads,
    language_model,
    mlp_of,
    rms_layer,
    stack,
    window_of,
)

# DeepSeek-V3's: sigmoid scores in fp32, chosen from the best groups of experts
GROUPED: dict[str, Any] = {
    "routing": Routing("sigmoid", wide_logits=True, wide_weights=True), "normalised": "norm_topk_prob",
}  # fmt: skip
DEEPSEEK = {**GROUPED, "num": "n_routed_experts", "num_shared": "n_shared_experts"}
LOCAL: dict[str, Any] = {"num": "num_local_experts", "size": "intermediate_size"}
RENAMED = {"n_routed_experts": "num_local_experts"}


def routed_from(
    first: str | int = "first_k_dense_replace", key: str = "mlp_layer_types"
) -> Callable[[Figures], Sequence[bool]]:
    """Return the rule that says which layers are routed: those listed under `key`, else all but the first."""

    def rule(f: Figures) -> Sequence[bool]:
        dense = f.count(first) if isinstance(first, str) else first
        if not key:
            return [index >= dense for index in range(f.num_layers())]
        kinds = f.layer_kinds(lambda i: "sparse" if i >= dense else "dense", ("dense", "sparse"), key)
        return [kind == "sparse" for kind in kinds]

    return rule


def sparse_layers(f: Figures) -> list[bool]:
    """Return which layers of a Qwen mixture are routed: every `decoder_sparse_step`-th, unless listed."""
    dense = f.items("mlp_only_layers") or ()
    step, many = f.size("decoder_sparse_step"), f.count("num_experts") > 0
    return [many and index not in dense and (index + 1) % step == 0 for index in range(f.num_layers())]


def granite_experts(f: Figures) -> Mixer:
    """Return Granite's experts and, if it has a width, the feed-forward beside them."""
    hidden, width = f.size("hidden_size"), f.count("shared_intermediate_size")
    names, act = ("output_linear",), f.text("hidden_act")
    shared = feedforward(hidden, width, act, names=names, fused="input_linear") if width else None
    return experts(f, **LOCAL, router="router", shared=shared, routing=Routing("top_softmax"))


def _glm4_moe(f: Figures) -> Family:
    """Return the heads of a file that says no width of them: transformers drops what does not divide."""
    if f.optional("head_dim") is not None:
        return {}
    num, kv = f.size("num_attention_heads"), f.size("num_key_value_heads")
    return {"of": (num, kv, f.size("hidden_size") // num)}


def _bailing_experts(f: Figures) -> Mixer:
    """Return Ling's experts: sigmoid-routed in groups where a bias corrects the scores (2), softmax (1)."""
    if f.raw("score_function") == "sigmoid" or f.flag("moe_router_enable_expert_bias"):
        routing = Routing("sigmoid", wide_logits=True, wide_weights=True)
    else:
        routing = Routing(wide_logits=f.raw("router_dtype") == "fp32")
    width = f.optional("moe_shared_expert_intermediate_size") or f.size("moe_intermediate_size")
    shared = f.count("num_shared_experts") * width
    beside = feedforward(f.size("hidden_size"), shared, f.text("hidden_act")) if shared else None
    correction = "gate.expert_bias" if f.flag("moe_router_enable_expert_bias") else ""
    return experts(f, shared=beside, routing=routing, normalised="norm_topk_prob", correction=correction)


def _hunyuan_moe(f: Figures) -> Family:
    """Take one number where a list says the same number for every layer."""
    listed = {k: value for k in ("num_experts", "moe_topk") if isinstance(value := f.raw(k), list)}
    for key, values in listed.items():
        if len(set(map(str, values))) != 1:
            raise f.unsupported(f"{key} that differs between layers")
    f.config = {**f.config, **{key: values[0] for key, values in listed.items()}}
    return {}


def _hunyuan_experts(f: Figures) -> Mixer:
    routing = Routing(normalised=True, wide_logits=True, wide_weights=True)
    size = "intermediate_size"
    made = experts(
        f, top_k="moe_topk", size=size, router="wg", shared=size, routing=routing, shared_first=True
    )
    return made._replace(router=made.router._replace(kind="linear"))  # a module, where others hold a tensor


def _deepseek_routes(f: Figures) -> list[bool]:
    first, every = f.count("first_k_dense_replace"), f.size("moe_layer_freq")
    many = f.count("n_routed_experts")
    return [many > 0 and index >= first and index % every == 0 for index in range(f.num_layers())]


def _ernie_experts(f: Figures) -> Mixer:
    made = experts(
        f, num="moe_num_experts", top_k="moe_k", num_shared="moe_num_shared_experts", shared_bias="use_bias",
        routing=Routing(normalised=True, wide_logits=True), shared_first=True,
    )  # fmt: skip
    correction = Tensor("gate.moe_statics.e_score_correction_bias", (1, made.num_experts), "fixed")
    return made._replace(router_extra=(correction,))


def _ernie_routes(f: Figures) -> list[bool]:
    """Return which layers are routed: every `moe_layer_interval`-th from the first to the last named."""
    first, every = f.count("moe_layer_start_index"), f.size("moe_layer_interval")
    last = f.raw("moe_layer_end_index")
    last = f.num_layers() - 1 if last in (None, -1) else f.count("moe_layer_end_index")
    return [(index + 1) % every == 0 and first <= index <= last for index in range(f.num_layers())]


def _exaone_moe_slides(f: Figures) -> Callable[[int], bool]:
    every = f.count("sliding_window_pattern")
    if f.raw("layer_types") is None and (not every or f.raw("sliding_window") is None):
        raise FieldError("sliding_window_pattern is 0 and layer_types is missing; give one kind per layer.")
    return lambda index: (index + 1) % every != 0


def _dots1_slides(f: Figures) -> Callable[[int], bool]:
    first = f.count("max_window_layers") if f.raw("sliding_window") is not None else f.num_layers()
    return lambda index: index >= first


def _qwen2_moe_slides(f: Figures) -> Callable[[int], bool]:
    up_to = f.count("max_window_layers") if f.flag("use_sliding_window") else 0
    return lambda index: (index + 1) % 2 == 1 and index < up_to


def _cohere2_moe(f: Figures) -> Family:
    return {"norm": Norm("", 0)} if f.raw("rms_norm_eps") is not None else {}


def _cohere2_experts(f: Figures) -> Mixer:
    routing = Routing(f.text("expert_selection_fn"), normalised=f.flag("norm_topk_prob"))
    return experts(f, size="intermediate_size", num_shared="num_shared_experts", routing=routing)


def _cohere2_moe_slides(f: Figures) -> Callable[[int], bool]:
    """Return one pattern for the dense layers in front, and one for the rest."""
    first, prefix = f.count("first_k_dense_replace"), f.size("prefix_dense_sliding_window_pattern")
    every = f.size("sliding_window_pattern")
    return lambda index: bool((index + 1) % prefix if index < first else (index - first + 1) % every)


def _cohere2_moe_rotary(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> list[Hashable]:
    forced, window = f.size("prefix_dense_sliding_window_pattern") == 1, f.raw("sliding_window") is not None
    return [
        (kind == SLIDING and window) or (forced and not sparse)
        for kind, sparse in zip(kinds, routed, strict=True)
    ]


def _afmoe(f: Figures, of: Heads, slides: bool, mark: Any) -> Mapping[str, Any]:
    gate = Linear("gate_proj", f.size("hidden_size"), of[0] * of[2])
    return {"rotary": slides, "output_gate": True, "more": (gate,)}


def _laguna_heads(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    own = "num_attention_heads_per_layer"
    return f.sizes("num_attention_heads" if f.raw(own) is None else own, len(kinds))


def _laguna(f: Figures, of: Heads, slides: bool, num: Any) -> Mapping[str, Any]:
    _, kv, dim = of
    if num % kv:
        raise FieldError(
            f"num_attention_heads_per_layer has {num}, which num_key_value_heads={kv} divides not."
        )
    width = num if f.raw("gating") in (True, "per-head") else num * dim
    gate = Linear("g_proj", f.size("hidden_size"), width)
    return {"of": (num, kv, dim), "output_gate": True, "gate_size": width, "more": (gate,)}


def _mimo_v2(f: Figures, of: Heads, slides: bool, mark: Any) -> Mapping[str, Any]:
    """Return what sliding layers have: sinks, twice the key and value heads, and a window of their own."""
    (num, kv, dim), value = of, f.size("v_head_dim")
    if not slides:
        return {"value_head_dim": value}
    if num % (2 * kv):
        raise FieldError(
            f"num_attention_heads={num} is not divisible by the {2 * kv} key heads of sliding layers."
        )
    narrow = f.optional("sliding_window_size")
    window = window_of(f)
    if narrow is not None:
        positions = f.optional("max_position_embeddings")
        window = narrow + 1 if positions is None or narrow + 1 < positions else None
    sinks = (Tensor("sinks", (num,), "state"),)
    return {"of": (num, 2 * kv, dim), "value_head_dim": value, "window": window, "extra": sinks}


def _dbrx(f: Figures) -> Family:
    attends, (num, _, dim) = f.part("attn_config", {"kv_n_heads": 1}), heads(f, **OWN_HEADS)
    kv = attends.size("kv_n_heads")
    if num % kv:
        raise FieldError(f"n_heads={num} is not divisible by kv_n_heads={kv}.")
    return {"of": (num, kv, dim), "attention": {"clipped": attends.raw("clip_qkv") is not None}}


def _dbrx_experts(f: Figures) -> Mixer:
    nested = f.part(
        "ffn_config",
        {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1, "hidden_act": "silu",
         "moe_normalize_expert_weights": 1.0},
    )  # fmt: skip
    activation = nested.raw("ffn_act_fn")
    if isinstance(activation, dict) and activation.get("name", "silu") != "silu":
        raise f.unsupported(f"the activation {shown(activation.get('name'))}")
    normalised = nested.raw("moe_normalize_expert_weights") is not None
    return experts(
        nested, num="moe_num_experts", top_k="moe_top_k", size="ffn_hidden_size", router="router",
        hidden=f.size("hidden_size"), routing=Routing(normalised=normalised, wide_scores=False), looped=True,
    )  # fmt: skip


def arctic(f: Figures) -> Architecture:
    """Return Arctic: 128 experts beside a dense feed-forward as wide as the residual stream."""
    hidden, act = f.size("hidden_size"), f.text("hidden_act")
    mixer, beside = attention(hidden, heads(f)), f.flag("parallel_attn_mlp_res") and f.flag("use_residual")

    def build(sparse: bool) -> Layer:
        if not sparse:
            return rms_layer(hidden, mixer, mlp_of(f))
        routed = experts(f, **LOCAL)
        if not beside:
            return rms_layer(hidden, mixer, routed)
        dense = feedforward(hidden, hidden, act, names=("w1", "w3", "w2"))
        names = ("input_layernorm", "residual_layernorm", "post_attention_layernorm")
        return rms_layer(hidden, mixer, dense, routed, names=names)

    every = f.size("moe_layer_frequency")
    routed = [(index + 1) % every == 0 for index in range(f.num_layers())]
    return language_model(f, stack(routed, build), Norm("norm", hidden))


WIDE_SIGMOID = Routing("sigmoid", normalised=True, wide_logits=True, wide_weights=True)

# fmt: off
EXPERTS: dict[str, Family] = {
    # --- Mixtral and those built like it
    "mixtral": Family(
        like="mistral", experts={**LOCAL, "routing": Routing(normalised=True, wide_weights=True)},
        defaults={"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": Family(  # Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the routed ones
        like="qwen2", bias="qkv_bias", slides=_qwen2_moe_slides, sparse=sparse_layers,
        experts={
            "normalised": "norm_topk_prob", "shared": "shared_expert_intermediate_size", "shared_gate": True,
        },
        defaults=sizes(
            None, 2048, 5632, 24, 16, 16, decoder_sparse_step=1, moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632, num_experts_per_tok=4, num_experts=60, qkv_bias=True,
        ),
    ),
    "qwen3_moe": Family(
        like="qwen2", bias="attention_bias", out_bias=None, qk_norms=HEAD_NORMS, slides=ALL,
        sparse=sparse_layers, experts={"normalised": "norm_topk_prob"},
        aliases={"num_experts": "num_local_experts"},
        defaults={
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
            "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
            "num_experts": 128,
        },
    ),
    "mellum": Family(  # Mellum 2: Qwen3-MoE's layers, with a kind for every layer
        like="qwen3_moe", slides=lambda _: lambda _: False, slides_if="", sparse=routed_from(),
        experts={"num": "num_local_experts", "normalised": "norm_topk_prob"},
        aliases={"num_local_experts": "num_experts"}, numerics={"tables_by_kind": True},
        defaults=sizes(
            98304, 2304, 7168, 28, None, None, 128, 131072, sliding_window=1024, moe_intermediate_size=896,
            num_local_experts=64, norm_topk_prob=True,
        ),
    ),
    "olmoe": Family(  # norms on all queries and all keys at once
        like="llama", qk_norms=WIDE_HEAD_NORMS, clip="clip_qkv",
        experts={"size": "intermediate_size", "normalised": "norm_topk_prob"},
        defaults=sizes(50304, 2048, 2048, 16, 16, None, None, 4096, num_experts_per_tok=8, num_experts=64),
    ),
    "flex_olmo": Family(
        like="olmo2", experts={"size": "intermediate_size", "normalised": "norm_topk_prob"},
        defaults={
            "vocab_size": 100352, "max_position_embeddings": 4096, "num_experts_per_tok": 5, "num_experts": 7,
        },
    ),
    "granitemoe": Family(  # Granite 3 MoE and PowerMoE
        like="llama", experts={**LOCAL, "router": "router", "routing": Routing("top_softmax")},
        numerics={"scaled_logits": True, "own_loss": True},
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "granitemoeshared": Family(  # a feed-forward that every token passes beside the experts
        like="granitemoe", experts=granite_experts, numerics={"scaled_logits": True},
    ),
    "granitemoe_swa": Family(  # sinks, three layers in four slide
        like="granitemoeshared", sinks=True, slides=lambda _: lambda index: index % 4 != 0,
        numerics={"scaled_logits": True, "sinks": "scaled"}, defaults={"sliding_window": 128},
    ),
    "phimoe": Family(  # Phi-3.5-MoE
        like="llama", norm=LAYER_NORM, slides=ALL, head_bias="lm_head_bias",
        experts={**LOCAL, "router": "router", "routing": Routing("sparsemixer")},
        defaults={
            "vocab_size": 32064, "intermediate_size": 6400, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "sliding_window": None, "num_local_experts": 16,
            "num_experts_per_tok": 2,
        },
    ),
    "gpt_oss": Family(  # every other layer slides, biases in router and experts
        bias="attention_bias", sinks=True, slides=2, numerics={"wide_norms": True, "sinks": "column"},
        experts={
            **LOCAL, "router": "router", "router_bias": True, "bias": True, "activation": "clamped_swiglu",
            "routing": Routing("top_softmax", wide_scores=False), "transposed": True,
        },
        defaults=sizes(
            201088, 2880, 2880, 36, 64, 8, 64, 131072, num_local_experts=128, sliding_window=128,
            hidden_act="silu", num_experts_per_tok=4, attention_bias=True,
        ),
    ),
    "minimax_m2": Family(  # norms on all queries and all keys at once
        qk_norms=WIDE_HEAD_NORMS,
        experts={**LOCAL, "routing": Routing("sigmoid", normalised=True, wide_weights=True)},
        defaults=sizes(
            200064, 3072, 1536, 62, 48, 8, 128, 196608, hidden_act="silu", num_experts_per_tok=8,
            num_local_experts=256,
        ),
    ),
    "dbrx": Family(  # LayerNorms without bias, figures in nested mappings
        fused="Wqkv", out="out_proj", norm=BARE_LAYER_NORM, before=("norm_1", "norm_2"), final="norm_f",
        embed="wte", varies=_dbrx, experts=_dbrx_experts,
        aliases={
            "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
            "max_position_embeddings": "max_seq_len",
        },
        defaults=sizes(32000, 2048, None, 24, 16, None, None, 2048),
    ),
    "grok-1": Family(  # RMS norms before and after each branch
        experts={"size": "intermediate_size"}, before=("pre_attn_norm", "pre_moe_norm"),
        after=("post_attn_norm", "post_moe_norm"),
        defaults=sizes(
            131072, 6144, 32768, 64, 48, 8, None, 8192, hidden_act="gelu", num_experts=8,
            num_experts_per_tok=2, tie_word_embeddings=True,
        ),
    ),
    "arctic": Family(
        like="llama", build=arctic,
        defaults={
            "intermediate_size": 14336, "max_position_embeddings": 4096, "num_local_experts": 8,
            "num_experts_per_tok": 1, "moe_layer_frequency": 2,
        },
    ),
    "aria_text": Family(  # eight experts and two shared ones in every layer
        like="llama",
        experts={
            "num": "moe_num_experts", "top_k": "moe_topk", "size": "intermediate_size", "router": "router",
            "num_shared": "moe_num_shared_experts", "shared_bias": "mlp_bias",
            "routing": Routing("top_softmax", wide_scores=False),
        },
        defaults={
            "intermediate_size": 4096, "moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2,
        },
    ),
    "bailing_moe": Family(  # Ling and Ring 1 and 2: GLM-4.5's order, names of their own
        like="llama", heads={}, bias="use_qkv_bias", out_bias="use_bias", mlp_bias="use_bias",
        fused="query_key_value", out="dense", partly_rotary=True, embed="word_embeddings",
        qk_norms=qk_norms(("query_layernorm", "key_layernorm"), flag="use_qk_norm"),
        sparse=routed_from(key=""), experts=_bailing_experts,
        defaults=sizes(
            30592, 1024, None, 24, 16, 0, None, 32768, hidden_act="silu", num_experts=16,
            num_experts_per_tok=2, norm_topk_prob=True,
        ),
    ),
    "bailing_moe_v2": Family(like="bailing_moe"),
    "hunyuan_v1_moe": Family(  # Hunyuan-A13B: one shared expert as wide as the routed ones
        like="hunyuan_v1_dense", varies=_hunyuan_moe, experts=_hunyuan_experts,
        defaults={"num_experts": 1, "moe_topk": 1},
    ),
    # --- the first layers are dense
    "deepseek": Family(  # DeepSeekMoE 16B: fine-grained experts, two of them shared
        like="llama", heads={"dim": ""}, mlp_bias=False, sparse=_deepseek_routes,
        experts={
            "num": "n_routed_experts", "num_shared": "n_shared_experts", "normalised": "norm_topk_prob",
        },
        defaults={"vocab_size": 102400, "moe_intermediate_size": 1407, "moe_layer_freq": 1},
    ),
    "glm4_moe": Family(  # GLM-4.5 and 4.6
        varies=_glm4_moe,
        bias="attention_bias", out_bias=False, qk_norms=qk_norms(flag="use_qk_norm"),
        sparse=routed_from(key=""), experts=DEEPSEEK, aliases=RENAMED,
        defaults=sizes(
            151552, 4096, 10944, 46, 96, 8, None, 131072, hidden_act="silu", moe_intermediate_size=1408,
            num_experts_per_tok=8, n_shared_experts=1, n_routed_experts=128, first_k_dense_replace=1,
            norm_topk_prob=True,
        ),
    ),
    "solar_open": Family(  # GLM-4.5's layers, all of them routed
        like="glm4_moe", sparse=None, qk_norms=None,
        defaults={
            "vocab_size": 196608, "num_hidden_layers": 48, "num_attention_heads": 64, "head_dim": 128,
            "moe_intermediate_size": 1280,
        },
    ),
    "dots1": Family(  # dots.llm1
        like="llama", mlp_bias=False, qk_norms=HEAD_NORMS, slides=_dots1_slides, sparse=routed_from(key=""),
        experts=DEEPSEEK, aliases=RENAMED,
        defaults={
            "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
            "moe_intermediate_size": 1408, "num_hidden_layers": 62, "sliding_window": 4096,
            "max_window_layers": 62,
        },
    ),
    "hy_v3": Family(  # Hunyuan 3
        like="llama", qk_norms=HEAD_NORMS, sparse=routed_from(), aliases={"num_experts": "num_local_experts"},
        experts={
            "num_shared": "num_shared_experts", "shared_bias": "mlp_bias",
            "routing": WIDE_SIGMOID._replace(wide_shared=True),
        },
        defaults=sizes(
            120832, None, 13312, 80, 64, 8, 128, 131072, num_experts=192, num_experts_per_tok=8,
            num_shared_experts=1, moe_intermediate_size=1536, first_k_dense_replace=1,
        ),
    ),
    "ernie4_5_moe": Family(  # one flag for all biases, the head's too
        bias="use_bias", mlp_bias="use_bias", head_bias="use_bias", sparse=_ernie_routes,
        experts=_ernie_experts, numerics={"wide_tables": True, "own_tables": 1},
        defaults=sizes(
            103424, 2560, 12288, 28, 20, 4, None, 131072, hidden_act="silu", moe_intermediate_size=1536,
            moe_k=6, moe_num_experts=64, moe_num_shared_experts=2, moe_layer_start_index=1,
            moe_layer_interval=1, tie_word_embeddings=True,
        ),
    ),
    "exaone_moe": Family(  # K-EXAONE: three layers in four slide, full ones have no rotary positions
        like="llama", bias=False, mlp_bias=False, qk_norms=HEAD_NORMS, slides=_exaone_moe_slides,
        marks=rotary_where_sliding, sparse=routed_from(),
        experts={**GROUPED, "num_shared": "num_shared_experts"},
        defaults={
            "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
            "sliding_window": 4096, "sliding_window_pattern": 4, "first_k_dense_replace": 1,
            "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
            "num_shared_experts": 1, "norm_topk_prob": True,
        },
    ),
    "cohere2_moe": Family(  # Command A with experts; RMS norms if an epsilon is given
        like="cohere2", varies=_cohere2_moe, slides=_cohere2_moe_slides, marks=_cohere2_moe_rotary,
        sparse=routed_from(), experts=_cohere2_experts, mlp_size="prefix_dense_intermediate_size",
        defaults={
            "head_dim": 128, "num_experts_per_tok": 2, "num_experts": 8,
            "prefix_dense_sliding_window_pattern": 1, "norm_topk_prob": True,
            "expert_selection_fn": "softmax",
        },
    ),
    # --- gates, sinks and heads of their own
    "afmoe": Family(  # Trinity: gated attention, rotary positions where it slides
        like="llama", mlp_bias=False, qk_norms=HEAD_NORMS, slides="global_attn_every_n_layers",
        attends=_afmoe, sparse=routed_from("num_dense_layers", key=""),
        before=("input_layernorm", "pre_mlp_layernorm"),
        after=("post_attention_layernorm", "post_mlp_layernorm"), numerics={"wide_norms": True},
        experts={
            "correction": "expert_bias", "num_shared": "num_shared_experts", "shared_first": True,
            "routing": Routing("sigmoid", normalised=True, wide_weights=True),
        },
        defaults=sizes(
            200192, 2048, 6144, None, 16, None, 128, 16384, moe_intermediate_size=1408, num_dense_layers=1,
            num_experts=64, num_experts_per_tok=6, num_shared_experts=2, global_attn_every_n_layers=4,
            sliding_window=1024,
        ),
    ),
    "kolibri1": Family(  # norms around each branch, four layers in five slide
        like="llama", bias=False, qk_norms=HEAD_NORMS, slides=5, marks=rotary_where_sliding,
        after=("post_self_attn_layernorm", "post_mlp_layernorm"),
        aliases={"num_local_experts": "num_experts"},
        experts={**GROUPED, "num": "num_local_experts", "shared": "shared_expert_intermediate_size"},
        defaults=sizes(
            128000, 2560, None, 50, 48, 4, 128, 262144, sliding_window=513, moe_intermediate_size=512,
            num_experts_per_tok=6, num_local_experts=384, shared_expert_intermediate_size=512,
        ),
    ),
    "laguna": Family(  # a number of heads for each layer, gates on them
        like="llama", mlp_bias=False, qk_norms=HEAD_NORMS, slides=lambda _: lambda _: False,
        marks=_laguna_heads, attends=_laguna, sparse=routed_from(), numerics={"tables_by_kind": True},
        experts={
            "correction": "gate.e_score_correction_bias", "shared": "shared_expert_intermediate_size",
            "shared_first": True, "routing": Routing("sigmoid", normalised=True),
        },
        defaults=sizes(
            100352, 2048, 8192, 40, 48, 8, 128, 131072, sliding_window=512, moe_intermediate_size=512,
            num_experts_per_tok=8, shared_expert_intermediate_size=512, num_experts=256,
            first_k_dense_replace=1, gating=True,
        ),
    ),
    "mimo_v2_flash": Family(  # five layers in six slide
        bias="attention_bias", out_bias=False, slides=lambda _: lambda i: i != 0 and (i + 1) % 6 != 0,
        attends=_mimo_v2, sparse=routed_from(1), experts={**GROUPED, "num": "n_routed_experts"},
        aliases=RENAMED,
        defaults=sizes(
            152576, 4096, 16384, 48, 64, 4, 192, 131072, hidden_act="silu", moe_intermediate_size=2048,
            num_experts_per_tok=8, n_routed_experts=256, v_head_dim=128, sliding_window=129,
            norm_topk_prob=True,
        ),
    ),
}
# fmt: on
