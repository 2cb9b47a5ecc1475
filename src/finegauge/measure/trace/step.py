"""One training step of real transformers code, traced: what it computes, keeps and holds.

The step is the second of a run: optimizer states exist. Forward, loss, backward and
optimizer are phases; where checkpointing runs a layer again in backward, its operators
are the stage "recompute".

Batches are full: no padding, so no mask where transformers makes none for such a batch.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from finegauge.measure.models.classes import DTYPES
from finegauge.measure.trace.autocast import cuda_lists
from finegauge.measure.trace.build import Built, build
from finegauge.measure.trace.flops import CORRECTIONS
from finegauge.measure.trace.kernels import scaled_dot_product_attention
from finegauge.measure.trace.ssm_kernels import SUBSTITUTES
from finegauge.measure.trace.tracker import BACKWARD, FORWARD, LOSS, OPTIMIZER, Held, Saved, Tracker
from finegauge.workload.run import Run

CHUNK_TOKENS = 256
LARGEST = 30

Trained = tuple[tuple[int, ...], str, bool]


class StepTrace(NamedTuple):
    """What one optimizer step with one micro-batch did."""

    parameters: dict[str, Trained]  # name -> (shape, dtype, whether it trains)
    flops: dict[tuple[str, str], float]  # (forward | recompute | backward, module path)
    saved: list[Saved]  # every storage autograd kept, parameters and inputs apart
    static_bytes: dict[str, int]  # parameters, buffers, inputs, optimizer, gradients: there before the step
    phase_peak_bytes: dict[str, int]  # forward, forward end, loss, backward, optimizer; static bytes included
    alive_at_peak: dict[str, list[Held]]  # beside the static ones, the largest of each phase
    corrections: tuple[str, ...]  # what the counters get wrong and was put right

    @property
    def saved_bytes(self) -> dict[str, int]:
        """Return what autograd kept, by module path."""
        found: Counter[str] = Counter()
        for saved in self.saved:
            found[saved.module] += saved.bytes
        return dict(found)

    def total_flops(self, stage: str) -> float:
        """Return the FLOPs of one stage."""
        return sum(value for (at, _), value in self.flops.items() if at == stage)


def trace_step(run: Run, *, config: Mapping[str, Any] | None = None) -> StepTrace:
    """Return what one step of `run` does in the installed transformers.

    Args:
        run: The question; batch, method, precision and kernels are its fields.
        config: Figures to build instead of those of `run.model`.
    Raises: UnsupportedError or FieldError for what cannot be built or traced.
    """
    built = build(run, config)
    with built.tensors, torch.device(built.device):
        inputs = torch.zeros((run.micro_batch_size, run.seq_len), dtype=torch.long)
    return trace_built(run, built, inputs)


def trace_built(run: Run, built: Built, inputs: torch.Tensor) -> StepTrace:
    """Return what one step over `inputs` does to a model that is built already."""
    model = built.model
    trained = [p for p in model.parameters() if p.requires_grad]
    with built.tensors:
        optimizer = _optimizer(run, trained)
        if run.gradient_accumulation_steps > 1:
            for parameter in trained:
                parameter.grad = torch.empty_like(parameter)
    static = _static(model, inputs, optimizer, trained)
    tracker = Tracker(model, [tensor for tensors in static.values() for tensor in tensors])
    with _surroundings(run, built), built.tensors, tracker.watching():
        with _autocasting(run):  # forward and loss alone: its cache of narrow weights ends with it
            loss, held = _forward(run, built, inputs, tracker)
        saved = tracker.saved
        tracker.enter_phase(BACKWARD)
        loss.backward()
        del loss
        tracker.enter_phase(OPTIMIZER)
        if run.optimizer_implementation != "fused":
            optimizer.step()
    static_bytes = {kind: _bytes(tensors) for kind, tensors in static.items()}
    base = _bytes([tensor for tensors in static.values() for tensor in tensors])
    peaks = {phase: base + peak for phase, peak in {**tracker.phase_peak_bytes, **held}.items()}
    return StepTrace(
        parameters={n: (tuple(p.shape), str(p.dtype)[6:], p.requires_grad) for n, p in _named(model)},
        flops=dict(tracker.flops),
        saved=saved,
        static_bytes=static_bytes,
        phase_peak_bytes=peaks,
        alive_at_peak={phase: tracker.alive_at_peak(phase)[:LARGEST] for phase in tracker.phase_peak_bytes},
        corrections=CORRECTIONS,
    )


def _forward(run: Run, built: Built, inputs: torch.Tensor, tracker: Tracker) -> tuple[Any, dict[str, int]]:
    """Return the loss, and the live bytes when it began."""
    held: dict[str, int] = {}

    def loss_begins() -> None:
        held["forward end"] = tracker.live_bytes
        tracker.enter_phase(LOSS)

    tracker.enter_phase(FORWARD)
    if run.loss == "chunked":
        return _chunked_loss(built, inputs, loss_begins), held
    base = built.base
    original = base.loss_function

    def loss_function(*args: Any, **kwargs: Any) -> Any:
        loss_begins()
        return original(*args, **kwargs)

    base.loss_function = loss_function
    try:
        loss = built.model(input_ids=inputs, labels=inputs, use_cache=False).loss
    finally:
        base.loss_function = original
    held.setdefault("forward end", tracker.live_bytes)
    return loss, held


def _chunked_loss(built: Built, inputs: torch.Tensor, begins: Callable[[], None]) -> Any:
    """Return the loss taken over chunks of tokens, whose logits are computed again in backward."""
    from torch.utils.checkpoint import checkpoint

    head = built.base.get_output_embeddings()
    hidden = built.base.get_decoder()(input_ids=inputs, use_cache=False).last_hidden_state
    begins()
    labels = torch.nn.functional.pad(inputs, (0, 1), value=-100)[:, 1:].flatten()

    def part(states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(head(states).float(), targets, reduction="sum")

    total = hidden.new_zeros((), dtype=torch.float32)
    for states, targets in zip(
        hidden.flatten(0, 1).split(CHUNK_TOKENS), labels.split(CHUNK_TOKENS), strict=True
    ):
        total = total + checkpoint(part, states, targets, use_reentrant=False)
    return total / labels.numel()


def _optimizer(run: Run, trained: list[Any]) -> Any:
    """Return the run's optimizer with its states in place, as after a first step."""
    foreach = run.optimizer_implementation == "foreach"
    if run.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=1e-4, foreach=foreach)
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=foreach)
    for parameter in trained:
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0, device="cpu"),
            "exp_avg": torch.empty_like(parameter),
            "exp_avg_sq": torch.empty_like(parameter),
        }
    return optimizer


def _static(
    model: Any, inputs: torch.Tensor, optimizer: Any, trained: list[Any]
) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that are there before the step, by kind."""
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and name != "step"
    ]
    return {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "inputs": [inputs],
        "optimizer": states,
        "gradients": [p.grad for p in trained if p.grad is not None],
    }


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of the storages behind `tensors`, each once."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _named(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters by transformers' names; adapters nested in each other keep their own."""
    found = []
    for name, parameter in model.named_parameters():
        plain = name.removeprefix("base_model.model.")
        found.append((plain if ".lora_" in plain else plain.replace(".base_layer", ""), parameter))
    return found


@contextmanager
def _surroundings(run: Run, built: Built) -> Iterator[None]:
    """Put in place what a GPU has and this machine has not: kernels, fused dropout, autocast's lists."""
    import transformers

    functional = torch.nn.functional
    stand_ins: list[tuple[Any, str, Any]] = [
        (functional, "scaled_dot_product_attention", scaled_dot_product_attention),
        (functional, "dropout", _dropout),
        (torch, "autocast", _autocast),
        (transformers.masking_utils, "find_packed_sequence_indices", lambda positions: None),
    ]
    if run.ssm_kernels == "fused":
        for module in {sys.modules[type(m).__module__] for m in built.model.modules()}:
            stand_ins += [(module, name, SUBSTITUTES[name]) for name in SUBSTITUTES if hasattr(module, name)]
    with ExitStack() as stack:
        for owner, name, stand_in in stand_ins:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand_in)
        if run.autocast != "none":
            stack.enter_context(cuda_lists())
        if run.experts_implementation == "eager":
            stack.enter_context(_balanced(built.model))
        yield


def _autocasting(run: Run) -> AbstractContextManager[Any]:
    """Return the autocast that the run's forward pass is under."""
    return torch.amp.autocast("cpu", dtype=DTYPES[run.autocast]) if run.autocast != "none" else nullcontext()


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """Return PyTorch's autocast; tensors of shapes alone know none, and what asks there turns it off."""
    return nullcontext() if device_type == "meta" else torch.amp.autocast(device_type, *args, **kwargs)


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Drop values as CUDA does: in one kernel that keeps a mask of one byte per value."""
    del inplace
    return torch.native_dropout(x, p, True)[0] if training and p > 0.0 else x


@contextmanager
def _balanced(model: Any) -> Iterator[None]:
    """Give every expert its share of the tokens, whatever the router says."""

    def spread(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        states, index, *rest = args
        even = torch.arange(index.numel(), device=index.device) % module.num_experts
        return (states, even.view_as(index), *rest)

    hooks = [
        module.register_forward_pre_hook(spread)
        for module in model.modules()
        if hasattr(module, "num_experts") and any(p.dim() == 3 for p in module.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
