"""What a model's own code computes in a way of its own: how a router weighs its experts, what is in fp32.

A family declares both beside its blocks; `lowering` asks them when it makes operators of the blocks.
"""

from typing import NamedTuple


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


class Numerics(NamedTuple):
    """What a model's transformers class computes in a width or a place of its own."""

    wide_norms: bool = False  # an RMS norm multiplies by its weight in fp32 (Gemma, OLMo-2)
    own_loss: bool = False  # transformers 4.46 to 4.49: the loss is not that which all others share
    narrow_loss: bool = False  # before transformers 5: the logits are not cast to fp32 for the loss
    hands_back_cache: bool = False  # before 4.53: keys and values are returned under checkpointing too
    wide_stream: bool = False  # the residual stream is fp32 whatever the weights are (Mamba)
    wide_logits: bool = False  # the class itself returns fp32 logits (Mamba, Nemotron-H)
    unit_norms: bool = False  # a norm multiplies by a copy of its weight, mostly 1 + weight (Gemma, Nemotron)
    wide_layer_norms: bool = False  # a LayerNorm reads an fp32 copy of its input (OLMo 1)
    written_layer_norms: bool = False  # LayerNorm is written out in fp32 (Cohere)
    softcap: bool = False  # scores pass a tanh (Gemma 2)
    logit_cap: bool = False  # so do the logits
    scaled_logits: bool = False  # the logits are multiplied by a number (Granite, Cohere)
    wide_tables: bool = False  # the sines and cosines of rotary positions are in fp32 (OLMo)
    own_tables: int = 0  # how many pairs of them each layer makes for itself; 0: all layers share one
    tables_by_kind: bool = False  # layers with a window turn by tables of their own
    narrow_softmax: bool = False  # eager attention's softmax is not in fp32 (GPT-2)
    wide_scores: bool = False  # eager attention multiplies queries and keys in fp32 (GPT-J)
    sinks: str = ""  # eager attention has a "column" of sinks (GPT-OSS), or is "scaled" by them (Granite)
    always_masks: bool = False  # sdpa gets a mask, and no more heads than there are (Falcon)
    kernels: tuple[str, ...] = ("sdpa", "flash")  # attention it has beside eager, which stands in for others
    holds_attention: bool = False  # what attention adds to the stream has a name until the layer ends
    hands_on_scores: bool = False  # a layer returns its eager attention's probabilities (all before Llama)
    dropout: tuple[str, ...] = ()  # where it is not zero: attention, mlp (their outputs), scores, embedding
