"""The transformers class of a configuration, on tensors without data, and its stack of layers.

Only code of the installed transformers library is run: `auto_map`, by which a repository offers
code of its own, is ignored.
"""

from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

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
    import torch

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

    from finegauge.measure.fit.passes import attend

    logging.set_verbosity_error()

    ALL_ATTENTION_FUNCTIONS.register(FUSED, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FUSED, lambda *_, **__: None)


def _stack(model: "torch.nn.Module", config: Any) -> tuple[str, "torch.nn.ModuleList"]:
    """Return the list of decoder layers: as long as the config says, else the one with most parameters."""
    import torch

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
    import torch

    found = kwargs.get("hidden_states", args[0] if args else None)
    return found if isinstance(found, torch.Tensor) else None
