"""What a server sends while it writes: server-sent events, and the chunks of an answer in them.

An event is lines up to an empty one; its `data` is JSON, or the word [DONE]. Bytes arrive cut
anywhere. Chunks that count as written are those with text, and those without text that end
nothing (a token may have no letters of its own); the role that a chat begins with does not count.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
        """Begin with nothing."""
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
    """Return whether the model wrote something."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return bool(choice.get("text")) or not ends
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    return bool(text) or not (ends or delta.get("role"))


def _count(value: Any) -> int:
    """Return a count of tokens; 0 for none."""
    return value if isinstance(value, int) and value > 0 else 0
