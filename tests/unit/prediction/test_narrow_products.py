"""Rates of products in narrow formats are those that were timed."""

from statistics import median

import pytest

from finegauge.catalogue.device_profile import timings
from finegauge.catalogue.gpus import gpu
from finegauge.model.op import Gemm
from finegauge.prediction.device import ASKED_FLOPS_PER_BYTE, gemm_work, narrow_fraction
from finegauge.prediction.predictor import predict
from finegauge.prediction.timed_operators import PEAKS, source_for
from finegauge.run.run import Run

LEAST_FLOPS, LEAST_SIZE = 1e11, 1024


def _share(name: str, dtype: str) -> float:
    """Return the median share of the peak that timed large products reach at our tiles."""
    spec = gpu(name)
    timed = source_for(spec, "gemm", dtype).timed
    table = timings(name, "gemm")[timed.column]
    found = []
    for shape, seconds in zip(table.shapes, table.seconds, strict=True):
        m, n, k = map(int, shape)
        if 2.0 * m * n * k > LEAST_FLOPS and min(m, n, k) >= LEAST_SIZE:
            product = Gemm(rows_per_token=1.0, n=n, k=k)
            work = gemm_work(product, float(m), float(spec.num_sms or 0), ASKED_FLOPS_PER_BYTE)
            found.append(work / seconds / spec.peak_flops_per_s(PEAKS[dtype]))
    return median(found)


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("L40S", ("fp8", "fp8_block")), ("H100-SXM5-80GB", ("fp8", "fp8_block")),
        ("B200-SXM-180GB", ("fp8", "fp8_block", "nvfp4")), ("GB200-186GB", ("fp8", "fp8_block", "nvfp4")),
        ("RTX PRO 6000 Blackwell Server", ("fp8", "fp8_block", "nvfp4")),
    ],
)  # fmt: skip
def test_narrow_products_reach_what_was_timed(name: str, dtypes: tuple[str, ...]) -> None:
    whole = _share(name, "bf16")
    for dtype in dtypes:
        assert narrow_fraction(gpu(name), dtype) == pytest.approx(_share(name, dtype) / whole, rel=0.05)


def test_formats_that_nobody_timed_are_taken_as_their_kin() -> None:
    assert narrow_fraction(gpu("b300"), "mxfp4") == narrow_fraction(gpu("b200"), "nvfp4")
    assert narrow_fraction(gpu("b200"), "mxfp8") == narrow_fraction(gpu("b200"), "fp8_block")


def test_a_gpu_without_fp8_casts_nothing() -> None:
    """A100 took 5 % longer with fp8, for casts that products in 16 bit do not need."""
    fields = {"model": "llama-3-8b", "gpu": "A100-SXM4-80GB", "method": "full", "micro_batch_size": 8}
    plain, narrow = (
        predict(Run.from_fields({**fields, "seq_len": 2048, "fp8": fp8})) for fp8 in (False, True)
    )
    assert narrow.step_time_s.total == pytest.approx(plain.step_time_s.total, rel=1e-3)
    assert [text for text in narrow.source.assumptions if "has no fp8 units" in text]
    assert not [text for text in plain.source.assumptions if "fp8" in text]
