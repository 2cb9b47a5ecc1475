"""Families whose attention and feed-forward read the same input: GPT-J, GPT-NeoX, Falcon, Phi, Cohere.

Where both share one norm it stands on the first branch, and the second has none. Bloom,
MPT, StableLM and Nemotron, their sequential kin, stand here too. Defaults are those of
the transformers 5.23 classes.
"""

from finegauge.errors import FieldError
from finegauge.graph.blocks import Architecture, Norm, Tensor
from finegauge.graph.families.gpt import N_KEYS
from finegauge.graph.families.parts import (
    attention,
    gated_mlp,
    heads,
    language_model,
    layer_norm,
    plain_mlp,
    pre_norm_layer,
)
from finegauge.graph.families.reading import Config, Figures

GPTJ = {
    "vocab_size": 50400, "max_position_embeddings": 2048, "hidden_size": 4096, "num_hidden_layers": 28,
    "num_attention_heads": 16, "activation_function": "gelu_new", "tie_word_embeddings": False,
}  # fmt: skip
GPT_NEOX = {
    "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
    "intermediate_size": 24576, "hidden_act": "gelu", "max_position_embeddings": 2048,
    "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False,
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
}  # fmt: skip
COHERE = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
    "attention_bias": False, "use_qk_norm": False, "tie_word_embeddings": True,
}  # fmt: skip
STABLELM = {
    "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
    "max_position_embeddings": 4096, "use_qkv_bias": False, "qk_layernorm": False,
    "use_parallel_residual": False, "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON = {
    "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
    "num_attention_heads": 48, "hidden_act": "relu2", "max_position_embeddings": 4096,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
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


def gptj(config: Config) -> Architecture:
    """Return GPT-J: parallel branches under one norm, no biases in attention, one in the head."""
    f = Figures(config, GPTJ, N_KEYS)
    hidden = f.size("hidden_size")
    mixer = attention(hidden, heads(f, kv="", dim=""), out="out_proj")
    inner = f.optional("n_inner") or 4 * hidden
    mlp = plain_mlp(hidden, inner, f.text("activation_function"), names=("fc_in", "fc_out"))
    block = pre_norm_layer([mixer, mlp], [layer_norm("ln_1", hidden), None], parallel=True)
    final = layer_norm("ln_f", hidden)
    return language_model(f, ((block, f.num_layers()),), final_norm=final, embed="wte", head_bias=True)


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


def bloom(config: Config) -> Architecture:
    """Return BLOOM: ALiBi, a norm on the embeddings, feed-forward of four times the width."""
    f = Figures(config, BLOOM, BLOOM_KEYS)
    hidden, of = f.size("hidden_size"), heads(f, kv="", dim="")
    mixer = attention(
        hidden, of, bias=True, out_bias=True, fused="query_key_value", out="dense", rotary=False
    )
    mlp = plain_mlp(hidden, 4 * hidden, "gelu", names=NEOX_MLP)
    block = pre_norm_layer(
        [mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), layer_norm(BEFORE_MLP, hidden)]
    )
    return language_model(
        f,
        ((block, f.num_layers()),),
        final_norm=layer_norm("ln_f", hidden),
        embed="word_embeddings",
        embeddings=tuple(layer_norm("word_embeddings_layernorm", hidden).tensors()),
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


def phi(config: Config) -> Architecture:
    """Return Phi-1, 1.5 and 2: parallel branches under one norm, biases everywhere, the head too."""
    f = Figures(config, PHI)
    hidden, of = f.size("hidden_size"), heads(f)
    norms: tuple[Norm, ...] = ()
    if f.flag("qk_layernorm"):
        width = hidden // of[0]
        norms = (layer_norm("q_layernorm", width), layer_norm("k_layernorm", width))
    mixer = attention(hidden, of, bias=True, out_bias=True, out="dense", qk_norms=norms)
    mlp = plain_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), None], parallel=True)
    final = layer_norm("final_layernorm", hidden)
    return language_model(f, ((block, f.num_layers()),), final_norm=final, head_bias=True)


def cohere(config: Config) -> Architecture:
    """Return Command R and Aya: parallel branches under one norm without bias, tied head."""
    f = Figures(config, COHERE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms: tuple[Norm, ...] = ()
    if f.flag("use_qk_norm"):
        num, kv, dim = of
        norms = (layer_norm("q_norm", num * dim, bias=False), layer_norm("k_norm", kv * dim, bias=False))
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=norms)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    shared = layer_norm(BEFORE_ATTENTION, hidden, bias=False)
    block = pre_norm_layer([mixer, mlp], [shared, None], parallel=True)
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden, bias=False))


def stablelm(config: Config) -> Architecture:
    """Return StableLM: Llama with LayerNorms, its branches parallel in StableLM 2 12B."""
    f = Figures(config, STABLELM)
    hidden, of, parallel = f.size("hidden_size"), heads(f, dim=""), f.flag("use_parallel_residual")
    num, kv, dim = of
    extra: tuple[Tensor, ...] = ()
    if f.flag("qk_layernorm"):  # one norm of its own for every head
        extra = (
            Tensor("q_layernorm.weight", (num, dim), "norm"),
            Tensor("k_layernorm.weight", (kv, dim), "norm"),
        )
    mixer = attention(hidden, of, bias=f.flag("use_qkv_bias"), extra=extra)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    second = None if parallel else layer_norm(BEFORE_MLP, hidden)
    block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE_ATTENTION, hidden), second], parallel=parallel)
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden))


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


def mpt(config: Config) -> Architecture:
    """Return MPT: ALiBi, no biases at all, feed-forward of four times the width."""
    f = Figures(config, MPT, MPT_KEYS)
    hidden = f.size("hidden_size")
    mixer = attention(hidden, heads(f, kv="", dim=""), fused="Wqkv", out="out_proj", rotary=False)
    mlp = plain_mlp(hidden, 4 * hidden, "gelu", bias=False, names=("up_proj", "down_proj"))
    norms = [layer_norm("norm_1", hidden, bias=False), layer_norm("norm_2", hidden, bias=False)]
    final = layer_norm("norm_f", hidden, bias=False)
    layers = ((pre_norm_layer([mixer, mlp], norms), f.num_layers()),)
    return language_model(f, layers, final_norm=final, embed="wte")
