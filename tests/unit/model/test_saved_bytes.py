"""What autograd keeps for backward, held against transformers' own classes and by hand."""

from pathlib import Path

import pytest

from finegauge.model.op import Extents
from tests.unit.model.traced import EXTENTS, TOKENS, TRACED, Traced

# What is not counted: constants of a few channels, and the router's small index tensors.
TOLERANCE_FRACTION = 0.004
EXACT = ("llama", "llama_gqa", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox", "gpt2")


def saved_per_token(row: Traced, folder: Path, extents: Extents) -> float:
    return sum(op.saved_bytes.at(extents) for op in row.ops(folder)) / extents.tokens


@pytest.mark.parametrize("row", TRACED, ids=lambda row: row.name)
def test_a_layer_keeps_what_transformers_keeps(row: Traced, tmp_path: Path) -> None:
    saved = saved_per_token(row, tmp_path, EXTENTS)
    tolerance = 0.0 if row.model in EXACT else TOLERANCE_FRACTION * row.saved_bytes_per_token
    assert saved == pytest.approx(row.saved_bytes_per_token, rel=0, abs=tolerance + 1e-6)


def test_the_extents_are_those_of_the_trace() -> None:
    assert EXTENTS.tokens == TOKENS
    assert EXTENTS.pairs == 2 * 256 * 256


def test_llama_by_hand(tmp_path: Path) -> None:
    h, f, heads, c = 512, 1408, 8, 2
    norms = 2 * (4 * h + 4 + c * h)  # fp32 input, inverse deviation, normalised value
    attention = c * h + 4 * c * h + 4 * heads  # the input; q, k, v and output; log-sum-exp
    mlp = c * h + 4 * c * f  # the input; gate, its activation, up, the product
    row = next(row for row in TRACED if row.model == "llama")
    assert saved_per_token(row, tmp_path, EXTENTS) == norms + attention + mlp


def test_only_eager_attention_grows_with_the_square_of_the_length(tmp_path: Path) -> None:
    twice = Extents.of(2, 512)
    flash, eager = (
        next(r for r in TRACED if (r.model, r.attention) == ("llama", a)) for a in ("flash", "eager")
    )
    assert saved_per_token(flash, tmp_path, twice) == saved_per_token(flash, tmp_path, EXTENTS)
    more = saved_per_token(eager, tmp_path, twice) - saved_per_token(eager, tmp_path, EXTENTS)
    assert more == 256 * 8 * (4 + 2)  # probabilities in fp32 and in 16 bit, per head and key
