"""Llama and its likeness: RMS norm, grouped-query attention, gated feed-forward, twice residual.

Also the families that put the norms after the branches (OLMo-2, OLMo-3, EXAONE 4).
Defaults are those of the transformers 5.23 classes.
"""

from collections.abc import Callable
from typing import Any

from finegauge.model.blocks import Architecture, Attention, FeedForward, Layer, MixtureOfExperts, Norm
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
    window_below,
)
from finegauge.model.families.reading import Config, Figures

FULL, SLIDING = "full_attention", "sliding_attention"

LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL = {
    **LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "sliding_window": 4096,
}  # fmt: skip
QWEN2 = {
    **LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096,
    "max_window_layers": 28,
}  # fmt: skip
QWEN3 = {**QWEN2, "head_dim": 128}
MINISTRAL3 = {
    **MISTRAL, "vocab_size": 131072, "num_hidden_layers": 34, "head_dim": 128,
    "max_position_embeddings": 262144, "sliding_window": None,
}  # fmt: skip
PHI3 = {
    **LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "sliding_window": None,
}  # fmt: skip
OLMO2 = {**LLAMA, "vocab_size": 50304}
OLMO3 = {**OLMO2, "sliding_window": 4096}
EXAONE4 = {
    **LLAMA, "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
    "sliding_window": 4096, "sliding_window_pattern": 4,
}  # fmt: skip


def dense(f: Figures, *, fused_mlp: str = "", **style: Any) -> Architecture:
    """Return a model of equal layers: attention in the given `style` and a gated feed-forward.

    Args:
        f: The figures under Llama's keys.
        fused_mlp: Name of the projection that holds gate and up; "" for two.
        style: What `parts.attention` takes besides sizes.
    """
    hidden = f.size("hidden_size")
    mixer = attention(hidden, heads(f), **style)
    mlp = gated_mlp(
        hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"), fused=fused_mlp
    )
    return language_model(
        f, ((rms_layer(hidden, mixer, mlp), f.num_layers()),), final_norm=Norm("norm", hidden)
    )


def window_of(f: Figures, kind: str) -> int | None:
    """Return the window of a layer of this kind, None where it attends to all before it."""
    if kind != SLIDING:
        return None
    return window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))


def windowed(
    f: Figures,
    kinds: list[str],
    build_attention: Callable[[int | None], Attention],
    mlp: FeedForward,
    build_layer: Callable[[Attention, FeedForward], Layer] | None = None,
) -> tuple[tuple[Layer, int], ...]:
    """Return the layers of a model in which some attend to a sliding window and others to all."""
    hidden = f.size("hidden_size")

    def build(kind: str) -> Layer:
        mixer = build_attention(window_of(f, kind))
        return build_layer(mixer, mlp) if build_layer else rms_layer(hidden, mixer, mlp)

    return stack(kinds, build)


def llama(config: Config) -> Architecture:
    """Return Llama 1 to 3, Yi, SmolLM and Granite: one bias flag for all four projections."""
    f = Figures(config, LLAMA)
    bias = f.flag("attention_bias")
    return dense(f, bias=bias, out_bias=bias)


@numerics(scaled_logits=True, own_loss=True)
def granite(config: Config) -> Architecture:
    """Return Granite 3: Llama, with multipliers on embeddings, residuals, scores and logits."""
    return llama(config)


def mistral(config: Config) -> Architecture:
    """Return Mistral: no biases, every layer with the sliding window if there is one."""
    return _all_windowed(Figures({**config, "mlp_bias": False}, MISTRAL))


def ministral3(config: Config) -> Architecture:
    """Return Ministral 3 and Devstral 2: Mistral with heads of 128 channels, no window."""
    return _all_windowed(Figures({**config, "mlp_bias": False}, MINISTRAL3))


def phi3(config: Config) -> Architecture:
    """Return Phi-3, Phi-3.5 and Phi-4: q, k, v in one projection, gate and up in another."""
    f = Figures({**config, "mlp_bias": False}, PHI3)
    return _all_windowed(f, fused="qkv_proj", fused_mlp="gate_up_proj")


def _all_windowed(f: Figures, **style: Any) -> Architecture:
    """Return equal layers that all slide, if there is a window."""
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    return dense(f, window=window, **style)


def qwen2_kinds(f: Figures) -> list[str]:
    """Return which layers slide: from `max_window_layers` on, where `use_sliding_window` says so."""
    from_layer = f.count("max_window_layers") if f.flag("use_sliding_window") else f.num_layers()
    kinds = f.layer_kinds(lambda index: SLIDING if index >= from_layer else FULL, (FULL, SLIDING))
    return kinds if f.flag("use_sliding_window") else [FULL] * len(kinds)


def qwen2(config: Config) -> Architecture:
    """Return Qwen1.5, Qwen2 and Qwen2.5: biases on q, k and v."""
    f = Figures(config, QWEN2)
    hidden, of = f.size("hidden_size"), heads(f)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    layers = windowed(f, qwen2_kinds(f), lambda window: attention(hidden, of, bias=True, window=window), mlp)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def qwen3(config: Config) -> Architecture:
    """Return Qwen3: norms on the heads of queries and keys."""
    f = Figures(config, QWEN3)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]), window=window)

    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    layers = windowed(f, qwen2_kinds(f), mixer, mlp)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def post_norm_layer(attended: Attention, mlp: FeedForward | MixtureOfExperts) -> Layer:
    """Return a layer whose norms stand after the branches, none before."""
    return framed_layer(
        attended.hidden_size,
        (attended, "", "post_attention_layernorm"),
        (mlp, "", "post_feedforward_layernorm"),
    )


@numerics(wide_norms=True, wide_tables=True)
def olmo2(config: Config) -> Architecture:
    """Return OLMo-2: norms after the branches, and on all queries and all keys at once."""
    f = Figures(config, OLMO2)
    return _olmo(f, [FULL] * f.num_layers())


@numerics(wide_norms=True, wide_tables=True, tables_by_kind=True)
def olmo3(config: Config) -> Architecture:
    """Return OLMo-3: OLMo-2, of which three layers in four slide."""
    f = Figures(config, OLMO3)
    return _olmo(f, f.layer_kinds(lambda index: SLIDING if (index + 1) % 4 else FULL, (FULL, SLIDING)))


def _olmo(f: Figures, kinds: list[str]) -> Architecture:
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, qk_norms=full_norms(of), window=window)

    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    return language_model(f, windowed(f, kinds, mixer, mlp, post_norm_layer), final_norm=Norm("norm", hidden))


def exaone4(config: Config) -> Architecture:
    """Return EXAONE 4: norms after the branches and on the heads; full layers have no rotary positions."""
    f = Figures(config, EXAONE4)
    hidden, of = f.size("hidden_size"), heads(f)
    pattern = f.raw("sliding_window_pattern") if f.raw("sliding_window") is not None else None
    every = (
        len(pattern) if isinstance(pattern, str) else (f.count("sliding_window_pattern") if pattern else 0)
    )

    def default(index: int) -> str:
        return SLIDING if every and (index + 1) % every else FULL

    def build(kind: str) -> Layer:
        rotary = f.raw("sliding_window") is None or kind == SLIDING
        mixer = attention(hidden, of, qk_norms=head_norms(of[2]), window=window_of(f, kind), rotary=rotary)
        return post_norm_layer(mixer, mlp)

    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    layers = stack(f.layer_kinds(default, (FULL, SLIDING)), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))
