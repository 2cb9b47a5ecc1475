"""Where the time of a step goes by stage, part and operator: norm, attention, router, experts, head, loss.

Hooks on modules mark where each begins and ends. In forward that is all; in backward,
module hooks fire at the wrong time, so marks hang on autograd nodes: what enters a module
passes through a view whose node tells when the module's backward is over, and the node of
what leaves tells when it begins. Autograd runs nodes in the reverse of the order in which
they were made, so that what ran before a module in forward runs after it in backward.
Functions that are no modules (attention kernels, products of fused experts) are marked the
same way, by standing in for the functions of torch while the clock runs; so is bitsandbytes'
dequantisation. Values, gradients and what is saved are unchanged.

Each instant belongs to the innermost role, so the parts add up to the step exactly.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch

from finegauge.measure.instruments.functions import told_functions
from finegauge.measure.instruments.roles import ADAPTER, ROOT, Place, Roles, Watched, tensors_in
from finegauge.measure.instruments.stage_clock import BACKWARD, OTHER, RECOMPUTE, recomputation_told
from finegauge.measure.instruments.timeline import Instants, Timeline, instants_of
from finegauge.measure.subject import Subject
from finegauge.profile import Breakdown

WITHOUT_LAYERS = ("data", OTHER)
OPTIMIZER = "optimizer"
TRAINING = ("forward", RECOMPUTE, BACKWARD)  # where work outside all modules is positions or the loss
OUTSIDE = "outside the model"  # in other stages: sampling, caches, other models
MARK = "finegauge"  # the key under which an autograd node says that it is marked


class Frame:
    """A module at work: where in it we are."""

    __slots__ = ("module", "place")

    def __init__(self, module: Watched | None, place: Place) -> None:
        """Begin at `place` of a watched module; of none outside all."""
        self.module, self.place = module, place


class LayerClock:
    """Times the roles of every module of a subject's model; has the interface of `StageClock`."""

    def __init__(self, subject: Subject, *, instants: Instants | None = None) -> None:
        """Time the layers of `subject.model`."""
        self.steps: list[Breakdown] = []
        self._model, self._optimizer = subject.model, subject.run.optimizer
        self._timeline = Timeline(instants or instants_of(subject.device))
        self._roles = Roles(self._model)
        self._calls: dict[str, list[str]] = {}
        self._stage, self._in_step = OTHER, False
        self._frames = [Frame(None, ROOT)]
        self._backward: Place = ROOT  # where the backward pass is
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin to watch all modules and functions."""
        for item in self._roles.watched:
            before, after = self._hooks(item)
            module = item.module
            self._open.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            self._open.callback(module.register_forward_hook(after, always_call=True).remove)
        paths = {id(item.module): item for item in self._roles.watched}
        self._open.enter_context(
            recomputation_told([self._model], lambda module: self._recompute(paths.get(id(module))))
        )
        self._open.enter_context(told_functions(self))
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave the model and torch as they were."""
        self._open.close()

    # ---- stages ----------------------------------------------------------------------------
    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that fails leaves no record."""
        self._timeline.discard()
        self._timeline.instants.settle()
        self._in_step, self._stage, self._frames = True, OTHER, [Frame(None, ROOT)]
        self._mark(ROOT)
        try:
            yield
        finally:
            self._in_step = False
        self.steps.append(self._by_role(self._timeline.close()))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage `name`; stages do not nest."""
        if self._stage != OTHER:
            raise RuntimeError(f"Stage '{name}' begins inside stage '{self._stage}'; end that first.")
        if name != BACKWARD:  # which begins where the forward pass ended
            self._frames = [Frame(None, ROOT)]
        self._stage, self._backward = name, self._frames[-1].place
        self._mark(self._backward)
        try:
            yield
        finally:
            self._stage = OTHER
            self._mark(ROOT)

    def _mark(self, place: Place) -> None:
        """Say that work goes on at `place`, in the stage of now."""
        if self._in_step:
            self._timeline.mark((self._stage, place))

    @contextmanager
    def _recompute(self, item: Watched | None) -> Iterator[None]:
        """Count what runs inside as recomputation of a layer, if it is the backward pass that runs it."""
        if self._stage != BACKWARD:
            yield
            return
        frames, interrupted = self._frames, self._backward
        self._stage, self._frames = RECOMPUTE, [Frame(item, (item.path, "") if item else ROOT)]
        self._mark(self._frames[-1].place)
        try:
            yield
        finally:
            self._stage, self._frames = BACKWARD, frames
            self._backward = interrupted
            self._mark(interrupted)

    # ---- modules ---------------------------------------------------------------------------
    def _hooks(self, item: Watched) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the hooks to run before and after a module."""
        inside: Place = (item.path, ADAPTER if item.kind == ADAPTER else "")
        name = item.name if item.parent else item.path

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            del module
            entering = None
            if torch.is_grad_enabled():
                entering = self.returning(args, kwargs)
            self._frames.append(Frame(item, inside))
            self._mark(inside)
            return entering

        def after(module: Any, args: Any, output: Any) -> None:
            del module, args
            frames = self._frames
            place = frames.pop().place
            if torch.is_grad_enabled():
                self.leaving(output, place)
            around = frames[-1]
            if around.place[1] != ADAPTER:
                around.place = (around.place[0], name)
            self._mark(around.place)

        return before, after

    @property
    def frame(self) -> Frame:
        """Return the innermost module at work."""
        return self._frames[-1]

    def go_on(self, place: Place) -> None:
        """Go on at another place of the innermost module."""
        self._frames[-1].place = place
        self._mark(place)

    @contextmanager
    def beside(self, what: str) -> Iterator[None]:
        """Count what runs inside as `what`, wherever we are, in forward or in backward."""
        if not self._in_step:
            yield
            return
        place = self._backward if self._stage == BACKWARD else self._frames[-1].place
        self._mark((place[0], what))
        try:
            yield
        finally:
            self._mark(place)

    # ---- marks in the autograd graph -------------------------------------------------------
    def returning(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Return the arguments, passed through views that tell when backward comes back to where we are."""
        place = self._frames[-1].place
        changed = False

        def through(value: Any) -> Any:
            nonlocal changed
            if isinstance(value, torch.Tensor) and value.requires_grad and value.grad_fn is not None:
                changed = True
                value = value.view_as(value)
                self._tell(value.grad_fn, place)
            return value

        passed = tuple(through(value) for value in args)
        named = {key: through(value) for key, value in kwargs.items()}
        return (passed, named) if changed else None

    def leaving(self, output: Any, place: Place) -> None:
        """Let the nodes of a result tell when backward enters `place`, unless what is inside told already."""
        for tensor in tensors_in(output):
            node = tensor.grad_fn
            if node is not None and MARK not in node.metadata:
                self._tell(node, place)

    def _tell(self, node: Any, place: Place) -> None:
        """Let an autograd node mark `place` when its turn comes."""
        node.metadata[MARK] = place

        def told(gradients: Any) -> None:
            del gradients
            self._backward = place
            self._mark(place)

        node.register_prehook(told)

    # ---- results ---------------------------------------------------------------------------
    def _by_role(self, spent: dict[tuple[str, Place], float]) -> Breakdown:
        """Return the seconds by (stage, part, operator)."""
        for stage, (path, last) in spent:
            names = self._calls.setdefault(path, [])
            if last and stage != BACKWARD and last not in names:
                names.append(last)
        return Breakdown.add_up(
            (self._path(stage, place), seconds) for (stage, place), seconds in spent.items()
        )

    def _path(self, stage: str, place: Place) -> tuple[str, ...]:
        """Return the path of a place in predictions' words."""
        if stage in WITHOUT_LAYERS:
            return (stage,)
        if stage == OPTIMIZER:
            return stage, "parameters", self._optimizer
        if not place[0] and stage not in TRAINING:
            return stage, OUTSIDE
        return stage, *self._roles.of(place, self._calls)
