"""A load of requests: its rates and waits agree with the laws of queues, and with a batch's prediction."""

from typing import Any

import pytest

from finegauge.answers.estimate import served_answer
from finegauge.errors import FieldError, UnsupportedError
from finegauge.prediction.predictor import predict
from finegauge.prediction.serving import served_outcomes
from finegauge.profile import Profile
from finegauge.run.run import Run

NEW = 256


def run(**fields: Any) -> Run:
    stated = {"model": "llama-3-8b", "gpu": "H100-SXM5-80GB", "seq_len": 768, "max_new_tokens": NEW}
    return Run(**{"method": "full", "phase": "serve", "inference_engine": "vllm", **stated, **fields})


def served(**fields: Any) -> Profile:
    return predict(run(**fields))


def seen(profile: Profile) -> dict[str, Any]:
    return dict(profile.observations["serving"])


@pytest.mark.parametrize("users", [4, 64])
def test_users_are_answered_as_fast_as_a_batch_of_them(users: int) -> None:
    load = served(micro_batch_size=users)
    batch = served_outcomes(predict(run(phase="decode", micro_batch_size=users)))
    found = served_outcomes(load)
    assert found["output_tokens_per_s"] == pytest.approx(batch["output_tokens_per_s"], rel=0.07)
    between_s = found["time_per_output_token_s"]  # beside prompts of others, which a batch has read before
    assert 0.99 * batch["time_per_output_token_s"] < between_s < 1.02 * users / found["output_tokens_per_s"]
    assert found["joules_per_token"] == pytest.approx(batch["joules_per_token"], rel=0.1)
    assert seen(load)["in_flight"] == pytest.approx(users, rel=0.1)


def test_the_laws_of_queues_hold() -> None:
    calm, busy = served(arrivals_per_s=2.0), served(arrivals_per_s=40.0, mean_new_tokens=100)
    assert seen(calm)["requests_per_s"] == pytest.approx(2.0, rel=0.1)
    for load in map(seen, (calm, busy)):
        assert load["in_flight"] == pytest.approx(load["requests_per_s"] * load["latency_s"]["mean"])
        assert load["ttft_s"]["p50"] <= load["ttft_s"]["p90"] <= load["ttft_s"]["p99"]
    assert seen(busy)["time_per_output_token_s"]["p50"] > seen(calm)["time_per_output_token_s"]["p50"]
    assert calm.step_time_s["waiting"] > 0.0


def test_a_burst_waits_for_its_turn() -> None:
    few = served(arrivals="burst", micro_batch_size=256, max_num_seqs=32)
    many = served(arrivals="burst", micro_batch_size=256)
    assert few.step_time_s.total > 1.5 * many.step_time_s.total
    assert seen(few)["ttft_s"]["p50"] > 3 * seen(many)["ttft_s"]["p50"]
    assert seen(few)["num_requests"] == 256


def test_replicas_share_the_requests() -> None:
    one, two = served(micro_batch_size=16), served(micro_batch_size=16, num_gpus=2)
    assert seen(two)["written_tokens_per_s"] == pytest.approx(2 * seen(one)["written_tokens_per_s"], rel=0.01)
    assert served_outcomes(two)["joules_per_token"] == pytest.approx(
        served_outcomes(one)["joules_per_token"], rel=0.01
    )


def test_what_cannot_be_served_is_said() -> None:
    with pytest.raises(UnsupportedError, match="inference_engine=hf is not"):
        predict(run(inference_engine="hf"))
    with pytest.raises(FieldError, match="need each other"):
        run(arrivals="poisson")
    with pytest.raises(FieldError, match="phase=decode"):
        run(phase="decode", arrivals="burst")


def test_the_estimate_says_what_users_wait_for() -> None:
    found = served_answer(served(arrivals_per_s=4.0))
    assert found is not None
    assert found.waits_s is not None
    assert found.ttft_s == found.waits_s["ttft_s"]["p50"] < found.waits_s["ttft_s"]["p99"]
    assert served_answer(predict(run(phase="evaluate", max_new_tokens=None))) is None
