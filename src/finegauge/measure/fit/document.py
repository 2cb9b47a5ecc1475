"""The document that `finegauge trace` caches: made here, read by `finegauge.graph.trace_file`.

A first pass through the whole depth groups the layers that do the same; one layer of each group
stands for it in the passes at several batches, precisions and attentions, from which every
quantity's polynomial in (B, S) follows.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from finegauge.errors import UnsupportedError
from finegauge.graph.trace_file import installed_version
from finegauge.graph.traced import MODES
from finegauge.measure.fit import entries, outside
from finegauge.measure.fit.model import Subject, attention_of, build
from finegauge.measure.fit.passes import Ask, run
from finegauge.measure.fit.polynomials import CHUNK, SHORTEST, points
from finegauge.measure.fit.recorder import Recorder

Heard = Callable[[str], None]  # told after every pass what was done
PASSES = len(MODES) * 5 + 1  # at most
POOR_FIT = 0.01  # relative error of kept bytes at the batch that only checks


def document(config: Mapping[str, Any], heard: Heard) -> dict[str, Any]:
    """Return the trace of a configuration.

    Raises: UnsupportedError where transformers has no such class or it cannot be traced,
        FieldError where the class refuses the figures.
    """
    first = attention_of(config, "flash")
    subject = build(config, torch.bfloat16, first)
    length = _length(subject, first)
    scout, outputs = run(subject, Ask(1, length, autocast=False, attention=first, trained=False))
    heard("layers")
    groups = {_middle(group): group for group in _groups(subject, scout)}
    rests: dict[int, dict[str, Any]] = {index: {} for index in groups}
    notes: list[str] = []
    for mode in dict.fromkeys(_traced_as(config, mode) for mode in MODES):
        try:
            passes = _passes(config, mode, length, set(groups), outputs, heard)
        except UnsupportedError as error:
            notes.append(f"Not traced as {mode}: {error}")
            continue
        for index, by_mode in rests.items():
            by_mode[mode] = entries.rests(index, passes)
        notes += _misfits(groups, passes, mode)
    if not all(rests.values()):
        raise UnsupportedError(notes[0])
    for by_mode in rests.values():
        by_mode.update(
            {mode: by_mode[same] for mode in MODES if (same := _traced_as(config, mode)) in by_mode}
        )
    layers = [{**entries.layer(subject, g, i, scout), "rests": rests[i]} for i, g in groups.items()]
    around = outside.describe(subject, config, scout)
    return {**around, **_versions(), "layers": layers, "notes": notes}


def _versions() -> dict[str, str]:
    from datetime import UTC, datetime

    return {
        "transformers": installed_version("transformers"),
        "torch": installed_version("torch"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _length(subject: Subject, attention: str) -> int:
    """Return the shortest length to trace: short for code that loops over tokens or has few positions."""
    calls = [
        run(subject, Ask(1, length, autocast=False, attention=attention, trained=None))[0].calls
        for length in (SHORTEST, 2 * SHORTEST)
    ]
    if calls[1] - calls[0] >= SHORTEST:
        return SHORTEST
    most = getattr(subject.text_config, "max_position_embeddings", None) or 4 * CHUNK
    return next((CHUNK >> n for n in range(5) if 4 * (CHUNK >> n) <= most), SHORTEST)


def _traced_as(config: Mapping[str, Any], mode: str) -> str:
    """Return the mode that stands for `mode`, where the class lacks its attention."""
    width, attention = mode.split("/")
    return f"{width}/{attention_of(config, attention)}"


def _middle(group: list[int]) -> int:
    """Return the layer that stands for a group; not the first, whose input comes from the embedding."""
    return group[len(group) // 2]


def _groups(subject: Subject, scout: Recorder) -> list[list[int]]:
    """Return the indices of the layers, those together that have and do the same."""
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
    heard: Heard,
) -> entries.Passes:
    """Return the passes of one mode at every batch."""
    width, attention = mode.split("/")
    subject = build(config, torch.bfloat16 if width == "bf16" else torch.float32, attention)
    passes = []
    for batch in points(length)[: 5 if width == "bf16" else 4]:
        trained, frozen, bare = (
            run(subject, Ask(*batch, width == "autocast", attention, kind), kept, outputs)[0]
            for kind in (True, False, None)
        )
        passes.append((trained, frozen, bare))
        heard(mode)
    return passes


def _misfits(groups: Mapping[int, list[int]], passes: entries.Passes, mode: str) -> list[str]:
    """Return a sentence if what layers keep is no polynomial of the batch."""
    worst = max(entries.misfit(index, passes) for index in groups)
    if worst <= POOR_FIT:
        return []
    return [f"As {mode}, kept bytes are no polynomial of batch and length: off by up to {worst:.1%}."]
