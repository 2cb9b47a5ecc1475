"""The seed paper's figures in the package's own format, from the reference collection.

`python -m tests.golden.xia2024_figures` rewrites src/finegauge/reproduction/data/xia2024.csv; a test
holds the shipped file against the same conversion. One row is one number: what was measured under
which condition, its unit, which file or table prints it, and when that was published.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.golden.tables import rows

COLUMNS = (
    "item",
    "model",
    "mode",
    "dataset",
    "gpu",
    "seq_len",
    "batch",
    "part",
    "value",
    "unit",
    "source",
    "date",
)
SHIPPED = Path(__file__).resolve().parents[2] / "src" / "finegauge" / "reproduction" / "data" / "xia2024.csv"
PAPER, ARTIFACT = "2024", "2024-08-27"
MODELS = {"Mixtral": "Mixtral-8x7B", "BlackMamba": "BlackMamba-2.8B"}
DATASETS = {"Commonsense15K(CS)": "CS", "Math14K(MATH)": "MATH", "Hellaswag(HE)": "HE", "GSM8K(GS)": "GS"}
MAGNITUDES = {"K": 1e3, "M": 1e6, "B": 1e9}
SERIES_RMSE = (  # printed on the panels of Fig. 14 and 15
    ("Mixtral-8x7B", "CS", "A40", 0.05, "Fig. 14"),
    ("BlackMamba-2.8B", "CS", "A40", 0.79, "Fig. 14"),
    ("Mixtral-8x7B", "MATH", "A40", 0.02, "Fig. 14"),
    ("BlackMamba-2.8B", "MATH", "A40", 0.42, "Fig. 14"),
    ("Mixtral-8x7B", "MATH", "A100-40GB", 0.03, "Fig. 15"),
    ("Mixtral-8x7B", "MATH", "A100-80GB", 0.09, "Fig. 15"),
    ("Mixtral-8x7B", "MATH", "H100-80GB", 0.55, "Fig. 15"),
)
CLAIMS = (  # model, part, value, unit, where
    ("Mixtral-8x7B", "eq1 C0", 82, "tokens/GB", "paper section V-A"),
    ("Mixtral-8x7B", "eq1 C1", 0.95, "", "paper section V-A"),
    ("BlackMamba-2.8B", "eq1 C0", 83, "tokens/GB", "paper section V-A"),
    ("BlackMamba-2.8B", "eq1 C1", 0.88, "", "paper section V-A"),
    ("Mixtral-8x7B", "eq1 C0 in the artifact", 62, "tokens/GB", "artifact analytical_model"),
    ("Mixtral-8x7B", "eq1 C1 in the artifact", 0.89, "", "artifact analytical_model"),
    ("Mixtral-8x7B", "eq1 tokens in the artifact", 512, "tokens", "artifact analytical_model"),
    ("Mixtral-8x7B", "eq2 C3 in the artifact", 1.8, "", "artifact analytical_model"),
    ("BlackMamba-2.8B", "eq2 C3 in the artifact", 2.5, "", "artifact analytical_model"),
    ("Mixtral-8x7B", "max batch at 100 GB", 28, "sequences", "paper section V-A"),
    ("Mixtral-8x7B", "max batch at 120 GB", 35, "sequences", "paper section V-A"),
    ("", "RMSE of the introduction", 0.55, "queries/s", "paper section I"),
    ("", "RMSE of Fig. 14", 0.8, "queries/s", "paper section V-B"),
    ("", "RMSE of Fig. 15", 0.6, "queries/s", "paper section V-B"),
    ("", "MoE share of execution time", 0.85, "fraction", "paper section IV-B2"),
    ("BlackMamba-2.8B", "largest optimizer share", 0.53, "fraction", "paper section IV-B2"),
    ("Mixtral-8x7B", "speed-up from batch 1 to 2", 1.9, "ratio", "paper section IV-B3"),
    ("Mixtral-8x7B", "speed-up from batch 1 to 8", 4.8, "ratio", "paper section IV-B3"),
    ("BlackMamba-2.8B", "latency fall sparse", 0.19, "fraction", "paper section IV-B6"),
    ("BlackMamba-2.8B", "latency fall dense", 0.25, "fraction", "paper section IV-B6"),
    ("Mixtral-8x7B", "OpenOrca cost", 3460, "usd", "paper section V-C"),
    ("Mixtral-8x7B", "OpenOrca queries", 2e6, "queries", "paper section VII"),
    ("Mixtral-8x7B", "epochs of Table IV", 10, "epochs", "paper section V-C"),
    ("", "transformers of the README", 4.40, "version", "artifact README"),
    ("", "transformers of the shipped files", 4.36, "version", "artifact trainer.py"),
)

Figure = dict[str, object]


def figures() -> Iterator[Figure]:
    """Yield every figure of the paper and its artifact that we hold."""
    yield from _tables_1_to_4()
    yield from _characterisation()
    yield from _utilisation_and_load()
    for row in rows("xia2024/throughput_vs_batch.csv"):
        if "unplotted" not in row["paper_figure"]:
            item = "fig15" if "15" in row["paper_figure"] else "fig14"
            yield _figure(
                item,
                row,
                row["throughput_qps"],
                "queries/s",
                row["source_file"],
                dataset=row["dataset_best_evidence"],
            )
    for model, dataset, gpu, value, where in SERIES_RMSE:
        row = {"model": model, "dataset": dataset, "gpu": gpu}
        yield _figure("rmse", row, value, "queries/s", f"paper {where}", date=PAPER)
    for model, part, value, unit, where in CLAIMS:
        date = PAPER if where.startswith("paper") else ARTIFACT
        yield _figure("claim", {"model": model}, value, unit, where, part=part, date=date)


def _tables_1_to_4() -> Iterator[Figure]:
    for row in rows("xia2024/table1_2_models_datasets.csv"):
        about = {"model": MODELS.get(row["name"], ""), "dataset": DATASETS.get(row["name"], "")}
        item, field = f"table{ {'I': 1, 'II': 2}[row['table']] }", row["field"].split("(")[0]
        unit = {"params": "params", "mem_GB": "GB", "median_seq_len": "tokens"}.get(field, "")
        yield _figure(
            item, about, _plain(row["value"]), unit, f"paper Table {row['table']}", part=field, date=PAPER
        )
    for row in rows("xia2024/table3_max_batch.csv"):
        dataset, gpu = row["dataset"].split()[0], row["gpu"].split("/")[0]
        about = {"model": row["model"], "mode": row["moe_mode"], "dataset": dataset, "gpu": gpu}
        printed, array = row["max_batch_paper_table3"], row["max_batch_in_fig14_15_arrays"]
        if printed:
            where = printed.partition("(")[2].strip(")").replace("Fig.", "Fig. ") or "Table III"
            part = "Fig. 13" if where == "Fig. 13" else "printed"
            yield _figure(
                "table3", about, printed.split()[0], "sequences", f"paper {where}", part=part, date=PAPER
            )
        if array and "Fig.13" not in row["dataset"]:
            where = "artifact arrays of Fig. 14 and 15"
            yield _figure("table3", about, array, "sequences", where, part="array")
    gpus = {"A40": "A40", "A100": "A100-80GB", "H100": "H100-80GB"}
    units = {
        "max_batch": "sequences",
        "throughput_qps_paper": "queries/s",
        "usd_per_hour": "usd/h",
        "cost_usd_paper": "usd",
    }
    for row in rows("xia2024/table4_cost.csv"):
        about = {"model": "Mixtral-8x7B", "mode": "sparse", "dataset": "MATH", "gpu": gpus[row["gpu"]]}
        for column, unit in units.items():
            part = column.removesuffix("_paper")
            yield _figure("table4", about, row[column], unit, "paper Table IV", part=part, date=PAPER)


def _characterisation() -> Iterator[Figure]:
    for row in rows("xia2024/accuracy_vs_epoch.csv"):
        about = {**row, "dataset": row["eval_dataset"]}
        yield _figure("fig3", about, row["accuracy"], "fraction", "artifact", part=row["epoch"])
    for row in rows("xia2024/stage_breakdown.csv"):
        for stage in ("forward", "backward", "optimizer"):
            yield _figure("fig4", row, row[f"{stage}_s"], "s", row["source_file"], part=stage)
    for row in rows("xia2024/layer_breakdown.csv"):
        yield _figure("fig5", row, row["time_s"], "s", row["source_file"], part=row["layer_type"])
    for row in rows("xia2024/moe_kernel_time.csv"):
        yield _figure("fig6", row, row["avg_duration_us"], "us", row["source_file"], part=row["kernel"])
    for row in rows("xia2024/fig8_throughput.csv"):
        about = {**row, "batch_size": row["batch_size_label"]}
        yield _figure("fig8", about, row["throughput_qps"], "queries/s", "main_result_rebuttal_throughput")
    for row in rows("xia2024/seqlen_sensitivity.csv"):
        about = {**row, "batch_size": ""}
        yield _figure("lengths", about, row["value"], row["unit"], row["source_file"], part=row["metric"])


def _utilisation_and_load() -> Iterator[Figure]:
    for item, name in (("fig9", "sm"), ("fig10", "mem")):
        column = "sm_util_pct" if name == "sm" else "dram_util_pct"
        for row in rows(f"xia2024/moe_kernel_{name}_util.csv"):
            if not row["kernel"].startswith("RECOMPUTED"):
                yield _figure(item, row, row[column], "percent", row["source_file"], part=row["kernel"])
    for row in rows("xia2024/token_distribution.csv"):
        about = {**row, "moe_mode": row["state"]}
        yield _figure(
            "fig11", about, row["avg_tokens_per_query"], "tokens", row["source_file"], part=row["expert"]
        )
        if row["expert"] == "0":
            printed = row["variance_printed_on_figure"]
            yield _figure("fig11", about, printed, "tokens^2", "paper Fig. 11", part="variance", date=PAPER)


def _figure(
    item: str,
    row: dict[str, str],
    value: object,
    unit: str,
    source: str,
    *,
    part: str = "",
    date: str = ARTIFACT,
    dataset: str | None = None,
) -> Figure:
    """Return one figure, its number in at most seven digits."""
    mode = row.get("moe_mode") or row.get("mode", "")
    return {
        "item": item,
        "model": row.get("model", ""),
        "mode": mode,
        "dataset": row.get("dataset", "") if dataset is None else dataset,
        "gpu": row.get("gpu", ""),
        "seq_len": row.get("seq_len", ""),
        "batch": row.get("batch_size", ""),
        "part": part,
        "value": f"{float(str(value)):.7g}",
        "unit": unit,
        "source": source,
        "date": date,
    }


def _plain(text: str) -> float:
    """Return "47B" as 47e9."""
    return float(text.rstrip("KMB")) * MAGNITUDES.get(text[-1], 1.0)


def as_csv() -> str:
    """Return the whole table."""
    lines = [",".join(COLUMNS), *(",".join(str(figure[c]) for c in COLUMNS) for figure in figures())]
    assert all(line.count(",") == len(COLUMNS) - 1 for line in lines)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SHIPPED.parent.mkdir(parents=True, exist_ok=True)
    SHIPPED.write_text(as_csv(), "utf-8")
