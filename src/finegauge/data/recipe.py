"""How a framework makes batches: what its configuration says, and what only its source does.

The fields of a run say the cut-off, the padding, the way of packing. The rest is custom: how many
samples are packed together, whether a pack is filled up, who drops what is left at the end of an epoch.

Read in source: TRL 1.16 `pack_dataset` and its collator; LLaMA-Factory 0.9
`PackedSupervisedDatasetProcessor` and `greedy_knapsack`; Axolotl 0.9 `MultipackBatchSampler`;
torchtune 0.6 `PackedDataset` and its recipes; ms-swift 3 `PackingDataset`; transformers 5.23 `Trainer`
with accelerate's `BatchSamplerShard`.
"""

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from finegauge.run.run import Run

TRAINER_SEED = 42  # of transformers' TrainingArguments, and of the frameworks on top

NO_LIMIT = 2**62


class Custom(NamedTuple):
    """What a framework does that no field of a run says."""

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


_TRL = Custom(group_size=1000, fills_packs=False, joined_multiple=True)
_AXOLOTL = Custom(
    packing_strategy="first_fit",
    group_size=100_000,
    samples_per_pack=200,
    packs_after_shuffling=True,
    pack_is_batch=True,
    drops_batches=True,
    drops_steps=True,
    full_multiple=True,
)
_LLAMA_FACTORY = Custom(
    group_size=1000, one_pack_at_a_time=True, reserved_tokens=1, keeps_rest=False, full_multiple=True
)
_NEMO = Custom(packing_strategy="first_fit", one_pack_at_a_time=True, deals_samples=True)
_CUSTOMS = {
    "trl": _TRL,
    "unsloth": _TRL,
    "llama-factory": _LLAMA_FACTORY,
    "axolotl": _AXOLOTL,
    "torchtune": _NEMO._replace(drops_batches=True, drops_steps=True),
    "nemo automodel": _NEMO,
    "ms-swift": Custom(group_size=1000, fills_packs=False),
    "torchtitan": Custom(packing_strategy="wrapped", keeps_rest=False, deals_samples=True),
}


def custom_of(framework: str) -> Custom:
    """Return what `framework` does unasked; FineGauge's own batches where it is not known."""
    return _CUSTOMS.get(framework.casefold(), Custom())


def num_held_out(num_samples: int, fraction: float) -> int:
    """Return how many samples are validated on: the share rounded up, but never all of them."""
    return min(max(0, num_samples - 1), ceil(fraction * num_samples - 1e-9))


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
    custom: Custom

    @classmethod
    def of(cls, run: "Run") -> "Recipe":
        """Return how the framework of `run` makes its batches."""
        custom = custom_of(run.framework)
        whole = custom.pack_is_batch and run.packing and run.attention == "flash"
        packs = run.micro_batch_size if whole else 1
        if (
            not run.packing and not custom.deals_samples
        ):  # transformers' Trainer, which ends with what is left
            custom = custom._replace(drops_batches=False, drops_steps=False)
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
            custom=custom._replace(pack_is_batch=whole),
        )

    @property
    def joins_rows(self) -> bool:
        """Return whether the rows of a batch are laid end to end, without padding between them."""
        filled = self.packing_strategy is not None and self.custom.fills_packs
        return self.padding == "free" and not filled

    @property
    def room(self) -> int:
        """Return the tokens of samples that a pack has room for."""
        return max(1, self.row_len - self.custom.reserved_tokens)

    @property
    def sample_limit(self) -> int:
        """Return the tokens after which a sample is cut; wrapped text is cut by rows alone."""
        if self.packing_strategy == "wrapped":
            return NO_LIMIT
        return min(self.seq_len, self.room) if self.packing_strategy else self.seq_len
