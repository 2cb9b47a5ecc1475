"""What figures are made of: parts that add up, fronts that nothing beats, laws close to their points."""

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegauge.answers.study import Roof, Way, throughput
from finegauge.formats.reading import read
from finegauge.prediction.predictor import predict, work_of
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.render import number_format as fmt
from finegauge.render.plan import plan_front
from finegauge.render.plots.drawing import (
    CYCLE,
    LEAST_APART,
    OWN_SHADES,
    RINGS,
    Reach,
    legible,
    luminance,
    png,
    radar_plot,
    shades,
    svg,
    tint,
)
from finegauge.render.plots.many_runs import (
    Pair,
    bars_plot,
    dots_plot,
    experts_plot,
    front_plot,
    loads_of,
    throughput_plot,
    unbeaten,
)
from finegauge.render.plots.step import layout, memory_plot, roofline_plot, step_time_plot
from finegauge.render.report import Plot
from finegauge.run.run import Run
from finegauge.units import GIB, HOUR_S
from tests.e2e.commands import EXAMPLES

pytestmark = pytest.mark.extras

DIMENSIONS = ("SpeedUp", "MemoryUp", "EnergyUp")
SIGNED = b"\x89PNG"


@pytest.fixture(scope="module")
def run() -> Run:
    return read(str(EXAMPLES / "mixtral_qlora_math.yaml"), ())


@pytest.fixture(scope="module")
def profile(run: Run) -> Profile:
    return predict(run)


def drawn(drawing: Plot | None) -> str:
    """Return the SVG of a drawing that has to be there."""
    assert drawing is not None
    assert drawing.caption.endswith(".")
    assert all(len(row) == len(drawing.table.headings) for row in drawing.table.rows)
    return svg(drawing)


def test_boxes_of_the_icicle_add_up(profile: Profile) -> None:
    step = profile.step_time_s
    boxes = layout(step)
    for depth in (1, 2, 3):
        assert sum(box.seconds for box in boxes if len(box.path) == depth) == pytest.approx(step.total)
    by_path = {box.path: box for box in boxes}
    for path, box in by_path.items():
        if len(path) > 1:
            parent = by_path[path[:-1]]
            assert box.start_s >= parent.start_s - 1e-12
            assert box.start_s + box.seconds <= parent.start_s + parent.seconds + 1e-9
    text = drawn(step_time_plot(profile))
    assert ">recompute<" in text.replace("\n", "")


def test_a_step_of_stages_alone_has_one_column() -> None:
    step = Breakdown.of(forward=1.0, backward=2.0)
    assert [(box.path, box.start_s) for box in layout(step)] == [(("forward",), 0.0), (("backward",), 1.0)]


def test_small_parts_of_memory_stand_together_but_not_in_the_table(profile: Profile) -> None:
    drawing = memory_plot(profile, {("weights", "model"): "so many parameters"})
    text = drawn(drawing)
    assert "and small parts" in text
    assert "cuBLAS" not in text
    rows = {row[0]: row for row in drawing.table.rows}
    assert "workspace · cuBLAS" in rows
    assert rows["weights · model"][-1] == "so many parameters"
    total = sum(float(str(rows[" · ".join(path)][1])) for path in profile.device_memory_bytes.parts)
    assert total == pytest.approx(profile.device_memory_bytes.total / GIB, abs=0.02)


def test_every_operator_is_on_the_roofline(run: Run, profile: Profile) -> None:
    work = work_of(run)
    drawing = roofline_plot(profile, work, Roof("A40", "bf16", 149.7e12, 696e9))
    assert drawing is not None
    done = {
        " · ".join(path) for path, one in work.items() if one.num_bytes and path in profile.step_time_s.parts
    }
    assert {row[0] for row in drawing.table.rows} == done
    assert ">dequantise<" not in drawn(drawing)  # it moves only, so it stands in the lane
    assert roofline_plot(profile, {}, Roof("A40", "bf16", 1.0, 1.0)) is None


def test_throughput_has_its_interval_and_two_laws(run: Run) -> None:
    sweep = [predict(run.replace(micro_batch_size=size)) for size in (1, 2, 3, 4, 5)]
    drawing = throughput_plot(throughput(sweep))
    text = drawn(drawing)
    assert "affine law" in text
    assert "equation 2 of Xia et al. 2024" in text
    assert drawing is not None
    for row, one in zip(drawing.table.rows, sweep, strict=True):
        interval = one.source.time_interval
        assert interval is not None
        assert row[1] == fmt.digits(one.samples_per_s)
        low, high = one.samples_per_s / interval.high_ratio, one.samples_per_s / interval.low_ratio
        assert row[2] == f"{fmt.digits(low)} to {fmt.digits(high)}"
        for law in row[3:5]:
            assert float(str(law)) == pytest.approx(one.samples_per_s, rel=0.2)
    assert "the largest micro-batch that fits" in drawing.caption
    assert throughput_plot(throughput(sweep[:1])) is None


def test_the_front_is_what_nothing_beats() -> None:
    ways = [Way(str(n), "A40", hours * HOUR_S, usd, None) for n, (hours, usd) in
            enumerate(((10, 5), (5, 10), (7, 7), (8, 7), (12, 5), (6, 20)))]  # fmt: skip
    assert [way.name for way in unbeaten(ways)] == ["1", "2", "0"]
    drawing = front_plot(ways, about="Six ways")
    assert drawing is not None
    assert [row[-2] for row in drawing.table.rows] == ["yes", "yes", "yes", "no", "no", "no"]
    assert "the 3 that none is both cheaper and faster than" in drawing.caption
    assert "on spot instances" in str(front_plot(ways, about="Six ways", spot=True))
    assert front_plot([], about="None") is None
    assert png(drawing).startswith(SIGNED)


def test_a_plan_draws_its_front(run: Run) -> None:
    from finegauge.answers.plan import plan_answer
    from finegauge.planning.plan import Plan
    from finegauge.planning.selection import Wanted

    nothing = Plan(run, Wanted(), None, None, (), 0, 0, 0, 0.0, ())
    assert plan_front(plan_answer(nothing)) is None


def test_the_radar_needs_three_known_dimensions() -> None:
    known = Reach("liger", dict(zip(DIMENSIONS, (1.5, 1.2, 1.4), strict=True)), {"SpeedUp": (1.4, 1.6)})
    unknown = Reach("none", {"SpeedUp": 1.5, "MemoryUp": 1.2, "EnergyUp": None})
    drawing = radar_plot([known, unknown], DIMENSIONS, over="the baseline")
    assert drawing is not None
    assert drawing.table.rows == (
        ("liger", "1.50 [1.40–1.60]", "1.20", "1.40"), ("none", "1.50", "1.20", "-"),
    )  # fmt: skip
    assert "liger" in drawn(drawing)
    assert radar_plot([unknown], DIMENSIONS, over="the baseline") is None


def test_an_optimisation_has_the_same_colour_in_every_radar() -> None:
    first, second = (Reach(name, dict.fromkeys(DIMENSIONS, 1.5)) for name in ("zero1", "lora"))
    for ratio in (1.2, 1.8):
        reaches = [first._replace(ratios=dict.fromkeys(DIMENSIONS, ratio)), second]
        drawing = radar_plot(reaches, DIMENSIONS, over="it")
        assert drawing is not None
        axes = drawing.draw().axes[0]
        assert [line.get_label() for line in axes.lines] == ["the baseline", "zero1", "lora"]


@given(st.floats(-5, -0.1), st.floats(0.1, 6))
def test_names_of_rings_do_not_lie_on_each_other(low: float, high: float) -> None:
    kept = legible([ring for ring in RINGS if low < log2(ring) < high], (high - low) * LEAST_APART)
    assert 1.0 in kept
    places = [log2(ring) for ring in kept]
    assert all(b - a >= (high - low) * LEAST_APART for a, b in pairwise(places))


def test_the_load_of_experts_before_and_after() -> None:
    before = {"layers": {"a": {"tokens_per_expert": [10, 30]}, "b": {"tokens_per_expert": [20, 20]}}}
    after = {"layers": {"a": {"tokens_per_expert": [20, 20]}, "b": {"tokens_per_expert": [20, 20]}}}
    loads = loads_of({"evaluation": {"experts_before": before, "experts_after": after}})
    assert [load.shares for load in loads] == [[37.5, 62.5], [50.0, 50.0]]
    drawing = experts_plot(loads)
    assert drawing is not None
    assert "1.25 before tuning, 1.00 after tuning" in drawing.caption
    assert drawing.table.rows[0] == ("a", "before tuning", "10", "30")
    assert "before tuning" in drawn(drawing)
    assert [load.when for load in loads_of({"experts": before})] == ["measured steps"]
    assert loads_of({"experts": {"unavailable": "no experts"}}) == []


def test_predicted_beside_measured() -> None:
    pairs = [Pair("one step", 1.0, 1.25), Pair("forward", None, 0.5), Pair("backward", 0.75, 0.75)]
    drawing = bars_plot("t", "Time", "By stage", pairs, unit="seconds", said=fmt.duration)
    assert drawing is not None
    assert [row[-1] for row in drawing.table.rows] == ["-20 %", "-", "0 %"]
    assert "off by -20 %" in drawing.caption
    dots = dots_plot("t", "Time", pairs, unit="seconds", said=fmt.duration)
    assert dots is not None
    assert "2 predicted and measured, 1 of them within 10 %" in dots.caption
    drawn(dots)
    assert dots_plot("t", "Time", pairs[1:2], unit="s", said=fmt.duration) is None


def test_a_campaign_of_thousands_of_cells_stays_small() -> None:
    pairs = [Pair(f"cell {n}", 1.0 + n % 7, 2.0, str(n % 3)) for n in range(9000)]
    drawing = dots_plot("t", "Time", pairs, unit="seconds", said=fmt.duration)
    assert drawing is not None
    assert "9000 predicted and measured" in drawing.caption
    assert "Of every 6 one is drawn." in drawing.caption
    assert drawing.table.caption == "Time, the first 1,000 of 9,000"
    assert len(drawn(drawing)) < 400_000


def test_a_kind_has_one_colour_everywhere() -> None:
    assert shades(["backward", "forward"]) == shades(["forward", "backward"])
    assert shades(["weights"])["weights"] == CYCLE[OWN_SHADES["weights"] - 1]
    assert tint("#0072b2", 0.0) == "#ffffff"
    assert tint("#0072b2", 1.0) == "#0072b2"
    assert luminance("#ffffff") == pytest.approx(1.0)


def test_memory_without_interval_or_capacity_is_drawn(run: Run) -> None:
    bare = Profile(
        run=run, source=Source("measured", "trial"), device_memory_bytes=Breakdown.of(weights=2.0**20)
    )
    assert "MiB" in drawn(memory_plot(bare, {}))
    sure = Source("predicted", "test", memory_interval=Interval(0.9, 1.1))
    far = Profile(
        run=run, source=sure, device_memory_bytes=Breakdown.of(weights=GIB), capacity_bytes=80 * GIB
    )
    assert "beyond this axis" in drawn(memory_plot(far, {}))
