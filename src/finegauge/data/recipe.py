"""What decides the batches of a data set: cut-off, packing and padding of a run, and its framework."""

from typing import TYPE_CHECKING

from finegauge.catalogue.frameworks import Batching, framework_of
from finegauge.records import NamedTuple
from finegauge.run.phases import image_tokens

if TYPE_CHECKING:
    from finegauge.run.run import Run

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
    def of(cls, run: "Run") -> "Recipe":
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
