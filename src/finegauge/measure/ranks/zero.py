"""ZeRO by DeepSpeed: its engine between a phase and torch.

DeepSpeed's defaults, but for two that make no difference to models of ordinary size and much to small
ones: small tensors are divided too (stage3_param_persistence_threshold=0), and a bucket is no larger than
all gradients (reduce_bucket_size), for DeepSpeed allocates it whole. The optimizer is torch's.
Weights are bf16 with fp32 copies in the optimizer, as predictions take it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from finegauge.errors import UnsupportedError
from finegauge.measure.division import Alone
from finegauge.measure.models.optimizers import optimizer_of
from finegauge.workload.run import Run

MAX_GRADIENT_NORM = 1.0
BUCKET = 500_000_000  # elements: DeepSpeed's default reduce_bucket_size


class Zero(Alone):
    """DeepSpeed's engine around a module, one stage of ZeRO."""

    def __init__(self, run: Run, module: torch.nn.Module, trained: Sequence[torch.nn.Parameter] = ()) -> None:
        """Hand `module` to DeepSpeed, with the optimizer of `run` over `trained` if any is."""
        deepspeed = imported()
        self.steps, self.done = run.gradient_accumulation_steps, 0
        self.engine = deepspeed.initialize(
            model=module,
            optimizer=optimizer_of(run, trained) if trained else None,
            config=settings(run, sum(parameter.numel() for parameter in trained)),
            dist_init_required=False,
        )[0]
        self.optimizer = self.engine.optimizer
        self.notes = (f"ZeRO-{run.sharding[-1]} by DeepSpeed {deepspeed.__version__}",)

    def forward(self, function: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return the forward pass of the next micro-batch."""
        found: torch.Tensor = self.engine(function, *given)
        return found

    def infer(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return `function(*given)`; ZeRO-3 gathers what it uses."""
        return self.engine.module(function, *given)

    def backward(self, loss: torch.Tensor) -> None:
        """Take gradients, which the engine reduces as it sees fit."""
        self.engine.backward(loss, scale_wrt_gas=False)
        self.done += 1
        if self.done < self.steps:
            self.engine.step()  # which counts micro-batches and does no more before the last

    def step(self, trained: Iterable[torch.nn.Parameter], update: Callable[[], None]) -> None:
        """Let the engine clip and update."""
        del trained, update
        self.done = 0
        self.engine.step()


def check_installed() -> None:
    """Raise UnsupportedError where DeepSpeed is not installed."""
    if find_spec("deepspeed") is None:
        raise UnsupportedError(
            "sharding=zero1, zero2 and zero3 are measured with DeepSpeed: pip install 'finegauge[deepspeed]'."
        )


def imported() -> Any:
    """Return DeepSpeed, quiet and without what it would compile."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    deepspeed = import_module("deepspeed")
    communication: Any = sys.modules["deepspeed.comm.torch"]
    communication.build_shm_op = lambda: None  # it would need a compiler, and bypass what is measured
    return deepspeed


def settings(run: Run, trained: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration of `run`, of whose parameters so many are trained."""
    stage = int(run.sharding[-1])
    zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": min(BUCKET, trained) or BUCKET}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    return {
        "train_micro_batch_size_per_gpu": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        "gradient_clipping": MAX_GRADIENT_NORM,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
