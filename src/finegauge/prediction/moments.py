r"""Peak memory of every moment of a job: of the fullest GPU, of a node's host memory, of the disk.

A job is a step many times over, and before and beside it

    load        checkpoint files are mapped: a page is read when it is first used, shared by the processes of
                a node and given back where memory runs short; weights converted to another number format,
                or copied by a wrapper, are not
    evaluation  a forward pass with nothing kept beside weights and states; the logits of every batch where
                metrics need them, gathered from all ranks, twice while they are joined
    save        what one process gathers, and copies of what lies on the GPU
    merge       the model in 16 bits, read once more, to which the products of the adapters are added
    resume      what was saved, read again

$\Psi$ trained parameters, N ranks that share W bytes of weights and O bytes of states, L the largest tensor:

    sharding      load, device                 save, host                resume, host
    none          W + min(W, 500 MiB) [1]      first: W (one file) [2]   one process: O, several: L [3]
    FSDP full     W/N + one unit               first: max(W, O) [4]      first: max(W, O); device: a step [4]
    FSDP sharded  W/N + one unit               10 MB [5]                 L
    ZeRO-1, 2     2 W + 4 psi/N [6]            each: W [7]               each: 12 psi/N [6]
    ZeRO-3        3 W/N + 4 psi/N + L          first: W [6]              each: 12 psi/N [6]

Where bitsandbytes quantises while it loads, every process takes the whole model onto its GPU first: the
`device_map` is the current device where none is given [8]. Before transformers 5 what FSDP and ZeRO-3 divide
went to the host tensor by tensor.

Every line was held against processes on a CPU (docs/decisions/0022-every-moment.md). Neglected: workers that
load data, the pinned buffers of DeepSpeed, the page cache that writing fills.

[1] torch 2.13: DDP's constructor broadcasts in two buffers of 250 MiB at a time (_sync_module_states,
    csrc/distributed/c10d/comm.cpp)  [2] safetensors 0.8.0, torch.py: save_file copies every tensor of a file
    to the host and holds all; transformers 5.23, save_pretrained: files of 50 GB
[3] transformers 5.23, trainer.py: _load_optimizer_and_scheduler reads onto the CPU in one process, onto each
    GPU in several  [4] accelerate 1.15, utils/fsdp_utils.py; torch 2.13, distributed/checkpoint/state_dict.py
[5] torch 2.13, distributed/checkpoint/filesystem.py: _OverlappingCpuLoader
[6] deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, stage3.py; runtime/engine.py
    (_zero3_consolidated_16bit_state_dict, save_checkpoint); transformers 5.23, modeling_utils.py
    (_load_pretrained_model: rank 0 alone reads under ZeRO-3)
[7] accelerate 1.15, accelerator.py: get_state_dict clones to the host on every rank (all read 2026-11-22)
[8] transformers 5.24, quantizers/quantizer_bnb_4bit.py: update_device_map; modeling_utils.py: no rank is left
    out of a quantised load, FSDP's or ZeRO-3's (read 2026-11-28)

Each process's memory is predicted, too, to compare with what `measure` finds. On a processor the device's
memory is the host's: what elsewhere is copied to the host is there already, and torch counts a mapped file
as allocated before any page of it has been read.
"""

from collections.abc import Iterable, Iterator
from math import ceil

from finegauge.catalogue.frameworks import framework_of
from finegauge.data.batch_shape import epochs_of, shape, times_of
from finegauge.model.graph import build
from finegauge.model.weights import copies_states, optimizer_scratch
from finegauge.prediction.model_parallel import by_megatron, stream_degree
from finegauge.prediction.offload import kept_on_host
from finegauge.prediction.prefetch import ON_THEIR_WAY, ZERO3_KEPT
from finegauge.prediction.sharding import (
    GATHERED_WEIGHTS,
    kept_while_idle,
    longest_extents,
    rank_extents,
    shard_degree,
    share_of,
    states_on_host,
    zero3_messages,
)
from finegauge.profile import Breakdown, Path, Profile
from finegauge.records import NamedTuple
from finegauge.run.field import version_numbers
from finegauge.run.rules import FSDP, INFERENCE, RL
from finegauge.units import GIB, MIB

Parts = dict[Path, float]
# Of one process before it holds a tensor. An assumption: with PyTorch's CPU libraries and transformers it is
# 0.42 GiB (measured); CUDA's libraries and its context come on top.
PROCESS_BYTES = 2.5 * GIB
BROADCAST_BYTES = 2 * 250 * MIB
FILE_BYTES = 50e9  # of one safetensors file
COPIED_AHEAD_BYTES = 10e6
EVAL_BATCH = 8  # per_device_eval_batch_size of transformers' trainer
QUANTISED_AT_ONCE = 4  # threads of transformers that read tensors
MASTER_AND_MOMENTS, MASTER = 12.0, 4.0  # bytes per trained parameter under DeepSpeed
EVALUATED = ("sft", "pretrain", "reward", "dpo")
WIDTHS = {"float32": 4, "float": 4, "float64": 8}


class Moment(NamedTuple):
    """What one moment of a job takes at its peak."""

    moment: str  # load, train, evaluation, save, merge, resume
    device_bytes: float  # of the fullest GPU, all that has to fit
    host_bytes: float  # of the fullest node, all its processes
    mapped_bytes: float  # of checkpoint files that a node has read, which it may give back
    disk_bytes: float  # that is taken when the moment is over
    device_breakdown_bytes: Breakdown
    host_breakdown_bytes: Breakdown
    first_bytes: Breakdown = Breakdown({})  # in host memory of the first process of the node, without itself
    other_bytes: Breakdown = Breakdown({})  # of every other


def moments_of(profile: Profile) -> tuple[Moment, ...]:
    """Return the moments of the job whose step is `profile`, in their order."""
    return tuple(Job(profile).moments())


class Job:
    """The sizes that the moments of one run are made of, in bytes."""

    def __init__(self, profile: Profile, *, on_processor: bool = False) -> None:
        self.profile, self.run = profile, profile.run
        run, share = self.run, share_of(self.run)
        self.share, self.zero = share, run.sharding.startswith("zero") and not by_megatron(run)
        own, whole, at_rest = build(run), share.whole, share.graph.weights
        held = (whole if self.zero else own).weights
        self.ranks_on_node = run.num_gpus // run.num_nodes
        self.degree = float(shard_degree(run))
        self.low, model = own.lowering, own.model
        trained = held.trained_params + held.adapter_params
        self.model_bytes = held.base_bytes + held.adapter_bytes
        self.saved_bytes = held.adapter_bytes + held.trained_params * self.low.weight_bytes
        if not run.trains_adapters:
            self.saved_bytes = held.base_bytes
        mixed = self.zero or by_megatron(run)
        self.states_bytes = MASTER_AND_MOMENTS * trained if mixed else held.optimizer_bytes
        # of these, a rank's: without what other stages and tensor-parallel ranks hold
        self.own_trained = at_rest.trained_params + at_rest.adapter_params
        self.master_bytes = MASTER * self.own_trained
        self.stages = float(run.tensor_parallel * run.pipeline_parallel)
        layers = [tensor.size for layer, _ in model.layers for tensor in layer.tensors()]
        self.merged_bytes = 2.0 * model.num_parameters
        self.largest_layer_values = max(layers, default=0)
        outer = [tensor.size for tensor in model.outer_tensors()]
        # FSDP gathers a tied head under both of its names
        self.named_bytes = self.model_bytes + (max(outer) * self.low.weight_bytes if model.tied else 0.0)
        width = 4.0 if run.weights_dtype == "fp32" and not self.zero else 2.0
        self.largest_bytes = max(layers + outer, default=0) * width
        words = run.config.get("torch_dtype") or run.config.get("dtype")
        file_width = WIDTHS.get(str(words).removeprefix("torch."), 2)
        framework = framework_of(run.framework)
        copied = framework.loads_quantised_copies and "/" not in run.model.partition("/")[2]
        narrow = self.low.quantized.startswith("nf4") and ("bnb-4bit" in run.model.casefold() or copied)
        self.is_stored_quantised = run.method == "gptq_lora" or narrow
        quantised = held.base_bytes if self.is_stored_quantised else 0.0
        self.file_bytes = quantised or float(file_width * model.num_parameters)
        other_width = file_width != self.low.weight_bytes
        self.is_cast = not self.low.quantized and other_width
        self.pinned: Parts = {}
        if on_processor and not (quantised or other_width or run.upcast_unquantized):
            self.pinned = self._pinned(file_width)
        self.rest = {**self._at_rest(), **self.pinned}
        self.joined_logits_bytes = 0.0
        self.offloaded: Parts = {
            ("offloaded", *path[1:]): value for path, value in kept_on_host(run, share).parts.items()
        }

    def _pinned(self, file_width: int) -> Parts:
        """Return the weights that stay mapped once quantised: the file stays while a tensor is in use."""
        replaced = 0
        for layer, count in self.share.whole.model.layers:
            sizes = [tensor.size for tensor in layer.tensors() if self.low.quantizes(tensor.kind)]
            replaced += count * sum(sizes)
        return {("weights", "quantised, in the mapped file"): float(file_width * replaced)}

    def _at_rest(self) -> Parts:
        """Return what the GPU holds between two steps: weights, states, buckets that stay."""
        found: Parts = {}
        held = self.profile.peak_memory_bytes
        if self.run.phase in RL and self.run.rollout_offload != "none":  # some of it is gone at that peak
            held = self.profile.phase_memory_bytes.under("optimizer")
        for path, value in held.parts.items():
            lasts = path[0] in ("weights", "optimizer") and path[-1] != "autocast copies"
            lasts = lasts or (path[0] == "engine" and not self.run.rollout_sleep)
            if lasts or path[-1] == "cuBLAS":
                found[path] = value
        return {**found, **kept_while_idle(self.run, self.share)}

    def moments(self) -> Iterator[Moment]:
        """Yield the moments that the run has."""
        run = self.run
        yield self._load()
        train = self.profile.device_memory_bytes
        on_host = {**self.offloaded, **self._checkpoints()}
        yield self._moment("train", {**train.parts, **self.pinned}, on_host, outside=False)
        if run.eval_samples and run.phase in EVALUATED:
            yield self._evaluation()
        if self.states_bytes and run.phase not in ("evaluate", "prefill", "decode", "serve"):
            yield self._save()
            if run.merge_adapters:
                # the 16-bit model in host memory, and the product of a pair of adapters
                model = self.merged_bytes + 2.0 * self.largest_layer_values
                yield self._moment("merge", dict(self.rest), {("merged model",): model}, {})
            yield self._resume()

    def _checkpoints(self) -> Parts:
        """Return the inputs of checkpointed layers that wait in host memory for their backward pass."""
        run, model = self.run, self.share.graph.model
        if run.activation_checkpointing != "offload" or run.phase in INFERENCE:
            return {}
        tokens = rank_extents(run, longest_extents(shape(run))).tokens / stream_degree(run)
        layers = model.num_layers / run.pipeline_parallel
        return {("offloaded", "checkpoints"): layers * tokens * self.low.stream_bytes * model.hidden_size}

    def _moment(
        self, name: str, device: Parts, first: Parts | None = None, other: Parts | None = None,
        mapped: float = 0.0, *, outside: bool = True,
    ) -> Moment:  # fmt: skip
        """Return a moment; `other` processes hold what the `first` does unless it is stated."""
        first = first or {}
        other = first if other is None else other
        if outside:
            device = {**device, **self._outside(device)}
        offloaded, several = self.offloaded, self.ranks_on_node - 1
        node: Parts = {("processes",): self.ranks_on_node * PROCESS_BYTES}
        if name not in ("train", "load"):
            first, other = {**offloaded, **first}, {**offloaded, **other}
        for parts, count in ((first, 1), (other, several)):
            for path, value in parts.items():
                node[path] = node.get(path, 0.0) + count * value
        used, own = Breakdown({path: value for path, value in node.items() if value}), Breakdown(device)
        peaks = own.total, used.total, mapped, self._disk(name)
        return Moment(name, *peaks, own, used, Breakdown(first), Breakdown(other))

    def _outside(self, device: Parts) -> Parts:
        """Return what the device holds beside tensors at a moment other than the step."""
        whole = self.profile.device_memory_bytes
        peak = self.profile.peak_memory_bytes
        moving = peak["activations"] + peak["logits"]
        now = sum(value for path, value in device.items() if path[0] in ("activations", "logits"))
        found: Parts = {("context",): whole["context"], ("NCCL",): whole["NCCL"]}
        found["slack",] = whole["slack"] * now / moving if moving else 0.0
        return {path: value for path, value in found.items() if value}

    def _load(self) -> Moment:
        run, several = self.run, self.run.num_gpus > 1
        weights: Parts = {path: value for path, value in self.rest.items() if path[0] == "weights"}
        whole = self.model_bytes
        first: Parts = {}
        other: Parts | None = None
        mapped = self.file_bytes
        if self.is_cast and run.loading in ("host", "rank0"):
            first["loaded weights",] = whole
        if run.loading == "rank0":
            other = {}
        if run.loading == "sharded":
            mapped = self.file_bytes * self.ranks_on_node / run.num_gpus
        elif self.low.quantized.startswith(("nf4", "int8")) and not self.is_stored_quantised:  # as they come
            weights = self._quantising(weights)
        elif self.zero and run.sharding != "zero3":
            weights["optimizer", "states"] = 0.0 if states_on_host(run) else self.master_bytes
            held = sum(weights.values()) + self.profile.device_memory_bytes["context"]
            if held + self.saved_bytes <= self.profile.capacity_bytes:
                weights["workspace", "flattened copy"] = self.saved_bytes
            else:  # DeepSpeed looks at the free memory, and takes the host's
                first["flattened copy",] = 2 * self.saved_bytes
        elif run.sharding == "zero3":
            weights |= kept_while_idle(run, self.share)
            weights["workspace", "loading"] = self.largest_bytes
            weights["optimizer", "states"] = 0.0 if states_on_host(run) else self.master_bytes
        elif run.sharding in FSDP:
            weights["workspace", "loading"] = max(self.share.outer_bytes, self.share.layer_bytes)
        elif several:
            weights["workspace", "broadcast"] = min(whole, BROADCAST_BYTES)
        return self._moment("load", weights, first, other, mapped)

    def _quantising(self, shared: Parts) -> Parts:
        """Return what the device holds while weights are quantised as they come; `shared` afterwards."""
        run = self.run
        reads_all = version_numbers(run.transformers_version) >= (5, 0, 0)  # rank 0 alone does not [8]
        reads_all = reads_all and not framework_of(run.framework).own_models
        on_device = run.loading == "device" or (run.loading == "rank0" and reads_all)
        if on_device and (run.sharding in FSDP or run.sharding == "zero3"):
            shared = {("weights", "whole, before they are sharded"): self.model_bytes / self.stages}
        return {
            **shared,
            ("workspace", "being quantised"): QUANTISED_AT_ONCE * 2.0 * self.largest_layer_values,
        }

    def _evaluation(self) -> Moment:
        from finegauge.prediction.phases import scoring_memory

        run = self.run
        rows = run.eval_batch_size or EVAL_BATCH
        asked = run.replace(micro_batch_size=rows, gradient_accumulation_steps=1)
        batch = shape(asked)
        extents = rank_extents(asked, longest_extents(batch))
        device: Parts = {**self.rest, **scoring_memory(run, self.share, extents)}
        if run.sharding == "zero3":
            from finegauge.prediction.generation import passing_bytes

            messages, low = zero3_messages(self.share), self.share.graph.lowering
            device[GATHERED_WEIGHTS] = self._gathered()
            rest = {path: v for path, v in device.items() if path[0] not in ("activations", "logits")}
            rest[ON_THEIR_WAY] = messages.largest_bytes  # logits come when it has gone
            in_layer = {**rest, ("activations", "passing"): passing_bytes(self.share.graph, extents)}
            states = low.stream_bytes * self.share.graph.model.hidden_size * extents.tokens
            begun = {**rest, ("activations", "passing"): states}
            begun[GATHERED_WEIGHTS] += messages.released_bytes
            device = max(device, in_layer, begun, key=lambda parts: sum(parts.values()))
        host: Parts = {}
        if run.eval_logits:
            width = 4.0 if run.autocast != "none" else float(self.low.compute_bytes)  # accelerate widens
            model = self.share.graph.model
            of_sequences = model.task == "sequence_classification"
            values = model.vocab_size * (1 if of_sequences else run.target_seq_len or batch.longest_len)
            batches = ceil(run.eval_samples / (rows * run.data_parallel))
            together = batches if run.eval_accumulation_steps is None else run.eval_accumulation_steps
            of_batch = rows * run.data_parallel * values
            joined = min(batches, together)
            device["logits", "kept"] = (2 * joined - 1 if joined > 1 else 1) * of_batch * width
            copies = 2.0 if together < batches else 1.0  # joined on the host
            if width < 4:
                copies += 0.5 * joined / batches  # bf16 on its way to NumPy, which has none
            if together < batches:  # NumPy's, whose last pieces are still torch's
                self.joined_logits_bytes = 4.0 * of_batch * (batches + max(0, batches - 2 * together))
            host["logits of all samples",] = copies * 4.0 * batches * of_batch
        return self._moment("evaluation", device, host)

    def _gathered(self) -> float:
        """Return what ZeRO-3 leaves gathered after passes that only go forward: its next elements."""
        left = self.model_bytes - zero3_messages(self.share).released_bytes
        return min(left, ZERO3_KEPT * self.share.whole.lowering.weight_bytes)

    def _save(self) -> Moment:
        run, states = self.run, self.states_bytes if self.run.save_optimizer else 0.0
        device, first, other = dict(self.rest), 0.0, 0.0
        if run.save_state == "sharded" and not self.zero:
            first = other = max(COPIED_AHEAD_BYTES, self.largest_bytes / self.degree)
        elif run.sharding in FSDP:
            first = max(self.named_bytes, states)  # frozen weights too: adapters are picked afterwards
            # a tensor gathered, and joined
            device[GATHERED_WEIGHTS] = 2 * self.largest_bytes
        elif self.zero:
            per_rank = self.master_bytes if states else 0.0  # one flat tensor at a time
            if run.sharding == "zero3":
                gathers = run.save_state == "full"  # stage3_gather_16bit_weights_on_model_save
                device[GATHERED_WEIGHTS] = (
                    self._gathered() if run.eval_samples else gathers * self.largest_bytes
                )
                first, other = max(gathers * self.saved_bytes, per_rank), per_rank
            else:
                first = other = max(self.model_bytes / self.stages, per_rank)
        else:
            first = max(min(self.saved_bytes, FILE_BYTES), min(self.largest_bytes, states))
        return self._moment("save", device, {("saved copies",): first}, {("saved copies",): other})

    def _resume(self) -> Moment:
        run, states = self.run, self.states_bytes if self.run.save_optimizer else 0.0
        device, first, other = dict(self.rest), 0.0, 0.0
        copied = copies_states(run.optimizer)
        if self.zero:
            # every rank reads the whole model first; a frozen tied head is not left out under its own name
            module = self.saved_bytes + (self.named_bytes - self.model_bytes) * run.trains_adapters
            first = max(
                MASTER_AND_MOMENTS * self.own_trained if states else 0.0,
                0.0 if run.sharding == "zero3" else module / self.stages,
            )
            other = first
        elif run.sharding in FSDP:
            sharded = run.save_state == "sharded"
            part = min(self.largest_bytes, states) / self.degree
            first, other = (part, part) if sharded else (max(self.named_bytes, states), 0.0)
            # states are made by a step on gradients of zero, before they are read into
            weights = self.share.graph.weights
            device["gradients",] = weights.gradient_bytes
            device["workspace", "optimizer"] = optimizer_scratch(run, weights)
        elif run.save_state == "sharded":
            first = other = min(self.largest_bytes, states) / self.degree
        elif run.num_gpus == 1:
            first = (2.0 if copied else 1.0) * states
        else:
            first = other = min(self.largest_bytes, states)
            if copied:  # read onto every GPU
                device["workspace", "read states"] = states
        return self._moment(
            "resume", device, {("read states",): first}, {("read states",): other}, self.saved_bytes
        )

    def _disk(self, name: str) -> float:
        """Return what is on the disk when a moment is over: the model's files, then every checkpoint kept."""
        run = self.run
        if name in ("load", "train", "evaluation"):
            return self.file_bytes
        again = (self.zero and run.sharding != "zero3") or (run.sharding in FSDP and run.save_state == "full")
        each = (2.0 if again else 1.0) * self.saved_bytes + (self.states_bytes if run.save_optimizer else 0.0)
        batch = shape(run)
        by_epochs = epochs_of(run, batch) * run.saves_per_epoch
        written = ceil(times_of(run.save_steps, batch.steps_total, by_epochs))
        # the new one comes before the oldest goes
        kept = written if run.saves_kept is None else min(written, run.saves_kept + 1)
        merged = self.merged_bytes if name == "merge" else 0.0
        return self.file_bytes + kept * each + self.saved_bytes + merged


FORMULAS: dict[Path, str] = {
    ("processes",): "2.5 GiB for each process with PyTorch and CUDA, an assumption",
    ("loaded weights",): "converted to another number format, by every process that reads",
    ("flattened copy",): "the trained weights once more, in one tensor (DeepSpeed)",
    ("offloaded",): "weights, gradients, states and checkpoints that every rank keeps in host memory",
    ("logits of all samples",): "samples x length x vocabulary x 4 B, in every process",
    ("saved copies",): "what is gathered on the first process, or copied off the GPU, to be written",
    ("merged model",): "the 16-bit model, and the product of one pair of adapters",
    ("read states",): "optimizer states as they come from the file",
}


class Shortage(NamedTuple):
    """A moment that needs more than there is, and of what: device, host or disk."""

    moment: str
    what: str
    needed_bytes: float
    room_bytes: float


def shortages(
    found: Iterable[Moment], device_bytes: float, host_bytes: float | None, disk_bytes: float | None
) -> Iterator[Shortage]:
    """Yield what is short at which moment, in their order; None: how much there is, is not known."""
    for one in found:
        for what, needed_bytes, room_bytes in (
            ("device", one.device_bytes, device_bytes),
            ("host", one.host_bytes, host_bytes),
            ("disk", one.disk_bytes, disk_bytes),
        ):
            if room_bytes is not None and needed_bytes > room_bytes:
                yield Shortage(one.moment, what, needed_bytes, room_bytes)


OUTSIDE = ("context", "NCCL", "slack")
# bytes for each value of a tensor that a processor quantises to 4 bits: in fp32, scaled, and the clamped copy
# (bitsandbytes 0.50.2, backends/default/ops.py, quantize_4bit)
QUANTISING_WIDTH = 12.0
Pair = tuple[float, float]  # of the first process, and of each other


class ProcessMoment(NamedTuple):
    """What a moment takes in the first process and in each other, beside the process itself."""

    name: str
    allocated_bytes: Pair  # by torch's allocator of the device
    resident_bytes: Pair  # of host memory, pages of mapped files included


def process_moments(profile: Profile, *, on_processor: bool) -> tuple[ProcessMoment, ...]:
    """Return the moments of the job whose step is `profile`, in their order."""
    job = Job(profile, on_processor=on_processor)
    if on_processor:
        return tuple(_on_processor(job))
    found = []
    for one in job.moments():
        resident = one.first_bytes.total + one.mapped_bytes, one.other_bytes.total + one.mapped_bytes
        found.append(ProcessMoment(one.moment, (_tensors(one), _tensors(one)), resident))
    return tuple(found)


def _tensors(one: Moment) -> float:
    return sum(value for path, value in one.device_breakdown_bytes.parts.items() if path[0] not in OUTSIDE)


def _on_processor(job: Job) -> Iterator[ProcessMoment]:
    loaded: tuple[Pair, Pair] = _twice(0.0)
    for one in job.moments():
        if one.moment == "load":
            allocated, resident = loaded = _load(job, one)
        elif one.moment == "save":
            allocated = resident = _save(job, one)
        elif one.moment == "resume":
            allocated, resident = _resume(job, one)
            if not job.zero:  # the model is loaded again
                allocated, resident = _larger(allocated, loaded[0]), _larger(resident, loaded[1])
        else:
            allocated = resident = _tensors(one), _tensors(one)
            if one.moment == "evaluation":
                resident = _twice(_tensors(one) + job.joined_logits_bytes)[0]
        yield ProcessMoment(one.moment, allocated, resident)


def _load(job: Job, one: Moment) -> tuple[Pair, Pair]:
    """Return what is allocated and what is resident; pages that were not read are not resident."""
    run, n, whole, file = job.run, job.degree, job.model_bytes, job.file_bytes
    each = whole + min(whole, BROADCAST_BYTES) if run.num_gpus > 1 else whole
    if run.sharding == "zero3":  # whose buckets are not written to yet
        ready, used = _tensors(one), (whole + 2 * job.saved_bytes) / n + job.master_bytes
        opened = whole / n + file  # by every process, of which the first reads it, tensor by tensor
        reading = opened + job.largest_bytes
        if run.loading == "rank0":
            return (max(ready, reading), max(ready, opened)), (max(used, reading), used)
        return _twice(max(ready, reading))
    if job.zero:  # the file's pages are the weights', unless they were converted
        engine = job.saved_bytes + job.master_bytes
        each = max(file + whole, whole + engine) if file > 1.5 * whole else file + engine
    elif job.is_cast:
        each = whole + file
    elif job.low.quantized:  # while weights are quantised or converted; and while they are sent
        pinned = sum(job.pinned.values())
        at_once = QUANTISING_WIDTH * job.largest_layer_values if job.low.quantized.startswith("nf4") else 0.0
        each = max(whole + (pinned or file) + at_once, pinned + each)
    elif run.sharding in FSDP:
        used = 2 * whole / n + job.largest_bytes  # which is divided
        return (whole + whole / n,) * 2, (used, used)
    elif run.num_gpus == 1:
        return (each, each), (0.0, 0.0)
    return (each, each), (each, each)


def _save(job: Job, one: Moment) -> Pair:
    kind, full, device = job.run.sharding, job.run.save_state == "full", _tensors(one)
    if full and kind in (*FSDP, "zero3"):
        if kind == "zero3":  # what is still gathered is freed as it copies
            passing = 0.0 if job.run.eval_samples else job.largest_bytes
            return max(device, sum(job.rest.values()) + one.first_bytes.total + passing), device
        return device - job.largest_bytes + one.first_bytes.total, device  # which it keeps
    copied = one.first_bytes.total if kind in ("zero1", "zero2") else 0.0
    return device + copied, device + copied


def _resume(job: Job, one: Moment) -> tuple[Pair, Pair]:
    """Return what is allocated and what is resident: DDP's buckets are not, before there are gradients.

    Nor is a base model whose file is mapped, before a pass reads it.
    """
    run, states = job.run, job.states_bytes
    weights = sum(value for path, value in job.rest.items() if path[0] == "weights")
    rest = sum(job.rest.values())
    if job.zero:  # whose engine reads into what it holds
        return _twice(rest + one.first_bytes.total)
    if run.sharding == "none":
        read = weights + max(states, job.saved_bytes)
        maps = run.num_gpus == 1 and not (job.is_cast or job.low.quantized)
        unread = job.file_bytes if maps and run.trains_adapters else 0.0  # of the base model, until a step
        return _twice(max(rest, read))[0], _twice(read - unread)[0]
    first = other = _tensors(one)
    if run.save_state == "full":  # the model has gone when the states come
        first = max(weights + job.named_bytes, first + states)
    return (first, other), (first, other)


def _larger(one: Pair, other: Pair) -> Pair:
    return max(one[0], other[0]), max(one[1], other[1])


def _twice(each: float) -> tuple[Pair, Pair]:
    return (each, each), (each, each)
