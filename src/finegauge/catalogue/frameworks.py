"""The defaults of training frameworks: one row each of data/frameworks.json, read by every layer above.

A run's `framework` is free text. A row belongs to it where one of the row's words stands in that text, so
that "fms-hf-tuning/HF Trainer" does what either does. Adding a framework is a row and, where its files are
to be read or written, a module of `formats`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from finegauge.catalogue.tables import read_shipped
from finegauge.records import NamedTuple

Cells = Mapping[str, str]  # of a row of a measurement table, by column


class Batching(NamedTuple):
    """How batches are made, beyond what the fields of a run say."""

    packing_strategy: str = "best_fit_decreasing"  # where its configuration does not choose
    group_size: int | None = None  # samples packed among themselves; None: all of them
    one_pack_at_a_time: bool = False  # a pack is filled until nothing fits, before the next is opened
    samples_per_pack: int | None = None  # at most
    reserved_tokens: int = 0  # of a pack, always padding
    fills_packs: bool = True  # up to seq_len, with padding
    keeps_rest: bool = True  # of wrapped text, the last row that is not full
    packs_after_shuffling: bool = False
    pack_is_batch: bool = False  # one pack as long as a whole micro-batch, with flash attention
    deals_samples: bool = False  # to the ranks one by one, instead of batch by batch
    drops_batches: bool = False  # incomplete ones at the end of an epoch
    drops_steps: bool = False  # likewise
    joined_multiple: bool = False  # pad_to_multiple_of holds for joined sequences too
    full_multiple: bool = False  # and for rows that are filled up to seq_len


class Signature(NamedTuple):
    """Keys that only the files of one framework have: all of some, and any of others."""

    all: tuple[str, ...]  # "section.key" in a section, "section." a section, "=key" none, "!key" not there
    any: tuple[str, ...]

    def fits(self, keys: Mapping[str, Any]) -> bool:
        """Return whether a file of these keys is the framework's."""
        return all(_has(keys, key) for key in self.all) and (
            not self.any or any(_has(keys, key) for key in self.any)
        )


class Change(NamedTuple):
    """Defaults that hold from a version on, or for some rows of measurement tables only."""

    since: tuple[int, int]
    where: Mapping[str, str]  # column: the pattern that the whole cell has
    defaults: Mapping[str, Any]

    def holds(self, cells: Cells) -> bool:
        """Return whether a table's row has these defaults."""
        return minor(cells["framework_version"]) >= self.since and all(
            re.fullmatch(pattern, cells[column], re.IGNORECASE | re.DOTALL)
            for column, pattern in self.where.items()
        )


class Engine(NamedTuple):
    """An engine that generates, and what it does where it is told nothing; of `hf`, what is true of none."""

    name: str  # as a run's `inference_engine` calls it
    version: str = ""  # that the rest was read of
    paged: bool = (
        False  # keys and values lie in pages and are read where they lie; formats as they are stored
    )
    graphs: bool = False  # a token of every sequence is launched as one CUDA graph
    step_s: float = 0.0  # the device waits for the scheduler in every step: so long ...
    sequence_s: float = 0.0  # ... and so much longer for each sequence
    layer_launches: float = 0.0  # kernels of a layer for a token, where it has its own and no graphs
    gpu_memory_utilization: float = 1.0  # share of a GPU's memory that it takes
    max_num_seqs: int = 1_000_000
    max_num_batched_tokens: int = 1_000_000  # of prompts and answers in one step
    reserves_answers: bool = False  # a request is let in where the longest answer to it has room
    profiles: bool = False  # it runs the largest step it may be asked for before it shares out its memory
    large_gpu: Mapping[str, int] = {}  # other limits on GPUs of 70 GiB or more, but an A100
    before: Mapping[str, Mapping[str, Any]] = {}  # what was otherwise before a version

    def at(self, version: str) -> "Engine":
        """Return what it did at a version; what it does where none is stated."""
        found = self
        for since, older in self.before.items():
            if (0, 0) < minor(version) < minor(since):
                found = found._replace(**older)
        return found


_PLAIN_BATCHES = Batching()


class Framework(NamedTuple):
    """One training framework, or serving engine; without a name, what is true of any."""

    name: str = ""  # as the reader of its files states it
    words: tuple[str, ...] = ()  # each, in a run's `framework`, means it; lower case
    module: str = ""  # of `formats`, which reads and writes its files; "" where nothing does
    exports: tuple[str, ...] = ()  # what --export calls it; the first is listed
    signatures: tuple[Signature, ...] = ()  # that tell its files
    timed: bool = False  # constants were fitted to its runs, or to those of the trainer that it drives
    weighed: bool = False  # the peak memory of these runs was measured too
    alone: bool = False  # other frameworks' words in its name mean nothing
    # Models
    own_models: bool = False  # code of its own, which has every kind of attention
    litgpt_models: bool = False  # names and widths of litgpt's code
    megatron_layers: bool = False
    delays_scales: bool = False  # of 8-bit products, as Megatron's do: TransformerEngine's DelayedScaling
    fuses_gptq: bool = False  # one kernel unpacks GPTQ weights, forward and again backward
    reruns_alternate_products: bool = False  # selective checkpointing keeps every second product only
    asks_for_cudnn: bool = False  # its sdpa names cuDNN's kernel first, on GPUs of capability 10
    compiles_layers: bool = False  # one by one: a loss over whole logits stays as it is, unless `compiled`
    parallel_loss: bool = False  # PyTorch's loss_parallel under tensor parallelism
    takes_loss_itself: bool = False  # its loop takes the loss of the logits as they come
    keeps_loss_chunks: bool = False  # of the logits, until the backward pass
    tiles_loss_since: tuple[int, int] | None = None  # a chunked loss: by 4,096 tokens and 32,768 words
    freezes_tower: bool = False  # vision tower and projector, unless told
    loads_quantised_copies: bool = False  # of models it knows, their publisher's copies in 4 bits
    linear_experts: tuple[str, ...] = ()  # model types whose experts it has as linears, to be quantised
    lists_linears: bool = False  # "all-linear" to PEFT as names: experts that are no modules have no adapters
    # Division among GPUs
    transformers_plan: bool = False  # tensor parallelism and FSDP units are those of transformers and PEFT
    upcasts_fsdp: bool = False  # what FSDP trains under mixed precision, to fp32: accelerate's trainers
    divides_models: bool = False  # has tensor, pipeline or context parallelism that a planner may choose
    replicates_whole_models: bool = False  # its DDP goes with no other division of a model
    fully_shard: bool = False  # FSDP2: tensor by tensor, freed in the order of streams without the host
    outer_units_apart: bool = False  # embedding and head are FSDP units of their own
    reduces_every_micro_batch: bool = False  # no `no_sync`: FSDP's gradients never stay whole
    experts_outside_fsdp: bool = False  # each rank keeps its part of the experts whole, and reduces nothing
    clips_nothing: bool = False  # gradients, unless it is configured to
    reduces_beside_backward: bool = False  # Megatron's gradients, while the backward pass runs
    # Reinforcement
    updates_once: bool = False  # of every answer, where it is not told `ppo_epochs`
    copies_reference: bool = False  # beside the policy, adapters or not
    trains_whole_critic: bool = False  # without adapters, unless told
    gathers_to_write: bool = False  # ZeRO-3's weights once for all answers, not for every token
    serving_engine: bool = False
    engine: Engine | None = None  # what it does unasked, where it is one
    engine_apart: bool = False  # the rollout engine is a process of its own, with a context of its own
    shares_weights_with_engine: bool = False  # of the rollout engine on its GPUs: no copy of its own
    # What nobody states
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF as its launcher or import sets it
    batching: Batching = _PLAIN_BATCHES
    source: str = ""  # where its defaults stand; "" where they are not known
    sources: tuple[str, ...] = ()  # where its rules were read: file at a commit or tag, and the day
    inferred: tuple[str, ...] = ()  # defaults that rest on rows alone
    defaults: tuple[Change, ...] = ()  # each over those before it
    prints_allocated_since: tuple[int, int] | None = None  # from then on it logs torch's own peak memory

    def tiles_loss(self, version: str) -> bool:
        """Return whether a chunked loss is one over tiles at a version; at the newest without one."""
        since = self.tiles_loss_since
        return since is not None and (not version or minor(version) >= since)

    def unasked(self, cells: Cells) -> dict[str, Any]:
        """Return the fields that it sets where the row of a measurement table leaves them open."""
        found: dict[str, Any] = {}
        for change in self.defaults:
            found |= change.defaults if change.holds(cells) else {}
        return found


_ANY = Framework()
_SINCE = ("prints_allocated_since", "tiles_loss_since")
# of several rows: what any of them does, or the first that says it; and what all of them list
_FIRST = ("alloc_conf", "engine", "tiles_loss_since",
          *(name for name, type_ in Framework.__annotations__.items() if type_ is bool))  # fmt: skip
_JOINED = ("inferred", "linear_experts")


def framework_of(name: str) -> Framework:
    """Return what the framework of that name does: all rows whose words stand in it, taken together.

    Batches, which depend on details, are those of a row of exactly that name.
    """
    return _together(name.casefold()) if name else _ANY


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return every framework of the catalogue; of two that a text names, the first gives the defaults."""
    import json

    rows = {row["name"]: row for row in json.loads(read_shipped("frameworks.json"))["frameworks"]}
    return tuple(_framework(name, row, rows) for name, row in rows.items())


@cache
def engine(name: str) -> Engine:
    """Return the engine that a run's `inference_engine` names; transformers' `generate` has no row."""
    return next((row.engine for row in frameworks() if row.engine and row.engine.name == name), Engine(name))


def named_in(text: str) -> Iterator[Framework]:
    """Yield the frameworks whose words stand in `text`."""
    folded = text.casefold()
    found = [row for row in frameworks() if any(word in folded for word in row.words)]
    return iter([row for row in found if row.alone] or found)


def counts_memory_as(cells: Cells) -> str:
    """Return how the framework of a row counts the peak memory that it prints; "" where that is not known."""
    version = minor(cells["framework_version"])
    since = [row.prints_allocated_since for row in named_in(cells["framework"])]
    return "torch_allocated" if any(first and version >= first for first in since) else ""


def minor(version: str) -> tuple[int, int]:
    """Return (major, minor) of the first version in a text; (0, 0) without one."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


@cache
def _together(name: str) -> Framework:
    does = _ANY._asdict()
    for row in named_in(name):
        for field in _FIRST:
            does[field] = does[field] or getattr(row, field)
        for field in _JOINED:
            does[field] = tuple(dict.fromkeys((*does[field], *getattr(row, field))))
    exact = next((row for row in frameworks() if row.name.casefold() == name), Framework(name=name))
    return exact._replace(**{field: does[field] for field in (*_FIRST, *_JOINED)})


def _framework(name: str, row: Mapping[str, Any], rows: Mapping[str, Any]) -> Framework:
    stated = row.get("defaults", {})
    base = rows[stated]["defaults"] if isinstance(stated, str) else stated
    does: dict[str, Any] = dict.fromkeys(row.get("does", ()), True)
    does |= {name: minor(row[name]) for name in _SINCE if name in row}
    return Framework(
        name=name,
        words=tuple(row.get("words", (name.casefold(),))),
        module=row.get("module", ""),
        exports=tuple(row.get("exports", ())),
        signatures=tuple(
            Signature(tuple(one["all"].split()), tuple(one.get("any", "").split()))
            for one in row.get("signatures", ())
        ),
        alloc_conf=row.get("alloc_conf", ""),
        engine=Engine(**row["engine"]) if "engine" in row else None,
        batching=Batching(**row.get("batching", {})),
        source=row.get("source", base.get("source", "")),
        sources=tuple(row.get("sources", ())),
        inferred=tuple(row.get("inferred", ())),
        linear_experts=tuple(row.get("linear_experts", ())),
        defaults=tuple(_change(one) for one in (base, *row.get("changes", ()))),
        **does,
    )


def _change(row: Mapping[str, Any]) -> Change:
    defaults = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in row.items()
        if field not in ("since", "if", "source", "why")
    }
    return Change(minor(row.get("since", "")), row.get("if", {}), defaults)


def _has(keys: Mapping[str, Any], key: str) -> bool:
    if key.startswith("!"):
        return key[1:] not in keys
    plain = key.removeprefix("=")
    section, dot, inside = plain.partition(".")
    if dot:
        held = keys.get(section)
        return isinstance(held, Mapping) and (not inside or inside in held)
    return plain in keys and not (plain != key and isinstance(keys[plain], Mapping))
