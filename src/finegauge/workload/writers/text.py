"""Keys and values as the text of a file, under a comment that says where it comes from."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from finegauge.workload.writers.sheet import Sheet

if TYPE_CHECKING:
    from finegauge.workload.run import Run


def rendered(name: str, keys: Mapping[str, Any], head: list[str]) -> str:
    """Return the text of a file of that name; JSON has no comments, so it gets no head."""
    if name.endswith(".json"):
        return json.dumps(keys, indent=2) + "\n"
    comment = "".join(f"# {line}\n" for line in head)
    if name.endswith(".toml"):
        return comment + _toml(keys)
    return comment + _yaml(keys)


def head(run: "Run", sheet: Sheet, facts: Mapping[str, Any], *, main: bool) -> list[str]:
    """Return the lines above a file: who wrote it, of which estimate, how to start it, what no key says."""
    gpus = (
        f"{run.num_gpus} x {run.gpu}" if run.gpu else "1 GPU" if run.num_gpus == 1 else f"{run.num_gpus} GPUs"
    )
    lines = [f"Written by FineGauge {_version()} for {run.model}, {run.method}, on {gpus}."]
    if not main:
        return [*lines, f"It belongs to {sheet.file}."]
    beside = "".join(
        f" --{name.partition('.')[0]} {name}" for name in sheet.beside if name == "accelerate.yaml"
    )
    lines += [f"Its estimate: finegauge estimate {sheet.file}{beside}", f"Start it with: {sheet.command}"]
    if facts:
        lines.append(f"finegauge: {_flow(facts)}")
    return lines


@cache
def _version() -> str:
    """Return the version of FineGauge that is installed."""
    try:
        return version("finegauge")
    except PackageNotFoundError:
        return "from source"


def _flow(facts: Mapping[str, Any]) -> str:
    """Return a mapping on one line of YAML."""
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
    """Return a key, in quotes where it has to be."""
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml_value(value: Any) -> str:
    """Return a value of TOML on one line: tables inside sections too."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml_key(k)} = {_toml_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value)
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
