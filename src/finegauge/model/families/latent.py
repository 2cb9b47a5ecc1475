"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, A.X K1, MiniCPM3, Youtu.

Queries and keys pass through low-rank projections; of the cache only the key-value
latent and one rotary key are kept (DeepSeek-V2, arXiv:2405.04434). Defaults are those of
the transformers 5.23 classes.
"""

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, LatentAttention, Layer, Linear, Norm, Routing, Tensor
from finegauge.model.families.moe_shared import deepseek_feedforward, routed_from
from finegauge.model.families.parts import (
    framed_layer,
    gated_mlp,
    language_model,
    layer_norm,
    rms_layer,
    stack,
)
from finegauge.model.families.reading import Config, Figures

DEEPSEEK_V2 = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
    "attention_bias": False, "mlp_bias": False, "first_k_dense_replace": 0, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 1407, "topk_method": "greedy",
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1,
    "norm_topk_prob": True, "n_routed_experts": 256,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "hidden_act": "silu",
    "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V32 = {
    **DEEPSEEK_V3, "max_position_embeddings": 163840, "index_head_dim": 128, "index_n_heads": 64,
}  # fmt: skip
GLM_MOE_DSA = {
    **DEEPSEEK_V32, "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
    "num_hidden_layers": 78, "num_attention_heads": 64, "q_lora_rank": 2048, "v_head_dim": 256,
    "qk_nope_head_dim": 192, "max_position_embeddings": 202752,
    "index_n_heads": 32,
}  # fmt: skip
MINICPM3 = {
    "vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers": 62,
    "num_attention_heads": 40, "hidden_act": "silu", "max_position_embeddings": 32768, "kv_lora_rank": 256,
    "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
GLM4_MOE_LITE = {
    **DEEPSEEK_V3, "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
    "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
    "n_routed_experts": 64, "q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192,
    "num_experts_per_tok": 4, "first_k_dense_replace": 1,
    "max_position_embeddings": 202752,
}  # fmt: skip
AXK1 = {
    **DEEPSEEK_V3, "vocab_size": 163840, "num_attention_heads": 64, "n_routed_experts": 192,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "max_position_embeddings": 32768,
}  # fmt: skip
YOUTU = {
    **MINICPM3, "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 32, "num_attention_heads": 16, "max_position_embeddings": 131072,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip
LOCAL = {"n_routed_experts": "num_local_experts"}
INDEXER_NOTE = "The indexer that picks keys is counted and held; attention is timed as if it read all keys."


def latent_attention(
    f: Figures, *, v_head_dim: int | None = None, extra: tuple[Tensor, ...] = ()
) -> LatentAttention:
    """Return the latent attention of these figures; `q_lora_rank` null projects queries at once."""
    hidden, num, bias = f.size("hidden_size"), f.size("num_attention_heads"), f.flag("attention_bias")
    nope, rope, value = (
        f.size("qk_nope_head_dim"),
        f.size("qk_rope_head_dim"),
        v_head_dim or f.size("v_head_dim"),
    )
    q_rank, kv_rank = f.optional("q_lora_rank"), f.size("kv_lora_rank")
    queries, norms = [Linear("q_proj", hidden, num * (nope + rope))], [Norm("kv_a_layernorm", kv_rank)]
    if q_rank is not None:
        queries = [Linear("q_a_proj", hidden, q_rank, bias), Linear("q_b_proj", q_rank, num * (nope + rope))]
        norms.insert(0, Norm("q_a_layernorm", q_rank))
    return LatentAttention(
        hidden_size=hidden,
        num_heads=num,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        value_head_dim=value,
        projections=(
            *queries,
            Linear("kv_a_proj_with_mqa", hidden, kv_rank + rope, bias),
            Linear("kv_b_proj", kv_rank, num * (nope + value)),
            Linear("o_proj", num * value, hidden, bias),
        ),
        norms=tuple(norms),
        extra=extra,
    )


def indexer(f: Figures) -> tuple[Tensor, ...]:
    """Return the tensors that score keys for DeepSeek's sparse attention."""
    hidden, rank = f.size("hidden_size"), f.size("q_lora_rank")
    num, dim = f.size("index_n_heads"), f.size("index_head_dim")
    projections = (
        Linear("indexer.wq_b", rank, num * dim),
        Linear("indexer.wk", hidden, dim),
        Linear("indexer.weights_proj", hidden, num),
    )
    tensors = [tensor for projection in projections for tensor in projection.tensors()]
    return (*tensors, *layer_norm("indexer.k_norm", dim).tensors())


def deepseek_of(
    f: Figures,
    *,
    tied: bool | None = None,
    other: tuple[Tensor, ...] = (),
    routing: Routing | None = None,
) -> Architecture:
    """Return the DeepSeek V3 (or, with its `routing`, V2) of these figures, `other` tensors outside it."""
    hidden, mixer = f.size("hidden_size"), latent_attention(f)
    bias = f.flag("mlp_bias")

    def build(sparse: bool) -> Layer:
        return rms_layer(hidden, mixer, deepseek_feedforward(f, sparse, bias=bias, routing=routing))

    layers = stack(routed_from(f, key=""), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden), tied=tied, other=other)


def deepseek_v2(config: Config) -> Architecture:
    """Return DeepSeek-V2 and V2-Lite."""
    f = Figures(config, DEEPSEEK_V2)
    by_group = f.raw("topk_method") == "group_limited_greedy"
    return deepseek_of(f, routing=Routing(masked=by_group, wide_logits=True, wide_weights=True))


def deepseek_v3(config: Config) -> Architecture:
    """Return DeepSeek-V3, R1 and Kimi K2, without the layers that predict further tokens."""
    return deepseek_of(Figures({**config, "mlp_bias": False}, DEEPSEEK_V3, LOCAL))


def glm4_moe_lite(config: Config) -> Architecture:
    """Return GLM-4.7-Flash: DeepSeek-V3's layers, the first dense."""
    f = Figures(config, GLM4_MOE_LITE, LOCAL)
    hidden, mixer = f.size("hidden_size"), latent_attention(f)
    layers = stack(routed_from(f), lambda sparse: rms_layer(hidden, mixer, deepseek_feedforward(f, sparse)))
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def axk1(config: Config) -> Architecture:
    """Return A.X K1: DeepSeek-V3's layers, with a norm after the experts of those that route."""
    f = Figures(config, AXK1, LOCAL)
    hidden, mixer, every = f.size("hidden_size"), latent_attention(f), f.size("moe_layer_freq")

    def build(sparse: bool) -> Layer:
        after = "post_mlp_layernorm" if sparse else ""
        feed = deepseek_feedforward(f, sparse)
        return framed_layer(hidden, (mixer, "input_layernorm", ""), (feed, "post_attention_layernorm", after))

    routed = routed_from(f)
    if f.items("mlp_layer_types") is None:
        routed = [sparse and index % every == 0 for index, sparse in enumerate(routed)]
    return language_model(f, stack(routed, build), final_norm=Norm("norm", hidden))


def deepseek_v32(config: Config) -> Architecture:
    """Return DeepSeek-V3.2: V3 with an indexer in every layer."""
    f = Figures(config, DEEPSEEK_V32, LOCAL)
    return _indexed(f, [True] * f.num_layers())


def glm_moe_dsa(config: Config) -> Architecture:
    """Return GLM-5: DeepSeek-V3.2's shapes; some layers reuse the keys that an earlier one picked."""
    f = Figures(config, GLM_MOE_DSA, LOCAL)
    return _indexed(f, _indexes(f))


def _indexed(f: Figures, indexes: list[bool]) -> Architecture:
    hidden, with_indexer, without = (
        f.size("hidden_size"),
        latent_attention(f, extra=indexer(f)),
        latent_attention(f),
    )

    def build(kind: tuple[bool, bool]) -> Layer:
        sparse, picks = kind
        return rms_layer(hidden, with_indexer if picks else without, deepseek_feedforward(f, sparse))

    layers = stack(zip(routed_from(f), indexes, strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden), notes=(INDEXER_NOTE,))


def _indexes(f: Figures) -> list[bool]:
    """Return which layers have an indexer of their own, as the transformers class derives it."""
    num_layers, pattern = f.num_layers(), f.raw("index_topk_pattern")
    if f.items("indexer_types") is not None:
        return [
            kind == "full" for kind in f.layer_kinds(lambda _: "full", ("full", "shared"), "indexer_types")
        ]
    if pattern is None:
        every = max(f.count("index_topk_freq"), 1)
        offset = 2 if f.raw("index_skip_topk_offset") is None else f.count("index_skip_topk_offset")
        return [max(index - offset + 1, 0) % every == 0 for index in range(num_layers)]
    letters = {"F": True, "S": False, "full": True, "shared": False}
    if (
        not isinstance(pattern, (str, list))
        or len(pattern) != num_layers
        or any(p not in list(letters) for p in pattern)
    ):
        raise FieldError(
            f"index_topk_pattern={shown(pattern)} is not one of F and S for each of {num_layers} layers."
        )
    return [letters[letter] for letter in pattern]


def minicpm3(config: Config) -> Architecture:
    """Return MiniCPM3: latent attention over dense feed-forwards, tied head."""
    f = Figures(config, MINICPM3)
    f.model_type = "minicpm3"
    value = f.optional("v_head_dim") or f.size("hidden_size") // f.size("num_attention_heads")
    return _dense(f, latent_attention(f, v_head_dim=value))


def youtu(config: Config) -> Architecture:
    """Return Youtu-LLM: MiniCPM3's blocks at other sizes, no biases in the feed-forward."""
    f = Figures({**config, "mlp_bias": False}, YOUTU)
    return _dense(f, latent_attention(f))


def _dense(f: Figures, mixer: LatentAttention) -> Architecture:
    """Return equal layers of `mixer` and a gated feed-forward."""
    hidden = f.size("hidden_size")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"))
    layers = ((rms_layer(hidden, mixer, mlp), f.num_layers()),)
    return language_model(f, layers, final_norm=Norm("norm", hidden))
