"""The tensors a rank holds: bytes by kind as the quantiser really touches them, and what trains.

Quantised linears take `lowering.QUANTIZED_BYTES` per parameter; embeddings, head, norms
and routers stay 16-bit; PEFT's k-bit preparation may make them fp32. Optimizer state per
trained parameter: Adam two values, Lion one, 8-bit variants one byte each and a 32-bit
scale per 256.
"""

from typing import NamedTuple

from finegauge.graph.blocks import Architecture, Layer, Linear, MixtureOfExperts, Tensor
from finegauge.graph.lowering import QUANTIZED_BYTES, Lowering

STATE_VALUES = {
    "adamw": 2,
    "adamw_8bit": 2,
    "paged_adamw": 2,
    "paged_adamw_8bit": 2,
    "lion": 1,
    "lion_8bit": 1,
}
EIGHT_BIT_STATE_BYTES = 1 + 4 / 256


class Weights(NamedTuple):
    """What a rank holds before the first step, unsharded."""

    base_bytes: float  # the model's own tensors
    trained_params: float  # of the model's own
    adapter_params: float
    gradient_bytes: float
    adapter_bytes: float
    optimizer_bytes: float
    paged_bytes: float  # optimizer state that may leave the GPU under pressure
    foreach_bytes: float  # the largest temporary of a multi-tensor optimizer
    layer_gradient_bytes: float  # of the layers alone; the rest are embedding and head


def weights_of(
    model: Architecture, low: Lowering, trainable_extra: tuple[str, ...], optimizer: str, *, upcast: bool
) -> Weights:
    """Return the bytes that `model` takes under `low`."""
    base = trained = layers_trained = 0.0
    plain = 4.0 if upcast and low.quantized else float(low.weight_bytes)
    for tensor, count, in_layer in _all_tensors(model):
        size = float(tensor.size * count)
        if low.quantizes(tensor.kind):
            base += size * QUANTIZED_BYTES[low.quantized]
        else:
            base += size * plain
        if low.weights_train or _is_extra(tensor, trainable_extra):
            trained += size
            layers_trained += size if in_layer else 0.0
    adapters = float(sum(count * _adapter_params(layer, low) for layer, count in model.layers))
    adapters += _lora_size(low, model.head, "head", "head") if model.head else 0.0
    wide = float(low.adapter_bytes)
    gradients = trained * low.weight_bytes + adapters * wide
    states = _state_bytes(optimizer, trained, low.weight_bytes) + _state_bytes(optimizer, adapters, wide)
    return Weights(
        base_bytes=base,
        trained_params=trained,
        adapter_params=adapters,
        gradient_bytes=gradients,
        adapter_bytes=adapters * wide,
        optimizer_bytes=states,
        paged_bytes=states if optimizer.startswith("paged") else 0.0,
        foreach_bytes=max(trained * low.weight_bytes, adapters * wide),
        layer_gradient_bytes=layers_trained * low.weight_bytes + adapters * wide,
    )


def _all_tensors(model: Architecture) -> list[tuple[Tensor, int, bool]]:
    """Return (tensor, how many of it, whether inside a layer)."""
    inner = [(tensor, count, True) for layer, count in model.layers for tensor in layer.tensors()]
    outer = [(tensor, 1, False) for tensor in model.outer_tensors()]
    if model.head is not None:  # a linear by shape, but quantisers leave it alone
        weight = model.head.tensors()[0]
        outer = [(t, n, inside) for t, n, inside in outer if t != weight]
        outer.append((Tensor(weight.name, weight.shape, "head"), 1, False))
    return inner + outer + [(tensor, 1, False) for tensor in model.other]


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


def _adapter_params(layer: Layer, low: Lowering) -> float:
    """Return the LoRA parameters of one layer: r·(in + out) for each adapted projection."""
    if not low.lora_rank:
        return 0.0
    total = 0.0
    for branch in layer.branches:
        mixer = branch.mixer
        if isinstance(mixer, MixtureOfExperts):
            total += _expert_adapters(mixer, low)
            projections: tuple[Linear, ...] = mixer.shared.projections if mixer.shared else ()
        else:
            projections = mixer.projections
        total += sum(_lora_size(low, projection, "linear", mixer.path) for projection in projections)
    return total


def _expert_adapters(moe: MixtureOfExperts, low: Lowering) -> float:
    """Return the LoRA parameters of router and routed experts."""
    linears = moe.expert_projections(apart=low.experts == "eager")
    experts = sum(_lora_size(low, linear, "experts", moe.path) for linear in linears)
    around = sum(_lora_size(low, linear, "linear", moe.path) for linear in moe.latent)
    return moe.num_experts * experts + around + _lora_size(low, moe.router, "router", moe.path)


def _lora_size(low: Lowering, linear: Linear, kind: str, part: str) -> float:
    """Return the parameters of one adapter pair, 0 where there is none."""
    return float(low.rank(linear, kind, part) * (linear.in_features + linear.out_features))


def _state_bytes(optimizer: str, params: float, param_bytes: float) -> float:
    """Return the bytes of optimizer state for `params` parameters held in `param_bytes`."""
    values = STATE_VALUES.get(optimizer, 0)
    if optimizer == "adafactor":
        return params * 0.01  # row and column statistics: vanishing beside the matrix
    if optimizer.endswith("8bit"):
        return params * values * EIGHT_BIT_STATE_BYTES
    return params * values * param_bytes
