"""A run on several processes of this machine: torchrun starts a rank for each GPU, here to one Profile.

The step is that of the slowest rank, the memory that of the fullest; tokens, joules and processor seconds are
all ranks' together. `observations["ranks"]` has every rank: its seconds, what it holds, what it sent. Where a
rank dies the others end with it, and the first to fail gives the reason.

One rank is `python -m torch.distributed.run ... -m finegauge.measurement.rank_launch FOLDER`: it reads
FOLDER/trial.json and writes its profile to FOLDER/RANK.json; rank 0 adds a line to FOLDER/progress for every
step. torchrun starts its workers in sessions of their own, which no signal to the trial's group reaches: so
the kernel is asked to kill this one when torchrun is gone. Every rank takes the same steps:

warm-up      discarded
timing       the stage clock alone
collectives  one step under the dispatch mode that counts messages
memory       one step for what is at rest, one for the peaks
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

from finegauge.documents import write_whole
from finegauge.errors import UnsupportedError
from finegauge.measurement import session
from finegauge.measurement.device import model_flops
from finegauge.measurement.instruments.clocks import NoClock
from finegauge.measurement.instruments.memory_meter import MemoryReading, resident_bytes
from finegauge.measurement.job_moments import watch_moments
from finegauge.measurement.options import Options
from finegauge.measurement.phases.choice import phase_of
from finegauge.measurement.process import GROUP, die_with_parent, kernel_kills
from finegauge.measurement.rank_meters import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    WORKSPACE,
    Held,
    held,
    peaks,
    sent_in,
    storages,
)
from finegauge.measurement.rank_strategies import RankPlacement, check_installed
from finegauge.measurement.session import RefusedError
from finegauge.measurement.subject import Phase, refusal
from finegauge.profile import Breakdown, Profile
from finegauge.progress import Heard, Progress
from finegauge.run.phases import tiles_loss
from finegauge.run.rules import FSDP
from finegauge.run.run import Run
from finegauge.store.document import profile_of, run_document

PHASES = ("sft", "pretrain", "reward", "dpo", "ppo", "grpo")
MODEL_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
ONE_PROCESS = ("layers", "kernels", "ncu", "experts", "evaluate", "tasks", "trace_path")
MOST_PER_CORE = 4


def refuse(run: Run, options: Options) -> None:
    """Refuse what several processes cannot be asked.

    Raises: UnsupportedError.
    """
    for name in MODEL_DEGREES:
        if getattr(run, name) > 1:
            raise UnsupportedError(
                f"{name}={getattr(run, name)} is predicted and not measured; several processes are measured "
                f"data parallel: set {name}=1."
            )
    for name in ONE_PROCESS:
        if getattr(options, name):
            raise UnsupportedError(
                f"--{name.removesuffix('_path')} looks at one process; leave it out or set num_gpus=1."
            )
    _refuse_places(run, options)
    _refuse_kinds(run)


def _refuse_places(run: Run, options: Options) -> None:
    if run.num_nodes > 1:
        raise UnsupportedError(f"num_nodes={run.num_nodes}: only this machine is measured; set num_nodes=1.")
    cores = os.cpu_count() or 1
    most = torch.cuda.device_count() if options.device == "cuda" else max(8, MOST_PER_CORE * cores)
    if run.num_gpus > most:
        has = f"{most} GPUs" if options.device == "cuda" else f"{cores} cores, for {most} processes at most"
        raise UnsupportedError(
            f"num_gpus={run.num_gpus}: this machine has {has}; set num_gpus={most}, or ask "
            "'finegauge estimate'."
        )


def _refuse_kinds(run: Run) -> None:
    kind = run.sharding
    if run.phase not in PHASES:
        raise UnsupportedError(
            f"phase={run.phase} is measured in one process; several run {', '.join(PHASES)}: set num_gpus=1."
        )
    if kind == "none":
        return
    if kind.startswith("zero"):
        check_installed()
    reasons = {
        "method=qlora": run.method == "qlora",
        "autocast=fp16": run.autocast == "fp16",
        f"cpu_offload={run.cpu_offload}": run.cpu_offload != "none",
        f"optimizer={run.optimizer}": run.optimizer not in ("adamw", "sgd"),
        "optimizer_implementation=in_backward": run.optimizer_implementation == "in_backward",
        "loss=chunked on ZeRO-3": kind == "zero3" and run.loss == "chunked",
        "TRL's chunked loss": kind in FSDP and tiles_loss(run),
        "a hybrid mesh with one copy": kind == "hybrid" and run.data_parallel_replicate == 1,
    }
    for what, asked in reasons.items():
        if asked:
            raise UnsupportedError(f"{what} is not measured with sharding={kind}; use sharding=none.")
    if kind in FSDP and run.compile:
        raise UnsupportedError(f"compile=true is not measured with sharding={kind}; set compile=false.")


LOOK_EVERY_S = 0.05
HELD = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "buckets_bytes", "others_bytes")
DIED = re.compile(r"rank +: (\d+) .*\n *exitcode +: (-?\d+)")  # in torchrun's table of failures


def over_ranks(run: Run, options: Options, heard: Heard) -> Profile:
    """Return the measured profile of `run`, whose ranks are processes of this machine.

    Raises: UnsupportedError for what cannot be divided or measured so; RefusedError where a rank died
        without a word, MemoryError where the OOM killer ended it.
    """
    session.device_of(options)  # refuses a GPU that is not there
    refuse(run, options)
    kills = kernel_kills()
    ended, printed = _launched(run, options, heard)
    death = death_of(printed, run.num_gpus)
    failed = [profile for profile in ended.values() if profile.outcome != "completed"]
    if death and all(profile.outcome == "failed" for profile in failed):  # the others lost their peer
        if kernel_kills() > kills:
            raise MemoryError(f"{death}, by the OOM killer")
        raise RefusedError(death)
    if failed:
        return failed[0]._replace(run=run)
    if len(ended) < run.num_gpus:
        raise RefusedError(f"torchrun ended with {len(ended)} of {run.num_gpus} ranks done")
    return together(run, [ended[rank] for rank in sorted(ended)])


def together(run: Run, ranks: list[Profile]) -> Profile:
    """Return one profile of the profiles of all ranks, the first rank's first."""
    slowest = max(ranks, key=lambda profile: profile.step_time_s.total)
    fullest = max(ranks, key=lambda profile: profile.peak_memory_bytes.total)
    energy, reading = _energy(ranks)
    sharers = 1 if ranks[0].fingerprint.get("cuda") else run.num_gpus  # of a GPU, or of the processor
    notes = [f"{run.num_gpus} processes over gloo share this machine's {os.cpu_count()} cores"]
    busy_s = sum(profile.observations["timing"]["processor_s"] for profile in ranks)
    moments = [seen["moments"] for profile in ranks if "moments" in (seen := profile.observations)]
    observations = {
        "timing": {**slowest.observations["timing"], "processor_s": busy_s},
        "steps": slowest.observations["steps"],
        "notes": [*slowest.observations["notes"], *(notes if sharers > 1 else ())],
        **reading,
        **({"moments": moments} if moments else {}),
        "ranks": [_rank(number, profile) for number, profile in enumerate(ranks)],
    }
    return slowest._replace(
        run=run,
        step_flops=model_flops(run) * run.num_gpus,
        peak_flops_per_s=slowest.peak_flops_per_s / sharers,
        step_energy_j=energy,
        step_tokens=sum(profile.step_tokens for profile in ranks),
        step_sequences=sum(profile.step_sequences for profile in ranks),
        peak_memory_bytes=fullest.peak_memory_bytes,
        device_memory_bytes=fullest.device_memory_bytes,
        phase_memory_bytes=fullest.phase_memory_bytes,
        peak_phase=fullest.peak_phase,
        observations=observations,
    )


def _energy(ranks: list[Profile]) -> tuple[Breakdown, dict[str, Any]]:
    """Return the joules of a step of all metered ranks, and their reading; none if one read none."""
    metered = [profile for profile in ranks if "energy" in profile.observations]
    readings = [profile.observations["energy"] for profile in metered]
    joules = [profile.step_energy_j.total for profile in metered]
    step = Breakdown({("device",): sum(joules)} if joules and all(joules) else {})
    if not readings:
        return step, {}
    silent = [reading for reading in readings if reading["energy_j"] is None]
    if silent:
        return step, {"energy": silent[0]}
    return step, {"energy": {**readings[0], "energy_j": sum(reading["energy_j"] for reading in readings)}}


def _rank(number: int, profile: Profile) -> dict[str, Any]:
    seen = profile.observations
    return {
        "rank": number,
        "step_time_s": profile.step_time_s.total,
        "time_breakdown_s": profile.step_time_s.to_json(),
        "peak_memory_bytes": profile.peak_memory_bytes.total,
        "peak_phase": profile.peak_phase,
        **{name: seen["held"][name] for name in HELD},
        "tokens": profile.step_tokens,
        "losses": seen["steps"]["losses"],
        "collectives": seen["collectives"],
    }


def _launched(run: Run, options: Options, heard: Heard) -> tuple[dict[int, Profile], str]:
    """Return the profile of each rank that gave one, in the order of their ends, and what was printed."""
    with TemporaryDirectory(prefix="finegauge-ranks-") as name:
        folder = Path(name)
        trial = {"run": run_document(run), "options": options._asdict()}
        (folder / "trial.json").write_text(json.dumps(trial), "utf-8")
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(run.num_gpus), "--max-restarts", "0",
            "--log-dir", str(folder / "logs"),
            "-m", "finegauge.measurement.rank_launch", name,
        ]  # fmt: skip
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, GROUP: str(os.getpgid(0))}
        if run.sharding.startswith("zero"):  # DeepSpeed makes this folder when it is imported
            environment.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // run.num_gpus)))
        with open(folder / "printed", "w+b") as printed:
            torchrun = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env=environment
            )
            try:
                _follow(torchrun, folder / "progress", heard)
            finally:
                torchrun.kill()  # and with it, by the kernel, every rank
                torchrun.wait()
        said = (folder / "printed").read_text("utf-8", errors="replace")
        sys.stderr.write(said)
        answers = {int(path.stem): json.loads(path.read_text("utf-8")) for path in folder.glob("[0-9]*.json")}
        order = sorted(answers, key=lambda rank: answers[rank]["ended_s"])
        return {rank: profile_of(answers[rank]["profile"]) for rank in order}, said


def _follow(torchrun: "subprocess.Popen[bytes]", progress: Path, heard: Heard) -> None:
    told = 0
    while True:
        over = torchrun.poll() is not None
        if progress.exists():
            lines = progress.read_text("utf-8").split("\n")[:-1]
            for line in lines[told:]:
                heard(Progress(*json.loads(line)))
            told = len(lines)
        if over:
            return
        time.sleep(LOOK_EVERY_S)


def death_of(printed: str, num_ranks: int) -> str:
    """Return which rank a signal killed that torchrun did not send, by what it printed; "" where none did."""
    for rank, code in DIED.findall(printed):
        if int(code) < 0 and -int(code) != signal.SIGTERM:
            return f"rank {rank} of {num_ranks} was killed by {signal.Signals(-int(code)).name}"
    return ""


ACTIVATIONS = "activations"


def main() -> None:
    """Measure as the rank that torchrun says, and exit with 1 where that brought no data."""
    die_with_parent()
    group = os.environ.get(GROUP)
    if group is not None and os.getpgid(os.getppid()) != int(group):
        os._exit(1)  # torchrun is gone already
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    trial = json.loads((folder / "trial.json").read_text("utf-8"))

    def heard(progress: Progress) -> None:
        if rank == 0:
            with open(folder / "progress", "a", encoding="utf-8") as told:
                told.write(json.dumps(progress[:3]) + "\n")

    on_gpu = trial["options"]["device"] == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    profile = session.answer(trial, heard, partial(rank_profile, rank=rank))
    written: dict[str, Any] = {"profile": profile, "ended_s": time.time()}
    write_whole(str(folder / f"{rank}.json"), json.dumps(written).encode())
    sys.stderr.flush()
    os._exit(0 if profile["outcome"] == "completed" else 1)  # nothing to wait for: no peer, no library


def rank_profile(run: Run, options: Options, heard: Heard, *, rank: int) -> Profile:
    """Return what this rank measures of `run`."""
    device = session.prepared(run, options)
    if rank and device.type == "cpu":
        options = options._replace(energy=False)  # the first rank's meter counts the whole machine
    moments = {}
    if options.moments:
        moments = watch_moments(_as_divided(run), options, partial(RankPlacement, rank), heard)
    before_bytes, before = resident_bytes(), storages()
    place = RankPlacement(rank)
    with session.telling(heard, "building"):
        phase = phase_of(_as_divided(run), options, device, place)
    trial = session.Trial(phase, options, heard)
    session.warm_up(trial)
    dist.barrier()
    timed = session.timing(trial)
    if reason := refusal(timed.facts, step_times_s=timed.step_times_s, throttled=timed.throttled):
        raise RefusedError(reason)
    found = session.observations_of(trial, timed)
    heard(Progress("collectives", 0, 1))
    found["collectives"] = [sent._asdict() for sent in sent_in(lambda: phase.step(NoClock()))]
    with session.telling(heard, "memory"):
        at_rest = held(phase, place.trains, before)
        found["held"] = {**at_rest._asdict(), "resident_before_bytes": before_bytes}
        memory = _memory(phase, at_rest, device) if options.memory else {}
    if moments:
        found["moments"] = moments
    return session.profile_of(run, trial, timed, found, **memory)


def _as_divided(run: Run) -> Run:
    """Return `run` in the number formats that DeepSpeed gives it: bf16, with nothing to cast."""
    if not run.sharding.startswith("zero"):
        return run
    return run.replace(
        autocast="none", **({"adapter_dtype": "bf16"} if run.trains_adapters else {}), weights_dtype="bf16"
    )


def _memory(phase: Phase, at_rest: Held, device: torch.device) -> dict[str, Any]:
    """Return the fields of the profile about memory.

    From the backward pass on gradients count as they are at its end. What else comes and goes is
    activations, weights that are gathered and gradients in flight included; in the optimizer workspace.
    """
    highest = peaks(phase, at_rest.between_steps_bytes, device)
    resting = {WEIGHTS: at_rest.weights_bytes + at_rest.others_bytes, OPTIMIZER: at_rest.optimizer_bytes}
    phases: dict[str, dict[str, float]] = {}
    for name, most in highest.items():
        kept = at_rest.kept_gradients_bytes
        parts = {**resting, WORKSPACE: at_rest.buckets_bytes, GRADIENTS: kept}
        beside = max(0.0, most - at_rest.between_steps_bytes)
        if name in ("backward", "optimizer"):
            fresh = min(beside, max(0.0, at_rest.gradients_bytes - kept))
            parts[GRADIENTS], beside = kept + fresh, beside - fresh
        kind = WORKSPACE if name == "optimizer" else ACTIVATIONS
        parts[kind] = parts.get(kind, 0.0) + beside
        phases[name] = {kind: size for kind, size in parts.items() if size > 0}
    return MemoryReading.of(phases).fields


if __name__ == "__main__":
    main()
