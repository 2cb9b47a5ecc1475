"""Hybrids whose layers join a state and attention in ways of their own.

Falcon-H1 runs both on one input; Zamba2 lends its few attention blocks to many layers (arXiv:2411.15242);
OLMo Hybrid norms before one kind of layer and after the other; Kimi Linear (arXiv:2510.26692), RecurrentGemma
(arXiv:2402.19427) and MiniMax-01 (arXiv:2501.08313) put a recurrence of their own in place of attention.
Defaults are those of the transformers 5.23 classes.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import Architecture, Branch, Chain, Layer, Linear, Mixer, Norm, Tensor
from finegauge.model.families.decoder import Family, sizes
from finegauge.model.families.experts import DEEPSEEK, routed_from
from finegauge.model.families.latent import latent_attention
from finegauge.model.families.parts import (
    FULL,
    Figures,
    attention,
    feedforward,
    heads,
    language_model,
    layer,
    mlp_of,
    stack,
    window_of,
)
from finegauge.model.families.recurrent import BAMBA_KEYS, KINDS, LINEAR, delta_rule, mamba2_mixer
from finegauge.model.ssm import SLOW_CHUNK_LAUNCHES, SLOW_SCAN_LAUNCHES, LinearAttention, Recurrence


def falcon_h1(f: Figures) -> Architecture:
    """Return Falcon-H1: Mamba-2 and attention on one normalised input, then a feed-forward."""
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    inner = f.optional("mamba_d_ssm") or f.size("mamba_expand") * hidden
    f.divided("mamba_d_ssm", inner, "mamba_n_heads", f.size("mamba_n_heads"))
    mixer = mamba2_mixer(f, inner, BAMBA_KEYS, out_bias="projectors_bias")._replace(scaled=True)
    if not f.flag("mamba_rms_norm"):
        mixer = mixer._replace(norms=())
    branches = (
        Branch(mixer, Norm("input_layernorm", hidden)),
        Branch(attention(hidden, heads(f), bias=bias, out_bias=bias, scaled=True)),
        Branch(mlp_of(f, bias="mlp_bias"), Norm("pre_ff_layernorm", hidden)),
    )
    layers = ((layer(*branches, parallel=2), f.num_layers()),)
    return language_model(f, layers, Norm("final_layernorm", hidden))


def olmo_hybrid(f: Figures) -> Architecture:
    """Return OLMo Hybrid: gated delta rule with norms before each branch, attention with norms after."""
    hidden, num_layers = f.size("hidden_size"), f.num_layers()
    kinds = f.layer_kinds(lambda i: FULL if i % 4 == 3 else LINEAR, (FULL, LINEAR))
    if f.items("layer_types") is None and FULL not in kinds:
        kinds[num_layers - 1] = FULL
    num, kv, dim = of = heads(f, dim="")
    scaling = f.raw("rope_parameters")
    rotary = isinstance(scaling, dict) and scaling.get("rope_theta") is not None
    norms = Norm("q_norm", num * dim), Norm("k_norm", kv * dim)
    after = Norm("post_attention_layernorm", hidden), Norm("post_feedforward_layernorm", hidden)
    mlp = mlp_of(f)

    def build(kind: str) -> Layer:
        if kind == FULL:
            own = attention(hidden, of, norms=norms, rotary=rotary)
            return layer(Branch(own, None, after[0]), Branch(mlp, None, after[1]))
        first, second = Norm("input_layernorm", hidden), Norm("post_attention_layernorm", hidden)
        return layer(Branch(_olmo_delta(f, num), first), Branch(mlp, second))

    return language_model(f, stack(kinds, build), Norm("norm", hidden))


def _olmo_delta(f: Figures, num_heads: int) -> LinearAttention:
    """Return its gated delta rule: projections apart, a key three quarters as wide as a head."""
    hidden = f.size("hidden_size")
    num_keys = f.optional("linear_num_key_heads") or num_heads
    num_values = f.optional("linear_num_value_heads") or num_heads
    key_dim = f.optional("linear_key_head_dim") or int(0.75 * hidden / num_keys)
    value_dim = f.optional("linear_value_head_dim") or 2 * key_dim
    keys, values, kernel = num_keys * key_dim, num_values * value_dim, f.size("linear_conv_kernel_dim")
    sizes = {"q_proj": keys, "k_proj": keys, "v_proj": values, "b_proj": num_values, "a_proj": num_values}
    inputs = [Linear(name, hidden, size) for name, size in {**sizes, "g_proj": values}.items()]
    return delta_rule(inputs, num_values, (key_dim, value_dim), 2 * keys + values, kernel)


ZAMBA2_KEYS = {
    "state": "mamba_d_state", "kernel": "mamba_d_conv", "bias": "add_bias_linear",
    "conv_bias": "use_conv_bias", "heads": "n_mamba_heads", "groups": "mamba_ngroups",
    "chunk": "chunk_size",
}  # fmt: skip
HYBRID = "hybrid"


def zamba(f: Figures) -> Architecture:
    """Return Zamba2: layers of Mamba-2, some after one of a few shared blocks of attention.

    A shared block reads the stream beside the embeddings, twice as wide, with low-rank adapters of each
    layer's own beside its projections; what it returns, projected, is added to what Mamba reads.
    """
    hidden = f.size("hidden_size")
    listed = f.items("layers_block_type") or f.items("layer_types")
    early = [LINEAR] + ([LINEAR] * 5 + [HYBRID]) * 7 + [LINEAR] * 4 + [HYBRID] + [LINEAR] * 3
    kinds = [_zamba_kind(f, kind) for kind in listed] if listed else [*early, HYBRID, LINEAR, LINEAR]
    if len(kinds) != f.num_layers():
        raise FieldError(
            f"layers_block_type has {len(kinds)} entries, but num_hidden_layers={f.num_layers()}."
        )
    blocks, met, marks = f.size("num_mem_blocks"), 0, list[tuple[str, bool]]()
    for kind in kinds:  # the first ones hold the weights that the later ones borrow
        marks.append((kind, kind == HYBRID and met >= blocks))
        met += kind == HYBRID

    def build(mark: tuple[str, bool]) -> Layer:
        kind, borrows = mark
        own = Branch(
            mamba2_mixer(f, f.size("mamba_expand") * hidden, ZAMBA2_KEYS), Norm("input_layernorm", hidden)
        )
        if kind != HYBRID:
            return layer(own)
        shared = _zamba_shared(f)
        lent = [Branch(Chain(pair, beside=True, path="adapter")) for pair in _zamba_adapters(f)]
        linear = Branch(Chain((Linear("linear", hidden, hidden),)))
        made = layer(*shared, *lent, linear, own, borrowed=len(shared) * borrows)
        return made._replace(nested=own.mixer.path)

    return language_model(f, stack(marks, build), Norm("final_layernorm", hidden))


def _zamba_kind(f: Figures, kind: object) -> str:
    known = {HYBRID: HYBRID, "mamba": LINEAR, **dict.fromkeys(KINDS, LINEAR)}
    if not isinstance(kind, str) or kind not in known:
        raise f.unsupported(f"a layer of kind {str(kind)[:40]!r}")
    return known[str(kind)]


def _zamba_shared(f: Figures) -> tuple[Branch, Branch]:
    """Return the shared block: attention over the stream and the embeddings, and a feed-forward."""
    hidden, num = f.size("hidden_size"), f.size("num_attention_heads")
    wide, dim = 2 * hidden, f.divided("2 x hidden_size", 2 * hidden, "num_attention_heads", num)
    kv, bias = f.optional("num_key_value_heads") or num, f.flag("add_bias_linear")
    f.divided("num_attention_heads", num, "num_key_value_heads", kv)
    sizes = (("q_proj", num * dim), ("k_proj", kv * dim), ("v_proj", kv * dim))
    own = attention(wide, (num, kv, dim), rotary=f.flag("use_mem_rope"))
    projections = (*(Linear(name, wide, size) for name, size in sizes), Linear("o_proj", num * dim, hidden))
    size, act = f.optional("intermediate_size") or 4 * hidden, f.text("hidden_act")
    mlp = feedforward(hidden, size, act, bias=bias, fused="gate_up_proj")
    return (
        Branch(own._replace(projections=projections), Norm("input_layernorm", wide)),
        Branch(mlp, Norm("pre_ff_layernorm", hidden)),
    )


def _zamba_adapters(f: Figures) -> list[tuple[Linear, ...]]:
    hidden, rank = f.size("hidden_size"), f.size("adapter_rank")
    wide, size = 2 * hidden, f.optional("intermediate_size") or 4 * hidden
    widths = [("gate_up_proj", hidden, 2 * size)]
    if f.flag("use_shared_attention_adapter"):
        widths = [(f"linear_{name}", wide, wide) for name in "qkv"] + widths
    return [
        (Linear(f"{name}_adapter.0", enter, rank), Linear(f"{name}_adapter.1", rank, leave))
        for name, enter, leave in widths
    ]


def _kimi_routes(f: Figures) -> Sequence[bool]:
    every, routed = max(f.count("moe_layer_freq"), 1), routed_from()(f)
    return [sparse and index % every == 0 for index, sparse in enumerate(routed)]


def _kimi_kinds(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    """Return which layers have Kimi's delta attention: as listed, counted from one in older files."""
    nested = f.part("linear_attn_config", {})
    full, linear = nested.items("full_attn_layers"), nested.items("kda_layers")
    if f.items("layer_types") is not None or full is None or linear is None:
        listed = f.layer_kinds(lambda i: FULL if i and i % 4 == 0 else LINEAR, (FULL, LINEAR))
        return [kind == LINEAR for kind in listed]
    if sorted((*full, *linear), key=str) != sorted(range(1, len(kinds) + 1), key=str):
        raise FieldError(
            f"linear_attn_config lists {len(full)} full and {len(linear)} linear layers that are not the "
            f"{len(kinds)} layers, counted from 1."
        )
    return [index + 1 in linear for index in range(len(kinds))]


def _ling_kinds(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    every = f.size("layer_group_size")
    listed = f.layer_kinds(lambda i: LINEAR if (i + 1) % every else FULL, (FULL, LINEAR))
    return [kind == LINEAR for kind in listed]


def kimi_mixer(f: Figures, linear: Any) -> Mixer:
    """Return Kimi's delta attention, or latent attention without rotation."""
    for key in ("routed_expert_hidden_size", "mla_use_output_gate", "attn_res_block_size"):
        if f.raw(key):
            raise f.unsupported(f"a Kimi Linear with {key}={shown(f.raw(key))}")
    if not linear:
        return latent_attention(f)._replace(rotary=False)
    hidden, nested = f.size("hidden_size"), f.part("linear_attn_config", {})
    num = nested.optional("num_heads") or f.size("linear_num_heads")
    dim = nested.optional("head_dim") or f.size("linear_head_dim")
    kernel = nested.optional("short_conv_kernel_size") or f.size("linear_conv_kernel_dim")
    gates = [
        Linear("f_a_proj", hidden, dim),
        Linear("f_b_proj", dim, num * dim),
        Linear("b_proj", hidden, num),
    ]
    gates += [Linear("g_a_proj", hidden, dim), Linear("g_b_proj", dim, num * dim)]
    # softplus written out: its exponential, one more than that, and a mask
    return _channelwise(num, dim, kernel, gates, 9.0, (1, 1, num, 1))


def ling_mixer(f: Figures, linear: Any) -> Mixer:
    """Return Ling's kin of Kimi's delta attention, or latent attention with a gate on every head."""
    hidden, num = f.size("hidden_size"), f.size("num_attention_heads")
    if not linear:
        own = latent_attention(f)
        gate = Linear("g_proj", hidden, num)
        return own._replace(projections=(*own.projections[:-1], gate, own.projections[-1]))
    # a file that transformers wrote has the width of rotated channels under head_dim
    dim, kernel = f.optional("linear_head_dim") or f.size("head_dim"), f.size("short_conv_kernel_size")
    gates = [
        Linear("f_proj", hidden, num * dim),
        Linear("b_proj", hidden, num),
        Linear("g_proj", hidden, num * dim),
    ]
    return _channelwise(num, dim, kernel, gates, 4.0, (num,))


def _channelwise(
    num: int, dim: int, kernel: int, gates: Sequence[Linear], decay_bytes: float, decay_shape: tuple[int, ...]
) -> LinearAttention:
    """Return delta attention whose `gates` make a decay for every channel, and the gate of its output."""
    width, hidden = num * dim, gates[0].in_features
    inputs = [*(Linear(name, hidden, width) for name in ("q_proj", "k_proj", "v_proj")), *gates]
    return delta_rule(
        inputs, num, (dim, dim), 3 * width, kernel, biases=width, decay_shape=decay_shape,
        decay_bytes=decay_bytes,
    )  # fmt: skip


def _griffin_kinds(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    """Return which layers attend: as the pattern of kinds, repeated, says."""
    pattern = f.items("block_types") or ("recurrent", "recurrent", "attention")
    if not set(pattern) <= {"recurrent", "attention"}:
        raise f.unsupported(f"block_types={shown(pattern)}")
    return [pattern[index % len(pattern)] == "attention" for index in range(len(kinds))]


def _griffin_mixer(f: Figures, attends: Any) -> Mixer:
    """Return attention in a window, or the gated linear recurrence of Griffin (RG-LRU, arXiv:2402.19427)."""
    hidden, bias = f.size("hidden_size"), f.flag("attention_bias")
    if attends:
        return attention(
            hidden, heads(f), bias=bias, out_bias=True, window=window_of(f, "attention_window_size")
        )
    width, num = f.optional("lru_width") or hidden, f.size("num_attention_heads")
    kernel = f.size("conv1d_width")
    block = f.divided("lru_width", width, "num_attention_heads", num)
    gates = [
        Tensor(f"{name}_gate_{what}", shape, "state")
        for name in ("input", "recurrent")
        for what, shape in (("weight", (num, block, block)), ("bias", (num, block)))
    ]
    return Recurrence(
        hidden_size=hidden,
        width=width,
        projections=(
            *(Linear(name, hidden, width, True) for name in ("linear_y", "linear_x")),
            Linear("linear_out", width, hidden, True),
        ),
        flops=4.0 * width * block,
        # the input and its copy by heads, both gates, their exponentials, 1 - a², a factor
        narrow_values=8.0 * width,
        beside_values=3.0 * width,  # before and after its activation, and the output
        trained_values=2.0 * width,
        widened_values=3.0 * width,  # what exponentials return, and what they read
        wide_values=2.0 * width,  # every state and what multiplies it
        state_values=width,
        launches=SLOW_SCAN_LAUNCHES,
        conv_size=width,
        conv_kernel=kernel,
        extra=(
            Tensor("conv_1d.weight", (width, 1, kernel), "conv"),
            Tensor("conv_1d.bias", (width,), "bias"),
            Tensor("recurrent_param", (width,), "state"),
            *gates,
        ),
    )


def _griffin(f: Figures) -> Family:
    """Return the width of its feed-forward: half of what it says."""
    size = f.size("intermediate_size")
    return {"mlp_size": f.divided("intermediate_size", size, "the two halves of its feed-forward", 2)}


def _minimax_linear(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> Sequence[Hashable]:
    """Return which layers have lightning attention: as listed (0 in older files), else every second one."""
    older = f.items("attn_type_list")
    if f.items("layer_types") is None and older is not None:
        if len(older) != len(kinds) or not set(older) <= {0, 1}:
            raise FieldError(f"attn_type_list has {len(older)} entries for {len(kinds)} layers; give 0 or 1.")
        return [kind == 0 for kind in older]
    return [kind == LINEAR for kind in f.layer_kinds(lambda i: LINEAR if i % 2 else FULL, (FULL, LINEAR))]


def _minimax_mixer(f: Figures, linear: Any) -> Mixer:
    """Return attention, or lightning attention (arXiv:2401.04658): blocks of tokens, a state among them."""
    hidden, of = f.size("hidden_size"), heads(f)
    if not linear:
        return attention(hidden, of)
    num, _, dim = of
    width, block = num * dim, f.size("block_size")
    return Recurrence(
        hidden_size=hidden,
        width=width,
        projections=(
            Linear("qkv_proj", hidden, 3 * width),
            Linear("output_gate", hidden, width),
            Linear("out_proj", width, hidden),
        ),
        flops=4.0 * width * (block + dim),
        # what the activation reads and returns; queries and keys decayed, scores, the state at each block
        narrow_values=width * (8.0 + dim / block) + num * block,
        wide_values=0.0,
        state_values=width * dim,
        unused_flops=6.0 * width * dim * block,
        launches=SLOW_CHUNK_LAUNCHES,
        unweighted=True,
        gated=True,
        norms=(Norm("norm", width),),
        path="lightning_attention",
    )


# fmt: off
_KIMI_KEYS = {
    "max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize",
    "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
}
HYBRIDS: dict[str, Family] = {
    "falcon_h1": Family(
        build=falcon_h1, numerics={"scaled_logits": True},
        defaults=sizes(
            128000, 4096, 14336, 32, 32, 8, None, 8192, hidden_act="silu", mamba_d_ssm=1024,
            mamba_n_heads=128, mamba_n_groups=1, mamba_d_state=256, mamba_d_conv=4, mamba_expand=2,
            mamba_chunk_size=256, mamba_conv_bias=True,
        ),
    ),
    "olmo_hybrid": Family(
        build=olmo_hybrid, numerics={"wide_norms": True, "wide_tables": True},
        defaults=sizes(
            100352, 3840, 11008, 32, 30, None, None, 65536, hidden_act="silu", linear_conv_kernel_dim=4,
            rope_parameters={"rope_theta": 10_000.0},
        ),
    ),
    "bailing_hybrid": Family(  # Ling 3: five layers of delta attention to one of gated latent attention
        like="kimi_linear", marks=_ling_kinds, mixer=ling_mixer, sparse=routed_from(),
        experts={**DEEPSEEK, "num": "num_local_experts"},
        aliases={**_KIMI_KEYS, "num_local_experts": "num_experts"},
        defaults={**sizes(
            157184, 2560, 6144, 42, 32, None, 128, 262144, moe_intermediate_size=768, num_local_experts=512,
            first_k_dense_replace=2, short_conv_kernel_size=4, layer_group_size=6,
        ), "linear_head_dim": None},
    ),
    "recurrent_gemma": Family(  # Griffin: two layers of a gated recurrence to one of attention in a window
        marks=_griffin_kinds, mixer=_griffin_mixer, varies=_griffin, mlp_bias=True, act="hidden_activation",
        before=("temporal_pre_norm", "channel_pre_norm"), final="final_norm",
        positions="attention_window_size",
        numerics={"wide_norms": True, "unit_norms": True, "logit_cap": "logits_soft_cap", "own_tables": 1,
                  "uncapped_named": True},
        defaults=sizes(
            256000, 2560, 7680, 26, 10, None, None, None, attention_window_size=2048, conv1d_width=4,
            hidden_activation="gelu_pytorch_tanh", partial_rotary_factor=0.5, tie_word_embeddings=True,
        ),
    ),
    "minimax": Family(  # MiniMax-Text-01 and M1
        like="mixtral", marks=_minimax_linear, mixer=_minimax_mixer,
        defaults={"max_position_embeddings": 131072, "block_size": 256},
    ),
    "minimax_text_01": Family(like="minimax"),
    "minimax_m1": Family(like="minimax"),
    "kimi_linear": Family(  # three layers of delta attention to one of latent attention without positions
        like="deepseek_v3", marks=_kimi_kinds, mixer=kimi_mixer, sparse=_kimi_routes,
        experts={**DEEPSEEK, "num": "num_experts"},
        aliases={**_KIMI_KEYS, "num_experts": "num_local_experts"},
        defaults={**sizes(
            163840, 2304, 9216, 27, 32, None, None, 1048576, moe_intermediate_size=1024, num_experts=256,
            q_lora_rank=None, first_k_dense_replace=1, linear_head_dim=128, linear_num_heads=32,
            linear_conv_kernel_dim=4,
        ), "q_lora_rank": None},
    ),
    "zamba2": Family(
        build=zamba,
        aliases={
            "mamba_d_state": "state_size", "mamba_d_conv": "conv_dimension",
            "mamba_expand": "expansion_factor", "intermediate_size": "ffn_hidden_size",
            "adapter_rank": "lora_rank",
        },
        defaults=sizes(
            32000, 2560, None, 54, 32, None, None, 4096, mamba_d_state=64, mamba_d_conv=4, mamba_expand=2,
            mamba_ngroups=1, n_mamba_heads=8, use_conv_bias=True, chunk_size=256, hidden_act="gelu",
            num_mem_blocks=1, adapter_rank=128, tie_word_embeddings=True,
        ),
    ),
}
# fmt: on
