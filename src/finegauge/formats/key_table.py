"""A training framework's file by its table of keys: how they state a run, how a run is written with them.

A `Format` is the framework's name and its rows. A row holds the keys that belong together, what states
fields of a run from them, and what writes them for a run; `key` makes the row of a key that means one field.
Here stand the overrides in either language (the framework's keys or the fields' names), the origin of each
field, the launcher's files, the block `finegauge:` for what the framework cannot express, and the
warning for a key that nobody knows. Values of such keys are never shown: they may be secrets.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

from finegauge.catalogue.frameworks import framework_of, frameworks
from finegauge.errors import (
    FieldError,
    FileFormatError,
    UnknownKeyError,
    UnknownNameError,
    did_you_mean,
    shown,
)
from finegauge.formats import launcher_files, model_names, shipped_data
from finegauge.formats.launcher_files import ALONE, Alongside
from finegauge.formats.run_argument import parse
from finegauge.formats.sheet import (
    BLOCK,
    flattened,
    in_sections,
    known_model,
    mixes_under_fsdp,
    repository,
    value_at,
    without,
)
from finegauge.records import NamedTuple
from finegauge.run import rules
from finegauge.run.field import flag, version_numbers, whole
from finegauge.run.rules import BY_GPU
from finegauge.run.run import FIELDS, FROM_COMMAND_LINE, FROM_FILE, Run, figures

MAX_WARNINGS = 20
RUN_FILE = "run_file"
MISSING = "???"  # of OmegaConf: somebody has still to state it
NULL = object()  # a value that is written as none, rather than not at all
# What a block beside those that are read is about: of these an answer depends, and it is refused.
_OF_TRAINING = (
    r"lora|peft|adapter|rank|bits|quant|batch|learning|epoch|packing|seq(uence)?_?len|length|optim|precision"
    r"|dtype|base_model|model_name|parallel|checkpointing|deepspeed|fsdp|zero_"
)
_OF_MODELS = r"(?i)^(base_?)?model(_?(name|id|path))?$|checkpoint$|^pretrained_?(model|path)$"
_MAX_OF_OTHERS = 3  # such keys that a framework does not know: the file is another program's
# Keys that only the Megatron backend of a framework has: `megatron sft --config`, USE_MCA=1.
_BY_MEGATRON = {
    "ms_swift": ("ms_swift:MEGATRON", {"micro_batch_size"}),
    "llamafactory": (
        "llamafactory_engines:MEGATRON",
        {"use_mca", *(f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))},
    ),
}
# Keys of learning, of logs and of files, by what any framework calls them.
_HARMLESS = (
    r"(?i)(^|[._])(\w?lr|learning|optim|warmup|sched\w*|seed|wandb|logg?\w*|save\w*|out\w*|project|experiment|eval\w*"
    r"|val\w*|test|weight|decay|clip\w*|betas?|adam|eps|data\w*|tokenizer\w*|template|name|input|prompt|dist|split"
    r"|load|checkpoint\w*|ckpt|port|address|defaults|trust|resume|key|l2|kl|reward\w*|entropy|coef\w*|reporting"
    r"|tensorboard\w*|exit|max_norm|init|hydra|recipe|command|env|loss_fn|normalize|dir|path|step|interval|iters"
    r"|use_mcore_models|rotary_\w+|apply_layernorm_1p|disable_bias_linear|manual_gc\w*|empty_unused\w*|fp8_amax"
    r"|no_\w+_fusion|no_position_embedding|use_flash_attn|vocab_file|merge_file|loss_scale\w*|\w*dropout|epsilon"
    r"|fraction|ratio|style|num_workers|workers|timeout|backend|overlap)([._]|$)|^\w$"
)
_UNDIVIDED = ("none", "null", "0", "1")
_NO = ("", "false", "none", "0", "0.0", "no", "{}", "[]", "-1")
_NOTHING = ("", "null", "~")
_NONE_IS_NOTHING = frozenset(("dataset", "num_samples", "max_steps", "gpu", "provider", "region"))


class Row(NamedTuple):
    """Keys that belong together, "section.key" in a section."""

    keys: str  # separated by blanks
    read: Callable[["Reading"], None] | None = None  # states fields from them
    write: Callable[[Run], Mapping[str, Any]] | None = None  # for a run; None is not written


def key(
    name: str,
    field: str,
    default: Any = None,
    *,
    read: Callable[["Reading"], None] | None = None,
    write: Callable[[Run], Any] | None = None,
    words: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    older: str = "",
    writes: bool = True,
) -> Row:
    """Return the row of a key that means one field.

    Args:
        name: The key.
        field: Of a run.
        default: What the framework takes where the key is not there; None leaves the field open.
        read: How it is read, if not as the field's value.
        write: What is written for a run, if not the field's value.
        words: The field's values: what the framework calls them.
        more: Further words of the framework: the value that they mean too.
        older: The key's older names, which are read and not written.
        writes: Whether the key is written at all.
    """
    names = (name, *older.split())
    theirs = words or {}
    ours = {str(word).lower(): value for value, word in theirs.items()} | dict(more or {})

    def as_stated(reading: "Reading") -> None:
        value = reading.first(names, default)
        reading.set(field, ours.get(str(value).lower(), value), *names)

    def written(run: Run) -> dict[str, Any]:
        value = getattr(run, field) if write is None else write(run)
        return {name: theirs.get(value, value) if theirs else value}

    return Row(" ".join(names), read or as_stated, written if writes else None)


def switch(name: str, field: str, on: str, *, off: str = "none", default: bool = False) -> Row:
    """Return the row of a key that is true or false and means `on` or `off` of a field."""

    def read(reading: "Reading") -> None:
        reading.set(field, on if reading.flag(name, default=default) else off, name)

    return Row(name, read, lambda run: {name: getattr(run, field) != off})


def model_key(*names: str) -> Row:
    """Return the row of the key that names the model, the first of several `names` the usual one."""

    def read(reading: "Reading") -> None:
        reading.set("model", reading.first(names), *names)
        sections = {key.rpartition(".")[0] for key in reading.keys}  # of a format that dots its keys
        reading.need_model(next((name for name in names if name.rpartition(".")[0] in sections - {""}), ""))

    return Row(" ".join(names), read, lambda run: {names[0]: repository(run)})


def fixed(**fields: Any) -> Row:
    """Return a row without keys: fields that the framework never leaves open."""

    def read(reading: "Reading") -> None:
        for name, value in fields.items():
            reading.set(name, value)

    return Row("", read)


def always(**keys: Any) -> Row:
    """Return a row of keys that are written alike for every run, and not read."""
    return Row("", write=lambda _: keys)


def degrees(fields: Mapping[str, str]) -> Row:
    """Return the row of degrees of parallelism, {key: field}; one of 1 divides nothing and is not written."""

    def write(run: Run) -> dict[str, Any]:
        names = {field: name for name, field in reversed([*fields.items()])}
        return {name: getattr(run, field) for field, name in names.items() if getattr(run, field) > 1}

    return Row(" ".join(fields), lambda reading: read_degrees(reading, fields), write)


def read_degrees(reading: "Reading", fields: Mapping[str, str]) -> None:
    """Read degrees of parallelism, {key: field}; none, 0 and 1 state nothing."""
    for name, degree in fields.items():
        if str(reading.get(name)).lower() not in _UNDIVIDED:
            reading.take(degree, name)


class Format(NamedTuple):
    """The files of one framework."""

    name: str
    rows: tuple[Row, ...]
    model_key: str  # that an override model=… is laid over
    methods: Mapping[str, Mapping[str, str]] = {}  # method=… as the file's keys
    not_modelled: str = ""  # keys that change a run in a way that predictions leave out
    adapt: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict  # makes the usual shape of its files
    family: str = ""  # of formats that have the same keys
    lasting: Mapping[str, str] = {}  # settings that are no field: their keys
    data_keys: tuple[str, ...] = ()  # that name the data; the first takes a name of a hub
    lists_its_keys: bool = True  # in known_keys.json; else what sounds harmless counts as known
    lists_data: bool = False  # names are those of a listing of its own, not of a hub

    @property
    def keys(self) -> frozenset[str]:
        """Return every key that fields are read from."""
        return frozenset(name for row in self.rows if row.read for name in row.keys.split())

    @property
    def known(self) -> Collection[str]:
        """Return the keys that neither memory nor time depends on; "section.*" is a whole section."""
        return known_keys(self.name)

    def shares_keys_with(self, other: "Format") -> bool:
        """Return whether the files of both have the same keys."""
        return self.name == other.name or bool(self.family and self.family == other.family)

    def state(self, reading: "Reading") -> None:
        """State the fields of a run."""
        for row in self.rows:
            if row.read is not None:
                row.read(reading)
        reading.not_modelled(*self.not_modelled.split())

    def written(self, run: Run) -> dict[str, Any]:
        """Return the keys for a run, in sections."""
        keys: dict[str, Any] = {}
        for row in self.rows:
            if row.write is not None:
                keys |= without(row.write(run))
        return in_sections({name: None if value is NULL else value for name, value in keys.items()})


@cache
def known_keys(name: str) -> frozenset[str]:
    """Return the keys that a framework knows and no field is read from."""
    lists = shipped_data("known_keys.json")
    names = (name, *lists.get(name, {}).get("with", ()))
    words = (word for one in names for line in lists.get(one, {}).get("keys", ()) for word in line.split())
    return frozenset(words)


def lay_over(fields: dict[str, Any], origins: dict[str, str], overrides: dict[str, str]) -> None:
    """Put `overrides` over `fields`, dropping what only the overridden values had needed."""
    asked = overrides.get("method")
    if asked is not None and str(fields.get("method")).lower() != asked.lower():
        rules.forget_method(fields, asked.lower())
    if overrides.get("packing", "").lower() in ("true", "yes", "on", "1"):
        fields.pop("padding", None)
    for name, value in overrides.items():
        unstated = value.lower() in _NOTHING or (value.lower() == "none" and name in _NONE_IS_NOTHING)
        fields[name] = None if unstated else value
        if unstated:
            origins.pop(name, None)
        else:
            origins[name] = FROM_COMMAND_LINE


def read(
    format_: Format,
    keys: Mapping[str, Any],
    file: str,
    words: Iterable[str] = (),
    alongside: Alongside = ALONE,
    warnings: tuple[str, ...] = (),
) -> Run:
    """Return the run of a framework's file; `words` may use its keys or the fields' names."""
    known = format_.keys
    overrides = parse(words, {*known, *FIELDS})
    theirs = {name: value for name, value in overrides.items() if name in known}
    own = {name: value for name, value in overrides.items() if name not in theirs}
    if format_.methods and "method" in own:
        theirs |= _method_keys(format_, own.pop("method"))
    if "model" in own:
        theirs[format_.model_key] = own.pop("model")
    reading = Reading(format_, keys, theirs, file, own)
    reading.warnings += warnings
    gpus = own.get("num_gpus") or reading.block.get("num_gpus")
    gpus = alongside.launched_gpus() if gpus is None else FIELDS["num_gpus"]("num_gpus", gpus)
    reading.launched_gpus = None if gpus is None else int(gpus)
    format_.state(reading)
    alongside.lay_over(reading.fields, reading.origins, reading.warnings)
    reading.read_block()
    model_names.take_copy(reading.fields, reading.origins, reading.warnings)
    reading.warn_of_keys()
    lay_over(reading.fields, reading.origins, own)
    _upcast(reading.fields, reading.origins)
    model_names.take_samples(reading.fields, reading.warnings)
    if "add num_gpus=8" not in str(reading.warnings):
        reading.warnings += launcher_files.unsaid_gpus(reading.fields)
    return Run.from_fields(reading.fields, reading.origins, tuple(dict.fromkeys(reading.warnings)))


def _upcast(fields: dict[str, Any], origins: dict[str, str]) -> None:
    """Hold what FSDP trains under mixed precision in fp32, as accelerate does (`prepare_model`)."""
    name = {"full": "weights_dtype", "lora": "adapter_dtype"}.get(str(fields.get("method")), "")
    narrow = fields.get(name) in ("bf16", "fp16") and mixes_under_fsdp(fields)
    upcasts = narrow and framework_of(str(fields.get("framework"))).upcasts_fsdp
    if upcasts and origins.get(name) != FROM_COMMAND_LINE:
        fields[name], origins[name] = "fp32", "accelerate: FSDP's mixed precision"


def _method_keys(format_: Format, method: str) -> Mapping[str, str]:
    """Return the framework's keys for the field `method` of the command line."""
    if method not in format_.methods:
        FIELDS["method"]("method", method)
        raise FieldError(
            f"method={method} cannot be laid over a {format_.name} file; write a run file instead."
        )
    return format_.methods[method]


class Reading:
    """The fields read so far, with their origins and the warnings."""

    def __init__(
        self,
        format_: Format,
        keys: Mapping[str, Any],
        overrides: Mapping[str, str],
        file: str,
        own: Mapping[str, str],
    ) -> None:
        """Begin with nothing but the framework's name.

        Args:
            format_: Of the file.
            keys: What the file holds.
            overrides: Of the command line, in the framework's keys.
            file: Where it lies; files that it names are looked for beside it.
            own: Of the command line, in the names of a run's fields.
        """
        self.format = format_
        self.keys = keys
        self.overrides = overrides
        self.file = file
        self.file_name = os.path.basename(file)
        self.fields: dict[str, Any] = {"framework": format_.name}
        self.origins: dict[str, str] = {"framework": FROM_FILE}
        self.warnings: list[str] = []
        self.launched_gpus: int | None = None  # where something tells
        self._own = own
        block = keys.get(BLOCK)
        self.block: Mapping[str, Any] = block if isinstance(block, Mapping) else {}

    @property
    def version(self) -> tuple[int, int, int] | None:
        """Return the version of the framework that somebody states; None: the newest known."""
        stated = self._own.get("framework_version", self.block.get("framework_version"))
        return version_numbers(str(stated)) if stated not in (None, "") else None

    def replaces(self, field: str) -> bool:
        """Return whether the command line states a run's `field` in place of what the file says."""
        return field in self._own

    def before(self, *version: int) -> bool:
        """Return whether the stated version of the framework is older than `version`."""
        stated = self.version
        return stated is not None and stated < version

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, "section.key" one in a section; `default` where there is none."""
        value = self.overrides.get(key)
        if value is None:
            value = self._walk(key)
        return default if value is None or value in ("", MISSING) else value

    def take(self, field: str, key: str, default: Any = None) -> None:
        """State a field by the value of a key."""
        self.set(field, self.get(key, default), key)

    def whole(self, key: str, default: Any = None, most: int = 10**6, least: int = 1) -> int:
        """Return the whole number that a key states, from `least` to `most`."""
        return int(whole(least, most)(key, self.get(key, default)))

    def first(self, keys: Iterable[str], default: Any = None) -> Any:
        """Return the value of the first of `keys` that is stated."""
        return next((self.get(key) for key in keys if self.stated(key)), default)

    def which(self, *keys: str) -> str:
        """Return the first of `keys` that is stated, else the first of all."""
        return next(filter(self.stated, keys), keys[0])

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return whether a key says yes."""
        return bool(flag(key, self.get(key, default)))

    def text(self, key: str, default: str = "") -> str:
        """Return a key's word in lower case."""
        return str(self.get(key, default)).strip().lower()

    def word(self, key: str, default: str, words: Mapping[str, Any], use: str) -> Any:
        """Return what a key's word means.

        Raises: FieldError for a word that is none of `words`, saying which to `use`.
        """
        word = self.text(key, default)
        if word not in words:
            raise FieldError(f"{key}={shown(word)} is unknown; use {use}.")
        return words[word]

    def stated(self, *keys: str) -> bool:
        """Return whether the file or the command line has one of `keys`."""
        return any(self.get(key) is not None for key in keys)

    def set(self, field: str, value: Any, *keys: str) -> None:
        """Note `value` as stated by whichever of `keys` there is, else as the framework's default."""
        if value is None:
            return
        if field == "model" and isinstance(value, list):
            words = shown(" ".join(map(str, value)))
            raise FieldError(f"{self.file_name}: {words} is no model's name; add model=NAME.")
        if field == "model" and isinstance(value, str):  # a folder that is not here is the catalogue's model
            value, warning = model_names.here(value)
            self.warnings += [warning] if warning else []
        self.fields[field] = value
        if not self.overrides.keys().isdisjoint(keys):
            self.origins[field] = FROM_COMMAND_LINE
        elif any(self._walk(key) is not None for key in keys):
            self.origins[field] = FROM_FILE
        else:
            self.origins[field] = f"framework default: {self.format.name}"

    def set_by_gpu(self, field: str) -> None:
        """Note the 16-bit format that the GPU multiplies: bf16, fp16 where it has none."""
        self.fields[field], self.origins[field] = "bf16", f"framework default: {self.format.name}{BY_GPU}"

    def warn(self, sentence: str) -> None:
        """Note a warning."""
        self.warnings.append(sentence)

    def need_model(self, key: str = "") -> str:
        """Return the model.

        Raises: FieldError where nothing states it, which names `key`, else the format's usual one.
        """
        if "model" not in self.fields:
            key = key or self.format.model_key
            told, way = " ".join(self.warnings), f"; add '{key}: …'"
            if re.search(rf"[:.] ?(\w*({key}|model_name_or_path)|model\.path) holds a variable", told):
                way = ": the script does not tell its variable's value; add model=NAME"
            elif "the model is built by the script" in told:
                way = ": it builds it of a configuration of its own; add model=config.json, as it saves it"
            elif said := re.search(r"the model is (.+?), and is not read", told):
                way = f": it is {said[1]}; add model=NAME"
            elif theirs := [name for name in self.keys if re.search(_OF_MODELS, str(name)[:200])]:
                way += f" ({shown(str(theirs[0]))} is no key of {self.format.name})"
            raise FieldError(f"{self.file_name} does not state its model{way}.")
        return str(self.fields["model"])

    def ignored(self, keys: Iterable[str], reason: str) -> None:
        """Warn of keys that are there and have no effect."""
        if present := [key for key in keys if self._walk(key) is not None]:
            self.warn(f"{', '.join(present)} has no effect: {reason}.")

    def not_modelled(self, *keys: str) -> None:
        """Warn of keys that change the run in a way that is not modelled."""
        for key in keys:
            if str(self.get(key, "")).lower() not in _NO:
                self.warn(f"{key} is not modelled: the run is taken as without it.")

    def data_ranks(self, gpus: int | None) -> int | None:
        """Return how many of so many GPUs read different sequences, by the degrees read so far."""
        taken = prod(int(whole(1, 10**6)(name, self.fields.get(name, 1))) for name in rules.MODEL_DEGREES)
        return None if gpus is None else max(1, gpus // taken)

    def set_accumulation(self, key: str, *, data_parallel: int | None) -> None:
        """Note how many micro-batches a rank takes to its share of the sequences of one optimizer step.

        Args:
            key: Which states the sequences of a step.
            data_parallel: Ranks that read different sequences; None where nobody says, then one.

        Raises: FieldError where they do not divide.
        """
        batch = whole(1, 10**9)(key, self.get(key))
        micro = whole(1, 10**6)("micro_batch_size", self.fields.get("micro_batch_size", 1))
        steps, rest = divmod(batch, micro * (data_parallel or 1))
        if rest or not steps:
            raise FieldError(
                f"{key}={batch} is not a multiple of micro_batch_size={micro} on "
                f"{data_parallel or 1} data-parallel ranks; change one of them."
            )
        self.set("gradient_accumulation_steps", steps, key)
        if data_parallel is None:
            self.warn(
                f"{key}={batch} is shared by the GPUs, whose number is the launcher's and is taken "
                "as the smallest that the degrees allow; add num_gpus=8 for eight."
            )

    def checkpoint_dtype(self) -> str:
        """Return the number format that the model's own configuration states."""
        if (known := known_model(str(self.fields["model"]))) is None:
            return "bf16"
        config, inner = known.config, known.config.get("text_config")  # of a model that sees
        held = {**inner, **config} if isinstance(inner, Mapping) else config
        stated = str(held.get("dtype") or held.get("torch_dtype") or "float32").removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "fp16"}.get(stated, "fp32")

    def set_catalogue_model(self, guesses: Sequence[str], *keys: str) -> None:
        """Note as the model the first of `guesses` that the catalogue knows; with a warning, the first."""
        for guess in guesses:
            try:
                self.set("model", figures(guess).name, *keys)
                return
            except UnknownNameError:
                continue
        self.set("model", guesses[0], *keys)
        self.warn(
            f"{shown(guesses[0])} is no name of the catalogue; add model=NAME, as 'finegauge models' has it."
        )

    def read_block(self) -> None:
        """Read the fields that the file states in a block of its own."""
        if not isinstance(self.keys.get(BLOCK) or {}, Mapping):
            raise FileFormatError(
                f"{self.file_name}: finegauge: must hold fields and their values, such as gpu: A40."
            )
        for name, value in self.block.items():
            if name not in FIELDS:
                raise UnknownKeyError(f"{self.file_name}: finegauge", name, known=FIELDS)
            self.fields[name], self.origins[name] = value, FROM_FILE

    def warn_of_keys(self) -> None:
        """Warn of keys that the framework does not know; values are never shown."""
        known, read = self.format.known, {BLOCK, *self.format.keys}
        sections = {key.partition(".")[0] for key in read if "." in key}
        read |= {*re.findall(r"\$\{([\w.]{1,100})\}", str(self.keys))}  # names of the file's own
        unknown, blocks = list[str](), list[str]()
        for key, value in flattened(self.keys, sections):
            top = key.partition(".")[0]
            is_read = {key, key.removeprefix("no_"), top} & read
            if value is None or is_read or key in known or f"{top}.*" in known:
                continue
            off = str(value).lower() in ("false", "0") or (
                re.search(_HARMLESS, key[:200]) and "percent" not in key
            )
            if not off or self.format.lists_its_keys:
                unknown.append(key)
                apart = key == top and isinstance(value, Mapping) and not {*value} <= {*self.keys}
                inside = " ".join(map(str, value)) if apart else ""
                if inside and re.search(_OF_TRAINING, f"{key} {inside}"[:2000].lower()):
                    blocks.append(key)
        decide = [key for key in unknown if re.search(_OF_TRAINING, key.lower())]
        of_others = self.format.lists_its_keys and len(decide) >= _MAX_OF_OTHERS
        if blocks or of_others:
            named = " or ".join(map(shown, (blocks or decide)[:4]))
            raise FileFormatError(
                f"{self.file_name} was taken for a file of {self.format.name}, which has no "
                f"{'block' if blocks else 'key'} {named}: it would be ignored. Remove it, or write a run "
                "file."
            )
        if unknown and not self.format.lists_its_keys:
            self.warn(f"Not read, and taken as unstated: {', '.join(map(shown, unknown[:MAX_WARNINGS]))}.")
            unknown = []
        for key in unknown[:MAX_WARNINGS]:
            hint = did_you_mean(key, {*known, *read} - {BLOCK})
            self.warn(
                f"{self.file_name}: {self.format.name} knows no key {shown(key)}, which is ignored.{hint}"
            )
        if len(unknown) > MAX_WARNINGS:
            self.warn(f"{self.file_name}: {len(unknown) - MAX_WARNINGS:,} more unknown keys are ignored.")
        if self.keys.get("trust_remote_code"):
            self.warn("trust_remote_code is not acted on: no code of a model repository is run.")

    def _walk(self, key: str) -> Any:
        """Return the file's value of "section.key"; None where there is none."""
        off = self.keys.get(f"no_{key}") is True  # --no_packing
        return False if off else self.keys[key] if key in self.keys else value_at(self.keys, key)


def recognise(keys: Mapping[str, Any]) -> str:
    """Return which module reads a file of these keys ("" for none): by what only that format has."""
    is_run_file = "model" in keys and not isinstance(keys["model"], Mapping)
    if is_run_file and set(keys) <= set(FIELDS):
        return RUN_FILE
    found = (row.module for row in frameworks() for signature in row.signatures if signature.fits(keys))
    reader = next(found, RUN_FILE if is_run_file else "")
    megatron, own = _BY_MEGATRON.get(reader, ("", set()))
    return reader if own.isdisjoint(keys) else megatron
