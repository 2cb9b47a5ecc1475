"""How the reason of a failure looks: what failed where, the figures beside the prediction, what to change."""

from collections.abc import Iterator

from finegauge.answers.why import EvidenceAnswer, WhyAnswer
from finegauge.planning.diagnosis import Level
from finegauge.prediction.uncertainty import FITS
from finegauge.render import number_format as fmt
from finegauge.render.report import Block, Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.render.run_parts import ROOMS, TONES, WORDS, amount, subject, title_of
from finegauge.render.whatif import advice_blocks, fixed_section
from finegauge.units import GIB, gib

PLACES = {
    "device_memory": "Out of GPU memory", "host_memory": "Out of host memory", "disk": "The disk is full",
    "shared_memory": "Out of shared memory (/dev/shm)", "timeout": "A rank waited in vain for the others",
    "killed": "Ended without a reason given", "stopped": "Stopped from outside",
    "other": "No failure of memory", "": "No failure",
}  # fmt: skip
MOMENTS = {
    "data": "while the data set is prepared", "load": "while the model is loaded", "train": "in a step",
    "evaluation": "in an evaluation", "save": "while a checkpoint is written",
    "resume": "while a checkpoint is read", "generation": "in generation",
}  # fmt: skip
STAGES = {
    "data": "while the batch of a step is loaded", "forward": "in the forward pass of a step",
    "loss": "in the logits or the loss of a step", "backward": "in the backward pass of a step",
    "optimizer": "in the optimizer's step",
}  # fmt: skip
METRICS = {
    "torch_allocated": "tensors",
    "torch_reserved": "reserved by PyTorch",
    "nvidia_smi": "the whole GPU",
}
INACTIVE = {  # an option: what the process does without it, and what to look at
    "sharding": "every GPU holds the whole model. Was it started with torchrun or accelerate launch, with "
    "the DeepSpeed or FSDP file?",
    "cpu_offload": "what it should have moved to the host is on the GPU. Does the trainer get the DeepSpeed "
    "or FSDP file that says so?",
    "activation_checkpointing": "every layer's activations are kept. Is gradient_checkpointing on in the "
    "process?",
    "qlora": "the weights are not quantised. Does from_pretrained get the quantization_config?",
    "weights_dtype": "the weights are in fp32. Pass dtype=torch.bfloat16 to from_pretrained (torch_dtype "
    "before transformers 5).",
    "method": "every weight trains. Does the trainer get the adapter's configuration (peft_config)?",
    "optimizer": "the states are AdamW's in fp32. Does the trainer get the optimizer's name (optim)?",
    "optimizer_implementation": "all gradients are kept until the step.",
    "attention": "attention makes its whole scores. Which attn_implementation did the model fall back to?",
    "loss": "whole logits are made. Are the kernels of the fused loss applied to this model?",
    "eval_logits": "compute_metrics makes them stay until its end. Reduce them "
    "in preprocess_logits_for_metrics, set eval_accumulation_steps, or prediction_loss_only.",
    "padding": "sequences are padded to the longest.",
    "dataset": "every sequence is as long as seq_len. Are they packed, or padded to the maximum?",
    "micro_batch_size": "micro-batches are larger than stated. The Trainer takes 8 where "
    "per_device_train_batch_size does not reach it.",
}
ELSEWHERE = {
    "timeout": "Another rank failed, or did something long alone (saving, preparing data): look for the "
    "first that ended, in its own log. Memory is not what this text is about.",
    "stopped": "A time limit, a scheduler or a person ended it: memory is not what this text is about.",
    "shared_memory": "Workers that load data pass batches through shared memory: give the container more "
    "(docker run --shm-size=16g, or --ipc=host), or set dataloader_num_workers=0.",
    "other": "FineGauge explains memory that runs out, hangs that follow and disks that fill; this is none "
    "of them.",
    "": "Nothing in it failed, and it holds no figure of memory.",
}
REMEDIES = {  # by the moment: what takes less there, beside the options of a run
    "load": "16 or 4 bits, a GPU of its own for each rank, the meta device where the model is sharded",
    "evaluation": "a smaller per_device_eval_batch_size, eval_accumulation_steps, prediction_loss_only",
    "generation": "a lower gpu_memory_utilization, shorter or fewer completions, an engine that sleeps",
    "save": "sharded state, or gathering on the host; merging adapters on the processor",
    "resume": "sharded state, or reading onto the processor first (map_location='cpu')",
    "data": "fewer processes (num_proc, dataloader_num_workers), a data set that is streamed, "
    "unpinned batches (dataloader_pin_memory=False)",
}
MORE = {
    "load": ". Is the model read onto the host first, or in fp32, by every process (device_map, dtype)?",
    "save": ": is a whole state gathered, copied or converted on the GPU, and not on the host?",
    "host_memory": ": what loads data, in workers or as a data set held in memory, is not predicted.",
    "": ", and no option of the run explains it by not being active: does the process run what RUN says?",
}


def why_report(answer: WhyAnswer) -> Report:
    """Return why a run failed: the gravest evidence in the headline, then each, then what to change."""
    first = answer.evidence[0] if answer.evidence else None
    advice = answer.advice
    return Report.of(
        f"Why {title_of(answer.run)} fails",
        _headline(first) if first else _predicted(answer),
        *(_evidence(one, answer.predicted.verdict == FITS) for one in answer.evidence),
        section("predicted", "", *([Note(_predicted(answer))] if first else [])),
        section("advice", "What makes it fit", *(advice_blocks(advice) if advice else ())),
        *([fixed_section(answer.fixed)] if answer.fixed else []),
        tone="bad" if first is None or first.evidence.failure else "neutral",
        subject=(subject(answer.run),),
    )


def _headline(one: EvidenceAnswer) -> Text:
    found = one.evidence
    where = STAGES.get(found.stage) or MOMENTS.get(found.moment, "")
    surely = ", as the prediction has it" if one.is_inferred else ""
    step = f", {'after' if found.failure else 'up to'} step {found.step:,}" if found.step else ""
    if found.step == 0 and found.moment == "train" and found.failure:
        step = ", before the first step ended"
    rank = f", on rank {found.rank}" if found.rank is not None else ""
    said = f" {where}{surely}" if where and found.failure else ""
    if found.failure == "other":
        said = f"; it ended{said}" if found.stage or found.code else ""
    if not found.failure and found.peak_bytes:
        peak = f": a peak of {gib(found.peak_bytes)} ({METRICS[found.metric]})."
        return Toned("No failure", "strong"), peak
    return Toned(PLACES[found.failure], "strong", "bad" if found.failure else ""), f"{said}{step}{rank}."


def _predicted(answer: WhyAnswer) -> Text:
    one = answer.predicted
    said = f": {gib(one.device_memory_bytes)} of {gib(one.capacity_bytes)} on {one.gpu}, P(OOM) "
    chance = f"{fmt.probability(one.out_of_memory_fraction)}."
    if one.shortage is not None:
        chance += f" It runs out of {ROOMS[one.shortage.what]} {MOMENTS[one.shortage.moment]}."
    return (
        Toned("As configured", "strong"),
        ": ",
        Toned(WORDS[one.verdict].lower(), TONES[one.verdict]),
        f"{said}{chance}",
    )


def _evidence(one: EvidenceAnswer, fits: bool) -> Section:
    found = one.evidence
    said = [Note(found.says, tone="soft")] if found.says else []
    return section(
        "evidence", found.name, *said, *_tensor(one), _levels(one), *notes(_causes(one, fits)), _parts(one),
        said=f"rank {found.rank}" if found.rank is not None else "",
    )  # fmt: skip


def _tensor(one: EvidenceAnswer) -> Iterator[Note]:
    found = one.evidence
    if found.tried_bytes and found.failure in ("device_memory", "host_memory"):
        by_line = f", for {found.tensor} by the line that was running" if found.tensor else ""
        of_size = f". Of that size: {'; '.join(one.tensors)}" if one.tensors else ""
        yield Note(f"It asked for {amount(found.tried_bytes)}{by_line}{of_size}.")
    if found.code:
        yield Note(f"  {found.code}", tone="soft")


def _levels(one: EvidenceAnswer) -> Table | None:
    if not one.levels or one.observed_bytes is None:
        return None
    found = one.evidence
    otherwise = "host memory" if found.failure in ("host_memory", "killed") else "tensors"
    rows = [_row(level) for level in one.levels[:5]]
    counted = "at the failure" + (", with what was asked for" if found.tried_bytes else "")
    counted = "counted" if found.peak_bytes else counted
    rows.insert(1, (Toned(counted, "strong"), "", Toned(f"{one.observed_bytes / GIB:.1f}", "strong"), ""))
    columns = (METRICS.get(found.metric, otherwise), "at rest\nGiB", "peak\nGiB", "")
    return Table("Memory at that moment", columns, tuple(rows), ends_in_text=True, first_to_go=(1,))


def _row(level: Level) -> tuple[Text, ...]:
    said = {True: Toned("explains it", "good"), False: Toned("does not explain it", "bad"), None: ""}[
        level.explains
    ]
    name = f"if {_without(level)}" if level.without else "predicted as configured"
    at_rest = f"{level.at_rest_bytes / GIB:.1f}" if level.at_rest_bytes else ""
    return name, at_rest, f"{level.peak_bytes / GIB:.1f}", said


def _without(level: Level) -> str:
    if "micro_batch_size" in level.changes:
        return f"micro-batches are of {level.changes['micro_batch_size']}"
    if "eval_logits" in level.changes:
        return f"the evaluation keeps the logits of {level.changes['eval_samples']:,} samples"
    verb = "are" if len(level.without) > 1 else "is"
    return f"{' and '.join(level.without)} {verb} not active"


def _causes(one: EvidenceAnswer, fits: bool) -> Iterator[str]:
    found, room, (first, *ways) = one.evidence, one.room, one.levels or (None,)
    if one.cause == "not_memory":
        yield ELSEWHERE.get(found.failure, ELSEWHERE["other"])
        return
    assert first is not None
    if room.total_bytes:
        yield f"This GPU has {gib(room.total_bytes)}: another one than the run states, or a slice of it."
    beside = [*_inactive(one, first, ways[0], fits)] if ways else []
    yield from (*_others(one), *beside) if one.cause == "other_processes" else (*beside, *_others(one))
    if room.unallocated_bytes:
        yield (
            f"PyTorch had {gib(room.unallocated_bytes)} reserved and free, in pieces too small: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them."
        )
    if one.cause == "not_weighed":
        yield from _not_weighed(one, first, fits)
    else:
        yield from _compared(one, first)
    remedy = REMEDIES.get("data" if found.stage == "data" else found.moment)
    if found.tensor == "KV cache" and not found.tried_bytes:  # an engine that refused to start
        yield "The engine needs a lower max_model_len, or a higher gpu_memory_utilization and less beside it."
    elif found.failure in ("device_memory", "host_memory") and remedy and not ways:
        yield f"There, less is taken by {remedy}."


def _inactive(one: EvidenceAnswer, first: Level, near: Level, fits: bool) -> Iterator[str]:
    told = " ".join(f"{INACTIVE[name][0].upper()}{INACTIVE[name][1:]}" for name in near.without)
    yield (
        f"As configured it needs {gib(first.peak_bytes)} at that moment, it had "
        f"{gib(one.observed_bytes or 0.0)}. Most likely {_without(near)}. {told}"
    )
    if fits and one.cause == "inactive_option" and not {"micro_batch_size", "eval_logits"} & {*near.without}:
        yield "As configured the run fits: make that active, and nothing else has to change."


def _others(one: EvidenceAnswer) -> Iterator[str]:
    if one.room.others_bytes:
        ranks = " If they are other ranks of this job, each must take its own GPU (LOCAL_RANK)."
        held = f"Other processes hold {gib(one.room.others_bytes)} of this GPU; 'nvidia-smi' names them."
        yield held + (ranks if one.evidence.rank is not None else "")


def _compared(one: EvidenceAnswer, first: Level) -> Iterator[str]:
    found = one.evidence
    if one.cause == "as_predicted":
        yield (
            "The prediction agrees with what was counted." if found.peak_bytes else
            "The prediction agrees: the run as it is configured needs that much there."
        )  # fmt: skip
    elif one.cause == "more_than_predicted":
        more = gib((one.observed_bytes or 0.0) - first.peak_bytes)
        kind = found.failure if found.failure == "host_memory" else ""
        kind = found.moment if found.moment == ("load" if kind else "save") else kind
        yield f"That is {more} more than predicted{MORE[kind]}"
    elif one.cause == "less_than_predicted":
        if found.peak_bytes:
            yield (
                "That is less than predicted: the longest batch is still to come, or less runs than RUN says."
            )
        else:
            yield "By the prediction it ends before that moment: less runs than RUN says, or it was another."


def _not_weighed(one: EvidenceAnswer, level: Level, fits: bool) -> Iterator[str]:
    found = one.evidence
    if found.failure == "disk":
        yield f"The model's files and checkpoints are predicted to take {gib(level.peak_bytes)} of the disk."
    elif found.failure == "host_memory":
        held = f"The process that was killed held {gib(found.host_bytes)}. " if found.host_bytes else ""
        when = "at that moment" if found.moment else "at most"
        yield f"{held}A node is predicted to need {gib(level.peak_bytes)} of host memory {when}."
    elif found.failure == "killed":
        yield (
            "Nothing in it says who ended the process. If the node has less than the "
            f"{gib(level.peak_bytes)} of host memory that are predicted for that moment, the OOM killer did "
            "(then dmesg says 'Out of memory', Slurm 'oom_kill', Kubernetes 'OOMKilled'); else a time limit, "
            "a launcher that ends the other ranks, a crash or somebody's kill -9."
        )
    else:
        said = f"The text has no figures to weigh; {gib(level.peak_bytes)} of tensors are predicted there"
        yield f"{said}, which fit: does another process hold the GPU ('nvidia-smi')?" if fits else f"{said}."


def _parts(one: EvidenceAnswer) -> Block | None:
    parts = one.evidence.parts_bytes
    rows = tuple((name, f"{size / GIB:.2f}") for name, size in parts.items())
    return Table("What lay on the GPU, by where it was allocated", ("", "GiB"), rows) if rows else None
