"""Stored laws, one JSON file each, and a law as an Estimator."""

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from finegauge.catalogue.gpus import gpu
from finegauge.data.batch_shape import dataset_of
from finegauge.documents import home, read_document, write_document
from finegauge.errors import FieldError, FineGaugeError, InputError, UnknownNameError, UnsupportedError, shown
from finegauge.laws.law import MAX_BATCH, Condition, Law, law_from_json
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.run.rules import num_experts
from finegauge.units import GB

if TYPE_CHECKING:
    from finegauge.run.run import Run

NONE_STORED = " None is stored yet: 'finegauge calibrate --law'."
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return `name` if it can name a law's file."""
    if not _NAME.fullmatch(name):
        raise FieldError(
            f"{shown(name)} cannot name a law; use letters, digits, '.', '_' and '-', at most 64 of them."
        )
    return name


def stored() -> dict[str, str]:
    """Return the path of every stored law by name."""
    folder = _folder()
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {
        name.removesuffix(".json"): os.path.join(folder, name) for name in files if name.endswith(".json")
    }


def load(name_or_path: str) -> Law:
    """Return the law of that name, or that a .json file holds.

    Raises: UnknownNameError naming its neighbours, FileFormatError.
    """
    if name_or_path.endswith(".json"):
        return law_from_json(read_document(name_or_path), name_or_path)
    known = stored()
    if name_or_path not in known:
        have = f" Stored are {', '.join(known)}." if known else NONE_STORED
        raise InputError(f"{UnknownNameError('stored law', name_or_path, known=known)}{have}")
    return law_from_json(read_document(known[name_or_path]), known[name_or_path])


def store(law: Law) -> str:
    """Write `law` under its name, whole or not at all, and return the path."""
    path = os.path.join(_folder(), f"{check_name(law.name)}.json")
    write_document(law.to_json(), path)
    return path


def _folder() -> str:
    return os.path.join(home(), "laws")


Estimator = Callable[["Run"], Profile]


def with_law(law: Law, base: Estimator) -> Estimator:
    """Return an Estimator: time or memory by `law`, the rest by `base`.

    The Estimator raises UnsupportedError for another GPU than the law was fitted on.
    """
    apply = _memory if law.form.quantity == MAX_BATCH else _time

    def answer(run: "Run") -> Profile:
        fitted_on = law.context.get("gpu")
        if fitted_on and law.form.quantity != MAX_BATCH and run.gpu and run.gpu != fitted_on:
            raise UnsupportedError(
                f"The law '{law.name}' was fitted on {fitted_on} and says nothing about {run.gpu}; fit "
                "one to a sweep there, or leave --law out."
            )
        return apply(law, base(run))

    return answer


def condition_of(run: "Run", law: Law) -> Condition:
    """Return the quantities of `run` that laws use."""
    longest = None if run.dataset is None else dataset_of(run).max_tokens
    return Condition(
        batch=run.micro_batch_size,
        sparsity_fraction=sparsity_fraction(run),
        seq_len=min(run.seq_len, longest or run.seq_len),  # the data's longest sequence, cut off
        gpu_memory_bytes=gpu(run.gpu).memory_bytes if run.gpu else 0.0,
        model_memory_bytes=float(law.context.get("model_memory_gb", 0.0)) * GB,
    )


def sparsity_fraction(run: "Run") -> float:
    """Return active experts over all experts; 1 for a model without experts."""
    experts = num_experts(run.config)
    active = run.num_experts_per_tok or run.config.get("num_experts_per_tok") or run.config.get("topk")
    return float(active) / experts if experts and active else 1.0


def _time(law: Law, profile: Profile) -> Profile:
    run = profile.run
    rate = law.at(condition_of(run, law))
    if rate <= 0:
        raise UnsupportedError(
            f"The law '{law.name}' gives {rate:.3g} samples/s at micro_batch_size={run.micro_batch_size}: "
            f"it does not hold there (fitted on {law.batch_range[0]} to {law.batch_range[1]})."
        )
    seconds = run.gradient_accumulation_steps * run.micro_batch_size / rate
    said = profile.step_time_s.total
    parts = {path: value * seconds / said for path, value in profile.step_time_s.parts.items()}
    joules = {path: value * seconds / said for path, value in profile.step_energy_j.parts.items()}
    inverse = Interval(1 / law.interval.high_ratio, 1 / law.interval.low_ratio) if law.interval else None
    return profile._replace(
        source=_source(law, profile, time_interval=inverse, memory_interval=profile.source.memory_interval),
        step_time_s=Breakdown(parts) if said else Breakdown.of(step=seconds),
        step_energy_j=Breakdown(joules) if said else profile.step_energy_j,
    )


def _memory(law: Law, profile: Profile) -> Profile:
    """Return `profile` with the law's memory: the model, and a share of the rest per sequence."""
    run, condition = profile.run, condition_of(profile.run, law)
    most = law.at(condition)
    free = condition.gpu_memory_bytes - condition.model_memory_bytes
    whole = law.form.value(law.constants, condition)  # before it is cut down to a whole batch
    needed = Breakdown.of(
        weights=condition.model_memory_bytes,
        activations=free * run.micro_batch_size / whole if whole > 0 else free,
    )
    return profile._replace(
        source=_source(law, profile, time_interval=profile.source.time_interval, memory_interval=None),
        outcome="completed" if run.micro_batch_size <= most else "out_of_memory",
        peak_memory_bytes=needed,
        device_memory_bytes=needed,
        phase_memory_bytes=Breakdown({}),
        peak_phase="",
        capacity_bytes=condition.gpu_memory_bytes,
    )


def _source(
    law: Law, profile: Profile, *, time_interval: Interval | None, memory_interval: Interval | None
) -> Source:
    part = "memory" if law.form.quantity == MAX_BATCH else "time"
    table = f" to {law.table}" if law.table else ""
    said = f"{part} by the law '{law.name}' ({law.form_name}, {law.scores.num_points} points fitted{table})"
    return Source(
        kind="predicted",
        name=f"law {law.name}, rest {profile.source.name}",
        memory_interval=memory_interval,
        time_interval=time_interval,
        assumptions=(said, *_off_ground(law, profile.run), *profile.source.assumptions),
    )


def _off_ground(law: Law, run: "Run") -> list[str]:
    notes = []
    low, high = law.batch_range
    if law.form.quantity != MAX_BATCH and not low <= run.micro_batch_size <= high:
        notes.append(f"micro_batch_size={run.micro_batch_size} lies outside the law's {low} to {high}")
    for name in ("model", "dataset", "seq_len", "method"):
        was, asked = law.context.get(name), getattr(run, name)
        if was is not None and asked is not None and _known_as(name, was) != _known_as(name, str(asked)):
            notes.append(f"the law was fitted with {name}={was}, not {asked}")
    return notes


def _known_as(field: str, value: str) -> str:
    from finegauge.catalogue.datasets import dataset
    from finegauge.catalogue.models import model

    try:
        if field == "model":
            return model(value).name
        return dataset(value).name if field == "dataset" else value.casefold()
    except FineGaugeError:
        return value.casefold()
