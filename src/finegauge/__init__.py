"""FineGauge: what fine-tuning a language model takes, before and after the money is spent.

    import finegauge

    run = finegauge.read("run.yaml", ("micro_batch_size=4",)).replace(gpu="H100")
    profile = finegauge.predict(run)
    print(profile.outcome, profile.step_time_s.total, finegauge.quote(run, profile).wall_s)

Names are imported when they are first used, so that `import finegauge` costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegauge.catalogue.gpus import gpus
    from finegauge.catalogue.models import models
    from finegauge.plan.capacity import max_micro_batch_size, max_seq_len
    from finegauge.plan.quote import quote
    from finegauge.predict import predict
    from finegauge.profile import Profile, compare
    from finegauge.workload.readers import read
    from finegauge.workload.run import Run

__version__ = "0.1.0"

__all__ = [
    "Profile",
    "Run",
    "__version__",
    "compare",
    "gpus",
    "max_micro_batch_size",
    "max_seq_len",
    "models",
    "predict",
    "quote",
    "read",
]

_HOMES = {
    "Profile": "finegauge.profile",
    "Run": "finegauge.workload.run",
    "compare": "finegauge.profile",
    "gpus": "finegauge.catalogue.gpus",
    "max_micro_batch_size": "finegauge.plan.capacity",
    "max_seq_len": "finegauge.plan.capacity",
    "models": "finegauge.catalogue.models",
    "predict": "finegauge.predict",
    "quote": "finegauge.plan.quote",
    "read": "finegauge.workload.readers",
}


def __getattr__(name: str) -> Any:
    """Return the public name, imported now."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'finegauge' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
