"""The tokenizer of a model, from the files beside it: nothing is fetched, nothing of it is run.

`tokenizer.json` makes the tokens; `tokenizer_config.json` and `chat_template.jinja` say which tokens
begin and end a text and how a conversation is written. Only the chat template is code, and that runs in
a sandbox (`chat_template`).
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.documents import parse_json, read_bytes
from finegauge.errors import FileFormatError, InputError, UnsupportedError, shown

MAX_CONFIG_BYTES = 16_000_000
MAX_TOKENIZER_BYTES = 256_000_000  # the longest, of 256,000 tokens, have 34 MB
CONFIG, SPECIAL_TOKENS, TEMPLATE = "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"
INSTALL = "pip install 'finegauge[data]'"


class TokenizerFiles(NamedTuple):
    """What the files of a tokenizer say."""

    file: str  # the tokenizer.json
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ... where they are stated
    chat_template: str | None
    digest: str  # of everything above


def tokenizer_files(named: str) -> TokenizerFiles:
    """Return what the files of a tokenizer say.

    Args:
        named: A `tokenizer.json`, or the folder that holds it.
    Raises: InputError where there is none, FileFormatError where a file beside it is damaged.
    """
    from hashlib import sha256

    file = tokenizer_file(named)
    folder = os.path.dirname(file)
    config = read_settings(os.path.join(folder, CONFIG))
    special = {**read_settings(os.path.join(folder, SPECIAL_TOKENS)), **config}
    tokens = {
        key: text for key, value in special.items() if key.endswith("_token") and (text := _text(value))
    }
    template = _template(os.path.join(folder, TEMPLATE), config.get("chat_template"))
    digest = sha256(repr((sorted(tokens.items()), template)).encode("utf-8", "surrogatepass"))
    digest.update(read_bytes(file, MAX_TOKENIZER_BYTES))
    return TokenizerFiles(file, tokens, template, digest.hexdigest())


def stamps(named: str) -> tuple[tuple[int, int], ...]:
    """Return when the files of a tokenizer were written, and their sizes."""
    file = tokenizer_file(named)
    beside = (os.path.join(os.path.dirname(file), name) for name in (CONFIG, SPECIAL_TOKENS, TEMPLATE))
    known = (os.stat(path) for path in (file, *beside) if os.path.isfile(path))
    return tuple((at.st_mtime_ns, at.st_size) for at in known)


def tokenizer_file(named: str) -> str:
    """Return the `tokenizer.json` of a folder, or the file itself."""
    path = os.path.expanduser(named)
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise InputError(f"tokenizer={named} holds no tokenizer.json; give that file or the folder it is in.")
    return file


def load_tokenizer(file: str) -> Any:
    """Return the tokenizer of a `tokenizer.json`; what it says of padding and truncation is put aside.

    Raises: UnsupportedError where the library `tokenizers` is not installed, FileFormatError.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnsupportedError(
            f"Reading texts needs the library tokenizers: {INSTALL}. Without it, give a CSV file of "
            f"'length,count' as the data set."
        ) from None
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the library raises Exception itself
        reason = (str(error).splitlines() or ["it cannot be read"])[0]
        raise FileFormatError(f"{file} is not a tokenizer.json: {reason}.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_settings(path: str) -> Mapping[str, Any]:
    """Return the mapping in a small JSON file beside a tokenizer or data set; empty where there is none."""
    if not os.path.isfile(path):
        return {}
    document = parse_json(read_bytes(path, MAX_CONFIG_BYTES), path)
    if not isinstance(document, dict):
        raise FileFormatError(f"{path} holds no settings, but {shown(document)}.")
    return document


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _template(path: str, stated: Any) -> str | None:
    """Return the chat template: of its own file, or of the settings; `default` where there are several."""
    if os.path.isfile(path):
        return read_bytes(path, MAX_CONFIG_BYTES).decode("utf-8", errors="replace")
    if isinstance(stated, list):
        named = {one.get("name"): one.get("template") for one in stated if isinstance(one, dict)}
        stated = named.get("default")
    return stated if isinstance(stated, str) and stated.strip() else None
