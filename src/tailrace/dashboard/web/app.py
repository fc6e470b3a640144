"""The web application: pages, the JSON API, metrics and probes over one collector."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tailrace.dashboard.answers import EntityFeatures
from tailrace.dashboard.collector import Collector
from tailrace.dashboard.sources import reason_of
from tailrace.dashboard.values import State
from tailrace.dashboard.view.live_events import detail_of, token_parts
from tailrace.dashboard.web.access import Access, Guard, problem
from tailrace.dashboard.web.actions import Control
from tailrace.dashboard.web.broadcast import Broadcaster, EventStream, encode
from tailrace.dashboard.web.endpoints import PARTS, Endpoint, description
from tailrace.errors import ControlRefused, TailraceError
from tailrace.features import read_named
from tailrace.logs import get_logger
from tailrace.monitor import REGISTRY, DashboardMetrics
from tailrace.settings import Settings

STATIC = Path(__file__).with_name("static")
_LARGEST_BODY = 64 * 1024
_EVENTS_OF_A_MESSAGE = 40
_FIRST_EVENTS = 100
_OLDEST_HEALTHY_STATE = 15.0
_log = get_logger("tailrace.dashboard")


class Dashboard:
    """One dashboard: `app` is what a server runs, `close_streams` lets its browsers go."""

    def __init__(self, settings: Settings) -> None:
        dashboard = settings.dashboard
        self._access = Access.of(dashboard)
        self.collector = Collector(settings)
        metrics = DashboardMetrics(f"{dashboard.address}:{dashboard.port}")
        self.broadcaster = Broadcaster(dashboard.client_kb * 1024, dashboard.max_clients, metrics)
        token = dashboard.control_token.get_secret_value() if dashboard.control_token else None
        self._control = Control(token, self.collector.producer_url)
        self._sent_events = 0
        self.app = Starlette(
            routes=self._routes(),
            middleware=[Middleware(Guard, access=self._access)],
            exception_handlers={TailraceError: _refused, HTTPException: _not_there, Exception: _unexpected},
            lifespan=self._lifespan,
        )

    def close_streams(self) -> None:
        """End the connections that last; call it in the event loop before the server waits for them."""
        self.broadcaster.close()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def published(state: State) -> None:
            loop.call_soon_threadsafe(self._publish, state)

        self.collector.listen(published)
        self.collector.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.collector.close)

    def _publish(self, state: State) -> None:
        """Send a new state, and the events since the last one, to all browsers."""
        events = self.collector.events
        lines = events.since(self._sent_events, _EVENTS_OF_A_MESSAGE)
        self._sent_events = events.count
        if self.broadcaster.count:
            messages = [encode("events", orjson.dumps(lines))] if lines else []
            self.broadcaster.publish(encode("state", orjson.dumps(state)), *messages)

    def _routes(self) -> list[Route | Mount]:
        return [
            Route("/", _page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/healthz", self._health),
            Route("/readyz", self._ready),
            Route("/metrics", _metrics),
            *(Route(endpoint.path, self._part(endpoint)) for endpoint in PARTS),
            Route("/api/openapi.json", lambda _: _json(description())),
            Route("/api/history", self._history),
            Route("/api/events", self._events),
            Route("/api/events/{number}", self._event),
            Route("/api/features/{name}/{entity:path}", self._entity),
            Route("/api/tokens/{token}", self._token),
            Route("/api/stream", self._stream),
            Route("/api/actions/{action}", self._act, methods=["POST"]),
        ]

    def _part(self, endpoint: Endpoint) -> Callable[[Request], Response]:
        part = endpoint.part
        assert part is not None
        return lambda _: _json(part(self.collector.state))

    async def _history(self, request: Request) -> Response:
        found = self.collector.history.read(request.query_params.get("span", "5m"))
        if found is None:
            raise ControlRefused("there is no such span", status=HTTPStatus.BAD_REQUEST, hint="Ask for 5m or 1h.")
        return _json(found)

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", "100")
        if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= 1_000:
            raise ControlRefused("`limit` is a number from 1 to 1000", status=HTTPStatus.BAD_REQUEST, hint="")
        names = {name: query.get(name, "") for name in ("namespace", "operation", "text")}
        return _json(self.collector.events.newest(int(limit), **names))

    async def _event(self, request: Request) -> Response:
        number = request.path_params["number"]
        event = self.collector.events.find(int(number)) if number.isdecimal() and len(number) < 19 else None
        if event is None:
            hint = "Only the newest events are held (dashboard.events_mb)."
            raise ControlRefused("this event is not held", status=HTTPStatus.NOT_FOUND, hint=hint)
        return _json(await run_in_threadpool(detail_of, event))

    async def _entity(self, request: Request) -> Response:
        name, entity = request.path_params["name"], request.path_params["entity"]
        return _json(await run_in_threadpool(read_entity, self.collector, name, entity))

    async def _token(self, request: Request) -> Response:
        return _json(token_parts(request.path_params["token"]))

    async def _stream(self, request: Request) -> EventStream:
        events = self.collector.events
        lines = events.since(max(0, events.count - _FIRST_EVENTS), _FIRST_EVENTS)
        first = encode("state", orjson.dumps(self.collector.state)) + encode("events", orjson.dumps(lines))
        return self.broadcaster.answer(first)

    async def _act(self, request: Request) -> Response:
        body = await _body(request)
        actor = f"dashboard, for {request.client.host if request.client else 'somebody'}"
        return _json(await run_in_threadpool(self._control.ask, request.path_params["action"], body, actor))

    async def _health(self, _: Request) -> Response:
        age = time.time() - self.collector.state.at
        is_well = age < _OLDEST_HEALTHY_STATE
        return _json({"healthy": is_well}, HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _ready(self, _: Request) -> Response:
        """Ready is who has polled everything once, whatever was found."""
        waiting = [source.name for source in self.collector.state.sources if source.at is None]
        status = HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK
        return _json({"ready": not waiting}, status)


async def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def _metrics(request: Request) -> Response:
    write, kind = choose_encoder(request.headers.get("accept", ""))
    return Response(write(REGISTRY), media_type=kind)


async def _body(request: Request) -> dict[str, Any]:
    """Read a JSON object of bounded size."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        raise ControlRefused("the body is no JSON", status=status, hint="Send Content-Type: application/json.")
    data = b""
    async for block in request.stream():
        data += block
        if len(data) > _LARGEST_BODY:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise ControlRefused(f"a body has at most {_LARGEST_BODY:,} bytes", status=status, hint="")
    try:
        body = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise ControlRefused("the body is no JSON object", status=HTTPStatus.BAD_REQUEST, hint="")
    return body


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, ControlRefused):
        return problem(error)
    assert isinstance(error, TailraceError)
    return _json({"code": error.code, "message": reason_of(error), "hint": error.hint}, HTTPStatus.SERVICE_UNAVAILABLE)


async def _not_there(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    words = {404: "there is no such page", 405: "this method is not for this page"}
    message = words.get(status, HTTPStatus(status).phrase.lower())
    return problem(ControlRefused(message, status=status, hint="GET /api/openapi.json lists what there is."))


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.error("request_failed", path=request.url.path, reason=reason_of(error), exc_info=error)
    return problem(ControlRefused("the request failed; the log says why", status=500, hint=""))


def read_entity(collector: Collector, name: str, entity: str) -> EntityFeatures:
    """Read the features of an entity as they are now; blocks while Redis answers."""
    known = [one.name for one in collector.state.features]
    if name not in known:
        hint = f"There are {', '.join(known)}." if known else "No job has written features into this Redis yet."
        raise ControlRefused(f"no features are called {name!r}", status=HTTPStatus.NOT_FOUND, hint=hint)
    found = read_named(collector.redis.client(), entity, name)
    return EntityFeatures(
        name=name,
        entity=entity,
        at=found.at.timestamp(),
        values=dict(found.values),
        as_of=_seconds(found.as_of),
        updated_at=_seconds(found.updated_at),
        freshness_seconds=found.freshness,
        position=found.position,
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
