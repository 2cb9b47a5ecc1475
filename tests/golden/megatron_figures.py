"""Published runs of Megatron-LM as rows of measurement tables: vTrain's clusters and Korthikanti et al.'s.

Both train GPT models on A100 with all of Megatron's own kernels and no FlashAttention. What the
papers say beside the reference figures: vTrain's nodes have 800 Gbit/s (config/validation of its
repository), every layer is recomputed; Korthikanti's degrees, batches and interleaving are those of
table 3 of the paper, on Selene, whose nodes have eight cards of 200 Gbit/s.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from finegauge.formats.measurement_tables import CONFIGURATION, read_table
from finegauge.run.run import Run
from tests.golden.tables import OF_STEPS, Row, rows

COLUMNS = (
    *("id", "source", *CONFIGURATION, "node_network_gbit_per_s", *OF_STEPS),
    *("published", "date"),
)
VOCABULARY = 51200  # GPT-2's, padded as Megatron does
GPUS_PER_NODE = 8
VTRAIN_GBIT_PER_S, SELENE_GBIT_PER_S = 800, 1600
VTRAIN = "arXiv:2312.12391, github.com/VIA-Research/vTrain validation"
KORTHIKANTI = "arXiv:2205.05198 tables 3 and 5"


class Gpt(NamedTuple):
    """The sizes of a GPT model."""

    hidden_size: int
    num_heads: int
    num_layers: int
    max_len: int

    @property
    def name(self) -> str:
        """Return what the configuration's file is called."""
        return f"megatron-gpt-{self.hidden_size}-{self.num_heads}-{self.num_layers}-{self.max_len}"

    @property
    def config(self) -> str:
        """Return the configuration as transformers writes that of GPT-2."""
        sizes = {"n_embd": self.hidden_size, "n_head": self.num_heads, "n_layer": self.num_layers}
        figures = {"model_type": "gpt2", **sizes, "n_positions": self.max_len, "vocab_size": VOCABULARY}
        return json.dumps(figures) + "\n"


class Selene(NamedTuple):
    """How Korthikanti et al. ran a model, all of it divided among the GPUs."""

    model: Gpt
    pipeline: int
    chunks: int
    global_batch: int
    micro_batch: int


TENSOR = 8
SHIPPED_EVERY = 24  # of the 1,440 rows of vTrain's single node
SELENE = {
    "megatron-22B": Selene(Gpt(6144, 64, 48, 2048), 1, 1, 4, 4),
    "gpt3-175B": Selene(Gpt(12288, 96, 96, 2048), 8, 3, 64, 1),
    "turing-530B": Selene(Gpt(20480, 128, 105, 2048), 35, 3, 280, 1),
    "megatron-1T": Selene(Gpt(25600, 160, 128, 2048), 64, 1, 512, 1),
}
MODES = {"full recompute": ("full", ""), "seq+selective": ("selective", "+sp"), "none": ("none", "")}


def megatron_row(name: str, source: str, model: Gpt, gpus: int, **cells: object) -> Row:
    """Return one row; `cells` are its degrees, its batch and what was measured."""
    fixed = {
        "id": name, "source": source, "model": model.name, "hf_config": model.name, "phase": "pretrain",
        "method": "full", "attention": "eager", "packing": "true", "seq_len": model.max_len,
        "num_gpus": gpus, "gpu": "A100-SXM4-80GB", "framework": "Megatron-LM", "outcome": "ok",
    }  # fmt: skip
    return {column: str({**fixed, **cells}.get(column, "")) for column in COLUMNS}


def vtrain(which: str, every: int = 1, start: int = 0) -> Iterator[tuple[Gpt, Row]]:
    """Yield every so many-th row of vTrain's tables: `multi`, 64 to 512 GPUs, or `single`, a node.

    The times of the latter differ between data-parallel degrees by the same microseconds throughout:
    they are put together of parts measured once, so that a few of its rows say what all do.
    """
    table = rows(f"published/paper_2312.12391_vtrain_ground_truth_{which}.csv")
    for number, row in enumerate(table):
        if number % every != start:
            continue
        sizes = (int(row[c]) for c in ("hidden size", "attention heads", "# layers", "sequence length"))
        model, gpus = Gpt(*sizes), int(row["# GPUs"])
        data, micro = int(row["data parallelism"]), int(row["micro batch"])
        yield (
            model,
            megatron_row(
                f"vtrain-{which}-{number + 1}",
                "vtrain",
                model,
                gpus,
                parallelism=f"tp{row['tensor parallelism']}+pp{row['pipeline parallelism']}+dp{data}",
                micro_batch_size=micro,
                gradient_accumulation_steps=int(row["global batch"]) // (micro * data),
                activation_checkpointing="full",
                step_time_s=f"{float(row['iteration time (ms)']) / 1e3:.6g}",
                node_network_gbit_per_s=VTRAIN_GBIT_PER_S if gpus > GPUS_PER_NODE else "",
                published=VTRAIN,
                date="2024-09",
            ),
        )


def korthikanti(metric: str = "iteration_time") -> Iterator[tuple[Gpt, Row]]:
    """Yield the runs of Korthikanti et al. of which `metric` is published: times, or GiB in the notes."""
    for row in rows("published/paper_2205.05198_korthikanti_megatron_selene.csv"):
        if row["metric"] != metric:
            continue
        run, (checkpointing, sequence) = SELENE[row["model"]], MODES.get(row["mode"], MODES["none"])
        gpus = TENSOR * run.pipeline
        chunks = f"+vpp{run.chunks}" if run.chunks > 1 else ""
        measured = row["measured(profile)"]
        figure = {"step_time_s" if metric == "iteration_time" else "notes": measured}
        yield (
            run.model,
            megatron_row(
                f"korthikanti2022-{row['model']}-{checkpointing}",
                "korthikanti2022",
                run.model,
                gpus,
                parallelism=f"tp{TENSOR}{sequence}+pp{run.pipeline}{chunks}",
                micro_batch_size=run.micro_batch,
                gradient_accumulation_steps=run.global_batch // run.micro_batch,
                activation_checkpointing=checkpointing,
                **figure,
                node_network_gbit_per_s=SELENE_GBIT_PER_S if gpus > GPUS_PER_NODE else "",
                published=KORTHIKANTI,
                date="2022-05",
            ),
        )


def megatron_tables() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the shipped tables, and of the configurations that they name."""
    clusters = [*vtrain("multi"), *vtrain("single", every=SHIPPED_EVERY)]
    for source, found in (("vtrain", clusters), ("korthikanti2022", list(korthikanti()))):
        yield f"{source}.csv", _text(row for _, row in found)
        yield from ((f"hf_configs/{m.name}.json", m.config) for m in dict.fromkeys(m for m, _ in found))


def runs_of(found: Iterator[tuple[Gpt, Row]], folder: Path) -> Iterator[tuple[Row, Run]]:
    """Yield rows with the runs that they are read as; their table is written to `folder`."""
    pairs = list(found)
    (folder / "hf_configs").mkdir(exist_ok=True)
    for model, _ in pairs:
        (folder / "hf_configs" / f"{model.name}.json").write_text(model.config)
    table = folder / "table.csv"
    table.write_text(_text(row for _, row in pairs))
    for (_, row), read in zip(pairs, read_table(table), strict=True):
        assert read.run is not None, read.reason
        yield row, read.run


def _text(found: Iterator[Row]) -> str:
    """Return rows as the text of a table."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()
