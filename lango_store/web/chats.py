"""A chat over HTTP, in the protocols of the AI SDK and of AG-UI.

Each request only writes to the store. Workers answer: in this process, or in others that call `AsyncStore.work`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, Self

from lango_store import LangoStoreError, sse, ui
from lango_store.aio import AsyncConversation, AsyncRunningTurn, AsyncStore
from lango_store.errors import DatabaseBusy, DatabaseUnavailable, NotFound, needs_extra, quoted
from lango_store.ui import streams
from lango_store.ui.agui import runs
from lango_store.ui.aisdk import HEADERS
from lango_store.ui.streams import Awaited
from lango_store.web.requests import GetUser, read_object, store_for

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

logger = logging.getLogger("lango_store.web")

Handler = Callable[[AsyncConversation, AsyncRunningTurn], Awaitable[object]]
"""A function that answers a turn, as `AsyncStore.work` takes it."""

_CHATS: Final = 50
_TITLE: Final = 60
_TOP_LEVEL: Final = {"top_level": True}
_ERRORS: Final = {  # the same for a conversation of another user and for one that does not exist
    401: "The request is not authenticated.",
    404: "There is no such conversation, approval or page.",
    405: "This method is not allowed here.",
    413: "The request is too large.",
    415: "The body is not JSON: send the content type application/json.",
}


def chat(
    store: AsyncStore,
    answer: Handler,
    *,
    user: GetUser,
    background: bool = False,
    client_tools: Collection[str] = (),
    busy: Literal["wait", "refuse"] = "wait",
    agent_id: str | None = None,
    key_prefix: str = "",
    concurrency: int = 8,
    lease: timedelta = timedelta(seconds=30),
    heartbeat: timedelta = timedelta(seconds=15),
    max_body: int = 10 * 2**20,
) -> Chat:
    """Create an ASGI application for chats: with `useChat` of the AI SDK, and with agents of AG-UI.

    Each user sees only sessions with their `user_id`. Every request uses `store.for_user`; a conversation of another
    user is answered as one that does not exist.

    A request only stores what it brings, and a worker answers, so an answer survives the death of any process. A
    request that is sent again changes nothing and does not ask the model again.

    Args:
        store: The store.
        answer: A coroutine function that answers a turn, as `AsyncStore.work` takes it. It returns without asking the
            model if `ui.open_calls` has calls that wait for the user or for the page.
        user: A function or coroutine function that takes the `starlette.requests.Request` and returns the id of the
            user, or None if the request is not authenticated, which is answered with 401. `web.single_user` is for an
            application that only one person can reach, who then has all sessions.
        background: True if other processes answer, with `store.work(answer)`. False (default): this application runs
            `store.work(answer)`, from its start or, if it is mounted without its lifespan, from its first request.
        client_tools: The names of the tools that the page runs. Results of other tools are ignored.
        busy: What to do with a question while the conversation is owed another answer: "wait" (default) stores it, and
            it is answered afterwards; "refuse" answers 409.
        agent_id: The `agent_id` of the conversations. By default, conversations of all agents are shown.
        key_prefix: The prefix of the session keys, which ids in the protocols do not have. Defaults to none.
        concurrency: How many turns this application answers at the same time. Defaults to 8.
        lease: How long a turn keeps its session if this process dies. Defaults to 30 seconds.
        heartbeat: How long a stream is silent before a comment is sent. Defaults to 15 seconds.
        max_body: The maximum size of a request, with its attachments, in bytes. Defaults to 10 MiB.

    Returns:
        The application. It is an asynchronous context manager, which runs the worker: an application that mounts it
        can enter it in its own lifespan.

    Raises:
        TypeError: `store` is not an `AsyncStore`, or `answer` is not a coroutine function, or `user` is not callable.
    """
    if not isinstance(store, AsyncStore):
        raise TypeError(f"store is {type(store).__name__}: give an AsyncStore")
    if not callable(user):
        raise TypeError(f"user is {type(user).__name__}: give a function that returns the id of a request's user")
    if not callable(answer):
        raise TypeError(f"answer is {type(answer).__name__}: give a coroutine function of a conversation and a turn")
    return Chat(
        store,
        answer,
        user,
        background=background,
        work={"concurrency": concurrency, "lease": lease},
        client_tools=client_tools,
        busy=busy,
        agent_id=agent_id,
        key_prefix=key_prefix,
        heartbeat=heartbeat,
        max_body=max_body,
    )


class _Options(NamedTuple):
    client_tools: Collection[str]
    busy: Literal["wait", "refuse"]
    agent_id: str | None
    key_prefix: str
    heartbeat: timedelta
    max_body: int


class Chat:
    """The ASGI application that `chat` returns, and an asynchronous context manager that runs its worker."""

    def __init__(
        self,
        store: AsyncStore,
        answer: Handler,
        user: GetUser,
        *,
        background: bool,
        work: Mapping[str, Any],
        **options: Any,
    ) -> None:
        self._store, self._answer, self._user = store, answer, user
        self._options, self._background, self._work = _Options(**options), background, work
        self._worker: asyncio.Task[int] | None = None
        handlers: dict[Any, Any] = {HTTPException: _refused, 500: _broken}
        self._app = Starlette(routes=self._routes(), exception_handlers=handlers, lifespan=self._lifespan)

    def _routes(self) -> list[Route]:
        post, get = ["POST"], ["GET"]
        routes = []
        for path, protocol in (("/api/chat", _AISDK), ("/api/agent", _AGUI)):
            one = f"{path}/{{id:path}}"
            routes += [
                Route(path, self._endpoint(_ask, protocol), methods=post),
                Route(f"{one}/stream", self._endpoint(_follow, protocol), methods=get),
                Route(f"{one}/messages", self._endpoint(_messages, protocol), methods=get),
                Route(f"{one}/stop", self._endpoint(_stop, protocol), methods=post),
            ]
        routes += [
            Route("/api/chat", self._endpoint(_list, _AISDK), methods=get),
            Route("/api/chat/{id:path}", self._endpoint(_rename, _AISDK), methods=["PATCH"]),
            Route("/api/chat/{id:path}", self._endpoint(_delete, _AISDK), methods=["DELETE"]),
        ]
        return routes

    def _endpoint(
        self, handler: Callable[[_Call], Awaitable[Response]], protocol: _Protocol
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            store, user = await store_for(self._store, self._user, request)
            try:
                return await handler(_Call(request, store, user, protocol, self._options))
            except LangoStoreError as error:
                return _failed(error)
            except (ValueError, RecursionError) as error:
                return _error(400, str(error))

        return endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            self._begin_work()
        await self._app(scope, receive, send)

    def _begin_work(self) -> None:
        if not self._background and (self._worker is None or self._worker.done()):
            which = {"agent_id": self._options.agent_id, "key_prefix": self._options.key_prefix}
            chosen: Any = {name: value for name, value in which.items() if value}
            self._worker = asyncio.create_task(self._store.work(self._answer, **self._work, **chosen))
            self._worker.add_done_callback(_note_end)

    async def __aenter__(self) -> Self:
        self._begin_work()
        return self

    async def __aexit__(self, *_: object) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.wait([worker])

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self:
            yield


def _note_end(worker: asyncio.Task[int]) -> None:
    if not worker.cancelled() and (error := worker.exception()) is not None:
        logger.error("the worker of the chat has ended, the next request starts another one", exc_info=error)


class _Protocol(NamedTuple):
    """The functions of a protocol. `key` is the name of the conversation's id in a request."""

    key: str
    read: Callable[[Mapping[str, Any]], ui.ChatRequest]
    headers: list[tuple[bytes, bytes]]
    failure: Callable[[str], dict[str, Any]]


_AISDK: Final = _Protocol("id", ui.from_aisdk, HEADERS, lambda text: {"type": "error", "errorText": text})
_AGUI: Final = _Protocol("threadId", ui.from_agui, sse.HEADERS, lambda text: {"type": "RUN_ERROR", "message": text})


class _Call(NamedTuple):
    """A request of a user, with a store that has only the sessions of this user."""

    request: Request
    store: AsyncStore
    user: str | None
    protocol: _Protocol
    options: _Options

    def key(self, id: object) -> str:
        """Return the key of the session with an id in the protocol."""
        if not isinstance(id, str):
            raise ValueError("the id of the conversation is not text")
        return self.options.key_prefix + id

    async def find(self, id: object) -> AsyncConversation:
        """Return a conversation of the user; raise 404 for one of another agent."""
        conversation = self.store.conversation(self.key(id))
        info = await conversation.info()
        if self.options.agent_id not in (None, info.agent_id):
            raise HTTPException(404)
        return conversation

    def frames(
        self, conversation: AsyncConversation, turn: str | Awaited, *, run_id: str | None = None, **fields: Any
    ) -> AsyncGenerator[str, None]:
        """Return the stream of a turn."""
        heartbeat = self.options.heartbeat
        if self.protocol is _AGUI:
            return ui.agui(conversation, turn, run_id=run_id, heartbeat=heartbeat, **fields)
        return ui.aisdk(conversation, turn, heartbeat=heartbeat, **fields)

    async def stream(self, frames: AsyncGenerator[str, None]) -> Response:
        """Return a stream; raise the error of its first frame, because the others have no status."""
        first = await anext(frames)

        async def send() -> AsyncGenerator[str, None]:
            async with aclosing(frames):
                yield first
                try:
                    async for each in frames:
                        yield each
                except LangoStoreError as error:
                    logger.warning("the stream of a chat ended: %s", error)
                    yield streams.frame(self.protocol.failure("the stream has ended: load the conversation again"))

        headers = {name.decode(): value.decode() for name, value in self.protocol.headers}
        return StreamingResponse(send(), headers=headers)


async def _ask(call: _Call) -> Response:
    """Store what a request brings, and stream the turn that answers it."""
    body = await read_object(call.request, call.options.max_body)
    asked = call.protocol.read(body)
    id = body.get(call.protocol.key)
    if asked.message is not None and asked.kind == "message":
        await call.store.open(call.key(id), title=_title(asked), agent_id=call.options.agent_id)
    conversation = await call.find(id)
    options = call.options
    turn = await ui.submit(conversation, asked, client_tools=options.client_tools, by=call.user, busy=options.busy)
    if call.protocol is _AGUI:
        return await call.stream(call.frames(conversation, turn, run_id=asked.run_id))
    return await call.stream(call.frames(conversation, turn, continues=asked.kind in ("approval", "results")))


def _title(asked: ui.ChatRequest) -> str | None:
    """Return the first words of a question."""
    content = None if asked.message is None else asked.message.content
    if isinstance(content, list):
        content = next((each["text"] for each in content if each.get("type") == "text"), None)
    words = " ".join(content.split()) if isinstance(content, str) else ""
    return (words if len(words) <= _TITLE else f"{words[:_TITLE].rpartition(' ')[0] or words[:_TITLE]}…") or None


async def _follow(call: _Call) -> Response:
    """Stream the turn in progress or the one that is owed; 204 if there is none. With `follow`, stay for later ones."""
    conversation = await call.find(call.request.path_params["id"])
    position = sse.requested_position(call.request.scope)
    if call.protocol is _AGUI and call.request.query_params.get("follow") == "true":
        return await call.stream(runs(conversation, after=position, heartbeat=call.options.heartbeat))
    turn: str | Awaited = Awaited()
    state = await streams.find_turn(conversation, Awaited())
    if state.id is None and not state.is_owed:
        if call.protocol is not _AGUI or (asked := await streams.last_suspended(conversation)) is None:
            return Response(status_code=204)
        turn = asked  # its end has the interrupts
    if call.protocol is _AGUI:
        return await call.stream(call.frames(conversation, turn, after=position))
    return await call.stream(call.frames(conversation, turn, after=position, whole=True))


async def _messages(call: _Call) -> Response:
    """Return the stored messages, with the questions that wait."""
    conversation = await call.find(call.request.path_params["id"])
    session, waiting, suspensions = await streams.read(conversation, streams.load_page)
    if call.protocol is _AGUI:
        return JSONResponse(ui.agui_messages(session, waiting))
    return JSONResponse(ui.aisdk_messages(session, suspensions, waiting))


async def _stop(call: _Call) -> Response:
    """Stop the turn in progress; otherwise end the questions that wait, without an answer."""
    conversation = await call.find(call.request.path_params["id"])
    await conversation.turns.stop(by=call.user, owed=True)
    return Response(status_code=204)


async def _list(call: _Call) -> Response:
    """Return a page of the user's conversations."""
    prefix = call.options.key_prefix
    which: Any = {"agent_id": call.options.agent_id, "key_prefix": prefix}
    which = {name: value for name, value in which.items() if value} | ({} if "/" in prefix else _TOP_LEVEL)
    cursor = call.request.query_params.get("cursor") or None
    page = await call.store.list_sessions(limit=_CHATS, cursor=cursor, **which)
    items = [
        {"id": each.key.removeprefix(prefix), "title": each.title, "updated_at": each.updated_at.isoformat()}
        for each in page.items
    ]
    return JSONResponse({"items": items, "next": page.next})


async def _rename(call: _Call) -> Response:
    """Change the title of a conversation."""
    conversation = await call.find(call.request.path_params["id"])
    title = (await read_object(call.request, call.options.max_body)).get("title")
    if title is not None and not isinstance(title, str):
        raise ValueError("the title is not text")
    await conversation.update(title=title)
    return Response(status_code=204)


async def _delete(call: _Call) -> Response:
    """Delete a conversation with its descendants."""
    conversation = await call.find(call.request.path_params["id"])
    if not await call.store.delete(conversation.key, descendants=True):
        raise HTTPException(404)
    return Response(status_code=204)


def _failed(error: LangoStoreError) -> Response:
    """Return the response for an error of the store."""
    match error:
        case NotFound():
            return _error(404)
        case DatabaseBusy() | DatabaseUnavailable():
            logger.warning("a request of a chat has failed: %s", error)
            return _error(503, "The database is busy or not available: try again.")
        case ValueError():
            return _error(400, str(error))
    logger.info("a request of a chat was refused: %s", quoted(str(error)))
    return _error(409, str(error))


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code)


async def _broken(_: Request, error: Exception) -> Response:
    return _error(500, "The request has failed.")


def _error(status: int, text: str | None = None) -> Response:
    return JSONResponse({"error": text or _ERRORS.get(status, "The request was refused.")}, status)
