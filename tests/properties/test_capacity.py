"""Whatever the memory curve: the largest batch fits, and one more does not. Dearer is never cheaper."""

from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.planning.capacity import max_micro_batch_size, max_seq_len
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from tests.unit.planning.fakes import Fake, run
from tests.unit.planning.test_quote import OFFER

CURVES = st.builds(
    lambda slope, bend, step: lambda tokens: slope * tokens + bend * tokens**1.5 + step * (tokens // 1000),
    slope=st.floats(0.0, 1e4),
    bend=st.floats(0.0, 1e2),
    step=st.floats(0.0, 1e6),
)


@given(growth=CURVES, fixed=st.floats(0.0, 2e9), limit=st.integers(1, 5000), knows=st.booleans())
def test_largest_batch_fits_and_one_more_does_not(growth, fixed, limit, knows) -> None:  # type: ignore[no-untyped-def]
    fake = Fake(capacity_bytes=1e9, fixed_bytes=fixed, growth=growth, knows_memory=knows)
    asked = run(seq_len=128)
    found = max_micro_batch_size(asked, fake, limit=limit)
    assert 0 <= found.value <= limit
    if found.value:
        assert fake(asked.replace(micro_batch_size=found.value)).fits
    if found.value < limit:
        assert not fake(asked.replace(micro_batch_size=found.value + 1)).fits
    assert found.num_probes <= 60


@given(
    gpu=st.sampled_from(["L4", "A40", "A100-80GB", "H100"]),
    method=st.sampled_from(["lora", "qlora"]),
    seq_len=st.integers(64, 4096),
    checkpointing=st.sampled_from(["none", "full"]),
)
@settings(max_examples=15)
def test_predicted_border(gpu: str, method: str, seq_len: int, checkpointing: str) -> None:
    asked = Run(model="llama-3-8b", method=method, gpu=gpu, seq_len=seq_len).replace(
        activation_checkpointing=checkpointing
    )
    found = max_micro_batch_size(asked)
    if found.value:
        assert predict(asked.replace(micro_batch_size=found.value)).fits
    assert not predict(asked.replace(micro_batch_size=found.value + 1)).fits


@given(batch=st.integers(1, 16), gpu=st.sampled_from(["L4", "A40", "H100"]))
@settings(max_examples=10)
def test_predicted_length_border(batch: int, gpu: str) -> None:
    asked = Run(model="llama-3-8b", method="qlora", gpu=gpu, micro_batch_size=batch)
    found = max_seq_len(asked)
    assert found.value % asked.pad_to_multiple_of == 0
    if found.value:
        assert predict(asked.replace(seq_len=found.value)).fits
    if not found.at_limit:
        assert not predict(asked.replace(seq_len=found.value + asked.pad_to_multiple_of)).fits


@given(usd=st.floats(0.01, 100.0), more=st.floats(0.0, 100.0), samples=st.integers(1, 10**7))
@settings(max_examples=30)
def test_a_dearer_offer_never_costs_less(usd: float, more: float, samples: int) -> None:
    asked = run(num_samples=samples)
    step = Fake(capacity_bytes=1e12)(asked)
    prices = [OFFER._replace(on_demand_usd_per_h=price) for price in (usd, usd + more)]
    cheap, dear = (quote(asked, step, prices=[price]).offers[0].on_demand_usd for price in prices)
    assert cheap is not None
    assert dear is not None
    assert cheap <= dear
