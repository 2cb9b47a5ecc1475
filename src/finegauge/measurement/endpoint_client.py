"""One request to a server and its answer, with the time at which every part of it arrived.

Whatever goes wrong with a request is part of its answer, in words that are the same for the same kind of
failure, so that failures can be counted. A redirection is not followed: it would carry the key elsewhere.
Answers are server-sent events, whose bytes arrive cut anywhere; the role that a chat begins with is no
token.

Prompts are as long as the run's, no two alike, so that none is in the server's cache. `completions` gets
tokens: those of the run's texts, else random ones. `chat` gets text: tokens written out by the run's
tokenizer, or common words where it names none. The server's own count is reported.
"""

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.data.batch_shape import lengths
from finegauge.data.token_lengths import token_ids
from finegauge.data.tokenizer import load_tokenizer, tokenizer_file
from finegauge.errors import FieldError, InputError, did_you_mean, shown
from finegauge.measurement.options import Options
from finegauge.run.phases import prompts_of
from finegauge.run.run import Run

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

APIS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
FROM_INSIDE = ("layers", "kernels", "ncu", "experts", "energy", "evaluate", "tasks", "trace_path")
LONGEST_URL = 2000


class Address(NamedTuple):
    """A server, and the way in."""

    url: str  # without a slash at its end, and without /v1
    api: str
    key: str  # "": none is needed

    @property
    def asked(self) -> str:
        """Return where answers are asked for."""
        return self.url + APIS[self.api]

    @property
    def headers(self) -> dict[str, str]:
        """Return what every request carries."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def without_key(self, text: str) -> str:
        """Return a server's words without the key, should it repeat it."""
        return text.replace(self.key, "***") if self.key else text


def address_of(options: Options) -> Address:
    """Return where `options` say that answers are to be had.

    Raises: InputError for what is no address, or an environment variable that is not set.
    """
    from urllib.parse import urlsplit

    url = options.endpoint.strip().rstrip("/").removesuffix("/v1")
    try:
        parts = urlsplit(url)
        reachable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        secret = parts.username is not None or parts.password is not None
    except ValueError:
        reachable, secret = False, False
    if secret:
        raise InputError(
            "endpoint: the URL holds a name or password; keep the key in an environment variable and name "
            "that by --api-key-variable."
        )
    if not reachable or parts.query or parts.fragment or len(url) > LONGEST_URL or not url.isprintable():
        raise InputError(f"endpoint={shown(options.endpoint)} is no URL like http://127.0.0.1:8000.")
    if options.endpoint_api not in APIS:
        raise InputError(
            f"endpoint_api={shown(options.endpoint_api)} should be completions or chat."
            f"{did_you_mean(options.endpoint_api, APIS)}"
        )
    return Address(url, options.endpoint_api, _key(options.api_key_variable))


def check_options(options: Options) -> None:
    """Refuse options that no server can answer, before the first request.

    Raises: InputError, with what to do.
    """
    address_of(options)
    inside = next((name for name in FROM_INSIDE if getattr(options, name)), "")
    if inside:
        raise InputError(
            f"endpoint: a server is seen from outside, so {inside.removesuffix('_path')} cannot be measured; "
            "leave it out."
        )
    for name in ("num_requests", "requests_per_s", "request_timeout_s", "timeout_s"):
        if not 0 <= getattr(options, name) < 1e9:
            raise FieldError(f"{name}={getattr(options, name)} should be a number from 0 on.")


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(
            f"api_key_variable={shown(variable)}: the environment holds no key by that name; export it first."
        )
    return key


DONE = "[DONE]"
LONGEST_EVENT_BYTES = 1 << 20


class ChunkError(ValueError):
    """A chunk that is none, in a few words."""


class Chunk(NamedTuple):
    """What one event says."""

    writes: bool = False  # whether the model wrote something
    ends: bool = False  # whether the answer is whole
    prompt_tokens: int = 0  # as the server counts them; 0 where the chunk does not say
    written_tokens: int = 0


class Events:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> Iterator[str]:
        """Yield the data of every event that `received` completes.

        Raises: ChunkError for an event without end, or bytes that are no text.
        """
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_EVENT_BYTES:
            raise ChunkError("a chunk without end")
        for raw in lines:
            try:
                line = raw.rstrip(b"\r").decode()
            except UnicodeDecodeError:
                raise ChunkError("a chunk that is no text") from None
            if not line and self._data:
                yield "\n".join(self._data)
                self._data = []
            elif line.startswith("data:"):
                self._data.append(line.removeprefix("data:").removeprefix(" "))


def chunk_of(data: str) -> Chunk:
    """Return what the data of one event says.

    Raises: ChunkError for what is no chunk, with the server's words where it reports an error.
    """
    if data.strip() == DONE:
        return Chunk(ends=True)
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise ChunkError("a malformed chunk") from None
    if not isinstance(said, dict):
        raise ChunkError("a malformed chunk")
    if said.get("error") or said.get("object") == "error":
        raise ChunkError(f"an error in the stream: {error_text(said)}")
    usage, choices = said.get("usage"), said.get("choices")
    counts = usage if isinstance(usage, dict) else {}
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict) or not isinstance(choices, list):
        raise ChunkError("a malformed chunk")
    ends = bool(choice.get("finish_reason"))
    return Chunk(
        writes=bool(choice) and _writes(choice, ends=ends),
        ends=ends,
        prompt_tokens=_count(counts.get("prompt_tokens")),
        written_tokens=_count(counts.get("completion_tokens")),
    )


def error_text(said: Any) -> str:
    """Return what the body of an error says, in one short line."""
    if isinstance(said, Mapping):
        inner = said.get("error", said)
        said = inner.get("message", inner.get("detail", inner)) if isinstance(inner, Mapping) else inner
    text = "".join(c if c.isprintable() else " " for c in str(said))
    return " ".join(text.split())[:160] or "no words"


def _writes(choice: Mapping[str, Any], *, ends: bool) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return bool(choice.get("text")) or not ends
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return bool(text) or not (ends or delta.get("role"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


COMMON = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city"
)
WORDS = COMMON.split()
PLAIN_FRACTIONS = (0.02, 0.8)  # of a vocabulary: what stands around them may have a meaning of its own
TRIES = 8  # text that is cut is not always cut into the same tokens again


class Prompt(NamedTuple):
    """What one request asks."""

    content: list[int] | str  # tokens for completions, text for chat
    tokens: int  # its length as meant; the server may count another


def prompts(run: Run, api: str, seed: int) -> Iterator[Prompt]:
    """Yield prompts of `run` without end.

    Raises: FineGaugeError where the run's data set or tokenizer cannot be read.
    """
    dice = random.Random(seed)
    asked = prompts_of(run)
    samples = _samples(asked, dice)
    if api == "completions":
        for tokens in samples:
            yield Prompt(tokens, len(tokens))
    writer = _tokenizer(run)
    for tokens in samples:
        if writer is None:
            yield Prompt(" ".join(dice.choices(WORDS, k=len(tokens))), len(tokens))
        else:
            yield _written(writer, tokens)


def _samples(asked: Run, dice: random.Random) -> Iterator[list[int]]:
    """Yield the tokens of prompts: the run's texts in random order, else random ones of its lengths."""
    if asked.dataset is not None and asked.tokenizer is not None:
        texts = [text[: asked.seq_len] for text in token_ids(asked.dataset, asked.tokenizer) if text]
        dice.shuffle(texts)
        yield from cycle(texts)
    vocab_size = int(asked.config["vocab_size"])
    low, high = (int(fraction * vocab_size) for fraction in PLAIN_FRACTIONS)
    known = lengths(asked, padded=False)
    while True:
        length = dice.choices(known.lengths, known.counts)[0] if known else asked.seq_len
        yield dice.choices(range(low, max(high, low + 1)), k=length)


def _tokenizer(run: Run) -> Any:
    return None if run.tokenizer is None else load_tokenizer(tokenizer_file(run.tokenizer))


def _written(writer: Any, tokens: list[int]) -> Prompt:
    wanted, known = len(tokens), writer.get_vocab_size()
    tokens = [token % known for token in tokens]
    text, best, off = writer.decode(tokens), "", wanted + 1
    for _ in range(TRIES):
        found = writer.encode(text, add_special_tokens=False).ids
        if abs(len(found) - wanted) < off:
            best, off = text, abs(len(found) - wanted)
        if not off:
            break
        text = writer.decode((found + tokens[len(found) :])[:wanted])
    return Prompt(best or text, wanted)


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
    text: Any = body.decode(errors="replace")
    with suppress(ValueError, RecursionError):
        text = json.loads(text)
    return error_text(text)
