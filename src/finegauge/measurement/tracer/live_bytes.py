"""The bytes alive during a training step, seen from below autograd.

A dispatch mode sees every operator of forward, recomputation, backward and optimizer, and follows every
storage from its first tensor to its last. Storages are held weakly: what Python and autograd drop is freed
here as on the device.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

FORWARD, LOSS, BACKWARD, OPTIMIZER = "forward", "loss", "backward", "optimizer"


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of the storage that a tensor lies in."""
    return int(tensor.untyped_storage()._cdata)


class Storages:
    """The bytes of the storages made so far and not yet freed, beside `known` ones."""

    def __init__(self, known: set[int]) -> None:
        self.known = known
        self.sizes: dict[int, int] = {}
        self.total_bytes = 0

    def add(self, tensor: torch.Tensor) -> bool:
        """Follow the storage of `tensor`; return whether it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes or key in self.known:
            return False
        self.sizes[key] = storage.nbytes()
        self.total_bytes += storage.nbytes()
        weakref.finalize(storage, self.free, key)
        return True

    def free(self, key: int) -> None:
        """Forget a storage that nothing refers to any more."""
        self.total_bytes -= self.sizes.pop(key, 0)


class Held(NamedTuple):
    """One storage, and the operator that made it."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str = ""


class LiveTracker(TorchDispatchMode):
    """Follows the storages of one step; enter it around the step and tell it each phase."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {storage_key(tensor): tensor.untyped_storage() for tensor in known}
        self.storages = Storages(set(self.known))
        self.phase = FORWARD
        self.phase_peak_bytes: dict[str, int] = {}
        self.module_depth = 0  # modules whose forward runs now
        self._events: list[tuple[int, Held | None]] = []  # (storage, what was made) or (storage, None) freed
        self._peak_event: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        self._register(out, func)
        return out

    def _register(self, out: Any, func: Any) -> None:
        if isinstance(out, list | tuple):
            for item in out:
                self._register(item, func)
        elif isinstance(out, torch.Tensor) and self.storages.add(out):
            storage = out.untyped_storage()
            size = storage.nbytes()
            held = Held(size, tuple(out.shape), str(out.dtype)[6:], func._schema.name, self._module())
            self._events.append((storage._cdata, held))
            weakref.finalize(storage, self._freed, storage._cdata)
            # autograd adds up two gradients in place, were no dispatch mode watching it
            in_place = self.phase == BACKWARD and not self.module_depth and func is torch.ops.aten.add.Tensor
            self.note_peak(-size if in_place else 0)

    def _module(self) -> str:
        return ""

    def _freed(self, key: int) -> None:
        self._events.append((key, None))

    def note_peak(self, beside: int = 0) -> None:
        """Raise the peak of the phase if the live bytes, and `beside`, exceed it."""
        now = self.storages.total_bytes + beside
        if now > self.phase_peak_bytes.get(self.phase, -1):
            self.phase_peak_bytes[self.phase] = now
            self._peak_event[self.phase] = len(self._events)

    def enter_phase(self, phase: str) -> None:
        """Begin a phase of the step; its peak starts at what is alive now."""
        self.phase = phase
        self.note_peak()

    def peak_event(self, phase: str) -> int:
        """Return how many events there had been at the peak of `phase`."""
        return self._peak_event.get(phase, 0)

    @property
    def num_events(self) -> int:
        """Return how many storages were made or freed so far."""
        return len(self._events)

    def alive(self, num_events: int) -> dict[int, Held]:
        """Return what is alive after so many events beyond the known storages, by the event that made it."""
        alive: dict[int, tuple[int, Held]] = {}
        for event, (key, made) in enumerate(self._events[:num_events]):
            if made is None:
                alive.pop(key, None)
            else:
                alive[key] = event, made
        return dict(alive.values())

    def events_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the events that made the storages of `tensors`, known ones left out."""
        last = {key: event for event, (key, made) in enumerate(self._events) if made is not None}
        return {last[key] for key in map(storage_key, tensors) if key in last and key not in self.known}

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        del module, inputs
        self.module_depth += 1

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs, output
        self.module_depth -= 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch operators and modules for as long as the block runs."""
        with ExitStack() as stack:
            stack.callback(hooks.register_module_forward_pre_hook(self._enter).remove)
            stack.callback(hooks.register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(self)
            yield
