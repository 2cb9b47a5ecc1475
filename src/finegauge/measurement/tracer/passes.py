"""The transformers class of a configuration, on tensors without data, and its stack of layers.

Only code of the installed transformers library is run: `auto_map`, by which a repository offers
code of its own, is ignored.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple
from unittest import mock

import torch

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.measurement.tracer.kernels import SUBSTITUTES, flash_attention
from finegauge.measurement.tracer.recorder import OUTSIDE, Recorder
from finegauge.model.traced import part_name

FUSED = "finegauge_fused"  # no "flash" in it: transformers would look for a kernel of that name
_DROPPED = ("auto_map", "quantization_config", "torch_dtype", "dtype", "architectures")


class Subject(NamedTuple):
    """A class ready to be traced."""

    model: "torch.nn.Module"
    config: Any
    stack: str  # path of the list of layers
    layers: "torch.nn.ModuleList"

    def owned(self, index: int) -> set[int]:
        """Return the identities of the parameters that only this layer has."""
        others = {id(p) for i, layer in enumerate(self.layers) if i != index for p in layer.parameters()}
        return {id(p) for p in self.layers[index].parameters()} - others

    @property
    def text_config(self) -> Any:
        """Return the configuration of the text decoder."""
        return self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config


def class_name(config: Mapping[str, Any]) -> str:
    """Return the transformers class that trains a `model_type` on text.

    Raises: UnsupportedError if the installed transformers has none.
    """
    from transformers.models.auto import modeling_auto as auto

    model_type = str(config.get("model_type", ""))
    tables = [auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES]
    for table in reversed(tables) if "text_config" in config else tables:
        name = table.get(model_type)
        if name:
            return str(name if isinstance(name, str) else name[0])
    raise UnsupportedError(_no_class(config, model_type))


def _on_meta(built: Any, config: Any, dtype: "torch.dtype", implementations: list[str]) -> Any:
    """Return the class with the first attention that it takes; some know a few by name only."""
    with torch.device("meta"):
        try:
            model = built._from_config(config, dtype=dtype, attn_implementation=implementations[0])
        except KeyError:
            if len(implementations) == 1:
                raise
            return _on_meta(built, config, dtype, implementations[1:])
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


def _no_class(config: Mapping[str, Any], model_type: str) -> str:
    import transformers

    own = "; its repository brings code of its own, which is never run" if config.get("auto_map") else ""
    return (
        f"transformers {transformers.__version__} has no causal language model for model_type "
        f"{shown(model_type)}{own}. Describe the model by a config.json of a type that it resembles."
    )


def build(config: Mapping[str, Any], dtype: "torch.dtype", attention: str) -> Subject:
    """Return the class of a configuration on the meta device, in training mode.

    Raises: UnsupportedError where there is no such class, FieldError where it refuses the figures.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    _register()
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
    path, layers = _stack(model, built)
    return Subject(model, built, path, layers)


def _register() -> None:
    """Teach transformers the attention that stands for FlashAttention."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils import logging

    logging.set_verbosity_error()

    ALL_ATTENTION_FUNCTIONS.register(FUSED, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FUSED, lambda *_, **__: None)


def _stack(model: "torch.nn.Module", config: Any) -> tuple[str, "torch.nn.ModuleList"]:
    """Return the list of decoder layers: as long as the config says, else the one with most parameters."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    depth = getattr(text, "num_hidden_layers", None)
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) and _is_text(path)
    ]
    # a list inside a layer of another list is no stack
    outer = [(p, m) for p, m in lists if not any(p.startswith(f"{q}.") for q, _ in lists)]
    matching = [(p, m) for p, m in outer if len(m) == depth]
    if not outer:
        raise UnsupportedError(f"{type(model).__name__} has no list of layers, so it cannot be taken apart.")
    return max(matching or outer, key=lambda entry: sum(p.numel() for p in entry[1].parameters()))


def _is_text(path: str) -> bool:
    return not any(word in path for word in ("vision", "visual", "audio", "speech", "image"))


@contextmanager
def only(subject: Subject, kept: set[int], outputs: Mapping[int, Any]) -> "Iterator[None]":
    """Let every layer but the `kept` hand its input on; `outputs` says in what form it returns."""
    changed = [layer for index, layer in enumerate(subject.layers) if index not in kept]
    for index, layer in enumerate(subject.layers):
        if index not in kept:
            layer.forward = _hand_on(outputs.get(index))
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


def _hand_on(form: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = hidden_states(args, kwargs)
        return (hidden, *form[1:]) if isinstance(form, tuple) else hidden

    return forward


def hidden_states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what enters a layer as its hidden states, None if nothing does."""
    found = kwargs.get("hidden_states", args[0] if args else None)
    return found if isinstance(found, torch.Tensor) else None


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
