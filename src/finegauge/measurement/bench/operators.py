"""How each operator is called in training: transformers' own functions where they are functions.

Every function here returns one use of an operator with tensors of its own; `OPERATORS` says which
directions of it are timed and how many FLOPs its matrix products have.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (everybody's name for it)

from finegauge.catalogue.device_profile import NF4_INFERENCE
from finegauge.measurement.bench.timing import Bench, Use

ALL = ("backward", "backward_frozen", "backward_first")


class Operator(NamedTuple):
    """One operator: how a use of it is made, which backward directions it has, its matrix products' work."""

    make: Callable[..., Use]
    directions: tuple[str, ...] = ("backward",)
    flops: Callable[..., float] | None = None  # of a forward, from the sizes
    looks_up: bool = False  # its forward reads as much of its weights as it returns, not all


def _linear(bench: Bench, *, rows: int, n: int, k: int) -> Use:
    x, layer = bench.rows(rows, k), plain(bench, n, k)
    return Use(lambda: layer(x), (x,), (layer.weight,))


def plain(bench: Bench, n: int, k: int) -> Any:
    """Return a linear module without bias."""
    with torch.device("meta"):
        layer = torch.nn.Linear(k, n, bias=False)
    layer.weight = torch.nn.Parameter(bench.weight(n, k))
    return layer


def _grouped_linear(bench: Bench, *, rows: int, n: int, k: int, groups: int) -> Use:
    from transformers.integrations.moe import _grouped_linear as grouped

    x, weight = bench.rows(rows, k), bench.weight(groups, n, k)
    ends = [rows * (group + 1) // groups for group in range(groups)]
    offsets = torch.tensor(ends, device=bench.device, dtype=torch.int32)
    return Use(lambda: grouped(x, weight, offsets), (x,), (weight,))


def _attention(name: str) -> Callable[..., Use]:
    def make(bench: Bench, *, sequences: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> Use:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.models.llama.modeling_llama import eager_attention_forward

        call = sdpa_attention_forward if name == "sdpa" else eager_attention_forward
        query = bench.rows(sequences, seq_len, heads, head_dim)
        key, value = (bench.rows(sequences, seq_len, kv_heads, head_dim) for _ in range(2))
        module = SimpleNamespace(num_key_value_groups=heads // kv_heads, is_causal=True, training=True)
        mask = None
        if name == "eager":
            lowest = torch.finfo(bench.dtype).min
            full = torch.full((seq_len, seq_len), lowest, device=bench.device, dtype=bench.dtype)
            mask = full.triu(1)[None, None].expand(sequences, 1, seq_len, seq_len)

        def forward() -> Tensor:
            states = (tensor.transpose(1, 2) for tensor in (query, key, value))
            output: Tensor = call(module, *states, mask, dropout=0.0, scaling=head_dim**-0.5)[0]
            return output.reshape(sequences, seq_len, -1).contiguous()

        return Use(forward, (query, key, value))

    return make


def _attention_cached(
    bench: Bench, *, sequences: int, context: int, heads: int, kv_heads: int, head_dim: int
) -> Use:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query = bench.rows(sequences, heads, 1, head_dim)
    key, value = (bench.rows(sequences, kv_heads, 1, head_dim) for _ in range(2))
    before = tuple(bench.weight(sequences, kv_heads, context, head_dim) for _ in range(2))
    module = SimpleNamespace(num_key_value_groups=heads // kv_heads, is_causal=True, training=False)

    def forward() -> Tensor:
        with torch.no_grad():
            states = (torch.cat(pair, dim=-2) for pair in zip(before, (key, value), strict=True))
            output: Tensor = sdpa_attention_forward(
                module, query, *states, None, dropout=0.0, scaling=head_dim**-0.5
            )[0]
            return output.reshape(sequences, 1, -1).contiguous()

    return Use(forward, (query, key, value), before)


def _rotary(bench: Bench, *, sequences: int, seq_len: int, heads: int, kv_heads: int, head_dim: int) -> Use:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    query, key = (bench.rows(sequences, seq_len, count, head_dim) for count in (heads, kv_heads))
    cosines, sines = (bench.rows(1, seq_len, head_dim) for _ in range(2))

    def forward() -> Tensor:
        turned = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cosines, sines)
        joined: Tensor = _Joined.apply(*turned)
        return joined

    return Use(forward, (query, key))


class _Joined(torch.autograd.Function):
    """Two outputs as one that costs nothing, so that one gradient starts the backward of both."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        """Return a single value; keep the shapes alone."""
        ctx.gradients = torch.empty_like(first), torch.empty_like(second)
        return first.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Return some gradient for each."""
        return ctx.gradients


def _norm(name: str) -> Callable[..., Use]:
    def make(bench: Bench, *, rows: int, width: int) -> Use:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        module: Any = LlamaRMSNorm(width) if name == "rms" else torch.nn.LayerNorm(width)
        x, layer = bench.rows(1, rows, width), module.to(bench.device, bench.dtype)
        return Use(lambda: layer(x), (x,), tuple(layer.parameters()))

    return make


def _rowwise(function: Callable[..., Tensor], num_inputs: int, factor: int = 1) -> Callable[..., Use]:
    def make(bench: Bench, *, rows: int, width: int) -> Use:
        inputs = tuple(bench.rows(1, rows, factor * width) for _ in range(num_inputs))
        return Use(lambda: function(*inputs), inputs)

    return make


def _swiglu_fused(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def _cast(bench: Bench, *, rows: int, width: int) -> Use:
    wide = bench.dtype == torch.float32
    x = bench.rows(rows, width).float()
    return Use(lambda: x.to(torch.bfloat16 if wide else bench.dtype), (x,))


def _embedding(bench: Bench, *, rows: int, vocab: int, width: int) -> Use:
    table, tokens = bench.weight(vocab, width), bench.integers(vocab, 1, rows)
    return Use(lambda: F.embedding(tokens, table), (), (table,))


def _cross_entropy(bench: Bench, *, rows: int, vocab: int) -> Use:
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, labels = bench.rows(1, rows, vocab), bench.integers(vocab, 1, rows)
    return Use(lambda: ForCausalLMLoss(logits, labels, vocab), (logits,))


def _router(bench: Bench, *, rows: int, experts: int, top_k: int) -> Use:
    logits = bench.rows(rows, experts)

    def forward() -> Tensor:
        weights, _ = torch.topk(F.softmax(logits.float(), dim=-1), top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        return weights

    return Use(forward, (logits,))


def _gather(bench: Bench, *, rows: int, width: int, experts: int, top_k: int) -> Use:
    x, chosen = bench.rows(rows, width), _chosen(bench, rows, experts, top_k)

    def forward() -> Tensor:
        order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(order.values.float(), bins=experts, min=0, max=experts - 1)
        torch.cumsum(counts, dim=0, dtype=torch.int32)
        return x[order.indices // top_k]

    return Use(forward, (x,))


def _weighted_sum(bench: Bench, *, rows: int, width: int, top_k: int) -> Use:
    pairs, weights = bench.rows(rows * top_k, width), bench.rows(rows * top_k)
    order = torch.randperm(rows * top_k, generator=bench.random).to(bench.device)

    def forward() -> Tensor:
        weighted = pairs * weights[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        return weighted[back].view(rows, top_k, width).sum(dim=1)

    return Use(forward, (pairs, weights))


def _chosen(bench: Bench, rows: int, experts: int, top_k: int) -> Tensor:
    scores = torch.rand(rows, experts, generator=bench.random)
    return scores.topk(top_k, dim=-1).indices.to(bench.device)


def _experts(implementation: str) -> Callable[..., Use]:
    def make(bench: Bench, *, rows: int, width: int, intermediate: int, experts: int, top_k: int) -> Use:
        from transformers import MixtralConfig
        from transformers.models.mixtral.modeling_mixtral import MixtralExperts

        config = MixtralConfig(hidden_size=width, intermediate_size=intermediate, num_local_experts=experts)
        config._experts_implementation = implementation
        with torch.device("meta"):
            module = MixtralExperts(config)
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, torch.nn.Parameter(bench.weight(*parameter.shape)))
        x, chosen = bench.rows(rows, width), _chosen(bench, rows, experts, top_k)
        weights = bench.rows(rows, top_k)
        return Use(lambda: module(x, chosen, weights), (x, weights), tuple(module.parameters()))

    return make


def _scan(bench: Bench, *, sequences: int, seq_len: int, channels: int, state: int) -> Use:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    x, steps = (bench.rows(sequences, channels, seq_len) for _ in range(2))
    entry, leave = (bench.rows(sequences, state, seq_len) for _ in range(2))
    decay = -torch.rand(channels, state, device=bench.device)
    skip = bench.weight(channels).float()
    gate = bench.rows(sequences, channels, seq_len)

    def forward() -> Tensor:
        output: Any = mamba_selective_scan(x, steps, decay, entry, leave, skip, gate, None, True)
        return output[0] if isinstance(output, tuple) else output

    return Use(forward, (x, steps, entry, leave, gate), (decay, skip))


def _convolution(bench: Bench, *, sequences: int, seq_len: int, channels: int, kernel: int) -> Use:
    x = bench.rows(sequences, channels, seq_len)
    layer = torch.nn.Conv1d(channels, channels, kernel, groups=channels, padding=kernel - 1)
    layer = layer.to(bench.device, bench.dtype)
    return Use(lambda: F.silu(layer(x)[..., :seq_len]), (x,), tuple(layer.parameters()))


def _product(*, rows: int, n: int, k: int, **_: int) -> float:
    return 2.0 * rows * n * k


def _experts_flops(*, rows: int, width: int, intermediate: int, top_k: int, **_: int) -> float:
    return 6.0 * rows * top_k * width * intermediate


def _attention_flops(*, sequences: int, seq_len: int, heads: int, head_dim: int, **_: int) -> float:
    return 4.0 * sequences * heads * head_dim * seq_len**2


def _cached_flops(*, sequences: int, context: int, heads: int, head_dim: int, **_: int) -> float:
    return 4.0 * sequences * heads * head_dim * (context + 1)


def lora_linear(bench: Bench, *, rows: int, n: int, k: int, rank: int) -> Use:
    """Return PEFT's LoRA module around a frozen linear, without dropout."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    base = plain(bench, n, k).requires_grad_(False)
    module: Any = Linear(base, "default", config=LoraConfig(r=rank, lora_alpha=2 * rank), r=rank)
    module.to(bench.device)
    x = bench.rows(1, rows, k)
    adapter = (module.lora_A["default"].weight, module.lora_B["default"].weight)
    return Use(lambda: module(x), (x,), adapter)


def nf4_linear(bench: Bench, *, rows: int, n: int, k: int) -> Use:
    """Return bitsandbytes' 4-bit linear, doubly quantised; its weight never trains."""
    module = _quantised(bench, n, k)
    x = bench.rows(1, rows, k)
    return Use(lambda: module(x), (x,))


def _quantised(bench: Bench, n: int, k: int) -> Any:
    from bitsandbytes.nn import Linear4bit

    with torch.device("meta"):
        module = Linear4bit(k, n, bias=False, compute_dtype=bench.dtype, quant_type="nf4")
    module.weight = type(module.weight)(
        bench.weight(n, k).cpu(),
        requires_grad=False,
        quant_type="nf4",
        compress_statistics=True,
        module=module,
    )
    return module.to(bench.device)


def _nf4_linear_inference(bench: Bench, *, rows: int, n: int, k: int) -> Use:
    """Return the same module out of training, its weights repacked by the first call."""
    module, x = _quantised(bench, n, k).eval(), bench.rows(1, rows, k)

    def forward() -> Tensor:
        with torch.no_grad():
            output: Tensor = module(x.detach())
            return output

    return Use(forward, (x,))


def nf4_dequantise(bench: Bench, *, n: int, k: int) -> Use:
    """Return the dequantisation of one weight."""
    from bitsandbytes.functional import dequantize_4bit

    weight = _quantised(bench, n, k).weight

    def forward() -> Tensor:
        dequantised: Tensor = dequantize_4bit(weight.data, weight.quant_state)
        return dequantised

    return Use(forward, ())


def _adapted_flops(*, rows: int, n: int, k: int, rank: int = 0) -> float:
    return 2.0 * rows * (n * k + rank * (n + k))


OPERATORS: Mapping[str, Operator] = {
    "linear": Operator(_linear, ALL, _product),
    "grouped_linear": Operator(_grouped_linear, ALL, _product),
    "attention_sdpa": Operator(_attention("sdpa"), flops=_attention_flops),
    "attention_eager": Operator(_attention("eager"), flops=_attention_flops),
    "attention_cached": Operator(_attention_cached, (), _cached_flops),
    "rotary": Operator(_rotary),
    "rms_norm": Operator(_norm("rms"), ("backward", "backward_frozen")),
    "layer_norm": Operator(_norm("layer"), ("backward", "backward_frozen")),
    "add": Operator(_rowwise(torch.add, 2)),
    "swiglu": Operator(_rowwise(lambda gate, up: F.silu(gate) * up, 2)),
    "swiglu_fused": Operator(_rowwise(_swiglu_fused, 1, factor=2)),
    "gelu": Operator(_rowwise(F.gelu, 1)),
    "dropout": Operator(_rowwise(partial(F.dropout, p=0.05, training=True), 1)),
    "cast": Operator(_cast),
    "embedding": Operator(_embedding, looks_up=True),
    "cross_entropy": Operator(_cross_entropy),
    "router": Operator(_router),
    "gather": Operator(_gather),
    "weighted_sum": Operator(_weighted_sum),
    "experts_grouped": Operator(_experts("grouped_mm"), ("backward", "backward_frozen"), _experts_flops),
    "experts_eager": Operator(_experts("eager"), ("backward", "backward_frozen"), _experts_flops),
    "scan": Operator(_scan),
    "convolution": Operator(_convolution, ("backward", "backward_frozen")),
    "lora_linear": Operator(lora_linear, ("backward", "backward_first"), _adapted_flops),
    "nf4_linear": Operator(nf4_linear, ("backward_frozen",), _adapted_flops),
    "nf4_dequantise": Operator(nf4_dequantise, ()),
    NF4_INFERENCE: Operator(_nf4_linear_inference, (), _adapted_flops),
}
