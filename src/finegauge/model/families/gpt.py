"""Dense decoders of GPT-2's kin: LayerNorms and mostly a feed-forward of two projections.

Further down those whose attention and feed-forward read the same input: where they share one norm it
stands on the first branch, and the second has none. Defaults are those of the transformers 5.23 classes.
"""

from collections.abc import Hashable, Sequence

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Norm
from finegauge.model.families.decoder import (
    BARE_LAYER_NORM,
    LAYER_NORM,
    OWN_HEADS,
    UP_DOWN,
    Family,
    qk_norms,
    sizes,
)
from finegauge.model.families.parts import SLIDING, Figures, heads


def _gpt2(f: Figures) -> Family:
    if f.flag("add_cross_attention"):
        raise f.unsupported("cross-attention (add_cross_attention=true)")
    return {}


def _gpt_bigcode(f: Figures) -> Family:
    num, _, dim = heads(f)
    mask = f.size("max_position_embeddings") ** 2  # one byte a pair
    of = (num, 1 if f.flag("multi_query") else num, dim)
    return {**_gpt2(f), "of": of, "fields": {"buffer_bytes": mask}}


def _opt(f: Figures) -> Family:
    before, affine = f.flag("do_layer_norm_before"), f.flag("layer_norm_elementwise_affine")
    norms, none = ("self_attn_layer_norm", "final_layer_norm"), ("", "")
    return {
        "norm": Norm("", 0, "layer", affine, affine),
        "before": norms if before else none,
        "after": none if before else norms,
        "final": "final_layer_norm" if before and not f.flag("_remove_final_layer_norm") else "",
        "word_size": f.optional("word_embed_proj_dim") or 0,
    }


def _gpt_neo(f: Figures) -> Family:
    masks = f.num_layers() * f.size("max_position_embeddings") ** 2  # one byte for each pair
    return {"fields": {"buffer_bytes": masks}}


def _gpt_neo_kinds(f: Figures) -> list[bool]:
    """Return which layers slide: `attention_types` is a list of (kinds, how often)."""
    num_layers = f.num_layers()
    listed = f.items("attention_types") or [[["global", "local"], num_layers // 2]]
    kinds: list[str] = []
    for entry in listed:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise FieldError(f"attention_types has {shown(entry)}; entries are [[kinds], how often].")
        some = [str(kind) for kind in entry[0][: num_layers + 1]]
        times = f.checked("attention_types", entry[1], 0, num_layers)
        kinds += some * min(times, num_layers // max(1, len(some)) + 1)
    if len(kinds) != num_layers or not set(kinds) <= {"global", "local"}:
        raise FieldError(
            f"attention_types describes {len(kinds)} layers, num_layers={num_layers}; "
            "give global or local for each."
        )
    return [kind == "local" for kind in kinds]


def _gptj(f: Figures) -> Family:
    rotary = f.optional("rotary_dim") or 0
    # a table in fp32; before transformers 5.24 each layer had its own
    tables = 4 * f.size("max_position_embeddings") * (rotary or f.size("hidden_size"))
    return {"attention": {"rotary_dim": rotary}, "fields": {"buffer_bytes": tables}}


def _falcon(f: Figures) -> Family:
    newer, (num, _, dim) = f.flag("new_decoder_architecture"), heads(f, **OWN_HEADS)
    kv = (f.optional("num_kv_heads") or num) if newer else 1 if f.flag("multi_query") else num
    if num % kv:
        raise FieldError(f"num_attention_heads={num} is not divisible by num_kv_heads={kv}.")
    two = f.optional("num_ln_in_parallel_attn") == 2 or (newer and f.raw("num_ln_in_parallel_attn") is None)
    parallel = f.flag("parallel_attn")
    row: Family = {
        "of": (num, kv, dim),
        "rotary": not f.flag("alibi"),
        "attention": {
            "num_key_value_heads": num if newer else kv,  # the newer decoder's are copied for all queries
            "copies_values": newer or f.flag("multi_query"),
        },
        "parallel": parallel,
    }
    if parallel:
        row["before"] = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "")
    return row


def _refined_web(f: Figures) -> Family:
    """Return Falcon's row, its newer decoder where the file gives a number of key heads."""
    newer = f.config.get("new_decoder_architecture", f.config.get("n_head_kv") is not None)
    f.config = {**f.config, "new_decoder_architecture": newer}
    return _falcon(f)


def _phi_msft(f: Figures) -> Family:
    width = f.divided("n_embd", f.size("hidden_size"), "n_head", f.size("num_attention_heads"))
    return {
        "partly_rotary": False,
        "attention": {"rotary_dim": min(f.optional("rotary_dim") or width, width)},
    }


def _mpt(f: Figures) -> Family:
    return {"attention": {"clipped": bool(f.part("attn_config", {}).raw("clip_qkv"))}}


def _cohere2_rotary(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> list[Hashable]:
    return [kind == SLIDING and f.raw("sliding_window") is not None for kind in kinds]


N_KEYS = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip
D_KEYS = {
    "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
}  # fmt: skip
PDROP = {"attention": "resid_pdrop", "mlp": "resid_pdrop", "scores": "attn_pdrop", "embedding": "embd_pdrop"}
HIDDEN_DROPOUT = {
    **dict.fromkeys(("attention", "mlp", "embedding"), "hidden_dropout"), "scores": "attention_dropout",
}  # fmt: skip

# fmt: off
GPT: dict[str, Family] = {
    "gpt2": Family(
        bias=True, fused="c_attn", out="c_proj", rotary=False, gated=False, mlp=("c_fc", "c_proj"),
        mlp_bias=True, mlp_size="n_inner", widening=4, act="activation_function", norm=LAYER_NORM,
        before=("ln_1", "ln_2"), final="ln_f", embed="wte", learned=("wpe", 0), aliases=N_KEYS, varies=_gpt2,
        numerics={
            "narrow_loss": True, "narrow_softmax": True, "holds_attention": True, "dropout": PDROP,
            "dropout_default": 0.1,
        },
        defaults=sizes(
            50257, 768, None, 12, 12, None, None, 1024, activation_function="gelu_new",
            tie_word_embeddings=True,
        ),
    ),
    "gpt-sw3": Family(like="gpt2"),
    "gpt_bigcode": Family(  # SantaCoder and StarCoder 1: one key and value head for all queries
        like="gpt2", varies=_gpt_bigcode,
        numerics={"narrow_loss": True, "hands_back_cache": True, "dropout": PDROP, "dropout_default": 0.1},
        defaults={"activation_function": "gelu_pytorch_tanh", "multi_query": True},
    ),
    "openai-gpt": Family(  # GPT-1: norms after the branches, no final norm
        like="gpt2", heads=OWN_HEADS, mlp_size="", act="afn", before=("", ""), after=("ln_1", "ln_2"),
        final="", embed="tokens_embed", learned=("positions_embed", 0), varies=lambda _: {},
        numerics={"narrow_softmax": True, "kernels": (), "dropout": PDROP, "dropout_default": 0.1},
        defaults={"vocab_size": 40478, "max_position_embeddings": 512, "afn": "gelu"},
    ),
    "gpt_neo": Family(  # three projections without biases, every other layer slides
        like="gpt2", heads=OWN_HEADS, bias=False, out_bias=True, fused="", out="out_proj",
        mlp_size="intermediate_size", slides=lambda f: _gpt_neo_kinds(f).__getitem__, varies=_gpt_neo,
        aliases={
            "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
            "sliding_window": "window_size",
        },
        numerics={
            "wide_scores": True,
            "dropout": {"attention": "resid_dropout", "mlp": "resid_dropout", "scores": "attention_dropout",
                        "embedding": "embed_dropout"},
        },
        defaults={
            "max_position_embeddings": 2048, "hidden_size": 2048, "num_hidden_layers": 24,
            "num_attention_heads": 16, "sliding_window": 256,
        },
    ),
    "opt": Family(  # learned positions (2 more than it says), embeddings that may be narrower
        heads=OWN_HEADS, bias="enable_bias", out="out_proj", rotary=False, gated=False, mlp=("fc1", "fc2"),
        mlp_bias="enable_bias", mlp_size="ffn_dim", act="activation_function",
        learned=("embed_positions", 2), varies=_opt,
        numerics={
            "narrow_loss": True, "dropout": dict.fromkeys(("attention", "mlp"), "dropout"),
            "dropout_default": 0.1, "clamped_scores": True,
        },
        defaults=sizes(
            50272, 768, None, 12, 12, None, None, 2048, ffn_dim=3072, do_layer_norm_before=True,
            activation_function="relu", enable_bias=True, layer_norm_elementwise_affine=True,
            tie_word_embeddings=True,
        ),
    ),
    "biogpt": Family(  # OPT's layers, learned positions (2 more than it says)
        heads=OWN_HEADS, bias=True, out="out_proj", rotary=False, gated=False, mlp=("fc1", "fc2"),
        mlp_bias=True, norm=LAYER_NORM, before=("self_attn_layer_norm", "final_layer_norm"),
        final="layer_norm", learned=("embed_positions", 2),
        numerics={
            "narrow_softmax": True, "dropout_default": 0.1,
            "dropout": {
                "attention": "hidden_dropout_prob", "mlp": "hidden_dropout_prob",
                "scores": "attention_probs_dropout_prob", "embedding": "hidden_dropout_prob",
            },
        },
        defaults=sizes(
            42384, 1024, 4096, 24, 16, None, None, 1024, hidden_act="gelu", tie_word_embeddings=True,
        ),
    ),
    "bloom": Family(  # ALiBi, a norm on the embeddings
        heads=OWN_HEADS, bias=True, fused="query_key_value", out="dense", rotary=False, gated=False,
        mlp=("dense_h_to_4h", "dense_4h_to_h"), mlp_bias=True, mlp_size="", widening=4,
        activation="bloom_gelu", norm=LAYER_NORM, final="ln_f", embed="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        aliases={
            "hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
        },
        numerics={"narrow_loss": True, "kernels": (), "dropout": HIDDEN_DROPOUT, "hands_on_scores": True},
        defaults={
            "vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
    "mpt": Family(  # ALiBi, no biases at all
        heads=OWN_HEADS, fused="Wqkv", out="out_proj", rotary=False, gated=False, mlp=UP_DOWN, mlp_size="",
        widening=4, activation="gelu", norm=BARE_LAYER_NORM, before=("norm_1", "norm_2"), final="norm_f",
        embed="wte", aliases=D_KEYS, varies=_mpt,
        numerics={"narrow_loss": True, "kernels": (), "hands_on_scores": True},
        defaults=sizes(50368, 2048, None, 24, 16, None, None, 2048, tie_word_embeddings=True),
    ),
    "persimmon": Family(  # GPT-NeoX's shapes in sequence, a LayerNorm on the heads
        like="gpt_neox", bias=True, partly_rotary=True, parallel=False, final="final_layernorm",
        embed="embed_tokens",
        qk_norms=qk_norms(("q_layernorm", "k_layernorm"), kind="layer", bias=True, flag="qk_layernorm"),
        numerics={"dropout": {"mlp": "hidden_dropout", "scores": "attention_dropout"}},
        defaults=sizes(
            262144, 4096, 16384, 36, None, None, None, 16384, hidden_act="relu2", qk_layernorm=True,
            rotary_pct=None, partial_rotary_factor=0.5,
        ),
    ),
    # --- attention and feed-forward read the same input; where they share a norm the second has none
    "gpt_neox": Family(  # Pythia, RedPajama: parallel or not, a norm for each
        heads=OWN_HEADS, bias="attention_bias", fused="query_key_value", out="dense", gated=False,
        mlp=("dense_h_to_4h", "dense_4h_to_h"), mlp_bias=True, norm=LAYER_NORM,
        parallel="use_parallel_residual", final="final_layer_norm", embed="embed_in",
        numerics={"narrow_loss": True, "dropout": HIDDEN_DROPOUT},
        defaults=sizes(
            50432, 6144, 24576, 44, 64, None, None, 2048, hidden_act="gelu", use_parallel_residual=True,
            attention_bias=True, rotary_pct=0.25,
        ),
    ),
    "gptj": Family(
        heads=OWN_HEADS, out="out_proj", gated=False, mlp=("fc_in", "fc_out"), mlp_bias=True,
        mlp_size="n_inner", widening=4, act="activation_function", norm=LAYER_NORM, before=("ln_1", ""),
        parallel=True, final="ln_f", embed="wte", head_bias=True, aliases=N_KEYS, varies=_gptj,
        numerics={
            "narrow_loss": True, "wide_scores": True, "kernels": ("flash",),
            "dropout": PDROP,
        },
        defaults=sizes(
            50400, 4096, None, 28, 16, None, None, 2048, activation_function="gelu_new", rotary_dim=64,
        ),
    ),
    "codegen": Family(
        like="gptj", fused="qkv_proj",
        numerics={
            "wide_scores": True, "wide_tables": True, "kernels": (), "dropout": PDROP,
        },
    ),
    "falcon": Family(  # under one norm, or two in the newer decoder
        bias="bias", fused="query_key_value", out="dense", gated=False,
        mlp=("dense_h_to_4h", "dense_4h_to_h"), mlp_bias="bias", mlp_size="ffn_hidden_size", widening=4,
        act="activation", norm=LAYER_NORM, final="ln_f", embed="word_embeddings",
        aliases={"hidden_size": "n_embed"}, varies=_falcon,
        numerics={
            "narrow_loss": True, "narrow_softmax": True, "always_masks": True,
            "dropout": {"mlp": "hidden_dropout"}, "hands_on_scores": True,
        },
        defaults=sizes(
            65024, 4544, None, 32, 71, None, None, 2048, multi_query=True, parallel_attn=True,
            activation="gelu", tie_word_embeddings=True,
        ),
    ),
    "phi": Family(  # Phi-1, 1.5 and 2
        bias=True, out="dense", partly_rotary=True, gated=False, mlp=("fc1", "fc2"), mlp_bias=True,
        qk_norms=qk_norms(("q_layernorm", "k_layernorm"), kind="layer", bias=True, flag="qk_layernorm"),
        norm=LAYER_NORM, before=("input_layernorm", ""), parallel=True, final="final_layernorm",
        head_bias=True, numerics={"dropout": {**PDROP, "scores": "attention_dropout"}},
        defaults=sizes(
            51200, 2048, 8192, 24, 32, None, None, 2048, hidden_act="gelu_new", partial_rotary_factor=0.5,
        ),
    ),
    "stablelm": Family(  # parallel in StableLM 2 12B
        heads={"dim": ""}, bias="use_qkv_bias", out_bias=False, partly_rotary=True, norm=LAYER_NORM,
        parallel="use_parallel_residual",
        qk_norms=qk_norms(
            ("q_layernorm", "k_layernorm"), kind="layer", by_head=True, apart=True, flag="qk_layernorm",
        ),
        varies=lambda f: {"before": ("input_layernorm", "")} if f.flag("use_parallel_residual") else {},
        numerics={"dropout": {"mlp": "hidden_dropout", "scores": "attention_dropout"}},
        defaults=sizes(
            50304, 2560, 6912, 32, 32, 32, None, 4096, hidden_act="silu", partial_rotary_factor=0.25,
        ),
    ),
    # --- the same under the names of code that lived in model repositories
    "RefinedWeb": Family(  # Falcon before transformers had it
        like="falcon", varies=_refined_web,
        aliases={
            "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "num_kv_heads": "n_head_kv",
        },
    ),
    "RefinedWebModel": Family(like="RefinedWeb"),
    "phi-msft": Family(
        like="phi", fused="Wqkv", out="out_proj", mlp_size="n_inner", widening=4, act="activation_function",
        aliases=N_KEYS, varies=_phi_msft, defaults={"activation_function": "gelu_new"},
    ),
    "mixformer-sequential": Family(like="phi-msft"),
    "stablelm_epoch": Family(like="stablelm", aliases={"partial_rotary_factor": "rope_pct"}),
    "cohere": Family(  # Command R and Aya
        bias="attention_bias", norm=BARE_LAYER_NORM, before=("input_layernorm", ""), parallel=True,
        qk_norms=qk_norms(kind="layer", by_head=True, flag="use_qk_norm"),
        numerics={"scaled_logits": True, "own_loss": True, "written_layer_norms": True},
        defaults=sizes(
            256000, 8192, 22528, 40, 64, None, None, 8192, hidden_act="silu", tie_word_embeddings=True,
        ),
    ),
    "cohere2": Family(  # Command R7B and Command A: full layers have no rotary positions
        like="cohere", qk_norms=None, slides="sliding_window_pattern", marks=_cohere2_rotary,
        numerics={"scaled_logits": True, "written_layer_norms": True},
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "cohere_compass_text": Family(  # North Micro: every layer attends to all, with rotary positions
        like="cohere", qk_norms=None, numerics={"scaled_logits": True, "written_layer_norms": True},
    ),
}
# fmt: on
