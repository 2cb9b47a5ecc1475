"""The load on a server: its identity, and closed-loop users or Poisson arrivals.

    closed    N users, each with one request at a time: N requests in flight
    open      a Poisson process: gaps between arrivals are exponential, whatever the server does

A load ends early where more requests have failed than a measurement may lose.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import UnsupportedError, shown
from finegauge.measurement.endpoint.client import OK, Address, Answer, Prompt, reason

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
