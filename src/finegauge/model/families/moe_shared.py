"""Mixtures whose first layers are dense or whose experts have company: GLM-4.5, DeepSeekMoE, MiMo-V2.

Also DBRX, Grok-1 and Arctic, whose files have keys or norms of their own. Defaults are
those of the transformers 5.23 classes, or of the repository's own configuration class.
"""

from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Layer, Mixer, Norm, Routing, Tensor
from finegauge.model.families.llama import FULL, LLAMA, SLIDING
from finegauge.model.families.moe import experts
from finegauge.model.families.parts import (
    attention,
    framed_layer,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    layer_norm,
    pre_norm_layer,
    rms_layer,
    stack,
    window_below,
)
from finegauge.model.families.reading import Config, Figures

GLM4_MOE = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 131072, "attention_bias": False, "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "first_k_dense_replace": 1,
    "use_qk_norm": False, "norm_topk_prob": True,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    **LLAMA, "vocab_size": 102400, "moe_intermediate_size": 1407, "n_shared_experts": None,
    "n_routed_experts": None, "num_experts_per_tok": None, "moe_layer_freq": 1, "first_k_dense_replace": 0,
}  # fmt: skip
MIMO_V2_FLASH = {
    "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
    "num_attention_heads": 64, "num_key_value_heads": 4, "hidden_act": "silu",
    "max_position_embeddings": 131072, "attention_bias": False, "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8, "n_routed_experts": 256, "head_dim": 192, "v_head_dim": 128,
    "sliding_window": 129, "norm_topk_prob": True,
    "tie_word_embeddings": False,
}  # fmt: skip
DBRX = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24,
    "max_position_embeddings": 2048, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
DBRX_KEYS = {
    "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
DBRX_ATTENTION = {"kv_n_heads": 1}
DBRX_EXPERTS = {
    "ffn_hidden_size": 3584,
    "moe_num_experts": 4,
    "moe_top_k": 1,
    "hidden_act": "silu",
    "moe_normalize_expert_weights": 1.0,
}
GROK = {
    "vocab_size": 131072, "hidden_size": 6144, "intermediate_size": 32768, "num_hidden_layers": 64,
    "num_attention_heads": 48, "num_key_value_heads": 8, "hidden_act": "gelu",
    "max_position_embeddings": 8192, "num_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
ARCTIC = {
    **LLAMA, "intermediate_size": 14336, "max_position_embeddings": 4096, "num_local_experts": 8,
    "num_experts_per_tok": 1, "moe_layer_frequency": 2, "parallel_attn_mlp_res": False,
    "use_residual": False,
}  # fmt: skip


def routed_from(f: Figures, *, key: str = "mlp_layer_types") -> list[bool]:
    """Return which layers are routed: what the list under `key` says, else all but the first few."""
    if f.items(key) is not None:
        return [kind == "sparse" for kind in f.layer_kinds(lambda _: "sparse", ("dense", "sparse"), key)]
    first = f.count("first_k_dense_replace")
    return [index >= first for index in range(f.num_layers())]


def grouped_routing(f: Figures) -> Routing:
    """Return DeepSeek-V3's routing: sigmoid scores in fp32, chosen from the best groups of experts."""
    return Routing(
        "sigmoid",
        normalised=f.flag("norm_topk_prob"),
        wide_logits=True,
        wide_weights=True,
    )


def deepseek_feedforward(
    f: Figures, sparse: bool, *, bias: bool = False, routing: Routing | None = None
) -> Mixer:
    """Return the dense feed-forward, or the routed one with `n_shared_experts` fused into one."""
    hidden, act = f.size("hidden_size"), f.text("hidden_act")
    if not sparse:
        return gated_mlp(hidden, f.size("intermediate_size"), act, bias=bias)
    always = f.count("n_shared_experts") * f.size("moe_intermediate_size")
    shared = gated_mlp(hidden, always, act, bias=bias) if always else None
    return experts(f, num="n_routed_experts", shared=shared, routing=routing or grouped_routing(f))


def glm4_moe(config: Config) -> Architecture:
    """Return GLM-4.5 and 4.6: biased q, k, v, norms on the heads by flag, first layers dense."""
    f = Figures(config, GLM4_MOE, {"n_routed_experts": "num_local_experts"})
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms = head_norms(of[2]) if f.flag("use_qk_norm") else ()
    mixer = attention(hidden, of, bias=bias, qk_norms=norms)
    layers = stack(
        routed_from(f, key=""), lambda sparse: rms_layer(hidden, mixer, deepseek_feedforward(f, sparse))
    )
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def deepseek(config: Config) -> Architecture:
    """Return DeepSeekMoE 16B: Llama's attention, fine-grained experts, two of them shared."""
    f = Figures(config, DEEPSEEK)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    mixer = attention(hidden, heads(f, dim=""), bias=bias, out_bias=bias)
    first, every, many = (
        f.count("first_k_dense_replace"),
        f.size("moe_layer_freq"),
        f.count("n_routed_experts"),
    )
    sparse = [bool(many) and index >= first and index % every == 0 for index in range(f.num_layers())]
    routing = Routing(normalised=f.flag("norm_topk_prob"))

    def build(routed: bool) -> Layer:
        return rms_layer(hidden, mixer, deepseek_feedforward(f, routed, routing=routing))

    layers = stack(sparse, build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def mimo_v2_flash(config: Config) -> Architecture:
    """Return MiMo-V2-Flash: five layers in six slide, with sinks and twice the key and value heads."""
    f = Figures(config, MIMO_V2_FLASH, {"n_routed_experts": "num_local_experts"})
    hidden, (num, kv, dim), bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    value, narrow = f.size("v_head_dim"), f.optional("sliding_window_size")
    window = f.optional("sliding_window") if narrow is None else narrow + 1
    kinds = f.layer_kinds(lambda i: FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING, (FULL, SLIDING))
    sparse = [
        kind == "sparse" for kind in f.layer_kinds(_dense_first, ("dense", "sparse"), "mlp_layer_types")
    ]
    if num % (2 * kv) and SLIDING in kinds:
        raise FieldError(
            f"num_attention_heads={num} is not divisible by the {2 * kv} key heads of sliding layers."
        )

    def build(kind: tuple[str, bool]) -> Layer:
        slides = kind[0] == SLIDING
        style: dict[str, Any] = {}
        if slides:
            sees = window_below(window, f.optional("max_position_embeddings"))
            style = {"window": sees, "extra": (Tensor("sinks", (num,), "state"),)}
        of = (num, 2 * kv if slides else kv, dim)
        mixer = attention(hidden, of, bias=bias, value_dim=value, **style)
        return rms_layer(hidden, mixer, _mimo_feedforward(f, kind[1]))

    layers = stack(zip(kinds, sparse, strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def _dense_first(index: int) -> str:
    return "sparse" if index else "dense"


def _mimo_feedforward(f: Figures, sparse: bool) -> Mixer:
    if sparse:
        return experts(f, num="n_routed_experts", routing=grouped_routing(f))
    return gated_mlp(f.size("hidden_size"), f.size("intermediate_size"), f.text("hidden_act"))


def dbrx(config: Config) -> Architecture:
    """Return DBRX: 16 experts, 4 per token, LayerNorms without bias, figures in nested mappings."""
    f = Figures(config, DBRX, DBRX_KEYS)
    hidden, (num, _, dim) = f.size("hidden_size"), heads(f, kv="", dim="")
    attends = f.part("attn_config", DBRX_ATTENTION)
    kv, clipped = attends.size("kv_n_heads"), attends.raw("clip_qkv") is not None
    if num % kv:
        raise FieldError(f"n_heads={num} is not divisible by kv_n_heads={kv}.")
    nested = f.part("ffn_config", DBRX_EXPERTS)
    activation = nested.raw("ffn_act_fn")
    if isinstance(activation, dict) and activation.get("name", "silu") != "silu":
        raise f.unsupported(f"the activation {shown(activation.get('name'))}")
    routed = experts(
        nested,
        num="moe_num_experts",
        top_k="moe_top_k",
        size="ffn_hidden_size",
        hidden=hidden,
        router_name="router",
        routing=Routing(normalised=nested.raw("moe_normalize_expert_weights") is not None, wide_scores=False),
    )._replace(looped=True)
    mixer = attention(hidden, (num, kv, dim), fused="Wqkv", out="out_proj", clipped=clipped)
    norms = [layer_norm("norm_1", hidden, bias=False), layer_norm("norm_2", hidden, bias=False)]
    layers = ((pre_norm_layer([mixer, routed], norms), f.num_layers()),)
    return language_model(f, layers, final_norm=layer_norm("norm_f", hidden, bias=False), embed="wte")


def grok_1(config: Config) -> Architecture:
    """Return Grok-1: 8 experts, 2 per token, RMS norms before and after each branch."""
    f = Figures(config, GROK)
    hidden = f.size("hidden_size")
    mixers: tuple[Mixer, Mixer] = (attention(hidden, heads(f)), experts(f, size="intermediate_size"))
    block = framed_layer(
        hidden,
        (mixers[0], "pre_attn_norm", "post_attn_norm"),
        (mixers[1], "pre_moe_norm", "post_moe_norm"),
    )
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


def arctic(config: Config) -> Architecture:
    """Return Arctic: 128 experts beside a dense feed-forward as wide as the residual stream."""
    f = Figures(config, ARCTIC)
    hidden, every = f.size("hidden_size"), f.size("moe_layer_frequency")
    mixer, act = attention(hidden, heads(f)), f.text("hidden_act")
    beside = f.flag("parallel_attn_mlp_res") and f.flag("use_residual")

    def build(sparse: bool) -> Layer:
        if not sparse:
            return rms_layer(hidden, mixer, gated_mlp(hidden, f.size("intermediate_size"), act))
        routed = experts(f, num="num_local_experts", size="intermediate_size")
        if not beside:
            return rms_layer(hidden, mixer, routed)
        dense = gated_mlp(hidden, hidden, act, names=("w1", "w3", "w2"))
        names = ("input_layernorm", "residual_layernorm", "post_attention_layernorm")
        return rms_layer(hidden, mixer, dense, routed, names=names)

    layers = stack([(index + 1) % every == 0 for index in range(f.num_layers())], build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))
