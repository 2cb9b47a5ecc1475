"""Families of Llama's shapes whose files have keys, tensors or biases of their own.

Their code lives in their own repositories; keys and defaults are those of the
configuration classes there. Counts agree with Llama-shaped or closed-form references.
"""

from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, FeedForward, Layer, Mixer, Norm
from finegauge.model.families.llama import LLAMA
from finegauge.model.families.parts import (
    LLAMA_MLP,
    attention,
    divided,
    gated_mlp,
    heads,
    language_model,
    layer_norm,
    pre_norm_layer,
    rms_layer,
    stack,
)
from finegauge.model.families.reading import Config, Figures

QWEN = {
    **LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "kv_channels": 128, "seq_length": 8192,
    "no_bias": True,
}  # fmt: skip
CHATGLM = {
    "vocab_size": 65024, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 28,
    "num_attention_heads": 32, "head_dim": 128, "max_position_embeddings": 2048, "rmsnorm": True,
    "add_qkv_bias": False, "add_bias_linear": False, "multi_query_attention": False,
    "num_key_value_heads": 1, "post_layer_norm": True, "tie_word_embeddings": False,
}  # fmt: skip
CHATGLM_KEYS = {
    "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers", "head_dim": "kv_channels", "max_position_embeddings": "seq_length",
    "num_key_value_heads": "multi_query_group_num",
}  # fmt: skip
BAICHUAN = {**LLAMA, "vocab_size": 125696, "max_position_embeddings": None}
INTERNLM = {**LLAMA, "vocab_size": 103168, "bias": True}
INTERNLM2 = {**INTERNLM, "bias": False}
MINICPM = {**LLAMA, "tie_word_embeddings": True}
EXAONE = {**LLAMA, "vocab_size": 102400, "intermediate_size": 16384}
EXAONE_KEYS = {"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}
ORION = {**LLAMA, "vocab_size": 84608, "intermediate_size": 15360}
MIMO = {**LLAMA, "vocab_size": 151680, "num_key_value_heads": 8, "attention_bias": True}
PHI3SMALL = {
    "vocab_size": 100352, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "ff_intermediate_size": 14336, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip


def _decoder(
    f: Figures,
    mlp: FeedForward,
    *,
    norms: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    final: str = "norm",
    embed: str = "embed_tokens",
    **style: Any,
) -> Architecture:
    """Return equal layers of attention in the given `style` and `mlp`, an RMS norm before each."""
    hidden = f.size("hidden_size")
    block = rms_layer(hidden, attention(hidden, heads(f), **style), mlp, names=norms)
    return language_model(f, ((block, f.num_layers()),), final_norm=Norm(final, hidden), embed=embed)


def _mlp(
    f: Figures, *, bias: bool = False, names: tuple[str, str, str] = LLAMA_MLP, fused: str = ""
) -> FeedForward:
    act = str(f.raw("hidden_act") or "silu")
    return gated_mlp(
        f.size("hidden_size"), f.size("intermediate_size"), act, bias=bias, names=names, fused=fused
    )


def qwen(config: Config) -> Architecture:
    """Return Qwen v1: one biased c_attn, and gate and up each half of `intermediate_size`."""
    f = Figures(config, QWEN)
    if not f.flag("no_bias"):
        raise f.unsupported("a Qwen v1 with no_bias=false")
    hidden, channels, num_heads = f.size("hidden_size"), f.size("kv_channels"), f.size("num_attention_heads")
    size = divided(
        f, "intermediate_size", f.size("intermediate_size"), "the two halves of its feed-forward", 2
    )
    mixer = attention(hidden, (num_heads, num_heads, channels), bias=True, fused="c_attn", out="c_proj")
    mlp = gated_mlp(hidden, size, names=("w2", "w1", "c_proj"))
    block = rms_layer(hidden, mixer, mlp, names=("ln_1", "ln_2"))
    layers = ((block, f.num_layers()),)
    return language_model(f, layers, final_norm=Norm("ln_f", hidden), embed="wte", positions="seq_length")


def chatglm(config: Config) -> Architecture:
    """Return ChatGLM2, ChatGLM3 and GLM-4-9B: fused query_key_value with biases, fused gate and up."""
    f = Figures(config, CHATGLM, CHATGLM_KEYS)
    if not f.flag("rmsnorm") or not f.flag("post_layer_norm"):
        raise f.unsupported("a ChatGLM without RMS norms or without a final norm")
    hidden, bias = f.size("hidden_size"), f.flag("add_bias_linear")
    mlp = _mlp(f, bias=bias, names=("", "", "dense_4h_to_h"), fused="dense_h_to_4h")
    mixer = attention(
        hidden,
        heads(f, kv="num_key_value_heads" if f.flag("multi_query_attention") else ""),
        bias=bias or f.flag("add_qkv_bias"),
        out_bias=bias,
        fused="query_key_value",
        out="dense",
    )
    layers = ((rms_layer(hidden, mixer, mlp), f.num_layers()),)
    final = Norm("final_layernorm", hidden)
    return language_model(f, layers, final_norm=final, embed="word_embeddings", head="output_layer")


def baichuan(config: Config) -> Architecture:
    """Return Baichuan 1 and 2: one W_pack for q, k, v; the 13B has ALiBi and names no longest position."""
    f = Figures(config, BAICHUAN, {"max_position_embeddings": "model_max_length"})
    rotary = "max_position_embeddings" in config
    return _decoder(f, _mlp(f), fused="W_pack", rotary=rotary)


def internlm(config: Config) -> Architecture:
    """Return InternLM 1: Llama with biases on all four projections of attention."""
    f = Figures(config, INTERNLM)
    return _decoder(f, _mlp(f), bias=f.flag("bias"), out_bias=f.flag("bias"))


def internlm2(config: Config) -> Architecture:
    """Return InternLM 2 and 2.5: one wqkv, and w1, w3, w2 for gate, up, down."""
    f = Figures(config, INTERNLM2)
    return _decoder(
        f,
        _mlp(f, names=("w1", "w3", "w2")),
        norms=("attention_norm", "ffn_norm"),
        embed="tok_embeddings",
        bias=f.flag("bias"),
        out_bias=f.flag("bias"),
        fused="wqkv",
        out="wo",
    )


def minicpm(config: Config) -> Architecture:
    """Return MiniCPM 1, 2 and 4: Llama, embedding and head tied unless the file says otherwise."""
    f = Figures(config, MINICPM)
    bias = f.flag("attention_bias")
    return _decoder(f, _mlp(f), bias=bias, out_bias=bias)


def exaone(config: Config) -> Architecture:
    """Return EXAONE 3 and 3.5: Llama under GPT-2's names."""
    f = Figures(config, EXAONE, EXAONE_KEYS)
    mlp = _mlp(f, names=("c_fc_0", "c_fc_1", "c_proj"))
    return _decoder(f, mlp, norms=("ln_1", "ln_2"), final="ln_f", embed="wte", out="out_proj")


def xverse(config: Config) -> Architecture:
    """Return XVERSE: Llama, without grouped queries."""
    f = Figures(config, LLAMA)
    return _decoder(f, _mlp(f))


def orion(config: Config) -> Architecture:
    """Return Orion: Llama with LayerNorms that have biases."""
    f = Figures(config, ORION)
    hidden = f.size("hidden_size")
    norms = [layer_norm("input_layernorm", hidden), layer_norm("post_attention_layernorm", hidden)]
    block: Layer = pre_norm_layer([attention(hidden, heads(f)), _mlp(f)], norms)
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden))


def mimo(config: Config) -> Architecture:
    """Return MiMo-7B: Qwen2's layers, without the layers that predict further tokens."""
    f = Figures(config, MIMO)
    return _decoder(f, _mlp(f), bias=f.flag("attention_bias"))


def phi3small(config: Config) -> Architecture:
    """Return Phi-3-small: biases and LayerNorms everywhere, tied head, GEGLU."""
    f = Figures(config, PHI3SMALL)
    hidden, size = f.size("hidden_size"), f.size("ff_intermediate_size")
    mixer = attention(hidden, heads(f), bias=True, out_bias=True, fused="query_key_value", out="dense")
    mlp = gated_mlp(hidden, size, "gegelu", bias=True, names=("", "", "down_proj"), fused="up_proj")
    norms = [layer_norm("input_layernorm", hidden), layer_norm("post_attention_layernorm", hidden)]
    layers = ((pre_norm_layer([mixer, mlp], norms), f.num_layers()),)
    note = "Block-sparse attention is counted as if every query saw all keys before it."
    return language_model(f, layers, final_norm=layer_norm("final_layernorm", hidden), notes=(note,))


def nemotron_nas(config: Config) -> Architecture:
    """Return Llama-Nemotron Super and Ultra: Llama whose layers a search pruned, each in its own way."""
    f = Figures(config, LLAMA)
    blocks = f.items("block_configs")
    if blocks is None or len(blocks) != f.num_layers():
        raise FieldError(f"block_configs must list one block for each of {f.num_layers()} layers.")
    kinds = [_nas_kind(f, block) for block in blocks]
    layers = stack(kinds, lambda kind: _nas_layer(f, *kind))
    return language_model(f, layers, final_norm=Norm("norm", f.size("hidden_size")))


def _nas_kind(f: Figures, block: object) -> tuple[int, float]:
    """Return (query heads per key head, multiple of the width) of one block, 0 for a part it lacks."""
    parts = [block.get(part) if isinstance(block, dict) else None for part in ("attention", "ffn")]
    if not all(isinstance(part, dict) for part in parts):
        raise FieldError(f"block_configs has {shown(block)}, without attention and ffn.")
    attends, feed = (Figures(part or {}, {}) for part in parts)
    if attends.flag("replace_with_linear") or feed.flag("replace_with_linear"):
        raise f.unsupported("a block replaced by one linear projection")
    if attends.raw("window_length") is not None or attends.raw("num_sink_tokens") is not None:
        raise f.unsupported("a block with a window or sink tokens")
    group = 0 if attends.flag("no_op") else attends.size("n_heads_in_group")
    return group, 0.0 if feed.flag("no_op") else feed.ratio("ffn_mult")


def _nas_layer(f: Figures, group: int, multiple: float) -> Layer:
    """Return a layer of what a block keeps; the feed-forward's width is a multiple of 256."""
    hidden, (num, _, dim), bias = f.size("hidden_size"), heads(f, kv=""), f.flag("attention_bias")
    mixers: list[Mixer] = []
    norms: list[Norm | None] = []
    if group:
        kv = divided(f, "num_attention_heads", num, "n_heads_in_group", group)
        mixers.append(attention(hidden, (num, kv, dim), bias=bias, out_bias=bias))
        norms.append(Norm("input_layernorm", hidden))
    if multiple:
        size = -(-int(2 * multiple * hidden / 3) // 256) * 256
        mixers.append(gated_mlp(hidden, size, f.text("hidden_act"), bias=f.flag("mlp_bias")))
        norms.append(Norm("post_attention_layernorm", hidden))
    return pre_norm_layer(mixers, norms)
