"""The table of dense decoders: one row per `model_type`, with the defaults of its configuration class.

A Llama-like family is one row here, and nothing elsewhere: the oracle holds it against its transformers
class unasked. Defaults are those of the transformers 5.23 classes or, for models whose code lives in their
own repositories, of the configuration classes there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, Norm, Tensor
from finegauge.model.families.decoder import (
    ALL,
    HEAD_NORMS,
    LAYER_NORM,
    UP_DOWN,
    WIDE_HEAD_NORMS,
    Family,
    qk_norms,
    rotary_where_sliding,
    sizes,
)
from finegauge.model.families.parts import (
    Figures,
    Heads,
    attention,
    feedforward,
    heads,
    language_model,
    layer,
    stack,
    window_of,
)

AFTER_BRANCHES = ("post_attention_layernorm", "post_feedforward_layernorm")
SCALED = {"scaled_logits": True}


def full_first(f: Figures) -> Callable[[int], bool]:
    """Return the rule that all layers slide but every fourth, beginning with the first."""
    return lambda index: index % 4 != 0


def late_slides(f: Figures) -> Callable[[int], bool]:
    """Return Qwen2's rule: layers slide from `max_window_layers` on."""
    first = f.count("max_window_layers") if f.flag("use_sliding_window") else 0
    return lambda index: index >= first


def _exaone4_slides(f: Figures) -> Callable[[int], bool]:
    pattern = f.raw("sliding_window_pattern") if f.raw("sliding_window") is not None else None
    every = len(pattern) if isinstance(pattern, str) else f.count("sliding_window_pattern") if pattern else 0
    return lambda index: bool(every and (index + 1) % every)


def no_rope_layers(f: Figures) -> list[bool]:
    """Return which layers rotate queries and keys: as listed (1 means yes), else all but every so many-th."""
    listed, num_layers = f.items("no_rope_layers"), f.num_layers()
    if not listed:
        every = f.size("no_rope_layer_interval")
        return [(index + 1) % every != 0 for index in range(num_layers)]
    if len(listed) < num_layers:
        raise FieldError(f"no_rope_layers has {len(listed)} entries for {num_layers} layers; give one each.")
    return [bool(flag) for flag in listed[:num_layers]]


def _smollm3_slides(f: Figures) -> Callable[[int], bool]:
    rotary = no_rope_layers(f)
    return lambda index: not rotary[index]


def _gemma3(f: Figures) -> Family:
    """Let EmbeddingGemma see the keys behind each query too, in a window half of those it states."""
    if not f.flag("use_bidirectional_attention"):
        return {}
    return {"attention": {"causal": False}, "attends": _sees_both_ways}


def _sees_both_ways(f: Figures, of: Heads, slides: bool, mark: Any) -> Mapping[str, Any]:
    return {"window": (window_of(f) or 0) // 2 or None} if slides else {}


def _apertus(f: Figures) -> Family:
    if f.text("hidden_act") != "xielu":
        return {}
    return {"extra": tuple(Tensor(f"act_fn.{name}", (1,), "state") for name in ("alpha_p", "alpha_n"))}


def _helium(f: Figures) -> Family:
    num, _, dim = heads(f)
    if num * dim != f.size("hidden_size"):
        raise FieldError(
            f"num_attention_heads={num} of {dim} channels are not the hidden_size={f.size('hidden_size')} "
            "that Helium's output projection takes."
        )
    return {}


def _internlm3(f: Figures) -> Family:
    if f.flag("attention_bias") != f.flag("mlp_bias"):
        raise f.unsupported("qkv_bias other than bias")
    return {}


def _hf_olmo(f: Figures) -> Family:
    """Return half of the width that it says, which is gate and up together."""
    if f.config.get("layer_norm_type", "default") not in ("default", "low_precision") or f.flag(
        "include_bias"
    ):
        raise f.unsupported("a norm or a projection with weights beside the matrices")
    both = f.optional("mlp_hidden_size") or f.size("mlp_ratio") * f.size("hidden_size")
    return {"mlp_size": f.divided("mlp_hidden_size", both, "gate and up", 2)}


def _qwen(f: Figures) -> Family:
    if not f.flag("no_bias"):
        raise f.unsupported("a Qwen v1 with no_bias=false")
    size = f.size("intermediate_size")
    return {"mlp_size": f.divided("intermediate_size", size, "the two halves of its feed-forward", 2)}


def _chatglm(f: Figures) -> Family:
    if not f.flag("rmsnorm") or not f.flag("post_layer_norm"):
        raise f.unsupported("a ChatGLM without RMS norms or without a final norm")
    bias = f.flag("add_bias_linear") or f.flag("add_qkv_bias")
    return {"bias": bias, "heads": {} if f.flag("multi_query_attention") else {"kv": ""}}


def nemotron_nas(f: Figures) -> Architecture:
    """Return Llama-Nemotron Super and Ultra: Llama whose layers a search pruned, each in its own way."""
    blocks = f.items("block_configs")
    if blocks is None or len(blocks) != f.num_layers():
        raise FieldError(f"block_configs must list one block for each of {f.num_layers()} layers.")
    layers = stack([_pruned(f, block) for block in blocks], lambda kind: _pruned_layer(f, *kind))
    return language_model(f, layers, Norm("norm", f.size("hidden_size")))


def _pruned(f: Figures, block: object) -> tuple[int, float]:
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


def _pruned_layer(f: Figures, group: int, multiple: float) -> Layer:
    """Return a layer of what a block keeps; the feed-forward's width is a multiple of 256."""
    hidden, (num, _, dim), bias = f.size("hidden_size"), heads(f, kv=""), f.flag("attention_bias")
    branches: list[Branch] = []
    if group:
        kv = f.divided("num_attention_heads", num, "n_heads_in_group", group)
        mixer = attention(hidden, (num, kv, dim), bias=bias, out_bias=bias)
        branches.append(Branch(mixer, Norm("input_layernorm", hidden)))
    if multiple:
        size = -(-int(2 * multiple * hidden / 3) // 256) * 256
        mlp = feedforward(hidden, size, f.text("hidden_act"), bias=f.flag("mlp_bias"))
        branches.append(Branch(mlp, Norm("post_attention_layernorm", hidden)))
    return layer(*branches)


WIDE_NORMS = {"wide_norms": True, "unit_norms": True}

# fmt: off
DENSE: dict[str, Family] = {
    # --- Llama 1 to 3, Yi, SmolLM and what differs from it in sizes, biases and windows
    "llama": Family(
        bias="attention_bias", mlp_bias="mlp_bias",
        defaults=sizes(32000, 4096, 11008, 32, 32, None, None, 2048, hidden_act="silu"),
    ),
    "Yi": Family(like="llama"),  # and other copies of Llama's code
    "aquila": Family(like="llama"),
    "granite": Family(like="llama", numerics={"scaled_logits": True, "own_loss": True}),  # Granite 3
    "granite_swa": Family(  # three layers in four slide, all have sinks
        like="llama", sinks=True, slides=full_first, numerics={"scaled_logits": True, "sinks": "scaled"},
        defaults=sizes(
            100352, 2560, 8192, 24, 20, 4, None, 8192, sliding_window=128, tie_word_embeddings=True,
        ),
    ),
    "bitnet": Family(  # b1.58, its bf16 weights: a norm before each branch's last projection
        like="llama", mlp_bias=False, mlp_norm="ffn_sub_norm",
        varies=lambda f: {"attention": {"out_norm": Norm("attn_sub_norm", f.size("hidden_size"))}},
        defaults=sizes(128256, 2560, 6912, 30, 20, 5, hidden_act="relu2"),
    ),
    "hyperclovax": Family(  # HyperCLOVA X SEED: Granite, with a norm after each branch by flag
        like="llama", numerics=SCALED, defaults={"use_post_norm": True},
        varies=lambda f: {"after": ("post_norm1", "post_norm2")} if f.flag("use_post_norm") else {},
    ),
    "mistral": Family(
        like="llama", bias=False, mlp_bias=False, slides=ALL,
        defaults={
            "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
    ),
    "ministral": Family(  # Ministral 8B: a kind for every layer
        like="mistral", slides=lambda f: lambda _: f.optional("sliding_window") is not None,
    ),
    "ministral3": Family(  # and Devstral 2
        like="mistral",
        defaults={
            "vocab_size": 131072, "num_hidden_layers": 34, "head_dim": 128, "max_position_embeddings": 262144,
            "sliding_window": None,
        },
    ),
    "phi3": Family(  # Phi-3, Phi-3.5, Phi-4: q, k, v in one projection, gate and up in another
        like="llama", bias=False, mlp_bias=False, slides=ALL, fused="qkv_proj", mlp_fused="gate_up_proj",
        defaults={
            "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "max_position_embeddings": 4096, "sliding_window": None,
        },
    ),
    "phi4": Family(like="phi3"),
    "qwen2": Family(  # Qwen1.5, Qwen2, Qwen2.5
        like="llama", bias=True, out_bias=False, mlp_bias=False,
        slides=late_slides, slides_if="use_sliding_window",
        defaults={
            "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
            "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28,
        },
    ),
    "qwen3": Family(
        like="qwen2", bias="attention_bias", out_bias=None, qk_norms=HEAD_NORMS, defaults={"head_dim": 128},
    ),
    "cwm": Family(
        like="llama", bias=False, slides=full_first,
        defaults=sizes(128256, 6144, 21504, 64, 48, 8, 128, 131072, sliding_window=8192),
    ),
    "ernie4_5": Family(  # one flag for all biases
        bias="use_bias", mlp_bias="use_bias", numerics={"wide_tables": True, "own_tables": 1},
        defaults=sizes(
            103424, 1024, 3072, 18, 16, 2, 128, 131072, hidden_act="silu", tie_word_embeddings=True,
        ),
    ),
    "glm": Family(  # GLM-4 (9B, of 2024)
        like="llama", out_bias=False, mlp_bias=False, mlp_fused="gate_up_proj",
        defaults=sizes(151552, None, 13696, 40, None, 2, 128, 131072, attention_bias=True),
    ),
    "glm4": Family(  # GLM-4-0414 and Z1: a norm after each branch, too
        like="glm", after=("post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "helium": Family(
        like="llama", out_bias=False, varies=_helium, numerics={**WIDE_NORMS, "own_tables": 1},
        defaults=sizes(48000, 2560, 7040, 24, 20, 20, 128, 4096),
    ),
    "hunyuan_v1_dense": Family(
        like="llama", mlp_bias=False, attention={"norms_last": True},
        qk_norms=qk_norms(("query_layernorm", "key_layernorm")), defaults={"vocab_size": 290943},
    ),
    "internlm": Family(  # InternLM 1
        like="llama", bias="bias", mlp_bias=False, defaults={"vocab_size": 103168, "bias": True},
    ),
    "internlm2": Family(  # and 2.5
        like="internlm", defaults={"bias": False}, mlp=("w1", "w3", "w2"), fused="wqkv", out="wo",
        before=("attention_norm", "ffn_norm"), embed="tok_embeddings",
    ),
    "internlm3": Family(
        like="llama", aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"}, varies=_internlm3,
        defaults=sizes(128512, None, 10240, 48, None, 2, 128, 32768),
    ),
    "iquestcoder": Family(
        like="llama",
        defaults=sizes(76800, 5120, 27648, 80, 40, 8, 128, 131072),
    ),
    "minicpm": Family(like="llama", mlp_bias=False, defaults={"tie_word_embeddings": True}),  # 1, 2 and 4
    "mimo": Family(  # MiMo-7B, without the layers that predict further tokens
        like="llama", out_bias=False, mlp_bias=False,
        defaults={"vocab_size": 151680, "num_key_value_heads": 8, "attention_bias": True},
    ),
    "seed_oss": Family(
        like="llama", out_bias="attention_out_bias",
        numerics={
            "dropout": {**dict.fromkeys(("attention", "mlp"), "residual_dropout"),
                        "scores": "attention_dropout"},
            "dropout_default": 0.1,
        },
        defaults=sizes(155136, None, 27648, 64, 80, 8, 128, 524288, attention_bias=True),
    ),
    "smollm3": Family(  # one layer in four has no rotary positions
        like="llama", slides=_smollm3_slides, slides_if="use_sliding_window",
        marks=lambda f, *_: no_rope_layers(f),
        defaults=sizes(
            128256, 2048, None, 36, 16, 4, None, 32768, no_rope_layer_interval=4, tie_word_embeddings=True,
        ),
    ),
    "xverse": Family(like="llama", bias=False, mlp_bias=False),
    "nemotron-nas": Family(like="llama", build=nemotron_nas),
    # --- the same blocks under other names, or with other norms
    "qwen": Family(  # Qwen v1: gate and up each half of `intermediate_size`
        like="llama", bias=True, out_bias=False, mlp_bias=False, fused="c_attn", out="c_proj", varies=_qwen,
        heads={"kv": "", "dim": "kv_channels"}, mlp=("w2", "w1", "c_proj"), activation="silu",
        before=("ln_1", "ln_2"), final="ln_f", embed="wte", positions="seq_length",
        defaults={
            "vocab_size": 151936, "intermediate_size": 22016, "kv_channels": 128, "seq_length": 8192,
            "no_bias": True,
        },
    ),
    "chatglm": Family(  # ChatGLM2, ChatGLM3, GLM-4-9B
        varies=_chatglm, out_bias="add_bias_linear", mlp_bias="add_bias_linear", fused="query_key_value",
        out="dense", mlp=("", "", "dense_4h_to_h"), mlp_fused="dense_h_to_4h", final="final_layernorm",
        embed="word_embeddings", head="output_layer",
        aliases={
            "vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size",
            "num_hidden_layers": "num_layers", "head_dim": "kv_channels",
            "max_position_embeddings": "seq_length", "num_key_value_heads": "multi_query_group_num",
        },
        defaults=sizes(
            65024, 4096, 13696, 28, 32, 1, 128, 2048, rmsnorm=True, post_layer_norm=True, hidden_act="silu",
        ),
    ),
    "baichuan": Family(  # 1 and 2; the 13B has ALiBi and names no longest position
        like="xverse", fused="W_pack", aliases={"max_position_embeddings": "model_max_length"},
        varies=lambda f: {"rotary": "max_position_embeddings" in f.config},
        defaults={"vocab_size": 125696, "max_position_embeddings": None},
    ),
    "exaone": Family(  # EXAONE 3 and 3.5: Llama under GPT-2's names
        like="xverse", out="out_proj", mlp=("c_fc_0", "c_fc_1", "c_proj"), before=("ln_1", "ln_2"),
        final="ln_f", embed="wte",
        aliases={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"},
        defaults={"vocab_size": 102400, "intermediate_size": 16384},
    ),
    "orion": Family(
        like="xverse", norm=LAYER_NORM, defaults={"vocab_size": 84608, "intermediate_size": 15360},
    ),
    "phi3small": Family(
        bias=True, fused="query_key_value", out="dense", norm=LAYER_NORM, final="final_layernorm",
        mlp=("", "", "down_proj"), mlp_fused="up_proj", mlp_bias=True, mlp_size="ff_intermediate_size",
        activation="gegelu",
        fields={"notes": ("Block-sparse attention is counted as if every query saw all keys before it.",)},
        defaults=sizes(
            100352, 4096, None, 32, 32, 8, None, 8192, ff_intermediate_size=14336, tie_word_embeddings=True,
        ),
    ),
    "olmo": Family(  # OLMo 1: LayerNorms without weights
        like="llama", mlp_bias=False, norm=Norm("", 0, "layer", weight=False), clip="clip_qkv",
        numerics={"wide_layer_norms": True, "wide_tables": True}, defaults={"vocab_size": 50304},
    ),
    "hf_olmo": Family(  # OLMo 1 before transformers had it
        like="olmo", fused="att_proj", out="attn_out", mlp_fused="ff_proj", mlp=("ff_out",), varies=_hf_olmo,
        aliases={
            "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
            "vocab_size": "embedding_size", "tie_word_embeddings": "weight_tying",
            "max_position_embeddings": "max_sequence_length",
        },
        defaults={"mlp_ratio": 4, "tie_word_embeddings": True},
    ),
    "olmo2": Family(  # norms after the branches, and on all queries and all keys at once
        like="llama", mlp_bias=False, qk_norms=WIDE_HEAD_NORMS, before=("", ""), after=AFTER_BRANCHES,
        numerics={"wide_norms": True, "wide_tables": True}, defaults={"vocab_size": 50304},
    ),
    "olmo3": Family(  # three layers in four slide
        like="olmo2", slides=4, defaults={"sliding_window": 4096},
        numerics={"wide_norms": True, "wide_tables": True, "tables_by_kind": True},
    ),
    "exaone4": Family(  # full layers have no rotary positions
        like="llama", bias=False, mlp_bias=False, qk_norms=HEAD_NORMS, before=("", ""), after=AFTER_BRANCHES,
        slides=_exaone4_slides, marks=rotary_where_sliding,
        defaults={
            "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
            "sliding_window": 4096, "sliding_window_pattern": 4,
        },
    ),
    "gemma": Family(  # heads of 256 channels, a GeGLU
        bias="attention_bias", numerics=WIDE_NORMS,
        defaults=sizes(
            256000, 3072, 24576, 28, 16, 16, 256, 8192, hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
        ),
    ),
    "gemma2": Family(  # every other layer slides, beginning with the first
        like="gemma", act="hidden_activation", slides=2,
        before=("input_layernorm", "pre_feedforward_layernorm"), after=AFTER_BRANCHES,
        numerics={
            **WIDE_NORMS, "own_loss": True, "softcap": "attn_logit_softcapping",
            "logit_cap": "final_logit_softcapping", "kernels": ("flash",),
        },
        defaults=sizes(
            None, 2304, 9216, 26, 8, 4, sliding_window=4096, hidden_activation="gelu_pytorch_tanh",
        ),
    ),
    "gemma3_text": Family(  # five layers in six slide
        like="gemma2", qk_norms=HEAD_NORMS, slides="sliding_window_pattern", varies=_gemma3,
        numerics={**WIDE_NORMS, "tables_by_kind": True},
        defaults={"vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6},
    ),
    "vaultgemma": Family(  # Gemma 2 without the norms after its branches
        like="gemma2", after=("", ""),
        numerics={
            **WIDE_NORMS, "softcap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping",
            "kernels": ("flash",),
        },
    ),
    # --- a feed-forward of two projections
    "arcee": Family(  # Arcee's AFM
        like="llama", gated=False, mlp=UP_DOWN,
        defaults={
            "hidden_size": 2560, "intermediate_size": 18432, "hidden_act": "relu2",
            "max_position_embeddings": 4096,
        },
    ),
    "apertus": Family(  # two parameters in its activation
        like="llama", gated=False, mlp=UP_DOWN, mlp_bias=False, qk_norms=HEAD_NORMS, varies=_apertus,
        before=("attention_layernorm", "feedforward_layernorm"),
        defaults={
            "vocab_size": 131072, "intermediate_size": 14336, "hidden_act": "xielu",
            "max_position_embeddings": 65536,
        },
    ),
    "jais2": Family(
        like="llama", gated=False, mlp=UP_DOWN, norm=LAYER_NORM,
        defaults=sizes(
            150272, 3328, 26624, None, 26, None, None, 8192, hidden_act="relu2", attention_bias=True,
            mlp_bias=True,
        ),
    ),
    "nanochat": Family(  # RMS norms without weights, on the heads and on the embeddings as well
        like="llama", gated=False, mlp=("fc1", "fc2"), mlp_bias=False, norm=Norm("", 0, weight=False),
        qk_norms=qk_norms(weight=False), embedding_norm="norm",
        numerics={"logit_cap": "final_logit_softcapping"},
        defaults=sizes(50304, 768, 8192, 12, 6, hidden_act="relu2"),
    ),
    "nemotron": Family(  # Nemotron 3 8B, 4 and Minitron
        like="llama", gated=False, mlp=UP_DOWN, norm=LAYER_NORM, numerics={"unit_norms": True},
        defaults=sizes(
            256000, 6144, 24576, None, 48, None, None, 4096, hidden_act="relu2", partial_rotary_factor=0.5,
        ),
    ),
    "starcoder2": Family(
        like="llama", bias="use_bias", gated=False, mlp=("c_fc", "c_proj"), mlp_bias="use_bias",
        norm=LAYER_NORM, slides=ALL,
        defaults=sizes(
            49152, 3072, 12288, 30, 24, 2, None, 4096, hidden_act="gelu_pytorch_tanh", use_bias=True,
            tie_word_embeddings=True,
        ),
    ),
}
# fmt: on
