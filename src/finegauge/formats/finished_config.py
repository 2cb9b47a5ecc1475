"""The run that a finished training was, by what lies beside its logs.

In this order: the training file of torchtune or ms-swift in its folder, or a file in or beside the folder
whose output_dir is this folder; else the arguments that transformers' Trainer keeps: training_args.bin, or
the settings that TensorBoard, Weights & Biases or MLflow were told. training_args.bin is a pickle in a zip
file; its instructions are read and none is carried out (`plain_pickle`). The model is config.json or
adapter_config.json beside it. Lengths are those that the trainer counted, where it did.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from finegauge.errors import FineGaugeError, InputError
from finegauge.formats import key_table
from finegauge.formats.finished_runs import (
    Figures,
    mapping_of,
    model_beside,
    own_keys,
    read_arguments,
    saved_file,
)
from finegauge.formats.measurement_rows import CUT_OFF, FULL, Mean, varied_lengths
from finegauge.formats.measurement_tables import Measured, MeasuredRow
from finegauge.formats.reading import framework_of, read
from finegauge.formats.run_argument import ARGUMENTS
from finegauge.run.run import Run
from finegauge.units import GIB

MAX_FILES = 200
WHOLE_FRACTION = 0.98  # of seq_len that counts as all of it
NO_TIME = "its logs tell no time of a step: log to TensorBoard or W&B, or end with trainer.save_state()"
UNCOUNTED = "every sequence is seq_len long (the trainer did not count tokens)"
_OWN_FILES = ("torchtune_config.yaml", "args.json")
_TRAINING_FILES = (".yaml", ".yml", ".json")


def finished_row(found: Figures, words: Iterable[str] = (), gpu: str = "") -> MeasuredRow:
    """Return a finished training as a row of measurements; `words` are key=value of the command line.

    `gpu` is the GPU that it ran on, where its logs do not say.
    """
    run, reason, assumptions = None, "", list[str]()
    try:
        run = _with_lengths(_run_of(found, tuple(words), gpu), found, assumptions)
        run.check_names()
    except FineGaugeError as error:
        run, reason = None, "; ".join((*found.problems, str(error)))
    seconds = (found if run is None else found._replace(num_gpus=run.num_gpus)).step_time_s
    rates = sorted(found.tokens_per_s[1:] or found.tokens_per_s)  # the first step warms up
    metric = next((name for name in ("torch_allocated", "torch_reserved", "nvidia_smi")
                   if found.memory_bytes.get(name)), "unknown")  # fmt: skip
    if run is not None and run.gpu is None:
        reason, run = "nothing says on which GPU it ran; add --gpu NAME, or --gpu here", None
    if run is not None and seconds is None and not rates:
        reason, run = "; ".join((*found.problems, NO_TIME)), None
    return MeasuredRow(
        id=os.path.basename(os.path.normpath(found.folder)),
        source="finished runs",
        run=run,
        reason=reason,
        defaults=(),
        assumptions=tuple(assumptions),
        lengths=CUT_OFF if assumptions else FULL,
        measured=Measured(
            tokens_per_s_per_gpu=rates[len(rates) // 2] if rates and seconds is None else None,
            samples_per_s=None,
            step_time_s=seconds,
            step_is_micro_batch=False,
            peak_memory_gib=found.memory_bytes[metric] / GIB if metric != "unknown" else None,
            memory_metric=metric,
            outcome="ok",
        ),
    )


def _run_of(found: Figures, words: tuple[str, ...], gpu: str) -> Run:
    """Return the run of a training; raise FineGaugeError where nothing describes it."""
    stated = {word.partition("=")[0] for word in words}
    name = gpu or found.gpu
    if name and "gpu" not in stated:
        words = (*words, f"gpu={name}")
    if found.num_gpus > 1 and "num_gpus" not in stated and not saved_file(found.folder, ARGUMENTS):
        words = (*words, f"num_gpus={found.num_gpus}")
    for file in _training_files(found.folder):
        return _of_file(file, found.folder, words, stated)
    file = saved_file(found.folder, ARGUMENTS)
    keys, trainer = read_arguments(file) if file else (found.settings, found.trainer)
    if not keys:
        raise InputError(
            "nothing says what was trained: no training_args.bin, no settings in its logs, and no training "
            "file whose output_dir it is"
        )
    return _of_arguments(keys, trainer, found.folder, words)


def _of_file(file: str, folder: str, words: tuple[str, ...], stated: set[str]) -> Run:
    """Return the run of a training file; its model is the one saved beside where that is no longer found."""
    keys = mapping_of(file)
    if os.path.basename(file) == "args.json":
        from finegauge.formats import ms_swift

        format_, stored = ms_swift.FORMAT, dict(keys)
        if keys.get("use_cpu"):
            stored.pop("fp16", None)  # which accelerate does on no processor
        told = {name: value for name, value in stored.items() if value not in (None, [], "")}
        kept = dict(format_.adapt({name: told[name] for name in told if name in format_.keys}))
    elif keys.get("device") == "cpu" and (known := framework_of(file)) is not None:
        format_, stored = known[0], dict(known[1])
        kept = {name: value for name, value in stored.items() if name != "device"}  # which --gpu here may be
    else:
        return _run_read(lambda more: read(file, (*words, *more)), folder, stated)
    return _run_read(lambda more: key_table.read(format_, kept, file, (*words, *more)), folder, stated)


def _run_read(reader: Any, folder: str, stated: set[str]) -> Run:
    try:
        run: Run = reader(())
        run.check_names()
    except FineGaugeError:
        if "model" in stated or not (model := model_beside(folder)):
            raise
        run = reader((f"model={model}",))
    return run


def _training_files(folder: str) -> Iterator[str]:
    """Yield the training files of an output folder: its own, then those that name it."""
    yield from filter(None, (saved_file(folder, name) for name in _OWN_FILES))
    own = os.path.basename(os.path.normpath(folder))
    for place in (folder, os.path.dirname(os.path.normpath(folder))):
        with suppress(OSError):
            for name in sorted(os.listdir(place))[:MAX_FILES]:
                file = os.path.join(place, name)
                if name.endswith(_TRAINING_FILES) and os.path.isfile(file):
                    out = str(mapping_of(file).get("output_dir", ""))
                    if out and os.path.basename(os.path.normpath(out)) == own:
                        yield file


def _of_arguments(keys: Mapping[str, Any], trainer: str, folder: str, words: tuple[str, ...]) -> Run:
    """Return the run of a Trainer's arguments, with the model that lies beside them."""
    format_, own = own_keys(keys, trainer, folder)
    if not own["model_name_or_path"] and "model" not in {word.partition("=")[0] for word in words}:
        raise InputError("nothing says which model was trained; add model=NAME")
    return key_table.read(format_, own, os.path.join(folder, ARGUMENTS), words)


def _with_lengths(run: Run, found: Figures, assumptions: list[str]) -> Run:
    """Return the run with the lengths that its trainer counted; what is guessed goes into `assumptions`."""
    if run.packing or run.padding == "max":
        return run
    tokens = found.tokens_per_step
    if tokens is None:
        if run.dataset is None or not _counted(run):
            assumptions.append(UNCOUNTED)
            return run.replace(dataset=None) if run.dataset is not None else run
        return run
    mean = tokens / run.global_batch_size
    if mean >= WHOLE_FRACTION * run.seq_len or found.is_alike:
        return run.replace(dataset=None, tokenizer=None, seq_len=min(run.seq_len, round(mean)))
    cells = {"kernels": "", "notes": "", "micro_batch_size": str(run.micro_batch_size)}
    lengths = varied_lengths(cells, Mean(max(1, round(mean)), counts_padding=found.counts_padding))
    return run.replace(**{**lengths, "seq_len": min(run.seq_len, lengths["seq_len"]), "tokenizer": None})


def _counted(run: Run) -> bool:
    """Return whether the lengths of a run's data set are known here."""
    from finegauge.catalogue.datasets import dataset

    with suppress(FineGaugeError):
        return dataset(str(run.dataset)).kind == "histogram"
    return False
