"""What is written for each framework, what is refused, and what is carried over."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegauge.catalogue.offers import offers
from finegauge.errors import InputError, UnknownNameError
from finegauge.formats.reading import companion_fields, describe
from finegauge.formats.writing import FRAMEWORKS, as_written, write
from finegauge.render.files import written_notes
from finegauge.run.run import Run
from tests.shared import SHARED, needs_shared

CONFIGS = SHARED / "reference" / "configs"
LORA = Run(model="Qwen/Qwen3-8B", method="lora", autocast="bf16", adapter_dtype="fp32", dataset="math_14k")
OF_FOLDER = {"ms_swift": "ms-swift"}
LAUNCHED = {"nemo/automodel_peft_8b.yaml": ("num_gpus=8",)}
NO_RUN = ("traps/", "accelerate/", "deepspeed/", "nemo/legacy", "trl/adapter_config.json")  # of no trainer


def examples() -> list[str]:
    """Return the reference examples that describe a run, but NeMo 1's, which nothing writes."""
    files = (
        str(path.relative_to(CONFIGS)) for path in sorted(CONFIGS.rglob("*.*")) if "expected" not in path.name
    )
    return [name for name in files if not name.startswith(NO_RUN) and "dataset_info" not in name]


def keys_of(path: str) -> dict[str, Any]:
    """Return what a YAML file holds."""
    whole: dict[str, Any] = yaml.safe_load(Path(path).read_text("utf-8"))
    return whole


@needs_shared
@pytest.mark.parametrize("name", examples())
@pytest.mark.parametrize("with_recipe", [False, True])
def test_every_reference_example_survives_its_own_framework(
    tmp_path: Path, name: str, *, with_recipe: bool
) -> None:
    run = describe(CONFIGS / name, LAUNCHED.get(name, ()))
    folder = name.partition("/")[0]
    recipe = CONFIGS / name if with_recipe else None
    written = write(run, OF_FOLDER.get(folder, folder), tmp_path, recipe=recipe)
    again = describe(written.paths[0], alongside=written.alongside)
    ignored = {"framework"} if run.framework == "transformers" else set()
    assert {k: v for k, v in again.fields().items() if v != getattr(run, k) and k not in ignored} == {}
    assert not [warning for warning in written.warnings if "cannot say" in warning]


def test_files_open_with_where_they_come_from(tmp_path: Path) -> None:
    run = LORA.replace(gpu="H100-SXM5-80GB", num_gpus=2, sharding="fsdp")
    written = write(run, "trl", tmp_path)
    assert [Path(path).name for path in written.paths] == ["trl.yaml", "accelerate.yaml"]
    for path in written.paths:
        assert (
            Path(path)
            .read_text()
            .startswith("# Written by FineGauge 0.1.0 for Qwen/Qwen3-8B, lora, on 2 x H100")
        )
    assert "# finegauge: {gpu: H100-SXM5-80GB}" in Path(written.paths[0]).read_text()
    assert written.command == "trl sft --config trl.yaml --accelerate_config accelerate.yaml"
    assert written.run.gpu == "H100-SXM5-80GB"
    found = companion_fields(written.paths[1])
    assert found is not None
    assert found[1] == {"num_gpus": 2, "autocast": "bf16", "sharding": "fsdp"}


def test_nothing_is_overwritten_unasked_and_nothing_half_written(tmp_path: Path) -> None:
    write(LORA, "axolotl", tmp_path)
    (tmp_path / "axolotl.yaml").write_text("mine")
    with pytest.raises(InputError, match="already; name another folder"):
        write(LORA.replace(lora_rank=8), "axolotl", tmp_path)
    assert (tmp_path / "axolotl.yaml").read_text() == "mine"
    write(LORA.replace(lora_rank=8), "axolotl", tmp_path, overwrite=True)
    assert keys_of(str(tmp_path / "axolotl.yaml"))["lora_r"] == 8
    assert [path.name for path in tmp_path.iterdir()] == ["axolotl.yaml"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        write(LORA, "axolotl", tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("framework", "changes", "sentence"),
    [
        ("llamafactory", {"num_gpus": 8, "tensor_parallel": 8}, "LLaMA-Factory cannot say tensor_parallel=8"),
        ("axolotl", {"num_gpus": 2, "pipeline_parallel": 2}, "pipeline_parallel=2: its files would mean 1"),
        ("unsloth", {"num_gpus": 2}, "Unsloth cannot say num_gpus=2"),
        ("torchtitan", {}, "torchtitan cannot say method=lora"),
        ("trl", {"phase": "ppo"}, "TRL cannot say phase=ppo"),
        ("ms-swift", {"method": "freeze", "dataset": None}, "ms-swift cannot say method=freeze"),
        ("torchtune", {"model": "mixtral-8x7b"}, "no builder for mixtral-8x7b"),
        (
            "torchtune",
            {"model": "llama-3.1-8b", "num_gpus": 2, "tensor_parallel": 2},
            "full fine-tuning only",
        ),
        ("nemo", {"phase": "dpo"}, "NeMo Automodel cannot say phase=dpo"),
        ("trl", {"model": "mamba-2.8b-hf", "lora_targets": ("attention",)}, "name them"),
    ],
)
def test_another_plan_is_refused(
    tmp_path: Path, framework: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        write(LORA.replace(**changes), framework, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("framework", "changes", "warning"),
    [
        ("torchtune", {"num_gpus": 2, "sharding": "zero2"}, "its files mean sharding=fsdp_shard_grad_op"),
        ("trl", {"kernels": ("unsloth",)}, "TRL cannot say kernels=unsloth: its files mean kernels=none."),
        ("llamafactory", {"activation_checkpointing": "selective"}, "activation_checkpointing=full"),
        ("trl", {"num_samples": 500}, "num_samples=500 is no key of the file: cut the data set to as many."),
        ("nemo", {"num_gpus": 4, "tensor_parallel": 2}, "sharding=none: its files mean sharding=fsdp"),
        ("nemo", {"num_experts_per_tok": "all", "model": "mixtral-8x7b"}, "in the model's config.json"),
    ],
)  # fmt: skip
def test_the_rest_that_cannot_be_said_is_told(
    tmp_path: Path, framework: str, changes: dict[str, Any], warning: str
) -> None:
    model = {"model": "llama-3.1-8b"} if framework == "torchtune" else {}
    written = write(LORA.replace(**model | changes), framework, tmp_path)
    assert any(warning in text for text in written.warnings), written.warnings


def test_samples_are_packed_whole_where_the_run_packs_them_whole(tmp_path: Path) -> None:
    packed = LORA.replace(packing=True)
    assert keys_of(write(packed, "trl", tmp_path / "whole").paths[0])["packing_strategy"] == "bfd"
    cut = packed.replace(packing_strategy="wrapped")
    assert keys_of(write(cut, "trl", tmp_path / "cut").paths[0])["packing_strategy"] == "wrapped"


def test_a_data_set_of_the_catalogue_is_no_name_of_a_hub(tmp_path: Path) -> None:
    assert "math_14k is FineGauge's name" in " ".join(write(LORA, "trl", tmp_path / "ours").warnings)
    file = tmp_path / "train.yaml"  # whose own listing may have one of that name
    file.write_text("model_name_or_path: Qwen/Qwen3-8B\nstage: sft\ndataset: math_14k\n", "utf-8")
    written = write(describe(file), "llamafactory", tmp_path / "theirs", recipe=file)
    assert "FineGauge's name" not in " ".join(written.warnings)


def test_framework_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'axolotl'"):
        write(LORA, "axolotle", tmp_path)
    assert write(LORA, "LLaMA_Factory", tmp_path).run.framework == "LLaMA-Factory"
    assert "finegauge" in FRAMEWORKS


def test_a_run_file_is_the_run(tmp_path: Path) -> None:
    run = LORA.replace(gpu="A40", startup_s=60.0)
    written = write(run, "finegauge", tmp_path)
    assert describe(written.paths[0]) == run
    assert written.warnings == ()


def test_deepspeed_states_batch_and_stage(tmp_path: Path) -> None:
    run = LORA.replace(num_gpus=4, sharding="fsdp", cpu_offload="all", micro_batch_size=2)
    written = write(run, "deepspeed", tmp_path)
    assert (written.run.sharding, written.run.cpu_offload) == ("zero3", "all")
    json_keys = json.loads(Path(written.paths[1]).read_text())
    assert json_keys["train_batch_size"] == 8
    assert json_keys["zero_optimization"]["offload_param"] == {"device": "cpu", "pin_memory": False}
    nvme = write(
        LORA.replace(num_gpus=4, sharding="zero3", cpu_offload="nvme"), "llamafactory", tmp_path / "nvme"
    )
    assert nvme.run.cpu_offload == "nvme"


def test_skypilot_rents_the_offer(tmp_path: Path) -> None:
    offer = offers("H100-SXM5-80GB", "aws", 8)[0]
    run = LORA.replace(num_gpus=16, num_nodes=2, gpu="H100-SXM5-80GB", sharding="zero2", framework="Axolotl")
    written = write(run, "skypilot", tmp_path, offer=offer, spot=True)
    assert [Path(path).name for path in written.paths] == ["axolotl.yaml", "deepspeed.json", "skypilot.yaml"]
    task = keys_of(written.paths[2])
    assert task["resources"]["accelerators"] == "H100:8"
    assert (task["resources"]["cloud"], task["resources"]["instance_type"]) == ("aws", offer.instance_type)
    assert (task["num_nodes"], task["resources"]["use_spot"]) == (2, True)
    assert "axolotl train axolotl.yaml" in task["run"]
    assert "SKYPILOT_NODE_RANK" in task["run"]
    assert task["setup"] == "pip install axolotl[deepspeed]\n"
    assert written.command == "sky launch skypilot.yaml"


def test_files_of_an_offer_say_the_one_command(tmp_path: Path) -> None:
    offer = offers("A100-SXM4-80GB", "verda")[0]
    written = write(LORA.replace(gpu="A100-SXM4-80GB"), "axolotl", tmp_path, offer=offer)
    said = [str(note.text) for note in written_notes(written)]
    assert any(text.startswith("Start it with: axolotl train") for text in said)
    assert any(text.endswith("by one command: sky launch skypilot.yaml") for text in said)
    assert keys_of(written.paths[-1])["resources"]["cloud"] == "verda"


def test_skypilot_without_a_cloud_it_knows(tmp_path: Path) -> None:
    written = write(LORA.replace(gpu="A40", provider="hyperstack"), "skypilot", tmp_path)
    assert keys_of(written.paths[-1])["resources"] == {"accelerators": "A40:1", "use_spot": False}
    assert any("hyperstack" in warning for warning in written.warnings)
    nameless = write(LORA, "skypilot", tmp_path / "other")
    assert any("names no GPU" in warning for warning in nameless.warnings)


MINE = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: lora
template: qwen3
dataset: mine, others
dataset_dir: data
max_samples: 500
learning_rate: 2e-4
warmup_ratio: 0.1
hf_hub_token: hf_SECRET
eval_strategy: steps
val_size: 0.1
lora_rnak: 3
"""


def test_what_a_run_does_not_know_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(MINE)
    run = describe(file, ("lora_rank=4",))
    keys = keys_of(write(run, "llamafactory", tmp_path / "new", recipe=file).paths[0])
    assert (keys["template"], keys["dataset"], keys["max_samples"]) == ("qwen3", "mine, others", 500)
    assert (keys["learning_rate"], keys["warmup_ratio"], keys["lora_rank"]) == (2e-4, 0.1, 4)
    assert keys["val_size"] == 0.1
    assert "lora_rnak" not in keys
    written = write(run, "llamafactory", tmp_path / "again", recipe=file)
    assert "SECRET" not in Path(written.paths[0]).read_text()
    assert "Not carried over, for they may be secrets: hf_hub_token." in written.warnings
    other = keys_of(write(run, "nemo", tmp_path / "other", recipe=file).paths[0])
    assert other["optimizer"] == {"_target_": "torch.optim.AdamW", "lr": 2e-4}


def test_tokens_of_text_are_no_secrets(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base_model: Qwen/Qwen3-8B\nspecial_tokens: {pad_token: <pad>}\nhub_token: hf_SECRET\ntokens: [<a>]\n"
    )
    keys = keys_of(write(describe(file), "axolotl", tmp_path / "new", recipe=file).paths[0])
    assert (keys["special_tokens"], keys["tokens"]) == ({"pad_token": "<pad>"}, ["<a>"])
    assert "hub_token" not in keys


def test_toml_of_a_job_keeps_its_values(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[job]\ndescription = "a \\"job\\""\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nsteps = 5\n'
        "seed = 3\n[optimizer]\nlr = 3e-4\n[checkpoint]\nexclude = ['a', 'b']\n"
        "last = {yes = true, at = 1.5}\n"
    )
    written = write(describe(file), "torchtitan", tmp_path / "new", recipe=file)
    whole = tomllib.loads(Path(written.paths[0]).read_text())
    assert whole["job"] == {"description": 'a "job"'}
    assert whole["checkpoint"] == {"exclude": ["a", "b"], "last": {"yes": True, "at": 1.5}}
    assert (whole["optimizer"]["lr"], whole["training"]["seed"], whole["training"]["steps"]) == (3e-4, 3, 5)


def test_one_data_set_of_a_hub_goes_along(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base_model: Qwen/Qwen3-8B\ndatasets: [{path: org/texts, type: alpaca}]\nlearning_rate: 1e-5\n"
    )
    run = describe(file)
    assert keys_of(write(run, "trl", tmp_path / "trl", recipe=file).paths[0])["dataset_name"] == "org/texts"
    assert keys_of(write(run, "ms-swift", tmp_path / "sw", recipe=file).paths[0])["dataset"] == ["org/texts"]
    unsloth = keys_of(write(run, "unsloth", tmp_path / "un", recipe=file).paths[0])
    assert (unsloth["data"], unsloth["training"]["learning_rate"]) == ({"dataset": "org/texts"}, 1e-5)
    alone = write(run, "trl", tmp_path / "alone")
    assert "No data set to train on is named; add yours to trl.yaml." in alone.warnings


def test_what_files_would_mean_is_known_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written, found = as_written(LORA.replace(kernels=("unsloth",)), "trl")
    assert [one.field for one in found] == ["kernels", "loss"]
    assert written.kernels == ()
    with pytest.raises(InputError, match="cannot say num_gpus=2"):
        as_written(LORA.replace(num_gpus=2), "unsloth")
    assert not list(tmp_path.iterdir())


def test_one_rank_of_data_has_nothing_to_shard(tmp_path: Path) -> None:
    whole = LORA.replace(num_gpus=4, tensor_parallel=2, pipeline_parallel=2, dataset=None)
    written = write(whole, "nemo", tmp_path)
    assert not [warning for warning in written.warnings if "sharding" in warning]
    replicas = Run(
        model="llama-3.1-8b", method="full", phase="pretrain", num_gpus=8, packing=True, max_steps=9
    )
    assert write(replicas, "torchtitan", tmp_path).run.sharding == "none"


@pytest.mark.parametrize(
    ("framework", "key", "value"),
    [
        ("trl", "datasets", [{"path": "json", "data_files": "mine.jsonl"}]),
        ("axolotl", "datasets", [{"path": "mine.jsonl", "ds_type": "json", "type": "chat_template"}]),
        ("unsloth", "data", {"local_dataset": ["mine.jsonl"]}),
        ("ms-swift", "dataset", ["mine.jsonl#7"]),
        ("torchtune", "dataset", {"source": "json", "data_files": "mine.jsonl"}),
    ],
)
def test_a_file_of_texts_is_named_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, key: str, value: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"text": "a"}\n')
    run = Run(model="llama-3.1-8b", method="lora", dataset="mine.jsonl", tokenizer="folder", num_samples=7)
    written = write(run, framework, tmp_path / "new")
    found = keys_of(written.paths[0])[key]
    assert {**found, **value} == found if isinstance(value, dict) else found == value
    assert (written.run.dataset, written.run.tokenizer) == ("mine.jsonl", "folder")
    assert not [warning for warning in written.warnings if "No data set" in warning]


def test_trl_is_told_the_rollout_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What GRPO generates, by which engine, and how often it learns from it, is written and read back."""
    monkeypatch.chdir(tmp_path)
    asked = Run(
        model="qwen3-8b", method="lora", phase="grpo", framework="TRL", seq_len=1280, max_new_tokens=1024,
        num_mini_batches=2, inference_engine="vllm", gpu_memory_utilization=0.4, rollout_sleep=2,
        max_num_batched_tokens=4096, old_log_probs=True, padding="longest", dataset="math_14k", max_steps=9,
    )  # fmt: skip
    written, found = as_written(asked, "trl")
    assert written.num_mini_batches == 2
    assert (written.inference_engine, written.rollout_sleep) == ("vllm", 2)
    told = {one.field for one in found}
    assert not told & {"phase", "seq_len", "max_new_tokens", "gpu_memory_utilization", "old_log_probs"}
