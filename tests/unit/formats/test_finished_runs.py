"""What is read of finished trainings: every log, every configuration, and hostile files in one sentence."""

import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FileFormatError
from finegauge.formats.finished_config import UNCOUNTED, finished_row
from finegauge.formats.finished_runs import finished_in, read_arguments
from tests.unit.formats.finished import (
    ARGUMENTS,
    TINY,
    events,
    mlflow,
    saved_arguments,
    state,
    trained,
    wandb,
    zipped,
)

GPU = "A100-SXM4-80GB"
WALL_S = {1: 50.0, 2: 51.5, 3: 53.0, 4: 61.0, 5: 62.5, 6: 64.0}  # an evaluation after the third step


def only(folder: Path, *words: str) -> Any:
    (found,) = finished_in(str(folder))
    return finished_row(found, words, GPU)


def test_a_trainers_folder(tmp_path: Path) -> None:
    row = only(trained(tmp_path / "out", 0.25))
    assert row.reason == ""
    assert row.measured.step_time_s == pytest.approx(0.25)
    run = row.run
    assert (run.framework, run.method, run.weights_dtype, run.autocast) == ("TRL", "full", "fp32", "none")
    assert (run.micro_batch_size, run.gradient_accumulation_steps, run.seq_len) == (2, 2, 128)
    assert (run.optimizer, run.dataset, run.gpu) == ("adamw", None, GPU)
    assert run.config["hidden_size"] == 256
    assert row.times_complete


def test_adapters_beside_the_arguments(tmp_path: Path) -> None:
    folder = trained(tmp_path / "out", 0.25)
    adapters = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", "v_proj"], "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(adapters), "utf-8")
    run = only(folder).run
    assert (run.method, run.lora_rank, set(run.lora_targets)) == ("lora", 4, {"q_proj", "v_proj"})


def test_lengths_are_those_that_were_counted(tmp_path: Path) -> None:
    folder = trained(tmp_path / "out", 0.25)
    history = [{"step": n, "num_tokens": float(4 * 60 * n + n * n % 7)} for n in range(1, 7)]
    (folder / "trainer_state.json").write_text(
        json.dumps({"global_step": 6, "log_history": history}), "utf-8"
    )
    run = only(folder).run
    assert (run.dataset, run.seq_len) == ("instructions-of-60-tokens", 128)


@pytest.mark.parametrize("ranks", [1, 2])
def test_axolotls_rates_are_a_clock_and_its_tokens_hold_padding(tmp_path: Path, ranks: int) -> None:
    """Tokens since the log before, of all ranks, and their rate on each; a checkpoint has no runtime."""
    folder = trained(tmp_path / "out", 0.25)
    (clock,) = (folder / "runs" / "Nov23_host").iterdir()
    clock.unlink()
    trained_tokens, history = 0, list[dict[str, float]]()
    for n, (new, seconds) in enumerate(((300, 2.0), (315, 0.9), (409, 0.8), (309, 0.8), (405, 9.0)), start=1):
        trained_tokens += new
        rate = {"tokens/train_per_sec_per_gpu": new / ranks / seconds} if n > 1 else {}
        history.append(
            {"step": 2 * n, "tokens/total": 480 * 2 * n, "tokens/trainable": trained_tokens, **rate}
        )
    text = json.dumps({"global_step": 10, "log_history": history})
    (folder / "trainer_state.json").write_text(text, "utf-8")
    row = only(folder, f"num_gpus={ranks}")
    assert row.measured.step_time_s == pytest.approx(0.85 / 2)  # two steps between logs
    assert row.run.seq_len == 120 // ranks
    assert row.assumptions == ()


def test_where_nobody_counted_it_is_said(tmp_path: Path) -> None:
    folder = trained(tmp_path / "out", 0.25, module="transformers.training_args")
    state(folder)
    row = only(folder, "seq_len=256")
    assert row.assumptions == (UNCOUNTED,)
    assert (row.run.framework, row.run.seq_len) == ("transformers", 256)


def test_the_median_passes_by_evaluations_and_without_a_clock_the_whole_counts(tmp_path: Path) -> None:
    folder = trained(tmp_path / "out", 0.25)
    events(folder / "runs" / "Nov23_host", WALL_S)
    assert only(folder).measured.step_time_s == pytest.approx(1.5)
    (folder / "runs" / "Nov23_host" / "events.out.tfevents.1.host.1.0").unlink()
    assert only(folder).measured.step_time_s == pytest.approx(1.5)  # 9 s for 6 steps


def test_a_resumed_training_counts_the_steps_that_its_runtime_is_of(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    state(tmp_path / "state", runtime_s=8.0, steps=20, train_steps_per_second=0.5)  # four of twenty
    assert finished_in(str(tmp_path / "state"))[0].step_time_s == pytest.approx(2.0)
    state(tmp_path / "state", runtime_s=4000.0, steps=20, train_steps_per_second=0.005)
    assert finished_in(str(tmp_path / "state"))[0].step_time_s == pytest.approx(200.0)
    seconds = [3, 6, 9, 12, 4, 7, 10]  # resumed after four steps
    lines = [{"current_steps": n, "elapsed_time": f"0:00:{s:02}"} for n, s in enumerate(seconds, 1)]
    (tmp_path / "log").mkdir()
    torn = "\n".join([*map(json.dumps, lines), '{"current_steps": 8, "elap'])  # killed while it wrote
    (tmp_path / "log" / "trainer_log.jsonl").write_text(torn, "utf-8")
    assert finished_in(str(tmp_path / "log"))[0].step_time_s == pytest.approx(22 / 7)


def test_of_two_trainings_in_a_folder_the_later_counts(tmp_path: Path) -> None:
    folder = trained(tmp_path / "out", 0.25)
    events(folder / "runs" / "a", {n: 9000.0 + 2.0 * n for n in range(1, 6)})
    assert only(folder).measured.step_time_s == pytest.approx(2.0)


@pytest.mark.parametrize("logger", ["wandb", "mlflow", "tensorboard"])
def test_a_logger_alone_tells_the_run_too(tmp_path: Path, logger: str) -> None:
    settings = {**ARGUMENTS, **TINY, "optim": "adamw_torch", "max_length": 64, "packing": False}
    if logger == "wandb":
        wandb(tmp_path, WALL_S, settings, "NVIDIA A100-SXM4-80GB")
    elif logger == "mlflow":
        mlflow(tmp_path, WALL_S, settings)
    else:
        events(tmp_path, WALL_S, settings)
    (found,) = finished_in(str(tmp_path))
    row = finished_row(found, (), "" if logger == "wandb" else GPU)
    assert row.reason == ""
    assert row.run is not None
    assert row.run.config["hidden_size"] == 256  # of the configuration that was logged
    assert str(row.run.gpu).endswith(GPU)
    assert (row.run.seq_len, row.run.micro_batch_size) == (64, 2)
    assert row.measured.step_time_s == pytest.approx(1.5)
    if logger == "wandb":
        assert (row.measured.memory_metric, row.measured.peak_memory_gib) == ("torch_reserved", 3.5)
        assert found.memory_bytes["nvidia_smi"] == 8e9


def test_a_history_of_wandb_exported_as_csv(tmp_path: Path) -> None:
    lines = [f"{n},{at_s},0.5" for n, at_s in WALL_S.items()]
    (tmp_path / "wandb_export.csv").write_text("\n".join(["_step,_timestamp,train/loss", *lines]), "utf-8")
    (found,) = finished_in(str(tmp_path))
    assert found.step_time_s == pytest.approx(1.5)


def test_torchtune(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    rates = [900, 1000, 1100, 1000]
    (tmp_path / "logs" / "log_1795441553.txt").write_text("".join(
        f"Step {n} | loss:7.6 lr:2e-05 tokens_per_second_per_gpu:{rate}.5 peak_memory_alloc:12.5 \n"
        for n, rate in enumerate(rates, start=1)), "utf-8")  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(TINY), "utf-8")
    (tmp_path / "torchtune_config.yaml").write_text(
        "model:\n  _component_: torchtune.models.llama3.llama3\ntokenizer:\n  max_seq_len: 256\n"
        "dataset:\n  _component_: mine.data\n  packed: true\nbatch_size: 2\ngradient_accumulation_steps: 3\n"
        "epochs: 1\noptimizer:\n  _component_: torch.optim.AdamW\n  fused: true\n"
        "loss:\n  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss\ndtype: fp32\n"
        "enable_activation_checkpointing: false\noutput_dir: /x\ndevice: cpu\n", "utf-8")  # fmt: skip
    row = only(tmp_path)
    assert row.reason == ""
    assert row.measured.tokens_per_s_per_gpu == 1000.5
    assert (row.measured.memory_metric, row.measured.peak_memory_gib) == ("torch_allocated", 12.5)
    assert (row.run.framework, row.run.seq_len, row.run.gradient_accumulation_steps) == ("torchtune", 256, 3)


def test_llama_factory_by_the_file_that_names_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run7"
    folder.mkdir()
    lines = [{"current_steps": n, "total_steps": 6, "elapsed_time": f"0:00:0{n}"} for n in range(1, 7)]
    (folder / "trainer_log.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    (tmp_path / "train.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: pt\nfinetuning_type: full\ncutoff_len: 512\n"
        "per_device_train_batch_size: 4\noutput_dir: saves/run7\n", "utf-8")  # fmt: skip
    row = only(folder)
    assert (row.run.framework, row.run.seq_len, row.run.micro_batch_size) == ("LLaMA-Factory", 512, 4)
    assert row.measured.step_time_s == pytest.approx(1.0)


def test_ms_swift_by_its_arguments(tmp_path: Path) -> None:
    lines = [{"global_step/max_steps": f"{n}/6", "loss": 1.0, "elapsed_time": f"1m {n}s", "memory(GiB)": 4.25}
             for n in range(1, 7)]  # fmt: skip
    (tmp_path / "logging.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    (tmp_path / "args.json").write_text(json.dumps(
        {"model": "Qwen/Qwen2.5-0.5B", "tuner_type": "lora", "max_length": 512, "lora_rank": 16,
         "packing": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
         "torch_dtype": "bfloat16", "output_dir": "/x", "deepspeed": None}), "utf-8")  # fmt: skip
    row = only(tmp_path)
    assert row.reason == ""
    assert (row.run.framework, row.run.method, row.run.lora_rank) == ("ms-swift", "lora", 16)
    assert row.measured.step_time_s == pytest.approx(11.0)
    assert (row.measured.memory_metric, row.measured.peak_memory_gib) == ("torch_reserved", 4.25)


def test_enumerations_of_the_arguments_are_their_words_and_ranks_are_counted(tmp_path: Path) -> None:
    saved_arguments(tmp_path / "training_args.bin", "trl.trainer.sft_config")
    keys, trainer = read_arguments(str(tmp_path / "training_args.bin"))
    assert (keys["optim"], keys["per_device_train_batch_size"], trainer) == ("adamw_torch_fused", 2, "TRL")


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch ran",)


def _nested(depth: int) -> bytes:
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


HOSTILE: Mapping[str, Callable[[Path], object]] = {
    "names a function": lambda path: zipped(path, pickle.dumps(_Bomb(), protocol=2)),
    "names one in its state": lambda path: saved_arguments(path, max_steps=_Bomb()),
    "garbage": lambda path: path.write_bytes(os.urandom(4_000_000)),
    "garbage in a zip": lambda path: zipped(path, os.urandom(1_000_000)),
    "too large": lambda path: path.write_bytes(bytes(10_000_000)),
    "a zip bomb": lambda path: zipped(path, bytes(60_000_000)),
    "deep": lambda path: zipped(path, _nested(400_000)),
    "empty": lambda path: path.write_bytes(b""),
    "an old pickle": lambda path: path.write_bytes(pickle.dumps({"a": 1})),
    "an endless memo": lambda path: zipped(path, b"\x80\x02Nr\xff\xff\xff\xffj\xff\xff\xff\xfe."),
}


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "names one in its state"])
def test_hostile_arguments_are_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    HOSTILE[name](tmp_path / "training_args.bin")
    with pytest.raises(FileFormatError) as told:
        read_arguments(str(tmp_path / "training_args.bin"))
    assert str(told.value).startswith("training_args.bin")
    assert len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "ran").exists()


def test_a_function_in_the_state_is_never_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    HOSTILE["names one in its state"](tmp_path / "training_args.bin")
    keys, _ = read_arguments(str(tmp_path / "training_args.bin"))
    assert keys["max_steps"] == "touch ran"  # the text that it was to be given, as of an enumeration
    assert not (tmp_path / "ran").exists()


LOGS = {
    "trainer_state.json": b'{"log_history": ' + b"[" * 100_000,
    "trainer_state.json ": b'{"log_history": 3}',
    "trainer_log.jsonl": b'{"loss": 1}\n' + b"[" * 5_000,
    "logging.jsonl": bytes(range(256)) * 40_000,
    "run-a.wandb": os.urandom(1_000_000),
}


@pytest.mark.parametrize("name", LOGS)
def test_hostile_logs_are_named_with_the_reason(name: str, tmp_path: Path) -> None:
    (tmp_path / name.strip()).write_bytes(LOGS[name])
    (found,) = finished_in(str(tmp_path))
    (problem,) = found.problems
    assert problem.startswith(name.strip())
    assert len(problem.splitlines()) == 1
    assert finished_row(found, (), GPU).run is None


def test_endless_and_torn_records_end(tmp_path: Path) -> None:
    events(tmp_path, WALL_S)
    file = tmp_path / "events.out.tfevents.1.host.1.0"
    file.write_bytes(file.read_bytes() + b"\xff" * 8 + b"\0" * 100)
    wandb(tmp_path, WALL_S, {})
    inner = next(tmp_path.rglob("*.wandb"))
    inner.write_bytes(inner.read_bytes() + b"\0\0\0\0\xff\xff\x01" + b"\xff" * 50)
    (found,) = finished_in(str(tmp_path))
    assert found.step_time_s == pytest.approx(1.5)
    assert found.problems == ()


def test_a_folder_without_a_training_says_so(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(FileFormatError, match="holds no finished training"):
        finished_in(str(tmp_path))
