"""How near are the peaks of every moment of a job to those of real processes on this machine?

Two small models are loaded, trained, evaluated, saved and resumed by transformers, PEFT, bitsandbytes, torch
and DeepSpeed themselves, in 1, 2 and 4 processes over gloo. Printed is, for each moment and for the first
and the worst other process, what was predicted, what was measured and the error: bytes of torch's allocator
and resident bytes of the process. Of several `--rounds` the median is taken. Ends with 1 where an error is
over its bar: 3 % of allocated, 10 % of resident bytes.

    python -m benchmarks.moments [--only WORDS] [--rounds N] [--keep FOLDER] [--record FILE]
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from finegauge.answers.measurement import MeasuredMoment, measurement
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure
from finegauge.prediction.predictor import prediction_for
from finegauge.profile import Profile, Source
from finegauge.run.run import Run
from finegauge.store.document import profile_document, profile_of
from finegauge.units import MIB

BARS = {"allocated": 0.03, "resident": 0.10}
SIZES: dict[str, dict[str, Any]] = {  # half of the first is embedding and head; the second is mostly layers
    "67M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 12,
            "num_key_value_heads": 12, "vocab_size": 16_000, "tie_word_embeddings": False},
    "133M": {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 11,
             "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8_000,
             "tie_word_embeddings": True},
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # of the file, and how it is trained
    "full": ("float32", {"method": "full", "weights_dtype": "fp32"}),
    "lora": ("bfloat16", {"method": "lora", "lora_rank": 16}),
    "qlora": ("bfloat16", {"method": "qlora", "lora_rank": 16}),
}
SHARDINGS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "fsdp": {"sharding": "fsdp"},
    "fsdp-sharded": {"sharding": "fsdp", "save_state": "sharded"},
}


class Cell(NamedTuple):
    """One job: its name, its model, how it is trained and divided."""

    name: str
    config: dict[str, Any]
    fields: dict[str, Any]

    def run(self, folder: Path) -> Run:
        """Return its run, whose model's config is written to `folder`."""
        model = folder / f"{self.name.split()[-1]}-{self.config['dtype']}"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(self.config), "utf-8")
        batch = {"seq_len": 128, "micro_batch_size": 2, "eval_samples": 16, "eval_batch_size": 4}
        return Run.from_fields({"model": str(model), **batch, **self.fields})


def cells() -> Iterator[Cell]:
    """Yield every job that can be measured here: bitsandbytes' weights are not divided."""
    for processes in (1, 2, 4):
        for sharding, divided in SHARDINGS.items() if processes > 1 else [("alone", {})]:
            for method, (dtype, how) in METHODS.items():
                for size, shape in SIZES.items() if method != "qlora" or not divided else ():
                    config = {**LLAMA, **shape, "dtype": dtype}
                    fields = {**how, **divided, "num_gpus": processes}
                    yield Cell(f"{processes} {sharding} {method} {size}", config, fields)


class Row(NamedTuple):
    """One kind of bytes at one moment of one job, in the first process or in the worst other."""

    cell: str
    moment: str
    process: str
    kind: str
    predicted_bytes: float
    measured_bytes: float

    @property
    def error(self) -> float:
        """Return how far the prediction is off, as a part of what was measured."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def is_over(self) -> bool:
        """Return whether that is more than the bar."""
        return abs(self.error) > BARS[self.kind]

    def __str__(self) -> str:
        """Return its line of the table."""
        sizes = f"{self.predicted_bytes / MIB:8.0f}{self.measured_bytes / MIB:8.0f}"
        end = "  over" if self.is_over else ""
        return f"{self.cell:28}{self.moment:11}{self.process:6}{self.kind:10}{sizes}{self.error:+8.1%}{end}"


def measured(cell: Cell, folder: Path, number: int) -> Profile:
    """Return what a round measured of a job, read back where `folder` keeps it.

    Raises: SystemExit where the trial did not come to its end.
    """
    kept = folder / f"{cell.name.replace(' ', '-')}-{number}.json"
    run = cell.run(folder)
    if kept.exists():
        return profile_of(json.loads(kept.read_text("utf-8")))
    found = measure(run, Options(steps=1, warmup_steps=1, memory=False, moments=True))
    if found.outcome != "completed":
        raise SystemExit(f"{cell.name}: {found.outcome}, {found.reason}")
    kept.write_text(json.dumps(profile_document(found)), "utf-8")
    return found


def rows_of(cell: Cell, rounds: list[Profile]) -> Iterator[Row]:
    """Yield the rows of a job, by the median of its rounds."""
    prediction = prediction_for(rounds[0].run, "cpu")
    seen: dict[tuple[str, int], list[MeasuredMoment]] = defaultdict(list)
    for profile in rounds:
        for moment in measurement(profile, prediction).moments:
            seen[moment.moment, moment.rank].append(moment)
    worst: dict[tuple[str, str, str], Row] = {}
    for (name, rank), found in seen.items():
        process = "other" if rank else "first"
        for kind in BARS:
            said, real = (
                median(getattr(one, f"{which}{kind}_bytes") for one in found) for which in ("predicted_", "")
            )
            row, key = Row(cell.name, name, process, kind, said, real), (name, process, kind)
            if key not in worst or abs(worst[key].error) < abs(row.error):
                worst[key] = row
    yield from worst.values()


def recorded(cell: Cell, processes: list[dict[str, Any]], folder: Path) -> Profile:
    """Return a job as `--record` wrote its processes down."""
    return Profile(cell.run(folder), Source("measured", "recorded"), observations={"moments": processes})


def main() -> int:
    """Print the table; return 1 where an error is over its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cells whose names have each of these words")
    parser.add_argument("--rounds", type=int, default=1, help="of each cell, for the median (default: 1)")
    parser.add_argument("--keep", type=Path, help="a folder for what is measured; what is there is read back")
    parser.add_argument("--record", type=Path, help="a JSON file to add the first round of each to")
    asked = parser.parse_args()
    rows: list[Row] = []
    kept = json.loads(asked.record.read_text("utf-8")) if asked.record and asked.record.exists() else {}
    with tempfile.TemporaryDirectory() as own:
        folder = asked.keep or Path(own)
        for cell in cells():
            if set(asked.only.split()) <= set(cell.name.split()):
                rounds = [measured(cell, folder, number) for number in range(asked.rounds)]
                found = list(rows_of(cell, rounds))
                print(*found, sep="\n", flush=True)
                rows += found
                kept[cell.name] = rounds[0].observations["moments"]
    if asked.record:
        asked.record.write_text(json.dumps(kept) + "\n", "utf-8")
    if not rows:
        parser.error(f"no cell's name has each word of '{asked.only}'; one is '{next(cells()).name}'")
    over = sum(row.is_over for row in rows)
    for kind, bar in BARS.items():
        errors = sorted(abs(row.error) for row in rows if row.kind == kind)
        print(
            f"{kind}: {len(errors)} peaks, median {median(errors):.1%}, worst {errors[-1]:.1%}, bar {bar:.0%}"
        )
    print(f"{'kept' if not over else 'BROKEN'}: {over} of {len(rows)} peaks are over their bar")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
