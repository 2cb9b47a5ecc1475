"""Mixtures of experts of 2024 to 2026 over ordinary attention, some of it sliding, gated or with sinks.

Defaults are those of the transformers 5.23 classes.
"""

from typing import Any

from finegauge.errors import FieldError
from finegauge.model.blocks import Architecture, FeedForward, Layer, Linear, Mixer, Norm, Routing, Tensor
from finegauge.model.families.llama import FULL, LLAMA, SLIDING, post_norm_layer, window_of
from finegauge.model.families.moe import GRANITEMOE, QWEN3_MOE, experts
from finegauge.model.families.moe_shared import GLM4_MOE, deepseek_feedforward, grouped_routing, routed_from
from finegauge.model.families.parts import (
    attention,
    framed_layer,
    full_norms,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    numerics,
    rms_layer,
    stack,
)
from finegauge.model.families.reading import Config, Figures

AFMOE = {
    **LLAMA, "vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 1408, "num_dense_layers": 1, "num_attention_heads": 16, "head_dim": 128,
    "max_position_embeddings": 16384, "num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2,
    "global_attn_every_n_layers": 4, "sliding_window": 1024,
}  # fmt: skip
ARIA_TEXT = {
    **LLAMA, "intermediate_size": 4096, "moe_num_experts": 8, "moe_topk": 2, "moe_num_shared_experts": 2,
}  # fmt: skip
DOTS1 = {
    **LLAMA, "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 62, "n_shared_experts": None,
    "n_routed_experts": None, "num_experts_per_tok": None, "first_k_dense_replace": 0,
    "sliding_window": 4096, "max_window_layers": 62,
}  # fmt: skip
ERNIE4_5_MOE = {
    "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 28,
    "num_attention_heads": 20, "num_key_value_heads": 4, "hidden_act": "silu",
    "max_position_embeddings": 131072, "use_bias": False, "moe_intermediate_size": 1536, "moe_k": 6,
    "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    "moe_layer_interval": 1, "tie_word_embeddings": True,
}  # fmt: skip
EXAONE_MOE = {
    **LLAMA, "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
    "sliding_window": 4096, "sliding_window_pattern": 4, "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "norm_topk_prob": True,
}  # fmt: skip
FLEX_OLMO = {
    **LLAMA, "vocab_size": 100352, "max_position_embeddings": 4096, "num_experts_per_tok": 5,
    "num_experts": 7,
}  # fmt: skip
GRANITEMOESHARED = {**GRANITEMOE, "shared_intermediate_size": 0}
GRANITEMOE_SWA = {**GRANITEMOESHARED, "sliding_window": 128}
HUNYUAN_MOE = {**LLAMA, "vocab_size": 290943, "num_experts": 1, "moe_topk": 1}
HY_V3 = {
    **LLAMA, "vocab_size": 120832, "intermediate_size": 13312, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 192,
    "max_position_embeddings": 131072, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "moe_intermediate_size": 1536, "first_k_dense_replace": 1,
}  # fmt: skip
KOLIBRI1 = {
    **LLAMA, "vocab_size": 128000, "hidden_size": 2560, "num_hidden_layers": 50, "num_attention_heads": 48,
    "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 262144, "sliding_window": 513,
    "moe_intermediate_size": 512, "num_experts_per_tok": 6, "num_local_experts": 384,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
LAGUNA = {
    **LLAMA, "vocab_size": 100352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512,
    "max_position_embeddings": 131072, "moe_intermediate_size": 512, "num_experts_per_tok": 8,
    "shared_expert_intermediate_size": 512, "num_experts": 256, "first_k_dense_replace": 1, "gating": True,
}  # fmt: skip
MELLUM = {
    **QWEN3_MOE, "vocab_size": 98304, "hidden_size": 2304, "intermediate_size": 7168,
    "num_hidden_layers": 28, "head_dim": 128, "max_position_embeddings": 131072, "sliding_window": 1024,
    "moe_intermediate_size": 896, "num_local_experts": 64, "norm_topk_prob": True,
}  # fmt: skip
SOLAR_OPEN = {
    **GLM4_MOE, "vocab_size": 196608, "num_hidden_layers": 48, "num_attention_heads": 64, "head_dim": 128,
    "moe_intermediate_size": 1280,
}  # fmt: skip


def shared_experts(f: Figures, number: str, *, bias: bool = False) -> FeedForward | None:
    """Return `number` (a key) experts that always run, as one feed-forward; None where there are none."""
    width = f.count(number) * f.size("moe_intermediate_size")
    return gated_mlp(f.size("hidden_size"), width, f.text("hidden_act"), bias=bias) if width else None


def dense_mlp(f: Figures, *, bias: bool = False) -> FeedForward:
    """Return the feed-forward of the layers that do not route."""
    return gated_mlp(f.size("hidden_size"), f.size("intermediate_size"), f.text("hidden_act"), bias=bias)


@numerics(wide_norms=True)
def afmoe(config: Config) -> Architecture:
    """Return Trinity: gated attention, norms around each branch, rotary positions where it slides."""
    f = Figures(config, AFMOE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    gate = (Linear("gate_proj", hidden, of[0] * of[2]),)
    every, first = f.size("global_attn_every_n_layers"), f.count("num_dense_layers")
    shared = shared_experts(f, "num_shared_experts")
    routing = Routing("sigmoid", normalised=True, wide_weights=True)
    routed = experts(f, correction="expert_bias", shared=shared, routing=routing)._replace(shared_first=True)
    kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % every else FULL, (FULL, SLIDING))

    def build(kind: tuple[str, bool]) -> Layer:
        mixer = attention(
            hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]), more=gate,
            window=window_of(f, kind[0]), rotary=kind[0] == SLIDING,
        )._replace(output_gate=True)  # fmt: skip
        feed: Mixer = routed if kind[1] else dense_mlp(f)
        return framed_layer(
            hidden,
            (mixer, "input_layernorm", "post_attention_layernorm"),
            (feed, "pre_mlp_layernorm", "post_mlp_layernorm"),
        )

    layers = stack(((kind, index >= first) for index, kind in enumerate(kinds)), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def aria_text(config: Config) -> Architecture:
    """Return Aria's text decoder: Llama's attention, eight experts and two shared ones in every layer."""
    f = Figures(config, ARIA_TEXT)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    width = f.count("moe_num_shared_experts") * f.size("intermediate_size")
    shared = gated_mlp(hidden, width, f.text("hidden_act"), bias=f.flag("mlp_bias")) if width else None
    routed = experts(
        f, num="moe_num_experts", top_k="moe_topk", size="intermediate_size", router_name="router",
        shared=shared, routing=Routing("top_softmax", wide_scores=False),
    )  # fmt: skip
    block = rms_layer(hidden, attention(hidden, heads(f), bias=bias, out_bias=bias), routed)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


def dots1(config: Config) -> Architecture:
    """Return dots.llm1: norms on the heads, DeepSeek's experts, the first layers dense."""
    f = Figures(config, DOTS1, {"n_routed_experts": "num_local_experts"})
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    slides = f.count("max_window_layers") if f.raw("sliding_window") is not None else f.num_layers()
    kinds = f.layer_kinds(lambda index: SLIDING if index >= slides else FULL, (FULL, SLIDING))

    def build(kind: tuple[str, bool]) -> Layer:
        style: dict[str, Any] = {"window": window_of(f, kind[0]), "qk_norms": head_norms(of[2])}
        mixer = attention(hidden, of, bias=bias, out_bias=bias, **style)
        return rms_layer(hidden, mixer, deepseek_feedforward(f, kind[1]))

    layers = stack(zip(kinds, routed_from(f, key=""), strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


@numerics(wide_tables=True, own_tables=1)
def ernie4_5_moe(config: Config) -> Architecture:
    """Return ERNIE 4.5 with experts: one flag for all biases, the first layer dense, tied head."""
    f = Figures(config, ERNIE4_5_MOE)
    hidden, bias = f.size("hidden_size"), f.flag("use_bias")
    shared = shared_experts(f, "moe_num_shared_experts", bias=bias)
    routing = Routing(normalised=True, wide_logits=True)
    routed = experts(f, num="moe_num_experts", top_k="moe_k", shared=shared, routing=routing)
    correction = Tensor("gate.moe_statics.e_score_correction_bias", (1, routed.num_experts), "fixed")
    routed = routed._replace(router_extra=(correction,), shared_first=True)
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias)

    def build(sparse: bool) -> Layer:
        return rms_layer(hidden, mixer, routed if sparse else dense_mlp(f, bias=bias))

    layers = stack(_ernie_routes(f), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden), head_bias=bias)


def _ernie_routes(f: Figures) -> list[bool]:
    """Return which layers are routed: every `moe_layer_interval`-th from the first to the last named."""
    first, every = f.count("moe_layer_start_index"), f.size("moe_layer_interval")
    last = f.raw("moe_layer_end_index")
    last = f.num_layers() - 1 if last in (None, -1) else f.count("moe_layer_end_index")
    return [(index + 1) % every == 0 and first <= index <= last for index in range(f.num_layers())]


def exaone_moe(config: Config) -> Architecture:
    """Return K-EXAONE: norms on the heads, three layers in four slide, full ones have no rotary positions."""
    f = Figures(config, EXAONE_MOE)
    hidden, of = f.size("hidden_size"), heads(f)
    every = f.count("sliding_window_pattern")
    if f.raw("layer_types") is None and (not every or f.raw("sliding_window") is None):
        raise FieldError("sliding_window_pattern is 0 and layer_types is missing; give one kind per layer.")
    kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % every else FULL, (FULL, SLIDING))
    shared = shared_experts(f, "num_shared_experts")

    def build(kind: tuple[str, bool]) -> Layer:
        rotary = f.raw("sliding_window") is None or kind[0] == SLIDING
        window, norms = window_of(f, kind[0]), head_norms(of[2])
        mixer = attention(hidden, of, qk_norms=norms, window=window, rotary=rotary)
        feed: Mixer = experts(f, shared=shared, routing=grouped_routing(f)) if kind[1] else dense_mlp(f)
        return rms_layer(hidden, mixer, feed)

    layers = stack(zip(kinds, routed_from(f), strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


@numerics(wide_norms=True, wide_tables=True)
def flex_olmo(config: Config) -> Architecture:
    """Return FlexOlmo: OLMo-2's attention and norms around routed experts."""
    f = Figures(config, FLEX_OLMO)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=full_norms(of))
    routing = Routing(normalised=f.flag("norm_topk_prob"))
    block = post_norm_layer(mixer, experts(f, size="intermediate_size", routing=routing))
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


def granite_experts(f: Figures) -> Mixer:
    """Return Granite's experts and, if it has a width, the feed-forward beside them."""
    hidden, width = f.size("hidden_size"), f.count("shared_intermediate_size")
    names, act = ("", "", "output_linear"), f.text("hidden_act")
    shared = gated_mlp(hidden, width, act, names=names, fused="input_linear") if width else None
    return experts(
        f, num="num_local_experts", size="intermediate_size", router_name="router", shared=shared,
        routing=Routing("top_softmax"),
    )  # fmt: skip


@numerics(scaled_logits=True)
def granitemoeshared(config: Config) -> Architecture:
    """Return Granite MoE with a feed-forward that every token passes beside the experts."""
    f = Figures(config, GRANITEMOESHARED)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    block = rms_layer(hidden, attention(hidden, heads(f), bias=bias, out_bias=bias), granite_experts(f))
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


@numerics(scaled_logits=True, sinks="scaled")
def granitemoe_swa(config: Config) -> Architecture:
    """Return Granite MoE with sinks, three layers in four sliding."""
    f = Figures(config, GRANITEMOE_SWA)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    sinks, feed = (Tensor("sinks", (of[0],), "state"),), granite_experts(f)

    def build(kind: str) -> Layer:
        mixer = attention(hidden, of, bias=bias, out_bias=bias, window=window_of(f, kind), extra=sinks)
        return rms_layer(hidden, mixer, feed)

    kinds = f.layer_kinds(lambda index: SLIDING if index % 4 else FULL, (FULL, SLIDING))
    return language_model(f, stack(kinds, build), final_norm=Norm("norm", hidden))


def hunyuan_v1_moe(config: Config) -> Architecture:
    """Return Hunyuan-A13B: norms on the heads, one shared expert as wide as the routed ones."""
    f = Figures(config, HUNYUAN_MOE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms = head_norms(of[2], names=("query_layernorm", "key_layernorm"))
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=norms, norms_last=True)
    routed = experts(
        _one_for_all_layers(f, "num_experts", "moe_topk"), top_k="moe_topk", size="intermediate_size",
        router_name="wg", shared=dense_mlp(f),
        routing=Routing(normalised=True, wide_logits=True, wide_weights=True),
    )._replace(shared_first=True)  # fmt: skip
    routed = routed._replace(
        router=routed.router._replace(kind="linear")
    )  # a module, where others hold a tensor
    block = rms_layer(hidden, mixer, routed)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


def _one_for_all_layers(f: Figures, *keys: str) -> Figures:
    """Return the figures with one number where a list says the same number for every layer."""
    listed = {key: value for key in keys if isinstance(value := f.raw(key), list)}
    for key, values in listed.items():
        if len(set(map(str, values))) != 1:
            raise f.unsupported(f"{key} that differs between layers")
    single = {key: values[0] for key, values in listed.items()}
    return Figures({**f.config, **single}, f.defaults, f.aliases)


def hy_v3(config: Config) -> Architecture:
    """Return Hunyuan 3: norms on the heads, a shared expert, the first layer dense."""
    f = Figures(config, HY_V3, {"num_experts": "num_local_experts"})
    hidden, of, bias, wide = f.size("hidden_size"), heads(f), f.flag("attention_bias"), f.flag("mlp_bias")
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]))
    routing = Routing("sigmoid", normalised=True, wide_logits=True, wide_weights=True)
    routed = experts(f, shared=shared_experts(f, "num_shared_experts", bias=wide), routing=routing)
    layers = stack(
        routed_from(f), lambda sparse: rms_layer(hidden, mixer, routed if sparse else dense_mlp(f, bias=wide))
    )
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def kolibri1(config: Config) -> Architecture:
    """Return Kolibri: norms around each branch and on the heads, four layers in five slide."""
    f = Figures(config, KOLIBRI1, {"num_local_experts": "num_experts"})
    hidden, of = f.size("hidden_size"), heads(f)
    shared = gated_mlp(hidden, f.size("shared_expert_intermediate_size"), f.text("hidden_act"))
    normalised = f.flag("norm_topk_prob")
    routing = Routing("sigmoid", normalised=normalised, wide_logits=True, wide_weights=True)
    feed = experts(f, num="num_local_experts", shared=shared, routing=routing)

    def build(kind: str) -> Layer:
        rotary = f.raw("sliding_window") is None or kind == SLIDING
        norms, window = head_norms(of[2]), window_of(f, kind)
        return framed_layer(
            hidden,
            (attention(hidden, of, qk_norms=norms, window=window, rotary=rotary),
             "input_layernorm", "post_self_attn_layernorm"),
            (feed, "post_attention_layernorm", "post_mlp_layernorm"),
        )  # fmt: skip

    kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % 5 else FULL, (FULL, SLIDING))
    return language_model(f, stack(kinds, build), final_norm=Norm("norm", hidden))


@numerics(tables_by_kind=True)
def laguna(config: Config) -> Architecture:
    """Return Laguna: a number of heads for each layer, gates on them, a shared expert, first layer dense."""
    f = Figures(config, LAGUNA)
    hidden, (_, kv, dim), bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    per_layer = f.raw("num_attention_heads_per_layer")
    counts = f.sizes(
        "num_attention_heads" if per_layer is None else "num_attention_heads_per_layer", f.num_layers()
    )
    shared = gated_mlp(hidden, f.size("shared_expert_intermediate_size"), f.text("hidden_act"))
    routing = Routing("sigmoid", normalised=True)
    routed = experts(f, correction="gate.e_score_correction_bias", shared=shared, routing=routing)
    routed = routed._replace(shared_first=True)
    by_head = f.raw("gating") in (True, "per-head")

    def build(kind: tuple[str, bool, int]) -> Layer:
        attends, sparse, num = kind
        if num % kv:
            raise FieldError(
                f"num_attention_heads_per_layer has {num}, which num_key_value_heads={kv} divides not."
            )
        width = num if by_head else num * dim
        gate = (Linear("g_proj", hidden, width),)
        mixer = attention(
            hidden, (num, kv, dim), bias=bias, out_bias=bias, qk_norms=head_norms(dim),
            window=window_of(f, attends), more=gate,
        )._replace(output_gate=True, gate_size=width)  # fmt: skip
        return rms_layer(hidden, mixer, routed if sparse else dense_mlp(f))

    kinds = f.layer_kinds(lambda _: FULL, (FULL, SLIDING))
    layers = stack(zip(kinds, routed_from(f), counts, strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


@numerics(tables_by_kind=True)
def mellum(config: Config) -> Architecture:
    """Return Mellum 2: Qwen3-MoE's layers, with a kind for every layer."""
    f = Figures(config, MELLUM, {"num_local_experts": "num_experts"})
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    routed = experts(f, num="num_local_experts", routing=Routing(normalised=f.flag("norm_topk_prob")))

    def build(kind: tuple[str, bool]) -> Layer:
        style: dict[str, Any] = {"window": window_of(f, kind[0]), "qk_norms": head_norms(of[2])}
        mixer = attention(hidden, of, bias=bias, out_bias=bias, **style)
        return rms_layer(hidden, mixer, routed if kind[1] else dense_mlp(f))

    kinds = f.layer_kinds(lambda _: FULL, (FULL, SLIDING))
    layers = stack(zip(kinds, routed_from(f), strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def solar_open(config: Config) -> Architecture:
    """Return Solar Open: GLM-4.5's layers, all of them routed, without norms on the heads."""
    f = Figures(config, SOLAR_OPEN, {"n_routed_experts": "num_local_experts"})
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    mixer = attention(hidden, heads(f), bias=bias)
    block = rms_layer(hidden, mixer, deepseek_feedforward(f, True))
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))
