"""The runs that a question is about: one per GPU, its texts counted."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from finegauge.errors import InputError

if TYPE_CHECKING:
    from finegauge.progress import Heard
    from finegauge.run.run import Run

# Asked about where neither the run nor the question names one: from a cheap card to a large one.
COMMON_GPUS = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200")


def on_gpus(run: "Run", names: Iterable[str], *, common: bool = True) -> list["Run"]:
    """Return `run` once per GPU named; else on its own, else on the common ones, where that is allowed."""
    names = list(names)
    if not names and run.gpu:
        return [run.replace(origin=run.origins["gpu"], gpu=_canonical(run.gpu))]
    if not names and not common:
        raise InputError(
            "No GPU is stated: add --gpu a100-80gb, or 'gpu: A100-SXM4-80GB' to the run; "
            "'finegauge gpus' lists them."
        )
    chosen = dict.fromkeys(_canonical(name) for name in names or COMMON_GPUS)
    origin = "command line" if names else "one of the common GPUs"
    return [run.replace(origin=origin, gpu=name) for name in chosen]


def _canonical(name: str) -> str:
    """Return the catalogue's name of a GPU, or the path of the user's own file of one."""
    from finegauge.catalogue.gpus import gpu, is_file

    spec = gpu(name)
    return name if is_file(name) else spec.name


def states_texts(run: "Run") -> bool:
    """Return whether the data set of `run` is one of texts, which its tokenizer can count."""
    from finegauge.catalogue.datasets import holds_texts

    known = run.dataset is not None and run.tokenizer is not None
    return known and holds_texts(str(run.dataset), has_tokenizer=True)


def with_counted_texts(run: "Run", heard: "Heard | None" = None) -> "Run":
    """Count the texts of a run's data set; return the run, warning of what was left out.

    Who asks for its lengths later finds them counted.
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
