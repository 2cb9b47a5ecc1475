"""Floating-point operations per layer, held against transformers' own classes and by hand."""

from pathlib import Path

import pytest

from tests.unit.model.traced import EXTENTS, TOKENS, TRACED, Traced

TOLERANCE_FRACTION = 1e-4  # PEFT folds the router's adapter once more than ours; all else is exact
COUNTED = [row for row in TRACED if row.forward_flops_per_token is not None]


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.name)
def test_a_layer_computes_what_transformers_computes(row: Traced, tmp_path: Path) -> None:
    ops = row.ops(tmp_path)
    forward = sum(op.forward.flops.at(EXTENTS) for op in ops) / TOKENS
    backward = sum(op.backward.flops.at(EXTENTS) for op in ops) / TOKENS
    assert forward == pytest.approx(row.forward_flops_per_token, rel=TOLERANCE_FRACTION)
    assert backward == pytest.approx(row.backward_flops_per_token, rel=TOLERANCE_FRACTION)


def test_llama_by_hand(tmp_path: Path) -> None:
    h, f, seq_len = 512, 1408, 256
    projections = 2 * (4 * h * h + 3 * h * f)  # a multiply-add is two
    attention = 4 * h * seq_len / 2  # scores and values over the keys before each query
    row = next(row for row in TRACED if row.model == "llama")
    ops = row.ops(tmp_path)
    assert sum(op.forward.flops.at(EXTENTS) for op in ops) / TOKENS == projections + attention
    assert sum(op.backward.flops.at(EXTENTS) for op in ops) / TOKENS == 2 * projections + 2.5 * attention
