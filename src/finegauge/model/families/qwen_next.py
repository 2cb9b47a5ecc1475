"""Qwen3-Next and Qwen3.5: three gated-delta-rule layers to one of gated attention.

The recurrent layers keep a matrix per value head, updated by the gated delta rule
(arXiv:2412.06464) in chunks of 64 tokens. Defaults are those of the transformers 5.23 classes.
"""

from finegauge.model.blocks import Architecture, Layer, Linear, LinearAttention, Mixer, Norm, Tensor
from finegauge.model.families.llama import FULL
from finegauge.model.families.moe import qwen_feedforward, sparse_layers
from finegauge.model.families.parts import (
    attention,
    divided,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    numerics,
    rms_layer,
    stack,
)
from finegauge.model.families.reading import Config, Figures

RECURRENT = "linear_attention"
CHUNK_TOKENS = 64  # transformers' and flash-linear-attention's chunk of the delta rule

QWEN3_NEXT = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_act": "silu",
    "max_position_embeddings": 32768, "attention_bias": False, "head_dim": 256, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
    "full_attention_interval": 4, "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_5 = {
    **QWEN3_NEXT, "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 32, "num_key_value_heads": 4,
}  # fmt: skip
QWEN3_5_MOE = {
    **QWEN3_NEXT, "vocab_size": 248320, "num_hidden_layers": 40, "num_experts_per_tok": 8,
    "num_experts": 256,
}  # fmt: skip


@numerics(wide_norms=True, unit_norms=True)
def qwen3_next(config: Config) -> Architecture:
    """Return Qwen3-Next: 512 experts, one projection for q, k, v and gate of the recurrent layers."""
    f = Figures(config, QWEN3_NEXT)
    sparse = sparse_layers(f)

    def feed(routed: bool) -> Mixer:
        return qwen_feedforward(f, routed, shared=True)

    return _hybrid(
        f, _delta_rule(f, fused=True), [(kind, feed(s)) for kind, s in zip(_kinds(f), sparse, strict=True)]
    )


@numerics(wide_norms=True, unit_norms=True)
def qwen3_5_text(config: Config) -> Architecture:
    """Return the text decoder of a dense Qwen3.5."""
    return qwen3_5_of(Figures(config, QWEN3_5))


@numerics(wide_norms=True, unit_norms=True)
def qwen3_5_moe_text(config: Config) -> Architecture:
    """Return the text decoder of a Qwen3.5 with experts."""
    return qwen3_5_moe_of(Figures(config, QWEN3_5_MOE))


def qwen3_5_of(f: Figures, *, tied: bool | None = None, other: tuple[Tensor, ...] = ()) -> Architecture:
    """Return the dense Qwen3.5 of these figures, `other` tensors outside it."""
    mlp: Mixer = gated_mlp(f.size("hidden_size"), f.size("intermediate_size"), f.text("hidden_act"))
    return _hybrid(
        f, _delta_rule(f, fused=False), [(kind, mlp) for kind in _kinds(f)], tied=tied, other=other
    )


def qwen3_5_moe_of(f: Figures, *, tied: bool | None = None, other: tuple[Tensor, ...] = ()) -> Architecture:
    """Return the Qwen3.5 with experts of these figures: every layer routed, `other` tensors outside it."""
    feed = qwen_feedforward(f, True, shared=True)
    return _hybrid(
        f, _delta_rule(f, fused=False), [(kind, feed) for kind in _kinds(f)], tied=tied, other=other
    )


def _kinds(f: Figures) -> list[str]:
    every = f.size("full_attention_interval")
    return f.layer_kinds(lambda index: RECURRENT if (index + 1) % every else FULL, (FULL, RECURRENT))


def _hybrid(
    f: Figures,
    delta: LinearAttention,
    kinds: list[tuple[str, Mixer]],
    *,
    tied: bool | None = None,
    other: tuple[Tensor, ...] = (),
) -> Architecture:
    """Return the model of layers given by (kind of mixer, feed-forward)."""
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms = head_norms(of[2])
    full = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=norms, output_gate=True)

    def build(kind: tuple[str, Mixer]) -> Layer:
        mixer: Mixer = full if kind[0] == FULL else delta
        return rms_layer(hidden, mixer, kind[1])

    return language_model(f, stack(kinds, build), final_norm=Norm("norm", hidden), tied=tied, other=other)


def _delta_rule(f: Figures, *, fused: bool) -> LinearAttention:
    """Return the gated delta rule; `fused` has q, k, v and output gate in one projection."""
    hidden, kernel = f.size("hidden_size"), f.size("linear_conv_kernel_dim")
    num_keys, num_values = f.size("linear_num_key_heads"), f.size("linear_num_value_heads")
    key_dim, value_dim = f.size("linear_key_head_dim"), f.size("linear_value_head_dim")
    divided(f, "linear_num_value_heads", num_values, "linear_num_key_heads", num_keys)
    keys, values = num_keys * key_dim, num_values * value_dim
    channels = 2 * keys + values
    if fused:
        inputs = [
            Linear("in_proj_qkvz", hidden, channels + values),
            Linear("in_proj_ba", hidden, 2 * num_values),
        ]
    else:
        inputs = [Linear("in_proj_qkv", hidden, channels), Linear("in_proj_z", hidden, values)]
        inputs += [Linear(name, hidden, num_values) for name in ("in_proj_b", "in_proj_a")]
    return LinearAttention(
        hidden_size=hidden,
        num_heads=num_values,
        key_head_dim=key_dim,
        value_head_dim=value_dim,
        conv_size=channels,
        conv_kernel=kernel,
        chunk_size=CHUNK_TOKENS,
        projections=(*inputs, Linear("out_proj", values, hidden)),
        extra=(
            Tensor("conv1d.weight", (channels, 1, kernel), "conv"),
            Tensor("dt_bias", (num_values,), "state"),
            Tensor("A_log", (num_values,), "state"),
        ),
        norms=(Norm("norm", value_dim),),
    )
