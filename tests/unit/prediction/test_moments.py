"""Every moment of a job: what the device, a node's host and the disk hold, and which is short first."""

from dataclasses import dataclass

import pytest

from finegauge.planning.estimate import estimate
from finegauge.prediction.moments import PROCESS_BYTES, Moment, ProcessMoment, moments_of, process_moments
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from finegauge.units import GIB

W = 2.0 * 8_030_261_248  # bf16 weights of Llama-3.1-8B
GPU = "H100-SXM5-80GB"


def found(**fields: object) -> dict[str, Moment]:
    """Return the moments of a job by name."""
    run = Run.from_fields({"model": "Llama-3.1-8B", "method": "full", "gpu": GPU, **fields})
    return {one.name: one for one in moments_of(predict(run))}


@dataclass(frozen=True)
class Case:
    """One way to divide a model, and what its host holds at two moments beside its processes."""

    fields: dict[str, object]
    save_bytes: float
    resume_bytes: float


CASES = {
    "one process": Case({}, W, 2 * W),  # the file's copies; both moments, read onto the CPU
    "DDP": Case({"num_gpus": 8}, W, 8 * 2 * 128_256 * 4096),  # the largest tensor, by each
    "FSDP, full": Case({"num_gpus": 8, "sharding": "fsdp"}, 2 * W, 2 * W),  # by the first alone
    "FSDP, sharded": Case(
        {"num_gpus": 8, "sharding": "fsdp", "save_state": "sharded"},
        8 * 2 * 128_256 * 4096 / 8,
        2 * 128_256 * 4096,
    ),
    # everybody clones the model, and reads all of it before its states, which are less
    "ZeRO-2": Case({"num_gpus": 8, "sharding": "zero2"}, 8 * W, 8 * W),
    "ZeRO-3": Case({"num_gpus": 8, "sharding": "zero3"}, W + 7 * 2 * W / 8, 6 * W),
}


@pytest.mark.parametrize("name", CASES)
def test_host_of_a_node(name: str) -> None:
    case = CASES[name]
    moments = found(**case.fields)
    processes = moments["save"].host_bytes["processes"]
    assert processes == PROCESS_BYTES * int(str(case.fields.get("num_gpus", 1)))
    assert moments["save"].host_bytes.total - processes == pytest.approx(case.save_bytes, rel=0.01)
    assert moments["resume"].host_bytes.total - processes == pytest.approx(case.resume_bytes, rel=0.01)


def test_files_are_mapped_once_by_all_processes_of_a_node() -> None:
    one, several = found()["load"], found(num_gpus=8)["load"]
    assert one.mapped_bytes == several.mapped_bytes == pytest.approx(W)
    assert "loaded weights" not in {path[0] for path in several.host_bytes.parts}


def test_every_process_holds_weights_of_another_format() -> None:
    load = found(num_gpus=4, sharding="fsdp", weights_dtype="fp32", autocast="bf16")["load"]
    assert load.host_bytes["loaded weights"] == pytest.approx(4 * 2 * W)
    first = found(num_gpus=4, sharding="fsdp", weights_dtype="fp32", autocast="bf16", loading="rank0")["load"]
    assert first.host_bytes["loaded weights"] == pytest.approx(2 * W)


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_bitsandbytes_takes_the_whole_model_onto_every_gpu_first(sharding: str) -> None:
    alone, shared = (
        found(method="qlora")["load"],
        found(method="qlora", num_gpus=4, sharding=sharding)["load"],
    )
    assert shared.device_bytes["weights"] >= alone.device_bytes["weights"]
    stated = found(method="qlora", num_gpus=4, sharding=sharding, loading="rank0")["load"]
    assert stated.device_bytes["weights"] == shared.device_bytes["weights"]
    for other in ({"framework": "torchtune", "sharding": "fsdp"}, {"transformers_version": "4.57"}):
        divided = found(**{"method": "qlora", "num_gpus": 4, "sharding": sharding, **other})["load"]
        assert divided.device_bytes["weights"] < 0.5 * alone.device_bytes["weights"]


def test_a_checkpoint_on_the_disk() -> None:
    moments = found(epochs=3)
    assert moments["load"].disk_bytes == pytest.approx(W)
    assert moments["save"].disk_bytes == pytest.approx(W + 3 * 3 * W + W)
    assert found(epochs=3, saves_kept=1)["save"].disk_bytes == pytest.approx(W + 2 * 3 * W + W)
    often = {"num_samples": 1000, "save_steps": 300}  # of 1,000 steps: three times, and at the end
    assert found(**often)["save"].disk_bytes == pytest.approx(W + 4 * 3 * W + W)
    assert found(**often, saves_kept=2)["save"].disk_bytes == pytest.approx(W + 3 * 3 * W + W)
    assert found(epochs=3, save_optimizer=False)["save"].disk_bytes == pytest.approx(W + 3 * W + W)
    adapters = found(method="lora", epochs=3)["save"].disk_bytes
    assert W < adapters < 1.1 * W
    assert found(method="lora", epochs=3, merge_adapters=True)["merge"].disk_bytes == pytest.approx(
        adapters + W
    )


def test_logits_are_kept_on_the_device_until_they_go_to_the_host() -> None:
    kept = {"eval_samples": 64, "eval_logits": True, "seq_len": 512}
    alone, whole = found(eval_samples=64, seq_len=512)["evaluation"], found(**kept)["evaluation"]
    of_batch = 8 * 512 * 128_256 * 2.0
    assert whole.device_bytes["logits"] - alone.device_bytes["logits"] == pytest.approx(15 * of_batch)
    some = found(**kept, eval_accumulation_steps=2)["evaluation"]
    assert some.device_bytes["logits"] - alone.device_bytes["logits"] == pytest.approx(3 * of_batch)
    assert whole.host_bytes["logits of all samples"] == pytest.approx(1.5 * 64 * 512 * 128_256 * 4.0)


def test_a_classifier_keeps_a_row_of_logits_for_every_sample() -> None:
    kept = {"model": "bert-base-uncased", "task": "sequence_classification", "num_labels": 7, "seq_len": 512}
    whole = found(**kept, eval_samples=64, eval_logits=True)["evaluation"]
    assert whole.device_bytes["logits"] == pytest.approx(15 * 8 * 7 * 2.0)


def test_evaluation_rises_with_its_batch() -> None:
    small, large = (found(eval_samples=64, eval_batch_size=rows)["evaluation"] for rows in (1, 16))
    assert large.device_bytes.total > small.device_bytes.total


@pytest.mark.parametrize(
    ("fields", "short"),
    [
        ({"host_memory_gib": 12}, ("resume", "host")),
        ({"host_memory_gib": 8}, ("save", "host")),
        ({"disk_gib": 16}, ("save", "disk")),
        ({"eval_samples": 512, "eval_logits": True}, ("evaluation", "device")),
        ({}, None),
    ],
)
def test_the_first_shortage_is_named(fields: dict[str, object], short: tuple[str, str] | None) -> None:
    base = {"model": "Llama-3.2-3B", "method": "full", "gpu": GPU, "num_samples": 1000}
    answer = estimate(Run.from_fields({**base, **fields}))
    named = answer.shortage and (answer.shortage.moment, answer.shortage.what)
    assert named == short
    assert answer.verdict == ("fits" if short is None else "will_not_fit")


def test_host_memory_of_instances_stands_for_what_is_not_stated() -> None:
    """Seven or eight processes that each convert a 70B model need more than any instance of one node has."""
    run = Run(
        model="Llama-3.1-70B", method="lora", weights_dtype="fp32", autocast="bf16", gpu=GPU, num_gpus=64,
        num_nodes=8, sharding="fsdp", num_samples=1000, activation_checkpointing="full",
    )  # fmt: skip
    short = estimate(run).shortage
    assert short is not None
    assert (short.moment, short.what) == ("load", "host")
    assert short.needed_bytes > short.room_bytes > 100 * GIB
    assert estimate(run.replace(loading="rank0")).shortage is None


@pytest.mark.parametrize("fields", [{"framework": "Megatron-LM"}, {}])
def test_a_rank_reads_the_states_of_its_own_stage(fields: dict[str, object]) -> None:
    """405 billion parameters over 128 GPUs are resumed in less host memory than all their states take."""
    many = {"model": "Llama-3.1-405B", "num_gpus": 128, "num_nodes": 16, "sharding": "zero1"}
    moments = found(**many, tensor_parallel=8, pipeline_parallel=16, **fields)
    assert (
        moments["resume"].host_bytes.total < 8 * (12 * 405.9e9 / 128 + PROCESS_BYTES) * 1.15
    )  # the first stage has the embedding
    assert moments["resume"].disk_bytes > (2 + 12) * 405e9


def on_a_processor(**fields: object) -> dict[str, ProcessMoment]:
    """Return the moments of a job on a processor, as its processes see them, by name."""
    run = Run.from_fields({"model": "Llama-3.1-8B", "gpu": GPU, **fields})
    return {one.name: one for one in process_moments(predict(run), on_processor=True)}


@pytest.mark.parametrize("upcast", [False, True])
def test_a_mapped_file_stays_whole_while_what_is_not_quantised_lies_in_it(upcast: bool) -> None:
    linears = 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    asked = {"method": "qlora", "num_gpus": 2, "upcast_unquantized": upcast}
    elsewhere = found(**asked)["save"].device_bytes
    tensors = elsewhere.total - sum(elsewhere[name] for name in ("context", "NCCL", "slack"))
    here, kept = on_a_processor(**asked), 0 if upcast else 2 * linears
    assert here["save"].allocated_bytes[0] == pytest.approx(tensors + kept)
    sent = here["load"].allocated_bytes[1] - elsewhere["weights"]
    quantising = 12 * 4096 * 14336  # of the largest tensor, more than DDP's two buffers
    assert sent == pytest.approx(W + quantising if upcast else 2 * linears + quantising)


def test_under_zero3_every_process_opens_the_file_and_the_first_gathers_a_tensor() -> None:
    first, other = on_a_processor(method="full", num_gpus=64, sharding="zero3")["load"].allocated_bytes
    assert other == pytest.approx(W / 64 + W)
    assert first - other == pytest.approx(2 * 128_256 * 4096)


def test_a_processor_quantises_a_tensor_through_three_copies_in_fp32() -> None:
    here = on_a_processor(method="qlora")
    largest, linears = 4096 * 14336, 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    weights = found(method="qlora")["save"].device_bytes["weights"]
    assert here["load"].allocated_bytes[0] == pytest.approx(weights + 2 * linears + 12 * largest, rel=1e-3)


def test_a_mapped_base_model_is_not_resident_before_a_pass_reads_it() -> None:
    here = on_a_processor(method="lora", lora_rank=16)
    resumed, trained = here["resume"], here["train"]
    assert resumed.allocated_bytes[0] > W
    assert resumed.resident_bytes[0] < 0.05 * W
    assert trained.resident_bytes[0] > W
    converted = on_a_processor(method="lora", lora_rank=16, weights_dtype="fp32")["resume"]
    assert converted.resident_bytes[0] > 2 * W


def test_fsdp_gathers_a_tied_head_under_both_of_its_names() -> None:
    moments = found(model="Llama-3.2-1B", method="lora", num_gpus=8, sharding="fsdp")
    adapters = 2 * 11_272_192  # of rank 16 on all linear layers, in 16 bit
    whole = 2.0 * (1_235_814_400 + 128_256 * 2048) + adapters
    assert moments["save"].first_bytes["saved copies"] == pytest.approx(whole)
    assert moments["resume"].first_bytes["read states"] == pytest.approx(whole)


def test_offloaded_states_never_come_to_the_gpu() -> None:
    for sharding in ("zero2", "zero3"):
        alone = {"num_gpus": 2, "sharding": sharding}
        kept = found(**alone)["load"].device_bytes["optimizer"]
        offloaded = found(**alone, cpu_offload="optimizer")["load"].device_bytes["optimizer"]
        assert kept == pytest.approx(W)  # 4 bytes of half of the values
        assert offloaded == 0.0


def test_zero3_that_gathers_nothing_saves_its_parts() -> None:
    full, parts = (found(num_gpus=8, sharding="zero3", save_state=how)["save"] for how in ("full", "sharded"))
    assert full.first_bytes.total == pytest.approx(W)
    assert parts.first_bytes.total == parts.other_bytes.total == pytest.approx(2 * W / 8)


def test_eight_bit_states_are_copied_when_they_are_read() -> None:
    """bitsandbytes copies what it is given: on the host of one process, on the GPU of several."""
    fields = {"optimizer": "adamw_8bit"}
    read = found(**fields)["resume"].first_bytes["read states"]
    assert read == pytest.approx(2 * W, rel=0.02)  # 2 x 2 bytes a value, and scales
    several = found(**fields, num_gpus=2)["resume"].device_bytes.parts["workspace", "read states"]
    assert several == pytest.approx(read / 2)


def test_merging_is_a_moment_of_its_own() -> None:
    moments = found(method="qlora", merge_adapters=True)
    assert moments["merge"].first_bytes.total == pytest.approx(W, rel=0.02)
    assert moments["save"].first_bytes.total < 0.1 * W
    assert "merge" not in found(method="qlora")
