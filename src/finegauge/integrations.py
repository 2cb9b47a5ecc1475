"""FineGauge inside other programs: a callback for transformers and TRL, a server for assistants.

from finegauge.integrations import TrainerCallback

SFTTrainer(..., callbacks=[TrainerCallback(usd_per_hour=2.49)])
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finegauge.callbacks.trainer import TrainerCallback

__all__ = ["TrainerCallback"]


def __getattr__(name: str) -> Any:
    """Return the public name, imported now: only its callback loads transformers."""
    if name != "TrainerCallback":
        raise AttributeError(f"module 'finegauge.integrations' has no attribute '{name}'")
    from finegauge.callbacks.trainer import TrainerCallback

    return TrainerCallback
