"""PyTorch's schedules of pipelines, action by action, without processes or tensors."""

from typing import Any

from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
KIND = schedules._ComputationType


class Stage(_PipelineStageBase):
    """A stage of which a schedule asks for its place alone."""

    def __init__(self, number: int, ranks: int, index: int) -> None:
        self.num_stages, self.group_size, self.stage_index = number, ranks, index
        self.group_rank, self.has_backward = 0, True
        self.group, self.device, self.submod = None, None, None  # type: ignore[assignment]

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        return ()

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        return ()

    def _create_grad_recv_info(self, *args: Any, **kwargs: Any) -> Any:
        return ()


def orders(name: str, ranks: int, chunks: int, num_micro_batches: int) -> dict[int, list[Any]]:
    """Return the actions of every rank."""
    number = ranks * chunks
    held = [0, number - 1] if name in V_SHAPED else range(0, number, ranks)
    stages: Any = [Stage(number, ranks, index) for index in held]
    made = getattr(schedules, f"Schedule{name}")(stages, num_micro_batches, loss_fn=lambda *_: None)
    found: dict[int, list[Any]] = {}
    for rank, actions in made.pipeline_order.items():
        present = [action for action in actions if action is not None]
        found[rank] = [one for action in present for one in (action.sub_actions or (action,))]
    return found


def simulated(
    name: str, ranks: int, chunks: int, num_micro_batches: int, passes: tuple[float, float, float]
) -> tuple[float, list[float]]:
    """Return the seconds of a step, and of how many micro-batches each rank kept its layers at most.

    `passes` are the seconds of one micro-batch on one rank: forward, backward to inputs, to weights.
    """
    forward, inputs, weights = (seconds / chunks for seconds in passes)
    durations = {
        KIND.FORWARD: forward, KIND.BACKWARD_INPUT: inputs, KIND.BACKWARD_WEIGHT: weights,
        KIND.FULL_BACKWARD: inputs + weights,
    }  # fmt: skip
    actions = orders(name, ranks, chunks, num_micro_batches)
    last, done = ranks * chunks - 1, dict[tuple[str, int, int], float]()
    clock, place, most = dict.fromkeys(actions, 0.0), dict.fromkeys(actions, 0), dict.fromkeys(actions, 0)
    kept: dict[int, set[tuple[int, int]]] = {rank: set() for rank in actions}
    while any(place[rank] < len(actions[rank]) for rank in actions):
        before = dict(place)
        for rank, own in actions.items():
            while place[rank] < len(own):
                stage, micro, kind = (
                    own[place[rank]].stage_index,
                    own[place[rank]].microbatch_index,
                    own[place[rank]].computation_type,
                )
                needs = [("backward", stage, micro)] if kind == KIND.BACKWARD_WEIGHT else []
                if kind == KIND.FORWARD:
                    needs = [("forward", stage - 1, micro)] if stage else []
                elif kind in (KIND.FULL_BACKWARD, KIND.BACKWARD_INPUT):
                    needs = [("forward", stage, micro)]
                    needs += [("backward", stage + 1, micro)] if stage < last else []
                if any(need not in done for need in needs):
                    break
                clock[rank] = max([clock[rank], *(done[need] for need in needs)]) + durations[kind]
                if kind == KIND.FORWARD:
                    kept[rank].add((stage, micro))
                    done["forward", stage, micro] = clock[rank]
                if kind in (KIND.FULL_BACKWARD, KIND.BACKWARD_INPUT):
                    done["backward", stage, micro] = clock[rank]
                if kind in (KIND.FULL_BACKWARD, KIND.BACKWARD_WEIGHT):
                    kept[rank].discard((stage, micro))
                most[rank] = max(most[rank], len(kept[rank]))
                place[rank] += 1
        assert place != before, "the schedule waits for itself"
    return max(clock.values()), [most[rank] / chunks for rank in sorted(most)]
