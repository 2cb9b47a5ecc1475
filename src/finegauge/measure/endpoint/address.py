"""Which server is asked, how, and with whose key; what cannot be asked of a server is refused here."""

import os
from typing import TYPE_CHECKING, NamedTuple

from finegauge.errors import FieldError, InputError, UnsupportedError, did_you_mean, shown
from finegauge.measure.options import Options
from finegauge.workload.prompts import SERVING

if TYPE_CHECKING:
    from finegauge.workload.run import Run

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
    """Refuse options that no server can answer, before anything is asked of it.

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


def check_run(run: "Run") -> None:
    """Refuse runs that are no serving.

    Raises: UnsupportedError.
    """
    if run.phase not in SERVING:
        raise UnsupportedError(
            f"An endpoint serves, and phase={run.phase} does not; add phase=decode (or prefill) to the run."
        )


def _key(variable: str) -> str:
    """Return the key that an environment variable holds; "" where none is named."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(
            f"api_key_variable={shown(variable)}: the environment holds no key by that name; export it first."
        )
    return key
