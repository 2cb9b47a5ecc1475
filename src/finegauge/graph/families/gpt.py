"""GPT-2 and its likeness: LayerNorm with bias, biased projections, plain feed-forward.

Defaults are those of the transformers 5.23 classes.
"""

from finegauge.graph.blocks import Architecture, Branch, Linear, Mixer, Tensor
from finegauge.graph.families.parts import (
    Heads,
    attention,
    heads,
    language_model,
    layer,
    layer_norm,
    plain_mlp,
    pre_norm_layer,
)
from finegauge.graph.families.reading import Config, Figures

N_KEYS = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip
GPT2 = {
    "vocab_size": 50257, "max_position_embeddings": 1024, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "activation_function": "gelu_new", "add_cross_attention": False,
    "tie_word_embeddings": True,
}  # fmt: skip
GPT_BIGCODE = {**GPT2, "activation_function": "gelu_pytorch_tanh", "multi_query": True}
OPT = {
    "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
    "max_position_embeddings": 2048, "do_layer_norm_before": True, "num_attention_heads": 12,
    "activation_function": "relu", "enable_bias": True, "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}  # fmt: skip


def gpt2(config: Config) -> Architecture:
    """Return GPT-2: learned positions, one c_attn for q, k and v."""
    f = Figures(config, GPT2, N_KEYS)
    return _gpt2_like(f, heads(f))


def gpt_bigcode(config: Config) -> Architecture:
    """Return SantaCoder and StarCoder 1: GPT-2 with one key and value head for all queries."""
    f = Figures(config, GPT_BIGCODE, N_KEYS)
    num, _, dim = heads(f)
    return _gpt2_like(f, (num, 1 if f.flag("multi_query") else num, dim))


def _gpt2_like(f: Figures, of: Heads) -> Architecture:
    if f.flag("add_cross_attention"):
        raise f.unsupported("cross-attention (add_cross_attention=true)")
    hidden, inner = f.size("hidden_size"), f.optional("n_inner") or 4 * f.size("hidden_size")
    mixer = attention(hidden, of, bias=True, out_bias=True, fused="c_attn", out="c_proj", rotary=False)
    mlp = plain_mlp(hidden, inner, f.text("activation_function"), names=("c_fc", "c_proj"))
    block = pre_norm_layer([mixer, mlp], [layer_norm("ln_1", hidden), layer_norm("ln_2", hidden)])
    positions = Tensor("wpe.weight", (f.size("max_position_embeddings"), hidden), "embedding")
    return language_model(
        f,
        ((block, f.num_layers()),),
        final_norm=layer_norm("ln_f", hidden),
        embed="wte",
        embeddings=(positions,),
    )


def opt(config: Config) -> Architecture:
    """Return OPT: learned positions (2 more than it says), embeddings that may be narrower."""
    f = Figures(config, OPT)
    hidden, vocab, bias = f.size("hidden_size"), f.size("vocab_size"), f.flag("enable_bias")
    affine, before = f.flag("layer_norm_elementwise_affine"), f.flag("do_layer_norm_before")
    width = f.optional("word_embed_proj_dim") or hidden
    mixer = attention(hidden, heads(f, dim="", kv=""), bias=bias, out_bias=bias, out="out_proj", rotary=False)
    mlp = plain_mlp(hidden, f.size("ffn_dim"), f.text("activation_function"), bias=bias)
    mixers: tuple[Mixer, Mixer] = (mixer, mlp)
    norms = [
        layer_norm(name, hidden, weight=affine, bias=affine)
        for name in ("self_attn_layer_norm", "final_layer_norm")
    ]
    block = layer(
        *(
            Branch(mixer=m, norm_before=n) if before else Branch(mixer=m, norm_after=n)
            for m, n in zip(mixers, norms, strict=True)
        )
    )
    outer = [
        Tensor("embed_tokens.weight", (vocab, width), "embedding"),
        Tensor("embed_positions.weight", (f.size("max_position_embeddings") + 2, hidden), "embedding"),
    ]
    if width != hidden:
        outer += [
            Tensor("project_in.weight", (hidden, width), "linear"),
            Tensor("project_out.weight", (width, hidden), "linear"),
        ]
    has_final = before and not f.flag("_remove_final_layer_norm")
    return Architecture(
        model_type=f.model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=((block, f.num_layers()),),
        embeddings=tuple(outer),
        final_norm=layer_norm("final_layer_norm", hidden, weight=affine, bias=affine) if has_final else None,
        head=None if f.flag("tie_word_embeddings") else Linear("lm_head", width, vocab),
        max_position_embeddings=f.size("max_position_embeddings"),
    )
