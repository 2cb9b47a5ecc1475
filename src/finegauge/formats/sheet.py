"""What one framework's writer hands over: keys and values, not yet text, and how to start the training."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from finegauge.documents import installed_version, parse_toml, parse_yaml
from finegauge.errors import FileFormatError, FineGaugeError, InputError, UnknownNameError
from finegauge.records import NamedTuple
from finegauge.run.run import Run, figures

if TYPE_CHECKING:
    from finegauge.catalogue.models import ModelFigures

ACCELERATE = "accelerate.yaml"
DEEPSPEED = "deepspeed.json"
TEXTS = (".jsonl", ".json", ".parquet", ".arrow", ".csv")
_ENDS = """
q_proj k_proj v_proj o_proj out_proj qkv_proj gate_proj up_proj down_proj gate_up_proj in_proj c_attn
c_proj c_fc query_key_value dense dense_h_to_4h dense_4h_to_h fc1 fc2 qkv proj lm_head embed_tokens
"""
_LAYERS = frozenset(_ENDS.split())  # that a pattern may end in
_MAX_PATTERN = 300  # characters
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Model types whose attention is the first four of LINEAR, and whose only linear layers are all seven.
_NAMED = """
llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text olmo2 granite
"""
NAMED_PROJECTIONS = frozenset(_NAMED.split())
DENSE = NAMED_PROJECTIONS - {"mixtral", "qwen2_moe", "qwen3_moe"}
BLOCK = "finegauge"  # of fields of a run in any file
YES = ("true", "1", "yes")  # as command lines have it
_OF_ENVIRONMENT = r"\$\{(?:oc\.env:\w{1,100},|[A-Z]\w{0,99}[:,]-?)\s*([^${}]{1,200})\}"
MAX_TEXT = 4096  # characters of a text that is put together


class Sheet(NamedTuple):
    """The files of one framework, as keys and values."""

    file: str  # the training file's name
    keys: Mapping[str, Any]
    command: str  # starts the training, in the folder of the files
    packages: str  # what pip has to install for it
    beside: Mapping[str, Mapping[str, Any]] = {}  # launcher's files by name
    spoken: tuple[str, ...] = ()  # fields that the command says, not the file: a comment repeats them
    notes: tuple[str, ...] = ()  # what the user has to know or to fill in


def run_file(run: Run) -> Sheet:
    """Return FineGauge's own run file: what somebody stated, so that it reads back as the same run."""
    stated = {name: list(v) if isinstance(v, tuple) else v for name, v in run.stated_fields().items()}
    return Sheet("run.yaml", stated, "finegauge estimate run.yaml", "finegauge")


def refuse(framework: str, field: str, value: Any, instead: str) -> InputError:
    """Return the error for a run that a framework cannot carry out."""
    return InputError(f"{framework} cannot say {field}={plain(value)}; {instead}")


def require(run: Run, framework: str, instead: str, **allowed: Collection[Any]) -> None:
    """Check that a framework can carry out a run: that each field has one of the values `allowed`.

    Raises: InputError naming the first that has not, and saying what to do instead.
    """
    for field, values in allowed.items():
        if getattr(run, field) not in values:
            raise refuse(framework, field, getattr(run, field), instead)


def plain(value: Any) -> str:
    """Return a field's value for a message."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def repository(run: Run) -> str:
    """Return the model as frameworks load it: the hub's id of a name, a config.json's folder."""
    if os.path.basename(run.model) == "config.json":
        return os.path.dirname(run.model) or "."
    if "/" in run.model or os.path.exists(run.model):
        return run.model
    try:
        return figures(run.model).name
    except FineGaugeError:
        return run.model


def known_model(name: str) -> "ModelFigures | None":
    """Return the figures of a model; None where neither the catalogue nor a file that can be read has it."""
    try:
        return figures(name)
    except (UnknownNameError, FileFormatError):
        return None


def model_type(run: Run) -> str:
    """Return Hugging Face's name of the model's architecture, "" where it is not known."""
    try:
        config = run.config
    except FineGaugeError:
        return ""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    return str(inner.get("model_type") or config.get("model_type") or "")


def targets(run: Run) -> tuple[str, ...]:
    """Return the adapted layers by names that PEFT knows; all-linear stays itself.

    Raises: InputError for "attention" of a model whose projections are named otherwise.
    """
    if "attention" not in run.lora_targets:
        return run.lora_targets
    if model_type(run) not in NAMED_PROJECTIONS:
        raise InputError(
            f"lora_targets=attention means other layers in {run.model} than in most models; name them, "
            "such as lora_targets=q_proj,v_proj."
        )
    others = [name for name in run.lora_targets if name != "attention"]
    return tuple(dict.fromkeys((*LINEAR[:4], *others)))


def of_pattern(asked: str) -> list[str]:
    """Return the layers that a pattern of PEFT's ends in, or matches; none of what is no pattern."""
    if not re.search(r"[\\()*?$]", asked):
        return []
    words = re.findall(r"\((?:\?:)?([\w|]{1,200})\)(\w{0,20})|\b(\w{1,40})\b", asked[:2_000])
    ends = [part + after for parts, after, _ in words for part in parts.split("|")]
    named = dict.fromkeys(name for name in [*ends, *(word for *_, word in words)] if name in _LAYERS)
    return _matched(asked) or [*named]


def _matched(pattern: str) -> list[str]:
    """Return the layers whose path in Llama's model a pattern matches; none of one that could run long."""
    if (
        len(pattern) > _MAX_PATTERN
        or re.search(r"\)[*+{]", pattern)
        or len(re.findall(r"[*+{]", pattern)) > 4
    ):
        return []
    try:
        compiled = re.compile(pattern)
    except re.error:
        return []
    parts = {
        name: "mlp" if re.search(r"gate|up_|down|fc|4h", name) else "self_attn" for name in _ENDS.split()
    }
    return [name for name, part in parts.items() if compiled.fullmatch(f"model.layers.0.{part}.{name}")]


def whole_number(value: float) -> int | float:
    """Return 16.0 as 16, as people write it."""
    return int(value) if value == int(value) else value


def dataset_name(run: Run) -> str | None:
    """Return the data set as a framework can load it; None for none, and for a table of lengths."""
    if run.dataset is None or (run.dataset.endswith(".csv") and run.tokenizer is None):
        return None
    return run.dataset


def samples_of(split: str, total: int | None) -> int | None:
    """Return how many samples a slice takes: train[:1000], train[:1%] of `total`; None of anything else."""
    found = re.fullmatch(r"\w+\[(\d{0,12})(%?):(\d{1,12})(%?)\]", split.replace(" ", ""))
    if found is None or ("%" in (found[2], found[4]) and not total):
        return None
    first, last = (
        int(count or 0) * (total or 0) // 100 if percent else int(count or 0)
        for count, percent in ((found[1], found[2]), (found[3], found[4]))
    )
    return max(1, min(last, total or last) - first)


def file_kind(named: str) -> str | None:
    """Return what `datasets` reads a file of that name as: json, csv, ...; None of a name on a hub."""
    ending = "." + named.rpartition(".")[2].lower()
    return {".jsonl": "json"}.get(ending, ending[1:]) if ending in TEXTS else None


def listed(value: Any) -> list[Any]:
    """Return a list as it is, and none of anything else."""
    return value if isinstance(value, list) else []


def mapping_in(value: Any, *path: str) -> Mapping[str, Any]:
    """Return the mapping at the end of a path of keys, JSON's text included; {} where there is none."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(FileFormatError):
            value = parse_yaml(value, "a key's value")
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def without(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return `keys` without those that are None."""
    return {key: value for key, value in keys.items() if value is not None}


def in_sections(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return "section.key" keys as mappings inside a mapping."""
    found: dict[str, Any] = {}
    for path, value in keys.items():
        section, dot, name = path.partition(".")
        if dot:
            found.setdefault(section, {})[name] = value
        else:
            found[section] = value
    return found


def flattened(keys: Mapping[str, Any], sections: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a file holds, under "section.key" what is inside one of `sections`."""
    for key, value in keys.items():
        if key in sections and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inside) for name, inside in value.items())
        else:
            yield key, value


def dotted(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return what sections hold under "section.inner.key", Hydra's ${section.key} in its place.

    Of ${oc.env:NAME,default} and ${NAME:default} it is the default; no other expression is among them.
    """
    found: dict[str, Any] = {}
    for name, value in keys.items():
        if isinstance(value, Mapping) and value and name != BLOCK:
            found |= dotted(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    if prefix:
        return found
    for _ in range(4):
        for name, value in found.items():
            if isinstance(value, str) and (unset := re.fullmatch(_OF_ENVIRONMENT, value)):
                found[name] = unset[1]
            elif isinstance(value, str) and (reference := re.fullmatch(r"\$\{([\w.]{1,200})\}", value)):
                found[name] = found.get(reference[1])
    return {name: value for name, value in found.items() if not (isinstance(value, str) and "${" in value)}


def value_at(keys: Mapping[str, Any], path: str) -> Any:
    """Return the value at "section.key", None where there is none."""
    value: Any = keys
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def scalar(value: Any) -> Any:
    """Return a word of the command line as the number or the flag that it is."""
    if not isinstance(value, str) or len(value) > 30:
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value) if value.strip("+-").isdecimal() else float(value)
    except ValueError:
        return value


def mixes_under_fsdp(fields: Mapping[str, Any]) -> bool:
    """Return whether FSDP trains under mixed precision: accelerate then holds what trains in fp32."""
    sharded = str(fields.get("sharding", "none")).startswith(("fsdp", "hybrid"))
    return sharded and str(fields.get("autocast", "none")).lower() not in ("none", "", "false", "no")


def held_by(text: Any) -> dict[str, Any] | None:
    """Return the mapping that a text of YAML, JSON or TOML holds; None of anything else."""
    for parse in (parse_yaml, parse_toml) if isinstance(text, str) else ():
        with suppress(FileFormatError):
            if isinstance(found := parse(text, "a text"), dict):
                return found
    return None


def leaves(value: Any, most: int = MAX_TEXT) -> int:
    """Return how many values a list or a mapping holds, those inside too, counted up to `most`."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    count = 1
    for one in inside:
        count += leaves(one, most - count) if count <= most else 1
    return count


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `over` laid over those of `under`, section by section."""
    found = dict(under)
    for key, value in over.items():
        below = found.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        found[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return found


def laid_over(keys: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's keys under the options, "section.key" ones inside their sections."""
    result: dict[str, Any] = dict(keys)
    for path, value in options.items():
        *sections, last = path.split(".")
        place = result
        for section in sections[:12]:
            place[section] = place = dict(mapping_in(place, section))
        place[last] = _typed(value)
    return result


def _typed(value: Any) -> Any:
    """Return the word of a command line as YAML would have it where it is null, a list or a mapping."""
    if isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}" and len(value) > 1:
        try:
            return parse_yaml(f"x: {value}", "an option")["x"]
        except (FileFormatError, KeyError, TypeError):
            return value
    return None if value in ("null", "None") else value


def rendered(name: str, keys: Mapping[str, Any], head: list[str]) -> str:
    """Return the text of a file of that name; JSON has no comments, so it gets no head."""
    if name.endswith(".json"):
        import json

        return json.dumps(keys, indent=2) + "\n"
    comment = "".join(f"# {line}\n" for line in head)
    return comment + _toml(keys) if name.endswith(".toml") else comment + _yaml(keys)


def head(run: Run, sheet: Sheet, facts: Mapping[str, Any], *, main: bool) -> list[str]:
    """Return the lines above a file: who wrote it, of which estimate, how to start it, what no key says."""
    gpus = (
        f"{run.num_gpus} x {run.gpu}" if run.gpu else "1 GPU" if run.num_gpus == 1 else f"{run.num_gpus} GPUs"
    )
    written_by = installed_version("finegauge") or "from source"
    lines = [f"Written by FineGauge {written_by} for {run.model}, {run.method}, on {gpus}."]
    if not main:
        return [*lines, f"It belongs to {sheet.file}."]
    beside = "".join(
        f" --{name.partition('.')[0]} {name}" for name in sheet.beside if name == "accelerate.yaml"
    )
    lines += [f"Its estimate: finegauge estimate {sheet.file}{beside}", f"Start it with: {sheet.command}"]
    if facts:
        lines.append(f"finegauge: {_flow(facts)}")
    return lines


def _flow(facts: Mapping[str, Any]) -> str:
    import yaml

    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
    return str(yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**6)).strip()


def _toml(keys: Mapping[str, Any]) -> str:
    """Return TOML of sections; a key that stands before them all stands first."""
    bare = {key: value for key, value in keys.items() if not isinstance(value, Mapping)}
    lines = [f"{key} = {_toml_value(value)}" for key, value in bare.items() if value is not None]
    for section, values in keys.items():
        if isinstance(values, Mapping):
            held = [f"{_toml_key(key)} = {_toml_value(v)}" for key, v in values.items() if v is not None]
            lines += ["", f"[{_toml_key(section)}]", *held]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "").isalnum() and key.isascii()
    return key if plain else _quoted(key)


def _quoted(value: bool | str) -> str:
    import json

    return json.dumps(value)


def _toml_value(value: Any) -> str:
    """Return a value of TOML on one line: tables inside sections too."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(k)} = {_toml_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool | str):
        return _quoted(value)
    return str(value)  # numbers, inf and nan among them, and dates


def _yaml(keys: Mapping[str, Any]) -> str:
    """Return YAML as people write it: in the order of the keys, several lines of text as a block."""
    import yaml

    quick: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(quick):  # type: ignore[valid-type, misc]
        """Without anchors: what stands twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            """Return that nothing is an alias."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump(keys, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100))
