"""What no table need say: a chip that has more of everything is not slower, and its number formats pay."""

from functools import cache
from typing import Any

import pytest

from finegauge.catalogue.gpus import gpu, gpus
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

COUNTS = (1, 8, 16, 64)
JOBS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3-8b", "method": "full"},
    "experts": {"model": "mixtral-8x7b", "method": "full"},
    "small experts": {"model": "qwen3-30b-a3b", "method": "full"},
    "adapters": {"model": "llama-3-70b", "method": "lora"},
    "4-bit": {"model": "llama-3-8b", "method": "qlora"},
}
ALIKE = 1.005  # chips of one rate: rounding
# the newer or larger first: no less of rates, bandwidth and links. Networks and drivers are made equal
SUCCESSORS = [
    ("V100-SXM2-32GB", "P100-SXM2-16GB"), ("A100-SXM4-40GB", "V100-SXM2-32GB"), ("RTX 2080 Ti", "T4"),
    ("A100-SXM4-80GB", "A100-SXM4-40GB"), ("A100-SXM4-80GB", "A800-SXM4-80GB"),
    ("H100-SXM5-80GB", "A100-SXM4-80GB"), ("H100-SXM5-80GB", "H100-PCIE-80GB"),
    ("H100-SXM5-80GB", "H800-SXM5-80GB"), ("H100-SXM5-80GB", "H20-96GB"),
    ("H200-SXM-141GB", "H100-SXM5-80GB"), ("H200-NVL-141GB", "H100-NVL-94GB"), ("GH200-144GB", "GH200-96GB"),
    ("B200-SXM-180GB", "H200-SXM-141GB"), ("B300-SXM-288GB", "B200-SXM-180GB"),
    ("GB200-186GB", "B200-SXM-180GB"), ("GB300-288GB", "GB200-186GB"),
    ("MI250X", "MI210"), ("MI300X", "MI250X"), ("MI325X", "MI300X"), ("MI355X", "MI325X"),
    ("MI355X", "MI350X"), ("Trainium3", "Trainium2"),
    ("A10G", "T4"), ("L4", "T4"), ("L40S", "A40"), ("L40S", "L40"), ("RTX 6000 Ada", "RTX A6000"),
    ("RTX PRO 6000 Blackwell Server", "L40S"), ("RTX PRO 6000 Blackwell WS", "RTX PRO 6000 Blackwell Max-Q"),
    ("RTX PRO 6000 Blackwell WS", "RTX PRO 6000 Blackwell Server"),
    ("RTX 4090", "RTX 3090"), ("RTX 5090", "RTX 4090"), ("RTX 4080", "RTX 3080"), ("RTX 5080", "RTX 4080"),
    ("RTX 5070", "RTX 4070"), ("RTX 5060 Ti 16GB", "RTX 4060 Ti 16GB"),
]  # fmt: skip


@cache
def seconds(job: str, name: str, count: int, number_format: str) -> float:
    fields = {**JOBS[job], "gpu": name, "num_gpus": count, "seq_len": 4096, "micro_batch_size": 2}
    if count > 1:
        fields |= {"sharding": "fsdp", "node_network_gbit_per_s": 1600, "p2p": True}
    if count > 1 and "experts" in job:
        fields["expert_parallel"] = 8
    if "bf16" not in gpu(name).flops_per_s:
        fields |= {"adapter_dtype" if job == "4-bit" else "weights_dtype": "fp16"}
    return predict(Run.from_fields({**fields, "fp8": number_format == "fp8"})).step_time_s.total


@pytest.mark.parametrize(("newer", "older"), SUCCESSORS)
def test_a_successor_is_never_slower(newer: str, older: str) -> None:
    formats = ["bf16", *(["fp8"] if all("fp8" in gpu(one).flops_per_s for one in (newer, older)) else [])]
    slower = [
        (job, count, number_format)
        for number_format in formats
        for job in (JOBS if number_format == "bf16" else ["dense", "experts"])
        for count in COUNTS
        if seconds(job, newer, count, number_format) > ALIKE * seconds(job, older, count, number_format)
    ]
    assert not slower


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, one in gpus().items()
        if one.flops_per_s.get("fp8", 0) > 1.9 * one.flops_per_s.get("bf16", 1e30)
        # else the casts, which memory bounds, outweigh what the products gain
        and one.flops_per_s["bf16"] < 600 * one.memory_bytes_per_s
    ],
)
@pytest.mark.parametrize("job", ["dense", "experts"])
def test_fp8_pays_where_its_products_are_twice_as_fast(name: str, job: str) -> None:
    assert seconds(job, name, 1, "fp8") < seconds(job, name, 1, "bf16")


def test_more_memory_bandwidth_trains_little_faster_and_generates_much_faster() -> None:
    training = seconds("dense", "H100", 1, "bf16") / seconds("dense", "H200", 1, "bf16")
    assert 1.0 < training < 1.15
    assert generated_s("H100") / generated_s("H200") > 1.2


@pytest.mark.parametrize(("one", "other"), [("RTX 5090", "RTX PRO 6000 Blackwell WS"), ("MI350X", "MI355X")])
def test_chips_with_the_same_memory_generate_one_answer_alike(one: str, other: str) -> None:
    assert gpu(one).memory_bytes_per_s == pytest.approx(gpu(other).memory_bytes_per_s, rel=0.01)
    assert generated_s(one) == pytest.approx(generated_s(other), rel=0.03)


def test_more_bandwidth_generates_one_answer_no_slower_with_few_flops() -> None:
    """A product of one row waits for its weights: H20 has a sixth of H100's rate, and quicker memory."""
    assert gpu("H20").memory_bytes_per_s > gpu("H100").memory_bytes_per_s
    assert generated_s("H20") < generated_s("H100")


@pytest.mark.parametrize("network", [{}, {"node_network_gbit_per_s": 400}])
def test_the_larger_a100_is_no_slower_between_nodes(network: dict[str, float]) -> None:
    """Both are in nodes of either network: one is the default of both, and the answer says which it took."""
    asked = {**JOBS["dense"], "num_gpus": 16, "sharding": "fsdp", "seq_len": 4096, **network}
    small, large = (
        predict(Run.from_fields({**asked, "gpu": name})) for name in ("A100-SXM4-40GB", "A100-SXM4-80GB")
    )
    assert large.step_time_s.total <= ALIKE * small.step_time_s.total
    for answer, instance in ((small, "p4d"), (large, "p4de")):
        said = [line for line in answer.source.assumptions if "the network between nodes" in line]
        assert bool(said) is not bool(network)
        assert all(f"AWS {instance} (DGX A100 and Azure" in line and "50 Gbit/s" in line for line in said)


@pytest.mark.parametrize("name", [n for n, one in gpus().items() if one.architecture == "TPU"])
@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_a_tpu_is_answered_and_says_what_it_takes_for_granted(name: str, method: str) -> None:
    found = predict(Run.from_fields({"model": "qwen3-8b", "method": method, "gpu": name, "seq_len": 2048}))
    assert found.step_flops / found.step_time_s.total < 0.75 * gpu(name).flops_per_s["bf16"]
    said = " ".join(found.source.assumptions)
    assert "six passes" in said
    assert ("bitsandbytes has none" in said) == (method == "qlora")


def generated_s(name: str) -> float:
    """Return the seconds of one answer of 512 tokens by an engine that waits for memory alone."""
    asked = Run.from_fields(
        {
            "model": "llama-3-8b", "method": "full", "phase": "decode", "weights_dtype": "bf16", "gpu": name,
            "inference_engine": "vllm", "micro_batch_size": 1, "seq_len": 2048, "max_new_tokens": 512,
        }
    )  # fmt: skip
    return predict(asked).step_time_s.total


@pytest.mark.parametrize("name", ["GH200-96GB", "GH200-144GB", "GB10-128GB"])
def test_a_chip_that_is_a_node_has_its_own_card(name: str) -> None:
    """Without it a run on 8 GH200 took 50 times as long as on one."""
    limit = 6.0 if name == "GB10-128GB" else 3.0
    for job in ("dense", "4-bit"):
        alone, eight = (own_network_s(JOBS[job], name, count) for count in (1, 8))
        assert eight < limit * alone


def own_network_s(job: dict[str, Any], name: str, count: int) -> float:
    fields = {**job, "gpu": name, "num_gpus": count, "seq_len": 4096, "micro_batch_size": 2}
    return predict(Run(**fields, sharding="fsdp" if count > 1 else "none")).step_time_s.total
