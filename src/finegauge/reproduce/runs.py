"""The seed paper's experiments as Runs, as its scripts and its package list describe them.

Mixtral-8x7B: QLoRA rank 16 on the experts and the router, NF4 double-quantised, FlashAttention 2,
full checkpointing, cut at 1,024 tokens. BlackMamba-2.8B: full fine-tuning in bf16. Dense means all
eight experts, sparse means two. Throughput is 1,000 queries over the whole time of one epoch, so
the checkpoint at its end is part of it. Nothing here is fitted to the figures.
"""

from functools import cache
from typing import Any

from finegauge.plan.capacity import max_micro_batch_size
from finegauge.plan.quote import quote
from finegauge.predict import predict
from finegauge.profile import Profile
from finegauge.workload.run import Run

GPUS = {
    "A40": "A40",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-PCIE-80GB",  # the form factors are not stated; the paper prices at CUDO, whose is PCIe
    "H100-80GB": "H100-SXM5-80GB",
}
DATASETS = {"CS": "commonsense_15k", "MATH": "math_14k"}
MODELS = {"Mixtral-8x7B": "mixtral-8x7b", "BlackMamba-2.8B": "blackmamba-2.8b"}
MEASURED_QUERIES = 1000
NUM_EXPERTS = 8  # of either model
PROFILED_SEQ_LEN = 128  # of Fig. 4 to 6, 9 and 10


def xia_run(model: str, mode: str, dataset: str, gpu: str, batch: int, **changes: Any) -> Run:
    """Return one of the seed paper's runs."""
    common: dict[str, Any] = {
        "model": MODELS[model],
        "dataset": DATASETS[dataset],
        "seq_len": 1024,
        "micro_batch_size": batch,
        "gpu": GPUS[gpu],
        "num_experts_per_tok": 8 if mode == "dense" else 2,
        "transformers_version": "4.40",
        "synchronous": True,  # torch.cuda.synchronize() around the instrumented modules
        **changes,
    }
    if not model.startswith("Mixtral"):
        return Run(method="full", weights_dtype="bf16", **common)
    return Run(
        method="qlora",
        weights_dtype="nf4_dq",
        autocast="bf16",
        lora_rank=16,
        lora_targets=("w1", "w2", "w3", "gate"),
        adapter_dtype="fp32",
        activation_checkpointing="full",
        checkpointing_reentrant=False,
        bitsandbytes_version="0.42",
        attention="flash",
        **common,
    )


@cache
def samples_per_s(model: str, mode: str, dataset: str, gpu: str, batch: int) -> float:
    """Return the predicted queries per second, measured as the paper measures them."""
    run = xia_run(model, mode, dataset, gpu, batch, num_samples=MEASURED_QUERIES, epochs=1)
    whole = quote(run, predict(run), prices=()).wall_time_s
    return MEASURED_QUERIES / (whole["steps"] + whole["saves"])


@cache
def max_batch(model: str, mode: str, dataset: str, gpu: str) -> int:
    """Return the predicted largest micro-batch."""
    return max_micro_batch_size(xia_run(model, mode, dataset, gpu, 1)).value


def profiled_run(model: str, mode: str, batch: int, seq_len: int = PROFILED_SEQ_LEN) -> Run:
    """Return a run of the characterisation study: A40, random tokens of one length."""
    return xia_run(model, mode, "CS", "A40", batch).replace(dataset=None, seq_len=seq_len)


@cache
def profiled(model: str, mode: str, batch: int, seq_len: int = PROFILED_SEQ_LEN) -> Profile:
    """Return the predicted step of the characterisation study."""
    return predict(profiled_run(model, mode, batch, seq_len))
