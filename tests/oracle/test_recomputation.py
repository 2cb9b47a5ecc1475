"""Modules and layers that are checkpointed by themselves: held against transformers' code so checkpointed."""

from typing import Any

import pytest

from finegauge.run.run import Run
from tests.oracle.compare import config_path, ours, relative_error, theirs

TOLERANCE_FRACTION = 0.01
WHOLE: dict[str, Any] = {"activation_checkpointing": "full"}
MODULES: dict[str, Any] = {"activation_checkpointing": "selective"}


def question(model: str, **fields: Any) -> Run:
    """Return a full fine-tuning run without the reentrant kind of checkpointing, unless stated."""
    base: dict[str, Any] = {"method": "full", "attention": "flash", "micro_batch_size": 2, "seq_len": 128}
    return Run(model=config_path(model), **{**base, "checkpointing_reentrant": False, **fields})


def differences(run: Run) -> dict[str, float]:
    """Return ours / theirs - 1 of every quantity that is not within the tolerance."""
    mine, (_, real) = ours(run), theirs(run)
    errors = {name: relative_error(mine.amounts[name], value) for name, value in real.amounts.items()}
    return {name: error for name, error in errors.items() if abs(error) > TOLERANCE_FRACTION}


@pytest.mark.parametrize(
    "fields",
    [
        {"recompute_num_layers": 1, "recompute_method": "block"},
        {"recompute_num_layers": 2, "recompute_method": "every"},
        {"recompute_num_layers": 3, "recompute_method": "block", "checkpointing_reentrant": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_some_layers_are_checkpointed_whole(model: str, fields: dict[str, Any]) -> None:
    assert differences(question(model, **WHOLE, **fields)) == {}


@pytest.mark.parametrize(
    ("model", "module"),
    [("llama", "mlp"), ("qwen3", "mlp"), ("mixtral", "moe"), ("deepseek_v3", "mlp"), ("deepseek_v3", "moe")],
)
def test_a_module_is_checkpointed_by_itself(model: str, module: str) -> None:
    assert differences(question(model, **MODULES, recompute_modules=module)) == {}


def test_the_output_of_norms_is_given_up() -> None:
    """Megatron's output-discarding: gone is what the products after norms keep of the whole."""
    run = question("llama", recompute_modules="layernorm")
    trace, _ = theirs(run)
    entering = ("q_proj", "gate_proj")
    kept = sum(one.bytes for one in trace.saved if not one.module.endswith(entering))
    assert ours(run.replace(**MODULES)).amounts["saved bytes"] == pytest.approx(kept, rel=1e-3)
