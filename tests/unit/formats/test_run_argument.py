"""What people have in hand: a name, an id, a page, a folder, a file, standard input, a command."""

import io
import json
from pathlib import Path

import pytest

from finegauge.cli import _with_command
from finegauge.errors import FileFormatError, InputError
from finegauge.formats import run_argument
from finegauge.formats.reading import read
from finegauge.formats.run_argument import COMMAND, FILE, MODEL, STDIN, resolve
from tests.unit.formats.finished import saved_arguments

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128}
RUN = "model: qwen3-8b\nmethod: lora\n"


def kind_of(argument: str) -> tuple[str, str]:
    found = resolve(argument, lambda path: path.endswith("train.yaml"))
    return found.kind, found.value


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("qwen3-8b", "Qwen/Qwen3-8B"),
        ("QWEN3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("somebody/a_model.of-hers", "somebody/a_model.of-hers"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json?x=1#L3", "Qwen/Qwen3-8B"),
        ("http://www.huggingface.co/Qwen/Qwen3-8B/", "Qwen/Qwen3-8B"),
        ("huggingface.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("hf.co/Qwen/Qwen3-8B@main", "Qwen/Qwen3-8B"),
        ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("hf://models/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("https://huggingface.co/openai-community/gpt2", "openai-community/gpt2"),
    ],
)
def test_names_ids_and_pages(argument: str, name: str) -> None:
    assert kind_of(argument) == (MODEL, name)


@pytest.mark.parametrize(
    ("said", "model", "gives"),
    [
        ("llama 3.1 8b", "meta-llama/Meta-Llama-3.1-8B", {}),
        ("qwen3 8b qlora 4090", "Qwen/Qwen3-8B", {"method": "qlora", "gpu": "4090"}),
        ("mistral-7b on a 3090", "mistralai/Mistral-7B-v0.1", {"gpu": "3090", "num_gpus": 1}),
        ("qwen3 8b dpo 4k context on a t4", "Qwen/Qwen3-8B", {"phase": "dpo", "seq_len": 4096, "gpu": "t4"}),
        ("llama 3 8b in 4bit", "meta-llama/Meta-Llama-3-8B", {"method": "qlora"}),
        ("phi 4 l4", "microsoft/phi-4", {"gpu": "l4", "num_gpus": 1}),
        ("gemma 3 27b 2 h100", "google/gemma-3-27b-it", {"gpu": "h100", "num_gpus": 2}),
        ("llama 3.3 70b zero3 on 8 x h100 batch=2", "llama-3.3-70b-instruct", {"num_gpus": 8}),
        ("Qwen/Qwen3-8B with two a100 80gb", "Qwen/Qwen3-8B", {"gpu": "a100 80gb", "num_gpus": 2}),
    ],
)
def test_a_model_and_its_gpu_in_words(said: str, model: str, gives: dict[str, object]) -> None:
    first, *words = said.split()
    for run in (read(first, words), read(said)):
        assert run.model == model
        assert {name: getattr(run, name) for name in gives} == gives
        assert run.sharding == ("zero3" if "zero3" in said else "none")
        assert run.micro_batch_size == (2 if "batch=2" in said else 1)


def test_a_file_takes_its_gpu_in_words(tmp_path: Path) -> None:
    (tmp_path / "my run.yaml").write_text(RUN)
    assert read(tmp_path / "my run.yaml", ("on", "an", "a40")).gpu == "a40"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("qwen3-8b lroa", "'lroa' is not of the form key=value"),
        ("qwen3-8b on a toaster", "'toaster' is not of the form key=value"),
        ("h100", "'h100' is a GPU; name a model before it, such as Qwen/Qwen3-8B --gpu h100"),
    ],
)
def test_words_that_name_nothing(said: str, sentence: str) -> None:
    first, *words = said.split()
    with pytest.raises(InputError, match=sentence):
        read(first, words)


@pytest.mark.parametrize(
    "path", ["none.yaml", "./Qwen/Qwen3-8B", "../x", "/none/at/all", "C:\\x", "a b", "x.ipynb"]
)
def test_paths_of_nothing_are_files(path: str) -> None:
    assert kind_of(path) == (FILE, path)
    with pytest.raises(InputError, match="No file"):
        read(path)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("llama3.2", "several sizes .1b, 3b, 11b, 90b.: name one, as llama3.2:1b"),
        ("qwen3-8", "No file, folder or model named 'qwen3-8'. Did you mean 'qwen3-8b'"),
        ("trian", "Did you mean 'train'"),
        ("Qwen/Qwen3-8", "No model named 'Qwen/Qwen3-8'. Did you mean 'Qwen/Qwen3-8B'"),
        ("hf.co/datasets/tatsu-lab/alpaca", "no model's page"),
        ("https://huggingface.co/", "names no model"),
    ],
)
def test_names_of_nothing(
    argument: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").touch()
    with pytest.raises(InputError, match=sentence):
        read(argument)


def test_what_lies_on_disk_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-8b").write_text(RUN, "utf-8")
    assert kind_of("qwen3-8b") == (FILE, "qwen3-8b")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"no config.json, no adapter_config.json and no training file"):
        read(tmp_path)
    (tmp_path / "a_train.yaml").write_text(RUN, "utf-8")
    (tmp_path / "other.yaml").write_text("x: 1\n", "utf-8")
    assert read(tmp_path).model == "qwen3-8b"
    (tmp_path / "b_train.yaml").write_text(RUN, "utf-8")
    with pytest.raises(InputError, match=r"2 training files: name one of a_train.yaml, b_train.yaml"):
        read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    assert kind_of(str(tmp_path)) == (MODEL, str(tmp_path))
    assert read(tmp_path).config["hidden_size"] == 64
    adapters = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B", "r": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapters), "utf-8")
    assert read(tmp_path).lora_rank == 4


def test_a_folder_that_a_training_wrote_is_that_training(tmp_path: Path) -> None:
    for steps, rank in ((60, 8), (120, 32)):
        saved = tmp_path / f"checkpoint-{steps}"
        saved.mkdir()
        adapters = {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B", "r": rank}
        (saved / "adapter_config.json").write_text(json.dumps(adapters), "utf-8")
    alone = read(tmp_path)  # adapters tell of no trainer: the rest is as of a bare name
    assert (alone.lora_rank, alone.weights_dtype, alone.framework) == (32, "bf16", "")
    saved_arguments(saved / "training_args.bin", per_device_train_batch_size=3, bf16=True)
    run = read(tmp_path)
    assert (run.model, run.lora_rank, run.micro_batch_size, run.autocast) == ("Qwen/Qwen3-8B", 32, 3, "bf16")
    assert "the run that wrote this folder is read" in run.warnings[0]


@pytest.mark.parametrize("text", [RUN, json.dumps({"model": "qwen3-8b", "method": "lora"})])
def test_standard_input(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(text.encode(), monkeypatch)
    assert kind_of("-") == (STDIN, "")
    assert read("-") == read("-", ("lora_rank=16",))
    assert read("-").model == "qwen3-8b"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "standard input holds no keys"),
        (b"\xff\xfe", "standard input is not UTF-8"),
        (b"a\0b: c", "standard input is binary"),
        (b"x" * 3_000_000, "at most 2 MB"),
    ],
)
def test_standard_input_that_is_none(data: bytes, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(data, monkeypatch)
    with pytest.raises(InputError, match=sentence):
        read("-")


def test_standard_input_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_argument.standard_input.cache_clear()
    with open(tmp_path / "out", "wb") as out, open(out.fileno(), encoding="utf-8", closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(InputError, match=r"Standard input cannot be read: .+\."):
            read("-")


def piped(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    run_argument.standard_input.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_command() -> None:
    words = ["seq_len=4096", "--gpu", "h100", "--", "swift", "sft", "--model", "Qwen/Qwen3-8B", "--x", "a b"]
    word, *rest = _with_command(words)
    assert rest == ["seq_len=4096", "--gpu", "h100"]
    assert kind_of(word) == (COMMAND, "swift sft --model Qwen/Qwen3-8B --x 'a b'")
    assert read(word).model == "Qwen/Qwen3-8B"
