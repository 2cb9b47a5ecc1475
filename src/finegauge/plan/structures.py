"""The plans of a space in groups that share their operators: structures, and the layouts of each.

A structure fixes what the operators of a rank are: the method, what is checkpointed, whether rows are
packed, how layers are divided. Its layouts fix over how many ranks tensors are divided, and where
they are kept. What is left, micro-batch and machine, are the axes of arrays.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.graph.op import Extents
from finegauge.plan.quote import epochs_of
from finegauge.plan.space import PER_NODE, REPLICATES_WHOLE_MODELS, UNDIVIDED, Fields, Space
from finegauge.plan.unchecked import unchecked
from finegauge.predict.phases import check_supported
from finegauge.predict.predictor import longest_extents, mean_extents
from finegauge.workload.data import BatchShape, sample_lengths, shape

if TYPE_CHECKING:
    from finegauge.workload.run import Run

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
        refused = divided and degree > 1 and run.framework in REPLICATES_WHOLE_MODELS
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
