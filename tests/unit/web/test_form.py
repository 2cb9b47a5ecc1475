"""What a form asks: a pasted text and overrides make a run, errors find their field, no file is read."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.errors import FineGaugeError, InputError
from finegauge.web.form import State, asked, confined, field_of, origin_of, shown_value
from finegauge.web.storage import upload_store

LLAMAFACTORY = """\
# finegauge: {gpu: A40}
model_name_or_path: /models/Meta-Llama-3-8B
stage: sft
finetuning_type: lora
lora_rank: 8
dataset: math_14k
cutoff_len: 2048
output_dir: /srv/saves
"""
CONFIG = """\
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
"""


def test_a_pasted_text_with_overrides_tells_who_said_what() -> None:
    run = asked(LLAMAFACTORY, {"micro_batch_size": "4", "gpu": "L40S"})
    assert run.model == "Meta-Llama-3-8B"  # the last part of a path that leads elsewhere
    said = {name: origin_of(run, name) for name in ("lora_rank", "gpu", "packing", "startup_s")}
    assert said == {
        "lora_rank": "pasted text",
        "gpu": "you",
        "packing": "default of LLaMA-Factory",
        "startup_s": "default",
    }
    assert shown_value(run, "packing") == "false"


def test_a_question_in_words_is_a_run() -> None:
    run = asked(" llama 3 8b qlora on two 3090s\n", {"micro_batch_size": "4"})
    assert (run.model, run.method, run.gpu) == ("meta-llama/Meta-Llama-3-8B", "qlora", "3090")
    assert (run.num_gpus, run.micro_batch_size) == (2, 4)
    for path in ("/etc/passwd on a 3090", "../../etc/hosts qlora"):
        with pytest.raises(InputError, match="names a file"):
            asked(path, {})
    for word in ("pyproject.toml", "nowhere.toml"):  # whether a file is there is not said
        with pytest.raises(InputError, match=f"'{word}' is not of the form key=value"):
            asked(f"llama 3 8b on {word}", {})


def test_a_config_json_is_a_model() -> None:
    run = asked(CONFIG, {"method": "lora", "gpu": "A40"})
    assert run.config["hidden_size"] == 256
    assert shown_value(run, "model") == "the pasted config.json"


NOTEBOOK = json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": [
    "from trl import SFTConfig, SFTTrainer\n",
    "SFTTrainer(model='Qwen/Qwen3-8B', args=SFTConfig(max_length=512)).train()",
]}]})  # fmt: skip
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        ("Qwen/Qwen3-8B", {"model": "Qwen/Qwen3-8B", "method": "lora"}),
        ("https://huggingface.co/Qwen/Qwen3-8B\n", {"model": "Qwen/Qwen3-8B"}),
        (
            "accelerate launch --num_processes 8 sft.py --model_name_or_path Qwen/Qwen3-8B --max_length 300",
            {"num_gpus": 8, "seq_len": 300, "framework": "TRL"},
        ),
        (
            "#!/bin/bash\nNPROC_PER_NODE=4 swift sft \\\n  --model Qwen/Qwen3-8B --max_length 99\n",
            {"num_gpus": 4, "seq_len": 99, "framework": "ms-swift"},
        ),
        (NOTEBOOK, {"seq_len": 512, "method": "full", "framework": "TRL"}),
        (TITAN, {"seq_len": 4096, "micro_batch_size": 2, "framework": "torchtitan"}),
    ],
)
def test_what_people_have_in_hand(document: str, fields: dict[str, Any]) -> None:
    run = asked(document, {"gpu": "A40"})
    assert {name: getattr(run, name) for name in fields} == fields
    assert origin_of(run, "gpu") == "you"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{there}", "names a file, and this page reads none of this machine"),
        ("axolotl train {there} --micro-batch-size 4", "which is not here; the run is in it"),
        (
            "accelerate launch --config_file {there} train.py --model_name_or_path Qwen/Qwen3-8B",
            "which is not here",
        ),
        ("#!/bin/sh\nbash {there}\n", "starts no training that is known"),
        ("trl sft --model_name_or_path {folder} --use_peft", "names a file, and this page reads none"),
    ],
)
def test_a_script_has_no_files_of_this_machine(document: str, says: str, tmp_path: Path) -> None:
    there = tmp_path / "recipe.yaml"
    there.write_text("base_model: Qwen/Qwen3-8B\nadapter: lora\nnum_processes: 8\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(CONFIG, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        asked(document.format(there=there, folder=tmp_path), {"gpu": "A40"})


def test_overrides_alone_as_json_has_them() -> None:
    run = asked("", {"model": "llama-3-8b", "method": "lora", "packing": True, "seq_len": 512,
                     "lora_targets": ["q_proj", "v_proj"], "max_steps": None})  # fmt: skip
    assert run.packing
    assert run.lora_targets == ("q_proj", "v_proj")
    assert run.max_steps is None


def test_paths_are_cut_where_they_lead_out_only() -> None:
    assert confined("model: llama-3-8b\nmethod: lora\n") == "model: llama-3-8b\nmethod: lora\n"
    cut = confined(LLAMAFACTORY)
    assert "finegauge: {gpu: A40}" in cut  # comments at the head are fields too
    assert "/models" not in cut
    assert "output_dir: /srv/saves" in cut
    assert confined("a: x,~/b.csv,../c.csv\n") == "a: x,b.csv,c.csv\n"


@pytest.mark.parametrize(
    ("document", "overrides", "field"),
    [
        ("", {"model": "llama-3-8b", "method": "lora", "micro_batch_size": "0"}, "micro_batch_size"),
        ("", {"model": "llama-3-8bb", "method": "lora"}, "model"),
        ("", {"model": "llama-3-8b", "method": "lora", "gpu": "B17"}, "gpu"),
        ("", {"model": "llama-3-8b", "method": "lora", "gpu": "here"}, "gpu"),
        ("", {"model": "llama-3-8b", "method": "lora", "dataset": "nothing"}, "dataset"),
        ("", {"model": "llama-3-8b", "method": "lora", "mean_tokens": "10"}, "longest_tokens"),
        ("", {"model": "llama-3-8b", "method": "full", "lora_rank": "8"}, "lora_rank"),
        ("", {"model": "llama-3-8b", "method": "lora", "tensor_parallel": "3"}, "tensor_parallel"),
        ("", {"method": "lora"}, "model"),
        ("", {"model": "llama\x00", "method": "lora"}, "model"),
        ("{not: [yaml", {}, "document"),
        ("just words", {}, "document"),
        ("modle: llama-3-8b\nmethod: lora", {}, "document"),
    ],
)  # fmt: skip
def test_an_error_finds_its_field(document: str, overrides: dict[str, str], field: str) -> None:
    with pytest.raises(FineGaugeError) as caught:
        asked(document, overrides)
    assert field_of(caught.value, overrides) == field


@pytest.mark.parametrize("name", ["model", "dataset", "tokenizer", "gpu"])
@pytest.mark.parametrize("value", ["/etc/passwd", "../x.json", "~/x.csv", "x.yaml", "here", "pyproject.toml"])
def test_a_field_names_no_file(name: str, value: str) -> None:
    with pytest.raises(InputError):
        asked("", {"model": "llama-3-8b", "method": "lora", name: value})


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="at most 100,000 are read"):
        asked("x" * 100_001, {})


_OPENED: list[str] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Note every file that is opened, while somebody listens."""
    if event == "open" and _LISTENING and isinstance(arguments[0], str):
        _OPENED.append(arguments[0])


_LISTENING: list[bool] = []
sys.addaudithook(_hear)
_PATHS = (
    "{f}",
    "{d}",
    "../{n}",
    "~/{n}",
    "x,{f}",
    "{f}:1",
    "'{f}'",
    "./{n}",
    "a b {f}",
    "{f}#x",
    "file://{f}",
)
_KEYS = (
    *("model", "model_name_or_path", "base_model", "dataset", "dataset_dir", "deepspeed", "tokenizer", "gpu"),
    *("datasets", "dataset_name", "tokenizer_path", "finegauge", "adapter", "peft_type"),
)


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(_PATHS), min_size=1, max_size=4),
    st.sampled_from(
        ("model: llama-3-8b\nmethod: lora\n", LLAMAFACTORY, "base_model: llama-3-8b\nadapter: lora\n")
    ),
)  # fmt: skip
def test_no_text_makes_us_open_a_file_of_the_user(named: dict[str, str], base: str) -> None:
    import json
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret.json"
        secret.write_text(CONFIG, "utf-8")
        filled = {
            key: path.format(f=secret, d=folder, n=os.path.relpath(secret)) for key, path in named.items()
        }
        lines = [line for line in base.splitlines() if line.partition(":")[0] not in filled]
        document = "\n".join([*lines, *(f"{key}: {json.dumps(value)}" for key, value in filled.items())])
        _OPENED.clear()
        _LISTENING.append(True)
        try:
            asked(document, {})
        except FineGaugeError:
            pass
        finally:
            _LISTENING.pop()
        assert not [path for path in _OPENED if "secret" in path]


def test_the_state_of_a_form_keeps_what_is_filled_in() -> None:
    state = State.of(
        {"document": "a: 1\r\n", "gpu": " A40 ", "seq_len": "", "plan_spot": "true", "junk": "x"}
    )
    assert state == State("a: 1\n", {"gpu": "A40"})


def test_the_room_keeps_texts_by_content_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegauge.web.storage.MOST_TEXTS", 3)
    first = upload_store().keep("one", "a.txt")
    assert upload_store().keep("one", "a.txt") == first
    assert upload_store().holds(first)
    assert upload_store().text_of(first) == "one"
    os.utime(os.path.dirname(first), (1, 1))
    for number in range(4):
        upload_store().keep(f"text {number}", "a.txt")
    assert not os.path.exists(first)
    assert not upload_store().holds("/etc/passwd")
