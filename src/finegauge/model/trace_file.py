"""Where the traces of this user's models lie, and how one is read back; no torch is needed for that.

A trace is a JSON document in `$FINEGAUGE_CACHE_DIR/traces` (`~/.cache/finegauge/traces`), named
after the model_type and the hash of the configuration. It holds for the transformers version that
it was made with. A document that is torn, of another schema or of another version counts as absent,
and `problem` says why.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from finegauge.errors import InputError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, Linear, Norm, Tensor
from finegauge.model.op import Cost, Poly
from finegauge.model.traced import MODES, Kept, Kernel, Rest, Traced, Use

SCHEMA = 1
# Keys of a config.json that decide neither shapes nor operators.
IRRELEVANT = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "use_cache"),
        *("decoder_start_token_id", "initializer_range", "id2label", "label2id", "quantization_config"),
        *("_attn_implementation", "_commit_hash", "task_specific_params", "torchscript", "tokenizer_class"),
    }
)


def key_of(config: Mapping[str, Any]) -> str:
    """Return the hash of the keys of a configuration that decide what the model is."""
    relevant = {key: value for key, value in config.items() if key not in IRRELEVANT}
    text = json.dumps(relevant, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def path_of(config: Mapping[str, Any]) -> str:
    """Return the file in which the trace of a configuration lies, or would."""
    folder = os.environ.get("FINEGAUGE_CACHE_DIR")
    folder = folder or os.path.join(os.path.expanduser("~"), ".cache", "finegauge")
    kind = "".join(c if c.isalnum() or c in "-_" else "_" for c in str(config.get("model_type", "model")))
    return os.path.join(folder, "traces", f"{kind[:60]}-{key_of(config)[:16]}.json")


def write(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Write the trace of a configuration whole or not at all; return its path.

    Raises: InputError where the cache cannot be written.
    """
    path = path_of(config)
    part = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "config_sha256": key_of(config), **document}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Set FINEGAUGE_CACHE_DIR.") from None
    return path


def read(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return (the traced architecture of a configuration, "") or (None, why there is none)."""
    path = path_of(config)
    if not os.path.isfile(path):
        return None, ""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if problem := _problem(document, config):
            return None, f"The trace in {path} {problem}."
        return architecture(document), ""
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None, f"The trace in {path} is damaged."


def _problem(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return what speaks against using a document, "" if nothing does."""
    if document.get("schema") != SCHEMA:
        return f"has schema {shown(document.get('schema'))}, not {SCHEMA}"
    if document.get("config_sha256") != key_of(config):
        return "is of another configuration"
    installed = installed_version("transformers")
    if installed and document.get("transformers") != installed:
        return f"was made with transformers {document.get('transformers')}, and {installed} is installed"
    return ""


def installed_version(package: str) -> str:
    """Return the version of an installed package, "" if it is absent."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def architecture(document: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a document describes.

    Raises: KeyError, TypeError or ValueError if it is malformed.
    """
    layers = tuple((_layer(entry), int(entry["count"])) for entry in document["layers"])
    if not layers:
        raise ValueError("no layers")
    head, norm = document["head"], document["final_norm"]
    return Architecture(
        model_type=str(document["model_type"]),
        hidden_size=int(document["hidden_size"]),
        vocab_size=int(document["vocab_size"]),
        layers=layers,
        embeddings=_tensors(document["embeddings"]),
        final_norm=Norm(*norm) if norm else None,
        head=Linear(*head) if head else None,
        other=_tensors(document["other"]),
        max_position_embeddings=document["max_position_embeddings"],
        notes=tuple(document["notes"]),
    )


def _layer(entry: Mapping[str, Any]) -> Layer:
    uses = tuple(
        Use(part, Linear(*linear), float(rows), int(groups), float(share))
        for part, linear, rows, groups, share in entry["uses"]
    )
    mixer = Traced(
        parameters=_tensors(entry["tensors"]),
        uses=uses,
        rests={mode: tuple(map(_rest, entry["rests"][mode])) for mode in MODES if mode in entry["rests"]},
    )
    return Layer(str(entry["kind"]), (Branch(mixer),))


def _rest(entry: Mapping[str, Any]) -> Rest:
    return Rest(
        part=str(entry["part"]),
        kernels=tuple(Kernel(*kernel) for kernel in entry["kernels"]),
        kept=tuple(Kept(tuple(keepers), Poly(*map(float, bytes_))) for keepers, bytes_ in entry["kept"]),
        forward=_cost(entry["forward"]),
        backward=_cost(entry["backward"]),
        backward_trained=_cost(entry["backward_trained"]),
        live_forward_bytes=Poly(*entry["live_forward"]),
        live_backward_bytes=Poly(*entry["live_backward"]),
        passing_bytes=Poly(*entry["passing"]),
    )


def _cost(entry: Mapping[str, Any]) -> Cost:
    return Cost(Poly(*entry["flops"]), Poly(*entry["bytes"]), float(entry["launches"]))


def _tensors(entries: Any) -> tuple[Tensor, ...]:
    return tuple(Tensor(str(name), tuple(map(int, shape)), str(kind)) for name, shape, kind in entries)
