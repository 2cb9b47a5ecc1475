"""What a search goes through: every plan that would train the same model on as many samples per step.

A plan is a *structure* (method, checkpointing, packing, and how layers are divided), a *layout*
(sharding, offload, optimizer, data-parallel ranks), a micro-batch and an offer. Accumulation follows:
micro-batch x accumulation x ranks is the global batch, so only exact divisors are plans. With packing
a row holds many samples; then it is the samples of a step that stay.

What `space_of` leaves out, an engineer would too: nodes joined where they are not data-centre nodes
of at least four GPUs, degrees that the run's framework cannot say, quantised weights under ZeRO-3.
`Space` takes any other set.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer, offers
from finegauge.errors import FieldError
from finegauge.workload.data import shape

if TYPE_CHECKING:
    from finegauge.workload.run import Run

MODEL_PARALLEL_FRAMEWORKS = ("nemo", "torchtitan", "megatron")
# Whose replicas without sharding are whole models: their DDP goes with no other division.
REPLICATES_WHOLE_MODELS = ("NeMo Automodel", "torchtitan")
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
    from finegauge.graph.build import architecture_of

    model = architecture_of(run.model, run.num_experts_per_tok)
    said = not run.framework or any(name in run.framework.lower() for name in MODEL_PARALLEL_FRAMEWORKS)
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
