"""The heads that transformers puts on a model, one for each task, said in a row; what of them is predicted.

A decoder's are the generic classes of transformers (`GenericForSequenceClassification`): `score`, without a
bias, of every token. Encoders have classes of their own; their rows are in `encoders`.

PEFT trains what it calls `classifier`, `score` or `qa_outputs` whole (`modules_to_save`), a copy beside the
frozen one; a projection before it that is outside of these is frozen or adapted like any other.
"""

from collections.abc import Mapping

from finegauge.arithmetic import every
from finegauge.errors import FieldError, UnsupportedError
from finegauge.model.blocks import Architecture, Linear, Neck, Norm
from finegauge.model.families.decoder import Family
from finegauge.model.families.parts import Figures
from finegauge.records import NamedTuple
from finegauge.run.rules import MODEL_DEGREES, NOT_CHECKPOINTED, OFF_PROJECTIONS
from finegauge.run.run import Run, positions_of

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
    if not own:
        return CAUSAL
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    tasks = [task for ending, task in OF_CLASS.items() if named.endswith(ending) and task in own]
    return tasks[0] if tasks else next(iter(own))


def _drops(f: Figures, head: Head) -> bool:
    """Return whether dropout stands before the output projection."""
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
