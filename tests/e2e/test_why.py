"""What `finegauge why` prints, writes and refuses."""

import json
import pickle
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import EXAMPLES, MIXTRAL, finegauge
from tests.unit.formats.test_evidence import ALL, FAILURES, HOSTILE, snapshot

LLAMA = ("Llama-3.2-1B", "method=full", "micro_batch_size=1", "gradient_accumulation_steps=1", "seq_len=2048",
         "dataset=", "attention=eager", "activation_checkpointing=full", "--gpu", "a100-80gb")  # fmt: skip


def test_why_a_real_failure() -> None:
    done = finegauge("why", *LLAMA, "free_memory_bytes=11.81e9", str(FAILURES / "gpu_no_checkpointing.txt"))
    assert done.code == 0
    assert done.err == ""
    assert done.out.startswith("Out of GPU memory in the forward pass of a step.")
    assert "Of that size: the attention scores in fp32: 1 x 32 heads x 2,048²" in " ".join(done.out.split())
    assert "activation_checkpointing is not active" in " ".join(done.out.split())


@pytest.mark.parametrize("name", ALL)
def test_every_piece_has_an_answer_by_the_schema(name: str) -> None:
    done = finegauge("why", MIXTRAL, str(FAILURES / f"{name}.txt"), "--json")
    assert (done.code, done.err) == (0, "")
    whole = json.loads(done.out)
    Draft202012Validator(schema("why")).validate(whole)
    (piece,) = whole["evidence"]
    assert (piece["failure"], piece["name"]) == (ALL[name][0], f"{name}.txt")
    shown = finegauge("why", MIXTRAL, str(FAILURES / f"{name}.txt"))
    assert (shown.code, shown.err) == (0, "")
    assert len(shown.out.splitlines()) > 3


def test_a_snapshot_and_a_log_together(tmp_path: Path) -> None:
    file = tmp_path / "memory.pickle"
    file.write_bytes(pickle.dumps(snapshot()))
    done = finegauge("why", MIXTRAL, str(FAILURES / "nvidia_smi.txt"), str(file))
    assert done.code == 0
    assert done.out.startswith("Out of GPU memory in the optimizer's step.")  # the failure first
    assert "optimizer states" in done.out


def test_a_kernel_says_why_a_log_ends(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "Loading checkpoint shards:  37%\nE api.py:870] exitcode: -9\n", "utf-8"
    )
    said = "Memory cgroup out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:61239412kB"
    (tmp_path / "dmesg.txt").write_text(f"oom-kill:constraint=CONSTRAINT_MEMCG\n{said}\n", "utf-8")
    done = finegauge("why", MIXTRAL, str(tmp_path / "train.log"), str(tmp_path / "dmesg.txt"))
    assert done.out.startswith("Out of host memory while the model is loaded.")
    assert "58.4" in done.out
    assert "Nothing in it says who" not in done.out


def test_where_a_failure_that_is_not_memory_ended_and_an_engine_without_room() -> None:
    ended = finegauge("why", MIXTRAL, str(FAILURES / "illegal_access.txt")).out
    assert ended.startswith("No failure of memory; it ended in the backward pass of a step.")
    refused = " ".join(finegauge("why", MIXTRAL, str(FAILURES / "vllm_blocks.txt")).out.split())
    assert "a lower max_model_len, or a higher gpu_memory_utilization" in refused


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(HOSTILE[name])
    done = finegauge("why", MIXTRAL, str(file))
    assert (done.code, done.out) == (64, "")
    assert done.err.startswith("Error: ")
    assert done.err.count("\n") == 1


def test_fix_writes_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(
        "model: Qwen/Qwen3-8B\nmethod: lora\nmicro_batch_size: 32\nseq_len: 4096\ngpu: A100-SXM4-80GB\n"
    )
    text = (FAILURES / "rich_traceback.txt").read_text("utf-8").replace("evaluat", "train")
    (tmp_path / "error.log").write_text(text, "utf-8")
    done = finegauge("why", str(run), str(tmp_path / "error.log"), "--fix", "-o", str(tmp_path / "fixed"))
    assert (done.code, done.err) == (0, "")
    (written,) = (tmp_path / "fixed").glob("*.y*ml")
    assert finegauge("check", str(written)).code == 0


def test_an_option_that_is_made_active_is_enough() -> None:
    lora = (
        "Qwen/Qwen3-8B",
        "method=lora",
        "micro_batch_size=4",
        "seq_len=4096",
        "dataset=",
        "--gpu",
        "a100-80gb",
    )
    done = finegauge("why", *lora, str(FAILURES / "closure.txt"))
    said = " ".join(done.out.split())
    assert "As configured the run fits: make that active, and nothing else has to change." in said


def test_ranks_on_one_gpu() -> None:
    run = ("Qwen/Qwen3-8B", "method=full", "sharding=fsdp", "num_gpus=8", "--gpu", "a100-40gb")
    done = finegauge("why", *run, str(FAILURES / "one_gpu.txt"))
    assert "each must take its own GPU (LOCAL_RANK)" in " ".join(done.out.split())


def test_what_is_refused() -> None:
    assert "No file" in finegauge("why", MIXTRAL, str(EXAMPLES / "absent.log")).err
    assert "go with --fix" in finegauge("why", MIXTRAL, "-o", "x").err
    assert "takes one GPU" in finegauge("why", MIXTRAL, "--gpu", "a40,h100").err


def test_the_text_of_an_error_may_stand_for_its_file() -> None:
    error = "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.65 GiB."
    done = finegauge("why", "Qwen/Qwen3-8B", error, "--gpu", "rtx4090")
    assert (done.code, done.err) == (0, "")
    assert "It asked for 2.32 GiB" in done.out
    alone = finegauge("why", error)
    assert alone.code == 64
    assert "No RUN is named before the error" in alone.err
