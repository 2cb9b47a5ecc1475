"""One optimizer step of a tiny model, run for real on the CPU: its peak by the allocator's own events.

Eager attention, whose matrix products and softmax are the same operators everywhere;
the other kernels of a CPU are not those of a GPU.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.prediction.memory import CUBLAS_DEFAULT_BYTES, live_set
from finegauge.run.run import Run
from tests.on_disk import config_file

BASE: dict[str, Any] = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "experts": {"model_type": "mixtral", "num_local_experts": 4, "intermediate_size": 352},
}


class Peaks(NamedTuple):
    """Bytes alive at the peak of a step, weights and optimizer state included."""

    ours: float
    real: float

    @property
    def error_fraction(self) -> float:
        """Return ours / real - 1."""
        return self.ours / self.real - 1


def peaks(family: str, **fields: Any) -> Peaks:
    """Return both peaks of one step of a tiny model of `family`."""
    config = config_file({**BASE, **FAMILIES[family]})
    run = Run(model=config, attention="eager", micro_batch_size=2, seq_len=96, **fields)
    ours = predicted(run)
    model = real_model(run)
    weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    return Peaks(ours, allocated(run, model, weights))


def predicted(run: Run) -> float:
    """Return our peak, without the workspace that only a GPU has."""
    extents = Extents.of(run.micro_batch_size, run.target_seq_len or run.seq_len)
    phases = live_set(run, build(run), extents, CUBLAS_DEFAULT_BYTES).phases
    return max(phase.total - phase.parts["workspace", "cuBLAS"] for phase in phases.values())


def allocated(run: Run, model: Any, weights_bytes: float, optimizer: Any = None) -> float:
    """Return the peak of a step by the allocator's events, weights and optimizer state included."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(trained, foreach=run.optimizer_implementation == "foreach")
    tokens = torch.randint(1, model.config.vocab_size, (run.micro_batch_size, run.seq_len))
    _step(model, optimizer, tokens)
    kept = [value for state in optimizer.state.values() for value in state.values()]
    states = [value for value in kept if torch.is_tensor(value) and value.numel() > 1]
    before = weights_bytes + sum(state.untyped_storage().nbytes() for state in states)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        _step(model, optimizer, tokens)
    return float(before + most_allocated(profiled))


def most_allocated(profiled: Any) -> int:
    """Return the most bytes alive at once of what was allocated under a profile of memory."""
    events = profiled.profiler.kineto_results.events()
    changes = sorted((one.start_ns(), one.nbytes()) for one in events if one.name() == "[memory]")
    return int(max(accumulate(change for _, change in changes)))


def peak_of(model: Any, loss: Callable[[], Any]) -> float:
    """Return the most bytes that are alive in the second step, by the allocator's own events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    held = [*model.parameters(), *(v for state in optimizer.state.values() for v in state.values())]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    return float(most_allocated(profiled) + sum(storages.values()))


def meta_model(run: Run) -> Any:
    """Return the transformers class of `run` without weights."""
    import torch

    with torch.device("meta"):
        return _model(run)


def _model(run: Run) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    figures = dict(run.config)
    config = CONFIG_MAPPING[figures.pop("model_type")](**figures)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[run.weights_dtype]
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=run.attention)


def real_model(run: Run) -> Any:
    """Return the model of `run` with random weights, in training mode."""
    model = _model(run)
    if run.activation_checkpointing in ("full", "offload"):
        model.gradient_checkpointing_enable({"use_reentrant": run.checkpointing_reentrant})
    if run.activation_checkpointing == "offload":
        model.moved_bytes = []
        for module in model.modules():
            if checkpoint := getattr(module, "_gradient_checkpointing_func", None):
                module._gradient_checkpointing_func = _on_host(checkpoint, model.moved_bytes)
    if run.trains_adapters:
        from finegauge.measurement.weights import adapted

        model = adapted(model, run, "cpu")
        if run.activation_checkpointing != "none":
            model.enable_input_require_grads()
    return model.train()


def _on_host(checkpoint: Callable[..., Any], moved: list[int]) -> Callable[..., Any]:
    """Return a checkpoint of a layer whose input waits where torch's allocator of the device has no part.

    `moved` collects the bytes that go there.
    """
    import torch

    def pack(kept: Any) -> Any:
        moved.append(kept.nbytes)
        return kept.detach().numpy().copy()

    def offloaded(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: torch.from_numpy(kept).clone()):
            return checkpoint(*args, **kwargs)

    return offloaded


def _step(model: Any, optimizer: Any, tokens: Any) -> None:
    """Run forward, backward and update."""
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
