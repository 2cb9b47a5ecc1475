"""One command for a rented GPU and a fixed time: what is worth most is measured first, and kept as it comes.

    python benchmarks/gpu_hour.py --minutes 60 --device cuda -o results

    results/devices/cuda.json   the device profile of this machine (`finegauge micro`)
    results/trials.jsonl        a Profile per run, appended as it ends
    results/models/             the configs of the runs that no catalogue has

First the operators of the device, then a grid of runs: every model and method once with every
instrument, SM and DRAM utilisation of one layer by ncu where it is there, then other batch sizes and
lengths. A run that is predicted not to fit, or to take longer than what is left, is passed over and
said to be; what a former call has done is not done again. `--device cpu --minutes 1` takes the same
path through tiny models.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from finegauge.catalogue.device_profile import own_profile_path, write
from finegauge.errors import EXIT_INTERRUPTED, FineGaugeError
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure
from finegauge.prediction.predictor import prediction_for
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.store.journal import Trials
from finegauge.units import GIB

MICRO_FRACTION = 0.25  # of the time, after which no further operator is timed; the host's costs follow
MICRO_LEAST_S = 2.0  # for operators, however long the libraries took to load
MICRO_MOST_FRACTION = 0.9  # of the time, after which the operators are given up
START_S = {"cpu": 12.0, "cuda": 40.0}  # of a trial before its first step, until trials have been seen
LEAST_LEFT_S = {"cpu": 10.0, "cuda": 45.0}  # below which no trial is worth starting
SAFETY_RATIO = 1.2  # a trial may take so much longer than expected
STEPS = {"cpu": 3, "cuda": 10}
THREADS = {"cpu": 1, "cuda": 0}  # one does not wait for another that a busy machine has put aside
TIMED_OUT = "not done after"  # how the reason of a trial begins that took too long
PASSES = 3.0  # timing, layers, and the rest of the instruments, in units of the timing pass

Fields = Mapping[str, Any]
LLAMA: Fields = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
MIXTRAL: Fields = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
CONFIGS: Mapping[str, Fields] = {
    "tiny-dense": {**LLAMA, "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256},
    "tiny-moe": {**MIXTRAL, "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256},
    "moe-2b": {
        **{**MIXTRAL, "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 3584},
        **{"num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8},
    },
}
ALL_EXPERTS = {"num_experts_per_tok": "all"}
# (model, what the run says beside it), the most telling first: each is measured with every instrument.
ANCHORS: Mapping[str, tuple[tuple[str, Fields], ...]] = {
    "cpu": (
        ("tiny-dense", {"method": "full"}),
        ("tiny-moe", {"method": "full"}),
        ("tiny-moe", {"method": "lora"}),
        ("tiny-moe", {"method": "full", **ALL_EXPERTS}),
        ("tiny-dense", {"method": "lora"}),
        ("tiny-moe", {"method": "qlora"}),
    ),
    "cuda": (
        ("llama3.2-1b", {"method": "full"}),
        ("moe-2b", {"method": "qlora"}),
        ("moe-2b", {"method": "full"}),
        ("llama3.2-1b", {"method": "lora"}),
        ("moe-2b", {"method": "qlora", **ALL_EXPERTS}),
        ("blackmamba-2.8b", {"method": "full"}),
        ("llama3.2-3b", {"method": "qlora"}),
        ("moe-2b", {"method": "lora"}),
        ("llama3.2-3b", {"method": "full", "activation_checkpointing": "full"}),
        ("smollm2-135m", {"method": "full"}),
        ("blackmamba-2.8b", {"method": "full", **ALL_EXPERTS}),
        ("granite-3.0-3b-a800m", {"method": "lora"}),
        ("tiny-moe", {"method": "full"}),
        ("tiny-dense", {"method": "full"}),
    ),
}
# (micro_batch_size, seq_len): the first for the anchors, the others for batch and length alone.
SIZES = {
    "cpu": ((2, 64), (1, 64), (4, 64), (2, 128), (8, 32)),
    "cuda": ((4, 512), (1, 512), (16, 512), (4, 2048), (32, 128), (2, 1024)),
}


class Point(NamedTuple):
    """One run of the grid and how it is measured."""

    name: str
    run: Run
    options: Options


class Budget:
    """The time that is left, and what trials have been seen to take."""

    def __init__(self, total_s: float, device: str) -> None:
        """Start the clock."""
        self.total_s, self._start_s = total_s, time.monotonic()
        self._overhead_s = START_S[device]

    @property
    def left_s(self) -> float:
        """Return the seconds left."""
        return self.total_s - (time.monotonic() - self._start_s)

    def expected_s(self, options: Options, step_s: float) -> float:
        """Return the seconds that a trial will take whose step takes `step_s`."""
        steps = options.warmup_steps + options.steps * (PASSES if options.layers else 1.0)
        starts = 2 if options.ncu else 1  # ncu watches a process of its own
        return starts * self._overhead_s + steps * step_s

    def learn(self, options: Options, took_s: float, step_s: float) -> None:
        """Take in what a trial took beside its steps."""
        expected_s = self.expected_s(options, step_s)
        self._overhead_s = max(
            1.0, self._overhead_s + 0.5 * (took_s - expected_s) / (2 if options.ncu else 1)
        )


def grid(device: str, folder: Path) -> Iterator[Point]:
    """Yield every run, the most valuable first."""
    (batch, length), *others = SIZES[device]
    plainly = (
        {} if device == "cuda" else {"weights_dtype": "fp32"}
    )  # bf16, unless arithmetic in it is emulated
    everything = Options(
        device=device, steps=STEPS[device], threads=THREADS[device], layers=True, kernels=True,
        experts=True, energy=True, ncu=device == "cuda",
    )  # fmt: skip
    plain = Options(device=device, steps=STEPS[device], threads=THREADS[device], energy=True)
    sizes = [(batch, length, everything), *((b, s, plain) for b, s in others)]
    for micro_batch_size, seq_len, options in sizes:
        for model, fields in ANCHORS[device]:
            path = folder / "models" / f"{model}.json"
            run = Run.from_fields(
                {
                    "model": str(path) if model in CONFIGS else model,
                    **(plainly if fields["method"] != "qlora" else {}),
                    "micro_batch_size": micro_batch_size,
                    "seq_len": seq_len,
                    **fields,
                }
            )
            how = " ".join(str(value) for value in fields.values())
            name = f"{model} {how} B={micro_batch_size} S={seq_len}"
            asked = options if "moe" in model or "mamba" in model else options._replace(experts=False)
            yield Point(name, run, asked)


def time_operators(device: str, total_s: float) -> None:
    """Write the device profile, in a process of its own so that nothing of it stays on the device."""
    path = Path(own_profile_path(device))
    context = multiprocessing.get_context("spawn")
    ends_s = time.monotonic() + MICRO_FRACTION * total_s
    worker = context.Process(target=_micro, args=(device, ends_s, str(path)), daemon=True)
    worker.start()
    worker.join(MICRO_MOST_FRACTION * total_s)
    if worker.is_alive():
        worker.kill()
        worker.join()
    print(f"operators: {path.name if path.exists() else 'none; predictions will be missing'}", flush=True)


def _micro(device: str, ends_s: float, path: str) -> None:
    """Time the operators of this machine until the clock says `ends_s`; runs in the child."""
    from finegauge.measurement.bench.microbenchmarks import micro

    within_s = max(MICRO_LEAST_S, ends_s - time.monotonic())
    write(micro(device=device, threads=THREADS[device], within_s=within_s), path)


def measured(point: Point, budget: Budget, store: Path, expected: Profile | None) -> str:
    """Measure one run, keep its Profile, and return what to say about it."""
    started_s = time.monotonic()
    options = point.options._replace(timeout_s=max(LEAST_LEFT_S[point.options.device], budget.left_s))
    profile = measure(point.run, options, store=str(store))
    took_s = time.monotonic() - started_s
    if profile.outcome == "completed":
        budget.learn(point.options, took_s, profile.step_time_s.total)
    return f"{said(profile, expected)}   ({took_s:.0f} s)"


def said(profile: Profile, expected: Profile | None) -> str:
    """Return one line: measured, and predicted in brackets."""
    if profile.outcome != "completed":
        return f"{profile.outcome}: {profile.reason}"
    step, peak = profile.step_time_s.total, profile.peak_memory_bytes.total
    words = [f"step {step:.4g} s", f"peak {peak / GIB:.3g} GiB"]
    if expected is not None:
        if expected.step_time_s.total:
            words[0] += f" ({expected.step_time_s.total:.4g})"
        words[1] += f" ({expected.peak_memory_bytes.total / GIB:.3g})"
    if profile.step_energy_j.total:
        words.append(f"{profile.step_energy_j.total:.4g} J")
    return ", ".join(words)


def why_not(point: Point, budget: Budget, expected: Profile | None) -> str:
    """Return why a run is passed over; "" where it is not."""
    if expected is not None and not expected.fits:
        needs, has = expected.device_memory_bytes.total, expected.capacity_bytes
        return f"predicted not to fit: {needs / GIB:.3g} of {has / GIB:.3g} GiB"
    step_s = expected.step_time_s.total if expected is not None else 0.0
    likely_s = SAFETY_RATIO * budget.expected_s(point.options, step_s)
    if likely_s > budget.left_s:
        return f"would take {likely_s:.0f} s of the {max(0.0, budget.left_s):.0f} s left"
    return ""


def done(store: Path) -> set[Run]:
    """Return the runs that have an outcome, of this call or a former one.

    Those that were interrupted, or for which the time ran out, have none.
    """
    trials = Trials(str(store))
    trials.recover()
    profiles = (p for p in trials.profiles() if p.outcome != "interrupted")
    return {profile.run for profile in profiles if not profile.reason.startswith(TIMED_OUT)}


def spend(budget: Budget, device: str, folder: Path) -> int:
    """Measure until the time is up; return the number of runs that completed."""
    store = folder / "trials.jsonl"
    os.environ["FINEGAUGE_CACHE_DIR"] = str(folder.resolve())  # where the trials look for the device profile
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name, config in CONFIGS.items():
        (folder / "models" / f"{name}.json").write_text(json.dumps(config), "utf-8")
    if not Path(own_profile_path(device)).exists():
        time_operators(device, budget.total_s)
    known = done(store)
    for point in grid(device, folder):
        if point.run in known:
            print(f"{point.name}: done before", flush=True)
            continue
        if budget.left_s < LEAST_LEFT_S[device]:
            print(f"time is up: {budget.left_s:.0f} s left", flush=True)
            break
        expected = prediction_for(point.run, device).profile
        reason = why_not(point, budget, expected)
        words = f"passed over, {reason}" if reason else measured(point, budget, store, expected)
        print(f"{point.name}: {words}", flush=True)
    profiles = Trials(str(store)).profiles()
    return sum(profile.outcome == "completed" for profile in profiles)


def main() -> int:
    """Spend the minutes; return 0 if the operators are timed or at least one run completed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, required=True, help="how long, everything included")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the results")
    asked = parser.parse_args()
    budget = Budget(60 * asked.minutes, asked.device)
    try:
        completed = spend(budget, asked.device, asked.output)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {asked.output}, and the same command goes on from there")
        return EXIT_INTERRUPTED
    except FineGaugeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    used_s = budget.total_s - budget.left_s
    print(f"{completed} runs measured in {asked.output}, {used_s:.0f} of {budget.total_s:.0f} s used")
    return 0 if completed or Path(own_profile_path(asked.device)).exists() else 1


if __name__ == "__main__":
    sys.exit(main())
