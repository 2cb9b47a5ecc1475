"""Families whose attention and feed-forward read the same input: GPT-J, CodeGen, GPT-NeoX, Falcon, Phi.

Where both share one norm it stands on the first branch, and the second has none. Bloom,
MPT, Persimmon, StableLM and Nemotron, their sequential kin, stand here too. Defaults are those of
the transformers 5.23 classes.
"""

from finegauge.errors import FieldError
from finegauge.model.blocks import Architecture, Norm
from finegauge.model.families.gpt import DROPOUT, N_KEYS
from finegauge.model.families.parts import (
    attention,
    gated_mlp,
    heads,
    language_model,
    layer_norm,
    numerics,
    partly_rotary,
    plain_mlp,
    pre_norm_layer,
)
from finegauge.model.families.reading import Config, Figures

GPTJ = {
    "vocab_size": 50400, "max_position_embeddings": 2048, "hidden_size": 4096, "num_hidden_layers": 28,
    "num_attention_heads": 16, "activation_function": "gelu_new", "rotary_dim": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
GPT_NEOX = {
    "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "hidden_act": "gelu", "max_position_embeddings": 2048,
    "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False, "rotary_pct": 0.25,
}  # fmt: skip
BLOOM = {
    "vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    "tie_word_embeddings": True,
}  # fmt: skip
BLOOM_KEYS = {
    "hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
}  # fmt: skip
FALCON = {
    "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
    "bias": False, "max_position_embeddings": 2048, "activation": "gelu", "tie_word_embeddings": True,
}  # fmt: skip
PHI = {
    "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
    "num_attention_heads": 32, "hidden_act": "gelu_new", "max_position_embeddings": 2048,
    "qk_layernorm": False, "tie_word_embeddings": False,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
PERSIMMON = {
    "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 36,
    "num_attention_heads": 64, "hidden_act": "relu2", "max_position_embeddings": 16384,
    "qk_layernorm": True, "tie_word_embeddings": False, "partial_rotary_factor": 0.5,
}  # fmt: skip
STABLELM = {
    "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
    "max_position_embeddings": 4096, "use_qkv_bias": False, "qk_layernorm": False,
    "use_parallel_residual": False, "tie_word_embeddings": False,
    "partial_rotary_factor": 0.25,
}  # fmt: skip
NEMOTRON = {
    "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
    "num_attention_heads": 48, "hidden_act": "relu2", "max_position_embeddings": 4096,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
MPT = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24,
    "max_position_embeddings": 2048, "vocab_size": 50368, "tie_word_embeddings": True,
}  # fmt: skip
MPT_KEYS = {
    "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
BEFORE_ATTENTION, BEFORE_MLP = "input_layernorm", "post_attention_layernorm"
NEOX_MLP = ("dense_h_to_4h", "dense_4h_to_h")
NEOX_DROPOUT = {
    **dict.fromkeys(("attention", "mlp", "embedding"), "hidden_dropout"), "scores": "attention_dropout",
}  # fmt: skip


@numerics(
    narrow_loss=True,
    wide_scores=True,
    own_tables=2,
    kernels=("flash",),
    dropout=DROPOUT,
    hands_on_scores=True,
)
def gptj(config: Config) -> Architecture:
    """Return GPT-J: parallel branches under one norm, no biases in attention, one in the head."""
    return _gptj_like(Figures(config, GPTJ, N_KEYS))


@numerics(wide_scores=True, wide_tables=True, own_tables=2, kernels=(), dropout=DROPOUT, hands_on_scores=True)
def codegen(config: Config) -> Architecture:
    """Return CodeGen: GPT-J with one projection for q, k and v."""
    return _gptj_like(Figures(config, GPTJ, N_KEYS), fused="qkv_proj")


def _gptj_like(f: Figures, *, fused: str = "") -> Architecture:
    hidden = f.size("hidden_size")
    mixer = attention(hidden, heads(f, kv="", dim=""), fused=fused, out="out_proj")
    rotary = f.optional("rotary_dim")
    mixer = mixer._replace(rotary_dim=rotary or 0)
    inner = f.optional("n_inner") or 4 * hidden
    mlp = plain_mlp(hidden, inner, f.text("activation_function"), names=("fc_in", "fc_out"))
    block = pre_norm_layer([mixer, mlp], [layer_norm("ln_1", hidden), None], parallel=True)
    decoder = language_model(
        f, ((block, f.num_layers()),), final_norm=layer_norm("ln_f", hidden), embed="wte", head_bias=True
    )
    tables = (
        4 * f.num_layers() * f.size("max_position_embeddings") * (rotary or hidden)
    )  # each layer has its own, in fp32
    return decoder._replace(buffer_bytes=tables)


@numerics(narrow_loss=True, dropout=NEOX_DROPOUT)
def gpt_neox(config: Config) -> Architecture:
    """Return GPT-NeoX, Pythia and RedPajama: branches parallel or not, a norm for each."""
    f = Figures(config, GPT_NEOX)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    of = heads(f, kv="", dim="")
    mixer = attention(hidden, of, bias=bias, out_bias=bias, fused="query_key_value", out="dense")
    mlp = plain_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), names=NEOX_MLP)
    norms = [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
    block = pre_norm_layer([mixer, mlp], norms, parallel=f.flag("use_parallel_residual"))
    final = layer_norm("final_layer_norm", hidden)
    return language_model(f, ((block, f.num_layers()),), final_norm=final, embed="embed_in")


@numerics(dropout={"mlp": "hidden_dropout", "scores": "attention_dropout"})
def persimmon(config: Config) -> Architecture:
    """Return Persimmon: GPT-NeoX's shapes in sequence, a LayerNorm on the heads, squared ReLU."""
    f = Figures(config, PERSIMMON)
    hidden, of = f.size("hidden_size"), heads(f, kv="", dim="")
    norms: tuple[Norm, ...] = ()
    if f.flag("qk_layernorm"):
        norms = (layer_norm("q_layernorm", of[2]), layer_norm("k_layernorm", of[2]))
    mixer = attention(
        hidden, of, bias=True, out_bias=True, fused="query_key_value", out="dense", qk_norms=norms
    )
    mixer = partly_rotary(f, mixer)
    mlp = plain_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), names=NEOX_MLP)
    around = [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
    final = layer_norm("final_layernorm", hidden)
    return language_model(f, ((pre_norm_layer([mixer, mlp], around), f.num_layers()),), final_norm=final)


@numerics(narrow_loss=True, kernels=(), dropout=NEOX_DROPOUT, hands_on_scores=True)
def bloom(config: Config) -> Architecture:
    """Return BLOOM: ALiBi, a norm on the embeddings, feed-forward of four times the width."""
    f = Figures(config, BLOOM, BLOOM_KEYS)
    hidden, of = f.size("hidden_size"), heads(f, kv="", dim="")
    mixer = attention(
        hidden, of, bias=True, out_bias=True, fused="query_key_value", out="dense", rotary=False
    )
    mlp = plain_mlp(hidden, 4 * hidden, "bloom_gelu", names=NEOX_MLP)
    block = pre_norm_layer(
        [mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
    )
    return language_model(
        f,
        ((block, f.num_layers()),),
        final_norm=layer_norm("ln_f", hidden),
        embed="word_embeddings",
        embedding_norm=layer_norm("word_embeddings_layernorm", hidden),
    )


@numerics(
    narrow_loss=True,
    narrow_softmax=True,
    always_masks=True,
    dropout={"mlp": "hidden_dropout"},
    hands_on_scores=True,
)
def falcon(config: Config) -> Architecture:
    """Return Falcon: parallel branches under one norm, or two in the newer decoder."""
    f = Figures(config, FALCON, {"hidden_size": "n_embed"})
    hidden, bias, newer = f.size("hidden_size"), f.flag("bias"), f.flag("new_decoder_architecture")
    num, _, dim = heads(f, kv="", dim="")
    kv = num
    if newer:
        kv = f.optional("num_kv_heads") or num
    elif f.flag("multi_query"):
        kv = 1
    if num % kv:
        raise FieldError(f"num_attention_heads={num} is not divisible by num_kv_heads={kv}.")
    mixer = attention(
        hidden, (num, kv, dim), bias=bias, out_bias=bias, fused="query_key_value", out="dense",
        rotary=not f.flag("alibi"),
    )._replace(
        num_key_value_heads=num if newer else kv,  # the newer decoder's are copied for all queries at once
        copies_values=newer or f.flag("multi_query"),
    )  # fmt: skip
    inner = f.optional("ffn_hidden_size") or 4 * hidden
    mlp = plain_mlp(hidden, inner, f.text("activation"), bias=bias, names=NEOX_MLP)
    parallel = f.flag("parallel_attn")
    two = f.optional("num_ln_in_parallel_attn") == 2 or (newer and f.raw("num_ln_in_parallel_attn") is None)
    if not parallel:
        norms = [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
        block = pre_norm_layer([mixer, mlp], norms)
    elif two:
        norms = [layer_norm("ln_attn", hidden), layer_norm("ln_mlp", hidden)]
        block = pre_norm_layer([mixer, mlp], norms, parallel=True)
    else:
        block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), None], parallel=True)
    final = layer_norm("ln_f", hidden)
    return language_model(f, ((block, f.num_layers()),), final_norm=final, embed="word_embeddings")


@numerics(dropout={**DROPOUT, "scores": "attention_dropout"})
def phi(config: Config) -> Architecture:
    """Return Phi-1, 1.5 and 2: parallel branches under one norm, biases everywhere, the head too."""
    f = Figures(config, PHI)
    hidden, of = f.size("hidden_size"), heads(f)
    norms: tuple[Norm, ...] = ()
    if f.flag("qk_layernorm"):
        width = hidden // of[0]
        norms = (layer_norm("q_layernorm", width), layer_norm("k_layernorm", width))
    mixer = partly_rotary(f, attention(hidden, of, bias=True, out_bias=True, out="dense", qk_norms=norms))
    mlp = plain_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), None], parallel=True)
    final = layer_norm("final_layernorm", hidden)
    return language_model(f, ((block, f.num_layers()),), final_norm=final, head_bias=True)


@numerics(dropout={"mlp": "hidden_dropout", "scores": "attention_dropout"})
def stablelm(config: Config) -> Architecture:
    """Return StableLM: Llama with LayerNorms, its branches parallel in StableLM 2 12B."""
    f = Figures(config, STABLELM)
    hidden, of, parallel = f.size("hidden_size"), heads(f, dim=""), f.flag("use_parallel_residual")
    num, kv, dim = of
    own: tuple[Norm, ...] = ()
    if f.flag("qk_layernorm"):
        own = (
            Norm("q_layernorm", dim, "layer", heads=num, apart=True),
            Norm("k_layernorm", dim, "layer", heads=kv, apart=True),
        )
    mixer = partly_rotary(f, attention(hidden, of, bias=f.flag("use_qkv_bias"), qk_norms=own))
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    second = None if parallel else layer_norm(BEFORE_MLP, hidden)
    block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), second], parallel=parallel)
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden))


@numerics(unit_norms=True)
def nemotron(config: Config) -> Architecture:
    """Return Nemotron 3 8B, 4 and Minitron: LayerNorms, squared ReLU, no gate."""
    f = Figures(config, NEMOTRON)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias)
    mlp = plain_mlp(
        hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"),
        names=("up_proj", "down_proj"),
    )  # fmt: skip
    block = pre_norm_layer(
        [mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
    )
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden))


@numerics(narrow_loss=True, kernels=(), hands_on_scores=True)
def mpt(config: Config) -> Architecture:
    """Return MPT: ALiBi, no biases at all, feed-forward of four times the width."""
    f = Figures(config, MPT, MPT_KEYS)
    hidden = f.size("hidden_size")
    clipped = bool(f.part("attn_config", {}).raw("clip_qkv"))
    mixer = attention(
        hidden, heads(f, kv="", dim=""), fused="Wqkv", out="out_proj", rotary=False, clipped=clipped
    )
    mlp = plain_mlp(hidden, 4 * hidden, "gelu", bias=False, names=("up_proj", "down_proj"))
    norms = [layer_norm("norm_1", hidden, bias=False), layer_norm("norm_2", hidden, bias=False)]
    final = layer_norm("norm_f", hidden, bias=False)
    layers = ((pre_norm_layer([mixer, mlp], norms), f.num_layers()),)
    return language_model(f, layers, final_norm=final, embed="wte")
