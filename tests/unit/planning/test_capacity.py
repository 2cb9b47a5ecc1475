"""The largest micro-batch and the longest sequence, against an Estimator with a known border."""

import pytest

from finegauge import predict
from finegauge.errors import FieldError, UnsupportedError
from finegauge.planning.capacity import max_micro_batch_size, max_seq_len
from finegauge.prediction.uncertainty import is_safe
from finegauge.profile import Profile
from finegauge.run.run import Run
from tests.unit.planning.fakes import Fake, run


def test_the_border_by_hand() -> None:
    # 100 + 10 · batch <= 1000 bytes: 90 fits, 91 does not.
    found = max_micro_batch_size(run(seq_len=10), Fake())
    assert found.value == 90
    assert found.profile is not None
    assert found.profile.run.micro_batch_size == 90
    assert found.first_that_fails is not None
    assert found.first_that_fails.run.micro_batch_size == 91
    assert not found.at_limit


def test_affine_memory_takes_few_probes() -> None:
    fake = Fake(capacity_bytes=20_000.0)
    found = max_micro_batch_size(run(seq_len=10), fake)
    assert found.value == 1990
    assert found.num_probes == len(fake.asked) <= 6


def test_an_estimator_that_knows_only_the_outcome_is_bisected() -> None:
    found = max_micro_batch_size(run(seq_len=10), Fake(capacity_bytes=20_000.0, knows_memory=False))
    assert found.value == 1990
    assert found.num_probes <= 24


def test_nothing_fits() -> None:
    found = max_micro_batch_size(run(), Fake(fixed_bytes=2000.0))
    assert found.value == 0
    assert found.profile is None
    assert found.first_that_fails is not None
    assert found.first_that_fails.run.micro_batch_size == 1


@pytest.mark.parametrize("limit", [1, 2, 7, 89])
def test_the_search_stops_at_its_limit(limit: int) -> None:
    found = max_micro_batch_size(run(seq_len=10), Fake(), limit=limit)
    assert found.value == limit
    assert found.at_limit
    assert found.first_that_fails is None


def test_only_the_micro_batch_changes() -> None:
    fake = Fake()
    asked = run(seq_len=10, gradient_accumulation_steps=4)
    max_micro_batch_size(asked, fake)
    assert {probe.replace(micro_batch_size=1) for probe in fake.asked} == {asked.replace(micro_batch_size=1)}


def test_answers_to_a_prompt_stay_together() -> None:
    # 90 would fit; GRPO's batch is a multiple of 8, or of 4 where two micro-batches make a step.
    asked = run(seq_len=10, phase="grpo", max_new_tokens=4)
    assert max_micro_batch_size(asked, Fake()).value == 88
    fake = Fake()
    assert max_micro_batch_size(asked.replace(gradient_accumulation_steps=2), fake, limit=63).value == 60
    assert all(probe.micro_batch_size % 4 == 0 for probe in fake.asked)
    with pytest.raises(FieldError, match=r"no further than 4 sequences, .* multiples of 8"):
        max_micro_batch_size(asked, Fake(), limit=4)


def test_longest_sequence_is_a_multiple_of_the_padding() -> None:
    # 100 + 2 · length <= 1000 bytes: 450 would fit, in steps of 8 it is 448.
    found = max_seq_len(run(micro_batch_size=2, pad_to_multiple_of=8), Fake())
    assert found.field == "seq_len"
    assert found.value == 448
    assert found.first_that_fails is not None
    assert found.first_that_fails.run.seq_len == 456


def test_longest_sequence_sets_the_data_set_aside() -> None:
    fake = Fake()
    max_seq_len(run(dataset="math_14k"), fake)
    assert {probe.dataset for probe in fake.asked} == {None}


def test_longest_sequence_under_curved_memory() -> None:
    # 100 + length² <= 1e6 bytes: 999 would fit, in steps of 8 it is 992.
    found = max_seq_len(run(), Fake(capacity_bytes=1e6, growth=lambda tokens: float(tokens) ** 2))
    assert found.value == 992
    assert found.num_probes <= 20


def test_a_limit_below_the_padding_multiple() -> None:
    assert max_seq_len(run(pad_to_multiple_of=64), Fake(), limit=10).value == 10


def test_an_unsupported_question_is_said() -> None:
    def refuse(asked: Run) -> Profile:
        raise UnsupportedError(f"{asked.model} is not supported.")

    with pytest.raises(UnsupportedError, match="llama-3-8b"):
        max_micro_batch_size(run(), refuse)


def test_the_safe_border_lies_below_what_may_fit_and_one_more_is_risky() -> None:
    run = Run(model="meta-llama/Llama-3.1-8B", method="lora", gpu="A100-SXM4-80GB", seq_len=2048)
    found = max_micro_batch_size(run)
    assert 0 < found.safe_value < found.value
    assert found.safe_profile is not None
    assert found.safe_profile.run.micro_batch_size == found.safe_value
    assert is_safe(found.safe_profile)
    assert not is_safe(predict(run.replace(micro_batch_size=found.safe_value + 1)))
    assert found.num_probes < 20


def test_who_states_no_interval_knows_what_fits() -> None:
    run = Run(model="meta-llama/Llama-3.1-8B", method="lora", gpu="A100-SXM4-80GB", seq_len=2048)

    def exact(asked: Run) -> Profile:
        profile = predict(asked)
        return profile._replace(source=profile.source._replace(memory_interval=None))

    found = max_micro_batch_size(run, exact)
    assert found.safe_value == found.value == max_micro_batch_size(run).value
