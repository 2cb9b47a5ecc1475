"""The tensors a rank holds: bytes by kind as the quantiser really touches them, what trains, optimizer state.

NF4 and its scales are counted tensor by tensor, other formats by `lowering.QUANTIZED_BYTES` per parameter.
bitsandbytes quantises modules: embeddings, head, norms, routers and, unless they are unfused, the experts of
transformers 5 stay 16-bit; PEFT's k-bit preparation makes all that fp32. Held against bitsandbytes 0.50.2 on
the CPU, to the byte.

PyTorch's AdamW keeps two values as wide as the parameter. bitsandbytes keeps fp32 values (AdamW two, Lion
one) or, of tensors of at least 4,096 elements, 8-bit ones with an fp32 scale per block of 256; its paged
variants leave tensors under 100,000 elements where they are. Adafactor keeps fp32 row and column means of
every matrix, all of a vector.

Sources: bitsandbytes 0.50.2, optim/optimizer.py; transformers 5.23, optimization.py; torch 2.13,
optim/adam.py (all run, 2026-11-21).
"""

from collections.abc import Iterable, Iterator
from math import ceil, prod

from finegauge.model.blocks import Architecture, Linear, MixtureOfExperts, Tensor
from finegauge.model.gradient_pruning import last_layers
from finegauge.model.lowering import QUANTIZED_BYTES, Lowering, linears_of
from finegauge.records import NamedTuple

WIDE_STATES = {"adamw": 2, "paged_adamw": 2, "lion": 1}
NARROW_STATES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "lion_8bit": 1}
LEAST_NARROW, NARROW_BLOCK, LEAST_PAGED = 4096, 256, 100_000
ADAFACTOR_VALUES = 2  # the update and a step towards it, in fp32; beside copies of what is narrower
QUANTIZED_BLOCK, NESTED_BLOCK = 64, 256
REPACKED = "nf4, repacked"  # NF4 as bitsandbytes' kernel for inference on AVX512-BF16 reads it
CODE_BYTES = 16 * 4  # the sixteen values of NF4, per tensor
NESTED_CODE_BYTES = 256 * 4 + 4  # the values of 8-bit scales and their offset, per tensor
EXTRA_KINDS = {"norms": "norm", "embed_tokens": "embedding", "lm_head": "head"}  # of `trainable_extra`


class Trained(NamedTuple):
    """A tensor that trains: its shape, bytes per element, and how many of it there are."""

    shape: tuple[int, ...]
    element_bytes: int
    num_alike: float = 1


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


def state_bytes(optimizer: str, tensor: Trained) -> float:
    """Return the bytes that `optimizer` keeps for one such tensor."""
    size = prod(tensor.shape)
    if optimizer == "adafactor":
        *rows, columns = tensor.shape
        return 4.0 * (prod(rows) + prod(rows[:-1]) * columns) if rows else 4.0 * size
    if values := NARROW_STATES.get(optimizer, 0):
        narrow = size >= LEAST_NARROW
        return values * (size + 4.0 * ceil(size / NARROW_BLOCK)) if narrow else values * 4.0 * size
    element = tensor.element_bytes if optimizer == "adamw" else 4
    return float(WIDE_STATES.get(optimizer, 0) * element * size)


def optimizer_bytes(optimizer: str, tensors: Iterable[Trained]) -> tuple[float, float, float]:
    """Return the bytes of state, of state that may be paged out, and of temporaries at their worst.

    Temporaries of a loop over the tensors, for AdamW: the root of the second moment, that divided by its bias
    correction, and the last tensor's, not yet dropped. Adafactor: fp32 copies of gradient and parameter if
    these are narrower, the update and a step towards it.
    """
    states = paged = worst = before = 0.0
    for tensor in tensors:
        size, state = prod(tensor.shape), state_bytes(optimizer, tensor)
        states += tensor.num_alike * state
        if optimizer.startswith("paged") and size >= LEAST_PAGED:
            paged += tensor.num_alike * state
        if optimizer == "adafactor":
            worst = max(worst, 4.0 * size * (ADAFACTOR_VALUES + (2 if tensor.element_bytes < 4 else 0)))
        elif optimizer == "adamw":
            now = float(size * tensor.element_bytes)
            worst, before = max(worst, 2 * now + before), now
    return states, paged, worst


def weights_of(
    model: Architecture, low: Lowering, trainable_extra: tuple[str, ...], optimizer: str, *, upcast: bool
) -> Weights:
    """Return the bytes that `model` takes under `low`."""
    own: list[Trained] = []
    base, trained, adapted = float(model.buffer_bytes), 0.0, 0.0
    extra = {EXTRA_KINDS.get(name, "") for name in trainable_extra}
    plain = 4.0 if upcast and low.quantized else float(low.weight_bytes)
    form = REPACKED if low.repacks else low.quantized
    for tensor, count in _all_tensors(model):
        size, quantized = tensor.size, low.quantizes(tensor.kind)
        base += count * (quantized_bytes(form, tensor) if quantized else size * plain)
        if (low.weights_train and tensor.kind != "fixed") or tensor.kind in extra:
            own.append(Trained(tensor.shape, low.weight_bytes, count))
            trained += size * count
            if low.lora_rank:  # PEFT trains a copy and keeps the original beside it
                base += size * count * plain
    for layer, count in last_layers(model, low.last_layers) if low.last_layers else ():
        for tensor in layer.tensors():
            if tensor.kind != "fixed" and tensor.kind not in extra:
                own.append(Trained(tensor.shape, low.weight_bytes, count))
                trained += tensor.size * count
    adapters = list(_adapters(model, low)) if low.lora_rank else []
    for shape, _, many in adapters:
        adapted += many * prod(shape)
    states, paged, worst = optimizer_bytes(optimizer, own + adapters)
    own_gradients, gradients = trained * low.weight_bytes, adapted * low.adapter_bytes
    together = low.adapter_bytes == low.weight_bytes
    return Weights(
        base_bytes=base,
        trained_params=trained,
        adapter_params=adapted,
        gradient_bytes=own_gradients + gradients,
        adapter_bytes=gradients,
        optimizer_bytes=states,
        paged_bytes=paged,
        foreach_bytes=own_gradients + gradients if together else max(own_gradients, gradients),
        loop_bytes=worst,
        num_trained_tensors=round(sum([each.num_alike for each in own + adapters])),
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


def _all_tensors(model: Architecture) -> Iterator[tuple[Tensor, int]]:
    """Yield (tensor, how many of it), in the order of the model's modules."""
    embeddings = len(model.embeddings)
    outer = model.outer_tensors()
    for tensor in outer[:embeddings]:
        yield tensor, 1
    for layer, count in model.layers:
        for tensor in layer.tensors():
            yield tensor, count
    # a linear by shape, but quantisers leave it alone
    head = model.head.tensors()[0] if model.head is not None else None
    for tensor in outer[embeddings:]:
        if tensor != head:
            yield tensor, 1
    if head is not None:
        yield head._replace(kind="head"), 1
    for tensor in model.other:
        yield tensor, 1


def _adapters(model: Architecture, low: Lowering) -> Iterator[Trained]:
    """Yield the LoRA pairs, A [r, in] and B [out, r] of each adapted projection."""
    # projection, its kind, its block, ranks that one pair holds of all experts, how many pairs
    found: list[tuple[Linear, str, str, int, float]] = []
    for layer, count in model.layers:
        for mixer, *_ in layer.branches:
            if uses := getattr(mixer, "uses", None):  # of a traced layer
                found += [(u.linear, u.linear.kind, u.part, 1, u.share * u.groups * count) for u in uses]
                continue
            for linear, kind in linears_of(mixer, fused_experts=low.fused_experts):
                many = mixer.num_experts if isinstance(mixer, MixtureOfExperts) and kind == "experts" else 1
                fused = many if low.fused_experts else 1
                found.append((linear, kind, mixer.path, fused, count * many / fused))
    found += [(linear, "linear", "embedding", 1, 1) for linear in model.widening]
    if model.head is not None:
        found.append((model.head, "head", "head", 1, 1))
    for linear, kind, part, fused, pairs in found:
        if rank := low.rank(linear, kind, part) * fused:
            yield Trained((rank, linear.in_features), low.adapter_bytes, pairs)
            yield Trained((linear.out_features, rank), low.adapter_bytes, pairs)
