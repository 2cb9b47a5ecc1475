"""How much one request may ask: bytes, depth, fields, characters; what goes beyond is refused in a sentence.

A body is read up to its limit and no further, so that a hostile one costs no more than an honest one.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegauge.documents import num_values

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_BODY_BYTES = 262_144
MAX_QUERY_BYTES = 65_536  # a share link
MAX_DEPTH = 16
MAX_KEYS = 2_000  # and items of lists, all together
MAX_FIELDS = 200  # of a form
BODY_WITHIN_S = 10.0
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class RefusedError(Exception):
    """A request that is not answered, and why.

    Attributes:
        status: Of HTTP.
        sentence: What is wrong and what to do.
        field: Whose value is wrong; None where it is no field's.
        retry_after_s: When to ask again; None where asking again does not help.
    """

    def __init__(
        self, status: int, sentence: str, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        """Say why, and when to ask again."""
        super().__init__(sentence)
        self.status, self.sentence, self.field, self.retry_after_s = status, sentence, field, retry_after_s


async def body_of(request: "Request", media_type: str) -> bytes:
    """Return the body of a request.

    Raises: RefusedError (408, 413, 415) where it is slow, too long or of another type.
    """
    import asyncio

    stated = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if stated != media_type:
        raise RefusedError(415, f"Send the body as {media_type}, not as {stated or 'nothing stated'}.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:12]) > MAX_BODY_BYTES:
        raise _too_long()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            return await _read(request)
    except TimeoutError:
        raise RefusedError(
            408, f"The body did not arrive within {BODY_WITHIN_S:.0f} s; send it again."
        ) from None


async def _read(request: "Request") -> bytes:
    from starlette.requests import ClientDisconnect

    parts, size = [], 0
    try:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise _too_long()
    except ClientDisconnect:
        raise RefusedError(400, "The body ended early; send it again.") from None
    return b"".join(parts)


def _too_long() -> RefusedError:
    return RefusedError(413, f"The body is too long; at most {MAX_BODY_BYTES // 1024} KiB are read.")


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body holds.

    Raises: RefusedError (400, 422) where it is none, nests deep, repeats a key, or holds NaN or NUL.
    """
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_object
        )
    except RefusedError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        at = error if isinstance(error, json.JSONDecodeError) else None
        where = f" (line {at.lineno}, column {at.colno})" if at else ""
        raise RefusedError(400, f"The body is no JSON{where}; send an object such as {{}}.") from None
    if not isinstance(value, dict):
        raise RefusedError(422, "The body must be a JSON object, such as {}.")
    if (number := num_values(value, MAX_DEPTH)) is None:
        raise _too_deep()
    if number > MAX_KEYS:
        raise RefusedError(422, f"The JSON is too large; at most {MAX_KEYS:,} keys and items are read.")
    for name, item in value.items():
        _check_text(name, item)
    return value


def _too_deep() -> RefusedError:
    return RefusedError(422, f"The JSON nests too deep; at most {MAX_DEPTH} levels are read.")


def form_fields(text: bytes) -> dict[str, str]:
    """Return the fields of a form or of a query: of a repeated one, the last value.

    Raises: RefusedError (422) for too many of them, and for text that is none.
    """
    from urllib.parse import parse_qsl

    try:
        pairs = parse_qsl(
            text.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except UnicodeDecodeError:
        raise RefusedError(422, "The fields are not UTF-8 text; send them percent-encoded.") from None
    except ValueError:
        raise RefusedError(422, f"Too many fields; at most {MAX_FIELDS} are read.") from None
    fields = dict(pairs)
    for name, value in fields.items():
        _check_text(name, value)
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise RefusedError(422, "A key stands twice in one object; keep one.", _field(twice))
    return found


def _no_constant(word: str) -> float:
    raise RefusedError(400, f"{word} is no JSON; send a finite number or null.")


def _integer(digits: str) -> int:
    if len(digits) > 40:
        raise RefusedError(422, "A number has more than 40 digits; send a shorter one.")
    return int(digits)


def _check_text(name: str, value: Any) -> None:
    """Raise where a text holds NUL or half a character, which no file and no terminal takes."""
    texts = [name, value] if isinstance(value, str) else [name]
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(key, item)
    elif isinstance(value, list):
        for item in value:
            _check_text(name, item)
    for text in texts:
        if _NO_TEXT.search(text):
            raise RefusedError(422, "A text holds NUL or half a character; send plain UTF-8.", _field(name))


def _field(name: str) -> str | None:
    """Return a key as the name of a field; None where it cannot be one."""
    return name if name.isidentifier() and len(name) <= 60 else None
