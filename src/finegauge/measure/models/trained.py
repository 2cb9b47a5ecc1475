"""Which parameters of a model without adapters train."""

from typing import Any

from finegauge.workload.run import Run


def select_trained(model: Any, run: Run) -> None:
    """Let only the parameters train that the run says; beside adapters PEFT has seen to it."""
    if run.trains_adapters:
        return
    if run.method == "freeze":
        _freeze_all_but_last(model, run.freeze_trainable_layers or 0)
    for name, parameter in model.named_parameters():
        if "norms" in run.trainable_extra and "norm" in name.lower():
            parameter.requires_grad_(True)
    for extra, module in (
        ("embed_tokens", model.get_input_embeddings()),
        ("lm_head", model.get_output_embeddings()),
    ):
        if extra in run.trainable_extra and module is not None:
            module.requires_grad_(True)


def _freeze_all_but_last(model: Any, trained: int) -> None:
    """Freeze everything but the last `trained` layers."""
    numbers = {name: _layer(name) for name, _ in model.named_parameters()}
    first = max(numbers.values(), default=0) + 1 - trained
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(numbers[name] >= first)


def _layer(parameter: str) -> int:
    """Return the number of the layer that a parameter belongs to; -1 outside the layers."""
    return next((int(part) for part in parameter.split(".") if part.isdecimal()), -1)
