"""Figs. 4 to 6 and 8 and the sequence-length study: where the time goes, theirs and ours.

Figs. 4 to 6 are steps of random tokens, 128 to a sequence, on A40; ours are predictions of the
same steps; the sums of Fig. 4's stages are among the tables that the calibration was fitted to.
"""

from collections.abc import Callable, Sequence
from functools import cache
from statistics import median

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
    STAGES,
    Cell,
    Figure,
    Item,
    Panel,
    Series,
    Setting,
    figures,
)

KERNELS = {  # the paper's kernels that are one operator of ours: its path, and matrices per expert
    "matmul(w1)": (("moe", "w1"), 1),
    "matmul(w2)": (("moe", "w2"), 1),
    "matmul(w3)": (("moe", "w3"), 1),
    "w1_dequant": (("moe", "dequantise"), 3),
    "w2_dequant": (("moe", "dequantise"), 3),
    "w3_dequant": (("moe", "dequantise"), 3),
}
FUSED_UP = ("w1", "w3")  # BlackMamba's W1 holds the gate too
Ours = Callable[[Setting], dict[str, float]]


def stage_seconds(at: Setting) -> dict[str, float]:
    """Return our seconds by the paper's stages."""
    return published.stages_s(published.profiled(*at))


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
        theirs, ours = at.by_part("fig4"), stage_seconds(at)
        pairs = [number for stage in STAGES for number in (theirs[stage], ours[stage])]
        apart += [abs(ours[stage] / theirs[stage] - 1) for stage in STAGES]
        error = published.error_text(sum(pairs[1::2]), sum(pairs[::2]))
        rows.append((at.variant, at.batch, *pairs, error))
    return Item(
        key="fig-4",
        title="Fig. 4: seconds of a step by stage (backward with recomputation)",
        headings=published.columns(
            "model|batch|forward\npaper|ours|backward\npaper|ours|optimizer\npaper|ours|step\nerror"
        ),
        rows=tuple(rows),
        notes=(f"Median |error| of the {len(apart)} stages: {100 * median(apart):.0f} %.",),
        panels=tuple(
            _stacked("fig4", model, STAGES, stage_seconds, "seconds of a step by stage")
            for model in published.MODELS
        ),
    )


def fig_5() -> Item:
    """Return the seconds by layer."""
    rows: list[tuple[Cell, ...]] = []
    for at in Setting.all("fig5"):
        both = theirs, ours = at.by_part("fig5"), layer_seconds(at)
        shares = [part["moe"] / sum(part.values()) * 100 for part in both]
        mixer = "attention" if "attention" in theirs else "mamba"
        rows.append((at.variant, at.batch, theirs["moe"], ours["moe"], theirs[mixer], ours[mixer], *shares))
    panels = []
    for model in published.MODELS:
        parts = tuple(published.by_part("fig5", model=model))
        panels.append(_stacked("fig5", model, parts, layer_seconds, "seconds by layer"))
    return Item(
        key="fig-5",
        title="Fig. 5: seconds by layer, forward and backward",
        headings=published.columns(
            "model|batch|MoE\npaper|ours|attention or Mamba\npaper|ours|MoE share, %\npaper|ours"
        ),
        rows=tuple(rows),
        notes=(
            "The paper's layers are timed by module hooks and add up to less than its own Fig. 4; ours "
            "add up to it. Compare shares.",
        ),
        panels=tuple(panels),
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
        if path in seconds and name in at.by_part("fig6")
    }


def fig_6() -> Item:
    """Return the microseconds of the experts' kernels."""
    rows, apart, panels = [], [], []
    for at in Setting.all("fig6"):
        theirs = at.by_part("fig6")
        for name, us in kernel_us(at).items():
            error = published.error_text(us, theirs[name])
            rows.append((at.variant, name, at.batch, theirs[name], us, error))
            apart.append(abs(us / theirs[name] - 1))
    for model in published.MODELS:
        settings = Setting.all("fig6", model=model)
        for name in ("matmul(w1)", "matmul(w2)", "w1_dequant"):
            if name in settings[0].by_part("fig6"):
                theirs_by_bar = [at.by_part("fig6")[name] for at in settings]
                bars = _pair(theirs_by_bar, [kernel_us(at)[name] for at in settings])
                labels = tuple(at.label for at in settings)
                panels.append(Panel(f"{model}: {name}", "", "microseconds", bars, labels))
    others = sorted(published.by_part("fig6").keys() - set(KERNELS))
    return Item(
        key="fig-6",
        title="Fig. 6: microseconds of one kernel of one expert",
        headings=published.columns("model|kernel|batch|paper|ours|error"),
        rows=tuple(rows),
        notes=(
            f"Median |error| of {len(apart)} kernels: {100 * median(apart):.0f} %. Theirs are ncu means "
            "over one step of one example, at base clocks; ours are the roofline of one forward product.",
            f"Drawn by the paper and no operator of their own in our graph: {', '.join(others)}.",
        ),
        panels=tuple(panels),
        num_text_columns=2,
    )


def fig_8() -> Item:
    """Return the throughput at the batch sizes the paper draws."""
    rows = []
    ours: dict[Figure, float] = {}
    for f in figures("fig8"):
        batch = drawn_batch(f)
        ours[f] = published.samples_per_s(f.model, f.mode, f.dataset, f.gpu, batch)
        label = str(f.batch) if batch == f.batch else f"{f.batch} (is {batch})"
        rows.append((f.variant, f.dataset, label, f.value, ours[f], published.error_text(ours[f], f.value)))
    panels = []
    for model in published.MODELS:
        shown = figures("fig8", model=model)
        bars = _pair([f.value for f in shown], [ours[f] for f in shown], "predicted")
        labels = tuple(f"{f.dataset}\n{f.mode}\n{f.batch}" for f in shown)
        panels.append(Panel(model, "", "queries/s", bars, labels))
    return Item(
        key="fig-8",
        title="Fig. 8: throughput on A40, queries/s",
        headings=published.columns("model|data|batch|paper|predicted|error"),
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
        for mode in published.SPARSITY:
            found = figures("lengths", model=model, mode=mode, part="train_step_latency")
            ours = []
            for f in found:
                run = published.profiled_run(model, mode, 1, int(f.seq_len))
                largest = max_micro_batch_size(run)
                ours.append((largest.profile or predict(run)).step_time_s.total)
                rows.append((f.variant, int(f.seq_len), f.value, ours[-1], largest.value))
            x = tuple(float(f.seq_len) for f in found)
            drawn.append(Series(f"paper, {mode}", MEASURED, x, tuple(f.value for f in found)))
            drawn.append(Series(f"predicted, {mode}", OURS, x, tuple(ours)))
        title = f"{model}, A40, largest batch"
        panels.append(Panel(title, "tokens of a sequence", "seconds of a step", tuple(drawn)))
    return Item(
        key="lengths",
        title="Sequence lengths (section IV-B6): seconds of a step at the largest batch",
        headings=published.columns("model|tokens|paper|ours|at batch"),
        rows=tuple(rows),
        notes=(
            "The paper does not print its batch sizes; ours is the largest that our memory model lets fit.",
        ),
        panels=tuple(panels),
    )


def _pair(theirs: Sequence[float], ours: Sequence[float], name: str = "ours") -> tuple[Series, Series]:
    return Series("paper", MEASURED, (), tuple(theirs)), Series(name, OURS, (), tuple(ours))


def _stacked(item: str, model: str, parts: Sequence[str], ours: Ours, title: str) -> Panel:
    settings = Setting.all(item, model=model)
    both = [seconds for at in settings for seconds in (at.by_part(item), ours(at))]
    labels = tuple(f"{at.label}\n{who}" for at in settings for who in ("paper", "ours"))
    drawn = tuple(Series(part, "part", (), tuple(one.get(part, 0.0) for one in both)) for part in parts)
    return Panel(f"{model}: {title}", "", "seconds", drawn, labels, stacked=True)
