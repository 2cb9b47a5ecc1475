"""The tensors a rank holds: bytes by kind as the quantiser really touches them, and what trains.

NF4 and its scales are counted tensor by tensor, other formats by `lowering.QUANTIZED_BYTES`
per parameter. bitsandbytes quantises modules: embeddings, head, norms, routers and, unless
they are unfused, the experts of transformers 5 stay 16-bit; PEFT's k-bit preparation makes
all that fp32. Held against bitsandbytes 0.50.2 on the CPU, to the byte.
"""

from collections.abc import Iterable
from math import ceil, prod
from typing import NamedTuple

from finegauge.model.blocks import Architecture, Layer, Linear, MixtureOfExperts, Tensor
from finegauge.model.gradient_pruning import last_layers
from finegauge.model.lowering import QUANTIZED_BYTES, Lowering, linears_of
from finegauge.model.traced import Traced

WIDE_STATES = {"adamw": 2, "paged_adamw": 2, "lion": 1}
NARROW_STATES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "lion_8bit": 1}
LEAST_NARROW, NARROW_BLOCK = 4096, 256
LEAST_PAGED = 100_000
ADAFACTOR_VALUES = 2  # the update and a step towards it, in fp32; beside copies of what is narrower


class Trained(NamedTuple):
    """A tensor that trains: its shape, bytes per element, and how many of it there are."""

    shape: tuple[int, ...]
    element_bytes: int
    num_alike: float = 1

    @property
    def size(self) -> int:
        """Return the elements of one."""
        return prod(self.shape)


def state_bytes(optimizer: str, tensor: Trained) -> float:
    """Return the bytes that `optimizer` keeps for one such tensor."""
    size = tensor.size
    if optimizer == "adafactor":
        *rows, columns = tensor.shape
        return 4.0 * (prod(rows) + prod(rows[:-1]) * columns) if rows else 4.0 * size
    if values := NARROW_STATES.get(optimizer, 0):
        narrow = size >= LEAST_NARROW
        return values * (size + 4.0 * ceil(size / NARROW_BLOCK)) if narrow else values * 4.0 * size
    element = tensor.element_bytes if optimizer == "adamw" else 4
    return float(WIDE_STATES.get(optimizer, 0) * element * size)


def paged_bytes(optimizer: str, tensors: Iterable[Trained]) -> float:
    """Return the bytes of state that may leave the GPU under pressure."""
    if not optimizer.startswith("paged"):
        return 0.0
    return sum(t.num_alike * state_bytes(optimizer, t) for t in tensors if t.size >= LEAST_PAGED)


def temporary_bytes(optimizer: str, tensors: Iterable[Trained]) -> float:
    """Return what an update of one tensor after the other needs beside the states, at its worst.

    AdamW: the root of the second moment, that divided by its bias correction, and the last
    tensor's, not yet dropped. Adafactor: fp32 copies of gradient and parameter if these
    are narrower, the update and a step towards it.
    """
    worst = before = 0.0
    for tensor in tensors:
        now = float(tensor.size * tensor.element_bytes)
        if optimizer == "adafactor":
            copies = 2 if tensor.element_bytes < 4 else 0
            worst = max(worst, 4.0 * tensor.size * (ADAFACTOR_VALUES + copies))
        elif optimizer == "adamw":
            worst = max(worst, 2 * now + before)
            before = now
    return worst


QUANTIZED_BLOCK, NESTED_BLOCK = 64, 256
REPACKED = (
    "nf4, repacked"  # either form of NF4, as bitsandbytes' kernel for inference on AVX512-BF16 reads it
)
CODE_BYTES = 16 * 4  # the sixteen values of NF4, per tensor
NESTED_CODE_BYTES = 256 * 4 + 4  # the values of 8-bit scales and their offset, per tensor


class Weights(NamedTuple):
    """What a rank holds before the first step, unsharded."""

    base_bytes: float  # the model's own tensors
    trained_params: float  # of the model's own
    adapter_params: float
    gradient_bytes: float
    adapter_bytes: float
    optimizer_bytes: float
    paged_bytes: float  # optimizer state that may leave the GPU under pressure
    foreach_bytes: float  # one copy of all trained parameters of one dtype
    loop_bytes: float  # the temporaries of an optimizer that takes one tensor after the other
    num_trained_tensors: int = 0


def weights_of(
    model: Architecture, low: Lowering, trainable_extra: tuple[str, ...], optimizer: str, *, upcast: bool
) -> Weights:
    """Return the bytes that `model` takes under `low`."""
    own: list[Trained] = []
    base = float(model.buffer_bytes)
    form = REPACKED if low.repacks else low.quantized
    plain = 4.0 if upcast and low.quantized else float(low.weight_bytes)
    for tensor, count in _all_tensors(model):
        quantized = low.quantizes(tensor.kind)
        base += count * (quantized_bytes(form, tensor) if quantized else tensor.size * plain)
        if (low.weights_train and tensor.kind != "fixed") or _is_extra(tensor, trainable_extra):
            own.append(Trained(tensor.shape, low.weight_bytes, count))
            if low.lora_rank:  # PEFT trains a copy and keeps the original beside it
                base += tensor.size * count * plain
    for layer, count in last_layers(model, low.last_layers) if low.last_layers else ():
        tensors = (t for t in layer.tensors() if t.kind != "fixed" and not _is_extra(t, trainable_extra))
        own += [Trained(tensor.shape, low.weight_bytes, count) for tensor in tensors]
    adapters = [pair for layer, count in model.layers for pair in _adapters(layer, count, low)]
    for linear in model.widening:
        adapters += _pair(low, linear, "linear", "embedding")
    if model.head is not None:
        adapters += _pair(low, model.head, "head", "head")
    trained = sum(t.num_alike * t.size for t in own)
    adapted = sum(t.num_alike * t.size for t in adapters)
    every = own + adapters
    groups = (float(trained * low.weight_bytes), float(adapted * low.adapter_bytes))
    return Weights(
        base_bytes=base,
        trained_params=float(trained),
        adapter_params=float(adapted),
        gradient_bytes=sum(groups),
        adapter_bytes=groups[1],
        optimizer_bytes=sum(t.num_alike * state_bytes(optimizer, t) for t in every),
        paged_bytes=paged_bytes(optimizer, every),
        foreach_bytes=sum(groups) if low.adapter_bytes == low.weight_bytes else max(groups),
        loop_bytes=temporary_bytes(optimizer, every),
        num_trained_tensors=round(sum(t.num_alike for t in every)),
    )


def quantized_bytes(form: str, tensor: Tensor) -> float:
    """Return the bytes of one tensor as its quantiser holds it.

    bitsandbytes packs two values to a byte and adds a scale per block of 64, fp32 or 8-bit
    with an fp32 scale per 256 of those, and its code tables. Repacked for inference on
    AVX512-BF16 the scales are bf16. Fused experts count as the matrices that an unfused
    model quantises one by one.
    """
    matrices = 1
    if tensor.kind == "experts" and len(tensor.shape) == 3:
        matrices = tensor.shape[0] * (2 if "gate_up" in tensor.name else 1)
    size = tensor.size // matrices
    blocks = ceil(size / QUANTIZED_BLOCK)
    if form == REPACKED:
        return matrices * float(ceil(size / 2) + 2 * blocks + CODE_BYTES)
    if form == "nf4":
        return matrices * float(ceil(size / 2) + 4 * blocks + CODE_BYTES)
    if form == "nf4_dq":
        scales = blocks + 4 * ceil(blocks / NESTED_BLOCK)
        return matrices * float(ceil(size / 2) + scales + CODE_BYTES + NESTED_CODE_BYTES)
    return tensor.size * QUANTIZED_BYTES[form]


def _all_tensors(model: Architecture) -> list[tuple[Tensor, int]]:
    """Return (tensor, how many of it), in the order of the model's modules."""
    inner = [(tensor, count) for layer, count in model.layers for tensor in layer.tensors()]
    first = [(tensor, 1) for tensor in model.embeddings]
    outer = [(tensor, 1) for tensor in model.outer_tensors()[len(first) :]]
    if model.head is not None:  # a linear by shape, but quantisers leave it alone
        weight = model.head.tensors()[0]
        outer = [(t, n) for t, n in outer if t != weight]
        outer.append((Tensor(weight.name, weight.shape, "head"), 1))
    return first + inner + outer + [(tensor, 1) for tensor in model.other]


def _is_extra(tensor: Tensor, trainable_extra: tuple[str, ...]) -> bool:
    """Return whether `tensor` trains beside the adapters."""
    for extra in trainable_extra:
        if extra == "norms" and tensor.kind == "norm":
            return True
        if extra == "embed_tokens" and tensor.kind == "embedding":
            return True
        if extra == "lm_head" and tensor.kind == "head":
            return True
    return False


def _adapters(layer: Layer, count: int, low: Lowering) -> list[Trained]:
    """Return the LoRA pairs of `count` such layers: A [r, in] and B [out, r] of each adapted projection."""
    if not low.lora_rank:
        return []
    found: list[Trained] = []
    for branch in layer.branches:
        mixer = branch.mixer
        if isinstance(mixer, Traced):
            for use in mixer.uses:
                many = use.share * use.groups * count
                found += _pair(low, use.linear, use.linear.kind, use.part, count=many)
            continue
        for linear, kind in linears_of(mixer, fused_experts=low.fused_experts):
            experts = mixer.num_experts if isinstance(mixer, MixtureOfExperts) and kind == "experts" else 1
            fused = experts if low.fused_experts else 1  # one pair holds the ranks of all
            found += _pair(low, linear, kind, mixer.path, fused=fused, count=count * experts / fused)
    return found


def _pair(
    low: Lowering, linear: Linear, kind: str, part: str, *, fused: int = 1, count: float = 1
) -> list[Trained]:
    """Return the two tensors of an adapter, none where there is no adapter."""
    rank = low.rank(linear, kind, part) * fused
    shapes = [(rank, linear.in_features), (linear.out_features, rank)] if rank else []
    return [Trained(shape, low.adapter_bytes, count) for shape in shapes]
