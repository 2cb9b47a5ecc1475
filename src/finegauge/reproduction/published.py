"""The figures of Xia et al. 2024 and of its artifact, one number a row, each with source and date.

`data/xia2024.csv` is our own table: numbers are the authors', format and selection ours.
"""

import os
from functools import cache
from typing import Any, NamedTuple

from finegauge.catalogue.tables import parse
from finegauge.laws.law import Condition, Law
from finegauge.planning.capacity import max_micro_batch_size
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import needed, predict
from finegauge.profile import Profile
from finegauge.reproduction import Panel, Series
from finegauge.run.run import Run

_TABLE = os.path.join(os.path.dirname(__file__), "data", "xia2024.csv")

SPARSITY = {"dense": 1.0, "sparse": 0.25}  # 8 or 2 of 8 experts


class Figure(NamedTuple):
    """One published number and the condition under which it was measured."""

    item: str
    model: str
    mode: str
    dataset: str
    gpu: str
    seq_len: str
    batch: int
    part: str  # the stage, layer, kernel, expert or epoch
    value: float
    unit: str
    source: str
    date: str

    @property
    def series(self) -> tuple[str, str, str]:
        """Return (model, data set, GPU): what the paper draws one panel for."""
        return self.model, self.dataset, self.gpu

    @property
    def variant(self) -> str:
        """Return model and mode."""
        return f"{self.model} {self.mode}"


@cache
def _all() -> tuple[Figure, ...]:
    with open(_TABLE, encoding="utf-8") as file:
        rows = parse(file.read())
    return tuple(
        Figure(**{**row, "batch": int(row["batch"] or 0), "value": float(row["value"])})  # type: ignore[arg-type]
        for row in rows
    )


def figures(*items: str, **condition: object) -> tuple[Figure, ...]:
    """Return the figures of some items ("fig4", "table3"), narrowed by any of their columns."""
    return tuple(
        figure
        for figure in _all()
        if figure.item in items and all(getattr(figure, name) == want for name, want in condition.items())
    )


def value(item: str, **condition: object) -> float | None:
    """Return the one number that fits, None where nothing is published."""
    found = figures(item, **condition)
    return found[0].value if found else None


def by_part(item: str, **condition: object) -> dict[str, float]:
    """Return the numbers that fit, by stage, layer, kernel, expert or epoch."""
    return {figure.part: figure.value for figure in figures(item, **condition)}


def claim(part: str, model: str = "") -> float:
    """Return a number that the paper states in its text."""
    return next(figure.value for figure in figures("claim", part=part) if model in ("", figure.model))


class Setting(NamedTuple):
    """One bar of Figs. 4 to 6, 9 and 10: model, dense or sparse, batch."""

    model: str
    mode: str
    batch: int

    @property
    def variant(self) -> str:
        """Return model and mode."""
        return f"{self.model} {self.mode}"

    @property
    def label(self) -> str:
        """Return mode over batch, to stand under a bar."""
        return f"{self.mode}\n{self.batch}"

    @classmethod
    def all(cls, item: str, **condition: object) -> "tuple[Setting, ...]":
        """Return the settings of one figure, in its order."""
        return tuple(dict.fromkeys(cls(f.model, f.mode, f.batch) for f in figures(item, **condition)))

    def by_part(self, item: str) -> dict[str, float]:
        """Return what a figure shows of this setting."""
        return by_part(item, **self._asdict())


Cell = str | float | int | None
Rows = tuple[tuple[Cell, ...], ...]


class Item(NamedTuple):
    """One table or figure of the paper, ours beside theirs."""

    key: str  # "table-4", "fig-14"
    title: str
    headings: str  # separated by "|"
    rows: Rows
    notes: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    num_text_columns: int = 1  # the first columns, set flush left

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the headings; beside those of two lines, one line stands on the second."""
        names, two = self.headings.split("|"), "\n" in self.headings
        return tuple(f"\n{name}" if two and "\n" not in name else name for name in names)


class Finding(NamedTuple):
    """One inconsistency of paper and artifact, with the numbers that prove it."""

    number: int
    title: str
    statement: str
    headings: tuple[str, ...]
    rows: Rows  # each begins with a text


class Reproduction(NamedTuple):
    """A whole paper."""

    title: str
    sources: tuple[str, ...]
    items: tuple[Item, ...]
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def law_line(label: str, whose: str, law: Law, mode: str, most: int) -> Series:
    """Return what a law says of every batch from 1 to `most`."""
    batches = range(1, most + 1)
    y = tuple(law.at(Condition(batch, SPARSITY[mode])) for batch in batches)
    return Series(label, whose, tuple(map(float, batches)), y)


def error_text(ours: float | None, theirs: float | None) -> str:
    """Return "+12 %", how far ours is from theirs; "-" where one is not known."""
    return "-" if ours is None or not theirs else f"{100 * (ours / theirs - 1):+.0f} %"


GPUS = {
    "A40": "A40",
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-PCIE-80GB",  # the form factors are not stated; the paper prices at CUDO, whose is PCIe
    "H100-80GB": "H100-SXM5-80GB",
}
DATASETS = {"CS": "commonsense_15k", "MATH": "math_14k"}
STAGES = ("forward", "backward", "optimizer")
TUNED_ON = ("HE", "GS")  # whose accuracy and load of the experts the paper shows
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
    return max_micro_batch_size(xia_run(model, mode, dataset, gpu, 1), needed).value


def profiled_run(model: str, mode: str, batch: int, seq_len: int = PROFILED_SEQ_LEN) -> Run:
    """Return a run of the characterisation study: A40, random tokens of one length."""
    return xia_run(model, mode, "CS", "A40", batch).replace(dataset=None, seq_len=seq_len)


@cache
def profiled(model: str, mode: str, batch: int) -> Profile:
    """Return the predicted step of the characterisation study."""
    return predict(profiled_run(model, mode, batch))


def stages_s(profile: Profile) -> dict[str, float]:
    """Return the seconds of a step by the paper's stages; its backward holds the recomputation."""
    step = profile.step_time_s
    backward = step["recompute"] + step["backward"]
    return {"forward": step["forward"], "backward": backward, "optimizer": step["optimizer"]}
