"""How many FLOPs one operator call takes: torch's own formulas, and ours where they are wrong or absent.

Convention: a multiply-add is 2 FLOPs; element-wise work is not counted; a causal fused
attention kernel counts half of its query-key pairs, eager attention counts all of them.

[1] torch.utils.flop_counter, whose registry has the formulas of the matrix products.
"""

import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

CORRECTIONS = (
    "grouped matrix products: no formula in torch's counter; 2·rows·in·out",
    "opaque kernels (fused attention, selective scan, chunked scan, delta rule): counted by their formula",
    "depthwise and grouped convolution, backward: torch ignores the groups; in/groups channels per output",
    "gradients that add up: in place, as autograd does where no dispatch mode watches it",
    "causal fused attention: half of the query-key pairs; backward 2.5 times the forward",
)

Formula = Callable[[tuple[Any, ...], Any], float]


def _grouped_product(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of a product in groups: [rows, k] x [groups, k, n] or [k, rows] x [rows, n]."""
    a, b = args[0], args[1]
    if a.dim() == 2 and b.dim() == 2:
        return float(2.0 * a.shape[0] * a.shape[1] * b.shape[1])
    return float(2.0 * prod(out.shape) * a.shape[-1])


def _grouped_product_fallback(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of transformers' own grouped product, [rows, k] x [groups, k, n]."""
    return float(2.0 * prod(out.shape) * args[0].shape[-1])


def _grouped_product_fallback_backward(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of both gradients of transformers' own grouped product."""
    del out
    rows, weight = args[0], args[1]
    return float(4.0 * rows.shape[0] * weight.shape[1] * weight.shape[2])


def _convolution(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of a convolution; weight is [out, in / groups, *kernel]."""
    return float(2.0 * prod(out.shape) * prod(args[1].shape[1:]))


def _convolution_backward(args: tuple[Any, ...], out: Any) -> float:
    """Return the FLOPs of the gradients asked for; each costs what the forward does."""
    del out
    gradient, weight, wanted = args[0], args[2], args[-1]
    return float(2.0 * prod(gradient.shape) * prod(weight.shape[1:]) * sum(map(bool, wanted[:2])))


FORMULAS: dict[str, Formula] = {
    "aten::_grouped_mm": _grouped_product,
    "transformers::grouped_mm_fallback": _grouped_product_fallback,
    "transformers::grouped_mm_fallback_backward": _grouped_product_fallback_backward,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}


def flops(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """Return the FLOPs of one call of the overload `op` that returned `out`."""
    own = FORMULAS.get(op._schema.name)
    if own is not None:
        return own(args, out)
    formula = flop_registry.get(op._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER = "forward", "recompute", "backward", "optimizer"
LOSS = "loss"
_LEAF_SEQUENCE = 2**63  # a gradient accumulator has no place in the forward


class Held(NamedTuple):
    """One storage, where it was made."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str


class Saved(NamedTuple):
    """One storage that autograd keeps, and the module that made it do so."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    module: str


class Tracker(TorchDispatchMode):
    """Counts one step; enter it around the step and set `phase` as the step moves on."""

    def __init__(self, model: torch.nn.Module, known: list[torch.Tensor]) -> None:
        """Watch `model`; storages of `known` tensors were there before the step."""
        super().__init__()
        self.names = {id(m): _plain(name) for name, m in model.named_modules()}
        self.known = {t.untyped_storage()._cdata: t.untyped_storage() for t in known}
        self.phase = FORWARD
        self.flops: dict[tuple[str, str], float] = defaultdict(float)
        self.phase_peak_bytes: dict[str, int] = {}
        self._saved: dict[int, Saved] = {}
        self._stack: list[str] = []
        self._boundaries: list[int] = [-1]  # autograd sequence numbers at which the module changes
        self._modules: list[str] = [""]
        self._live: dict[int, int] = {}
        self._live_bytes = 0
        self._events: list[tuple[int, Held | None]] = []  # (storage, what was made) or (storage, None) freed
        self._peak_event: dict[str, int] = {}

    # ---- operators -----------------------------------------------------------------------
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operator, count its FLOPs and register what it made."""
        del types
        out = func(*args, **(kwargs or {}))
        if spent := flops(func, args, kwargs or {}, out):
            self.spend(spent)
        self._register(out, func)
        return out

    def spend(self, count: float, workspace_bytes: float = 0.0) -> None:
        """Add FLOPs of the operator that runs now, and memory that it takes and returns."""
        stage, module = self._where()
        self.flops[stage, module] += count
        if workspace_bytes:
            self._note_peak(int(workspace_bytes))

    def _where(self) -> tuple[str, str]:
        """Return the stage and the module path of what runs now."""
        if self.phase == BACKWARD:
            if self._stack:
                return RECOMPUTE, self._stack[-1]
            node = torch._C._current_autograd_node()
            number = node._sequence_nr() if node is not None else _LEAF_SEQUENCE
            if number >= _LEAF_SEQUENCE:
                return BACKWARD, ""
            return BACKWARD, self._modules[bisect_right(self._boundaries, number) - 1]
        if self.phase == OPTIMIZER:
            return OPTIMIZER, ""
        module = self._stack[-1] if self._stack else ""
        return FORWARD, module or (LOSS if self.phase == LOSS else "")

    def module(self) -> str:
        """Return the path of the module that runs now."""
        return self._where()[1]

    # ---- live bytes ----------------------------------------------------------------------
    def _register(self, out: Any, func: Any) -> None:
        """Begin to follow the storages of `out` that are new."""
        if isinstance(out, torch.Tensor):
            storage = out.untyped_storage()
            key = storage._cdata
            if key not in self._live and key not in self.known:
                size = storage.nbytes()
                self._live[key] = size
                self._live_bytes += size
                held = Held(size, tuple(out.shape), str(out.dtype)[6:], func._schema.name, self.module())
                self._events.append((key, held))
                weakref.finalize(storage, self._free, key)
                self._note_peak(-size if self._accumulates(func) else 0)
        elif isinstance(out, list | tuple):
            for item in out:
                self._register(item, func)

    def _accumulates(self, func: Any) -> bool:
        """Return whether autograd adds up two gradients: in place, were no mode watching it."""
        return self.phase == BACKWARD and not self._stack and func is torch.ops.aten.add.Tensor

    def _free(self, key: int) -> None:
        """Forget a storage that nothing refers to any more."""
        size = self._live.pop(key, None)
        if self.phase in (FORWARD, LOSS):
            self._saved.pop(key, None)
        if size is not None:
            self._live_bytes -= size
            self._events.append((key, None))

    def _note_peak(self, beside: int = 0) -> None:
        """Raise the peak of the phase if the live bytes, and `beside`, exceed it."""
        if self._live_bytes + beside > self.phase_peak_bytes.get(self.phase, -1):
            self.phase_peak_bytes[self.phase] = self._live_bytes + beside
            self._peak_event[self.phase] = len(self._events)

    def enter_phase(self, phase: str) -> None:
        """Begin a phase of the step; its peak starts at what is alive now."""
        self.phase = phase
        self._note_peak()

    @property
    def live_bytes(self) -> int:
        """Return the bytes alive now beyond the known storages."""
        return self._live_bytes

    def alive_at_peak(self, phase: str) -> list[Held]:
        """Return what was alive at the peak of `phase` beyond the known storages, largest first."""
        alive = self.alive(self._peak_event.get(phase, 0))
        return sorted(alive.values(), key=lambda held: -held.bytes)

    def peak_event(self, phase: str) -> int:
        """Return how many events there had been at the peak of `phase`."""
        return self._peak_event.get(phase, 0)

    @property
    def num_events(self) -> int:
        """Return how many storages were made or freed so far."""
        return len(self._events)

    def alive(self, num_events: int | None = None) -> dict[int, Held]:
        """Return what is alive after so many events beyond the known storages, by the event that made it.

        Args:
            num_events: None: after all there were so far.
        """
        alive: dict[int, tuple[int, Held]] = {}
        for event, (key, made) in enumerate(self._events[:num_events]):
            if made is None:
                alive.pop(key, None)
            else:
                alive[key] = event, made
        return dict(alive.values())

    def events_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the events that made the storages of `tensors`, known ones left out."""
        keys = {tensor.untyped_storage()._cdata for tensor in tensors} - self.known.keys()
        last = {key: event for event, (key, made) in enumerate(self._events) if made is not None}
        return {last[key] for key in keys if key in last}

    # ---- what autograd keeps -------------------------------------------------------------
    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd saves, once per storage."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.known and key not in self._saved and self.phase in (FORWARD, LOSS):
            saved = Saved(storage.nbytes(), tuple(tensor.shape), str(tensor.dtype)[6:], self.module())
            self._saved[key] = saved
        return tensor

    @property
    def saved(self) -> list[Saved]:
        """Return what autograd kept when forward and loss were done."""
        return list(self._saved.values())

    # ---- modules -------------------------------------------------------------------------
    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        del inputs
        self._stack.append(self.names.get(id(module), self._stack[-1] if self._stack else ""))
        self._mark()

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs, output
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        """Note that autograd nodes made from now on belong to the module on top of the stack."""
        self._boundaries.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._stack[-1] if self._stack else "")

    @contextmanager
    def watching(self) -> Iterator["Tracker"]:
        """Watch operators, modules and saved tensors for as long as the block runs."""
        with ExitStack() as stack:
            enter = hooks.register_module_forward_pre_hook(self._enter)
            leave = hooks.register_module_forward_hook(self._leave, always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
            stack.enter_context(current(self))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda t: t))
            stack.enter_context(self)
            yield self


_CURRENT: list[Tracker] = []


@contextmanager
def current(tracker: Tracker) -> Iterator[None]:
    """Let opaque kernels report to `tracker` for as long as the block runs."""
    _CURRENT.append(tracker)
    try:
        yield
    finally:
        _CURRENT.pop()


def spend(count: float, workspace_bytes: float = 0.0) -> None:
    """Report the FLOPs and the passing memory of an opaque kernel, if anyone listens."""
    if _CURRENT:
        _CURRENT[-1].spend(count, workspace_bytes)


def _plain(name: str) -> str:
    """Return a module's path without what PEFT puts before and between its parts."""
    return name.removeprefix("base_model.model.").replace(".base_layer", "")
