"""Dense decoders of Llama's build, each with something of its own: a bias, a norm, a window, a feed-forward.

Defaults are those of the transformers 5.23 classes.
"""

from collections.abc import Callable, Sequence

from finegauge.errors import FieldError
from finegauge.model.blocks import Architecture, Attention, FeedForward, Layer, Norm, Tensor
from finegauge.model.families.gemma import GEMMA2
from finegauge.model.families.llama import FULL, LLAMA, SLIDING, dense, llama, windowed
from finegauge.model.families.parts import (
    attention,
    framed_layer,
    gated_mlp,
    head_norms,
    heads,
    language_model,
    layer_norm,
    numerics,
    plain_mlp,
    pre_norm_layer,
    rms_layer,
    stack,
    window_below,
)
from finegauge.model.families.reading import Config, Figures

ARCEE = {
    **LLAMA, "hidden_size": 2560, "intermediate_size": 18432, "hidden_act": "relu2",
    "max_position_embeddings": 4096,
}  # fmt: skip
APERTUS = {
    **LLAMA, "vocab_size": 131072, "intermediate_size": 14336, "hidden_act": "xielu",
    "max_position_embeddings": 65536,
}  # fmt: skip
CWM = {
    **LLAMA, "vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504, "num_hidden_layers": 64,
    "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    "sliding_window": 8192,
}  # fmt: skip
ERNIE4_5 = {
    "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 131072, "use_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
GLM = {
    **LLAMA, "vocab_size": 151552, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072, "attention_bias": True,
}  # fmt: skip
GRANITE_SWA = {
    **LLAMA, "vocab_size": 100352, "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
    "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 8192,
    "sliding_window": 128, "tie_word_embeddings": True,
}  # fmt: skip
HELIUM = {
    **LLAMA, "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
    "num_attention_heads": 20, "num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096,
}  # fmt: skip
HUNYUAN = {**LLAMA, "vocab_size": 290943}
HYPERCLOVAX = {**LLAMA, "use_post_norm": True}
INTERNLM3 = {
    **LLAMA, "vocab_size": 128512, "intermediate_size": 10240, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 32768,
}  # fmt: skip
IQUESTCODER = {
    **LLAMA, "vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 80,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
}  # fmt: skip
JAIS2 = {
    **LLAMA, "vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624,
    "num_attention_heads": 26, "hidden_act": "relu2", "max_position_embeddings": 8192,
    "attention_bias": True, "mlp_bias": True,
}  # fmt: skip
MINISTRAL = {
    **LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "sliding_window": 4096,
}  # fmt: skip
NANOCHAT = {
    **LLAMA, "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12,
    "num_attention_heads": 6, "hidden_act": "relu2",
}  # fmt: skip
OLMO = {**LLAMA, "vocab_size": 50304}
SEED_OSS = {
    **LLAMA, "vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288,
    "attention_bias": True, "attention_out_bias": False,
}  # fmt: skip
SMOLLM3 = {
    **LLAMA, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "use_sliding_window": False,
    "no_rope_layer_interval": 4, "tie_word_embeddings": True,
}  # fmt: skip
STARCODER2 = {
    **LLAMA, "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
    "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096, "use_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")


def _figures(config: Config, defaults: Config) -> Figures:
    """Return the figures of a class whose feed-forward has no biases, whatever the file says."""
    return Figures({**config, "mlp_bias": False}, defaults)


def _plain(f: Figures, *, bias: bool, names: tuple[str, str] = ("up_proj", "down_proj")) -> FeedForward:
    return plain_mlp(
        f.size("hidden_size"), f.size("intermediate_size"), f.text("hidden_act"), bias=bias, names=names
    )


def _equal_layers(f: Figures, block: Layer, final: Norm) -> Architecture:
    return language_model(f, ((block, f.num_layers()),), final_norm=final)


def arcee(config: Config) -> Architecture:
    """Return Arcee's AFM: Llama with a feed-forward of squared ReLU, ungated."""
    f = Figures(config, ARCEE)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias)
    return _equal_layers(
        f, rms_layer(hidden, mixer, _plain(f, bias=f.flag("mlp_bias"))), Norm("norm", hidden)
    )


def apertus(config: Config) -> Architecture:
    """Return Apertus: norms on the heads, a feed-forward without gate, two parameters in its activation."""
    f = Figures(config, APERTUS)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=head_norms(of[2]))
    block = rms_layer(
        hidden, mixer, _plain(f, bias=False), names=("attention_layernorm", "feedforward_layernorm")
    )
    if f.text("hidden_act") == "xielu":
        alphas = tuple(Tensor(f"act_fn.{name}", (1,), "state") for name in ("alpha_p", "alpha_n"))
        block = block._replace(extra=alphas)
    return _equal_layers(f, block, Norm("norm", hidden))


def cwm(config: Config) -> Architecture:
    """Return CWM: Llama without biases, three layers in four slide, beginning with the second."""
    return _windowed(Figures(config, CWM), lambda index: SLIDING if index % 4 else FULL)


def ministral(config: Config) -> Architecture:
    """Return Ministral 8B: Mistral with a kind for every layer, all sliding unless listed."""
    f = _figures(config, MINISTRAL)
    return _windowed(f, lambda _: FULL if f.optional("sliding_window") is None else SLIDING)


def _windowed(f: Figures, kind_of: Callable[[int], str]) -> Architecture:
    hidden, of = f.size("hidden_size"), heads(f)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"))
    kinds = f.layer_kinds(kind_of, (FULL, SLIDING))
    layers = windowed(f, kinds, lambda window: attention(hidden, of, window=window), mlp)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


@numerics(wide_tables=True, own_tables=1)
def ernie4_5(config: Config) -> Architecture:
    """Return ERNIE 4.5, dense: Llama with one flag for all biases, embedding and head tied."""
    bias = Figures(config, ERNIE4_5).flag("use_bias")
    return dense(Figures({**config, "mlp_bias": bias}, ERNIE4_5), bias=bias, out_bias=bias)


def glm(config: Config) -> Architecture:
    """Return GLM-4 (9B, of 2024): biases on q, k and v, gate and up in one projection."""
    f = _figures(config, GLM)
    return dense(f, bias=f.flag("attention_bias"), fused_mlp="gate_up_proj")


def glm4(config: Config) -> Architecture:
    """Return GLM-4-0414 and Z1: GLM with a norm after each branch, too."""
    f = Figures(config, GLM)
    hidden, act = f.size("hidden_size"), f.text("hidden_act")
    mixer = attention(hidden, heads(f), bias=f.flag("attention_bias"))
    mlp = gated_mlp(hidden, f.size("intermediate_size"), act, fused="gate_up_proj")
    block = framed_layer(
        hidden,
        (mixer, PRE_NORMS[0], "post_self_attn_layernorm"),
        (mlp, PRE_NORMS[1], "post_mlp_layernorm"),
    )
    return _equal_layers(f, block, Norm("norm", hidden))


@numerics(scaled_logits=True, sinks="scaled")
def granite_swa(config: Config) -> Architecture:
    """Return Granite with sliding windows: three layers in four, sinks in all of them."""
    f = Figures(config, GRANITE_SWA)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    sinks = (Tensor("sinks", (of[0],), "state"),)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"))
    kinds = f.layer_kinds(lambda index: SLIDING if index % 4 else FULL, (FULL, SLIDING))

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, window=window, extra=sinks)

    return language_model(f, windowed(f, kinds, mixer, mlp), final_norm=Norm("norm", hidden))


@numerics(wide_norms=True, unit_norms=True, own_tables=1)
def helium(config: Config) -> Architecture:
    """Return Helium: Llama whose output projection never has a bias."""
    f = Figures(config, HELIUM)
    num, _, dim = heads(f)
    if num * dim != f.size("hidden_size"):
        raise FieldError(
            f"num_attention_heads={num} of {dim} channels are not the hidden_size={f.size('hidden_size')} "
            "that Helium's output projection takes."
        )
    return dense(f, bias=f.flag("attention_bias"))


def hunyuan_v1_dense(config: Config) -> Architecture:
    """Return Hunyuan, dense: norms on the heads of queries and keys."""
    f = _figures(config, HUNYUAN)
    bias, norms = (
        f.flag("attention_bias"),
        head_norms(heads(f)[2], names=("query_layernorm", "key_layernorm")),
    )
    return dense(f, bias=bias, out_bias=bias, qk_norms=norms, norms_last=True)


@numerics(scaled_logits=True)
def hyperclovax(config: Config) -> Architecture:
    """Return HyperCLOVA X SEED: Granite, with a norm after each branch by flag."""
    f = Figures(config, HYPERCLOVAX)
    hidden, bias, act = f.size("hidden_size"), f.flag("attention_bias"), f.text("hidden_act")
    after = ("post_norm1", "post_norm2") if f.flag("use_post_norm") else ("", "")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), act, bias=f.flag("mlp_bias"))
    block = framed_layer(
        hidden,
        (attention(hidden, heads(f), bias=bias, out_bias=bias), PRE_NORMS[0], after[0]),
        (mlp, PRE_NORMS[1], after[1]),
    )
    return _equal_layers(f, block, Norm("norm", hidden))


def internlm3(config: Config) -> Architecture:
    """Return InternLM 3, which transformers runs as a Llama."""
    f = Figures(config, INTERNLM3, {"attention_bias": "qkv_bias", "mlp_bias": "bias"})
    bias = f.flag("attention_bias")
    if bias != f.flag("mlp_bias"):
        raise f.unsupported("qkv_bias other than bias")
    return dense(f, bias=bias, out_bias=bias)


def iquestcoder(config: Config) -> Architecture:
    """Return IQuest-Coder, which transformers runs as a Llama."""
    return llama({**IQUESTCODER, **config})


def jais2(config: Config) -> Architecture:
    """Return Jais 2: LayerNorms and biases, a feed-forward of squared ReLU, ungated."""
    f = Figures(config, JAIS2)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias)
    norms = [layer_norm(name, hidden) for name in PRE_NORMS]
    block = pre_norm_layer([mixer, _plain(f, bias=f.flag("mlp_bias"))], norms)
    return _equal_layers(f, block, layer_norm("norm", hidden))


@numerics(logit_cap="final_logit_softcapping")
def nanochat(config: Config) -> Architecture:
    """Return nanochat: RMS norms without weights, on the heads and on the embeddings as well."""
    f = Figures(config, NANOCHAT)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms = tuple(Norm(name, of[2], weight=False) for name in ("q_norm", "k_norm"))
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=norms)
    around = [Norm(name, hidden, weight=False) for name in PRE_NORMS]
    block = pre_norm_layer([mixer, _plain(f, bias=False, names=("fc1", "fc2"))], around)
    norm = Norm("norm", hidden, weight=False)
    return _equal_layers(f, block, norm)._replace(embedding_norm=norm)


@numerics(wide_layer_norms=True, wide_tables=True)
def olmo(config: Config) -> Architecture:
    """Return OLMo 1: LayerNorms without weights."""
    f = Figures(config, OLMO)
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    clipped = f.raw("clip_qkv") is not None
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias, clipped=clipped)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    *norms, final = [layer_norm(name, hidden, weight=False, bias=False) for name in (*PRE_NORMS, "norm")]
    return _equal_layers(f, pre_norm_layer([mixer, mlp], norms), final)


@numerics(
    dropout={**dict.fromkeys(("attention", "mlp"), "residual_dropout"), "scores": "attention_dropout"},
    dropout_default=0.1,
)
def seed_oss(config: Config) -> Architecture:
    """Return Seed-OSS: Llama with biases on q, k and v, and a flag of its own for the output's."""
    f = Figures(config, SEED_OSS)
    return dense(f, bias=f.flag("attention_bias"), out_bias=f.flag("attention_out_bias"))


def smollm3(config: Config) -> Architecture:
    """Return SmolLM3: Llama, of which one layer in four has no rotary positions."""
    f = Figures(config, SMOLLM3)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"))
    every, slides = f.size("no_rope_layer_interval"), f.flag("use_sliding_window")
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    listed = f.items("no_rope_layers")
    rotary = _flags(f, listed) if listed else [(index + 1) % every != 0 for index in range(f.num_layers())]
    kinds = f.layer_kinds(lambda index: FULL if rotary[index] else SLIDING, (FULL, SLIDING))

    def build(kind: tuple[str, bool]) -> Layer:
        sees = window if slides and kind[0] == SLIDING else None
        mixer = attention(hidden, of, bias=bias, out_bias=bias, window=sees, rotary=kind[1])
        return rms_layer(hidden, mixer, mlp)

    layers = stack(zip(kinds, rotary, strict=True), build)
    return language_model(f, layers, final_norm=Norm("norm", hidden))


def _flags(f: Figures, listed: Sequence[object]) -> list[bool]:
    """Return `no_rope_layers` as truth values, one per layer."""
    if len(listed) < f.num_layers():
        raise FieldError(f"no_rope_layers has {len(listed)} entries for {f.num_layers()} layers.")
    return [bool(flag) for flag in listed[: f.num_layers()]]


def starcoder2(config: Config) -> Architecture:
    """Return StarCoder2: LayerNorms, biases everywhere, an ungated feed-forward, tied head."""
    f = Figures(config, STARCODER2)
    hidden, bias = f.size("hidden_size"), f.flag("use_bias")
    window = window_below(f.optional("sliding_window"), f.optional("max_position_embeddings"))
    mixer = attention(hidden, heads(f), bias=bias, out_bias=bias, window=window)
    norms = [layer_norm(name, hidden) for name in PRE_NORMS]
    block = pre_norm_layer([mixer, _plain(f, bias=bias, names=("c_fc", "c_proj"))], norms)
    return _equal_layers(f, block, layer_norm("norm", hidden))


@numerics(
    wide_norms=True,
    unit_norms=True,
    softcap="attn_logit_softcapping",
    logit_cap="final_logit_softcapping",
    kernels=("flash",),
)
def vaultgemma(config: Config) -> Architecture:
    """Return VaultGemma: Gemma 2 without the norms after its branches."""
    f = Figures(config, GEMMA2)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_activation"))
    kinds = f.layer_kinds(lambda index: FULL if index % 2 else SLIDING, (FULL, SLIDING))

    def mixer(window: int | None) -> Attention:
        return attention(hidden, of, bias=bias, out_bias=bias, window=window)

    def block(attended: Attention, feed: FeedForward) -> Layer:
        return rms_layer(hidden, attended, feed, names=("input_layernorm", "pre_feedforward_layernorm"))

    return language_model(f, windowed(f, kinds, mixer, mlp, block), final_norm=Norm("norm", hidden))
