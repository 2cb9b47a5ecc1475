"""The FLOPs that one step of each phase takes: recomputation is not counted.

    sft, pretrain, reward       forward and backward of every micro-batch
    dpo                         + forward of the reference
    grpo                        + forward of the reference, and the writing of the answers
    ppo                         policy and value model train `PPO_EPOCHS` times; policy, reference,
                                value and reward model judge once; the policy writes
    evaluate, prefill, decode   forward

Writing an answer word by word takes as many FLOPs as reading it with its prompt at once.
"""

from finegauge.graph.build import Graph, build
from finegauge.graph.op import Extents
from finegauge.workload.prompts import PPO_EPOCHS, SERVING, micro_steps
from finegauge.workload.run import Run


def step_flops(run: Run, graph: Graph, extents: Extents) -> float:
    """Return the FLOPs of one step whose average micro-batch is `extents`."""
    forward, both = graph.forward_flops(extents), graph.model_flops(extents)
    if run.phase in ("evaluate", *SERVING):
        one = forward
    elif run.phase == "dpo":
        one = both + forward
    elif run.phase == "grpo":
        one = both + 2 * forward
    elif run.phase == "ppo":
        judged = build(value_run(run))
        one = PPO_EPOCHS * (both + judged.model_flops(extents))
        one += 3 * forward + 2 * judged.forward_flops(extents)
    else:
        one = both
    return micro_steps(run) * one


def value_run(run: Run) -> Run:
    """Return the run whose model is PPO's value model: the policy with one output per token."""
    return run.replace(phase="reward", max_new_tokens=None)
