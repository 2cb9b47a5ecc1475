"""A link that carries all inputs: deflated JSON in URL-safe base64, bounded on both sides.

token = base64url(deflate({"d": pasted text, "o": overrides}))
"""

import base64
import json
import zlib

from finegauge.errors import FieldError
from finegauge.web.form import MAX_DOCUMENT, State

MAX_TOKEN = 12_000  # characters: servers and browsers take lines of 16 kB
_MAX_TEXT = 6 * MAX_DOCUMENT  # bytes, unpacked
_BROKEN = "The link is damaged or cut off; ask for it again, or fill in the form."


def token_of(state: State) -> str | None:
    """Return the token of what was put in; "" of nothing, None where it is too long for a link."""
    if not state.document and not state.overrides:
        return ""
    text = json.dumps(
        {"d": state.document, "o": dict(state.overrides)},
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()
    token = base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")
    return token if len(token) <= MAX_TOKEN else None


def state_of(token: str) -> State:
    """Return what a token carries; nothing of an empty one.

    Raises: FieldError where it is damaged or too large.
    """
    if not token:
        return State()
    if len(token) > MAX_TOKEN:
        raise FieldError(_BROKEN)
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj(-15)
        raw = unpacker.decompress(packed, _MAX_TEXT)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise FieldError(_BROKEN)
        found = json.loads(raw.decode("utf-8"))
        document, overrides = found["d"], found["o"]
        pairs = {"document": document, **overrides}
    except (ValueError, zlib.error, KeyError, TypeError, RecursionError):
        raise FieldError(_BROKEN) from None
    if not all(isinstance(value, str) for value in pairs.values()):
        raise FieldError(_BROKEN)
    return State.of({**overrides, "document": document})
