"""Real failures are explained: by the configuration where it is what ran, else by what was not active."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.answers.why import read_evidence, why_answer
from finegauge.formats.evidence import Evidence
from finegauge.planning.diagnosis import diagnosed, tensors_of
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from finegauge.units import GIB, MIB

FAILURES = Path(__file__).parents[2] / "replay" / "failures"
LLAMA: dict[str, Any] = {  # what `record.py` trains on the meta device
    "model": "Llama-3.2-1B", "method": "full", "optimizer": "adamw", "micro_batch_size": 1, "seq_len": 2048,
    "gradient_accumulation_steps": 1, "attention": "eager", "activation_checkpointing": "full",
    "gpu": "A100-SXM4-80GB",
}  # fmt: skip
EXPLAINED = {  # the failure, what RUN says in place of what ran, the GiB there were, and what explains it
    "gpu_forward": ({}, 3.0, ()),
    "gpu_loss": ({}, 4.2, ()),
    "gpu_backward": ({}, 5.8, ()),
    "gpu_optimizer": ({}, 7.5, ()),
    "gpu_no_checkpointing": ({}, 11.0, ("activation_checkpointing",)),
    "gpu_no_lora": ({"method": "lora"}, 8.0, ("method",)),
    "gpu_fp32": ({}, 12.0, ("weights_dtype",)),
    "gpu_rows": ({}, 12.0, ("micro_batch_size",)),
}


def evidence(name: str) -> Evidence:
    return read_evidence(str(FAILURES / f"{name}.txt"))


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_explains_a_real_failure(name: str) -> None:
    changes, room_gib, without = EXPLAINED[name]
    run = Run.from_fields({**LLAMA, **changes, "free_memory_bytes": room_gib * GIB})
    first, *ways = diagnosed(run, evidence(name))
    assert first.explains is not bool(without)
    assert (ways[0].without if ways else ()) == without


def test_the_batch_that_ran_is_told_by_its_tensor() -> None:
    run = Run.from_fields({**LLAMA, "free_memory_bytes": 12 * GIB})
    _, level, *_ = diagnosed(run, evidence("gpu_rows"))
    assert level.changes == {"micro_batch_size": 8}  # 4 would need as much, but has no tensor of 4 GiB


@pytest.mark.parametrize("option", ["offload", "sharding", "quantisation", "optimizer", "checkpointing"])
def test_an_option_that_is_not_active(option: str) -> None:
    """A failure near the peak of the run without the option is not explained by the run with it."""
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "offload": ({"sharding": "zero2", "cpu_offload": "optimizer"}, {"sharding": "zero2"}),
        "sharding": ({"sharding": "fsdp", "num_gpus": 8}, {"num_gpus": 8}),
        "quantisation": ({"method": "qlora"}, {"method": "lora"}),
        "optimizer": ({"optimizer": "adamw_8bit"}, {}),
        "checkpointing": ({"seq_len": 8192}, {"seq_len": 8192, "activation_checkpointing": "none"}),
    }
    stated, really = cases[option]
    common = LLAMA | {"model": "Qwen/Qwen3-8B", "attention": "sdpa", "gpu": "H200-SXM-141GB"}
    stage = "forward" if option in ("quantisation", "checkpointing") else "optimizer"
    wrong = predict(Run.from_fields(common | really)).phase_memory_bytes.under(stage).total
    held = Evidence("x", "device_memory", moment="train", stage=stage, step=5,
                    allocated_bytes=wrong - 0.3 * GIB, tried_bytes=0.25 * GIB)  # fmt: skip
    first, *ways = diagnosed(Run.from_fields(common | stated), held)
    assert first.explains is False
    meant = {"offload": "cpu_offload", "quantisation": "qlora", "checkpointing": "activation_checkpointing"}
    assert ways[0].without == (meant.get(option, option),)


def test_tensors_by_their_size() -> None:
    run = Run.from_fields(LLAMA | {"attention": "sdpa", "micro_batch_size": 4})
    logits = Evidence("x", "device_memory", moment="train", stage="loss", tried_bytes=3.91 * GIB)
    assert tensors_of(run, logits)[0] == "the logits in fp32: 8,192 tokens x 128,256"
    assert tensors_of(run, logits._replace(tried_bytes=20 * MIB)) == ()  # any tensor of up to 10 MiB
    exact = Evidence("x", "host_memory", moment="train", stage="loss", tried_bytes=8192 * 128256 * 4)
    assert tensors_of(run, exact)[0] == "the logits in fp32: 8,192 tokens x 128,256"
    assert tensors_of(run, exact._replace(tried_bytes=8192 * 128256 * 4 + 1)) == ()


def test_causes_beside_the_run() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    (others,) = why_answer(run, [evidence("others")]).evidence
    assert others.cause == "other_processes"
    assert others.room.others_bytes == pytest.approx(66.84 * GIB, abs=0.02 * GIB)
    (smaller,) = why_answer(run, [evidence("old_sentence")]).evidence
    assert (smaller.cause, smaller.room.total_bytes) == ("smaller_device", 23.69 * GIB)
    pieces = Evidence("x", "device_memory", moment="train", stage="backward", tried_bytes=2 * GIB,
                      allocated_bytes=16 * GIB, unallocated_bytes=9 * GIB)  # fmt: skip
    assert why_answer(run, [pieces]).evidence[0].cause == "fragmentation"
    few = pieces._replace(allocated_bytes=60 * GIB, tried_bytes=GIB, unallocated_bytes=2 * GIB)
    assert why_answer(run, [few]).evidence[0].cause != "fragmentation"  # they would not have been enough


def test_weights_that_are_not_quantised_on_a_gpu_without_bf16() -> None:
    run = Run.from_fields({"model": "Qwen/Qwen3-8B", "method": "qlora", "gpu": "T4", "seq_len": 512})
    full = Evidence("x", "device_memory", moment="load", tried_bytes=20 * MIB, allocated_bytes=14.5 * GIB)
    first, second, *_ = diagnosed(run, full)
    assert (first.explains, second.without, second.explains) == (False, ("qlora",), True)
    more = full._replace(allocated_bytes=60 * GIB)  # which nothing explains, and no smaller step makes less
    assert why_answer(run, [more]).advice is None


def test_others_that_hold_more_than_an_option_would() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    (shared,) = why_answer(run, [evidence("shared_gpu")]).evidence
    assert len(shared.levels) > 1  # an option explains the figures too
    assert (shared.cause, round((shared.room.others_bytes or 0.0) / GIB, 2)) == ("other_processes", 52.45)
    (one_gpu,) = why_answer(run.replace(method="full", gpu="A100-SXM4-40GB"), [evidence("one_gpu")]).evidence
    assert one_gpu.cause == "other_processes"


def test_the_logits_of_a_compiled_step() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-4B", "attention": "sdpa", "micro_batch_size": 4,
                                   "seq_len": 4096})  # fmt: skip
    (found,) = why_answer(run, [evidence("inductor")]).evidence
    assert (found.evidence.stage, found.tensors[0]) == (
        "loss", "the logits in fp32: 16,384 tokens x 151,936",
    )  # fmt: skip


def test_an_evaluation_that_keeps_its_logits() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    (kept,) = why_answer(run, [evidence("ipython")]).evidence
    assert kept.evidence.tensor == "kept logits"
    assert kept.levels[1].changes == {"eval_logits": True, "eval_samples": 64}  # 16 are too few for it
    assert why_answer(run, [evidence("ipython")]).advice is None  # nothing of the run has to change
    stated = run.replace(eval_logits=True, eval_samples=1000)
    (as_stated,) = why_answer(stated, [evidence("ipython")]).evidence
    assert as_stated.levels[0].explains  # and nothing else is asked


def test_a_counted_peak() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    peak = predict(run).memory_bytes("torch_reserved")
    counted = Evidence("x", moment="train", peak_bytes=peak, metric="torch_reserved")
    assert why_answer(run, [counted]).evidence[0].cause == "as_predicted"
    lower = counted._replace(peak_bytes=0.5 * peak)
    assert why_answer(run, [lower]).evidence[0].cause == "less_than_predicted"
    more = counted._replace(peak_bytes=30 * peak)
    assert why_answer(run, [more]).evidence[0].cause == "more_than_predicted"


def test_host_memory_beyond_weights_and_states() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    assert why_answer(run, [evidence("kernel_oom")]).evidence[0].cause == "more_than_predicted"  # 120 GiB
    small = evidence("kernel_oom")._replace(host_bytes=1.5 * GIB)
    assert why_answer(run, [small]).evidence[0].cause == "as_predicted"


def test_advice_is_for_what_really_was_there() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "method": "lora", "attention": "sdpa"})
    answer = why_answer(run, [evidence("others")])
    assert answer.predicted.verdict == "fits"
    assert answer.advice is not None  # on the 12.3 GiB that the other process leaves
    assert answer.advice.ways or answer.advice.together or answer.advice.smallest


def test_a_moment_that_the_text_does_not_tell() -> None:
    run = Run.from_fields(LLAMA | {"model": "Qwen/Qwen3-8B", "attention": "sdpa", "micro_batch_size": 16})
    bare = Evidence("x", "device_memory", allocated_bytes=78 * GIB, tried_bytes=3 * GIB)
    (found,) = why_answer(run, [bare]).evidence
    assert found.is_inferred
    assert (found.evidence.moment, found.evidence.stage) == ("train", predict(run).peak_phase)
