"""One trial of an endpoint: find the server, warm it up, put a load on it, make a Profile.

    ttft_s                    from the request to the first chunk, with waiting in the server's queue
    time_per_output_token_s   (last chunk - first chunk) / (tokens - 1), of each answer
    inter_token_latency_s     between one chunk and the next; a chunk may hold several tokens
    latency_s                 from the request to the last chunk

All by the client's clock, the network included. Rates are of the whole load, from the first request to the
last answer. By Little's law the mean number of requests in flight is their rate times their mean latency. A
step is the median answer: `prefill` until its first token, `decode` until its last. Memory and energy of
the server are not to be had from outside.

    closed    N users, each with one request at a time: N requests in flight
    open      a Poisson process: gaps between arrivals are exponential, whatever the server does

A load ends early where more requests have failed than a measurement may lose.
"""

import asyncio
import platform
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain, islice, pairwise
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError, UnsupportedError, shown
from finegauge.measurement.endpoint_client import (
    OK,
    Address,
    Answer,
    Client,
    Clock,
    Prompt,
    address_of,
    check_options,
    prompts,
    reason,
)
from finegauge.measurement.options import Options
from finegauge.profile import Breakdown, Profile, Source
from finegauge.progress import Heard, Progress
from finegauge.run.phases import micro_steps
from finegauge.run.rules import SERVING
from finegauge.run.run import Run

if TYPE_CHECKING:
    from aiohttp import ClientSession

TIMEOUT_S = 30.0
MODELS = "/v1/models"
VERSIONS = {"/version": "version", "/info": "version", "/get_server_info": "version"}  # vLLM, TGI, SGLang


class UnreachableError(Exception):
    """The server does not answer; says why."""


class Server(NamedTuple):
    """What a server says of itself."""

    model: str  # as it calls it
    engine: str = ""  # vllm, sglang, …
    version: str = ""
    header: str = ""  # its Server header
    longest_tokens: int = 0  # prompt and answer together; 0: it does not say

    def check_length(self, seq_len: int) -> None:
        """Refuse sequences that it does not take.

        Raises: UnsupportedError.
        """
        if 0 < self.longest_tokens < seq_len:
            raise UnsupportedError(
                f"seq_len={seq_len:,}, but the endpoint takes at most {self.longest_tokens:,} tokens, prompt "
                f"and answer together; use seq_len={self.longest_tokens} or less."
            )


async def server_at(session: "ClientSession", address: Address, wanted: str, otherwise: str) -> Server:
    """Return the server at `address` and its model `wanted`; "": the only one that it has.

    Where the server lists no models, the name is `otherwise`.

    Raises: UnreachableError where no server answers; UnsupportedError where it does not have the model.
    """
    try:
        status, header, said = await _got(session, address, MODELS)
    except TimeoutError:
        raise UnreachableError(f"no answer within {TIMEOUT_S:g} s") from None
    except Exception as error:
        raise UnreachableError(address.without_key(reason(error))) from None
    if status in (401, 403):
        raise UnreachableError(f"HTTP {status}: it wants a key; name its environment variable")
    listed = said.get("data") if status == OK else None
    models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    by_name = {str(one.get("id")): one for one in models}
    name = wanted or (next(iter(by_name)) if len(by_name) == 1 else "" if by_name else otherwise)
    if by_name and name not in by_name:
        asked = f"no model {shown(name)}" if name else "several models"
        known = ", ".join(shown(one) for one in list(by_name)[:8])
        raise UnsupportedError(f"The endpoint has {asked}; choose by endpoint_model one of {known}.")
    row = by_name.get(name, {})
    longest = row.get("max_model_len")
    return Server(
        model=name,
        engine=str(row.get("owned_by") or ""),
        version=await _version(session, address),
        header=header,
        longest_tokens=longest if isinstance(longest, int) else 0,
    )


async def _got(session: "ClientSession", address: Address, path: str) -> tuple[int, str, Mapping[str, Any]]:
    """Return the status, the Server header and the JSON of a page; {} where it is no JSON object."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        session.get(address.url + path, headers=address.headers, allow_redirects=False) as response,
    ):
        said: Any = None
        with suppress(ValueError):
            said = await response.json(content_type=None)
        return (response.status, response.headers.get("Server", ""), said if isinstance(said, dict) else {})


async def _version(session: "ClientSession", address: Address) -> str:
    for path, key in VERSIONS.items():
        with suppress(Exception):
            status, _, said = await _got(session, address, path)
            if status == OK and isinstance(said.get(key), str):
                return str(said[key])[:80]
    return ""


MOST_FAILED_FRACTION = 0.05

Ask = Callable[[Prompt], Awaitable[Answer]]
Told = Callable[[int], None]


class Load(NamedTuple):
    """How many requests come, and how."""

    num_requests: int
    num_users: int = 1
    requests_per_s: float = 0.0  # above 0: by chance, whatever `num_users` says
    seed: int = 0


async def closed(load: Load, ask: Ask, prompts: Iterator[Prompt], told: Told) -> list[Answer]:
    """Return the answers that `num_users` users get, in the order in which they came."""
    answers: list[Answer] = []
    left = iter(range(load.num_requests))

    async def user() -> None:
        for _ in left:
            answers.append(await ask(next(prompts)))
            told(len(answers))
            if hopeless(answers, load):
                return

    async with asyncio.TaskGroup() as users:
        for _ in range(min(load.num_users, load.num_requests)):
            users.create_task(user())
    return answers


async def by_chance(load: Load, ask: Ask, prompts: Iterator[Prompt], told: Told) -> list[Answer]:
    """Return the answers to requests that arrive by a Poisson process, in the order in which they came."""
    answers: list[Answer] = []

    async def one(prompt: Prompt) -> None:
        answers.append(await ask(prompt))
        told(len(answers))

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.TaskGroup() as requests:
        for at_s in arrivals(load):
            await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
            if hopeless(answers, load):
                break
            requests.create_task(one(next(prompts)))
    return answers


def arrivals(load: Load) -> list[float]:
    """Return when every request arrives, in seconds after the first."""
    dice = random.Random(load.seed)
    times, at_s = [], 0.0
    for _ in range(load.num_requests):
        times.append(at_s)
        at_s += dice.expovariate(load.requests_per_s)
    return times


def hopeless(answers: list[Answer], load: Load) -> bool:
    """Return whether more requests have failed than a measurement may lose."""
    return sum(bool(a.failure) for a in answers) > MOST_FAILED_FRACTION * load.num_requests


PERCENTILES = (50, 90, 99)
EARLY_FRACTION = 0.99  # an answer shorter than this share of what was asked has ended early


def summary(answers: Sequence[Answer], *, new_tokens: int, began_s: float) -> dict[str, Any]:
    """Return the figures of a load from the answers to every request, failed ones too.

    Each answer should have `new_tokens`; the first request was made at `began_s` of the answers' clock.
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
    """Return why a load of `num_asked` requests is refused as data; "" where it is not."""
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


BUSY_FRACTION = 0.7  # of one processor, from which on the client may itself be what is slow
FEW_TOKENS_OFF_FRACTION = 0.05  # by how much the server may count other prompts before it is noted


def profile_of_load(
    run: Run,
    options: Options,
    server: Server,
    client: Client,
    load: Load,
    answers: Sequence[Answer],
    *,
    meant_tokens: float,
    began_s: float,
    busy_fraction: float,
) -> Profile:
    """Return what the answers to a load say.

    Its prompts were meant to have `meant_tokens`; the client itself was busy for a share of the time.
    """
    address = client.address
    if why := refusal(answers, load.num_requests):
        failed = summary(answers, new_tokens=client.new_tokens, began_s=began_s)
        return without_data(run, options, "failed", why)._replace(
            fingerprint=_fingerprint(address, server), observations={"serving": failed}
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
                "client_busy_fraction": busy_fraction,
            },
            "notes": _notes(serving, client, meant_tokens, busy_fraction),
        },
    )


def without_data(run: Run, options: Options, outcome: str, reason: str) -> Profile:
    """Return the profile of a trial that brought no data."""
    return Profile(
        run=run,
        source=Source("measured", f"endpoint {address_of(options).url}"),
        outcome=outcome,
        reason=reason.rstrip(".") if outcome == "failed" else reason,
    )


def _step(run: Run, whole: Sequence[Answer], batches: int) -> Breakdown:
    latency_s = batches * median(answer.latency_s for answer in whole)
    if run.phase == "prefill":
        return Breakdown.of(prefill=latency_s)
    share = fmean(answer.ttft_s for answer in whole) / fmean(answer.latency_s for answer in whole)
    return Breakdown.of(prefill=share * latency_s, decode=(1.0 - share) * latency_s)


def _seen_by_users(serving: Mapping[str, Any]) -> dict[str, float]:
    found = {"ttft_s": serving["ttft_s"]["p50"], "written_tokens_per_s": serving["written_tokens_per_s"]}
    if serving["time_per_output_token_s"]:
        found["time_per_output_token_s"] = serving["time_per_output_token_s"]["p50"]
    return found


def _timing(latencies: Sequence[float], options: Options) -> dict[str, float]:
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


def _notes(serving: Mapping[str, Any], client: Client, meant: float, busy_fraction: float) -> list[str]:
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
    if busy_fraction > BUSY_FRACTION:
        notes.append(
            f"the client was busy for {100 * busy_fraction:.0f} % of the time: what it says is late, so ask "
            "with fewer users"
        )
    return notes


def _source(address: Address, options: Options, load: Load) -> Source:
    warm = options.warmup_steps * load.num_users
    kind = (
        f"{load.requests_per_s:g} requests/s by chance"
        if load.requests_per_s
        else f"{load.num_users} user{'s' * (load.num_users != 1)}"
    )
    return Source(
        kind="measured",
        name=f"endpoint {address.url}",
        assumptions=(
            f"{load.num_requests} requests of {kind}, after {warm} of warm-up",
            "seen from the client, network included",
        ),
    )


def _fingerprint(address: Address, server: Server) -> dict[str, str]:
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


MADE_AHEAD = 1000  # prompts, for making them takes time; all of them could fill the memory
INSTALL = "Measuring an endpoint needs aiohttp: pip install 'finegauge[endpoint]'."


def measure_endpoint(
    run: Run, options: Options, *, heard: Heard | None = None, clock: Clock = time.perf_counter
) -> Profile:
    """Return the measured profile of `run`, answered by the server that `options` name.

    The `micro_batch_size` of the run is the number of users; `clock` is in seconds.

    Raises: InputError for options that no server can answer.
    """
    check_options(options)
    try:
        if run.phase not in SERVING:
            raise UnsupportedError(
                f"An endpoint serves, and phase={run.phase} does not; add phase=decode (or prefill) to the "
                "run."
            )
        return asyncio.run(_measured(run, options, heard, clock))
    except UnreachableError as error:
        return without_data(run, options, "failed", f"{address_of(options).url} does not serve: {error}")
    except TimeoutError:
        return without_data(run, options, "failed", f"not done after {options.timeout_s:g} s")
    except FineGaugeError as error:
        return without_data(run, options, "unsupported", str(error))


async def _measured(run: Run, options: Options, heard: Heard | None, clock: Clock) -> Profile:
    """Return the profile; see `measure_endpoint`.

    Raises: UnreachableError, TimeoutError, FineGaugeError.
    """
    try:
        import aiohttp
    except ImportError:
        raise UnsupportedError(INSTALL) from None
    address, asked = address_of(options), prompts(run, options.endpoint_api, options.seed)
    first = next(asked)  # what cannot be asked is said before anybody is
    everybody = aiohttp.TCPConnector(limit=0)
    nothing = aiohttp.ClientTimeout(total=None)  # every request has its own
    async with (
        asyncio.timeout(options.timeout_s or None),
        aiohttp.ClientSession(connector=everybody, timeout=nothing) as session,
    ):
        server = await server_at(session, address, options.endpoint_model, run.model)
        server.check_length(run.seq_len)
        client = Client(
            session,
            address,
            model=server.model,
            new_tokens=1 if run.phase == "prefill" else run.max_new_tokens,
            timeout_s=options.request_timeout_s,
            clock=clock,
        )
        if failure := await client.greet(first):
            raise UnreachableError(failure + _hint(failure, address))
        users = run.micro_batch_size
        num_requests = options.num_requests or options.steps * users
        load = Load(num_requests, users, options.requests_per_s, options.seed)
        warm = Load(options.warmup_steps * users, users)
        await closed(warm, client.ask, asked, _tells(heard, "warm-up", warm.num_requests))
        ahead = list(islice(asked, min(load.num_requests, MADE_AHEAD)))
        busy_s, since_s, began_s = time.process_time(), time.perf_counter(), clock()
        shape = by_chance if load.requests_per_s else closed
        told = _tells(heard, "requests", load.num_requests)
        answers = await shape(load, client.ask, chain(ahead, asked), told)
        busy_s, since_s = time.process_time() - busy_s, time.perf_counter() - since_s
    return profile_of_load(
        run, options, server, client, load, answers, began_s=began_s, busy_fraction=busy_s / since_s,
        meant_tokens=fmean(prompt.tokens for prompt in ahead),
    )  # fmt: skip


def _hint(failure: str, address: Address) -> str:
    if address.api == "completions" and failure.startswith(("HTTP 400", "HTTP 404", "HTTP 405", "HTTP 422")):
        return "; where it takes no tokens as a prompt, ask by endpoint_api=chat"
    return ""


def _tells(heard: Heard | None, what: str, total: int) -> Told:
    def told(done: int) -> None:
        if heard is not None:
            heard(Progress(what, done, total))

    return told
