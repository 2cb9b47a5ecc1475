"""Gemma 1 to 3: wide feed-forwards, tied and scaled embeddings, norms on both sides of a branch.

Defaults are those of the transformers 5.23 classes.
"""

from finegauge.model.blocks import Architecture, Attention, FeedForward, Layer, Norm, Tensor
from finegauge.model.families.llama import FULL, SLIDING, dense, windowed
from finegauge.model.families.parts import (
    attention,
    framed_layer,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    numerics,
)
from finegauge.model.families.reading import Config, Figures

GEMMA = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
GEMMA2 = {
    **GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
GEMMA3_TEXT = {
    **GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
    "use_bidirectional_attention": False,
}  # fmt: skip


def sandwich(attended: Attention, mlp: FeedForward) -> Layer:
    """Return a layer with an RMS norm before and after each of its two branches."""
    return framed_layer(
        attended.hidden_size,
        (attended, "input_layernorm", "post_attention_layernorm"),
        (mlp, "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    )


@numerics(wide_norms=True, unit_norms=True)
def gemma(config: Config) -> Architecture:
    """Return Gemma 1: Llama with heads of 256 channels and a GeGLU."""
    f = Figures({**config, "mlp_bias": False}, GEMMA)
    bias = f.flag("attention_bias")
    return dense(f, bias=bias, out_bias=bias)


@numerics(
    wide_norms=True,
    unit_norms=True,
    own_loss=True,
    softcap="attn_logit_softcapping",
    logit_cap="final_logit_softcapping",
    kernels=("flash",),
)
def gemma2(config: Config) -> Architecture:
    """Return Gemma 2: every other layer slides, beginning with the first."""
    f = Figures(config, GEMMA2)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_activation"))
    kinds = f.layer_kinds(lambda index: FULL if index % 2 else SLIDING, (FULL, SLIDING))

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, window=window)

    layers = windowed(f, kinds, mixer, mlp, sandwich)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


@numerics(wide_norms=True, unit_norms=True, tables_by_kind=True)
def gemma3_text(config: Config) -> Architecture:
    """Return the text decoder of Gemma 3."""
    return gemma3_of(Figures(config, GEMMA3_TEXT))


def gemma3_of(f: Figures, *, tied: bool | None = None, other: tuple[Tensor, ...] = ()) -> Architecture:
    """Return the Gemma 3 of these figures: five layers in six slide, norms on the heads."""
    if f.flag("use_bidirectional_attention"):
        raise f.unsupported("bidirectional attention")
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_activation"))
    every = f.size("sliding_window_pattern")
    kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % every else FULL, (FULL, SLIDING))

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]), window=window)

    layers = windowed(f, kinds, mixer, mlp, sandwich)
    return language_model(f, layers, final_norm=Norm("norm", hidden), tied=tied, other=other)
