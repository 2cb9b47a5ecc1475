"""The local server's routes: the page, its files, the JSON interface and its description.

request -> guard (who asks) -> limits (how much) -> a worker process (the answer) -> gzip
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from finegauge.errors import internal_error
from finegauge.web import jobs, limits
from finegauge.web.api import JSON, LISTINGS, QUESTIONS
from finegauge.web.assets import PREFIX, assets, style_source
from finegauge.web.limits import RefusedError
from finegauge.web.openapi import API, openapi_text
from finegauge.web.response_cache import Reply
from finegauge.web.workers import Answering, Workers, ready

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost", "[::1]")
_DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": style_source(),
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "font-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {source}" for name, source in _DIRECTIVES.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Guarded:
    """An application whose every answer carries the headers, and which strangers do not reach."""

    def __init__(self, app: App) -> None:
        """Guard `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a stranger, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        status, why = refusal(scope["method"], Headers(scope=scope))
        app: App = PlainTextResponse(f"{why}\n", status_code=status) if why else self.app
        await app(scope, receive, sent)


def refusal(method: str, headers: Headers) -> tuple[int, str]:
    """Return the status and the sentence with which a request is refused; (200, "") where it is not."""
    host = headers.get("host", "").lower()
    if _without_port(host) not in HOSTS:
        return 400, "This server answers to 127.0.0.1 and localhost only; open it under one of them."
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if method in _SAFE_METHODS and headers.get("sec-fetch-dest", "document") == "document":
        return 200, ""  # a link that somebody follows, or no browser
    foreign = site is not None and site not in ("same-origin", "none")
    if foreign or (origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")):
        return 403, "This request comes from another site; send it from the page of this server."
    return 200, ""


def _without_port(host: str) -> str:
    """Return the name in a Host header: "[::1]" of "[::1]:8317"."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


FORM = "application/x-www-form-urlencoded"
GZIP_FROM_BYTES = 1_000
GZIP_LEVEL = 5
FOR_A_YEAR = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(answering: Answering) -> App:
    """Return the whole application.

    Args:
        answering: Computes the answers; Workers are started and stopped with the application.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if isinstance(answering, Workers):
            answering.start()
        try:
            yield
        finally:
            if isinstance(answering, Workers):
                answering.stop()

    async def health(_: Request) -> Response:
        return _response(await answering.reply(ready))

    routes = [
        *_page_routes(answering),
        *_api_routes(answering),
        Route(f"{PREFIX}{{name:path}}", _asset, methods=["GET"]),
        Route("/favicon.ico", _no_icon, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={RefusedError: _refused, HTTPException: _http_error, Exception: _internal_error},
    )
    app.router.redirect_slashes = False
    return Guarded(GZipMiddleware(app, minimum_size=GZIP_FROM_BYTES, compresslevel=GZIP_LEVEL))


def _page_routes(answering: Answering) -> list[Route]:
    async def index(request: Request) -> Response:
        return _response(await answering.reply(jobs.page, "index", _query(request)))

    def posted(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            fields = limits.form_fields(await limits.body_of(request, FORM))
            search = name in jobs.SEARCHES
            return _response(await answering.reply(jobs.page, name, fields, search=search))

        return endpoint

    async def download(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in jobs.DOWNLOADS:
            raise HTTPException(404)
        is_get = request.method in ("GET", "HEAD")
        fields = _query(request) if is_get else limits.form_fields(await limits.body_of(request, FORM))
        search = name in jobs.SEARCHES
        return _response(await answering.reply(jobs.download, name, fields, search=search))

    fragments = [
        Route(f"/{name}", posted(name), methods=["POST"]) for name in jobs.PAGES if name not in _WHOLE
    ]
    return [
        Route("/", index, methods=["GET"]),
        Route("/", posted("submitted"), methods=["POST"]),
        *fragments,
        Route("/download/{name}", download, methods=["GET", "POST"]),
    ]


_WHOLE = ("index", "submitted")


def _api_routes(answering: Answering) -> list[Route]:
    def question(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = limits.json_object(await limits.body_of(request, JSON))
            return _response(await answering.reply(jobs.question, name, asked, search=name in jobs.SEARCHES))

        return endpoint

    def listing(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return _response(await answering.reply(jobs.question, name, _query(request)))

        return endpoint

    async def openapi(_: Request) -> Response:
        return Response(openapi_text(), media_type=JSON)

    return [
        *[Route(f"{API}/{name}", question(name), methods=["POST"]) for name in QUESTIONS],
        *[Route(f"{API}/{name}", listing(name), methods=["GET"]) for name in LISTINGS],
        Route("/openapi.json", openapi, methods=["GET"]),
    ]


def _query(request: Request) -> Mapping[str, str]:
    """Return the fields of a query.

    Raises: RefusedError where it is too long, or no text.
    """
    text: bytes = request.scope["query_string"]
    if len(text) > limits.MAX_QUERY_BYTES:
        raise RefusedError(
            414, f"The link is too long; at most {limits.MAX_QUERY_BYTES // 1024} KiB are read."
        )
    return limits.form_fields(text)


def _response(reply: Reply) -> Response:
    headers = dict(reply.headers)
    if reply.filename:
        headers["Content-Disposition"] = f'attachment; filename="{reply.filename}"'
    return Response(reply.body, reply.status, headers, media_type=reply.media_type)


async def _asset(request: Request) -> Response:
    """Return one of the page's files; 304 where the browser has it."""
    found = assets().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    etag = f'"{found.hash}"'
    named = request.query_params.get("v") == found.hash
    headers = {"ETag": etag, "Cache-Control": FOR_A_YEAR if named else ASK_AGAIN}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media_type)


async def _no_icon(_: Request) -> Response:
    return Response(status_code=204, headers={"Cache-Control": "max-age=86400"})


def _error(request: Request, status: int, sentence: str, field: str | None, headers: Any) -> Response:
    """Return an error as JSON to programs, as one line of text to people."""
    if request.url.path.startswith(f"{API}/") or request.url.path == "/openapi.json":
        return JSONResponse({"error": sentence, "field": field}, status, headers)
    return PlainTextResponse(f"{sentence}\n", status, headers)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return _error(request, error.status, error.sentence, error.field, headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "There is no such page; / is the page, /openapi.json describes the JSON interface.",
        405: "This address does not take this method; /openapi.json says which.",
    }
    return _error(
        request, error.status_code, sentences.get(error.status_code, error.detail), None, error.headers
    )


def _internal_error(request: Request, error: Exception) -> Response:
    return _error(request, 500, internal_error(error), None, None)
