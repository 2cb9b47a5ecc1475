"""Writes the traces that the package ships: of the catalogue's models whose type no row describes.

    python -m tests.oracle.shipped_traces [NAME ...]

Each is the document of `finegauge trace`, made on this machine with the transformers that is installed.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegauge.catalogue.models import model, models
from finegauge.errors import FineGaugeError
from finegauge.model.families import NOT_TRACED, is_described
from finegauge.model.families.newest import gemma3n_text
from finegauge.model.traced import shipped_path, trace_text


def traced_config(name: str) -> Mapping[str, Any] | None:
    """Return the configuration under which a model's trace is filed; None of a model that needs none."""
    config = model(name).config
    if config.get("model_type") == "gemma3n":
        return gemma3n_text(config["text_config"])
    return None if is_described(config) or config.get("model_type") in NOT_TRACED else config


def undescribed() -> list[str]:
    """Return the models of the catalogue that only a trace answers."""
    return [name for name in models() if traced_config(name)]


def main(names: list[str]) -> int:
    """Trace, write, and say what could not be traced; return the exit status."""
    from finegauge.measurement.tracer.document import trace_document

    failed = 0
    for name in names or undescribed():
        config = traced_config(name)
        assert config is not None, name
        try:
            text = trace_text(trace_document(config), config)
        except FineGaugeError as error:
            print(f"{name}: {error}")
            failed += 1
            continue
        path = Path(shipped_path(config))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {path.name}, {len(text) / 1e3:.0f} kB")
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
