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
    from finegauge.formats.reading import read
    from finegauge.planning.capacity import max_micro_batch_size, max_seq_len
    from finegauge.planning.quote import quote
    from finegauge.prediction.predictor import predict
    from finegauge.profile import Profile, compare
    from finegauge.run.run import Run

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
    "Run": "finegauge.run.run",
    "compare": "finegauge.profile",
    "gpus": "finegauge.catalogue.gpus",
    "max_micro_batch_size": "finegauge.planning.capacity",
    "max_seq_len": "finegauge.planning.capacity",
    "models": "finegauge.catalogue.models",
    "predict": "finegauge.prediction.predictor",
    "quote": "finegauge.planning.quote",
    "read": "finegauge.formats.reading",
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
