"""The tensors a rank holds: bytes by kind as the quantiser really touches them, what trains, optimizer state.

NF4 and its scales are counted tensor by tensor, other formats by `lowering.QUANTIZED_BYTES` per parameter.
bitsandbytes quantises modules: embeddings, head, norms, routers and, unless they are unfused, the experts of
transformers 5 stay 16-bit; PEFT's k-bit preparation makes all that fp32. Held against bitsandbytes 0.50.2 on
the CPU, to the byte.

Optimizers: PyTorch's keep values as wide as the parameter; bitsandbytes' fp32 ones or, of tensors of at
least 4,096 elements, 8-bit ones with an fp32 scale per block of 256; its paged variants leave tensors under
100,000 elements where they are. torchao's 4-bit AdamW has blocks of 128. Factored optimizers keep fp32 row
and column means of a matrix, all of a vector. Of a matrix [m, n] of a layer (embeddings, heads, norms and
biases are AdamW's everywhere):

    muon        the momentum; five rounds of Newton-Schulz in 16 bit, 5 (4 s² l + 2 s³), s the smaller of m, n
    shampoo     the momentum; preconditioners of both sides and their inverse roots: 2 (m² + n²)
    soap        two moments; preconditioners of both sides up to 10,000 channels, and their bases
    galore      two moments of a gradient projected to r: 2 r l, and the projection r s; an SVD meanwhile
    apollo      the same, with a random projection and a gradient scaled by it: no SVD

LOMO and AdaLOMO apply a gradient as it arrives, and keep none.

Sources: bitsandbytes 0.50.2, optim/optimizer.py; transformers 5.23, optimization.py; torch 2.13,
optim/adam.py and _muon.py; galore-torch 1.0, apollo-torch 1.0.3, schedulefree 1.4.1, adam-mini 1.1.1, torchao
0.18, pytorch-optimizer 4.1 (Shampoo, SOAP, StableAdamW; all run, 2026-11-23). Jordan et al. 2024 (Muon);
Gupta et al. 2018, arXiv:1802.09568 (Shampoo);
Vyas et al. 2024, arXiv:2409.11321 (SOAP); Zhao et al. 2024, arXiv:2403.03507 (GaLore); Zhu et al. 2024,
arXiv:2412.05270 (APOLLO); Zhang et al. 2024, arXiv:2406.16793 (Adam-mini); Defazio et al. 2024,
arXiv:2405.15682 (schedule-free); Lv et al. 2023, arXiv:2306.09782 and 2310.10195 (LOMO, AdaLOMO).
"""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, inf, prod

from finegauge.arithmetic import largest
from finegauge.errors import UnsupportedError
from finegauge.model.adapters import LAYER_NORMS, Shape, shared_values
from finegauge.model.blocks import Architecture, Attention, Linear, MixtureOfExperts, Tensor
from finegauge.model.layers import tower_lowering
from finegauge.model.lowering import QUANTIZED_BYTES, Lowering, last_name, linears_of, part_linears
from finegauge.model.op_builder import last_layers
from finegauge.records import NamedTuple
from finegauge.run.run import Run

AS_WIDE = {  # values as wide as the parameter
    **{"adamw": 2, "sgd": 0, "lomo": 0, "adagrad": 1, "rmsprop": 1, "adam_mini": 1, "stable_adamw": 2},
    **{"schedule_free_adamw": 2, "schedule_free_radam": 2, "schedule_free_sgd": 1, "muon": 2},
    **{"shampoo": 2, "soap": 2, "galore_adamw": 2, "apollo_adamw": 2},
}
WIDE = {"paged_adamw": 2, "lion": 1, "paged_lion": 1, "ademamix": 3, "paged_ademamix": 3}  # in fp32
NARROW = {  # values of so many bits with an fp32 scale per block
    **{"adamw_8bit": (2, 8, 256), "paged_adamw_8bit": (2, 8, 256), "galore_adamw_8bit": (2, 8, 256)},
    **{"lion_8bit": (1, 8, 256), "paged_lion_8bit": (1, 8, 256), "rmsprop_8bit": (1, 8, 256)},
    **{"ademamix_8bit": (3, 8, 256), "paged_ademamix_8bit": (3, 8, 256), "adamw_4bit": (2, 4, 128)},
}
FACTORED = ("adafactor", "adalomo", "galore_adafactor")
PROJECTED = ("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw")
SQUARED = {"muon": (1, 0), "shampoo": (1, inf), "soap": (2, 10_000)}  # values, most channels of a square
LEAST_NARROW, LEAST_PAGED = 4096, 100_000
FACTORED_VALUES = 2  # the update and a step towards it, in fp32; beside copies of what is narrower
NEWTON_SCHULZ_STEPS = 5


def copies_states(optimizer: str) -> bool:
    """Return whether reading a checkpoint copies all states first, as bitsandbytes' optimizers do.

    `load_state_dict` of bitsandbytes 0.50.2, optim/optimizer.py: deepcopy. torch's casts one after another.
    """
    return optimizer in WIDE or (optimizer in NARROW and optimizer != "adamw_4bit")


class Trained(NamedTuple):
    """A tensor that trains: its shape, bytes per element, how many there are, and its kind."""

    shape: tuple[int, ...]
    element_bytes: int
    num_alike: float = 1
    kind: str = "linear"

    @property
    def is_matrix(self) -> bool:
        """Return whether it is a matrix of a layer, which optimizers that look at shapes treat as one."""
        return len(self.shape) == 2 and min(self.shape) > 1 and self.kind not in ("embedding", "head")


class States(NamedTuple):
    """What an optimizer takes for all trained tensors."""

    states_bytes: float
    paged_bytes: float  # of them, what may leave the GPU under pressure
    worst_bytes: float  # temporaries of the tensor that needs most
    flops: float  # beyond those of values one by one


def state_bytes(optimizer: str, tensor: Trained, rank: int = 0) -> float:
    """Return the bytes that `optimizer` keeps for one such tensor."""
    if tensor.is_matrix and optimizer in PROJECTED and rank < min(tensor.shape):
        short, long = sorted(tensor.shape)
        inside = state_bytes(optimizer, Trained((rank, long), tensor.element_bytes), rank)
        return inside + float((4 if optimizer in FACTORED else tensor.element_bytes) * rank * short)
    size, element = prod(tensor.shape), tensor.element_bytes
    if optimizer in SQUARED and (tensor.is_matrix or (optimizer == "shampoo" and len(tensor.shape) == 1)):
        values, most = SQUARED[optimizer]
        squares = sum([side**2 for side in tensor.shape if side <= most])
        return float(element * (values * size + 2 * squares))
    if optimizer in FACTORED:
        *rows, columns = tensor.shape
        return 4.0 * (prod(rows) + prod(rows[:-1]) * columns) if rows else 4.0 * size
    if optimizer in NARROW:
        values, bits, block = NARROW[optimizer]
        narrow = bits / 8 * size + 4.0 * ceil(size / block)
        return values * (narrow if size >= LEAST_NARROW else (element if bits == 4 else 4.0) * size)
    if optimizer in WIDE:
        return 4.0 * WIDE[optimizer] * size
    compensated = optimizer == "stable_adamw" and tensor.element_bytes < 4  # Kahan's sum of narrow weights
    return float((AS_WIDE[optimizer] + compensated) * tensor.element_bytes * size)


def states_of(optimizer: str, tensors: Iterable[Trained], rank: int = 0) -> States:
    """Return what `optimizer` takes for all `tensors`.

    Temporaries of a loop over the tensors, for AdamW: the root of the second moment, that divided by its bias
    correction, and the last tensor's, not yet dropped.
    """
    states = paged = worst = before = flops = 0.0
    for tensor in tensors:
        size, state = prod(tensor.shape), state_bytes(optimizer, tensor, rank)
        states += tensor.num_alike * state
        if optimizer.startswith("paged") and size >= LEAST_PAGED:
            paged += tensor.num_alike * state
        if tensor.is_matrix and optimizer in (*SQUARED, *PROJECTED):
            worst = max(worst, _meanwhile(optimizer, tensor))
            flops += tensor.num_alike * _update_flops(optimizer, tensor)
        elif optimizer in FACTORED:
            # the update and a step towards it in fp32, and copies of what is narrower
            copies = FACTORED_VALUES + (2 if tensor.element_bytes < 4 else 0)
            worst = max(worst, 4.0 * size * copies)
        elif optimizer in AS_WIDE and AS_WIDE[optimizer] == 2:
            now = float(size * tensor.element_bytes)
            worst, before = max(worst, 2 * now + before), now
    return States(states, paged, worst, flops)


def _meanwhile(optimizer: str, tensor: Trained) -> float:
    (short, long), element = sorted(tensor.shape), tensor.element_bytes
    size = float(short * long)
    if optimizer == "muon":  # the update; two of its orthogonalised in bf16; Gram's matrix and its polynomial
        return size * (element + 4.0) + 4.0 * short**2
    if optimizer == "shampoo":  # a root of the larger preconditioner, and the gradient between both
        return 12.0 * long**2 + 2.0 * element * size
    if optimizer == "soap":  # the gradient and both moments, turned there and back
        return 4.0 * element * size
    if optimizer in ("galore_adamw", "galore_adamw_8bit", "galore_adafactor"):  # of an SVD: copy, U and V
        return 8.0 * size + 4.0 * short**2 + element * size
    if optimizer == "apollo_adamw":  # the gradient scaled, and added
        return 2.0 * element * size
    return 0.0


def _update_flops(optimizer: str, tensor: Trained) -> float:
    short, long = sorted(tensor.shape)
    if optimizer == "muon":
        return NEWTON_SCHULZ_STEPS * (4.0 * short**2 * long + 2.0 * short**3)
    if optimizer in ("shampoo", "soap"):  # statistics of both sides, and the gradient between both bases
        return (4.0 if optimizer == "shampoo" else 8.0) * short * long * (short + long)
    return 0.0


# copies that the multi-tensor update makes of all that trains, where none is fused
FOREACH = {"schedule_free_adamw": 1.0, "schedule_free_radam": 1.0, "adagrad": 2.0, "rmsprop": 1.0}
QUANTIZED_BLOCK, NESTED_BLOCK = 64, 256
REPACKED = "nf4, repacked"  # NF4 as bitsandbytes' kernel for inference on AVX512-BF16 reads it
CODE_BYTES = 16 * 4  # the sixteen values of NF4, per tensor
NESTED_CODE_BYTES = 256 * 4 + 4  # the values of 8-bit scales and their offset, per tensor
EXTRA_KINDS = {"norms": "norm", "embed_tokens": "embedding", "lm_head": "head"}  # of `trainable_extra`


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
    update_flops: float = 0.0  # of an optimizer that multiplies matrices


def fullest(each: Sequence[Weights]) -> Weights:
    """Return the most of every figure that any of them has."""
    return Weights(*[largest(*values) for values in zip(*each, strict=True)])


def weights_of(
    model: Architecture,
    low: Lowering,
    trainable_extra: tuple[str, ...],
    optimizer: tuple[str, int],
    *,
    upcast: bool,
) -> Weights:
    """Return the bytes that `model` takes under `low`; an `optimizer` has a name and a rank."""
    own: list[Trained] = []
    base, trained, adapted = float(model.buffer_bytes), 0.0, 0.0
    extra = {EXTRA_KINDS.get(name, "") for name in trainable_extra}
    plain = 4.0 if upcast and low.quantized else float(low.weight_bytes)
    form = REPACKED if low.repacks else low.quantized
    for tensor, count, trains in _all_tensors(model, low):
        size, quantized = tensor.size, low.quantizes(tensor.kind)
        base += count * (quantized_bytes(form, tensor) if quantized else size * plain)
        if (trains and tensor.kind != "fixed") or tensor.kind in extra:
            own.append(Trained(tensor.shape, low.weight_bytes, count, tensor.kind))
            trained += size * count
            if low.lora_rank:  # PEFT trains a copy and keeps the original beside it
                base += size * count * plain
    for layer, count in last_layers(model, low.last_layers) if low.last_layers else ():
        for tensor in layer.tensors():
            if tensor.kind != "fixed" and tensor.kind not in extra:
                own.append(Trained(tensor.shape, low.weight_bytes, count, tensor.kind))
                trained += tensor.size * count
    adapters, frozen = _adapters(model, low) if low.lora_rank else _beside_layers(model, low)
    base += frozen
    for each in adapters:
        adapted += each.num_alike * prod(each.shape)
    name, rank = optimizer
    kept = states_of(name, own + adapters, rank)
    own_gradients, gradients = trained * low.weight_bytes, adapted * low.adapter_bytes
    together = low.adapter_bytes == low.weight_bytes
    return Weights(
        base_bytes=base,
        trained_params=trained,
        adapter_params=adapted,
        gradient_bytes=own_gradients + gradients,
        adapter_bytes=gradients,
        optimizer_bytes=kept.states_bytes,
        paged_bytes=kept.paged_bytes,
        foreach_bytes=own_gradients + gradients if together else max(own_gradients, gradients),
        loop_bytes=kept.worst_bytes,
        update_flops=kept.flops,
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


def _all_tensors(model: Architecture, low: Lowering) -> Iterator[tuple[Tensor, int, bool]]:
    """Yield (tensor, how many of it, whether it trains with the weights), in the order of the modules."""
    embeddings, trains = len(model.embeddings), low.weights_train
    outer = model.outer_tensors()
    for tensor in outer[:embeddings]:
        yield tensor, 1, trains
    for layer, count in model.layers:
        for tensor in layer.tensors():
            yield tensor, count, trains
    # a linear by shape, but quantisers leave it alone
    head = model.head.tensors()[0] if model.head is not None else None
    for tensor in outer[embeddings:]:
        if tensor != head:
            yield tensor, 1, trains
    if head is not None:
        yield head._replace(kind="head"), 1, trains
    for tensor, count, projector in model.tower.tensors() if model.tower else ():
        yield tensor, count, low.tower_trains[projector]
    for tensor in model.other:
        yield tensor, 1, trains


def _adapters(model: Architecture, low: Lowering) -> tuple[list[Trained], float]:
    """Return what trains beside each adapted projection, and the bytes of adapters that do not train."""
    # its lowering, projection, its kind, its block, ranks that one pair holds of all experts, how many pairs
    found: list[tuple[Lowering, Linear, str, str, int, float]] = []
    for layer, count in model.layers:
        for mixer, *_ in layer.branches[layer.borrowed if layer.again else 0 :]:
            if uses := getattr(mixer, "uses", None):  # of a traced layer
                found += [(low, u.linear, u.linear.kind, u.part, 1, u.share * u.groups * count) for u in uses]
                continue
            for linear, kind in linears_of(mixer, fused_experts=low.fused_experts):
                many = mixer.num_experts if isinstance(mixer, MixtureOfExperts) and kind == "experts" else 1
                fused = many if low.fused_experts else 1
                found.append((low, linear, kind, mixer.path, fused, count * many / fused))
    found += [(low, linear, "linear", "embedding", 1, 1) for linear in model.outer_linears]
    if model.head is not None:
        found.append((low, model.head, "head", "head", 1, 1))
    trained, frozen, shapes = list[Trained](), 0.0, list[Shape]()
    for step in model.tower.parts if model.tower else ():
        own = tower_lowering(low, projector=step.projector)
        found += [(own, linear, linear.kind, block, 1, step.count) for linear, block in part_linears(step)]
    for own, linear, kind, part, fused, pairs in found:
        if rank := own.rank(linear, kind, part) * fused:
            form = own.form(linear, part, rank)
            trained += [Trained(shape, low.adapter_bytes, pairs) for shape in form.trained]
            frozen += pairs * form.frozen_values
            shapes.append(Shape(linear.in_features, linear.out_features, rank, low.adapter_size))
    return trained, low.adapter_bytes * (frozen + shared_values(low.adapter, shapes))


def _beside_layers(model: Architecture, low: Lowering) -> tuple[list[Trained], float]:
    """Return what trains where no projection has an adapter, and the bytes of what it is a copy of.

    A prompt's tokens are as wide as the embedding, a prefix is a key and a value of every layer; P-tuning has
    two hidden layers before its prompt, a prefix one where asked for. Of norms PEFT trains copies.
    """
    width, shapes, copied = model.hidden_size, list[tuple[int, ...]](), 0.0
    tokens, hidden = low.adapter_size, low.adapter_hidden
    if low.adapter in ("prompt_tuning", "trainable_tokens"):
        shapes = [(tokens, width)]
        copied = float(tokens * width) if low.adapter == "trainable_tokens" else 0.0
    elif low.adapter == "p_tuning":
        hidden = hidden or width
        shapes = [(tokens, width), *_dense(width, hidden), *_dense(hidden, hidden), *_dense(hidden, width)]
    elif low.adapter == "prefix_tuning":
        pairs = 2 * model.num_layers * prefix_width(model)
        narrow = prefix_width(model)
        deep = [(tokens, narrow), *_dense(narrow, hidden), *_dense(hidden, pairs)]
        shapes = deep if hidden else [(tokens, pairs)]
    found = [Trained(shape, low.adapter_bytes) for shape in shapes]
    if low.adapter == "ln_tuning":
        for tensor, count, _ in _all_tensors(model, low):
            if tensor.kind == "norm" and last_name(tensor.name.removesuffix(".bias")) in LAYER_NORMS:
                found.append(Trained(tensor.shape, low.adapter_bytes, count))
    return found, copied * low.weight_bytes


def _dense(inside: int, outside: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (outside, inside), (outside,)


def prefix_width(model: Architecture) -> int:
    """Return the channels of a token's keys in one layer.

    Raises: UnsupportedError where layers have other than keys and values of one width.
    """
    mixers = [branch.mixer for layer, _ in model.layers for branch in layer.branches]
    widths = {one.widths[1] for one in mixers if isinstance(one, Attention)}
    if len(widths) != 1:
        raise UnsupportedError(
            f"adapter=prefix_tuning is not predicted for {model.model_type}, whose layers do not all hold "
            f"keys and values of one width; use adapter=prompt_tuning."
        )
    return int(widths.pop())


def optimizer_scratch(run: Run, weights: Weights) -> float:
    """Return the temporaries of the update: of a whole group of tensors, or of one after the other."""
    if run.optimizer == "adamw" or run.optimizer in FOREACH:
        copies = FOREACH.get(run.optimizer, 1.0) * weights.foreach_bytes
        unfused = {"foreach": copies, "loop": weights.loop_bytes}
        return unfused.get(run.optimizer_implementation, copies if run.optimizer in FOREACH else 0.0)
    return weights.loop_bytes
