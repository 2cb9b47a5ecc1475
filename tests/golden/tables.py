"""Published tables as runs: one row, one `Run`, and what was measured beside it.

Only configuration columns become the run; the measured columns never do.
"""

import csv
import re
from collections.abc import Iterator
from typing import Any

from finegauge.workload.run import Run
from tests.shared import SHARED

Row = dict[str, str]
STATED = (
    "autocast",
    "optimizer",
    "attention",
    "activation_checkpointing",
    "compile",
    "seq_len",
    "gpu",
    "hf_config",
)
XIA_GPUS = {
    "A40": "A40",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    "H100-80GB": "H100-SXM5-80GB",
}
XIA_DATASETS = {"CS": "commonsense_15k", "MATH": "math_14k"}
UPSCALING_KERNELS = (
    "baseline-peft-bnb"  # PEFT's k-bit preparation: fp32 norms, embeddings and residual stream
)


def rows(path: str) -> list[Row]:
    """Return the rows of one table under the reference figures."""
    with (SHARED / "data" / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def packed_rows() -> Iterator[Row]:
    """Yield the completed one-GPU rows whose sequences are all full and whose configuration is complete."""
    for path in sorted((SHARED / "data" / "measurements").glob("*.csv")):
        for row in rows(f"measurements/{path.name}"):
            complete = all(row[column] for column in STATED)
            if complete and row["packing"] == "true" and row["num_gpus"] == "1" and row["outcome"] == "ok":
                yield row


def run_of(row: Row) -> Run:
    """Return the run that a measurement row describes, from its configuration columns alone."""
    version = re.search(r"transformers ([0-9.]+)", row["framework_version"])
    fields: dict[str, Any] = {
        "model": str(SHARED / "data" / "hf_configs" / f"{row['hf_config']}.json"),
        "method": row["method"],
        "weights_dtype": row["weights_dtype"],
        "autocast": row["autocast"],
        "optimizer": row["optimizer"],
        "attention": row["attention"],
        "activation_checkpointing": row["activation_checkpointing"],
        "compile": row["compile"],
        "packing": True,
        "seq_len": int(row["seq_len"]),
        "micro_batch_size": int(row["micro_batch_size"]),
        "gradient_accumulation_steps": int(row["gradient_accumulation_steps"] or 1),
        "gpu": row["gpu"],
        "kernels": ("foak",) if "foak" in row["notes"] else (),
        "upcast_unquantized": UPSCALING_KERNELS in row["kernels"],
        "transformers_version": version.group(1) if version else "4.44",
    }
    if row["method"] != "full":
        fields["lora_rank"] = int(row["lora_rank"])
        # the source prints Llama's names for every model; GPT-BigCode has c_attn and c_proj instead
        own_names = "santacoder" in row["model"]
        fields["lora_targets"] = ("attention",) if own_names else row["lora_targets"].split()
        fields["adapter_dtype"] = "fp32"  # PEFT casts adapters of 16-bit models to fp32
    return Run(**fields)


def xia_run(model: str, mode: str, dataset: str, gpu: str, batch: int, **changes: Any) -> Run:
    """Return one of the seed paper's runs, as its scripts and its package list describe it."""
    common: dict[str, Any] = {
        "dataset": XIA_DATASETS[dataset],
        "seq_len": 1024,
        "micro_batch_size": batch,
        "gpu": XIA_GPUS[gpu],
        "num_experts_per_tok": 8 if mode == "dense" else 2,
        "transformers_version": "4.40",
        **changes,
    }
    if not model.startswith("Mixtral"):
        return Run(model="blackmamba-2.8b", method="full", weights_dtype="bf16", **common)
    return Run(
        model="mixtral-8x7b",
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
