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
from typing import NamedTuple

from finegauge.errors import UnsupportedError
from finegauge.graph.build import Graph
from finegauge.graph.frontier import is_adapter
from finegauge.graph.op import Extents, Op
from finegauge.graph.step_flops import value_run
from finegauge.predict.answering import Parts, Writing, add_python, add_writing, passing_bytes, writing_memory
from finegauge.predict.communication import Network
from finegauge.predict.device import Device
from finegauge.predict.live import rank_live_set
from finegauge.predict.measured import MeasuredDevice
from finegauge.predict.memory import LiveSet
from finegauge.predict.sharding import GATHERING, Share, share_of
from finegauge.predict.time import StepClock, StepTime, step_time
from finegauge.profile import Breakdown
from finegauge.workload.prompts import PPO_EPOCHS, answer_tokens, micro_steps
from finegauge.workload.run import Run

TRAINED = ("sft", "pretrain", "reward")
CHUNK_TOKENS = 256.0  # of a chunked loss
WHOLE = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


class Question(NamedTuple):
    """One rank's share of a step, and the device it runs on."""

    run: Run
    share: Share
    mean: Extents  # of the average micro-batch: what time depends on
    longest: Extents  # of the longest: what memory must hold
    device: Device | MeasuredDevice
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
    divided = [name for name in WHOLE if getattr(run, name) > 1]
    if divided or run.sharding in GATHERING or run.cpu_offload != "none":
        what = divided[0] if divided else "sharding" if run.sharding in GATHERING else "cpu_offload"
        raise UnsupportedError(
            f"phase={run.phase} with {what}={getattr(run, what)} is not predicted yet: every GPU must hold "
            f"whole weights; use sharding none, zero1 or zero2."
        )


def _trained(asked: Question) -> Answer:
    """Return the passes of training over the run's micro-batches."""
    return Answer(
        rank_live_set(asked.run, asked.share, asked.longest, asked.cublas_bytes),
        step_time(asked.share, asked.mean, asked.device, asked.network, asked.slowest),
    )


def _preference(asked: Question) -> Answer:
    """Return training with the reference's likelihoods taken before every forward pass."""
    trained, times = _trained(asked), micro_steps(asked.run)
    phases = _beside(trained.live, _reference(asked))
    scoring = {**_static(asked), **_reference(asked), **_forward_only(asked)}
    return Answer(
        LiveSet({"scoring": Breakdown(scoring), **phases}),
        trained.step.plus(_passes(asked, "scoring", times, _untuned(asked.graph))),
    )


def _grouped(asked: Question) -> Answer:
    """Return preference training on what the policy writes."""
    rest = _preference(asked)
    static = {**_static(asked), **_reference(asked)}
    return _with_writing(asked, rest, static)


def _proximal(asked: Question) -> Answer:
    """Return what four models hold, and a rollout with its updates."""
    run, times = asked.run, micro_steps(asked.run)
    valued = share_of(value_run(run))
    value = asked._replace(run=valued.run, share=valued)
    ours, theirs = _trained(asked), _trained(value)
    weights = valued.graph.weights
    judge = valued.graph.weights.base_bytes
    beside: Parts = {
        **_reference(asked),
        ("weights", "value model"): weights.base_bytes + weights.adapter_bytes,
        ("weights", "reward model"): judge,
        ("optimizer", "value model"): weights.optimizer_bytes - weights.paged_bytes,
    }
    phases = _taking_turns(ours.live, theirs.live, asked.graph.weights.gradient_bytes, weights.gradient_bytes)
    phases = _beside(LiveSet(phases), beside)
    static = {**_static(asked), **beside}
    phases["scoring"] = Breakdown({**static, **_forward_only(asked)})
    scored = _passes(asked, "scoring", times, asked.graph).plus(
        _passes(asked, "scoring", times, _untuned(asked.graph))
    )
    for _ in ("value", "reward"):
        scored = scored.plus(_passes(value, "scoring", times, valued.graph))
    step = ours.step.plus(theirs.step).times(PPO_EPOCHS).plus(scored)
    return _with_writing(asked, Answer(LiveSet(phases), step), static)


def _evaluated(asked: Question) -> Answer:
    """Return forward passes that keep nothing, with their losses."""
    times = micro_steps(asked.run)
    held = _static(asked, training=False)
    return Answer(
        LiveSet({"forward": Breakdown({**held, **_forward_only(asked)})}),
        _passes(asked, "forward", times, asked.graph),
    )


def _served(asked: Question) -> Answer:
    """Return the answers to a batch of prompts, all in step."""
    run, times = asked.run, micro_steps(asked.run)
    clock = StepClock(run, asked.mean, asked.device)
    add_writing(clock, asked.graph, _writing(run, asked.mean, 1), "prefill", "decode")
    static = _static(asked, training=False)
    reading, answering = writing_memory(asked.graph, _writing(run, asked.longest, 1))
    phases = {"prefill": Breakdown({**static, **reading})}
    if run.phase == "decode":
        phases["decode"] = Breakdown({**static, **answering})
    return Answer(LiveSet(phases), clock.time.times(times))


def _with_writing(asked: Question, rest: Answer, static: Parts) -> Answer:
    """Return `rest` with the writing of all its micro-batches' answers, at once, before it."""
    run, times = asked.run, micro_steps(asked.run)
    clock = StepClock(run, asked.mean, asked.device)
    add_writing(clock, asked.graph, _writing(run, asked.mean, times), "generation", "generation")
    moments = writing_memory(asked.graph, _writing(run, asked.longest, times))
    worst = max(moments, key=lambda parts: sum(parts.values()))
    return Answer(
        LiveSet({"generation": Breakdown({**static, **worst}), **rest.live.phases}),
        rest.step.plus(clock.time),
    )


def _writing(run: Run, extents: Extents, times: int) -> Writing:
    """Return the writing of `times` micro-batches of `extents`, prompts with their answers, together."""
    new, length = answer_tokens(run), extents.tokens / extents.sequences
    return Writing(times * extents.sequences, length - new, max(1, new))


def _passes(asked: Question, stage: str, times: float, graph: Graph) -> StepTime:
    """Return forward passes of `graph` over micro-batches, their losses included."""
    clock = StepClock(asked.run, asked.mean, asked.device)
    for count, ops in graph.stretches:
        clock.stage(stage, count * times, ops, backward=False)
    add_python(clock, stage, times, graph)
    return clock.time


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


def _reference(asked: Question) -> Parts:
    """Return the frozen copy of the policy, needed where there are no adapters to switch off."""
    weights = asked.graph.weights
    return {} if asked.run.trains_adapters else {("weights", "reference"): weights.base_bytes}


def _untuned(graph: Graph) -> Graph:
    """Return the operators without adapters."""

    def plain(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(op for op in ops if not is_adapter(op))

    layers = tuple(replace(group, ops=plain(group.ops)) for group in graph.layers)
    return replace(graph, layers=layers)


def _forward_only(asked: Question) -> Parts:
    """Return what is alive at the worst moment of a forward pass and its loss with nothing kept."""
    graph, extents = asked.graph, asked.longest
    low, model = graph.lowering, graph.model
    passing = passing_bytes(graph, extents)
    chunked = low.loss == "chunked"
    rows = min(CHUNK_TOKENS, extents.tokens) if chunked else extents.tokens
    logits = rows * model.vocab_size * (8.0 + (low.compute_bytes if low.compute_bytes < 4 else 0.0))
    states = low.stream_bytes * model.hidden_size * extents.tokens if chunked else 0.0
    if logits + states > passing:
        return {("activations", "passing"): states, ("logits", "loss"): logits}
    return {("activations", "passing"): passing}


def _beside(live: LiveSet, parts: Parts) -> dict[str, Breakdown]:
    """Return every phase with `parts` in memory too."""
    return {name: held + Breakdown(parts) for name, held in live.phases.items()}


def _taking_turns(
    ours: LiveSet, theirs: LiveSet, our_gradients: float, their_gradients: float
) -> dict[str, Breakdown]:
    """Return the phases of two models of which one trains at a time, by the larger of both.

    The second to train finds the gradients of the first; both wait for one optimizer step.
    """
    own = ("weights", "optimizer", "workspace")
    phases: dict[str, Breakdown] = {}
    for name, held in ours.phases.items():
        static = {path: value for path, value in held.parts.items() if path[0] in own}
        other = theirs.phases.get(name, Breakdown({}))
        moving = {path: value for path, value in other.parts.items() if path[0] not in own}
        turn = Breakdown({**static, **moving}) + Breakdown.of(gradients=our_gradients)
        if name == "optimizer":
            turn = held + Breakdown.of(gradients=their_gradients)
        phases[name] = max((held, turn), key=lambda parts: parts.total)
    return phases
