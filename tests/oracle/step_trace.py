"""One training step of real transformers code, traced: what it computes, keeps and holds.

The step is the second of a run: optimizer states exist. Forward, loss, backward and
optimizer are phases; where checkpointing runs a layer again in backward, its operators
are the stage "recompute".

Batches are full: no padding, so no mask where transformers makes none for such a batch.
"""

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from finegauge.errors import FieldError, UnsupportedError
from finegauge.measurement.build import checkpoint_layers, select_trained
from finegauge.measurement.instruments.memory_meter import BACKWARD, FORWARD, LOSS, OPTIMIZER, Held
from finegauge.measurement.subject import DTYPES, class_of
from finegauge.measurement.tracer.kernels import SUBSTITUTES, flash_attention, scaled_dot_product_attention
from finegauge.measurement.weights import adapted
from finegauge.run.rules import num_experts
from finegauge.run.run import Run
from tests.oracle.step_tracker import CORRECTIONS, Saved, StepTracker

# What CUDA's autocast runs in fp32, or to an fp32 result: ATen/autocast_mode.h of torch 2.13,
# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE. The list for CPUs is much shorter.
RUN_IN_FP32 = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "rms_norm",
    "group_norm", "logsumexp", "nll_loss", "cosine_similarity", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
FP32_RESULT = ("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum",
               "sum.dim_IntList", "linalg_vector_norm")  # fmt: skip
NARROW = (torch.bfloat16, torch.float16)


def _wide(value: Any) -> Any:
    """Return a 16-bit tensor as fp32 and anything else as it is."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in NARROW else value


def _casting(op: Any, *, sets_dtype: bool) -> Callable[..., Any]:
    """Return `op` as autocast runs it: on fp32 inputs, or with an fp32 result."""
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key_set):
            if not sets_dtype:
                return op(*tree_map(_wide, args), **tree_map(_wide, kwargs))
            first, stated = args[0], kwargs.get("dtype") is not None
            stated = stated or any(isinstance(arg, torch.dtype) for arg in args)
            if not stated and isinstance(first, torch.Tensor) and first.dtype in NARROW:
                kwargs = {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)

    return run


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Let autocast on the CPU cast what autocast on CUDA casts."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in (*RUN_IN_FP32, *FP32_RESULT):
                packet, _, overload = name.partition(".")
                op = getattr(getattr(torch.ops.aten, packet), overload or "default")
                library.impl(name, _casting(op, sets_dtype=name in FP32_RESULT), "AutocastCPU")
        yield
    finally:
        library._destroy()


FLASH = "opaque_fa2"  # transformers looks for a package behind any name with "flash" in it
ATTENTION = {"flash": FLASH, "sdpa": "sdpa", "eager": "eager"}
OPTIMIZERS = ("adamw", "sgd")


class Built(NamedTuple):
    """A model ready to step, and the mode in which its tensors live."""

    model: Any
    device: str
    tensors: AbstractContextManager[Any]  # enter it to make tensors of the model's kind

    @property
    def base(self) -> Any:
        """Return the transformers model inside, without PEFT's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model


def build(run: Run, config: Mapping[str, Any] | None = None) -> Built:
    """Return the model of `run`, or of `config` under `run`'s method, in training mode.

    Raises: UnsupportedError where no class of the installed transformers fits, and
        FieldError for what cannot be traced.
    """
    _check(run)
    _register()
    settings, model_class = class_of(run.config if config is None else config, run.num_experts_per_tok)
    attention = _attention(run, settings, model_class)
    experts = num_experts(settings.get_text_config().to_dict())
    real = experts > 0 and (run.experts_implementation == "eager" or run.weights_dtype == "fp32")
    device = "cpu" if real else "meta"
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        model = model_class._from_config(
            settings, dtype=DTYPES[run.weights_dtype], attn_implementation=attention
        )
        if experts and model._can_set_experts_implementation():
            model.set_experts_implementation(run.experts_implementation)
        model.tie_weights()
        model.config.use_cache = False
        if run.trains_adapters:
            model = adapted(model, run, device)
        select_trained(model, run)
        model.train()
        checkpoint_layers(model.get_base_model() if run.trains_adapters else model, run)
    if run.autocast != "none" and not real:
        return Built(model, "cpu", _faked(model))
    return Built(model, device, nullcontext())


def _attention(run: Run, settings: Any, model_class: Any) -> str:
    """Return transformers' name for the run's attention.

    Raises: UnsupportedError for flash attention where the class has none, or one of its
        own that calls the package.
    """
    if not hasattr(type(settings.get_text_config())(), "num_attention_heads"):
        return "eager"  # there is none to choose
    if run.attention == "flash" and not model_class._supports_flash_attn:
        raise UnsupportedError(f"{model_class.__name__} does not support flash attention in transformers.")
    if run.attention == "flash" and not model_class._can_set_attn_implementation():
        raise UnsupportedError(
            f"{model_class.__name__} does not support another function in place of its own flash attention; "
            f"trace it with attention=sdpa or eager."
        )
    return ATTENTION[run.attention]


def _faked(model: Any) -> AbstractContextManager[Any]:
    """Turn the tensors of a model on "meta" into fake CPU tensors; return the mode they live in."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode: AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, Any] = {}
    with mode:
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in fakes:
                    fresh = torch.empty_like(parameter, device="cpu")
                    fakes[id(parameter)] = torch.nn.Parameter(fresh, parameter.requires_grad)
                if parameter is not None:
                    module._parameters[name] = fakes[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = torch.empty_like(buffer, device="cpu")
    return mode


def _check(run: Run) -> None:
    """Refuse what a trace does not cover."""
    if run.weights_dtype not in DTYPES:
        raise FieldError(f"weights_dtype={run.weights_dtype} cannot be traced; use bf16, fp16 or fp32.")
    if run.activation_checkpointing not in ("none", "full") and not run.recompute_modules:
        raise FieldError(
            f"activation_checkpointing={run.activation_checkpointing} cannot be traced; use none or full."
        )
    if run.optimizer not in OPTIMIZERS:
        raise FieldError(f"optimizer={run.optimizer} cannot be traced; use adamw or sgd.")


def _register() -> None:
    """Make the opaque flash attention known to transformers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.utils import logging

    logging.set_verbosity_error()
    ALL_ATTENTION_FUNCTIONS.register(FLASH, flash_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, lambda *args, **kwargs: None)


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
    tracker = StepTracker(model, [tensor for tensors in static.values() for tensor in tensors])
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
        parameters=_parameters(model),
        flops=dict(tracker.flops),
        saved=saved,
        static_bytes=static_bytes,
        phase_peak_bytes=peaks,
        alive_at_peak={phase: tracker.alive_at_peak(phase)[:LARGEST] for phase in tracker.phase_peak_bytes},
        corrections=CORRECTIONS,
    )


class EvaluationTrace(NamedTuple):
    """What a forward pass and its loss did with nothing kept."""

    parameters: dict[str, Trained]
    flops: float
    peak_bytes: int  # weights included


def trace_evaluation(run: Run) -> EvaluationTrace:
    """Return what an evaluation of `run` does in the installed transformers."""
    built = build(run)
    with built.tensors, torch.device(built.device):
        inputs = torch.zeros((run.micro_batch_size, run.seq_len), dtype=torch.long)
    static = [*built.model.eval().parameters(), *built.model.buffers(), inputs]
    tracker = StepTracker(built.model, static)
    with _surroundings(run, built), built.tensors, tracker.watching(), torch.no_grad(), _autocasting(run):
        _forward(run, built, inputs, tracker)
    peak = _bytes(static) + max(tracker.phase_peak_bytes.values())
    return EvaluationTrace(_parameters(built.model), sum(tracker.flops.values()), peak)


def _forward(
    run: Run, built: Built, inputs: torch.Tensor, tracker: StepTracker
) -> tuple[Any, dict[str, int]]:
    """Return the loss, and the live bytes when it began."""
    held: dict[str, int] = {}

    def loss_begins() -> None:
        held["forward end"] = tracker.storages.total_bytes
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
    held.setdefault("forward end", tracker.storages.total_bytes)
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


def _parameters(model: Any) -> dict[str, Trained]:
    return {n: (tuple(p.shape), str(p.dtype)[6:], p.requires_grad) for n, p in _named(model)}


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
