"""An ASGI application that sends the events of a session to a web page.

It has no dependencies. Mount it in an application of Starlette or FastAPI, or serve it with any ASGI server.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Any, ClassVar, Final
from urllib.parse import parse_qs

from lango_store._rooms.tail.following import Reader, follow_async
from lango_store._rooms.tail.values import Event
from lango_store.aio import AsyncStore
from lango_store.errors import (
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidCursor,
    InvalidKey,
    LangoStoreError,
    SessionExpired,
    SessionNotFound,
    quoted,
)

logger = logging.getLogger("lango_store.sse")

Authorize = Callable[[Mapping[str, Any], str], bool | Awaitable[bool]]
"""A function that takes a request's ASGI scope and a session key; returns True if the request may read the session."""

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STATUS: Final[dict[type, int]] = {
    SessionNotFound: 404,
    SessionExpired: 410,
    InvalidKey: 400,
    InvalidCursor: 400,
    DatabaseBusy: 503,
    DatabaseUnavailable: 503,
}
HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise, nginx buffers the events
]
"""The headers of a stream of events."""


class Application(ABC):
    """An ASGI application that answers GET requests with frames of server-sent events about one session.

    Subclasses define the path and the frames.
    """

    path: ClassVar[re.Pattern[str]]
    """The path, with the key as its only group. The key of a child session contains slashes."""

    headers: ClassVar[list[tuple[bytes, bytes]]] = HEADERS

    def __init__(
        self, store: AsyncStore, *, authorize: Authorize, heartbeat: timedelta = timedelta(seconds=15)
    ) -> None:
        if not isinstance(store, AsyncStore):
            raise TypeError(f"store is {type(store).__name__}: give an AsyncStore")
        if not callable(authorize):
            raise TypeError(f"authorize is {type(authorize).__name__}: give a function of the scope and the key")
        if heartbeat <= timedelta(0):
            raise ValueError("heartbeat is not positive: give a timedelta")
        self._store = store
        self._authorize = authorize
        self._heartbeat = heartbeat.total_seconds()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise LangoStoreError(f"{type(self).__name__} answers HTTP requests, not {scope['type']}")
        match = self.path.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
        if match is None:
            await _refuse(send, 404)
        elif scope["method"] != "GET":
            await _refuse(send, 405, (b"allow", b"GET"))
        elif not await self._may_read(scope, match[1]):
            await _refuse(send, 403)
        else:
            await self._answer(scope, match[1], receive, send)

    async def _may_read(self, scope: _Scope, key: str) -> bool:
        answer = self._authorize(scope, key)
        return (await answer if inspect.isawaitable(answer) else answer) is True

    async def _answer(self, scope: _Scope, key: str, receive: _Receive, send: _Send) -> None:
        """Send events until the session ends or the client disconnects."""
        tasks = [asyncio.ensure_future(self._send_frames(scope, key, send)), asyncio.ensure_future(_gone(receive))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in done:
            with suppress(OSError):  # some servers raise it if the client has disconnected
                task.result()

    @abstractmethod
    def _frames(self, scope: _Scope, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the frames of an answer. Without any, the status is 204."""

    async def _send_frames(self, scope: _Scope, key: str, send: _Send) -> None:
        has_started = False
        try:
            async with aclosing(self._frames(scope, key)) as frames:
                async for frame in frames:
                    if not has_started:  # the session was read, and errors have no status any more
                        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
                        has_started = True
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
        except LangoStoreError as error:
            if not has_started:
                if (status := next((_STATUS[kind] for kind in type(error).mro() if kind in _STATUS), None)) is None:
                    raise
                await _refuse(send, status)
                return
            logger.warning("the event stream of session %s ended: %s", quoted(key), error)
        if has_started:
            await send({"type": "http.response.body", "body": b""})
        else:
            await _refuse(send, 204)


class EventStream(Application):
    """An ASGI application that answers `GET /KEY/events` with the events of `AsyncConversation.tail`.

    The id of an event is its `cursor`, the type is its field `event` (`appended`, `changed`, `piece`, `turn_began`,
    `turn_ended`, `ended`), and the data is its other fields as JSON. A browser that reconnects sends the id of the last
    event, and gets the events after it. With `?after=`, a new client can choose the `seq` or cursor to start after; the
    default is 0.

    The status is 403 if the request may not read the session, 404 if there is no such session or path, 410 if the
    session has expired, 400 for an invalid key or cursor, 405 for other methods than GET, and 503 if the database is
    busy or not available.

    Args:
        store: The `AsyncStore` to read.
        authorize: A function, or a coroutine function, that takes the ASGI scope of the request and the session key,
            and returns True if the request may read this session. Any other result refuses the request. It is called
            once for each request, in the event loop.
        heartbeat: How long the stream is silent before a comment is sent, so that proxies keep it open. Defaults to
            15 seconds.
        retry: How long a browser waits before it reconnects. Defaults to 1 second.

    Raises:
        TypeError: `store` is not an `AsyncStore`, or `authorize` is not callable.
        ValueError: `heartbeat` is not positive, or `retry` is negative.

    Example:
        ```python
        def may_read(scope, key):
            return key.startswith(f"{scope['user'].username}:")


        app.mount("/sessions", EventStream(store, authorize=may_read))
        ```
    """

    path = re.compile("/(.+)/events", re.DOTALL)

    def __init__(
        self,
        store: AsyncStore,
        *,
        authorize: Authorize,
        heartbeat: timedelta = timedelta(seconds=15),
        retry: timedelta = timedelta(seconds=1),
    ) -> None:
        super().__init__(store, authorize=authorize, heartbeat=heartbeat)
        if retry < timedelta(0):
            raise ValueError("retry is negative: give a timedelta")
        self._retry = f"retry: {retry // timedelta(milliseconds=1)}\n\n".encode()

    async def _frames(self, scope: _Scope, key: str) -> AsyncGenerator[bytes, None]:
        reader = Reader(self._store.store._context, key, requested_position(scope) or "0", follow=True)
        async with aclosing(follow_async(self._store._threads, reader, self._heartbeat)) as events:
            retry = self._retry
            async for event in events:
                yield retry + _frame(event)
                retry = b""


async def _gone(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def requested_position(scope: _Scope) -> str | None:
    """Return the position after which a request wants events; None if it has none."""
    for name, value in scope["headers"]:
        if name == b"last-event-id":
            return bytes(value).decode("latin-1")
    return parse_qs(bytes(scope["query_string"]).decode("latin-1")).get("after", [None])[-1]


def _frame(event: Event | None) -> bytes:
    return b":\n\n" if event is None else f"id: {event.cursor}\nevent: {event.event}\ndata: {event.data}\n\n".encode()


async def _refuse(send: _Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0"), *headers]})
    await send({"type": "http.response.body", "body": b""})
