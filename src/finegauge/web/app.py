"""The local server's routes: the page, its files, the JSON interface and its description.

request -> guard (who asks) -> workers (how much) -> a worker process (the answer) -> gzip
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from finegauge import __version__
from finegauge.errors import internal_error
from finegauge.web import jobs
from finegauge.web.api import API, JSON, LISTINGS, QUESTIONS, openapi_text
from finegauge.web.assets import PREFIX, assets
from finegauge.web.guard import LOCAL, Access, App, Guarded, error_response
from finegauge.web.storage import MEDIA_TYPE, Figures, Metrics, Reply
from finegauge.web.workers import (
    MAX_QUERY_BYTES,
    Answering,
    Job,
    RefusedError,
    Workers,
    body_of,
    form_fields,
    json_object,
    ready,
)

FORM = "application/x-www-form-urlencoded"
GZIP_FROM_BYTES = 1_000
GZIP_LEVEL = 5
FOR_A_YEAR = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(answering: Answering, access: Access = LOCAL) -> App:
    """Return the whole application.

    Args:
        answering: Computes the answers; Workers are started and stopped with the application.
        access: Who may ask, how often, and under which path.
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

    placed = Below(answering, access.root_path) if access.root_path else answering
    metrics = Metrics()
    routes = [
        *_page_routes(placed),
        *_api_routes(placed, access.root_path),
        Route(f"{PREFIX}{{name:path}}", _asset, methods=["GET"]),
        Route("/favicon.ico", _no_icon, methods=["GET"]),
        *_operator_routes(answering, metrics),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={RefusedError: _refused, HTTPException: _http_error, Exception: _internal_error},
    )
    app.router.redirect_slashes = False
    inner = GZipMiddleware(app, minimum_size=GZIP_FROM_BYTES, compresslevel=GZIP_LEVEL)
    return Guarded(inner, access, metrics, [route.path for route in routes])


_LINK = re.compile(r'(\s(?:href|src|action|formaction|hx-[a-z]+|data-link|readonly value)=")/(?!/)')


class Below:
    """Answers whose links lead below the path at which a proxy shows the page."""

    def __init__(self, answering: Answering, root_path: str) -> None:
        """Put `root_path` before every link of a page and of a fragment."""
        self._answering, self._root_path = answering, root_path

    async def reply(self, job: Job, *args: Any, search: bool = False) -> Reply:
        """Return what `job` answers; what is typed is escaped, so that no quote of it starts an attribute."""
        found = await self._answering.reply(job, *args, search=search)
        if found.filename or found.media_type != "text/html" or not isinstance(found.body, str):
            return found
        headers = dict(found.headers)
        if "HX-Replace-Url" in headers:
            headers["HX-Replace-Url"] = self._root_path + headers["HX-Replace-Url"]
        return found._replace(body=_LINK.sub(rf"\1{self._root_path}/", found.body), headers=headers)


def _operator_routes(answering: Answering, metrics: Metrics) -> list[Route]:
    """Return what the people ask who keep the server: is it alive, does it answer, what has it done."""

    async def health(_: Request) -> Response:
        return _response(await answering.reply(ready))

    async def live(_: Request) -> Response:
        return Response(status_code=204)

    async def counted(_: Request) -> Response:
        now = answering.figures() if isinstance(answering, Workers) else Figures()
        return Response(metrics.text(__version__, now), media_type=MEDIA_TYPE)

    return [
        Route("/health", health, methods=["GET"]),
        Route("/live", live, methods=["GET"]),
        Route("/metrics", counted, methods=["GET"]),
    ]


def _page_routes(answering: Answering) -> list[Route]:
    async def index(request: Request) -> Response:
        return _response(await answering.reply(jobs.page, "index", _query(request)))

    async def choices(request: Request) -> Response:
        return _response(await answering.reply(jobs.page, "choices", _query(request)))

    def posted(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            fields = form_fields(await body_of(request, FORM))
            search = name in jobs.SEARCHES
            return _response(await answering.reply(jobs.page, name, fields, search=search))

        return endpoint

    async def download(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in jobs.DOWNLOADS:
            raise HTTPException(404)
        is_get = request.method in ("GET", "HEAD")
        fields = _query(request) if is_get else form_fields(await body_of(request, FORM))
        search = name in jobs.SEARCHES
        return _response(await answering.reply(jobs.download, name, fields, search=search))

    fragments = [
        Route(f"/{name}", posted(name), methods=["POST"]) for name in jobs.PAGES if name not in _WHOLE
    ]
    return [
        Route("/", index, methods=["GET"]),
        Route("/", posted("submitted"), methods=["POST"]),
        Route("/choices", choices, methods=["GET"]),
        *fragments,
        Route("/download/{name}", download, methods=["GET", "POST"]),
    ]


_WHOLE = ("index", "submitted", "choices")  # that have a route of their own


def _api_routes(answering: Answering, root_path: str) -> list[Route]:
    def question(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = json_object(await body_of(request, JSON))
            return _response(await answering.reply(jobs.question, name, asked, search=name in jobs.SEARCHES))

        return endpoint

    def listing(name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return _response(await answering.reply(jobs.question, name, _query(request)))

        return endpoint

    async def openapi(_: Request) -> Response:
        return Response(openapi_text(root_path), media_type=JSON)

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
    if len(text) > MAX_QUERY_BYTES:
        raise RefusedError(414, f"The link is too long; at most {MAX_QUERY_BYTES // 1024} KiB are read.")
    return form_fields(text)


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


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return error_response(request.url.path, error.status, error.sentence, error.field, headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "There is no such page; / is the page, /openapi.json describes the JSON interface.",
        405: "This address does not take this method; /openapi.json says which.",
    }
    sentence = sentences.get(error.status_code, error.detail)
    return error_response(request.url.path, error.status_code, sentence, headers=error.headers)


def _internal_error(request: Request, error: Exception) -> Response:
    return error_response(request.url.path, 500, internal_error(error))
