"""What a step of each phase consists of: passes of training, scoring and writing, and the models in memory.

    sft, pretrain, reward   the passes of training; a reward model has a scalar head
    dpo                     + the reference's forward pass (scoring)
    grpo                    + writing of all the step's answers (generation)
    ppo                     + a reward and a value model; four epochs of updates of policy and value
    evaluate                the forward pass and its loss
    prefill, decode         writing alone

The reference is the policy with its adapters off where there are any, else one more copy.
Policy and value model take turns: one of them holds activations at a time, both their
gradients and optimizer states. PPO's constants are those of TRL's last PPO trainer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from finegauge.errors import UnsupportedError
from finegauge.model.gradient_pruning import is_adapter
from finegauge.model.graph import Graph, value_run
from finegauge.model.op import Extents, Op
from finegauge.prediction.collectives import Collective, passed, written
from finegauge.prediction.communication import Network, forward_communication
from finegauge.prediction.device import Device
from finegauge.prediction.forward_passes import Judge, gathered_bytes, judges, policy_and_value, writing_of
from finegauge.prediction.generation import (
    OnePass,
    Parts,
    add_python,
    add_writing,
    passing_bytes,
    writing_memory,
)
from finegauge.prediction.memory import LiveSet
from finegauge.prediction.model_parallel import by_transformers
from finegauge.prediction.sharding import Share, Trained, alternating_phases, kept_while_idle, rank_live_set
from finegauge.prediction.time import SLOWEST, StepClock, StepTime, step_time
from finegauge.profile import Breakdown, Path
from finegauge.run.phases import PPO_EPOCHS, micro_steps
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.prediction.profiled_device import ProfiledDevice

TRAINED = ("sft", "pretrain", "reward")
CHUNK_TOKENS = 256.0  # of a chunked loss
UNDIVIDED = ("pipeline_parallel", "context_parallel")  # degrees of which no equation here speaks
GATHERED: Path = ("workspace", "gathered weights")


class Question(NamedTuple):
    """One rank's share of a step, and the device it runs on."""

    run: Run
    share: Share
    mean: Extents  # of the average micro-batch: what time depends on
    longest: Extents  # of the longest: what memory must hold
    device: "Device | ProfiledDevice"
    network: Network | None
    cublas_bytes: float
    slowest: Extents | None = None  # of the rank that the others wait for; None: all are alike

    @property
    def graph(self) -> Graph:
        """Return the operators of the share."""
        return self.share.graph


class Answer(NamedTuple):
    """What one step holds and takes on one rank."""

    live: LiveSet
    step: StepTime


def answer(asked: Question) -> Answer:
    """Return what one step of the run's phase holds and takes."""
    if asked.run.phase in TRAINED:
        return _trained(asked)
    kinds: Mapping[str, Callable[[Question], Answer]] = {
        "dpo": _preference, "grpo": _grouped, "ppo": _proximal, "evaluate": _evaluated,
        "prefill": _served, "decode": _served,
    }  # fmt: skip
    return kinds[asked.run.phase](asked)


def check_supported(run: Run) -> None:
    """Refuse what no equation here covers, in one sentence."""
    if run.method == "freeze" and run.num_gpus > 1:
        raise UnsupportedError(
            f"method=freeze is predicted on one GPU, not on num_gpus={run.num_gpus}; "
            f"full and lora are on several."
        )
    if run.phase in TRAINED:
        return
    for name in UNDIVIDED:
        if getattr(run, name) > 1:
            raise UnsupportedError(
                f"phase={run.phase} with {name}={getattr(run, name)} is not predicted: data, tensor and "
                f"expert parallelism are; set {name}=1."
            )
    if run.cpu_offload not in ("none", "optimizer"):
        raise UnsupportedError(
            f"phase={run.phase} with cpu_offload={run.cpu_offload} is not predicted: its passes need the "
            f"weights on the GPU; use cpu_offload=optimizer or none."
        )


def _trained(asked: Question) -> Answer:
    """Return the passes of training over the run's micro-batches."""
    return Answer(
        rank_live_set(asked.run, asked.share, asked.longest, asked.cublas_bytes),
        step_time(asked.share, asked.mean, asked.device, asked.network, asked.slowest),
    )


def _preference(asked: Question) -> Answer:
    """Return training with the reference's likelihoods taken before every forward pass."""
    trained, frozen = _trained(asked), _frozen(asked)
    phases = _beside(trained.live, frozen)
    scoring = Breakdown({**_static(asked), **_judged(asked)}) + _kept(asked, frozen)
    return Answer(LiveSet({"scoring": scoring, **phases}), trained.step.plus(_judging(asked, "scoring")))


def _grouped(asked: Question) -> Answer:
    """Return preference training on what the policy writes."""
    return _with_writing(asked, _preference(asked), _kept(asked, _frozen(asked)))


def _proximal(asked: Question) -> Answer:
    """Return what four models hold, and a rollout with its updates."""
    policy, valued = policy_and_value(asked.run, asked.share)
    value = asked._replace(run=value_run(asked.run), share=valued)
    ours, theirs = _trained(asked._replace(share=policy)), _trained(value)
    weights = valued.graph.weights
    beside: Parts = {
        **_frozen(asked),
        ("weights", "value model"): weights.base_bytes + weights.adapter_bytes,
        ("optimizer", "value model"): weights.optimizer_bytes - weights.paged_bytes,
    }
    turns = alternating_phases(asked.run, Trained(asked.share, ours.live), Trained(valued, theirs.live))
    phases, kept = _beside(LiveSet(turns), beside), _kept(asked, beside, value)
    phases["scoring"] = Breakdown({**_static(asked), **_judged(asked)}) + kept
    step = ours.step.plus(theirs.step).times(PPO_EPOCHS).plus(_judging(asked, "scoring"))
    return _with_writing(asked, Answer(LiveSet(phases), step), kept)


def _kept(asked: Question, beside: Parts, *others: Question) -> Breakdown:
    """Return `beside`, and what the models that the step trains keep while none of them trains."""
    kept = Breakdown(beside)
    for one in (asked, *others):
        kept = kept + Breakdown(kept_while_idle(asked.run, one.share))
    return kept


def _evaluated(asked: Question) -> Answer:
    """Return forward passes that keep nothing, with their losses."""
    held = Breakdown({**_static(asked, training=False), **_judged(asked)})
    return Answer(LiveSet({"forward": held}), _judging(asked, "forward"))


def _served(asked: Question) -> Answer:
    """Return the answers to a batch of prompts, all in step."""
    run = asked.run
    static = Breakdown(_static(asked, training=False)) + Breakdown(_gathered_to_write(asked))
    reading, answering = writing_memory(asked.graph, writing_of(run, asked.longest), run.tensor_parallel)
    phases = {"prefill": static + Breakdown(reading)}
    if run.phase == "decode":
        phases["decode"] = static + Breakdown(answering)
    return Answer(LiveSet(phases), _writing(asked, "prefill", "decode").times(micro_steps(run)))


def _with_writing(asked: Question, rest: Answer, kept: Breakdown) -> Answer:
    """Return `rest` with the writing of all its micro-batches' answers, at once, before it."""
    run = asked.run
    moments = writing_memory(asked.graph, writing_of(run, asked.longest), run.tensor_parallel)
    worst = max(moments, key=lambda parts: sum(parts.values()))
    static = Breakdown({**_static(asked), **worst}) + kept
    generation = static + Breakdown(_gathered_to_write(asked))
    return Answer(
        LiveSet({"generation": generation, **rest.live.phases}),
        rest.step.plus(_writing(asked, "generation", "generation")),
    )


def _writing(asked: Question, first: str, then: str) -> StepTime:
    """Return the writing of a batch of answers: its first token in the stage `first`, others in `then`."""
    writing, run, share = writing_of(asked.run, asked.mean), asked.run, asked.share
    clock = StepClock(share.run, asked.mean, asked.device)
    reading, further = add_writing(clock, asked.graph, writing, first, then)
    if asked.network is None:
        return clock.time
    messages = written(run, share, writing)
    for stage, sent, one, times in (
        (first, messages.before, OnePass(0.0, 0.0), 1),
        (first, messages.reading, reading, 1),
        (then, messages.further, further, writing.new_tokens - 1),
    ):
        if sent and times:
            _add_waits(clock, asked, share, stage, sent, one, times)
    return clock.time


def _judging(asked: Question, stage: str) -> StepTime:
    """Return the forward passes of all who judge, over every micro-batch, their losses included."""
    step = StepTime(Breakdown({}), 0.0, 0.0, 0.0)
    for judge in judges(asked.run, asked.share):
        step = step.plus(_pass(asked, judge, stage))
    return step.times(micro_steps(asked.run))


def _pass(asked: Question, judge: Judge, stage: str) -> StepTime:
    """Return one pass of `judge`, with what its rank waits for others."""
    share = judge.share
    graph = share.graph if judge.adapted else _untuned(share.graph)
    clock = _passed(asked.mean, asked.device, share, graph, stage)
    own = OnePass.of(clock)
    if asked.network is None:
        return clock.time
    if asked.slowest is not None and asked.slowest != asked.mean:
        slowest = _passed(asked.slowest, asked.device, share, graph, stage)
        waits_s = slowest.time.parts.total - own.compute_s
        clock.parts.append(((stage, *SLOWEST), waits_s))
    _add_waits(clock, asked, share, stage, passed(asked.run, share, asked.mean), own, 1)
    return clock.time


def _passed(
    extents: Extents, device: "Device | ProfiledDevice", share: Share, graph: Graph, stage: str
) -> StepClock:
    """Return the clock of one forward pass of `graph`, nothing exchanged."""
    clock = StepClock(share.run, extents, device)
    for count, ops in graph.stretches:
        clock.stage(stage, count, ops, backward=False)
    add_python(clock, stage, 1, graph)
    return clock


def _add_waits(
    clock: StepClock,
    asked: Question,
    share: Share,
    stage: str,
    messages: list[Collective],
    one: OnePass,
    times: int,
) -> None:
    """Add to `stage` what shows of the messages of `times` passes like `one`.

    Where the device waits for its host, messages that the host has put into its queue cost nothing.
    """
    if asked.network is None:
        return
    device = asked.device
    slack_s = 0.0 if device.host_in_readings else one.host_bound_s
    shown = forward_communication(
        asked.run, share, messages, one.compute_s, slack_s, asked.network, device.calibration
    )
    clock.parts += [((stage, "communication", name), times * seconds) for name, seconds in shown.items()]


def _static(asked: Question, *, training: bool = True) -> Parts:
    """Return what is there whatever the phase does."""
    weights = asked.graph.weights
    parts: Parts = {
        ("weights", "model"): weights.base_bytes,
        ("weights", "adapters"): weights.adapter_bytes,
        ("optimizer", "states"): training * (weights.optimizer_bytes - weights.paged_bytes),
        ("workspace", "cuBLAS"): asked.cublas_bytes,
    }
    return {path: value for path, value in parts.items() if value}


def _frozen(asked: Question) -> Parts:
    """Return the frozen models beside the policy; a reference where there are no adapters to switch off."""
    parts: Parts = {}
    for judge in judges(asked.run, asked.share):
        if judge.frozen:
            name = "reference" if judge.share is asked.share else "reward model"
            parts["weights", name] = judge.share.graph.weights.base_bytes
    return parts


def _judged(asked: Question) -> Parts:
    """Return what is alive in the worst of the passes that judge."""
    gathered = max(gathered_bytes(asked.run, judge.share) for judge in judges(asked.run, asked.share))
    return {**_forward_only(asked), **_unless_none(GATHERED, gathered)}


def _gathered_to_write(asked: Question) -> Parts:
    """Return what the policy holds gathered while it writes."""
    return _unless_none(GATHERED, gathered_bytes(asked.run, asked.share, writing=True))


def _unless_none(path: Path, num_bytes: float) -> Parts:
    """Return a part of memory, unless it is empty."""
    return {path: num_bytes} if num_bytes else {}


def _untuned(graph: Graph) -> Graph:
    """Return the operators without adapters."""

    def plain(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(op for op in ops if not is_adapter(op))

    layers = tuple(replace(group, ops=plain(group.ops)) for group in graph.layers)
    return replace(graph, layers=layers)


def _forward_only(asked: Question) -> Parts:
    """Return what is alive at the worst moment of a forward pass and its loss with nothing kept."""
    graph, extents, run = asked.graph, asked.longest, asked.run
    low, model = graph.lowering, graph.model
    passing = passing_bytes(graph, extents)
    chunked = low.loss == "chunked"
    rows = min(CHUNK_TOKENS, extents.tokens) if chunked else extents.tokens
    words = model.vocab_size / (1 if by_transformers(run) else run.tensor_parallel)
    logits = rows * words * (8.0 + (low.compute_bytes if low.compute_bytes < 4 else 0.0))
    states = low.stream_bytes * model.hidden_size * extents.tokens if chunked else 0.0
    if logits + states > passing:
        return {("activations", "passing"): states, ("logits", "loss"): logits}
    return {("activations", "passing"): passing}


def _beside(live: LiveSet, parts: Parts) -> dict[str, Breakdown]:
    """Return every phase with `parts` in memory too."""
    return {name: held + Breakdown(parts) for name, held in live.phases.items()}
