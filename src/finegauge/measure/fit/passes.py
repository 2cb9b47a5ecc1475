"""Passes of a class under a recorder: which layers run, which weights train, forward and backward."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch

from finegauge.errors import UnsupportedError
from finegauge.graph.traced import part_name
from finegauge.measure.fit.model import Subject, hidden_states, only
from finegauge.measure.fit.recorder import OUTSIDE, Recorder
from finegauge.measure.trace.kernels import flash_attention
from finegauge.measure.trace.ssm_kernels import SUBSTITUTES

REST = "residual"  # the part of a layer that is in none of its modules
_RECORDERS: list[Recorder] = []


class Ask(NamedTuple):
    """One pass: its batch, its numerics, and which weights train (None: no backward pass at all)."""

    sequences: int
    length: int
    autocast: bool
    attention: str
    trained: bool | None


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with FlashAttention and tell the recorder; the kernel's own work is not counted again."""
    recorder = _RECORDERS[-1]
    heads = query.shape[1]
    recorder.note_kernel(heads * query.shape[-1], heads * value.shape[-1], kwargs.get("sliding_window"))
    recorder.muted = True
    try:
        return flash_attention(module, query, key, value, attention_mask, **kwargs)
    finally:
        recorder.muted = False


def run(
    subject: Subject, ask: Ask, layers: set[int] | None = None, outputs: Mapping[int, Any] | None = None
) -> tuple[Recorder, dict[int, Any]]:
    """Return (the recorder of one pass, what every layer returned).

    Args:
        subject: The class.
        ask: The pass.
        layers: The layers that really run, None for all.
        outputs: What the other layers return, from a pass in which they ran.

    Raises: UnsupportedError where the class needs the values of tensors.
    """
    masks = _masks(subject, ask)
    for mask in masks:
        try:
            return _run(subject, ask, mask, layers, outputs or {})
        except (RuntimeError, ValueError, LookupError, StopIteration) as error:
            failure: Exception = error
        except (TypeError, AttributeError) as error:
            failure = error
    first = (str(failure).strip().splitlines() or [""])[0][:200]
    name = type(subject.model).__name__
    raise UnsupportedError(
        f"{name} cannot be traced without data: {type(failure).__name__}: {first}"
    ) from failure


def _run(
    subject: Subject, ask: Ask, mask: Any, layers: set[int] | None, outputs: Mapping[int, Any]
) -> tuple[Recorder, dict[int, Any]]:
    """Make one pass with one attention mask."""
    model = subject.model
    for parameter in model.parameters():
        parameter.requires_grad_(bool(ask.trained))
        parameter.grad = None
    recorder = Recorder(model, subject.stack, autocast=ask.autocast, batch=(ask.sequences, ask.length))
    kept = set(range(len(subject.layers))) if layers is None else layers
    ids = torch.empty((ask.sequences, ask.length), dtype=torch.long, device="meta")
    returned: dict[int, Any] = {}
    _RECORDERS.append(recorder)
    try:
        with (
            only(subject, kept, outputs),
            _hooks(subject, recorder, kept, returned),
            _surroundings(model),
            recorder.watching(),
            torch.no_grad() if ask.trained is None else nullcontext(),
        ):
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
            recorder.at(OUTSIDE)
            if ask.trained is not None and layers is not None:
                recorder.is_backward = True
                torch.autograd.backward(logits, torch.empty_like(logits))
                recorder.live.enter(OUTSIDE)
    finally:
        _RECORDERS.pop()
    return recorder, returned


def _masks(subject: Subject, ask: Ask) -> list[Any]:
    """Return the attention masks to try: whole for eager attention, so that none is made from values."""
    if ask.attention != "eager":
        return [None, torch.empty((1, 1, 1, 1), device="meta")]
    dtype = next(subject.model.parameters()).dtype
    shape = (ask.sequences, 1, ask.length, ask.length)
    return [torch.empty(shape, dtype=dtype, device="meta"), None]


@contextmanager
def _surroundings(model: torch.nn.Module) -> Iterator[None]:
    """Put in place the state-space kernels of a GPU, and take away what looks into a tensor's values."""
    import transformers

    patches: list[Any] = [
        mock.patch.object(torch, "autocast", _autocast),
        mock.patch.object(transformers.masking_utils, "find_packed_sequence_indices", return_value=None),
    ]
    for module in {sys.modules[type(m).__module__] for m in model.modules()}:
        names = [name for name in SUBSTITUTES if hasattr(module, name)]
        patches += [mock.patch.object(module, name, SUBSTITUTES[name]) for name in names]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    """Return PyTorch's autocast; it knows no "meta", where code asks for it only to turn it off."""
    return nullcontext() if device_type == "meta" else torch.amp.autocast(device_type, *args, **kwargs)


@contextmanager
def _hooks(subject: Subject, recorder: Recorder, kept: set[int], returned: dict[int, Any]) -> Iterator[None]:
    """Tell the recorder which part of which layer runs, and collect what layers return."""
    handles = [subject.model.get_input_embeddings().register_forward_hook(_need_gradient)]

    def enter(index: int) -> Any:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            hidden = hidden_states(args, kwargs)
            if hidden is not None:
                recorder.streams.add(hidden.untyped_storage()._cdata)
            recorder.at((index, REST))

        return hook

    def leave(index: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            returned[index] = output
            recorder.at(OUTSIDE)

        return hook

    for index in kept:
        layer = subject.layers[index]
        handles.append(layer.register_forward_pre_hook(enter(index), with_kwargs=True))
        handles.append(layer.register_forward_hook(leave(index)))
        for part, module in _parts(layer):
            handles.append(module.register_forward_pre_hook(_go(recorder, (index, part))))
            handles.append(module.register_forward_hook(_go(recorder, (index, REST))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _need_gradient(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """Make the output of frozen embeddings need a gradient, unnoticed; a copy, for code that changes it."""
    with torch._C.DisableTorchFunction():
        frozen = output.is_leaf and torch.is_grad_enabled()
        return output.requires_grad_().clone() if frozen else output


def _parts(layer: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of a layer with the names of their parts; a list's members count as its own."""
    for name, module in layer.named_children():
        if isinstance(module, torch.nn.ModuleList):
            for member in module:
                yield part_name(name), member
        else:
            yield part_name(name), module


def _go(recorder: Recorder, place: tuple[int, str]) -> Any:
    def hook(*_: Any) -> None:
        recorder.at(place)

    return hook
