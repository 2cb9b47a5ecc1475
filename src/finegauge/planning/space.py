"""The search space of a plan: every way to train the same model on as many samples per step.

A plan is a *structure*, a *layout*, a micro-batch and an offer. A structure fixes what the operators of a
rank are: the method, what is checkpointed, whether rows are packed, how layers are divided. Its layouts fix
over how many ranks tensors are divided, and where they are kept: sharding, offload, optimizer, data-parallel
ranks. What is left, micro-batch and machine, are the axes of arrays. Accumulation follows: micro-batch x
accumulation x ranks is the global batch, so only exact divisors are plans. With packing a row holds many
samples; then it is the samples of a step that stay.

What `space_of` leaves out, an engineer would too: nodes joined where they are not data-centre nodes
of at least four GPUs, degrees that the run's framework cannot say, quantised weights under ZeRO-3.
`Space` takes any other set.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from finegauge.catalogue.frameworks import framework_of
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.gpus import known_gpu, multiplies_bf16
from finegauge.catalogue.offers import Offer, multiples, offers
from finegauge.data.batch_shape import BatchShape, epochs_of, sample_lengths, shape
from finegauge.errors import FieldError, FineGaugeError
from finegauge.model.graph import architecture_of
from finegauge.model.op import Extents
from finegauge.planning.whatif import divisors
from finegauge.prediction.sharding import longest_extents, mean_extents
from finegauge.prediction.time import check_supported
from finegauge.records import NamedTuple
from finegauge.run.rules import LOMO, NOT_CHECKPOINTED
from finegauge.run.run import FROM_CALLER, Run

OTHER_VENDORS = ("tpu", "trainium", "inferentia", "gaudi")
MAX_GPUS = 64
LARGE_BYTES = 30e9  # 16-bit weights from which layers are worth dividing
LONG_TOKENS = 32_768  # sequences from which dividing them is worth it
PER_NODE = 8
MAX_MICRO_BATCH = 64
Fields = Mapping[str, Any]
UNDIVIDED: Fields = {
    "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, "expert_parallel": 1,
    "sequence_parallel": False, "virtual_pipeline_stages": 1,
}  # fmt: skip
ORIGIN = "plan"
ACCUMULATING = 2  # stands for any number of micro-batches above one
NARROW_SHARDING = ("none", "fsdp", "fsdp_shard_grad_op")  # under which 8-bit states are kept
ADAPTER_SHARDING = ("none", "zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")  # that divide frozen weights
OF_ONE_MACHINE: Fields = {  # what a run may state of its own, and no other machine has
    "node_network_gbit_per_s": None, "nvlink": None, "p2p": None, "power_limit_w": None, "pcie": None,
    "gpus_per_pcie_switch": None, "host_cores": None, "host_memory_gb_per_s": None, "nvme_gb_per_s": None,
    "free_memory_bytes": None,
}  # fmt: skip
ON_NO_MACHINE: Fields = {
    "gradient_accumulation_steps": 1, "micro_batch_size": 1, "gpu": None, "num_gpus": None,
    "num_nodes": 1, "data_parallel_replicate": None, "data_parallel_shard": None, "sharding": "none",
    "cpu_offload": "none", "offload_pinned": None, "provider": None, "region": None, **OF_ONE_MACHINE,
}  # fmt: skip
DIVISION = attrgetter("method", "tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")


class Space(NamedTuple):
    """The sets whose product is searched; combinations that no run can be are passed over."""

    run: Run  # states all that is not varied
    methods: tuple[Fields, ...]  # the fields that each method states
    checkpointing: tuple[str, ...]
    packing: tuple[bool, ...]
    divisions: tuple[Fields, ...]  # of layers, sequences and experts: tensor_parallel, pipeline_parallel, ...
    layouts: tuple[Fields, ...]  # sharding, cpu_offload
    optimizers: tuple[str, ...]
    data_parallel: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...]
    offers: tuple[Offer, ...]
    samples_per_step: float
    max_gpus: int
    packed: Mapping[str, Any] = {}  # what packing changes besides, as a framework packs
    alone: tuple[Fields, ...] = ()  # of the layouts, those that a framework has on one data rank only
    gpu: str | None = None  # what defaults follow: one of those asked for, where none of them multiplies bf16


def space_of(
    run: Run,
    *,
    keep_method: bool = False,
    gpus: Iterable[str] | None = None,
    providers: Iterable[str] | None = None,
    max_gpus: int | None = None,
) -> Space:
    """Return what a user would consider for `run`, whose accumulation and GPUs give the global batch alone.

    By default every GPU that is on offer, other accelerators left out, and 64 of them in one plan at most.

    Raises: UnknownNameError for a GPU or provider that no catalogue has.
    """
    offered = distinct(_asked(gpus, providers))
    narrow = None if not offered or any(multiplies_bf16(one.gpu) for one in offered) else offered[0].gpu
    if narrow:  # fp16, where nothing else is stated
        run = run.replace(ORIGIN, gpu=narrow, num_nodes=1, **OF_ONE_MACHINE)
    batch, most = shape(run), max_gpus or MAX_GPUS
    # rows may be packed where lengths are known and nothing is compared
    model = architecture_of(run.model, task=run.task)
    words = model.task in ("causal_lm", "masked_lm") and run.target_seq_len is None
    packs = run.dataset is not None and run.phase in ("sft", "pretrain") and words
    kinds = _distinct(run.sharding, "none", "zero2", "zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")
    return Space(
        run=run,
        methods=({},) if keep_method else ({}, *_other_methods(run)),
        checkpointing=("none",)
        if model.model_type in NOT_CHECKPOINTED
        else _distinct(run.activation_checkpointing, "none", "full"),
        packing=_distinct(run.packing, True) if packs else (run.packing,),
        divisions=_distinct(UNDIVIDED, {name: getattr(run, name) for name in UNDIVIDED}, *_divisions(run)),
        layouts=_distinct(  # the kinds of sharding, each with the offloads that its implementations know
            {
                **{"sharding": run.sharding, "cpu_offload": run.cpu_offload},
                **({"offload_pinned": run.offload_pinned} if run.cpu_offload != "none" else {}),
            },
            *[{"sharding": kind, "cpu_offload": "none"} for kind in kinds],
            {"sharding": "zero2", "cpu_offload": "optimizer", "offload_pinned": True},
            {"sharding": "zero3", "cpu_offload": "all", "offload_pinned": True},
        ),
        optimizers=(run.optimizer,) if run.optimizer in LOMO else _distinct(run.optimizer, "adamw_8bit"),
        data_parallel=tuple(
            sorted({*[2**power for power in range(most.bit_length())], most, run.data_parallel})
        ),
        micro_batch_sizes=tuple([n for n in divisors(run.global_batch_size) if n <= MAX_MICRO_BATCH]),
        offers=offered,
        samples_per_step=run.global_batch_size * (batch.samples / batch.sequences),
        max_gpus=most,
        gpu=narrow,
    )


def _distinct(*options: Any) -> tuple[Any, ...]:
    found: list[Any] = []
    for one in options:
        if one not in found:
            found.append(one)
    return tuple(found)


def _other_methods(run: Run) -> list[Fields]:
    if run.phase not in ("sft", "reward", "dpo"):
        return []
    # adapters are computed as the run computes: bf16: true stays
    half = {"weights_dtype": "bf16" if multiplies_bf16(run.gpu) else "fp16"}
    known: dict[str, Fields] = {"full": {**half, "autocast": "none"}, "lora": half, "qlora": {}}
    return [{"method": name, **fields} for name, fields in known.items() if name != run.method]


def _divisions(run: Run) -> list[Fields]:
    said = not run.framework or framework_of(run.framework).divides_models
    if not said or run.phase not in ("sft", "pretrain", "reward"):
        return []
    degrees: list[Fields] = []
    if 2.0 * architecture_of(run.model, run.num_experts_per_tok).num_parameters > LARGE_BYTES:
        degrees += [{"tensor_parallel": degree} for degree in (2, 4, 8)]
        degrees += [{"pipeline_parallel": 2}, {"pipeline_parallel": 4}]
        degrees.append({"tensor_parallel": 8, "pipeline_parallel": 4})
    if run.seq_len >= LONG_TOKENS:
        degrees += [{"context_parallel": degree} for degree in (2, 4, 8)]
    return [{**UNDIVIDED, **one} for one in degrees]


def _asked(gpus: Iterable[str] | None, providers: Iterable[str] | None) -> list[Offer]:
    """Return the offers of the requested GPUs and providers.

    Raises: FieldError for a machine that no provider rents out.
    """
    wanted = None if providers is None else [name.casefold() for name in providers]
    for provider in wanted or ():
        offers(provider=provider)  # raises for an unknown one
    found: Sequence[Offer] = offers() if gpus is None else []
    for name in gpus or ():
        spec = find_gpu(name)
        if known_gpu(spec.name) is None:  # it is of a file
            raise FieldError(
                f"gpu {name!r} is {spec.name}, which no provider rents out, and a plan is of offers; "
                f"ask 'finegauge whatif RUN --gpu {name}'."
            )
        found = [*found, *offers(spec.name)]
    return [
        whole
        for offer in found
        if offer.gpu
        and (gpus is not None or not offer.gpu.casefold().startswith(OTHER_VENDORS))
        and (wanted is None or offer.provider in wanted)
        and (offer.is_ranked or (wanted is not None and not offer.outlier))
        for whole in (offer, *multiples(offer))
    ]


def distinct(found: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return the cheapest offer of every GPU, node size and provider, on demand and spot."""
    best: dict[tuple[str, str, int, str], Offer] = {}
    for offer in found:
        if not offer.gpu_count:
            continue  # a slice of a card
        for kind in ("on_demand_usd_per_h", "spot_usd_per_h"):
            price = getattr(offer, kind)
            key = (kind, offer.gpu, offer.gpu_count, offer.provider)
            if price is not None and (key not in best or price < getattr(best[key], kind)):
                best[key] = offer
    return tuple(dict.fromkeys(best.values()))


class Batching(NamedTuple):
    """The micro-batches of a structure, [micro-batch, 1]."""

    sizes: tuple[int, ...]
    mean: Extents
    longest: Extents
    samples: Any  # in one micro-batch
    shapes: tuple[BatchShape, ...]  # of each
    rows_per_step: int  # the global batch
    samples_per_step: float
    num_steps: Any  # of the whole run, [micro-batch, 1]
    num_epochs: Any
    ranks: int | None  # that read them; None where it does not matter


class Structure(NamedTuple):
    """Plans of the same operators."""

    run: Run  # checked, as one rank of one GPU would have it
    fields: Fields  # what it states beyond the user's run
    batching: Batching


class Layout(NamedTuple):
    """Plans that divide the same tensors over the same ranks."""

    run: Run  # accumulating, on no particular machine
    fields: Fields
    optimizer: str

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of all nodes together."""
        return self.run.num_gpus


def structures(space: Space) -> Iterator[Structure]:
    """Yield every structure of `space` that is a run."""
    batchings: dict[bool, tuple[Batching, ...]] = {}
    for method in space.methods:
        for checkpointing in space.checkpointing:
            for packing in space.packing:
                for division in space.divisions:
                    fields = {
                        **method, "activation_checkpointing": checkpointing, "packing": packing, **division,
                        "gpu": space.gpu,
                    }  # fmt: skip
                    if packing and not space.run.packing:
                        fields |= space.packed
                    run = _checked(space.run, fields)
                    if run is None or not _divisible(space.run, run):
                        continue
                    if packing not in batchings:
                        batchings[packing] = tuple(_batchings(space, run))
                    yield from (Structure(run, fields, found) for found in batchings[packing])


def families(
    space: Space, structure: Structure, tried: dict[tuple[object, ...], bool]
) -> Iterator[tuple[Layout, ...]]:
    """Yield the layouts of `structure` that are runs which can be predicted.

    Those of a family differ in the number of their ranks alone; where there is but one, nothing is exchanged
    among them, which is a family of its own. `tried` remembers which layouts are runs.
    """
    run, own = structure.run, space.run.optimizer
    division = tuple([getattr(run, name) for name in ("method", *UNDIVIDED)])
    for kind in space.layouts:
        if not sensible(space.run, run, kind):
            continue
        alone: list[Fields] = []
        several: list[Fields] = []
        for degree in space.data_parallel:
            degrees = _degrees(space, structure, kind, degree)
            if degrees is not None:
                (alone if degree * run.context_parallel == 1 else several).append({**kind, **degrees})
        # the states of adapters are small, DeepSpeed's are its own
        narrow = kind["sharding"] in NARROW_SHARDING and kind["cpu_offload"] == "none"
        for optimizer in space.optimizers if narrow and not run.trains_adapters else (own,):
            for family in (alone, several):
                key = *division, *kind.values(), optimizer, family is alone
                if family and key not in tried:  # what the first may be, so may the others
                    tried[key] = _checked(run, {**family[0], "optimizer": optimizer}) is not None
                if family and tried[key]:
                    stated = {"optimizer": optimizer, "gradient_accumulation_steps": ACCUMULATING}
                    found = [Layout(variant(run, **one, **stated), one, optimizer) for one in family]
                    yield tuple(found)


def variant(run: Run, **changes: Any) -> Run:
    """Return `run` with `changes`, which count as stated by the caller, without checking every field again.

    A search needs thousands. What varies must be consistent, which is the caller's business: a plan that is
    handed out is made anew by `Run.replace`, which checks everything. A value may be an array, one number
    per machine.
    """
    other = object.__new__(Run)
    origins = {**run.origins, **dict.fromkeys(changes, FROM_CALLER)}
    vars(other).update(vars(run) | changes, origins=origins)
    return other


def _checked(run: Run, fields: Fields) -> Run | None:
    try:
        found = run.replace(ORIGIN, **{**ON_NO_MACHINE, **fields})
        check_supported(found)
    except FineGaugeError:
        return None
    return found


def _divisible(asked: Run, run: Run) -> bool:
    """Return whether some framework divides the layers of `run` like this, or the user's own run does.

    4-bit weights are divided by none, adapters by tensor and context parallelism alone.
    """
    method, tensor, pipeline, context, _ = DIVISION(run)
    if DIVISION(run) == DIVISION(asked):
        return True
    if method in ("qlora", "gptq_lora"):
        return bool(tensor == pipeline == context == 1)
    return not run.trains_adapters or pipeline == 1


def sensible(asked: Run, run: Run, kind: Fields) -> bool:
    """Return whether an engineer would lay `run` out like this; what the user's own run does, always."""
    sharding, offload = kind["sharding"], kind["cpu_offload"]
    if (sharding, offload, run.method) == (asked.sharding, asked.cpu_offload, asked.method):
        return True
    if run.pipeline_parallel > 1:
        return sharding in ("none", "zero1") and offload == "none"
    if not run.trains_adapters:
        return True
    quantized = run.method != "lora"
    return offload == "none" and sharding in ADAPTER_SHARDING and not (quantized and sharding == "zero3")


def _degrees(space: Space, structure: Structure, kind: Fields, degree: int) -> Fields | None:
    """Return the fields of `degree` data-parallel ranks; None where these are none, or share nothing."""
    run, batching, sharding = structure.run, structure.batching, kind["sharding"]
    shared = run.tensor_parallel * run.pipeline_parallel * run.context_parallel
    if (
        degree * shared > space.max_gpus
        or batching.rows_per_step % degree
        or batching.ranks not in (None, degree)
        or (degree > 1 and kind in space.alone)
        or (run.expert_parallel > 1 and degree % run.expert_parallel)
    ):
        return None
    replicate, shard = 1, degree
    if sharding == "none":
        replicate, shard = degree, 1
        if shared > 1 and degree > 1 and framework_of(run.framework).replicates_whole_models:
            return None
    elif degree * run.context_parallel == 1 and kind["cpu_offload"] == "none":
        return None
    elif sharding == "hybrid":
        shard = max(1, PER_NODE // run.tensor_parallel)
        replicate = degree // shard
        if shard == 1 or degree <= shard or degree % shard:
            return None
    return {"data_parallel_replicate": replicate, "data_parallel_shard": shard, "num_gpus": degree * shared}


def _batchings(space: Space, run: Run) -> Iterator[Batching]:
    """Yield the micro-batches of a structure, by the number of ranks where batches depend on it.

    They do where samples are sorted over a step, and where the very samples of a file are batched.
    """
    first = shape(variant(run, micro_batch_size=1, gradient_accumulation_steps=1))
    rows = nearest_rows(space.samples_per_step / (first.samples / first.sequences))
    tried = space.micro_batch_sizes
    if run.packing != space.run.packing:
        tried = tuple(range(1, max(tried) + 1))
    depends = run.group_by_length or sample_lengths(run) is not None
    for ranks in space.data_parallel if depends else (1,):
        sizes = tuple([size for size in tried if rows % (size * ranks) == 0])
        if sizes:
            yield _batching(run, rows, sizes, ranks, depends=depends)


def _batching(run: Run, rows: int, sizes: tuple[int, ...], ranks: int, *, depends: bool) -> Batching:
    num_gpus = ranks * run.tensor_parallel * run.pipeline_parallel * run.context_parallel
    degrees = {"data_parallel_replicate": ranks, "data_parallel_shard": 1, "num_gpus": num_gpus}
    found: list[BatchShape] = []
    for size in sizes:
        steps = rows // (size * ranks)
        found.append(shape(variant(run, micro_batch_size=size, gradient_accumulation_steps=steps, **degrees)))
    whole = _columns([(batch.samples, batch.steps_total, epochs_of(run, batch)) for batch in found])
    return Batching(
        sizes=sizes,
        mean=Extents(*_columns(map(mean_extents, found))),
        longest=Extents(*_columns(map(longest_extents, found))),
        samples=whole[0],
        shapes=tuple(found),
        rows_per_step=rows,
        samples_per_step=rows * found[0].samples / sizes[0],
        num_steps=whole[1],
        num_epochs=whole[2],
        ranks=ranks if depends else None,
    )


def _columns(rows: Iterable[Sequence[Any]]) -> list[Any]:
    import numpy

    return [column[:, None] for column in numpy.array([*rows], dtype=float).T]


def nearest_rows(wanted: float) -> int:
    """Return the number of rows nearest to `wanted` that divides well: 1, 3 or 5 times a power of two."""
    if round(wanted) == wanted:
        return round(wanted)
    numbers = [factor * 2**power for factor in (1, 3, 5) for power in range(24)]
    return int(min(numbers, key=lambda number: (abs(number - wanted), number)))
