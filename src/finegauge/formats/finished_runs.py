"""What finished trainings left in their folders: step times, tokens and memory, by whatever logged them.

Read are trainer_state.json of transformers' Trainer, TensorBoard's event files, Weights & Biases (offline
folders, and history exported as CSV), MLflow's file stores, trainer_log.jsonl (LLaMA-Factory), logging.jsonl
(ms-swift), and log_*.txt (torchtune). The settings that they logged beside the figures are kept for
`finished_config`. A step's seconds are the median between logged steps, so that evaluations, saves and the
first step do not count; Axolotl logs the rate of tokens since the log before. Where nothing
has a clock, it is the whole training over its steps.

Sources: transformers 5.23, integrations/integration_utils.py and trainer_callback.py; TRL 1.16; torchtune
0.6.1, training/metric_logging.py; LLaMA-Factory 0.9.5, train/callbacks.py; ms-swift 4.6, callbacks; MLflow
3.17, store/tracking/file_store.py; tensorboard 2.21, compat/proto (read 2026-11-23).
"""

import json
import os
import re
import zipfile
from ast import literal_eval
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any

from finegauge.documents import parse_csv, parse_json, parse_yaml, read_bytes, read_text
from finegauge.errors import FileFormatError
from finegauge.formats import trl
from finegauge.formats.key_table import Format
from finegauge.formats.plain_pickle import Named, plain_pickle
from finegauge.formats.sheet import BLOCK
from finegauge.formats.training_events import (
    EVENT_FILE,
    MAX_STEPS,
    fields,
    files_below,
    json_value,
    read_records,
    records,
)
from finegauge.records import NamedTuple
from finegauge.units import GIB

MAX_BYTES, MAX_PICKLE_BYTES = 50_000_000, 5_000_000
MAX_LINES = 500_000
MAX_FOLDERS, MAX_DEPTH = 5_000, 6
MAX_PARAMS = 2_000
MIN_STEPS = 3  # steps of which a median says something
_INNER = re.compile(r"checkpoint-\d+|epoch_\d+|runs?|logs?|wandb|files|(offline-)?run-\d{8}_.*|images")
_EXPORT = re.compile(r"wandb.*\.csv|.*history.*\.csv", re.IGNORECASE)
_FIGURE = re.compile(r"([A-Za-z_][\w/.()-]*):(-?[\d.]+(?:[eE][+-]?\d+)?)\b")
_CLOCK = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,4}):(\d\d):(\d\d)")
_SPOKEN_S = re.compile(r"(?:(\d+)d ?)?(?:(\d+)h ?)?(?:(\d+)m ?)?(?:([\d.]+)s)?")
# ends of names of logged figures: how the memory is counted, and bytes of one
_MEMORY = {
    "peak_memory_alloc": ("torch_allocated", GIB), "max_allocated (gib)": ("torch_allocated", GIB),
    "max_allocated(gib)": ("torch_allocated", GIB), "max_memory_allocated": ("torch_allocated", 1.0),
    "peak_memory_reserved": ("torch_reserved", GIB), "device_reserved (gib)": ("torch_reserved", GIB),
    "device_reserved(gib)": ("torch_reserved", GIB), "memory(gib)": ("torch_reserved", GIB),
    "memoryallocatedbytes": ("nvidia_smi", 1.0),
}  # fmt: skip
_TOKENS = ("num_input_tokens_seen", "num_tokens", "tokens/total")
_TRAINERS = {  # by the package that the class of the arguments is from
    "trl": "TRL", "llamafactory": "LLaMA-Factory", "swift": "ms-swift", "axolotl": "Axolotl",
}  # fmt: skip
_TRAINED, _RATE = "tokens/trainable", "tokens/train_per_sec_per_gpu"  # Axolotl's, since the log before


class Figures(NamedTuple):
    """What one finished training logged."""

    folder: str
    read: tuple[str, ...] = ()  # names of what was read
    wall_s: Mapping[int, float] = {}  # of steps, by a clock
    whole_s: float = 0.0  # of the whole training
    steps: int = 0
    tokens: Mapping[int, float] = {}  # seen until a step
    tokens_per_s: tuple[float, ...] = ()  # of one GPU, by step
    gpu_s: Mapping[int, float] = {}  # of all GPUs added up, of a step
    counts_padding: bool = False  # the tokens do
    memory_bytes: Mapping[str, float] = {}  # the highest, by how it is counted
    settings: Mapping[str, Any] = {}  # that were logged beside them
    gpu: str = ""
    num_gpus: int = 0
    trainer: str = ""  # where a log is one's alone
    problems: tuple[str, ...] = ()  # files that could not be read

    @property
    def step_time_s(self) -> float | None:
        """Return the seconds of an optimizer step; None where nothing tells."""
        apart = [one for one in _by_step(self.wall_s) if one > 0]
        if len(apart) >= MIN_STEPS:
            return median(apart)
        if len(self.gpu_s) >= MIN_STEPS:
            return median(self.gpu_s.values()) / max(1, self.num_gpus)
        if self.whole_s > 0 and self.steps >= MIN_STEPS and not self.tokens_per_s:
            return self.whole_s / self.steps
        return None

    @property
    def tokens_per_step(self) -> float | None:
        """Return the tokens of a step of all GPUs; None where nobody counted."""
        last = max(self.tokens, default=0)
        return self.tokens[last] / last if last and self.tokens[last] > 0 else None

    @property
    def is_alike(self) -> bool:
        """Return whether every step had as many tokens: all sequences are of one length."""
        return len(self.tokens) > MIN_STEPS and len(set(_by_step(self.tokens))) == 1


def _by_step(until: Mapping[int, float]) -> list[float]:
    """Return what came on by each step between those that were logged."""
    return [
        (later - sooner) / (step - before)
        for (before, sooner), (step, later) in pairwise(sorted(until.items()))
    ]


def finished_in(path: str) -> list[Figures]:
    """Return the finished trainings in a folder and below it.

    Raises: FileFormatError where there is none.
    """
    if not os.path.isdir(path):
        raise FileFormatError(f"{os.path.basename(path) or path} is no folder of a finished training.")
    logs: dict[str, list[str]] = {}
    for file in files_below(
        path, lambda *named: _reader(*named) is not None, levels=MAX_DEPTH, folders=MAX_FOLDERS
    ):
        logs.setdefault(_home(file, path), []).append(file)
    found = [_figures(folder, files) for folder, files in sorted(logs.items())]
    told = [one for one in found if one.wall_s or one.steps or one.tokens_per_s or one.problems]
    if not told:
        raise FileFormatError(
            f"{os.path.basename(os.path.normpath(path))} holds no finished training: no trainer_state.json, "
            "TensorBoard, W&B or MLflow run, and no log of a trainer that is read."
        )
    return told


def _home(file: str, top: str) -> str:
    """Return the output folder of the training that a log belongs to."""
    folder = os.path.dirname(file)
    if os.path.basename(file) == "meta.yaml":
        folder = os.path.dirname(os.path.dirname(folder))  # of a run of an experiment
        return os.path.dirname(folder) if os.path.basename(folder) == "mlruns" else folder
    while os.path.normpath(folder) != os.path.normpath(top):
        name, above = os.path.basename(folder), os.path.dirname(folder)
        if not (_INNER.fullmatch(name) or os.path.basename(above) == "runs"):
            break
        folder = above
    return folder


def _reader(name: str, folder: str) -> Any:
    if name == "meta.yaml":
        return _of_mlflow if os.path.isdir(os.path.join(folder, "metrics")) else None
    exact = {"trainer_state.json": _of_state, "trainer_log.jsonl": _of_lines, "logging.jsonl": _of_lines}
    if name in exact:
        return exact[name]
    if name.startswith(EVENT_FILE):
        return _of_events
    if name.endswith(".wandb"):
        return _of_wandb
    if re.fullmatch(r"log_\d+\.txt", name):
        return _of_torchtune
    return _of_export if _EXPORT.fullmatch(name) else None


def _figures(folder: str, files: Iterable[str]) -> Figures:
    """Return what the logs of one training tell together; a log with a clock wins over one without."""
    found = Figures(folder)
    for file in files:
        name = os.path.basename(file)
        try:
            one: Figures = _reader(name, os.path.dirname(file))(file)
        except FileFormatError as error:
            found = found._replace(
                problems=(*found.problems, f"{name}: {str(error).removeprefix(f'{name} ')}")
            )
            continue
        known = found.memory_bytes
        higher = {name: size for name, size in one.memory_bytes.items() if size > known.get(name, 0.0)}
        # of two runs the later, whose arguments lie there
        clock = max(found.wall_s, one.wall_s, key=lambda wall: (len(wall) > MIN_STEPS, *wall.values()))
        found = found._replace(
            read=tuple(dict.fromkeys((*found.read, name))),
            wall_s=clock, whole_s=max(found.whole_s, one.whole_s), steps=max(found.steps, one.steps),
            gpu_s=max(found.gpu_s, one.gpu_s, key=len),
            counts_padding=found.counts_padding or one.counts_padding,
            tokens={**found.tokens, **one.tokens}, tokens_per_s=(*found.tokens_per_s, *one.tokens_per_s),
            memory_bytes={**found.memory_bytes, **higher},
            settings={**one.settings, **found.settings}, gpu=found.gpu or one.gpu,
            num_gpus=max(found.num_gpus, one.num_gpus), trainer=found.trainer or one.trainer,
        )  # fmt: skip
    return found


class _Log:
    """Takes figures by step, whatever their names."""

    def __init__(self) -> None:
        self.wall_s: dict[int, float] = {}
        self.tokens: dict[int, float] = {}
        self.memory_bytes: dict[str, float] = {}
        self.tokens_per_s: tuple[float, ...] = ()
        self.whole_s, self.steps, self.counts_padding = 0.0, 0, False
        self.gpu_s: dict[int, float] = {}
        self.trained: tuple[int, float] = (0, 0.0)  # Axolotl's tokens until the log before

    def add(self, figures: Mapping[str, Any], step: Any, wall_s: Any = None) -> None:
        """Take the figures of one step; the time of a step is that of its first figure."""
        step = int(step) if _number(step) and 0 < step <= MAX_STEPS else 0
        self.steps = max(self.steps, step)
        trained = not any(str(name).startswith(("eval", "train_loss", "train/train_")) for name in figures)
        if step and trained and _number(wall_s) and wall_s > 0:
            self.wall_s[step] = min(self.wall_s.get(step, wall_s), wall_s)
        counted, rate = figures.get(_TRAINED), figures.get(_RATE, 0.0)
        if step and counted is not None and _number(counted):
            before, until = self.trained
            if _number(rate) and rate > 0 and before < step and counted > until:
                self.gpu_s[step] = (counted - until) / rate / (step - before)
            self.trained, self.counts_padding = (step, float(counted)), True
        for name, value in figures.items():
            if _number(value):
                self._figure(str(name).casefold().removeprefix("train/"), float(value), step)

    def _figure(self, name: str, value: float, step: int) -> None:
        if name in _TOKENS and step:
            self.tokens[step] = value
        elif name == "tokens_per_second_per_gpu" and value > 0:
            self.tokens_per_s += (value,)
        elif name in ("train_runtime", "train/train_runtime"):
            self.whole_s = max(self.whole_s, value)
        end = name.rpartition("/")[2]
        end = end if end.endswith(")") else end.rpartition(".")[2]
        if end in _MEMORY and value > 0:
            metric, scale = _MEMORY[end]
            self.memory_bytes[metric] = max(self.memory_bytes.get(metric, 0.0), value * scale)

    def figures(self, file: str, **others: Any) -> Figures:
        """Return what was taken."""
        taken = {name: value for name, value in vars(self).items() if name in Figures._fields}
        return Figures(os.path.dirname(file), **taken, **others)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _of_state(file: str) -> Figures:
    state = parse_json(read_text(file, MAX_BYTES), os.path.basename(file))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise FileFormatError("it holds no log_history")
    log = _Log()
    for entry in history[:MAX_LINES]:
        if isinstance(entry, dict):
            running = entry.get("train_runtime") if "loss" in entry else None  # of those that count tokens
            log.add(_of_all_steps(entry), entry.get("step"), running)
    log.steps = max(log.steps, state["global_step"] if _number(state.get("global_step")) else 0)
    seen = state.get("num_input_tokens_seen")
    if _number(seen) and seen > 0 and log.steps:
        log.tokens[log.steps] = float(seen)
    return log.figures(file)


def _of_all_steps(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a step; where the runtime is of the steps since it was resumed, that of all."""
    names = ("train_runtime", "train_steps_per_second", "step")
    runtime, rate, step = (entry[name] if _number(entry.get(name)) else 0.0 for name in names)
    if rate > 0 and 0 < runtime * (rate + 0.0005) < step - 1:  # which has three decimals
        return {**entry, "train_runtime": runtime * step / max(1, round(runtime * rate))}
    return entry


def _of_lines(file: str) -> Figures:
    """Return what trainer_log.jsonl of LLaMA-Factory or logging.jsonl of ms-swift tells."""
    log, by_swift = _Log(), os.path.basename(file) == "logging.jsonl"
    earlier, before = 0.0, 0.0  # seconds: of sessions before it was resumed, and of the line before
    for line in read_text(file, MAX_BYTES).splitlines()[:MAX_LINES]:
        if not isinstance(entry := json_value(line.encode()), dict):  # torn, where a training was killed
            continue
        step = entry.get("current_steps")
        if by_swift:
            step = int(re.match(r"\d{0,9}", str(entry.get("global_step/max_steps", "")))[0] or 0)  # type: ignore[index]
        seconds = _spoken_s(str(entry.get("elapsed_time", "")))
        log.add(entry, step, None)
        earlier, before = earlier + before * (0.0 < seconds < before), seconds or before
        log.whole_s = max(log.whole_s, earlier + seconds)
    if not log.steps:
        raise FileFormatError("no line of it tells a step")
    return log.figures(file, trainer="ms-swift" if by_swift else "LLaMA-Factory")


def _spoken_s(text: str) -> float:
    """Return the seconds of "0:01:02", "1 day, 0:01:02" or "1m 2s"; 0 where it says none."""
    found = _CLOCK.fullmatch(text) or _SPOKEN_S.fullmatch(text[:40])
    parts = zip(found.groups(), (86400, 3600, 60, 1), strict=True) if found else ()
    return sum(float(part or 0) * unit for part, unit in parts)


def _of_torchtune(file: str) -> Figures:
    log = _Log()
    for line in read_text(file, MAX_BYTES).splitlines()[:MAX_LINES]:
        if (found := re.match(r"Step (\d{1,9}) \|", line)) is not None:
            log.add({name: float(value) for name, value in _FIGURE.findall(line[:4_000])}, int(found[1]))
    return log.figures(file, trainer="torchtune")


def _of_events(file: str) -> Figures:
    log, settings = _Log(), dict[str, Any]()
    for record in records(file):
        event = dict(fields(record))
        summary, step, wall_s = event.get(5), event.get(2, 0), event.get(1)
        if not isinstance(summary, bytes):
            continue
        values = [
            dict(fields(one)) for number, one in fields(summary) if number == 1 and isinstance(one, bytes)
        ]
        figures = {_text(one.get(1)): one[2] for one in values if isinstance(one.get(2), float)}
        log.add(figures, step, wall_s if figures else None)
        for one in values:
            if _text(one.get(1)) in ("args/text_summary", "model_config/text_summary"):
                settings |= _summary(one.get(8))
    return log.figures(file, settings=settings)


def _summary(tensor: Any) -> dict[str, Any]:
    """Return the settings in a text that transformers wrote: JSON."""
    texts = [value for number, value in fields(tensor if isinstance(tensor, bytes) else b"") if number == 8]
    found = json_value(texts[0]) if texts and isinstance(texts[0], bytes) else None
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _of_wandb(file: str) -> Figures:
    logged, log = read_records(file), _Log()
    for entry in logged.history:
        step = entry.get("train/global_step", entry.get("global_step", entry.get("_step")))
        log.add(entry, step, entry.get("_timestamp"))
    for entry in logged.statistics:
        log.add(entry, 0)
    return log.figures(file, settings=logged.config, gpu=logged.gpu, num_gpus=logged.num_gpus)


def _of_export(file: str) -> Figures:
    """Return what a history of Weights & Biases tells that was exported as CSV."""
    lines, log = parse_csv(read_text(file, MAX_BYTES), os.path.basename(file)), _Log()
    header = next(lines, [])
    for _, cells in zip(range(MAX_LINES), lines, strict=False):
        entry: dict[str, float] = {}
        for name, cell in zip(header, cells, strict=False):
            with suppress(ValueError):
                entry[name.rpartition(" - ")[2]] = float(cell)
        step = entry.get("train/global_step", entry.get("_step", entry.get("Step")))
        log.add(entry, step, entry.get("_timestamp"))
    return log.figures(file)


def _of_mlflow(file: str) -> Figures:
    """Return what a run of MLflow's file store tells: a file for each parameter, and for each metric."""
    folder, log = os.path.dirname(file), _Log()
    for name in _names(os.path.join(folder, "metrics")):
        for line in read_text(os.path.join(folder, "metrics", name), MAX_BYTES).splitlines()[:MAX_LINES]:
            with suppress(ValueError):
                at, value, step = map(float, line.split()[:3])
                log.add(
                    {name.replace(os.sep, "/"): value}, int(step) if abs(step) < MAX_STEPS else 0, at / 1e3
                )
    settings: dict[str, Any] = {}
    for name in _names(os.path.join(folder, "params")):
        text = read_text(os.path.join(folder, "params", name), 100_000).strip()
        settings[name] = text
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            settings[name] = literal_eval(text[:2_000])  # as MLflow writes a number, a list, None
    return log.figures(file, settings=settings)


def _names(folder: str) -> list[str]:
    """Return the names of files in a folder, and in the folders in it."""
    files = files_below(folder, lambda *_: True, levels=1, folders=MAX_PARAMS)
    return sorted(os.path.relpath(file, folder) for file in files)[:MAX_PARAMS]


def saved_run(file: str) -> tuple[str, dict[str, Any]]:
    """Return which format reads a training_args.bin, and its keys with the model or adapters beside it."""
    format_, own = own_keys(*read_arguments(file), os.path.dirname(file))
    return "trl" if format_ is trl.FORMAT else "trl:TRAINER", own


def own_keys(keys: Mapping[str, Any], trainer: str, folder: str) -> tuple[Format, dict[str, Any]]:
    """Return what reads a Trainer's arguments, and those it has keys for, with what lies beside them."""
    format_ = trl.FORMAT if trainer == "TRL" or {"max_length", "packing"} <= keys.keys() else trl.TRAINER
    own = {name: keys[name] for name in format_.keys if keys.get(name) not in (None, "", [], {})}
    if str(keys.get("use_cpu", "")) == "True":
        own.pop("fp16", None)
    adapters, peft = saved_file(folder, "adapter_config.json"), keys.get("peft_config")
    if adapters:
        own |= trl.of_adapter(mapping_of(adapters))
    elif isinstance(peft, Mapping) and isinstance(first := next(iter(peft.values()), None), Mapping):
        own |= trl.of_adapter(first)
    model = own.get("model_name_or_path") or model_beside(folder) or keys.get("_name_or_path") or ""
    is_here = not os.path.isabs(str(model)) or os.path.exists(str(model))
    if "model_type" in keys and not (model and is_here):  # its configuration was logged
        from finegauge.formats.measurement_rows import stated_sizes

        model = stated_sizes(json.dumps(keys, default=str, sort_keys=True))
    own["model_name_or_path"] = model
    own = {name: own[name] for name in own if name in format_.keys}
    if dtype := _saved_dtype(str(model), keys):
        own.setdefault("dtype", dtype)
    told = {"num_gpus": keys.get("num_processes"), "framework": trainer}
    own[BLOCK] = {name: value for name, value in told.items() if value}
    return format_, own


def read_arguments(file: str) -> tuple[Mapping[str, Any], str]:
    """Return what a training_args.bin holds, and which trainer its class is of; nothing of it is run.

    Raises: FileFormatError for a file that is none.
    """
    name = os.path.basename(file)
    read_bytes(file, MAX_PICKLE_BYTES)  # a regular file, and not too large
    try:
        with zipfile.ZipFile(file) as archive:
            inside = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if inside.file_size > MAX_PICKLE_BYTES:
                raise FileFormatError(f"{name} holds a pickle of {inside.file_size / 1e6:,.0f} MB.")
            with archive.open(inside) as stream:
                data = stream.read(MAX_PICKLE_BYTES)
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
    if kind := re.fullmatch(r"(?:trl|Unsloth\w+)\..*?(?:Unsloth)?([A-Z]\w+)Config", made.name):
        keys["trainer"] = kind[1].lower()
    return keys, _TRAINERS.get(made.name.partition(".")[0], "")


def _plain(value: Any) -> Any:
    if not isinstance(value, Named):
        return value
    if len(value.arguments) == 1 and isinstance(value.arguments[0], str):
        return value.arguments[0]
    return value.name.removeprefix("torch.") if value.name.startswith("torch.") else None


def _saved_dtype(model: str, keys: Mapping[str, Any]) -> str:
    config = mapping_of(os.path.join(model, "config.json")) if os.path.isdir(model) else keys
    found = config.get("dtype") or config.get("torch_dtype")
    return str(found).removeprefix("torch.") if isinstance(found, str) else ""


def mapping_of(file: str) -> Mapping[str, Any]:
    """Return the keys of a file; {} of one that holds none or cannot be read."""
    with suppress(FileFormatError):
        text = read_text(file)
        if file.endswith(".json"):
            found = parse_json(text, os.path.basename(file))
        else:
            found = parse_yaml(text, os.path.basename(file)) if "output_dir" in text else None
        return found if isinstance(found, dict) else {}
    return {}


def checkpoints_of(folder: str) -> list[str]:
    """Return the checkpoints in a folder, the newest first."""
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if re.fullmatch(r"(checkpoint-|epoch_)\d{1,9}", name)]
        newest = sorted(names, key=lambda name: -int(re.split(r"[-_]", name)[-1]))
        return [os.path.join(folder, name) for name in newest]
    return []


def saved_file(folder: str, name: str) -> str:
    """Return the file of that name in an output folder, else in its newest checkpoint; "" where none is."""
    files = (os.path.join(place, name) for place in (folder, *checkpoints_of(folder)))
    return next(filter(os.path.isfile, files), "")


def model_beside(folder: str) -> str:
    """Return the folder with the model's config.json; "" where there is none."""
    return os.path.dirname(saved_file(folder, "config.json"))
