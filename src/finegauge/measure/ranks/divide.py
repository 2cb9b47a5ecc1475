"""How a model is divided among processes: by DDP, by FSDP2, by DeepSpeed's ZeRO.

Each of them wants to see one forward call per micro-batch. `Calls` is the module that they are given:
it holds the model, and its forward pass runs whatever function a phase computes its loss by.

    sharding            by                                           gradients before the last micro-batch
    none                DistributedDataParallel                      stay local (no_sync)
    fsdp                fully_shard, gathers again in backward       stay local and whole, as accelerate does
    fsdp_shard_grad_op  fully_shard, keeps weights until backward    likewise
    hybrid              fully_shard on a mesh of two dimensions      likewise
    zero1, zero2, zero3 DeepSpeed                                    as DeepSpeed has it
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from finegauge.measure.division import Alone
from finegauge.measure.models.classes import DTYPES
from finegauge.measure.models.optimizers import optimizer_of
from finegauge.measure.phases.placing import Here, Trained
from finegauge.measure.ranks.zero import Zero
from finegauge.measure.subject import Subject
from finegauge.workload.parallelism import FSDP, accumulates_whole
from finegauge.workload.run import Run


class Calls(torch.nn.Module):
    """A model whose forward pass is whatever function it is called with."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Hold `model`."""
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return `function(*given)`."""
        return function(*given)


class Divided(Here):
    """One rank of several, each with its part of every model, as the run says."""

    def __init__(self, rank: int) -> None:
        """Be `rank` of the process group."""
        self.rank = rank
        self.trains: list[Trained] = []  # every model that was divided to be trained

    def trained(self, *subjects: Subject) -> tuple[Trained, ...]:
        """Return `subjects` divided among the ranks, each with an optimizer of its own."""
        found = tuple(map(_trained, subjects))
        self.trains += found
        return found

    def frozen(self, subject: Subject) -> Subject:
        """Return a model that is only asked: divided where weights are, else whole on every rank."""
        run, module = subject.run, Calls(subject.model)
        if run.sharding in FSDP:
            return subject._replace(division=sharded(run, subject, module))
        return subject._replace(division=Zero(run, module)) if run.sharding == "zero3" else subject


def _trained(subject: Subject) -> Trained:
    """Return `subject` divided among the ranks of the process group, and its optimizer."""
    run, module = subject.run, Calls(subject.model)
    if run.sharding.startswith("zero"):
        zero = Zero(run, module, subject.trained)
        notes = (*subject.notes, *zero.notes)
        return Trained(subject._replace(division=zero, notes=notes), zero.optimizer)
    found = sharded(run, subject, module) if run.sharding in FSDP else replicated(run, module)
    return Trained(subject._replace(division=found), optimizer_of(run, subject.trained))


class Synchronised(Alone):
    """Reduces gradients in the last micro-batch of a step, or in each."""

    def __init__(
        self, run: Run, module: Any, synchronise: Callable[[bool], None], *, every: bool = False
    ) -> None:
        """Call `module`; `synchronise` says whether the coming backward pass reduces gradients."""
        self.steps, self.every, self.done = run.gradient_accumulation_steps, every, 0
        self.module, self.synchronise = module, synchronise

    def forward(self, function: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return the forward pass of the next micro-batch."""
        self.done += 1
        self.synchronise(self.every or self.done == self.steps)
        found: torch.Tensor = self.module(function, *given)
        return found

    def infer(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return `function(*given)`, with what FSDP2 gathers let go of."""
        if not hasattr(self.module, "reshard"):
            return function(*given)  # DDP's ranks hold the whole model
        found = self.module(function, *given)
        self.module.reshard()  # else embedding and head stay until the next backward pass
        return found

    def step(self, trained: Iterable[torch.nn.Parameter], update: Callable[[], None]) -> None:
        """Use the reduced gradients up."""
        del trained
        self.done = 0
        update()


def replicated(run: Run, module: Calls) -> Synchronised:
    """Return the whole model on every rank, whose gradients torch's DDP adds up."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(module, broadcast_buffers=False)

    def synchronise(now: bool) -> None:
        model.require_backward_grad_sync = now

    return Synchronised(run, model, synchronise)


def sharded(run: Run, subject: Subject, module: Calls) -> Synchronised:
    """Return a part of every tensor on every rank; FSDP2 gathers the layers of `subject`, then the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape: tuple[int, ...] = (run.num_gpus,)
    names: tuple[str, ...] = ("shard",)
    if run.sharding == "hybrid":
        shape, names = (run.data_parallel_replicate, run.data_parallel_shard), ("replicate", "shard")
    options: dict[str, Any] = {"mesh": init_device_mesh(subject.device.type, shape, mesh_dim_names=names)}
    if run.sharding == "fsdp_shard_grad_op":
        options["reshard_after_forward"] = False  # else all but the outermost unit do
    if run.autocast != "none":
        narrow = DTYPES[run.autocast]
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=narrow)
    for layer in layers_of(subject):
        fully_shard(layer, **options)
    model = fully_shard(module, **options)
    every = run.gradient_accumulation_steps == 1 or not accumulates_whole(run)
    return Synchronised(run, model, model.set_requires_gradient_sync, every=every)


def layers_of(subject: Subject) -> list[torch.nn.Module]:
    """Return the layers of a transformers model: the modules of its longest list of modules."""
    lists = [m for m in subject.base.get_decoder().modules() if isinstance(m, torch.nn.ModuleList)]
    return list(max(lists, key=len, default=[]))
