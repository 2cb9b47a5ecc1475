"""Fields that a training file states in a comment, because its framework refuses keys it does not know."""

from pathlib import Path

import pytest

from finegauge.errors import InputError
from finegauge.formats.reading import describe
from finegauge.run.run import FROM_FILE, Run

TRAINING = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\n"


def lf(folder: Path, text: str, *words: str, name: str = "train.yaml") -> Run:
    """Return the run of a training file of that text."""
    (folder / name).write_text(text)
    return describe(folder / name, words)


def test_a_comment_states_fields(tmp_path: Path) -> None:
    head = "# any words\n#finegauge: {gpu: A40, num_gpus: 2, transformers_version: '4.40'}\n"
    run = lf(tmp_path, head + TRAINING)
    assert (run.gpu, run.num_gpus, run.transformers_version) == ("A40", 2, "4.40")
    assert run.origins["gpu"] == FROM_FILE
    assert run.warnings == ()
    assert lf(tmp_path, head + TRAINING, "gpu=H100").gpu == "H100"


def test_the_block_wins_over_the_comment(tmp_path: Path) -> None:
    run = lf(tmp_path, f"# finegauge: {{gpu: A40, num_gpus: 2}}\n{TRAINING}finegauge: {{gpu: L4}}\n")
    assert (run.gpu, run.num_gpus) == ("L4", 2)


def test_toml_has_comments_too(tmp_path: Path) -> None:
    job = '[model]\nflavor = "8B"\nname = "llama3"\n[training]\nsteps = 5\n'
    assert lf(tmp_path, f"# finegauge: {{gpu: H100}}\n{job}", name="job.toml").gpu == "H100"


@pytest.mark.parametrize(
    "comment",
    [
        "# finegauge: remember to run it again\n",
        f"{TRAINING}# finegauge: {{gpu: A40}}\n",
        "# finegauge: {}\n",
    ],
)
def test_other_comments_say_nothing(tmp_path: Path, comment: str) -> None:
    text = comment if TRAINING in comment else comment + TRAINING
    assert lf(tmp_path, text).gpu is None


@pytest.mark.parametrize(
    ("comment", "sentence"),
    [
        ("{gpuu: A40}", "Did you mean 'gpu'"),
        ("{gpu: [}", "is not valid YAML"),
        ("{num_gpus: two}", "whole number"),
    ],
)
def test_a_wrong_comment_is_one_sentence(tmp_path: Path, comment: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        lf(tmp_path, f"# finegauge: {comment}\n{TRAINING}")
