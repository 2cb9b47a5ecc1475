"""Forward and backward passes of the transformers class of a configuration, on tensors without data.

Only code of the installed transformers library is run: `auto_map`, by which a repository offers
code of its own, is ignored.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.measurement.instruments.memory_meter import storage_key
from finegauge.measurement.tracer.kernels import SUBSTITUTES, flash_attention
from finegauge.measurement.tracer.recorder import OUTSIDE, Place, Recorder
from finegauge.model.traced import part_name

FUSED = "finegauge_fused"  # no "flash" in it: transformers would look for a kernel of that name
_DROPPED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "architectures")


class TracedClass(NamedTuple):
    """A class ready to be traced."""

    model: torch.nn.Module
    text_config: Any  # of the text decoder
    stack: str  # path of the list of layers
    layers: torch.nn.ModuleList

    def owned(self, index: int) -> set[int]:
        """Return the identities of the parameters that only this layer has."""
        others = {id(p) for i, layer in enumerate(self.layers) if i != index for p in layer.parameters()}
        return {id(p) for p in self.layers[index].parameters()} - others


def class_name(config: Mapping[str, Any]) -> str:
    """Return the transformers class that trains a `model_type` on text.

    Raises: UnsupportedError if the installed transformers has none.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    model_type = str(config.get("model_type", ""))
    tables = [auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES]
    for table in reversed(tables) if "text_config" in config else tables:
        name = table.get(model_type)
        if name:
            return str(name if isinstance(name, str) else name[0])
    own = "; its repository brings code of its own, which is never run" if config.get("auto_map") else ""
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no causal language model for model_type "
        f"{shown(model_type)}{own}. Describe the model by a config.json of a type that it resembles."
    )


def _on_meta(built: Any, config: Any, dtype: torch.dtype, implementations: list[str]) -> Any:
    """Return the class with the first attention that it takes; some know a few by name only.

    Towers, which text does not pass, may know less than the decoder.
    """
    towers = dict.fromkeys([name for name in config.sub_configs if name != "text_config"], "eager")
    beside_towers = [towers | {"text_config": name} for name in implementations if towers]
    choices: list[Any] = [*implementations, *beside_towers]
    with torch.device("meta"):
        for number, choice in enumerate(choices, 1):
            try:
                model = built._from_config(config, dtype=dtype, attn_implementation=choice)
                break
            except (KeyError, ValueError):
                if number == len(choices):
                    raise
        model.tie_weights()
    return model


def attention_of(config: Mapping[str, Any], asked: str) -> str:
    """Return the attention that a class has: the one asked for, else the next plainer one."""
    import transformers

    built = getattr(transformers, class_name(config))
    if asked == "flash" and not getattr(built, "_supports_flash_attn", False):
        asked = "sdpa"
    if asked == "sdpa" and not getattr(built, "_supports_sdpa", False):
        asked = "eager"
    return asked


def build(config: Mapping[str, Any], dtype: torch.dtype, attention: str) -> TracedClass:
    """Return the class of a configuration on the meta device, in training mode.

    Raises: UnsupportedError where there is no such class, FieldError where it refuses the figures.
    """
    import transformers
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    ALL_ATTENTION_FUNCTIONS.register(FUSED, flash_attention)  # each pass puts its own there
    ALL_MASK_ATTENTION_FUNCTIONS.register(FUSED, lambda *_, **__: None)
    name = class_name(config)
    figures = {key: value for key, value in config.items() if key not in _DROPPED}
    implementations = [FUSED, "sdpa"] if attention == "flash" else [attention]
    try:
        built = CONFIG_MAPPING[config["model_type"]].from_dict(figures)
        if not hasattr(built, "vocab_size") and hasattr(built, "get_text_config"):
            built.get_text_config().use_cache = False
        built.use_cache = False
        model = _on_meta(getattr(transformers, name), built, dtype, implementations)
    except Exception as error:  # whatever the class raises about these figures
        raise FieldError(
            f"{name} of transformers {transformers.__version__} refuses this config.json: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error
    with suppress(AttributeError, ValueError):  # of a class without routed experts
        model.set_experts_implementation("grouped_mm")
    model.train()
    text_config = built.get_text_config() if hasattr(built, "get_text_config") else built
    return TracedClass(model, text_config, *_stack(model, text_config))


def _stack(model: torch.nn.Module, text_config: Any) -> tuple[str, torch.nn.ModuleList]:
    """Return the list of decoder layers: as long as the config says, else the one with most parameters."""
    depth = getattr(text_config, "num_hidden_layers", None)
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module)
        and not any(word in path for word in ("vision", "visual", "audio", "speech", "image"))
    ]
    # a list inside a layer of another list is no stack
    outer = [(p, m) for p, m in lists if not any(p.startswith(f"{q}.") for q, _ in lists)]
    matching = [(p, m) for p, m in outer if len(m) == depth]
    if not outer:
        raise UnsupportedError(f"{type(model).__name__} has no list of layers, so it cannot be taken apart.")
    return max(matching or outer, key=lambda entry: sum(p.numel() for p in entry[1].parameters()))


@contextmanager
def _only(subject: TracedClass, kept: set[int], outputs: Mapping[int, Any]) -> Iterator[None]:
    """Let every layer but the `kept` hand its input on; `outputs` says in what form it returns."""

    def hand_on(form: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            hidden = _hidden_states(args, kwargs)
            if not isinstance(form, tuple):
                return hidden
            return (hidden, *(_as_long(value, form[0], hidden) for value in form[1:]))

        return forward

    changed = {index: layer for index, layer in enumerate(subject.layers) if index not in kept}
    for index, layer in changed.items():
        layer.forward = hand_on(outputs.get(index))
    try:
        yield
    finally:
        for layer in changed.values():
            del layer.forward


def _as_long(value: Any, before: Any, now: Any) -> Any:
    """Return what a layer handed on beside the stream, for as many tokens as there are now."""
    if not isinstance(value, Tensor) or value.shape[:2] != before.shape[:2]:
        return value
    return value.new_empty((*now.shape[:2], *value.shape[2:]))


def _hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    found = kwargs.get("hidden_states", args[0] if args else None)
    return found if isinstance(found, Tensor) else None


REST = "residual"  # the part of a layer that is in none of its modules


class Pass(NamedTuple):
    """One pass: its batch, its numerics, and which weights train (None: no backward pass at all)."""

    sequences: int
    length: int
    autocast: bool
    attention: str
    trained: bool | None


def _attend(
    recorder: Recorder, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Any, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend with FlashAttention and tell the recorder; the kernel's own work is not counted again."""
    heads = query.shape[1]
    recorder.note_kernel(heads * query.shape[-1], heads * value.shape[-1], kwargs.get("sliding_window"))
    recorder.muted = True
    try:
        return flash_attention(module, query, key, value, attention_mask, **kwargs)
    finally:
        recorder.muted = False


def record(
    subject: TracedClass,
    asked: Pass,
    layers: set[int] | None = None,
    outputs: Mapping[int, Any] | None = None,
) -> tuple[Recorder, dict[int, Any]]:
    """Return (the recorder of one pass, what every layer returned).

    Only `layers` really run (None: all); the others return `outputs`, from a pass in which they ran.

    Raises: UnsupportedError where the class needs the values of tensors.
    """
    for mask in _masks(subject, asked):
        try:
            return _record(subject, asked, mask, layers, outputs or {})
        except (RuntimeError, ValueError, LookupError, StopIteration, TypeError, AttributeError) as error:
            failure = error
    first = (str(failure).strip().splitlines() or [""])[0][:200]
    raise UnsupportedError(
        f"{type(subject.model).__name__} cannot be traced without data: {type(failure).__name__}: {first}"
    ) from failure


def _record(
    subject: TracedClass, asked: Pass, mask: Any, layers: set[int] | None, outputs: Mapping[int, Any]
) -> tuple[Recorder, dict[int, Any]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = subject.model
    for parameter in model.parameters():
        parameter.requires_grad_(bool(asked.trained))
        parameter.grad = None
    recorder = Recorder(model, subject.stack, autocast=asked.autocast, batch=(asked.sequences, asked.length))
    kept = set(range(len(subject.layers))) if layers is None else layers
    ids = torch.empty((asked.sequences, asked.length), dtype=torch.long, device="meta")
    returned: dict[int, Any] = {}
    ALL_ATTENTION_FUNCTIONS.register(FUSED, partial(_attend, recorder))
    with (
        _only(subject, kept, outputs),
        _hooks(subject, recorder, kept, returned),
        _surroundings(model),
        recorder.watching(),
        torch.no_grad() if asked.trained is None else nullcontext(),
    ):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        recorder.at(OUTSIDE)
        if asked.trained is not None and layers is not None:
            recorder.is_backward = True
            torch.autograd.backward(logits, torch.empty_like(logits))
            recorder.live.enter(OUTSIDE)
    return recorder, returned


def _masks(subject: TracedClass, asked: Pass) -> list[Any]:
    """Return the attention masks to try: whole for eager attention, so that none is made from values."""
    if asked.attention != "eager":
        return [None, torch.empty((1, 1, 1, 1), device="meta")]
    dtype = next(subject.model.parameters()).dtype
    shape = (asked.sequences, 1, asked.length, asked.length)
    return [torch.empty(shape, dtype=dtype, device="meta"), None]


@contextmanager
def _surroundings(model: torch.nn.Module) -> Iterator[None]:
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
def _hooks(
    subject: TracedClass, recorder: Recorder, kept: set[int], returned: dict[int, Any]
) -> Iterator[None]:
    def enter(index: int, _module: Any, args: Any, kwargs: Any) -> None:
        hidden = _hidden_states(args, kwargs)
        if hidden is not None:
            recorder.streams.add(storage_key(hidden))
        recorder.at((index, REST))

    def leave(index: int, _module: Any, _inputs: Any, output: Any) -> None:
        returned[index] = output
        recorder.at(OUTSIDE)

    def go(place: Place, *_: Any) -> None:
        recorder.at(place)

    handles = [subject.model.get_input_embeddings().register_forward_hook(_need_gradient)]
    for index in kept:
        layer = subject.layers[index]
        handles.append(layer.register_forward_pre_hook(partial(enter, index), with_kwargs=True))
        handles.append(layer.register_forward_hook(partial(leave, index)))
        for part, module in _parts(layer):
            handles.append(module.register_forward_pre_hook(partial(go, (index, part))))
            handles.append(module.register_forward_hook(partial(go, (index, REST))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _need_gradient(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
    """Make the output of frozen embeddings need a gradient, unnoticed; a copy, for code that changes it."""
    with torch._C.DisableTorchFunction():
        frozen = output.is_leaf and torch.is_grad_enabled()
        return output.requires_grad_().clone() if frozen else output


def _parts(layer: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of a layer with the names of their parts; a list's members count as its own."""
    for name, module in layer.named_children():
        for member in module if isinstance(module, torch.nn.ModuleList) else [module]:
            yield part_name(name), member
