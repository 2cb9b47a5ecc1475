"""Forward-only passes of a step (scoring), by which model, and the weights gathered for them.

    dpo, grpo        the reference scores; in grpo a reward model too, and the policy before several updates
    ppo              policy, reference, value model and a frozen reward model without adapters score
    evaluate         the model passes over every micro-batch
    ppo, grpo        the policy generates the answers of all micro-batches, token by token
    prefill, decode  the model generates

Trained and frozen models are divided alike: whole on every rank under DDP, ZeRO-1 and 2, sharded under
FSDP and ZeRO-3, as DeepSpeed-Chat divides its reference and reward models. No pass leaves anything
gathered to the next. FSDP gathers a model's outermost unit (embedding, norm, head; under
fsdp_shard_grad_op all of it) once for a batch of answers, and its layers for every token; ZeRO-3
everything for every token, unless the framework gathers all once to generate (`gathers_to_generate`).

Neglected: DeepSpeed's trace of modules, by which a small model's weights may stay from one pass to the next.
"""

from math import ceil
from typing import Any

from finegauge.data.batch_shape import answer_lengths
from finegauge.model.graph import Role, scoring_runs, value_run
from finegauge.model.op import Extents
from finegauge.prediction.sharding import GATHERED_LAYERS, Share, share_of
from finegauge.records import NamedTuple
from finegauge.run.phases import answer_tokens, micro_steps
from finegauge.run.rules import FSDP, RL, SERVING
from finegauge.run.run import Run

# of the weights: the product of two adapters is written, scaled, and added; later it is subtracted again
# (_fuse_lora and _unfuse_lora of deepspeed/runtime/hybrid_engine.py)
MERGE_PASSES = 2 * 6.0


class Generation(NamedTuple):
    """Rows of prompts and the answers to them."""

    rows: float
    prompt_tokens: float
    new_tokens: int
    cached_fraction: float = 0.0  # of the prompts: read before, for another request
    checked_tokens: float = 1.0  # of a row in one pass after the first: a token and the drafts behind it
    gained_tokens: float = 1.0  # of these, those that are kept

    @property
    def steps(self) -> float:
        """Return the passes after the first."""
        return (self.new_tokens - 1) / self.gained_tokens

    @property
    def prompts(self) -> Extents:
        """Return the extents of what is read of the prompts, whose tokens see what was read before."""
        whole, part = Extents.of(self.rows, self.prompt_tokens), 1.0 - self.cached_fraction
        return whole._replace(tokens=whole.tokens * part, pairs=whole.pairs * (1.0 - self.cached_fraction**2))

    @property
    def token(self) -> Extents:
        """Return the extents of one further pass over every row, in the middle of the answers.

        A query sees all keys before it, none of which causality hides, so pairs count twice.
        """
        context = self.prompt_tokens + self.new_tokens / 2.0
        tokens = self.rows * self.checked_tokens
        return Extents(self.rows, tokens, 2.0 * tokens * context, context)


def scorers(run: Run, share: Share) -> list[tuple[Role, Share]]:
    """Return who scores in a step of `run`, whose own model `share` holds, each with a rank's share of it."""
    if run.phase == "evaluate":
        return [(Role("model", run, adapted=True), share)]
    return [(role, share if role.run == run else share_of(role.run)) for role in scoring_runs(run)]


def generation_of(run: Run, extents: Extents) -> Generation:
    """Return what is generated at once, of micro-batches of `extents`: prompts with their answers.

    A phase that trains generates the answers of all its micro-batches together, a service those of one.
    """
    times = 1 if run.phase in SERVING else micro_steps(run)
    new, length = answer_tokens(run), extents.tokens / extents.sequences
    rows = times * extents.sequences
    if run.phase in RL:
        rows = min(rows, run.generation_batch_size or rows) * among_ranks(run)
    if (known := answer_lengths(run)) is not None:  # all wait for the longest
        return Generation(rows, run.seq_len - new, max(1, round(known.expected_max(ceil(rows)))))
    found = Generation(rows, length - new, max(1, new))
    if run.phase not in SERVING:
        return found
    drafts, right = run.speculative_tokens, run.speculative_accepted_fraction
    kept = sum(right**place for place in range(1, drafts + 1))  # those before the first that is wrong
    return found._replace(
        cached_fraction=run.prefix_cached_fraction, checked_tokens=1.0 + drafts, gained_tokens=1.0 + kept
    )


def batches_of_answers(run: Run, batch: Generation) -> float:
    """Return how many such batches the answers of a step take."""
    if run.phase not in RL:
        return 1.0
    return max(1.0, run.micro_batch_size * micro_steps(run) * among_ranks(run) / batch.rows)


def among_ranks(run: Run) -> int:
    """Return among how many of the ranks that train apart DeepSpeed's engine generates answers together."""
    if run.phase not in RL or run.inference_engine != "deepspeed":
        return 1
    return max(1, run.rollout_tensor_parallel // run.tensor_parallel)


def generator(run: Run, share: Share) -> tuple[Run, Share]:
    """Return a step's run, and one rank's share, as they generate.

    `fuse_lora` adds adapters to the weights. `rollout_tensor_parallel` divides what is gathered once among
    ranks, each of which then generates the answers of all of them (DeepSpeed's hybrid engine).
    """
    changes: dict[str, Any] = {}
    if run.phase in RL and run.fuse_lora and run.trains_adapters:
        changes |= {"method": "full", "weights_dtype": run.weights_dtype, "trainable_extra": ()}
    if run.phase in RL and among_ranks(run) > 1:
        changes |= dict.fromkeys(("data_parallel_shard", "data_parallel_replicate"))
        changes |= {"tensor_parallel": run.rollout_tensor_parallel, "rollout_tensor_parallel": 1}
        changes |= {"sharding": "none", "cpu_offload": "none"}
    if not changes:
        return run, share
    generating = run.replace(**changes)
    return generating, share_of(generating)


def gathers_to_generate(run: Run) -> bool:
    """Return whether all weights are gathered once before answers are generated, not for every token."""
    return run.sharding == "zero3" and run.gather_for_generation


def policy_and_value(run: Run, share: Share) -> tuple[Share, Share]:
    """Return one rank's shares of the two models that PPO trains, `share` and that of the value model.

    Both score an answer before they first train; the policy generates it before that, unless a framework
    gathers its weights to generate, past the hooks that note the order of modules.
    """
    value = share_of(value_run(run))
    return share._replace(scored_first=gathers_to_generate(run)), value._replace(scored_first=True)


def gathered_bytes(run: Run, share: Share, *, generating: bool = False) -> float:
    """Return the weights that a forward pass of a model holds gathered."""
    if run.data_parallel * run.context_parallel == 1 and run.sharding != "zero3":
        return 0.0
    layers = share.graph.model.num_layers
    if run.sharding in FSDP:
        whole = run.sharding == "fsdp_shard_grad_op"
        return share.outer_bytes + (layers if whole else min(GATHERED_LAYERS, layers)) * share.layer_bytes
    if run.sharding != "zero3":
        return 0.0
    if generating and gathers_to_generate(run):
        return share.outer_bytes + layers * share.layer_bytes / among_ranks(run)
    return share.larger_end_bytes / run.tensor_parallel + share.layer_bytes
