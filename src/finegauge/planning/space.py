"""What a search goes through: every plan that would train the same model on as many samples per step.

A plan is a *structure* (method, checkpointing, packing, and how layers are divided), a *layout*
(sharding, offload, optimizer, data-parallel ranks), a micro-batch and an offer. Accumulation follows:
micro-batch x accumulation x ranks is the global batch, so only exact divisors are plans. With packing
a row holds many samples; then it is the samples of a step that stay.

What `space_of` leaves out, an engineer would too: nodes joined where they are not data-centre nodes
of at least four GPUs, degrees that the run's framework cannot say, quantised weights under ZeRO-3.
`Space` takes any other set.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from finegauge.catalogue.frameworks import framework_of
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer, offers
from finegauge.data.batch_shape import BatchShape, sample_lengths, shape
from finegauge.errors import FieldError, FineGaugeError
from finegauge.model.op import Extents
from finegauge.planning.quote import epochs_of
from finegauge.prediction.phases import check_supported
from finegauge.prediction.sharding import longest_extents, mean_extents
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


class Space(NamedTuple):
    """The sets whose product is searched; combinations that no run can be are passed over."""

    run: "Run"  # states all that is not varied
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


def space_of(
    run: "Run",
    *,
    keep_method: bool = False,
    gpus: Iterable[str] | None = None,
    providers: Iterable[str] | None = None,
    max_gpus: int | None = None,
) -> Space:
    """Return what a user would consider for `run`.

    Args:
        run: The user's; what it states of gradient accumulation and GPUs gives the global batch alone.
        keep_method: No other method than the run's own.
        gpus: Only these; by default every GPU that is on offer, accelerators of other kinds left out.
        providers: Only these.
        max_gpus: No more of them in one plan; 64 by default.

    Raises: UnknownNameError for a GPU or provider that no catalogue has.
    """
    methods = ({},) if keep_method else ({}, *_other_methods(run))
    samples = run.global_batch_size * _samples_per_row(run)
    own = {name: getattr(run, name) for name in UNDIVIDED}
    most = max_gpus or MAX_GPUS
    degrees = [2**power for power in range(most.bit_length())]
    return Space(
        run=run,
        methods=methods,
        checkpointing=_first(run.activation_checkpointing, "none", "full"),
        packing=_packing(run),
        divisions=_first(UNDIVIDED, own, *_divisions(run)),
        layouts=_layouts(run),
        optimizers=_first(run.optimizer, "adamw_8bit"),
        data_parallel=tuple(sorted({*degrees, run.data_parallel})),
        micro_batch_sizes=_divisors(run.global_batch_size, MAX_MICRO_BATCH),
        offers=distinct(_asked(gpus, providers)),
        samples_per_step=samples,
        max_gpus=most,
    )


def _first(own: Any, *others: Any) -> tuple[Any, ...]:
    """Return the run's own choice and the others, each once."""
    found = [own]
    found += [other for other in others if other not in found]
    return tuple(other for index, other in enumerate(found) if other not in found[:index])


def _other_methods(run: "Run") -> list[Fields]:
    """Return what else could train: all weights, adapters, adapters over 4-bit weights."""
    bf16 = {"weights_dtype": "bf16"}  # adapters are computed as the run computes: bf16: true stays
    known: dict[str, Fields] = {"full": {**bf16, "autocast": "none"}, "lora": bf16, "qlora": {}}
    trained = run.phase in ("sft", "reward", "dpo")
    return [{"method": name, **fields} for name, fields in known.items() if trained and name != run.method]


def _packing(run: "Run") -> tuple[bool, ...]:
    """Return whether rows may be packed: where lengths are known and nothing is compared."""
    possible = run.dataset is not None and run.phase in ("sft", "pretrain")
    return _first(run.packing, True) if possible else (run.packing,)


def _samples_per_row(run: "Run") -> float:
    batch = shape(run)
    return batch.samples / batch.sequences


def _divisions(run: "Run") -> list[Fields]:
    """Return the degrees of dividing layers, sequences and experts that the model's size is worth."""
    from finegauge.model.graph import architecture_of

    model = architecture_of(run.model, run.num_experts_per_tok)
    said = not run.framework or framework_of(run.framework).divides_models
    if not said or run.phase not in ("sft", "pretrain", "reward"):
        return []
    found: list[Fields] = []
    if 2.0 * model.num_parameters > LARGE_BYTES:
        found += [{**UNDIVIDED, "tensor_parallel": degree} for degree in (2, 4, 8)]
        found += [{**UNDIVIDED, "pipeline_parallel": degree} for degree in (2, 4)]
        found.append({**UNDIVIDED, "tensor_parallel": 8, "pipeline_parallel": 4})
    if run.seq_len >= LONG_TOKENS:
        found += [{**UNDIVIDED, "context_parallel": degree} for degree in (2, 4, 8)]
    return found


def _layouts(run: "Run") -> tuple[Fields, ...]:
    """Return the kinds of sharding, each with the offloads that its implementations know."""
    kinds = _first(run.sharding, "none", "zero2", "zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")
    found = [{"sharding": kind, "cpu_offload": "none"} for kind in kinds]
    found += [{"sharding": "zero2", "cpu_offload": "optimizer"}, {"sharding": "zero3", "cpu_offload": "all"}]
    return _first({"sharding": run.sharding, "cpu_offload": run.cpu_offload}, *found)


def _divisors(number: int, most: int) -> tuple[int, ...]:
    """Return the divisors of `number` up to `most`."""
    return tuple(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)


def _asked(gpus: Iterable[str] | None, providers: Iterable[str] | None) -> list[Offer]:
    """Return the offers of the GPUs and providers that are asked for."""
    names = None if gpus is None else [_on_offer(name) for name in gpus]
    wanted = None if providers is None else [name.casefold() for name in providers]
    found = offers() if names is None else [offer for name in names for offer in offers(name)]
    for provider in wanted or ():
        offers(provider=provider)  # raises for one that nobody knows
    return [
        offer
        for offer in found
        if offer.gpu
        and (names is not None or not offer.gpu.casefold().startswith(OTHER_VENDORS))
        and (wanted is None or offer.provider in wanted)
        and (offer.is_ranked or (wanted is not None and not offer.outlier))
    ]


def _on_offer(name: str) -> str:
    """Return the catalogue's name of a GPU. Raises: FieldError for a machine that nobody rents out."""
    spec = find_gpu(name)
    if spec.vendor == "measured":
        raise FieldError(
            f"gpu {name!r} is {spec.name}, which nobody rents out, and a plan is of offers; "
            f"ask 'finegauge whatif RUN --gpu {name}'."
        )
    return spec.name


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


NAMES = tuple(Run.__dataclass_fields__)
VALUES = attrgetter(*NAMES)
SLOTS = {name: getattr(Run, name).__set__ for name in NAMES}  # what assigning to a frozen run refuses


def unchecked(run: Run, **changes: Any) -> Run:
    """Return `run` with `changes`, which count as stated by the caller."""
    other = object.__new__(Run)
    for assign, value in zip(SLOTS.values(), VALUES(run), strict=True):
        assign(other, value)
    for name, value in changes.items():
        SLOTS[name](other, value)
    SLOTS["origins"](other, {**run.origins, **dict.fromkeys(changes, FROM_CALLER)})
    return other


ORIGIN = "plan"
ACCUMULATING = 2  # stands for any number of micro-batches above one
NARROW_SHARDING = ("none", "fsdp", "fsdp_shard_grad_op")  # under which 8-bit states are kept
ADAPTER_SHARDING = ("none", "zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")  # that divide frozen weights


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

    run: "Run"  # checked, as one rank of one GPU would have it
    fields: Fields  # what it states beyond the user's run
    batching: Batching


class Layout(NamedTuple):
    """Plans that divide the same tensors over the same ranks."""

    run: "Run"  # accumulating, on no particular machine
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
                    }  # fmt: skip
                    if packing and not space.run.packing:
                        fields |= space.packed
                    run = _tried(space.run, fields)
                    if run is None or not _divisible(space.run, run):
                        continue
                    if packing not in batchings:
                        batchings[packing] = tuple(_batchings(space, run))
                    yield from (Structure(run, fields, found) for found in batchings[packing])


def families(
    space: Space, structure: Structure, tried: dict[tuple[object, ...], bool]
) -> Iterator[tuple[Layout, ...]]:
    """Yield the layouts of `structure` that are runs of which predictions have a model.

    Those of a family differ in the number of their ranks alone; where there is but one, nothing is exchanged
    among them, which is a family of its own.

    Args:
        space: All that may be.
        structure: Of which layouts are wanted.
        tried: Which layouts are known to be runs, and no runs; added to.
    """
    run = structure.run
    division = tuple(getattr(run, name) for name in ("method", *UNDIVIDED))
    ranks = run.tensor_parallel * run.pipeline_parallel * run.context_parallel
    for kind in space.layouts:
        if not _sensible(space.run, run, kind):
            continue
        for optimizer in _optimizers(space, run, kind):
            of_degree = {
                degree: {**kind, **degrees, "num_gpus": degree * ranks}
                for degree in space.data_parallel
                if degree * ranks <= space.max_gpus and structure.batching.rows_per_step % degree == 0
                and structure.batching.ranks in (None, degree) and (degree == 1 or kind not in space.alone)
                and (degrees := _degrees(run, kind, degree)) is not None
            }  # fmt: skip
            alone = {n: fields for n, fields in of_degree.items() if n * run.context_parallel == 1}
            for family in (alone, {n: fields for n, fields in of_degree.items() if n not in alone}):
                if not family:
                    continue
                key = *division, *kind.values(), optimizer, family is alone
                if key not in tried:  # what the first may be, the others may, whatever is checkpointed
                    first = next(iter(family.values()))
                    tried[key] = _tried(run, {**first, "optimizer": optimizer}) is not None
                if tried[key]:
                    yield tuple(_laid(run, optimizer, fields) for fields in family.values())


def _laid(run: "Run", optimizer: str, fields: Fields) -> Layout:
    """Return the layout that `fields` state."""
    stated = {**fields, "optimizer": optimizer, "gradient_accumulation_steps": ACCUMULATING}
    return Layout(unchecked(run, **stated), fields, optimizer)


def _tried(run: "Run", fields: Fields) -> "Run | None":
    """Return `run` with `fields`; None where that is no run, or none that is predicted."""
    alone = {
        "gradient_accumulation_steps": 1, "micro_batch_size": 1, "gpu": None, "num_gpus": None,
        "num_nodes": 1, "data_parallel_replicate": None, "data_parallel_shard": None, "sharding": "none",
        "cpu_offload": "none", "provider": None, "region": None, "node_network_gbit_per_s": None,
    }  # fmt: skip
    try:
        found = run.replace(ORIGIN, **{**alone, **fields})
        check_supported(found)
    except FineGaugeError:
        return None
    return found


def _divisible(asked: "Run", run: "Run") -> bool:
    """Return whether somebody's code divides the layers of `run` like this, or the user's own does.

    4-bit weights are divided by none, adapters by tensor and context parallelism alone.
    """
    if (run.method, *_degrees_of(run)) == (asked.method, *_degrees_of(asked)):
        return True
    tensor, pipeline, context, _ = _degrees_of(run)
    if run.method in ("qlora", "gptq_lora"):
        return tensor == pipeline == context == 1
    return not run.trains_adapters or pipeline == 1


def _degrees_of(run: "Run") -> tuple[int, int, int, int]:
    return run.tensor_parallel, run.pipeline_parallel, run.context_parallel, run.expert_parallel


def _sensible(asked: "Run", run: "Run", kind: Fields) -> bool:
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


def _optimizers(space: Space, run: "Run", kind: Fields) -> tuple[str, ...]:
    """Return the optimizers to try: the states of adapters are small, DeepSpeed's are its own."""
    own = space.run.optimizer
    if run.trains_adapters or kind["sharding"] not in NARROW_SHARDING or kind["cpu_offload"] != "none":
        return (own,)
    return space.optimizers


def _degrees(run: "Run", kind: Fields, degree: int) -> Fields | None:
    """Return the data-parallel degrees of `degree` ranks; None where such a sharding divides nothing."""
    sharding, ranks = kind["sharding"], degree * run.context_parallel
    divided = run.tensor_parallel * run.pipeline_parallel * run.context_parallel > 1
    if run.expert_parallel > 1 and degree % run.expert_parallel:
        return None
    if sharding == "none":
        refused = divided and degree > 1 and framework_of(run.framework).replicates_whole_models
        return None if refused else {"data_parallel_replicate": degree, "data_parallel_shard": 1}
    if ranks == 1 and kind["cpu_offload"] == "none":
        return None
    if sharding == "hybrid":
        shard = max(1, PER_NODE // run.tensor_parallel)
        if shard == 1 or degree <= shard or degree % shard:
            return None
        return {"data_parallel_replicate": degree // shard, "data_parallel_shard": shard}
    return {"data_parallel_replicate": 1, "data_parallel_shard": degree}


def _batchings(space: Space, run: "Run") -> Iterator[Batching]:
    """Yield the micro-batches of a structure, by the number of ranks where batches depend on it.

    They do where samples are sorted over a step, and where the very samples of a file are batched.
    """
    first = shape(unchecked(run, micro_batch_size=1, gradient_accumulation_steps=1))
    rows = nearest_rows(space.samples_per_step / (first.samples / first.sequences))
    depends = run.group_by_length or sample_lengths(run) is not None
    for ranks in space.data_parallel if depends else (1,):
        sizes = tuple(size for size in _sizes(space, run, rows) if rows % (size * ranks) == 0)
        if sizes:
            yield _batching(run, rows, sizes, ranks, depends=depends)


def _batching(run: "Run", rows: int, sizes: tuple[int, ...], ranks: int, *, depends: bool) -> Batching:
    """Return the micro-batches of `sizes` of a step of `rows`."""
    import numpy

    num_gpus = ranks * run.tensor_parallel * run.pipeline_parallel * run.context_parallel
    degrees = {"data_parallel_replicate": ranks, "data_parallel_shard": 1, "num_gpus": num_gpus}
    found: list[BatchShape] = [
        shape(
            unchecked(
                run, micro_batch_size=size, gradient_accumulation_steps=rows // (size * ranks), **degrees
            )
        )
        for size in sizes
    ]

    def column(numbers: list[Any]) -> Any:
        return numpy.array(numbers, dtype=float)[:, None]

    def extents(each: list[Extents]) -> Extents:
        return Extents(*(column(list(numbers)) for numbers in zip(*each, strict=True)))

    return Batching(
        sizes=sizes,
        mean=extents([mean_extents(batch) for batch in found]),
        longest=extents([longest_extents(batch) for batch in found]),
        samples=column([batch.samples for batch in found]),
        shapes=tuple(found),
        rows_per_step=rows,
        samples_per_step=rows * found[0].samples / sizes[0],
        num_steps=column([batch.steps_total for batch in found]),
        num_epochs=column([epochs_of(run, batch) for batch in found]),
        ranks=ranks if depends else None,
    )


def _sizes(space: Space, run: "Run", rows: int) -> Iterator[int]:
    """Yield the micro-batches to try: of the space's own where they divide the rows of a step."""
    if run.packing == space.run.packing:
        yield from (size for size in space.micro_batch_sizes if rows % size == 0)
        return
    most = max(space.micro_batch_sizes)
    yield from (size for size in range(1, min(rows, most) + 1) if rows % size == 0)


def nearest_rows(wanted: float) -> int:
    """Return the number of rows nearest to `wanted` that divides well: 1, 3 or 5 times a power of two."""
    numbers = (factor * 2**power for factor in (1, 3, 5) for power in range(24))
    return (
        wanted_exactly
        if (wanted_exactly := round(wanted)) == wanted
        else min(numbers, key=lambda number: (abs(number - wanted), number))
    )
