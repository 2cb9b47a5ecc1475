"""The entries of a trace document: what each part of a layer does, fitted over the batches that ran."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from finegauge.graph.traced import OTHERS, part_name
from finegauge.measure.fit.model import Subject
from finegauge.measure.fit.polynomials import through
from finegauge.measure.fit.recorder import BACKWARD, Amount, Place, Recorder

Pass = tuple[Recorder, Recorder, Recorder]  # all weights train, none does, no gradients at all
Passes = list[Pass]  # by batch


def rests(index: int, passes: Passes) -> list[dict[str, Any]]:
    """Return what each part of one layer does beside its projections, in forward order."""
    first = passes[0][0]
    places = [*first.live.peaks, *first.forward, *(p.place for p in first.products)]
    places += [saved.place for saved in first.saved.values()]
    parts = dict.fromkeys(part for layer, part in places if layer == index and part != BACKWARD)
    entries = [_rest((index, part), passes) for part in parts]
    entries[-1]["live_backward"] = _fit(passes, lambda p: p[1].live.peaks.get((index, BACKWARD), 0))
    return entries


def _rest(place: Place, passes: Passes) -> dict[str, Any]:
    """Return the entry of one part of a layer."""
    return {
        "part": place[1],
        "kernels": [list(kernel) for at, kernel in passes[0][0].kernels if at == place],
        "kept": _kept(place, passes),
        "forward": _cost(passes, lambda p: p[1].forward[place]),
        "backward": _cost(passes, lambda p: p[1].backward[place]),
        "backward_trained": _cost(passes, lambda p: p[0].backward[place]),
        "live_forward": _fit(passes, lambda p: p[1].live.peaks.get(place, 0)),
        "live_backward": [0.0] * 4,
        "passing": _fit(passes, lambda p: p[2].live.peaks.get(place, 0)),
    }


def _fit(passes: Passes, value: Callable[[Pass], float]) -> list[float]:
    """Return the polynomial of a value in the batch."""
    return through([value(one) for one in passes], [one[0].batch for one in passes])[0]


def _cost(passes: Passes, amount: Callable[[Pass], Amount]) -> dict[str, Any]:
    """Return FLOPs, bytes and launches of one place; launches as in the first batch."""
    return {
        "flops": _fit(passes, lambda p: amount(p).flops),
        "bytes": _fit(passes, lambda p: amount(p).bytes),
        "launches": amount(passes[0]).launches,
    }


def _kept(place: Place, passes: Passes) -> list[list[Any]]:
    """Return [keepers, polynomial of their bytes] for everything that one place makes autograd keep."""
    found = [_by_keepers(place, trained, frozen) for trained, frozen, _ in passes]
    batches = [trained.batch for trained, _, _ in passes]
    names = sorted({keepers for counter in found for keepers in counter})
    return [[list(keepers), through([one[keepers] for one in found], batches)[0]] for keepers in names]


def _by_keepers(place: Place, trained: Recorder, frozen: Recorder) -> Counter[tuple[str, ...]]:
    """Return bytes by the weights that need them; those that a frozen pass keeps too need none."""
    found: Counter[tuple[str, ...]] = Counter()
    for name, saved in trained.saved.items():
        if saved.place == place:
            keepers = {_relative(trained, keeper) for keeper in saved.keepers}
            found[() if name in frozen.saved else tuple(sorted(keepers))] += round(saved.bytes)
    return found


def misfit(index: int, passes: Passes) -> float:
    """Return how far the polynomial of a layer's kept bytes is off at the batch that only checks."""
    kept = [sum(s.bytes for s in p[0].saved.values() if s.place[0] == index) for p in passes]
    return through(kept, [p[0].batch for p in passes])[1]


def layer(subject: Subject, group: list[int], index: int, seen: Recorder) -> dict[str, Any]:
    """Return the entry of a group of layers, of which `index` was traced, without its rests."""
    uses = _uses(subject, group, index, seen)
    parts = dict.fromkeys(part for part, *_ in uses)
    return {
        "kind": "+".join(parts),
        "count": len(group),
        "tensors": _tensors(subject, index, seen),
        "uses": uses,
    }


def _tensors(subject: Subject, index: int, seen: Recorder) -> list[list[Any]]:
    """Return [name, shape, kind] of the parameters that one layer has for itself."""
    ours = subject.owned(index)
    return [
        [name.removeprefix(f"{subject.stack}.{index}."), list(p.shape), kind_of(subject, name, p, seen)]
        for name, p in subject.model.named_parameters()
        if id(p) in ours
    ]


def shared(subject: Subject, seen: Recorder) -> list[list[Any]]:
    """Return [name, shape, kind] of the parameters that several layers share."""
    owned = {key for index in range(len(subject.layers)) for key in subject.owned(index)}
    inside = {id(p) for p in subject.layers.parameters()} - owned
    return [
        [name, list(p.shape), kind_of(subject, name, p, seen)]
        for name, p in subject.model.named_parameters()
        if id(p) in inside
    ]


def _uses(subject: Subject, group: list[int], index: int, seen: Recorder) -> list[list[Any]]:
    """Return the projections of a layer as `Use` has them; a weight used twice has twice the rows."""
    parameters = dict(subject.model.named_parameters())
    uses: dict[str, list[Any]] = {}
    for product in (p for p in seen.products if p.place[0] == index):
        name = _relative(seen, product.weight)
        if name in uses:
            uses[name][2] += product.rows
            continue
        kind = kind_of(subject, product.weight, parameters[product.weight], seen)
        linear = [name, product.in_features, product.out_features, product.bias, kind]
        weights = {
            p.weight for p in seen.products if p.place[0] in group and _relative(seen, p.weight) == name
        }
        share = len(weights) / len(group)
        uses[name] = [product.place[1], linear, product.rows, product.groups, share]
    for name, module in subject.layers[index].named_modules():
        if isinstance(module, torch.nn.Linear) and name not in uses:
            # inside a fused kernel: it can be adapted and quantised, and its product is the kernel's
            linear = [name, module.in_features, module.out_features, module.bias is not None, "linear"]
            uses[name] = [part_name(name.split(".")[0]), linear, 0.0, 1, 1.0]
    return list(uses.values())


def _relative(seen: Recorder, weight: str) -> str:
    """Return a weight's name within its layer, without ".weight"."""
    if weight == OTHERS:
        return weight
    inside = weight.removeprefix(f"{seen.stack}.")
    return (weight if inside == weight else inside.partition(".")[2]).removesuffix(".weight")


def kind_of(subject: Subject, name: str, parameter: torch.Tensor, seen: Recorder) -> str:
    """Return the kind of a parameter, as `Tensor` and `Linear` have it."""
    owner = subject.model.get_submodule(name.rpartition(".")[0])
    class_name = type(owner).__name__
    if name.endswith("bias"):
        return "bias"
    marks: Iterable[tuple[bool, str]] = (
        (isinstance(owner, torch.nn.Embedding), "embedding"),
        (isinstance(owner, torch.nn.Linear) or class_name == "Conv1D", "linear"),
        ("Norm" in class_name, "norm"),
        ("Conv" in class_name, "conv"),
        (parameter.dim() == 3 and any(p.weight == name for p in seen.products), "experts"),
        (parameter.dim() == 2 and any(p.weight == name for p in seen.products), "router"),
    )
    return next((kind for is_it, kind in marks if is_it), "state")
