"""The document that `finegauge trace` caches: made here, read by `finegauge.model.traced`.

A first pass through the whole depth groups the layers that do the same; one layer of each group
stands for it in the passes at several batches, precisions and attentions, from which every
quantity's polynomial in (1, B, T, P) follows: B sequences, T tokens, P pairs of tokens.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import torch

from finegauge.documents import installed_version
from finegauge.errors import UnsupportedError
from finegauge.measurement.tracer.passes import Pass, TracedClass, attention_of, build, record
from finegauge.measurement.tracer.recorder import BACKWARD, Amount, Place, Recorder
from finegauge.model.traced import MODES, OTHERS, part_name
from finegauge.progress import Heard, Progress

Point = tuple[int, int]  # sequences, length
SHORTEST = 16  # for classes that loop over tokens in Python
CHUNK = 256  # the longest chunk in which state-space layers work; lengths are multiples of it


NOISE = 1e-9  # of the largest value: what elimination leaves of an exact zero


def through(values: Sequence[float], ran: Sequence[Point]) -> tuple[list[float], float]:
    """Return (coefficients of 1, B, T, P, relative error at the fifth point if there is one).

    `values` are those at the batches that `ran`.
    """
    scale = max(map(abs, values), default=0.0)
    if not scale:
        return [0.0] * 4, 0.0
    matrix = torch.tensor([_basis(point) for point in ran[:4]], dtype=torch.float64)
    coefficients = torch.linalg.solve(matrix, torch.tensor(values[:4], dtype=torch.float64)).tolist()
    for index, (coefficient, size) in enumerate(zip(coefficients, _basis(ran[3]), strict=True)):
        if abs(coefficient * size) < NOISE * scale:
            coefficients[index] = 0.0
    if len(ran) == 4:
        return coefficients, 0.0
    told = sum(c * b for c, b in zip(coefficients, _basis(ran[4]), strict=True))
    return coefficients, abs(told - values[4]) / scale


def _basis(point: Point) -> list[float]:
    sequences, length = point
    tokens = float(sequences * length)
    return [1.0, float(sequences), tokens, tokens * length]


Recorded = tuple[Recorder, Recorder, Recorder]  # all weights train, none does, no gradients at all
Passes = list[Recorded]  # by batch


def _rests(index: int, passes: Passes) -> list[dict[str, Any]]:
    first = passes[0][0]
    places = [*first.live.peaks, *first.forward, *(p.place for p in first.products)]
    places += [saved.place for saved in first.saved.values()]
    parts = dict.fromkeys(part for layer, part in places if layer == index and part != BACKWARD)
    entries = [_rest((index, part), passes) for part in parts]
    entries[-1]["live_backward"] = _fit(passes, lambda p: p[1].live.peaks.get((index, BACKWARD), 0))
    return entries


def _rest(place: Place, passes: Passes) -> dict[str, Any]:
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


def _fit(passes: Passes, value: Callable[[Recorded], float]) -> list[float]:
    return through([value(one) for one in passes], [one[0].batch for one in passes])[0]


def _cost(passes: Passes, amount: Callable[[Recorded], Amount]) -> dict[str, Any]:
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


def _layer(subject: TracedClass, group: list[int], index: int, seen: Recorder) -> dict[str, Any]:
    uses = _uses(subject, group, index, seen)
    return {
        "kind": "+".join(dict.fromkeys(part for part, *_ in uses)),
        "count": len(group),
        "tensors": _entries(subject, subject.owned(index), seen, f"{subject.stack}.{index}."),
        "uses": uses,
    }


def _entries(subject: TracedClass, wanted: set[int], seen: Recorder, prefix: str = "") -> list[list[Any]]:
    return [
        [name.removeprefix(prefix), list(p.shape), _kind(subject, name, p, seen)]
        for name, p in subject.model.named_parameters()
        if id(p) in wanted
    ]


def _uses(subject: TracedClass, group: list[int], index: int, seen: Recorder) -> list[list[Any]]:
    parameters = dict(subject.model.named_parameters())
    uses: dict[str, list[Any]] = {}
    for product in (p for p in seen.products if p.place[0] == index):
        name = _relative(seen, product.weight)
        if name in uses:
            uses[name][2] += product.rows
            continue
        kind = _kind(subject, product.weight, parameters[product.weight], seen)
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
    if weight == OTHERS:
        return weight
    inside = weight.removeprefix(f"{seen.stack}.")
    return (weight if inside == weight else inside.partition(".")[2]).removesuffix(".weight")


def _kind(subject: TracedClass, name: str, parameter: torch.Tensor, seen: Recorder) -> str:
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


def _outside(subject: TracedClass, config: Mapping[str, Any], seen: Recorder) -> dict[str, Any]:
    """Return the fields of the document about embeddings, final norm, head and weights that layers share.

    `other` are towers that text does not pass.
    Raises: UnsupportedError where the class has no token embedding or no head.
    """
    model = subject.model
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if table is None or head is None:
        raise UnsupportedError(f"{type(model).__name__} has no token embedding or no head to trace.")
    tied = head.weight is table.weight
    norm_path, norm = _final_norm(subject)
    decoder = subject.stack.rpartition(".")[0]
    taken = set(map(id, subject.layers.parameters()))
    taken |= set(map(id, norm.parameters())) if norm is not None else set()
    taken |= set() if tied else set(map(id, head.parameters()))
    outer = {id(p): name for name, p in model.named_parameters() if id(p) not in taken}
    text = {id(table.weight), *map(id, head.parameters())}
    inside = {key for key, name in outer.items() if not decoder or name.startswith(f"{decoder}.")}
    embeddings = outer.keys() & (inside | text)
    owned = {key for index in range(len(subject.layers)) for key in subject.owned(index)}
    shared = set(map(id, subject.layers.parameters())) - owned
    out_features, in_features = head.weight.shape
    return {
        "model_type": str(config["model_type"]),
        "class": type(model).__name__,
        "hidden_size": in_features,
        "vocab_size": out_features,
        "max_position_embeddings": getattr(subject.text_config, "max_position_embeddings", None),
        "embeddings": [
            *_entries(subject, {id(table.weight)}, seen),  # the first, of which a tied head is made
            *_entries(subject, embeddings - {id(table.weight)} | shared, seen),
        ],
        "other": _entries(subject, outer.keys() - embeddings, seen),
        "head": None
        if tied
        else ["lm_head", in_features, out_features, getattr(head, "bias", None) is not None],
        "final_norm": norm and _norm(norm_path, norm),
    }


def _final_norm(subject: TracedClass) -> tuple[str, torch.nn.Module | None]:
    """Return the norm that stands beside the stack of layers: the last one there of the stream's width."""
    decoder = subject.stack.rpartition(".")[0]
    found = ("", None)
    for name, module in subject.model.get_submodule(decoder).named_children():
        own = list(module.parameters(recurse=False))
        if own and "Norm" in type(module).__name__ and all(p.dim() == 1 for p in own) and "emb" not in name:
            found = (name, module)
    return found


def _norm(name: str, module: torch.nn.Module) -> list[Any]:
    kind = "layer" if isinstance(module, torch.nn.LayerNorm) else "rms"
    size = next(p.numel() for p in module.parameters())
    return [name, size, kind, *(getattr(module, part, None) is not None for part in ("weight", "bias"))]


PASSES = len(MODES) * 5 + 1  # at most
POOR_FIT = 0.01  # relative error of kept bytes at the batch that only checks


def trace_document(config: Mapping[str, Any], heard: Heard | None = None) -> dict[str, Any]:
    """Return the trace of a configuration.

    Raises: UnsupportedError where transformers has no such class or it cannot be traced,
        FieldError where the class refuses the figures.
    """
    first = attention_of(config, "flash")
    subject = build(config, torch.bfloat16, first)
    shortest = Pass(1, SHORTEST, autocast=False, attention=first, trained=False)
    scout, outputs = record(subject, shortest)
    numbers = count(1)

    def passed(what: str) -> None:
        number = next(numbers)
        if heard is not None:
            heard(Progress(what, number, PASSES))

    passed("layers")
    # the middle one stands for a group, as the first takes its input from the embedding
    groups = {group[len(group) // 2]: group for group in _groups(subject, scout)}
    kept = set(groups)
    try:
        length = _length(subject, shortest, kept, outputs)
    except UnsupportedError:  # some read what the last layer of another group left (keys and values)
        kept |= {group[-1] for group in groups.values()}
        length = _length(subject, shortest, kept, outputs)
    rests: dict[int, dict[str, Any]] = {index: {} for index in groups}
    notes: list[str] = []
    for mode in dict.fromkeys(_traced_as(config, mode) for mode in MODES):
        try:
            passes = _passes(config, mode, length, kept, outputs, passed)
        except UnsupportedError as error:
            notes.append(f"Not traced as {mode}: {error}")
            continue
        for index, by_mode in rests.items():
            by_mode[mode] = _rests(index, passes)
        notes += _misfits(groups, passes, mode)
    if not all(rests.values()):
        raise UnsupportedError(notes[0])
    for by_mode in rests.values():
        by_mode.update(
            {mode: by_mode[same] for mode in MODES if (same := _traced_as(config, mode)) in by_mode}
        )
    layers = [{**_layer(subject, g, i, scout), "rests": rests[i]} for i, g in groups.items()]
    return {
        **_outside(subject, config, scout),
        "transformers": installed_version("transformers"),
        "torch": installed_version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "layers": layers,
        "notes": notes,
    }


def _length(subject: TracedClass, shortest: Pass, kept: set[int], outputs: Mapping[int, Any]) -> int:
    """Return the shortest length to trace: short for code that loops over tokens or has few positions."""
    calls = [
        record(subject, shortest._replace(length=length, trained=None), kept, outputs)[0].calls
        for length in (SHORTEST, 2 * SHORTEST)
    ]
    if calls[1] - calls[0] >= SHORTEST:
        return SHORTEST
    most = getattr(subject.text_config, "max_position_embeddings", None) or 4 * CHUNK
    # some have a place less than they say
    return next((CHUNK >> n for n in range(5) if 4 * (CHUNK >> n) < most), SHORTEST)


def _traced_as(config: Mapping[str, Any], mode: str) -> str:
    width, attention = mode.split("/")
    return f"{width}/{attention_of(config, attention)}"


def _groups(subject: TracedClass, scout: Recorder) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for index, layer in enumerate(subject.layers):
        shapes = Counter((name, tuple(p.shape)) for name, p in layer.named_parameters())
        products = Counter(
            product._replace(place=(0, product.place[1]), weight="")
            for product in scout.products
            if product.place[0] == index
        )
        kernels = Counter(kernel for place, kernel in scout.kernels if place[0] == index)
        flops = round(sum(amount.flops for place, amount in scout.forward.items() if place[0] == index))
        saved = round(sum(saved.bytes for saved in scout.saved.values() if saved.place[0] == index))
        counts = tuple(frozenset(counter.items()) for counter in (shapes, products, kernels))
        groups.setdefault((type(layer).__name__, counts, flops, saved), []).append(index)
    return list(groups.values())


def _passes(
    config: Mapping[str, Any],
    mode: str,
    length: int,
    kept: set[int],
    outputs: Mapping[int, Any],
    passed: Callable[[str], None],
) -> Passes:
    width, attention = mode.split("/")
    subject = build(config, torch.bfloat16 if width == "bf16" else torch.float32, attention)
    passes = []
    points = ((1, length), (1, 2 * length), (1, 4 * length), (2, length), (3, 2 * length))  # the last checks
    for batch in points[: 5 if width == "bf16" else 4]:
        trained, frozen, bare = (
            record(subject, Pass(*batch, width == "autocast", attention, kind), kept, outputs)[0]
            for kind in (True, False, None)
        )
        passes.append((trained, frozen, bare))
        passed(mode)
    return passes


def _misfits(layers: Iterable[int], passes: Passes, mode: str) -> list[str]:
    ran = [trained.batch for trained, *_ in passes]
    worst = 0.0
    for index in layers:
        kept = [sum(s.bytes for s in p[0].saved.values() if s.place[0] == index) for p in passes]
        worst = max(worst, through(kept, ran)[1])
    if worst <= POOR_FIT:
        return []
    return [f"As {mode}, kept bytes are no polynomial of batch and length: off by up to {worst:.1%}."]
