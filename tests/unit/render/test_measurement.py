"""What `finegauge measure` prints: measured beside predicted, the differences with their reasons."""

import json
from typing import Any

import pytest

from finegauge.answers.measurement import measure_answer
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Breakdown, Profile, Source, Work
from finegauge.render import number_format as fmt
from finegauge.render.instruments import instrument_sections
from finegauge.render.json import document
from finegauge.render.measurement import beside, headline, measure_report
from finegauge.render.report import plain as untoned
from finegauge.render.terminal import report_lines, section_lines
from finegauge.run.run import Run

RUN = Run(model="llama-2-7b", method="lora", weights_dtype="bf16")
MEASURED = Profile(
    run=RUN,
    source=Source("measured", "here", assumptions=("2 steps of warm-up discarded",)),
    peak_memory_bytes=Breakdown.of(weights=3 * 2.0**20, activations=2.0**20),
    phase_memory_bytes=Breakdown({("forward", "weights"): 2.0**20, ("backward", "weights"): 4 * 2.0**20}),
    peak_phase="backward",
    step_time_s=Breakdown({("forward", "mlp", "w1"): 0.020, ("backward", "mlp", "w1"): 0.080}),
    step_times_s=(0.1, 0.1),
    step_tokens=200.0,
    fingerprint={"device": "a processor", "threads": "2", "torch": "2.13"},
    observations={"timing": {"p10_s": 0.09, "p90_s": 0.12, "spread_fraction": 0.3, "waited_fraction": 0.2}},
)
PREDICTED = Profile(
    run=RUN,
    source=Source("predicted", "test"),
    device_memory_bytes=Breakdown.of(weights=3 * 2.0**20),
    peak_memory_bytes=Breakdown.of(weights=3 * 2.0**20, activations=2 * 2.0**20),
    phase_memory_bytes=MEASURED.phase_memory_bytes,
    step_time_s=Breakdown({("forward", "mlp", "w1"): 0.018, ("backward", "mlp", "w1"): 0.040}),
    step_tokens=100.0,
    capacity_bytes=2.0**30,
)
WORK: dict[tuple[str, ...], Work] = {
    ("backward", "mlp", "w1"): Work(flops=4e9),
    ("forward", "mlp", "w1"): Work(num_bytes=2.0**20),
}
PREDICTION = Prediction(PREDICTED, {("activations",): "tokens x H x 2 B"}, WORK)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def text(measured: Profile = MEASURED, prediction: Prediction = PREDICTION) -> str:
    return "\n".join(report_lines(measure_report(measure_answer([(measured, prediction)]))))


def test_the_headline_has_the_step_its_spread_and_the_peak() -> None:
    assert untoned(headline(MEASURED)) == (
        "Measured on a processor: 100 ms [90.0 ms – 120 ms] a step, 2,000 tokens/s, peak 4.00 MiB."
    )


def test_measured_stands_beside_predicted() -> None:
    shown = text().splitlines()
    (stage,) = [line.split() for line in shown if line.startswith("  backward   80.0")]
    assert stage == ["backward", "80.0", "ms", "80", "%", "40.0", "ms", "-50", "%"]
    (kind,) = [line.split() for line in shown if line.startswith("  activations")]
    assert kind == ["activations", "1.00", "MiB", "25", "%", "2.00", "MiB", "+100", "%"]
    assert any("mlp" in line and "w1" in line for line in shown)


def test_the_largest_differences_are_explained() -> None:
    shown = " ".join(text().split())
    assert "time, backward / mlp / w1: 40.0 ms more than predicted (80.0 ms against 40.0 ms)" in shown
    assert "4.00 GFLOP at 50.0 GFLOP/s, predicted at 100 GFLOP/s" in shown
    assert "within the spread of the steps (30 %)" in shown
    assert "memory, activations: 1.00 MiB less than predicted" in shown
    assert "predicted as tokens x H x 2 B" in shown
    assert "for 20 % of the time the steps waited for a processor" in shown
    assert "held 200 tokens on average, the data set's mean is 100" in shown


def test_without_a_prediction_the_measurement_stands_alone() -> None:
    shown = text(prediction=Prediction(None, {}, {}, "Run 'finegauge micro' once."))
    assert "predicted" not in shown
    assert "Run 'finegauge micro' once." in shown


def test_memory_alone_may_be_predicted() -> None:
    memory = PREDICTED._replace(step_time_s=Breakdown({}))
    shown = text(prediction=Prediction(memory, {}, {}, "Time is not predicted."))
    heading = next(line for line in shown.splitlines() if line.startswith("  stage  "))
    assert heading.split() == ["stage", "measured", "share"]
    assert "+100 %" in shown


@pytest.mark.parametrize(
    ("outcome", "word"),
    [("out_of_memory", "Out of memory"), ("failed", "No data"), ("interrupted", "Interrupted")],
)
def test_a_trial_without_data_says_why(outcome: str, word: str) -> None:
    failed = Profile(run=RUN, source=Source("measured", "here"), outcome=outcome, reason="a reason")
    shown = text(failed)
    assert shown.startswith(f"{word}: a reason.")
    assert "Predicted: completed, 3.00 MiB of 1.00 GiB usable." in shown
    limited = text(failed._replace(capacity_bytes=2.0**20))
    assert "Predicted: out of memory, 3.00 MiB of 1.00 MiB usable." in limited


def test_parts_of_either_side_are_there() -> None:
    parts = beside(Breakdown.of(a=1.0), Breakdown.of(b=2.0), 1)
    assert [(part.path, part.measured, part.predicted) for part in parts] == [
        ((), 1.0, 2.0),
        (("a",), 1.0, 0.0),
        (("b",), 0.0, 2.0),
    ]


@pytest.mark.parametrize(
    ("name", "seen", "said"),
    [
        ("energy", {"energy_j": 30.0, "steps": 3, "source": "rapl"}, "10.0 J a step (rapl)"),
        ("energy", {"energy_j": None, "note": "no counters"}, "not measured: no counters"),
        (
            "kernels",
            {
                "by_kind_s": {"matmul": 0.05},
                "step_time_s": 0.1,
                "host_bound_fraction": 0.25,
                "utilisation": {
                    "all": {"flops_per_s": 4e9, "memory_bytes_per_s": 2.0**31, "compute_fraction": 0.4}
                },
            },
            "matmul 50.0 ms 50 % between them 50.0 ms 50 % "
            "While kernels run: 4.00 GFLOP/s (40 % of the peak), 2.00 GiB/s, weighted by time.",
        ),
        (
            "kernels",
            {
                "by_kind_s": {"matmul": 0.1},
                "step_time_s": 0.1,
                "host_bound_fraction": 0.0,
                "rows": [
                    {"stage": "forward", "role": ["moe", "w1"], "kind": "matmul", "time_s": s, "flops": 1e9}
                    for s in (0.03, 0.02)
                ],
            },
            "forward moe w1 matmul 50.0 ms 50 % 40.0 GFLOP/s",
        ),
        (
            "experts",
            {"layers": [{"layer": "l.0", "tokens_per_expert": [3, 1], "imbalance_ratio": 1.5}]},
            "l.0 3 1 1.50",
        ),
        (
            "experts",
            {
                "layers": {"l.0": {"tokens_per_expert": [3, 1], "imbalance_ratio": 1.5}},
                "mean": {"imbalance_ratio": 1.5, "variance_population": 1.0, "variance_sample": 2.0},
                "capacity": {
                    "factors": [{"capacity_factor": 1.25, "dropped_fraction": 0.125}],
                    "padded_to_fullest_rows_ratio": 1.5,
                },
            },
            "variance 1.00 (sample 2.00). Capped at the mean times a factor, tokens dropped: 12 % at 1.25x. "
            "Padded to the fullest, 1.50 times the rows.",
        ),
        ("experts", {"unavailable": "no experts"}, "not available: no experts"),
        (
            "evaluation",
            {
                "task": "arithmetic",
                "num_test": 9,
                "epochs": [{"epoch": 0, "exact_match_fraction": 0.25, "loss": None}],
            },
            "0 25 % -",
        ),
        (
            "evaluation",
            {"epochs": [{"epoch": 1, "exact_match_fraction": 0.25, "acc_fraction": 0.5, "loss": 1.0}]},
            "epoch exact match choice loss 1 25 % 50 % 1.000",
        ),
        ("tasks", {"gsm8k": {"exact_match,none": 0.25}}, "gsm8k exact_match,none 0.2500"),
        ("steps", {"losses": [2.0, 1.5], "details": {"ttft_s": 0.5}}, "loss 2.0000 at first, 1.5000 at last"),
        ("layers", {"overhead_ratio": 1.04, "notes": ["a note"]}, "+4.0 % a note"),
        ("gpm", {"sm_fraction": 0.5}, "sm 50 %"),
        ("ncu", {"unavailable": "ncu is not installed"}, "not available: ncu is not installed"),
    ],
)
def test_what_each_instrument_saw(name: str, seen: dict[str, Any], said: str) -> None:
    lines = [line for part in instrument_sections({name: seen}) for line in section_lines(part)]
    assert said in " ".join(" ".join(lines).split())


def test_the_json_says_both_sides_and_the_differences() -> None:
    odd = MEASURED._replace(observations={"steps": {"losses": [float("nan")]}})
    (result,) = json.loads(document("measure", measure_answer([(odd, PREDICTION)])))["results"]
    assert result["outcome"] == "completed"
    assert result["measured"]["step_times_s"] == [0.1, 0.1]
    assert result["measured"]["step_energy_j"] is None
    assert result["measured"]["observations"]["steps"]["losses"] == [{"float": "nan"}]
    assert result["predicted"]["step_time_s"] == pytest.approx(0.058)
    by_path = {(d["quantity"], *d["path"]): d["error_ratio"] for d in result["differences"]}
    assert by_path["step_time_s", "backward", "mlp", "w1"] == pytest.approx(-0.5)
    nothing = Prediction(None, {}, {}, "why")
    (alone,) = json.loads(document("measure", measure_answer([(odd, nothing)])))["results"]
    assert (alone["predicted"], alone["not_predicted"], alone["differences"]) == (None, "why", [])


def test_what_one_side_does_not_know_is_a_dash_and_no_error_has_no_sign() -> None:
    own = MEASURED._replace(
        peak_memory_bytes=Breakdown.of(weights=3 * 2.0**20, logits=1.0),
        device_memory_bytes=Breakdown.of(weights=3 * 2.0**20, logits=1.0, slack=2.0**20),
        fingerprint={"threads": "1"},
        step_flops=1e9,
        peak_flops_per_s=1e11,
    )
    lines = [" ".join(line.split()) for line in text(own).splitlines()]
    assert "weights 3.00 MiB >99 % 3.00 MiB 0 %" in lines
    assert "logits 1 B <1 % - -" in lines
    assert "activations - - 2.00 MiB -" in lines
    assert "Beside this the process holds 1.00 MiB (allocator, libraries)." in lines
    assert "tokens/s, MFU 10 %, peak 3.00 MiB." in lines[0]
    assert any(line.startswith("Machine 1 thread") for line in lines)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12.0, "12.0 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (0.0, "0 us")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert fmt.duration(seconds) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(3 * 2.0**30, "3.00 GiB"), (1.5 * 2.0**20, "1.50 MiB"), (2048.0, "2.00 KiB"), (12.0, "12 B")],
)
def test_sizes(num_bytes: float, shown: str) -> None:
    assert fmt.size(num_bytes) == shown


def test_prefixes() -> None:
    assert [fmt.si(value) for value in (4.29e9, 812.0, 1.5e13)] == ["4.29 G", "812 ", "15.0 T"]
