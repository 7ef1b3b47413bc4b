"""Requests of the applications: who sends them, and their JSON. Refused requests raise `HTTPException`."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from lango_store import SessionInfo
from lango_store.aio import AsyncConversation, AsyncStore
from lango_store.errors import (
    Conflict,
    DamagedDatabase,
    DatabaseBusy,
    DatabaseError,
    DatabaseUnavailable,
    LangoStoreError,
    NotFound,
    SchemaOutOfDate,
    SearchUnavailable,
    SessionHeld,
    StoreClosed,
    needs_extra,
)

with needs_extra("web"):
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse

_TRIES: Final = 100

_HELD: Final = "The conversation cannot be deleted: it is on hold, or other data refers to it."

_PROTECTED: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

GetUser = Callable[[Request], str | None | Awaitable[str | None]]
"""A function that returns the id of the user who sends a request; None if the request is not authenticated."""


def bearer_tokens(users: Mapping[str, str]) -> GetUser:
    """Return a function that finds the user of a request by its header `Authorization: Bearer TOKEN`.

    Args:
        users: The id of the user of each token. Clients of OpenAI send their API key as the token.
    """
    digests = {sha256(token.encode()).digest(): user for token, user in users.items()}

    def user(request: Request) -> str | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # A lookup by the digest takes a time that tells nothing about the tokens.
        return digests.get(sha256(token.strip().encode()).digest()) if scheme.lower() == "bearer" else None

    return user


def single_user(_: Request) -> str | None:
    """Stand for the one person who uses an application, for example on their own computer.

    This person reads and changes all sessions, also those without a `user_id` and those of other users. The sessions
    that the application creates have no `user_id`. Do not use it where others can reach the application.
    """
    return None


def check_arguments(store: object, user: object) -> None:
    """Raise `TypeError` if an application cannot have this store or this function."""
    if not isinstance(store, AsyncStore):
        raise TypeError(f"store is {type(store).__name__}: give an AsyncStore")
    if not callable(user):
        raise TypeError(f"user is {type(user).__name__}: give a function that returns the id of a request's user")


async def store_for(store: AsyncStore, user: GetUser, request: Request) -> tuple[AsyncStore, str | None]:
    """Return a store for the sessions that a request may reach, and the id of the user who sends the request."""
    if user is single_user:
        return store, None
    id = user(request)
    id = await id if inspect.isawaitable(id) else id
    if not id:
        raise HTTPException(401)
    return store.for_user(id), id


def _is_json(request: Request) -> bool:
    """Return True if a form of another site cannot send the request."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def refuse_forms(request: Request) -> None:
    """Refuse a request that needs no content if a page of another site can send it with the user's cookies."""
    is_elsewhere = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
    if is_elsewhere and request.method == "POST" and not _is_json(request):
        raise HTTPException(415)


async def read_object(request: Request, max_body: int) -> dict[str, Any]:
    """Return the JSON of a request. Raises `ValueError` or `RecursionError` if it is not an object."""
    if not _is_json(request):
        raise HTTPException(415)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_body:
                raise HTTPException(413)
    except ClientDisconnect:
        raise HTTPException(400) from None
    content = json.loads(body, parse_constant=_refuse_constant)
    if not isinstance(content, dict):
        raise ValueError("the request is not an object")
    return content


def headers_of_page(policy: str) -> dict[str, str]:
    """Return the headers of a page of a session, which other sites cannot read or frame."""
    return {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'", **_PROTECTED}


class AnyJSON(JSONResponse):
    """A response with JSON that may hold half of a surrogate pair, which is sent with the escapes of JSON."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content, allow_nan=False).encode()


def status_and_text(error: Exception) -> tuple[int, str | None]:
    """Return the status of the response to a request that has failed, and a text if the user may see one."""
    match error:
        case NotFound():
            return 404, None
        case DatabaseBusy() | DatabaseUnavailable() | SearchUnavailable():
            return 503, None
        case SessionHeld():  # its own text has the reason of the hold, or a table
            return 409, _HELD
        case ValueError() | RecursionError():  # an invalid key, cursor, number or JSON
            return 400, str(error)
        case DatabaseError() | DamagedDatabase() | SchemaOutOfDate() | StoreClosed():
            return 500, None
        case LangoStoreError():  # it may succeed later, or with another state of the session
            return 409, str(error)
    return 500, None


async def change_metadata(
    conversation: AsyncConversation, change: Callable[[dict[str, Any]], dict[str, Any]], **fields: Any
) -> SessionInfo:
    """Replace the metadata of a conversation, and fields. Raises `Conflict` if other writers always come first."""
    tries = 0
    while True:
        tries += 1
        info = await conversation.info()
        try:
            return await conversation.update(metadata=change(info.metadata), expect=info.revision, **fields)
        except Conflict:  # an append, for example, has changed the revision
            if tries == _TRIES:
                raise


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
