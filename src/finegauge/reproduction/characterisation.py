"""Figs. 4 to 6 and 8 and the sequence-length study: where the time goes, theirs and ours.

Figs. 4 to 6 are steps of random tokens, 128 to a sequence, on A40; ours are predictions of the
same steps; the sums of Fig. 4's stages are among the tables that the calibration was fitted to.
"""

from collections.abc import Callable, Iterable
from functools import cache
from statistics import median
from typing import NamedTuple

from finegauge.catalogue.gpus import gpu
from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.planning.capacity import max_micro_batch_size
from finegauge.prediction.calibration import current
from finegauge.prediction.device import Device
from finegauge.prediction.predictor import predict
from finegauge.reproduction import published
from finegauge.reproduction.published import (
    MEASURED,
    OURS,
    Cell,
    Figure,
    Item,
    Panel,
    Series,
    error_text,
    figures,
)

STAGES = ("forward", "backward", "optimizer")
KERNELS = {  # the paper's kernels that are one operator of ours: its path, and matrices per expert
    "matmul(w1)": (("moe", "w1"), 1),
    "matmul(w2)": (("moe", "w2"), 1),
    "matmul(w3)": (("moe", "w3"), 1),
    "w1_dequant": (("moe", "dequantise"), 3),
    "w2_dequant": (("moe", "dequantise"), 3),
    "w3_dequant": (("moe", "dequantise"), 3),
}
FUSED_UP = ("w1", "w3")  # BlackMamba's W1 holds the gate too


class Setting(NamedTuple):
    """One bar of Figs. 4 to 6: model, dense or sparse, batch."""

    model: str
    mode: str
    batch: int

    @property
    def label(self) -> str:
        """Return mode over batch, to stand under a bar."""
        return f"{self.mode}\n{self.batch}"

    @classmethod
    def all(cls, item: str) -> "tuple[Setting, ...]":
        """Return the settings of one figure, in its order."""
        return tuple(dict.fromkeys(cls(f.model, f.mode, f.batch) for f in figures(item)))


Ours = Callable[[Setting], dict[str, float]]


def _theirs(item: str, at: Setting) -> dict[str, float]:
    found = figures(item, model=at.model, mode=at.mode, batch=at.batch)
    return {figure.part: figure.value for figure in found}


def stage_seconds(at: Setting) -> dict[str, float]:
    """Return our seconds by the paper's stages; its backward holds the recomputation."""
    step = published.profiled(*at).step_time_s
    return {
        "forward": step["forward"],
        "backward": step["recompute"] + step["backward"],
        "optimizer": step["optimizer"],
    }


def layer_seconds(at: Setting) -> dict[str, float]:
    """Return our seconds by the paper's layer types, forward and backward together."""
    norms = {"attention": "input_norm", "moe": "post_attention_norm"}
    if at.model.startswith("BlackMamba"):
        norms = dict.fromkeys(("mamba", "moe"), "rms_layernorm")
    found: dict[str, float] = {}
    for (stage, part, *rest), seconds in published.profiled(*at).step_time_s.parts.items():
        if stage != "optimizer" and part in ("attention", "moe", "mamba"):
            layer = norms.get(part, part) if rest == ["norm"] else part
            found[layer] = found.get(layer, 0.0) + seconds
    return found


def fig_4() -> Item:
    """Return the seconds by stage."""
    rows: list[tuple[Cell, ...]] = []
    apart = []
    for at in Setting.all("fig4"):
        theirs, ours = _theirs("fig4", at), stage_seconds(at)
        pairs = [number for stage in STAGES for number in (theirs[stage], ours[stage])]
        apart += [abs(ours[stage] / theirs[stage] - 1) for stage in STAGES]
        rows.append(
            (f"{at.model} {at.mode}", at.batch, *pairs, error_text(sum(pairs[1::2]), sum(pairs[::2])))
        )
    return Item(
        key="fig-4",
        title="Fig. 4: seconds of a step by stage (backward with recomputation)",
        headings=(
            "\nmodel",
            "\nbatch",
            "forward\npaper",
            "\nours",
            "backward\npaper",
            "\nours",
            "optimizer\npaper",
            "\nours",
            "step\nerror",
        ),
        rows=tuple(rows),
        notes=(f"Median |error| of the {len(apart)} stages: {100 * median(apart):.0f} %.",),
        panels=_stacked("fig4", STAGES, stage_seconds, "seconds", "seconds of a step by stage"),
    )


def fig_5() -> Item:
    """Return the seconds by layer."""
    rows: list[tuple[Cell, ...]] = []
    for at in Setting.all("fig5"):
        theirs, ours = _theirs("fig5", at), layer_seconds(at)
        shares = [part["moe"] / sum(part.values()) * 100 for part in (theirs, ours)]
        mixer = "attention" if "attention" in theirs else "mamba"
        rows.append(
            (
                f"{at.model} {at.mode}",
                at.batch,
                theirs["moe"],
                ours["moe"],
                theirs[mixer],
                ours[mixer],
                *shares,
            )
        )
    names = [[f.part for f in figures("fig5", model=model)] for model in published.MODELS]
    panels = [
        _stacked(
            "fig5", tuple(dict.fromkeys(parts)), layer_seconds, "seconds", "seconds by layer", model=model
        )
        for model, parts in zip(published.MODELS, names, strict=True)
    ]
    return Item(
        key="fig-5",
        title="Fig. 5: seconds by layer, forward and backward",
        headings=(
            "\nmodel",
            "\nbatch",
            "MoE\npaper",
            "\nours",
            "attention or Mamba\npaper",
            "\nours",
            "MoE share, %\npaper",
            "\nours",
        ),
        rows=tuple(rows),
        notes=(
            "The paper's layers are timed by module hooks and add up to less than its own Fig. 4; ours "
            "add up to it. Compare shares.",
        ),
        panels=tuple(panel for pair in panels for panel in pair),
    )


@cache
def kernel_us(at: Setting) -> dict[str, float]:
    """Return our microseconds of one forward kernel of one expert, where it is one operator of ours."""
    run = published.profiled_run(*at)
    graph = build(run)
    device = Device.of(gpu(published.GPUS["A40"]), current(), {graph.lowering.compute_dtype, "fp32"})
    extents = Extents.of(at.batch, published.PROFILED_SEQ_LEN)
    ops = next(ops for _, ops in graph.stretches if any(op.path == ("moe", "w1") for op in ops))
    seconds: dict[tuple[str, ...], float] = {}
    for op in ops:
        taken = device.seconds(op, op.forward, extents, backward=False)
        seconds[op.path] = seconds.get(op.path, 0.0) + taken
    if at.model.startswith("BlackMamba"):
        seconds["moe", "w1"] = sum(seconds.pop(("moe", name)) for name in FUSED_UP)
    shared = 1e6 / published.NUM_EXPERTS
    return {
        name: seconds[path] * shared / matrices
        for name, (path, matrices) in KERNELS.items()
        if path in seconds and name in _theirs("fig6", at)
    }


def fig_6() -> Item:
    """Return the microseconds of the experts' kernels."""
    rows, apart = [], []
    for at in Setting.all("fig6"):
        theirs, ours = _theirs("fig6", at), kernel_us(at)
        for name, us in ours.items():
            rows.append(
                (f"{at.model} {at.mode}", name, at.batch, theirs[name], us, error_text(us, theirs[name]))
            )
            apart.append(abs(us / theirs[name] - 1))
    others = sorted({f.part for f in figures("fig6")} - set(KERNELS))
    return Item(
        key="fig-6",
        title="Fig. 6: microseconds of one kernel of one expert",
        headings=("model", "kernel", "batch", "paper", "ours", "error"),
        rows=tuple(rows),
        notes=(
            f"Median |error| of {len(apart)} kernels: {100 * median(apart):.0f} %. Theirs are ncu means "
            "over one step of one example, at base clocks; ours are the roofline of one forward product.",
            f"Drawn by the paper and no operator of their own in our graph: {', '.join(others)}.",
        ),
        panels=_kernel_panels(),
        num_text_columns=2,
    )


def _kernel_panels() -> tuple[Panel, ...]:
    """Return a panel per model and kernel, theirs and ours side by side."""
    panels = []
    for model in published.MODELS:
        settings = [at for at in Setting.all("fig6") if at.model == model]
        for name in ("matmul(w1)", "matmul(w2)", "w1_dequant"):
            if name in _theirs("fig6", settings[0]):
                theirs = Series("paper", MEASURED, (), tuple(_theirs("fig6", at)[name] for at in settings))
                ours = Series("ours", OURS, (), tuple(kernel_us(at)[name] for at in settings))
                labels = tuple(at.label for at in settings)
                panels.append(Panel(f"{model}: {name}", "", "microseconds", (theirs, ours), labels))
    return tuple(panels)


def fig_8() -> Item:
    """Return the throughput at the batch sizes the paper draws."""
    rows = []
    for f in figures("fig8"):
        batch = drawn_batch(f)
        ours = published.samples_per_s(f.model, f.mode, f.dataset, f.gpu, batch)
        label = str(f.batch) if batch == f.batch else f"{f.batch} (is {batch})"
        rows.append((f"{f.model} {f.mode}", f.dataset, label, f.value, ours, error_text(ours, f.value)))
    panels = []
    for model in published.MODELS:
        shown = [f for f in figures("fig8") if f.model == model]
        theirs = Series("paper", MEASURED, (), tuple(f.value for f in shown))
        ours_bars = tuple(
            published.samples_per_s(f.model, f.mode, f.dataset, f.gpu, drawn_batch(f)) for f in shown
        )
        labels = tuple(f"{f.dataset}\n{f.mode}\n{f.batch}" for f in shown)
        panels.append(
            Panel(model, "", "queries/s", (theirs, Series("predicted", OURS, (), ours_bars)), labels)
        )
    return Item(
        key="fig-8",
        title="Fig. 8: throughput on A40, queries/s",
        headings=("model", "data", "batch", "paper", "predicted", "error"),
        rows=tuple(rows),
        notes=("'3 (is 4)': labelled 3, but the value is the one measured at batch 4.",),
        panels=tuple(panels),
        num_text_columns=2,
    )


def drawn_batch(figure: Figure) -> int:
    """Return the batch at which Fig. 14 holds the value that Fig. 8 draws."""
    same = figures("fig14", model=figure.model, mode=figure.mode, dataset=figure.dataset, gpu=figure.gpu)
    return min(same, key=lambda one: abs(one.value - figure.value)).batch


def lengths() -> Item:
    """Return the latency of a step against the length, each at the largest batch that fits."""
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in published.MODELS:
        drawn = []
        for mode in ("dense", "sparse"):
            found = figures("lengths", model=model, mode=mode, part="train_step_latency")
            ours = [_at_largest_batch(model, mode, int(f.seq_len)) for f in found]
            for f, (batch, seconds) in zip(found, ours, strict=True):
                rows.append((f"{model} {mode}", int(f.seq_len), f.value, seconds, batch))
            x = tuple(float(f.seq_len) for f in found)
            drawn.append(Series(f"paper, {mode}", MEASURED, x, tuple(f.value for f in found)))
            drawn.append(Series(f"predicted, {mode}", OURS, x, tuple(seconds for _, seconds in ours)))
        panels.append(
            Panel(f"{model}, A40, largest batch", "tokens of a sequence", "seconds of a step", tuple(drawn))
        )
    return Item(
        key="lengths",
        title="Sequence lengths (section IV-B6): seconds of a step at the largest batch",
        headings=("model", "tokens", "paper", "ours", "at batch"),
        rows=tuple(rows),
        notes=(
            "The paper does not print its batch sizes; ours is the largest that our memory model lets fit.",
        ),
        panels=tuple(panels),
    )


def _at_largest_batch(model: str, mode: str, seq_len: int) -> tuple[int, float]:
    found = max_micro_batch_size(published.profiled_run(model, mode, 1, seq_len))
    profile = found.profile or predict(published.profiled_run(model, mode, 1, seq_len))
    return found.value, profile.step_time_s.total


def _stacked(
    item: str,
    parts: tuple[str, ...],
    ours: Ours,
    unit: str,
    title: str,
    *,
    model: str | None = None,
) -> tuple[Panel, ...]:
    """Return a panel of stacked bars per model, paper and ours side by side."""
    panels = []
    for name in published.MODELS if model is None else (model,):
        settings = [at for at in Setting.all(item) if at.model == name]
        labels = tuple(f"{at.label}\n{who}" for at in settings for who in ("paper", "ours"))
        drawn = tuple(Series(part, "part", (), tuple(_pairs(part, settings, item, ours))) for part in parts)
        panels.append(Panel(f"{name}: {title}", "", unit, drawn, labels, stacked=True))
    return tuple(panels)


def _pairs(part: str, settings: Iterable[Setting], item: str, ours: Ours) -> Iterable[float]:
    for at in settings:
        yield _theirs(item, at).get(part, 0.0)
        yield ours(at).get(part, 0.0)
