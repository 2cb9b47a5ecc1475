"""FineGauge's own run file, and a bare Hugging Face config.json."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegauge.errors import UnknownKeyError
from finegauge.formats.sheet import Sheet
from finegauge.run.run import FIELDS

if TYPE_CHECKING:
    from finegauge.run.run import Run

FILE = "run.yaml"
CONFIG_KEYS = ("architectures", "model_type", "mamba_moe_layers")


def is_run_file(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a run file: at least one is a field's name and `model` is there."""
    return "model" in keys and not isinstance(keys["model"], Mapping)


def run_file_fields(keys: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields that a run file states.

    Raises: UnknownKeyError for a key that is no field.
    """
    for key in keys:
        if key not in FIELDS:
            raise UnknownKeyError(name, key, known=FIELDS)
    return dict(keys)


def is_model_config(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a Hugging Face config.json."""
    shaped = "hidden_size" in keys and "vocab_size" in keys
    return shaped or any(key in keys for key in CONFIG_KEYS)


def sheet(run: "Run") -> Sheet:
    """Return the run file of every field that somebody stated, so that it reads back as the same run."""
    stated = {name: list(v) if isinstance(v, tuple) else v for name, v in run.stated_fields().items()}
    return Sheet(FILE, stated, f"finegauge estimate {FILE}", "finegauge")
