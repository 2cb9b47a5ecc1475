"""The blocks that families share, made from the figures of a `config.json`, which are checked before.

A key that the file leaves out takes the default of the transformers class, which each row of the tables
writes down; a value that no model can have is refused in one sentence.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.model.blocks import (
    Architecture,
    Attention,
    Branch,
    FeedForward,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Norm,
    Routing,
    Tensor,
)

Config = Mapping[str, Any]

MAX_LAYERS = 10_000  # the deepest published decoders have about 130
MAX_SIZE = 2**27  # no vocabulary, width or context that is published comes near
Heads = tuple[int, int, int]  # query heads, key and value heads, channels per head
K = TypeVar("K", bound=Hashable)

FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA_MLP = ("gate_proj", "up_proj", "down_proj")
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")


class Figures:
    """The figures of one model: what its `config.json` says, else the `defaults` of its class.

    `aliases` gives the name of a key in this family's files, where it is another; `model_type` is of the
    whole model, for messages.
    """

    __slots__ = ("aliases", "config", "defaults", "model_type")

    def __init__(
        self, config: Config, defaults: Config, aliases: Mapping[str, str] | None = None, model_type: str = ""
    ) -> None:
        """Keep the mappings; nothing is read yet."""
        self.config = config
        self.defaults = defaults
        self.aliases = aliases or {}
        self.model_type = model_type or str(config.get("model_type", ""))

    def raw(self, key: str) -> Any:
        """Return what stands under the key's alias or the key, else the default, else None."""
        name = self.name(key)
        return self.config[name] if name in self.config else self.defaults.get(key)

    def name(self, key: str) -> str:
        """Return the name under which this file has `key`."""
        alias = self.aliases.get(key)
        return alias if alias is not None and alias in self.config else key

    def size(self, key: str, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """Return the whole number under `key`, between `least` and `most`.

        Raises: FieldError naming key and value if there is none, or another.
        """
        value = self.raw(key)
        if value is None:
            raise FieldError(
                f"{key} is missing from the model's config, and the transformers class of "
                f"'{self.model_type}' has no default."
            )
        return self.checked(key, value, least, most)

    def optional(self, key: str) -> int | None:
        """Return the whole number under `key`, or None where it is null or absent."""
        value = self.raw(key)
        return None if value is None else self.checked(key, value, 1, MAX_SIZE)

    def count(self, key: str) -> int:
        """Return the whole number under `key`, which may be zero; null and absent are zero."""
        value = self.raw(key)
        return 0 if value is None else self.checked(key, value, 0, MAX_SIZE)

    def flag(self, key: str | bool) -> bool:
        """Return the truth value under `key`, null and absent false; True and False stand for themselves."""
        value = key if isinstance(key, bool) else self.raw(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        if isinstance(value, int) and value in (0, 1):
            return value == 1
        raise FieldError(f"{self.name(str(key))}={shown(value)} is not a truth value; give true or false.")

    def text(self, key: str) -> str:
        """Return the text under `key`."""
        value = self.raw(key)
        if isinstance(value, str):
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a text.")

    def ratio(self, key: str) -> float:
        """Return the positive number under `key`, whole or not."""
        value = self.raw(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_SIZE:
            return float(value)
        raise FieldError(f"{self.name(key)}={shown(value)} is not a positive number.")

    def items(self, key: str) -> Sequence[Any] | None:
        """Return the list under `key`, or None where it is null or absent."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and len(value) <= MAX_LAYERS:
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a list of at most {MAX_LAYERS:,} entries.")

    def sizes(self, key: str, length: int) -> list[int]:
        """Return `length` whole numbers under `key`; a single number stands for all of them."""
        value = self.raw(key)
        if not isinstance(value, (list, tuple)):
            return [self.size(key)] * length
        if len(value) != length:
            raise FieldError(f"{key} has {len(value)} entries for {length} layers; give one per layer.")
        return [self.checked(key, entry, 1, MAX_SIZE) for entry in value]

    def num_layers(self, key: str = "num_hidden_layers") -> int:
        """Return the number of layers, at most `MAX_LAYERS` so that nothing hangs."""
        return self.size(key, most=MAX_LAYERS)

    def layer_kinds(
        self, default: Callable[[int], str], known: Sequence[str], key: str = "layer_types"
    ) -> list[str]:
        """Return the kind of every layer: what the list under `key` says, else `default(index)`.

        Raises: FieldError for a list of another length; UnsupportedError for a kind not in `known`.
        """
        num_layers = self.num_layers()
        listed = self.items(key)
        if listed is None:
            return [default(index) for index in range(num_layers)]
        if len(listed) != num_layers:
            raise FieldError(
                f"{key} has {len(listed)} entries, but num_hidden_layers={num_layers}; give one per layer."
            )
        for kind in listed:
            if kind not in known:
                raise UnsupportedError(
                    f"model_type '{self.model_type}': {key} has {shown(kind)}; "
                    f"described are {', '.join(known)}."
                )
        return list(listed)

    def divided(self, key: str, value: int, by_key: str, by: int) -> int:
        """Return `value / by`, or raise FieldError naming both keys if a rest remains."""
        if value % by:
            raise FieldError(f"{key}={value} is not divisible by {by_key}={by}.")
        return value // by

    def part(self, key: str, defaults: Config) -> "Figures":
        """Return the figures of the nested config under `key` (`text_config`), empty if absent."""
        value = self.config.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise FieldError(f"{self.name(key)}={shown(value)} is not a mapping of figures.")
        return Figures(value, defaults, self.aliases, self.model_type)

    def unsupported(self, what: str) -> UnsupportedError:
        """Return the error that says which variant of this family is not supported."""
        return UnsupportedError(f"model_type '{self.model_type}': {what} is not supported yet.")

    def checked(self, key: str, value: Any, least: int, most: int) -> int:
        """Return `value` if it is a whole number within these bounds, refuse it under its key otherwise."""
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise FieldError(f"{self.name(key)}={shown(value)} is not a whole number from {least} to {most:,}.")


def heads(
    f: Figures, *, num: str = "num_attention_heads", kv: str = "num_key_value_heads", dim: str = "head_dim"
) -> Heads:
    """Return the heads of an attention, their number and width checked against each other.

    The arguments are keys; "" for a key that the family does not read: as many key and
    value heads as query heads, `hidden_size` channels divided among the heads.
    """
    num_heads = f.size(num)
    num_kv = (f.optional(kv) if kv else None) or num_heads
    head_dim = f.optional(dim) if dim else None
    if head_dim is None:
        head_dim = f.divided("hidden_size", f.size("hidden_size"), num, num_heads)
    f.divided(num, num_heads, kv, num_kv)
    return num_heads, num_kv, head_dim


def head_norms(head_dim: int, names: Sequence[str] = ("q_norm", "k_norm"), **of: Any) -> tuple[Norm, ...]:
    """Return norms over the channels of each query and key head; `of`: further fields of `Norm`."""
    return tuple(Norm(name, head_dim, **of) for name in names)


def attention(
    hidden: int,
    of: Heads,
    *,
    bias: bool = False,
    out_bias: bool = False,
    fused: str = "",
    out: str = "o_proj",
    output_gate: bool = False,
    value_head_dim: int = 0,
    more: tuple[Linear, ...] = (),
    **fields: Any,
) -> Attention:
    """Return an attention with q, k, v (or one `fused`) and output projections.

    `of` are query heads, key and value heads, and channels per head (of values `value_head_dim` if not 0);
    `fused` is the name of the one projection that holds q, k and v, if there is one. `bias` is that of q, k
    and v. q_proj makes the `output_gate`, too, unless `more` projections stand between v and the output.
    `fields`: further fields of `Attention`.
    """
    num, kv, dim = of
    v_dim = value_head_dim or dim
    q_out = num * dim * (2 if output_gate and not more else 1)
    if fused:
        inputs = [Linear(fused, hidden, q_out + kv * (dim + v_dim), bias)]
    else:
        queries, keys = Linear("q_proj", hidden, q_out, bias), Linear("k_proj", hidden, kv * dim, bias)
        inputs = [queries, keys, Linear("v_proj", hidden, kv * v_dim, bias)]
    projections = (*inputs, *more, Linear(out, num * v_dim, hidden, out_bias))
    made = Attention(hidden, num, kv, dim, projections, value_head_dim, output_gate=output_gate)
    return made._replace(**fields)


def feedforward(
    hidden: int,
    size: int,
    activation: str = "silu",
    *,
    bias: bool = False,
    gated: bool = True,
    names: Sequence[str] = LLAMA_MLP,
    fused: str = "",
) -> FeedForward:
    """Return a feed-forward of projections called `names`, down last; `fused` is one of gate and up."""
    inputs = [Linear(name, hidden, size, bias) for name in names[:-1]]
    if fused:
        inputs = [Linear(fused, hidden, 2 * size, bias)]
    return FeedForward(
        hidden_size=hidden,
        intermediate_size=size,
        gated=gated,
        projections=(*inputs, Linear(names[-1], size, hidden, bias)),
        activation=activation,
    )


def mlp_of(f: Figures, size: str = "intermediate_size", *, bias: str | bool = False) -> FeedForward:
    """Return Llama's gated feed-forward, `size` channels wide (a key)."""
    return feedforward(f.size("hidden_size"), f.size(size), f.text("hidden_act"), bias=f.flag(bias))


def experts(
    f: Figures,
    *,
    num: str = "num_experts",
    top_k: str = "num_experts_per_tok",
    size: str = "moe_intermediate_size",
    hidden: int = 0,
    gated: bool = True,
    bias: bool = False,
    router: str = "gate",
    router_bias: bool = False,
    act: str = "hidden_act",
    correction: str = "",
    shared: str | FeedForward | None = None,
    num_shared: str = "",
    shared_bias: str | bool = False,
    shared_gate: bool = False,
    routing: Routing = Routing(),  # noqa: B008 - a tuple
    normalised: str = "",
    **fields: Any,
) -> MixtureOfExperts:
    """Return routed experts whose figures stand under the given keys.

    Keys are `num` (of experts), `top_k` (that a token passes), `size` (the width of one), `act`, and
    `num_shared` (how many are shared, each as wide as a routed one); `shared` is the key of the width of the
    shared ones, or they themselves, which a sigmoid gate may scale. `router` and `correction` (per expert;
    "" for none) are names. `normalised` is the key of a field of `routing` that it replaces. `hidden` of 0
    reads `hidden_size`. `fields`: further fields of `MixtureOfExperts`.
    """
    width, num_experts, chosen = hidden or f.size("hidden_size"), f.size(num, most=65536), f.size(top_k)
    if chosen > num_experts:
        raise FieldError(f"{top_k}={chosen} is more than {num}={num_experts}.")
    if normalised:
        routing = routing._replace(normalised=f.flag(normalised))
    if isinstance(shared, str):
        shared = mlp_of(f, shared, bias=shared_bias)
    elif num_shared and (always := f.count(num_shared) * f.size(size)):
        shared = feedforward(width, always, f.text(act), bias=f.flag(shared_bias))
    made: dict[str, Any] = {
        "router_extra": (Tensor(correction, (num_experts,), "fixed"),) if correction else (),
        "shared_gate": Linear("shared_expert_gate", width, 1) if shared_gate else None,
        "shared_first": shared_gate,
        "activation": f.text(act),
    }
    return MixtureOfExperts(
        hidden_size=width,
        intermediate_size=f.size(size),
        num_experts=num_experts,
        top_k=chosen,
        gated=gated,
        expert_bias=bias,
        router=Linear(router, width, num_experts, router_bias, kind="router"),
        shared=shared,
        routing=routing,
        **(made | fields),
    )


def rms_layer(hidden: int, *mixers: Mixer, names: Sequence[str] = PRE_NORMS) -> Layer:
    """Return a layer with an RMS norm before each mixer, as Llama has them."""
    return layer(*(Branch(m, Norm(name, hidden)) for m, name in zip(mixers, names, strict=False)))


def layer(*branches: Branch, parallel: int = 0, extra: tuple[Tensor, ...] = (), borrowed: int = 0) -> Layer:
    """Return a layer named after its mixers."""
    kinds = [
        SLIDING if getattr(mixer, "window", None) is not None else str(getattr(mixer, "kind", mixer.path))
        for mixer, *_ in branches
    ]
    return Layer("+".join(kinds), branches, parallel, extra, borrowed)


def stack(kinds: Iterable[K], build: Callable[[K], Layer]) -> tuple[tuple[Layer, int], ...]:
    """Return the layers in groups of equal ones, with how many there are of each.

    They are in order until there has been one of every kind; the rest is one group per kind.
    """
    listed, layers, ordered = list(kinds), dict[K, Layer](), 0
    for index, kind in enumerate(listed):
        if kind not in layers:
            layers[kind], ordered = build(kind), index
    groups: list[tuple[Layer, int]] = []
    for kind, run in groupby(listed[:ordered]):
        groups.append((layers[kind], len(list(run))))
    for kind, count in Counter(listed[ordered:]).items():
        groups.append((layers[kind], count))
    return tuple(groups)


def language_model(
    f: Figures,
    layers: tuple[tuple[Layer, int], ...],
    final_norm: Norm | None,
    *,
    embed: str = "embed_tokens",
    head: str = "lm_head",
    head_bias: bool = False,
    tied: bool | None = None,
    word_size: int = 0,
    tables: tuple[Tensor, ...] = (),
    positions: str = "max_position_embeddings",
    **fields: Any,
) -> Architecture:
    """Return the whole model: token embedding, layers, final norm and head.

    `layers` are each distinct layer and how many of it; `embed` and `head` names. A head has a bias whether
    tied or not; `tied` of None asks the config. `word_size` are the channels of the embeddings, where they
    are not those of the layers, `tables` further embeddings (positions), `positions` the key of the longest
    sequence. `fields`: further fields of `Architecture`.
    """
    vocab, hidden = f.size("vocab_size"), f.size("hidden_size")
    tied = f.flag("tie_word_embeddings") if tied is None else tied
    width = word_size or hidden
    bias = (Tensor(f"{head}.bias", (vocab,), "bias"),) if tied and head_bias else ()
    return Architecture(
        model_type=f.model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=layers,
        embeddings=(Tensor(f"{embed}.weight", (vocab, width), "embedding"), *tables, *bias),
        final_norm=final_norm,
        head=None if tied else Linear(head, width, vocab, head_bias),
        max_position_embeddings=f.optional(positions),
        rotary_dims=_rotary_dims(f, layers),
        **fields,
    )


def _rotary_dims(f: Figures, layers: tuple[tuple[Layer, int], ...]) -> tuple[int, ...]:
    """Return the channels of the tables of sines and cosines that all layers share."""
    fraction, widths = rotary_fraction(f), set()
    for layer, _ in layers:
        for mixer, *_ in layer.branches:
            if isinstance(mixer, Attention) and mixer.rotary:
                widths.add(int(mixer.head_dim * fraction))
            elif (rotated := getattr(mixer, "qk_rope_head_dim", 0)) and getattr(mixer, "rotary", True):
                widths.add(rotated)
    return tuple(sorted(widths))


def rotary_fraction(f: Figures) -> float:
    """Return which share of a head's channels is rotated."""
    scaling = f.raw("rope_parameters") or f.raw("rope_scaling")
    nested = scaling.get("partial_rotary_factor") if isinstance(scaling, Mapping) else None
    for share in (nested, f.raw("partial_rotary_factor"), f.raw("rotary_pct")):
        if isinstance(share, int | float) and 0 < share <= 1:
            return float(share)
    return 1.0


def window_of(f: Figures, key: str = "sliding_window") -> int | None:
    """Return the sliding window under `key`, None where it is no narrower than the longest sequence."""
    window, positions = f.optional(key), f.optional("max_position_embeddings")
    return None if window is None or (positions is not None and window >= positions) else window
