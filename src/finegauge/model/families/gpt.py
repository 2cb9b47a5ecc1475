"""GPT-2 and its likeness: LayerNorm with bias, biased projections, plain feed-forward.

Defaults are those of the transformers 5.23 classes.
"""

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, Linear, Mixer, Tensor
from finegauge.model.families.parts import (
    Heads,
    attention,
    heads,
    language_model,
    layer,
    layer_norm,
    numerics,
    plain_mlp,
    pre_norm_layer,
    stack,
    window_below,
)
from finegauge.model.families.reading import Config, Figures

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

DROPOUT = {
    "attention": "resid_pdrop",
    "mlp": "resid_pdrop",
    "scores": "attn_pdrop",
    "embedding": "embd_pdrop",
}
BIO_DROPOUT = {
    "attention": "hidden_dropout_prob", "mlp": "hidden_dropout_prob",
    "scores": "attention_probs_dropout_prob", "embedding": "hidden_dropout_prob",
}  # fmt: skip
NEO_DROPOUT = {
    "attention": "resid_dropout", "mlp": "resid_dropout", "scores": "attention_dropout",
    "embedding": "embed_dropout",
}  # fmt: skip
OPENAI_GPT = {**GPT2, "vocab_size": 40478, "max_position_embeddings": 512, "afn": "gelu"}
GPT_NEO = {
    "vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24,
    "num_heads": 16, "window_size": 256, "activation_function": "gelu_new", "tie_word_embeddings": True,
}  # fmt: skip
BIOGPT = {
    "vocab_size": 42384, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "hidden_act": "gelu", "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}  # fmt: skip


@numerics(narrow_loss=True, narrow_softmax=True, holds_attention=True, dropout=DROPOUT, dropout_default=0.1)
def gpt2(config: Config) -> Architecture:
    """Return GPT-2: learned positions, one c_attn for q, k and v."""
    f = Figures(config, GPT2, N_KEYS)
    return _gpt2_like(f, heads(f))


@numerics(narrow_loss=True, hands_back_cache=True, dropout=DROPOUT, dropout_default=0.1)
def gpt_bigcode(config: Config) -> Architecture:
    """Return SantaCoder and StarCoder 1: GPT-2 with one key and value head for all queries."""
    f = Figures(config, GPT_BIGCODE, N_KEYS)
    num, _, dim = heads(f)
    decoder = _gpt2_like(f, (num, 1 if f.flag("multi_query") else num, dim))
    return decoder._replace(buffer_bytes=f.size("max_position_embeddings") ** 2)  # a mask, one byte a pair


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


@numerics(narrow_loss=True, dropout=dict.fromkeys(("attention", "mlp"), "dropout"), dropout_default=0.1)
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
    widening = Linear("project_in", width, hidden), Linear("project_out", hidden, width)
    has_final = before and not f.flag("_remove_final_layer_norm")
    return Architecture(
        model_type=f.model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=((block, f.num_layers()),),
        embeddings=tuple(outer),
        final_norm=layer_norm("final_layer_norm", hidden, weight=affine, bias=affine) if has_final else None,
        head=None if f.flag("tie_word_embeddings") else Linear("lm_head", width, vocab),
        widening=widening if width != hidden else (),
        max_position_embeddings=f.size("max_position_embeddings"),
    )


@numerics(narrow_softmax=True, kernels=(), dropout=DROPOUT, dropout_default=0.1)
def openai_gpt(config: Config) -> Architecture:
    """Return GPT-1: norms after the branches, learned positions, no final norm."""
    f = Figures(config, OPENAI_GPT, N_KEYS)
    hidden = f.size("hidden_size")
    of = heads(f, kv="", dim="")
    mixer = attention(hidden, of, bias=True, out_bias=True, fused="c_attn", out="c_proj", rotary=False)
    mlp = plain_mlp(hidden, 4 * hidden, f.text("afn"), names=("c_fc", "c_proj"))
    block = layer(
        Branch(mixer, norm_after=layer_norm("ln_1", hidden)),
        Branch(mlp, norm_after=layer_norm("ln_2", hidden)),
    )
    positions = Tensor("positions_embed.weight", (f.size("max_position_embeddings"), hidden), "embedding")
    layers = ((block, f.num_layers()),)
    return language_model(f, layers, final_norm=None, embed="tokens_embed", embeddings=(positions,))


@numerics(wide_scores=True, dropout=NEO_DROPOUT)
def gpt_neo(config: Config) -> Architecture:
    """Return GPT-Neo: GPT-2 with three projections, every other layer sliding."""
    f = Figures(config, GPT_NEO)
    hidden, of = f.size("hidden_size"), heads(f, num="num_heads", kv="", dim="")
    inner = f.optional("intermediate_size") or 4 * hidden
    mlp = plain_mlp(hidden, inner, f.text("activation_function"), names=("c_fc", "c_proj"))
    window = window_below(f.optional("window_size"), f.optional("max_position_embeddings"))

    def build(kind: str) -> Layer:
        sees = window if kind == "local" else None
        mixer = attention(hidden, of, out_bias=True, out="out_proj", rotary=False, window=sees)
        return pre_norm_layer([mixer, mlp], [layer_norm("ln_1", hidden), layer_norm("ln_2", hidden)])

    positions = Tensor("wpe.weight", (f.size("max_position_embeddings"), hidden), "embedding")
    decoder = language_model(
        f,
        stack(_neo_kinds(f), build),
        final_norm=layer_norm("ln_f", hidden),
        embed="wte",
        embeddings=(positions,),
    )
    masks = f.num_layers("num_layers") * f.size("max_position_embeddings") ** 2  # one byte for each pair
    return decoder._replace(buffer_bytes=masks)


def _neo_kinds(f: Figures) -> list[str]:
    """Return "global" or "local" per layer: `attention_types` is a list of (kinds, how often)."""
    listed = f.items("attention_types") or [[["global", "local"], f.num_layers("num_layers") // 2]]
    kinds: list[str] = []
    for entry in listed:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise FieldError(f"attention_types has {shown(entry)}; entries are [[kinds], how often].")
        kinds += [str(kind) for kind in entry[0]] * min(int(entry[1]), f.num_layers("num_layers"))
    if len(kinds) != f.num_layers("num_layers") or not set(kinds) <= {"global", "local"}:
        raise FieldError(
            f"attention_types describes {len(kinds)} layers, num_layers={f.num_layers('num_layers')}; "
            "give global or local for each."
        )
    return kinds


@numerics(narrow_softmax=True, dropout=BIO_DROPOUT, dropout_default=0.1)
def biogpt(config: Config) -> Architecture:
    """Return BioGPT: OPT's layers, learned positions (2 more than it says)."""
    f = Figures(config, BIOGPT)
    hidden = f.size("hidden_size")
    rows = f.size("max_position_embeddings") + 2
    positions = (Tensor("embed_positions.weight", (rows, hidden), "embedding"),)
    mlp = plain_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    of = heads(f, kv="", dim="")
    mixer = attention(hidden, of, bias=True, out_bias=True, out="out_proj", rotary=False)
    norms = [layer_norm("self_attn_layer_norm", hidden), layer_norm("final_layer_norm", hidden)]
    layers = ((pre_norm_layer([mixer, mlp], norms), f.num_layers()),)
    return language_model(f, layers, final_norm=layer_norm("layer_norm", hidden), embeddings=positions)
