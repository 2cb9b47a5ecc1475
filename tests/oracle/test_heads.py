"""Encoders, and models with another head than a language model's, against transformers' own classes.

In a small size: parameters, FLOPs of both passes, and the peak of a real step on this processor.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING

from finegauge.errors import FieldError
from finegauge.model.families import architecture
from finegauge.model.families.decoder import TRUNKS
from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.run.rules import NOT_CHECKPOINTED
from finegauge.run.run import Run
from tests.oracle.real_step import peak_of, predicted

SIZES = {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 1500, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
DISTIL = {"dim": 128, "hidden_dim": 320, "n_layers": 3, "n_heads": 4}
GROUPED = {"num_key_value_heads": 2}
SMALL: dict[str, dict[str, Any]] = {
    **{name: SIZES for name in ("bert", "roberta", "xlm-roberta", "camembert")},
    "electra": {**SIZES, "embedding_size": 64},
    "mpnet": SIZES,
    "albert": {**SIZES, "embedding_size": 64},
    "deberta-v2": {
        **SIZES,
        "pooler_hidden_size": 128,
        "relative_attention": True,
        "position_buckets": 32,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "nomic_bert": SIZES,
    "distilbert": {**SIZES, **DISTIL},
    "modernbert": {**SIZES, "local_attention": 32, "cls_token_id": 1, "sep_token_id": 2},
    "llama": {**SIZES, **GROUPED},
    "qwen3": {**SIZES, **GROUPED, "head_dim": 32},
    "gemma2": {**SIZES, **GROUPED, "head_dim": 32},
    "gemma3_text": {  # EmbeddingGemma
        **SIZES,
        **GROUPED,
        "head_dim": 32,
        "num_hidden_layers": 6,
        "sliding_window": 32,
        "use_bidirectional_attention": True,
    },
}
for figures in SMALL.values():
    figures |= {"bos_token_id": 1, "eos_token_id": 2}
CLASSES = {
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "embedding": "AutoModel",
}
PEFT = {"sequence_classification": "SEQ_CLS", "token_classification": "TOKEN_CLS"}
DECODERS = ("llama", "qwen3", "gemma2")
CASES = [
    (model_type, task)
    for model_type in SMALL
    for task in CLASSES
    if not (model_type in DECODERS and task == "masked_lm")
    and not (model_type in ("gemma2", "nomic_bert") and task == "question_answering")
    and not (model_type == "gemma3_text" and task != "embedding")
]
BATCH, LENGTH, LABELS = 3, 64, 5


def model_of(model_type: str, task: str, folder: Path, attention: str, *, dropout: bool = True) -> Any:
    """Return the class of a task with random weights, and write its config.json."""
    figures = dict(SMALL[model_type])
    labels = {} if task == "question_answering" else {"num_labels": LABELS}
    config = CONFIG_MAPPING[model_type](**figures, **labels)
    if not dropout:
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
            if hasattr(config, key):
                setattr(config, key, 0.0)
    (folder / "config.json").write_text(json.dumps(json.loads(config.to_json_string(use_diff=False))))
    torch.manual_seed(0)
    made = getattr(transformers, CLASSES[task])
    return made.from_config(config, attn_implementation=attention, dtype=torch.float32).train()


def run_of(folder: Path, task: str, attention: str, **fields: Any) -> Run:
    return Run(
        model=str(folder), task=task, num_labels=LABELS, weights_dtype="fp32", attention=attention,
        micro_batch_size=BATCH, seq_len=LENGTH, **{"method": "full", **fields},
    )  # fmt: skip


def given(task: str, vocabulary: int) -> dict[str, Any]:
    """Return a batch with its labels."""
    words = torch.randint(5, vocabulary, (BATCH, LENGTH))
    if task == "masked_lm":
        return {"input_ids": words, "labels": words}
    if task == "sequence_classification":
        return {"input_ids": words, "labels": torch.zeros(BATCH, dtype=torch.long)}
    if task == "token_classification":
        return {"input_ids": words, "labels": torch.zeros((BATCH, LENGTH), dtype=torch.long)}
    spans = torch.zeros(BATCH, dtype=torch.long)
    return {"input_ids": words, "start_positions": spans, "end_positions": spans + 1}


def loss_of(model: Any, task: str, batch: dict[str, Any]) -> Any:
    """Return the loss; of embeddings, sentence-transformers' in-batch one over means of the states."""
    if task != "embedding":
        return model(**batch).loss
    states = model(input_ids=batch["input_ids"]).last_hidden_state
    mask = torch.ones(states.shape[:2], dtype=torch.long).unsqueeze(-1).expand(states.size()).to(states.dtype)
    means = torch.sum(states * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
    return torch.nn.functional.normalize(means).pow(2).sum()


@pytest.mark.parametrize(("model_type", "task"), CASES)
def test_parameters_and_flops_are_those_of_the_class(model_type: str, task: str, tmp_path: Path) -> None:
    model = model_of(model_type, task, tmp_path, "eager")
    graph = build(run_of(tmp_path, task, "eager"))
    assert graph.model.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    batch = given(task, 1500)
    with FlopCounterMode(display=False) as counter:
        loss = loss_of(model, task, batch)
        forward = counter.get_total_flops()
        loss.backward()
    trained = sum(p.numel() for p in model.parameters() if p.grad is not None)
    assert graph.flops(Extents.of(BATCH, LENGTH)) == (forward, counter.get_total_flops())
    assert graph.weights.trained_params == trained


def linears(model: Any, part: str = "") -> list[str]:
    """Return the linear modules of a part, without a head's: PEFT trains these, or cannot adapt them."""
    heads = ("classifier", "score", "qa_outputs", "decoder", "vocab_projector", "generator_lm_head")
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and part in name and not any(word in name for word in heads)
    ]


@pytest.mark.parametrize(
    "ending", ["ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model"]
)
@pytest.mark.parametrize(
    "family",
    [
        "Bert",
        "Roberta",
        "XLMRoberta",
        "MPNet",
        "Albert",
        "DebertaV2",
        "NomicBert",
        "DistilBert",
        "ModernBert",
    ],
)
def test_a_config_is_counted_as_the_class_that_it_names(family: str, ending: str) -> None:
    named = getattr(transformers, f"{family}{ending}")
    figures = SMALL[named.config_class.model_type]
    with torch.device("meta"):
        counted = named(named.config_class(**figures)).num_parameters()
    config = {**figures, "model_type": named.config_class.model_type, "architectures": [named.__name__]}
    assert architecture(config).num_parameters == counted


@pytest.mark.parametrize("name", TRUNKS)
def test_the_trunk_of_a_decoder_is_an_embedder(name: str) -> None:
    named = getattr(transformers, name)
    with torch.device("meta"):
        counted = named(named.config_class(**SMALL["llama"])).num_parameters()
    config = {**SMALL["llama"], "model_type": named.config_class.model_type, "architectures": [name]}
    described = architecture(config)
    assert (described.task, described.num_parameters) == ("embedding", counted)


@pytest.mark.parametrize("targets", ["all-linear", "attention"])
@pytest.mark.parametrize(
    ("model_type", "task"), [(m, t) for m, t in CASES if t in PEFT and m not in ("camembert", "xlm-roberta")]
)
def test_what_peft_trains_beside_a_head(model_type: str, task: str, targets: str, tmp_path: Path) -> None:
    model = model_of(model_type, task, tmp_path, "eager")
    run = run_of(
        tmp_path, task, "eager", method="lora", lora_rank=4, lora_targets=(targets,), adapter_dtype="fp32"
    )
    graph = build(run)
    names = linears(model, "att" if targets == "attention" else "")
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=names, task_type=PEFT[task]))
    trained = sum(parameter.numel() for parameter in peft.parameters() if parameter.requires_grad)
    assert graph.weights.trained_params + graph.weights.adapter_params == trained
    with FlopCounterMode(display=False) as counter:
        loss_of(peft, task, given(task, 1500)).backward()
    assert graph.flops(Extents.of(BATCH, LENGTH))[1] == counter.get_total_flops()


CHECKPOINTED = {"activation_checkpointing": "full", "checkpointing_reentrant": False}
LORA = {"method": "lora", "lora_rank": 8, "adapter_dtype": "fp32"}
METHODS = {
    "full": {},
    "checkpointed": CHECKPOINTED,
    "lora": LORA,
    "lora-checkpointed": {**LORA, **CHECKPOINTED},
}
OTHERS = (
    *(
        "bert",
        "roberta",
        "electra",
        "mpnet",
        "albert",
        "deberta-v2",
        "nomic_bert",
        "distilbert",
        "modernbert",
    ),
    "qwen3",
)


@pytest.mark.parametrize(
    ("model_type", "task", "method"),
    [
        (m, t, method)
        for method in METHODS
        for m, t in CASES
        if m in OTHERS and t != "question_answering"
        if not (m in NOT_CHECKPOINTED and "checkpointed" in method)
    ],
)
def test_the_peak_of_a_step_is_that_of_a_real_one(
    model_type: str, task: str, method: str, tmp_path: Path
) -> None:
    fields = METHODS[method]
    model = model_of(model_type, task, tmp_path, "eager", dropout=False)
    if "activation_checkpointing" in fields:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if "lora_rank" in fields:
        model = get_peft_model(
            model, LoraConfig(r=8, target_modules=linears(model), task_type=PEFT.get(task))
        )
        if "activation_checkpointing" in fields:
            model.enable_input_require_grads()
    run = run_of(tmp_path, task, "eager", pad_to_multiple_of=1, **fields)
    ours, theirs = predicted(run), peak(model, task)
    print(f"PEAK {model_type} {task} {method} {100 * (ours / theirs - 1):+.2f} %")
    assert ours == pytest.approx(theirs, rel=0.02)


@pytest.mark.parametrize("model_type", NOT_CHECKPOINTED)
def test_what_no_class_checkpoints_is_refused(model_type: str, tmp_path: Path) -> None:
    model = model_of(model_type, "embedding", tmp_path, "eager")
    with pytest.raises(ValueError, match="does not support activation checkpointing"):
        model.gradient_checkpointing_enable()
    with pytest.raises(FieldError, match="set activation_checkpointing=none"):
        build(run_of(tmp_path, "embedding", "eager", **CHECKPOINTED))


def peak(model: Any, task: str) -> float:
    """Return the peak of a step of one batch."""
    batch = given(task, 1500)
    return peak_of(model, lambda: loss_of(model, task, batch))
