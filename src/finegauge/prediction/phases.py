"""What a step of each phase beyond training consists of: scoring, generation, and the models in memory.

    dpo                     training (see `training`) + the reference's forward pass (scoring)
    grpo                    + generation of all the step's answers
    ppo                     + a reward and a value model, which is updated as often as the policy
    evaluate                the forward pass and its loss
    prefill, decode         generation alone

The reference is the policy with its adapters off where there are any, else one more copy.
Policy and value model alternate: one of them holds activations at a time, both their
gradients and optimizer states.
"""

from typing import TYPE_CHECKING

from finegauge.catalogue.frameworks import engine
from finegauge.model.graph import Graph, value_run
from finegauge.model.op import Extents
from finegauge.model.op_builder import is_adapter
from finegauge.prediction.allocator import slack_fraction
from finegauge.prediction.collectives import (
    Collective,
    forward_messages,
    gathered_to_generate,
    generation_messages,
)
from finegauge.prediction.communication import forward_communication
from finegauge.prediction.device import Device
from finegauge.prediction.forward_passes import (
    MERGE_PASSES,
    among_ranks,
    batches_of_answers,
    gathered_bytes,
    generation_of,
    generator,
    policy_and_value,
    scorers,
)
from finegauge.prediction.generation import (
    OnePass,
    Parts,
    add_generation,
    add_python,
    generation_memory,
    judging,
    passing_bytes,
    workspace,
)
from finegauge.prediction.memory import LiveSet
from finegauge.prediction.model_parallel import (
    behind_head,
    by_tensors,
    by_transformers,
    chunks_of,
    slowest_share,
    stage_layers,
)
from finegauge.prediction.offload import fetched_s
from finegauge.prediction.serving import Limits, cache_room, check_engine, engine_activations
from finegauge.prediction.sharding import (
    GATHERED_WEIGHTS,
    GRADIENTS,
    Share,
    gradients_left,
    kept_while_idle,
    share_of,
    weights_on_host,
)
from finegauge.prediction.time import SLOWEST, Answer, Question, StepClock, StepTime, beside_layers, training
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.phases import accumulates_whole, by_engine, has_engine, micro_steps, num_updates
from finegauge.run.rules import RL, SERVING
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.prediction.profiled_device import ProfiledDevice

GATHERED_AT_ONCE = 8  # layers: DeepSpeed's tp_gather_partition_size
CHUNK_TOKENS = 256.0  # of a chunked loss


def answer(asked: Question) -> Answer:
    """Return what one step of the run's phase, which is not training alone, holds and takes."""
    phase = asked.run.phase
    if phase == "evaluate":  # forward passes that keep nothing, with their losses
        return Answer(LiveSet({"forward": _held(asked, training=False)}), _scoring(asked, "forward"))
    if phase in SERVING:
        return _serving(asked)
    if phase == "ppo":
        return _ppo(asked)
    frozen = _frozen(asked)  # the reference's likelihoods are taken before every forward pass
    trained, kept = training(asked), _kept(asked, frozen)
    phases = {"scoring": _held(asked) + kept}
    for name, held in trained.live.phases.items():
        phases[name] = held + Breakdown(frozen)
    step = _updates(asked, trained.step).plus(_scoring(asked, "scoring"))
    found = Answer(LiveSet(phases), step)
    return found if phase == "dpo" else _with_generation(asked, found, kept)


def _ppo(asked: Question) -> Answer:
    policy, valued = policy_and_value(asked.run, asked.share)
    value = asked._replace(run=value_run(asked.run), share=valued)
    ours, theirs = training(asked._replace(share=policy)), training(value)
    weights = valued.graph.weights
    beside: Parts = {
        **_frozen(asked),
        ("weights", "value model"): weights.base_bytes + weights.adapter_bytes,
        ("optimizer", "value model"): weights.optimizer_bytes - weights.paged_bytes,
    }
    phases, kept = {}, _kept(asked, beside, value)
    trained = Trained(asked.share, ours.live), Trained(valued, theirs.live)
    for name, held in alternating_phases(asked.run, *trained).items():
        phases[name] = held + Breakdown(beside)
    phases["scoring"] = _held(asked) + kept
    step = _updates(asked, ours.step.plus(theirs.step)).plus(_scoring(asked, "scoring"))
    return _with_generation(asked, Answer(LiveSet(phases), step), kept)


def _updates(asked: Question, one: StepTime) -> StepTime:
    """Return all the updates of a step, each like `one`, and that of the moving average after them."""
    step = one.times(num_updates(asked.run))
    if not (asked.run.ema and asked.run.phase in RL):
        return step
    own = asked.share.graph.weights
    average_s = asked.device.cache_seconds(3.0 * (own.base_bytes + own.adapter_bytes))
    return step.plus(StepTime(Breakdown({("optimizer", "moving average"): average_s}), 0.0, 0.0, average_s))


def _serving(asked: Question) -> Answer:
    """Return the answers to a batch of prompts, all in step."""
    run = asked.run
    check_engine(run)
    static = Breakdown(_static(asked, training=False)) + Breakdown(_gathered_to_generate(asked))
    batch, limits = generation_of(run, asked.longest), Limits.of(run)
    at_once = min(batch.rows, limits.num_seqs)
    if by_engine(run):
        graph, whole = asked.share.graph, max(batch.prompt_tokens + batch.new_tokens, run.max_model_len or 0)
        moving = engine_activations(graph, run, batch.rows, batch.prompt_tokens)
        lost = slack_fraction(run, graph, asked.device.calibration)
        free = asked.room_bytes - static.total - (1.0 + lost) * sum(moving.values())
        held = batch.prompt_tokens + batch.new_tokens / 2.0  # answers begin and end one by one
        room = cache_room(run, graph, free, batch.rows, whole, limits, held)
        at_once, reading = room.at_once, {**moving, ("KV cache",): room.held_bytes}
        answering = reading
        if run.phase == "serve":
            from finegauge.prediction.requests import serve

            served, step = serve(asked, room, batch.prompt_tokens, _generation)
            live = LiveSet({"serve": static + Breakdown(reading)})
            return Answer(live, step, {"serving": served.observed(run)})
    else:
        reading, answering = generation_memory(asked.share.graph, batch._replace(rows=at_once), run)
    phases = {"prefill": static + Breakdown(reading)}
    if run.phase == "decode":
        phases["decode"] = static + Breakdown(answering)
    rounds = batch.rows / at_once  # of continuous batching: whoever waits takes the place of who is done
    mean = asked.mean if rounds == 1.0 else asked.mean.part(1.0 / rounds)
    step = _generation(asked._replace(mean=mean), "prefill", "decode")
    seen = {"engine": {"sequences_at_once": at_once}} if by_engine(run) else {}
    return Answer(LiveSet(phases), step.times(rounds * micro_steps(run)), seen)


def _with_generation(asked: Question, rest: Answer, kept: Breakdown) -> Answer:
    run = asked.run
    if has_engine(run):
        from finegauge.prediction.rollout import with_engine

        return with_engine(asked, rest, kept, _static(asked), _generation)
    generating, share = generator(run, asked.share)
    batch = generation_of(run, asked.longest)
    reading, answering = generation_memory(share.graph, batch, generating)
    worst = reading if sum(reading.values()) >= sum(answering.values()) else answering
    rest_of_it = Breakdown(_static(asked)) + kept
    alive = _with_copies(run, share, batch.prompts, {**worst, **_gathered_to_generate(asked)})
    phases = {"generation": rest_of_it + Breakdown(alive)}
    stays: Parts = {}
    if engine(run.inference_engine).layer_launches:
        held = workspace(share.graph, batch, generating)
        stays = {} if run.rollout_sleep else held
        if among_ranks(run) > 1:
            waits = rest_of_it + Breakdown(_gathered_to_generate(asked))
            whole: Parts = {("workspace", "layers to be divided"): _whole_layers(asked, waits.total)}
            phases["gathering"] = waits + Breakdown({**stays, **whole})
    phases |= {name: held + Breakdown(stays) for name, held in rest.live.phases.items()}
    step = rest.step.plus(_generation(asked, "generation", "generation")).plus(judging(run))
    return Answer(LiveSet(phases), step)


def _whole_layers(asked: Question, held_bytes: float) -> float:
    """Return the bytes of layers that are gathered whole before they are divided among ranks.

    Where nobody says how many, half as many as long as there is no room for them beside weights and states.
    """
    one, free = asked.share.layer_bytes, asked.room_bytes - held_bytes
    layers = asked.run.gathered_layers or GATHERED_AT_ONCE
    while asked.run.gathered_layers is None and layers > 1 and layers * one > free:
        layers //= 2
    return one * min(asked.share.graph.model.num_layers, layers)


def _kept(asked: Question, beside: Parts, *others: Question) -> Breakdown:
    """Return `beside`, and what the models that the step trains keep while none of them trains."""
    kept = Breakdown(beside)
    for one in (asked, *others):
        kept = kept + Breakdown(kept_while_idle(one.run, one.share))
    return kept


def _generation(asked: Question, first: str, then: str) -> StepTime:
    """Return the seconds of a batch of answers: their first token in the stage `first`, others in `then`."""
    run, share = asked.run, asked.share
    if run.pipeline_parallel > 1 and run.phase in SERVING:
        return _through_stages(asked, first, then)
    batch, (_, generating) = generation_of(run, asked.mean), generator(run, share)
    clock = StepClock(generating.run, asked.mean, asked.device)
    reading, further = add_generation(clock, generating.graph, batch, first, then)
    if run.fuse_lora and run.trains_adapters and run.phase in RL:
        merged_s = asked.device.cache_seconds(MERGE_PASSES * share.whole.weights.base_bytes)
        clock.parts.append(((first, "adapters", "merged"), merged_s))
    if asked.network is not None:
        once, prompts, tokens = generation_messages(run, share, batch)
        stays = "weights" in gathered_to_generate(run)  # else fetched from the host for every token
        _add_waits(clock, asked, share, first, once, OnePass(0.0, 0.0), 1, fetches=stays)
        _add_waits(clock, asked, share, first, prompts, reading, 1, fetches=not stays)
        _add_waits(clock, asked, share, then, tokens, further, batch.steps, fetches=not stays)
    return clock.time.times(batches_of_answers(run, batch))


def _through_stages(asked: Question, first: str, then: str) -> StepTime:
    """Return `_generation` of a pipeline: its answers in as many parts as stages, each in another stage.

    A token of all answers takes as long as one part takes through all stages, of which the slowest sets the
    pace, and prompts are read likewise. Neglected: that the first prompts find the later stages empty.
    """
    run, stages, model = asked.run, asked.run.pipeline_parallel, asked.share.graph.model
    gpus, per_node = run.num_gpus // stages, run.num_gpus // run.num_nodes
    nodes = gpus // per_node if gpus > per_node and gpus % per_node == 0 else 1
    one = run.replace(
        pipeline_parallel=1, num_gpus=gpus, num_nodes=nodes, first_stage_layers=None, last_stage_layers=None
    )
    part = asked.mean.part(max(1.0 / stages, min(1.0, 1.0 / asked.mean.sequences)))
    step = _generation(asked._replace(run=one, share=share_of(one), mean=part), first, then)
    step = step.times(stages * slowest_share(run, model))
    if asked.network is None:
        return step
    batch = generation_of(run, part)
    width = 2.0 * model.hidden_size * asked.share.graph.lowering.compute_bytes
    for stage, tokens, times in ((first, batch.prompts.tokens, 1.0), (then, batch.token.tokens, batch.steps)):
        sent = Collective("send", "pipeline", "streams", tokens * width, stages, run.num_gpus, 1)
        hops_s = times * (stages - 1) * asked.network.seconds(sent)
        if hops_s > 0:
            sending = Breakdown({(stage, "communication", "streams to the next stage"): hops_s})
            step = step.plus(StepTime(sending, 0.0, 0.0, 0.0))
    return step


def _scoring(asked: Question, stage: str) -> StepTime:
    step = StepTime(Breakdown({}), 0.0, 0.0, 0.0)
    for role, share in scorers(asked.run, asked.share):
        graph = share.graph if role.adapted else _without_adapters(share.graph)
        clock = _forward_pass(asked.mean, asked.device, share, graph, stage)
        own = OnePass.of(clock)
        if asked.network is not None:
            if asked.slowest is not None and asked.slowest != asked.mean:
                slowest = _forward_pass(asked.slowest, asked.device, share, graph, stage)
                waits_s = slowest.time.parts.total - own.compute_s
                clock.parts.append(((stage, *SLOWEST), waits_s))
            messages = forward_messages(role.run, share, asked.mean)
            _add_waits(clock, asked._replace(run=role.run), share, stage, messages, own, 1)
        step = step.plus(clock.time)
    run = asked.run  # the stages of a pipeline begin one after the other
    return step.times(micro_steps(run) + (run.pipeline_parallel - 1) / chunks_of(run))


def _forward_pass(
    extents: Extents, device: "Device | ProfiledDevice", share: Share, graph: Graph, stage: str
) -> StepClock:
    run = share.run
    clock, of_layers = StepClock(run, extents, device), slowest_share(run, graph.model)
    for part in graph.tower:
        clock.extents = part.of(extents)
        clock.stage(stage, part.count, part.ops, backward=False)
    clock.extents = extents
    for count, ops in graph.stretches:
        outer = ops is graph.embedding or ops is graph.head
        clock.stage(stage, count if outer else count * of_layers, ops, backward=False)
    add_python(clock, stage, 1, graph)
    if fewer := behind_head(run, graph.model):
        clock.parts = [*beside_layers(clock.time, fewer).parts.parts.items()]
    return clock


def _add_waits(
    clock: StepClock, asked: Question, share: Share, stage: str, messages: list[Collective], one: OnePass,
    times: float, *, fetches: bool = True,
) -> None:  # fmt: skip
    """Add to `stage` what shows of the messages of `times` passes like `one`.

    Weights that lie on the host come from there, where a pass `fetches` them. Where the device waits for its
    host, messages that the host has put into its queue cost nothing.
    """
    if asked.network is None or not times:
        return
    fetched = fetched_s(asked.run, share, one.compute_s, asked.network) if fetches else 0.0
    if fetches and weights_on_host(asked.run):
        clock.parts.append(((stage, "communication", "weights from the host"), times * fetched))
    if not messages:
        return
    device = asked.device
    slack_s = 0.0 if device.host_in_readings else one.host_bound_s
    shown = forward_communication(
        asked.run, share, messages, one.compute_s, slack_s, asked.network, device.calibration, fetched
    )
    clock.parts += [((stage, "communication", name), times * seconds) for name, seconds in shown.items()]


def _static(asked: Question, *, training: bool = True) -> Parts:
    weights = asked.share.graph.weights
    parts: Parts = {
        ("weights", "model"): weights.base_bytes,
        ("weights", "adapters"): weights.adapter_bytes,
        ("optimizer", "states"): training * (weights.optimizer_bytes - weights.paged_bytes),
        ("workspace", "cuBLAS"): asked.cublas_bytes,
    }
    return {path: value for path, value in parts.items() if value}


def _held(asked: Question, *, training: bool = True) -> Breakdown:
    scoring = scoring_memory(asked.run, asked.share, asked.longest)
    return Breakdown({**_static(asked, training=training), **scoring})


def _frozen(asked: Question) -> Parts:
    """Return the frozen models beside the policy; a reference where there are no adapters to switch off."""
    parts: Parts = {}
    for role, share in scorers(asked.run, asked.share):
        if role.frozen:
            parts["weights", role.name] = share.graph.weights.base_bytes
    if asked.run.ema and asked.run.phase in RL:
        own = asked.share.graph.weights
        parts["weights", "moving average"] = own.base_bytes + own.adapter_bytes
    return parts


def _gathered_to_generate(asked: Question) -> Parts:
    gathered = gathered_bytes(asked.run, asked.share, generating=True)
    return {GATHERED_WEIGHTS: gathered} if gathered else {}


def scoring_memory(run: Run, share: Share, extents: Extents) -> Parts:
    """Return what is alive at the worst moment of a forward pass and its loss with nothing kept."""
    graph = share.graph
    low, model = graph.lowering, graph.model
    passing, chunked = passing_bytes(graph, extents), low.loss == "chunked"
    rows = min(CHUNK_TOKENS, extents.tokens) if chunked else extents.tokens
    words = model.vocab_size / (1 if by_transformers(run) else run.tensor_parallel)
    wide = 0.0 if low.loss == "compiled" else 8.0  # in fp32, twice; a compiled loss widens them inside
    logits = rows * words * (wide + (low.compute_bytes if low.compute_bytes < 4 or not wide else 0.0))
    if low.tiled:
        logits = graph.head[-1].live_forward_bytes.at(extents)
    states = low.stream_bytes * model.hidden_size * extents.tokens  # which the model's code holds
    gathered = max(
        [gathered_bytes(role.run, held) for role, held in scorers(run, share)] or [gathered_bytes(run, share)]
    )
    resharded = run.sharding in ("fsdp", "hybrid") and model.num_layers > 1
    at_head = max(0.0, gathered - share.layer_bytes) if resharded else gathered  # no next layer on its way
    if logits + states + at_head > passing + gathered:
        parts: Parts = {("activations", "passing"): states, ("logits", "loss"): logits}
        gathered = at_head
    else:
        parts = {("activations", "passing"): passing}
    parts = {**parts, GATHERED_WEIGHTS: gathered} if gathered else parts
    return _with_copies(run, share, extents, parts)


def _with_copies(run: Run, share: Share, extents: Extents, parts: Parts) -> Parts:
    """Return `parts`, or what FSDP2 has gathered at most between two layers where that is more.

    A unit comes as one message, from which its tensors are copied; the message before stays until that is
    done (wait_for_unshard of torch 2.13's _fsdp_param_group.py). Little else is alive there: the states that
    the model's code holds.
    """
    outer, layer = share.outer_bytes, share.layer_bytes
    copied = outer + layer + max(outer + layer, 2 * layer)
    states = share.graph.lowering.stream_bytes * share.graph.model.hidden_size * extents.tokens
    if by_tensors(run) and run.num_gpus > 1 and copied + states > sum(parts.values()):
        return {("activations", "passing"): states, GATHERED_WEIGHTS: copied}
    return parts


def _without_adapters(graph: Graph) -> Graph:
    layers = [
        group._replace(ops=tuple([op for op in group.ops if not is_adapter(op)])) for group in graph.layers
    ]
    return graph._replace(layers=tuple(layers))


# Peak memory when PPO alternates policy and value updates. While one model trains, scores or generates,
# the other keeps what its implementation leaves: DDP its buckets, ZeRO-3 its bucket and its part of the
# gradients, for good; between backward passes and the update all the gradients that wait, whole where FSDP
# reduces them in the last micro-batch.


class Trained(NamedTuple):
    """One model of a step: its share of a rank, and what it holds while it trains."""

    share: Share
    live: LiveSet


def alternating_phases(run: Run, first: Trained, second: Trained) -> dict[str, Breakdown]:
    """Return the phases of two models of which one trains at a time, by the larger of both.

    The second to train finds the gradients of the first, and with several micro-batches the first those
    of the second; both wait for one optimizer step.
    """
    ours, theirs = (kept_while_idle(one.share.run, one.share) for one in (first, second))
    accumulated = {GRADIENTS: _waiting_gradients(second.share)}
    phases: dict[str, Breakdown] = {}
    for name, held in first.live.phases.items():
        other = second.live.phases.get(name, Breakdown({})).parts
        if name == "optimizer":
            phases[name] = held + Breakdown({**theirs, GRADIENTS: other.get(GRADIENTS, 0.0)})
            continue
        static = {path: part for path, part in held.parts.items() if _is_static(path)}
        moving = {path: part for path, part in other.items() if not _is_static(path)}
        waiting = Breakdown({**ours, GRADIENTS: _waiting_gradients(first.share)})
        second_trains = Breakdown({**static, **moving}) + waiting
        several = run.gradient_accumulation_steps > 1
        first_trains = held + Breakdown({**theirs, **accumulated} if several else theirs)
        phases[name] = first_trains if first_trains.total >= second_trains.total else second_trains
    return phases


def _waiting_gradients(share: Share) -> float:
    run = share.run
    if accumulates_whole(run):
        return share.whole_gradient_bytes(stage_layers(run, share.graph.model))
    reduced = gradients_left(run) if run.gradient_accumulation_steps == 1 else 1.0
    return share.graph.weights.gradient_bytes * reduced


def _is_static(path: Path) -> bool:
    return path[0] in ("weights", "optimizer") or path == ("workspace", "cuBLAS")
