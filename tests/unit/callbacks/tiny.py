"""Tiny models, arguments and data sets as a trainer would hold them; nothing is downloaded."""

import random
from pathlib import Path
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, TrainingArguments

VOCABULARY = 200
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}


def silent(text: str) -> None:
    """Show nothing."""


def config(**changes: Any) -> LlamaConfig:
    """Return a Llama of two layers."""
    figures = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 1,
    }  # fmt: skip
    return LlamaConfig(**{**figures, **changes})


def model(**changes: Any) -> Any:
    """Return it with random weights."""
    return AutoModelForCausalLM.from_config(config(**changes))


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    """Return quiet TrainingArguments."""
    return TrainingArguments(output_dir=str(folder), **{**QUIET, **changes})


def tokenizer() -> PreTrainedTokenizerFast:
    """Return one whose words are w0, w1, ..."""
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w1", eos_token="w2", unk_token="w0")


def tokens(lengths: list[int]) -> Dataset:
    """Return a data set of token ids of these lengths."""
    return Dataset.from_list([{"input_ids": [5] * n, "labels": [5] * n} for n in lengths])


def texts(number: int, longest: int = 40) -> Dataset:
    """Return texts of up to `longest` words."""
    drawn = random.Random(0)

    def text() -> str:
        return " ".join(f"w{drawn.randrange(10, VOCABULARY)}" for _ in range(drawn.randrange(5, longest)))

    return Dataset.from_list([{"text": text()} for _ in range(number)])
