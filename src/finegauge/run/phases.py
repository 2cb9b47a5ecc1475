"""The batches of a run: their shapes by its phase, images and videos, and what decides them in a data set.

Reward models and DPO read pairs: two sequences for every sample. A phase that generates splits `seq_len`
into a prompt and an answer of `max_new_tokens`.

Cut-off, packing and padding of a run, and its framework, make a `Recipe`: two runs with one recipe have the
same batches.
"""

from functools import lru_cache
from math import ceil, gcd
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.frameworks import Batching, Engine, engine, framework_of
from finegauge.errors import FieldError, shown
from finegauge.records import NamedTuple
from finegauge.run.rules import FSDP, GENERATING, RL, SERVING
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.catalogue.images import Seen

LEAST_TURNS, LEAST_REQUESTS = 4, 1024  # that a load holds: of each user, and of all
BATCHES_PER_STEP = 3  # of requests to continuous batching: places come free and are taken again


def answer_tokens(run: Run) -> int:
    """Return the tokens that the model generates for each prompt."""
    return run.max_new_tokens if run.phase in GENERATING else 0


def is_continuous(run: Run) -> bool:
    """Return whether requests enter and leave the batch one by one, so that nothing is padded."""
    return run.phase == "serve" or (run.phase in SERVING and run.padding == "free")


def micro_steps(run: Run) -> int:
    """Return how many micro-batches one step has: of a phase that generates and learns, one rollout."""
    if run.phase == "serve":
        return 1 if run.arrivals == "burst" else max(LEAST_TURNS, -(-LEAST_REQUESTS // run.micro_batch_size))
    if is_continuous(run):
        return BATCHES_PER_STEP
    return run.gradient_accumulation_steps * (run.num_mini_batches if run.phase in RL else 1)


def engine_of(run: Run) -> Engine:
    """Return the engine that generates in `run`, as it was at the version that its framework states."""
    own = framework_of(run.framework).engine
    version = run.framework_version if own and own.name == run.inference_engine else ""
    return engine(run.inference_engine).at(version)


def by_engine(run: Run) -> bool:
    """Return whether an engine made for serving generates: graphs of a whole token, and a cache in pages."""
    return engine_of(run).paged


def has_engine(run: Run) -> bool:
    """Return whether an engine made for serving writes the answers that `run` learns from."""
    return run.phase in RL and by_engine(run)


def tiles_loss(run: Run) -> bool:
    """Return whether the loss is taken over tiles of tokens and words, as TRL's chunked one is."""
    return run.loss == "chunked" and framework_of(run.framework).tiles_loss(run.framework_version)


def num_updates(run: Run) -> int:
    """Return how many optimizer steps one step has."""
    return run.ppo_epochs * run.num_mini_batches if run.phase in RL else 1


def group_size(run: Run) -> int:
    """Return how many answers there are to each prompt."""
    return run.num_generations if run.phase == "grpo" else 1


def batch_unit(run: Run) -> int:
    """Return of what `micro_batch_size` must be a multiple, so that every prompt has all its answers."""
    group = group_size(run)
    return group // gcd(group, micro_steps(run))


@lru_cache(maxsize=256)
def prompts_of(run: Run, *, on_one_rank: bool = True) -> Run:
    """Return the run whose sequences are the prompts of `run`: as many tokens as its answers leave.

    One rank writes all answers to a prompt, or, in TRL and verl, they are dealt to all ranks.

    Raises: FieldError where some prompt would not get all its answers.
    """
    rollouts = 1 if run.phase in SERVING else micro_steps(run)  # a service is asked batch by batch
    answers, group = run.micro_batch_size * rollouts, group_size(run)
    if answers * (1 if on_one_rank else run.data_parallel) % group:
        raise FieldError(
            f"phase={run.phase} compares num_generations={group} answers to each prompt, which does not "
            f"divide the {answers} of micro_batch_size x gradient_accumulation_steps"
            f"{'' if on_one_rank else f' x {run.data_parallel} ranks'}; make these a multiple of {group}."
        )
    return run.replace(
        phase="evaluate",
        max_new_tokens=None,
        arrivals=None,
        arrivals_per_s=None,
        seq_len=run.seq_len - answer_tokens(run),
        micro_batch_size=max(1, answers // group),
        gradient_accumulation_steps=1,
        packing=False,
        padding=None if is_continuous(run) else run.padding,
    )


def division_by(run: Run, stage: str) -> dict[str, Any]:
    """Return how a model beside the policy lies under a stage of ZeRO of its own; `none` is stage 0."""
    whole, offload = stage == "none", run.cpu_offload
    if offload != "none" and stage != "zero3":  # stages 1 and 2 keep their weights, 0 everything
        offload = "none" if whole or offload == "params" else "optimizer"
    shards = {"data_parallel_shard": 1 if whole else None, "data_parallel_replicate": None}
    return {"sharding": "zero1" if whole else stage, "cpu_offload": offload, **shards}


def reduces_at_the_end(run: Run) -> bool:
    """Return whether FSDP reduces gradients in the last micro-batch of a step alone.

    So it does under `no_sync`, which accelerate enters unless told `sync_each_batch` (its guide to
    gradient synchronization) and litgpt by Fabric's `no_backward_sync`. PyTorch's pipeline stages
    reduce in their last backward pass alone, whatever the framework (torch/distributed/pipelining/stage.py,
    `backward_maybe_with_nosync`).
    """
    return run.sharding in FSDP and (run.pipeline_parallel > 1 or not run.sync_each_batch)


def accumulates_whole(run: Run) -> bool:
    """Return whether FSDP's gradients stay whole on every rank until the last of several micro-batches."""
    return run.gradient_accumulation_steps > 1 and reduces_at_the_end(run)


MOST_PIXELS = 65_536  # of a side


class Images(NamedTuple):
    """Crops that a sample brings on average, of so many patches each."""

    crops: float
    patches: int


def seen_by(run: Run) -> list[tuple[float, "Seen"]]:
    """Return the images of a sample, then its videos: how many, and what the model sees of each."""
    if not has_images(run):
        return []
    from finegauge.catalogue.images import image_of

    found = []
    for number, frames in ((run.images_per_sample, 0), (run.videos_per_sample, run.video_frames or 0)):
        if number:
            width, height = size_of(run.image_size)
            seen = image_of(
                run.config,
                height,
                width,
                frames=frames,
                min_pixels=run.image_min_pixels or 0,
                max_pixels=run.image_max_pixels or 0,
            )
            found.append((number, seen))
    return found


def has_images(run: Run) -> bool:
    """Return whether samples have images or videos."""
    return bool(run.images_per_sample or run.videos_per_sample)


def image_tokens(run: Run) -> int:
    """Return the tokens of a sample that stand for its images and videos, on average, rounded up."""
    return ceil(sum(number * seen.length for number, seen in seen_by(run)))


def images_in_words(run: Run) -> tuple[str, ...]:
    """Return what each image and video of a sample is to its model, or that there are none."""
    if not has_images(run):
        alone = "samples of text alone (images_per_sample=… image_size=… where they have images)"
        return (alone,) if "vision_config" in run.config else ()
    kinds = (run.images_per_sample, "images"), (run.videos_per_sample, f"videos of {run.video_frames} frames")
    names = [name for number, name in kinds if number]
    return tuple(
        f"{number:g} {name} of {run.image_size} a sample, {seen.length:,} tokens and {seen.crops} x "
        f"{seen.patches:,} patches each"
        for name, (number, seen) in zip(names, seen_by(run), strict=True)
    )


def size_of(size: Any) -> tuple[int, int]:
    """Return width and height of "640x480", or of "448" both. Raises: FieldError."""
    sides = str(size).lower().replace("×", "x").split("x")
    if len(sides) <= 2 and all(side.strip().isdecimal() and len(side) < 7 for side in sides):
        width, height = int(sides[0]), int(sides[-1])
        if 0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS:
            return width, height
    raise FieldError(
        f"image_size={shown(size)} is not width x height in pixels; write it as 1024x768, or 448."
    )


TRAINER_SEED = 42  # of transformers' TrainingArguments, and of the frameworks on top
NO_LIMIT = 2**62


class Recipe(NamedTuple):
    """All that decides what batches a data set's samples make; two runs with one recipe share them."""

    seq_len: int  # after which a sample is cut
    row_len: int  # of a pack
    over_length: str
    packing_strategy: str | None  # None: samples are not packed
    padding: str
    multiple: int
    group_by_length: bool
    num_samples: int | None
    validation_fraction: float
    micro_batch_size: int
    accumulation: int
    ranks: int
    batching: Batching
    beside: int = 0  # tokens of images, which come to the length of each sample

    @classmethod
    def of(cls, run: Run) -> "Recipe":
        """Return how the framework of `run` makes its batches."""
        batching = framework_of(run.framework).batching
        whole = batching.pack_is_batch and run.packing and run.attention == "flash"
        packs = run.micro_batch_size if whole else 1
        if not run.packing and not batching.deals_samples:  # transformers' Trainer ends with what is left
            batching = batching._replace(drops_batches=False, drops_steps=False)
        return cls(
            seq_len=run.seq_len,
            row_len=run.seq_len * packs,
            over_length=run.over_length,
            packing_strategy=run.packing_strategy if run.packing else None,
            padding=run.padding,
            multiple=run.pad_to_multiple_of,
            group_by_length=run.group_by_length,
            num_samples=run.num_samples,
            validation_fraction=run.validation_fraction,
            micro_batch_size=run.micro_batch_size // packs,
            accumulation=run.gradient_accumulation_steps,
            ranks=run.data_parallel,
            batching=batching._replace(pack_is_batch=whole),
            beside=image_tokens(run),
        )

    @property
    def joins_rows(self) -> bool:
        """Return whether the rows of a batch are laid end to end, without padding between them."""
        filled = self.packing_strategy is not None and self.batching.fills_packs
        return self.padding == "free" and not filled

    @property
    def room(self) -> int:
        """Return the tokens of samples that a pack has room for."""
        return max(1, self.row_len - self.batching.reserved_tokens)

    @property
    def sample_limit(self) -> int:
        """Return the tokens after which a sample is cut; wrapped text is cut by rows alone."""
        if self.packing_strategy == "wrapped":
            return NO_LIMIT
        return min(self.seq_len, self.room) if self.packing_strategy else self.seq_len
