"""QLoRA as bitsandbytes really does it on the CPU: bytes by tensor, what is quantised, what is saved."""

import re
from collections import Counter

import pytest

from finegauge.model.graph import Graph
from finegauge.model.weights import quantized_bytes
from tests.oracle.real_quantized import bytes_by_tensor, graph_of, quantized_model, run_of
from tests.oracle.real_step import allocated, predicted

NF4 = {True: "nf4_dq", False: "nf4"}


def ours_by_tensor(graph: Graph, *, unquantized_bytes: int) -> Counter[str]:
    """Return our bytes by tensor name within its layer, all layers together."""
    found: Counter[str] = Counter()
    low = graph.lowering
    head = graph.model.head.tensors() if graph.model.head else []
    outer = [(t, 1) for t in graph.model.outer_tensors()]
    for tensor, count in [(t, n) for layer, n in graph.model.layers for t in layer.tensors()] + outer:
        quantized = low.quantizes(tensor.kind) and tensor not in head
        size = quantized_bytes(low.quantized, tensor) if quantized else tensor.size * unquantized_bytes
        found[_last(tensor.name)] += int(count * size)
    return found


def theirs_by_tensor(sizes: dict[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, size in sizes.items():
        found[_last(name)] += size
    return found


def _last(name: str) -> str:
    """Return the projection or norm, by the last word that is not weight."""
    return re.sub(r"\.weight$", "", name).rsplit(".", 1)[-1]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("family", ["dense", "experts"])
def test_every_tensor_takes_what_bitsandbytes_gives_it(family: str, *, nested: bool) -> None:
    graph = graph_of(family, weights_dtype=NF4[nested])
    real = bytes_by_tensor(quantized_model(family, nested=nested))
    assert ours_by_tensor(graph, unquantized_bytes=2) == theirs_by_tensor(real)
    assert graph.weights.base_bytes - graph.model.buffer_bytes == sum(real.values())


def test_fused_experts_stay_in_sixteen_bit() -> None:
    model = quantized_model("experts", nested=True)
    kinds = {_last(name): str(p.dtype) for name, p in model.named_parameters() if "experts" in name}
    assert kinds == {"gate_up_proj": "torch.bfloat16", "down_proj": "torch.bfloat16"}
    assert not graph_of("experts", weights_dtype="nf4_dq").lowering.quantizes("experts")


@pytest.mark.parametrize("nested", [True, False])
def test_unfused_experts_are_quantised_one_by_one(*, nested: bool) -> None:
    graph = graph_of("experts", weights_dtype=NF4[nested], quantize_experts=True)
    real = bytes_by_tensor(quantized_model("experts", nested=nested, unfused=True))
    assert graph.weights.base_bytes - graph.model.buffer_bytes == sum(real.values())


@pytest.mark.parametrize("family", ["dense", "experts"])
def test_k_bit_preparation_makes_all_the_rest_fp32(family: str) -> None:
    from peft import prepare_model_for_kbit_training

    model = quantized_model(family, nested=True)
    model.is_loaded_in_4bit = True
    prepared = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    graph = graph_of(family, weights_dtype="nf4_dq", upcast_unquantized=True)
    real = bytes_by_tensor(prepared)
    assert ours_by_tensor(graph, unquantized_bytes=4) == theirs_by_tensor(real)
    assert graph.weights.base_bytes - graph.model.buffer_bytes == sum(real.values())


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("family", "nested"), [("dense", True), ("dense", False), ("experts", True)])
def test_a_real_qlora_step_peaks_where_we_say(family: str, checkpointing: str, *, nested: bool) -> None:
    from peft import LoraConfig, get_peft_model

    run = run_of(
        family, weights_dtype=NF4[nested], lora_rank=8, activation_checkpointing=checkpointing,
        checkpointing_reentrant=False, micro_batch_size=2, seq_len=128, optimizer_implementation="foreach",
    )  # fmt: skip
    model = quantized_model(family, nested=nested)
    if checkpointing == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    lora = LoraConfig(r=8, target_modules=list(run.lora_targets), task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False).train()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.bfloat16()
    if checkpointing == "full":
        model.enable_input_require_grads()
    real = allocated(run, model, sum(bytes_by_tensor(model).values()))
    assert predicted(run) == pytest.approx(real, rel=0.005)
