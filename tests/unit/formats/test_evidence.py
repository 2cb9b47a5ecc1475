"""What failures leave behind is read right: 59 pieces, most of real failures, and hostile ones.

`tests/replay/failures` holds them; `record.py` there makes the real ones again.
"""

import pickle
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from finegauge.answers.why import read_evidence
from finegauge.errors import FileFormatError
from finegauge.formats import evidence as evidence_rules
from finegauge.formats.evidence import FIGURES, MARKS, PEAKS, Evidence, text_evidence
from finegauge.formats.plain_pickle import plain_pickle, snapshot_evidence
from finegauge.formats.training_events import words_of
from finegauge.units import GIB, MIB

FAILURES = Path(__file__).parents[2] / "replay" / "failures"
REAL = {  # as each was made to fail
    "load": ("host_memory", "load", ""),
    "forward": ("host_memory", "train", "forward"),
    "loss": ("host_memory", "train", "loss"),
    "backward": ("host_memory", "train", "backward"),
    "optimizer": ("host_memory", "train", "optimizer"),
    "evaluation": ("host_memory", "evaluation", ""),
    "resume": ("host_memory", "resume", ""),
    "generate": ("host_memory", "generation", ""),
    "disk": ("disk", "save", ""),
    "archive": ("disk", "save", ""),
    "prepare": ("host_memory", "data", ""),
    "rank": ("timeout", "", ""),
    "killed_rank": ("killed", "", ""),
    "gpu_forward": ("device_memory", "train", "forward"),
    "gpu_loss": ("device_memory", "train", "loss"),
    "gpu_backward": ("device_memory", "train", "backward"),
    "gpu_optimizer": ("device_memory", "train", "optimizer"),
    "gpu_no_checkpointing": ("device_memory", "train", "forward"),
    "gpu_no_lora": ("device_memory", "train", "optimizer"),
    "gpu_fp32": ("device_memory", "train", "optimizer"),
    "gpu_rows": ("device_memory", "train", "forward"),
    "gpu_construct": ("device_memory", "load", ""),
}
WRITTEN = {  # in the words of PyTorch, transformers, Linux, Slurm, DeepSpeed, vLLM
    "kernel_oom": ("host_memory", "save", ""),
    "cgroup_oom": ("host_memory", "load", ""),
    "torchrun_killed": ("killed", "train", ""),
    "deepspeed_killed": ("killed", "resume", ""),
    "loader_killed": ("killed", "train", "data"),
    "loader_bus": ("shared_memory", "train", "data"),
    "nccl_timeout": ("timeout", "", ""),
    "cublas": ("device_memory", "train", "forward"),
    "old_sentence": ("device_memory", "train", "backward"),
    "others": ("device_memory", "load", ""),
    "rich_traceback": ("device_memory", "evaluation", ""),
    "vllm_blocks": ("device_memory", "load", ""),
    "illegal_access": ("other", "train", "backward"),
    "nvidia_smi": ("", "", ""),
    "swift_log": ("", "train", ""),
    "megatron_log": ("", "train", ""),
    "ipython": ("device_memory", "evaluation", ""),
    "fsdp_clone": ("device_memory", "save", ""),
    "fsdp_unshard": ("device_memory", "save", ""),
    "pinned": ("host_memory", "load", ""),
    "bitsandbytes_paged": ("device_memory", "train", ""),
    "vllm_longest": ("device_memory", "load", ""),
    "kubernetes": ("host_memory", "load", ""),
    "closure": ("device_memory", "train", "forward"),
    "optimizer_built": ("device_memory", "load", ""),
    "accelerate_killed": ("killed", "load", ""),
    "zsh": ("killed", "train", ""),
    "colab": ("host_memory", "load", ""),
    "windows": ("host_memory", "load", ""),
    "xla": ("device_memory", "train", ""),
    "mps": ("device_memory", "train", "backward"),
    "one_gpu": ("device_memory", "load", ""),
    "shared_gpu": ("device_memory", "train", "forward"),
    "rollout_scores": ("device_memory", "train", "forward"),
    "nvidia_smi_csv": ("", "", ""),
    "gpustat": ("", "", ""),
    "inductor": ("device_memory", "train", "forward"),
}
ALL = REAL | WRITTEN


def evidence(name: str) -> Evidence:
    return read_evidence(str(FAILURES / f"{name}.txt"))


@pytest.mark.parametrize("name", ALL)
def test_moment_and_stage(name: str) -> None:
    found = evidence(name)
    assert (found.failure, found.moment, found.stage) == ALL[name]


def test_every_recorded_piece_is_held() -> None:
    assert {path.stem for path in FAILURES.glob("*.txt")} == ALL.keys()


def test_figures_of_both_sentences() -> None:
    new, old = evidence("others"), evidence("old_sentence")
    assert (new.tried_bytes, new.total_bytes) == (15.26 * GIB, 79.15 * GIB)
    assert (new.free_bytes, new.process_bytes) == (11.40 * GIB, 932 * MIB)
    assert (new.allocated_bytes, new.unallocated_bytes) == (420 * MIB, 12 * MIB)
    assert (old.tried_bytes, old.allocated_bytes) == (1.96 * GIB, 20.02 * GIB)
    assert old.unallocated_bytes == pytest.approx(1.39 * GIB)


def test_what_logs_count() -> None:
    assert (evidence("swift_log").peak_bytes, evidence("swift_log").metric) == (23.18 * GIB, "torch_reserved")
    assert (evidence("megatron_log").peak_bytes, evidence("megatron_log").step) == (55231.9 * MIB, 20)
    assert (evidence("nvidia_smi").peak_bytes, evidence("nvidia_smi").metric) == (31562 * MIB, "nvidia_smi")
    assert evidence("nvidia_smi").gpu == "NVIDIA A100-SXM4-80GB"
    assert evidence("kernel_oom").host_bytes == 125437816 * 1024


def test_a_full_gpu_by_a_query_by_gpustat_and_by_rocm() -> None:
    for name in ("nvidia_smi_csv", "gpustat"):
        found = evidence(name)
        assert (found.peak_bytes, found.metric) == (76213 * MIB, "nvidia_smi")
        assert (found.total_bytes, found.gpu) == (81920 * MIB, "NVIDIA A100-SXM4-80GB")
    asked = "$ nvidia-smi --query-gpu=memory.total,memory.used --format=csv,nounits\n81920, 4\n81920, 512"
    assert text_evidence(asked, "x").peak_bytes == 512 * MIB
    rocm = "GPU[0]\t\t: VRAM Total Memory (B): 205822885888\nGPU[0]\t\t: VRAM Total Used Memory (B): 12345678"
    assert text_evidence(rocm, "x").peak_bytes == 12345678


def test_figures_of_other_devices_and_of_several_processes() -> None:
    xla, mps, shared = evidence("xla"), evidence("mps"), evidence("shared_gpu")
    assert (xla.allocated_bytes, xla.total_bytes) == (21.90 * GIB, 15.75 * GIB)
    assert (mps.allocated_bytes, mps.tried_bytes) == (15.05 * GIB, 1.16 * GIB)  # its "GB" are GiB
    assert mps.total_bytes == 27.20 * GIB
    assert shared.process_bytes == 26.58 * GIB  # of two, the one that can hold what PyTorch has
    assert evidence("kubernetes").host_bytes == 64022516 * 1024


@pytest.mark.parametrize(("line", "failure"), [
    ("bash: line 1:   598 Killed                  python train.py", "killed"),
    ("zsh: killed     python train.py", "killed"),
    ("fish: Job 1 terminated by signal SIGKILL", "killed"),
    ("train.sh: line 3: exited with code 137", "killed"),
    ("Exit Code:    137", "killed"),
    ("subprocess returned code -9", "killed"),
    ("The kernel appears to have died. It will restart automatically.", "killed"),
    ("statusReason: OutOfMemoryError: Container killed due to memory usage", "host_memory"),
    ("The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi.", "host_memory"),
    ("OSError: [WinError 1455] The paging file is too small", "host_memory"),
])  # fmt: skip
def test_the_words_of_a_killed_process(line: str, failure: str) -> None:
    """Only where something says that memory ran out is it memory: a signal alone may be anybody's."""
    found = text_evidence(f"Generating train split: 100 examples\n{line}\n", "x")
    assert (found.failure, found.moment) == (failure, "data")


@pytest.mark.parametrize("line", [
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying",
    "RuntimeError: store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    "[rank1]:[E310 ProcessGroupNCCL.cpp:1413] Heartbeat monitor timed out! Process will be terminated",
])  # fmt: skip
def test_ranks_that_never_meet(line: str) -> None:
    assert text_evidence(f"{line}\n", "x").failure == "timeout"


BY_LOGGERS = {
    "no prefix": "",
    "a logger": "2026-10-31 03:11:02,475 - Trainer - INFO - ",
    "a container": "2026-06-28T06:11:52.685300953Z ",
    "a worker in a container": "2026-06-28T06:11:52.685300953Z (WorkerDict pid=20770) ",
    "a quotation": "> ",
    "a rank": "[rank3]: ",
    "MPI": "[1,mpirank:3,algo-1]<stderr>:",
    "a platform": "2026-03-01T10:00:00.1234567Z stderr F ",
}


@pytest.mark.parametrize("name", BY_LOGGERS)
def test_a_traceback_behind_prefixes(name: str) -> None:
    text = (FAILURES / "fsdp_unshard.txt").read_text("utf-8").replace("[rank7]: ", "")
    found = text_evidence("".join(f"{BY_LOGGERS[name]}{line}\n" for line in text.splitlines()), "x")
    assert (found.failure, found.moment, found.tried_bytes) == ("device_memory", "save", 1.16 * GIB)


BROKEN = "│ /env/transformers/trainer.py:2348    │\n│ in _save_checkpoint    │\n"
LINKED = "[/usr/lib/accelerate/operations.py](https://localhost:8080/#) in _convert_to_fp32(tensor)\n"


@pytest.mark.parametrize(("frame", "moment"), [
    (BROKEN, ("save", "")), (BROKEN.replace("    │\n│ in", " in    │\n│"), ("save", "")),
    (LINKED, ("train", "loss")),
])  # fmt: skip
def test_frames_of_broken_lines_and_of_links(frame: str, moment: tuple[str, str]) -> None:
    found = text_evidence(f"Traceback (most recent call last)\n{frame}RuntimeError: CUDA out of memory.", "x")
    assert (found.moment, found.stage) == moment


@pytest.mark.parametrize(("line", "moment"), [
    ("Val:  21%|##   | 90/428 [01:53<04:33,  1.24it/s]Killed", "evaluation"),
    ("CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "generation"),
])  # fmt: skip
def test_a_line_that_tells_its_own_moment(line: str, moment: str) -> None:
    assert text_evidence(f" 3%|#| 60/900 [00:10<01:00, 1.0it/s]\n{line}\n", "x").moment == moment


def test_a_container_that_counts_no_memory_of_the_process() -> None:
    line = (
        "CUDA out of memory. Tried to allocate 2.63 GiB. GPU 7 has a total capacity of 79.11 GiB of which "
        "2.61 GiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the "
        "allocated memory 68.15 GiB is allocated by PyTorch."
    )
    assert text_evidence(line, "x").process_bytes is None


def test_figures_on_lines_of_their_own() -> None:
    """The message of `cudaMallocAsync`, of PyTorch's XLA, and nvitop's table."""
    found = text_evidence(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 22.79 GiB\nRequested               : 594.00 MiB\n"
        "Device limit            : 23.69 GiB\nFree (according to CUDA): 15.31 MiB\n", "x"
    )  # fmt: skip
    assert (found.allocated_bytes, found.tried_bytes) == (22.79 * GIB, 594 * MIB)
    assert (found.total_bytes, found.free_bytes) == (23.69 * GIB, 15.31 * MIB)
    buffer = text_evidence(
        "RuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.17G. "
        "That was not possible. There are 803.14M free.; (0x0x0_HBM0)", "x"
    )  # fmt: skip
    assert (buffer.failure, buffer.tried_bytes) == ("device_memory", 1.17 * GIB)
    nvitop = text_evidence(
        "│ N/A   55C    P0   371W / 400W │  71.15GiB / 80.00GiB │     98%      Default │", "x"
    )
    assert nvitop.peak_bytes == pytest.approx(71.15 * GIB, rel=1e-4)
    assert nvitop.total_bytes == 80 * GIB


def test_a_second_failure_adds_nothing_to_the_first() -> None:
    first = "RuntimeError: CUDA error: out of memory"
    second = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
    assert text_evidence(f"{first}\n{second}\n", "x").tried_bytes is None


@pytest.mark.parametrize("line", [
    "OSError: [Errno 28] No space left on device: '/dev/shm/pym-4123-abc'",
    "RuntimeError: unable to write to file </torch_123_456>",
])  # fmt: skip
def test_shared_memory_is_no_disk(line: str) -> None:
    assert text_evidence(line, "x").failure == "shared_memory"


@pytest.mark.parametrize("line", [
    "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
    "step 137, loss: 0.9", "1370 tokens were skilled",
    "A worker died. There are some potential root causes. (1) It is killed by SIGKILL by the OOM killer "
    "due to high memory usage.", "To avoid CUDA out of memory, lower the batch",
    "    except CUDA out of memory",
])  # fmt: skip
def test_what_is_no_failure_of_memory(line: str) -> None:
    assert text_evidence(f"RuntimeError: shapes differ\n{line}\n", "x").failure == "other"


def test_the_rank_that_failed_first() -> None:
    text = (FAILURES / "gpu_loss.txt").read_text("utf-8")
    ranks = "\n".join(f"[rank3]: {line}" for line in text.splitlines())
    found = text_evidence(
        ranks + "\n[rank0]: torch.distributed.DistBackendError: Connection closed by peer", ""
    )
    assert (found.rank, found.failure, found.stage) == (3, "device_memory", "loss")


@pytest.mark.parametrize("text", ["", "\n" * 1000, "hello world", "loss went down", "£" * 5000])
def test_a_text_without_evidence_is_refused(text: str) -> None:
    with pytest.raises(FileFormatError, match="holds no error"):
        text_evidence(text, "x.log")


def frame(path: str, name: str) -> dict[str, Any]:
    return {"filename": path, "line": 1, "name": name}


TRAINER = frame("/venv/transformers/trainer.py", "training_step")
LOADED = [
    frame("/venv/torch/nn/modules/module.py", "to"),
    frame("/venv/transformers/modeling_utils.py", "from_pretrained"),
]
FORWARD = [frame("/venv/transformers/models/qwen3/modeling_qwen3.py", "forward"), TRAINER]
LOSS = [frame("/venv/torch/nn/functional.py", "cross_entropy"), *FORWARD]
BACKWARD = [frame("/venv/torch/autograd/graph.py", "_engine_run_backward"), TRAINER]
STEP = [
    frame("/venv/torch/optim/adamw.py", "_init_group"),
    frame("/venv/torch/optim/optimizer.py", "wrapper"),
]


def snapshot(*, oom: bool = True) -> dict[str, Any]:
    """Return a snapshot as torch writes one: weights from before the trace, a step, then no memory."""
    moves = [
        ("alloc", 4096, 300, FORWARD), ("alloc", 8192, 700, LOSS), ("free_requested", 8192, 700, []),
        ("free_completed", 8192, 700, []), ("alloc", 16384, 200, BACKWARD), ("alloc", 32768, 400, STEP),
    ]  # fmt: skip
    trace = [{"action": action, "addr": at, "size": size, "stream": 0, "frames": frames, "time_us": 1}
             for action, at, size, frames in moves]  # fmt: skip
    if oom:
        trace.append(
            {"action": "oom", "addr": 99, "size": 5000, "stream": 0, "frames": STEP, "device_free": 99}
        )
    blocks = [(1024, 1000, LOADED), (4096, 300, []), (16384, 200, []), (32768, 400, [])]
    segment = {
        "device": 0, "address": 1024, "total_size": 3000, "segment_type": "large",
        "blocks": [{"address": at, "size": size, "state": "active_allocated", "frames": frames}
                   for at, size, frames in blocks],
    }  # fmt: skip
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": {"max_split_size": -1}}


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_snapshot_that_ends_in_out_of_memory(protocol: int) -> None:
    found = snapshot_evidence(pickle.dumps(snapshot(), protocol), "memory.pickle")
    assert (found.failure, found.moment, found.stage) == ("device_memory", "train", "optimizer")
    assert (found.allocated_bytes, found.tried_bytes, found.unallocated_bytes) == (1900, 5000, 1100)
    assert found.parts_bytes == {
        "weights": 1000, "optimizer states": 400, "activations": 300, "gradients": 200,
    }  # fmt: skip


def test_a_snapshot_at_its_fullest_moment() -> None:
    found = snapshot_evidence(pickle.dumps(snapshot(oom=False)), "memory.pickle")
    assert (found.failure, found.stage, found.metric) == ("", "loss", "torch_allocated")
    assert found.peak_bytes == 2000
    assert found.parts_bytes == {"weights": 1000, "logits and loss": 700, "activations": 300}


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("was run",)


def nested(depth: int) -> bytes:
    return b"\x80\x04)" + b"\x85" * depth + b"."


HOSTILE = {
    "a call": pickle.dumps({"segments": [Evil()]}),
    "an old call": b"\x80\x02cos\nsystem\n(S'ls'\ntR.",
    "a class": pickle.dumps(Path("x")),
    "cut off": pickle.dumps(snapshot())[:-40],
    "a memo of four billion": b"\x80\x04Nr\xff\xff\xff\xff.",
    "a text of 2^63 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"x.",
    "an empty stack": b"\x80\x04a.",
    "no mark": b"\x80\x04Nt.",
    "a deep key": b"\x80\x04})" + b"\x85" * 100_000 + b"Ns.",
    "lists in lists": b"\x80\x04" + b"]" * 3_000_000 + b"a" * 2_999_999 + b".",
    "no end": b"\x80\x04" + b"N" * 1000,
    "garbage": b"\x80" + bytes(range(256)) * 40,
    "a list": pickle.dumps([1, 2]),
    "odd types": pickle.dumps({"segments": [{"device": "x", "blocks": 3}], "device_traces": [[3]]}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileFormatError) as caught:
        snapshot_evidence(HOSTILE[name], "x.pickle")
    assert str(caught.value).count("\n") == 0
    assert str(caught.value).endswith(".")
    assert capsys.readouterr().out == ""


def test_a_deep_pickle_makes_no_crash() -> None:
    plain_pickle(nested(1_000_000), "x")


def test_shared_parts_do_not_multiply() -> None:
    block = {"address": 1, "size": 1, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": 1, "blocks": [block] * 5000}
    with pytest.raises(FileFormatError, match="more than"):
        snapshot_evidence(pickle.dumps({"segments": [segment] * 5000, "device_traces": []}), "x")


def test_megabytes_of_garbage(tmp_path: Path) -> None:
    import random

    file = tmp_path / "x.log"
    garbage = random.Random(1).randbytes(1_000_000)
    for data in (
        garbage,
        garbage.replace(b"\0", b""),
        b"x" * 1_000_000,
        b"loss: 1 CUDA out of\n" * 250_000,  # beyond what of a log is read
    ):
        file.write_bytes(data)
        with pytest.raises(FileFormatError) as caught:
            read_evidence(str(file))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("frames", "moment"), [  # "path function: code", the outermost first
    (["vllm/entrypoints/llm.py __init__: self.engine = Engine(args)"], ("load", "")),
    (["vllm/entrypoints/llm.py generate: self._run_engine()", "vllm/v1/worker.py execute_model: f()"],
     ("generation", "")),
    (["sgl/srt/managers/scheduler.py event_loop: self.run_batch(b)",
      "sgl/srt/layers/logits.py _get_logits: torch.matmul(h, lm_head.weight.T)"], ("generation", "")),
    (["trl/trainer/grpo_trainer.py training_step: super().training_step(m, x)",
      "trl/trainer/grpo_trainer.py _move_model_to_vllm: self.model.merge_adapter()"], ("generation", "")),
    (["openrlhf/ray/vllm_worker.py update_weight: torch.empty(shape)"], ("generation", "")),
    (["megatron/training.py setup_model_and_optimizer: load_checkpoint(m)",
      "megatron/checkpointing.py load_checkpoint: optimizer.load_state_dict(s)"], ("resume", "")),
    (["accelerate/big_modeling.py load_checkpoint_and_dispatch: f()"], ("load", "")),
    (["peft/peft_model.py load_adapter: load_peft_weights(p)"], ("load", "")),
    (["recipes/lora.py train: self.save_checkpoint(epoch=e)"], ("save", "")),  # its own frame is left out
    (["job.py main: return wrapped(model)"], ("", "")),
    (["x/torchinductor_u/de/cde.py call: empty_strided_cuda(s)"], ("train", "")),
    (["accelerate/utils/modeling.py set_module_tensor_to_device: value.to(device)"], ("load", "")),
    (["verl/workers/actor.py update_policy: f()", "verl/fsdp.py load_fsdp_optimizer: v.to(0)"],
     ("train", "forward")),
    (["verl/workers/actor.py compute_ref_log_prob: f()", "verl/torch.py logprobs_from_logits: f()"],
     ("train", "loss")),
    (["job.py train_loop: opt.step()", "job/muon.py step: newton(g)"], ("train", "optimizer")),
    (["full.py recipe_main: recipe.setup(c)", "bitsandbytes/optim/adamw.py __init__: f()"], ("load", "")),
    (["job.py train_epoch: m(b)", "torch/fsdp/fully_sharded_data_parallel.py forward: f()"],
     ("train", "forward")),
    (["xtuner/hooks/chat.py _eval_language: m.generate(b)"], ("evaluation", "")),
    (["nano/train.py estimate_loss: m(x, y)", "nano/model.py forward: F.cross_entropy(a, b)"],
     ("evaluation", "")),
    (["trl/trainer/gkd_trainer.py generalized_jsd_loss: torch.sum(x)"], ("train", "loss")),
    (["trl/trainer/dpo_trainer.py get_batch_loss_metrics: self.concatenated_forward(m, b)",
      "trl/trainer/dpo_trainer.py compute_loss: f()"], ("train", "forward")),
    (["job.py main: scaler.unscale_(o)", "torch/amp/grad_scaler.py unscale_: f()"], ("train", "optimizer")),
    (["job.py main: l = model(**b).loss; l.backward()", "torch/nn/modules/module.py _call_impl: f()"],
     ("train", "forward")),
    (["a/trainer.py _inner_training_loop: f()", "accelerate/fsdp_utils.py load_fsdp_model: f()"],
     ("resume", "")),
    (["torch/fsdp/_fsdp_state.py _pre_forward: f()", "torch/fsdp/a.py wait_for_unshard: f()"],
     ("train", "forward")),
    (["unsloth/models/llama.py LlamaDecoderLayer_fast_forward: f()"], ("train", "forward")),
    (["job.py step: net(x)", "flash_attn/a.py _flash_attn_varlen_backward: f()"], ("train", "backward")),
    (["a/trainer.py compute_loss: f()", "torch/_inductor/select.py generate_example_value: f()"],
     ("train", "forward")),
    (["flax/clm.py main: state, m = p_train_step(state, b)"], ("train", "forward")),
    (["lightning/strategy.py batch_to_device: move(b)"], ("train", "data")),
    (["own.py main: batch = {k: v.to(device) for k, v in batch.items()}"], ("train", "data")),
    (["own.py main: y = net(inputs.to(device))", "own.py forward: self.fc(x)"], ("train", "forward")),
    (["trl/grpo.py _prepare_inputs: f()", "transformers/models/q/modeling_q.py forward: f()"],
     ("train", "forward")),
    (["prepare.py main: f()", "pandas/io/json/_json.py read: data.split()"], ("data", "")),
    (["own.py fit: net(x)", "own.py attend: s = q @ k.transpose(-1, -2)"], ("train", "forward")),
    (["own.py main: ema = EMA(m)", "own/ema.py __init__: p.clone()"], ("load", "")),
    (["own.py main: ppl = compute_perplexity(m)", "own.py compute_perplexity: m(x)"], ("evaluation", "")),
    (["own.py restore: o.load_state_dict(s)", "torch/serialization.py load: f()"], ("resume", "")),
    (["nemo_rl/grpo.py refit_policy_generation: f()"], ("generation", "")),
    (["trl/grpo.py __init__: self.llm = LLM(m)", "vllm/v1/core/kv.py check_enough: f()"], ("load", "")),
    (["trl/grpo.py _logps_and_entropies: entropies = entropy_from_logits(x)"], ("train", "loss")),
    (["own.py main: f()", "own.py cache_batch_latents: vae.encode(x)"], ("data", "")),
])  # fmt: skip
def test_a_moment_by_what_frames_are_named(frames: list[str], moment: tuple[str, str]) -> None:
    lines = [re.sub(r"(\S+) (\S+): (.*)", r'  File "/env/site-packages/\1", line 3, in \2\n    \3', one)
             for one in frames]  # fmt: skip
    text = "\n".join(["Traceback (most recent call last):", *lines, "RuntimeError: CUDA out of memory."])
    found = text_evidence(text, "x")
    assert (found.moment, found.stage) == moment


TRAINED = " 50%|##5  | 500/1000 [10:00<10:00, 1.2s/it]{'loss': 1.1, 'epoch': 0.5}\n"


@pytest.mark.parametrize(("bars", "moment"), [
    (TRAINED + " 71%|###  | 1420/2000 [03:01<01:12,  8.0it/s]Killed", "evaluation"),
    (TRAINED + " 51%|##5  | 510/1000 [10:12<09:48,  1.2s/it]Killed", "train"),
    (TRAINED + "{'eval_loss': 1.0}\n 51%|##5  | 510/1000 [10:12<09:48,  1.2s/it]\nKilled", "train"),
    ("***** Running Evaluation *****\n 88%|####  | 220/250 [01:01<00:08,  3.6it/s]\nKilled", "evaluation"),
    ("Loading weights: 100%|##| 4/4 [00:10<00:00, 2.5s/it]\n  0%|  | 0/90 [00:00<?, ?it/s]\nKilled", "train"),
])  # fmt: skip
def test_a_bar_that_is_not_of_training(bars: str, moment: str) -> None:
    assert text_evidence(f"{bars}\n", "x").moment == moment


def test_the_step_of_bars_without_an_end_of_line_and_of_an_evaluation() -> None:
    lost = " 12%|#  | 37/312 [03:44<27:31,  6.0s/it]Traceback (most recent call last):\nMemoryError\n"
    assert text_evidence(lost, "x").step == 37
    bars = (
        "{'loss': 1.8}\n 50%|##  | 500/1000 [10:00<10:00, 1.2s/it]\n 63%|##  | 317/500 [02:11<01:16, 2it/s]"
    )
    found = text_evidence(f"{bars}\nKilled\n", "x")
    assert (found.step, found.moment) == (500, "evaluation")
    assert text_evidence("Evaluation:  41%|###  | 128/312 [00:51<01:13, 2.5it/s]\nKilled\n", "x").step is None


def test_the_line_that_ipython_marks() -> None:
    text = (
        "a/trainer.py in predict(self, data)\n   3006 \n   3007     loop = f()\n-> 3008     out = loop(\n"
        "   3009         data,\nOutOfMemoryError: CUDA out of memory."
    )
    assert text_evidence(text, "x").code == "out = loop("


PY_SPY = """Thread 4122 (idle): "tqdm"
    wait (threading.py:324)
Thread 4121 (active): "MainThread"
    full_tensor (torch/distributed/tensor/_api.py:600)
    save_checkpoint (train.py:211)
    main (train.py:300)
"""
ABORTED = """Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)
Thread 0x00007f11 (most recent call first):
  File "/lib/python3.11/threading.py", line 324 in wait

Thread 0x00007f22 (most recent call first):
  File "/env/torch/_tensor.py", line 648 in backward
  File "/env/transformers/trainer.py", line 3736 in training_step

"""


def test_stacks_of_a_process_that_hangs() -> None:
    hangs, waits = text_evidence(PY_SPY, "x"), text_evidence(ABORTED, "x")
    assert (hangs.failure, hangs.moment) == ("", "save")
    assert (waits.failure, waits.moment, waits.stage) == ("timeout", "train", "backward")


@pytest.mark.parametrize("line", [
    '{"current_steps": 310, "total_steps": 500, "loss": 0.9123, "lr": 1e-05}',
    '    {"epoch": 0.62, "loss": 0.9123, "step": 310}',
])  # fmt: skip
def test_a_step_of_a_log_in_json(line: str) -> None:
    found = text_evidence(f"{line}\n", "x")
    assert (found.moment, found.step) == ("train", 310)


@pytest.mark.parametrize(("line", "moment"), [
    ("Packing train dataset:  40%|## | 4000/10000 [01:00<01:30, 6600.1 examples/s]", "data"),
    ("Unsloth: Merging 4bit and LoRA weights to 16bit...", "save"),
])  # fmt: skip
def test_a_job_that_its_shell_says_is_killed(line: str, moment: str) -> None:
    found = text_evidence(f"{line}\n[1]    8156 killed     python train.py\n", "x")
    assert (found.failure, found.moment) == ("killed", moment)


@pytest.mark.parametrize(("line", "failure"), [
    ("State: OUT_OF_MEMORY (exit code 0)\nMemory Utilized: 63.81 GB", "host_memory"),
    ("99812   sft  OUT_OF_ME+    0:125", "host_memory"),
    ("=>> PBS: job killed: mem 68719476736kb exceeded limit 67108864kb", "host_memory"),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "host_memory"),
    ("wandb: Waiting for W&B process to finish... (failed 137).", "killed"),
    ('"State": {"OOMKilled": false, "ExitCode": 137}', "killed"),
    ("slurmstepd: error: Detected 1 oom_kill event.\nsh: line 8: 7 Killed   python x", "host_memory"),
    ("ERROR: Unexpected bus error encountered in worker: insufficient shared memory (shm).", "shared_memory"),
    ("RuntimeError: [/gloo/tcp/pair.cc:525] Read error [::1]: Connection reset by peer", "timeout"),
    ("ProtocolError: ('Connection aborted.', 'Connection reset by peer')", "other"),
    ("RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58", "device_memory"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "device_memory"),
    ("Message: Pod ephemeral local storage usage exceeds the total limit of containers 50Gi.", "disk"),
    ("slurmstepd: error: *** JOB 9 ON a CANCELLED AT 2026-02-02T23:00:13 DUE TO TIME LIMIT ***", "stopped"),
    ("CANCELLED AT 2026-02-02T23:00:13 DUE TO TIME LIMIT ***\nsrun: error: n1: task 0: Killed", "stopped"),
    ("srun: error: gpu-n6: task 0: Out Of Memory", "host_memory"),
    ("systemd-oomd[8]: Killed /a.scope due to memory pressure being 61.21% > 50.00%", "host_memory"),
    ("box earlyoom[6]: sending SIGTERM to process 2 uid 1000 \"python\": VmRSS 28812 MiB", "host_memory"),
    ("memory allocation of 17179869184 bytes failed", "host_memory"),
    ("[Rank:7] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::21 (2025)MB", "device_memory"),
    ("RuntimeError: level_zero error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "device_memory"),
    ("Resource exhausted: Failed to allocate request for 100.00MiB on device ordinal 0", "device_memory"),
    ("OOM when allocating tensor with shape[16,12] and type float on /job:a/device:GPU:0", "device_memory"),
    ("Out of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0", "device_memory"),
    ("   ERROR    torch.OutOfMemoryError: Allocation on device        node.py:3", "device_memory"),
    ("WARN failed to extend /dev/shm/nccl-Ab to 96 bytes, No space left on device (28)", "shared_memory"),
    ("train.sh: line 3:  8156 Terminated     python train.py", "stopped"),
    ("=>> PBS: job killed: walltime 86412 exceeded limit 86400", "stopped"),
    ("OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar", "disk"),
    ("The replica workerpool0-0 ran out-of-memory and exited with a status of 137(SIGKILL).", "host_memory"),
    ("{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.02}", "other"),
    ("['python', 'train.py', '--local_rank=3'] exits with return code = -7", "shared_memory"),
    ("failed (exitcode: -11) local_rank: 0 (pid: 99) of binary: /usr/bin/python", "other"),
    ("ExitCode 137 ErrorMessage \"OutOfMemoryError: use an instance with more memory\"", "host_memory"),
    ("nbclient.exceptions.DeadKernelError: Kernel died", "killed"),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "killed"),
    ("multiprocessing.api.SignalException: Process 22 got signal: 15", "stopped"),
    ("Received SIGTERM: instance is being preempted (spot)", "stopped"),
    ("[Rank 0] Timeout at NCCL work: 42, detected by watchdog at work: 42", "timeout"),
    ("of which 61.38 MiB is free. 731.22 MiB is reserved by PyTorch but unallocated.", "device_memory"),
    ("RuntimeError: No executable batch size found, reached zero.", "device_memory"),
    ("Memory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f. Reason: Unknown.", "other"),
])  # fmt: skip
def test_the_words_of_schedulers_and_engines(line: str, failure: str) -> None:
    found = text_evidence(f"iter 120: loss 2.33, time 511.02ms\n{line}\n", "x")
    assert (found.failure, found.moment, found.step) == (failure, "train", 120)


LOGS = "".join(f" step {n} loss: 2.{n}\n" for n in range(1, 5))


@pytest.mark.parametrize(("end", "failure"), [
    ("CANCELLED AT 2026-02-02T23:00:13 DUE TO TIME LIMIT ***", "stopped"),
    ("sh: line 1: 7 Killed   python x", "killed"),
    ("Traceback (most recent call last):\nKeyError: 'text'", "other"),
    ("done", ""),
])  # fmt: skip
def test_a_job_that_goes_on_was_not_ended_by_what_it_survived(end: str, failure: str) -> None:
    survived = "WARNING: CUDA out of memory. Tried to allocate 3.75 GiB, trying half the batch\n"
    found = text_evidence(survived + LOGS + end, "x")
    assert (found.failure, found.moment, found.step) == (failure, "train", 4)
    others = text_evidence(f"{LOGS}[rank1]: {survived} step 5 loss: 2.5\nsh: 7 Killed   python x", "x")
    assert others.failure == "device_memory"  # they end the step that they are in


def test_frames_that_a_service_joins_in_a_line() -> None:
    line = (
        '2024-01-12T19:26:34.787+08:00\t Traceback (most recent call last): File "t.py", line 3, in <module> '
        'trainer.evaluate() File "/x/trainer.py", line 9, in evaluate out = eval_loop( File "m.py", line 7, '
        "in forward return self.up_proj(x)\n2024-01-12T19:26:34.787+08:00\t RuntimeError: CUDA out of memory."
    )
    found = text_evidence(line, "x")
    assert (found.failure, found.moment, found.code) == (
        "device_memory", "evaluation", "return self.up_proj(x)",
    )  # fmt: skip


def test_rules_are_left_out_by_a_line_s_letters_only_where_they_cannot_match() -> None:
    lines = {line for name in ALL for line in (FAILURES / f"{name}.txt").read_text().splitlines()}
    for rules in (FIGURES, MARKS, PEAKS, evidence_rules.FAILURES):
        for line in lines:
            told = [name for name, _ in rules.matches(line, words_of(line))]
            assert told == [name for name, rule, _ in rules._rules if rule.search(line)]


def test_a_traceback_that_follows_a_bare_failure() -> None:
    bare = "[2] NCCL WARN Cuda failure 2 'out of memory'\n"
    again = 'Traceback (most recent call last):\n  File "t.py", line 3, in save_model\n' + bare[14:]
    found = text_evidence(bare + again, "x")
    assert (found.failure, found.moment) == ("device_memory", "save")


@pytest.mark.parametrize(("lines", "stage"), [
    ("    logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels)\n", "loss"),
    (" Calls into the C++ engine to run the backward pass\n", "backward"),
    ('  File "a/train.py", line 8, in train\n    out = model(x, lm_head_chunk_size=8)\n'
     '  File "b/lora.py", line 9, in forward\n    x = self.fc_1(x)\n', "forward"),
])  # fmt: skip
def test_a_traceback_whose_beginning_is_cut(lines: str, stage: str) -> None:
    found = text_evidence(f"{lines}torch.OutOfMemoryError: CUDA out of memory.\n", "x")
    assert (found.failure, found.moment, found.stage) == ("device_memory", "train", stage)


def test_a_failure_that_a_loop_hides_is_not_said_to_be_loading() -> None:
    frame = '  File "megatron/a.py", line 9, in train\n    helper.create_cudagraphs()\n'
    assert text_evidence(f"{frame}torch.OutOfMemoryError: CUDA out of memory.\n", "x").moment == ""


def test_a_log_in_sixteen_bits(tmp_path: Path) -> None:
    """As PowerShell writes what it redirects, and as it is without its first two bytes."""
    for encoding in ("utf-16", "utf-16-le"):
        said = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."
        (tmp_path / "train.log").write_text(said, encoding)
        assert read_evidence(str(tmp_path / "train.log")).tried_bytes == 2 * GIB


def test_a_log_with_a_few_bytes_of_no_text(tmp_path: Path) -> None:
    """PyTorch's signal handlers print the end of their C string; what truncates an open log leaves zeros."""
    file = tmp_path / "train.log"
    said = b"ERROR: Unexpected bus error encountered in worker.\n\0epoch 1\n"
    file.write_bytes(bytes(5_000) + said + b"DataLoader worker (pid 7) is killed by signal: Bus error.\n")
    found = read_evidence(str(file))
    assert (found.failure, found.moment, found.stage) == ("shared_memory", "train", "data")
    file.write_bytes(b"CUDA out of memory\n" + bytes(range(256)) * 40)
    with pytest.raises(FileFormatError, match="is binary"):
        read_evidence(str(file))


@pytest.mark.parametrize(("text", "peak_bytes"), [
    ("    FB Memory Usage\n        Total     : 81920 MiB\n        Used      : 78112 MiB", 78112 * MIB),
    ("|    0   N/A  N/A            4121      C   python                    77812MiB |", 77812 * MIB),
    ("# gpu   pid  type   sm   mem    fb  command\n    0  4121     C   97    62  74122  python", 74122 * MIB),
    ('{"system.gpu.0.memoryAllocatedBytes": 80026361856, "_timestamp": 1.5}', 80026361856),
    ("| Allocated memory      |  74211 MiB |  75812 MiB |   1912 GiB |", 75812 * MIB),
])  # fmt: skip
def test_peaks_that_tools_print(text: str, peak_bytes: float) -> None:
    assert text_evidence(f"{text}\n", "x").peak_bytes == peak_bytes
