"""Which part of a model a module is, and which operator: of any family, told by structure.

A layer is a list of residual branches, each a mixer with its norms. What mixes is told by
what it holds: experts beside a router, a convolution or a state matrix, projections called
attention; anything else with weights is a feed-forward. A norm belongs to the mixer that
it serves: the next one called, or the last one where no mixer follows it directly. The
residual belongs to the mixer that ran last. Names of operators are those of the module
tree, as in predictions (graph/).

A place is (path of a module, what ended last inside it), so that a module's own work
before and after its children has different places.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import nn

Place = tuple[str, str]
Role = tuple[str, str]  # part, operator

MIXERS = ("attention", "mamba", "linear_attention", "moe", "mlp")
WRAPPERS = ("base_layer", "modules_to_save.default", "original_module")
ROUTERS = ("gate", "router", "router_proj")
DOWN = ("w2", "down_proj", "fc2", "output_linear", "linear_fc2", "c_proj", "dense_4h_to_h")
KERNEL, CONVOLUTION = "attention kernel", "convolution"
OUT_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "wo")
CHOSEN, ADAPTER, DEQUANTISE = "index_add_", "adapter", "dequantise"
MASK, ROTARY = "mask", "rotary"  # of all layers' attention, made by the model once before the first
SCORE = "score"  # a head with one output, whatever the language model calls its own
HEAD, MIDDLE = "head", "middle"  # after which work outside all modules comes
ROOT: Place = ("", "")


class Watched(NamedTuple):
    """A module that the clock looks at."""

    module: nn.Module
    path: str  # without what PEFT puts before and between its parts
    kind: str  # layer, norm, adapter, experts, router, leaf, or one of MIXERS
    parent: str  # the path of the next watched module around it; "" outside all layers
    part: str  # of the mixer that it belongs to; "" where it belongs to none
    model: int = 0  # which of the models under one clock it is part of

    @property
    def name(self) -> str:
        """Return the last name of the path."""
        return self.path.rpartition(".")[2]


def layer_number(path: str) -> int:
    """Return the number of the layer that a module or parameter belongs to; -1 outside the layers."""
    return next((int(part) for part in path.split(".") if part.isdecimal()), -1)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model: the members of its outermost lists of modules."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            found += child
        elif not _has_own_weights(child):
            found += layers_of(child)
    return found


def watched(model: nn.Module, number: int = 0) -> list[Watched]:
    """Return the modules of `model` whose beginnings and ends tell all roles, outermost first.

    Paths in another model than the first begin with its number.
    """
    layers = {id(layer) for layer in layers_of(model)}
    found: list[Watched] = []

    def visit(module: nn.Module, path: str, parent: str, part: str, *, inside: bool) -> None:
        for name, child in module.named_children():
            if name.startswith("lora_") or not _holds_weights(child):
                continue
            at = _plain(f"{path}.{name}" if path else name)
            layer = id(child) in layers or (inside and not part and _is_layer(child))
            kind = "layer" if layer else kind_of(child, name, mixes=inside and not part, within=part)
            belongs = part or (kind if inside and kind in MIXERS else "")
            if not kind:
                visit(child, at, parent, part, inside=inside)
                continue
            found.append(Watched(child, at, kind, parent, belongs, number))
            if kind not in ("leaf", "norm"):
                visit(child, at, at, belongs, inside=inside or layer)

    visit(model, str(number or ""), "", "", inside=False)
    return found


def kind_of(module: nn.Module, name: str, *, mixes: bool = False, within: str = "") -> str:
    """Return what a module with weights is; "" for one that only holds others.

    `name` is the last of its path; `mixes` says whether it stands directly in a layer, `within` in which
    part.
    """
    if hasattr(module, "base_layer"):
        return ADAPTER
    own, bare = _has_own_weights(module), not any(_holds_weights(child) for child in module.children())
    if own and bare and "norm" in (type(module).__name__ + name).lower():
        return "norm"
    if within == "moe" and name in ROUTERS and not isinstance(module, nn.Linear):
        return "router"
    if within == "moe" and holds_experts(module):
        return "experts"
    if mixes and not (own and bare):
        return _mixer(module, name)
    return "leaf" if own and bare else ""


def holds_experts(module: nn.Module) -> bool:
    """Return whether a module is the experts of a layer: one tensor for all, or one module each."""
    if isinstance(module, nn.ModuleList):
        return len(module) > 1 and any(p.dim() == 2 for p in module[0].parameters())
    down = getattr(module, "down_proj", getattr(module, "w2", None))
    return isinstance(down, nn.Parameter) and down.dim() == 3


def _mixer(module: nn.Module, name: str) -> str:
    called = (type(module).__name__ + " " + name).lower()
    if any(holds_experts(inner) for inner in module.modules()):
        return "moe"
    if hasattr(module, "conv1d") or hasattr(module, "A_log"):
        return "mamba" if "mamba" in called or "ssm" in called else "linear_attention"
    return "attention" if "att" in called else "mlp"


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module inside a layer is one itself: a norm and an attention side by side."""
    names = [(type(child).__name__ + name).lower() for name, child in module.named_children()]
    return any("norm" in name for name in names) and any(
        "att" in name and "norm" not in name for name in names
    )


def _scalar(item: Watched) -> bool:
    return getattr(item.module, "out_features", 0) == 1


def _has_own_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _holds_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _plain(path: str) -> str:
    path = path.removeprefix("base_model.model.")
    for wrapper in WRAPPERS:
        path = path.replace(f".{wrapper}", "")
    return "" if path in ("base_model", "base_model.model") else path


class Roles:
    """The role of every place of one model or several."""

    def __init__(self, *models: nn.Module) -> None:
        """Read the structure of `models`; what two of them share is the first one's."""
        once: dict[int, Watched] = {}
        for number, model in enumerate(models):
            for item in watched(model, number):
                once.setdefault(id(item.module), item)
        self.watched = list(once.values())
        self._at: dict[str, Watched] = {}
        for (
            item
        ) in self.watched:  # an adapter and what it wraps share a path: the wrapped one says what it is
            self._at[item.path] = item
        self._layers = [item.path for item in self.watched if item.kind == "layer"]
        self._found: dict[Place, Role] = {}

    def of(self, place: Place, calls: Mapping[str, list[str]]) -> Role:
        """Return (part, operator) of a place.

        `calls` has the children of each module in the order in which they ended, by name.
        """
        if place not in self._found:
            self._found[place] = self._role(place, calls)
        return self._found[place]

    def _role(self, place: Place, calls: Mapping[str, list[str]]) -> Role:
        path, last = place
        if not path and last in (MASK, ROTARY):
            return "attention", last
        if not path:
            return self._outside(last)
        item = self._at[path]
        if last in (ADAPTER, DEQUANTISE):
            return item.part or "head", last
        if item.kind == "layer":
            return self._residual(item, last, calls.get(path, []))
        if not item.part:
            return self._beside_mixers(item, calls)
        around = self._at[item.parent]
        return item.part, around.name if around.kind == "router" else _operator(item, last)

    def outside(self, last: str) -> str:
        """Return what work outside all modules follows: "" for nothing, MIDDLE, HEAD or SCORE."""
        item = self._at.get(last)
        if item is None:
            return ""
        if item.kind == "layer" or isinstance(item.module, nn.Embedding):
            return MIDDLE
        return SCORE if _scalar(item) else HEAD

    def _outside(self, last: str) -> Role:
        after_head = self.outside(last) in (HEAD, SCORE)
        return ("loss", "cross entropy") if after_head else ("embedding", "positions")

    def _beside_mixers(self, item: Watched, calls: Mapping[str, list[str]]) -> Role:
        """Return the role of a module that is in no mixer: a layer's norm or linear, embedding or head."""
        layer = self._at.get(item.parent)
        if layer is None:
            return self._of_model(item, calls.get("", []))
        if item.kind != "norm":
            return "mlp", item.name
        return self._served(layer, item.name, calls.get(layer.path, [])), "norm"

    def _of_model(self, item: Watched, order: list[str]) -> Role:
        if isinstance(item.module, nn.Embedding):
            return "embedding", "look up"
        order = [path for path in order if self._at[path].model == item.model]
        before = order[: order.index(item.path)] if item.path in order else order
        after_layers = any(path in self._layers for path in before) or not order
        if item.kind == "norm":
            return ("head" if after_layers else "embedding"), "norm"
        return ("head", SCORE if _scalar(item) else item.name) if after_layers else ("embedding", item.name)

    def _part_of(self, layer: Watched, name: str) -> str:
        item = self._at[f"{layer.path}.{name}"]
        if item.kind == "norm":
            return ""
        return item.part or ("mlp" if item.kind != "layer" else "attention")

    def _served(self, layer: Watched, norm: str, order: list[str]) -> str:
        parts = [(name, self._part_of(layer, name)) for name in order]
        if norm not in order:
            return next((part for _, part in parts if part), "mlp")
        at = order.index(norm)
        before = [part for _, part in parts[:at] if part]
        after = [part for _, part in parts[at + 1 :] if part]
        directly = at + 1 < len(parts) and bool(parts[at + 1][1])
        mixer_first = bool(parts[0][1])  # norms follow their mixers throughout
        if before and (mixer_first or not directly):
            return before[-1]
        return after[0] if after else (before[-1] if before else "mlp")

    def _residual(self, layer: Watched, last: str, order: list[str]) -> Role:
        if last not in order:
            return (self._served(layer, "", order) if order else "mlp"), "residual"
        part = self._part_of(layer, last)
        both = [self._at[f"{layer.path}.{name}"].kind for name in order[order.index(last) :][:2]]
        if both == ["leaf", "leaf"]:  # two linears of a feed-forward that is no module
            return part, "activation"
        return (part or self._served(layer, last, order)), "residual"


def _operator(item: Watched, last: str) -> str:
    own = {
        "norm": "norm",
        "leaf": CONVOLUTION if isinstance(item.module, nn.Conv1d) else item.name,
        "router": item.name if last == "(linear)" else "top-k",
        "attention": KERNEL if last == KERNEL or last in OUT_PROJECTIONS else ROTARY,
        "mamba": last if last == CONVOLUTION else "scan",
        "moe": "top-k" if last in ("", *ROUTERS) else "weighted sum",
        "experts": _of_experts(last),
    }
    own["linear_attention"] = own["mamba"]
    return own.get(item.kind, "activation")


def _of_experts(last: str) -> str:
    """Return the operator of the experts' own work after `last`; a product at work is named in brackets."""
    if last.startswith("("):
        return last.strip("()")
    if last in ("", CHOSEN):
        return "gather tokens"
    return "weighted sum" if last in DOWN else "activation"


def roles_of(model: nn.Module) -> Callable[[str], Role]:
    """Return a function from a module's path (with PEFT's wrappers or without) to (part, operator).

    Norms are taken to be called in the order in which a layer lists them, mixers apart.
    Paths of modules that have no role of their own get that of the watched module around them.
    """
    roles = Roles(model.get_base_model() if hasattr(model, "get_base_model") else model)
    calls = listed_calls(roles.watched)

    def role(path: str) -> Role:
        adapting, path = ".lora_" in path, _plain(path)
        while path and path not in roles._at:
            path = path.rpartition(".")[0]
        part, operator = roles.of((path, ""), calls)
        return part, ADAPTER if adapting else operator

    return role


def listed_calls(items: Iterable[Watched]) -> dict[str, list[str]]:
    """Return a plausible order of calls where none was seen: norms and mixers of a layer by turns."""
    children: dict[str, list[Watched]] = {}
    for item in items:
        children.setdefault(item.parent, []).append(item)
    calls: dict[str, list[str]] = {"": [item.path for item in children.get("", [])]}
    for parent, found in children.items():
        if not parent:
            continue
        norms = [item.name for item in found if item.kind == "norm"]
        mixers = [item for item in found if item.kind != "norm"]
        others = [item.name for item in sorted(mixers, key=lambda item: item.kind in ("mlp", "moe"))]
        turns: list[str] = []
        if len(norms) == 2 * len(others):  # before and after each mixer
            for number, other in enumerate(others):
                turns += [norms[2 * number], other, norms[2 * number + 1]]
        else:
            for number, other in enumerate(others):
                turns += [*norms[number : number + 1], other]
            turns += norms[len(others) :]
        calls[parent] = turns
    return calls


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """Yield the tensors of a module's arguments or results, one level of nesting deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        yield from (item for item in value if isinstance(item, torch.Tensor))
    elif isinstance(value, Mapping):
        yield from (item for item in value.values() if isinstance(item, torch.Tensor))
