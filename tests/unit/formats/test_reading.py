"""Files people have, read as runs: recognised, overridden, checked."""

import json
from pathlib import Path

import pytest

from finegauge.errors import FieldError, InputError, UnknownKeyError
from finegauge.formats.reading import read
from finegauge.run.options import SPELLINGS
from finegauge.run.run import FIELDS, FROM_COMMAND_LINE, FROM_DEFAULT, FROM_FILE, FROM_MODEL_ALONE, Run

EXAMPLES = Path(__file__).parents[3] / "examples"
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_run_file(tmp_path: Path) -> None:
    run = read(
        written(tmp_path, "model: qwen3-8b\nmethod: lora\nlora_rank: 8\nlora_targets: [q_proj, v_proj]\n")
    )
    assert run == Run(model="qwen3-8b", method="lora", lora_rank=8, lora_targets=("q_proj", "v_proj"))
    assert (run.origins["lora_rank"], run.origins["seq_len"]) == (FROM_FILE, FROM_DEFAULT)


def test_run_file_as_json_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    as_json = written(tmp_path, json.dumps({"model": "qwen3-8b", "method": "lora"}), "run.json")
    marked = written(tmp_path, "\ufeffmodel: qwen3-8b\nmethod: lora\n")
    assert read(as_json) == read(marked) == Run(model="qwen3-8b", method="lora")


def test_overrides_are_typed_by_their_field(tmp_path: Path) -> None:
    path = written(tmp_path, "model: qwen3-8b\nmethod: lora\ngpu: A40\nlora_rank: 8\n")
    run = read(
        path, ("micro_batch_size=4", "packing=yes", "lora_targets=q_proj,v_proj", "gpu=none", "epochs=2e0")
    )
    assert (run.micro_batch_size, run.packing, run.epochs, run.gpu) == (4, True, 2.0, None)
    assert run.lora_targets == ("q_proj", "v_proj")
    assert run.origins["micro_batch_size"] == FROM_COMMAND_LINE
    assert run.origins["gpu"] == FROM_DEFAULT
    assert read(path, ("--seq-len=512",)).seq_len == 512


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("per_device_train_batch_size=4", "micro_batch_size", 4),
        ("batch=4", "micro_batch_size", 4),
        ("max_seq_length=8k", "seq_len", 8192),
        ("r=32", "lora_rank", 32),
        ("gradient_checkpointing=false", "activation_checkpointing", "none"),
        ("qlora", "method", "qlora"),
        ("load_in_4bit=true", "method", "qlora"),
        ("flash_attention", "attention", "flash"),
        ("zero=3", "sharding", "zero3"),
        ("tp=2", "tensor_parallel", 2),
        ("use_liger_kernel=true", "kernels", ("liger",)),
        ("method=dora", "adapter", "dora"),
        ("method=rslora", "adapter", "lora"),
        ("method=galore", "optimizer", "galore_adamw"),
        ("method=galore", "method", "full"),
        ("method=dpo", "phase", "dpo"),
        ("method=fft", "method", "full"),
    ],
)
def test_overrides_in_the_words_of_trainers(tmp_path: Path, word: str, field: str, value: object) -> None:
    path = written(tmp_path, "model: qwen3-8b\nmethod: lora\nnum_gpus: 2\n")
    assert getattr(read(path, (word,)), field) == value
    assert field in FIELDS


def test_every_spelling_is_that_of_a_field() -> None:
    for word, spelled in SPELLINGS.items():
        field, _, value = spelled.partition("=")
        assert field in FIELDS
        assert word not in FIELDS
        assert not value or FIELDS[field](field, value) in (value, (value,))


def test_what_matters_not_is_said() -> None:
    with pytest.raises(FieldError, match=r"lr changes neither memory nor time"):
        read("qwen3-8b", ("lr=2e-4",))


@pytest.mark.parametrize(
    ("word", "method"), [("quantization=4bit", "qlora"), ("weights_dtype=awq", "gptq_lora")]
)
def test_weights_that_are_stated_tell_the_method_of_a_model_alone(word: str, method: str) -> None:
    assert read("qwen3-8b", (word,)).method == method


def test_a_files_own_key_is_none_of_the_spellings(tmp_path: Path) -> None:
    path = written(tmp_path, "base_model: Qwen/Qwen3-8B\nadapter: lora\nlora_r: 8\nmicro_batch_size: 1\n")
    assert read(path, ("lora_r=32", "gradient_checkpointing=true", "bs=2")).micro_batch_size == 2
    assert read(path, ("lora_r=32",)).lora_rank == 32


def test_words_that_are_settings_by_themselves(tmp_path: Path) -> None:
    path = written(tmp_path, "model: qwen3-8b\nmethod: lora\n")
    assert read(path, ("h100",)).gpu == "h100"
    assert read(path, ("adafactor", "full")).optimizer == "adafactor"


def test_override_of_the_method_drops_the_old_ones_fields(tmp_path: Path) -> None:
    path = written(tmp_path, "model: qwen3-8b\nmethod: qlora\nlora_rank: 8\nweights_dtype: nf4\n")
    full = read(path, ("method=full",))
    assert (full.method, full.weights_dtype) == ("full", "bf16")


@pytest.mark.parametrize(
    ("word", "error", "sentence"),
    [
        ("micro_batch_size", FieldError, "not of the form key=value"),
        ("=4", FieldError, "not of the form key=value"),
        ("packing", FieldError, "such as packing=true"),
        ("flash", FieldError, "such as attention=flash"),
        ("load_in_4bit=false", UnknownKeyError, "unknown key 'load_in_4bit'"),
        ("microbatch_size=4", UnknownKeyError, "Did you mean 'micro_batch_size'"),
        ("micro_batch_size=two", FieldError, "micro_batch_size='two' is not a whole number"),
        ("method=qlorra", FieldError, "Did you mean 'qlora'"),
        ("num_experts_per_tok=all", FieldError, "has no experts"),
        ("dataset=nowhere", InputError, "No dataset|No data set"),
        ("gpu=A400", InputError, "Did you mean .*'A40'"),
    ],
)
def test_overrides_that_cannot_hold(tmp_path: Path, word: str, error: type[Exception], sentence: str) -> None:
    path = written(tmp_path, "model: qwen3-8b\nmethod: lora\n")
    with pytest.raises(error, match=sentence):
        read(path, (word,))


def test_model_config_and_its_folder(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(TINY), "config.json")
    run = read(path)
    assert (run.method, run.origins["method"]) == ("lora", FROM_MODEL_ALONE)
    changed = run.replace(gpu="A40")
    assert (changed.method, changed.activation_checkpointing) == ("lora", "full")
    assert changed.origins["activation_checkpointing"] == FROM_MODEL_ALONE
    assert run.config["hidden_size"] == 64
    assert read(tmp_path, ("method=full",)).config == run.config
    assert read(path, ("phase=decode",)).activation_checkpointing == "none"
    assert read(path, ("phase=pretrain",)).method == "full"
    assert (run.dataset, run.num_samples, run.global_batch_size) == ("alpaca", None, 16)
    mine = read(path, ("dataset=commonsense_15k",))
    assert (mine.dataset, mine.num_samples) == ("commonsense_15k", None)
    assert read(path, ("max_steps=100",)).num_samples is None
    assert read(path, ("phase=dpo",)).dataset is None
    assert (run.seq_len, run.origins["seq_len"]) == (2048, FROM_DEFAULT)


def test_a_model_alone_is_asked_for_no_more_positions_than_it_has() -> None:
    bert = read("google-bert/bert-base-uncased")
    assert (bert.seq_len, bert.origins["seq_len"]) == (512, FROM_MODEL_ALONE)
    assert read("google-bert/bert-base-uncased", ("seq_len=128",)).seq_len == 128
    assert read("openai-community/gpt2").seq_len == 1024
    assert read("Qwen/Qwen3-8B").seq_len == 2048


def test_files_beside_the_run_file(tmp_path: Path) -> None:
    written(tmp_path, json.dumps(TINY), "config.json")
    written(tmp_path, "length,count\n10,5\n", "mine.csv")
    run = read(written(tmp_path, "model: config.json\nmethod: full\ndataset: mine.csv\n"))
    assert run.model == str(tmp_path / "config.json")
    assert run.config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        (
            "compute_environment: LOCAL_MACHINE\nnum_processes: 2\n",
            "acc.yaml",
            "file of accelerate.*--accelerate 'acc.yaml'",
        ),
        ('{"zero_optimization": {"stage": 2}}', "ds.json", "file of DeepSpeed.*--deepspeed 'ds.json'"),
        ("model: qwen3-8b\nmethod: lora\nlora_rnak: 8\n", "run.yaml", "Did you mean 'lora_rank'"),
        ("import os\nos.system('x')\n", "train.py", "starts no training"),
        ("def broken(:\n", "train.py", "not valid Python .line 1"),
        ("echo hello\n", "train.sh", "starts no training"),
        ("swift sft --model 'x\n", "train.sh", "quote that is never closed"),
        ('swift sft --model "x\\', "train.sh", "quote that is never closed"),
        ("[model\n", "job.toml", "not valid TOML"),
    ],
)
def test_files_that_describe_no_run(tmp_path: Path, text: str, name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(written(tmp_path, text, name))


def test_examples() -> None:
    commonsense = read(EXAMPLES / "mixtral_qlora_commonsense.yaml")
    assert commonsense.lora_targets == ("w1", "w2", "w3", "gate")
    assert (commonsense.seq_len, commonsense.epochs, commonsense.gpu) == (1024, 10.0, "A40")
    assert (commonsense.weights_dtype, commonsense.adapter_dtype, commonsense.attention) == (
        "nf4_dq",
        "fp32",
        "flash",
    )
    assert commonsense.activation_checkpointing == "full"
    assert not commonsense.warnings
    assert read(EXAMPLES / "mixtral_qlora_math.yaml").replace(dataset="commonsense_15k") == commonsense
    blackmamba = read(EXAMPLES / "blackmamba_full.yaml", ("num_experts_per_tok=all",))
    assert (blackmamba.method, blackmamba.weights_dtype, blackmamba.num_experts_per_tok) == (
        "full",
        "bf16",
        8,
    )


def test_a_data_set_of_unknown_lengths_is_an_upper_bound() -> None:
    run = read("qwen3-8b", ("dataset=teknium/OpenHermes-2.5",))
    assert (run.dataset, run.num_samples, run.padding) == (None, 1_000_000, "longest")
    assert "Of openhermes-2.5 only the number of samples is known" in run.warnings[-1]
    assert read("qwen3-8b", ("dataset=openorca", "packing=true")).padding == "max"
    assert read("qwen3-8b", ("dataset=openorca", "num_samples=1000")).num_samples == 1000


def test_keys_of_trainers_on_the_command_line() -> None:
    run = read("qwen3-0.6b", ("load_in_8bit=True", "deepspeed=zero2", "num_gpus=2"))
    assert (run.method, run.weights_dtype, run.sharding) == ("qlora", "int8", "zero2")
    with pytest.raises(FieldError, match="such as packing=true"):
        read("qwen3-0.6b", ("packing",))
