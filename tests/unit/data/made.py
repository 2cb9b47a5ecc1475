"""Small data sets and tokenizers for the tests of data sets in files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)
BARE = (
    "{{ bos_token }}{% for message in messages %}{% if loop.first and message['role'] == 'system' %}"
    "{{ '[SYS] ' + message['content'] + '\n' }}{% continue %}{% endif %}"
    "{% if message['role'] not in ['user', 'assistant'] %}{{ raise_exception('Only user and assistant') }}"
    "{% endif %}{{ message['role'] | upper + ': ' + message['content'] | trim + eos_token }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "tokenizer_class": "X"}
CORPUS = (
    "the quick brown fox jumps over the lazy dog; a user asks and an assistant answers.",
    "Below is an instruction that describes a task. ### Response: system tools [SYS] (1 + 2) = 3",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
)


def tokenizer(folder: Path, template: str | None = None, **config: Any) -> str:
    """Return a folder with a byte-level BPE that begins texts with <s>, and settings beside it."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import BpeTrainer

    folder.mkdir(exist_ok=True)
    made: Any = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = Decoder()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    made.train_from_iterator(
        CORPUS,
        BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made.save(str(folder / "tokenizer.json"))
    stated = {**CONFIG, **config, **({"chat_template": template} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), "utf-8")
    return str(folder)


def words(folder: Path) -> str:
    """Return a folder with a tokenizer that knows three words, and nothing beside it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder.mkdir(exist_ok=True)
    made: Any = Tokenizer(WordLevel({"?": 0, "alpha": 1, "beta": 2, "gamma": 3}, unk_token="?"))
    made.pre_tokenizer = Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


def lines(path: Path, records: Sequence[Any]) -> str:
    """Write records as JSONL; a record that is bytes is written as it is."""
    packed = (one if isinstance(one, bytes) else json.dumps(one).encode() for one in records)
    path.write_bytes(b"\n".join(packed) + b"\n")
    return str(path)


def talk(*said: str, system: str | None = None) -> list[dict[str, str]]:
    """Return a conversation, user and assistant in turn."""
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
    return [{"role": "system", "content": system}, *turns] if system else turns
