r"""The rollout engine of reinforcement learning: an engine made for serving beside the trainer.

It shares the trainer's GPUs (colocated) or has `rollout_gpus` of its own; on either it is replicated, each
replica on `rollout_tensor_parallel` GPUs, and its answers are dealt to the replicas evenly.

Memory. vLLM and SGLang take `gpu_memory_utilization` of a GPU: weights, the activations of their largest
step, and pages of keys and values in the rest. While the trainer works, an engine on its GPUs holds all of
that (sleep level 0) or gives it back [1]. The trainer's states, or all of it, may wait on the host meanwhile.

Time. A replica runs as many answers at once as its cache, or `max_num_seqs`, allows; whoever waits takes the
place of who is done, and the last answers run alone:

$$ T = \sum_{steps} t(n, c) + prompts \qquad n \text{ answers of } c \text{ tokens in the cache} $$

with $t$ the engine's seconds for one token of each (`generation`). Where the cache is full, the youngest
answer makes room and is read again later [2]. Prompts are read once for all answers to them (prefix
caching). Then

    in turn        T + scoring + update + new weights to the engine
    off policy     the larger of T and training, where they run beside each other, + new weights; several
                   steps ahead, the answers of as many steps are written together

New weights are gathered tensor by tensor from the ranks that share them and copied, or sent to the other
GPUs; adapters are merged into them. What sleeps is moved over the link to the host and back.

Neglected: the engine's CUDA graphs; a prefix
cache from step to step; interruptions of answers by new weights.

[1] github.com/vllm-project/vllm, docs/features/sleep_mode.md   [2] vllm/v1/core/sched/scheduler.py,
    preemption by recomputation of the last request (both read 2026-11-23)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, floor
from operator import add
from random import Random

from finegauge.catalogue.datasets import quantiles
from finegauge.catalogue.frameworks import framework_of
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.data.batch_shape import answer_lengths, shape
from finegauge.errors import UnsupportedError
from finegauge.model.op import Extents
from finegauge.prediction.calibration import Calibration
from finegauge.prediction.collectives import Collective
from finegauge.prediction.device import Device
from finegauge.prediction.forward_passes import MERGE_PASSES
from finegauge.prediction.generation import judging
from finegauge.prediction.links import Network
from finegauge.prediction.serving import Limits, cache_room, engine_activations
from finegauge.prediction.sharding import GATHERING, Share, shard_degree, share_of
from finegauge.prediction.time import Answer, Question, StepTime
from finegauge.profile import Breakdown, Path, Profile, RolloutUse
from finegauge.records import NamedTuple
from finegauge.run.phases import group_size, has_engine, micro_steps, prompts_of
from finegauge.run.run import Run
from finegauge.units import GIB

Generate = Callable[[Question, str, str], StepTime]
Parts = dict[Path, float]
ENGINE = "engine"  # kind of what it holds
OF_THE_MACHINE = (
    *("model", "gpu", "nvlink", "p2p", "pcie", "node_network_gbit_per_s", "gpus_per_pcie_switch", "provider"),
    *("host_cores", "host_memory_gb_per_s", "transformers_version", "power_limit_w", "num_experts_per_tok"),
    *("inference_engine", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens"),
    *("kv_cache_dtype", "seq_len"),
)  # fields that the engine has of its trainer
KEPT_FREE = 64  # tokens of every answer that runs, before another begins: four pages
PLAYED = 4096  # answers of one replica that are followed one by one


class Engine(NamedTuple):
    """One replica of a rollout engine on one of its GPUs."""

    run: Run  # it alone
    share: Share
    replicas: int
    answers: int  # that a replica writes in a step
    at_once: int
    weights_bytes: float
    activations_bytes: float
    cache_bytes: float
    cache_tokens: float
    needed_fraction: float  # of the GPU's memory: with less it does not start
    memory_fraction: float

    @property
    def held_bytes(self) -> float:
        """Return all that it takes of a GPU."""
        return self.weights_bytes + self.activations_bytes + self.cache_bytes


def engine_of(run: Run) -> Engine:
    """Return the rollout engine of `run`.

    Raises: UnsupportedError where its GPUs are no multiple of its degree, or no answer has room in its cache.
    """
    alone = _alone(run)
    gpus, degree = run.rollout_gpus or run.num_gpus, run.rollout_tensor_parallel
    if gpus % degree:
        raise UnsupportedError(
            f"rollout_tensor_parallel={degree} does not divide the {gpus} GPUs that the engine runs on."
        )
    share, limits = share_of(alone), Limits.of(alone)
    answers = ceil(run.micro_batch_size * micro_steps(run) * run.data_parallel / (gpus // degree))
    in_flight = answers * _rollouts_at_once(run)
    memory_bytes = find_gpu(str(run.gpu)).usable_bytes
    weights = share.graph.weights.base_bytes
    activations = sum(engine_activations(share.graph, alone, answers, run.seq_len).values())
    free_bytes = limits.memory_fraction * memory_bytes - weights - activations
    room = cache_room(alone, share.graph, free_bytes, answers, run.seq_len, limits)
    if room.pool_bytes < room.sequence_bytes:
        needed = weights + activations + room.sequence_bytes
        raise UnsupportedError(
            f"gpu_memory_utilization={limits.memory_fraction:g} gives {run.inference_engine} "
            f"{limits.memory_fraction * memory_bytes / GIB:.1f} GiB, but weights, activations and one "
            f"sequence of {run.seq_len:,} tokens take {needed / GIB:.1f} GiB; set "
            f"{ceil(100 * needed / memory_bytes) / 100:g} or more, or rollout_tensor_parallel."
        )
    tokens = room.pool_bytes / room.sequence_bytes * run.seq_len if room.sequence_bytes else float("inf")
    return Engine(
        alone, share, gpus // degree, answers, max(1, min(limits.num_seqs, in_flight)), weights, activations,
        room.pool_bytes, tokens, (weights + activations + room.sequence_bytes) / memory_bytes,
        limits.memory_fraction,
    )  # fmt: skip


def rollout_use(profile: Profile, safe_fraction: float | None) -> RolloutUse | None:
    """Return what the rollout engine of a run takes; None where it has none."""
    run = profile.run
    if not has_engine(run):
        return None
    engine = engine_of(run)
    outside = profile.device_memory_bytes.total - profile.peak_memory_bytes.total
    phases = profile.phase_memory_bytes
    trainer = max(phases[name] - phases.under(name)[ENGINE] for (name, *_) in phases.at(1).parts)
    return RolloutUse(
        run.inference_engine, run.rollout_gpus, engine.memory_fraction, engine.held_bytes,
        engine.weights_bytes, engine.cache_bytes, engine.cache_tokens, _at_once(run, engine), engine.answers,
        trainer + outside, safe_fraction,
    )  # fmt: skip


def _at_once(run: Run, engine: Engine) -> int:
    """Return how many answers find room in the cache, each of the length that it has on average."""
    known = answer_lengths(run)
    written = known.mean(2) / known.mean() / 2 if known else run.max_new_tokens / 2
    fit = engine.cache_tokens / (run.seq_len - run.max_new_tokens + written)
    return max(1, min(engine.at_once, floor(fit)))


def _alone(run: Run) -> Run:
    """Return one replica of the engine as a run of its own, whose answers have one token after the first."""
    fields = {name: getattr(run, name) for name in OF_THE_MACHINE}
    computed = share_of(run).graph.lowering.compute_dtype
    degree, per_node = run.rollout_tensor_parallel, max(1, run.num_gpus // run.num_nodes)
    nodes = 1 if degree <= per_node or degree % per_node else degree // per_node
    return Run(
        **fields, method="full", phase="decode", max_new_tokens=2, tensor_parallel=degree, num_gpus=degree,
        num_nodes=nodes, weights_dtype=run.rollout_dtype or ("bf16" if computed == "fp32" else computed),
    )  # fmt: skip


def with_engine(asked: Question, rest: Answer, kept: Breakdown, static: Parts, generate: Generate) -> Answer:
    """Return a step whose answers an engine writes, of which `rest` is all that the trainer does.

    Args:
        asked: The trainer's rank.
        rest: Its scoring and its updates.
        kept: What it holds beside its own model while nothing trains.
        static: What that model holds at rest.
        generate: The seconds of prompts and of further tokens of an engine, into two stages.
    """
    run = asked.unpacked or asked.run
    engine = engine_of(run)
    phases = dict(rest.live.phases)
    if not run.rollout_gpus:
        awake, asleep = _held(run, engine), {} if run.rollout_sleep else _held(run, engine)
        if framework_of(run.framework).engine_apart:
            context: Parts = {(ENGINE, "context"): asked.device.calibration.context_bytes}
            awake, asleep = awake | context, asleep | context
        phases = {name: held + Breakdown(asleep) for name, held in phases.items()}
        waiting = Breakdown({**static}) + kept
        phases = {"generation": Breakdown(_left(run, waiting)) + Breakdown(awake), **phases}
    writing = rollout_time(asked, engine, generate)
    return Answer(
        rest.live._replace(phases=phases), _together(run, rest.step, writing, _handed_on(asked, engine))
    )


def _held(run: Run, engine: Engine) -> Parts:
    """Return what an engine that is awake takes of each GPU that it shares with the trainer.

    vLLM measures its share from when its process has its context, which comes on top where that is its own
    (init_device of vllm/v1/worker/gpu_worker.py, read 2026-11-23).
    """
    shared = framework_of(run.framework).shares_weights_with_engine
    return {
        (ENGINE, "weights"): 0.0 if shared else engine.weights_bytes,
        (ENGINE, "activations"): engine.activations_bytes,
        (ENGINE, "KV cache"): engine.cache_bytes,
    }


def _left(run: Run, waiting: Breakdown) -> Parts:
    """Return what of the trainer stays on the GPU while answers are generated."""
    gone = {"none": (), "optimizer": ("optimizer",), "all": ("optimizer", "weights", "gradients")}
    return {path: value for path, value in waiting.parts.items() if path[0] not in gone[run.rollout_offload]}


def _together(run: Run, trained: StepTime, writing: StepTime, handed_on: StepTime) -> StepTime:
    """Return a step of training and generation, in turn or beside each other."""
    if run.rollout_gpus:  # the joules of as many other GPUs
        share = run.rollout_gpus / run.num_gpus
        writing = writing._replace(matrix_s=share * writing.matrix_s, device_s=share * writing.device_s)
    if run.off_policy_steps:
        waits = max(0.0, writing.parts.total + run.reward_s - trained.parts.total)
        parts: Parts = {("generation", "waits for answers"): waits} if waits else {}
        return trained.plus(writing._replace(parts=Breakdown(parts), host_bound_s=0.0)).plus(handed_on)
    return writing.plus(judging(run)).plus(trained).plus(handed_on)


def rollout_time(asked: Question, engine: Engine, generate: Generate) -> StepTime:
    """Return the seconds in which the slowest replica writes its answers."""
    run = asked.unpacked or asked.run
    group = group_size(run)
    prompts = shape(prompts_of(run, on_one_rank=False))
    device, prompt_tokens = asked.device, prompts.real_tokens / prompts.sequences
    if isinstance(device, Device):
        alike = (engine.run, engine.at_once, engine.cache_tokens, prompt_tokens)
        clock = _clock(*alike, device.calibration, asked.cublas_bytes, generate)
    else:
        clock = EngineClock(asked, engine, prompt_tokens, generate)
    at_once = _rollouts_at_once(run)
    answers = at_once * engine.answers
    played = min(answers, PLAYED)
    done = clock.write(_dealt(run, played, engine.replicas), group)
    if answers > played:
        half = clock.write(_dealt(run, played // 2, engine.replicas), group)
        done = done.longer(half, (answers - played) / (played - played // 2))
    return clock.step(done).times(1.0 / at_once)


def _rollouts_at_once(run: Run) -> int:
    """Return of how many steps answers are written together: their last answers wait for each other once."""
    return max(1, run.off_policy_steps)


def _dealt(run: Run, answers: int, replicas: int) -> list[int]:
    """Return the lengths of the answers of the replica that has the longest, in the order they come."""
    known = answer_lengths(run)
    if known is None:
        return [run.max_new_tokens] * answers
    pairs = tuple(zip(known.lengths, known.counts, strict=True))
    lengths = quantiles(pairs, [(place + 0.5) / answers for place in range(answers)])
    lengths[-1] = max(lengths[-1], round(known.expected_max(answers * replicas)))
    Random(0).shuffle(lengths)  # as they come by chance, the same ones every time
    return lengths


class Written(NamedTuple):
    """What it takes a replica to write its answers."""

    prompts_s: float
    tokens_s: float  # of all steps after the prompts
    last_s: float  # of these, those with fewer than half as many answers at once as at most
    steps: float
    answers_steps: float  # answers at once, over all steps
    context_tokens: float  # in the cache, over all steps

    def longer(self, half: "Written", times: float) -> "Written":
        """Return it with `times` what it has more than `half`, but for the last answers, which come once."""
        more = Written(*(own + times * (own - other) for own, other in zip(self, half, strict=True)))
        return more._replace(last_s=self.last_s)


@lru_cache(maxsize=64)
def _clock(
    run: Run, at_once: int, cache_tokens: float, prompt_tokens: float, calibration: Calibration,
    cublas_bytes: float, generate: Generate,
) -> "EngineClock":  # fmt: skip
    """Return the clock of an engine on a GPU of the catalogue, which does not depend on the trainer."""
    share, nothing = share_of(run), Extents.of(1.0, 3.0)
    engine = Engine(run, share, 1, 0, at_once, 0.0, 0.0, 0.0, cache_tokens, 0.0, 0.0)
    formats = {share.graph.lowering.compute_dtype, "fp32"}  # the trainer's may be another
    device = Device.of(find_gpu(str(run.gpu)), calibration, formats, run.power_limit_w)
    asked = Question(run, share, nothing, nothing, device, None, cublas_bytes)
    return EngineClock(asked, engine, prompt_tokens, generate)


class EngineClock:
    """The seconds of one replica's steps, from a few that are worked out one by one."""

    def __init__(self, asked: Question, engine: Engine, prompt_tokens: float, generate: Generate) -> None:
        """Work out one token of few and of many answers, with short and with long contexts."""
        run, device, network = engine.run, asked.device, None
        if run.num_gpus > 1:
            network = Network.of(run, find_gpu(str(run.gpu)), device.calibration)
        nothing = Extents.of(1.0, 3.0)
        self.asked = Question(run, engine.share, nothing, nothing, device, network, asked.cublas_bytes)
        self.engine, self.generate, self.prompt_tokens = engine, generate, max(3.0, prompt_tokens)
        most = engine.at_once
        self.rows: list[int] = [2**power for power in range(most.bit_length() - 1)] + [most]
        self.contexts = self.prompt_tokens, max(self.prompt_tokens + 2.0, float(run.seq_len))
        self.seconds: list[list[float]] = [
            [self.token(rows, context).parts.total for context in self.contexts] for rows in self.rows
        ]
        batched = Limits.of(run).batched_tokens
        together = max(1.0, min(most, batched / self.prompt_tokens))
        self.prompt_s = self._passes(together, self.prompt_tokens).parts["prompts"] / together

    def _passes(self, rows: float, context: float) -> StepTime:
        """Return the prompts of `rows` answers, and one token of each at the end of `context` tokens."""
        extents = Extents.of(rows, context)
        return self.generate(self.asked._replace(mean=extents, longest=extents), "prompts", "token")

    def token(self, rows: float, context: float) -> StepTime:
        """Return that token alone."""
        found = self._passes(rows, context)
        return found._replace(
            parts=Breakdown({path: value for path, value in found.parts.parts.items() if path[0] == "token"})
        )

    def read(self, rows: float, context: float) -> StepTime:
        """Return those prompts alone."""
        prompts = self.asked._replace(run=self.asked.run.replace(max_new_tokens=1))
        extents = Extents.of(rows, context - 1.0)
        return self.generate(prompts._replace(mean=extents, longest=extents), "prompts", "token")

    def token_s(self, rows: float, context: float) -> float:
        """Return the seconds of one step of `rows` answers of `context` tokens each on average."""
        above = next((place for place, known in enumerate(self.rows) if known >= rows), len(self.rows) - 1)
        low, high = self.contexts
        along: float = (context - low) / (high - low)
        found = [
            short + along * (long - short) for short, long in self.seconds[max(0, above - 1) : above + 1]
        ]
        if len(found) == 1:
            return found[0]
        fewer, more = self.rows[above - 1], self.rows[above]
        return found[0] + (found[1] - found[0]) * (rows - fewer) / (more - fewer)

    def write(self, lengths: Sequence[int], group: int) -> Written:
        """Return what it takes to write answers of `lengths`, each prompt read once for its `group`."""
        prompt, shared, room = self.prompt_tokens, self.prompt_tokens / group, self.engine.cache_tokens
        waiting = [(float(length), 0.0) for length in reversed(lengths)]  # what is left, what was written
        running: dict[int, tuple[float, float]] = {}  # the step that ends it, what was written less its first
        ends: list[tuple[float, int]] = []  # of all, those that made room too
        step = held = written = 0.0
        number, found = 0, [0.0] * len(Written._fields)

        def leaves(one: int) -> tuple[float, float]:
            nonlocal held, written
            end, before = running.pop(one)
            held, written = held - shared - before - step, written - before - step
            return end - step, before + step

        while waiting or running:
            while waiting and len(running) < self.engine.at_once:
                left, before = waiting[-1]
                if running and held + shared + before + KEPT_FREE * len(running) > room:
                    break
                waiting.pop()
                running[number] = step + left, before - step
                heappush(ends, (step + left, number))
                number, held, written = number + 1, held + shared + before, written + before
                found[0] += self.prompt_s * ((1.0 / group) + before / prompt)
            while ends[0][1] not in running:
                heappop(ends)
            rows = len(running)
            steps = max(1.0, ends[0][0] - step)
            if rows > 1:
                steps = min(steps, max(1.0, floor((room - held) / rows)))
            context = prompt + (written / rows) + steps / 2
            seconds = steps * self.token_s(rows, context)
            few = 2 * rows < min(self.engine.at_once, len(lengths)) and not waiting
            added = (0.0, seconds, few * seconds, steps, rows * steps, context * steps)
            found = list(map(add, found, added))
            step, held, written = step + steps, held + rows * steps, written + rows * steps
            while ends and (ends[0][1] not in running or ends[0][0] <= step):
                _, one = heappop(ends)
                if one in running:
                    leaves(one)
            if len(running) > 1 and held + len(running) > room:  # the youngest makes room
                waiting.append(leaves(next(reversed(running))))
        return Written(*found)

    def step(self, done: Written) -> StepTime:
        """Return a rollout by stage and part: the prompts, the tokens of most answers, the last answers."""
        rows, context = done.answers_steps / done.steps, done.context_tokens / done.steps
        most_s = done.tokens_s - done.last_s
        step = self.spent("generation", "generation", rows, context, done.prompts_s, done.tokens_s, most_s)
        last = Breakdown({("generation", "the last answers"): done.last_s} if done.last_s else {})
        return step._replace(parts=step.parts + last)

    def spent(
        self, first: str, then: str, rows: float, context: float, prompts_s: float, tokens_s: float,
        shown_s: float | None = None,
    ) -> StepTime:  # fmt: skip
        """Return the time of prompts and tokens by part, like those of `rows` answers in `context` tokens.

        Of the tokens' seconds `shown_s` alone where that is given.
        """
        token, read = self.token(rows, context), self.read(rows, context)
        one_s = token.parts.total
        times, whole = (tokens_s if shown_s is None else shown_s) / one_s, tokens_s / one_s
        parts: Parts = {(then, *path[1:]): times * value for path, value in token.parts.parts.items()}
        parts[first, "prompts"] = prompts_s
        return StepTime(
            Breakdown({path: value for path, value in parts.items() if value}),
            whole * max(0.0, token.host_bound_s - read.host_bound_s),
            prompts_s + whole * max(0.0, token.matrix_s - read.matrix_s),
            prompts_s + whole * max(0.0, token.device_s - read.device_s),
        )


def _handed_on(asked: Question, engine: Engine) -> StepTime:
    """Return the seconds in which the engine gets new weights, and in which what sleeps comes and goes."""
    run, device = asked.run, asked.device
    network = asked.network or Network.of(run, find_gpu(str(run.gpu)), device.calibration)
    low, model = asked.share.graph.lowering, asked.share.graph.model
    whole_bytes = model.num_parameters * float(min(low.compute_bytes, 2))
    moved_bytes = 2.0 * engine.weights_bytes
    if run.trains_adapters:  # merged, and taken apart again
        moved_bytes += MERGE_PASSES * asked.share.graph.weights.base_bytes
    parts: Parts = {("sync", "copied weights"): device.cache_seconds(moved_bytes)}
    ranks = shard_degree(run) if run.sharding in GATHERING else 1
    divided = run.tensor_parallel * run.pipeline_parallel
    span = min(run.num_gpus, ranks * divided)
    python_s = 2.0 * device.calibration.call_s  # of the trainer that hands a tensor over, of the engine
    if span > 1:
        python_s += device.calibration.unit_wait_s
        gathered = Collective("all_gather", "data", "weights", whole_bytes, span, span, 1)
        parts["sync", "communication", "gathered weights"] = network.seconds(gathered)
    tensors = sum(count * len([*layer.tensors()]) for layer, count in model.layers)
    parts["sync", "other", "Python"] = python_s * (tensors + len([*model.outer_tensors()]))
    if run.rollout_gpus:
        sent = Collective("send", "data", "weights", whole_bytes, 2, run.num_gpus + 1, 1)
        parts["sync", "communication", "weights to the engine"] = network.seconds(sent)
    elif run.rollout_sleep == 1:
        parts["sync", "engine's weights on the host"] = 2.0 * engine.weights_bytes / network.host_bytes_per_s
    if not run.rollout_gpus and run.rollout_offload != "none":
        weights = asked.share.graph.weights
        gone = weights.optimizer_bytes + (weights.base_bytes if run.rollout_offload == "all" else 0.0)
        parts["sync", "trainer on the host"] = 2.0 * gone / network.pageable_bytes_per_s
    return StepTime(Breakdown({path: value for path, value in parts.items() if value}), 0.0, 0.0, 0.0)
