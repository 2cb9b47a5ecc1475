"""One request and its answer, with the time at which every part of it arrived.

Whatever goes wrong with a request is part of its answer, in a few words that are the same for
the same kind of failure, so that failures can be counted. A redirection is not followed: it
would carry the key elsewhere.
"""

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.measure.endpoint.address import Address
from finegauge.measure.endpoint.events import Chunk, ChunkError, Events, chunk_of, error_text
from finegauge.measure.endpoint.prompts import Prompt

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

OK = 200
STREAM = "text/event-stream"
REFUSED_FIELDS = (400, 422)
MOST_ERROR_BYTES = 4096
WHOLE_ANSWERS = {"ignore_eos": True}  # of vLLM and SGLang: no token ends an answer before its length

Clock = Callable[[], float]


class Answer(NamedTuple):
    """How one request went."""

    asked_s: float  # when, by the client's clock, as everything here
    times_s: tuple[float, ...] = ()  # of every chunk in which something was written
    ended_s: float = 0.0
    prompt_tokens: int = 0
    written_tokens: int = 0
    counted: bool = False  # whether the server itself said how many tokens it wrote
    failure: str = ""  # why there is no whole answer

    @property
    def ttft_s(self) -> float:
        """Return the seconds until something was written."""
        return self.times_s[0] - self.asked_s

    @property
    def latency_s(self) -> float:
        """Return the seconds until all was written."""
        return self.times_s[-1] - self.asked_s

    @property
    def time_per_output_token_s(self) -> float | None:
        """Return the seconds of every token after the first; None where there is but one."""
        more = self.written_tokens - 1
        return (self.times_s[-1] - self.times_s[0]) / more if more > 0 else None


class Client:
    """Asks one server."""

    def __init__(
        self,
        session: "ClientSession",
        address: Address,
        *,
        model: str,
        new_tokens: int,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        """Ask `model` for answers of `new_tokens`; one that takes longer than `timeout_s` has failed."""
        self.session, self.address, self.clock = session, address, clock
        self.model, self.new_tokens, self.timeout_s = model, new_tokens, timeout_s
        self.extras: dict[str, Any] = dict(WHOLE_ANSWERS)

    async def greet(self, prompt: Prompt) -> str:
        """Ask once, learn what the server accepts, and return why it does not answer; "" where it does."""
        answer = await self.ask(prompt)
        refused = tuple(f"HTTP {code}" for code in REFUSED_FIELDS)
        if answer.failure.startswith(refused) and self.extras:
            self.extras = {}
            answer = await self.ask(prompt)
        return answer.failure

    async def ask(self, prompt: Prompt) -> Answer:
        """Return the answer to `prompt`, or how it failed."""
        from aiohttp import ClientError

        answer = Answer(self.clock())
        try:
            async with asyncio.timeout(self.timeout_s or None):
                async with self.session.post(
                    self.address.asked,
                    json=self._body(prompt),
                    headers=self.address.headers,
                    allow_redirects=False,
                ) as response:
                    return await self._read(response, answer)
        except TimeoutError:
            failure = f"no whole answer within {self.timeout_s:g} s"
        except ChunkError as error:
            failure = str(error)
        except (ClientError, OSError) as error:
            failure = reason(error)
        return answer._replace(failure=self.address.without_key(failure), ended_s=self.clock())

    async def _read(self, response: "ClientResponse", answer: Answer) -> Answer:
        """Return the answer that a response streams."""
        if response.status != OK:
            said = await response.content.read(MOST_ERROR_BYTES)
            raise ChunkError(f"HTTP {response.status}: {_words(said)}")
        if response.content_type != STREAM:
            raise ChunkError(f"{response.content_type} instead of a stream of events")
        events, times, whole = Events(), list[float](), False
        prompt_tokens = written_tokens = 0
        async for received in response.content.iter_any():
            at_s = self.clock()
            for data in events.feed(received):
                chunk: Chunk = chunk_of(data)
                if chunk.writes:
                    times.append(at_s)
                whole = whole or chunk.ends
                prompt_tokens = chunk.prompt_tokens or prompt_tokens
                written_tokens = chunk.written_tokens or written_tokens
        if not whole:
            raise ChunkError("the stream was cut before the answer was whole")
        if not times:
            raise ChunkError("an answer without a token")
        return answer._replace(
            times_s=tuple(times),
            ended_s=times[-1],
            prompt_tokens=prompt_tokens,
            written_tokens=written_tokens or len(times),
            counted=written_tokens > 0,
        )

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        """Return what a request says."""
        content: dict[str, Any] = {"prompt": prompt.content}
        if self.address.api == "chat":
            content = {"messages": [{"role": "user", "content": prompt.content}]}
        return {
            "model": self.model, **content, "max_tokens": self.new_tokens, "temperature": 0.0,
            "stream": True, "stream_options": {"include_usage": True}, **self.extras,
        }  # fmt: skip


def reason(error: Exception) -> str:
    """Return why a connection brought nothing, in words that are the same for the same cause."""
    from aiohttp import ClientConnectorError, ClientPayloadError, ServerDisconnectedError

    if isinstance(error, ClientConnectorError):
        code = error.os_error.errno
        return f"no connection: {os.strerror(code) if code and code > 0 else error.os_error}"
    if isinstance(error, ClientPayloadError | ServerDisconnectedError | ConnectionResetError):
        return "the stream was cut before the answer was whole"
    return f"{type(error).__name__}: {error_text(error)}"


def _words(body: bytes) -> str:
    """Return what the body of an error says."""
    text: Any = body.decode(errors="replace")
    with suppress(ValueError, RecursionError):
        text = json.loads(text)
    return error_text(text)
