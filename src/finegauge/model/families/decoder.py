"""How a row of the tables of families becomes an `Architecture`: a decoder of known blocks, and its head.

A row (`Family`) says in which way a transformers class differs from Llama's, or from the family it is
`like`; `dense.py` and `experts.py` hold the rows. What a row cannot say in words it says in a function.

A task's head on a decoder is one of transformers' generic classes (`GenericForSequenceClassification`):
`score`, without a bias, of every token. Encoders have classes of their own; their rows are in `encoders`.
PEFT trains what it calls `classifier`, `score` or `qa_outputs` whole (`modules_to_save`), a copy beside the
frozen one; a projection before it that is outside of these is frozen or adapted like any other.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from finegauge.arithmetic import every
from finegauge.errors import FieldError, UnsupportedError
from finegauge.model.blocks import Architecture, Branch, Layer, Linear, Mixer, Neck, Norm, Numerics, Tensor
from finegauge.model.families.parts import (
    FULL,
    LLAMA_MLP,
    PRE_NORMS,
    SLIDING,
    Config,
    Figures,
    Heads,
    attention,
    experts,
    feedforward,
    heads,
    language_model,
    layer,
    rotary_fraction,
    stack,
    window_of,
)
from finegauge.records import NamedTuple
from finegauge.run.rules import MODEL_DEGREES, NOT_CHECKPOINTED, OFF_PROJECTIONS
from finegauge.run.run import Run, positions_of

Flag: TypeAlias = bool | str  # or the key of a truth value
ALL = "all"  # every layer slides, where there is a window


QkNorms: TypeAlias = Callable[[Figures, Heads], tuple[Norm, ...]]


def qk_norms(
    names: tuple[str, str] = ("q_norm", "k_norm"),
    *,
    all_heads: bool = False,
    by_head: bool = False,
    flag: str = "",
    **of: Any,
) -> QkNorms:
    """Return what makes norms on queries and keys, over the channels of each head or of `all_heads` at once.

    `by_head`: each head has a weight of its own; `flag`: the key that says whether there are any norms;
    `of`: further fields of `Norm`.
    """

    def made(f: Figures, heads: Heads) -> tuple[Norm, ...]:
        num, kv, dim = heads
        return tuple(
            Norm(name, many * dim if all_heads else dim, heads=many if by_head else 0, **of)
            for name, many in zip(names, (num, kv), strict=True)
            if not flag or f.flag(flag)
        )

    return made


HEAD_NORMS, WIDE_HEAD_NORMS = qk_norms(), qk_norms(all_heads=True)
LAYER_NORM, BARE_LAYER_NORM = Norm("", 0, "layer", bias=True), Norm("", 0, "layer")
UP_DOWN = ("up_proj", "down_proj")
OWN_HEADS = {"kv": "", "dim": ""}  # as many key heads as query heads, and no width of their own


if TYPE_CHECKING:  # to define it takes as long as to read both tables

    class Family(TypedDict, total=False):
        """What a transformers class is made of; what a row leaves out is as in `LLAMA`, below."""

        like: str  # the family that it is, but for what follows
        defaults: Config  # of its configuration class: the figures that a file may leave out
        aliases: Mapping[str, str]  # the name of a key in its files, where it is another
        numerics: Mapping[str, Any]  # see `numerics_of`
        varies: Callable[[Figures], "Family"]  # what depends on the figures; may refuse them
        build: Callable[[Figures], Architecture]  # in place of `decoder`
        # the kind of layer that `per_layer_config` tells apart, and the keys of its figures
        per_layer: tuple[str, Mapping[str, str]]
        tasks: Mapping[str, Any]  # the `Head` of every task, where its classes have heads of their own
        behind: Any  # a `vision.Behind`: its decoder is another family, behind a tower
        # attention
        heads: Mapping[str, str]  # the keys of `heads`, where they are others
        of: Heads  # the heads themselves
        bias: Flag  # of q, k and v
        out_bias: Flag | None  # of the output projection; None: as those
        fused: str  # the one projection of q, k and v
        out: str  # the output projection
        qk_norms: QkNorms | None
        rotary: bool
        partly_rotary: bool  # its code sets aside the channels of a head that are not rotated
        sinks: bool
        attention: Mapping[str, Any]  # further arguments of `parts.attention`
        clip: str  # key of the bound on queries, keys and values
        # which layers slide: ALL, all but every n-th (n or its key), or a rule for each; a file's list wins
        slides: str | int | Callable[[Figures], Callable[[int], bool]] | None
        slides_if: str  # key without which none slides
        # what else tells layers apart, one entry each: by default whether attention is rotary
        marks: Callable[[Figures, Sequence[str], Sequence[bool]], Sequence[Hashable]] | None
        attends: Callable[[Figures, Heads, bool, Any], Mapping[str, Any]] | None  # of (slides, mark)
        mixer: Callable[[Figures, Any], Mixer] | None  # of this mark, in place of attention
        # feed-forward
        gated: bool
        mlp: tuple[str, ...]  # names of its projections, down last
        mlp_fused: str  # the one projection of gate and up
        mlp_size: str | int  # its width, or the key of it
        mlp_bias: Flag
        mlp_norm: str  # before its last projection
        widening: int  # its width in multiples of `hidden_size`, where no key says it
        act: str  # key of the activation
        activation: str  # the activation itself
        # experts
        # arguments of `parts.experts`, or what makes them
        experts: Mapping[str, Any] | Callable[[Figures], Mixer] | None
        sparse: Callable[[Figures], Sequence[bool]] | None  # which layers are routed; None: all
        # layer
        norm: Norm
        before: Sequence[str]  # norms before attention and feed-forward, "" for none
        after: Sequence[str]  # norms after them
        dense_after: Sequence[str] | None  # ... in layers that are not routed, where those differ
        parallel: Flag
        extra: tuple[Tensor, ...]
        # around the layers
        final: str
        embed: str
        head: str
        head_bias: Flag
        positions: str  # key of the longest sequence
        learned: tuple[str, int] | None  # embedding of positions, and how many rows it has beside these
        embedding_norm: str
        word_size: int
        fields: Mapping[str, Any]  # of `Architecture`: notes, buffer_bytes

else:
    Family = dict


COLUMNS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)


def sizes(*columns: int | None, **others: Any) -> Config:
    """Return the defaults of a configuration class: its figures in the order of `COLUMNS`, and others.

    None: the class has no default, or that of the family it is like. False needs no entry: absent is false.
    """
    stated = {name: value for name, value in zip(COLUMNS, columns, strict=False) if value is not None}
    return stated | others


LLAMA: Family = {
    "heads": {}, "bias": False, "out_bias": None, "fused": "", "out": "o_proj", "qk_norms": None,
    "rotary": True, "partly_rotary": False, "sinks": False, "attention": {}, "clip": "",
    "slides": None, "slides_if": "", "marks": None, "attends": None, "mixer": None,
    "gated": True, "mlp": LLAMA_MLP, "mlp_fused": "", "mlp_size": "intermediate_size", "mlp_bias": False,
    "mlp_norm": "", "widening": 0, "act": "hidden_act", "activation": "", "experts": None, "sparse": None,
    "norm": Norm("", 0), "before": PRE_NORMS, "after": ("", ""), "dense_after": None, "parallel": False,
    "extra": (), "final": "norm", "embed": "embed_tokens", "head": "lm_head", "head_bias": False,
    "positions": "max_position_embeddings", "learned": None, "embedding_norm": "", "word_size": 0,
    "fields": {},
}  # fmt: skip


def rotary_where_sliding(f: Figures, kinds: Sequence[str], routed: Sequence[bool]) -> list[Hashable]:
    """Return which layers rotate queries and keys: the sliding ones, or all where there is no window."""
    return [kind == SLIDING or f.raw("sliding_window") is None for kind in kinds]


def decoder(
    f: Figures, family: Family, *, tied: bool | None = None, other: tuple[Tensor, ...] = ()
) -> Architecture:
    """Return the decoder of these figures; `tied` in place of what they say, `other` tensors beside it."""
    row: Family = {**LLAMA, **family}
    if "varies" in row:
        row = {**row, **row["varies"](f)}
    hidden = f.size("hidden_size")
    kinds = _kinds(f, row)
    routed = row["sparse"](f) if row["sparse"] else [row["experts"] is not None] * len(kinds)
    marks = row["marks"](f, kinds, routed) if row["marks"] else [row["rotary"]] * len(kinds)
    of = row["of"] if "of" in row else (0, 0, 0) if row["mixer"] else heads(f, **row["heads"])

    def norm(name: str) -> Norm | None:
        return row["norm"]._replace(name=name, size=hidden) if name else None

    def build(kind: tuple[str, bool, Any]) -> Layer:
        attends, sparse, mark = kind
        own = row["mixer"]
        mixer = own(f, mark) if own else _attention(f, row, of, attends == SLIDING, mark)
        before, after = row["before"], row["after"]
        if not sparse and row["dense_after"] is not None:
            after = row["dense_after"]
        first = Branch(mixer, norm(before[0]), norm(after[0]))
        second = Branch(_feed(f, row, sparse), norm(before[1]), norm(after[1]))
        return layer(first, second, parallel=2 * f.flag(row["parallel"]), extra=row["extra"])

    layers = stack(zip(kinds, routed, marks, strict=True), build)
    fields: dict[str, Any] = {"embedding_norm": norm(row["embedding_norm"]), "other": other, **row["fields"]}
    if row["learned"]:
        name, more = row["learned"]
        rows = f.size("max_position_embeddings") + more
        fields["tables"] = (Tensor(f"{name}.weight", (rows, hidden), "embedding"),)
    if row["word_size"] not in (0, hidden):
        width = row["word_size"]
        fields["widening"] = (Linear("project_in", width, hidden), Linear("project_out", hidden, width))
    return language_model(
        f,
        layers,
        norm(row["final"]),
        embed=row["embed"],
        head=row["head"],
        head_bias=f.flag(row["head_bias"]),
        tied=tied,
        word_size=row["word_size"],
        positions=row["positions"],
        **fields,
    )


def _kinds(f: Figures, row: Family) -> Sequence[str]:
    """Return for every layer whether it attends to all keys or to a sliding window."""
    rule = row["slides"]
    if rule is None or rule == ALL:
        return [SLIDING if rule and f.flag(row["slides_if"] or True) else FULL] * f.num_layers()
    if isinstance(rule, str):
        rule = f.size(rule)
    if isinstance(rule, int):
        every = rule
        kinds = f.layer_kinds(lambda index: SLIDING if (index + 1) % every else FULL, (FULL, SLIDING))
    else:
        slides = rule(f)
        kinds = f.layer_kinds(lambda index: SLIDING if slides(index) else FULL, (FULL, SLIDING))
    return kinds if f.flag(row["slides_if"] or True) else [FULL] * len(kinds)


def _attention(f: Figures, row: Family, of: Heads, slides: bool, mark: Any) -> Mixer:
    """Return the attention of one kind of layer; `mark` says whether it is rotary unless the row reads it."""
    bias = row["bias"] if row["out_bias"] is None else row["out_bias"]
    fields: dict[str, Any] = {"rotary": mark, **row["attention"]}
    if row["attends"]:
        fields |= {"rotary": True, **row["attends"](f, of, slides, mark)}
    of = fields.pop("of", of)
    if row["qk_norms"]:
        fields.setdefault("norms", row["qk_norms"](f, of))
    if slides:
        fields.setdefault("window", window_of(f))
    if row["clip"]:
        fields["clipped"] = f.raw(row["clip"]) is not None
    if row["sinks"]:
        fields["extra"] = (Tensor("sinks", (of[0],), "state"),)
    if row["partly_rotary"]:
        width = int(of[2] * rotary_fraction(f))
        fields["rotary_dim"] = width if width < of[2] else 0
    return attention(
        f.size("hidden_size"),
        of,
        bias=f.flag(row["bias"]),
        out_bias=f.flag(bias),
        fused=row["fused"],
        out=row["out"],
        **fields,
    )


def _feed(f: Figures, row: Family, routed: bool) -> Mixer:
    """Return the experts or the feed-forward of one kind of layer."""
    if routed and row["experts"] is not None:
        made = row["experts"]
        return experts(f, **made) if isinstance(made, Mapping) else made(f)
    hidden, size = f.size("hidden_size"), row["mlp_size"]
    if row["widening"]:
        size = (f.optional(size) if isinstance(size, str) and size else None) or row["widening"] * hidden
    width = f.size(size) if isinstance(size, str) else size
    mlp = feedforward(
        hidden,
        width,
        row["activation"] or f.text(row["act"]),
        bias=f.flag(row["mlp_bias"]),
        gated=row["gated"],
        names=row["mlp"],
        fused=row["mlp_fused"],
    )
    return mlp._replace(norms=(Norm(row["mlp_norm"], width),)) if row["mlp_norm"] else mlp


def numerics_of(
    config: Config,
    *,
    dropout: Mapping[str, str] | None = None,
    dropout_default: float = 0.0,
    softcap: str = "",
    logit_cap: str = "",
    capped: bool = True,
    wide_stream: str = "",
    **fields: Any,
) -> Numerics:
    """Return what a class computes in a width or a place of its own.

    Texts are keys of the config: of the probability of dropout at each place (see `Numerics.dropout`), of
    the bounds on scores and logits (null for none), of whether the residual stream is fp32 (true unless
    stated); `capped`: logits are bounded unless stated. `fields` hold for every config.
    """
    return Numerics(
        dropout=tuple(p for p, key in (dropout or {}).items() if config.get(key, dropout_default)),
        softcap=bool(softcap) and config.get(softcap, True) is not None,
        logit_cap=bool(logit_cap) and config.get(logit_cap, capped or None) is not None,
        wide_stream=bool(wide_stream) and bool(config.get(wide_stream, True)),
        **fields,
    )


CAUSAL, MASKED, SEQ2SEQ, EMBEDDING = "causal_lm", "masked_lm", "seq2seq_lm", "embedding"
OF_WORDS = (CAUSAL, MASKED, SEQ2SEQ)  # tasks whose head has one output per word
TRAINED_IN = ("sft", "pretrain", "evaluate")  # phases that have a head like these
POSITIONS = "position_embeddings.weight"  # learned: no token comes behind the last
LABELS = {"reranker": 1, "question_answering": 2}  # whose number of outputs is not asked for


class Head(NamedTuple):
    """The head of one task; names are those of its modules, "" for none."""

    out: str = "classifier"
    bias: bool = True
    pooled: bool = False  # of one row per sequence
    dropout: tuple[str, ...] = ()  # keys of the probability before `out`: the first that is not null
    neck: str = ""
    neck_bias: str | bool = True
    activation: str = ""  # or the key of it
    norm: Norm | None = None  # after the neck
    whole: bool = False  # PEFT trains the neck, too
    unread: bool = False  # the neck is computed, and nothing reads it: it has no gradient


OF_CLASS = {  # how the names of transformers' classes end
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
    "Model": EMBEDDING,
}
TRUNKS = (
    "MistralModel",
    "LlamaModel",
    "Qwen2Model",
    "Qwen3Model",
    "Gemma2Model",
    "Gemma3TextModel",
)  # of embedders alone
GENERIC = {
    "sequence_classification": Head("score", bias=False),
    "token_classification": Head("score", dropout=("classifier_dropout", "hidden_dropout")),
    "question_answering": Head("qa_outputs"),
    EMBEDDING: Head("", pooled=True),
}


def headed(
    described: Architecture, f: Figures, row: Family, task: str | None, num_labels: int
) -> Architecture:
    """Return the architecture with the head of `task`, or as its type has it; `num_labels`: of a classifier.

    Raises: UnsupportedError for a task that the type has no class of.
    """
    own = row.get("tasks")
    heads = own or GENERIC
    task = task or own_task(f.raw("architectures"), own)
    if task == CAUSAL and not own:
        return described
    named = "sequence_classification" if task == "reranker" else task
    if named not in heads:
        known = ", ".join([*([] if own else [CAUSAL]), *heads])
        raise UnsupportedError(
            f"task={task} is not predicted for model_type '{described.model_type}'; use one of {known}."
        )
    head = heads[named]
    hidden = described.hidden_size
    width = described.projection.in_features if task in OF_WORDS else hidden
    neck = None
    if head.neck:
        kind = "fixed" if head.unread else "head" if head.whole else "linear"
        linear = Linear(head.neck, hidden, width, f.flag(head.neck_bias), kind=kind)
        act = f.text(head.activation) if f.raw(head.activation) is not None else head.activation
        neck = Neck(linear, act, head.norm._replace(size=width) if head.norm else None)
    described = described._replace(task=task, neck=neck, pooled=head.pooled, dropped=_drops(f, head))
    if task in OF_WORDS:
        return described
    embeddings = tuple(each for each in described.embeddings if each.kind == "embedding")
    labels = LABELS.get(task, num_labels)
    out = Linear(head.out, hidden, labels, head.bias, kind="head") if head.out else None
    return described._replace(head=out, vocab_size=labels, scores=out is not None, embeddings=embeddings)


def own_task(architectures: object, own: Mapping[str, Head] | None) -> str:
    """Return the task of the class that a config names, where its type has it; else the type's usual one."""
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if not own:
        return EMBEDDING if named in TRUNKS else CAUSAL
    tasks = [task for ending, task in OF_CLASS.items() if named.endswith(ending) and task in own]
    return tasks[0] if tasks else next(iter(own))


def _drops(f: Figures, head: Head) -> bool:
    for key in head.dropout:
        if (value := f.raw(key)) is not None:
            return bool(value)
    return bool(head.dropout) and head is GENERIC.get("token_classification")  # 0.1 where nothing says


def learned_positions(run: Run, model: Architecture) -> int | None:
    """Return the longest sequence that an encoder has learned positions for; None where it learned none."""
    if model.task in (CAUSAL, SEQ2SEQ) or all(table.name != POSITIONS for table in model.outer_tensors()):
        return None
    return positions_of(run.config)


def check_positions(run: Run, model: Architecture) -> None:
    """Refuse sequences that are longer than what an encoder has learned positions for.

    Raises: FieldError.
    """
    most = learned_positions(run, model)
    if most is not None and every(run.seq_len > most):
        raise FieldError(f"seq_len={run.seq_len}: {run.model} has {most} positions; set seq_len={most}.")


def check_checkpointing(run: Run, model: Architecture) -> None:
    """Refuse activation checkpointing of a model whose class has none.

    Raises: FieldError.
    """
    if model.model_type in NOT_CHECKPOINTED and run.activation_checkpointing != "none":
        raise FieldError(
            f"activation_checkpointing={run.activation_checkpointing}: transformers' class of "
            f"{model.model_type} has none; set activation_checkpointing=none."
        )


def check_task(run: Run, model: Architecture) -> None:
    """Refuse what stands against the head that the model of `run` has.

    Raises: FieldError, or UnsupportedError for what is not predicted.
    """
    if model.task != SEQ2SEQ and run.target_seq_len is not None:
        raise FieldError(
            f"target_seq_len={run.target_seq_len} is of an encoder and its decoder, which {run.model} is "
            "not; remove it."
        )
    if model.task == CAUSAL:
        return
    named = f"task={model.task}"
    if model.task == SEQ2SEQ and run.target_seq_len is None:
        raise FieldError(
            f"{run.model} is an encoder and a decoder: state target_seq_len, the tokens of what it writes."
        )
    if run.phase not in TRAINED_IN:
        raise FieldError(
            f"phase={run.phase} has a head of its own, which {named} of {run.model} is not; use phase=sft "
            "or another task."
        )
    if run.loss != "full_logits":
        raise FieldError(
            f"loss={run.loss} is of causal language models, which {named} is not; use full_logits."
        )
    if run.packing and model.task not in OF_WORDS[:2]:
        raise FieldError(f"packing=true joins samples, which {named} tells apart; remove it.")
    for name in MODEL_DEGREES:
        if getattr(run, name) > 1:
            raise UnsupportedError(
                f"{name}={getattr(run, name)} with {named} is not predicted; set {name}=1."
            )
    if run.trains_adapters and run.adapter in OFF_PROJECTIONS:
        raise UnsupportedError(f"adapter={run.adapter} with {named} is not predicted; use adapter=lora.")
