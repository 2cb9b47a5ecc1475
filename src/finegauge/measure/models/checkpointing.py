"""Activation checkpointing of real models: full, offloaded, selective.

Selective checkpointing keeps what matrix products and attention return and computes the
cheap rest again, as the prediction takes it (predict/checkpointing.py).
"""

from functools import partial
from typing import Any

from finegauge.workload.run import Run

_KEPT = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_dot_product_flash_attention",
         "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
         "_scaled_dot_product_flash_attention_for_cpu")  # fmt: skip


def checkpoint_layers(model: Any, run: Run) -> None:
    """Let the layers of a transformers model keep as little as `run` says."""
    kind = run.activation_checkpointing
    if kind == "none":
        return
    if kind == "selective":
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        context = partial(create_selective_checkpoint_contexts, _policy)
        model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": context})
        return
    model.activation_checkpointing_enable(
        {"use_reentrant": run.checkpointing_reentrant}, offload=kind == "offload"
    )


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Return whether selective checkpointing keeps what an operator returns."""
    from torch.utils.checkpoint import CheckpointPolicy

    del context, args, kwargs
    kept = operator.namespace == "aten" and operator._schema.name.partition("::")[2] in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
