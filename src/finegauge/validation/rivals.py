"""Estimates of others for the same runs: rules of thumb, the seed paper's law, tools from PyPI.

Each rival is an Estimator. A tool takes part where it is installed and where it claims an answer:
none of them knows LoRA, so frozen weights are not put to them. A rival that states no time, or no
memory, leaves that part of the profile empty.

`6nd`           6 FLOPs per parameter and token at 40 % of the GPU's peak: Kaplan et al. 2020,
                arXiv:2001.08361, section 2.1, with the utilisation that people assume; time alone
`xia2024`       equation 2 of the seed paper, fitted to the other batches of a row's own sweep; time alone
`llm-analysis`  its training analysis at its default efficiencies; memory and time
`accelerate`    `accelerate estimate-memory`: the largest of its four figures; memory alone
`deepspeed`     its ZeRO-2 and ZeRO-3 estimators: states of the model; memory alone
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import log
from statistics import linear_regression
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import gpu
from finegauge.errors import InputError, UnsupportedError, did_you_mean
from finegauge.formats.measurement_tables import MeasuredRow
from finegauge.model.graph import build
from finegauge.profile import Breakdown, Profile, Source
from finegauge.units import GB

if TYPE_CHECKING:
    from finegauge.run.run import Run

Points = dict[int, list[float]]  # sequences per second of one GPU, by micro-batch


class SeedLaw:
    """Equation 2, fitted anew for every question to the other batches of its sweep."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.sweeps: dict[tuple[Any, ...], Points] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            rate = _samples_per_s(row)
            if row.run is not None and rate:
                self.sweeps[_sweep(row.run)][row.run.micro_batch_size].append(rate)

    def __call__(self, run: "Run") -> Profile:
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
        return _profile(run, "xia2024", seconds=seconds)


def _sweep(run: "Run") -> tuple[Any, ...]:
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


Estimator = Callable[["Run"], Profile]
ASSUMED_MFU = 0.4
RECOMPUTATION = {"none": "NONE", "selective": "SELECTIVE", "full": "FULL", "offload": "FULL"}
STAGES = {"zero1": "STAGE_1", "zero2": "STAGE_2", "fsdp_shard_grad_op": "STAGE_2"}


def rivals(
    names: Iterable[str], rows: Sequence[MeasuredRow] = ()
) -> tuple[dict[str, Estimator], dict[str, str]]:
    """Return the rivals called `names` ("all": every one) that can answer here, and why others cannot.

    The seed paper's law is fitted to `rows`; the other rivals do not see them.

    Raises: InputError for a name that no rival has.
    """
    found: dict[str, Estimator] = {}
    absent: dict[str, str] = {}
    wanted = list(names)
    for name in RIVALS if "all" in wanted else wanted:
        if name not in RIVALS:
            hint = did_you_mean(name, RIVALS)
            raise InputError(f"No rival named '{name[:60]}'.{hint} There are {', '.join(RIVALS)} and all.")
        try:
            found[name] = RIVALS[name](rows)
        except ImportError as error:
            absent[name] = f"not installed here ({error}); pip install {name} into the same environment"
    return found, absent


def six_n_d(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return the rule of thumb: 6·N·D over the peak of the active parameters."""

    def ask(run: "Run") -> Profile:
        tokens = float(run.global_batch_size * run.seq_len)
        flops = 6.0 * float(build(run).model.num_active_parameters) * tokens
        peak = gpu(str(run.gpu)).peak_flops_per_s("bf16") * run.num_gpus
        return _profile(run, "6nd", seconds=flops / (peak * ASSUMED_MFU))

    return ask


def accelerate(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return what `accelerate estimate-memory` prints for training with Adam."""
    usage = import_module("accelerate.commands.estimate").estimate_training_usage

    def ask(run: "Run") -> Profile:
        _full_only(run, "accelerate")
        fp32_bytes = 4 * round(float(build(run).model.num_parameters))
        wide = run.weights_dtype == "fp32" and run.autocast == "none"
        sizes = usage(fp32_bytes, "float32" if wide else "bfloat16")
        return _profile(run, "accelerate", memory=float(max(sizes.values())))

    return ask


def deepspeed(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return DeepSpeed's estimate of a model's states under ZeRO-2 (also for one GPU) or ZeRO-3."""
    zero = "deepspeed.runtime.zero"
    stage3 = import_module(f"{zero}.stage3").estimate_zero3_model_states_mem_needs
    stage2 = import_module(f"{zero}.stage_1_and_2").estimate_zero2_model_states_mem_needs

    def ask(run: "Run") -> Profile:
        _full_only(run, "deepspeed")
        total = round(float(build(run).model.num_parameters))
        nodes = {"num_gpus_per_node": run.num_gpus // run.num_nodes, "num_nodes": run.num_nodes}
        if run.sharding in ("zero3", "fsdp", "hybrid"):
            layer = round(total / max(1, build(run).model.num_layers))
            size = stage3(total, layer, cpu_offload=False, cpu_offload_params=False, **nodes)[1]
        else:
            size = stage2(total, cpu_offload=run.cpu_offload != "none", **nodes)[1]
        return _profile(run, "deepspeed", memory=float(size))

    return ask


def llm_analysis(rows: Sequence[MeasuredRow] = ()) -> Estimator:
    """Return llm-analysis' training analysis, at the efficiencies that its command line defaults to."""
    import logging

    analysis = import_module("llm_analysis.analysis")
    analysis.logger.setLevel(logging.CRITICAL)

    def ask(run: "Run") -> Profile:
        _full_only(run, "llm-analysis")
        config = analysis.DtypeConfig(name="w16a16e16", weight_bits=16, activation_bits=16, embedding_bits=16)
        split = analysis.ParallelismConfig(
            tp_size=run.tensor_parallel, pp_size=run.pipeline_parallel, dp_size=run.data_parallel
        )
        stage = STAGES.get(run.sharding, "STAGE_3" if run.sharding != "none" else "NONE")
        try:
            asked = analysis.LLMAnalysis(_peer_model(run), _peer_gpu(run), config, split)
            said = asked.training(
                batch_size_per_gpu=run.micro_batch_size,
                gradient_accumulation_steps=run.gradient_accumulation_steps,
                seq_len=run.seq_len,
                activation_recomputation=analysis.ActivationRecomputation[
                    RECOMPUTATION[run.activation_checkpointing]
                ],
                ds_zero=analysis.DSZeRO[stage],
            )
        except (AssertionError, ValueError, TypeError) as error:
            raise UnsupportedError(f"llm-analysis: {' '.join(str(error).split())[:160]}") from None
        memory = said["(weight+op_state+grad+act)_memory_per_gpu"]
        return _profile(run, "llm-analysis", seconds=said["latency_per_iter"], memory=memory)

    return ask


RIVALS: dict[str, Callable[[Sequence[MeasuredRow]], Estimator]] = {
    "6nd": six_n_d,
    "xia2024": SeedLaw,
    "llm-analysis": llm_analysis,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
}


def _peer_model(run: "Run") -> object:
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


def _peer_gpu(run: "Run") -> object:
    spec = gpu(str(run.gpu))
    return import_module("llm_analysis.config").GPUConfig(
        name=spec.name,
        mem_per_GPU_in_GB=spec.memory_bytes / GB,
        hbm_bandwidth_in_GB_per_sec=spec.memory_bytes_per_s / GB,
        intra_node_bandwidth_in_GB_per_sec=(spec.nvlink_bytes_per_s or 32 * GB) / GB,
        intra_node_min_message_latency=8e-6,
        peak_fp16_TFLOPS=spec.peak_flops_per_s("bf16") / 1e12,
    )


def _full_only(run: "Run", name: str) -> None:
    if run.method != "full":
        raise UnsupportedError(f"{name} knows full fine-tuning alone, not method={run.method}.")


def _profile(run: "Run", name: str, *, seconds: float = 0.0, memory: float = 0.0) -> Profile:
    held = Breakdown.of(states=memory)
    capacity = gpu(str(run.gpu)).usable_bytes
    return Profile(
        run=run,
        source=Source("rival", name),
        outcome="completed" if memory <= capacity else "out_of_memory",
        peak_memory_bytes=held,
        device_memory_bytes=held,
        step_time_s=Breakdown.of(step=seconds),
        step_tokens=float(run.global_batch_size * run.seq_len),
        step_sequences=float(run.global_batch_size),
        capacity_bytes=capacity,
    )
