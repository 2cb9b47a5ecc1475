"""Rules of thumb, the seed paper's law, the estimators of libraries, and what a rival's answer is made of."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from json import dumps, loads
from math import log
from statistics import linear_regression
from typing import Any

from finegauge.catalogue.gpus import gpu
from finegauge.errors import UnsupportedError
from finegauge.formats.measurement_tables import MeasuredRow
from finegauge.model.graph import build
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.units import GB

Estimator = Callable[["Run"], Profile]
Points = dict[int, list[float]]  # sequences per second of one GPU, by micro-batch


class SeedLaw:
    """Equation 2, fitted anew for every question to the other batches of its sweep."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.sweeps: dict[tuple[Any, ...], Points] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            rate = _samples_per_s(row)
            if row.run is not None and rate:
                self.sweeps[_sweep(row.run)][row.run.micro_batch_size].append(rate)

    def __call__(self, run: Run) -> Profile:
        """Return what the law says of `run`, fitted without its own batch.

        Raises: UnsupportedError where the sweep has fewer than two other batches.
        """
        others = {b: q for b, q in self.sweeps[_sweep(run)].items() if b != run.micro_batch_size}
        if len(others) < 2:
            raise UnsupportedError("Equation 2 needs two other batches of the same sweep.")
        logs, seen = zip(*((log(b), q) for b, rates in others.items() for q in rates), strict=True)
        c2, c4 = linear_regression(logs, seen)
        rate = c4 + c2 * log(run.micro_batch_size)
        if rate <= 0:
            raise UnsupportedError(f"Equation 2 gives {rate:.3g} sequences/s here.")
        seconds = run.micro_batch_size * run.gradient_accumulation_steps / rate
        return answered(run, "xia2024", seconds=seconds)


def _sweep(run: Run) -> tuple[Any, ...]:
    return tuple(value for name, value in run.fields().items() if name != "micro_batch_size")


def _samples_per_s(row: MeasuredRow) -> float | None:
    if row.run is None:
        return None
    theirs = row.measured
    if theirs.tokens_per_s_per_gpu:
        return theirs.tokens_per_s_per_gpu / row.run.seq_len
    if theirs.step_time_s and not theirs.step_is_micro_batch:
        return row.run.global_batch_size / theirs.step_time_s / row.run.num_gpus
    return None


ASSUMED_MFU = 0.4


def six_n_d(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return the rule of thumb: 6·N·D over the peak of the active parameters."""

    def ask(run: Run) -> Profile:
        tokens = float(run.global_batch_size * run.seq_len)
        flops = 6.0 * float(build(run).model.num_active_parameters) * tokens
        peak = gpu(str(run.gpu)).peak_flops_per_s("bf16") * run.num_gpus
        return answered(run, "6nd", seconds=flops / (peak * ASSUMED_MFU))

    return ask


REFUSALS = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ZeroDivisionError, AssertionError)


def refusing(name: str, ask: Estimator) -> Estimator:
    """Return `ask` with what the tool raises said as its refusal."""

    def asked(run: Run) -> Profile:
        try:
            return ask(run)
        except REFUSALS as error:
            raise UnsupportedError(f"{name}: {' '.join(str(error).split())[:160]}") from None

    return asked


def full_only(run: Run, name: str) -> None:
    """Refuse a run that is no full fine-tuning in the name of a tool that knows no other."""
    if run.method != "full":
        raise UnsupportedError(f"{name} knows full fine-tuning alone, not method={run.method}.")


def answered(
    run: Run, name: str, *, seconds: float = 0.0, memory: float = 0.0, beside: float = 0.0
) -> Profile:
    """Return a rival's answer: bytes of tensors, those beside them (context, cache), seconds of a step."""
    capacity = gpu(str(run.gpu)).usable_bytes
    return Profile(
        run=run,
        source=Source("rival", name),
        outcome="completed" if memory + beside <= capacity else "out_of_memory",
        peak_memory_bytes=Breakdown.of(states=memory),
        device_memory_bytes=Breakdown.of(states=memory, context=beside),
        step_time_s=Breakdown.of(step=seconds),
        step_tokens=float(run.global_batch_size * run.seq_len),
        step_sequences=float(run.global_batch_size),
        capacity_bytes=capacity,
    )


RECOMPUTATION = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL", "offload": "FULL"}
STAGES = {"zero1": "STAGE_1", "zero2": "STAGE_2", "fsdp_shard_grad_op": "STAGE_2"}


def accelerate(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return what `accelerate estimate-memory` prints for training with Adam."""
    usage = import_module("accelerate.commands.estimate").estimate_training_usage

    def ask(run: Run) -> Profile:
        full_only(run, "accelerate")
        fp32_bytes = 4 * round(float(build(run).model.num_parameters))
        wide = run.weights_dtype == "fp32" and run.autocast == "none"
        sizes = usage(fp32_bytes, "float32" if wide else "bfloat16")
        return answered(run, "accelerate", memory=float(max(sizes.values())))

    return ask


def deepspeed(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return DeepSpeed's estimate of a model's states under ZeRO-2 (also for one GPU) or ZeRO-3."""
    zero = "deepspeed.runtime.zero"
    stage3 = import_module(f"{zero}.stage3").estimate_zero3_model_states_mem_needs
    stage2 = import_module(f"{zero}.stage_1_and_2").estimate_zero2_model_states_mem_needs

    def ask(run: Run) -> Profile:
        full_only(run, "deepspeed")
        total = round(float(build(run).model.num_parameters))
        nodes = {"num_gpus_per_node": run.num_gpus // run.num_nodes, "num_nodes": run.num_nodes}
        if run.sharding in ("zero3", "fsdp", "hybrid"):
            layer = round(total / max(1, build(run).model.num_layers))
            size = stage3(total, layer, cpu_offload=False, cpu_offload_params=False, **nodes)[1]
        else:
            size = stage2(total, cpu_offload=run.cpu_offload != "none", **nodes)[1]
        return answered(run, "deepspeed", memory=float(size))

    return ask


def llm_analysis(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return llm-analysis' training analysis, at the efficiencies that its command line defaults to."""
    analysis = import_module("llm_analysis.analysis")
    analysis.logger.setLevel(logging.CRITICAL)

    def ask(run: Run) -> Profile:
        full_only(run, "llm-analysis")
        config = analysis.DtypeConfig(name="w16a16e16", weight_bits=16, activation_bits=16, embedding_bits=16)
        split = analysis.ParallelismConfig(
            tp_size=run.tensor_parallel, pp_size=run.pipeline_parallel, dp_size=run.data_parallel
        )
        stage = STAGES.get(run.sharding, "STAGE_3" if run.sharding != "none" else "NONE")
        asked = analysis.LLMAnalysis(_peer_model(run), _peer_gpu(run), config, split)
        recomputation = RECOMPUTATION[run.activation_checkpointing]
        said = asked.training(
            batch_size_per_gpu=run.micro_batch_size,
            gradient_accumulation_steps=run.gradient_accumulation_steps,
            seq_len=run.seq_len,
            activation_recomputation=analysis.ActivationRecomputation[recomputation],
            ds_zero=analysis.DSZeRO[stage],
        )
        memory = said["(weight+op_state+grad+act)_memory_per_gpu"]
        return answered(run, "llm-analysis", seconds=said["latency_per_iter"], memory=memory)

    return refusing("llm-analysis", ask)


def _peer_model(run: Run) -> object:
    """Return the model in llm-analysis' figures; a gated feed-forward as the plain one of equal size."""
    config = run.config
    hidden, layers = build(run).model.hidden_size, build(run).model.num_layers
    heads = config.get("num_attention_heads") or config.get("n_head") or config.get("n_heads")
    wide = config.get("intermediate_size") or config.get("n_inner") or 4 * hidden
    if not isinstance(heads, int) or not isinstance(wide, int):
        raise UnsupportedError(f"llm-analysis has no place for the figures of {run.model}.")
    gated = 1.5 if "intermediate_size" in config else 1.0
    return import_module("llm_analysis.config").ModelConfig(
        name="model",
        num_layers=layers,
        n_head=heads,
        hidden_dim=hidden,
        vocab_size=build(run).model.vocab_size,
        max_seq_len=run.seq_len,
        num_key_value_heads=config.get("num_key_value_heads"),
        expansion_ratio=max(1, round(wide * gated / hidden)),
        model_type="mistral",
    )


def _peer_gpu(run: Run) -> object:
    spec = gpu(str(run.gpu))
    return import_module("llm_analysis.config").GPUConfig(
        name=spec.name,
        mem_per_GPU_in_GB=spec.memory_bytes / GB,
        hbm_bandwidth_in_GB_per_sec=spec.memory_bytes_per_s / GB,
        intra_node_bandwidth_in_GB_per_sec=(spec.nvlink_bytes_per_s or 32 * GB) / GB,
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=spec.peak_flops_per_s("bf16") / 1e12,
    )


def memtracker(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return the peak that torch's MemTracker sees over a step of transformers' model in fake tensors.

    The model, its optimizer with its states and its batch are real objects without storage, on one device;
    what PEFT and bitsandbytes do to a model cannot be traced there. A step takes about a minute.
    """
    import_module("torch.distributed._tools.mem_tracker"), import_module("transformers")

    def ask(run: Run) -> Profile:
        full_only(run, "memtracker")
        if run.num_gpus > 1 or run.optimizer != "adamw":
            raise UnsupportedError("memtracker is asked for AdamW on one GPU.")
        formats = ("float32" if run.weights_dtype == "fp32" else "bfloat16", run.autocast != "none")
        attention = "eager" if run.attention == "eager" else "sdpa"
        shape = (run.micro_batch_size, run.seq_len)
        checkpointing = run.activation_checkpointing != "none"
        config = dumps(dict(run.config), sort_keys=True)
        peak = _traced_peak_bytes(config, formats, attention, shape, checkpointing=checkpointing)
        return answered(run, "memtracker", memory=peak)

    return refusing("memtracker", ask)


@cache
def _traced_peak_bytes(
    figures: str, formats: tuple[str, bool], attention: str, shape: tuple[int, int], *, checkpointing: bool
) -> float:
    torch, transformers = import_module("torch"), import_module("transformers")
    config = transformers.AutoConfig.for_model(**loads(figures))
    dtype, mixed = getattr(torch, formats[0]), formats[1]
    with import_module("torch._subclasses.fake_tensor").FakeTensorMode():
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        )
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()  # makes its states: the peak is that of any later step
        optimizer.zero_grad()
        seen = import_module("torch.distributed._tools.mem_tracker").MemTracker()
        seen.track_external(model, optimizer)
        tokens = torch.randint(0, config.vocab_size, shape)
        with seen, torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    peak = seen.get_tracker_snapshot("peak")
    return float(sum(one["Total"] for one in peak.values()))
