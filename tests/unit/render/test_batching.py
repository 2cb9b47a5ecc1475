"""What the terminal and JSON say of a run's batches."""

import json
from typing import Any

import pytest

from finegauge.answers.files import batching_figures, data_answer
from finegauge.data import batch_shape
from finegauge.data.token_lengths import Lengths
from finegauge.render.files import data_report
from finegauge.render.json import encoded
from finegauge.render.terminal import report_lines
from finegauge.run.run import Run
from tests.unit.data.samples import lengths_of

TOKENS = [100 + (37 * n * n) % 400 for n in range(400)]
TOKENS[123], TOKENS[300] = 4000, 3900


def run_of(**fields: Any) -> Run:
    common: dict[str, Any] = {"model": "llama-2-7b", "method": "lora", "seq_len": 4096, "gpu": "A40"}
    return Run(**{**common, "dataset": "mine.jsonl", "micro_batch_size": 2, **fields})


def batching_lines(lengths: Lengths, run: Run) -> list[str]:
    """Return what a terminal shows of the batches alone."""
    return report_lines(data_report(data_answer(lengths, "a tokenizer", [run])._replace(warnings=())))


def batching_json(lengths: Lengths, run: Run) -> Any:
    return encoded(batching_figures(lengths, run))


def test_lines_of_a_padded_run() -> None:
    text = "\n".join(batching_lines(lengths_of(TOKENS), run_of(framework="TRL")))
    assert "as TRL makes them: 2 x 1 sequences a step" in text
    assert "200 in an epoch, 200 in the run" in text
    assert "Over 200 steps on A40: " in text
    assert "247 (4,000 tokens)" in text  # the line, not the place
    assert "of the samples, line 247 (4,000 tokens), 601 (3,900 tokens)." in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines())


def test_lines_without_a_gpu() -> None:
    text = "\n".join(batching_lines(lengths_of(TOKENS), run_of(gpu=None)))
    assert "8,000 tokens in a micro-batch" in text
    assert "--gpu says whether it fits" in text


def test_lines_of_a_phase_that_makes_other_batches() -> None:
    text = "\n".join(batching_lines(lengths_of(TOKENS), run_of(phase="dpo")))
    assert "'finegauge check' says whether phase=dpo fits" in " ".join(text.split())


def test_a_run_too_long_to_draw_says_how_much_of_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_shape, "SAMPLES_DRAWN", 400)
    text = "\n".join(
        batching_lines(lengths_of(TOKENS), run_of(framework="TRL", epochs=3, pad_to_multiple_of=1))
    )
    assert "Over the first 200 of 600 steps on A40: " in text
    assert "padded to the longest of a micro-batch of 2\n" in text  # and of no multiple


def test_lines_of_packs() -> None:
    text = "\n".join(
        batching_lines(lengths_of(TOKENS), run_of(packing=True, seq_len=512, over_length="drop"))
    )
    packed = "samples packed into each sequence (best_fit_decreasing), 2 dropped"
    assert packed in " ".join(text.split())
    assert "% full" in text
    assert "7,900 tokens beyond the cut-off" in text


def test_lines_of_a_framework_that_drops_the_rest() -> None:
    run = run_of(framework="torchtune", micro_batch_size=8, gradient_accumulation_steps=7, num_gpus=1)
    assert "  left out     8 samples" in "\n".join(batching_lines(lengths_of(TOKENS), run))


def test_json_is_json_and_agrees_with_the_lines() -> None:
    found = json.loads(json.dumps(batching_json(lengths_of(TOKENS), run_of(epochs=2))))
    assert (found["steps_per_epoch"], found["steps_total"], found["num_samples"]) == (200, 400, 400)
    assert found["whole_run"]["worst"][0]["offenders"] == [{"sample": 123, "row": 247, "tokens": 4000}]
    assert found["whole_run"]["verdict"] in ("fits", "risky", "will_not_fit")
    assert found["longest_micro_batch_tokens"] == found["whole_run"]["worst"][0]["tokens"] == 8000
    assert batching_json(lengths_of(TOKENS), run_of(gpu=None))["whole_run"] is None
