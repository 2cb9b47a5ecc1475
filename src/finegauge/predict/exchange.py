r"""What the ranks of a run send each other in one optimizer step, whatever it costs.

One row per kind of message: its payload, between whom, how often, and the computation that runs
beside it. `predict.communication` prices the rows; `finegauge explain` adds up their bytes.

`exchange_data` has what data-parallel ranks send. Tensor parallelism all-reduces once per branch and
pass [1] (transformers' own, in backward, once per product that begins one, and it gathers the logits);
with sequence parallelism each of these is an all-gather and a reduce-scatter [2], and Megatron gathers
once more in backward what it kept divided. Interleaving v chunks per stage sends v times as often over
the pipeline [3]. Experts are reached by two all-to-alls per layer and pass; context parallelism passes
keys and values round a ring, and on the way back their gradients, in fp32 and home again.

Neglected: scalars (losses, norms of gradients), buffers that DDP broadcasts.

[1] Shoeybi et al. 2019, arXiv:1909.08053, section 3   [2] Korthikanti et al. 2022, arXiv:2205.05198,
section 4.2   [3] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
"""

from collections.abc import Iterator
from typing import NamedTuple

from finegauge.graph.blocks import Attention, FeedForward, LatentAttention, Mixer, MixtureOfExperts
from finegauge.graph.build import Graph
from finegauge.graph.op import Extents
from finegauge.graph.step_flops import value_run
from finegauge.predict.divided import by_megatron, by_transformers, regathers, stream_degree
from finegauge.predict.exchange_data import OUTER, Collective, among_data_ranks, forward_gathers
from finegauge.predict.forward_passes import Writing, gathers_to_write, judges, policy_and_value, writing_of
from finegauge.predict.sharding import Share, rank_extents, share_of
from finegauge.workload.data import shape
from finegauge.workload.parallelism import FSDP
from finegauge.workload.prompts import PPO_EPOCHS, SERVING, WRITING, micro_steps
from finegauge.workload.run import Run

SUM_BYTES = 4  # of the gradients of keys and values while ranks add to them
TRAINED = ("sft", "pretrain", "reward", "dpo", "grpo")


class Volume(NamedTuple):
    """What one rank takes part in during one optimizer step, by kind."""

    kind: str
    group: str
    num_per_step: float
    bytes_per_step: float  # of the payloads


def collectives(run: Run) -> tuple[Collective, ...]:
    """Return every message that one rank of `run` takes part in during one step of its phase.

    Of a pipeline it is the rank that sends most, a middle stage; of PPO all updates of policy and value.
    """
    share = share_of(run)
    if not share.communicates:
        return ()
    batch = shape(run)
    extents = rank_extents(
        run, Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)
    )
    runs = 3 if run.activation_checkpointing in ("full", "offload") else 2
    found: list[Collective] = []
    if run.phase == "ppo":
        both = zip(policy_and_value(run, share), (run, value_run(run)), strict=True)
        updates = [one for held, trained in both for one in exchanged(trained, held, extents, runs)]
        found += [one._replace(num_sent=PPO_EPOCHS * one.num_sent) for one in updates]
    elif run.phase in TRAINED:
        found += exchanged(run, share, extents, runs)
    for judge in judges(run, share):
        found += passed(run, judge.share, extents)
    found += _answers(run, share, extents)
    return tuple(one for one in found if one.ranks > 1 and one.num_sent > 0 and one.payload_bytes > 0)


def _answers(run: Run, share: Share, extents: Extents) -> list[Collective]:
    """Return the messages of all writing in one step."""
    if run.phase not in (*SERVING, *WRITING):
        return []
    writing = writing_of(run, extents)
    before, reading, further = written(run, share, writing)
    rest = [one._replace(num_sent=(writing.new_tokens - 1) * one.num_sent) for one in further]
    return [one._replace(once=run.phase not in SERVING) for one in (*before, *reading, *rest)]


def volumes(run: Run) -> list[Volume]:
    """Return how often and how many bytes of each kind one rank exchanges in a step, the largest first."""
    steps = micro_steps(run)
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for one in collectives(run):
        times = one.num_per_step(steps)
        before = totals.get((one.kind, one.group), (0.0, 0.0))
        totals[one.kind, one.group] = before[0] + times, before[1] + times * one.payload_bytes
    found = [Volume(kind, group, *amounts) for (kind, group), amounts in totals.items()]
    return sorted(found, key=lambda volume: -volume.bytes_per_step)


def exchanged(run: Run, share: Share, extents: Extents, runs: int) -> list[Collective]:
    """Return the messages of one rank that holds `share`.

    Args:
        run: The run as stated.
        share: What one rank computes.
        extents: Of its micro-batch.
        runs: How often a layer runs: forward, backward, and once more where it is recomputed.
    """
    return [
        *among_data_ranks(run, share),
        *_tensor(run, share, extents, runs),
        *_context(run, share, extents, runs),
        *_experts(run, share, extents, runs),
        *_pipeline(run, share, extents),
    ]


def passed(run: Run, share: Share, extents: Extents, *, written: float = 0.0) -> list[Collective]:
    """Return the messages of one rank in a pass that only goes forward.

    Args:
        run: The run as stated.
        share: What the rank has of the model.
        extents: Of its micro-batch.
        written: How many tokens the pass gives the logits of; 0 where it takes the loss of all.
    """
    return [
        *forward_gathers(run, share),
        *_tensor(run, share, extents, 1, written),
        *_context(run, share, extents, 1),
        *_experts(run, share, extents, 1),
    ]


class Written(NamedTuple):
    """The messages of one rank while answers are written."""

    before: list[Collective]  # once: weights that stay gathered
    reading: list[Collective]  # in the pass over the prompts
    further: list[Collective]  # in that of each token after the first


def written(run: Run, share: Share, writing: Writing) -> Written:
    """Return the messages of one rank while the answers of `writing` are written."""
    whole = run.replace(sequence_parallel=False) if run.sequence_parallel else run
    reading = passed(run, share, writing.prompts, written=writing.rows)
    further = passed(whole, share, writing.token, written=writing.rows)
    once = gathered_to_write(run)
    before = [one._replace(beside="") for one in reading if one.what in once]
    return Written(before, *([one for one in found if one.what not in once] for found in (reading, further)))


def gathered_to_write(run: Run) -> tuple[str, ...]:
    """Return what of the weights is gathered once for a batch of answers, not for every token."""
    if run.sharding == "fsdp_shard_grad_op" or gathers_to_write(run):
        return OUTER, "weights", "experts"
    return (OUTER,) if run.sharding in FSDP else ()


def _tensor(
    run: Run, share: Share, extents: Extents, runs: int, written: float = 0.0
) -> Iterator[Collective]:
    """Yield what tensor-parallel ranks add up: the output of every branch, the gradient of its input.

    So are the streams at embedding and head, and three numbers per token of a loss over divided words;
    of `written` tokens, each the last of its sequence, all ranks get the logits.
    """
    degree, model, low = run.tensor_parallel, share.graph.model, share.graph.lowering
    if degree == 1:
        return
    stages, group, backward = run.pipeline_parallel, (degree, degree), runs > 1
    back = backward / stages * _branches(share.graph, apart=by_transformers(run))
    sums = max(1, runs - 1) * _branches(share.graph) / stages + back
    ends = 2 if stages == 1 and backward else 1  # embedding and head, each on its stage
    stream = extents.tokens * model.hidden_size * low.compute_bytes
    if written or by_transformers(run):
        words = (written or extents.tokens) * model.vocab_size * low.compute_bytes
        yield Collective("all_gather", "tensor", "logits", words, *group, 1)
    if by_transformers(run):
        yield Collective("all_reduce", "tensor", "streams", stream, *group, sums + ends)
        return
    if not written:
        yield Collective("all_reduce", "tensor", "losses", 4.0 * extents.tokens, *group, 3)
    if not run.sequence_parallel:
        yield Collective("all_reduce", "tensor", "streams", stream, *group, sums + ends)
        return
    for kind in ("all_gather", "reduce_scatter"):
        yield Collective(kind, "tensor", "streams", stream, *group, sums + ends)
    if not backward:
        return
    if regathers(run):
        again = "all_gather", "tensor", "inputs kept divided"
        yield Collective(*again, stream, *group, back, beside="backward")
    normed = [op for g in share.whole.layers for op in g.ops * g.count] + list(share.whole.head)
    norms = [op for op in normed if op.kind == "norm" and op.gradient_bytes]
    if norms:
        width = sum(op.gradient_bytes for op in norms) / len(norms)
        what = "gradients of norms"
        yield Collective("all_reduce", "tensor", what, width, *group, len(norms) / stages, once=True)


def _branches(graph: Graph, *, apart: bool = False) -> int:
    """Return the branches of all layers; `apart`: the products that each of them begins with."""
    total = 0
    for layer, count in graph.model.layers:
        mixers = [branch.mixer for branch in layer.branches]
        if apart:
            ins = (len(m.projections) - 1 if isinstance(m, Attention | FeedForward) else 1 for m in mixers)
            total += count * sum(ins)
        else:
            total += count * (1 if layer.parallel else len(mixers))
    return total


def _context(run: Run, share: Share, extents: Extents, runs: int) -> Iterator[Collective]:
    """Yield the ring of keys and values: a block to the next rank, until everyone has seen it."""
    degree, model = run.context_parallel, share.graph.model
    if degree == 1:
        return
    width = sum(
        count * _key_value_width(branch.mixer) for layer, count in model.layers for branch in layer.branches
    )
    blocks = sum(
        count for layer, count in model.layers for branch in layer.branches if _key_value_width(branch.mixer)
    )
    if not blocks:
        return
    tensor = run.tensor_parallel
    channels = extents.tokens * width / blocks / tensor
    rounds, ring = blocks / run.pipeline_parallel, (degree, degree * tensor)
    block, sums = channels * share.graph.lowering.compute_bytes, channels * SUM_BYTES
    homes = rounds * degree if runs > 1 else 0.0  # a block's gradients come home last
    times = rounds * runs * (degree - 1), homes
    sent = ("keys and values", block, *ring, times[0]), ("gradients of them", sums, *ring, times[1])
    yield from (Collective("send", "context", *one, beside="attention") for one in sent)


def _key_value_width(mixer: Mixer) -> int:
    """Return the channels of keys and values that a token has."""
    match mixer:
        case Attention():
            return mixer.num_key_value_heads * (mixer.head_dim + (mixer.value_head_dim or mixer.head_dim))
        case LatentAttention():
            key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return mixer.num_heads * (key + mixer.value_head_dim)
        case _:
            return 0


def _experts(run: Run, share: Share, extents: Extents, runs: int) -> Iterator[Collective]:
    """Yield the way of tokens to their experts and back."""
    degree = run.expert_parallel
    if degree == 1:
        return
    span = degree * run.tensor_parallel
    tokens = extents.tokens / stream_degree(run)
    for mixer, count in _routed(share.graph):
        sent = tokens * min(mixer.top_k, mixer.num_experts) * mixer.expert_width
        payload = sent * share.graph.lowering.compute_bytes
        times = 2 * runs * count / run.pipeline_parallel
        yield Collective("all_to_all", "expert", "tokens", payload, degree, span, times)


def _routed(graph: Graph) -> list[tuple[MixtureOfExperts, int]]:
    """Return the mixtures of experts of a model, and how many layers have each."""
    return [
        (branch.mixer, count)
        for layer, count in graph.model.layers
        for branch in layer.branches
        if isinstance(branch.mixer, MixtureOfExperts)
    ]


def _pipeline(run: Run, share: Share, extents: Extents) -> Iterator[Collective]:
    """Yield what a middle stage hands on: activations to the next, gradients to the one before."""
    stages, chunks = run.pipeline_parallel, run.virtual_pipeline_stages
    if stages == 1:
        return
    boundary = extents.tokens * share.graph.model.hidden_size * share.graph.lowering.activation_bytes
    if scatters_boundary(run):
        boundary = boundary / run.tensor_parallel
    times = 2 * chunks if stages > 2 else 2 * chunks - 1
    span = stages * run.tensor_parallel * run.context_parallel * run.data_parallel
    yield Collective("send", "pipeline", "activations, gradients", boundary, stages, span, times)


def scatters_boundary(run: Run) -> bool:
    """Return whether each tensor-parallel rank of a stage sends its part of the stream alone."""
    return run.tensor_parallel > 1 and (run.sequence_parallel or by_megatron(run))
