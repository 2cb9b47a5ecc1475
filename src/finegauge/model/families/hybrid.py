"""Hybrids: some layers attend, the others carry a recurrent state (Jamba, Bamba, Granite 4, Nemotron-H).

Defaults are those of the transformers 5.23 classes.
"""

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Layer, Linear, Mamba2, Mixer, Norm
from finegauge.model.families.moe import experts
from finegauge.model.families.moe_shared import grouped_routing
from finegauge.model.families.parts import (
    attention,
    divided,
    gated_mlp,
    heads,
    language_model,
    numerics,
    plain_mlp,
    pre_norm_layer,
    rms_layer,
    stack,
)
from finegauge.model.families.reading import MAX_LAYERS, Config, Figures
from finegauge.model.families.routed import granite_experts
from finegauge.model.families.ssm import dt_rank_of, mamba1, mamba2_mixer

JAMBA = {
    "vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 262144, "num_experts_per_tok": 2, "num_experts": 16,
    "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto",
    "mamba_conv_bias": True, "mamba_proj_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
BAMBA = {
    "vocab_size": 128000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 262144, "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
    "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_proj_bias": False, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip
GRANITE_HYBRID = {
    **BAMBA, "vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": None,
    "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_intermediate_size": 1024,
}  # fmt: skip
NEMOTRON_H = {
    "vocab_size": 131072, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 4096, "intermediate_size": 21504, "mlp_hidden_act": "relu2",
    "mlp_bias": False, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
    "norm_topk_prob": True,
    "conv_kernel": 4, "use_conv_bias": True, "chunk_size": 128, "use_bias": False, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
    "tie_word_embeddings": False,
}  # fmt: skip
NEMOTRON_H_KEYS = {
    "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
    "chunk_size": "mamba_chunk_size", "n_routed_experts": "num_local_experts",
}  # fmt: skip
NEMOTRON_H_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
RENAMED_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def jamba(config: Config) -> Architecture:
    """Return Jamba: one attention in eight layers, experts in every other; no rotary positions."""
    f = Figures(config, JAMBA, {"num_experts": "num_local_experts"})
    attends, attends_at = f.size("attn_layer_period"), f.count("attn_layer_offset")
    routes, routes_at = f.size("expert_layer_period"), f.count("expert_layer_offset")
    many = f.size("num_experts") > 1
    kinds = [
        (index % attends == attends_at, many and index % routes == routes_at)
        for index in range(f.num_layers())
    ]
    layers = stack(kinds, lambda kind: _jamba_layer(f, *kind))
    return language_model(f, layers, final_norm=Norm("final_layernorm", f.size("hidden_size")))


def _jamba_layer(f: Figures, attends: bool, routes: bool) -> Layer:
    hidden = f.size("hidden_size")
    mixer: Mixer
    if attends:
        mixer = attention(hidden, heads(f), rotary=False)
    else:
        mixer = mamba1(
            hidden,
            f.size("mamba_expand") * hidden,
            state=f.size("mamba_d_state"),
            kernel=f.size("mamba_d_conv"),
            dt_rank=dt_rank_of(f, "mamba_dt_rank"),
            bias=f.flag("mamba_proj_bias"),
            conv_bias=f.flag("mamba_conv_bias"),
            norms="weighted",
        )
    feed: Mixer
    if routes:
        feed = experts(f, size="intermediate_size", router_name="router")
    else:
        feed = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    return rms_layer(hidden, mixer, feed, names=("input_layernorm", "pre_ff_layernorm"))


def _mamba2_of(f: Figures) -> Mamba2:
    """Return the Mamba-2 mixer under Bamba's keys."""
    hidden, num = f.size("hidden_size"), f.size("mamba_n_heads")
    inner = f.size("mamba_expand") * hidden
    head_dim = divided(f, "mamba_expand x hidden_size", inner, "mamba_n_heads", num)
    divided(f, "mamba_n_heads", num, "mamba_n_groups", f.size("mamba_n_groups"))
    if f.raw("mamba_d_head") not in ("auto", None, head_dim):
        raise FieldError(
            f"mamba_d_head={shown(f.raw('mamba_d_head'))}, but {inner} channels in {num} heads: {head_dim}."
        )
    return mamba2_mixer(
        hidden,
        inner,
        state=f.size("mamba_d_state"),
        kernel=f.size("mamba_d_conv"),
        num_heads=num,
        num_groups=f.size("mamba_n_groups"),
        chunk=f.size("mamba_chunk_size"),
        bias=f.flag("mamba_proj_bias"),
        conv_bias=f.flag("mamba_conv_bias"),
    )


def bamba(config: Config) -> Architecture:
    """Return Bamba: Mamba-2 layers, attention where `attn_layer_indices` says so."""
    f = Figures(config, BAMBA)
    hidden, listed = f.size("hidden_size"), f.items("attn_layer_indices") or ()
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=f.flag("mlp_bias"))
    bias = f.flag("attention_bias")

    def build(attends: bool) -> Layer:
        mixer: Mixer = attention(hidden, heads(f), bias=bias, out_bias=bias) if attends else _mamba2_of(f)
        return rms_layer(hidden, mixer, mlp, names=("input_layernorm", "pre_ff_layernorm"))

    layers = stack([index in listed for index in range(f.num_layers())], build)
    return language_model(f, layers, final_norm=Norm("final_layernorm", hidden))


@numerics(scaled_logits=True)
def granitemoehybrid(config: Config) -> Architecture:
    """Return Granite 4: Mamba-2 or attention, then experts beside a shared feed-forward, or that alone."""
    f = Figures(config, GRANITE_HYBRID, {"layer_types": "layers_block_type"})
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    rotary = f.raw("position_embedding_type") == "rope"
    names = ("", "", "output_linear")
    if f.count("num_local_experts"):
        feed: Mixer = granite_experts(f)
    else:
        size = f.size("shared_intermediate_size")
        feed = gated_mlp(hidden, size, f.text("hidden_act"), names=names, fused="input_linear")
    known = ("mamba", "attention", *RENAMED_KINDS)
    kinds = [RENAMED_KINDS.get(kind, kind) for kind in f.layer_kinds(lambda _: "mamba", known)]

    def build(kind: str) -> Layer:
        if kind == "mamba":
            return rms_layer(hidden, _mamba2_of(f), feed)
        return rms_layer(hidden, attention(hidden, heads(f), bias=bias, out_bias=bias, rotary=rotary), feed)

    return language_model(f, stack(kinds, build), final_norm=Norm("norm", hidden))


@numerics(wide_norms=True, unit_norms=True, wide_logits=True)
def nemotron_h(config: Config) -> Architecture:
    """Return Nemotron-H and Nemotron 3: one mixer per layer, in the order of a pattern of letters.

    Its transformers class never ties the head, whatever the file says.
    """
    f = Figures(config, NEMOTRON_H, NEMOTRON_H_KEYS)
    hidden = f.size("hidden_size")

    def build(kind: str) -> Layer:
        return pre_norm_layer([_nemotron_h_mixer(f, kind)], [Norm("norm", hidden)])

    layers = stack(_nemotron_h_kinds(f), build)
    return language_model(f, layers, final_norm=Norm("norm_f", hidden), embed="embeddings", tied=False)


def _nemotron_h_kinds(f: Figures) -> list[str]:
    """Return the mixer of every layer; the length of the pattern is the number of layers."""
    listed = f.items("layers_block_type") or f.items("layer_types")
    if listed is not None:
        kinds = [RENAMED_KINDS.get(str(kind), str(kind)) for kind in listed]
    else:
        pattern = f.raw("hybrid_override_pattern") or "ME*-"
        if not isinstance(pattern, str) or len(pattern) > MAX_LAYERS:
            raise FieldError(f"hybrid_override_pattern={shown(pattern)} is not a text of M, E, * and -.")
        kinds = [NEMOTRON_H_LETTERS.get(letter, letter) for letter in pattern]
    for kind in kinds:
        if kind not in NEMOTRON_H_LETTERS.values():
            raise f.unsupported(f"a layer of kind {shown(kind)}")
    return kinds


def _nemotron_h_mixer(f: Figures, kind: str) -> Mixer:
    hidden, bias = f.size("hidden_size"), f.flag("mlp_bias")
    if kind == "mamba":
        num = f.size("mamba_num_heads")
        divided(f, "mamba_num_heads", num, "n_groups", f.size("n_groups"))
        return mamba2_mixer(
            hidden,
            num * f.size("mamba_head_dim"),
            state=f.size("ssm_state_size"),
            kernel=f.size("conv_kernel"),
            num_heads=num,
            num_groups=f.size("n_groups"),
            chunk=f.size("chunk_size"),
            bias=f.flag("use_bias"),
            conv_bias=f.flag("use_conv_bias"),
        )
    if kind == "attention":
        return attention(hidden, heads(f), rotary=False)
    act, names = f.text("mlp_hidden_act"), ("up_proj", "down_proj")
    if kind == "mlp":
        return plain_mlp(hidden, f.size("intermediate_size"), act, bias=bias, names=names)
    shared = plain_mlp(hidden, f.size("moe_shared_expert_intermediate_size"), act, bias=bias, names=names)
    routed = experts(
        f,
        num="n_routed_experts",
        gated=False,
        act="mlp_hidden_act",
        shared=shared,
        routing=grouped_routing(f)._replace(wide_sum=True),
    )
    narrow = f.optional("moe_latent_size")
    if narrow is None:
        return routed
    into, out = (
        Linear("fc1_latent_proj", hidden, narrow, bias),
        Linear("fc2_latent_proj", narrow, hidden, bias),
    )
    return routed._replace(latent=(into, out))
