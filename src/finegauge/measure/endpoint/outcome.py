"""The Profile of a load: what its answers say, who gave them, and what a reader of the figures has to know.

A step is the median answer: `prefill` until its first token, `decode` until its last. What is worked
on meanwhile is every request in flight, the run's `micro_batch_size` users (three times as many
requests where `padding: free` says that others wait), so that tokens per second are those of the
whole load, and stand beside the prediction for the GPU that the run names. Memory and energy of
the server are not to be had from outside.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from finegauge.measure.endpoint.address import Address, address_of
from finegauge.measure.endpoint.client import Answer, Client
from finegauge.measure.endpoint.load import Load
from finegauge.measure.endpoint.server import Server
from finegauge.measure.endpoint.summary import refusal, spread, summary
from finegauge.measure.options import Options
from finegauge.profile import Breakdown, Profile, Source
from finegauge.workload.prompts import micro_steps

if TYPE_CHECKING:
    from finegauge.workload.run import Run

BUSY_FRACTION = 0.7  # of one processor, from which on the client may itself be what is slow
FEW_TOKENS_OFF_FRACTION = 0.05  # by how much the server may count other prompts before it is noted


def profile_of_load(
    run: "Run",
    options: Options,
    server: Server,
    client: Client,
    load: Load,
    answers: Sequence[Answer],
    meant_tokens: float,
    began_s: float,
) -> Profile:
    """Return what the answers to a load say; its prompts were meant to have `meant_tokens`."""
    address = client.address
    if reason := refusal(answers, load.num_requests):
        failed = summary(answers, new_tokens=client.new_tokens, began_s=began_s)
        return without_data(
            run, options, "failed", reason, _fingerprint(address, server), {"serving": failed}
        )
    whole = [answer for answer in answers if not answer.failure]
    whole = [a if a.prompt_tokens else a._replace(prompt_tokens=round(meant_tokens)) for a in whole]
    failed_ones = [answer for answer in answers if answer.failure]
    serving = summary([*whole, *failed_ones], new_tokens=client.new_tokens, began_s=began_s)
    batches = micro_steps(run)
    latencies = [batches * answer.latency_s for answer in whole]
    in_flight = serving["in_flight"] if load.requests_per_s else min(load.num_users, load.num_requests)
    sequences = batches * in_flight
    return Profile(
        run=run,
        source=_source(address, options, load),
        step_time_s=_step(run, whole, batches),
        step_times_s=tuple(latencies),
        step_tokens=sequences * (serving["prompt_tokens"] + serving["written_tokens"]),
        step_sequences=sequences,
        fingerprint=_fingerprint(address, server),
        observations={
            "timing": _timing(latencies, options),
            "steps": {"details": _seen_by_users(serving)},
            "serving": {
                "api": address.api,
                "num_users": 0 if load.requests_per_s else load.num_users,
                "asked_requests_per_s": load.requests_per_s,
                **serving,
            },
            "notes": _notes(serving, client, meant_tokens),
        },
    )


def with_client(profile: Profile, busy_fraction: float) -> Profile:
    """Return `profile` with the share of the time for which the client itself had a processor."""
    if profile.outcome != "completed":
        return profile
    seen = dict(profile.observations)
    seen["serving"] = {**seen["serving"], "client_busy_fraction": busy_fraction}
    if busy_fraction > BUSY_FRACTION:
        seen["notes"] = [
            *seen["notes"],
            f"the client was busy for {100 * busy_fraction:.0f} % of the time: what it says is late, so ask "
            "with fewer users",
        ]
    return replace(profile, observations=seen)


def without_data(
    run: "Run",
    options: Options,
    outcome: str,
    reason: str,
    fingerprint: Mapping[str, str] | None = None,
    observations: Mapping[str, Any] | None = None,
) -> Profile:
    """Return the profile of a trial that brought no data."""
    return Profile(
        run=run,
        source=Source("measured", f"endpoint {address_of(options).url}"),
        outcome=outcome,
        reason=reason.rstrip(".") if outcome == "failed" else reason,
        fingerprint=fingerprint or {},
        observations=observations or {},
    )


def _step(run: "Run", whole: Sequence[Answer], batches: int) -> Breakdown:
    """Return the median answer's seconds, shared between prompt and answer as they are on average."""
    latency_s = batches * median(answer.latency_s for answer in whole)
    if run.phase == "prefill":
        return Breakdown.of(prefill=latency_s)
    share = fmean(answer.ttft_s for answer in whole) / fmean(answer.latency_s for answer in whole)
    return Breakdown.of(prefill=share * latency_s, decode=(1.0 - share) * latency_s)


def _seen_by_users(serving: Mapping[str, Any]) -> dict[str, float]:
    """Return what measuring transformers' serving here reports, under the same names."""
    found = {"ttft_s": serving["ttft_s"]["p50"], "written_tokens_per_s": serving["written_tokens_per_s"]}
    if serving["time_per_output_token_s"]:
        found["time_per_output_token_s"] = serving["time_per_output_token_s"]["p50"]
    return found


def _timing(latencies: Sequence[float], options: Options) -> dict[str, float]:
    """Return how far the answers lie apart."""
    found = spread(latencies)
    ordered = sorted(latencies)
    low, high = ordered[round(0.1 * (len(ordered) - 1))], found["p90"]
    return {
        "steps": len(ordered),
        "median_s": found["p50"],
        "min_s": ordered[0],
        "max_s": ordered[-1],
        "p10_s": low,
        "p90_s": high,
        "spread_fraction": (high - low) / found["p50"] if found["p50"] else 0.0,
        "warmup_steps": options.warmup_steps,
    }


def _notes(serving: Mapping[str, Any], client: Client, meant: float) -> list[str]:
    """Return what a reader of the figures has to know."""
    notes = []
    if serving["num_failed"]:
        notes.append(f"{serving['num_failed']} of {serving['num_requests']} requests failed and are left out")
    if serving["num_ended_early"]:
        notes.append(f"{serving['num_ended_early']} answers ended before {client.new_tokens} tokens")
    if client.new_tokens > 1 and serving["latency_s"]["mean"] <= serving["ttft_s"]["mean"]:
        notes.append(
            "answers come in one piece, as a proxy that buffers makes them: all of it counts as prefill"
        )
    if not client.extras:
        notes.append("the server refuses ignore_eos, so that an answer may end early")
    if serving["tokens_counted_by"] == "chunks":
        notes.append("the server does not count its tokens: every chunk counts as one")
    elif serving["chunks"] < 0.99 * serving["written_tokens"]:
        per_chunk = serving["written_tokens"] / serving["chunks"]
        notes.append(
            f"a chunk holds {per_chunk:.2f} tokens on average, which inter-token latency does not see"
        )
    if abs(serving["prompt_tokens"] / meant - 1) > FEW_TOKENS_OFF_FRACTION:
        notes.append(
            f"the server counts {serving['prompt_tokens']:,.0f} tokens a prompt, {meant:,.0f} were meant"
        )
    return notes


def _source(address: Address, options: Options, load: Load) -> Source:
    """Return who says so."""
    warm = options.warmup_steps * load.num_users
    kind = f"{load.requests_per_s:g} requests/s by chance" if load.requests_per_s else _users(load.num_users)
    return Source(
        kind="measured",
        name=f"endpoint {address.url}",
        assumptions=(
            f"{load.num_requests} requests of {kind}, after {warm} of warm-up",
            "seen from the client, network included",
        ),
    )


def _users(number: int) -> str:
    """Return a number of users in words."""
    return f"{number} user{'s' * (number != 1)}"


def _fingerprint(address: Address, server: Server) -> dict[str, str]:
    """Return who answered whom; what is not known is left out."""
    engine = " ".join(filter(None, (server.engine, server.version)))
    found = {
        "device": f"{address.url} ({', '.join(filter(None, (server.model, engine)))})",
        "endpoint": address.asked,
        "served_model": server.model,
        "engine": engine,
        "server": server.header,
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "finegauge": version("finegauge"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {name: value for name, value in found.items() if value}
