"""The published measurement tables in the package's own format, from the reference collection.

`python -m tests.golden.measurement_figures` rewrites src/finegauge/catalogue/data/measurements/; a
test holds the shipped files against the same conversion. Configuration and figures carry over;
of a source's remarks only what decides a run is kept, in our words. The seed paper's throughput
on A40 becomes rows of the same kind: its A100 and H100 series stay out, to be predicted unseen.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finegauge.formats.measurement_tables import CONFIGURATION
from finegauge.reproduction.published import MEASURED_QUERIES, profiled_run, xia_run
from finegauge.run.run import FIELDS, Run
from tests.golden.megatron_figures import megatron_tables
from tests.golden.tables import OF_STEPS, rows
from tests.shared import SHARED

SHIPPED = Path(__file__).resolve().parents[2] / "src" / "finegauge" / "catalogue" / "data" / "measurements"
PUBLISHED = {  # where a source publishes its table, and the date of the copy that was read
    "fms-acceleration": ("github.com/foundation-model-stack/fms-acceleration benchmarks", "2025"),
    "internevo": ("github.com/InternLM/InternEvo doc", "2024"),
    "litgpt-config-hub": ("github.com/Lightning-AI/litgpt config_hub/finetune README", "2024"),
    "llm-foundry-mpt": ("github.com/mosaicml/llm-foundry scripts/train/benchmarking README", "2024"),
    "qwen1-readme": ("github.com/QwenLM/Qwen README", "2024"),
    "torchtune-readme": ("github.com/pytorch/torchtune README", "2024"),
}
HELD_OUT = {  # newer hardware and number formats: nothing is fitted to them
    "fitcheck-t4": ("github.com/Anassbzdd/fitcheck data/measurements", "2026-11"),
    "nemo-perf-summary": ("docs.nvidia.com NeMo performance summaries 24.03 to 25.04", "2025"),
    "simumax-b200": ("github.com/MooreThreads/SimuMax docs/b200", "2026-04-24"),
    "torchao": ("github.com/pytorch/ao training tables", "2026"),
    "torchtitan": ("github.com/pytorch/torchtitan benchmarks", "2026"),
    "universal-llm-trainer": ("github.com/ljm565/universal-llm-trainer gpu_test", "2025"),
}
FIGURES_NOT_SHIPPED = ("_source", "architectures", "transformers_version", "bos_token_id", "eos_token_id")
COLUMNS = ("id", "source", *CONFIGURATION, *OF_STEPS, "published", "date")
REMARKS = (  # what a remark of a source says, by what it is recognised by
    (r"mean HF-counted tokens per sample = (\d+)", "mean HF-counted tokens per sample = {0}"),
    (r"mean (?!HF-)[\w-]*-?counted tokens per sample = (\d+)", "mean counted tokens per sample = {0}"),
    (r"(\d+)x(\d+)Gb RoCE", "inter-node {0}x{1}Gb"),
    (r"\+foak|-foak", "+foak"),
    (r"optimizer_in_bwd", "optimizer_in_bwd"),
    (r"activation offloading", "activation offloading"),
    (r"chunked cross entropy", "chunked cross entropy"),
    (r"cumulative techniques", "cumulative techniques"),
    (r"multi-?\s?node", "multi-node"),
    (r"prepare_model_for_kbit_training", "prepare_model_for_kbit_training"),
    (r"scattermoe expert parallel=(\d+)", "expert parallel={0}"),
    (r"(\d+) Gb/s per GPU", "{0} Gb/s per GPU"),
    (r"GBS=(\d+)", "GBS={0}"),
    (r"async TP", "async TP"),
    (r"chunked loss", "chunked loss"),
    (r"(?:float8|f8) all-gather", "float8 all-gather"),
    (r"outputs \(logits\) alive", "outputs (logits) alive"),
    (r"H100, form not stated", "H100, form not stated"),
    (r"power limited B200 \(limit not stated\)", "power limited B200 (limit not stated)"),
    (r"checkpointing of every 2nd layer", "checkpointing of every 2nd layer"),
)


def shipped(source: str) -> str:
    """Return the text of the shipped table of one source."""
    out, found = io.StringIO(), rows(f"measurements/{source}.csv")
    others = sorted({name for row in found for name in FIELDS if row.get(name)} - set(COLUMNS))
    at = COLUMNS.index("notes")
    columns = (*COLUMNS[:at], *others, *COLUMNS[at:])
    writer = csv.DictWriter(out, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    published, date = (PUBLISHED | HELD_OUT)[source]
    for row in found:
        headings = (said for (of, gpu), said in STATED_ABOVE.items() if of == source and gpu in row["gpu"])
        notes = "; ".join(filter(None, (remarks(row["notes"]), *headings)))
        writer.writerow(
            {**row, **_by_full_attention(row), "notes": notes, "published": published, "date": date}
        )
    return out.getvalue()


def _by_full_attention(row: dict[str, str]) -> dict[str, str]:
    """Return tokens/s that were derived from printed TFLOP/s, by the FLOPs that NeMo's formula counted then.

    The collection derives them with 6·L·d·s FLOPs of attention to a token. Until 2025 NeMo's
    formulas for GPT and Llama counted 12·L·d·s, all pairs (flops_formulas.py before `causal_self_attn`).
    """
    match = re.search(r"NeMo's convention \(.*\+ 6 L d s\), ([\d.]+) GFLOP per token", row["notes"])
    if not match:
        return {}
    folder = SHARED / "data" / "hf_configs"
    figures = json.loads((folder / f"{row['hf_config']}.json").read_text("utf-8"))
    attention = 6e-9 * figures["num_hidden_layers"] * figures["hidden_size"] * int(row["seq_len"])
    counted = float(match.group(1))
    tokens = float(row["tokens_per_s_per_gpu"]) * counted / (counted + attention)
    return {"tokens_per_s_per_gpu": f"{tokens:.6g}"}


def remarks(notes: str) -> str:
    """Return what of a source's remarks decides the run."""
    found = []
    for pattern, said in REMARKS:
        match = re.search(pattern, notes, re.IGNORECASE)
        if match:
            found.append(said.format(*match.groups()))
    return "; ".join(found)


STATED_ABOVE = {  # what a source says of a whole table: its heading, so far as it decides a run
    ("llm-foundry-mpt", "A100"): "inter-node 8x200Gb",  # "with 1600 Gbps node-node interconnect (RoCE)"
}
XIA_COLUMNS = (
    *("id", "source", "model", "method", "dataset", "lora_rank", "lora_targets", "weights_dtype", "autocast"),
    *("attention", "activation_checkpointing", "checkpointing_reentrant", "synchronous", "adapter_dtype"),
    *(
        "num_experts_per_tok",
        "seq_len",
        "micro_batch_size",
        "gpu",
        "num_gpus",
        "framework",
        "transformers_version",
    ),
    *("packing", "bitsandbytes_version", "step_time_s", "outcome", "published", "date"),
)
ADAPTER_COLUMNS = (
    "lora_rank",
    "lora_targets",
    "adapter_dtype",
    "checkpointing_reentrant",
    "bitsandbytes_version",
)


def seed_paper() -> str:
    """Return the text of the table of the seed paper's measurements on A40.

    BlackMamba's epochs include writing its 17 GB of weights and states at an unknown speed, so that
    of BlackMamba only the stages of a step (Fig. 4) are taken.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, XIA_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows("xia2024/throughput_vs_batch.csv"):
        if row["gpu"] == "A40" and "unplotted" not in row["paper_figure"] and row["model"] == "Mixtral-8x7B":
            batch = int(row["batch_size"])
            run = xia_run(row["model"], row["moe_mode"], row["dataset_best_evidence"], "A40", batch)
            name = f"{row['series_id']}-{row['moe_mode']}-{batch}"
            where = f"Fig. 14, {MEASURED_QUERIES} queries over the time of one epoch"
            writer.writerow(_seed_row(name, run, batch / float(row["throughput_qps"]), where))
    for row in rows("xia2024/stage_breakdown.csv"):
        run = profiled_run(row["model"], row["moe_mode"], int(row["batch_size"]))
        seconds = sum(float(row[f"{stage}_s"]) for stage in ("forward", "backward", "optimizer"))
        name = f"stages-{row['model']}-{row['moe_mode']}-{row['batch_size']}"
        writer.writerow(_seed_row(name, run, seconds, "Fig. 4, sum of the stages"))
    return out.getvalue()


def _seed_row(name: str, run: Run, seconds: float, where: str) -> dict[str, Any]:
    """Return one measured point."""
    fields = {name: getattr(run, name) for name in XIA_COLUMNS if hasattr(run, name)}
    if not run.trains_adapters:
        fields |= dict.fromkeys(ADAPTER_COLUMNS, "")
    return {
        **{name: str(value).lower() if isinstance(value, bool) else value for name, value in fields.items()},
        "id": f"xia2024-{name}",
        "source": "xia2024",
        "lora_targets": " ".join(run.lora_targets) if run.trains_adapters else "",
        "packing": "" if run.dataset else "true",
        "framework": "LLaMA-Factory",
        "step_time_s": f"{seconds:.4f}",
        "outcome": "ok",
        "published": f"arXiv:2408.04693 {where}",
        "date": "2024-08-27",
    }


def offloaded() -> str:
    """Return the text of the table of offloading on 8 x A800, DeepSpeed's ZeRO++ left out.

    The unit of its throughput is inferred (samples/s of all GPUs), its optimizer and `pin_memory` are not
    stated: ratios of rows say more than rows.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows("published/offload_ratios.csv")):
        if row["zeropp"] == "yes":
            continue
        micro, sequences = int(row["per_device_batch"]), int(row["global_batch"])
        kind = "all" if row["param_offload"] == "yes" else "optimizer"
        speed = next(value for name, value in row.items() if name.startswith("throughput"))
        writer.writerow({
            "id": f"offload-a800-{number}", "source": "offload-a800", "model": "huggyllama/llama-7b",
            "phase": "pretrain", "method": "full", "weights_dtype": "bf16", "autocast": "none",
            "optimizer": "adamw", "attention": "flash", "packing": "true", "seq_len": row["seq_len"],
            "activation_checkpointing": "full" if row["grad_ckpt"] == "yes" else "none",
            "micro_batch_size": micro, "gradient_accumulation_steps": sequences // micro // 8, "num_gpus": 8,
            "gpu": "A800-SXM4-80GB", "parallelism": f"zero{row['zero_stage']}",
            "cpu_offload": kind if row["optimizer_offload"] == "yes" else "", "framework": "DeepSpeed",
            "samples_per_s": speed, "peak_memory_gib": row["gpu_max_mem_allocated_GB"],
            "memory_metric": "torch_allocated", "outcome": "ok",
            "published": "a public gist of LLaMA-7B on 8 x A800 under DeepSpeed", "date": "2026-11-22",
        })  # fmt: skip
    return out.getvalue()


def tables() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every shipped table, and of the configurations that one names."""
    for source in PUBLISHED:
        yield SHIPPED / f"{source}.csv", shipped(source)
    for source in HELD_OUT:
        yield SHIPPED / "held_out" / f"{source}.csv", shipped(source)
        yield from _figures(source)
    yield SHIPPED / "held_out" / "offload-a800.csv", offloaded()
    yield SHIPPED / "xia2024-a40.csv", seed_paper()
    yield from ((SHIPPED / name, text) for name, text in megatron_tables())


def _figures(source: str) -> Iterator[tuple[Path, str]]:
    """Yield configurations of a source that are no model of the catalogue: cut in depth, renamed."""
    folder = SHARED / "data" / "hf_configs"
    names = {row["hf_config"] for row in rows(f"measurements/{source}.csv") if "__" not in row["hf_config"]}
    for name in sorted(names):
        if (path := folder / f"{name}.json").is_file():
            figures = json.loads(path.read_text("utf-8"))
            kept = {key: value for key, value in sorted(figures.items()) if key not in FIGURES_NOT_SHIPPED}
            yield SHIPPED / "hf_configs" / path.name, json.dumps(kept, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    if not SHARED.is_dir():
        raise SystemExit("The reference collection is not here.")
    for folder in ("hf_configs", "held_out"):
        (SHIPPED / folder).mkdir(parents=True, exist_ok=True)
    for path, text in tables():
        path.write_text(text, encoding="utf-8")
