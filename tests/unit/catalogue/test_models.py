"""Model look-ups by name, alias, foreign id and file."""

import json
from pathlib import Path

import pytest

from finegauge.catalogue.models import model, models
from finegauge.errors import FieldError, FileFormatError, InputError, UnknownNameError

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("blackmamba-2.8b", "Zyphra/BlackMamba-2.8B"),
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("Qwen3-8B", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-32B"),
        ("unsloth/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ],
)
def test_names_and_aliases(name: str, means: str) -> None:
    assert model(name).name == means
    assert model(name) == models()[means]


def test_blackmamba_is_told_apart() -> None:
    assert model("blackmamba-2.8b").config["model_type"] == "blackmamba"
    assert model("blackmamba-2.8b").parameters == 2_783_213_584


@pytest.mark.parametrize(
    "name", ["llama-3-9b", "", "parameters", "/", "mistralai/", '"', "klue/roberta-base"]
)
def test_unknown_names(name: str) -> None:
    with pytest.raises((UnknownNameError, InputError)):
        model(name)


def test_unknown_name_suggests_a_neighbour() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'llama-3-8b'.*finegauge models"):
        model("llama-3-9b")


def test_config_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    assert model(str(tmp_path)).config["hidden_size"] == 64
    assert model(str(tmp_path / "config.json")).parameters is None


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[1, 2]", FileFormatError, "expected one JSON object"),
        ("{}", FileFormatError, "has no model_type"),
        ("{nonsense", FileFormatError, "cannot be read"),
        ("[" * 100_000, FileFormatError, "cannot be read"),
        (json.dumps(CONFIG | {"hidden_size": -1}), FieldError, "'hidden_size' should be a number above zero"),
        (json.dumps(CONFIG | {"vocab_size": 1.5}), FieldError, "whole number"),
        (json.dumps(CONFIG | {"num_hidden_layers": "many"}), FieldError, "'num_hidden_layers'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, error: type[Exception], says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, "utf-8")
    with pytest.raises(error) as caught:
        model(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No file"):
        model(str(tmp_path / "config.json"))


def test_ten_megabytes_of_garbage(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"{" * 10_000_000)
    with pytest.raises(FileFormatError, match=r"10\.0 MB; FineGauge reads at most 5 MB"):
        model(str(path))


def test_user_model(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    rows = [{"name": "me/mine-1b", "aliases": ["mine"], "parameters": 1e9, "config": CONFIG}]
    (home / "models" / "mine.json").write_text(json.dumps(rows), "utf-8")
    assert model("mine").parameters == 1_000_000_000
    assert model("ME/mine-1b").parameters_from == "user"
    assert "me/mine-1b" in models()


def test_a_config_without_model_type_is_left_to_its_family(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 64, "mamba_moe_layers": ["r", "8"]}', "utf-8")
    assert model(str(path)).config["mamba_moe_layers"] == ["r", "8"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt-4o", "publishes no weights"),
        ("google/vit-base-patch16-224", "no model of language"),
        ("facebook/wav2vec2-base", "no model of language"),
        ("anthropic/claude-3-opus", "publishes no weights"),
        ("black-forest-labs/FLUX.1-dev", "by diffusion"),
        ("stabilityai/stable-diffusion-xl-base-1.0", "by diffusion"),
    ],
)
def test_what_nobody_can_tune_here_is_said(name: str, why: str) -> None:
    with pytest.raises(FieldError, match=why):
        model(name)


def test_a_name_with_words_of_its_own_suggests_the_model() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'Qwen/Qwen3-8B'"):
        model("Qwen/Qwen3-8b-instruct")
    with pytest.raises(UnknownNameError):  # of somebody's own that is called alike
        model("me/gpt-4-chan")
