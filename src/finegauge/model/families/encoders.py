"""Encoders, which read a whole text at once: BERT, ModernBERT, their kin; T5, BART, Whisper for a decoder.

BERT's layers normalise the sum of each branch and its input. Each row has its `tasks`: the heads of its
transformers classes. Their losses take the logits as they are. Defaults are those of transformers 5.23.

Of T5, BART, its kin and Whisper the decoder is the model's own layers, the encoder a tower before them.
transformers ties the head of every T5 to its words, whatever `tie_word_embeddings` says (its config class).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from finegauge.model.blocks import (
    Architecture,
    Attention,
    Branch,
    Layer,
    Linear,
    Neck,
    Norm,
    Part,
    Tensor,
    Tower,
)
from finegauge.model.families.decoder import (
    BARE_LAYER_NORM,
    EMBEDDING,
    MASKED,
    OWN_HEADS,
    SEQ2SEQ,
    Family,
    Head,
    decoder,
    sizes,
)
from finegauge.model.families.parts import Config, Figures, feedforward, heads, language_model

CLASSES, TOKENS, SPANS = "sequence_classification", "token_classification", "question_answering"
DROPOUT = ("classifier_dropout", "hidden_dropout_prob")
LAYER_NORM = Norm("LayerNorm", 0, "layer", bias=True)


def _numerics(dropout: str, scores: str, default: float) -> Mapping[str, Any]:
    places = {**dict.fromkeys(("attention", "mlp", "embedding"), dropout), "scores": scores}
    return {"bare_loss": True, "narrow_softmax": True, "dropout": places, "dropout_default": default}


BERT_NUMERICS = _numerics("hidden_dropout_prob", "attention_probs_dropout_prob", 0.1)


def encoder(
    f: Figures, names: tuple[str, ...], *, types: bool = True, word_size: int = 0, decoder: str = "decoder",
    widens: str = "embeddings_project",
) -> Architecture:  # fmt: skip
    """Return BERT's trunk under the head that all its words share with the embeddings.

    `names` are those of queries, keys, values, their output and the two projections of the feed-forward;
    `types`: there are embeddings of token types.
    """
    if f.flag("is_decoder") or f.flag("add_cross_attention"):
        raise f.unsupported("its decoder (is_decoder or add_cross_attention)")
    hidden, (num, _, dim) = f.size("hidden_size"), heads(f, **OWN_HEADS)
    width, size, act = word_size or hidden, f.size("intermediate_size"), f.text("hidden_act")
    attention = _attention(hidden, (num, dim), names[:4], (True,) * 4, causal=False)
    mlp = feedforward(hidden, size, act, bias=True, gated=False, names=names[4:])
    norm = LAYER_NORM._replace(size=hidden)
    layer = Layer("attention+mlp", (Branch(attention, None, norm), Branch(mlp, None, norm)), sums=True)
    tables = [Tensor("position_embeddings.weight", (f.size("max_position_embeddings"), width), "embedding")]
    if types:
        tables.append(Tensor("token_type_embeddings.weight", (f.size("type_vocab_size"), width), "embedding"))
    fields: dict[str, Any] = {}
    if width != hidden:
        fields["widening"] = (Linear(widens, width, hidden, bias=True),)
    return language_model(
        f,
        ((layer, f.num_layers()),),
        None,
        embed="word_embeddings",
        head=decoder,
        head_bias=True,
        word_size=width,
        tables=tuple(tables),
        embedding_norm=LAYER_NORM._replace(size=width),
        **fields,
    )


def _bert(f: Figures) -> Architecture:
    return encoder(f, ("query", "key", "value", "dense", "dense", "dense"))


def _electra(f: Figures) -> Architecture:
    names = ("query", "key", "value", "dense", "dense", "dense")
    return encoder(f, names, word_size=f.size("embedding_size"), decoder="generator_lm_head")


def _distilbert(f: Figures) -> Architecture:
    names = ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2")
    return encoder(f, names, types=False, decoder="vocab_projector")


def _mpnet(f: Figures) -> Architecture:
    """Return MPNet: BERT whose layers share a table of biases for the scores."""
    built = encoder(f, ("q", "k", "v", "o", "dense", "dense"), types=False)
    (layer, count), words = built.layers[0], built.embeddings
    attends: Any = layer.branches[0]
    branch = attends._replace(mixer=attends.mixer._replace(biased=True))
    shape = (f.size("relative_attention_num_buckets"), branch.mixer.num_heads)
    table = Tensor("relative_attention_bias.weight", shape, "embedding")
    layers = ((layer._replace(branches=(branch, layer.branches[1])), count),)
    return built._replace(layers=layers, embeddings=(*words[:2], table, *words[2:]))


def _deberta(f: Figures) -> Architecture:
    """Return DeBERTa 2 and 3: BERT without positions, whose scores see a table of distances."""
    buckets = f.optional("position_buckets") or 0
    kinds = f.raw("pos_att_type") or ()
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    if not (
        f.flag("relative_attention") and f.flag("share_att_key") and {*kinds} == {"c2p", "p2c"} and buckets
    ):
        raise f.unsupported(
            "attention without shared distances (share_att_key, pos_att_type, position_buckets)"
        )
    for key in ("position_biased_input", "conv_kernel_size", "type_vocab_size"):
        if f.raw(key):
            raise f.unsupported(f"{key}={f.raw(key)}")
    names = ("query_proj", "key_proj", "value_proj", "dense", "dense", "dense")
    built = encoder(f, names, types=False)
    ((layer, count),), hidden = built.layers, f.size("hidden_size")
    attends: Any = layer.branches[0]
    branch = attends._replace(mixer=attends.mixer._replace(relative=2 * buckets))
    table = Tensor("rel_embeddings.weight", (2 * buckets, hidden), "embedding")
    words, _, *bias = built.embeddings  # no table of positions
    norms = LAYER_NORM._replace(size=hidden).tensors() if f.raw("norm_rel_ebd") == "layer_norm" else ()
    return built._replace(
        layers=((layer._replace(branches=(branch, layer.branches[1])), count),),
        embeddings=(words, table, *bias),
        other=tuple(norms),
    )


def _albert(f: Figures) -> Architecture:
    """Return ALBERT, whose layers all compute with the weights of the first."""
    if f.size("num_hidden_groups") > 1 or f.size("inner_group_num") > 1:
        raise f.unsupported("several groups of layers")
    names = ("query", "key", "value", "dense", "ffn", "ffn_output")
    built = encoder(f, names, word_size=f.size("embedding_size"), widens="embedding_hidden_mapping_in")
    ((layer, count),) = built.layers
    others = ((layer._replace(borrowed=2, again=True), count - 1),) if count > 1 else ()
    return built._replace(layers=((layer, 1), *others))


def _nomic(f: Figures) -> Architecture:
    """Return Nomic's encoder: positions that rotate, a gated feed-forward, no biases."""
    hidden, (num, _, dim) = f.size("hidden_size"), heads(f, **OWN_HEADS)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    mixer = _attention(hidden, (num, dim), names, (False,) * 4, causal=False)._replace(rotary=True)
    mlp = feedforward(hidden, f.size("intermediate_size"), f.text("hidden_act"), bias=False)
    norm = LAYER_NORM._replace(size=hidden)
    layer = Layer("attention+mlp", (Branch(mixer, None, norm), Branch(mlp, None, norm)), sums=True)
    types = Tensor("token_type_embeddings.weight", (f.size("type_vocab_size"), hidden), "embedding")
    return language_model(
        f, ((layer, f.num_layers()),), None, embed="word_embeddings", head="decoder", head_bias=True,
        tables=(types,), embedding_norm=norm,
    )  # fmt: skip


def _modernbert(f: Figures) -> Architecture:
    """Return ModernBERT, whose first layer has no norm before its attention."""
    if f.raw("classifier_pooling") not in (None, "cls", "mean"):
        raise f.unsupported(f"classifier_pooling={f.raw('classifier_pooling')}")
    built = decoder(f, MODERN)
    (first, number), *rest = built.layers
    attends, feeds = first.branches
    bare = first._replace(branches=(attends._replace(norm_before=None), feeds))
    others = ((first, number - 1),) if number > 1 else ()
    return built._replace(layers=((bare, 1), *others, *rest))


def _sees(f: Figures, of: Any, slides: bool, mark: Any) -> Mapping[str, Any]:
    """Return how a layer of ModernBERT attends: half of `local_attention` to each side, or to all."""
    return {"window": f.size("local_attention") // 2} if slides else {}


def _global(f: Figures) -> Any:
    """Return which layers of ModernBERT do not see all of a text."""
    every = f.optional("global_attn_every_n_layers") or 3
    return lambda index: index % every > 0


def _whole_classifier(activation: str) -> Mapping[str, Head]:
    return {
        CLASSES: Head("out_proj", pooled=True, neck="dense", activation=activation, whole=True),
        TOKENS: Head(dropout=DROPOUT),
        SPANS: Head("qa_outputs"),
    }


BERT_HEADS = {
    MASKED: Head("decoder", neck="dense", activation="hidden_act", norm=LAYER_NORM),
    CLASSES: Head(pooled=True, neck="dense", activation="tanh"),
    TOKENS: Head(dropout=DROPOUT),
    SPANS: Head("qa_outputs"),
    EMBEDDING: Head("", pooled=True, neck="dense", activation="tanh", unread=True),
}
ROBERTA_HEADS = {
    MASKED: Head("decoder", neck="dense", activation="gelu", norm=LAYER_NORM),
    **_whole_classifier("tanh"),
    EMBEDDING: BERT_HEADS[EMBEDDING],
}
MODERN_NECK: dict[str, Any] = {
    "neck": "dense", "neck_bias": "classifier_bias", "activation": "classifier_activation",
    "norm": BARE_LAYER_NORM._replace(name="norm"),
}  # fmt: skip
BERT_SIZES: Config = sizes(
    30522, 768, 3072, 12, 12, None, None, 512, hidden_act="gelu", type_vocab_size=2, hidden_dropout_prob=0.1,
    tie_word_embeddings=True,
)  # fmt: skip
MODERN: Family = {
    "heads": OWN_HEADS, "bias": "attention_bias", "fused": "Wqkv", "out": "Wo", "mlp": ("Wi", "Wo"),
    "mlp_fused": "Wi", "mlp_bias": "mlp_bias", "act": "hidden_activation", "norm": BARE_LAYER_NORM,
    "before": ("attn_norm", "mlp_norm"), "final": "final_norm", "embed": "tok_embeddings", "head": "decoder",
    "head_bias": "decoder_bias", "embedding_norm": "norm", "attention": {"causal": False},
    "slides": _global, "attends": _sees,
}  # fmt: skip


# --- an encoder, and a decoder that attends to what it returns

BART_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
ENCODED_TASKS = {SEQ2SEQ: Head("lm_head")}


def _attention(
    hidden: int, heads: tuple[int, int], names: tuple[str, ...], biases: tuple[bool, ...], **of: Any
) -> Attention:
    num, dim = heads
    *inputs, out = names
    linears = [Linear(name, hidden, num * dim, bias) for name, bias in zip(inputs, biases, strict=False)]
    linears.append(Linear(out, num * dim, hidden, biases[-1]))
    return Attention(hidden, num, num, dim, tuple(linears), rotary=False, **of)


def _layers(parts: Sequence[Any], norms: Sequence[Norm], *, sums: bool) -> Layer:
    """Return a layer of these, each under its norm or, where `sums`, with it over its sum."""
    branches = [
        Branch(part, None, norm) if sums else Branch(part, norm)
        for part, norm in zip(parts, norms, strict=True)
    ]
    kinds = ["cross attention" if getattr(part, "crosses", False) else part.path for part in parts]
    return Layer("+".join(kinds), tuple(branches), sums=sums)


def _heads(f: Figures, key: str) -> tuple[int, int]:
    hidden, num = f.size("d_model"), f.size(key)
    return num, f.divided("d_model", hidden, key, num)


def _bart(f: Figures, *, bias_of_keys: bool = True, sums: bool = True) -> tuple[Layer, Layer]:
    """Return a layer of the encoder, and one of the decoder."""
    hidden, act = f.size("d_model"), f.text("activation_function")
    biases = (True, bias_of_keys, True, True)
    found: list[Layer] = []
    for side in ("encoder", "decoder"):
        heads, decodes = _heads(f, f"{side}_attention_heads"), side == "decoder"
        own = _attention(hidden, heads, BART_NAMES, biases, causal=decodes)
        across = _attention(hidden, heads, BART_NAMES, biases, causal=False, crosses=True)
        mlp = feedforward(
            hidden, f.size(f"{side}_ffn_dim"), act, bias=True, gated=False, names=("fc1", "fc2")
        )
        mixers: Any = (own, across, mlp) if decodes else (own, mlp)
        norms = [Norm("layer_norm", hidden, "layer", bias=True)] * len(mixers)
        found.append(_layers(mixers, tuple(norms), sums=sums))
    return found[0], found[1]


def _bart_model(
    f: Figures, *, sums: bool = True, embedding_norm: bool = True, positions: str = "embedding"
) -> Architecture:
    """Return BART and its kin, whose last layers a norm follows where the norms of layers stand before.

    `positions` is the kind of their table: "embedding", "fixed", or "" where none is a parameter.
    """
    hidden, words = f.size("d_model"), f.size("vocab_size")
    of_source, of_target = _bart(f, sums=sums)
    norm = Norm("layernorm_embedding", hidden, "layer", bias=True) if embedding_norm else None
    last = None if sums else Norm("layer_norm", hidden, "layer", bias=True)
    rows = f.size("max_position_embeddings") + (2 if positions == "embedding" else 0)
    tables = (Tensor("embed_positions.weight", (rows, hidden), positions),) if positions else ()
    whats = Tensor("shared.weight", (words, hidden), "embedding"), norm, of_source, last
    parts = (Part(what, f.size("encoder_layers") if what is of_source else 1) for what in whats if what)
    return language_model(
        f, ((of_target, f.size("decoder_layers")),), last, embed="shared", tables=tables,
        embedding_norm=norm, tower=Tower(hidden, tuple(parts), tables, encoder=True),
    )  # fmt: skip


def _whisper(f: Figures) -> Architecture:
    """Return Whisper: two convolutions over 30 seconds of a spectrum, positions that do not train."""
    hidden, mels, rows = f.size("d_model"), f.size("num_mel_bins"), f.size("max_source_positions")
    of_source, of_target = _bart(f, bias_of_keys=False, sums=False)
    norm = Norm("layer_norm", hidden, "layer", bias=True)
    convs = (
        Part(Neck(Linear("conv1", 3 * mels, hidden, True, "conv"), "gelu"), parted=2),
        Part(Neck(Linear("conv2", 3 * hidden, hidden, True, "conv"), "gelu")),
    )
    tables = (Tensor("embed_positions.weight", (rows, hidden), "fixed"),)
    positions = Tensor("embed_positions.weight", (f.size("max_target_positions"), hidden), "embedding")
    parts = (*convs, Part(of_source, f.size("encoder_layers")), Part(norm))
    return language_model(
        f, ((of_target, f.size("decoder_layers")),), norm, tables=(positions,), head="proj_out",
        tower=Tower(hidden, parts, tables, encoder=True, rows=rows),
    )  # fmt: skip


def _t5(f: Figures) -> Architecture:
    """Return T5, whose first layers hold a table of biases for the scores of all."""
    hidden, heads = f.size("d_model"), (f.size("num_heads"), f.size("d_kv"))
    form = f.text("feed_forward_proj").split("-")
    gated, act = form[0] == "gated", form[-1]
    if gated and act == "gelu":
        act = "gelu_new"
    names = ("wi_0", "wi_1", "wo") if gated else ("wi", "wo")
    mlp = feedforward(hidden, f.size("d_ff"), act, gated=gated, names=names)
    none = (False,) * 4
    own = _attention(hidden, heads, ("q", "k", "v", "o"), none, causal=False)
    norm = Norm("layer_norm", hidden)
    across, own = own._replace(crosses=True), own._replace(biased=True)
    of_source = _layers((own, mlp), (norm, norm), sums=False)
    of_target = _layers((own._replace(causal=True), across, mlp), (norm,) * 3, sums=False)
    buckets = Tensor(
        "relative_attention_bias.weight", (f.size("relative_attention_num_buckets"), heads[0]), "embedding"
    )
    table = Tensor("shared.weight", (f.size("vocab_size"), hidden), "embedding")
    layers = f.size("num_layers")
    parts = (Part(table), Part(of_source, layers), Part(norm))
    number = f.optional("num_decoder_layers") or layers
    return language_model(
        f, ((of_target, number),), norm, embed="shared", tables=(buckets,), positions="n_positions",
        tied=True, tower=Tower(hidden, parts, (buckets,), encoder=True),
    )  # fmt: skip


ALIASES = {"hidden_size": "d_model"}

# fmt: off
ENCODERS: dict[str, Family] = {
    "bert": Family(build=_bert, numerics=BERT_NUMERICS, tasks=BERT_HEADS, defaults=BERT_SIZES),
    "roberta": Family(like="bert", tasks=ROBERTA_HEADS, defaults={"vocab_size": 50265}),
    "xlm-roberta": Family(like="bert", tasks=ROBERTA_HEADS),
    "camembert": Family(like="bert", tasks=ROBERTA_HEADS),
    "electra": Family(  # embeddings may be narrower than the layers
        like="bert", build=_electra,
        tasks={
            MASKED: Head("generator_lm_head", neck="dense", activation="gelu", norm=LAYER_NORM),
            **_whole_classifier("gelu"),
            EMBEDDING: Head("", pooled=True),
        },
        defaults={
            "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024,
        },
    ),
    "mpnet": Family(
        like="bert", build=_mpnet, numerics={**BERT_NUMERICS, "kernels": ()},
        tasks={
            **ROBERTA_HEADS, TOKENS: Head(dropout=("hidden_dropout_prob",)),
        },
        defaults={"vocab_size": 30527, "relative_attention_num_buckets": 32},
    ),
    "deberta-v2": Family(  # and 3, whose files say so too
        like="bert", build=_deberta, numerics={**BERT_NUMERICS, "kernels": ()},
        tasks={
            **BERT_HEADS,
            CLASSES: Head(pooled=True, neck="dense", activation="gelu"),
            TOKENS: Head(dropout=("hidden_dropout_prob",)),
            EMBEDDING: Head("", pooled=True),
        },
        defaults={
            "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
            "intermediate_size": 6144, "type_vocab_size": 0,
        },
    ),
    "albert": Family(
        like="bert", build=_albert,
        tasks={
            **BERT_HEADS,
            CLASSES: Head(
                pooled=True, neck="pooler", activation="tanh", dropout=("classifier_dropout_prob",)
            ),
            TOKENS: Head(dropout=("classifier_dropout_prob", "hidden_dropout_prob")),
            EMBEDDING: Head("", pooled=True, neck="pooler", activation="tanh", unread=True),
        },
        defaults={
            "vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64,
            "intermediate_size": 16384, "num_hidden_groups": 1, "inner_group_num": 1,
            "hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            "classifier_dropout_prob": 0.1,
        },
    ),
    "nomic_bert": Family(
        build=_nomic, numerics=_numerics("hidden_dropout_prob", "attention_probs_dropout_prob", 0.0),
        tasks={
            **{task: BERT_HEADS[task] for task in (MASKED, CLASSES, TOKENS)},
            EMBEDDING: Head("", pooled=True),
        },
        defaults={
            **BERT_SIZES, "vocab_size": 30528, "max_position_embeddings": 2048, "hidden_act": "silu",
            "hidden_dropout_prob": 0.0,
        },
    ),
    "distilbert": Family(
        build=_distilbert,
        aliases={
            "hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
            "intermediate_size": "hidden_dim", "hidden_act": "activation",
        },
        numerics={
            **BERT_NUMERICS,
            "dropout": {"mlp": "dropout", "embedding": "dropout", "scores": "attention_dropout"},
        },
        tasks={
            MASKED: Head("vocab_projector", neck="vocab_transform", activation="hidden_act", norm=LAYER_NORM),
            CLASSES: Head(pooled=True, neck="pre_classifier", activation="relu", whole=True),
            TOKENS: Head(dropout=("dropout",)),
            SPANS: Head("qa_outputs", dropout=("qa_dropout",)),
            EMBEDDING: Head("", pooled=True),
        },
        defaults={**BERT_SIZES, "num_hidden_layers": 6, "dropout": 0.1, "qa_dropout": 0.1},
    ),
    "modernbert": Family(
        build=_modernbert,
        numerics={
            "tables_by_kind": True,
            "dropout": {"attention": "attention_dropout", "mlp": "mlp_dropout",
                        "scores": "attention_dropout", "embedding": "embedding_dropout"},
        },
        tasks={
            MASKED: Head("decoder", **MODERN_NECK),
            CLASSES: Head(pooled=True, **MODERN_NECK),
            TOKENS: Head(dropout=("classifier_dropout",), **MODERN_NECK),
            SPANS: Head(dropout=("classifier_dropout",), **MODERN_NECK),
            EMBEDDING: Head("", pooled=True),
        },
        defaults=sizes(
            50368, 768, 1152, 22, 12, None, None, 8192, hidden_activation="gelu", local_attention=128,
            decoder_bias=True, classifier_activation="gelu", tie_word_embeddings=True,
        ),
    ),
    # --- and a decoder
    "bart": Family(
        build=_bart_model, tasks=ENCODED_TASKS, aliases=ALIASES,
        numerics=_numerics("dropout", "attention_dropout", 0.0),
        defaults={
            "vocab_size": 50265, "max_position_embeddings": 1024, "hidden_size": 1024, "d_model": 1024,
            "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
            "encoder_attention_heads": 16, "decoder_attention_heads": 16, "activation_function": "gelu",
            "tie_word_embeddings": True, "dropout": 0.1,
        },
    ),
    "mbart": Family(like="bart", build=partial(_bart_model, sums=False)),
    "m2m_100": Family(  # and NLLB
        like="bart", build=partial(_bart_model, sums=False, embedding_norm=False, positions=""),
        defaults={"vocab_size": 128112, "activation_function": "relu"},
    ),
    "pegasus": Family(
        like="bart", build=partial(_bart_model, sums=False, embedding_norm=False, positions="fixed"),
    ),
    "marian": Family(
        like="bart", build=partial(_bart_model, embedding_norm=False, positions="fixed"),
        defaults={"vocab_size": 58101},
    ),
    "whisper": Family(
        build=_whisper, tasks=ENCODED_TASKS, aliases=ALIASES,
        numerics=_numerics("dropout", "attention_dropout", 0.0),
        defaults={
            "vocab_size": 51865, "num_mel_bins": 80, "hidden_size": 384, "d_model": 384,
            "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
            "encoder_attention_heads": 6, "decoder_attention_heads": 6, "activation_function": "gelu",
            "max_source_positions": 1500, "max_target_positions": 448, "tie_word_embeddings": True,
        },
    ),
    "t5": Family(
        build=_t5, tasks=ENCODED_TASKS, aliases=ALIASES,
        numerics=_numerics("dropout_rate", "dropout_rate", 0.1),
        defaults={
            "vocab_size": 32128, "hidden_size": 512, "d_model": 512, "d_kv": 64, "d_ff": 2048,
            "num_layers": 6, "num_heads": 8, "relative_attention_num_buckets": 32,
            "feed_forward_proj": "relu", "tie_word_embeddings": True,
        },
    ),
    "mt5": Family(like="t5", defaults={
        "vocab_size": 250112, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    }),
}
# fmt: on
