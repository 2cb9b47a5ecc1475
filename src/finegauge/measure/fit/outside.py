"""What a class holds outside its layers: embeddings, final norm, head, and towers that text does not pass."""

from collections.abc import Mapping
from typing import Any

import torch

from finegauge.errors import UnsupportedError
from finegauge.measure.fit.entries import kind_of, shared
from finegauge.measure.fit.model import Subject
from finegauge.measure.fit.recorder import Recorder


def describe(subject: Subject, config: Mapping[str, Any], seen: Recorder) -> dict[str, Any]:
    """Return the fields of the document that are not about layers, weights that layers share included.

    Raises: UnsupportedError where the class has no token embedding or no head.
    """
    model = subject.model
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if table is None or head is None:
        raise UnsupportedError(f"{type(model).__name__} has no token embedding or no head to trace.")
    tied = head.weight is table.weight
    norm_path, norm = _final_norm(subject)
    decoder = subject.stack.rpartition(".")[0]
    taken = {id(p) for p in subject.layers.parameters()}
    taken |= {id(p) for p in (norm.parameters() if norm is not None else ())}
    embeddings: list[Any] = []
    other: list[Any] = []
    for name, parameter in model.named_parameters():
        if id(parameter) in taken or (not tied and parameter in set(head.parameters())):
            continue
        inside = name.startswith(f"{decoder}.") if decoder else True
        tied_here = parameter is table.weight or any(parameter is p for p in head.parameters())
        (embeddings if inside or tied_here else other).append(
            [name, list(parameter.shape), kind_of(subject, name, parameter, seen)]
        )
    out_features, in_features = head.weight.shape
    bias = getattr(head, "bias", None) is not None
    return {
        "model_type": str(config["model_type"]),
        "class": type(model).__name__,
        "hidden_size": in_features,
        "vocab_size": out_features,
        "max_position_embeddings": getattr(subject.text_config, "max_position_embeddings", None),
        "embeddings": [*embeddings, *shared(subject, seen)],
        "other": other,
        "head": None if tied else ["lm_head", in_features, out_features, bias],
        "final_norm": norm and _norm(norm_path, norm),
    }


def _final_norm(subject: Subject) -> tuple[str, torch.nn.Module | None]:
    """Return the norm that stands beside the stack of layers: the last one there of the stream's width."""
    decoder = subject.stack.rpartition(".")[0]
    found = ("", None)
    for name, module in subject.model.get_submodule(decoder).named_children():
        own = list(module.parameters(recurse=False))
        if own and "Norm" in type(module).__name__ and all(p.dim() == 1 for p in own) and "emb" not in name:
            found = (name, module)
    return found


def _norm(name: str, module: torch.nn.Module) -> list[Any]:
    """Return a norm as `Norm` has it."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    size = next(p.numel() for p in module.parameters())
    return [
        name,
        size,
        "layer" if isinstance(module, torch.nn.LayerNorm) else "rms",
        weight is not None,
        bias is not None,
    ]
