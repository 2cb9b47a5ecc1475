"""Why a run failed: its evidence held against the prediction, and the cheapest change that fits."""

import os
from collections.abc import Sequence
from typing import Literal

from finegauge.answers import Rules
from finegauge.answers.changes import AdviceAnswer, Fixed, advice_answer, fixed_run
from finegauge.answers.estimate import GpuVerdict, gpu_estimate, gpu_verdict
from finegauge.documents import read_bytes
from finegauge.errors import FileFormatError
from finegauge.formats.evidence import FAILURES, MAX_BYTES, Evidence, text_evidence
from finegauge.formats.plain_pickle import snapshot_evidence
from finegauge.planning.advice import advise
from finegauge.planning.diagnosis import (
    Level,
    Room,
    diagnosed,
    moment_of,
    observed_bytes,
    room_of,
    tensors_of,
    to_fit,
)
from finegauge.planning.estimate import estimate
from finegauge.prediction.uncertainty import FITS
from finegauge.records import NamedTuple
from finegauge.run.run import Run

Cause = Literal[
    "as_predicted", "inactive_option", "smaller_device", "other_processes", "fragmentation",
    "more_than_predicted", "less_than_predicted", "not_weighed", "not_memory",
]  # fmt: skip
NOT_OF_TEXTS = bytes({*range(32)} - {*b"\a\b\t\n\v\f\r\x1b"})  # but of terminals
OF_MEMORY = ("device_memory", "host_memory", "disk")


@Rules(flat=("evidence",))
class EvidenceAnswer(NamedTuple):
    """One piece of evidence: what failed at which moment, and what explains its figures."""

    evidence: Evidence
    is_inferred: bool  # the moment: from the prediction, for the text does not tell
    observed_bytes: float | None  # needed at least
    tensors: tuple[str, ...]  # of the run, that have the size that was asked for
    levels: tuple[Level, ...]  # as configured; then with options not active that explain the figures
    room: Room
    cause: Cause


@Rules(absent=("advice", "fixed"))
class WhyAnswer(NamedTuple):
    """Why a run failed, by each piece of evidence, the gravest first; what makes it fit."""

    run: Run
    predicted: GpuVerdict
    evidence: tuple[EvidenceAnswer, ...]
    advice: AdviceAnswer | None = None
    fixed: Fixed | None = None


def read_evidence(path: str) -> Evidence:
    """Return what a file tells: a text, or a memory snapshot of PyTorch.

    Raises: FileFormatError for a file that tells nothing about memory, time or a failure.
    """
    data, name = read_bytes(path, MAX_BYTES), os.path.basename(path)
    if data[:1] == b"\x80":
        return snapshot_evidence(data, name)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # as PowerShell's > writes
        data = data.decode("utf-16", errors="replace").encode()
    data = data.replace(b"\0", b"")  # which PyTorch's signal handlers print, and truncated logs begin with
    if len(data[:100_000].translate(None, NOT_OF_TEXTS)) < 0.99 * len(data[:100_000]):
        raise FileFormatError(f"{name} is binary: neither a text nor a memory snapshot of PyTorch.")
    return text_evidence(data.decode("utf-8", errors="replace"), name)


def why_answer(
    run: Run, pieces: Sequence[Evidence], *, recipe: str = "", folder: str = "", overwrite: bool = False
) -> WhyAnswer:
    """Return why `run`, which states its GPU, failed; with a `folder`, written there with what makes it fit.

    Raises: InputError where files are there already.
    """
    grave = _gravest_first(pieces)
    found = tuple(_weighed(run, one) for one in grave)
    base = run
    for one, answer in zip(grave, found, strict=True):
        if one.failure in OF_MEMORY or answer.cause in ("inactive_option", "more_than_predicted"):
            base = to_fit(run, one, answer.levels)
            break
    predicted = gpu_verdict(gpu_estimate(estimate(run)))
    told = predicted if base is run else gpu_verdict(gpu_estimate(estimate(base)))
    elsewhere = bool(found) and all(
        one.cause == "not_memory" or one.evidence.failure in ("host_memory", "disk", "killed")
        for one in found
    )  # not on the GPU, which is what changes are told for where the host's memory is not known
    if told.verdict == FITS or (elsewhere and base is run):
        return WhyAnswer(run, predicted, found)
    advice = advise(base)
    fixed = fixed_run(base, advice, folder, recipe=recipe, overwrite=overwrite) if folder else None
    return WhyAnswer(run, predicted, found, advice_answer(advice), fixed)


def _gravest_first(pieces: Sequence[Evidence]) -> list[Evidence]:
    """Return the pieces; a kernel's word on a process that a log shows killed is one with that log."""
    killed = next((one for one in pieces if one.failure == "killed"), None)
    killer = next((one for one in pieces if one.failure == "host_memory" and not one.moment), None)
    if killed and killer:
        both = killed._replace(failure="host_memory", says=killer.says, host_bytes=killer.host_bytes)
        both = both._replace(name=f"{killed.name}, {killer.name}")
        pieces = [both, *(one for one in pieces if one not in (killed, killer))]
    return sorted(pieces, key=lambda one: [*FAILURES.names, ""].index(one.failure))


def _weighed(run: Run, one: Evidence) -> EvidenceAnswer:
    failure = one.failure
    if failure == "killed":  # signal 9, by the OOM killer or by a person: host memory is compared
        one = one._replace(failure="host_memory")
    inferred = one.failure == "device_memory" and not one.moment
    if inferred:
        moment, stage = moment_of(run, one)
        one = one._replace(moment=moment, stage=stage)
    is_memory = one.failure in OF_MEMORY or bool(one.peak_bytes)
    levels = diagnosed(run, one) if is_memory else ()
    tensors = tensors_of(run, one) if is_memory else ()
    if one.stage == "forward" and tensors and tensors[0].startswith("the logits"):
        one = one._replace(stage="loss")  # of a compiled step, whose frames do not tell
    room = room_of(run, one)
    return EvidenceAnswer(
        evidence=one._replace(failure=failure),
        is_inferred=inferred,
        observed_bytes=observed_bytes(one) or None,
        tensors=tensors,
        levels=levels,
        room=room,
        cause=_cause(one, levels, room),
    )


def _cause(one: Evidence, levels: tuple[Level, ...], room: Room) -> Cause:
    if not levels:
        return "not_memory"
    first, *ways = levels
    excess = observed_bytes(one) - first.peak_bytes
    causes: tuple[tuple[Cause, bool], ...] = (
        ("smaller_device", room.total_bytes is not None),
        ("other_processes", (room.others_bytes or 0.0) > max(0.0, excess)),  # the larger part of what lacks
        ("inactive_option", bool(ways)),
        ("other_processes", room.others_bytes is not None),
        ("fragmentation", (room.unallocated_bytes or 0.0) > max(0.0, excess)),
        ("not_weighed", first.explains is None), ("as_predicted", bool(first.explains)),
        ("more_than_predicted", excess > 0.0), ("less_than_predicted", True),
    )  # fmt: skip
    return next(cause for cause, holds in causes if holds)
