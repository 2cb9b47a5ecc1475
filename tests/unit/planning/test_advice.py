"""What makes a run fit: each way is safe when asked anew, the cheapest first; the files read back."""

from pathlib import Path

import pytest

from finegauge.formats.reading import read
from finegauge.planning.advice import OTHER, SAME, Advice, advise, fix
from finegauge.planning.estimate import estimate
from finegauge.planning.whatif import Variant
from finegauge.prediction.uncertainty import FITS
from finegauge.run.run import Run

FULL = Run(
    model="Qwen/Qwen3-8B", method="full", gpu="RTX 4090", num_samples=1000, activation_checkpointing="full"
)
LARGE_BATCH = Run(
    model="Qwen/Qwen3-8B", method="lora", gpu="L4", micro_batch_size=16, seq_len=2048, num_samples=1000
)
BATCH = Run(
    model="Qwen/Qwen3-8B", method="lora", gpu="RTX 4090", micro_batch_size=8, seq_len=1024, num_samples=1000,
    activation_checkpointing="full",
)  # fmt: skip
AXOLOTL = """
base_model: Qwen/Qwen3-8B
adapter: lora
lora_r: 16
lora_target_linear: true
datasets: [{path: tatsu-lab/alpaca, type: alpaca}]
sequence_len: 2048
micro_batch_size: 8
gradient_accumulation_steps: 4
num_epochs: 1
learning_rate: 0.0002
bf16: true
"""


def kinds(advice: Advice) -> list[int]:
    """Return of what kind each way is: 1 the same training here, 2 another, 3 elsewhere."""

    def kind(one: Variant) -> int:
        if "gpu" in one.changes or "num_gpus" in one.changes:
            return 3
        return 2 if one.switch in OTHER else 1

    return [kind(one) for one in advice.found.variants]


@pytest.mark.parametrize("run", [FULL, BATCH])
def test_every_way_is_safe_when_asked_anew(run: Run) -> None:
    advice = advise(run)
    assert advice.found.variants
    for one in advice.found.variants:
        changed = run.replace(**one.changes)
        assert estimate(changed).verdict == FITS, one.switch


def test_the_training_is_kept_before_it_is_changed_and_money_comes_last() -> None:
    advice = advise(BATCH)
    for one, expected in ((advice, {1, 3}), (advise(FULL), {2, 3})):
        found = kinds(one)
        assert found == sorted(found)
        assert set(found) == expected
    bills = [one.standing.outcome.on_demand_usd for one in advice.found.variants if one.switch in SAME]
    assert bills == sorted(bills, key=lambda usd: usd or 0.0)


def test_of_other_trainings_the_nearest_comes_first() -> None:
    names = [one.switch for one in advise(FULL).found.variants]
    assert names.index("lora") < names.index("qlora") < names.index("A100-SXM4-80GB")


def test_several_together_where_none_alone_does_and_all_of_them_are_needed() -> None:
    advice = advise(LARGE_BATCH)
    assert 1 not in kinds(advice)
    assert advice.together is not None
    assert estimate(advice.together.standing.run).verdict == FITS
    changes = advice.together.changes
    needed = {"micro_batch_size", "activation_checkpointing", "loss"}
    assert needed <= changes.keys()
    for name in needed:
        less = {field: value for field, value in changes.items() if field != name}
        assert estimate(LARGE_BATCH.replace(**less)).verdict != FITS


def test_what_cannot_be_made_to_fit_names_the_smallest_hardware() -> None:
    advice = advise(Run(model="Llama-3.1-70B", method="qlora", gpu="RTX 4090", num_samples=100))
    assert advice.together is None
    assert set(kinds(advice)) == {3}
    assert advice.smallest is not None
    found = estimate(advice.smallest.standing.run)
    assert found.verdict == FITS
    smaller = found.run.replace(gpu="A40", num_gpus=1, sharding="none")
    assert estimate(smaller).verdict != FITS


def test_a_frameworks_file_is_written_back_as_its_own(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(AXOLOTL)
    run = read(file, ("gpu=RTX 4090",))
    assert estimate(run).verdict != FITS
    done = fix(run, advise(run), tmp_path / "fixed", recipe=str(file))
    assert done is not None
    again = read(done.written.paths[0], ("gpu=RTX 4090",))
    assert (again.framework, done.framework) == ("Axolotl", "axolotl")
    assert estimate(again).verdict == FITS
    assert again.global_batch_size == run.global_batch_size
    assert "type: alpaca" in Path(done.written.paths[0]).read_text()


def test_a_run_without_a_framework_is_written_as_a_run_file(tmp_path: Path) -> None:
    done = fix(FULL, advise(FULL), tmp_path, recipe="Qwen/Qwen3-8B")
    assert done is not None
    again = read(done.written.paths[0])
    assert (again.method, again.num_samples, again.gpu) == ("lora", 1000, "RTX 4090")
    assert estimate(again).verdict == FITS


def test_a_length_that_was_assumed_to_compare_is_not_written(tmp_path: Path) -> None:
    run = FULL.replace(num_samples=None)
    done = fix(run, advise(run), tmp_path, recipe="Qwen/Qwen3-8B")
    assert done is not None
    assert read(done.written.paths[0]).num_samples is None
