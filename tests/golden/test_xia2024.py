"""Predictions against the seed paper's own measurements (Xia et al. 2024).

Step time is batch / (queries per second); the paper's figure is 1,000 queries over the
whole training time, so the checkpoint written at the end of the epoch is part of it.
"""

from collections import defaultdict
from statistics import median

import pytest

from finegauge.planning.capacity import max_micro_batch_size
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import predict
from finegauge.reproduction.published import xia_run
from finegauge.units import GIB
from tests.golden.tables import rows
from tests.shared import needs_shared

STEP_TIME_MEDIAN = 0.10
UNSEEN_MEDIAN = 0.15  # of A100-40, A100-80 and H100 each: no row of theirs is in the calibration
STAGE_TIME_MEDIAN = 0.18
MAX_BATCH_SHARE = 0.75
MEASURED_QUERIES = 1000
# a copy of its neighbour, and an outlier, by the reference notes
FLAWED = {("Mixtral-MATH-A100-80GB", "dense", "4"), ("BlackMamba-MATH-A40-48GB", "dense", "2")}


def observed_batch(row: dict[str, str]) -> int:
    """Return the largest batch that ran; where table and figure differ, the figure's."""
    return int(row["max_batch_in_fig14_15_arrays"] or row["max_batch_paper_table3"].split()[0])


@needs_shared
def test_maximum_batch_sizes() -> None:
    print(
        f"\n{'model':<17}{'mode':<8}{'data':<6}{'GPU':<12}{'observed':>9}{'ours':>6}   (tolerance: 1 or 15 %)"
    )
    right, table = 0, rows("xia2024/table3_max_batch.csv")
    for row in table:
        dataset, gpu = row["dataset"].split()[0], row["gpu"].split("/")[0]
        run = xia_run(row["model"], row["moe_mode"], dataset, gpu, 1)
        ours, observed = max_micro_batch_size(run).value, observed_batch(row)
        good = abs(ours - observed) <= max(1, 0.15 * observed)
        right += good
        print(
            f"{row['model']:<17}{row['moe_mode']:<8}{dataset:<6}{gpu:<12}{observed:>9}{ours:>6}"
            f"   {'within' if good else 'OUTSIDE'}"
        )
    print(f"{right} of {len(table)} within tolerance")
    assert right >= MAX_BATCH_SHARE * len(table)


@needs_shared
def test_step_times_of_every_series() -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows("xia2024/throughput_vs_batch.csv"):
        key = (row["series_id"], row["moe_mode"], row["batch_size"])
        if "unplotted" in row["paper_figure"] or key in FLAWED:
            continue
        batch = int(row["batch_size"])
        run = xia_run(
            row["model"], row["moe_mode"], row["dataset_best_evidence"], row["gpu"], batch,
            num_samples=MEASURED_QUERIES, epochs=1,
        )  # fmt: skip
        whole = quote(run, predict(run)).wall_time_s
        ours = (whole["steps"] + whole["saves"]) / MEASURED_QUERIES * batch
        errors[f"{row['series_id']} {row['moe_mode']}"].append(
            ours * float(row["throughput_qps"]) / batch - 1
        )
    print(f"\n{'series':<34}points   |error| median   bias")
    for series, values in errors.items():
        print(f"{series:<34}{len(values):>6}{median(map(abs, values)):>17.0%}{median(values):>+7.0%}")
    everything = [abs(error) for values in errors.values() for error in values]
    print(f"{'all':<34}{len(everything):>6}{median(everything):>17.1%}")
    assert median(everything) <= STEP_TIME_MEDIAN
    for gpu in ("A100-40GB", "A100-80GB", "H100-80GB"):
        unseen = [abs(e) for series, values in errors.items() if gpu in series for e in values]
        assert median(unseen) <= UNSEEN_MEDIAN, gpu


@needs_shared
def test_stages_of_a_step_at_a_fixed_length() -> None:
    """Fig. 4: seconds by stage on A40 at 128 tokens; the paper's backward holds the recomputation."""
    print(
        f"\n{'model':<17}{'mode':<8}{'batch':>5}{'forward':>16}{'backward':>16}{'optimizer':>16}  paper, ours"
    )
    errors: list[float] = []
    for row in rows("xia2024/stage_breakdown.csv"):
        asked = xia_run(row["model"], row["moe_mode"], "CS", "A40", int(row["batch_size"]))
        step = predict(asked.replace(dataset=None, seq_len=128)).step_time_s
        ours = (step["forward"], step["recompute"] + step["backward"], step["optimizer"])
        theirs = [float(row[f"{stage}_s"]) for stage in ("forward", "backward", "optimizer")]
        errors += [abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)]
        pairs = "".join(f"{b:>9.2f}{a:>7.2f}" for a, b in zip(ours, theirs, strict=True))
        print(f"{row['model']:<17}{row['moe_mode']:<8}{row['batch_size']:>5}{pairs}")
    print(f"median |error| {median(errors):.0%} of {len(errors)} stages")
    assert median(errors) <= STAGE_TIME_MEDIAN


@needs_shared
@pytest.mark.parametrize(("mode", "published"), [("sparse", 23.35)])
def test_weights_of_quantised_mixtral(mode: str, published: float) -> None:
    weights = predict(xia_run("Mixtral-8x7B", mode, "CS", "A40", 1)).peak_memory_bytes.parts[
        "weights", "model"
    ]
    assert weights / 1e9 == pytest.approx(published, rel=0.06)  # Table I, in GB
    assert weights / GIB == pytest.approx(22.8, abs=0.3)
