"""Every moment of a job in one process after the other: load, train, evaluation, save, resume.

The model's checkpoint is written first where it has none, in the number format that its config names. Each
moment then does what transformers' trainer, accelerate or DeepSpeed do: the same calls, on disk for real.
Peaks of host memory are the kernel's (resident pages, files that are mapped included), those of the device
torch's allocator's; malloc gives back what is free (`process.LIMITED`), so that a moment shows its own peak.

The job is done over and over. The first time is a rehearsal: afterwards all code is there that is loaded or
compiled on first use, for the job's own sizes too. Resident peaks are those of the second. On a processor
torch's profiler notes every block of a third, and holds more memory itself the longer it looks. A file that
was written in large pieces lies in the page cache in folios of up to 2 MiB, each of which Linux (6.18) maps
as a whole where one page of it is read: the checkpoint is read in again page by page, so that resident is
what was read.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from math import ceil
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from finegauge.catalogue.machine import proc_bytes
from finegauge.measurement.build import autocasting, checkpoint_folder, subject_of
from finegauge.measurement.instruments.clocks import NoClock
from finegauge.measurement.instruments.kernel_trace import STAGE
from finegauge.measurement.instruments.memory_meter import resident_bytes, resident_peak
from finegauge.measurement.options import Options
from finegauge.measurement.phases.choice import phase_of
from finegauge.measurement.phases.training import Placement, inference, inputs_of
from finegauge.measurement.rank_meters import allocated
from finegauge.measurement.rank_strategies import imported, zero_settings
from finegauge.measurement.subject import Phase
from finegauge.progress import Heard, Progress
from finegauge.run.rules import FSDP
from finegauge.run.run import Run

EVAL_BATCH = 8  # of transformers' trainer
MOMENTS = 5
TAG = "checkpoint"
FULL, OPTIMIZER = "model.bin", "optimizer.pt"


class _Watch:
    """Peaks of host and device memory by moment."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: dict[str, dict[str, float]] = {}

    @contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """Watch what runs inside."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        _together()
        with resident_peak() as seen, record_function(STAGE + name):
            yield
            _together()
        self.found[name] = {"resident_bytes": seen.peak_bytes, "anonymous_bytes": proc_bytes("RssAnon")}
        if self.device.type == "cuda":
            self.found[name]["allocated_bytes"] = float(torch.cuda.max_memory_allocated(self.device))


def watch_moments(run: Run, options: Options, place: Callable[[], Placement], heard: Heard) -> dict[str, Any]:
    """Return the peaks of every moment of `run` in this process, and what it held before.

    Args:
        run: The question; of several ranks this one takes part in each moment.
        options: On what device.
        place: Makes what divides the models.
        heard: Hears how far it is.
    """
    device, rank = torch.device(options.device), place().rank
    # transformers reads tensors in threads, where the profiler does not look
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    jobs, done = (3 if device.type == "cpu" else 2), count(1)
    with _shared_folder(rank) as folder:
        built = _with_checkpoint(run, device, folder / "base", rank, options.seed)

        def job(watch: _Watch) -> None:
            for _ in _moments(built, options, place, folder / TAG, watch):
                heard(Progress("moments", next(done), jobs * MOMENTS))
            _together()
            if rank == 0:
                rmtree(folder / TAG, ignore_errors=True)
            gc.collect()

        for _ in range(2):  # of which the first is a rehearsal
            watch, baseline = _Watch(device), resident_bytes()
            job(watch)
        if device.type == "cpu":
            with allocated() as peaks:
                job(_Watch(device))
            for name, most in peaks.items():
                watch.found[name]["allocated_bytes"] = most
    return {"rank": rank, "baseline_bytes": baseline, "peaks": watch.found}


def _moments(
    run: Run, options: Options, place: Callable[[], Placement], folder: Path, watch: _Watch
) -> Iterator[str]:
    device = watch.device
    with watch.moment("load"), _zero_init(run):
        phase = phase_of(run, options, device, place())
    yield "load"
    with watch.moment("train"):
        phase.step(NoClock())
        phase.step(NoClock())
    yield "train"
    if run.eval_samples:
        with watch.moment("evaluation"):
            _evaluate(phase, run, options, place())
        yield "evaluation"
    rank = place().rank
    with watch.moment("save"):
        _save(phase, folder, rank)
    yield "save"
    if run.sharding.startswith("zero"):  # whose engine reads into what it holds
        with watch.moment("resume"):
            _read(phase, folder, rank)
        phase.subject.strategy.engine.destroy()  # type: ignore[attr-defined]
    else:
        del phase
        with watch.moment("resume"):
            phase = phase_of(run, options, device, place())
            _read(phase, folder, rank)
    yield "resume"


@contextmanager
def _shared_folder(rank: int) -> Iterator[Path]:
    with TemporaryDirectory(prefix="finegauge-moments-") as own:
        name = [own]
        if dist.is_initialized():
            dist.broadcast_object_list(name)
        yield Path(name[0])
        _together()


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()


def _with_checkpoint(run: Run, device: torch.device, folder: Path, rank: int, seed: int) -> Run:
    """Return `run` with a model that has a checkpoint: its own, or random weights written to `folder`."""
    if checkpoint_folder(run):
        return run
    if rank == 0:
        words = str(run.config.get("dtype") or run.config.get("torch_dtype"))
        dtype = "fp32" if "float32" in words else "bf16"
        plain = Run(model=run.model, method="full", weights_dtype=dtype)
        subject_of(plain, "cpu", seed=seed).model.save_pretrained(folder)
        for path in folder.glob("*.safetensors"):
            _cache_by_pages(path)
    _together()
    return run.replace(model=str(folder))


def _cache_by_pages(path: Path) -> None:
    """Have a file in the page cache in single pages, where the system can be asked to."""
    if not hasattr(os, "posix_fadvise"):
        return
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        for advice in (os.POSIX_FADV_DONTNEED, os.POSIX_FADV_RANDOM):
            os.posix_fadvise(file.fileno(), 0, 0, advice)
        while file.read(1 << 20):
            pass


@contextmanager
def _zero_init(run: Run) -> Iterator[None]:
    """Let transformers divide parameters as it makes them, where ZeRO-3 loads so."""
    if run.sharding != "zero3" or run.loading != "rank0":
        yield
        return
    imported()  # as `Zero` does; transformers alone would have it compile its shared memory
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    kept = HfDeepSpeedConfig(zero_settings(run))
    yield
    del kept
    unset_hf_deepspeed_config()


def _evaluate(phase: Phase, run: Run, options: Options, place: Placement) -> None:
    """Go over the samples of an evaluation as transformers' `Trainer.evaluation_loop` does."""
    from transformers.trainer_pt_utils import EvalLoopContainer

    subject, rows = phase.subject, run.eval_batch_size or EVAL_BATCH
    data = place.data(run.replace(micro_batch_size=rows, gradient_accumulation_steps=1), options)
    losses, kept = EvalLoopContainer(), EvalLoopContainer()
    batches = ceil(run.eval_samples / (rows * run.data_parallel))

    def forward(batch: Any) -> Any:
        return subject.model(**inputs_of(batch), labels=batch.labels, use_cache=False)

    for number in range(1, batches + 1):
        with inference(subject.model), autocasting(run, subject.device):
            found = subject.strategy.infer(forward, next(data))
        losses.add(found.loss.detach().repeat(rows))
        if run.eval_logits:
            kept.add(_gathered(found.logits.detach()))
        del found
        if run.eval_accumulation_steps and number % run.eval_accumulation_steps == 0:
            kept.to_cpu_and_numpy()
    losses.get_arrays(), kept.get_arrays()


def _gathered(logits: torch.Tensor) -> torch.Tensor:
    if not dist.is_initialized():
        return logits
    rows, *rest = logits.shape
    found = torch.empty((rows * dist.get_world_size(), *rest), dtype=logits.dtype, device=logits.device)
    dist.all_gather_into_tensor(found, logits.contiguous())
    return found


def _options(run: Run) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    full = run.save_state == "full"
    return StateDictOptions(full_state_dict=full, cpu_offload=full, broadcast_from_rank0=full)


def _save(phase: Phase, folder: Path, rank: int) -> None:
    run, model, strategy = phase.subject.run, phase.subject.model, phase.subject.strategy
    folder.mkdir(exist_ok=True)
    if run.sharding.startswith("zero"):
        _save_zero(strategy.engine, run, folder, rank)  # type: ignore[attr-defined]
    elif run.sharding in FSDP:
        for name, state in _fsdp_states(phase):
            if run.save_state == "sharded":
                import torch.distributed.checkpoint as dcp

                dcp.save({name: state()}, checkpoint_id=str(folder / name))
                continue
            gathered = state()
            if rank == 0:
                torch.save(gathered, folder / name)
            del gathered
    elif rank == 0:
        model.save_pretrained(folder)
        if run.save_optimizer:
            torch.save(phase.optimizer.state_dict(), folder / OPTIMIZER)


def _fsdp_states(phase: Phase) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and makers of the states that accelerate saves."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    run, module = phase.subject.run, phase.subject.strategy.module  # type: ignore[attr-defined]
    asked = _options(run)
    yield FULL, lambda: get_model_state_dict(module, options=asked)
    if run.save_optimizer:
        yield OPTIMIZER, lambda: get_optimizer_state_dict(module, phase.optimizer, options=asked)


def _save_zero(engine: Any, run: Run, folder: Path, rank: int) -> None:
    """Write what `Trainer.save_model` and DeepSpeed's `save_checkpoint` write."""
    if run.sharding != "zero3":
        from deepspeed.checkpoint.utils import clone_tensors_for_torch_save

        state = clone_tensors_for_torch_save(engine.module.state_dict())
    elif run.save_state == "full":
        state = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=run.trains_adapters)
    else:
        state = {}
    if rank == 0:
        torch.save(state, folder / FULL)
    del state
    if run.save_optimizer:
        engine.save_checkpoint(str(folder), tag=TAG, exclude_frozen_parameters=run.trains_adapters)


def _read(phase: Phase, folder: Path, rank: int) -> None:
    run, strategy = phase.subject.run, phase.subject.strategy
    if run.sharding.startswith("zero"):
        strategy.engine.load_checkpoint(  # type: ignore[attr-defined]
            str(folder),
            tag=TAG,
            load_module_strict=not run.trains_adapters,  # frozen weights were not saved; as transformers does
        )
    elif run.sharding in FSDP:
        _read_fsdp(phase, folder, rank)
    else:
        _read_whole(phase, folder)


def _read_whole(phase: Phase, folder: Path) -> None:
    from safetensors.torch import load_file

    run, model = phase.subject.run, phase.subject.model
    if run.trains_adapters:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
    else:
        model.load_state_dict(
            load_file(folder / "model.safetensors"), strict=False
        )  # tied weights stand once
    if run.save_optimizer:
        on_device = run.num_gpus > 1 and phase.subject.device.type == "cuda"
        place = phase.subject.device if on_device else "cpu"
        phase.optimizer.load_state_dict(torch.load(folder / OPTIMIZER, map_location=place, weights_only=True))


def _read_fsdp(phase: Phase, folder: Path, rank: int) -> None:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    run, module = phase.subject.run, phase.subject.strategy.module  # type: ignore[attr-defined]
    asked = _options(run)
    for name, own in _fsdp_states(phase):
        if run.save_state == "sharded":
            import torch.distributed.checkpoint as dcp

            state = {name: own()}
            dcp.load(state, checkpoint_id=str(folder / name))
            found = state[name]
        else:
            found = torch.load(folder / name, weights_only=True) if rank == 0 else {}
        if name == FULL:
            set_model_state_dict(module, found, options=asked)
        else:
            set_optimizer_state_dict(module, phase.optimizer, found, options=asked)
        del found
