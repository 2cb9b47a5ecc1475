r"""What the answers to a load say: how long users wait, what the server does in a second, what is no data.

    ttft_s                    from the request to the first chunk, with waiting in the server's queue
    time_per_output_token_s   (last chunk - first chunk) / (tokens - 1), of each answer
    inter_token_latency_s     between one chunk and the next; a chunk may hold several tokens
    latency_s                 from the request to the last chunk

All by the client's clock, the way there and back included. Rates are of the whole load, from the
first request to the last answer, its beginning and end (when fewer are in flight) included. By
Little's law the mean number of requests in flight is their rate times their mean latency.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, quantiles
from typing import Any

from finegauge.measure.endpoint.client import Answer
from finegauge.measure.endpoint.load import MOST_FAILED_FRACTION

PERCENTILES = (50, 90, 99)
EARLY_FRACTION = 0.99  # an answer shorter than this share of what was asked has ended early


def summary(answers: Sequence[Answer], *, new_tokens: int, began_s: float) -> dict[str, Any]:
    """Return the figures of a load.

    Args:
        answers: To every request, failed ones too.
        new_tokens: That every answer should have.
        began_s: When the first request was made, by the clock of the answers.
    """
    whole = [answer for answer in answers if not answer.failure]
    failures = Counter(answer.failure for answer in answers if answer.failure)
    found: dict[str, Any] = {
        "num_requests": len(answers), "num_failed": len(answers) - len(whole), "failures": dict(failures),
    }  # fmt: skip
    if not whole:
        return found
    wall_s = max(answer.ended_s for answer in whole) - began_s
    written = sum(answer.written_tokens for answer in whole)
    read = sum(answer.prompt_tokens for answer in whole)
    gaps = [later - earlier for answer in whole for earlier, later in pairwise(answer.times_s)]
    per_token = [t for answer in whole if (t := answer.time_per_output_token_s) is not None]
    return {
        **found,
        "wall_s": wall_s,
        "ttft_s": spread([answer.ttft_s for answer in whole]),
        "time_per_output_token_s": spread(per_token),
        "inter_token_latency_s": spread(gaps),
        "latency_s": spread([answer.latency_s for answer in whole]),
        "requests_per_s": len(whole) / wall_s if wall_s > 0 else 0.0,
        "written_tokens_per_s": written / wall_s if wall_s > 0 else 0.0,
        "prompt_tokens_per_s": read / wall_s if wall_s > 0 else 0.0,
        "prompt_tokens": read / len(whole),
        "written_tokens": written / len(whole),
        "chunks": sum(len(answer.times_s) for answer in whole) / len(whole),
        "num_ended_early": sum(a.written_tokens < EARLY_FRACTION * new_tokens for a in whole),
        "in_flight": sum(answer.latency_s for answer in whole) / wall_s if wall_s > 0 else 0.0,
        "tokens_counted_by": "server" if all(answer.counted for answer in whole) else "chunks",
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles; {} of nothing."""
    if not values:
        return {}
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return {"mean": fmean(values), **{f"p{percent}": cuts[percent - 1] for percent in PERCENTILES}}


def refusal(answers: Sequence[Answer], num_asked: int) -> str:
    """Return why a load is refused as data; "" where it is not.

    Args:
        answers: To every request that was made.
        num_asked: Requests that should have been made.
    """
    failed = [answer for answer in answers if answer.failure]
    if failed and len(failed) > MOST_FAILED_FRACTION * num_asked:
        commonest, times = Counter(answer.failure for answer in failed).most_common(1)[0]
        often = f" ({times} times)" if times > 1 else ""
        return f"{len(failed)} of {len(answers)} requests failed: {commonest}{often}"
    whole = [answer for answer in answers if not answer.failure]
    if not sum(answer.written_tokens for answer in whole):
        return "the endpoint wrote no tokens"
    if all(answer.latency_s <= 0 for answer in whole):
        return "the answers took no time: the clock is broken"
    return ""
