"""A chat over HTTP, in the protocols of the AI SDK, of AG-UI and of CopilotKit's runtime.

Each request only writes to the store. Workers answer: in this process, or in others that call `AsyncStore.work`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self

from lango_store import LangoStoreError, Page, SessionInfo, Store, following, sse, ui
from lango_store.aio import AsyncConversation, AsyncRunningTurn, AsyncStore
from lango_store.errors import NotFound, SessionNotFound, needs_extra, quoted
from lango_store.types import TurnLimit
from lango_store.ui import streams
from lango_store.ui.agui import runs
from lango_store.ui.aisdk import HEADERS
from lango_store.ui.streams import Awaited
from lango_store.web.requests import (
    AnyJSON,
    GetUser,
    change_metadata,
    check_arguments,
    read_object,
    refuse_forms,
    status_and_text,
    store_for,
)
from lango_store.web.shares import shares as shared_documents

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import BaseRoute, Mount, Route

logger = logging.getLogger("lango_store.web")

Handler = Callable[[AsyncConversation, AsyncRunningTurn], Awaitable[object]]
"""A function that answers a turn, as `AsyncStore.work` takes it."""
_Limit = TurnLimit | None
Limits = _Limit | Callable[[AsyncConversation], _Limit | Awaitable[_Limit]]
"""The budget of a turn, or a function that returns it, as `AsyncStore.work` takes it."""

_CHATS: Final = 50
_TITLE: Final = 60
_ARCHIVED: Final = "archived"  # in the metadata of a session
_AGENT: Final = "default"
_TOP_LEVEL: Final = {"top_level": True}
_ERRORS: Final = {  # the same for a conversation of another user and for one that does not exist
    401: "The request is not authenticated.",
    404: "There is no such conversation, approval or page.",
    405: "This method is not allowed here.",
    413: "The request is too large.",
    415: "The body is not JSON: send the content type application/json.",
    500: "The request has failed.",
    503: "The database is busy or not available: try again.",
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
    budget: Limits = None,
    heartbeat: timedelta = timedelta(seconds=15),
    max_body: int = 10 * 2**20,
    shares: bool = False,
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
        budget: The `Budget` of each turn, or a function of the conversation, as `AsyncStore.work` takes it. While a
            turn waits for it, streams of the AI SDK have parts of the type `data-waiting`. Defaults to none.
        heartbeat: How long a stream is silent before a comment is sent. Defaults to 15 seconds.
        max_body: The maximum size of a request, with its attachments, in bytes. Defaults to 10 MiB.
        shares: True if users may create links to their conversations, with `Conversation.share`. Anyone who has such a
            link can read the conversation so far, without authentication, at `/s/TOKEN` of this application. False by
            default.

    Returns:
        The application. It is an asynchronous context manager, which runs the worker: an application that mounts it
        can enter it in its own lifespan.

    Raises:
        TypeError: `store` is not an `AsyncStore`, or `answer` is not a coroutine function, or `user` is not callable.
    """
    check_arguments(store, user)
    if not callable(answer):
        raise TypeError(f"answer is {type(answer).__name__}: give a coroutine function of a conversation and a turn")
    work: dict[str, Any] = {"concurrency": concurrency, "lease": lease, "budget": budget}
    options = _Options(client_tools, busy, agent_id, key_prefix, heartbeat, max_body, shares)
    return Chat(store, answer, user, options, None if background else work)


class _Options(NamedTuple):
    """The options of `chat` for requests."""

    client_tools: Collection[str]
    busy: Literal["wait", "refuse"]
    agent_id: str | None
    key_prefix: str
    heartbeat: timedelta
    max_body: int
    shares: bool


class Chat:
    """The ASGI application that `chat` returns, and an asynchronous context manager that runs its worker."""

    def __init__(
        self, store: AsyncStore, answer: Handler, user: GetUser, options: _Options, work: dict[str, Any] | None
    ) -> None:
        self._store, self._answer, self._user, self._options, self._work = store, answer, user, options, work
        self._worker: asyncio.Task[int] | None = None
        handlers: dict[Any, Any] = {HTTPException: _failed, 500: _broken}
        self._app = Starlette(routes=self._routes(), exception_handlers=handlers, lifespan=self._lifespan)

    def _routes(self) -> list[BaseRoute]:
        one, runtime, thread = "/api/chat/{id:path}", "/api/copilotkit", "/api/copilotkit/threads/{id:path}"
        agent = f"{runtime}/agent/{self._options.agent_id or _AGENT}"
        of_both = [
            ("POST", "", _ask),
            ("GET", "/{id:path}/stream", _follow),
            ("GET", "/{id:path}/messages", _messages),
            ("POST", "/{id:path}/stop", _stop),
            ("POST", "/{id:path}/switch", _switch),
            ("POST", "/{id:path}/drop", _drop),
        ]
        of_shares = [("POST", f"{one}/share", _share, _AISDK), ("DELETE", f"{one}/share", _unshare, _AISDK)]
        handlers: list[tuple[str, str, _Handler, _Protocol]] = [
            *((method, f"/api/chat{path}", handler, _AISDK) for method, path, handler in of_both),
            *((method, f"/api/agent{path}", handler, _AGUI) for method, path, handler in of_both),
            *(of_shares if self._options.shares else ()),
            ("GET", "/api/chat", _list, _AISDK),
            ("PATCH", one, _change, _AISDK),
            ("DELETE", one, _delete, _AISDK),
            ("GET", f"{runtime}/info", _runtime, _AGUI),
            ("POST", f"{agent}/run", _ask, _AGUI),
            ("POST", f"{agent}/connect", _connect, _AGUI),
            ("POST", f"{agent}/stop/{{id:path}}", _stop, _AGUI),
            ("GET", f"{runtime}/threads", _threads, _AGUI),
            ("POST", f"{thread}/archive", partial(_change, archived=True), _AGUI),
            ("PATCH", thread, _change, _AGUI),
            ("DELETE", thread, _delete, _AGUI),
        ]
        documents = [Mount("/s", shared_documents(self._store))] if self._options.shares else []
        return [*documents, *(self._route(*each) for each in handlers)]

    def _route(self, method: str, path: str, handler: _Handler, protocol: _Protocol) -> Route:
        async def endpoint(request: Request) -> Response:
            refuse_forms(request)
            store, user = await store_for(self._store, self._user, request)
            try:
                return await handler(_Call(request, store, user, protocol, self._options))
            except (LangoStoreError, ValueError, RecursionError) as error:
                return await _failed(request, error)

        return Route(path, endpoint, methods=[method])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            self._begin_work()
        await self._app(scope, receive, send)

    def _begin_work(self) -> None:
        if self._work is not None and (self._worker is None or self._worker.done()):
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

    async def body(self) -> dict[str, Any]:
        """Return the JSON of the request."""
        return await read_object(self.request, self.options.max_body)

    async def named(self) -> AsyncConversation:
        """Return the conversation that the path names."""
        return await self.find(self.request.path_params["id"])

    async def find(self, id: object) -> AsyncConversation:
        """Return a conversation of the user; one of another agent is not found."""
        conversation = self.store.conversation(self.key(id))
        info = await conversation.info()
        if self.options.agent_id not in (None, info.agent_id):
            raise SessionNotFound(conversation.key)
        return conversation

    async def turn(self, conversation: AsyncConversation, turn: str | Awaited, **fields: Any) -> Response:
        """Return the stream of a turn."""
        frames: Any = ui.agui if self.protocol is _AGUI else ui.aisdk
        if self.protocol is _AGUI:
            fields["thread_id"] = self.id(conversation)
        return await self.stream(frames(conversation, turn, heartbeat=self.options.heartbeat, **fields))

    async def runs(self, conversation: AsyncConversation, **fields: Any) -> Response:
        """Return the stream of the runs of a thread."""
        heartbeat, thread_id = self.options.heartbeat, self.id(conversation)
        return await self.stream(runs(conversation, thread_id=thread_id, heartbeat=heartbeat, **fields))

    def id(self, conversation: AsyncConversation) -> str:
        """Return the id of a conversation in the protocol."""
        return conversation.key.removeprefix(self.options.key_prefix)

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


_Handler = Callable[[_Call], Awaitable[Response]]


async def _ask(call: _Call) -> Response:
    """Store what a request brings, and stream the turn that answers it."""
    body = await call.body()
    asked = call.protocol.read(body)
    id = body.get(call.protocol.key)
    if asked.message is not None and asked.kind == "message":
        await call.store.open(call.key(id), title=_title(asked), agent_id=call.options.agent_id)
    conversation = await call.find(id)
    options = call.options
    turn = await ui.submit(conversation, asked, client_tools=options.client_tools, by=call.user, busy=options.busy)
    if call.protocol is _AGUI:
        return await call.turn(conversation, turn, run_id=asked.run_id)
    return await call.turn(conversation, turn, continues=asked.kind in ("approval", "results"))


def _title(asked: ui.ChatRequest) -> str | None:
    """Return the first words of a question."""
    content = None if asked.message is None else asked.message.content
    if isinstance(content, list):
        content = next((each["text"] for each in content if each.get("type") == "text"), None)
    # A database cannot store a NUL or half of a surrogate pair as text.
    content = content.replace("\0", " ").encode(errors="ignore").decode() if isinstance(content, str) else ""
    words = " ".join(content.split())
    return (words if len(words) <= _TITLE else f"{words[:_TITLE].rpartition(' ')[0] or words[:_TITLE]}…") or None


async def _follow(call: _Call) -> Response:
    """Stream the turn in progress or the one that is owed; 204 if there is none. With `follow`, stay for later ones."""
    conversation = await call.named()
    position = sse.requested_position(call.request.scope)
    if call.protocol is _AGUI and call.request.query_params.get("follow") == "true":
        return await call.runs(conversation, after=position)
    start = await streams.read(conversation, following.newest, "")
    turn: str | Awaited = Awaited(after_turn=start.turn_no)
    state = await streams.find_turn(conversation, Awaited())
    if state.id is None and not state.is_owed:
        if call.protocol is not _AGUI or (asked := await streams.last_suspended(conversation)) is None:
            return Response(status_code=204)
        turn = asked  # its end has the interrupts
    if call.protocol is _AGUI:
        return await call.turn(conversation, turn, after=position)
    return await call.turn(conversation, turn, after=position, whole=True)


async def _messages(call: _Call) -> Response:
    """Return the stored messages, with the questions that wait."""
    conversation = await call.named()
    session, waiting, suspensions, alternatives = await streams.read(conversation, streams.load_page)
    if call.protocol is _AGUI:
        return AnyJSON(ui.agui_messages(session, waiting))
    return AnyJSON(ui.aisdk_messages(session, suspensions, waiting, alternatives))


async def _stop(call: _Call) -> Response:
    """Stop the turn in progress; otherwise end the questions that wait, without an answer."""
    conversation = await call.named()
    await conversation.turns.stop(by=call.user, owed=True)
    return Response(status_code=204)


async def _drop(call: _Call) -> Response:
    """Delete a question that waits, such as a reminder."""
    conversation = await call.named()
    id = (await call.body()).get("message")
    if not isinstance(id, str):
        raise ValueError("the id of the message is not text")
    await conversation.inbox.delete(id)
    return Response(status_code=204)


async def _switch(call: _Call) -> Response:
    """Show an alternative in the place of what the conversation shows."""
    conversation = await call.named()
    id = (await call.body()).get("alternative")
    if type(id) is not int:
        raise ValueError("the alternative is not a number")
    if await conversation.switch(id) and await ui.open_calls(conversation):
        await call.store.transact(partial(_owe_turn, conversation.key))  # it asks the user again
    return Response(status_code=204)


def _owe_turn(key: str, store: Store) -> None:
    """Note that a session is owed a turn, unless it already is, for example because a message waits in its inbox."""
    conversation = store.conversation(key)
    store.touch(key)  # locks the session: nothing is appended or put into the inbox until the commit
    if not store._context.read(following.next_turn, key).is_owed:
        conversation.inbox.put_messages([], replace_after=conversation.info().last_seq)


async def _sessions(call: _Call, *, archived: bool | None) -> Page[SessionInfo]:
    """Return a page of the user's conversations: those that are archived, those that are not, or with None, all."""
    query, prefix = call.request.query_params, call.options.key_prefix
    which: Any = {"agent_id": call.options.agent_id, "key_prefix": prefix}
    which = {name: value for name, value in which.items() if value} | ({} if "/" in prefix else _TOP_LEVEL)
    limit = min(int(query.get("limit", _CHATS)), _CHATS)
    page = await call.store.list_sessions(limit=limit, cursor=query.get("cursor") or None, **which)
    return Page(items=[each for each in page.items if archived in (None, _is_archived(each))], next=page.next)


def _is_archived(info: SessionInfo) -> bool:
    return info.metadata.get(_ARCHIVED) is True


async def _list(call: _Call) -> Response:
    """Return a page of the user's conversations."""
    status = call.request.query_params.get("status")
    if status not in (None, "regular", "archived"):
        raise ValueError("the status is neither regular nor archived")
    page = await _sessions(call, archived=None if status is None else status == "archived")
    items = [
        {
            "id": each.key.removeprefix(call.options.key_prefix),
            "title": each.title,
            "updated_at": each.updated_at.isoformat(),
            "status": "archived" if _is_archived(each) else "regular",
        }
        for each in page.items
    ]
    return AnyJSON({"items": items, "next": page.next} | ({"shares": True} if call.options.shares else {}))


async def _share(call: _Call) -> Response:
    """Create a link to a conversation."""
    conversation = await call.named()
    tools = (await call.body()).get("tools") is True
    share = await conversation.share(tools=tools, by=call.user)
    return AnyJSON({"id": share.id, "path": f"s/{share.token}"})


async def _unshare(call: _Call) -> Response:
    """Remove all links to a conversation."""
    conversation = await call.named()
    await conversation.unshare()
    return Response(status_code=204)


async def _change(call: _Call, *, archived: bool | None = None) -> Response:
    """Change the title of a conversation, which CopilotKit calls its name, or whether it is archived."""
    body = await call.body()
    conversation = await call.named()
    title, archived = body.get("title", body.get("name")), body.get(_ARCHIVED, archived)
    if not isinstance(title, str | None) or not isinstance(archived, bool | None):
        raise ValueError("the title is not text, or archived is not true or false")
    changes: Any = {"title": title} if {"title", "name"} & body.keys() else {}
    if archived is not None:
        await change_metadata(conversation, lambda metadata: metadata | {_ARCHIVED: archived}, **changes)
    elif changes:
        await conversation.update(**changes)
    return Response(status_code=204)


async def _delete(call: _Call) -> Response:
    """Delete a conversation with its descendants."""
    conversation = await call.named()
    if not await call.store.delete(conversation.key, descendants=True):
        raise HTTPException(404)
    return Response(status_code=204)


# The routes of a runtime of CopilotKit


async def _runtime(call: _Call) -> Response:
    """Describe the agent and the routes to CopilotKit's client."""
    name = call.options.agent_id or _AGENT
    threads = {"list": True, "inspect": False, "mutations": True, "realtimeMetadata": False}
    agents = {name: {"name": name, "className": "", "description": ""}}
    return AnyJSON({"mode": "sse", "agents": agents, "threadEndpoints": threads, "telemetryDisabled": True})


async def _connect(call: _Call) -> Response:
    """Stream the messages, and the turn in progress or owed. With the property `follow`, stay for later turns."""
    body = await call.body()
    properties = body.get("forwardedProps")
    follow = isinstance(properties, dict) and properties.get("follow") is True
    try:
        conversation = await call.find(body.get(call.protocol.key))
    except NotFound:  # the first question will create it
        return Response(media_type="text/event-stream")
    return await call.runs(conversation, whole=True, follow=follow)


async def _threads(call: _Call) -> Response:
    """Return a page of the user's conversations as threads."""
    whole = call.request.query_params.get("includeArchived") == "true"
    page = await _sessions(call, archived=None if whole else False)
    threads = [
        {
            "id": each.key.removeprefix(call.options.key_prefix),
            "agentId": call.options.agent_id or _AGENT,
            "name": each.title,
            "archived": _is_archived(each),
            "createdAt": each.created_at.isoformat(),
            "updatedAt": each.updated_at.isoformat(),
        }
        for each in page.items
    ]
    return AnyJSON({"threads": threads, "nextCursor": page.next})


async def _broken(_: Request, __: Exception) -> Response:
    return AnyJSON({"error": _ERRORS[500]}, 500)


async def _failed(_: Request, error: Exception) -> Response:
    """Return the response to a request that was refused or has failed."""
    status, text = (error.status_code, None) if isinstance(error, HTTPException) else status_and_text(error)
    if isinstance(error, LangoStoreError) and status not in (400, 404):
        level = logging.INFO if status == 409 else logging.WARNING if status == 503 else logging.ERROR
        logger.log(level, "a request of a chat has failed: %s", quoted(str(error)))
    return AnyJSON({"error": text or _ERRORS.get(status, "The request was refused.")}, status)
