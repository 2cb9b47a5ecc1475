"""The load on a server: users who ask again as soon as they are answered, or requests that arrive by chance.

    closed    N users, each with one request at a time: N requests in flight
    open      a Poisson process: gaps between arrivals are exponential, whatever the server does

A load ends early where more requests have failed than a measurement may lose.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from finegauge.measure.endpoint.client import Answer
from finegauge.measure.endpoint.prompts import Prompt

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
