"""Layers traced from a transformers class: their trace, the operators that follow, and the file.

`finegauge trace` runs the transformers class on tensors without data and writes down, per kind
of layer, its projections, its attention kernels and everything else. Projections become the
same operators as in a described layer, so adapters, quantisation and autocast act on them
alike. What autograd keeps is listed by keeper: a tensor stays for backward if it always does, or
if one of the weights that need it trains or has an adapter.

A trace is a JSON document in `$FINEGAUGE_CACHE_DIR/traces` (`~/.cache/finegauge/traces`), named after the
model_type and the hash of the configuration; no torch is needed to read it. Those of the catalogue's models
whose type no row describes come with the package. It holds for the transformers
version that it was made with. A document that is torn, of another schema or of another version counts as
absent, and `_problem` says why.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.documents import cache_path, installed_version, read_document, write_whole
from finegauge.errors import FileFormatError, InputError, UnsupportedError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, Linear, Norm, Tensor
from finegauge.model.lowering import Lowering
from finegauge.model.op import NOTHING, Cost, Op, Poly
from finegauge.model.op_builder import OpBuilder

OTHERS = "others"  # the keeper that stands for every weight which is no projection's
MODES = (  # FlashAttention knows no fp32
    *("bf16/flash", "bf16/sdpa", "bf16/eager", "autocast/flash", "autocast/sdpa", "autocast/eager"),
    *("fp32/sdpa", "fp32/eager"),
)


class Use(NamedTuple):
    """One product of the activations with a weight."""

    part: str  # attention, mlp, ...: the layer's module that holds it
    linear: Linear  # its kind: linear (a module), router or experts (a bare parameter)
    rows: float = 1.0  # per token; experts see top_k in all groups together
    groups: int = 1  # experts that share the rows
    share: float = 1.0  # of its adapter that this layer owns: weights may serve several layers


class Kernel(NamedTuple):
    """One fused attention kernel: channels per token of all query heads and of its output."""

    query: float
    output: float
    window: int | None = None


class Kept(NamedTuple):
    """Bytes that autograd keeps if one of the `keepers` needs them; of none: always."""

    keepers: tuple[str, ...]  # names of uses, or OTHERS
    bytes: Poly

    def by(self, active: frozenset[str]) -> bool:
        """Return whether it is kept when the weights named in `active` need their inputs."""
        return not self.keepers or not active.isdisjoint(self.keepers)


class Rest(NamedTuple):
    """What one part of a layer does in one mode: fused attention, and all beside it and the projections."""

    part: str
    kernels: tuple[Kernel, ...] = ()
    kept: tuple[Kept, ...] = ()
    forward: Cost = NOTHING
    backward: Cost = NOTHING  # activations alone
    backward_trained: Cost = NOTHING  # and weights
    live_forward_bytes: Poly = Poly()
    live_backward_bytes: Poly = Poly()
    passing_bytes: Poly = Poly()


class Traced(NamedTuple):
    """The mixer of a traced layer: all of it, norms and residual additions included."""

    parameters: tuple[Tensor, ...]
    uses: tuple[Use, ...]
    rests: Mapping[str, tuple[Rest, ...]]  # by mode
    path: str = "layer"

    def tensors(self) -> list[Tensor]:
        """Return the parameters."""
        return list(self.parameters)

    @property
    def projections(self) -> tuple[Linear, ...]:
        """Return the projections in order of use."""
        return tuple(use.linear for use in self.uses)

    @property
    def idle_parameters(self) -> int:
        """Return the parameters of the experts that a token does not pass."""
        return round(
            sum(
                max(0.0, use.groups - use.rows) * use.linear.in_features * use.linear.out_features * use.share
                for use in self.uses
                if use.groups > 1
            )
        )


def mode_of(low: Lowering) -> str:
    """Return the mode of the trace that answers for `low`."""
    widths = {(2, 2): "bf16", (4, 2): "autocast", (4, 4): "fp32"}
    width = widths.get((low.activation_bytes, low.compute_bytes), "bf16")
    attention = "sdpa" if low.attention == "flash" and width == "fp32" else low.attention
    return f"{width}/{attention}"


def traced(builder: OpBuilder, block: Traced) -> None:
    """Add the operators of a traced layer, part by part in forward order.

    Raises: UnsupportedError where the class could not be traced in the requested mode.
    """
    mode = mode_of(builder.lowering)
    if mode not in block.rests:
        raise UnsupportedError(
            f"This model's class could not be traced as {mode} (width/attention), only as "
            f"{', '.join(block.rests)}; state another attention or weights_dtype."
        )
    active = _keepers(builder.lowering, block)
    for rest in block.rests[mode]:
        for use in block.uses:
            if use.part == rest.part:
                _use(builder, use)
        for kernel in rest.kernels:
            _kernel(builder, rest.part, kernel)
        _rest(builder, block, rest, active)


def _use(builder: OpBuilder, use: Use) -> None:
    low, kind = builder.lowering, use.linear.kind
    folded = low.folds(use.linear, kind, use.part)
    if kind == "experts" and low.autocast and low.weight_bytes == 4 and not (low.quantizes(kind) or folded):
        builder.lowering = low._replace(compute_bytes=4, compute_dtype="fp32", autocast=False)
    builder.linear(use.part, use.linear, rows=use.rows, groups=use.groups, kind=kind)
    builder.lowering = low


def _keepers(low: Lowering, block: Traced) -> frozenset[str]:
    names = {
        use.linear.name
        for use in block.uses
        if low.kept_input(1.0, use.linear, part=use.part, kind=use.linear.kind)
    }
    return frozenset(names | ({OTHERS} if low.weights_train or low.norms_train else set()))


def _kernel(builder: OpBuilder, part: str, kernel: Kernel) -> None:
    """Add the work of an attention kernel; what it keeps stands with the rest of its part."""
    c = float(builder.lowering.compute_bytes)
    flops = Poly(pair=2.0 * (kernel.query + kernel.output))
    io = c * 2.0 * (kernel.query + kernel.output)
    builder.ops.append(
        Op(
            path=(part, "attention kernel"),
            kind="attention",
            forward=Cost(flops.times(0.5), Poly(token=io), launches=1),
            backward=Cost(flops.times(1.25), Poly(token=2.5 * io), launches=3),
            dtype=builder.lowering.compute_dtype,
            window=kernel.window,
        )
    )


def _rest(builder: OpBuilder, block: Traced, rest: Rest, active: frozenset[str]) -> None:
    low = builder.lowering
    saved = Poly()
    for kept in rest.kept:
        if kept.by(active):
            saved = saved.plus(kept.bytes)
    trains = OTHERS in active
    builder.ops.append(
        Op(
            path=(rest.part, "everything else"),
            kind="elementwise",
            forward=rest.forward,
            backward=rest.backward_trained if trains else rest.backward,
            saved_bytes=saved,
            live_forward_bytes=rest.live_forward_bytes,
            live_backward_bytes=rest.live_backward_bytes,
            passing_bytes=rest.passing_bytes,
            gradient_bytes=_other_weights(block, rest.part) * low.weight_bytes if low.weights_train else 0.0,
            dtype=low.compute_dtype,
        )
    )


def _other_weights(block: Traced, part: str) -> float:
    """Return the parameters of one part that no projection owns: norms, biases, convolutions."""
    held = sum(one.size for one in block.parameters if part_name(one.name.split(".")[0]) == part)
    used = sum(
        use.groups * use.linear.in_features * use.linear.out_features
        for use in block.uses
        if use.part == part
    )
    return float(max(0, held - used))


def part_name(module: str) -> str:
    """Return what reports call a module of a layer: every kind of attention is "attention"."""
    if "norm" in module or module.startswith("ln"):
        return "norms"
    return "attention" if "attn" in module or "attention" in module else module


SCHEMA = 1
MAX_TRACE_BYTES = 64_000_000
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
    return _hash(relevant)


def _hash(values: Mapping[str, Any]) -> str:
    import hashlib
    import json

    text = json.dumps(values, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def path_of(config: Mapping[str, Any]) -> str:
    """Return the file in which the trace of a configuration lies, or would."""
    return cache_path("traces", _file_name(config))


def shipped_path(config: Mapping[str, Any]) -> str:
    """Return the file of the package in which that trace lies, or would (the catalogue's models)."""
    return os.path.join(os.path.dirname(__file__), "data", "traces", _file_name(config))


def _file_name(config: Mapping[str, Any]) -> str:
    kind = "".join(c if c.isalnum() or c in "-_" else "_" for c in str(config.get("model_type", "model")))
    return f"{kind[:60]}-{key_of(config)[:16]}.json"


def trace_text(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the trace of a configuration as the text of its file."""
    import json

    whole = {"schema": SCHEMA, "config_sha256": key_of(config), **document}
    return json.dumps({**whole, "sha256": _hash(whole)})


def write_trace(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Write the trace of a configuration whole or not at all; return its path.

    Raises: InputError where the cache cannot be written.
    """
    path = path_of(config)
    try:
        write_whole(path, trace_text(document, config).encode())
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Set FINEGAUGE_CACHE_DIR.") from None
    return path


def read_trace(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return (the traced architecture of a configuration, "") or (None, why there is none)."""
    path, shipped = path_of(config), False
    if not os.path.isfile(path):
        path, shipped = shipped_path(config), True
    if not os.path.isfile(path):
        return None, ""
    try:
        document = read_document(path, MAX_TRACE_BYTES)
        if problem := _problem(document, config, shipped=shipped):
            return None, f"The trace in {path} {problem}."
        return traced_architecture(document), ""
    except (FileFormatError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None, f"The trace in {path} is damaged."


def _problem(document: dict[str, Any], config: Mapping[str, Any], *, shipped: bool) -> str:
    """Return what speaks against using a document, "" if nothing does.

    One that the package `shipped` holds as the rows of families do, whichever transformers is installed.
    """
    if document.get("schema") != SCHEMA:
        return f"has schema {shown(document.get('schema'))}, not {SCHEMA}"
    if document.get("config_sha256") != key_of(config):
        return "is of another configuration"
    installed = installed_version("transformers")
    if not shipped and installed and document.get("transformers") != installed:
        made_with = str(document.get("transformers"))[:20]
        return f"was made with transformers {made_with}, and {installed} is installed"
    if document.pop("sha256", None) != _hash(document):
        return "is damaged"
    return ""


def traced_architecture(document: Mapping[str, Any]) -> Architecture:
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
    mixer: Any = Traced(
        parameters=_tensors(entry["tensors"]),
        uses=uses,
        rests={
            mode: tuple(map(_read_rest, entry["rests"][mode])) for mode in MODES if mode in entry["rests"]
        },
    )
    return Layer(str(entry["kind"]), (Branch(mixer),))


def _read_rest(entry: Mapping[str, Any]) -> Rest:
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
