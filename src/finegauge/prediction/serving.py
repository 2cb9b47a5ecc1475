"""What an engine made for serving does with a GPU: how much memory it takes, and how many sequences it runs.

An engine takes the share of the memory that it is told (`gpu_memory_utilization`), weights and activations of
its largest step included, and cuts the rest into pages of keys and values. Sequences that find no page, or
are more than `max_num_seqs`, wait until others are done.
"""

from math import floor

from finegauge.catalogue.frameworks import engine
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.errors import UnsupportedError
from finegauge.model.graph import Graph
from finegauge.model.op import Extents
from finegauge.prediction.generation import SAMPLED_BYTES, Parts, cache_bytes, passing_bytes
from finegauge.prediction.time import BoardPower, StepTime
from finegauge.profile import Breakdown, Profile
from finegauge.records import NamedTuple
from finegauge.run.phases import answer_tokens, by_engine, micro_steps
from finegauge.run.rules import SERVING
from finegauge.run.run import Run
from finegauge.units import MIB

# of the board's limit: ML.ENERGY's table of vLLM on H100, 188 rows, together with the joules of an operation
# (the limit over the 16-bit peak): median 8 % off
SERVED_POWER_FRACTION = 0.64
LARGE_BYTES = 70 * 2**30  # of a GPU on which vLLM's and SGLang's limits are larger


class Limits(NamedTuple):
    """What an engine is told, or does unasked."""

    memory_fraction: float
    num_seqs: int
    batched_tokens: int

    @classmethod
    def of(cls, run: Run) -> "Limits":
        """Return the limits of the engine of `run` on its GPU."""
        own = engine(run.inference_engine)
        gpu = None if run.gpu is None else find_gpu(run.gpu)
        is_large = gpu and gpu.usable_bytes >= LARGE_BYTES and not gpu.name.startswith("A100")
        large = own.large_gpu if is_large else {}
        return cls(
            run.gpu_memory_utilization or own.gpu_memory_utilization,
            run.max_num_seqs or large.get("max_num_seqs", own.max_num_seqs),
            run.max_num_batched_tokens or large.get("max_num_batched_tokens", own.max_num_batched_tokens),
        )


def check_engine(run: Run) -> None:
    """Raise where no engine made for serving is there to serve. Raises: UnsupportedError."""
    if run.phase == "serve" and not by_engine(run):
        raise UnsupportedError(
            f"phase=serve is predicted for engines made for serving, which inference_engine="
            f"{run.inference_engine} is not; set inference_engine=vllm."
        )


class CacheRoom(NamedTuple):
    """The room for keys and values, and how many sequences run in it at once."""

    pool_bytes: float  # what is left for them; below that of one sequence the engine does not start
    sequence_bytes: float
    at_once: int

    @property
    def held_bytes(self) -> float:
        """Return what the engine holds, or would have to: one sequence at least."""
        return max(self.pool_bytes, self.sequence_bytes)


def engine_activations(graph: Graph, run: Run, rows: float, prompt_tokens: float) -> Parts:
    """Return what is alive beside weights and cache in the largest step of an engine.

    vLLM makes room for the largest that its limits allow, whatever it is asked then (`profile_run` of
    vllm/v1/worker/gpu_model_runner.py, read 2026-11-23).
    """
    limits, longest = Limits.of(run), rows * prompt_tokens
    tokens, sampled = max(1.0, min(limits.batched_tokens, longest)), min(limits.num_seqs, rows)
    if engine(run.inference_engine).profiles:
        tokens, sampled = float(limits.batched_tokens), limits.num_seqs
    return {
        ("activations", "passing"): passing_bytes(graph, Extents.of(1.0, tokens)),
        ("logits", "next token"): sampled
        * graph.model.vocab_size
        * (graph.lowering.compute_bytes + SAMPLED_BYTES),
    }


def cache_room(
    run: Run, graph: Graph, free_bytes: float, rows: float, tokens: float, limits: Limits, held: float = 0.0
) -> CacheRoom:
    """Return the room that `free_bytes` are for `rows` sequences of `tokens` tokens each.

    Each holds `held` tokens on average, all of them where that is not stated.
    """
    one, mean = (cache_bytes(graph, 1.0, length, run) for length in (tokens, held or tokens))
    fit = floor(free_bytes / mean) if mean else rows
    return CacheRoom(free_bytes // MIB * MIB, one, max(1, int(min(rows, limits.num_seqs, fit))))


def served_energy_j(
    power: BoardPower | None, step: StepTime, flops: float, run: Run, peak: float
) -> Breakdown:
    """Return the joules of one step of an engine, all boards; empty where no board power is known.

    Whatever it waits for in between, steps of milliseconds keep a board at what memory-bound kernels draw;
    each operation comes on top, at what it costs where all of the limit goes into products.
    """
    if power is None:
        return Breakdown({})
    seconds = step.parts.total
    base = SERVED_POWER_FRACTION * power.limit_w * run.num_gpus * seconds
    most = power.limit_w * run.num_gpus * seconds
    return Breakdown.of(memory=base, matrix=min(flops / peak * power.limit_w, most - base))


def served_outcomes(profile: Profile) -> dict[str, float]:
    """Return what users of a service would wait for and what it gives: medians of a load, else of the batch.

    Empty where nothing is served; without joules where no board's power is known.
    """
    run, total_s = profile.run, profile.step_time_s.total
    if run.phase not in SERVING or not total_s:
        return {}
    joules_per_s = profile.step_energy_j.total / total_s
    new_tokens, found = max(1, answer_tokens(run)), {}
    if run.phase == "serve":
        seen = profile.observations["serving"]
        rate = seen["written_tokens_per_s"]
        found = {name: seen[name].get("p50", 0.0) for name in ("ttft_s", "time_per_output_token_s")}
    else:
        reading_s, writing_s = (profile.step_time_s[stage] for stage in ("prefill", "decode"))
        rows = run.micro_batch_size
        at_once = profile.observations.get("engine", {}).get("sequences_at_once", rows)
        turns = micro_steps(run) * rows / min(rows, at_once)
        total_s = reading_s + writing_s
        rate = micro_steps(run) * rows * run.data_parallel * new_tokens / total_s
        found["ttft_s"] = reading_s / turns
        if writing_s:
            found["time_per_output_token_s"] = writing_s / turns / max(1, new_tokens - 1)
    found["output_tokens_per_s"] = rate
    return {**found, "joules_per_token": joules_per_s / rate} if joules_per_s else found
