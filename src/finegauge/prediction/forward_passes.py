"""Forward-only passes of a step (scoring), by which model, and the weights gathered for them.

    dpo, grpo        the reference scorers: the policy, its adapters off where it has any, else a frozen copy
    ppo              policy, reference, value model and a frozen reward model without adapters scorer
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

from finegauge.catalogue.frameworks import framework_of
from finegauge.model.graph import value_run
from finegauge.model.op import Extents
from finegauge.prediction.sharding import GATHERED_LAYERS, Share, share_of
from finegauge.records import NamedTuple
from finegauge.run.phases import answer_tokens, micro_steps
from finegauge.run.rules import FSDP, SERVING
from finegauge.run.run import Run


class Scorer(NamedTuple):
    """A model that passes once over every micro-batch and keeps nothing."""

    share: Share
    frozen: bool  # a copy beside the run's own model, which is not trained
    adapted: bool  # its adapters, if any, take part


class Generation(NamedTuple):
    """Rows of prompts and the answers to them."""

    rows: float
    prompt_tokens: float
    new_tokens: int

    @property
    def prompts(self) -> Extents:
        """Return the extents of the prompts."""
        return Extents.of(self.rows, self.prompt_tokens)

    @property
    def token(self) -> Extents:
        """Return the extents of one further token of every row, in the middle of the answers.

        A query sees all keys before it, none of which causality hides, so pairs count twice.
        """
        context = self.prompt_tokens + self.new_tokens / 2.0
        return Extents(self.rows, self.rows, 2.0 * self.rows * context, context)


def scorers(run: Run, share: Share) -> tuple[Scorer, ...]:
    """Return who scorers in a step of `run`, whose own model `share` holds."""
    if run.phase == "evaluate":
        return (Scorer(share, frozen=False, adapted=True),)
    reference = Scorer(share, frozen=not run.trains_adapters, adapted=False)
    if run.phase == "grpo" and run.old_log_probs:
        return Scorer(share, frozen=False, adapted=True), reference
    if run.phase in ("dpo", "grpo"):
        return (reference,)
    if run.phase != "ppo":
        return ()
    valued = share_of(value_run(run))
    return (
        Scorer(share, frozen=False, adapted=True),
        reference,
        Scorer(valued, frozen=False, adapted=True),
        Scorer(valued, frozen=True, adapted=False),
    )


def generation_of(run: Run, extents: Extents) -> Generation:
    """Return what is generated at once, of micro-batches of `extents`: prompts with their answers.

    A phase that trains generates the answers of all its micro-batches together, a service those of one.
    """
    times = 1 if run.phase in SERVING else micro_steps(run)
    new, length = answer_tokens(run), extents.tokens / extents.sequences
    return Generation(times * extents.sequences, length - new, max(1, new))


def gathers_to_generate(run: Run) -> bool:
    """Return whether all weights are gathered once before answers are generated, not for every token."""
    return run.sharding == "zero3" and framework_of(run.framework).gathers_to_write


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
        return share.outer_bytes + layers * share.layer_bytes
    return share.larger_end_bytes / run.tensor_parallel + share.layer_bytes
