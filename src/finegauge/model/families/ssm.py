"""State-space models: Mamba, Mamba-2, FalconMamba, BlackMamba; and the mixers that hybrids share.

Sources: state-spaces/mamba; transformers 5.23 (Mamba, Mamba2, FalconMamba); Zyphra/BlackMamba
(arXiv:2402.01771), whose files have keys of their own and no `model_type`.
"""

from math import ceil

from finegauge.errors import FieldError, shown
from finegauge.model.blocks import (
    Architecture,
    FeedForward,
    Layer,
    Linear,
    Mamba1,
    Mamba2,
    MixtureOfExperts,
    Norm,
    Tensor,
)
from finegauge.model.families.parts import (
    divided,
    gated_mlp,
    language_model,
    layer_norm,
    numerics,
    plain_mlp,
    pre_norm_layer,
    router,
    stack,
)
from finegauge.model.families.reading import Config, Figures

MAMBA = {
    "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32, "expand": 2,
    "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": "auto",
    "tie_word_embeddings": True,
}  # fmt: skip
MAMBA2 = {
    "vocab_size": 32768, "hidden_size": 4096, "state_size": 128, "num_hidden_layers": 64, "expand": 2,
    "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "num_heads": 128, "head_dim": 64,
    "n_groups": 8, "chunk_size": 256, "tie_word_embeddings": False,
}  # fmt: skip
BLACKMAMBA = {
    "state_size": 16, "conv_dimension": 4, "expansion_factor": 2, "bias": False, "add_bias_linear": False,
    "swiglu": True, "topk": 1, "model_type": "blackmamba", "tie_word_embeddings": True,
}  # fmt: skip


def mamba1(
    hidden: int,
    inner: int,
    *,
    state: int,
    kernel: int,
    dt_rank: int,
    bias: bool = False,
    conv_bias: bool = True,
    norms: str = "",
) -> Mamba1:
    """Return a Mamba-1 mixer, its norms on step, B and C "weighted" (Jamba), "plain" or none ("")."""
    conv = [Tensor("conv1d.weight", (inner, 1, kernel), "conv")]
    if conv_bias:
        conv.append(Tensor("conv1d.bias", (inner,), "bias"))
    widths = (("dt_layernorm", dt_rank), ("b_layernorm", state), ("c_layernorm", state)) if norms else ()
    return Mamba1(
        hidden_size=hidden,
        inner_size=inner,
        state_size=state,
        conv_kernel=kernel,
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


def mamba2_mixer(
    hidden: int,
    inner: int,
    *,
    state: int,
    kernel: int,
    num_heads: int,
    num_groups: int,
    chunk: int,
    bias: bool = False,
    conv_bias: bool = True,
    out_bias: bool | None = None,
    norm: bool = True,
) -> Mamba2:
    """Return a Mamba-2 mixer, its gated norm over all `inner` channels."""
    channels = inner + 2 * num_groups * state
    conv = [Tensor("conv1d.weight", (channels, 1, kernel), "conv")]
    if conv_bias:
        conv.append(Tensor("conv1d.bias", (channels,), "bias"))
    per_head = tuple(Tensor(name, (num_heads,), "state") for name in ("dt_bias", "A_log", "D"))
    return Mamba2(
        hidden_size=hidden,
        inner_size=inner,
        state_size=state,
        conv_kernel=kernel,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        num_groups=num_groups,
        chunk_size=chunk,
        projections=(
            Linear("in_proj", hidden, inner + channels + num_heads, bias),
            Linear("out_proj", inner, hidden, bias if out_bias is None else out_bias),
        ),
        extra=(*conv, *per_head),
        norms=(Norm("norm", inner),) if norm else (),
    )


def _expanded(f: Figures, key: str, hidden: int) -> int:
    """Return the channels inside the mixer: `hidden` times the factor under `key`."""
    inner = int(f.ratio(key) * hidden)
    if inner < 1:
        raise FieldError(f"{key}={f.raw(key)} leaves no channels of hidden_size={hidden}.")
    return inner


def dt_rank_of(f: Figures, key: str) -> int:
    """Return the rank of the time-step projection; "auto" is hidden_size / 16, rounded up."""
    return ceil(f.size("hidden_size") / 16) if f.raw(key) == "auto" else f.size(key)


@numerics(wide_stream="residual_in_fp32", wide_logits=True)
def mamba(config: Config) -> Architecture:
    """Return Mamba-1 as transformers has it: one norm, one mixer per layer."""
    return _mamba_of(config)


@numerics(wide_stream="residual_in_fp32", wide_logits=True)
def falcon_mamba(config: Config) -> Architecture:
    """Return FalconMamba: Mamba-1 with norms on the time step, B and C that have no weights."""
    return _mamba_of(config, norms="plain")


def _mamba_of(config: Config, norms: str = "") -> Architecture:
    f = Figures(config, MAMBA)
    hidden = f.size("hidden_size")
    mixer = mamba1(
        hidden,
        f.optional("intermediate_size") or _expanded(f, "expand", hidden),
        state=f.size("state_size"),
        kernel=f.size("conv_kernel"),
        dt_rank=dt_rank_of(f, "time_step_rank"),
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias"),
        norms=norms,
    )
    layers = ((pre_norm_layer([mixer], [Norm("norm", hidden)]), f.num_layers()),)
    return language_model(f, layers, final_norm=Norm("norm_f", hidden), embed="embeddings")


@numerics(wide_stream="residual_in_fp32", wide_logits=True)
def mamba2(config: Config) -> Architecture:
    """Return Mamba-2 as transformers has it."""
    f = Figures(config, MAMBA2)
    hidden, num_heads = f.size("hidden_size"), f.size("num_heads")
    inner = _expanded(f, "expand", hidden)
    if inner != num_heads * f.size("head_dim"):
        raise FieldError(
            f"expand x hidden_size = {inner} is not num_heads={num_heads} x head_dim={f.size('head_dim')}."
        )
    divided(f, "num_heads", num_heads, "n_groups", f.size("n_groups"))
    mixer = mamba2_mixer(
        hidden,
        inner,
        state=f.size("state_size"),
        kernel=f.size("conv_kernel"),
        num_heads=num_heads,
        num_groups=f.size("n_groups"),
        chunk=f.size("chunk_size"),
        bias=f.flag("use_bias"),
        conv_bias=f.flag("use_conv_bias"),
    )
    layers = ((pre_norm_layer([mixer], [Norm("norm", hidden)]), f.num_layers()),)
    return language_model(f, layers, final_norm=Norm("norm_f", hidden), embed="embeddings")


def blackmamba(config: Config) -> Architecture:
    """Return BlackMamba: layers that are a Mamba-1 mixer ("r") or so many routed experts ("8").

    The router has a bias; the layers' norms are RMS, the final one a LayerNorm.
    """
    f = Figures(
        config, BLACKMAMBA, {"hidden_size": "d_model", "max_position_embeddings": "max_sequence_length"}
    )
    f.model_type = "blackmamba"
    hidden = f.size("hidden_size")
    kinds = f.items("mamba_moe_layers")
    if kinds is None:
        raise FieldError(
            "mamba_moe_layers is missing: BlackMamba's config lists 'r' or a number of experts per layer."
        )
    if len(kinds) != f.num_layers("num_layers"):
        raise FieldError(
            f"mamba_moe_layers has {len(kinds)} entries, but num_layers={f.num_layers('num_layers')}."
        )
    layers = stack([str(kind) for kind in kinds], lambda kind: _blackmamba_layer(f, hidden, kind))
    return language_model(f, layers, final_norm=layer_norm("final_layernorm", hidden), embed="embedding")


def _blackmamba_layer(f: Figures, hidden: int, kind: str) -> Layer:
    """Return the Mamba layer, or the layer of `kind` experts (one expert: a plain feed-forward)."""
    if kind == "r":
        mixer = mamba1(
            hidden,
            _expanded(f, "expansion_factor", hidden),
            state=f.size("state_size"),
            kernel=f.size("conv_dimension"),
            dt_rank=ceil(hidden / 16),
            bias=f.flag("bias"),
        )
        return pre_norm_layer([mixer], [Norm("norm", hidden)])
    if not kind.isdecimal() or not 1 <= int(kind) <= 4096:
        raise FieldError(f"mamba_moe_layers has {shown(kind)}; entries are 'r' or a number of experts.")
    return pre_norm_layer([_blackmamba_experts(f, hidden, int(kind))], [Norm("norm", hidden)])


def _blackmamba_experts(f: Figures, hidden: int, num_experts: int) -> MixtureOfExperts | FeedForward:
    size = f.optional("ffn_hidden_size") or 4 * hidden
    bias, gated = f.flag("add_bias_linear"), f.flag("swiglu")
    if num_experts == 1 and gated:
        return gated_mlp(hidden, size, bias=bias, names=("", "", "linear_fc2"), fused="linear_fc1")
    if num_experts == 1:
        return plain_mlp(hidden, size, "gelu", bias=bias, names=("linear_fc1", "linear_fc2"))
    return MixtureOfExperts(
        hidden_size=hidden,
        intermediate_size=size,
        num_experts=num_experts,
        top_k=min(f.size("topk"), num_experts),
        gated=gated,
        expert_bias=bias,
        router=router(hidden, num_experts, bias=True, name="router"),
        activation="silu" if gated else "gelu",
    )
