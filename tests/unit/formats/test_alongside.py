"""accelerate's and DeepSpeed's files beside a training file: laid over it, or contradicting it."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, FileFormatError
from finegauge.formats import launcher_files
from finegauge.formats.launcher_files import Alongside
from finegauge.formats.reading import companion_fields, describe
from finegauge.run.run import FROM_COMMAND_LINE, Run

TRAINING = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nbf16: true\nper_device_train_batch_size: 2\n"
LAUNCHER = "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n"


def run(folder: Path, text: str = TRAINING, acc: str = "", ds: Any = None, gpus: int | None = None) -> Run:
    (folder / "train.yaml").write_text(text)
    (folder / "acc.yaml").write_text(LAUNCHER + acc)
    (folder / "ds.json").write_text(json.dumps(ds))
    beside = Alongside(
        accelerate=str(folder / "acc.yaml") if acc else None,
        deepspeed=str(folder / "ds.json") if ds else None,
        num_gpus=gpus,
    )
    return describe(folder / "train.yaml", (), beside)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("distributed_type: MULTI_GPU", {"num_gpus": 8, "sharding": "none", "data_parallel_replicate": 8}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}",
         {"sharding": "fsdp_shard_grad_op"}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 4}", {"sharding": "hybrid"}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_reshard_after_forward: true, "
         "fsdp_offload_params: 'true'}",
         {"sharding": "fsdp", "cpu_offload": "params"}),
        ("distributed_type: DEEPSPEED\nnum_machines: 2\ndeepspeed_config: {zero_stage: 3, "
         "offload_optimizer_device: cpu, gradient_accumulation_steps: 4}",
         {"sharding": "zero3", "cpu_offload": "optimizer", "num_nodes": 2, "gradient_accumulation_steps": 4}),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds_z3_offload.json}",
         {"sharding": "zero3", "cpu_offload": "all"}),
        ("distributed_type: NO\ndynamo_config: {dynamo_backend: INDUCTOR}", {"compile": True}),
        ("distributed_type: MEGATRON_LM\nmegatron_lm_config: {megatron_lm_tp_degree: 2}",
         {"tensor_parallel": 2}),
        ("distributed_type: FSDP\nfsdp_config: {}\nparallelism_config: {parallelism_config_cp_size: 2}",
         {"context_parallel": 2, "data_parallel_shard": 4}),
    ],
)  # fmt: skip
def test_accelerate(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found = run(tmp_path, acc=text)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.origins["num_gpus"] == "accelerate file acc.yaml"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"},
         {"sharding": "zero2"}),
        ({"zero_optimization": {"stage": "3"}, "gradient_accumulation_steps": 4},
         {"sharding": "zero3", "gradient_accumulation_steps": 4, "reduce_bucket_size": 500_000_000}),
        ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}, {"reduce_bucket_size": 4096**2}),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}}, {"reduce_bucket_size": 200_000_000}),
        ({"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}}, {"tensor_parallel": 2}),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"cpu_offload": "optimizer"}),
        ({"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}},
         {"save_state": "sharded"}),
    ],
)  # fmt: skip
def test_deepspeed(tmp_path: Path, keys: dict[str, Any], expected: dict[str, Any]) -> None:
    found = run(tmp_path, ds=keys, gpus=8)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.origins["sharding"] == "DeepSpeed file ds.json"
    assert (found.num_gpus, found.origins["num_gpus"]) == (8, FROM_COMMAND_LINE)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FieldError, match="micro_batch_size=2 of the training file contradicts micro_batch_size=4"
    ):
        run(tmp_path, ds={"zero_optimization": {}, "train_micro_batch_size_per_gpu": 4})
    with pytest.raises(FieldError, match="lies outside the project folder"):
        run(
            tmp_path,
            acc="distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: /etc/passwd}",
        )
    fsdp = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}"
    with pytest.raises(FieldError, match="sharding=zero3 of the training file contradicts sharding=fsdp"):
        run(tmp_path, TRAINING + "deepspeed: ds_z3.json\n", acc=fsdp)
    with pytest.raises(FieldError, match="contradicts sharding=zero2"):
        run(tmp_path, acc=fsdp, ds={"zero_optimization": {"stage": 2}})


def test_the_training_files_number_format_wins(tmp_path: Path) -> None:
    found = run(tmp_path, acc="distributed_type: NO\nmixed_precision: fp16")
    assert found.autocast == "bf16"
    assert "autocast=fp16 of the accelerate file acc.yaml has no effect" in found.warnings[0]
    silent = run(
        tmp_path, TRAINING.replace("bf16: true\n", ""), acc="distributed_type: NO\nmixed_precision: fp16"
    )
    assert silent.autocast == "fp16"


def test_beside_a_run_file_and_with_too_many_gpus(tmp_path: Path) -> None:
    found = run(tmp_path, "model: qwen3-8b\nmethod: full\n", acc="distributed_type: FSDP", gpus=4)
    assert (found.sharding, found.num_gpus, found.data_parallel_shard) == ("fsdp", 4, 4)
    with pytest.raises(FieldError, match="does not fill num_gpus=6"):
        run(tmp_path, "model: qwen3-8b\nmethod: full\ntensor_parallel: 4\n", gpus=6)


def test_companions_are_recognised_and_others_are_not(tmp_path: Path) -> None:
    run(tmp_path, acc="distributed_type: NO", ds={"zero_optimization": {"stage": 2}})
    assert companion_fields(str(tmp_path / "train.yaml")) is None
    assert companion_fields(str(tmp_path / "ds.json")) == (
        "deepspeed",
        {"sharding": "zero2", "cpu_offload": "none"},
    )
    with pytest.raises(FileFormatError, match="no accelerate file"):
        launcher_files.keys_of_file(str(tmp_path / "ds.json"), "accelerate")
    with pytest.raises(FileFormatError, match="no DeepSpeed file"):
        Alongside(deepspeed=str(tmp_path / "acc.yaml")).fields()


def test_a_training_file_with_keys_of_deepspeed_is_no_companion(tmp_path: Path) -> None:
    openrlhf = {"pretrain": "Qwen/Qwen3-0.6B", "train_batch_size": 8, "micro_train_batch_size": 2}
    (tmp_path / "rl.json").write_text(json.dumps(openrlhf), encoding="utf-8")
    (tmp_path / "jobs.yaml").write_text("apiVersion: v1\n---\napiVersion: v1\n", encoding="utf-8")
    assert companion_fields(str(tmp_path / "rl.json")) is None
    assert companion_fields(str(tmp_path / "jobs.yaml")) is None


@pytest.mark.parametrize("named", [False, True])
def test_zero_plus_plus_is_read(tmp_path: Path, named: bool) -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_nontrainable_weights": True}
    plain = {"stage": 3, "zero_hpz_partition_size": 0, "zero_quantized_weights": True}
    for keys in (zero, plain):
        ds = {"zero_optimization": keys}
        (tmp_path / "beside.json").write_text(json.dumps(ds))
        text = TRAINING + "deepspeed: beside.json\n" if named else TRAINING
        found = run(tmp_path, text, ds=None if named else ds, gpus=8)
        assert found.sharding == "zero3"
        assert found.zero_hpz_partition_size == (8 if keys is zero else 1)
        assert found.zero_quantized_weights == (keys is plain)
        assert not found.zero_quantized_gradients
        said = [one for one in found.warnings if "zero_quantized_nontrainable_weights" in one]
        assert len(said) == (keys is zero)


@pytest.mark.parametrize(("stated", "how"), [(True, "full"), ("false", "sharded"), (None, "sharded")])
def test_zero3_gathers_what_it_saves_where_it_is_asked_to(tmp_path: Path, stated: Any, how: str) -> None:
    zero = {"stage": 3} | ({} if stated is None else {"stage3_gather_16bit_weights_on_model_save": stated})
    assert run(tmp_path, TRAINING, ds={"zero_optimization": zero}, gpus=8).save_state == how


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"fp16": {"enabled": True}}, "fp16.enabled=true of the DeepSpeed file contradicts autocast=bf16"),
        ({"bf16": {"enabled": False}}, "bf16.enabled=false of the DeepSpeed file contradicts autocast=bf16"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer 'OneBitAdam': not predicted"),
    ],
)
def test_what_a_deepspeed_file_asks_for_otherwise_is_told(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    found = run(tmp_path, ds={"zero_optimization": {"stage": 2}, **keys})
    assert said in " ".join(found.warnings)
    assert found.autocast == "bf16"


def test_a_batch_of_the_file_that_accelerate_names_is_held_against_the_training(tmp_path: Path) -> None:
    acc = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}"
    with pytest.raises(FieldError, match="train_batch_size=24 of the DeepSpeed file contradicts"):
        run(tmp_path, acc=acc, ds={"zero_optimization": {"stage": 2}, "train_batch_size": 24})
