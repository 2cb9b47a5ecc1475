"""Writes docs/models.md: how every causal language model type of transformers is answered.

    make models

Types without a row are traced through one pass here, so that the page says of each what is so.
"""

import json
import sys
from pathlib import Path
from typing import Any

from finegauge.errors import FineGaugeError
from finegauge.model.families import NOT_TRACED, is_described, supported_model_types

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
DESCRIBED, TRACED, REFUSED, NO_DEFAULT = "described", "traced", "refused", "no model by default"
COLUMNS = 4


def causal_types() -> list[str]:
    """Return the types whose class transformers knows as a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def default_config(model_type: str) -> dict[str, Any] | None:
    """Return the config.json of a type's configuration class, None where that refuses its own defaults."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        written = json.loads(json.dumps(AutoConfig.for_model(model_type).to_dict(), default=str))
    except Exception:  # whatever the class raises about its own defaults
        return None
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    name = names if isinstance(names, str) else names[0]
    return {**written, "model_type": model_type, "architectures": [name]}


def answer(model_type: str) -> tuple[str, str]:
    """Return how a type is answered, and what stands against it."""
    from finegauge.model.families import architecture

    if model_type in NOT_TRACED:
        return REFUSED, ", ".join(NOT_TRACED[model_type])
    config = default_config(model_type)
    if config is None:
        return NO_DEFAULT, "its configuration class refuses its own defaults"
    try:
        if is_described(config):
            architecture(config)
            return DESCRIBED, ""
        passes(config)
    except FineGaugeError as error:
        said = " ".join(str(error).split())
        if is_described(config) and not _runs(config):  # by default without a figure that every file has
            return DESCRIBED, ""
        alone = "refuses this config.json" not in said and "shared_kv_states" not in said
        return (REFUSED if alone else NO_DEFAULT), said
    return TRACED, ""


def _runs(config: dict[str, Any]) -> bool:
    try:
        passes(config)
    except FineGaugeError:
        return False
    return True


def passes(config: dict[str, Any]) -> None:
    """Run one pass of a type's class on tensors without data.

    Raises: FineGaugeError where it cannot be built or traced.
    """
    import torch

    from finegauge.measurement.tracer.passes import Pass, attention_of, build, record

    attention = attention_of(config, "flash")
    asked = Pass(1, 16, autocast=False, attention=attention, trained=False)
    record(build(config, torch.bfloat16, attention), asked)


def page(answers: dict[str, tuple[str, str]], version: str) -> str:
    """Return the page that tells how each type is answered."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in (DESCRIBED, TRACED, REFUSED, NO_DEFAULT)}
    for name, (kind, _) in answers.items():
        by_kind[kind].append(name)
    beside = sorted(set(supported_model_types()) - set(answers))
    count = {kind: len(names) for kind, names in by_kind.items()}
    asked = len(answers) - count[NO_DEFAULT]
    described = sorted(set(by_kind[DESCRIBED]) | set(beside))
    lines = [
        "# Model types",
        "",
        f"Of the {len(answers)} model types that transformers {version} has a causal language model for, "
        f"{count[DESCRIBED]} are described (they need no torch), {count[TRACED]} are traced from their class "
        f"the first time they are asked for, {count[REFUSED]} are refused "
        f"({count[REFUSED] / asked:.1%} of those that have a default), and of {count[NO_DEFAULT]} "
        "the defaults are no model that transformers itself builds here, or one that takes another's states. "
        f"{len(beside)} further types are described: of vision-language models, and of code in model "
        "repositories. Written by `make models`; a test holds it.",
        "",
        "## Described",
        "",
        *_table(described),
        "",
        "## Traced",
        "",
        *_table(by_kind[TRACED]),
    ]
    for title, kind in (("Refused", REFUSED), ("No model by default", NO_DEFAULT)):
        lines += ["", f"## {title}", "", "| type | why |", "|---|---|"]
        lines += [f"| `{name}` | {_short(answers[name][1])} |" for name in by_kind[kind]]
    return "\n".join(lines) + "\n"


def _short(why: str) -> str:
    return why.replace("|", "/").replace("<", "(").replace(">", ")")[:240]


def _table(names: list[str]) -> list[str]:
    rows = [names[i : i + COLUMNS] for i in range(0, len(names), COLUMNS)]
    cells = [[f"`{name}`" for name in row] + [""] * (COLUMNS - len(row)) for row in rows]
    return ["|" + " |" * COLUMNS, "|" + "---|" * COLUMNS, *("| " + " | ".join(row) + " |" for row in cells)]


def main() -> int:
    """Ask every type, write the page; return the exit status."""
    import transformers

    transformers.logging.set_verbosity_error()
    answers = {name: answer(name) for name in causal_types()}
    PAGE.write_text(page(answers, transformers.__version__), encoding="utf-8")
    print(f"{PAGE.name}: {len(answers)} types")
    return 0


if __name__ == "__main__":
    sys.exit(main())
