"""What FineGauge predicts for the machine it runs on: by device profile or datasheet, or memory alone."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from finegauge.catalogue.device_profile import KIND, SCHEMA_VERSION, shelf_path
from finegauge.catalogue.documents import write_document
from finegauge.catalogue.gpus import known_gpu
from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.plan.capacity import Estimator
from finegauge.profile import Path, Profile

if TYPE_CHECKING:
    from finegauge.predict.work import Work
    from finegauge.workload.run import Run

NO_READINGS = "Time is not predicted: this machine has no device profile yet; run 'finegauge micro' once."


class Prediction(NamedTuple):
    """What the prediction says, and how it came about."""

    profile: Profile | None
    formulas: Mapping[Path, str]
    work: "Mapping[Path, Work]"  # what each path of the step time computes and moves
    missing: str = ""  # why there is none, or what it lacks


def prediction_for(run: "Run", device: str, device_name: str = "") -> Prediction:
    """Return what is predicted for `run` on this machine's device.

    Args:
        run: The question; the GPU it names does not matter where this machine's is known.
        device: cpu or cuda.
        device_name: What a GPU calls itself.
    """
    path = shelf_path(device)
    try:
        if os.path.isfile(path):
            return _whole_or_memory(run.replace(gpu=path))
        if device == "cpu":
            with _unmeasured() as stub:
                return _memory(run.replace(gpu=stub), NO_READINGS)
        known = known_gpu(device_name) if device_name else None
        if known is None and run.gpu is None:
            raise UnsupportedError(f"the catalogue has no GPU named '{device_name}'; add gpu=NAME.")
        return _whole(run.replace(gpu=known.name) if known else run)
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


def prediction_elsewhere(run: "Run") -> Prediction:
    """Return what is predicted for `run` on the GPU that it names: another machine measures it."""
    if run.gpu is None:
        return Prediction(None, {}, {}, "Not predicted: add gpu=NAME, the GPU that the endpoint runs on.")
    try:
        return _whole(run)
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


@contextmanager
def memory_estimator(run: "Run", device: str) -> Iterator[Estimator]:
    """Yield what predicts the memory of runs on this machine's device, which needs no readings of it.

    Raises: UnsupportedError for a GPU that neither a device profile nor the run names.
    """
    from finegauge.predict.memory_alone import predict_memory

    with _gpu_here(run, device) as gpu:
        yield lambda asked: predict_memory(asked.replace(gpu=gpu))


@contextmanager
def _gpu_here(run: "Run", device: str) -> Iterator[str]:
    """Yield a name for this machine's device, whose memory at least is known."""
    path = shelf_path(device)
    if os.path.isfile(path) or (device == "cuda" and run.gpu is not None):
        yield path if os.path.isfile(path) else str(run.gpu)
    elif device == "cpu":
        with _unmeasured() as stub:
            yield stub
    else:
        raise UnsupportedError(
            "Which GPU this machine has is not known: add gpu=NAME, or run 'finegauge micro --device cuda'."
        )


def _whole_or_memory(run: "Run") -> Prediction:
    """Return the prediction by a device profile; of memory alone where it lacks the run's number format."""
    try:
        return _whole(run)
    except UnsupportedError as error:
        return _memory(run, f"Time is not predicted: {error}")


def _whole(run: "Run") -> Prediction:
    """Return the prediction of memory and time."""
    from finegauge.predict import predict
    from finegauge.predict.work import work_of

    return Prediction(predict(run), _formulas(run), work_of(run))


def _memory(run: "Run", missing: str) -> Prediction:
    """Return the prediction of memory alone, and why there is no more."""
    from finegauge.predict.memory_alone import predict_memory

    return Prediction(predict_memory(run), _formulas(run), {}, missing)


def _formulas(run: "Run") -> Mapping[Path, str]:
    """Return the arithmetic behind a prediction."""
    from finegauge.predict.formulas import formulas

    try:
        return formulas(run)
    except UnsupportedError:
        return {}


@contextmanager
def _unmeasured() -> Iterator[str]:
    """Yield a device profile of this machine's processor in which nothing but its memory is known."""
    memory_bytes = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    nothing = {
        "operator": "add", "dtype": "fp32", "direction": "forward", "sizes": {"rows": 1, "width": 1},
        "seconds": 1.0,
    }  # fmt: skip
    profile = {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "name": "this processor", "device": "cpu",
        "memory_bytes": memory_bytes, "usable_bytes": memory_bytes, "readings": [nothing], "host": {},
    }  # fmt: skip
    with TemporaryDirectory(prefix="finegauge-") as folder:
        path = os.path.join(folder, "cpu.json")
        write_document(profile, path)
        yield path
