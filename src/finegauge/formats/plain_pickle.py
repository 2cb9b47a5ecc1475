"""Pickles of others, read without running anything of them; what lay on a GPU, by PyTorch's memory snapshot.

Of the pickle machine only what makes plain values is here: numbers, texts, lists, tuples and mappings with
texts as keys. There is no instruction that imports a class or calls a function, so nothing of the file can
run; any other instruction is an error. Where `named` is asked for, an instruction that names a class, or
calls it, leaves an inert `Named` in its place: the name, what it would have been given, and its attributes.

A memory snapshot (`torch.cuda.memory._dump_snapshot`) is such a pickle. The allocator's trace is replayed up
to its first out-of-memory event, else to its fullest moment. Each block that lies there then is counted by
the moment and the stage in which it was allocated, as its frames tell: of a step's forward pass activations,
of its backward pass gradients. Blocks older than the trace are counted by the frames that the snapshot has
of them.

Sources: Python 3.14, pickletools; torch 2.13, torch/serialization.py,
torch/csrc/cuda/memory_snapshot.cpp, torch/cuda/_memory_viz.py (read 2026-11-23).
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pickletools import genops
from typing import Any

from finegauge.errors import FileFormatError
from finegauge.formats.evidence import Evidence, Frame, placed
from finegauge.formats.sheet import listed

MAX_STEPS = 40_000_000  # instructions
MAX_OPEN = 300_000  # values within each other, or beside each other and not yet in any
_MARK = object()
_MAKING = ("GLOBAL", "REDUCE", "INST", "BUILD", "OBJ", "NEWOBJ", "NEWOBJ_EX", "STACK_GLOBAL")


class Named:
    """What a pickle would have made of a class or a function: nothing but its name and what it was given."""

    __slots__ = ("arguments", "attributes", "name")

    def __init__(self, name: str, arguments: tuple[Any, ...] = ()) -> None:
        """Keep the dotted name."""
        self.name, self.arguments = name, arguments
        self.attributes: dict[str, Any] = {}


def plain_pickle(data: bytes, name: str, *, named: bool = False) -> Any:
    """Return the plain values that a pickle holds; `name` is how messages call it.

    With `named`, a `Named` stands where it names a class or calls a function; nothing is imported or called.

    Raises: FileFormatError for one that is cut off, or that would make anything else.
    """
    try:
        return (_NamingMachine if named else _Machine)().value(data)
    except _RefusedError as error:
        raise FileFormatError(f"{name} is a pickle that is not read: {error}.") from None
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        raise FileFormatError(f"{name} is a damaged pickle, or is cut off.") from None


class _RefusedError(Exception):
    pass


class _Machine:
    """Carries out the instructions of a pickle that make plain values."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        push = self._stack.append
        self._do: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), push),
            **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), self._text),
            **dict.fromkeys(("PROTO", "FRAME"), lambda _: None),
            "NONE": lambda _: push(None), "NEWTRUE": lambda _: push(True), "NEWFALSE": lambda _: push(False),
            "MARK": lambda _: push(_MARK), "EMPTY_TUPLE": lambda _: push(()),
            "EMPTY_DICT": lambda _: push({}), "EMPTY_LIST": lambda _: push([]),
            "TUPLE1": lambda _: self._tuple(1), "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3), "TUPLE": lambda _: push(tuple(self._popped())),
            "APPEND": self._append, "APPENDS": self._extend, "SETITEM": self._set,
            "SETITEMS": lambda _: self._fill(self._popped()),
            "MEMOIZE": lambda _: self._keep(len(self._memo)), "BINPUT": self._keep, "LONG_BINPUT": self._keep,
            "BINGET": lambda place: push(self._memo[place]),
            "LONG_BINGET": lambda place: push(self._memo[place]),
        }  # fmt: skip

    def value(self, data: bytes) -> Any:
        """Return what a pickle makes."""
        for instruction, argument, _ in islice(genops(data), MAX_STEPS):
            if instruction.name == "STOP":
                (found,) = self._stack
                return found
            if (act := self._do.get(instruction.name)) is None:
                raise _RefusedError(
                    "it names classes or calls functions" if instruction.name in _MAKING
                    else f"its instruction {instruction.name} makes no plain value"
                )  # fmt: skip
            act(argument)
            if len(self._stack) > MAX_OPEN:
                raise _RefusedError(f"it nests more than {MAX_OPEN:,} values")
        raise _RefusedError(f"it has more than {MAX_STEPS:,} instructions")

    def _text(self, text: str) -> None:
        self._stack.append(text.encode("utf-8", "replace").decode("utf-8"))  # without halves of characters

    def _tuple(self, size: int) -> None:
        items = tuple(self._stack[-size:])
        if len(items) < size:
            raise IndexError
        self._stack[-size:] = [items]

    def _popped(self) -> list[Any]:
        """Return what lies above the last mark, and take both off."""
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _append(self, _: Any) -> None:
        item = self._stack.pop()
        self._plain(list).append(item)

    def _extend(self, _: Any) -> None:
        items = self._popped()
        self._plain(list).extend(items)

    def _set(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._fill([key, value])

    def _fill(self, pairs: list[Any]) -> None:
        mapping = self._plain(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):  # of a tuple the hash may be as deep as the file is long
                raise _RefusedError("a key of a mapping is neither text nor a whole number")
            mapping[key] = value

    def _plain(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise TypeError
        return self._stack[-1]

    def _keep(self, place: int) -> None:
        self._memo[place] = self._stack[-1]


class _NamingMachine(_Machine):
    """Reads also the instructions that name classes and call functions, and writes down what they say."""

    def __init__(self) -> None:
        super().__init__()
        self._do |= {
            "GLOBAL": lambda named: self._stack.append(Named(named.replace(" ", ".", 1)[:400])),
            "STACK_GLOBAL": self._named_by_texts, "REDUCE": self._call, "NEWOBJ": self._call,
            "BUILD": self._build, "BINPERSID": self._stored, "SHORT_BINSTRING": self._text,
        }  # fmt: skip

    def _named_by_texts(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(Named(f"{module}.{name}"[:400] if isinstance(name, str) else ""))

    def _call(self, _: Any) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        known = isinstance(called, Named) and isinstance(arguments, tuple)
        self._stack.append(Named(called.name if known else "", arguments if known else ()))

    def _build(self, _: Any) -> None:
        state = self._stack.pop()
        if isinstance(self._stack[-1], Named) and isinstance(state, dict):
            self._stack[-1].attributes = state

    def _stored(self, _: Any) -> None:
        self._stack[-1] = Named("a tensor")  # in a file of its own, which is not read


MAX_EVENTS = 3_000_000
MAX_DEPTH_FRAMES = 200
_KINDS = {  # where a block was allocated: what it then is
    ("load", ""): "weights", ("resume", ""): "weights", ("train", "optimizer"): "optimizer states",
    ("train", "backward"): "gradients", ("train", "loss"): "logits and loss",
    ("train", "forward"): "activations", ("train", "data"): "batches",
}  # fmt: skip
_NO_FRAMES = "without frames"


def snapshot_evidence(data: bytes, name: str) -> Evidence:
    """Return what a memory snapshot tells.

    Raises: FileFormatError for any other pickle.
    """
    whole = plain_pickle(data, name)
    if not isinstance(whole, dict) or not isinstance(whole.get("segments"), list):
        raise FileFormatError(f"{name} is a pickle, but no memory snapshot of PyTorch: it lists no segments.")
    replays = [_Replay(whole, device) for device in _devices(whole)]
    if not any(one.peak_bytes or one.failed for one in replays):
        raise FileFormatError(f"{name} is a memory snapshot of a GPU on which nothing was allocated.")
    fullest = max(replays, key=lambda one: (one.failed, one.peak_bytes))
    return fullest.evidence(name)


def _devices(whole: dict[str, Any]) -> list[int]:
    traces = whole.get("device_traces")
    traced = [number for number, trace in enumerate(listed(traces)) if listed(trace)]
    held = [_whole(one, "device") for one in listed(whole["segments"]) if isinstance(one, dict)]
    return sorted({*traced, *held})[:64]


class _Replay:
    """The trace of one device, replayed to where memory ran out or was fullest."""

    def __init__(self, whole: dict[str, Any], device: int) -> None:
        traces = listed(whole.get("device_traces"))
        self._events = listed(traces[device]) if device < len(traces) else []
        self._segments = [
            one
            for one in listed(whole["segments"])
            if isinstance(one, dict) and _whole(one, "device") == device
        ]
        self._budget = MAX_EVENTS
        self.device, self.failed, self.peak_bytes, self.tried = device, False, 0, 0
        self._frames: list[Frame] = []
        self._at = self._search()

    def _moves(self) -> Iterator[tuple[int, str, int, int, list[Frame]]]:
        for place, event in enumerate(self._events):
            self._spend()
            if isinstance(event, dict):
                action = event.get("action")
                address = event.get("addr", event.get("address", 0))
                if isinstance(action, str) and isinstance(address, int):
                    yield place, action, address, _whole(event, "size"), event.get("frames", [])

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise FileFormatError(f"The memory snapshot holds more than {MAX_EVENTS:,} blocks and events.")

    def _blocks(self) -> Iterator[tuple[int, int, Any]]:
        """Yield address, bytes and frames of the blocks in use when the snapshot was taken."""
        for segment in self._segments:
            address = _whole(segment, "address")
            for block in listed(segment.get("blocks")):
                self._spend()
                if isinstance(block, dict):
                    size = _whole(block, "size")
                    if str(block.get("state")).startswith("active_allocated"):
                        where = block.get("address", address)
                        yield where if isinstance(where, int) else address, size, block.get("frames", [])
                    address += size

    def _older(self) -> dict[int, tuple[int, Any]]:
        """Return the blocks that lay there before the trace begins, by address."""
        born: set[int] = set()
        found: dict[int, tuple[int, Any]] = {}
        for _, action, address, size, _ in self._moves():
            if action == "alloc":
                born.add(address)
            elif action == "free_requested" and address not in born:
                found[address] = size, []
                born.add(address)
        found |= {at: (size, frames) for at, size, frames in self._blocks() if at not in born}
        return found

    def _search(self) -> int:
        """Return the place in the trace where memory ran out first, or was fullest."""
        held = {address: size for address, (size, _) in self._older().items()}
        total = self.peak_bytes = sum(held.values())
        at = -1
        for place, action, address, size, frames in self._moves():
            if action == "oom":
                self.failed, self.tried, self.peak_bytes = True, size, total
                self._frames = _named(frames)
                return place
            if action == "alloc":
                held[address] = size
                total += size
                if total > self.peak_bytes:
                    at, self.peak_bytes, self._frames = place, total, _named(frames)
            elif action == "free_requested":
                total -= held.pop(address, 0)
        return at

    def _parts(self) -> dict[str, float]:
        """Return what lay there, by what it is."""
        held = self._older()
        for place, action, address, size, frames in self._moves():
            if place > self._at:
                break
            if action == "alloc":
                held[address] = size, frames
            elif action == "free_requested":
                held.pop(address, None)
        parts: dict[str, float] = {}
        where = cache(placed)  # of few different places
        for size, frames in held.values():
            named = _named(frames)
            moment, stage = where(tuple(named))
            kind = _KINDS.get((moment, stage), moment or (_NO_FRAMES if not named else "elsewhere"))
            parts[kind] = parts.get(kind, 0.0) + size
        return dict(sorted(parts.items(), key=lambda one: -one[1]))

    def evidence(self, name: str) -> Evidence:
        """Return what the replay tells."""
        moment, stage = placed(self._frames)
        reserved = sum(_whole(one, "total_size") for one in self._segments)
        lasting = sum(size for _, size, _ in self._blocks())
        found = Evidence(name, moment=moment, stage=stage, parts_bytes=self._parts())
        if not self.failed:
            return found._replace(peak_bytes=float(self.peak_bytes), metric="torch_allocated")
        return found._replace(
            failure="device_memory", allocated_bytes=float(self.peak_bytes), tried_bytes=float(self.tried),
            says=f"The allocator's trace ends in out of memory on GPU {self.device}.",
            unallocated_bytes=float(max(0, reserved - lasting)),
        )  # fmt: skip


def _named(frames: Any) -> list[Frame]:
    """Return the frames of Python, the outermost first; PyTorch lists the innermost first."""
    found = [
        (f"{str(one.get('filename')).replace(chr(92), '/')}:{one.get('name')}", "")
        for one in listed(frames)[:MAX_DEPTH_FRAMES]
        if isinstance(one, dict) and str(one.get("filename", "")).endswith(".py")
    ]
    return found[::-1]


def _whole(mapping: dict[str, Any], name: str) -> int:
    value = mapping.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0
