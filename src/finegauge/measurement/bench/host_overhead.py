"""Seconds of the host's own work: what an operator, a module call, a whole layer cost at no size at all.

Everything here works on a few values, so that nothing is left but Python, the dispatcher and autograd.
A layer and a model are transformers' Llama with one layer and with five on two tokens: their
difference is a layer's, the rest is the model's; what readings of their operators say is taken off. That
is for processors, whose readings hold the host's calls; beside a GPU the host runs ahead.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from finegauge.measurement.bench.operators import OPERATORS, lora_linear, nf4_linear
from finegauge.measurement.bench.timing import Bench, Use, timed

CALLS = 400
MODULE_CALLS = 40
MODEL_CALLS = 10
MORE_LAYERS = 4
BLOCKS = 7

TOKENS, WIDTH, HEADS, VOCAB = 2, 16, 2, 16  # of the tiny model
ROWS = {"rows": TOKENS, "width": WIDTH}
HEAD_SIZES = {"heads": HEADS, "kv_heads": HEADS, "head_dim": WIDTH // HEADS}
SQUARE = {"rows": TOKENS, "n": WIDTH, "k": WIDTH}
LAYER = (
    (2, "rms_norm", ROWS),
    (7, "linear", SQUARE),
    (1, "rotary", {"sequences": 1, "seq_len": TOKENS, **HEAD_SIZES}),
    (1, "attention_sdpa", {"sequences": 1, "seq_len": TOKENS, **HEAD_SIZES}),
    (1, "swiglu", ROWS),
    (2, "add", ROWS),
)
MODEL = (
    (1, "embedding", {**ROWS, "vocab": VOCAB}),
    (1, "rms_norm", ROWS),
    (1, "linear", SQUARE),
    (1, "cross_entropy", {"rows": TOKENS, "vocab": VOCAB}),
)


def host_costs(bench: Bench, notes: list[str]) -> dict[str, float]:
    """Return the host's seconds by the names of `HOST_COSTS`; `notes` gets what could not be measured."""
    costs = {**_launches(bench), "call_s": _call_s(bench)}
    plain = _use_s(bench, OPERATORS["linear"].make, rows=1, n=16, k=16)
    for prefix, make, sizes in (
        ("peft", lora_linear, {"rows": 1, "n": 16, "k": 16, "rank": 4}),
        ("nf4", nf4_linear, {"rows": 1, "n": 64, "k": 64}),
    ):
        try:
            forward_s, backward_s = _use_s(bench, make, **sizes)
        except (ImportError, RuntimeError) as error:
            notes.append(f"{prefix}_call_s: {error}")
            continue
        costs[f"{prefix}_call_s"] = max(forward_s - plain[0], 0.0)
        if prefix == "peft":
            costs["peft_backward_s"] = max(backward_s - plain[1], 0.0)
    return {**costs, **_model_costs(bench)} if bench.device.type == "cpu" else costs


def _model_costs(bench: Bench) -> dict[str, float]:
    """Return what a layer and a model take beyond their operators, and what checkpointing adds to a layer."""
    one, several = _model_s(bench, 1), _model_s(bench, 1 + MORE_LAYERS)
    in_layer, in_model = _operators_s(bench, LAYER), _operators_s(bench, MODEL)
    layer = [(many - single) / MORE_LAYERS for single, many in zip(one, several, strict=True)]
    again = _model_s(bench, 1, checkpointing=True), _model_s(bench, 1 + MORE_LAYERS, checkpointing=True)
    checkpointed = [(many - single) / MORE_LAYERS for single, many in zip(*again, strict=True)]
    costs = {"token_s": _token_s(bench)}
    for i, direction in enumerate(("forward", "backward")):
        recomputed_s = layer[0] if direction == "backward" else 0.0
        costs[f"layer_rest_{direction}_s"] = max(layer[i] - in_layer[i], 0.0)
        costs[f"model_rest_{direction}_s"] = max(one[i] - layer[i] - in_model[i], 0.0)
        costs[f"checkpoint_{direction}_s"] = max(checkpointed[i] - layer[i] - recomputed_s, 0.0)
    return costs


def _token_s(bench: Bench) -> float:
    from transformers import DynamicCache, GenerationConfig

    model = _tiny_llama(bench, 1).eval()
    model.generation_config.eos_token_id = None  # no token ends an answer
    tokens = torch.ones(1, TOKENS, dtype=torch.int64, device=bench.device)
    cache: Any = DynamicCache()

    def write(count: int) -> None:
        asked = GenerationConfig(max_new_tokens=count, do_sample=True, top_k=0, pad_token_id=0)
        with torch.no_grad():
            model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=asked)

    def read(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                model(input_ids=tokens[:, :1], past_key_values=cache)

    few, many = (count * _quickest(bench, count, write) for count in (1, 1 + MODULE_CALLS))
    return max((many - few) / MODULE_CALLS - _quickest(bench, MODEL_CALLS, read), 0.0)


def _operators_s(
    bench: Bench, operators: Iterable[tuple[int, str, Mapping[str, int]]]
) -> tuple[float, float]:
    """Return the seconds, forward and backward, that readings give operators which a model calls so often."""
    forward_s = backward_s = 0.0
    for times, name, sizes in operators:
        make = partial(OPERATORS[name].make, bench, **sizes)
        directions = timed(make, bench, ("backward",), repeats=BLOCKS).directions
        forward_s += times * directions["forward"].seconds
        backward_s += times * directions["backward"].seconds
    return forward_s, backward_s


def _quickest(bench: Bench, calls: int, block: Callable[[int], Any]) -> float:
    block(calls)
    times = []
    for _ in range(BLOCKS):
        start = bench.now()
        block(calls)
        times.append(bench.now() - start)
    return min(times) / calls


def _launches(bench: Bench) -> dict[str, float]:
    """Return the seconds of a small operator with autograd, without, and of its backward."""
    x, one = torch.ones(16, device=bench.device), torch.ones(16, device=bench.device)
    recorded: Tensor = torch.ones(16, device=bench.device, requires_grad=True)

    def forward(calls: int) -> Tensor:
        y = recorded
        for _ in range(calls):
            y = y + one
        return y

    def both(calls: int) -> None:
        forward(calls).backward(one)
        recorded.grad = None

    def unrecorded(calls: int) -> None:
        y = x
        with torch.no_grad():
            for _ in range(calls):
                y = y + one

    forward_s = _quickest(bench, CALLS, forward)
    return {
        "launch_s": forward_s,
        "launch_no_grad_s": _quickest(bench, CALLS, unrecorded),
        "backward_s": max(_quickest(bench, CALLS, both) - forward_s, 0.0),
    }


def _call_s(bench: Bench) -> float:
    module, x = torch.nn.Identity(), torch.ones(1)

    def calls(count: int) -> None:
        for _ in range(count):
            module(x)

    return _quickest(bench, CALLS, calls)


def _use_s(bench: Bench, make: Callable[..., Use], **sizes: int) -> tuple[float, float]:
    use = make(bench, **sizes)
    leaves = (*use.inputs, *use.weights)
    for leaf in leaves:
        leaf.requires_grad_()
    return _both_ways(bench, use.forward, leaves, MODULE_CALLS)


def _model_s(bench: Bench, layers: int, *, checkpointing: bool = False) -> tuple[float, float]:
    """Return the host's seconds of a tiny Llama's forward with its loss, and of its backward."""
    model = _tiny_llama(bench, layers).train()
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    tokens = torch.ones(1, TOKENS, dtype=torch.int64, device=bench.device)
    leaves = tuple(model.parameters())
    return _both_ways(bench, lambda: model(input_ids=tokens, labels=tokens).loss, leaves, MODEL_CALLS)


def _tiny_llama(bench: Bench, layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        use_cache=False,
    )
    model: Any = LlamaForCausalLM(config).to(bench.device)
    return model


def _both_ways(
    bench: Bench, forward: Callable[[], Tensor], leaves: Iterable[Tensor], calls: int
) -> tuple[float, float]:
    gradient = torch.ones_like(forward())
    forwards, backwards = [], []
    for _ in range(1 + BLOCKS):
        forward_s = backward_s = 0.0
        for _ in range(calls):
            start = bench.now()
            output = forward()
            between = bench.now()
            output.backward(gradient)
            backward_s += bench.now() - between
            forward_s += between - start
            for leaf in leaves:
                leaf.grad = None
        forwards.append(forward_s / calls)
        backwards.append(backward_s / calls)
    return min(forwards), min(backwards)
