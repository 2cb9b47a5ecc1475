"""The run that a finished training was, by what lies beside its logs.

In this order: the training file of torchtune or ms-swift in its folder, or a file in or beside the folder
whose output_dir is this folder; else the arguments that transformers' Trainer keeps: training_args.bin, or
the settings that TensorBoard, Weights & Biases or MLflow were told. training_args.bin is a pickle in a zip
file; its instructions are read and none is carried out (`plain_pickle`). The model is config.json or
adapter_config.json beside it. Lengths are those that the trainer counted, where it did.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from finegauge.documents import parse_json, parse_yaml, read_bytes, read_text
from finegauge.errors import FileFormatError, FineGaugeError, InputError
from finegauge.formats import key_table, trl
from finegauge.formats.finished_runs import Figures
from finegauge.formats.measurement_rows import CUT_OFF, FULL, Mean, stated_sizes, varied_lengths
from finegauge.formats.measurement_tables import Measured, MeasuredRow
from finegauge.formats.plain_pickle import Named, plain_pickle
from finegauge.formats.reading import framework_of, read
from finegauge.run.run import Run
from finegauge.units import GIB

ARGUMENTS = "training_args.bin"
MAX_BYTES = 5_000_000
MAX_FILES = 200
WHOLE_FRACTION = 0.98  # of seq_len that counts as all of it
NO_TIME = "its logs tell no time of a step: log to TensorBoard or W&B, or end with trainer.save_state()"
UNCOUNTED = "every sequence is seq_len long (the trainer did not count tokens)"
_OWN_FILES = ("torchtune_config.yaml", "args.json")
_TRAINING_FILES = (".yaml", ".yml", ".json")
_TRAINERS = {  # by the package that the class of the arguments is from
    "trl": "TRL", "llamafactory": "LLaMA-Factory", "swift": "ms-swift", "axolotl": "Axolotl",
}  # fmt: skip


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
    if found.num_gpus > 1 and "num_gpus" not in stated and not _saved(found.folder, ARGUMENTS):
        words = (*words, f"num_gpus={found.num_gpus}")
    for file in _training_files(found.folder):
        return _of_file(file, found.folder, words, stated)
    file = _saved(found.folder, ARGUMENTS)
    keys, trainer = read_arguments(file) if file else (found.settings, found.trainer)
    if not keys:
        raise InputError(
            "nothing says what was trained: no training_args.bin, no settings in its logs, and no training "
            "file whose output_dir it is"
        )
    return _of_arguments(keys, trainer, found.folder, words)


def _of_file(file: str, folder: str, words: tuple[str, ...], stated: set[str]) -> Run:
    """Return the run of a training file; its model is the one saved beside where that is no longer found."""
    keys = _mapping(file)
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
        if "model" in stated or not (model := _model(folder)):
            raise
        run = reader((f"model={model}",))
    return run


def _training_files(folder: str) -> Iterator[str]:
    """Yield the training files of an output folder: its own, then those that name it."""
    yield from filter(None, (_saved(folder, name) for name in _OWN_FILES))
    own = os.path.basename(os.path.normpath(folder))
    for place in (folder, os.path.dirname(os.path.normpath(folder))):
        with suppress(OSError):
            for name in sorted(os.listdir(place))[:MAX_FILES]:
                file = os.path.join(place, name)
                if name.endswith(_TRAINING_FILES) and os.path.isfile(file):
                    out = str(_mapping(file).get("output_dir", ""))
                    if out and os.path.basename(os.path.normpath(out)) == own:
                        yield file


def _mapping(file: str) -> Mapping[str, Any]:
    """Return the keys of a file; {} of one that holds none or cannot be read."""
    with suppress(FileFormatError):
        text = read_text(file)
        if file.endswith(".json"):
            found = parse_json(text, os.path.basename(file))
        else:
            found = parse_yaml(text, os.path.basename(file)) if "output_dir" in text else None
        return found if isinstance(found, dict) else {}
    return {}


def _checkpoints(folder: str) -> list[str]:
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if re.fullmatch(r"(checkpoint-|epoch_)\d{1,9}", name)]
        newest = sorted(names, key=lambda name: -int(re.split(r"[-_]", name)[-1]))
        return [os.path.join(folder, name) for name in newest]
    return []


def _saved(folder: str, name: str) -> str:
    """Return the file of that name in an output folder, else in its newest checkpoint; "" where none is."""
    files = (os.path.join(place, name) for place in (folder, *_checkpoints(folder)))
    return next(filter(os.path.isfile, files), "")


def _model(folder: str) -> str:
    """Return the folder with the model's config.json; "" where there is none."""
    return os.path.dirname(_saved(folder, "config.json"))


def read_arguments(file: str) -> tuple[Mapping[str, Any], str]:
    """Return what a training_args.bin holds, and which trainer its class is of; nothing of it is run.

    Raises: FileFormatError for a file that is none.
    """
    name = os.path.basename(file)
    read_bytes(file, MAX_BYTES)  # a regular file, and not too large
    try:
        with zipfile.ZipFile(file) as archive:
            inside = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if inside.file_size > MAX_BYTES:
                raise FileFormatError(f"{name} holds a pickle of {inside.file_size / 1e6:,.0f} MB.")
            with archive.open(inside) as stream:
                data = stream.read(MAX_BYTES)
    except (zipfile.BadZipFile, StopIteration, RuntimeError, OSError, ValueError, EOFError):
        raise FileFormatError(f"{name} is no file that torch.save wrote.") from None
    made = plain_pickle(data, name, named=True)
    if not isinstance(made, Named) or "per_device_train_batch_size" not in made.attributes:
        raise FileFormatError(f"{name} holds no arguments of a trainer.")
    keys = {key: _plain(value) for key, value in made.attributes.items()}
    state = made.attributes.get("distributed_state")
    ranks = state.attributes.get("num_processes") if isinstance(state, Named) else None
    if isinstance(ranks, int) and ranks > 1:
        keys["num_processes"] = ranks
    return keys, _TRAINERS.get(made.name.partition(".")[0], "")


def _plain(value: Any) -> Any:
    """Return a value of the arguments: of an enumeration its word, of a number format its name."""
    if not isinstance(value, Named):
        return value
    if len(value.arguments) == 1 and isinstance(value.arguments[0], str):
        return value.arguments[0]
    return value.name.removeprefix("torch.") if value.name.startswith("torch.") else None


def _of_arguments(keys: Mapping[str, Any], trainer: str, folder: str, words: tuple[str, ...]) -> Run:
    """Return the run of a Trainer's arguments, with the model that lies beside them."""
    format_ = trl.FORMAT if trainer == "TRL" or {"max_length", "packing"} <= keys.keys() else trl.TRAINER
    own = {name: keys[name] for name in format_.keys if keys.get(name) not in (None, "", [], {})}
    if str(keys.get("use_cpu", "")) == "True":
        own.pop("fp16", None)
    stated = {word.partition("=")[0] for word in words}
    adapters, peft = _saved(folder, "adapter_config.json"), keys.get("peft_config")
    if adapters:
        own |= trl.of_adapter(_mapping(adapters))
    elif isinstance(peft, Mapping) and isinstance(first := next(iter(peft.values()), None), Mapping):
        own |= trl.of_adapter(first)
    model = own.get("model_name_or_path") or _model(folder) or keys.get("_name_or_path") or ""
    elsewhere = not model or (os.path.isabs(str(model)) and not os.path.exists(str(model)))
    if elsewhere and "model_type" in keys and "model" not in stated:  # its configuration was logged
        model = stated_sizes(json.dumps(keys, default=str, sort_keys=True))
    own["model_name_or_path"] = model
    own = {name: own[name] for name in own if name in format_.keys}
    if dtype := _saved_dtype(str(model), keys):
        own.setdefault("dtype", dtype)
    if keys.get("num_processes") and "num_gpus" not in stated:
        words = (*words, f"num_gpus={keys['num_processes']}")
    if not model and "model" not in stated:
        raise InputError("nothing says which model was trained; add model=NAME")
    run = key_table.read(format_, own, os.path.join(folder, ARGUMENTS), words)
    return run.replace(framework=trainer) if trainer and trainer != "TRL" else run


def _saved_dtype(model: str, keys: Mapping[str, Any]) -> str:
    """Return the number format of the weights in training, as the model's configuration states it."""
    config = _mapping(os.path.join(model, "config.json")) if os.path.isdir(model) else keys
    found = config.get("dtype") or config.get("torch_dtype")
    return str(found).removeprefix("torch.") if isinstance(found, str) else ""


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
