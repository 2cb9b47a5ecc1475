"""The peak and FLOPs of an evaluation: transformers' forward pass and loss with nothing kept, against ours.

Not of state-space models: outside training they call kernels that have no stand-in here.
"""

import pytest

from tests.oracle.cells import evaluation_cells
from tests.oracle.compare import EVALUATION_PEAK, FLOPS, compare
from tests.oracle.table import EXACT_TOLERANCE, WORST_BAR


@pytest.mark.parametrize(
    "model", ["llama", "llama-128k-words", "gpt2", "gemma2", "mixtral", "deepseek_v3", "bloom", "opt"]
)
def test_an_evaluation_computes_and_peaks_where_we_say(model: str) -> None:
    for cell in evaluation_cells(model):
        outcome = compare(cell)
        assert not outcome.failure, outcome.failure
        assert not outcome.refusal, cell.name
        assert outcome.errors[FLOPS[0]] == pytest.approx(0.0, abs=EXACT_TOLERANCE), cell.name
        assert abs(outcome.errors[EVALUATION_PEAK]) <= WORST_BAR, cell.name
