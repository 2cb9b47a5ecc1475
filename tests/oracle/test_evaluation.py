"""The peak of an evaluation: transformers' forward pass and loss with nothing kept, against our prediction.

Not of state-space models: outside training they call kernels that have no stand-in here.
"""

import pytest

from finegauge.prediction.predictor import predict
from tests.oracle.cells import BATCHES, Cell, attentions
from tests.oracle.compare import run_of
from tests.oracle.step_trace import evaluation_peak

MODELS = ("llama", "llama-128k-words", "gpt2", "gemma2", "mixtral", "deepseek_v3", "bloom", "opt")
TOLERANCE_FRACTION = 0.02
OF_A_GPU = ("slack", "context")


@pytest.mark.parametrize("batch", BATCHES[:2])
@pytest.mark.parametrize("model", MODELS)
def test_an_evaluation_peaks_where_we_say(model: str, batch: tuple[int, int]) -> None:
    for attention in attentions(model):
        cell = Cell(model, attention=attention, batch=batch, extra=(("phase", "evaluate"),))
        run = run_of(cell)
        on_gpu = run.replace(gpu="A100-SXM4-80GB", pad_to_multiple_of=1)
        parts = predict(on_gpu).peak_memory_bytes.parts
        ours = sum(v for path, v in parts.items() if path[0] not in OF_A_GPU and path[-1] != "cuBLAS")
        assert ours == pytest.approx(evaluation_peak(run), rel=TOLERANCE_FRACTION), cell.name
