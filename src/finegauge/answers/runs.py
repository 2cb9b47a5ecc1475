"""The runs to answer for: one per GPU, with the tokens of its texts counted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from finegauge.catalogue.gpus import THIS, counted, gpu, gpus, is_file, smaller, this_gpu
from finegauge.errors import InputError, UnsupportedError
from finegauge.run.run import (
    FROM_COMMAND_LINE,
    FROM_COPY_TOO_LARGE,
    FROM_DEFAULT,
    FROM_MODEL_ALONE,
    FROM_MODEL_TOO_LARGE,
    FROM_THIS_MACHINE,
    Run,
)

if TYPE_CHECKING:
    from finegauge.progress import Heard

Unnamed = Literal["all", "one", "none"]
FROM_COMMON = "one of the common GPUs"
# Used where neither the run nor the question names one: from a cheap card to a large one.
COMMON_GPUS = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200")


def on_gpus(run: Run, names: Iterable[str], *, unnamed: Unnamed = "all") -> list[Run]:
    """Return `run` once per GPU named; else on its own, else on those of the common ones that `unnamed` says.

    One is the first that the run is safe on, else the largest; none is an error. A name may say how many:
    h100:8, 8xh100. "this" is the GPU of this machine, with what is free on it. Where a model alone was
    asked about and does not fit as assumed, it is sharded over its GPUs or trained by QLoRA; origins say so.
    """
    names = list(names)
    if not names and run.gpu:
        return [_on(run, run.gpu, run.origins["gpu"])]
    if not names and unnamed == "none":
        raise InputError(
            "No GPU is stated: add --gpu a100-80gb, or 'gpu: A100-SXM4-80GB' to the run; "
            "'finegauge gpus' lists them."
        )
    origin = FROM_COMMAND_LINE if names else FROM_COMMON
    found = [_on(run, name, origin) for name in names or COMMON_GPUS]
    if not names and unnamed == "one":
        return [next(filter(_is_safe, found), found[-1])]
    return list(dict.fromkeys(found))


def on_this_machine(run: Run) -> Run | None:
    """Return `run` on the GPU of this machine; None where it names one, or the machine has none."""
    if run.gpu:
        return None
    try:
        this_gpu(run.num_gpus)
    except (InputError, UnsupportedError):  # none, too few, several kinds, or one that the catalogue lacks
        return None
    return _on(run, THIS, FROM_THIS_MACHINE)


def _on(run: Run, name: str, origin: str) -> Run:
    name, number = counted(name)
    changes: dict[str, Any] = {} if number is None else {"num_gpus": number}
    if name.casefold() == THIS:
        name, free_bytes = this_gpu(number or run.num_gpus)
        run = run.replace(origin=origin, gpu=name, **changes)
        return _that_fits(run.replace(origin=FROM_THIS_MACHINE, free_memory_bytes=free_bytes))
    spec = gpu(name)
    if less := smaller(name, spec):
        origin = f"default of a name with several sizes: name {less} for that"
    changes["gpu"] = name if is_file(name) else spec.name
    return _that_fits(run.replace(origin=origin, **changes))


def _that_fits(run: Run) -> Run:
    """Return `run`; of a model alone that does not fit, sharded over its GPUs or with weights in 4 bits."""
    if FROM_MODEL_ALONE not in run.origins.values():
        return run
    tried = [run]
    if (
        run.sharding == "none"
        and run.origins["sharding"] == FROM_DEFAULT
        and 1 < run.num_gpus == run.data_parallel
    ):
        tried.append(run.replace(origin=FROM_COPY_TOO_LARGE, sharding="fsdp", sync_each_batch=True))
    if run.method == "lora" and run.origins["method"] == FROM_MODEL_ALONE:
        tried += [one.replace(origin=FROM_MODEL_TOO_LARGE, method="qlora") for one in tried]
    return next(filter(_is_safe, tried), tried[-1]) if len(tried) > 1 else run


def gpu_of_size(total_bytes: float) -> str:
    """Return the GPU with that much memory, as PyTorch counts it, a common one if there is; "" for none."""
    near = [one for one in gpus().values() if abs(one.usable_bytes / total_bytes - 1.0) < 0.02]
    common = {gpu(name).name for name in COMMON_GPUS}
    near.sort(key=lambda one: (one.name not in common, abs(one.usable_bytes - total_bytes)))
    return near[0].name if near else ""


def _is_safe(run: Run) -> bool:
    from finegauge.prediction.predictor import needed, predict_memory
    from finegauge.prediction.uncertainty import is_safe

    try:
        return is_safe(needed(run))
    except UnsupportedError:  # of a GPU whose rates are not published, memory alone is known
        return predict_memory(run).outcome == "completed"


def states_texts(run: Run) -> bool:
    """Return whether the data set of `run` is one of texts, which its tokenizer can count."""
    from finegauge.catalogue.datasets import holds_texts

    known = run.dataset is not None and run.tokenizer is not None
    return known and holds_texts(str(run.dataset), has_tokenizer=True)


def with_counted_texts(run: Run, heard: "Heard | None" = None) -> Run:
    """Count the texts of a run's data set; return the run, warning of what was left out.

    The lengths are cached, and read again without counting.
    """
    from finegauge.data.token_lengths import token_lengths

    found = token_lengths(str(run.dataset), str(run.tokenizer), heard=heard).findings
    if not found.num_unreadable:
        return run
    left_out = (
        f"{run.dataset}: {found.num_unreadable:,} of {found.num_rows:,} {found.row_name}s are unreadable and "
        f"left out; 'finegauge data' says which and why."
    )
    stated = run.stated_fields()
    origins = {name: run.origins[name] for name in stated}
    return type(run).from_fields(stated, origins, (*run.warnings, left_out))
