"""A Profile as JSON and back without loss: every field, the run with its origins, every step's seconds.

`answers.profile` is for readers; here paths stay lists of names, and NaN and infinities, which
JSON cannot write, become {"float": "nan"}.
"""

import math
from collections.abc import Mapping
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

from finegauge.errors import FileFormatError, FineGaugeError
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.run.run import FIELDS, FROM_DEFAULT, REQUIRED, Run

BREAKDOWNS = (
    "peak_memory_bytes", "device_memory_bytes", "phase_memory_bytes", "step_time_s", "step_energy_j",
)  # fmt: skip
NOT_FINITE = "float"


def profile_document(profile: Profile) -> dict[str, Any]:
    """Return `profile` as JSON values that `profile_of` reads back as an equal profile."""
    written = profile._asdict()
    del written["explanation"]  # computed again where it is read
    written |= {"run": run_document(profile.run), "source": profile.source._asdict()}
    for name in BREAKDOWNS:
        written[name] = [[list(path), amount] for path, amount in written[name].parts.items()]
    return {name: plain(value) for name, value in written.items()}


def profile_of(document: Mapping[str, Any]) -> Profile:
    """Return the profile that `document` holds.

    Raises: FileFormatError where it is no profile.
    """
    try:
        values = {name: _restored(value) for name, value in document.items()}
        values["run"] = run_of(document["run"])
        values["source"] = _source(values["source"])
        for name in BREAKDOWNS:
            parts = values.get(name, [])
            "".join(word for path, _ in parts for word in path)  # of words
            values[name] = Breakdown({tuple(path): float(amount) for path, amount in parts})
        values["step_times_s"] = tuple(values.get("step_times_s", ()))
        math.fsum(values["step_times_s"])  # of numbers
        for name, kinds in _PROFILE.items():
            if name in values and not isinstance(values[name], kinds):
                raise TypeError(f"{name} is none")
        return Profile(**values)
    except FineGaugeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"This is no profile that FineGauge wrote: {error!r}.") from None


class Facts(NamedTuple):
    """What tables and comparisons need of a profile; a stored line has it before the profile itself."""

    outcome: str
    reason: str
    source: str  # predicted, measured ...
    device: str | None  # that measured it
    is_processor: bool  # whether a processor did the work, and no GPU
    observed: list[str]  # by which instruments
    processor_s: float | None  # of all processes
    step_time_s: dict[str, float]  # by stage
    step_times_s: list[float]
    peak_memory_bytes: float | None
    device_memory_bytes: float
    step_energy_j: float
    step_flops: float
    step_tokens: float
    step_sequences: float
    host_bound_fraction: float
    cached_bytes: float
    capacity_bytes: float
    served: dict[str, float]  # of `SERVED`
    work: list[Any]  # the fields of `WORK`
    machine: list[Any]  # the fields of `MACHINE`
    micro_batch_size: int

    @property
    def step_s(self) -> float:
        """Return the seconds of a step, all stages together; 0: not known."""
        return sum(self.step_time_s.values())

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second, padding included, over all GPUs; 0: not known."""
        return self.step_tokens / seconds if (seconds := self.step_s) else 0.0

    @property
    def samples_per_s(self) -> float:
        """Return sequences per second over all GPUs; 0: not known."""
        return self.step_sequences / seconds if (seconds := self.step_s) else 0.0


SERVED = ("ttft_s", "time_per_output_token_s", "written_tokens_per_s")  # among the details of steps
WORK = ("model", "dataset", "num_samples", "seq_len", "epochs", "max_steps", "phase")
MACHINE = ("gpu", "num_gpus", "num_nodes", "provider", "region")  # `gpu` comes first
_NUMBER = (float, int)
_KINDS: Mapping[Any, tuple[type, ...]] = {
    str: (str,), str | None: (str, NoneType), bool: (bool,), int: (int,), float: _NUMBER,
    float | None: (*_NUMBER, NoneType), dict[str, float]: (dict,),
}  # fmt: skip
_PROFILE: Mapping[str, tuple[type, ...]] = {
    **{name: _KINDS[kind] for name, kind in Profile.__annotations__.items() if kind in (str, float)},
    **dict.fromkeys(("fingerprint", "observations"), (dict,)),
}
_FACTS = tuple((name, _KINDS.get(kind, (list,))) for name, kind in Facts.__annotations__.items())
_in_order = itemgetter(*Facts._fields)
_SEEN: set[tuple[type, ...]] = set()  # the types of facts that were right


def facts_in(document: Mapping[str, Any]) -> Facts:
    """Return the facts of a profile's document.

    Raises: ValueError where it is none.
    """
    try:
        seen, fields = document["observations"], document["run"]["fields"]
        kind, fingerprint = document["source"]["kind"], document["fingerprint"]
        stages: dict[str, float] = {}
        for path, seconds in document["step_time_s"]:
            stages[path[0]] = stages.get(path[0], 0.0) + _known(seconds)
        served = seen.get("steps", {}).get("details", {})
        memory, device, energy = (
            [_known(amount) for _, amount in document[name]]
            for name in ("peak_memory_bytes", "device_memory_bytes", "step_energy_j")
        )
        return facts_of(
            {name: _known(document[name]) for name, kinds in _FACTS if kinds is _NUMBER and name in document}
            | {
                "outcome": document["outcome"],
                "reason": document["reason"],
                "source": kind,
                "device": fingerprint.get("device"),
                "is_processor": kind == "measured" and not fingerprint.get("cuda"),
                "observed": list(seen),
                "processor_s": _known(seen.get("timing", {}).get("processor_s")),
                "step_time_s": stages,
                "step_times_s": [_known(seconds) for seconds in document.get("step_times_s", ())],
                "peak_memory_bytes": sum(memory) if memory else None,
                "device_memory_bytes": sum(device),
                "step_energy_j": sum(energy),
                "served": {name: _known(served[name]) for name in SERVED if served.get(name)},
                "work": [fields.get(name) for name in WORK],
                "machine": [fields.get(name) for name in MACHINE],
                "micro_batch_size": fields["micro_batch_size"],
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"foreign: no profile ({error})") from None


def facts_of(values: Mapping[str, Any]) -> Facts:
    """Return the facts that a line states.

    Raises: KeyError, TypeError, ValueError where they are none.
    """
    stated = _in_order(values)
    if (kinds := tuple(map(type, stated))) not in _SEEN:
        for (name, known), kind in zip(_FACTS, kinds, strict=True):
            if not issubclass(kind, known):
                raise ValueError(f"{name} is none")
        _SEEN.add(kinds)
    found = Facts._make(stated)
    math.fsum((*found.step_times_s, *found.step_time_s.values(), *found.served.values()))  # of numbers
    hash((*found.work, *found.machine))
    return found


def _known(amount: Any) -> Any:
    """Return a number of a document, 0 for those that JSON has not."""
    return 0.0 if isinstance(amount, dict) and amount.keys() == {NOT_FINITE} else amount


def run_document(run: Run) -> dict[str, Any]:
    """Return every field of `run`, where each comes from (defaults are left out), and its warnings."""
    return {
        "fields": plain(run.fields()),
        "origins": {name: origin for name, origin in run.origins.items() if origin != FROM_DEFAULT},
        "warnings": list(run.warnings),
    }


def run_of(document: Mapping[str, Any]) -> Run:
    """Return the run that `document` holds.

    Each field is checked by itself; what follows from other fields was settled when the run was
    made, so that a run can be read where its model's files are not. As in `Run`, null stands for the default.

    Raises: ValueError where a field that every run states is missing.
    """
    stated = document["fields"]
    run = object.__new__(Run)
    for name, field in FIELDS.items():
        value = stated.get(name)
        if value is None and name in REQUIRED:
            raise ValueError(f"the run states no {name}")
        object.__setattr__(run, name, field.default if value is None else field(name, value))
    object.__setattr__(run, "origins", dict.fromkeys(FIELDS, FROM_DEFAULT) | document["origins"])
    object.__setattr__(run, "warnings", tuple(document["warnings"]))
    return run


def _source(values: Mapping[str, Any]) -> Source:
    intervals = {name: values.get(name) for name in ("memory_interval", "time_interval")}
    return Source(
        kind=values["kind"],
        name=values["name"],
        assumptions=tuple(values.get("assumptions", ())),
        **{name: None if pair is None else Interval(*pair) for name, pair in intervals.items()},
    )


def plain(value: Any) -> Any:
    """Return `value` as JSON values."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NOT_FINITE: str(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _restored(value: Any) -> Any:
    """Return `value` with the numbers that JSON has not."""
    if isinstance(value, dict):
        if value.keys() == {NOT_FINITE} and isinstance(value[NOT_FINITE], str):
            return float(value[NOT_FINITE])
        return {key: _restored(item) for key, item in value.items()}
    return [_restored(item) for item in value] if isinstance(value, list) else value
