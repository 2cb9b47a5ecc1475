"""The base of a fine-tune by its name: told where the name tells it, and never guessed."""

import json
from pathlib import Path

import pytest

from finegauge.catalogue.models import model, models
from finegauge.catalogue.naming import base_of
from finegauge.errors import UnknownNameError, UnsupportedError
from finegauge.formats.reading import read


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("cognitivecomputations/dolphin-2.9-llama3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("OpenPipe/Qwen3-14B-Instruct", "Qwen/Qwen3-14B"),
        ("NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", "mistralai/Mixtral-8x7B-v0.1"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistralai/Mistral-7B-v0.1"),
        ("princeton-nlp/gemma-2-9b-it-SimPO", "google/gemma-2-9b"),
        ("nvidia/Llama-3.1-Nemotron-8B-UltraLong-1M-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("cognitivecomputations/dolphin-2_6-phi-2", "microsoft/phi-2"),
        ("NousResearch/Hermes-3-Llama-3.2-3B", "meta-llama/Llama-3.2-3B"),  # beside the tune's own name
        ("Sao10K/L3-8B-Stheno-v3.2", "meta-llama/Meta-Llama-3-8B"),
        ("somebody/my-phi-4-14b", "microsoft/phi-4"),
        ("somebody/Qwen3-30B-A3B-law", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_a_name_that_states_family_and_size_tells_its_base(name: str, base: str) -> None:
    assert base_of(name) == base


@pytest.mark.parametrize(
    "name",
    [
        "somebody/Llama-3.1-9B-law",  # no such size
        "somebody/llama-8b-law",  # several generations
        "somebody/Qwen2.5-Llama-3.1-8B-merge",  # two families
        "somebody/Llama-3.1-8B-70B-merge",  # two sizes
        "google/t5gemma-2b-2b-ul2",  # an encoder too
        "nvidia/Llama-3.1-Minitron-4B-Depth-Base",  # cut out of 12 B
        "somebody/gemma-4-2b",  # a generation that has other sizes
        "Qwen/Qwen2.5-Omni-7B",
        "somebody/Qwen3-32B-Embedding",
        "Skywork/Skywork-Reward-Llama-3.1-8B",
        "somebody/gte-mistral-7b-instruct",
        "hfl/chinese-llama-2-7b",  # more words
        "somebody/Qwen3-30B-A5B",
        "somebody/finance-7b",
        "tiiuae/Falcon-H1-3B-Instruct",  # no Falcon of that name's first word
        "somebody/falcon-x-7b",
        "ModelCloud/Llama-3.2-1B-Instruct-gptqmodel-4bit-vortex-v2.5",  # not in 16 bit
        "Salesforce/blip2-opt-2.7b",
        "phi",
        "",
        "/",
        "8b" * 1000,
    ],
)
def test_a_name_that_leaves_it_open_tells_none(name: str) -> None:
    assert base_of(name) is None


def test_a_name_of_the_catalogue_tells_no_other_model_than_its_own() -> None:
    for row in models().values():
        for name in (row.name, *row.aliases):
            if row.parameters and (base := base_of(name)) is not None:
                other = models()[base].parameters
                assert other is not None, name
                assert abs(other / row.parameters - 1) < 0.01, (name, base)


def test_it_is_warned_of() -> None:
    name = "somebody/law-mistral-7b"
    run = read(name)
    assert run.model == "mistralai/Mistral-7B-v0.1"
    assert f"'{name}' is not in the catalogue: read as the architecture of {run.model}" in run.warnings[0]
    assert run.seq_len == read(run.model).seq_len


def test_a_config_that_can_be_had_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = "somebody/law-mistral-7b", dict(model("mistral-7b").config) | {"vocab_size": 40_000}
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def fetch(error: UnknownNameError) -> None:
        path = tmp_path / "models--somebody--law-mistral-7b" / "snapshots" / "1234567" / "config.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(config), "utf-8")

    run = read(name, fetch=fetch)
    assert (run.model, run.config["vocab_size"]) == (name, 40_000)


def test_why_nothing_could_be_fetched_is_said_where_no_base_is_told() -> None:
    def fetch(error: UnknownNameError) -> None:
        raise UnsupportedError(f"{error.name} cannot be reached")

    with pytest.raises(UnsupportedError, match="finance-7b cannot be reached"):
        read("somebody/finance-7b", fetch=fetch)
    assert read("somebody/law-mistral-7b", fetch=fetch).warnings


def test_a_copy_of_a_fine_tune_is_one_of_its_base() -> None:
    run = read("TheBloke/dolphin-2.6-mistral-7b-AWQ")
    assert (run.model, run.method) == ("mistralai/Mistral-7B-v0.1", "gptq_lora")


def test_a_file_that_names_a_fine_tune_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: somebody/law-mistral-7b\nmethod: lora\nnum_gpus: 2\n", "utf-8")
    run = read(path)
    assert (run.model, run.num_gpus) == ("mistralai/Mistral-7B-v0.1", 2)
    assert run.origins["model"] == "base that the name states"
