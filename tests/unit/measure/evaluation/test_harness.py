"""lm-evaluation-harness scores the model that is here, on a task from a local folder, offline."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from finegauge.errors import UnknownNameError, UnsupportedError
from finegauge.measure.evaluation.harness import harness_scores
from finegauge.measure.models import subject_of
from finegauge.measure.subject import Subject
from tests.unit.measure.evaluation.test_tasks import tokenizer
from tests.unit.measure.evaluation.tiny import CONFIG, tiny_run

needs_harness = pytest.mark.skipif(
    find_spec("lm_eval") is None,
    reason="lm-evaluation-harness is not installed: pip install 'finegauge[harness]'",
)

EXACT = """
task: tiny_sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["x"], max_gen_toks: 2, do_sample: false}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
CHOICE = """
task: tiny_endings
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["3", "4"]
doc_to_target: 0
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - {{metric: acc_norm, aggregation: mean, higher_is_better: true}}
"""


def subject(folder: Path) -> Subject:
    """Return a tiny model that knows as many tokens as the tokenizer of characters."""
    run = tiny_run(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 128}))
    return subject_of(run, "cpu")


@needs_harness
def test_scores_of_local_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"question": "1+{n}=", "answer": "{n + 1}"}}\n' for n in range(6)))
    for name, text in (("exact", EXACT), ("choice", CHOICE)):
        (tmp_path / f"{name}.yaml").write_text(text.format(data=data))
    tokenizer(tmp_path, by_character=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "~", "pad_token": "~"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    model = subject(tmp_path)
    found = harness_scores(
        model, ["tiny_sums", "tiny_endings"], tokenizer=str(tmp_path), folder=str(tmp_path), limit=4
    )
    assert set(found) == {"tiny_sums", "tiny_endings"}
    assert found["tiny_sums"]["exact_match,none"] == 0.0  # it has learnt nothing
    assert set(found["tiny_endings"]) >= {"acc,none", "acc_norm,none"}
    assert found["tiny_endings"]["acc,none"] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert model.model.training


@needs_harness
def test_a_task_that_it_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "exact.yaml").write_text(EXACT.format(data="unread.jsonl"))
    with pytest.raises(UnknownNameError, match="Did you mean 'tiny_sums'"):
        harness_scores(subject(tmp_path), ["tiny_sum"], tokenizer=str(tmp_path), folder=str(tmp_path))


def test_without_the_harness_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'finegauge\[harness\]'"):
        harness_scores(subject(tmp_path), ["gsm8k"], tokenizer=str(tmp_path))
