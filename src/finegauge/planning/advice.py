"""Advice for a run that does not fit: single changes that make it fit, several together, or other GPUs.

Every change is a switch of `whatif`, answered by `predict` and `quote`, and counts where the run is then safe
at every moment of the job. They come in the order of what they cost:

    1  the same training on the same GPUs, by the bill of the whole run
    2  another training on the same GPUs, the one nearest to what was asked for first
    3  the same training on other GPUs, by the bill
    4  offload that makes the run more than twice as long

Where no change on the same GPUs does it alone, changes are added one by one, each time the one that saves
most memory, those that keep the training before others, those that need the host's memory last; then those
that turn out not to be needed are left out.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import gpu
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.planning.estimate import of_all_moments
from finegauge.planning.quote import quote
from finegauge.planning.space import sensible
from finegauge.planning.whatif import (
    GPUS_OF_A_NODE,
    OTHER_GPUS,
    UNDIVIDED,
    Changes,
    Switch,
    Variant,
    WhatIf,
    micro_batches,
    standing,
    switch_of,
    tried_with,
    with_known_length,
)
from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION
from finegauge.profile import Estimator
from finegauge.records import NamedTuple
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.formats.writing import Written

_SAME = """
checkpointing selective-checkpointing sdpa flash-attention fused-loss chunked-loss liger unsloth padding-free
optimizer-in-backward zero1 zero2 zero3 fsdp sync-each-batch hybrid-shard tensor-parallel pipeline-parallel
context-parallel expert-parallel grouped-experts fused-scan smaller-micro-batch smaller-engine engine-sleeps
trainer-on-host logits-to-host
"""
_OTHER = """
8bit-optimizer paged-optimizer bf16 lora qlora half-rank shorter-sequences shorter-requests adafactor lion sgd
freeze
"""
SAME, OTHER = tuple(_SAME.split()), tuple(_OTHER.split())  # the training; of another the nearest first
ON_HOST = ("offloaded-checkpoints", "offload-optimizer", "offload-all")  # the same training too
TOGETHER = (  # what is tried with others
    ("checkpointing", "fused-loss", "padding-free", "fsdp", "smaller-micro-batch"),
    ("8bit-optimizer", "qlora", "shorter-sequences"),
    ON_HOST,
)
MORE_GPUS = ("double-gpus", "8x-gpus")
COUNTS = (1, 2, 4, 8, 16, 32, 64)
MOST_OFFLOAD_SLOWS = 2.0  # times as long
LEAST_SAVED_FRACTION = 0.01  # of the memory, for a change to be worth adding
ORIGIN = "finegauge check --fix"
Try = Callable[[Switch], Variant | None]  # the run with a change, None where that is not safe


class Advice(NamedTuple):
    """What makes a run safe, in the order of what it costs."""

    found: WhatIf  # its variants are the changes that alone do
    together: Variant | None  # on the same GPUs, where no single change does
    smallest: Variant | None  # hardware, where nothing on the same GPUs or no other kind of them does


class Fix(NamedTuple):
    """The best change that could be written down, and the files."""

    variant: Variant
    framework: str
    written: "Written"


def advise(run: Run, estimator: Estimator | None = None) -> Advice:
    """Return what makes `run`, which states its GPU, safe."""
    ask: Estimator = cache(estimator or predict)
    sized, assumed = with_known_length(run)
    base = standing(sized, ask)
    whole = WhatIf(base, (), (), "cost", spot=False, assumed_samples=assumed)

    def safe(switch: Switch) -> Variant | None:
        found = tried_with(switch, base, ask)
        if not isinstance(found, Variant):
            return None
        changed, chance = found.standing.run, found.standing.outcome.out_of_memory_fraction
        kind = {name: getattr(changed, name) for name in ("sharding", "cpu_offload")}
        fits = sensible(sized, changed, kind) and chance < RISKY_FROM_FRACTION
        return found if fits and _is_safe(changed, ask) else None

    names = (*SAME, *ON_HOST, *OTHER, *OTHER_GPUS, *MORE_GPUS)
    ways = [found for name in names if (found := safe(switch_of(name))) is not None]
    elsewhere = [one for one in ways if _is_elsewhere(one)]
    ways.sort(key=lambda one: _place(one, base.outcome.wall_s))
    here = len(ways) > len(elsewhere)
    together = None if here else _together(base.run, ask, safe)
    stuck = not here and together is None
    smallest = next(filter(None, map(safe, _hardware(sized))), None) if stuck or not elsewhere else None
    return Advice(whole._replace(variants=tuple(ways)), together, smallest)


def _is_safe(run: Run, ask: Estimator = predict) -> bool:
    profile = ask(run)
    return of_all_moments(profile, quote(run, profile)).out_of_memory_fraction < RISKY_FROM_FRACTION


def _is_elsewhere(variant: Variant) -> bool:
    return not {"gpu", "num_gpus"}.isdisjoint(variant.changes)


def _place(variant: Variant, wall_s: float) -> tuple[int, int, float, float]:
    found, name = variant.standing.outcome, variant.switch
    bill = inf if found.on_demand_usd is None else found.on_demand_usd, found.wall_s
    if _is_elsewhere(variant):
        return 3, 0, *bill
    if name in OTHER:
        return 2, OTHER.index(name), *bill
    return 4 if name in ON_HOST and found.wall_s > MOST_OFFLOAD_SLOWS * wall_s else 1, 0, *bill


def _together(run: Run, ask: Estimator, safe: Try) -> Variant | None:
    """Return several changes that together make the run safe on its GPUs; None where even all do not."""
    if not any(map(safe, _least(run))):
        return None
    chosen: list[str] = []
    found: Variant | None = None
    changed = run
    while found is None:
        options = sorted(_smaller(changed, chosen, ask), key=lambda one: one[:2])
        if not options:
            return None
        _, _, name, changed = options[0]
        chosen.append(name)
        found = safe(_joint(run, chosen))
    for name in tuple(chosen):
        fewer = [one for one in chosen if one != name]
        if fewer and (without := safe(_joint(run, fewer))) is not None:
            chosen, found = fewer, without
    return found


def _least(run: Run) -> Iterator[Switch]:
    """Yield what needs the least memory that changes can bring about: if none is safe, nothing is."""
    least: Changes = {
        "micro_batch_size": 1, "activation_checkpointing": "full", "seq_len": ceil(run.seq_len / 2),
        "loss": "fused", "sharding": "fsdp" if run.data_parallel > 1 else run.sharding,
    }  # fmt: skip
    yield Switch("least", "", {**least, "method": "qlora"})
    yield Switch("least", "", {**least, "sharding": "zero3", "cpu_offload": "all"})


def _smaller(run: Run, chosen: Sequence[str], ask: Estimator) -> Iterator[tuple[int, float, str, Run]]:
    """Yield the changes that save memory beyond those chosen: kind, bytes then needed, name, changed run."""
    most = ask(run).device_memory_bytes.total * (1.0 - LEAST_SAVED_FRACTION)
    for kind, names in enumerate(TOGETHER):
        for name in set(names).difference(chosen):
            with suppress(FieldError, UnsupportedError):
                made = switch_of(name).change(run)
                if not isinstance(made, str):
                    changed = run.replace(ORIGIN, **made)
                    needed = ask(changed).device_memory_bytes.total
                    if needed < most:
                        yield kind, needed, name, changed


def _joint(run: Run, names: Sequence[str]) -> Switch:
    """Return the switch that is several, the one that asks what is safe after the others."""
    changes: dict[str, Any] = {}
    switches = [switch_of(name) for name in sorted(names, key=("smaller-micro-batch").__eq__)]
    for switch in switches:
        made = switch.change(run.replace(**changes))
        changes |= {} if isinstance(made, str) else made
    breaks = "; ".join(one.breaks for one in switches if one.breaks)
    return Switch(" + ".join(names), breaks, changes)


def _hardware(run: Run) -> Iterator[Switch]:
    """Yield GPUs in ever greater numbers, the least memory first, states divided where there are several."""
    sizes = sorted((gpu(name).memory_bytes * count, count, name) for name in OTHER_GPUS for count in COUNTS)
    own = gpu(str(run.gpu)).memory_bytes * run.num_gpus
    for size, count, name in sizes:
        if size < own or count % (run.tensor_parallel * run.pipeline_parallel * run.context_parallel):
            continue
        rows = max(1, run.global_batch_size // count)
        changes: Changes = {
            "gpu": name, "num_gpus": count, "num_nodes": ceil(count / GPUS_OF_A_NODE), **UNDIVIDED,
            **micro_batches(rows, run.micro_batch_size),
            "sharding": "fsdp" if count > 1 and run.sharding == "none" else run.sharding,
        }  # fmt: skip
        yield Switch(f"{count} x {name}" if count > 1 else name, "", changes)


def fix(
    run: Run, advice: Advice, folder: str | os.PathLike[str], *, recipe: str, overwrite: bool = False
) -> Fix | None:
    """Write `run`, read from `recipe`, with the first change on its own GPUs that is safe as written.

    A framework's run is written in its own files where they can say the change, with what else stands in
    `recipe`; any other as a FineGauge run file.

    Raises: InputError where files are there already.
    """
    from finegauge.formats.writing import FINEGAUGE, own_framework, write

    here = [one for one in advice.found.variants if not _is_elsewhere(one)]
    here += [advice.together] if advice.together is not None else []
    own = "" if _is_run_file(recipe) else own_framework(run)
    for framework in (own, FINEGAUGE) if own else (FINEGAUGE,):
        for variant in here:
            changed = variant.standing.run
            if advice.found.assumed_samples:
                changed = changed.replace(ORIGIN, num_samples=None)
            if _means(changed, framework):
                source = recipe if framework == own else None
                written = write(changed, framework, folder, recipe=source, overwrite=overwrite)
                return Fix(variant, framework, written)
    return None


def _is_run_file(recipe: str) -> bool:
    from finegauge.formats.reading import framework_of

    return recipe.lower().endswith((".yaml", ".yml", ".json", ".toml")) and framework_of(recipe) is None


def _means(run: Run, framework: str) -> bool:
    from finegauge.formats.writing import as_written

    try:
        return _is_safe(as_written(run, framework)[0])
    except FineGaugeError:
        return False
