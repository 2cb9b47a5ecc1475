"""The blocks that most families share, made from a handful of figures.

A family picks from here what it is made of: attention, a feed-forward, how their norms
stand around them, and the embeddings and head of the whole.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, TypeVar

from finegauge.errors import FieldError
from finegauge.model.blocks import (
    Architecture,
    Attention,
    Branch,
    FeedForward,
    LatentAttention,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Norm,
    Numerics,
    Tensor,
)
from finegauge.model.families.reading import Config, Figures

Family = Callable[[Config], Architecture]
Heads = tuple[int, int, int]  # query heads, key and value heads, channels per head
K = TypeVar("K", bound=Hashable)

LLAMA_MLP = ("gate_proj", "up_proj", "down_proj")


def numerics(
    *,
    dropout: Mapping[str, str] | None = None,
    dropout_default: float = 0.0,
    softcap: str = "",
    logit_cap: str = "",
    wide_stream: str = "",
    **of: Any,
) -> Callable[[Family], Family]:
    """Return a decorator that declares the `Numerics` of a family's transformers class.

    Args:
        dropout: The config's key of the probability at each place (see `Numerics.dropout`).
        dropout_default: The class's default of all of them.
        softcap: The config's key of the bound on scores, null for none.
        logit_cap: The config's key of the bound on logits, null for none.
        wide_stream: The config's key that says whether the residual stream is fp32, true unless stated.
        of: Fields of `Numerics` that hold for every config.
    """

    def declare(family: Family) -> Family:
        @wraps(family)
        def declared(config: Config) -> Architecture:
            places = tuple(p for p, key in (dropout or {}).items() if config.get(key, dropout_default))
            caps = {"softcap": softcap, "logit_cap": logit_cap}
            asked: dict[str, Any] = {
                name: bool(key) and config.get(key, True) is not None for name, key in caps.items()
            }
            asked["wide_stream"] = bool(wide_stream) and bool(config.get(wide_stream, True))
            return family(config)._replace(numerics=Numerics(dropout=places, **asked, **of))

        return declared

    return declare


def divided(f: Figures, key: str, value: int, by_key: str, by: int) -> int:
    """Return `value / by`, or raise FieldError naming both keys if a rest remains."""
    if value % by:
        raise FieldError(f"{key}={value} is not divisible by {by_key}={by}.")
    return value // by


def heads(
    f: Figures,
    *,
    num: str = "num_attention_heads",
    kv: str = "num_key_value_heads",
    dim: str = "head_dim",
    hidden: str = "hidden_size",
) -> Heads:
    """Return the heads of an attention, their number and width checked against each other.

    The arguments are keys; "" for a key that the family does not read: as many key and
    value heads as query heads, `hidden` channels divided among the heads.
    """
    num_heads = f.size(num)
    num_kv = (f.optional(kv) if kv else None) or num_heads
    head_dim = (f.optional(dim) if dim else None) or divided(f, hidden, f.size(hidden), num, num_heads)
    divided(f, num, num_heads, kv, num_kv)
    return num_heads, num_kv, head_dim


def head_norms(
    head_dim: int, kind: str = "rms", names: Sequence[str] = ("q_norm", "k_norm")
) -> tuple[Norm, ...]:
    """Return norms over the channels of each query and key head."""
    return tuple(Norm(name, head_dim, kind) for name in names)


def full_norms(of: Heads) -> tuple[Norm, ...]:
    """Return norms over all query heads at once and all key heads at once (OLMo-2)."""
    num, kv, dim = of
    return (Norm("q_norm", num * dim), Norm("k_norm", kv * dim))


def attention(
    hidden: int,
    of: Heads,
    *,
    bias: bool = False,
    out_bias: bool = False,
    fused: str = "",
    out: str = "o_proj",
    qk_norms: tuple[Norm, ...] = (),
    norms_last: bool = False,
    clipped: bool = False,
    window: int | None = None,
    rotary: bool = True,
    value_dim: int = 0,
    output_gate: bool = False,
    extra: tuple[Tensor, ...] = (),
    more: tuple[Linear, ...] = (),
) -> Attention:
    """Return an attention with q, k, v (or one `fused`) and output projections.

    Args:
        hidden: Channels of the residual stream.
        of: Query heads, key and value heads, channels per head.
        bias: Whether q, k and v have biases.
        out_bias: Whether the output projection has one.
        fused: Name of the one projection that holds q, k and v; "" for three.
        out: Name of the output projection.
        qk_norms: Norms on queries and keys.
        norms_last: Whether they act after the rotation.
        clipped: Whether queries, keys and values are bounded (`clip_qkv`).
        window: Keys each query sees; None for all before it.
        rotary: Whether positions enter by rotating queries and keys.
        value_dim: Channels per value head; 0 for the same as the others.
        output_gate: Whether q_proj also makes a gate of the queries' size.
        extra: Tensors that no projection holds.
        more: Projections between v and the output (gates of their own).
    """
    num, kv, dim = of
    v_dim = value_dim or dim
    q_out = num * dim * (2 if output_gate else 1)
    if fused:
        inputs = [Linear(fused, hidden, q_out + kv * (dim + v_dim), bias)]
    else:
        sizes = (("q_proj", q_out), ("k_proj", kv * dim), ("v_proj", kv * v_dim))
        inputs = [Linear(name, hidden, size, bias) for name, size in sizes]
    return Attention(
        hidden_size=hidden,
        num_heads=num,
        num_key_value_heads=kv,
        head_dim=dim,
        value_head_dim=value_dim,
        projections=(*inputs, *more, Linear(out, num * v_dim, hidden, out_bias)),
        qk_norms=qk_norms,
        norms_last=norms_last,
        clipped=clipped,
        window=window,
        rotary=rotary,
        output_gate=output_gate,
        extra=extra,
    )


def gated_mlp(
    hidden: int,
    size: int,
    activation: str = "silu",
    *,
    bias: bool = False,
    names: tuple[str, str, str] = LLAMA_MLP,
    fused: str = "",
) -> FeedForward:
    """Return a gated feed-forward: gate and up (or one `fused` of both), then down."""
    gate, up, down = names
    if fused:
        inputs = [Linear(fused, hidden, 2 * size, bias)]
    else:
        inputs = [Linear(gate, hidden, size, bias), Linear(up, hidden, size, bias)]
    return FeedForward(
        hidden_size=hidden,
        intermediate_size=size,
        gated=True,
        projections=(*inputs, Linear(down, size, hidden, bias)),
        activation=activation,
    )


def plain_mlp(
    hidden: int, size: int, activation: str, *, bias: bool = True, names: tuple[str, str] = ("fc1", "fc2")
) -> FeedForward:
    """Return a feed-forward of two projections."""
    up, down = names
    return FeedForward(
        hidden_size=hidden,
        intermediate_size=size,
        gated=False,
        projections=(Linear(up, hidden, size, bias), Linear(down, size, hidden, bias)),
        activation=activation,
    )


def router(hidden: int, num_experts: int, *, bias: bool = False, name: str = "gate") -> Linear:
    """Return the projection that scores the experts."""
    return Linear(name, hidden, num_experts, bias, kind="router")


def layer_norm(name: str, size: int, *, weight: bool = True, bias: bool = True) -> Norm:
    """Return a LayerNorm, with the weight and bias that it has."""
    return Norm(name, size, "layer", weight, bias)


def pre_norm_layer(
    mixers: Sequence[Mixer],
    norms: Sequence[Norm | None],
    *,
    parallel: bool = False,
    extra: tuple[Tensor, ...] = (),
) -> Layer:
    """Return a layer whose mixers each follow a norm."""
    branches = [Branch(mixer=m, norm_before=n) for m, n in zip(mixers, norms, strict=True)]
    return layer(*branches, parallel=parallel, extra=extra)


def rms_layer(hidden: int, *mixers: Mixer, names: Sequence[str] = ()) -> Layer:
    """Return a layer with an RMS norm before each mixer, as Llama has them."""
    names = names or ("input_layernorm", "post_attention_layernorm")
    return pre_norm_layer(mixers, [Norm(name, hidden) for name in names[: len(mixers)]])


def framed_layer(hidden: int, *branches: tuple[Mixer, str, str]) -> Layer:
    """Return a layer of (mixer, name of the RMS norm before it, name of that after it); "" for none."""
    norms = [[Norm(name, hidden) if name else None for name in names] for _, *names in branches]
    framed = zip(branches, norms, strict=True)
    return layer(*(Branch(mixer, before, after) for (mixer, *_), (before, after) in framed))


def layer(*branches: Branch, parallel: bool = False, extra: tuple[Tensor, ...] = ()) -> Layer:
    """Return a layer named after its mixers."""
    kind = "+".join(kind_of(branch.mixer) for branch in branches)
    return Layer(kind=kind, branches=branches, parallel=parallel, extra=extra)


def kind_of(mixer: Mixer) -> str:
    """Return the word for a mixer in `Layer.kind`."""
    if isinstance(mixer, Attention) and mixer.window is not None:
        return "sliding_attention"
    if isinstance(mixer, LatentAttention):
        return "latent_attention"
    if isinstance(mixer, Mamba2):
        return "mamba2"
    return mixer.path


def stack(kinds: Iterable[K], build: Callable[[K], Layer]) -> tuple[tuple[Layer, int], ...]:
    """Return the layers in groups of equal ones, with how many there are of each.

    They are in order until there has been one of every kind; the rest is one group per kind.
    """
    listed = list(kinds)
    layers = {kind: build(kind) for kind in dict.fromkeys(listed)}
    ordered = max(map(listed.index, layers), default=0)
    runs = [(kind, len(list(run))) for kind, run in groupby(listed[:ordered])]
    return tuple((layers[kind], count) for kind, count in (*runs, *Counter(listed[ordered:]).items()))


def embedding(vocab: int, width: int, name: str = "embed_tokens") -> Tensor:
    """Return a table of `vocab` vectors of `width` channels."""
    return Tensor(f"{name}.weight", (vocab, width), "embedding")


def language_model(
    f: Figures,
    layers: tuple[tuple[Layer, int], ...],
    *,
    final_norm: Norm | None,
    embed: str = "embed_tokens",
    head: str = "lm_head",
    head_bias: bool = False,
    tied: bool | None = None,
    embeddings: tuple[Tensor, ...] = (),
    embedding_norm: Norm | None = None,
    other: tuple[Tensor, ...] = (),
    hidden: str = "hidden_size",
    positions: str = "max_position_embeddings",
    notes: tuple[str, ...] = (),
) -> Architecture:
    """Return the whole model: token embedding, layers, final norm and head.

    Args:
        f: The figures; `hidden_size`, `vocab_size` and `tie_word_embeddings` are read here.
        layers: Each distinct layer and how many of it.
        final_norm: The norm before the head.
        embed: Name of the token embedding.
        head: Name of the head.
        head_bias: Whether the head has a bias, tied or not.
        tied: Whether head and embedding are one tensor; None asks the config.
        embeddings: Further tables (positions).
        embedding_norm: The norm of what the tables give.
        other: Tensors outside the text decoder.
        hidden: Key of the width of the residual stream.
        positions: Key of the longest sequence.
        notes: Sentences that a user should know.
    """
    vocab, width = f.size("vocab_size"), f.size(hidden)
    if tied is None:
        tied = f.flag("tie_word_embeddings")
    tables = (embedding(vocab, width, embed), *embeddings)
    if tied and head_bias:
        tables += (Tensor(f"{head}.bias", (vocab,), "bias"),)
    return Architecture(
        model_type=f.model_type,
        hidden_size=width,
        vocab_size=vocab,
        layers=layers,
        embeddings=tables,
        embedding_norm=embedding_norm,
        final_norm=final_norm,
        head=None if tied else Linear(head, width, vocab, head_bias),
        other=other,
        max_position_embeddings=f.optional(positions),
        notes=notes,
        rotary_dims=_rotary_dims(f, layers),
    )


def _rotary_dims(f: Figures, layers: tuple[tuple[Layer, int], ...]) -> tuple[int, ...]:
    """Return the channels of the tables of sines and cosines that all layers share."""
    fraction = _rotary_fraction(f)
    widths: set[int] = set()
    for mixer in (branch.mixer for layer, _ in layers for branch in layer.branches):
        if isinstance(mixer, Attention) and mixer.rotary:
            widths.add(int(mixer.head_dim * fraction))
        elif isinstance(mixer, LatentAttention):
            widths.add(mixer.qk_rope_head_dim)
    return tuple(sorted(widths))


def _rotary_fraction(f: Figures) -> float:
    """Return which share of a head's channels turns."""
    scaling = f.raw("rope_parameters") or f.raw("rope_scaling")
    nested = scaling.get("partial_rotary_factor") if isinstance(scaling, Mapping) else None
    said = (nested, f.raw("partial_rotary_factor"), f.raw("rotary_pct"))
    return next((float(x) for x in said if isinstance(x, int | float) and 0 < x <= 1), 1.0)


def partly_rotary(f: Figures, mixer: Attention) -> Attention:
    """Return an attention whose own code sets aside the channels of a head that do not turn."""
    width = int(mixer.head_dim * _rotary_fraction(f))
    return mixer._replace(rotary_dim=width if width < mixer.head_dim else 0)


def window_below(window: int | None, positions: int | None) -> int | None:
    """Return `window`, or None where it is no narrower than the longest sequence."""
    if window is None or (positions is not None and window >= positions):
        return None
    return window
