"""What users of an endpoint see: seconds to the first token and for each further one, load by load."""

from collections.abc import Mapping, Sequence
from typing import Any

from finegauge.plan.here import Prediction
from finegauge.profile import Profile
from finegauge.report import figures
from finegauge.report.terminal import columns, paint, wrapped
from finegauge.workload.prompts import answer_tokens, micro_steps

WAITS = {
    "ttft_s": "to the first token",
    "time_per_output_token_s": "each further token",
    "inter_token_latency_s": "between chunks",
    "latency_s": "whole answer",
}
PERCENTILES = ("mean", "p50", "p90", "p99")
MOST_FAILURES = 5


def serving_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return how long the users of one load waited, and what the server did in a second."""
    if "latency_s" not in seen:
        return failure_lines(seen)
    rows = [
        [f"  {words}", *(figures.duration(seen[name][p]) for p in PERCENTILES)]
        for name, words in WAITS.items()
        if seen.get(name)
    ]
    text = (
        f"{figures.digits(seen['requests_per_s'])} requests/s, "
        f"{figures.digits(seen['written_tokens_per_s'])} tokens/s written, "
        f"{figures.digits(seen['prompt_tokens_per_s'])} tokens/s read; prompts of "
        f"{seen['prompt_tokens']:,.0f} tokens, answers of {seen['written_tokens']:,.0f}; "
        f"{figures.digits(seen['in_flight'])} requests in flight."
    )
    title = f"{paint('Serving', 'bold')}, {seen['num_requests']:,} requests, {load_words(seen)}"
    table = columns(["  wait", *PERCENTILES], rows)
    return [title, *table, *(f"  {line}" for line in wrapped(text, indent="  ")), *failure_lines(seen)]


def predicted_waits(profile: Profile) -> dict[str, float]:
    """Return the seconds to the first token and for each further one, and tokens per second, of a prediction.

    Empty for a phase that serves nothing, or none beyond the first token.
    """
    run = profile.run
    reading_s, writing_s = (profile.step_time_s[stage] for stage in ("prefill", "decode"))
    if run.phase != "decode" or not writing_s:
        return {}
    times, written = micro_steps(run), answer_tokens(run)
    return {
        "ttft_s": reading_s / times,
        "time_per_output_token_s": writing_s / times / (written - 1),
        "written_tokens_per_s": times
        * run.micro_batch_size
        * run.data_parallel
        * written
        / (reading_s + writing_s),
    }


def predicted_line(profile: Profile) -> str:
    """Return what users of a service would wait for, in one line; empty where nothing is served."""
    waits = predicted_waits(profile)
    if not waits:
        return ""
    first, further = (figures.duration(waits[name]) for name in ("ttft_s", "time_per_output_token_s"))
    rate = figures.digits(waits["written_tokens_per_s"])
    return f"  {first} to the first token, {further} for each further one; {rate} tokens/s written"


def load_words(seen: Mapping[str, Any]) -> str:
    """Return the load in words."""
    if seen["asked_requests_per_s"]:
        return f"{figures.digits(seen['asked_requests_per_s'])} a second, arriving by chance"
    users = seen["num_users"]
    return f"{users:,} user{'s' * (users != 1)} at a time"


def failure_lines(seen: Mapping[str, Any]) -> list[str]:
    """Return how requests failed, the commonest way first."""
    failures = sorted(dict(seen.get("failures", {})).items(), key=lambda item: -item[1])[:MOST_FAILURES]
    return [
        f"  {line}" for why, times in failures for line in wrapped(f"{times:,} failed: {why}", indent="  ")
    ]


def load_lines(found: Sequence[tuple[Profile, Prediction]]) -> list[str]:
    """Return one row for each load of one endpoint, with the tokens per second that are predicted for it."""
    known = any(_predicted(prediction) for _, prediction in found)
    rows = []
    for measured, prediction in found:
        seen = measured.observations.get("serving", {})
        if measured.outcome != "completed":
            continue
        per_token = seen["time_per_output_token_s"]
        row = [
            f"  {seen['num_users']:,}",
            *(figures.duration(seen["ttft_s"][p]) for p in ("p50", "p99")),
            *(figures.duration(per_token[p]) if per_token else figures.UNKNOWN for p in ("p50", "p99")),
            figures.duration(seen["latency_s"]["p50"]),
            figures.digits(seen["requests_per_s"]),
            figures.digits(seen["written_tokens_per_s"]),
        ]
        rows.append([*row, *([_predicted(prediction) or figures.UNKNOWN] if known else [])])
    headings = [
        "\n  users", "first token\np50", "\np99", "further token\np50", "\np99", "answer\np50",
        "\nrequests/s", "written\ntokens/s", *(["predicted\ntokens/s"] if known else []),
    ]  # fmt: skip
    return columns(headings, rows) if rows else []


def _predicted(prediction: Prediction) -> str:
    """Return the tokens written per second that are predicted; "" where none are."""
    profile = prediction.profile
    if profile is None or not profile.step_time_s.total:
        return ""
    run = profile.run
    new_tokens = run.max_new_tokens if run.phase == "decode" else 1
    return figures.digits(profile.samples_per_s * new_tokens)
