"""Tiny models, sequences that can be learnt, and a clock that notes which stages it was told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from finegauge.measurement.batches import Batch
from finegauge.run.run import Run

CPU = torch.device("cpu")
VOCABULARY = 32
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
WIDE = {**LLAMA, "hidden_size": 64}  # linears that bitsandbytes can repack for inference
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


class Stages:
    """A clock that only notes the names of stages, and refuses nested ones."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.inside = False

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        assert not self.inside
        self.inside = True
        self.names.append(name)
        yield
        self.inside = False


def tiny_run(folder: Path, figures: dict[str, Any] = LLAMA, **fields: Any) -> Run:
    """Return a run in fp32 of the model that `figures` describe."""
    import json

    path = folder / f"{figures['model_type']}.json"
    path.write_text(json.dumps(figures))
    return Run(**{"model": str(path), "method": "full", "weights_dtype": "fp32", "seq_len": 16, **fields})


def batch(ids: torch.Tensor, lengths: list[int] | None = None) -> Batch:
    """Return `ids` as a batch, padded on the right behind `lengths`."""
    rows, columns = ids.shape
    if lengths is None:
        return Batch(ids, None, ids, None, float(rows), float(ids.numel()))
    mask = (torch.arange(columns) < torch.tensor(lengths)[:, None]).long()
    labels = ids.masked_fill(mask == 0, -100)
    return Batch(ids * mask, mask, labels, None, float(rows), float(mask.sum()))


def preferred_then_not(rows: int = 4, columns: int = 10) -> Iterator[Batch]:
    """Yield batches of low tokens, preferred, and of high ones in turn."""
    dice = torch.Generator().manual_seed(0)
    half = VOCABULARY // 2
    while True:
        yield batch(torch.randint(0, half, (rows, columns), generator=dice))
        lengths = [columns - 3] + [columns] * (rows - 1)
        yield batch(torch.randint(half, VOCABULARY, (rows, columns), generator=dice), lengths)


def prompts(rows: int, columns: int = 4) -> Iterator[Batch]:
    """Yield batches of random prompts, the first of each one token shorter."""
    dice = torch.Generator().manual_seed(0)
    while True:
        lengths = [columns - 1] + [columns] * (rows - 1)
        yield batch(torch.randint(0, VOCABULARY, (rows, columns), generator=dice), lengths)
