"""One trial of an endpoint: find out who answers, warm it up, put a load on it, make a Profile."""

import asyncio
import time
from itertools import chain, islice
from statistics import fmean
from typing import TYPE_CHECKING

from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.measure.endpoint.address import Address, address_of, check_options, check_run
from finegauge.measure.endpoint.client import Client, Clock
from finegauge.measure.endpoint.load import Load, Told, by_chance, closed
from finegauge.measure.endpoint.outcome import profile_of_load, with_client, without_data
from finegauge.measure.endpoint.prompts import prompts
from finegauge.measure.endpoint.server import Server, UnreachableError, server_at
from finegauge.measure.options import Options
from finegauge.measure.process import Heard, Progress

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from finegauge.profile import Profile
    from finegauge.workload.run import Run

MADE_AHEAD = 1000  # prompts, for making them takes time; all of them could fill the memory
INSTALL = "Measuring an endpoint needs aiohttp: pip install 'finegauge[endpoint]'."


def measure_endpoint(
    run: "Run", options: Options, *, heard: Heard | None = None, clock: Clock = time.perf_counter
) -> "Profile":
    """Return the measured profile of `run`, answered by the server that `options` name.

    Args:
        run: A run that serves; its `micro_batch_size` is the number of users.
        options: The endpoint, and how many requests.
        heard: Told how far the trial is.
        clock: In seconds.
    Raises: InputError for options that no server can answer.
    """
    check_options(options)
    try:
        check_run(run)
        import_aiohttp()
        return asyncio.run(_measured(run, options, heard, clock))
    except UnreachableError as error:
        return without_data(run, options, "failed", f"{address_of(options).url} does not serve: {error}")
    except TimeoutError:
        return without_data(run, options, "failed", f"not done after {options.timeout_s:g} s")
    except FineGaugeError as error:
        return without_data(run, options, "unsupported", str(error))


def import_aiohttp() -> None:
    """Raise UnsupportedError where the client's library is not installed."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise UnsupportedError(INSTALL) from None


def load_of(run: "Run", options: Options) -> Load:
    """Return the load that is asked for: `steps` requests of every user where no number is stated."""
    return Load(
        num_requests=options.num_requests or options.steps * run.micro_batch_size,
        num_users=run.micro_batch_size,
        requests_per_s=options.requests_per_s,
        seed=options.seed,
    )


async def _measured(run: "Run", options: Options, heard: Heard | None, clock: Clock) -> "Profile":
    """Return the profile; see `measure_endpoint`.

    Raises: UnreachableError, TimeoutError, FineGaugeError.
    """
    import aiohttp

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
        client = _client(session, address, server, run, options, clock)
        if failure := await client.greet(first):
            raise UnreachableError(failure + _hint(failure, address))
        load = load_of(run, options)
        warm = Load(num_requests=options.warmup_steps * load.num_users, num_users=load.num_users)
        await closed(warm, client.ask, asked, _tells(heard, "warm-up", warm.num_requests))
        ahead = list(islice(asked, min(load.num_requests, MADE_AHEAD)))
        busy_s, since_s, began_s = time.process_time(), time.perf_counter(), clock()
        shape = by_chance if load.requests_per_s else closed
        told = _tells(heard, "requests", load.num_requests)
        answers = await shape(load, client.ask, chain(ahead, asked), told)
        busy_s, since_s = time.process_time() - busy_s, time.perf_counter() - since_s
    meant = fmean(prompt.tokens for prompt in ahead)
    profile = profile_of_load(run, options, server, client, load, answers, meant, began_s)
    return with_client(profile, busy_s / since_s)


def _hint(failure: str, address: Address) -> str:
    """Return what to do where a server does not understand the question."""
    if address.api == "completions" and failure.startswith(("HTTP 400", "HTTP 404", "HTTP 405", "HTTP 422")):
        return "; where it takes no tokens as a prompt, ask by endpoint_api=chat"
    return ""


def _client(
    session: "ClientSession", address: Address, server: Server, run: "Run", options: Options, clock: Clock
) -> Client:
    """Return the client that asks what the run says."""
    return Client(
        session,
        address,
        model=server.model,
        new_tokens=run.max_new_tokens if run.phase == "decode" else 1,
        timeout_s=options.request_timeout_s,
        clock=clock,
    )


def _tells(heard: Heard | None, what: str, total: int) -> Told:
    """Return what to call with the number of answers."""

    def told(done: int) -> None:
        if heard is not None:
            heard(Progress(what, done, total))

    return told
