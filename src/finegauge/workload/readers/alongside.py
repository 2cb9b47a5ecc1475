"""Files and figures given beside a training file: accelerate's, DeepSpeed's, the number of GPUs.

The training file wins where both speak of the number format, as in transformers' Trainer; where two
files state different batches or two ways to shard, nothing is right and the contradiction is said.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.errors import FieldError
from finegauge.workload.run import FROM_COMMAND_LINE, FROM_DEFAULT, STATED

_EXACT = ("micro_batch_size", "gradient_accumulation_steps")
_TRAINING_FILE_WINS = ("autocast",)


class Alongside(NamedTuple):
    """What is given beside the training file; None where nothing is."""

    accelerate: str | None = None
    deepspeed: str | None = None
    num_gpus: int | None = None

    def fields(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the fields that each file states, with the origin they get."""
        stated = []
        if self.accelerate is not None:
            from finegauge.workload.readers import accelerate

            found = accelerate.fields_of_file(self.accelerate)
            stated.append((f"accelerate file {os.path.basename(self.accelerate)}", found))
        if self.deepspeed is not None:
            from finegauge.workload.readers import deepspeed

            found = deepspeed.fields_of_file(self.deepspeed)
            stated.append((f"DeepSpeed file {os.path.basename(self.deepspeed)}", found))
        return stated

    def launched_gpus(self) -> int | None:
        """Return how many GPUs the run is launched on, if this tells."""
        if self.num_gpus is not None or self.accelerate is None:
            return self.num_gpus
        from finegauge.workload.readers import accelerate

        count = accelerate.fields_of_file(self.accelerate).get("num_gpus")
        return int(count) if count is not None else None

    def lay_over(self, fields: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
        """Put what stands alongside over the training file's `fields`.

        Raises: FieldError where the two contradict each other.
        """
        for origin, found in self.fields():
            _refuse_contradictions(origin, found, fields, origins)
            for field, value in found.items():
                keeps = field in _TRAINING_FILE_WINS and _is_stated(field, origins)
                if keeps and str(fields.get(field)) != str(value):
                    warnings.append(
                        f"{field}={value} of the {origin} has no effect: the training file states "
                        f"{field}={fields[field]}."
                    )
                unsharded = field in ("sharding", "cpu_offload") and value == "none" and field in fields
                if not keeps and not unsharded:
                    fields[field] = value
                    origins[field] = origin
        if self.num_gpus is not None:
            fields["num_gpus"], origins["num_gpus"] = self.num_gpus, FROM_COMMAND_LINE


def _is_stated(field: str, origins: Mapping[str, str]) -> bool:
    """Return whether somebody stated `field`, rather than a default."""
    origin = origins.get(field, FROM_DEFAULT)
    return origin in STATED or " file " in origin


def _refuse_contradictions(
    origin: str, found: Mapping[str, Any], fields: Mapping[str, Any], origins: Mapping[str, str]
) -> None:
    """Raise where `found` and `fields` cannot both hold."""
    for field in _EXACT:
        known = fields.get(field)
        if field in found and _is_stated(field, origins) and str(known) != str(found[field]):
            raise FieldError(
                f"{field}={known} of the training file contradicts {field}={found[field]} of the {origin}; "
                "make them equal, or set the latter to auto."
            )
    ours, theirs = str(fields.get("sharding") or "none"), str(found.get("sharding") or "none")
    if "none" not in (ours, theirs) and ours != theirs and _is_stated("sharding", origins):
        raise FieldError(
            f"sharding={ours} of the training file contradicts sharding={theirs} of the {origin}; keep one."
        )


ALONE = Alongside()
