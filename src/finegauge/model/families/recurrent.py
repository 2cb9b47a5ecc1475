"""State-space models and hybrids: layers that carry a state from token to token, some beside attention.

Mamba, Mamba-2, FalconMamba, BlackMamba (arXiv:2402.01771, whose files have keys of their own and no
`model_type`); LFM2 (short convolutions); Jamba, Bamba, Granite 4, Nemotron-H; Qwen3-Next and Qwen3.5, whose
layers keep a matrix per value head updated by the gated delta rule (arXiv:2412.06464) in chunks of 64 tokens.

Sources: state-spaces/mamba; transformers 5.23; Zyphra/BlackMamba.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import (
    Architecture,
    Branch,
    FeedForward,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Norm,
    Routing,
    ShortConvolution,
    Tensor,
)
from finegauge.model.families.decoder import Family, sizes
from finegauge.model.families.experts import granite_experts, routed_from, sparse_layers
from finegauge.model.families.parts import (
    FULL,
    MAX_LAYERS,
    Figures,
    attention,
    experts,
    feedforward,
    head_norms,
    heads,
    language_model,
    layer,
    stack,
)
from finegauge.model.ssm import LinearAttention, Mamba1, Mamba2

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # of Nemotron-H's pattern
KINDS = {"linear_attention": "mamba", "full_attention": "attention"}  # transformers' newer names
LINEAR = "linear_attention"
CHUNK_TOKENS = 64  # transformers' and flash-linear-attention's chunk of the delta rule


def _convolution(f: Figures, channels: int, kernel: str, bias: str | bool) -> list[Tensor]:
    tensors = [Tensor("conv1d.weight", (channels, 1, f.size(kernel)), "conv")]
    return [*tensors, Tensor("conv1d.bias", (channels,), "bias")] if f.flag(bias) else tensors


def mamba1_mixer(f: Figures, inner: int, keys: Mapping[str, str], dt_rank: int, norms: str = "") -> Mamba1:
    """Return a Mamba-1 mixer, its norms on step, B and C "weighted" (Jamba), "plain" or none ("")."""
    hidden, state, bias = f.size("hidden_size"), f.size(keys["state"]), f.flag(keys["bias"])
    conv = _convolution(f, inner, keys["kernel"], keys.get("conv_bias", True))
    widths = (("dt_layernorm", dt_rank), ("b_layernorm", state), ("c_layernorm", state)) if norms else ()
    return Mamba1(
        hidden_size=hidden,
        inner_size=inner,
        state_size=state,
        conv_kernel=f.size(keys["kernel"]),
        dt_rank=dt_rank,
        projections=(
            Linear("in_proj", hidden, 2 * inner, bias),
            Linear("x_proj", inner, dt_rank + 2 * state),
            Linear("dt_proj", dt_rank, inner, bias=True, kind="step"),  # not quantised
            Linear("out_proj", inner, hidden, bias),
        ),
        extra=(*conv, Tensor("A_log", (inner, state), "state"), Tensor("D", (inner,), "state")),
        norms=tuple(Norm(name, width, weight=norms == "weighted") for name, width in widths),
    )


def mamba2_mixer(f: Figures, inner: int, keys: Mapping[str, str], out_bias: str = "") -> Mamba2:
    """Return a Mamba-2 mixer, its gated norm over all `inner` channels."""
    hidden, state, bias = f.size("hidden_size"), f.size(keys["state"]), f.flag(keys["bias"])
    num_heads, groups = f.size(keys["heads"]), f.size(keys["groups"])
    f.divided(keys["heads"], num_heads, keys["groups"], groups)
    channels = inner + 2 * groups * state
    per_head = (Tensor(name, (num_heads,), "state") for name in ("dt_bias", "A_log", "D"))
    return Mamba2(
        hidden_size=hidden,
        inner_size=inner,
        state_size=state,
        conv_kernel=f.size(keys["kernel"]),
        num_heads=num_heads,
        head_dim=inner // num_heads,
        num_groups=groups,
        chunk_size=f.size(keys["chunk"]),
        projections=(
            Linear("in_proj", hidden, inner + channels + num_heads, bias),
            Linear("out_proj", inner, hidden, f.flag(out_bias) if out_bias else bias),
        ),
        extra=(*_convolution(f, channels, keys["kernel"], keys["conv_bias"]), *per_head),
        norms=(Norm("norm", inner),),
    )


def _expanded(f: Figures, key: str) -> int:
    hidden = f.size("hidden_size")
    inner = int(f.ratio(key) * hidden)
    if inner < 1:
        raise FieldError(f"{key}={f.raw(key)} leaves no channels of hidden_size={hidden}.")
    return inner


def dt_rank(f: Figures, key: str) -> int:
    """Return the rank of the time-step projection; "auto" is hidden_size / 16, rounded up."""
    return ceil(f.size("hidden_size") / 16) if f.raw(key) == "auto" else f.size(key)


def _alone(f: Figures, mixer: Mixer) -> Architecture:
    hidden = f.size("hidden_size")
    layers = ((layer(Branch(mixer, Norm("norm", hidden))), f.num_layers()),)
    return language_model(f, layers, Norm("norm_f", hidden), embed="embeddings")


def mamba(f: Figures) -> Architecture:
    """Return Mamba-1 as transformers has it; FalconMamba's norms on step, B and C have no weights."""
    inner = f.optional("intermediate_size") or _expanded(f, "expand")
    norms = "plain" if f.model_type == "falcon_mamba" else ""
    return _alone(f, mamba1_mixer(f, inner, SSM_KEYS, dt_rank(f, "time_step_rank"), norms))


def mamba2(f: Figures) -> Architecture:
    """Return Mamba-2 as transformers has it."""
    inner, num, dim = _expanded(f, "expand"), f.size("num_heads"), f.size("head_dim")
    if inner != num * dim:
        raise FieldError(f"expand x hidden_size = {inner} is not num_heads={num} x head_dim={dim}.")
    return _alone(f, mamba2_mixer(f, inner, SSM_KEYS))


def blackmamba(f: Figures) -> Architecture:
    """Return BlackMamba: layers that are a Mamba-1 mixer ("r") or so many routed experts ("8").

    The router has a bias; the layers' norms are RMS, the final one a LayerNorm.
    """
    hidden, kinds = f.size("hidden_size"), f.items("mamba_moe_layers")
    if kinds is None:
        raise FieldError(
            "mamba_moe_layers is missing: BlackMamba's config lists 'r' or a number of experts per layer."
        )
    if len(kinds) != f.num_layers("num_layers"):
        raise FieldError(
            f"mamba_moe_layers has {len(kinds)} entries, but num_layers={f.num_layers('num_layers')}."
        )

    def build(kind: str) -> Layer:
        return layer(Branch(_blackmamba(f, kind), Norm("norm", hidden)))

    final = Norm("final_layernorm", hidden, "layer", bias=True)
    return language_model(f, stack(map(str, kinds), build), final, embed="embedding")


def _blackmamba(f: Figures, kind: str) -> Mixer:
    hidden = f.size("hidden_size")
    if kind == "r":
        return mamba1_mixer(f, _expanded(f, "expansion_factor"), BLACKMAMBA_KEYS, ceil(hidden / 16))
    if not kind.isdecimal() or not 1 <= int(kind) <= 4096:
        raise FieldError(f"mamba_moe_layers has {shown(kind)}; entries are 'r' or a number of experts.")
    num, size = int(kind), f.optional("ffn_hidden_size") or 4 * hidden
    bias, gated = f.flag("add_bias_linear"), f.flag("swiglu")
    act = "silu" if gated else "gelu"
    if num == 1:
        names = ("linear_fc1", "linear_fc2")
        fused = names[0] if gated else ""
        return feedforward(hidden, size, act, bias=bias, gated=gated, names=names, fused=fused)
    return MixtureOfExperts(
        hidden_size=hidden,
        intermediate_size=size,
        num_experts=num,
        top_k=min(f.size("topk"), num),
        gated=gated,
        expert_bias=bias,
        router=Linear("router", hidden, num, True, kind="router"),
        activation=act,
    )


def _in_turns(f: Figures, every: str, offset: str) -> list[bool]:
    period, first = f.size(every), f.count(offset)
    return [index % period == first for index in range(f.num_layers())]


def _jamba_attends(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    return _in_turns(f, "attn_layer_period", "attn_layer_offset")


def _jamba_routes(f: Figures) -> list[bool]:
    many = f.size("num_experts") > 1
    return [many and turn for turn in _in_turns(f, "expert_layer_period", "expert_layer_offset")]


def _jamba_mixer(f: Figures, attends: Any) -> Mixer:
    hidden = f.size("hidden_size")
    if attends:
        return attention(hidden, heads(f), rotary=False)
    inner, rank = f.size("mamba_expand") * hidden, dt_rank(f, "mamba_dt_rank")
    return mamba1_mixer(f, inner, BAMBA_KEYS, rank, "weighted")


def _bamba_attends(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    listed = f.items("attn_layer_indices") or ()
    return [index in listed for index in range(len(kinds))]


def _bamba_mixer(f: Figures, attends: Any, *, rotary: bool = True) -> Mixer:
    hidden = f.size("hidden_size")
    if attends:
        bias = f.flag("attention_bias")
        return attention(hidden, heads(f), bias=bias, out_bias=bias, rotary=rotary)
    inner, num = f.size("mamba_expand") * hidden, f.size("mamba_n_heads")
    head_dim = f.divided("mamba_expand x hidden_size", inner, "mamba_n_heads", num)
    if f.raw("mamba_d_head") not in ("auto", None, head_dim):
        raise FieldError(
            f"mamba_d_head={shown(f.raw('mamba_d_head'))}, but {inner} channels in {num} heads: {head_dim}."
        )
    return mamba2_mixer(f, inner, BAMBA_KEYS)


def _granite4(f: Figures) -> Family:
    if f.count("num_local_experts"):
        return {"experts": granite_experts}
    return {"mlp": ("output_linear",), "mlp_fused": "input_linear", "mlp_size": "shared_intermediate_size"}


def _granite4_attends(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    listed = f.layer_kinds(lambda _: "mamba", ("mamba", "attention", *KINDS))
    return [KINDS.get(kind, kind) == "attention" for kind in listed]


def _granite4_mixer(f: Figures, attends: Any) -> Mixer:
    return _bamba_mixer(f, attends, rotary=f.raw("position_embedding_type") == "rope")


def nemotron_h(f: Figures) -> Architecture:
    """Return Nemotron-H and Nemotron 3: one mixer per layer, in the order of a pattern of letters.

    The length of the pattern is the number of layers. Its transformers class never ties the head,
    whatever the file says.
    """
    hidden, listed = f.size("hidden_size"), f.items("layers_block_type") or f.items("layer_types")
    if listed is not None:
        kinds = [KINDS.get(str(kind), str(kind)) for kind in listed]
    else:
        pattern = f.raw("hybrid_override_pattern") or "ME*-"
        if not isinstance(pattern, str) or len(pattern) > MAX_LAYERS:
            raise FieldError(f"hybrid_override_pattern={shown(pattern)} is not a text of M, E, * and -.")
        kinds = [LETTERS.get(letter, letter) for letter in pattern]
    for kind in kinds:
        if kind not in LETTERS.values():
            raise f.unsupported(f"a layer of kind {shown(kind)}")

    def build(kind: str) -> Layer:
        return layer(Branch(_nemotron_h_mixer(f, kind), Norm("norm", hidden)))

    return language_model(f, stack(kinds, build), Norm("norm_f", hidden), embed="embeddings", tied=False)


def _nemotron_h_mixer(f: Figures, kind: str) -> Mixer:
    hidden, bias = f.size("hidden_size"), f.flag("mlp_bias")
    if kind == "mamba":
        return mamba2_mixer(f, f.size("mamba_num_heads") * f.size("mamba_head_dim"), NEMOTRON_H_KEYS)
    if kind == "attention":
        return attention(hidden, heads(f), rotary=False)

    def squared(size: str) -> FeedForward:
        act, names = f.text("mlp_hidden_act"), ("up_proj", "down_proj")
        return feedforward(hidden, f.size(size), act, bias=bias, gated=False, names=names)

    if kind == "mlp":
        return squared("intermediate_size")
    narrow = f.optional("moe_latent_size")
    latent: tuple[Linear, ...] = ()
    if narrow is not None:
        latent = (
            Linear("fc1_latent_proj", hidden, narrow, bias),
            Linear("fc2_latent_proj", narrow, hidden, bias),
        )
    routing = Routing("sigmoid", wide_logits=True, wide_weights=True, wide_sum=True)
    return experts(
        f, num="n_routed_experts", gated=False, act="mlp_hidden_act", normalised="norm_topk_prob",
        shared=squared("moe_shared_expert_intermediate_size"), routing=routing, latent=latent,
    )  # fmt: skip


def _linear_layers(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    every = f.size("full_attention_interval")
    listed = f.layer_kinds(lambda index: LINEAR if (index + 1) % every else FULL, (FULL, LINEAR))
    return [kind == LINEAR for kind in listed]


def _qwen_mixer(f: Figures, linear: Any, *, fused: bool = False) -> Mixer:
    """Return gated attention, or the delta rule; `fused` has q, k, v and output gate in one projection."""
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    if not linear:
        of = heads(f)
        norms = head_norms(of[2])
        return attention(hidden, of, bias=bias, out_bias=bias, norms=norms, output_gate=True)
    num_keys, num_values = f.size("linear_num_key_heads"), f.size("linear_num_value_heads")
    f.divided("linear_num_value_heads", num_values, "linear_num_key_heads", num_keys)
    value_dim, kernel = f.size("linear_value_head_dim"), f.size("linear_conv_kernel_dim")
    values = num_values * value_dim
    channels = 2 * num_keys * f.size("linear_key_head_dim") + values
    if fused:
        sizes = {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * num_values}
    else:
        sizes = {
            "in_proj_qkv": channels, "in_proj_z": values, "in_proj_b": num_values, "in_proj_a": num_values,
        }  # fmt: skip
    inputs = [Linear(name, hidden, size) for name, size in sizes.items()]
    dims = f.size("linear_key_head_dim"), value_dim
    return delta_rule(inputs, num_values, dims, channels, kernel, names=("out_proj", "norm"))


def delta_rule(
    inputs: Sequence[Linear], num: int, dims: tuple[int, int], conv_size: int, kernel: int,
    *, names: tuple[str, str] = ("o_proj", "o_norm"), biases: int = 0, decay_shape: tuple[int, ...] = (),
    decay_bytes: float = 0.0,
) -> LinearAttention:  # fmt: skip
    """Return a gated delta rule of `num` heads, whose keys and values have these `dims`.

    `names` are those of its output and of its norm, `biases` how many the time step has and `decay_shape`
    that of the decay: one for each head unless stated.
    """
    hidden, (key_dim, value_dim) = inputs[0].in_features, dims
    return LinearAttention(
        hidden_size=hidden,
        num_heads=num,
        key_head_dim=key_dim,
        value_head_dim=value_dim,
        conv_size=conv_size,
        conv_kernel=kernel,
        chunk_size=CHUNK_TOKENS,
        projections=(*inputs, Linear(names[0], num * value_dim, hidden)),
        extra=(
            Tensor("conv1d.weight", (conv_size, 1, kernel), "conv"),
            Tensor("dt_bias", (biases or num,), "state"),
            Tensor("A_log", decay_shape or (num,), "state"),
        ),
        norms=(Norm(names[1], value_dim),),
        decay_bytes=decay_bytes,
    )


def _lfm2_attends(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    listed = f.items("full_attn_idxs")
    kinds = f.layer_kinds(lambda i: FULL if listed is None or i in listed else "conv", (FULL, "conv"))
    return [kind == FULL for kind in kinds]


def _lfm2_mixer(f: Figures, attends: Any) -> Mixer:
    hidden, kernel, bias = f.size("hidden_size"), f.size("conv_L_cache"), f.flag("conv_bias")
    if attends:
        of = heads(f)
        return attention(hidden, of, out="out_proj", norms=head_norms(of[2], ("q_layernorm", "k_layernorm")))
    tensors = [Tensor("conv.weight", (hidden, 1, kernel), "conv")]
    return ShortConvolution(
        hidden_size=hidden,
        conv_kernel=kernel,
        projections=(Linear("in_proj", hidden, 3 * hidden, bias), Linear("out_proj", hidden, hidden, bias)),
        extra=(*tensors, *([Tensor("conv.bias", (hidden,), "bias")] if bias else [])),
    )


def _lfm2(f: Figures) -> Family:
    """Return the width of LFM2's feed-forward: two thirds of what it says, rounded up."""
    size = f.size("intermediate_size")
    if f.flag("block_auto_adjust_ff_dim"):
        size = 2 * size // 3
        if f.raw("block_ffn_dim_multiplier") is not None:
            multiple = f.size("block_multiple_of")
            size = -(-int(f.ratio("block_ffn_dim_multiplier") * size) // multiple) * multiple
    return {"mlp_size": size}


SSM_KEYS = {
    "state": "state_size", "kernel": "conv_kernel", "bias": "use_bias", "conv_bias": "use_conv_bias",
    "heads": "num_heads", "groups": "n_groups", "chunk": "chunk_size",
}  # fmt: skip
BLACKMAMBA_KEYS = {"state": "state_size", "kernel": "conv_dimension", "bias": "bias"}
BAMBA_KEYS = {
    "state": "mamba_d_state", "kernel": "mamba_d_conv", "bias": "mamba_proj_bias",
    "conv_bias": "mamba_conv_bias", "heads": "mamba_n_heads", "groups": "mamba_n_groups",
    "chunk": "mamba_chunk_size",
}  # fmt: skip
NEMOTRON_H_KEYS = {**SSM_KEYS, "state": "ssm_state_size", "heads": "mamba_num_heads"}
WIDE_STREAM = {"wide_stream": "residual_in_fp32", "wide_logits": True}
QWEN_EXPERTS = {
    "normalised": "norm_topk_prob", "shared": "shared_expert_intermediate_size", "shared_gate": True,
}  # fmt: skip

# fmt: off
RECURRENT: dict[str, Family] = {
    "mamba": Family(
        build=mamba, numerics=WIDE_STREAM,
        defaults={
            "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "expand": 2,
            "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": "auto", "tie_word_embeddings": True,
        },
    ),
    "falcon_mamba": Family(like="mamba"),
    "mamba2": Family(
        build=mamba2, numerics=WIDE_STREAM,
        defaults={
            "vocab_size": 32768, "hidden_size": 4096, "state_size": 128, "num_hidden_layers": 64, "expand": 2,
            "conv_kernel": 4, "use_conv_bias": True, "num_heads": 128, "head_dim": 64, "n_groups": 8,
            "chunk_size": 256,
        },
    ),
    "blackmamba": Family(
        build=blackmamba,
        aliases={"hidden_size": "d_model", "max_position_embeddings": "max_sequence_length"},
        defaults={
            "state_size": 16, "conv_dimension": 4, "expansion_factor": 2, "swiglu": True, "topk": 1,
            "tie_word_embeddings": True,
        },
    ),
    "jamba": Family(  # one attention in eight layers, experts in every other; no rotary positions
        marks=_jamba_attends, mixer=_jamba_mixer, sparse=_jamba_routes,
        before=("input_layernorm", "pre_ff_layernorm"), final="final_layernorm",
        experts={"size": "intermediate_size", "router": "router"},
        aliases={"num_experts": "num_local_experts"},
        defaults=sizes(
            65536, 4096, 14336, 32, 32, 8, None, 262144, hidden_act="silu", num_experts_per_tok=2,
            num_experts=16, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=8,
            attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank="auto",
            mamba_conv_bias=True,
        ),
    ),
    "bamba": Family(  # attention where `attn_layer_indices` says so
        marks=_bamba_attends, mixer=_bamba_mixer, mlp_bias="mlp_bias", numerics={"hands_on_scores": True},
        before=("input_layernorm", "pre_ff_layernorm"), final="final_layernorm",
        defaults=sizes(
            128000, 4096, 14336, 32, 32, 8, None, 262144, hidden_act="silu", mamba_n_heads=128,
            mamba_d_head="auto", mamba_n_groups=1, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2,
            mamba_chunk_size=256, mamba_conv_bias=True,
        ),
    ),
    "granitemoehybrid": Family(  # Granite 4
        like="bamba", marks=_granite4_attends, mixer=_granite4_mixer, varies=_granite4, mlp_bias=False,
        before=("input_layernorm", "post_attention_layernorm"), final="norm",
        aliases={"layer_types": "layers_block_type"}, numerics={"scaled_logits": True},
        defaults={
            "vocab_size": 32000, "intermediate_size": 11008, "num_key_value_heads": None,
            "max_position_embeddings": 2048, "num_local_experts": 8, "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024,
        },
    ),
    "nemotron_h": Family(
        build=nemotron_h, numerics={"wide_norms": True, "unit_norms": True, "wide_logits": True},
        aliases={
            "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "use_conv_bias": "mamba_conv_bias",
            "chunk_size": "mamba_chunk_size", "n_routed_experts": "num_local_experts",
        },
        defaults=sizes(
            131072, 4096, 21504, None, 32, 8, 128, 4096, mlp_hidden_act="relu2", ssm_state_size=128,
            mamba_num_heads=128, mamba_head_dim=64, n_groups=8, norm_topk_prob=True, conv_kernel=4,
            use_conv_bias=True, chunk_size=128, n_routed_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=7688, moe_shared_expert_intermediate_size=7688,
        ),
    ),
    "lfm2": Family(  # gated short convolutions, attention where `layer_types` says so
        marks=_lfm2_attends, mixer=_lfm2_mixer, varies=_lfm2, mlp=("w1", "w3", "w2"),
        before=("operator_norm", "ffn_norm"), final="embedding_norm",
        aliases={"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
        defaults=sizes(
            65536, 2560, 12288, 32, 32, 8, None, 128000, hidden_act="silu", conv_L_cache=3,
            block_multiple_of=256, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True,
            tie_word_embeddings=True,
        ),
    ),
    "lfm2_moe": Family(
        like="lfm2", varies=lambda _: {}, sparse=routed_from("num_dense_layers", ""),
        experts={"normalised": "norm_topk_prob", "routing": Routing("sigmoid")},
        defaults=sizes(
            None, 2048, 7168, num_dense_layers=2, moe_intermediate_size=1792, num_experts=32,
            num_experts_per_tok=4, norm_topk_prob=True,
        ),
    ),
    "qwen3_next": Family(  # three gated-delta-rule layers to one of gated attention
        marks=_linear_layers, mixer=lambda f, linear: _qwen_mixer(f, linear, fused=True),
        sparse=sparse_layers, experts=QWEN_EXPERTS, numerics={"wide_norms": True, "unit_norms": True},
        defaults=sizes(
            151936, 2048, 5632, 48, 16, 2, 256, 32768, hidden_act="silu", linear_conv_kernel_dim=4,
            linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16,
            linear_num_value_heads=32, decoder_sparse_step=1, moe_intermediate_size=512,
            shared_expert_intermediate_size=512, num_experts_per_tok=10, num_experts=512,
            full_attention_interval=4, norm_topk_prob=True,
        ),
    ),
    "qwen3_5_moe_text": Family(
        like="qwen3_next", mixer=_qwen_mixer, sparse=None,
        defaults={
            "vocab_size": 248320, "num_hidden_layers": 40, "num_experts_per_tok": 8, "num_experts": 256,
        },
    ),
    "qwen3_5_text": Family(
        like="qwen3_next", mixer=_qwen_mixer, sparse=None, experts=None,
        defaults=sizes(248320, 4096, 12288, 32, None, 4),
    ),
}
# fmt: on
