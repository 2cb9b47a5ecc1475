"""Cohere's Command models: attention and feed-forward (or experts) in parallel, under one norm.

Defaults are those of the transformers 5.23 classes.
"""

from collections.abc import Callable
from typing import Any

from finegauge.model.blocks import Architecture, Layer, Mixer, Norm, Routing
from finegauge.model.families.llama import FULL, SLIDING, window_of
from finegauge.model.families.moe import experts
from finegauge.model.families.parts import (
    attention,
    gated_mlp,
    heads,
    language_model,
    layer_norm,
    numerics,
    pre_norm_layer,
    stack,
)
from finegauge.model.families.reading import Config, Figures

COHERE = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
    "attention_bias": False, "use_qk_norm": False, "tie_word_embeddings": True,
}  # fmt: skip
COHERE2 = {**COHERE, "sliding_window": 4096, "sliding_window_pattern": 4}
COHERE2_MOE = {
    **COHERE2, "head_dim": 128, "num_experts_per_tok": 2, "num_experts": 8, "num_shared_experts": 0,
    "first_k_dense_replace": 0, "prefix_dense_sliding_window_pattern": 1, "norm_topk_prob": True,
    "expert_selection_fn": "softmax",
}  # fmt: skip
BEFORE = "input_layernorm"


@numerics(scaled_logits=True, own_loss=True, written_layer_norms=True)
def cohere(config: Config) -> Architecture:
    """Return Command R and Aya: parallel branches under one norm without bias, tied head."""
    f = Figures(config, COHERE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    norms: tuple[Norm, ...] = ()
    if f.flag("use_qk_norm"):
        num, kv, dim = of
        norms = (Norm("q_norm", dim, "layer", heads=num), Norm("k_norm", dim, "layer", heads=kv))
    mixer = attention(hidden, of, bias=bias, out_bias=bias, qk_norms=norms)
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    block = pre_norm_layer([mixer, mlp], [layer_norm(BEFORE, hidden, bias=False), None], parallel=True)
    return language_model(f, ((block, f.num_layers()),), final_norm=layer_norm("norm", hidden, bias=False))


@numerics(scaled_logits=True, written_layer_norms=True)
def cohere2(config: Config) -> Architecture:
    """Return Command R7B and Command A: three layers in four slide, the others have no rotary positions."""
    f = Figures(config, COHERE2)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    mlp = gated_mlp(hidden, f.size("intermediate_size"), f.text("hidden_act"))
    every = f.size("sliding_window_pattern")

    def build(kind: str) -> Layer:
        rotary = kind == SLIDING and f.raw("sliding_window") is not None
        style: dict[str, Any] = {"window": window_of(f, kind), "rotary": rotary}
        mixer = attention(hidden, of, bias=bias, out_bias=bias, **style)
        return pre_norm_layer([mixer, mlp], [layer_norm(BEFORE, hidden, bias=False), None], parallel=True)

    kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % every else FULL, (FULL, SLIDING))
    final = layer_norm("norm", hidden, bias=False)
    return language_model(f, stack(kinds, build), final_norm=final)


@numerics(scaled_logits=True, written_layer_norms=True)
def cohere2_moe(config: Config) -> Architecture:
    """Return Command A with experts, the first layers dense by choice; RMS norms if an epsilon is given."""
    f = Figures(config, COHERE2_MOE)
    hidden, of, bias = f.size("hidden_size"), heads(f), f.flag("attention_bias")
    act, size = f.text("hidden_act"), f.size("intermediate_size")
    first, forced = f.count("first_k_dense_replace"), f.size("prefix_dense_sliding_window_pattern") == 1
    sparse = f.layer_kinds(
        lambda i: "dense" if i < first else "sparse", ("dense", "sparse"), "mlp_layer_types"
    )
    width = f.count("num_shared_experts") * size
    shared = gated_mlp(hidden, width, act) if width else None
    routing = Routing(f.text("expert_selection_fn"), normalised=f.flag("norm_topk_prob"))
    routed = experts(f, size="intermediate_size", shared=shared, routing=routing)
    rms = f.raw("rms_norm_eps") is not None
    before, final = (
        Norm(name, hidden) if rms else layer_norm(name, hidden, bias=False) for name in (BEFORE, "norm")
    )

    def build(kind: tuple[str, str]) -> Layer:
        dense = kind[1] == "dense"
        rotary = (kind[0] == SLIDING and f.raw("sliding_window") is not None) or (dense and forced)
        style: dict[str, Any] = {"window": window_of(f, kind[0]), "rotary": rotary}
        mixer = attention(hidden, of, bias=bias, out_bias=bias, **style)
        feed: Mixer = gated_mlp(hidden, f.size("prefix_dense_intermediate_size"), act) if dense else routed
        return pre_norm_layer([mixer, feed], [before, None], parallel=True)

    kinds = f.layer_kinds(_prefixed(f, first), (FULL, SLIDING))
    return language_model(f, stack(zip(kinds, sparse, strict=True), build), final_norm=final)


def _prefixed(f: Figures, first: int) -> Callable[[int], str]:
    """Return the kind of a layer by index: one pattern for the dense ones in front, one for the rest."""
    prefix, every = f.size("prefix_dense_sliding_window_pattern"), f.size("sliding_window_pattern")

    def kind(index: int) -> str:
        place, pattern = (index, prefix) if index < first else (index - first, every)
        return SLIDING if (place + 1) % pattern else FULL

    return kind
