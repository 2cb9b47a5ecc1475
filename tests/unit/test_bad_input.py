"""Bad input ends in one sentence and exit code 64, never in a traceback, never in a long wait."""

import os
import random
import time
from pathlib import Path

import pytest

from finegauge.errors import EXIT_BAD_INPUT, InputError, did_you_mean
from finegauge.formats.reading import read
from finegauge.run.run import Run

GOOD = "model: mixtral-8x7b\nmethod: qlora\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)


def refusal(path: Path, *overrides: str) -> str:
    """Return the sentence with which `read` refuses."""
    with pytest.raises(InputError) as caught:
        read(path, overrides)
    sentence = str(caught.value)
    assert caught.value.exit_code == EXIT_BAD_INPUT == 64
    assert "\n" not in sentence
    assert sentence.isprintable()
    assert sentence.endswith((".", "?", "'"))
    assert 10 < len(sentence) < 400
    return sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no keys"),
        ("# nothing\n", "holds no keys"),
        ("just words", "not keys with values"),
        ("- a\n- b\n", "not keys with values"),
        ("a: b: c\n", "is not valid YAML"),
        ("model: [\n", "is not valid YAML"),
        (BOMB, "too many aliases"),
        ("model: !!python/object/apply:os.system ['touch pwned']\n", "is refused"),
        ("model: !!python/name:os.system\n", "is refused"),
        ("[" * 5000, "nest"),  # "nested too deeply", or PyYAML's own words since 6.0.4
        ("model: mixtral-8x7b\n", "does not state its method"),
        ("method: lora\n", "does not state its model"),
        (
            GOOD + "batchsize: 4\n",
            "unknown key 'batchsize'. Did you mean 'eval_batch_size' or 'micro_batch_size'",
        ),
        ("model: mixtrall-8x7b\nmethod: lora\n", "No model named 'mixtrall-8x7b'. Did you mean"),
        ("model: ../../etc/passwd\nmethod: lora\n", "etc/passwd"),
        ("model: /dev/zero\nmethod: lora\n", "'/dev/zero' is not a file"),
        ("model_name_or_path:\nstage: sft\n", "does not state its model"),
        ("model: {a: 1}\nmethod: lora\n", "model"),
        (GOOD + "gpu: A400\n", "No GPU named 'A400'. Did you mean"),
        (GOOD + "dataset: maths\n", "maths"),
        (GOOD + "micro_batch_size: 0\n", "micro_batch_size=0 is too small; it must be at least 1"),
        (GOOD + "micro_batch_size: -1\n", "micro_batch_size=-1 is too small"),
        (GOOD + "micro_batch_size: two\n", "micro_batch_size='two' is not a whole number"),
        (GOOD + "micro_batch_size: [1]\n", "micro_batch_size='[1]' is not a whole number"),
        (GOOD + "micro_batch_size: 1e300\n", "too large"),
        (GOOD + "micro_batch_size: .inf\n", "micro_batch_size=inf is not a whole number"),
        (GOOD + "seq_len: 99999999\n", "it must be at most 16,777,216 tokens"),
        (GOOD + "seq_len: " + "9" * 4400 + "\n", "is not a whole number"),
        (GOOD + "lora_rank: 5000\n", "lora_rank=5000 exceeds hidden_size=4096 of mixtral-8x7b"),
        (GOOD + "epochs: .nan\n", "epochs=nan is not a finite number"),
        (
            GOOD + "tensor_parallel: 3\n",
            "tensor_parallel=3 does not divide num_key_value_heads=8 of mixtral-8x7b",
        ),
        (GOOD + "method: lora\n", "the key 'method' is given twice"),
        (GOOD + "weights_dtype: bf16\n", "method=qlora needs weights_dtype"),
        (GOOD + "gpu: " + "A" * 100_000 + "\n", "gpu="),
    ],
    ids=lambda value: value[:40].replace("\n", " "),
)
def test_files(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content, encoding="utf-8")
    started = time.monotonic()
    assert sentence in refusal(path)
    assert time.monotonic() - started < 2
    assert not (tmp_path / "pwned").exists()


def test_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "mixtral.yaml").write_text(GOOD)
    assert "Did you mean 'mixtral.yaml'" in refusal(tmp_path / "mixtrel.yaml")
    refusal(tmp_path / "nowhere" / "run.yaml")
    refusal(Path("\0"))
    refusal(Path("x" * 5000))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x00\x01\x02model: x", "is binary"),
        (b"model: caf\xe9\n", "is not UTF-8 text"),
        ("model: x\n".encode("utf-16"), "is not UTF-8 text"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), "is binary"),
        (b"model: \x1b[31mred\n", "is binary"),
    ],
)
def test_binary_files(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    assert sentence in refusal(path)


def test_ten_megabytes_of_garbage(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(random.Random(0).randbytes(10_000_000))
    started = time.monotonic()
    assert refusal(path) == "run.yaml is 10.0 MB; FineGauge reads at most 2 MB."
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "pattern", ["a", "[", "{", "- ", "a: b\n", "? ", "'", "&a ", "*a ", "!!x ", "%", "\t", "a:\n "]
)
def test_two_megabytes_of_anything_end_soon(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(pattern * (1_900_000 // len(pattern)))
    started = time.monotonic()
    refusal(path)
    assert time.monotonic() - started < 5


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refusal(tmp_path / "pipe")
    deep = tmp_path / "a_folder_of_a_long_name" / "and_another_one"
    deep.mkdir(parents=True)
    os.mkfifo(deep / "the_pipe")
    assert refusal(deep / "the_pipe").endswith("/the_pipe' is not a file.")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read" in refusal(loop)


def test_the_same_from_python() -> None:
    with pytest.raises(InputError, match="micro_batch_size=0"):
        Run(model="mixtral-8x7b", method="qlora", micro_batch_size=0)


def test_a_hint_is_close_or_none() -> None:
    known = ("r", "lr", "micro_batch_size", "h100")
    assert did_you_mean("lazy_preprocess", known) == ""  # which holds an "r", as most words do
    assert did_you_mean("mic", known) == " Did you mean 'micro_batch_size'?"
    assert did_you_mean("h100_sxm", known) == " Did you mean 'h100'?"
