"""Mixtures of experts over ordinary attention: Mixtral and those built like it.

A router scores the experts, `top_k` of them run for each token; some have shared
experts that always run. Experts are held as transformers 5 holds them, fused.
"""

from finegauge.errors import FieldError
from finegauge.model.blocks import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Norm,
    Routing,
    Tensor,
)
from finegauge.model.families.llama import FULL, LLAMA, MISTRAL, QWEN2, SLIDING
from finegauge.model.families.parts import (
    attention,
    full_norms,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    layer_norm,
    numerics,
    pre_norm_layer,
    rms_layer,
    router,
    stack,
    window_below,
)
from finegauge.model.families.reading import Config, Figures

MIXTRAL = {**MISTRAL, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN2_MOE = {
    **QWEN2, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
    "num_experts": 60, "qkv_bias": True,
}  # fmt: skip
QWEN3_MOE = {
    **QWEN2, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
    "num_key_value_heads": 4, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
    "num_experts_per_tok": 8, "num_experts": 128,
}  # fmt: skip
OLMOE = {
    **LLAMA, "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts_per_tok": 8, "num_experts": 64,
}  # fmt: skip
GRANITEMOE = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2}
PHIMOE = {
    **LLAMA, "vocab_size": 32064, "intermediate_size": 6400, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "sliding_window": None, "num_local_experts": 16,
    "num_experts_per_tok": 2, "lm_head_bias": False,
}  # fmt: skip
GPT_OSS = {
    "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "sliding_window": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
    "num_experts_per_tok": 4, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX_M2 = {
    "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 196608, "num_experts_per_tok": 8, "num_local_experts": 256,
    "tie_word_embeddings": False,
}  # fmt: skip
LOCAL_QWEN = {"num_experts": "num_local_experts"}


def experts(
    f: Figures,
    *,
    num: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
    hidden: int | None = None,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    router_name: str = "gate",
    act: str = "hidden_act",
    correction: str = "",
    shared: FeedForward | None = None,
    shared_gate: bool = False,
    routing: Routing | None = None,
) -> MixtureOfExperts:
    """Return routed experts whose figures stand under the given keys.

    Args:
        f: The figures.
        num: Key of the number of experts.
        top_k: Key of the experts that one token passes.
        size: Key of the width of one expert.
        hidden: Channels of the residual stream; None reads `hidden_size`.
        gated: Whether experts have a gate.
        bias: Whether their projections have biases.
        router_bias: Whether the router has one.
        router_name: Name of the router's projection.
        act: Key of the activation.
        correction: Name of the router's per-expert correction; "" for none.
        shared: The shared experts, as one feed-forward.
        shared_gate: Whether a sigmoid gate scales the shared experts.
        routing: How the router weighs the chosen experts; None: by a softmax of all.
    """
    width, num_experts, per_token = hidden or f.size("hidden_size"), f.size(num, most=65536), f.size(top_k)
    if per_token > num_experts:
        raise FieldError(f"{top_k}={per_token} is more than {num}={num_experts}.")
    return MixtureOfExperts(
        hidden_size=width,
        intermediate_size=f.size(size),
        num_experts=num_experts,
        top_k=per_token,
        gated=gated,
        expert_bias=bias,
        router=router(width, num_experts, bias=router_bias, name=router_name),
        router_extra=(Tensor(correction, (num_experts,), "fixed"),) if correction else (),
        shared=shared,
        shared_gate=Linear("shared_expert_gate", width, 1) if shared_gate else None,
        activation=f.text(act),
        routing=routing or Routing(),
        shared_first=shared_gate,
    )


def sparse_layers(f: Figures) -> list[bool]:
    """Return which layers of a Qwen mixture are routed: every `decoder_sparse_step`-th, unless listed."""
    dense = f.items("mlp_only_layers") or ()
    step, many = f.size("decoder_sparse_step"), f.count("num_experts") > 0
    return [many and index not in dense and (index + 1) % step == 0 for index in range(f.num_layers())]


def qwen_feedforward(f: Figures, sparse: bool, *, shared: bool) -> Mixer:
    """Return the routed feed-forward of a Qwen mixture, with its shared expert and gate, or the dense one."""
    hidden, act = f.size("hidden_size"), f.text("hidden_act")
    if not sparse:
        return gated_mlp(hidden, f.size("intermediate_size"), act)
    routing = Routing(normalised=f.flag("norm_topk_prob"))
    if not shared:
        return experts(f, routing=routing)
    always = gated_mlp(hidden, f.size("shared_expert_intermediate_size"), act)
    return experts(f, shared=always, shared_gate=True, routing=routing)


def mixtral(config: Config) -> Architecture:
    """Return Mixtral: every layer Mistral's attention and 8 experts, 2 per token."""
    f = Figures(config, MIXTRAL)
    hidden = f.size("hidden_size")
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    mixer = attention(hidden, heads(f), window=window)
    routing = Routing(normalised=True, wide_weights=True)
    routed = experts(f, num="num_local_experts", size="intermediate_size", routing=routing)
    layers = ((rms_layer(hidden, mixer, routed), f.num_layers()),)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def qwen2_moe(config: Config) -> Architecture:
    """Return Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the routed ones."""
    f = Figures(config, QWEN2_MOE)
    hidden, of = f.size("hidden_size"), heads(f)
    slides = f.flag("use_sliding_window")
    up_to = f.count("max_window_layers") if slides else 0
    attends = f.layer_kinds(lambda i: SLIDING if (i + 1) % 2 and i < up_to else FULL, (FULL, SLIDING))
    window = window_below(f.optional("sliding_window", least=0), f.optional("max_position_embeddings"))

    def build(kind: tuple[str, bool]) -> Layer:
        sees = window if kind[0] == SLIDING and slides else None
        mixer = attention(hidden, of, bias=f.flag("qkv_bias"), window=sees)
        return rms_layer(hidden, mixer, qwen_feedforward(f, kind[1], shared=True))

    layers = stack(zip(attends, sparse_layers(f), strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def qwen3_moe(config: Config) -> Architecture:
    """Return Qwen3-MoE: norms on the heads, no shared expert."""
    return qwen3_moe_of(Figures(config, QWEN3_MOE, LOCAL_QWEN))


def qwen3_moe_of(f: Figures, *, tied: bool | None = None, other: tuple[Tensor, ...] = ()) -> Architecture:
    """Return the Qwen3-MoE of these figures, `other` tensors outside it."""
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    window = f.optional("sliding_window") if f.flag("use_sliding_window") else None
    mixer = attention(
        hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]),
        window=window_below(window, f.optional("max_position_embeddings")),
    )  # fmt: skip

    def build(sparse: bool) -> Layer:
        return rms_layer(hidden, mixer, qwen_feedforward(f, sparse, shared=False))

    layers = stack(sparse_layers(f), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden), tied=tied, other=other)


def olmoe(config: Config) -> Architecture:
    """Return OLMoE: 64 small experts, norms on all queries and all keys at once."""
    f = Figures(config, OLMOE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    clipped = f.raw("clip_qkv") is not None
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=full_norms(of), clipped=clipped)
    routing = Routing(normalised=f.flag("norm_topk_prob"))
    routed = experts(f, size="intermediate_size", routing=routing)
    block = rms_layer(hidden, mixer, routed)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


@numerics(scaled_logits=True, own_loss=True)
def granitemoe(config: Config) -> Architecture:
    """Return Granite 3 MoE (and PowerMoE): Granite with routed experts."""
    f = Figures(config, GRANITEMOE)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    routed = experts(
        f,
        num="num_local_experts",
        size="intermediate_size",
        router_name="router",
        routing=Routing("top_softmax"),
    )
    block = rms_layer(hidden, attention(hidden, heads(f), bias=bias, out_bias=bias), routed)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))


def phimoe(config: Config) -> Architecture:
    """Return Phi-3.5-MoE: LayerNorms, biases in attention and head by flag."""
    f = Figures(config, PHIMOE)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias, window=window)
    routed = experts(
        f,
        num="num_local_experts",
        size="intermediate_size",
        router_name="router",
        routing=Routing("sparsemixer"),
    )
    norms = [layer_norm("input_layernorm", hidden), layer_norm("post_attention_layernorm", hidden)]
    layers = ((pre_norm_layer([mixer, routed], norms), f.num_layers()),)
    final = layer_norm("norm", hidden)
    return language_model(f, layers, final_norm=final, head_bias=f.flag("lm_head_bias"))


@numerics(wide_norms=True, sinks="column")
def gpt_oss(config: Config) -> Architecture:
    """Return gpt-oss: every other layer slides, sinks in attention, biases in router and experts."""
    f = Figures(config, GPT_OSS)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    sinks = (Tensor("sinks", (of[0],), "state"),)
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    routed = experts(
        f,
        num="num_local_experts",
        size="intermediate_size",
        bias=True,
        router_bias=True,
        router_name="router",
        routing=Routing("top_softmax", wide_scores=False),
    )._replace(activation="clamped_swiglu", transposed=True)

    def build(kind: str) -> Layer:
        sees = window if kind == SLIDING else None
        mixer: Attention = attention(hidden, of, bias=bias, out_bias=bias, window=sees, extra=sinks)
        return rms_layer(hidden, mixer, routed)

    kinds = f.layer_kinds(lambda index: FULL if index % 2 else SLIDING, (FULL, SLIDING))
    return language_model(f, stack(kinds, build), final_norm=Norm("norm", hidden))


def minimax_m2(config: Config) -> Architecture:
    """Return MiniMax-M2: 256 experts, norms on all queries and all keys at once."""
    f = Figures(config, MINIMAX_M2)
    hidden, of = f.size("hidden_size"), heads(f)
    mixer = attention(hidden, of, qk_norms=full_norms(of))
    routing = Routing("sigmoid", normalised=True, wide_weights=True)
    routed = experts(f, num="num_local_experts", size="intermediate_size", routing=routing)
    block = rms_layer(hidden, mixer, routed)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm("norm", hidden))
