"""A training framework's file into a Run: what every reader of one has in common.

A reader is a `Framework`: its name, the keys it reads, and a function that states the fields of a
run from them. Here stand the overrides in either language (the framework's keys or the fields'
names), the origin of each field, the files given alongside, the block `finegauge:` for what the
framework cannot express, and the warning for a key that nobody knows. Values of such keys are
never shown: they may be secrets.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from finegauge.errors import FieldError, FileFormatError, UnknownKeyError, did_you_mean, shown
from finegauge.formats.launcher_files import ALONE, Alongside
from finegauge.run import rules
from finegauge.run.field import flag, whole
from finegauge.run.rules import DATA_DEGREES
from finegauge.run.run import FIELDS, FROM_COMMAND_LINE, FROM_FILE, Run

_NOTHING = ("", "null", "~")
_NONE_IS_NOTHING = frozenset(("dataset", "num_samples", "max_steps", "gpu", "provider", "region"))


def parse(words: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Return {key: value} of `key=value` words.

    Raises: FieldError for a word without "=", UnknownKeyError for a key not in `known`.
    """
    overrides: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not key:
            raise FieldError(
                f"The override {shown(word)} is not of the form key=value, such as micro_batch_size=4."
            )
        if key not in known:
            raise UnknownKeyError("command line", key, known=known)
        overrides[key] = value.strip()
    return overrides


def lay_over(fields: dict[str, Any], origins: dict[str, str], overrides: dict[str, str]) -> None:
    """Put `overrides` over `fields`, dropping what only the overridden values had needed."""
    asked = overrides.get("method")
    if asked is not None and str(fields.get("method")).lower() != asked.lower():
        rules.forget_method(fields, asked.lower())
    if overrides.get("packing", "").lower() in ("true", "yes", "on", "1"):
        fields.pop("padding", None)
    for key, value in overrides.items():
        unstated = value.lower() in _NOTHING or (value.lower() == "none" and key in _NONE_IS_NOTHING)
        fields[key] = None if unstated else value
        if unstated:
            origins.pop(key, None)
        else:
            origins[key] = FROM_COMMAND_LINE


MAX_WARNINGS = 20
BLOCK = "finegauge"


class Framework(NamedTuple):
    """How the files of one framework are read."""

    name: str
    keys: frozenset[str]  # what `state` reads, "section.key" where the file has sections
    model_key: str  # the key that an override model=… is laid over
    state: Callable[["Reading"], None]
    known: Callable[[], Collection[str]]  # keys that touch neither memory nor time; called when needed
    methods: Mapping[str, Mapping[str, str]] = {}  # method=… of the command line, as the file's keys


def read(
    framework: Framework,
    keys: Mapping[str, Any],
    file: str,
    words: Iterable[str] = (),
    alongside: Alongside = ALONE,
    warnings: tuple[str, ...] = (),
) -> Run:
    """Return the run of a framework's file; `words` may use its keys or the fields' names."""
    overrides = parse(words, {*framework.keys, *FIELDS})
    translated = ("method",) if framework.methods else ()
    own = {k: value for k, value in overrides.items() if k not in framework.keys and k not in translated}
    theirs = {key: value for key, value in overrides.items() if key in framework.keys}
    if framework.methods and "method" in overrides:
        theirs |= _method_keys(framework, overrides["method"])
    theirs |= {framework.model_key: own.pop("model")} if "model" in own else {}
    reading = Reading(framework, keys, theirs, file, own)
    reading.warnings += warnings
    reading.launched_gpus = _launched_gpus(own, keys, alongside)
    framework.state(reading)
    alongside.lay_over(reading.fields, reading.origins, reading.warnings)
    reading.read_block()
    reading.warn_of_keys()
    lay_over(reading.fields, reading.origins, own)
    shards = reading.fields.get("sharding") not in (None, "none")
    if shards and not {"num_gpus", *DATA_DEGREES} & set(reading.fields):
        reading.warnings.append(
            "The number of GPUs is the launcher's and is taken as 1; add num_gpus=8 for eight."
        )
    return Run.from_fields(reading.fields, reading.origins, tuple(dict.fromkeys(reading.warnings)))


def _method_keys(framework: Framework, method: str) -> Mapping[str, str]:
    """Return the framework's keys for the field `method` of the command line."""
    if method not in framework.methods:
        FIELDS["method"]("method", method)
        raise FieldError(
            f"method={method} cannot be laid over a {framework.name} file; write a run file instead."
        )
    return framework.methods[method]


def _launched_gpus(own: Mapping[str, str], keys: Mapping[str, Any], alongside: Alongside) -> int | None:
    """Return how many GPUs the run is launched on, where the command line or the file's block says so."""
    block = keys.get(BLOCK)
    stated = own.get("num_gpus") or (block.get("num_gpus") if isinstance(block, Mapping) else None)
    if stated is None:
        return alongside.launched_gpus()
    return int(FIELDS["num_gpus"]("num_gpus", stated))


class Reading:
    """The fields read so far, with their origins and the warnings."""

    def __init__(
        self,
        framework: Framework,
        keys: Mapping[str, Any],
        overrides: Mapping[str, str],
        file: str,
        own: Mapping[str, str],
    ) -> None:
        """Begin with nothing but the framework's name.

        Args:
            framework: Whose file it is.
            keys: What the file holds.
            overrides: Of the command line, in the framework's keys.
            file: Where it lies; files that it names are looked for beside it.
            own: Of the command line, in the names of a run's fields.
        """
        self.keys = keys
        self.overrides = overrides
        self.file = file
        self.file_name = os.path.basename(file)
        self.framework = framework
        self.from_framework = f"framework default: {framework.name}"
        self.fields: dict[str, Any] = {"framework": framework.name}
        self.origins: dict[str, str] = {"framework": FROM_FILE}
        self.warnings: list[str] = []
        self.launched_gpus: int | None = None  # where something tells
        self._own = own

    @property
    def version(self) -> tuple[int, int, int] | None:
        """Return the version of the framework that somebody states; None: the newest known."""
        from finegauge.run.field import version_numbers

        block = self.keys.get(BLOCK)
        stated = block.get("framework_version") if isinstance(block, Mapping) else None
        stated = self._own.get("framework_version", stated)
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
        return default if value is None or value == "" else value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return whether a key says yes."""
        said: bool = flag(key, self.get(key, default))
        return said

    def text(self, key: str, default: str = "") -> str:
        """Return a key's word in lower case."""
        return str(self.get(key, default)).strip().lower()

    def stated(self, *keys: str) -> bool:
        """Return whether the file or the command line has one of `keys`."""
        return any(self.get(key) is not None for key in keys)

    def set(self, field: str, value: Any, *keys: str) -> None:
        """Note `value` as stated by whichever of `keys` there is, else as the framework's default."""
        if value is None:
            return
        if any(key in self.overrides for key in keys):
            origin = FROM_COMMAND_LINE
        else:
            origin = FROM_FILE if any(self._walk(key) is not None for key in keys) else self.from_framework
        self.note(field, value, origin)

    def note(self, field: str, value: Any, origin: str) -> None:
        """Note a field's value and who stated it."""
        self.fields[field] = value
        self.origins[field] = origin

    def direct(self, table: Mapping[str, tuple[str, Any]]) -> None:
        """Note the fields that a key states as they are: {key: (field, framework's default)}."""
        for key, (field, default) in table.items():
            self.set(field, self.get(key, default), key)

    def warn(self, sentence: str) -> None:
        """Note a warning."""
        self.warnings.append(sentence)

    def need_model(self) -> str:
        """Return the model.

        Raises: FieldError where nothing states it.
        """
        if "model" not in self.fields:
            key = self.framework.model_key
            raise FieldError(f"{self.file_name} does not state its model; add '{key}: …'.")
        return str(self.fields["model"])

    def ignored(self, keys: Iterable[str], reason: str) -> None:
        """Warn of keys that are there and have no effect."""
        present = [key for key in keys if self._walk(key) is not None]
        if present:
            self.warn(f"{', '.join(present)} has no effect: {reason}.")

    def not_modelled(self, *keys: str) -> None:
        """Warn of keys that change the run in a way that is not modelled."""
        for key in keys:
            if str(self.get(key, "")).lower() not in ("", "false", "none", "0", "0.0", "no", "{}", "[]"):
                self.warn(f"{key} is not modelled: the run is taken as without it.")

    def set_accumulation(self, global_batch_size: Any, *keys: str, data_parallel: int | None) -> None:
        """Note how many micro-batches a rank takes to its share of `global_batch_size` sequences.

        Args:
            global_batch_size: Sequences of one optimizer step.
            keys: Who states them.
            data_parallel: Ranks that read different sequences; None where nobody says, then one.

        Raises: FieldError where they do not divide.
        """
        batch = whole(1, 10**9)(keys[0], global_batch_size)
        micro = whole(1, 10**6)("micro_batch_size", self.fields.get("micro_batch_size", 1))
        steps, rest = divmod(batch, micro * (data_parallel or 1))
        if rest or not steps:
            raise FieldError(
                f"{keys[0]}={batch} is not a multiple of micro_batch_size={micro} on "
                f"{data_parallel or 1} data-parallel ranks; change one of them."
            )
        self.set("gradient_accumulation_steps", steps, *keys)
        if data_parallel is None:
            self.warn(
                f"{keys[0]}={batch} is shared by the GPUs, whose number is the launcher's and is taken "
                "as the smallest that the degrees allow; add num_gpus=8 for eight."
            )

    def checkpoint_dtype(self) -> str:
        """Return the number format that the model's own configuration states."""
        from finegauge.errors import UnknownNameError
        from finegauge.run.run import figures

        try:
            config = figures(str(self.fields["model"])).config
        except UnknownNameError:
            return "bf16"
        stated = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "fp16"}.get(stated, "fp32")

    def read_block(self) -> None:
        """Read the fields that the file states in a block of its own."""
        block = self.keys.get(BLOCK) or {}
        if not isinstance(block, Mapping):
            raise FileFormatError(
                f"{self.file_name}: finegauge: must hold fields and their values, such as gpu: A40."
            )
        for key, value in block.items():
            if key not in FIELDS:
                raise UnknownKeyError(f"{self.file_name}: finegauge", key, known=FIELDS)
            self.note(key, value, FROM_FILE)

    def warn_of_keys(self) -> None:
        """Warn of keys that the framework does not know; values are never shown."""
        read = self.framework.keys
        sections = {key.partition(".")[0] for key in read if "." in key}
        written = []
        for key, value in self.keys.items():
            if key in read or key == BLOCK:
                continue
            inside = value if key in sections and isinstance(value, Mapping) else None
            written += [key] if inside is None else [f"{key}.{k}" for k in inside if f"{key}.{k}" not in read]
        if written:
            known = self.framework.known()
            self.warnings += _unknown(written, known, read, self.file_name, self.framework.name)
        if self.keys.get("trust_remote_code"):
            self.warn("trust_remote_code is not acted on: no code of a model repository is run.")

    def _walk(self, key: str) -> Any:
        """Return the file's value of "section.key"; None where there is none."""
        if key in self.keys:
            return self.keys[key]
        value: Any = self.keys
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def _unknown(
    written: Iterable[str], known: Collection[str], read: Collection[str], file: str, framework: str
) -> list[str]:
    """Return a warning for every key that is neither read nor known; "section.*" knows a whole section."""
    whole = {key.removesuffix(".*") for key in known if key.endswith(".*")}
    unknown = [key for key in written if key not in known and key.partition(".")[0] not in whole]
    warnings = [
        f"{file}: {framework} knows no key {shown(key)}, which is ignored."
        f"{did_you_mean(key, {*known, *read})}"
        for key in unknown[:MAX_WARNINGS]
    ]
    if len(unknown) > MAX_WARNINGS:
        warnings.append(f"{file}: {len(unknown) - MAX_WARNINGS:,} more unknown keys are ignored.")
    return warnings
