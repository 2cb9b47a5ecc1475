"""What a language model is made of: tensors, grouped into layers, and how its class computes with them.

A model is embeddings, a sequence of layers and a head. A layer is a list of residual branches, each a mixer
(attention, feed-forward, experts, state space) with its norms. Nothing here computes: the operators of each
mixer are in the module named after it; `families/` declares the blocks of each model.

Tensor names are those of the transformers modules, relative to the layer, so that LoRA targets and
quantisers can be matched by name.
"""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from finegauge.records import NamedTuple


class Routing(NamedTuple):
    """How a router makes the weights of the chosen experts from its logits.

    `scores`: "softmax" or "sigmoid" of all logits, "top_softmax" of the chosen alone, or
    "sparsemixer" (Phi-3.5-MoE). What only decides which experts are chosen (groups,
    corrections) is not kept for backward.
    """

    scores: str = "softmax"
    normalised: bool = False  # the chosen weights are divided by their sum
    masked: bool = False  # the weights are read from scores that are zero outside the best groups
    wide_logits: bool = False  # input and weight of the router are cast to fp32
    wide_scores: bool = True  # the scores are fp32 whatever the logits are
    wide_weights: bool = False  # the weights reach the experts in fp32
    wide_sum: bool = False  # looped experts add up as wide as the weights are
    wide_shared: bool = False  # what routed and shared experts return is added in fp32 (Hunyuan 3)


class Numerics(NamedTuple):
    """What a model's transformers class computes in a width or a place of its own."""

    wide_norms: bool = False  # an RMS norm multiplies by its weight in fp32 (Gemma, OLMo-2)
    own_loss: bool = False  # transformers 4.46 to 4.49: the loss is not that which all others share
    narrow_loss: bool = False  # before transformers 5: the logits are not cast to fp32 for the loss
    bare_loss: bool = False  # nor are they in any version, and nothing is shifted (BERT)
    hands_back_cache: bool = False  # before 4.53: keys and values are returned under checkpointing too
    wide_stream: bool = False  # the residual stream is fp32 whatever the weights are (Mamba)
    wide_logits: bool = False  # the class itself returns fp32 logits (Mamba, Nemotron-H)
    unit_norms: bool = False  # a norm multiplies by a copy of its weight, mostly 1 + weight (Gemma, Nemotron)
    wide_layer_norms: bool = False  # a LayerNorm reads an fp32 copy of its input (OLMo 1)
    written_layer_norms: bool = False  # LayerNorm is written out in fp32 (Cohere)
    softcap: bool = False  # scores pass a tanh (Gemma 2)
    logit_cap: bool = False  # so do the logits
    uncapped_named: bool = False  # and what they were before has a name meanwhile (RecurrentGemma)
    scaled_logits: bool = False  # the logits are multiplied by a number (Granite, Cohere)
    wide_tables: bool = False  # the sines and cosines of rotary positions are in fp32 (OLMo)
    own_tables: int = 0  # how many pairs of them each layer makes for itself; 0: all layers share one
    tables_by_kind: bool = False  # layers with a window have tables of their own
    narrow_softmax: bool = False  # eager attention's softmax is not in fp32 (GPT-2)
    wide_scores: bool = False  # eager attention multiplies queries and keys in fp32 (GPT-J)
    clamped_scores: bool = False  # before 4.49: torch.max of scores and the least number, masked before (OPT)
    sinks: str = ""  # eager attention has a "column" of sinks (GPT-OSS), or is "scaled" by them (Granite)
    always_masks: bool = False  # sdpa gets a mask, and no more heads than there are (Falcon)
    kernels: tuple[str, ...] = ("sdpa", "flash")  # attention it has beside eager, which stands in for others
    holds_attention: bool = False  # what attention adds to the stream has a name until the layer ends
    hands_on_scores: bool = False  # a layer returns its eager attention's probabilities (all before Llama)
    hands_on_keys: bool = False  # later layers may attend to keys and values of earlier ones (Gemma 4)
    dropout: tuple[str, ...] = ()  # where it is not zero: attention, mlp (their outputs), scores, embedding


class Tensor(NamedTuple):
    """One parameter tensor, as the transformers module holds it."""

    name: str
    shape: tuple[int, ...]
    kind: str  # linear | bias | embedding | norm | experts | conv | state | router | fixed (never trains)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


class Linear(NamedTuple):
    """A dense projection, in_features -> out_features."""

    name: str
    in_features: int
    out_features: int
    bias: bool = False
    kind: str = "linear"

    def tensors(self) -> list[Tensor]:
        """Return weight [out, in] and, if there is one, bias [out], in a head of the kind of its weight."""
        weight = Tensor(f"{self.name}.weight", (self.out_features, self.in_features), self.kind)
        kind = self.kind if self.kind in ("head", "fixed") else "bias"
        return [weight, Tensor(f"{self.name}.bias", (self.out_features,), kind)] if self.bias else [weight]


class Norm(NamedTuple):
    """A normalisation over `size` channels; `kind` is "rms" or "layer".

    `heads`: each of so many heads has a weight of its own, all in one tensor or, `apart`, each in its own.
    """

    name: str
    size: int
    kind: str = "rms"
    weight: bool = True
    bias: bool = False
    heads: int = 0
    apart: bool = False

    def tensors(self) -> list[Tensor]:
        """Return the weight and bias that the norm has."""
        if self.apart:
            names = [f"{self.name}.norms.{head}.weight" for head in range(self.heads)]
            return [Tensor(name, (self.size,), "norm") for name in names]
        shape = (self.heads, self.size) if self.heads else (self.size,)
        found = [Tensor(f"{self.name}.weight", shape, "norm")] if self.weight else []
        if self.bias:
            found.append(Tensor(f"{self.name}.bias", shape, "norm"))
        return found


class Attention(NamedTuple):
    """Multi-head, grouped-query or multi-query attention.

    `projections` are in order of use; the last one is the output projection. Fused
    projections (qkv in one) are one `Linear`. `norms` are on queries and keys, `extra`
    tensors that no projection holds (sinks, relative biases).
    """

    hidden_size: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    projections: tuple[Linear, ...]
    value_head_dim: int = 0  # 0: same as head_dim
    norms: tuple[Norm, ...] = ()
    window: int | None = None  # keys each query sees; None: all before it
    causal: bool = True  # else those behind it too
    crosses: bool = False  # keys and values are of the states of an encoder
    biased: bool = False  # scores get biases by distance, of every head, which all layers share (T5)
    relative: int = 0  # rows of a table of distances that queries and keys are multiplied with too (DeBERTa)
    joins: bool = False  # crops are attended to one by one, unless by FlashAttention, and joined in a copy
    rotary: bool = True
    clipped: bool = False  # what q, k and v return is bounded
    norms_last: bool = False  # queries and keys are normalised after they are rotated (Hunyuan)
    rotary_dim: int = 0  # channels of a head that rotate, the others set aside meanwhile; 0: all
    output_gate: bool = False
    gate_size: int = 0  # channels of that gate; 0: as many as the output
    out_norm: Norm | None = None  # between the heads and the output projection (BitNet)
    copies_values: bool = False  # out of a fused projection, of which they are a view elsewhere (Falcon)
    extra: tuple[Tensor, ...] = ()
    scaled: bool = False  # its input and its keys are multiplied by numbers first (Falcon-H1)
    path: str = "attention"

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """Return the channels of all query, key and value heads, and of the output."""
        value = self.value_head_dim or self.head_dim
        q, k = self.num_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return q, k, self.num_key_value_heads * value, self.num_heads * value


class LatentAttention(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): low-rank q and kv.

    Queries and keys have `qk_nope_head_dim + qk_rope_head_dim` channels per head, values `value_head_dim`.
    """

    hidden_size: int
    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    value_head_dim: int
    projections: tuple[Linear, ...]
    norms: tuple[Norm, ...]
    extra: tuple[Tensor, ...] = ()
    rotary: bool = True
    path: str = "attention"
    kind: str = "latent_attention"  # of its layer, where that is not the path


class FeedForward(NamedTuple):
    """A dense feed-forward: up, activation, down; `gated` adds the gate (SwiGLU, GeGLU).

    `projections` in order of use, down last; a fused gate+up is one `Linear`. `norms` stand before down.
    """

    hidden_size: int
    intermediate_size: int
    gated: bool
    projections: tuple[Linear, ...]
    activation: str = "silu"
    norms: tuple[Norm, ...] = ()
    extra: tuple[Tensor, ...] = ()
    path: str = "mlp"


class MixtureOfExperts(NamedTuple):
    """A routed feed-forward: `top_k` of `num_experts` per token, and shared experts beside them.

    `expert_bias`: the expert projections have biases. `router_extra` are tensors of the
    router besides its weight (score-correction biases). `latent` are the projections into
    and out of a narrower space that the routed experts, not the shared ones, work in.
    `visits_all`: every expert computes every token, scaled by its score (Llama 4).
    `looped`: the class knows no other implementation than the loop over experts (DBRX).
    `shared_first`: the shared experts run before the router. `transposed`: expert weights are [in, out].
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    router: Linear
    gated: bool = True
    expert_bias: bool = False
    router_extra: tuple[Tensor, ...] = ()
    shared: FeedForward | None = None
    shared_gate: Linear | None = None
    latent: tuple[Linear, ...] = ()
    activation: str = "silu"
    routing: Routing = Routing()
    visits_all: bool = False
    looped: bool = False
    shared_first: bool = False
    transposed: bool = False
    path: str = "moe"

    @property
    def expert_width(self) -> int:
        """Return the channels that enter and leave a routed expert."""
        return self.latent[0].out_features if self.latent else self.hidden_size

    @property
    def expert_bias_size(self) -> int:
        """Return the biases of one routed expert."""
        both = 2 if self.gated else 1
        return both * self.intermediate_size + self.expert_width if self.expert_bias else 0

    @property
    def expert_size(self) -> int:
        """Return the parameters of one routed expert."""
        return (3 if self.gated else 2) * self.expert_width * self.intermediate_size + self.expert_bias_size

    def expert_projections(self, *, apart: bool = False) -> tuple[Linear, ...]:
        """Return one expert's projections, down last: `apart` as transformers 4 holds them, else fused."""
        h, f = self.expert_width, self.intermediate_size
        down = Linear("w2" if apart else "down_proj", f, h)
        if not self.gated:
            return Linear("up_proj", h, f), down
        if apart:
            return Linear("w1", h, f), Linear("w3", h, f), down
        return Linear("gate_up_proj", h, 2 * f), down

    def tensors(self) -> list[Tensor]:
        """Return router, experts (fused, as transformers 5 holds them) and shared experts."""
        e, h, f = self.num_experts, self.expert_width, self.intermediate_size
        up, name = (2 * f, "experts.gate_up_proj") if self.gated else (f, "experts.up_proj")
        found = [*self.router.tensors(), *self.router_extra]
        for linear in self.latent:
            found += linear.tensors()
        shapes = ((e, h, up), (e, f, h)) if self.transposed else ((e, up, h), (e, h, f))
        found += [Tensor(name, shapes[0], "experts"), Tensor("experts.down_proj", shapes[1], "experts")]
        if self.expert_bias:
            found.append(Tensor(f"{name}_bias", (e, up), "bias"))
            found.append(Tensor("experts.down_proj_bias", (e, h), "bias"))
        if self.shared is not None:
            found += [Tensor(f"shared_expert.{t.name}", t.shape, t.kind) for t in tensors_of(self.shared)]
        return found + (self.shared_gate.tensors() if self.shared_gate else [])


class ShortConvolution(NamedTuple):
    """A short causal convolution between two gates, which in_proj makes beside its input (LFM2)."""

    hidden_size: int
    conv_kernel: int
    projections: tuple[Linear, ...]  # in, out
    extra: tuple[Tensor, ...]
    norms: tuple[Norm, ...] = ()
    path: str = "conv"

    def state_bytes(self, width: float) -> float:
        """Return what the convolution looks back to."""
        return width * self.hidden_size * self.conv_kernel


class Chain(NamedTuple):
    """Projections one after the other and nothing between them: low-rank adapters of a model's own.

    `beside`: the first reads what another projection keeps.
    """

    projections: tuple[Linear, ...]
    beside: bool = False
    path: str = "linear"
    extra: tuple[Tensor, ...] = ()
    norms: tuple[Norm, ...] = ()

    def state_bytes(self, width: float) -> float:
        """Return nothing: no token looks back."""
        return 0.0


if TYPE_CHECKING:

    class Mixer(Protocol):
        """What a branch runs: a block of this module or of `ssm`, or a `traced.Traced`."""

        @property
        def path(self) -> str:
            """Return the first name of its operators' paths."""
            ...

else:
    Mixer = object


def tensors_of(part: Linear | Norm | Mixer) -> list[Tensor]:
    """Return the parameters of a projection, a norm or a mixer, projections first."""
    block: Any = part
    if hasattr(block, "tensors"):
        return list(block.tensors())
    found: list[Tensor] = []
    for each in (*block.projections, *block.norms, getattr(block, "out_norm", None)):
        found += each.tensors() if each else []
    return [*found, *block.extra]


class Branch(NamedTuple):
    """One residual branch: x + norm_after(mixer(norm_before(x)))."""

    mixer: Mixer
    norm_before: Norm | None = None
    norm_after: Norm | None = None


class Layer(NamedTuple):
    """One layer, whose first `parallel` branches share its input (all in GPT-J and Falcon, two in Falcon-H1).

    The first `borrowed` branches compute with weights that another layer holds (Zamba2), or `again`, with
    its very modules, which have one adapter (ALBERT), and the branch at
    path `nested` is a layer of its own to checkpointing, inside this one. `sums`: a norm
    after a branch is of its sum with the layer's input (BERT), not of what it adds.
    """

    kind: str  # "attention", "attention+moe", "mamba", ...: what `models show` counts
    branches: tuple[Branch, ...]
    parallel: int = 0
    extra: tuple[Tensor, ...] = ()
    borrowed: int = 0
    sums: bool = False
    nested: str = ""
    again: bool = False

    def tensors(self) -> list[Tensor]:
        """Return the parameters of the layer's own branches, norms first."""
        found: list[Tensor] = []
        for mixer, before, after in self.branches[self.borrowed :]:
            for part in (before, after, mixer):
                if part is not None:
                    found += tensors_of(part)
        return [*found, *self.extra]


class Neck(NamedTuple):
    """What the last states pass before the output projection: a projection, its activation, a norm."""

    linear: Linear
    activation: str
    norm: Norm | None = None


class Part(NamedTuple):
    """One step of a vision tower or of the projector behind it, or `count` equal layers of it.

    `joined` patches are one row of it, or a patch is `parted` into several; each crop has `extra` rows beside
    its patches (a class token).
    `idle`: what it returns is not used, so that it has no backward.
    """

    what: Layer | Linear | Norm | FeedForward | Neck | Tensor  # the last: a table that is looked up
    count: int = 1  # type: ignore[assignment]  # in place of a method of tuples
    projector: bool = False
    joined: int = 1
    parted: int = 1
    extra: int = 0
    window: int = 0  # patches that attend to each other; 0: all of a crop
    idle: bool = False

    def tensors(self) -> list[Tensor]:
        """Return the parameters of one of them; a table is the decoder's."""
        if isinstance(self.what, Tensor):
            return []
        if isinstance(self.what, Neck):
            return self.what.linear.tensors()
        return self.what.tensors() if isinstance(self.what, Layer) else tensors_of(self.what)


class Tower(NamedTuple):
    """What makes rows of the text's embeddings of the patches of an image, or an `encoder` and its source.

    An encoder is read by attention that crosses; `rows` are those of its source, where these do not vary.
    """

    hidden_size: int
    parts: tuple[Part, ...]
    tables: tuple[Tensor, ...] = ()  # positions, class tokens, heads that a language model does not run
    encoder: bool = False
    rows: int = 0

    def tensors(self) -> list[tuple[Tensor, int, bool]]:
        """Return each tensor, how many of it there are, and whether it is the projector's."""
        found = [(tensor, 1, False) for tensor in self.tables]
        for part in self.parts:
            found += [(tensor, part.count, part.projector) for tensor in part.tensors()]
        return found


class Architecture(NamedTuple):
    """A whole model. Layers are grouped: (layer, how many of it), in no particular order.

    `pooled`: the head reads one row of every sequence. `neck` stands before it, after dropout where it is
    `dropped`; without `scores` there is no output projection: the states are the result, and no neck is read.
    `tower` reads images, where there are any. `other` holds further tensors outside the text decoder: they
    count and weigh, and nothing runs them.
    """

    model_type: str
    hidden_size: int
    vocab_size: int
    layers: tuple[tuple[Layer, int], ...]
    embeddings: tuple[Tensor, ...]
    final_norm: Norm | None
    head: Linear | None  # None: tied to the embedding
    task: str = "causal_lm"
    neck: Neck | None = None
    pooled: bool = False
    dropped: bool = False
    scores: bool = True
    widening: tuple[Linear, ...] = ()  # from words to states and back, where they are not equally wide
    tower: Tower | None = None
    other: tuple[Tensor, ...] = ()
    max_position_embeddings: int | None = None
    notes: tuple[str, ...] = ()
    numerics: Numerics = Numerics()
    embedding_norm: Norm | None = None
    beside: tuple[Linear | Norm, ...] = ()  # what prepares a further input of every layer (Gemma 4)
    buffer_bytes: int = 0  # of masks and tables of positions that are no parameters
    rotary_dims: tuple[int, ...] = ()  # channels of each table of sines that all layers share

    @property
    def projection(self) -> Linear:
        """Return what makes logits of the last states: the head, or the table of words as wide as it is."""
        return self.head or Linear("lm_head", self.embeddings[0].shape[1], self.vocab_size)

    @property
    def tied(self) -> bool:
        """Return whether the head is the table of words."""
        return self.head is None and self.scores

    @property
    def held_values(self) -> float:
        """Return the values of a token that layers read beside the stream (Zamba2, Gemma 4)."""
        apart = sum([part.out_features for part in self.beside if isinstance(part, Linear)])
        lent = any(layer.borrowed and not layer.again for layer, _ in self.layers)
        return float(apart + self.hidden_size * lent)

    @property
    def outer_linears(self) -> tuple[Linear, ...]:
        """Return the projections outside the layers and before the head, which adapters may take."""
        neck = (self.neck.linear,) if self.neck and self.neck.linear.kind == "linear" else ()
        return *self.widening, *[part for part in self.beside if isinstance(part, Linear)], *neck

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return sum(self.layers_by_kind().values())

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters, tied tensors once."""
        layers = sum(count * _size(layer.tensors()) for layer, count in self.layers)
        tower = sum(count * tensor.size for tensor, count, _ in self.tower.tensors()) if self.tower else 0
        return layers + _size(self.outer_tensors()) + tower + _size(self.other)

    @property
    def num_active_parameters(self) -> int:
        """Return the parameters that one token passes through: only `top_k` of the routed experts."""
        idle = 0
        for layer, count in self.layers:
            for branch in layer.branches:
                if isinstance(moe := branch.mixer, MixtureOfExperts):
                    idle += count * (moe.num_experts - min(moe.top_k, moe.num_experts)) * moe.expert_size
                else:
                    idle += count * getattr(moe, "idle_parameters", 0)
        return self.num_parameters - idle

    def outer_tensors(self) -> list[Tensor]:
        """Return the tensors outside the layers: embeddings, what widens them, norms, untied head."""
        found = list(self.embeddings)
        neck = (self.neck.linear, self.neck.norm) if self.neck else ()
        for part in (self.embedding_norm, *self.beside, *self.widening, self.final_norm, *neck, self.head):
            found += part.tensors() if part else []
        return found

    def layers_by_kind(self) -> dict[str, int]:
        """Return how many layers there are of each kind."""
        kinds: Counter[str] = Counter()
        for layer, count in self.layers:
            kinds[layer.kind] += count
        return dict(kinds)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.size for tensor in tensors)
